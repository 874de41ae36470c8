//! Bytes of movable memory on the host.

use std::sync::Arc;

use super::Counter;
use crate::device::lock;
use crate::sync::Mutex;

/// Shared by the pool and the blocks that are away.
#[derive(Clone, Default)]
pub(crate) struct Spilled(Arc<Mutex<Counter>>);

impl Spilled {
    /// Counts bytes that went to the host, or are there no more.
    pub(crate) fn count(&self, bytes: u64, went: bool) {
        let mut counter = lock(&self.0);
        match went {
            true => counter.allocated += bytes,
            false => counter.freed += bytes,
        }
        counter.current = counter.allocated - counter.freed;
        counter.peak = counter.peak.max(counter.current);
    }

    pub(super) fn counter(&self) -> Counter {
        *lock(&self.0)
    }

    pub(super) fn reset_peak(&self) {
        let mut counter = lock(&self.0);
        counter.peak = counter.current;
    }
}
