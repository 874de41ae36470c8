//! Best fit over free extents: the smallest hole that is large enough, in a few instructions.
//!
//! Sizes come in units of [`UNIT`]. Below [`OWN`] units every size has a bin of its own, and two levels of
//! bitmap find the first bin that is not empty: an exact best fit without a search. A bin is a list
//! through the extent table, the hole filed last first.
//!
//! Larger holes are few. Sizes that differ by less than a part in 128 share a bin, whose list is in order, of
//! equal sizes the lowest address first, so that the top of the arena drains.

use std::hint::select_unpredictable;

use super::bitmap::{self, Bitmap};
use super::extent::NIL;
use super::{Extent, Id, State, ensure};

/// Every size the pool hands out from the arena, and every address, is a multiple of this many bytes:
/// what `cudaMalloc` promises of addresses. Blocks of 1 to 4096 bytes, all sizes alike, have 6.2 % more
/// than was asked for; multiples of 512 would cost 12.5 %.
pub(crate) const UNIT: u64 = 256;

/// Sizes of fewer units have a bin each.
const OWN: usize = 1 << LARGE;

/// The power of two of units from which on sizes share bins, and how many a power has.
const LARGE: u32 = 12;
const SHARED: usize = 128;

/// The number of a bin.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Bin(usize);

impl Bin {
    #[inline(always)]
    fn of(bytes: u64) -> Self {
        let units = (bytes / UNIT) as usize;
        if units < OWN {
            return Self(units);
        }
        let power = units.ilog2() - LARGE;
        // From `SHARED` on: that of the smallest is the first behind the others.
        let part = units >> (power + LARGE - SHARED.ilog2());
        Self((OWN - SHARED + power as usize * SHARED + part).min(bitmap::MOST - 1))
    }

    #[inline(always)]
    fn is_shared(self) -> bool {
        self.0 >= OWN
    }
}

/// The first hole of each bin, [`NIL`] for none.
struct Heads(Box<[Id; bitmap::MOST]>);

impl Heads {
    #[inline(always)]
    fn get(&self, bin: Bin) -> Id {
        self.0[bin.0 % bitmap::MOST]
    }

    #[inline(always)]
    fn set(&mut self, bin: Bin, id: Id) {
        self.0[bin.0 % bitmap::MOST] = id;
    }
}

/// The free extents of one owner. See the module documentation.
pub(crate) struct Bins {
    heads: Heads,
    filled: Bitmap,
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            heads: Heads(Box::new([NIL; bitmap::MOST])),
            filled: Bitmap::EMPTY,
        }
    }
}

/// The hole `first` and those filed behind it.
fn listed(table: &[Extent], first: Id) -> impl Iterator<Item = Id> + '_ {
    let older = |&id: &Id| Some(table[id as usize].older).filter(|&id| id != NIL);
    std::iter::successors(Some(first).filter(|&id| id != NIL), older)
}

/// The order of large holes.
fn place(table: &[Extent], id: Id) -> (u64, u64) {
    let extent = &table[id as usize];
    (extent.bytes, extent.start)
}

impl Bins {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// Files the hole `id`, which has `bytes`.
    #[inline(always)]
    pub(crate) fn insert(&mut self, table: &mut [Extent], id: Id, bytes: u64) {
        let bin = Bin::of(bytes);
        let head = self.heads.get(bin);
        if bin.is_shared() && head != NIL && place(table, head) < place(table, id) {
            return Self::insert_behind(table, head, id);
        }
        let extent = &mut table[id as usize];
        extent.newer = NIL;
        extent.older = head;
        table[head as usize].newer = id;
        self.filled.set(bin.0);
        self.heads.set(bin, id);
    }

    /// Files a large hole behind those of its bin that come before it, as `head` does.
    #[inline(never)]
    fn insert_behind(table: &mut [Extent], head: Id, id: Id) {
        let own = place(table, id);
        let before = listed(table, head).take_while(|&other| place(table, other) < own);
        let before = before.last().unwrap_or(head);
        let behind = std::mem::replace(&mut table[before as usize].older, id);
        (table[id as usize].newer, table[id as usize].older) = (before, behind);
        table[behind as usize].newer = id;
    }

    /// Takes the hole `id`, which is filed here, out.
    #[inline(always)]
    pub(crate) fn remove(&mut self, table: &mut [Extent], id: Id) {
        let extent = &table[id as usize];
        let (newer, older) = (extent.newer, extent.older);
        let bin = Bin::of(extent.bytes);
        table[older as usize].newer = newer;
        table[newer as usize].older = older;
        let head = self.heads.get(bin);
        let is_head = newer == NIL;
        self.heads
            .set(bin, select_unpredictable(is_head, older, head));
        self.filled.clear_if(bin.0, is_head & (older == NIL));
    }

    /// The smallest hole of at least `bytes`.
    #[inline(always)]
    pub(crate) fn best(&self, table: &[Extent], bytes: u64) -> Option<Id> {
        let bin = Bin::of(bytes);
        match bin.is_shared() {
            true => self.at_least(table, bytes).next(),
            false => self.filled.next(bin.0).map(|at| self.heads.get(Bin(at))),
        }
    }

    /// The bins from the one for `bytes` on that have holes.
    fn filled_from(&self, bytes: u64) -> impl Iterator<Item = Bin> + '_ {
        let next = |&at: &usize| (at + 1 < bitmap::MOST).then(|| self.filled.next(at + 1))?;
        std::iter::successors(self.filled.next(Bin::of(bytes).0), next).map(Bin)
    }

    /// The holes of at least `bytes`, smallest first and of one size the lowest first; one a size of
    /// those that have a bin of their own.
    pub(crate) fn at_least<'a>(
        &'a self,
        table: &'a [Extent],
        bytes: u64,
    ) -> impl Iterator<Item = Id> + 'a {
        let all = self.filled_from(bytes).flat_map(move |bin| {
            let most = if bin.is_shared() { usize::MAX } else { 1 };
            listed(table, self.heads.get(bin)).take(most)
        });
        all.skip_while(move |&id| table[id as usize].bytes < bytes)
    }

    /// All holes of at least `bytes`.
    pub(crate) fn filed<'a>(
        &'a self,
        table: &'a [Extent],
        bytes: u64,
    ) -> impl Iterator<Item = Id> + 'a {
        let bins = self.filled_from(bytes);
        bins.flat_map(|bin| listed(table, self.heads.get(bin)))
            .skip_while(move |&id| table[id as usize].bytes < bytes)
    }

    pub(crate) fn largest(&self, table: &[Extent]) -> u64 {
        let last = self.filled.last().map_or(NIL, |at| self.heads.get(Bin(at)));
        let last = listed(table, last).last();
        last.map_or(0, |id| table[id as usize].bytes)
    }

    pub(crate) fn holds(&self, table: &[Extent], id: Id) -> bool {
        let head = self.heads.get(Bin::of(table[id as usize].bytes));
        listed(table, head).any(|other| other == id)
    }

    /// Bytes and number of the holes filed here, if bins, lists and bits agree.
    pub(crate) fn check(&self, table: &[Extent]) -> Result<(u64, u64), String> {
        self.filled.check()?;
        let (mut bytes, mut holes) = (0, 0);
        for bin in self.filled_from(0) {
            let (mut newer, mut id) = (NIL, self.heads.get(bin));
            ensure(id != NIL, || format!("bin {} has a bit and no hole", bin.0))?;
            while id != NIL {
                let extent = table.get(id as usize);
                let fits = |it: &&Extent| Bin::of(it.bytes) == bin && it.state == State::Free;
                let Some(extent) = extent.filter(fits) else {
                    return Err(format!("bin {} has {id}, {extent:?}", bin.0));
                };
                let follows = extent.newer == newer;
                let sorted = !bin.is_shared() || place(table, newer) < place(table, id);
                ensure(follows && sorted, || {
                    format!("{id}, {extent:?}, does not follow {newer} in its bin")
                })?;
                (bytes, holes) = (bytes + extent.bytes, holes + 1);
                (newer, id) = (id, extent.older);
            }
        }
        Ok((bytes, holes))
    }
}

#[cfg(test)]
mod tests;
