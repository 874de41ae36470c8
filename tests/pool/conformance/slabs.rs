//! Small blocks in slabs: whose a slot is, and behind what its memory serves others.

use crate::common::BackendOf;
use std::collections::BTreeSet;

use super::common::stamps::Stamps;
use super::common::{Gate, on_every_device};
use super::whole;
use warpool::{Block, Device, Error, Pool, PoolConfig, Stream};

on_every_device! {
    slots_freed_on_several_streams_are_waited_for_before_their_slab_serves_another,
    slots_of_dropped_streams_are_freed_behind_their_work,
    slots_that_outlive_their_pool_are_named_and_give_their_memory_back,
    a_request_at_the_limit_takes_a_slot_of_another_streams_slab,
    a_refused_request_counts_no_free_slot_as_live,
    a_slab_made_above_many_with_pending_slots_serves_its_request,
    typed_memory_is_aligned_whatever_room_or_length_it_has,
}

fn typed_memory_is_aligned_whatever_room_or_length_it_has(device: &Device) {
    #[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
    #[repr(C, align(64))]
    struct Wide([u8; 64]);
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    for room in [64, 80, 100, 130, 5000] {
        let each = (0..8).map(|_| {
            pool.alloc_typed_with_room::<Wide>(&stream, 1, room)
                .unwrap()
        });
        assert!(
            each.collect::<Vec<_>>()
                .iter()
                .all(|it| it.addr() % 64 == 0),
            "{room}"
        );
    }
    let empty = [(); 8].map(|()| pool.alloc_typed::<Wide>(&stream, 0).unwrap());
    assert!(empty.iter().all(|it| it.addr() % 64 == 0));
}

fn small_handles() -> PoolConfig {
    super::small_handles().slabs(true)
}

/// A pool that may hold `granules` granules.
fn limited(device: &Device, granules: u64) -> Pool {
    let limit = granules * device.info().granule;
    Pool::new(device, small_handles().limit(limit)).unwrap()
}

/// No multiple of a unit, so a slot.
const BYTES: u64 = 300;

fn slots(pool: &Pool, stream: &Stream, count: usize) -> Vec<Block> {
    let one = |_| pool.alloc(stream, BYTES).unwrap();
    let blocks: Vec<Block> = (0..count).map(one).collect();
    assert!(blocks.iter().all(|block| block.capacity() == 304));
    blocks
}

/// Uses blocks of `first` there behind a gate and half of them on `second` after that, frees each on
/// the stream that used it last, calls `end`, and takes the only granule on a third stream.
fn serve_a_third(device: &Device, end: impl FnOnce(Stream, Stream)) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 1);
    let granule = device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = slots(&pool, &first, 64);
    let gate = Gate::close(&first);
    for (block, seed) in blocks.iter().zip(0..) {
        stamps.stamp(&first, block, seed);
        stamps.verify(&first, block, seed);
    }
    second.wait_stream(&first).unwrap();
    for (block, seed) in blocks.into_iter().zip(0..) {
        if seed % 2 == 1 {
            stamps.verify(&second, &block, seed);
            block.free_on(&second).unwrap();
        }
    }
    end(first, second);
    let third = device.stream().unwrap();
    let all = pool.alloc(&third, granule).unwrap();
    stamps.stamp(&third, &all, 1000);
    stamps.verify(&third, &all, 1000);
    assert!(!third.is_idle().unwrap(), "the third stream runs ahead");
    whole(&pool);
    gate.open();
    third.synchronize().unwrap();
    stamps.assert_clean(device, 96 * BYTES + granule);
}

fn slots_freed_on_several_streams_are_waited_for_before_their_slab_serves_another(device: &Device) {
    let mut kept = None;
    serve_a_third(device, |first, second| kept = Some((first, second)));
}

fn slots_of_dropped_streams_are_freed_behind_their_work(device: &Device) {
    serve_a_third(device, |first, second| drop((first, second)));
}

fn slots_that_outlive_their_pool_are_named_and_give_their_memory_back(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let mut blocks = slots(&pool, &stream, 100);
    blocks.truncate(70);
    let live: BTreeSet<u64> = blocks.iter().map(Block::addr).collect();
    let report = pool.leak_report();
    let named: BTreeSet<u64> = report.blocks.iter().map(|block| block.addr).collect();
    assert_eq!(named, live);
    drop((pool, stream));
    assert_ne!(device.backend().counts().handles, 0);
    drop(blocks);
    let counts = device.backend().counts();
    assert_eq!((counts.handles, counts.mappings, counts.ranges), (0, 0, 0));
}

fn a_refused_request_counts_no_free_slot_as_live(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 1);
    let stream = device.stream().unwrap();
    let mut blocks = slots(&pool, &stream, 100);
    blocks.truncate(70);
    let Err(Error::OutOfMemory(figures)) = pool.alloc(&stream, 2 * granule) else {
        panic!("it does not fit");
    };
    assert_eq!(figures.live, 70 * 304);
    assert_eq!(figures.live, pool.stats().allocated.current);
}

fn a_request_at_the_limit_takes_a_slot_of_another_streams_slab(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 1);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let mut blocks = Vec::new();
    while let Ok(block) = pool.alloc(&first, BYTES) {
        blocks.push(block);
    }
    assert!(pool.alloc(&second, BYTES).is_err());
    let gate = Gate::close(&first);
    let block = blocks.swap_remove(blocks.len() / 2);
    let addr = block.addr();
    stamps.stamp(&first, &block, 1);
    stamps.verify(&first, &block, 1);
    drop(block);
    let block = pool.alloc(&second, BYTES).unwrap();
    assert_eq!(block.addr(), addr, "there is no other memory");
    stamps.stamp(&second, &block, 2);
    stamps.verify(&second, &block, 2);
    assert!(!second.is_idle().unwrap(), "the second stream runs ahead");
    gate.open();
    second.synchronize().unwrap();
    stamps.assert_clean(device, 2 * BYTES);
    whole(&pool);
}

/// More slabs are at lower addresses than are looked at for a slot, none with one that is ready.
fn a_slab_made_above_many_with_pending_slots_serves_its_request(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let mut blocks = slots(&pool, &first, 4000);
    second.wait_stream(&first).unwrap();
    let gate = Gate::close(&second);
    for at in (0..200).rev() {
        blocks.swap_remove(at * 20).free_on(&second).unwrap();
    }
    // What the second stream keeps is freed into the slabs.
    pool.trim(u64::MAX).unwrap();
    let before = pool.stats().steps.waits;
    blocks.extend(slots(&pool, &first, 100));
    whole(&pool);
    assert_eq!(pool.stats().steps.waits, before);
    gate.open();
    second.synchronize().unwrap();
    drop(blocks);
    whole(&pool);
}
