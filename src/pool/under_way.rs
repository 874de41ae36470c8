//! What jobs under way have of the pool: bytes promised, and free memory held.

use crate::heap::{Epoch, Id};

#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// Jobs that may leave more memory than there is now.
    pub(super) jobs: u64,
    /// Of such, how many have ended.
    pub(super) ended: u64,
    /// Bytes of handles to be made, which count against the limit.
    pub(super) to_create: u64,
    /// Bytes of the blocks that mappings are for.
    pub(super) wanted: u64,
    /// Bytes of free memory held, which count as allocated.
    pub(super) held: u64,
    /// Bytes that growing buffers are giving back.
    pub(super) leaving: u64,
}

/// Free memory that a job holds, and its history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) id: Id,
    pub(super) epoch: Epoch,
    pub(super) bytes: u64,
}

impl UnderWay {
    pub(super) fn end_one(&mut self) {
        self.jobs -= 1;
        self.ended += 1;
    }
}
