//! Asking what compaction would do changes nothing.

use super::common::on_every_device;
use super::{small_handles, whole};
use crate::common::BackendOf;
use warpool::compact::{Goal, Planner};
use warpool::device::sim::Rng;
use warpool::{Block, Device, Pool, Stream};

on_every_device! {
    asking_what_compaction_would_do_takes_nothing_from_the_device,
    a_program_that_asks_what_compaction_would_do_reserves_what_it_does_without,
    what_was_asked_for_before_the_first_movable_block_holds_from_then_on,
}

/// Every call that only looks, or says how to look.
fn ask(pool: &Pool) {
    pool.layout().unwrap();
    pool.plan_compaction(&Goal::Full).unwrap();
    pool.plan_compaction(&Goal::Hole(8 << 20)).unwrap();
    pool.set_planner(Planner::new()).unwrap();
    pool.record_steps(true).unwrap();
    assert!(pool.take_steps().unwrap().is_empty());
    pool.record_steps(false).unwrap();
}

fn asking_what_compaction_would_do_takes_nothing_from_the_device(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let (block, cached) = (pool.alloc(&stream, 4096), pool.alloc(&stream, 8192));
    drop(cached.unwrap());
    let counts = device.backend().counts();
    let stats = pool.stats().to_string();
    ask(&pool);
    assert_eq!(device.backend().counts(), counts);
    assert_eq!(pool.stats().to_string(), stats);
    // What is in a cache counts as free.
    let layout = pool.layout().unwrap();
    assert_eq!(layout.free_bytes(), device.info().granule - 4096);
    assert_eq!(layout.largest_hole(), layout.free_bytes());
    drop(block);
    whole(&pool);
}

/// Steps of a program of blocks of a few granules, whose ends share handles; gives what the pool
/// reserved after each.
fn reserved(device: &Device, mut beside: impl FnMut(&Pool)) -> Vec<u64> {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles().slack(0.0)).unwrap();
    let stream: Stream = device.stream().unwrap();
    let mut rng = Rng::new(5);
    let mut live: Vec<Block> = Vec::new();
    let mut after = Vec::new();
    for _ in 0..600 {
        if live.len() > 24 {
            let at = rng.below(live.len() as u64) as usize;
            drop(live.swap_remove(at));
        }
        let bytes = granule / 2 + rng.below(4 * granule);
        live.push(pool.alloc(&stream, bytes).unwrap());
        beside(&pool);
        after.push(pool.stats().reserved.current);
    }
    whole(&pool);
    after
}

fn a_program_that_asks_what_compaction_would_do_reserves_what_it_does_without(device: &Device) {
    let without = reserved(device, |_| {});
    let mut step = 0;
    let with = reserved(device, |pool| {
        step += 1;
        if step % 50 == 1 {
            ask(pool);
        }
    });
    assert_eq!(with, without);
}

fn what_was_asked_for_before_the_first_movable_block_holds_from_then_on(device: &Device) {
    let granule = device.info().granule as usize;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    pool.record_steps(true).unwrap();
    let mut blocks: Vec<_> = (0..8)
        .map(|_| pool.alloc_movable::<u8>(&stream, granule / 4).unwrap())
        .collect();
    blocks.remove(1);
    blocks.remove(3);
    let moved = pool.compact(&Goal::Full).unwrap();
    assert!(moved.bytes > 0);
    assert!(!pool.take_steps().unwrap().is_empty());
    whole(&pool);
}
