//! Lives that end in any order: streams, pools, blocks, the process.

use crate::common::BackendOf;
use std::any::Any;
use std::process::Command;
use std::sync::Arc;

use super::common::stamps::Stamps;
use super::common::{self, Gate, fill, on_every_device, read};
use super::{limited, small_handles, whole};
use warpool::device::HandleCounts;
use warpool::{Device, Pool};

on_every_device! {
    blocks_streams_events_and_pools_may_be_dropped_in_any_order,
    a_stream_dropped_with_frees_pending_loses_nothing,
    a_block_outlives_its_stream_and_its_pool,
    a_pool_without_a_handle_gives_its_memory_back_with_its_last_block,
    an_adopted_stream_is_followed_through_its_drop_and_its_return,
    what_a_stream_frees_before_and_after_it_is_adopted_again_serves_one_request_of_it,
    a_second_stream_with_the_handle_of_a_destroyed_one_is_not_taken_for_it,
    streams_that_come_and_go_leave_nothing_behind,
    several_pools_on_one_device_keep_apart,
}

/// Every order of the numbers below `n`.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    let places = |order: Vec<usize>| {
        (0..n).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, n - 1);
            longer
        })
    };
    shorter.into_iter().flat_map(places).collect()
}

fn blocks_streams_events_and_pools_may_be_dropped_in_any_order(device: &Device) {
    for order in orders(5) {
        let start = device.backend().counts();
        let pool = Pool::new(device, small_handles()).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let block = pool.alloc(&first, 4096).unwrap();
        fill(&first, block.addr(), 1, 4096);
        let event = device.event().unwrap();
        event.record(&first).unwrap();
        second.wait(&event).unwrap();
        let mut other = pool.alloc(&second, 4096).unwrap();
        other.record_use(&first).unwrap();
        drop(pool.alloc(&second, 8192).unwrap());
        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new((block, other))),
            Some(Box::new(first)),
            Some(Box::new(second)),
            Some(Box::new(event)),
            Some(Box::new(pool)),
        ];
        for &at in &order {
            things[at] = None;
        }
        let mut end = device.backend().counts();
        // Events are kept for the next use.
        end.events = start.events;
        assert_eq!(end, start, "{order:?}");
    }
}

fn a_stream_dropped_with_frees_pending_loses_nothing(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 2);
    let bytes = 2 * device.info().granule;
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, bytes).unwrap();
    let gate = Gate::close(&first);
    stamps.stamp(&first, &block, 1);
    stamps.verify(&first, &block, 1);
    drop(block);
    drop(first);
    let block = pool.alloc(&second, bytes).unwrap();
    stamps.stamp(&second, &block, 2);
    stamps.verify(&second, &block, 2);
    assert!(!second.is_idle().unwrap(), "the second stream runs ahead");
    gate.open();
    second.synchronize().unwrap();
    stamps.assert_clean(device, 2 * bytes);
    whole(&pool);
}

fn a_block_outlives_its_stream_and_its_pool(device: &Device) {
    let pool = limited(device, 1);
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 4096).unwrap();
    fill(&stream, block.addr(), 0x77, 4096);
    let reader = device.stream().unwrap();
    reader.wait_stream(&stream).unwrap();
    drop((stream, pool));
    assert!(
        read(&reader, block.addr(), 4096)
            .iter()
            .all(|&byte| byte == 0x77)
    );
}

fn a_pool_without_a_handle_gives_its_memory_back_with_its_last_block(device: &Device) {
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    for freed_elsewhere in [false, true] {
        let pool = Pool::new(device, small_handles()).unwrap();
        let blocks = [512, 4096].map(|bytes| pool.alloc(&stream, bytes).unwrap());
        drop(pool);
        assert_ne!(device.backend().counts().handles, 0);
        for block in blocks {
            if freed_elsewhere {
                other.wait_stream(&stream).unwrap();
                block.free_on(&other).unwrap();
            }
        }
        let counts = device.backend().counts();
        assert_eq!((counts.handles, counts.mappings, counts.ranges), (0, 0, 0));
    }
}

fn an_adopted_stream_is_followed_through_its_drop_and_its_return(device: &Device) {
    let pool = limited(device, 1);
    let bytes = device.info().granule;
    let raw = device.backend().stream_create().unwrap();
    for _ in 0..3 {
        // SAFETY: the stream lives to the end of this test.
        let stream = unsafe { device.adopt_stream(raw) }.unwrap();
        let block = pool.alloc(&stream, bytes).unwrap();
        fill(&stream, block.addr(), 1, bytes);
        drop(stream);
        // SAFETY: as above.
        let again = unsafe { device.adopt_stream(raw) }.unwrap();
        assert!(pool.alloc(&again, bytes).is_err(), "the block is live");
        drop(block);
        let waits = pool.stats().steps.waits;
        let block = pool.alloc(&again, bytes).unwrap();
        assert_eq!(pool.stats().steps.waits, waits, "it is one stream");
        drop((again, block));
        whole(&pool);
    }
    drop(pool);
    device.backend().stream_destroy(raw).unwrap();
}

fn what_a_stream_frees_before_and_after_it_is_adopted_again_serves_one_request_of_it(
    device: &Device,
) {
    let pool = limited(device, 1);
    let bytes = device.info().granule;
    let raw = device.backend().stream_create().unwrap();
    // SAFETY: the stream lives to the end of this test.
    let stream = unsafe { device.adopt_stream(raw) }.unwrap();
    let lower = pool.alloc(&stream, bytes / 2).unwrap();
    let gate = Gate::close(&stream);
    fill(&stream, lower.addr(), 1, bytes / 2);
    drop(stream);
    // SAFETY: as above.
    let again = unsafe { device.adopt_stream(raw) }.unwrap();
    let upper = pool.alloc(&again, bytes / 2).unwrap();
    drop((lower, upper));
    let both = pool.alloc(&again, bytes).unwrap();
    assert_eq!(pool.stats().steps.waits, 0, "it is one stream");
    gate.open();
    again.synchronize().unwrap();
    drop((both, again));
    whole(&pool);
    drop(pool);
    device.backend().stream_destroy(raw).unwrap();
}

fn a_second_stream_with_the_handle_of_a_destroyed_one_is_not_taken_for_it(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = limited(device, 1);
    let bytes = device.info().granule;
    let backend = device.backend();
    let raw = backend.stream_create().unwrap();
    // SAFETY: the stream lives until it and its blocks are dropped.
    let first = unsafe { device.adopt_stream(raw) }.unwrap();
    let first_id = first.id();
    let block = pool.alloc(&first, bytes).unwrap();
    let gate = Gate::close(&first);
    stamps.stamp(&first, &block, 1);
    stamps.verify(&first, &block, 1);
    drop((block, first));
    backend.stream_destroy(raw).unwrap();
    // Drivers give the value of a destroyed handle again; whether or not this one does now, the
    // next stream is another.
    let raw = backend.stream_create().unwrap();
    // SAFETY: as above.
    let second = unsafe { device.adopt_stream(raw) }.unwrap();
    assert_ne!(second.id(), first_id);
    let block = pool.alloc(&second, bytes).unwrap();
    stamps.stamp(&second, &block, 2);
    stamps.verify(&second, &block, 2);
    assert_eq!(pool.stats().steps.waits, 1);
    gate.open();
    second.synchronize().unwrap();
    stamps.assert_clean(device, 2 * bytes);
    drop((block, second, pool));
    backend.stream_destroy(raw).unwrap();
}

fn streams_that_come_and_go_leave_nothing_behind(device: &Device) {
    let pool = limited(device, 2);
    let kept = device.stream().unwrap();
    let rounds = crate::common::rounds(200);
    for _ in 0..rounds {
        let stream = device.stream().unwrap();
        let block = pool.alloc(&stream, 2 * device.info().granule).unwrap();
        fill(&stream, block.addr(), 1, 4096);
        drop(block);
        drop(pool.alloc(&kept, 512).unwrap());
    }
    whole(&pool);
    let stats = pool.stats();
    let allocated = 2 * rounds as u64;
    assert_eq!(
        (stats.blocks.current, stats.blocks.allocated),
        (0, allocated)
    );
    assert_eq!(stats.failures, 0);
    assert!(
        stats.streams.len() < 10,
        "figures of gone streams are summed"
    );
    assert_eq!(device.backend().counts().streams, 1);
}

fn several_pools_on_one_device_keep_apart(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pools = [limited(device, 1), limited(device, 2)];
    let stream = device.stream().unwrap();
    let blocks = [0, 1].map(|i: usize| pools[i].alloc(&stream, (i as u64 + 1) * granule).unwrap());
    for block in &blocks {
        stamps.stamp(&stream, block, block.addr());
    }
    assert!(
        pools[0].alloc(&stream, 512).is_err(),
        "its own limit is reached"
    );
    for block in &blocks {
        stamps.verify(&stream, block, block.addr());
    }
    drop(blocks);
    assert!(
        pools[0].alloc(&stream, 2 * granule).is_err(),
        "and stays its own"
    );
    stream.synchronize().unwrap();
    stamps.assert_clean(device, 3 * granule);
    for pool in &pools {
        assert_eq!(pool.stats().allocated.current, 0);
        whole(pool);
    }
}

/// Set in the child process that exits with live blocks.
const EXIT: &str = "WARPOOL_TEST_EXITS_WITH_LIVE_BLOCKS";

fn exit_with_live_blocks(device: &Device) -> ! {
    let pool = Pool::new(device, small_handles()).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let blocks: Vec<_> = (0..8)
        .map(|i| pool.alloc(&streams[i % 2], 1 << 20).unwrap())
        .collect();
    drop(pool.alloc(&streams[0], 4096).unwrap());
    // One thread's end runs while another still holds everything.
    let held = (pool.clone(), streams[0].clone());
    std::thread::spawn(move || drop(held.0.alloc(&held.1, 512)))
        .join()
        .unwrap();
    std::mem::forget((pool, streams, blocks));
    std::process::exit(7);
}

#[test]
fn a_process_may_exit_with_live_blocks() {
    if let Ok(kind) = std::env::var(EXIT) {
        let device = match kind.as_str() {
            "host" => Some(common::host()),
            _ => common::cuda(),
        };
        exit_with_live_blocks(&device.expect("the parent has seen it"));
    }
    let kinds = ["host"].into_iter().chain(common::cuda().map(|_| "cuda"));
    for kind in kinds {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "conformance::lifetimes::a_process_may_exit_with_live_blocks",
        ]);
        let output = child.env(EXIT, kind).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{kind}: {output:?}");
    }
}

// Not on a GPU, where one thread runs the host calls of all streams: none can run while another is
// held up.

#[test]
fn a_pool_dropped_in_a_host_call_keeps_its_memory_until_the_work_on_it_is_done() {
    leaving_nothing_late(pool_dropped_in_a_host_call);
}

#[test]
fn movable_memory_dropped_in_a_host_call_goes_when_its_moves_are_done() {
    leaving_nothing_late(movable_memory_dropped_in_a_host_call);
}

/// Runs `test` on a host device, which must have all back in the end, from another thread.
fn leaving_nothing_late(test: impl FnOnce(&Device)) {
    let device = common::host();
    let backend = Arc::clone(device.backend());
    test(&device);
    drop(device);
    let mut tries = 0..2000;
    while backend.counts() != HandleCounts::default() {
        assert!(tries.next().is_some(), "{:?}", backend.counts());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn pool_dropped_in_a_host_call(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let (busy, caller) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&busy, 4 * granule).unwrap();
    let gate = Gate::close(&busy);
    // Would fault, were the memory unmapped.
    fill(&busy, block.addr(), 7, 4 * granule);
    drop(block);
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        drop(pool);
        tell.send(()).unwrap();
    });
    device.backend().host_call(caller.raw(), work).unwrap();
    told.recv().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(device.backend().counts().bytes, 4 * granule, "kept");
    gate.open();
    busy.synchronize().unwrap();
    caller.synchronize().unwrap();
}

fn movable_memory_dropped_in_a_host_call(device: &Device) {
    let part = device.info().granule as usize / 4;
    let pool = Pool::new(device, small_handles()).unwrap();
    let (home, reader, caller) = (
        device.stream().unwrap(),
        device.stream().unwrap(),
        device.stream().unwrap(),
    );
    let mut blocks: Vec<_> = (0..8)
        .map(|_| pool.alloc_movable::<u8>(&home, part).unwrap())
        .collect();
    blocks.remove(0);
    blocks.remove(2);
    let table = pool.address_table().unwrap();
    let gate = Gate::close(&reader);
    for block in &blocks {
        let pin = block.hold(&reader).unwrap();
        fill(&reader, pin.addr(), 3, part as u64);
    }
    // The moves are queued behind that work, and read their tables when they run.
    assert!(pool.compact(&warpool::compact::Goal::Full).unwrap().bytes > 0);
    let before = device.backend().counts().bytes;
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        drop((blocks, table, pool));
        tell.send(()).unwrap();
    });
    device.backend().host_call(caller.raw(), work).unwrap();
    told.recv().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(device.backend().counts().bytes, before, "kept");
    gate.open();
    for stream in [&home, &reader, &caller] {
        stream.synchronize().unwrap();
    }
}
