//! Best fit over free extents: the smallest hole that is large enough, in a few instructions.
//!
//! Sizes come in units of [`UNIT`]. Up to [`BINS`] units every size has a bin of its own, a list
//! through the extent table, and two levels of bitmap find the first bin that is not empty: an
//! exact best fit without a search. Larger holes are few; an ordered set holds them by
//! (size, address), so that of equal sizes the lowest address is taken and the top of the arena
//! drains.

use std::collections::BTreeSet;

use super::extents::{Extent, Id, NONE};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Sizes of up to this many units have bins: as many as two levels of 64 bits tell apart.
pub(crate) const BINS: usize = 63 * 64;

const WORDS: usize = BINS / 64 + 1;

/// The free extents of one owner. See the module documentation.
pub(crate) struct Index {
    heads: Box<[Id]>,
    words: [u64; WORDS],
    summary: u64,
    large: BTreeSet<(u64, u64, Id)>,
    bytes: u64,
    holes: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            heads: vec![NONE; BINS + 1].into_boxed_slice(),
            words: [0; WORDS],
            summary: 0,
            large: BTreeSet::new(),
            bytes: 0,
            holes: 0,
        }
    }
}

impl Index {
    /// Bytes in all holes filed here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of holes filed here.
    pub(crate) fn holes(&self) -> u64 {
        self.holes
    }

    /// The bin of a size, `None` for one that goes into the ordered set.
    fn bin(bytes: u64) -> Option<usize> {
        let units = bytes / UNIT;
        (units <= BINS as u64).then_some(units as usize)
    }

    /// Files the hole `id`.
    pub(crate) fn insert(&mut self, table: &mut [Extent], id: Id) {
        let (start, bytes) = (table[id as usize].start, table[id as usize].bytes);
        self.bytes += bytes;
        self.holes += 1;
        let Some(bin) = Self::bin(bytes) else {
            self.large.insert((bytes, start, id));
            return;
        };
        let head = self.heads[bin];
        let extent = &mut table[id as usize];
        extent.newer = NONE;
        extent.older = head;
        if head != NONE {
            table[head as usize].newer = id;
        }
        self.heads[bin] = id;
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// Takes the hole `id`, which is filed here, out.
    pub(crate) fn remove(&mut self, table: &mut [Extent], id: Id) {
        let Extent {
            start,
            bytes,
            newer,
            older,
            ..
        } = table[id as usize];
        self.bytes -= bytes;
        self.holes -= 1;
        let Some(bin) = Self::bin(bytes) else {
            self.large.remove(&(bytes, start, id));
            return;
        };
        if older != NONE {
            table[older as usize].newer = newer;
        }
        if newer != NONE {
            table[newer as usize].older = older;
            return;
        }
        self.heads[bin] = older;
        if older == NONE {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The smallest hole of at least `bytes`.
    pub(crate) fn best(&self, bytes: u64) -> Option<Id> {
        if self.holes == 0 {
            return None;
        }
        if let Some(bin) = Self::bin(bytes).and_then(|bin| self.next_bin(bin)) {
            return Some(self.heads[bin]);
        }
        self.large
            .range((bytes, 0, 0)..)
            .next()
            .map(|&(_, _, id)| id)
    }

    /// The first bin from `from` on that is not empty.
    fn next_bin(&self, from: usize) -> Option<usize> {
        if from > BINS {
            return None;
        }
        let word = self.words[from / 64] & (!0 << (from % 64));
        if word != 0 {
            return Some(from / 64 * 64 + word.trailing_zeros() as usize);
        }
        let later = self.summary & (!0u64).checked_shl(from as u32 / 64 + 1).unwrap_or(0);
        (later != 0).then(|| {
            let at = later.trailing_zeros() as usize;
            at * 64 + self.words[at].trailing_zeros() as usize
        })
    }

    /// The holes of at least `bytes`, smallest first, one a size below [`BINS`] units.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = Id> + '_ {
        let first = self.next_bin(Self::bin(bytes).unwrap_or(BINS + 1));
        let bins = std::iter::successors(first, |&bin| self.next_bin(bin + 1));
        let small = bins.map(|bin| self.heads[bin]);
        // Searched only once the bins are through.
        let large = std::iter::once(()).flat_map(move |()| self.large.range((bytes, 0, 0)..));
        small.chain(large.map(|&(_, _, id)| id))
    }

    /// All holes of at least `bytes`.
    pub(crate) fn filed<'a>(
        &'a self,
        table: &'a [Extent],
        bytes: u64,
    ) -> impl Iterator<Item = Id> + 'a {
        self.at_least(bytes).flat_map(move |head| {
            // A hole of the ordered set is in no list.
            let listed = Self::bin(table[head as usize].bytes).is_some();
            let older = move |&id: &Id| {
                listed
                    .then(|| table[id as usize].older)
                    .filter(|&id| id != NONE)
            };
            std::iter::successors(Some(head), older)
        })
    }

    /// Bytes of the largest hole, given the table for sizes in bins.
    pub(crate) fn largest(&self) -> u64 {
        if let Some(&(bytes, _, _)) = self.large.last() {
            return bytes;
        }
        if self.summary == 0 {
            return 0;
        }
        let at = 63 - self.summary.leading_zeros() as usize;
        (at * 64 + 63 - self.words[at].leading_zeros() as usize) as u64 * UNIT
    }

    /// Whether the hole `id` is filed here; for checks.
    pub(crate) fn holds(&self, table: &[Extent], id: Id) -> bool {
        let Extent { start, bytes, .. } = table[id as usize];
        let Some(bin) = Self::bin(bytes) else {
            return self.large.contains(&(bytes, start, id));
        };
        let mut at = self.heads[bin];
        while at != NONE && at != id {
            at = table[at as usize].older;
        }
        at == id
    }
}
