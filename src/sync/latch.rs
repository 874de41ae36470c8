//! A lock for sections of a few dozen instructions.
//!
//! Locking costs one compare-and-swap and unlocking one plain store: half the locked instructions
//! of a lock that records its waiters. So it wakes nobody. A thread that finds it locked spins for
//! some microseconds, then yields, then sleeps between polls. If the holder is descheduled, the
//! others lose no more than that.

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;
#[cfg(not(loom))]
use parking_lot::lock_api::{GuardNoSend, RawMutex};
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::{hint::spin_loop, time::Duration};

/// A value guarded by a latch.
#[cfg(not(loom))]
pub(crate) type Latch<T> = parking_lot::lock_api::Mutex<RawLatch, T>;

/// A locked latch.
#[cfg(not(loom))]
pub(crate) type LatchGuard<'l, T> = parking_lot::lock_api::MutexGuard<'l, RawLatch, T>;

/// Number of polls with a spin in between; each spin is twice as long as the last.
#[cfg(not(loom))]
const SPINS: u32 = 7;

/// Number of polls after which a waiter sleeps. Between the last of them it yields.
///
/// Measured on a host of an H200, 16 cores. A larger number costs more: with 400 polls, four threads
/// whose requests all miss made 0.6 million pairs a second instead of 2.7, because all of them take the
/// lock's cache line from each other. A smaller number helps 16 threads by a tenth (1.0 instead of
/// 0.9), but costs two threads that meet for some microseconds more: a producer and a consumer needed
/// 280 ns per pair instead of 95 if waiters slept after 2 us.
#[cfg(not(loom))]
const YIELDS: u32 = 32;

/// How long a waiter sleeps between polls.
#[cfg(not(loom))]
const NAP: Duration = Duration::from_micros(50);

pub(crate) struct RawLatch {
    held: AtomicBool,
    /// Up to what the latch guards: padding is in no cell (see [`Ending`](super::Ending)).
    _rest: [std::sync::atomic::AtomicBool; 7],
}

// SAFETY: `lock`, and a `try_lock` that returns true, return after this thread's compare-and-swap
// from false to true; only `unlock`, called by the holder, sets it to false again. Acquire and
// release order the holders' accesses.
#[cfg(not(loom))]
unsafe impl RawMutex for RawLatch {
    const INIT: Self = Self {
        held: AtomicBool::new(false),
        _rest: [const { AtomicBool::new(false) }; 7],
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.take();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_take()
    }

    fn is_locked(&self) -> bool {
        self.is_held()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.give_back();
    }
}

impl RawLatch {
    #[inline]
    fn take(&self) {
        if !self.try_take() {
            self.wait();
        }
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.held
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn give_back(&self) {
        self.held.store(false, Ordering::Release);
    }

    fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            // Polled before the compare-and-swap, so that waiters share the cache line.
            while self.is_held() {
                pause(looks);
                looks += 1;
            }
            if self.try_take() {
                return;
            }
        }
    }
}

#[cfg(not(loom))]
fn pause(looks: u32) {
    if looks < SPINS {
        for _ in 0..1 << looks {
            spin_loop();
        }
    } else if looks < YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

/// A model has no time, so other threads run.
#[cfg(loom)]
fn pause(_: u32) {
    loom::thread::yield_now();
}

/// Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.
#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::RawLatch;

    /// A latch and the value it guards, whose accesses loom checks.
    struct Guarded(RawLatch, UnsafeCell<u64>);

    // SAFETY: the number is accessed only under the latch, which is what the models check.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn new() -> Arc<Self> {
            let latch = RawLatch {
                held: AtomicBool::new(false),
                _rest: Default::default(),
            };
            Arc::new(Self(latch, UnsafeCell::new(0)))
        }

        /// Adds one as the holder, and unlocks.
        fn add(&self) {
            assert!(self.0.is_held());
            // SAFETY: the caller has just locked the latch.
            self.1.with_mut(|number| unsafe { *number += 1 });
            self.0.give_back();
        }
    }

    #[test]
    fn what_one_holder_did_the_next_one_sees() {
        loom::model(|| {
            let guarded = Guarded::new();
            let its = Arc::clone(&guarded);
            let other = thread::spawn(move || {
                its.0.take();
                its.add();
            });
            guarded.0.take();
            guarded.add();
            other.join().unwrap();
            // SAFETY: the other thread has ended.
            assert_eq!(guarded.1.with(|number| unsafe { *number }), 2);
        });
    }

    #[test]
    fn of_two_that_only_try_one_at_a_time_has_it() {
        loom::model(|| {
            let guarded = Guarded::new();
            let its = Arc::clone(&guarded);
            let attempt = |guarded: &Guarded| {
                let taken = guarded.0.try_take();
                if taken {
                    guarded.add();
                }
                u64::from(taken)
            };
            let other = thread::spawn(move || attempt(&its));
            let taken = attempt(&guarded) + other.join().unwrap();
            assert!(taken >= 1, "a latch that nobody held was refused to both");
            // SAFETY: the other thread has ended.
            assert_eq!(guarded.1.with(|number| unsafe { *number }), taken);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Latch;
    use std::time::Duration;

    #[test]
    fn what_a_latch_guards_has_one_thread_at_a_time() {
        let latch = Latch::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut pair = latch.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), (80_000, 80_000));
    }

    #[test]
    fn a_waiter_gets_the_latch_however_long_its_holder_kept_it() {
        let latch = Latch::new(0);
        let held = latch.lock();
        assert!(latch.try_lock().is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *latch.lock() += 1);
            // Long enough for the waiter to sleep.
            std::thread::sleep(Duration::from_millis(5));
            drop(held);
            waiter.join().unwrap();
        });
        assert_eq!(*latch.lock(), 1);
    }
}
