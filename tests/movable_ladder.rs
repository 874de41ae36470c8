//! Requests that only compaction can serve, up to a pool that is full.

mod common;

#[path = "common/churn.rs"]
mod churn;

use churn::{CARD, Churned};
use common::on_every_device;
use warpool::compact::Goal;
use warpool::device::DeviceKind;
use warpool::{Device, Pool, PoolConfig};

on_every_device! {
    requests_succeed_until_97_percent_of_the_card_are_live,
    a_full_compaction_leaves_the_churned_card_with_one_hole,
    a_pool_full_of_movable_blocks_serves_every_free_byte_as_one_block,
    memory_that_lies_apart_is_brought_together_without_copying,
}

/// The card of the report on a GPU that has it, a small one elsewhere.
fn cap(device: &Device) -> u64 {
    let info = device.info();
    let whole = info.kind == DeviceKind::Cuda && info.total_bytes > CARD + CARD / 4;
    if whole { CARD } else { 256 << 20 }
}

fn churned(device: &Device) -> Churned {
    let cap = cap(device);
    let pool = Pool::new(device, PoolConfig::default().limit(cap)).unwrap();
    Churned::new(device, pool, cap)
}

fn requests_succeed_until_97_percent_of_the_card_are_live(device: &Device) {
    let mut card = churned(device);
    let mut served = 0;
    let refused = loop {
        match card.alloc(card.request()) {
            Ok(()) => served += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.is_out_of_memory(), "{refused}");
    let live = card.live_bytes() as f64 / card.cap as f64;
    assert!(live >= 0.97, "{live} live after {served}: {refused}");
    assert!(card.pool.stats().steps.relieved > 0);
    card.pool.check_invariants().unwrap();
    card.verify();
}

fn a_full_compaction_leaves_the_churned_card_with_one_hole(device: &Device) {
    let card = churned(device);
    let before = card.pool.stats();
    let moved = card.pool.compact(&Goal::Full).unwrap();
    assert!(moved.reached && moved.bytes > card.cap / 4);
    let after = card.pool.stats();
    assert!(after.largest_hole > 10 * before.largest_hole);
    let free = after.reserved.current - after.allocated.current;
    assert!(
        after.largest_hole > free / 10 * 9,
        "{} of {free}",
        after.largest_hole
    );
    card.pool.check_invariants().unwrap();
    card.verify();
}

fn a_pool_full_of_movable_blocks_serves_every_free_byte_as_one_block(device: &Device) {
    let mut card = churned(device);
    // What the pool may hold, in handles.
    let granule = device.info().granule;
    let free = card.cap / granule * granule - card.live_bytes();
    card.alloc(free).unwrap();
    card.pool.check_invariants().unwrap();
    assert!(card.alloc(1).unwrap_err().is_out_of_memory());
    card.verify();
}

fn memory_that_lies_apart_is_brought_together_without_copying(device: &Device) {
    const MIB: u64 = 1 << 20;
    let pool = Pool::new(device, PoolConfig::default().limit(24 * MIB)).unwrap();
    let stream = device.stream().unwrap();
    let low = pool
        .alloc_movable::<u64>(&stream, (2 * MIB / 8) as usize)
        .unwrap();
    let middle = pool.alloc(&stream, 8 * MIB).unwrap();
    let mut high = pool
        .alloc_movable::<u64>(&stream, (6 * MIB / 8) as usize)
        .unwrap();
    let words: Vec<u64> = (0..high.len() as u64).collect();
    high.upload(&stream, &words).unwrap();
    // The middle's handles go to a larger request behind it all, which leaves a gap.
    drop(middle);
    let large = pool.alloc(&stream, 14 * MIB).unwrap();
    assert!(pool.stats().steps.steal > 0);
    drop((large, low));
    let moved = pool.stats().bytes_moved;
    let all = pool
        .alloc_movable::<u8>(&stream, (18 * MIB) as usize)
        .unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(high.download(&stream).unwrap(), words);
    assert!(pool.stats().bytes_moved - moved <= 6 * MIB);
    drop(all);
}
