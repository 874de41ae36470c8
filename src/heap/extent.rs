//! One extent: a stretch of the arena's addresses that one thing has.

use super::epoch::{Epoch, FRESH, StreamIndex};

/// Blocks of up to this many bytes, as rounded by the pool, are small, as in other allocators of the
/// field. A hole of up to as many can hold small blocks only, and counts as small.
pub const SMALL_BYTES: u64 = 1 << 20;

pub(crate) type Id = u32;

pub(crate) const NONE: Id = u32::MAX;

/// The record of no extent, with which lists end: it is written, and never read, so that a list's end needs no
/// branch.
pub(crate) const NIL: Id = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not in the list; the record is free for use.
    Unused,
    Allocated,
    Free,
    Unmapped,
    /// Mapped elsewhere already, still mapped here.
    Stale,
    /// Being mapped: nobody else may have it until that is done or undone.
    Reserved,
}

/// One extent: 64 bytes, one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Extent {
    /// Offset in the arena, bytes.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Of a hole or a retiring extent: the tick of `slot` after which nothing uses it.
    pub(crate) tick: u64,
    pub(crate) prev: Id,
    pub(crate) next: Id,
    /// In the same bin, filed later.
    pub(crate) newer: Id,
    /// In the same bin, filed earlier.
    pub(crate) older: Id,
    /// Of a hole or a retiring extent: whose work `tick` counts. Of a block: who allocated it.
    pub(crate) slot: StreamIndex,
    pub(crate) state: State,
    pub(crate) movable: bool,
}

const _: () = assert!(size_of::<Extent>() == 64);

impl Extent {
    pub(crate) const BLANK: Self = Self {
        start: 0,
        bytes: 0,
        tick: 0,
        prev: NONE,
        next: NONE,
        newer: NIL,
        older: NIL,
        slot: FRESH,
        state: State::Unused,
        movable: false,
    };

    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Of a free or stale extent: the work after which nothing uses it.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch::new(self.slot, self.tick)
    }
}
