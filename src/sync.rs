//! Locks and atomics of the code whose interleavings are explored: the pool and the streams' order.
//!
//! In a normal build these are the standard library's, and parking_lot's mutex. Under `--cfg loom` and `--cfg shuttle` they
//! are those of the two explorers, so that a test can run the very code that ships under schedules
//! of its choosing: loom every one of a small model, shuttle a great many of a larger one. Reference
//! counts stay the standard library's.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicI64, atomic::AtomicU64,
};

// Without the standard lock's poison check, and with a spin before a thread is parked.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicI64,
    atomic::AtomicU64,
};

#[cfg(all(shuttle, not(loom)))]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicI64,
    atomic::AtomicU64,
};

/// Locks, going on after a panic elsewhere: state behind the crate's locks is valid between calls.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(any(loom, shuttle)))]
    return mutex.lock();
    #[cfg(any(loom, shuttle))]
    return mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
}

/// What the lock guards, for its only owner.
pub(crate) fn get_mut<T: ?Sized>(mutex: &mut Mutex<T>) -> &mut T {
    #[cfg(not(any(loom, shuttle)))]
    return mutex.get_mut();
    #[cfg(any(loom, shuttle))]
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
