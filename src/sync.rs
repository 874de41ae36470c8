//! Locks and atomics of code whose interleavings are tested: the pool and the streams' order.
//!
//! In a normal build these are the standard library's, and parking_lot's mutex. Under `--cfg
//! shuttle` they are shuttle's, so that a test can run the same code under very many schedules.
//! Reference counts stay the standard library's.

use std::cell::UnsafeCell;
use std::ops::Deref;

#[cfg(not(shuttle))]
#[cfg_attr(
    loom,
    allow(dead_code, reason = "modelled by itself; what it guards is not")
)]
mod latch;

// Loom's atomics work only in a model.
#[cfg(loom)]
pub(crate) use parking_lot::{Mutex as Latch, MutexGuard as LatchGuard};

#[cfg(not(any(shuttle, loom)))]
pub(crate) use latch::{Latch, LatchGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard as LatchGuard;

#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64};

// Only the lock-free parts; shuttle tests the code under locks.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64};

// Without the standard lock's poison check, and with a spin before a thread is parked.
#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicI64, atomic::AtomicU64};

#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;

/// A lock with the calls of a latch.
#[cfg(shuttle)]
#[derive(Default)]
pub(crate) struct Latch<T>(Mutex<T>);

#[cfg(shuttle)]
impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LatchGuard<'_, T> {
        lock(&self.0)
    }

    pub(crate) fn try_lock(&self) -> Option<LatchGuard<'_, T>> {
        try_lock(&self.0)
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        get_mut(&mut self.0)
    }
}

/// A value that may be dropped while a function that was given a reference to it still runs, on this thread or
/// another. Such a reference has to hold until the function returns, but for what lies in a cell.
#[repr(transparent)]
pub(crate) struct Ending<T>(UnsafeCell<T>);

// SAFETY: a reference to it gives shared references to the value, and nothing else.
unsafe impl<T: Sync> Sync for Ending<T> {}

impl<T> Ending<T> {
    pub(crate) fn of(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
}

impl<T> Deref for Ending<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nothing has the value for itself while it is shared.
        unsafe { &*self.0.get() }
    }
}

/// Locks. Ignores a panic of another holder: the state behind the crate's locks is valid between
/// calls.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(shuttle))]
    return mutex.lock();
    #[cfg(shuttle)]
    return mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// Unlocks, waits for a notification of `changed`, possibly a spurious one, and locks again.
pub(crate) fn wait<'l, T>(changed: &Condvar, mut guard: MutexGuard<'l, T>) -> MutexGuard<'l, T> {
    #[cfg(not(shuttle))]
    {
        changed.wait(&mut guard);
        guard
    }
    #[cfg(shuttle)]
    {
        guard = changed
            .wait(guard)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        guard
    }
}

/// Locks a latch.
#[inline]
pub(crate) fn latch<T>(latch: &Latch<T>) -> LatchGuard<'_, T> {
    latch.lock()
}

/// Locks a latch if it is free.
#[inline]
pub(crate) fn try_latch<T>(latch: &Latch<T>) -> Option<LatchGuard<'_, T>> {
    latch.try_lock()
}

/// Locks a mutex if it is free.
pub(crate) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    #[cfg(not(shuttle))]
    return mutex.try_lock();
    #[cfg(shuttle)]
    return match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    };
}

/// Whether the latch is locked.
pub(crate) fn is_latched<T>(latch: &Latch<T>) -> bool {
    latch.is_locked()
}

/// Lets other threads run; sleeps for a while after some `looks`, the number of polls so far.
pub(crate) fn pause(looks: u32) {
    #[cfg(not(shuttle))]
    match looks {
        ..32 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
    #[cfg(shuttle)]
    {
        let _ = looks;
        shuttle::thread::yield_now();
    }
}

/// The value in a mutex with a single owner.
pub(crate) fn get_mut<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    #[cfg(not(shuttle))]
    return mutex.get_mut();
    #[cfg(shuttle)]
    return mutex
        .get_mut()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// The value in a latch with a single owner.
pub(crate) fn latch_mut<T>(latch: &mut Latch<T>) -> &mut T {
    latch.get_mut()
}

/// The standard library's locks, in every build.
pub(crate) mod plain {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Locks. Ignores a panic of another holder: the state behind the crate's locks is valid
    /// between calls.
    pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
