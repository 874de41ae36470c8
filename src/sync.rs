//! Locks and atomics of the code whose interleavings are explored: the pool and the streams' order.
//!
//! In a normal build these are the standard library's, and parking_lot's mutex. Under `--cfg
//! shuttle` they are shuttle's, so that a test can run the very code that ships under a great many
//! schedules of its choosing. Reference counts stay the standard library's.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64};

// The lock-free parts alone; what is under locks is shuttle's.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64};

// Without the standard lock's poison check, and with a spin before a thread is parked.
#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicI64,
    atomic::AtomicU64,
};

/// Locks, going on after a panic elsewhere: state behind the crate's locks is valid between calls.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(shuttle))]
    return mutex.lock();
    #[cfg(shuttle)]
    return mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// What the lock guards, for its only owner.
pub(crate) fn get_mut<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    #[cfg(not(shuttle))]
    return mutex.get_mut();
    #[cfg(shuttle)]
    return mutex
        .get_mut()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// For locks that are the standard library's in every build.
pub(crate) mod plain {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Locks, going on after a panic elsewhere: state behind the crate's locks is valid between
    /// calls.
    pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
