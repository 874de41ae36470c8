//! Who reads figures, what they wait for, and what the figures are.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::{Sums, Totals};
use crate::device::lock;
use crate::{Device, Pool, PoolConfig};

/// Far above what anything here takes that waits for nobody.
const LONG: Duration = Duration::from_secs(20);

fn host() -> Device {
    Device::host().unwrap()
}

#[test]
fn reading_statistics_while_the_core_is_locked_does_not_wait() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 4096).unwrap();
    let (done, told) = channel();
    let before = pool.stats();
    let core = pool.shared().core.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(pool.stats()).is_ok());
        let read = told.recv_timeout(LONG);
        drop(core);
        let stats = read.expect("it waits for the core");
        assert_eq!(stats.allocated.current, 4096);
        assert_eq!(stats.largest_hole, before.largest_hole);
        assert_eq!(stats.steps, before.steps);
    });
    drop(block);
}

#[test]
fn an_allocation_does_not_wait_for_who_reads_statistics() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, 4096).unwrap();
    let (done, told) = channel();
    let reading = lock(&pool.shared().counts.ledger);
    std::thread::scope(|scope| {
        // A lane that is new, and memory that is.
        scope.spawn(|| done.send(pool.alloc(&second, 64 << 20).map(drop)));
        let allocated = told.recv_timeout(LONG);
        drop(reading);
        allocated.expect("it waits for the reader").unwrap();
    });
    let stats = pool.stats();
    assert_eq!(stats.streams.len(), 2, "the lane made meanwhile counts");
    assert_eq!(stats.allocated.allocated, 4096 + (64 << 20));
    drop(block);
}

#[test]
fn totals_of_lanes_are_what_they_have_in_all() {
    let of = |from: u64| Totals {
        allocated: [Sums::block(from, 1), Sums::block(from + 1, 2)],
        freed: [Sums::block(from / 2, 1), Sums::block(from / 3, 1)],
        active: [(from + 2, from), (from + 4, from + 1)],
    };
    let (mut all, parts) = (Totals::default(), [of(100), of(2000), of(30_000)]);
    parts.iter().for_each(|part| all.add(part));
    let seen = all.now();
    for (at, seen) in seen.into_iter().enumerate() {
        let of_parts = parts.iter().map(|part| part.now()[at]);
        let said = of_parts.fold(Default::default(), |sum: (Sums, u64), part| {
            (sum.0 + part.0, sum.1 + part.1)
        });
        assert_eq!((seen.0.bytes, seen.1), (said.0.bytes, said.1));
        assert_eq!(seen.0.blocks, said.0.blocks);
    }
    assert_eq!(seen[2].1, 3 * 2 + 3 * 3);
}

#[test]
fn figures_posted_are_those_a_walk_finds() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
    let stream = device.stream().unwrap();
    let mut blocks: Vec<_> = (1..200)
        .map(|at| pool.alloc(&stream, at * 4096).unwrap())
        .collect();
    for step in 0..150 {
        drop(blocks.swap_remove(step * 7 % blocks.len()));
        pool.check_invariants().unwrap();
        let stats = pool.stats();
        let core = pool.shared().core.lock();
        assert_eq!(stats.largest_hole, core.extents.largest_hole());
        assert_eq!(stats.holes, core.extents.holes());
        assert_eq!(stats.active.current, core.extents.taken().0);
        assert_eq!(stats.after_compaction, core.after_compaction());
        let [small, large] = core.inactive_split();
        assert_eq!(stats.small.inactive_split.current, small);
        assert_eq!(stats.large.inactive_split.current, large);
    }
}
