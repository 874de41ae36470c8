//! Best fit over free extents: the smallest hole that is large enough, in a few instructions.
//!
//! Sizes come in units of [`UNIT`]. Up to [`BINS`] units every size has a bin of its own, and two levels of
//! bitmap find the first bin that is not empty: an exact best fit without a search. A bin is a list
//! through the extent table, the hole filed last first.
//!
//! Larger holes are few. An ordered set has them, of equal sizes the lowest address first, so that the top
//! of the arena drains.

use std::collections::BTreeSet;
use std::hint::select_unpredictable;

use super::extent::NIL;
use super::{Extent, Id, State, ensure};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Holes of up to this many units are listed by size; caches have bins for as many.
pub(crate) const BINS: usize = 63 * 64;

/// Words of 64 bins: one for each size from 0 to [`BINS`] units. As many as a word has bits.
const WORDS: usize = BINS / 64 + 1;

const _: () = assert!(WORDS == 64);

/// The bins that are not empty: a bit each, and a bit for each word of those.
struct Bitmap {
    bits: [u64; WORDS],
    words: u64,
}

impl Bitmap {
    #[inline(always)]
    fn set(&mut self, bin: Bin) {
        let word = bin.0 / 64 % WORDS;
        self.bits[word] |= 1 << (bin.0 % 64);
        self.words |= 1 << word;
    }

    /// Clears the bit if `empty`. Without a branch: whether a bin, or its word, is empty now is
    /// anyone's guess.
    #[inline(always)]
    fn clear_if(&mut self, bin: Bin, empty: bool) {
        let word = bin.0 / 64 % WORDS;
        let bits = self.bits[word] & !(u64::from(empty) << (bin.0 % 64));
        self.bits[word] = bits;
        self.words &= !(u64::from(bits == 0) << word);
    }

    /// The first bit set from `from` on.
    ///
    /// Whether the word at hand has one is anyone's guess, and a wrong guess costs more than to look
    /// in both places.
    #[inline(always)]
    fn next(&self, from: Bin) -> Option<Bin> {
        let word = from.0 / 64 % WORDS;
        let here = self.bits[word] & (!0 << (from.0 % 64));
        // In two steps, as no number is shifted by all its bits.
        let beside = self.words & (!0 << word << 1);
        if here | beside == 0 {
            return None;
        }
        // Of an empty word bit 63, which is in bounds and not taken then.
        let later = (beside | 1 << 63).trailing_zeros() as usize;
        let (at, bits) = select_unpredictable(here != 0, (word, here), (later, self.bits[later]));
        Some(Bin(at * 64 + bits.trailing_zeros() as usize))
    }

    fn last(&self) -> Option<Bin> {
        let top = |bits: u64| 63 - bits.leading_zeros() as usize;
        (self.words != 0).then(|| {
            let word = top(self.words);
            Bin(word * 64 + top(self.bits[word]))
        })
    }

    /// Whether each word's bit says of the word what is so.
    fn check(&self) -> Result<(), String> {
        let agrees = |(at, bits): (usize, &u64)| (self.words >> at & 1 == 1) == (*bits != 0);
        ensure(self.bits.iter().enumerate().all(agrees), || {
            "the bits of words of bins do not agree".to_string()
        })
    }
}

/// The number of a bin, up to [`BINS`].
#[derive(Clone, Copy)]
struct Bin(usize);

impl Bin {
    /// The bin of a size, `None` for one that has none.
    #[inline(always)]
    fn of(bytes: u64) -> Option<Self> {
        let units = bytes / UNIT;
        (units <= BINS as u64).then_some(Self(units as usize))
    }

    fn bytes(self) -> u64 {
        self.0 as u64 * UNIT
    }
}

/// The first hole of each bin, [`NIL`] for none.
struct Heads(Box<[Id; WORDS * 64]>);

impl Heads {
    #[inline(always)]
    fn get(&self, bin: Bin) -> Id {
        self.0[bin.0 % (WORDS * 64)]
    }

    #[inline(always)]
    fn set(&mut self, bin: Bin, id: Id) {
        self.0[bin.0 % (WORDS * 64)] = id;
    }
}

/// The free extents of one owner. See the module documentation.
pub(crate) struct Bins {
    heads: Heads,
    filled: Bitmap,
    /// (bytes, start, id) of holes that no bin has.
    large: BTreeSet<(u64, u64, Id)>,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            heads: Heads(Box::new([NIL; WORDS * 64])),
            filled: Bitmap {
                bits: [0; WORDS],
                words: 0,
            },
            large: BTreeSet::new(),
        }
    }
}

impl Bins {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled.words == 0 && self.large.is_empty()
    }

    /// Files the hole `id`, which has `bytes`.
    #[inline(always)]
    pub(crate) fn insert(&mut self, table: &mut [Extent], id: Id, bytes: u64) {
        let extent = &mut table[id as usize];
        let Some(bin) = Bin::of(bytes) else {
            return self.insert_large((bytes, extent.start, id));
        };
        let head = self.heads.get(bin);
        extent.newer = NIL;
        extent.older = head;
        table[head as usize].newer = id;
        self.filled.set(bin);
        self.heads.set(bin, id);
    }

    #[cold]
    #[inline(never)]
    fn insert_large(&mut self, hole: (u64, u64, Id)) {
        self.large.insert(hole);
    }

    /// Takes the hole `id`, which is filed here, out.
    #[inline(always)]
    pub(crate) fn remove(&mut self, table: &mut [Extent], id: Id) {
        let extent = &table[id as usize];
        let (newer, older) = (extent.newer, extent.older);
        let Some(bin) = Bin::of(extent.bytes) else {
            return self.remove_large((extent.bytes, extent.start, id));
        };
        table[older as usize].newer = newer;
        table[newer as usize].older = older;
        let head = self.heads.get(bin);
        let is_head = newer == NIL;
        self.heads
            .set(bin, select_unpredictable(is_head, older, head));
        self.filled.clear_if(bin, is_head & (older == NIL));
    }

    #[cold]
    #[inline(never)]
    fn remove_large(&mut self, hole: (u64, u64, Id)) {
        self.large.remove(&hole);
    }

    /// The smallest hole of at least `bytes`.
    #[inline(always)]
    pub(crate) fn best(&self, bytes: u64) -> Option<Id> {
        match Bin::of(bytes).and_then(|bin| self.filled.next(bin)) {
            Some(bin) => Some(self.heads.get(bin)),
            None => self.best_large(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn best_large(&self, bytes: u64) -> Option<Id> {
        let first = self.large.range((bytes, 0, 0)..).next();
        first.map(|&(_, _, id)| id)
    }

    /// The bins from the one for `bytes` on that have holes.
    fn filled_from(&self, bytes: u64) -> impl Iterator<Item = Bin> + '_ {
        let first = Bin::of(bytes).and_then(|bin| self.filled.next(bin));
        let next = |&Bin(at): &Bin| (at < BINS).then(|| self.filled.next(Bin(at + 1)))?;
        std::iter::successors(first, next)
    }

    /// The holes of at least `bytes`, smallest first and of one size the lowest first; one a size of
    /// those that are listed.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = Id> + '_ {
        let listed = self.filled_from(bytes).map(|bin| self.heads.get(bin));
        // Searched only once the bins are through.
        let large = std::iter::once(()).flat_map(move |()| self.large.range((bytes, 0, 0)..));
        listed.chain(large.map(|&(_, _, id)| id))
    }

    /// All holes of at least `bytes`.
    pub(crate) fn filed<'a>(
        &'a self,
        table: &'a [Extent],
        bytes: u64,
    ) -> impl Iterator<Item = Id> + 'a {
        self.at_least(bytes).flat_map(move |head| {
            let listed = Bin::of(table[head as usize].bytes).is_some();
            let older = move |&id: &Id| {
                listed
                    .then(|| table[id as usize].older)
                    .filter(|&id| id != NIL)
            };
            std::iter::successors(Some(head), older)
        })
    }

    pub(crate) fn largest(&self) -> u64 {
        let listed = self.filled.last().map_or(0, Bin::bytes);
        let large = self.large.last().map_or(0, |&(bytes, _, _)| bytes);
        listed.max(large)
    }

    pub(crate) fn holds(&self, table: &[Extent], id: Id) -> bool {
        let Extent { start, bytes, .. } = table[id as usize];
        let Some(bin) = Bin::of(bytes) else {
            return self.large.contains(&(bytes, start, id));
        };
        let mut at = self.heads.get(bin);
        while at != NIL && at != id {
            at = table[at as usize].older;
        }
        at == id
    }

    /// Bytes and number of the holes filed here, if bins, lists and bits agree.
    pub(crate) fn check(&self, table: &[Extent]) -> Result<(u64, u64), String> {
        self.filled.check()?;
        let (mut bytes, mut holes) = (0, self.large.len() as u64);
        for at in self.filled_from(0) {
            let (mut newer, mut id) = (NIL, self.heads.get(at));
            ensure(id != NIL, || format!("bin {} has a bit and no hole", at.0))?;
            while id != NIL {
                let extent = table.get(id as usize);
                let fits = |it: &&Extent| it.bytes == at.bytes() && it.state == State::Free;
                let Some(extent) = extent.filter(fits) else {
                    return Err(format!("bin {} has {id}, {extent:?}", at.0));
                };
                ensure(extent.newer == newer, || {
                    format!("{id}, {extent:?}, does not follow {newer} in its bin")
                })?;
                (bytes, holes) = (bytes + extent.bytes, holes + 1);
                (newer, id) = (id, extent.older);
            }
        }
        bytes += self.large.iter().map(|&(bytes, _, _)| bytes).sum::<u64>();
        Ok((bytes, holes))
    }
}

#[cfg(test)]
mod tests;
