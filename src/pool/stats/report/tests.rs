//! Who reads figures, who waits for whom, and what the figures are.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::pool::stats::counters::Sums;
use crate::{Device, Pool, PoolConfig};

/// Far above what anything here takes that waits for nobody.
const LONG: Duration = Duration::from_secs(20);

fn host() -> Device {
    Device::host().unwrap()
}

#[test]
fn a_pair_on_a_stream_that_has_its_cache_does_not_wait_for_who_reads_statistics() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 4096).unwrap());
    let (done, told) = channel();
    let reading = (lock(&pool.shared().books), pool.shared().core.lock());
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(pool.alloc(&stream, 4096).map(drop)));
        let allocated = told.recv_timeout(LONG);
        drop(reading);
        allocated.expect("it waits for the reader").unwrap();
    });
    assert_eq!(pool.stats().blocks.allocated, 2);
}

#[test]
fn totals_are_live_by_class_and_never_below_zero() {
    let of = |from: u64| Totals {
        allocated: [Sums::block(from, 1), Sums::block(from + 1, 2)],
        freed: [Sums::block(from / 2, 1), Sums::block(2 * from, 1)],
        ..Totals::default()
    };
    let mut all = Totals::default();
    [of(100), of(2000)].iter().for_each(|part| all.merge(part));
    let [small, large, both] = all.live().map(|sums| sums.bytes());
    assert_eq!((small, large, both), (1050, 0, 1050));
    let [small, large, both] = all.counters().map(BlockStats::of);
    assert_eq!((small.allocated.current, small.blocks.current), (1050, 0));
    assert_eq!(
        (large.allocated.allocated, large.allocated.freed),
        (2102, 4200)
    );
    assert_eq!(both.allocated.allocated, 4202);
}

#[test]
fn a_stream_cache_that_ends_leaves_its_counts_and_its_peaks() {
    for reads in [false, true] {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        drop(pool.alloc(&stream, 512 << 10).unwrap());
        let block = pool.alloc(&stream, 8192).unwrap();
        // From the cache: only the stream knows of the peak.
        drop(pool.alloc(&stream, 512 << 10).unwrap());
        drop(stream);
        if reads {
            let stats = pool.stats();
            assert_eq!(stats.streams.len(), 1, "the block holds it");
            assert_eq!(stats.streams[0].blocks.current, 1);
        }
        drop(block);
        let stats = pool.stats();
        assert!(stats.streams.is_empty());
        assert_eq!((stats.blocks.allocated, stats.blocks.freed), (3, 3));
        assert_eq!(stats.allocated.peak, 8192 + (512 << 10));
    }
}

/// Each stream's own peak is another time's, and nobody reads figures before all is freed.
#[test]
fn the_peak_of_several_streams_is_what_was_live_at_once() {
    for most in [1, 5, 9] {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let bytes = 1 << 20;
        let own = [0, 1].map(|of| pool.alloc(&streams[of], (1 + of as u64) * bytes).unwrap());
        let of_one: Vec<_> = (0..12)
            .map(|_| pool.alloc(&streams[0], bytes).unwrap())
            .collect();
        drop(of_one);
        let both: Vec<_> = (0..2 * (5 + most))
            .map(|at| pool.alloc(&streams[at % 2], bytes).unwrap())
            .collect();
        drop((own, both));
        let stats = pool.stats();
        let peak = (13 + 2 * most as u64) * bytes;
        let (seen, of_one) = (stats.allocated.peak, stats.streams[0].allocated.peak);
        assert!(
            (peak - peak / 1024..=peak).contains(&seen),
            "{seen} of {peak}"
        );
        assert_eq!(
            of_one,
            13.max(6 + most as u64) * bytes,
            "that of one stream is exact"
        );
        pool.reset_peaks();
        assert_eq!(pool.stats().allocated.peak, 0);
        drop(pool.alloc(&streams[0], 3 * bytes).unwrap());
        assert_eq!(pool.stats().allocated.peak, 3 * bytes);
    }
}

#[test]
fn the_joint_peak_is_read_again_only_a_thousandth_above_the_last() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
    let stream = device.stream().unwrap();
    let _most = pool.alloc(&stream, 64 << 20).unwrap();
    let seen = || pool.shared().core.lock().seen;
    let (first, few) = (seen(), pool.alloc(&stream, 64 << 10).unwrap());
    assert_eq!(seen(), first);
    let _more = pool.alloc(&stream, 512).unwrap();
    let more = few.bytes() + 512;
    assert_eq!(seen(), (first.0 + more, first.1 + more));
}

#[test]
fn of_many_streams_each_is_read_for_the_joint_peak_once_in_a_64th_as_many_requests() {
    for (count, between) in [(60, 1), (200, 3)] {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
        let streams: Vec<_> = (0..count).map(|_| device.stream().unwrap()).collect();
        let mut held: Vec<_> = (streams.iter())
            .map(|it| pool.alloc(it, 4096).unwrap())
            .collect();
        let mut read_at = Vec::new();
        for (at, stream) in streams.iter().enumerate().take(12) {
            let before = pool.shared().core.lock().seen;
            held.push(pool.alloc(stream, 1 << 20).unwrap());
            if pool.shared().core.lock().seen != before {
                read_at.push(at);
            }
        }
        let apart = read_at.windows(2).all(|it| it[1] - it[0] == between);
        assert!(apart && read_at.len() >= 12 / between - 1, "{read_at:?}");
        assert_eq!(pool.stats().allocated.peak, count * 4096 + (12 << 20));
    }
}

#[test]
fn figures_of_the_heap_are_those_a_walk_finds() {
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
        assert_eq!(stats.active.current, core.extents.taken());
        let mut split = [0; 2];
        for (id, hole) in core.extents.iter() {
            if hole.state == crate::heap::State::Free {
                let idle: u64 = core.idle_in(id).map(|it| it.frame.bytes).sum();
                split[class(hole.bytes)] += hole.bytes - idle;
            }
        }
        assert_eq!(stats.small.inactive_split.current, split[0]);
        assert_eq!(stats.large.inactive_split.current, split[1]);
    }
}
