//! Pools on several devices of one process.

use crate::common;

use warpool::device::HostConfig;
use warpool::{Device, Error, Pool, PoolConfig};

const MIB: u64 = 1 << 20;

/// The second GPU where there are two.
fn second_gpu() -> Option<Device> {
    let second = Device::cuda(1);
    if second.is_err() {
        println!("skipped: no second CUDA device");
    }
    second.ok()
}

fn live(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats();
    (stats.allocated.current, stats.blocks.current)
}

fn is_refused<T>(outcome: warpool::Result<T>) {
    match outcome {
        Err(Error::Invalid { what, why }) => {
            assert!(why.contains("another device"), "{what}: {why}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a stream of another device was taken"),
    }
}

/// The sentence, on two devices.
fn devices_are_apart(one: &Device, other: &Device) {
    let config = || PoolConfig::default().limit(64 * MIB);
    let pools = [one, other].map(|device| Pool::new(device, config()).unwrap());
    let streams = [one, other].map(|device| device.stream().unwrap());
    let mut first = pools[0].alloc(&streams[0], 3 * MIB).unwrap();
    let second = pools[1].alloc(&streams[1], 5 * MIB).unwrap();

    let before = pools.each_ref().map(live);
    assert_eq!(before, [(3 * MIB, 1), (5 * MIB, 1)], "each counts its own");
    is_refused(pools[0].alloc(&streams[1], 4096));
    is_refused(pools[1].alloc(&streams[0], 4096));
    is_refused(first.record_use(&streams[1]));
    assert_eq!(pools.each_ref().map(live), before, "and nothing changed");
    let (addr, bytes) = (first.addr(), first.bytes());
    first.record_use(&streams[0]).unwrap();
    assert_eq!((first.addr(), first.bytes()), (addr, bytes));

    let seen = pools.each_ref().map(|pool| pool.stats().streams.len());
    assert_eq!(seen, [1, 1], "a refused stream is none of the pool's");
    drop(first);
    assert_eq!(pools.each_ref().map(live), [(0, 0), (5 * MIB, 1)]);
    pools[0].trim(0).unwrap();
    assert_eq!(pools[0].stats().reserved.current, 0);
    assert!(pools[1].stats().reserved.current >= 5 * MIB);
    drop(second);
    for pool in &pools {
        pool.check_invariants().unwrap();
    }
}

/// A block freed on a stream of another device goes back in its own stream's order.
fn a_wrong_free_loses_nothing(one: &Device, other: &Device) {
    let pool = Pool::new(one, PoolConfig::default()).unwrap();
    let (home, foreign) = (one.stream().unwrap(), other.stream().unwrap());
    let block = pool.alloc(&home, 2 * MIB).unwrap();
    is_refused(block.free_on(&foreign));
    assert_eq!(live(&pool), (0, 0));
    pool.check_invariants().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

fn on_two(test: fn(&Device, &Device)) {
    let small = HostConfig::default();
    let two = [(); 2].map(|()| Device::host_with(small.clone()).unwrap());
    let [one, other] = two;
    common::leaving_nothing(one, |one| {
        common::leaving_nothing(other, |other| test(one, other));
    });
}

#[test]
fn a_stream_of_another_device_is_refused_and_figures_are_apart() {
    on_two(devices_are_apart);
}

#[test]
fn a_block_freed_on_a_stream_of_another_device_is_an_error_that_loses_nothing() {
    on_two(a_wrong_free_loses_nothing);
}

#[test]
fn a_stream_of_a_gpu_is_refused_by_the_host_and_figures_are_apart() {
    if let Some(gpu) = common::cuda() {
        devices_are_apart(&common::host(), &gpu);
        a_wrong_free_loses_nothing(&common::host(), &gpu);
    }
}

#[test]
fn a_stream_of_another_gpu_is_refused_and_figures_are_apart() {
    if let (Some(first), Some(second)) = (common::cuda(), second_gpu()) {
        devices_are_apart(&first, &second);
        a_wrong_free_loses_nothing(&first, &second);
    }
}
