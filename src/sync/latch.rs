//! A lock for sections of a few dozen instructions.
//!
//! Taking it costs one compare-and-swap and giving it back one plain store: half the locked
//! instructions of a lock that knows who sleeps on it. So nobody is woken. Who finds it taken spins
//! for some microseconds, then lets other threads have the core, then sleeps for a while between
//! looks; a holder that lost its core costs the others no more than that.

use parking_lot::lock_api::{GuardNoSend, RawMutex};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the latch guards, and the latch.
pub(crate) type Latch<T> = parking_lot::lock_api::Mutex<RawLatch, T>;

/// The latch held.
pub(crate) type LatchGuard<'l, T> = parking_lot::lock_api::MutexGuard<'l, RawLatch, T>;

/// Looks with a spin between them, each spin twice as long as the last.
const SPINS: u32 = 7;

/// Looks after which a waiter sleeps, having let other threads run between the last of them.
const YIELDS: u32 = 32;

/// How long a waiter sleeps between looks.
const NAP: Duration = Duration::from_micros(50);

/// Whether it is held.
pub(crate) struct RawLatch(AtomicBool);

// SAFETY: `lock` and a `try_lock` that gives true return after this thread's compare-and-swap from
// false to true; only `unlock`, called by the holder, makes it false again. Acquire and release
// order what the holders do.
unsafe impl RawMutex for RawLatch {
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl RawLatch {
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            // Looked at before it is tried for, so that waiters share the cache line.
            while self.0.load(Ordering::Relaxed) {
                pause(looks);
                looks += 1;
            }
            if self.try_lock() {
                return;
            }
        }
    }
}

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

#[cfg(test)]
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
            // Long enough that the waiter sleeps.
            std::thread::sleep(Duration::from_millis(5));
            drop(held);
            waiter.join().unwrap();
        });
        assert_eq!(*latch.lock(), 1);
    }
}
