//! Every device call fails at its first uses, once and for ever: the pool answers with errors, its
//! books stay whole, and when the device works again everything is given back.

use crate::common;

use common::watched::{MADE_TO_FAIL, Watched, calls_here};
use common::{BackendOf, leaving_nothing};
use warpool::{Block, Device, Error, Pool, PoolConfig, Stream};

const LIMIT: u64 = 32 << 20;

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
    the_pool_survives_a_failing_reserve: "reserve",
    the_pool_survives_a_failing_create: "create",
    the_pool_survives_a_failing_map: "map",
    the_pool_survives_a_failing_unmap: "unmap",
    the_pool_survives_a_failing_release: "release",
    the_pool_survives_a_failing_free_bytes: "free_bytes",
    the_pool_survives_a_failing_event_create: "event_create",
    the_pool_survives_a_failing_event_record: "event_record",
    the_pool_survives_a_failing_event_wait: "event_wait",
    the_pool_survives_a_failing_event_query: "event_query",
    the_pool_survives_a_failing_event_sync: "event_sync",
}

/// A host device of little memory: the arena's books, which the checks walk, grow with it.
fn small_host() -> Device {
    Device::host_with_capacity(8 * LIMIT).unwrap()
}

/// Uses of a call that are made to fail in turn.
const USES: u64 = 8;

fn fails(device: &Device, call: &'static str) {
    let mut injected = 0;
    for for_ever in [false, true] {
        for use_number in 1..=USES {
            let (device, watched) = Watched::over(device);
            watched.fail(call, use_number, for_ever);
            let seen = work(&device, || watched.heal());
            injected += watched.failures();
            for error in seen {
                let ours = matches!(
                    error,
                    Error::Driver {
                        code: MADE_TO_FAIL,
                        ..
                    }
                );
                assert!(
                    ours || error.is_out_of_memory(),
                    "{call} failing at use {use_number}, for ever: {for_ever}: {error}"
                );
            }
        }
    }
    assert!(
        injected > 0,
        "the pool never called {call}: the test proves nothing"
    );
}

/// Blocks of many sizes handed between two streams at the edge of the limit; gives the errors. The
/// books are checked after every step. `heal` is called before the end, after which nothing fails.
fn work(device: &Device, heal: impl Fn()) -> Vec<Error> {
    let mut errors = Vec::new();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let pool = match Pool::new(device, PoolConfig::default().limit(LIMIT)) {
        Ok(pool) => pool,
        Err(error) => {
            errors.push(error);
            heal();
            Pool::new(device, PoolConfig::default().limit(LIMIT)).expect("the device works again")
        }
    };
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..6u64 {
        for (i, mebibytes) in [6, 4, 10, 2, 8].into_iter().enumerate() {
            let stream: &Stream = &streams[(i + round as usize) % 2];
            match pool.alloc(stream, mebibytes << 20) {
                Ok(block) => blocks.push(block),
                Err(error) => errors.push(error),
            }
            pool.check_invariants().unwrap();
        }
        // Every other block is freed, some on the stream that did not allocate it.
        for i in (0..blocks.len()).rev().step_by(2) {
            let mut block = blocks.swap_remove(i);
            let other = &streams[i % 2];
            if i % 3 == 0 {
                block.record_use(other).unwrap();
            }
            drop(block);
            pool.check_invariants().unwrap();
        }
        if round % 2 == 1 {
            let trimmed = pool.trim(LIMIT / 4);
            pool.check_invariants().unwrap();
            errors.extend(trimmed.err());
        }
    }
    heal();
    blocks.clear();
    pool.check_invariants().unwrap();
    let block = pool
        .alloc(&streams[0], LIMIT / 2)
        .expect("the device works again");
    drop(block);
    pool.trim(0).expect("the device works again");
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().allocated.current, 0);
    assert_eq!(
        pool.stats().reserved.current,
        0,
        "an idle pool gives everything back"
    );
    errors
}

#[test]
fn a_block_that_others_use_shrinks_in_no_host_call_which_may_not_wait_for_them() {
    let (device, _) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let [mut used, mut unused] = [(); 2].map(|()| pool.alloc(&home, 1 << 20).unwrap());
    used.record_use(&other).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        let before = calls_here();
        let shrunk = [used.shrink(1000), unused.shrink(1000)];
        let bytes = [used.bytes(), unused.bytes()];
        tell.send((shrunk, bytes, calls_here() - before)).unwrap();
    });
    (device.backend().host_call(home.raw(), work)).unwrap();
    let ([refused, shrunk], bytes, asked) = told.recv().unwrap();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    shrunk.unwrap();
    assert_eq!((bytes, asked), ([1 << 20, 1000], 0));
}
