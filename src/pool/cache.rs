//! A stream's own free blocks, by exact size: what makes the common case short.
//!
//! Blocks freed on a stream and allocated again on it need no driver call and no shared lock: the
//! stream's order already runs the old use before the new one. Sizes up to [`BINS`] units find
//! their bin directly; larger ones share a small table by hash. A block in the cache counts as
//! taken in the arena, so nothing merges with it; the pool empties caches before it makes any
//! stream wait or grows.

use super::extents::{Id, NONE};
use super::index::{BINS, UNIT};
use crate::seeded::seeded;

/// Bins for sizes above [`BINS`] units; a multiple of 64.
const LARGE: usize = 64;

/// Words of a bitmap over all bins, small ones first.
const WORDS: usize = (BINS + LARGE).div_ceil(64);

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
    /// First entry of each bin, small ones first.
    heads: Box<[u32; BINS + LARGE]>,
    /// Bins that may have entries: set when one gets an entry, cleared by a drain.
    occupied: [u64; WORDS],
    entries: Vec<Entry>,
    spare: u32,
    bytes: u64,
    blocks: usize,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self {
            heads: Box::new([NONE; BINS + LARGE]),
            occupied: [0; WORDS],
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

    /// The bin of a size, which is a multiple of [`UNIT`] above 0.
    fn bin(bytes: u64) -> usize {
        let units = bytes / UNIT;
        if units <= BINS as u64 {
            return (units - 1) as usize;
        }
        // Fibonacci hashing: sizes of one program differ in few bits.
        let hash = units.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        BINS + hash as usize
    }

    /// The block of exactly `bytes` freed last, if it heads its bin.
    #[inline]
    pub(crate) fn pop(&mut self, bytes: u64) -> Option<Cached> {
        let bin = Self::bin(bytes);
        let at = self.heads[bin];
        if at == NONE {
            return None;
        }
        let entry = &mut self.entries[at as usize];
        let block = entry.block;
        if block.bytes != bytes && !seeded!("any-size-of-a-bin-will-do") {
            return None;
        }
        self.heads[bin] = std::mem::replace(&mut entry.next, self.spare);
        self.spare = at;
        self.bytes -= bytes;
        self.blocks -= 1;
        Some(block)
    }

    /// The tick of the block that [`Cache::pop`] would give, the latest of its size.
    pub(crate) fn newest(&self, bytes: u64) -> Option<u64> {
        let at = self.heads[Self::bin(bytes)];
        let entry = self.entries.get(at as usize)?;
        (entry.block.bytes == bytes).then_some(entry.block.tick)
    }

    /// Keeps a block.
    #[inline]
    pub(crate) fn push(&mut self, block: Cached) {
        let bin = Self::bin(block.bytes);
        let next = self.heads[bin];
        let at = self.spare;
        if at == NONE {
            self.heads[bin] = self.entries.len() as u32;
            self.entries.push(Entry { block, next });
        } else {
            let entry = &mut self.entries[at as usize];
            self.spare = std::mem::replace(&mut entry.next, next);
            entry.block = block;
            self.heads[bin] = at;
        }
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.bytes += block.bytes;
        self.blocks += 1;
    }

    /// Shows all blocks.
    pub(crate) fn each(&self, mut see: impl FnMut(&Cached)) {
        for &head in self.heads.iter() {
            let mut at = head;
            while at != NONE {
                let entry = &self.entries[at as usize];
                see(&entry.block);
                at = entry.next;
            }
        }
    }

    /// Takes all blocks out.
    pub(crate) fn drain(&mut self, mut give: impl FnMut(Cached)) {
        if self.blocks == 0 {
            return;
        }
        for (word, occupied) in self.occupied.iter_mut().enumerate() {
            while *occupied != 0 {
                let bin = word * 64 + occupied.trailing_zeros() as usize;
                *occupied &= *occupied - 1;
                let mut at = std::mem::replace(&mut self.heads[bin], NONE);
                while at != NONE {
                    let entry = &self.entries[at as usize];
                    give(entry.block);
                    at = entry.next;
                }
            }
        }
        self.entries.clear();
        self.spare = NONE;
        self.bytes = 0;
        self.blocks = 0;
    }
}
