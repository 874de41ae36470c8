//! How much a pool holds.

use std::sync::mpsc;
use std::time::Duration;

use super::common::{Gate, fill, on_every_device, on_the_simulated_device};
use super::{MIB, limited, small_handles, whole};
use crate::common::BackendOf;
use warpool::device::HandleCounts;
use warpool::device::sim::SimConfig;
use warpool::pool::HandleSize;
use warpool::{Device, Error, Pool, PoolConfig};

on_every_device! {
    a_limit_is_kept_and_its_error_gives_the_figures,
    a_limit_below_a_granule_gives_nothing_and_says_why,
    a_raised_limit_serves_what_failed,
    a_fraction_of_the_device_is_a_limit,
    memory_is_made_when_it_is_asked_for_and_kept_for_the_next_request,
    preallocated_memory_is_there_from_the_start_and_served_without_growth,
    a_preallocation_the_device_cannot_give_is_an_error_and_leaves_nothing,
    a_trim_keeps_what_it_was_told_to_keep_and_what_is_in_use,
    a_trim_releases_a_handle_of_which_several_streams_use_parts,
    a_trim_that_keeps_all_there_is_waits_for_nobody,
    idle_handles_move_before_the_pool_grows,
    memory_given_up_counts_as_held_until_its_last_mapping_is_gone,
    a_configuration_of_the_largest_numbers_is_an_error_or_works,
    a_pool_that_maps_no_handle_elsewhere_grows_and_under_a_limit_makes_new_ones_of_idle_ones,
}

on_the_simulated_device! {
    a_trim_releases_a_handle_of_which_several_streams_use_parts,
}

fn a_limit_is_kept_and_its_error_gives_the_figures(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 3 * granule).unwrap();
    let Err(Error::OutOfMemory(figures)) = pool.alloc(&stream, 2 * granule) else {
        panic!("it does not fit");
    };
    assert_eq!(figures.requested, 2 * granule);
    assert_eq!(figures.live, 3 * granule);
    assert_eq!(figures.limit, 4 * granule);
    assert!(figures.reserved <= 4 * granule && figures.largest_hole < 2 * granule);
    whole(&pool);
    let stats = pool.stats();
    assert_eq!((stats.failures, stats.steps.out_of_memory), (1, 1));
    assert_eq!(
        stats.allocated.current,
        3 * granule,
        "unchanged by the failure"
    );
    let rest = pool.alloc(&stream, granule).unwrap();
    assert_eq!(pool.stats().reserved.current, 4 * granule);
    drop((block, rest));
}

fn a_limit_below_a_granule_gives_nothing_and_says_why(device: &Device) {
    let pool = Pool::new(device, small_handles().limit(1000)).unwrap();
    let error = pool.alloc(&device.stream().unwrap(), 2000).unwrap_err();
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("exceeds the limit"), "{error}");
    assert_eq!(pool.stats().reserved.current, 0);
}

fn a_raised_limit_serves_what_failed(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 1);
    let stream = device.stream().unwrap();
    assert!(pool.alloc(&stream, 2 * granule).is_err());
    pool.set_limit(Some(2 * granule));
    let block = pool.alloc(&stream, 2 * granule).unwrap();
    pool.set_limit(Some(granule));
    assert!(pool.alloc(&stream, 1).is_err(), "more is held than allowed");
    drop(block);
    assert!(
        pool.alloc(&stream, 2 * granule).is_ok(),
        "what is held stays"
    );
    pool.set_limit(None);
    assert!(pool.alloc(&stream, 3 * granule).is_ok());
}

fn a_fraction_of_the_device_is_a_limit(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    for part in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
        assert!(
            matches!(pool.set_fraction(part), Err(Error::Invalid { .. })),
            "{part}"
        );
    }
    let total = device.info().total_bytes as f64;
    pool.set_fraction(2.5 * granule as f64 / total).unwrap();
    let block = pool.alloc(&stream, 2 * granule).unwrap();
    assert!(pool.alloc(&stream, granule).unwrap_err().is_out_of_memory());
    drop(block);
}

fn preallocated_memory_is_there_from_the_start_and_served_without_growth(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles().preallocate(8 * granule)).unwrap();
    let start = pool.stats();
    assert_eq!(start.reserved.current, 8 * granule);
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 8 * granule).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.calls, start.calls, "no driver call");
    assert_eq!(stats.steps.grow, start.steps.grow);
    drop(block);
    assert_eq!(pool.trim(0).unwrap(), 8 * granule, "it may be given back");
}

fn a_preallocation_the_device_cannot_give_is_an_error_and_leaves_nothing(device: &Device) {
    if crate::common::under_sanitizer() {
        // All of it is taken before the error, and under a sanitizer other suites use the device too.
        return println!("skipped: fills the device, and is under a sanitizer");
    }
    let before = device.backend().counts();
    let config = small_handles().preallocate(device.info().total_bytes + 64 * MIB);
    // In large pieces, so that the device is not filled handle by handle.
    let config = config.handles(warpool::pool::HandleSize::UpTo(u64::MAX / 2));
    match Pool::new(device, config) {
        Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        Ok(pool) => panic!("{:?}", pool.stats().reserved),
    }
    assert_eq!(device.backend().counts(), before);
}

fn a_trim_that_keeps_all_there_is_waits_for_nobody(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc(&stream, 2 * granule).unwrap();
    let gate = Gate::close(&stream);
    drop(block);
    let (tell, told) = mpsc::channel();
    let trims = pool.clone();
    let trimming = std::thread::spawn(move || {
        for keep in [2, 3, 1] {
            tell.send(trims.trim(keep * granule)).unwrap();
        }
    });
    let next = |long| told.recv_timeout(Duration::from_millis(long));
    assert_eq!([20_000; 2].map(|long| next(long).unwrap().unwrap()), [0; 2]);
    assert!(
        next(50).is_err(),
        "what is given up, the stream is to be done with"
    );
    gate.open();
    assert_eq!(next(20_000).unwrap().unwrap(), granule);
    trimming.join().unwrap();
    whole(&pool);
}

fn a_trim_releases_a_handle_of_which_several_streams_use_parts(device: &Device) {
    let granule = device.info().granule;
    for bytes in [16, granule / 2] {
        let pool = Pool::new(device, small_handles()).unwrap();
        let [home, other, reader] = [(); 3].map(|()| device.stream().unwrap());
        // One of four drops asks how far the reader is: not the second.
        let mut first = pool.alloc(&home, bytes).unwrap();
        first.record_use(&reader).unwrap();
        drop(first);
        let [mut read, filled] = [(); 2].map(|()| pool.alloc(&home, bytes).unwrap());
        assert_eq!(pool.stats().reserved.current, granule, "they share it");
        // The simulated device runs none of this until it is waited for.
        fill(&home, read.addr(), 1, bytes);
        for stream in [&reader, &other] {
            stream.wait_stream(&home).unwrap();
        }
        fill(&reader, read.addr(), 2, bytes);
        fill(&other, filled.addr(), 2, bytes);
        read.record_use(&reader).unwrap();
        drop(read);
        filled.free_on(&other).unwrap();
        assert_eq!(pool.trim(0).unwrap(), granule, "{bytes} bytes");
        whole(&pool);
    }
}

fn a_trim_keeps_what_it_was_told_to_keep_and_what_is_in_use(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let blocks: Vec<_> = (0..8)
        .map(|_| pool.alloc(&stream, granule).unwrap())
        .collect();
    let kept = pool.alloc(&stream, 512).unwrap();
    drop(blocks);
    assert_eq!(pool.stats().reserved.current, 9 * granule);
    assert_eq!(pool.trim(100 * granule).unwrap(), 0);
    assert_eq!(pool.trim(6 * granule).unwrap(), 3 * granule);
    assert_eq!(pool.stats().reserved.current, 6 * granule);
    whole(&pool);
    assert_eq!(pool.trim(0).unwrap(), 5 * granule);
    assert_eq!(pool.stats().reserved.current, granule, "the block's own");
    drop(kept);
    assert_eq!(pool.trim(0).unwrap(), granule);
    assert_eq!(device.backend().counts().handles, 0);
    whole(&pool);
    pool.alloc(&stream, granule).unwrap();
}

fn idle_handles_move_before_the_pool_grows(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles().slack(0.0)).unwrap();
    let stream = device.stream().unwrap();
    let mut blocks: Vec<_> = (0..12)
        .map(|_| pool.alloc(&stream, granule).unwrap())
        .collect();
    // Every second one is freed, so that no two idle handles lie together.
    let mut odd = 0;
    blocks.retain(|_| {
        odd += 1;
        odd % 2 == 0
    });
    let before = pool.stats();
    let block = pool.alloc(&stream, 6 * granule).unwrap();
    let after = pool.stats();
    assert_eq!(after.reserved.current, before.reserved.current);
    assert_eq!(after.calls.created, before.calls.created);
    assert!(after.steps.steal > before.steps.steal);
    whole(&pool);
    drop(block);
}

fn a_pool_that_maps_no_handle_elsewhere_grows_and_under_a_limit_makes_new_ones_of_idle_ones(
    device: &Device,
) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles().remap(false)).unwrap();
    let stream = device.stream().unwrap();
    let mut blocks: Vec<_> = (0..12)
        .map(|_| pool.alloc(&stream, granule + granule / 2).unwrap())
        .collect();
    let before = pool.stats().reserved.current;
    let mut odd = 0;
    blocks.retain(|_| {
        odd += 1;
        odd % 2 == 0
    });
    let block = pool.alloc(&stream, 6 * granule).unwrap();
    assert_eq!(pool.stats().reserved.current, before + 6 * granule);
    whole(&pool);
    // Under a limit idle handles are released, and as many new ones made where the request goes.
    drop(block);
    let held = pool.stats().reserved.current;
    pool.set_limit(Some(held));
    let created = pool.stats().calls.created;
    let block = pool.alloc(&stream, 9 * granule).unwrap();
    let stats = pool.stats();
    assert!(stats.reserved.current <= held && stats.calls.created > created);
    assert_eq!(stats.steps.steal, 0);
    whole(&pool);
    drop((block, blocks));
}

fn memory_is_made_when_it_is_asked_for_and_kept_for_the_next_request(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let reserved = || pool.stats().reserved.current;
    assert_eq!(reserved(), 0, "a new pool has made nothing");
    let mut blocks = Vec::new();
    for count in 1..=5 {
        blocks.push(pool.alloc(&stream, granule).unwrap());
        assert_eq!(reserved(), count * granule);
    }
    blocks.clear();
    assert_eq!(reserved(), 5 * granule);
    drop(pool.alloc(&stream, 5 * granule).unwrap());
    let stats = pool.stats();
    assert_eq!(
        (stats.reserved.current, stats.calls.created),
        (5 * granule, 5)
    );
    assert_eq!(stats.reserved.freed, 0);
}

fn a_configuration_of_the_largest_numbers_is_an_error_or_works(device: &Device) {
    let stream = device.stream().unwrap();
    let all = small_handles()
        .limit(u64::MAX)
        .soft_limit(u64::MAX)
        .slack(f64::INFINITY)
        .overlap_bytes(u64::MAX)
        .cache_bytes(u64::MAX);
    for slack in [f64::MAX, f64::NAN, -1.0, f64::NEG_INFINITY] {
        let pool = Pool::new(device, all.clone().slack(slack)).unwrap();
        let block = pool.alloc(&stream, 3 * device.info().granule).unwrap();
        assert!(pool.alloc(&stream, 1 << 46).unwrap_err().is_out_of_memory());
        assert!(pool.alloc(&stream, u64::MAX).is_err());
        drop(block);
        pool.set_limit(Some(u64::MAX));
        pool.set_soft_limit(Some(u64::MAX));
        pool.set_fraction(f64::MIN_POSITIVE).unwrap();
        assert_eq!(pool.trim(u64::MAX).unwrap(), 0);
        whole(&pool);
    }
}

#[test]
fn a_device_of_any_capacity_has_pools_or_says_why_not() {
    for capacity in [i64::MAX as u64, 1 << 62, 1 << 60, (1 << 46) + 1, u64::MAX] {
        let config = capacity;
        let sim = SimConfig::default().with_capacity(capacity).without_bytes();
        for device in [Device::host_with_capacity(config), Device::sim(&sim)] {
            let Ok(device) = device else {
                assert!(i64::try_from(capacity).is_err(), "{capacity}");
                continue;
            };
            let stream = device.stream().unwrap();
            for handles in [
                HandleSize::Granule,
                HandleSize::UpTo(u64::MAX),
                HandleSize::Adaptive,
            ] {
                // An error is a value; what is made works.
                let Ok(pool) = Pool::new(&device, PoolConfig::default().handles(handles)) else {
                    continue;
                };
                let block = pool.alloc(&stream, 5 << 20).unwrap();
                pool.set_fraction(1.0).unwrap();
                drop((pool.alloc(&stream, 9 << 20).unwrap(), block));
                whole(&pool);
            }
        }
    }
}

#[test]
fn a_preallocation_beyond_all_addresses_is_an_error_and_leaves_nothing() {
    let device = Device::host_with_capacity(32 * MIB).unwrap();
    for handles in [
        HandleSize::Granule,
        HandleSize::UpTo(u64::MAX),
        HandleSize::Adaptive,
    ] {
        let config = PoolConfig::default().handles(handles).preallocate(u64::MAX);
        let error = Pool::new(&device, config).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(device.backend().counts(), HandleCounts::default());
    }
}

fn memory_given_up_counts_as_held_until_its_last_mapping_is_gone(device: &Device) {
    let granule = device.info().granule;
    let config = small_handles().slack(0.0).overlap_bytes(0).cache_bytes(0);
    let pool = Pool::new(device, config).unwrap();
    let [first, second, captured] = [0; 3].map(|_| device.stream().unwrap());
    let held = || {
        whole(&pool);
        let held = pool.stats().reserved.current;
        assert_eq!(
            device.backend().counts().bytes,
            held,
            "as the device counts"
        );
        held / granule
    };
    let mut blocks: Vec<_> = (0..6)
        .map(|_| pool.alloc(&first, granule).unwrap())
        .collect();
    let gate = Gate::close(&first);
    for at in [4, 2, 0] {
        drop(blocks.remove(at));
    }
    let large = pool.alloc(&second, 3 * granule).unwrap();
    assert_eq!(
        (pool.stats().steps.steal, held()),
        (3, 6),
        "handles of the first stream"
    );
    gate.open();
    drop(large);
    second.synchronize().unwrap();
    // While anything is captured no event is asked about, so nobody knows that the first stream is
    // past the old mappings.
    let capture = captured.begin_capture().unwrap();
    pool.set_soft_limit(Some(0));
    let small = pool.alloc(&second, 512).unwrap();
    assert!(pool.stats().calls.released > 0, "handles are given up");
    assert!(held() >= 6);
    drop(capture);
    drop(small);
    pool.set_limit(Some(6 * granule));
    // What old mappings keep is waited for before a request fails.
    let all = pool.alloc(&second, 3 * granule).unwrap();
    assert!(held() <= 6);
    drop((all, blocks));
    pool.trim(0).unwrap();
    assert_eq!(held(), 0);
}
