//! Locks and atomics of the code whose interleavings are explored: the pool and the streams' order.
//!
//! In a normal build these are the standard library's. Under `--cfg loom` and `--cfg shuttle` they
//! are those of the two explorers, so that a test can run the very code that ships under schedules
//! of its choosing: loom every one of a small model, shuttle a great many of a larger one. Reference
//! counts stay the standard library's.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicI64,
    atomic::AtomicU64,
};

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

/// For locks that are the standard library's in every build.
pub(crate) mod plain {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Locks, going on after a panic elsewhere: state behind the crate's locks is valid between
    /// calls.
    pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
