//! While one thread grows the pool, requests that need no growth are served.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::common::ordered::Ordered;
use warpool::{Pool, PoolConfig};

const MIB: u64 = 1 << 20;

thread_local! {
    /// This thread grows the pool, and waits in the driver for the other's requests.
    static GROWS: Cell<bool> = const { Cell::new(false) };
}
static IS_IN_THE_DRIVER: AtomicBool = AtomicBool::new(false);
static SERVED: AtomicU64 = AtomicU64::new(0);

fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    is_so()
}

fn in_the_driver() {
    if GROWS.get() {
        IS_IN_THE_DRIVER.store(true, Ordering::SeqCst);
        assert!(
            wait_until(|| SERVED.load(Ordering::SeqCst) >= 10),
            "nobody else is served"
        );
    }
}

#[test]
fn while_one_thread_grows_the_pool_another_is_served_from_what_is_free() {
    let device = Ordered::device(8 << 30, 2 * MIB, in_the_driver, || true);
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0).slack(1.0)).unwrap();
    let [one, other] = [(); 2].map(|()| device.stream().unwrap());
    // The other stream has free memory of its own, between blocks that stay.
    let blocks = [(); 20].map(|()| pool.alloc(&other, 8 * MIB).unwrap());
    let mut kept = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        if at % 2 == 1 {
            kept.push(block);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            GROWS.set(true);
            let grown = pool.alloc(&one, 256 * MIB).unwrap();
            GROWS.set(false);
            drop(grown);
        });
        assert!(wait_until(|| IS_IN_THE_DRIVER.load(Ordering::SeqCst)));
        for _ in 0..10 {
            kept.push(pool.alloc(&other, 5 * MIB).unwrap());
            SERVED.fetch_add(1, Ordering::SeqCst);
        }
    });
    pool.check_invariants().unwrap();
}
