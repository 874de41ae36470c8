//! One extent: a range of the arena's addresses in one state.

use super::epoch::Epoch;

/// Blocks of up to this many bytes, as rounded by the pool, are small, as in other GPU allocators. So are
/// holes of up to this many bytes, which hold small blocks only.
pub const SMALL_BYTES: u64 = 1 << 20;

pub(crate) type Id = u32;

pub(crate) const NONE: Id = u32::MAX;

/// A record that is no extent and ends lists. Its links are written and never read: so no branch asks for a list's end.
pub(crate) const NIL: Id = 0;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    #[default]
    Unused,
    /// A block, live or in a stream's cache.
    Allocated,
    /// A *hole*: mapped memory with its *history*, the epoch after which nothing uses it.
    Free,
    /// Free memory that a job has.
    Held,
    /// A *gap*: addresses with nothing mapped.
    Unmapped,
    /// *Retiring*: the memory is mapped elsewhere by now, and still here for queued work. A gap once that is done.
    Stale,
    /// A mapping under way goes here.
    Reserved,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct Extent {
    /// Offset in the arena.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// For a free or stale extent, and for one that a job holds, the work after which nothing uses it; for a block,
    /// its stream is the one that allocated it.
    pub(crate) epoch: Epoch,
    pub(crate) prev: Id,
    pub(crate) next: Id,
    /// The hole filed next in the same bin.
    pub(crate) newer: Id,
    /// The hole filed before it in the same bin.
    pub(crate) older: Id,
    pub(crate) state: State,
    pub(crate) movable: bool,
}

const _: () = assert!(size_of::<Extent>() == 64);

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}
