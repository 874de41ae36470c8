//! Best fit over free extents: the smallest hole that is large enough, in a few instructions.
//!
//! Sizes come in units of [`UNIT`]. Up to [`BINS`] units every size has a bin of its own, and two levels of
//! bitmap find the first bin that is not empty: an exact best fit without a search. A bin is a list
//! through the extent table, the hole filed last first.
//!
//! Larger holes are mostly few. An ordered set has them, of equal sizes the lowest address first, so that the top
//! of the arena drains. Sorted lists in bins took some 10 ns less of a live set, and grew with the holes of one size.

use std::collections::BTreeSet;
use std::hint::select_unpredictable;

use super::bitmap::Bitmap;
use super::extent::NIL;
use super::{Extent, Id, State, ensure};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Holes of up to this many units are listed by size.
const BINS: usize = 63 * 64;

/// Bins: one for each size from 0 to [`BINS`] units, and up to a power of two.
const ALL: usize = BINS.next_power_of_two();

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
struct Heads(Box<[Id; ALL]>);

impl Heads {
    #[inline(always)]
    fn get(&self, bin: Bin) -> Id {
        self.0[bin.0 % (ALL)]
    }

    #[inline(always)]
    fn set(&mut self, bin: Bin, id: Id) {
        self.0[bin.0 % (ALL)] = id;
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
            heads: Heads(Box::new([NIL; ALL])),
            filled: Bitmap::EMPTY,
            large: BTreeSet::new(),
        }
    }
}

impl Bins {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled.is_empty() && self.large.is_empty()
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
        self.filled.set(bin.0);
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
        self.filled.clear_if(bin.0, is_head & (older == NIL));
    }

    #[cold]
    #[inline(never)]
    fn remove_large(&mut self, hole: (u64, u64, Id)) {
        self.large.remove(&hole);
    }

    /// The smallest hole of at least `bytes`.
    #[inline(always)]
    pub(crate) fn best(&self, bytes: u64) -> Option<Id> {
        match Bin::of(bytes).and_then(|bin| self.filled.next(bin.0).map(Bin)) {
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
        let first = Bin::of(bytes).and_then(|bin| self.filled.next(bin.0).map(Bin));
        let next = |&Bin(at): &Bin| (at < BINS).then(|| self.filled.next(at + 1).map(Bin))?;
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
        let listed = self.filled.last().map_or(0, |at| Bin(at).bytes());
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
