//! The steps by which a request finds memory, one after the other, each of which can be seen.

use std::sync::{Arc, Mutex};

use super::common::{Gate, on_every_device};
use super::{limited, small_handles, whole};
use warpool::pool::{Relief, Steps};
use warpool::{Device, Pool};

on_every_device! {
    the_steps_are_taken_in_order_and_each_is_counted,
    a_small_pool_grows_rather_than_have_a_second_stream_wait_and_a_larger_one_does_not,
    a_pool_of_one_stream_empties_its_cache_before_it_grows,
    the_application_is_asked_before_a_request_fails,
    the_application_is_asked_again_while_it_helps_and_no_longer,
}

/// What `act` adds to each step's count.
fn steps_of<T>(pool: &Pool, act: impl FnOnce() -> T) -> (Steps, T) {
    let before = pool.stats().steps;
    let outcome = act();
    let mut steps = pool.stats().steps;
    steps.own_stream -= before.own_stream;
    steps.ready_elsewhere -= before.ready_elsewhere;
    steps.drain -= before.drain;
    steps.stream_wait -= before.stream_wait;
    steps.waits -= before.waits;
    steps.steal -= before.steal;
    steps.grow -= before.grow;
    steps.relieved -= before.relieved;
    steps.out_of_memory -= before.out_of_memory;
    (steps, outcome)
}

/// Counts of own stream, ready elsewhere, stream wait, steal, grow, relieved, out of memory.
fn taken(steps: &Steps) -> [u64; 7] {
    [
        steps.own_stream,
        steps.ready_elsewhere,
        steps.stream_wait,
        steps.steal,
        steps.grow,
        steps.relieved,
        steps.out_of_memory,
    ]
}

fn the_steps_are_taken_in_order_and_each_is_counted(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let (steps, block) = steps_of(&pool, || pool.alloc(&first, 4 * granule).unwrap());
    assert_eq!(taken(&steps), [0, 0, 0, 0, 4, 0, 0], "grow");
    drop(block);
    let (steps, block) = steps_of(&pool, || pool.alloc(&first, 4 * granule).unwrap());
    assert_eq!(taken(&steps), [0; 7], "the cache is no step");
    drop(block);
    let (steps, block) = steps_of(&pool, || pool.alloc(&first, 2 * granule).unwrap());
    assert_eq!(taken(&steps), [1, 0, 0, 0, 0, 0, 0], "own stream");
    assert_eq!(steps.drain, 0, "the larger block was in no cache by then");
    first.synchronize().unwrap();
    let (steps, other) = steps_of(&pool, || pool.alloc(&second, 2 * granule).unwrap());
    assert_eq!(taken(&steps), [0, 1, 0, 0, 0, 0, 0], "ready elsewhere");
    let gate = Gate::close(&second);
    drop(other);
    let (steps, other) = steps_of(&pool, || pool.alloc(&first, granule).unwrap());
    assert_eq!(taken(&steps), [0, 0, 1, 0, 0, 0, 0], "stream wait");
    assert_eq!(steps.waits, 1);
    gate.open();
    first.synchronize().unwrap();
    second.synchronize().unwrap();
    // Now: `block` (2 granules), `other` (1), a hole (1). A hole on either side of `other`.
    drop(block);
    let (steps, apart) = steps_of(&pool, || pool.alloc(&first, 3 * granule).unwrap());
    assert_eq!(taken(&steps)[2..], [0, 2, 0, 0, 0], "steal, a handle each");
    let (steps, failed) = steps_of(&pool, || pool.alloc(&first, granule));
    assert!(failed.is_err());
    assert_eq!(taken(&steps), [0, 0, 0, 0, 0, 0, 1], "out of memory");
    let stash = Mutex::new(Some(apart));
    pool.on_pressure(move |_| match stash.lock().unwrap().take() {
        Some(_) => Relief::Retry,
        None => Relief::Exhausted,
    });
    let (steps, relieved) = steps_of(&pool, || pool.alloc(&first, 3 * granule).unwrap());
    assert_eq!(steps.relieved, 1);
    assert_eq!(steps.out_of_memory, 0);
    whole(&pool);
    drop((relieved, other));
}

fn a_small_pool_grows_rather_than_have_a_second_stream_wait_and_a_larger_one_does_not(
    device: &Device,
) {
    let granule = device.info().granule;
    let config = small_handles().overlap_bytes(4 * granule);
    let pool = Pool::new(device, config).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, granule).unwrap();
    let gate = Gate::close(&first);
    drop(block);
    let mut held = Vec::new();
    for (granules, why) in [(1, "below the bound"), (2, "up to it")] {
        let (steps, block) = steps_of(&pool, || pool.alloc(&second, granules * granule).unwrap());
        assert_eq!(taken(&steps), [0, 0, 0, 0, granules, 0, 0], "{why}");
        held.push(block);
    }
    let (steps, block) = steps_of(&pool, || pool.alloc(&second, granule).unwrap());
    assert_eq!(taken(&steps), [0, 0, 1, 0, 0, 0, 0], "beyond it");
    assert_eq!(steps.waits, 1);
    gate.open();
    drop((held, block));
    whole(&pool);
}

fn a_pool_of_one_stream_empties_its_cache_before_it_grows(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let halves = [(); 2].map(|()| pool.alloc(&stream, granule / 2).unwrap());
    drop(halves);
    let (steps, block) = steps_of(&pool, || pool.alloc(&stream, granule).unwrap());
    assert_eq!(taken(&steps)[4], 0, "grown");
    assert_eq!(pool.stats().reserved.current, granule);
    drop(block);
    whole(&pool);
}

fn the_application_is_asked_before_a_request_fails(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let stream = device.stream().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let its = Arc::clone(&seen);
    pool.on_pressure(move |pressure| {
        its.lock()
            .unwrap()
            .push((pressure.requested, pressure.stream, pressure.figures.live));
        Relief::Exhausted
    });
    let block = pool.alloc(&stream, 2 * granule).unwrap();
    assert!(seen.lock().unwrap().is_empty(), "not asked without need");
    assert!(
        pool.alloc(&stream, granule - 1)
            .unwrap_err()
            .is_out_of_memory()
    );
    let rounded = granule;
    assert_eq!(*seen.lock().unwrap(), [(rounded, stream.id(), 2 * granule)]);
    drop(block);
}

fn the_application_is_asked_again_while_it_helps_and_no_longer(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    let blocks = (0..4).map(|_| pool.alloc(&stream, granule).unwrap());
    let stash: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new(blocks.collect()));
    let its = Arc::clone(&stash);
    pool.on_pressure(move |_| {
        // Without a lock of the pool: freeing here is what the callback is for.
        let freed = its.lock().unwrap().pop();
        freed.map_or(Relief::Exhausted, |_| Relief::Retry)
    });
    let block = pool.alloc(&stream, 3 * granule).unwrap();
    assert_eq!(
        stash.lock().unwrap().len(),
        1,
        "asked three times, not four"
    );
    assert!(pool.alloc(&stream, 4 * granule).is_err());
    assert!(stash.lock().unwrap().is_empty());
    whole(&pool);
    drop(block);
}
