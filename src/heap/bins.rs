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

use super::extent::NIL;
use super::{Extent, Id, State, ensure};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Holes of up to this many units are listed by size; caches have bins for as many.
pub(crate) const BINS: usize = 63 * 64;

/// Sizes below this many units have bins.
const SIZES: usize = 16 * 64 * 64;

/// Words of 64 bins, and groups of 64 words.
const WORDS: usize = SIZES / 64;
const GROUPS: usize = WORDS / 64;

/// An array of zeros on the heap, which takes no memory until it is written.
fn zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let zeros = vec![T::default(); N].into_boxed_slice();
    zeros
        .try_into()
        .unwrap_or_else(|_| Box::new([T::default(); N]))
}

/// The bins that are not empty: a bit each, a bit for each word of those, and one for each of those.
struct Bitmap {
    bits: Box<[u64; WORDS]>,
    words: [u64; GROUPS],
    groups: u64,
}

impl Bitmap {
    fn new() -> Self {
        Self {
            bits: zeros(),
            words: [0; GROUPS],
            groups: 0,
        }
    }

    #[inline(always)]
    fn set(&mut self, bin: Bin) {
        let (word, group) = (bin.0 / 64, bin.0 / 64 / 64);
        self.bits[word] |= 1 << (bin.0 % 64);
        self.words[group] |= 1 << (word % 64);
        self.groups |= 1 << group;
    }

    /// Clears the bit if `empty`. Without a branch: whether a bin, or its word, is empty now is
    /// anyone's guess.
    #[inline(always)]
    fn clear_if(&mut self, bin: Bin, empty: bool) {
        let (word, group) = (bin.0 / 64, bin.0 / 64 / 64);
        let bits = self.bits[word] & !(u64::from(empty) << (bin.0 % 64));
        self.bits[word] = bits;
        let words = self.words[group] & !(u64::from(bits == 0) << (word % 64));
        self.words[group] = words;
        self.groups &= !(u64::from(words == 0) << group);
    }

    /// The first bit set from `from` on.
    ///
    /// Whether the word at hand has one is anyone's guess, and a wrong guess costs more than to look
    /// in both places.
    #[inline(always)]
    fn next(&self, from: Bin) -> Option<Bin> {
        let (word, group) = (from.0 / 64, from.0 / 64 / 64);
        let here = self.bits[word] & (!0 << (from.0 % 64));
        // In two steps, as no number is shifted by all its bits.
        let beside = self.words[group] & (!0 << (word % 64) << 1);
        if here | beside == 0 {
            return self.next_group(group + 1);
        }
        // Of an empty word bit 63, which is in bounds and not taken then.
        let later = group * 64 + (beside | 1 << 63).trailing_zeros() as usize;
        let (at, bits) = select_unpredictable(here != 0, (word, here), (later, self.bits[later]));
        Some(Bin(at * 64 + bits.trailing_zeros() as usize))
    }

    fn next_group(&self, from: usize) -> Option<Bin> {
        let groups = self.groups & (!0 << from);
        (groups != 0).then(|| {
            let group = groups.trailing_zeros() as usize;
            let at = group * 64 + self.words[group].trailing_zeros() as usize;
            Bin(at * 64 + self.bits[at].trailing_zeros() as usize)
        })
    }

    /// Whether each level says of the one below what is so.
    fn check(&self) -> Result<(), String> {
        let words = self.words.iter().enumerate();
        for (group, word) in words {
            let below = &self.bits[group * 64..][..64];
            let filled = |bits: u64, at: usize| bits >> at & 1 == 1;
            let agrees = |(at, bits): (usize, &u64)| filled(*word, at) == (*bits != 0);
            let group_agrees = filled(self.groups, group) == (*word != 0);
            ensure(group_agrees && below.iter().enumerate().all(agrees), || {
                format!("the bits of group {group} of bins do not agree")
            })?;
        }
        Ok(())
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

/// The number of a bin, below [`SIZES`].
#[derive(Clone, Copy)]
struct Bin(usize);

impl Bin {
    /// The bin of a size, `None` for one that has none.
    #[inline(always)]
    fn of(bytes: u64) -> Option<Self> {
        let units = bytes / UNIT;
        (units < SIZES as u64).then_some(Self(units as usize))
    }

    fn bytes(self) -> u64 {
        self.0 as u64 * UNIT
    }

    fn next(self) -> Option<Self> {
        (self.0 + 1 < SIZES).then_some(Self(self.0 + 1))
    }

    #[inline(always)]
    fn is_listed(self) -> bool {
        self.0 <= BINS
    }
}

/// The first hole of each bin, [`NIL`] for none.
struct Heads(Box<[Id; SIZES]>);

impl Heads {
    #[inline(always)]
    fn get(&self, bin: Bin) -> Id {
        self.0[bin.0 % SIZES]
    }

    #[inline(always)]
    fn set(&mut self, bin: Bin, id: Id) {
        self.0[bin.0 % SIZES] = id;
    }
}

/// The free extents of one owner. See the module documentation.
pub(crate) struct Bins {
    heads: Heads,
    filled: Bitmap,
    /// (bytes, start, id) of holes that no bin has.
    others: BTreeSet<(u64, u64, Id)>,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            heads: Heads(zeros()),
            filled: Bitmap::new(),
            others: BTreeSet::new(),
        }
    }
}

impl Bins {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled.groups == 0 && self.others.is_empty()
    }

    /// Files the hole `id`, which has `bytes`.
    #[inline(always)]
    pub(crate) fn insert(&mut self, table: &mut [Extent], id: Id, bytes: u64) {
        let extent = &mut table[id as usize];
        let Some(bin) = Bin::of(bytes) else {
            self.others.insert((bytes, extent.start, id));
            return;
        };
        let head = self.heads.get(bin);
        extent.newer = NIL;
        extent.older = head;
        if !bin.is_listed() && head != NIL {
            return self.insert_beside(table, bin, id);
        }
        table[head as usize].newer = id;
        self.filled.set(bin);
        self.heads.set(bin, id);
    }

    /// Files the hole `id` of a size that is not listed, of which the bin has one.
    #[cold]
    #[inline(never)]
    fn insert_beside(&mut self, table: &[Extent], bin: Bin, id: Id) {
        let place = |id: Id| (table[id as usize].start, id);
        let (one, other) = (place(id), place(self.heads.get(bin)));
        let (start, id) = one.max(other);
        self.others.insert((bin.bytes(), start, id));
        self.heads.set(bin, one.min(other).1);
    }

    /// Takes the hole `id`, which is filed here, out.
    #[inline(always)]
    pub(crate) fn remove(&mut self, table: &mut [Extent], id: Id) {
        let extent = &table[id as usize];
        let (newer, older) = (extent.newer, extent.older);
        let Some(bin) = Bin::of(extent.bytes).filter(|bin| bin.is_listed()) else {
            return self.remove_unlisted(table, id);
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
    fn remove_unlisted(&mut self, table: &[Extent], id: Id) {
        let Extent { start, bytes, .. } = table[id as usize];
        let Some(bin) = Bin::of(bytes).filter(|&bin| self.heads.get(bin) == id) else {
            self.others.remove(&(bytes, start, id));
            return;
        };
        let next = self.others.range((bytes, 0, 0)..).next().copied();
        match next.filter(|&(other, _, _)| other == bytes) {
            Some(next) => {
                self.others.remove(&next);
                self.heads.set(bin, next.2);
            }
            None => {
                self.heads.set(bin, NIL);
                self.filled.clear_if(bin, true);
            }
        }
    }

    /// The smallest hole of at least `bytes`.
    #[inline(always)]
    pub(crate) fn best(&self, bytes: u64) -> Option<Id> {
        match Bin::of(bytes).and_then(|bin| self.filled.next(bin)) {
            Some(bin) => Some(self.heads.get(bin)),
            None => self.best_of_others(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn best_of_others(&self, bytes: u64) -> Option<Id> {
        let large = bytes.max(SIZES as u64 * UNIT);
        let first = self.others.range((large, 0, 0)..).next();
        first.map(|&(_, _, id)| id)
    }

    /// The holes of at least `bytes`, smallest first and of one size the lowest first; one a size of
    /// those that are listed.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = Id> + '_ {
        let first = Bin::of(bytes).and_then(|bin| self.filled.next(bin));
        let bins = std::iter::successors(first, |&bin| {
            bin.next().and_then(|bin| self.filled.next(bin))
        });
        let binned = bins.flat_map(move |bin| {
            let bytes = bin.bytes();
            let most = if bin.is_listed() { 0 } else { usize::MAX };
            let others = self
                .others
                .range((bytes, 0, 0)..=(bytes, u64::MAX, Id::MAX));
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
            let listed = Bin::of(table[head as usize].bytes).is_some_and(Bin::is_listed);
            let older = move |&id: &Id| {
                listed
                    .then(|| table[id as usize].older)
                    .filter(|&id| id != NIL)
            };
            std::iter::successors(Some(head), older)
        })
    }

    pub(crate) fn largest(&self) -> u64 {
        let binned = self.filled.last().map_or(0, |bin| bin as u64 * UNIT);
        let other = self.others.last().map_or(0, |&(bytes, _, _)| bytes);
        binned.max(other)
    }

    pub(crate) fn holds(&self, table: &[Extent], id: Id) -> bool {
        let Extent { start, bytes, .. } = table[id as usize];
        let bin = Bin::of(bytes);
        let head = bin.map_or(NIL, |bin| self.heads.get(bin));
        if !bin.is_some_and(Bin::is_listed) {
            let beside = self.others.contains(&(bytes, start, id));
            let first = |head: Id| table[head as usize].start < start;
            return (head == id) != beside && (!beside || head == NIL || first(head));
        }
        let mut at = head;
        while at != NIL && at != id {
            at = table[at as usize].older;
        }
        at == id
    }

    /// Bytes and number of the holes filed here, if bins, lists and bits agree.
    pub(crate) fn check(&self, table: &[Extent]) -> Result<(u64, u64), String> {
        self.filled.check()?;
        let (mut bytes, mut holes) = (0, 0);
        let mut bin = self.filled.next(Bin(0));
        while let Some(at) = bin {
            let (mut newer, mut id) = (NIL, self.heads.get(at));
            ensure(id != NIL, || format!("bin {} has a bit and no hole", at.0))?;
            while id != NIL {
                let extent = table.get(id as usize);
                let fits = |it: &&Extent| it.bytes == at.bytes() && it.state == State::Free;
                let Some(extent) = extent.filter(fits) else {
                    return Err(format!("bin {} has {id}, {extent:?}", at.0));
                };
                let follows = !at.is_listed() || extent.newer == newer;
                ensure(follows, || {
                    format!("{id}, {extent:?}, does not follow {newer} in its bin")
                })?;
                (bytes, holes) = (bytes + extent.bytes, holes + 1);
                (newer, id) = (id, if at.is_listed() { extent.older } else { NIL });
            }
            bin = at.next().and_then(|next| self.filled.next(next));
        }
        bytes += self.others.iter().map(|&(bytes, _, _)| bytes).sum::<u64>();
        Ok((bytes, holes + self.others.len() as u64))
    }
}

#[cfg(test)]
mod tests;
