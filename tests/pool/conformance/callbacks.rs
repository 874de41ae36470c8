//! Code of the application's that the pool calls: it may own, do and fail what it likes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::common::{Gate, fill, on_every_device, on_the_simulated_device};
use super::{limited, small_handles, whole};
use crate::common::BackendOf;
use warpool::compact::Goal;
use warpool::pool::Relief;
use warpool::{Device, Movable, Pool, Stream};

on_every_device! {
    a_move_callback_may_own_the_last_handle_of_another_block,
    a_host_call_that_is_refused_lets_go_of_what_it_owns,
    a_panic_under_memory_pressure_leaves_the_pool_whole_and_nothing_behind,
    a_pressure_callback_is_told_the_requesting_stream_under_capture_too,
    a_pool_whose_pressure_callback_owns_blocks_of_it_leaves_nothing,
    a_pressure_callback_whose_own_request_fails_gets_an_error,
    two_pools_whose_pressure_callbacks_ask_each_other_come_to_an_end,
    a_move_callback_that_panics_does_not_keep_the_others_from_being_told,
    a_move_callback_that_panics_in_a_resize_leaves_the_new_block_and_frees_the_old_one_behind_its_copy,
}

on_the_simulated_device! {
    a_move_callback_may_own_the_last_handle_of_another_block,
    a_host_call_that_is_refused_lets_go_of_what_it_owns,
    a_panic_under_memory_pressure_leaves_the_pool_whole_and_nothing_behind,
    a_pool_whose_pressure_callback_owns_blocks_of_it_leaves_nothing,
}

/// Runs `act` on a thread of its own, which must come to an end.
fn ends<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let _ = tell.send(act());
    });
    let outcome = told.recv_timeout(Duration::from_secs(20));
    let outcome = outcome.expect("the call hangs, or has panicked");
    thread.join().unwrap();
    outcome
}

fn movable(pool: &Pool, stream: &Stream) -> Movable<u8> {
    pool.alloc_movable(stream, 4096).unwrap()
}

fn a_move_callback_may_own_the_last_handle_of_another_block(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    // By a drop, by a free on another stream, by the last pin of a block that is gone, by a callback
    // put in its place.
    for way in 0..4 {
        let (first, second) = (movable(&pool, &stream), movable(&pool, &stream));
        first.on_move(move |_| assert!(!second.is_empty()));
        let (pool, stream) = (pool.clone(), stream.clone());
        ends(move || match way {
            0 => drop(first),
            1 => first.free_on(&stream.device().stream().unwrap()).unwrap(),
            2 => {
                let pin = pool.hold_id(first.id(), &stream).unwrap();
                drop(first);
                drop(pin);
            }
            _ => first.on_move(|_| {}),
        });
    }
    assert_eq!(pool.stats().blocks.current, 0);
    whole(&pool);
}

fn a_host_call_that_is_refused_lets_go_of_what_it_owns(device: &Device) {
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let pool = Pool::new(device, small_handles()).unwrap();
    let (block, backend) = (movable(&pool, &other), Arc::clone(device.backend()));
    let capture = stream.begin_capture().unwrap();
    let raw = stream.raw();
    let refused = ends(move || {
        let work = Box::new(move || drop((block, pool, other)));
        backend.host_call(raw, work).unwrap_err()
    });
    drop(capture);
    assert!(refused.to_string().contains("captured"), "{refused}");
    assert_eq!(device.backend().counts().bytes, 0);
}

fn a_panic_under_memory_pressure_leaves_the_pool_whole_and_nothing_behind(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let held = pool.alloc(&stream, 3 * granule).unwrap();
    pool.on_pressure(|_| panic!("the application's"));
    for bytes in [2 * granule, 3 * granule] {
        // The first request of a size is counted before its memory is looked for.
        for _ in 0..2 {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.alloc(&stream, bytes)));
            assert!(outcome.is_err());
        }
        whole(&pool);
    }
    assert_eq!(pool.stats().blocks.current, 1);
    drop(held);
    drop(pool.alloc(&stream, 4 * granule).unwrap());
    whole(&pool);
    // That nothing is left once all is dropped is checked of every test here.
}

fn a_pressure_callback_is_told_the_requesting_stream_under_capture_too(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let (tell, told) = channel();
    pool.on_pressure(move |pressure| {
        tell.send(pressure.stream).unwrap();
        Relief::Exhausted
    });
    assert!(pool.alloc(&stream, 5 * granule).is_err());
    let capture = stream.begin_capture().unwrap();
    assert!(pool.alloc(&stream, 5 * granule).is_err());
    drop((capture, pool));
    assert_eq!(told.iter().collect::<Vec<_>>(), [stream.id(); 2]);
}

fn a_pool_whose_pressure_callback_owns_blocks_of_it_leaves_nothing(device: &Device) {
    let stream = device.stream().unwrap();
    let pool = Pool::new(device, small_handles()).unwrap();
    let block = pool.alloc(&stream, 4096).unwrap();
    let typed = pool.alloc_zeroed::<u8>(&stream, 1 << 20).unwrap();
    pool.on_pressure(move |_| {
        assert!(block.bytes() > 0 && !typed.is_empty());
        Relief::Exhausted
    });
    drop(pool);
    assert_eq!(device.backend().counts().bytes, 0);
}

fn a_pressure_callback_whose_own_request_fails_gets_an_error(device: &Device) {
    let granule = device.info().granule;
    let pool = Arc::new(limited(device, 4));
    let stream = device.stream().unwrap();
    let _held = pool.alloc(&stream, 3 * granule).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (called, its, on) = (Arc::clone(&calls), Arc::downgrade(&pool), stream.clone());
    pool.on_pressure(move |pressure| {
        // Bounded, so that a fault fails the test and not the process.
        if called.fetch_add(1, Ordering::Relaxed) < 40
            && let Some(pool) = its.upgrade()
        {
            let own = pool.alloc(&on, pressure.requested);
            assert!(own.unwrap_err().is_out_of_memory());
            // What fits is served.
            drop(pool.alloc(&on, 512).unwrap());
        }
        Relief::Exhausted
    });
    for calls_so_far in 1..3 {
        let failed = pool.alloc(&stream, 2 * granule);
        assert!(failed.unwrap_err().is_out_of_memory());
        assert_eq!(calls.load(Ordering::Relaxed), calls_so_far);
    }
    whole(&pool);
}

fn two_pools_whose_pressure_callbacks_ask_each_other_come_to_an_end(device: &Device) {
    let granule = device.info().granule;
    let pools = [0, 1].map(|_| Arc::new(limited(device, 2)));
    let stream = device.stream().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    for (asked, other) in [(0, 1), (1, 0)] {
        let (called, on) = (Arc::clone(&calls), stream.clone());
        let other = Arc::downgrade(&pools[other]);
        pools[asked].on_pressure(move |pressure| {
            if called.fetch_add(1, Ordering::Relaxed) < 40
                && let Some(other) = other.upgrade()
            {
                assert!(other.alloc(&on, pressure.requested).is_err());
            }
            Relief::Exhausted
        });
    }
    assert!(pools[0].alloc(&stream, 3 * granule).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 2, "each pool asks once");
}

/// A pool of movable blocks of a granule each, every second of which is freed.
fn holes(device: &Device, stream: &Stream) -> (Pool, Vec<Movable<u8>>) {
    let granule = device.info().granule as usize;
    let pool = Pool::new(device, small_handles()).unwrap();
    let mut blocks: Vec<_> = (0..12)
        .map(|_| pool.alloc_movable::<u8>(stream, granule / 2).unwrap())
        .collect();
    let mut number = 0;
    blocks.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    (pool, blocks)
}

fn a_move_callback_that_panics_does_not_keep_the_others_from_being_told(device: &Device) {
    let stream = device.stream().unwrap();
    let (pool, blocks) = holes(device, &stream);
    let told = Arc::new(AtomicU64::new(0));
    for block in &blocks {
        let told = Arc::clone(&told);
        block.on_move(move |_| {
            told.fetch_add(1, Ordering::Relaxed);
            panic!("the application's");
        });
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| pool.compact(&Goal::Full)));
    assert!(outcome.is_err(), "a panic goes on to the caller");
    let moved = told.load(Ordering::Relaxed);
    assert!(moved > 1, "{moved} told");
    whole(&pool);
    blocks.iter().for_each(|block| block.on_move(|_| ()));
    pool.compact(&Goal::Full).unwrap();
    whole(&pool);
}

fn a_move_callback_that_panics_in_a_resize_leaves_the_new_block_and_frees_the_old_one_behind_its_copy(
    device: &Device,
) {
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let pool = Pool::new(device, small_handles()).unwrap();
    let mut block = pool.alloc_movable::<u64>(&home, 1 << 16).unwrap();
    let _behind = pool.alloc_movable::<u64>(&home, 1 << 16).unwrap();
    let data: Vec<u64> = (0..1 << 16).collect();
    block.upload(&home, &data).unwrap();
    block.on_move(|_| panic!("the application's"));
    let gate = Gate::close(&other);
    let outcome = catch_unwind(AssertUnwindSafe(|| block.resize(&other, 1 << 17)));
    assert!(outcome.is_err(), "it was copied, and told");
    assert_eq!(block.len(), 1 << 17);
    // Whoever has the old memory now writes behind the copy out of it.
    let next = pool.alloc(&home, 8 << 16).unwrap();
    fill(&home, next.addr(), 0xEE, 8 << 16);
    std::thread::sleep(Duration::from_millis(20));
    gate.open();
    let found = block.download(&other).unwrap();
    assert!(found[..1 << 16] == data, "overwritten before it was copied");
    drop(next);
    whole(&pool);
}
