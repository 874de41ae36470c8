//! Best fit over free extents: the smallest hole that is large enough, in a few instructions.
//!
//! Sizes come in units of [`UNIT`]. Below [`SIZES`] units every size has a bin of its own, and three
//! levels of bitmap find the first bin that is not empty: an exact best fit without a search.
//!
//! Up to [`BINS`] units a bin is a list through the extent table, the hole filed last first. Of larger
//! sizes the lowest address is taken, so that the top of the arena drains: the bin has that one hole,
//! and an ordered set has what other holes there are of the size, which are few. The set also has all
//! holes of [`SIZES`] units and more.

use std::collections::BTreeSet;
use std::hint::select_unpredictable;

use super::extents::{Extent, Id, NONE};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Holes of up to this many units are listed by size; caches have bins for as many.
pub(crate) const BINS: usize = 63 * 64;

/// Sizes below this many units have bins.
const SIZES: usize = 16 * 64 * 64;

/// The bins that are not empty: a bit each, a bit for each word of those, and one for each of those.
struct Bitmap {
    bits: Box<[u64]>,
    words: [u64; SIZES / 64 / 64],
    groups: u64,
}

impl Bitmap {
    fn new() -> Self {
        Self {
            bits: vec![0; SIZES / 64].into_boxed_slice(),
            words: [0; SIZES / 64 / 64],
            groups: 0,
        }
    }

    #[inline]
    fn set(&mut self, bin: usize) {
        self.bits[bin / 64] |= 1 << (bin % 64);
        self.words[bin / 64 / 64] |= 1 << (bin / 64 % 64);
        self.groups |= 1 << (bin / 64 / 64);
    }

    #[inline]
    fn clear(&mut self, bin: usize) {
        let word = &mut self.bits[bin / 64];
        *word &= !(1 << (bin % 64));
        if *word != 0 {
            return;
        }
        let group = &mut self.words[bin / 64 / 64];
        *group &= !(1 << (bin / 64 % 64));
        self.groups &= !(u64::from(*group == 0) << (bin / 64 / 64));
    }

    /// The first bit set from `from` on, which is below [`SIZES`].
    ///
    /// Whether the word at hand has one is anyone's guess, and a wrong guess costs more than to look
    /// in both places.
    #[inline]
    fn next(&self, from: usize) -> Option<usize> {
        let (word, group) = (from / 64, from / 64 / 64);
        let here = self.bits[word] & (!0 << (from % 64));
        // In two steps, as no number is shifted by all its bits.
        let beside = self.words[group] & (!0 << (word % 64) << 1);
        if here | beside == 0 {
            return self.next_group(group + 1);
        }
        // Of an empty word bit 63, which is in bounds and not taken then.
        let later = group * 64 + (beside | 1 << 63).trailing_zeros() as usize;
        let (at, bits) = select_unpredictable(here != 0, (word, here), (later, self.bits[later]));
        Some(at * 64 + bits.trailing_zeros() as usize)
    }

    fn next_group(&self, from: usize) -> Option<usize> {
        let groups = self.groups & (!0 << from);
        (groups != 0).then(|| {
            let group = groups.trailing_zeros() as usize;
            let at = group * 64 + self.words[group].trailing_zeros() as usize;
            at * 64 + self.bits[at].trailing_zeros() as usize
        })
    }

    fn last(&self) -> Option<usize> {
        let top = |bits: u64| 63 - bits.leading_zeros() as usize;
        (self.groups != 0).then(|| {
            let group = top(self.groups);
            let at = group * 64 + top(self.words[group]);
            at * 64 + top(self.bits[at])
        })
    }
}

/// The first hole of each bin. Zeros are as good as empty, so that memory nobody wrote is not there.
struct Heads(Box<[u32]>);

impl Heads {
    fn new() -> Self {
        Self(vec![0; SIZES].into_boxed_slice())
    }

    #[inline]
    fn get(&self, bin: usize) -> Id {
        self.0[bin].wrapping_sub(1)
    }

    #[inline]
    fn set(&mut self, bin: usize, id: Id) {
        self.0[bin] = id.wrapping_add(1);
    }
}

/// The free extents of one owner. See the module documentation.
pub(crate) struct Index {
    heads: Heads,
    filled: Bitmap,
    /// (bytes, start, id) of holes that no bin has.
    others: BTreeSet<(u64, u64, Id)>,
    bytes: u64,
    holes: u64,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            heads: Heads::new(),
            filled: Bitmap::new(),
            others: BTreeSet::new(),
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

    /// The bin of a size, `None` for one that has none.
    #[inline]
    fn bin(bytes: u64) -> Option<usize> {
        let units = bytes / UNIT;
        (units < SIZES as u64).then_some(units as usize)
    }

    /// Whether holes of a size are listed.
    #[inline]
    fn is_listed(bytes: u64) -> bool {
        bytes <= BINS as u64 * UNIT
    }

    /// Files the hole `id`.
    #[inline]
    pub(crate) fn insert(&mut self, table: &mut [Extent], id: Id) {
        let extent = &mut table[id as usize];
        let bytes = extent.bytes;
        self.bytes += bytes;
        self.holes += 1;
        let Some(bin) = Self::bin(bytes) else {
            self.others.insert((bytes, extent.start, id));
            return;
        };
        let head = self.heads.get(bin);
        extent.newer = NONE;
        extent.older = head;
        if head == NONE {
            self.filled.set(bin);
        } else if Self::is_listed(bytes) {
            table[head as usize].newer = id;
        } else {
            return self.insert_beside(table, head, id);
        }
        self.heads.set(bin, id);
    }

    /// Files the hole `id` of a size that is not listed, of which the bin has `head`. The one with
    /// other holes of its size has one of them for the one filed earlier.
    #[cold]
    #[inline(never)]
    fn insert_beside(&mut self, table: &mut [Extent], head: Id, id: Id) {
        let Extent { start, bytes, .. } = table[id as usize];
        let first = table[head as usize].start;
        if start < first {
            self.others.insert((bytes, first, head));
            table[id as usize].older = head;
            self.heads.set((bytes / UNIT) as usize, id);
        } else {
            self.others.insert((bytes, start, id));
            table[head as usize].older = id;
        }
    }

    /// Takes the hole `id`, which is filed here, out.
    #[inline]
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
            self.others.remove(&(bytes, start, id));
            return;
        };
        if !Self::is_listed(bytes) {
            if older == NONE && self.heads.get(bin) == id {
                self.heads.set(bin, NONE);
                self.filled.clear(bin);
                return;
            }
            return self.remove_beside(table, bin, id);
        }
        if older != NONE {
            table[older as usize].newer = newer;
        }
        if newer != NONE {
            table[newer as usize].older = older;
            return;
        }
        self.heads.set(bin, older);
        if older == NONE {
            self.filled.clear(bin);
        }
    }

    /// Takes out the hole `id` of a size that is not listed, of which there are or were others.
    #[cold]
    #[inline(never)]
    fn remove_beside(&mut self, table: &mut [Extent], bin: usize, id: Id) {
        let Extent { start, bytes, .. } = table[id as usize];
        let mut head = self.heads.get(bin);
        if head == id {
            let Some(next) = self.first_beside(bytes) else {
                self.heads.set(bin, NONE);
                self.filled.clear(bin);
                return;
            };
            self.others.remove(&next);
            head = next.2;
            self.heads.set(bin, head);
        } else {
            self.others.remove(&(bytes, start, id));
        }
        let beside = self.first_beside(bytes);
        table[head as usize].older = beside.map_or(NONE, |(_, _, id)| id);
    }

    /// The lowest hole of exactly `bytes` that no bin has.
    fn first_beside(&self, bytes: u64) -> Option<(u64, u64, Id)> {
        let first = self.others.range((bytes, 0, 0)..).next();
        first.filter(|&&(other, _, _)| other == bytes).copied()
    }

    /// The smallest hole of at least `bytes`.
    #[inline]
    pub(crate) fn best(&self, bytes: u64) -> Option<Id> {
        if self.holes == 0 {
            return None;
        }
        if let Some(bin) = Self::bin(bytes).and_then(|bin| self.filled.next(bin)) {
            return Some(self.heads.get(bin));
        }
        let large = bytes.max(SIZES as u64 * UNIT);
        let first = self.others.range((large, 0, 0)..).next();
        first.map(|&(_, _, id)| id)
    }

    /// The holes of at least `bytes`, smallest first and of one size the lowest first; one a size of
    /// those that are listed.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = Id> + '_ {
        let first = Self::bin(bytes).and_then(|bin| self.filled.next(bin));
        let bins = std::iter::successors(first, |&bin| {
            (bin + 1 < SIZES).then(|| self.filled.next(bin + 1))?
        });
        let binned = bins.flat_map(move |bin| {
            let bytes = bin as u64 * UNIT;
            let most = if Self::is_listed(bytes) {
                0
            } else {
                usize::MAX
            };
            let others = self.others.range((bytes, 0, 0)..=(bytes, u64::MAX, NONE));
            std::iter::once(self.heads.get(bin)).chain(others.map(|&(_, _, id)| id).take(most))
        });
        // Searched only once the bins are through.
        let large = bytes.max(SIZES as u64 * UNIT);
        let large = std::iter::once(()).flat_map(move |()| self.others.range((large, 0, 0)..));
        binned.chain(large.map(|&(_, _, id)| id))
    }

    /// All holes of at least `bytes`.
    pub(crate) fn filed<'a>(
        &'a self,
        table: &'a [Extent],
        bytes: u64,
    ) -> impl Iterator<Item = Id> + 'a {
        self.at_least(bytes).flat_map(move |head| {
            let listed = Self::is_listed(table[head as usize].bytes);
            let older = move |&id: &Id| {
                listed
                    .then(|| table[id as usize].older)
                    .filter(|&id| id != NONE)
            };
            std::iter::successors(Some(head), older)
        })
    }

    /// Bytes of the largest hole.
    pub(crate) fn largest(&self) -> u64 {
        let binned = self.filled.last().map_or(0, |bin| bin as u64 * UNIT);
        let other = self.others.last().map_or(0, |&(bytes, _, _)| bytes);
        binned.max(other)
    }

    /// Whether the hole `id` is filed here; for checks.
    pub(crate) fn holds(&self, table: &[Extent], id: Id) -> bool {
        let Extent { start, bytes, .. } = table[id as usize];
        let head = Self::bin(bytes).map_or(NONE, |bin| self.heads.get(bin));
        if !Self::is_listed(bytes) {
            let beside = self.others.contains(&(bytes, start, id));
            let first = |head: Id| table[head as usize].start < start;
            return (head == id) != beside && (!beside || head == NONE || first(head));
        }
        let mut at = head;
        while at != NONE && at != id {
            at = table[at as usize].older;
        }
        at == id
    }
}
