//! A stream's own free blocks, by exact size: what makes the common case short.
//!
//! Blocks freed on a stream and allocated again on it need no driver call and no shared lock: the
//! stream's order already runs the old use before the new one. Sizes up to [`BINS`] units find
//! their bin directly; larger ones share a small table by hash. A block in the cache counts as
//! taken in the arena, so nothing merges with it; the pool empties caches before it makes any
//! stream wait or grows.

use super::extents::{Id, NONE};
use super::index::{BINS, UNIT};

/// Bins for sizes above [`BINS`] units.
const LARGE: usize = 64;

/// A free block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cached {
    pub(crate) id: Id,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The stream's open tick when the block was freed.
    pub(crate) tick: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    block: Cached,
    next: u32,
}

/// See the module documentation.
pub(crate) struct Cache {
    small: Box<[u32]>,
    large: [u32; LARGE],
    entries: Vec<Entry>,
    spare: u32,
    bytes: u64,
    blocks: usize,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self {
            small: vec![NONE; BINS + 1].into_boxed_slice(),
            large: [NONE; LARGE],
            entries: Vec::new(),
            spare: NONE,
            bytes: 0,
            blocks: 0,
        }
    }

    /// Bytes in all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    fn head(&mut self, bytes: u64) -> &mut u32 {
        let units = bytes / UNIT;
        if units <= BINS as u64 {
            return &mut self.small[units as usize];
        }
        // Fibonacci hashing: sizes of one program differ in few bits.
        let hash = units.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        &mut self.large[hash as usize]
    }

    /// The block of exactly `bytes` freed last, if it heads its bin.
    pub(crate) fn pop(&mut self, bytes: u64) -> Option<Cached> {
        let at = *self.head(bytes);
        if at == NONE {
            return None;
        }
        let Entry { block, next } = self.entries[at as usize];
        if block.bytes != bytes {
            return None;
        }
        *self.head(bytes) = next;
        self.entries[at as usize].next = self.spare;
        self.spare = at;
        self.bytes -= bytes;
        self.blocks -= 1;
        Some(block)
    }

    /// Keeps a block.
    pub(crate) fn push(&mut self, block: Cached) {
        let next = *self.head(block.bytes);
        let entry = Entry { block, next };
        let at = if self.spare == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.spare;
            self.spare = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            at
        };
        *self.head(block.bytes) = at;
        self.bytes += block.bytes;
        self.blocks += 1;
    }

    /// Takes all blocks out.
    pub(crate) fn drain(&mut self, mut give: impl FnMut(Cached)) {
        if self.blocks == 0 {
            return;
        }
        let Self {
            small,
            large,
            entries,
            ..
        } = self;
        for head in small.iter_mut().chain(large.iter_mut()) {
            let mut at = std::mem::replace(head, NONE);
            while at != NONE {
                give(entries[at as usize].block);
                at = entries[at as usize].next;
            }
        }
        self.entries.clear();
        self.spare = NONE;
        self.bytes = 0;
        self.blocks = 0;
    }
}
