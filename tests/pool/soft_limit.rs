//! The soft limit: idle memory above it goes back to the device, live memory may pass it.

use crate::common;

use crate::common::BackendOf;
use warpool::{Pool, PoolConfig};

const MIB: u64 = 1 << 20;

#[test]
fn a_request_above_the_soft_limit_is_served_and_idle_memory_above_it_is_given_back() {
    let device = common::host();
    let config = PoolConfig::default().soft_limit(8 * MIB);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let blocks = [32 * MIB, 16 * MIB].map(|bytes| pool.alloc(&stream, bytes).unwrap());
    assert!(pool.stats().reserved.current >= 48 * MIB);
    drop(blocks);
    stream.synchronize().unwrap();
    let _small = pool.alloc(&stream, MIB).unwrap();
    assert!(pool.stats().reserved.current <= 8 * MIB);
    pool.check_invariants().unwrap();
}

#[test]
fn without_a_soft_limit_memory_is_kept_and_one_set_later_holds() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 32 * MIB).unwrap());
    stream.synchronize().unwrap();
    let first = pool.alloc(&stream, MIB).unwrap();
    assert!(pool.stats().reserved.current >= 32 * MIB);
    pool.set_soft_limit(Some(4 * MIB));
    let _second = pool.alloc(&stream, 2 * MIB).unwrap();
    assert!(pool.stats().reserved.current <= 4 * MIB);
    drop(first);
    pool.check_invariants().unwrap();
}

#[test]
fn memory_whose_work_is_not_done_is_not_waited_for() {
    let device = common::host();
    let config = PoolConfig::default().soft_limit(4 * MIB).cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let (busy, other) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&busy, 32 * MIB).unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || held.recv().unwrap());
    device.backend().host_call(busy.raw(), work).unwrap();
    drop(block);
    // Were the held stream waited for, this would not return.
    let _first = pool.alloc(&other, 64 * MIB).unwrap();
    assert!(pool.stats().reserved.current >= 64 * MIB);
    release.send(()).unwrap();
    busy.synchronize().unwrap();
    other.synchronize().unwrap();
    let _second = pool.alloc(&other, 512).unwrap();
    pool.check_invariants().unwrap();
}

#[test]
fn memory_that_another_stream_used_is_given_back_once_the_driver_says_that_the_use_is_done() {
    let device = common::host();
    let config = PoolConfig::default().soft_limit(8 * MIB);
    let pool = Pool::new(&device, config).unwrap();
    let (stream, reader) = (device.stream().unwrap(), device.stream().unwrap());
    // Of a few drops one asks the driver; the others make no mark.
    for _ in 0..4 {
        let mut block = pool.alloc(&stream, 32 * MIB).unwrap();
        block.record_use(&reader).unwrap();
        drop(block);
        stream.synchronize().unwrap();
        let _small = pool.alloc(&stream, MIB).unwrap();
        assert!(pool.stats().reserved.current <= 8 * MIB);
    }
    pool.check_invariants().unwrap();
}
