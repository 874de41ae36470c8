//! A lane's own free blocks, by exact size.
//!
//! A block freed and allocated again on one stream needs no driver call and no shared lock: the stream's order runs
//! the old use before the new one. Sizes up to [`BINS`] units have a bin each; larger ones share a small table by
//! hash. In the heap a cached block is allocated, so no hole merges with it.
//!
//! A cache reserves its host memory when it is made, and never allocates later.

use std::ops::{Range, RangeInclusive};

use crate::device::Addr;
use crate::heap::UNIT;
use crate::heap::bitmap::Bitmap;
use crate::heap::size_class::{CLASSES, class_of, is_slot};
use crate::heap::{Id, NONE};

/// Most blocks of a cache. Their entries take 128 KiB of host addresses, and memory as used.
pub(crate) const MOST_BLOCKS: usize = 4096;

/// Units up to which sizes have a bin each; larger blocks go into the heap at each miss. With 64 * 64, which is
/// 1 MiB, the rl trace maps 3,135 handles elsewhere in place of 2,442.
pub(crate) const BINS: usize = 63 * 64;

/// Bins for sizes above that.
const LARGE: usize = 64;

/// All bins: small sizes, large sizes, slots.
const ALL: usize = BINS + LARGE + CLASSES;

pub(crate) const ALL_BINS: Range<usize> = 0..ALL;
pub(crate) const LARGE_BINS: Range<usize> = BINS..BINS + LARGE;

/// A free block. Two share a cache line, and none lies in two.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Cached {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    /// The stream's open tick when the block was freed.
    pub(crate) tick: u64,
    pub(crate) id: Id,
    /// The next entry of a cache's list.
    pub(super) next: u32,
}

const _: () = assert!(size_of::<Cached>() == 32);

impl Cached {
    #[inline(always)]
    pub(crate) fn new(id: Id, addr: Addr, bytes: u64, tick: u64) -> Self {
        Self {
            addr,
            bytes,
            tick,
            id,
            next: NONE,
        }
    }
}

#[repr(C)]
pub(crate) struct Cache {
    pub(super) bytes: u64,
    entries: Vec<Cached>,
    spare: u32,
    /// Bins that may have entries: a drain clears a bit, and a search that finds its bin empty.
    occupied: Bitmap,
    heads: [u32; ALL],
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            heads: [NONE; ALL],
            occupied: Bitmap::EMPTY,
            entries: Vec::with_capacity(MOST_BLOCKS),
            spare: NONE,
            bytes: 0,
        }
    }
}

impl Cache {
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.spare == NONE && self.entries.len() == MOST_BLOCKS
    }

    /// The bin of a size, which is a multiple of [`UNIT`] above 0, or a slot's. In bounds for any number.
    #[inline]
    fn bin(bytes: u64) -> usize {
        if is_slot(bytes) {
            return BINS + LARGE + class_of(bytes) % CLASSES;
        }
        let units = bytes / UNIT;
        let bin = units.wrapping_sub(1) as usize;
        if bin < BINS {
            return bin;
        }
        // Fibonacci hashing: sizes of one program differ in few bits.
        let hash = units.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        BINS + hash as usize
    }

    /// Takes the block of exactly `bytes` freed last, if it heads its bin.
    #[inline(always)]
    pub(crate) fn pop(&mut self, bytes: u64) -> Option<Cached> {
        let bin = Self::bin(bytes);
        let head = &mut self.heads[bin];
        let at = *head;
        let entry = self.entries.get_mut(at as usize)?;
        if entry.bytes != bytes {
            return None;
        }
        let block = *entry;
        *head = std::mem::replace(&mut entry.next, self.spare);
        self.spare = at;
        self.bytes -= bytes;
        Some(block)
    }

    /// Takes the smallest block from `bytes`, not a slot's size, to `most` that heads its bin.
    pub(crate) fn pop_near(&mut self, bytes: u64, most: u64) -> Option<Cached> {
        let bins = (bytes / UNIT - 1) as usize..(most / UNIT).min(BINS as u64) as usize;
        let small = self.first_of(bins).map(|bin| (bin as u64 + 1) * UNIT);
        let near = small.or_else(|| self.near_large(bytes..=most))?;
        self.pop(near)
    }

    /// The first bin of these that has a block.
    pub(super) fn first_of(&mut self, bins: Range<usize>) -> Option<usize> {
        let mut from = bins.start;
        while from < bins.end {
            let bin = self.occupied.next(from).filter(|&bin| bin < bins.end)?;
            if self.heads[bin] != NONE {
                return Some(bin);
            }
            self.occupied.clear_if(bin, true);
            from = bin + 1;
        }
        None
    }

    /// The size for [`Cache::pop_near`] among blocks of more than [`BINS`] units.
    fn near_large(&mut self, sizes: RangeInclusive<u64>) -> Option<u64> {
        let first = self.first_of(LARGE_BINS)?;
        let heads = self.heads[first..LARGE_BINS.end].iter();
        let found = heads.filter_map(|&at| Some(self.entries.get(at as usize)?.bytes));
        found.filter(|bytes| sizes.contains(bytes)).min()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, block: Cached) {
        let bin = Self::bin(block.bytes);
        let next = self.heads[bin];
        let entry = Cached { next, ..block };
        let at = self.spare;
        if let Some(place) = self.entries.get_mut(at as usize) {
            self.spare = place.next;
            *place = entry;
            self.heads[bin] = at;
        } else {
            self.heads[bin] = self.entries.len() as u32;
            self.entries.push(entry);
        }
        if next == NONE {
            self.occupied.set(bin);
        }
        self.bytes += block.bytes;
    }

    pub(crate) fn each(&self, mut see: impl FnMut(&Cached)) {
        for &head in self.heads.iter() {
            let mut at = head;
            while let Some(entry) = self.entries.get(at as usize) {
                see(entry);
                at = entry.next;
            }
        }
    }

    pub(crate) fn drain(&mut self, bins: Range<usize>, mut give: impl FnMut(Cached)) {
        while let Some(bin) = self.first_of(bins.clone()) {
            self.occupied.clear_if(bin, true);
            let mut at = std::mem::replace(&mut self.heads[bin], NONE);
            while let Some(entry) = self.entries.get_mut(at as usize) {
                let block = *entry;
                entry.next = std::mem::replace(&mut self.spare, at);
                self.bytes -= block.bytes;
                give(block);
                at = block.next;
            }
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod tests_model;
