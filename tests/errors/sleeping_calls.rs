//! Every device call fails while a pool falls asleep and wakes: it is awake or asleep as before, no byte is
//! lost, and when the device works again everything comes back.

use std::sync::Arc;

use crate::common;

use common::leaving_nothing;
use common::watched::{MADE_TO_FAIL, OUT_OF_MEMORY, Watched};
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::pool::HandleSize;
use warpool::{Device, Error, Pool, PoolConfig, Stream};

const BYTES: usize = 3 << 20;

fn small_host() -> Device {
    Device::host_with_capacity(256 << 20).unwrap()
}

macro_rules! suite {
    ($($name:ident: $call:literal,)*) => {
        mod host {
            $(#[test] fn $name() {
                super::leaving_nothing(super::small_host(), |device| super::fails(device, $call));
            })*
        }
        mod cuda {
            $(#[test] fn $name() {
                if let Some(device) = super::common::cuda() {
                    super::leaving_nothing(device, |device| super::fails(device, $call));
                }
            })*
        }
    };
}

suite! {
    a_sleeping_pool_survives_a_failing_create: "create",
    a_sleeping_pool_survives_a_failing_map: "map",
    a_sleeping_pool_survives_a_failing_unmap: "unmap",
    a_sleeping_pool_survives_a_failing_release: "release",
    a_sleeping_pool_survives_a_failing_stream_create: "stream_create",
    a_sleeping_pool_survives_a_failing_stream_sync: "stream_sync",
    a_sleeping_pool_survives_a_failing_event_record: "event_record",
    a_sleeping_pool_survives_a_failing_event_sync: "event_sync",
    a_sleeping_pool_survives_a_failing_copy_in: "copy_in",
    a_sleeping_pool_survives_a_failing_copy_out: "copy_out",
    a_sleeping_pool_survives_a_failing_host_alloc: "host_alloc",
}

/// Whether a failed call left the pool as it was: awake with all its memory, or asleep with none.
fn as_before(pool: &Pool, held: u64, asleep: bool) {
    let stats = pool.stats();
    let (reserved, sleeping) = if asleep { (0, held) } else { (held, 0) };
    assert_eq!(stats.sleeping, sleeping, "asleep: {asleep}");
    assert!(stats.reserved.current >= reserved, "asleep: {asleep}");
    pool.check_invariants().unwrap();
}

/// One sleep and one wake, with a call made to fail in the one or the other; how many failures there were.
fn one(device: &Device, call: &'static str, waking: bool, uses: u64, for_ever: bool) -> u64 {
    let (watched, pool, host, stream) = of_small_handles(device);
    let bufs = [1u8, 2, 3].map(|it| pool.alloc_from(&stream, &vec![it; BYTES]).unwrap());
    let mut growing = pool.grow_buf::<u8>(&stream, 4 * BYTES).unwrap();
    growing.extend_from(&stream, &[4; 2 * BYTES]).unwrap();
    pool.trim(0).unwrap();
    let held = pool.stats().reserved.current;
    let code = if for_ever {
        OUT_OF_MEMORY
    } else {
        MADE_TO_FAIL
    };
    if waking {
        pool.sleep(&[], Contents::Saved(&host)).unwrap();
    }
    watched.fail_with(call, uses, for_ever, code);
    let outcome = match waking {
        true => pool.wake(&[]),
        false => pool.sleep(&[], Contents::Saved(&host)),
    };
    watched.heal();
    if let Err(error) = &outcome {
        let ours = matches!(error, Error::Driver { code: it, .. } if *it == code);
        assert!(ours || error.is_out_of_memory(), "{error}");
        // What cannot be taken down, nor made again, is as far as it came.
        if !(for_ever && ["unmap", "create", "map", "stream_sync"].contains(&call)) {
            as_before(&pool, held, waking);
        }
    }
    pool.check_invariants().unwrap();
    pool.wake(&[]).unwrap();
    as_before(&pool, held, false);
    for (buf, it) in bufs.iter().zip([1, 2, 3]) {
        let wrong = buf
            .download()
            .unwrap()
            .iter()
            .filter(|&&byte| byte != it)
            .count();
        assert_eq!(
            wrong, 0,
            "{call} at use {uses}, waking: {waking}, for ever: {for_ever}"
        );
    }
    let there = growing.view().download(&stream).unwrap();
    assert!(
        there == [4; 2 * BYTES],
        "{call} at use {uses}, waking: {waking}, for ever: {for_ever}"
    );
    drop((bufs, growing));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
    watched.failures()
}

fn fails(device: &Device, call: &'static str) {
    let mut injected = 0;
    for uses in 1..=9 {
        for (waking, for_ever) in [(false, false), (false, true), (true, false), (true, true)] {
            injected += one(device, call, waking, uses, for_ever);
        }
    }
    assert!(
        injected > 0,
        "{call} was never called: the test proves nothing"
    );
}

/// A pool that may sleep, of handles of one granule each, with memory of the host and a stream.
fn of_small_handles(device: &Device) -> (Arc<Watched>, Pool, HostPool, Stream) {
    let (device, watched) = Watched::over(device);
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .sleeps(true);
    let pool = Pool::new(&device, config).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    (watched, pool, host, device.stream().unwrap())
}

/// A handle behind the end of a growing buffer is not mapped any more, and still the pool's.
#[test]
fn what_the_device_did_not_take_back_of_a_growing_buffer_is_not_copied() {
    leaving_nothing(small_host(), |device| {
        for stopped in [false, true] {
            let (watched, pool, host, stream) = of_small_handles(device);
            let block = pool.alloc_from(&stream, &vec![1u8; BYTES]).unwrap();
            let mut growing = pool.grow_buf::<u8>(&stream, 4 * BYTES).unwrap();
            growing.extend_from(&stream, &[2; 3 * BYTES]).unwrap();
            watched.fail_with("release", 1, true, MADE_TO_FAIL);
            growing.resize(BYTES).unwrap();
            stream.synchronize().unwrap();
            pool.trim(0).unwrap_or(0);
            if stopped {
                // Before the buffer's turn comes.
                watched.fail_with("unmap", 1, true, MADE_TO_FAIL);
            }
            let slept = pool.sleep(&[], Contents::Saved(&host));
            assert_eq!(slept.is_err(), stopped, "{slept:?}");
            pool.check_invariants().unwrap();
            watched.heal();
            pool.wake(&[]).unwrap();
            pool.check_invariants().unwrap();
            assert!(block.download().unwrap() == vec![1; BYTES]);
            assert!(growing.view().download(&stream).unwrap() == vec![2; BYTES]);
            growing.extend_from(&stream, &[3; BYTES]).unwrap();
            let all = growing.view().download(&stream).unwrap();
            assert!(all[..BYTES] == [2; BYTES] && all[BYTES..] == [3; BYTES]);
        }
    });
}

#[test]
fn what_the_device_did_not_take_back_keeps_no_pool_asleep_at_its_limit() {
    leaving_nothing(small_host(), |device| {
        let (watched, pool, host, stream) = of_small_handles(device);
        let block = pool.alloc_from(&stream, &vec![1u8; BYTES]).unwrap();
        pool.trim(0).unwrap();
        let held = pool.stats().reserved.current;
        pool.set_limit(held);
        watched.fail("release", 1, false);
        pool.sleep(&[], Contents::Saved(&host)).unwrap();
        assert_eq!(watched.failures(), 1);
        assert!(pool.stats().reserved.current > 0, "all was taken back");
        pool.wake(&[]).unwrap();
        as_before(&pool, held, false);
        assert!(pool.stats().reserved.current <= held);
        assert!(block.download().unwrap() == vec![1; BYTES]);
    });
}

#[test]
fn a_wake_reports_what_an_attempt_before_took_and_the_driver_did_not_unmap() {
    let granule = small_host().info().granule;
    leaving_nothing(Device::host_with_capacity(8 * granule).unwrap(), |device| {
        let (watched, pool, _host, stream) = of_small_handles(device);
        let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
        let block = parts[1].alloc(&stream, 6 * granule).unwrap();
        let slept = pool.sleep(&["b"], Contents::Discarded).unwrap();
        drop(parts[0].alloc(&stream, 6 * granule).unwrap());
        stream.synchronize().unwrap();
        // The device has two of the six handles. They stay, and the other part's idle memory makes room for the rest.
        watched.fail("unmap", 1, false);
        assert_eq!(pool.wake(&["b"]).unwrap(), slept);
        assert_eq!(watched.failures(), 1);
        drop(block);
    });
}
