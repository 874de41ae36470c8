//! Every byte of the arena in address order: whether it is allocated, free or unmapped, and which work it waits for.
//!
//! # The list
//!
//! Extents cover all addresses of the arena, each in one [`State`]. Gaps and stale extents lie on multiples of the
//! granule; blocks and holes of [`UNIT`](crate::heap::bins::UNIT).
//!
//! # One history for each hole
//!
//! Each hole is in one stream's index and has one epoch. Neighbours merge when one epoch covers both: they are
//! of one stream, or the work of one is done. Other neighbours stay apart until a request needs them together: its
//! stream waits for both, and its next tick then covers the merged hole.
//!
//! No call allocates except to extend the table or the list of its unused records.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::bins::{Bins, UNIT};
use super::epoch::{Epoch, StreamIndex};
use super::extent::{Extent, Id, NIL, State};
use super::{Grant, ensure};

#[repr(C)]
pub(crate) struct Extents {
    indexes: Vec<Bins>,
    /// The first record is [`NIL`] and no extent.
    table: Vec<Extent>,
    /// Number of holes, and their bytes.
    hole_sums: (u64, u64),
    changes: u64,
    /// Unused records. They are not chained: other threads may have written their cache lines last.
    spare: Vec<Id>,
    gaps: BTreeMap<u64, Id>,
}

impl Extents {
    pub(crate) fn new(bytes: u64) -> Self {
        let gap = Extent {
            bytes,
            state: State::Unmapped,
            ..Extent::default()
        };
        Self {
            table: vec![Extent::default(), gap],
            spare: Vec::new(),
            indexes: vec![Default::default()],
            gaps: BTreeMap::from([(0, 1)]),
            hole_sums: (0, 0),
            changes: 0,
        }
    }

    pub(crate) fn get(&self, id: Id) -> &Extent {
        &self.table[id as usize]
    }

    fn get_mut(&mut self, id: Id) -> &mut Extent {
        &mut self.table[id as usize]
    }

    pub(crate) fn set_movable(&mut self, id: Id, movable: bool) {
        self.get_mut(id).movable = movable;
    }

    pub(crate) fn add_slot(&mut self) -> StreamIndex {
        self.indexes.push(Default::default());
        (self.indexes.len() - 1) as StreamIndex
    }

    pub(crate) fn slots(&self) -> StreamIndex {
        self.indexes.len() as StreamIndex
    }

    #[inline(always)]
    pub(crate) fn best(&self, slot: StreamIndex, bytes: u64) -> Option<Id> {
        self.indexes[slot as usize].best(&self.table, bytes)
    }

    pub(crate) fn has_none(&self, slot: StreamIndex) -> bool {
        self.indexes[slot as usize].is_empty()
    }

    pub(crate) fn holes_of(&self, slot: StreamIndex, bytes: u64) -> impl Iterator<Item = Id> {
        self.indexes[slot as usize].filed(&self.table, bytes)
    }

    pub(crate) fn holes_from(&self, bytes: u64) -> impl Iterator<Item = Id> {
        (0..self.slots()).flat_map(move |slot| self.holes_of(slot, bytes))
    }

    /// Counts changes of holes: while it is the same, they are.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn hole_bytes(&self) -> u64 {
        self.hole_sums.1
    }

    pub(crate) fn holes(&self) -> u64 {
        self.hole_sums.0
    }

    pub(crate) fn largest_hole(&self) -> u64 {
        let largest = self.indexes.iter().map(|index| index.largest(&self.table));
        largest.max().unwrap_or(0)
    }

    pub(crate) fn gap_at(&self, offset: u64) -> Option<Id> {
        let (_, &id) = self.gaps.range(..=offset).next_back()?;
        (offset < self.get(id).end()).then_some(id)
    }

    pub(crate) fn gaps(&self) -> impl Iterator<Item = Id> {
        self.gaps.values().copied()
    }

    /// The extent that contains `offset`, sought upwards from `from`.
    pub(crate) fn seek(&self, mut from: Id, offset: u64) -> Id {
        while self.get(from).end() <= offset && self.get(from).next != NIL {
            from = self.get(from).next;
        }
        from
    }

    /// The lowest extent, always the same record: cuts and joins keep the lower one.
    pub(crate) fn first(&self) -> Id {
        NIL + 1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Extent)> {
        let next = |&id: &Id| Some(self.get(id).next).filter(|&next| next != NIL);
        std::iter::successors(Some(self.first()), next).map(|id| (id, self.get(id)))
    }

    #[inline(always)]
    fn file(&mut self, id: Id) {
        let Extent { bytes, epoch, .. } = *self.get(id);
        self.changes += 1;
        self.hole_sums.0 += 1;
        self.hole_sums.1 += bytes;
        self.indexes[epoch.stream as usize].insert(&mut self.table, id, bytes);
    }

    #[inline(always)]
    fn unfile(&mut self, id: Id) {
        let Extent { bytes, epoch, .. } = *self.get(id);
        self.changes += 1;
        self.hole_sums.0 -= 1;
        self.hole_sums.1 -= bytes;
        self.indexes[epoch.stream as usize].remove(&mut self.table, id);
    }

    /// Cuts an extent that is not filed in two at offset `at` inside it; returns the upper part.
    #[inline(always)]
    pub(crate) fn cut(&mut self, id: Id, at: u64) -> Id {
        let (start, end, next) = (self.get(id).start, self.get(id).end(), self.get(id).next);
        debug_assert!(start < at && at < end);
        let upper_id = self.spare.pop().unwrap_or_else(|| {
            self.table.push(Extent::default());
            (self.table.len() - 1) as Id
        });
        // Field by field, as in `join`: a record that is copied whole is loaded before its stores are done.
        let lower = self.get_mut(id);
        let (epoch, state, movable) = (lower.epoch, lower.state, lower.movable);
        lower.bytes = at - start;
        lower.next = upper_id;
        let upper = self.get_mut(upper_id);
        upper.start = at;
        upper.bytes = end - at;
        upper.epoch = epoch;
        upper.prev = id;
        upper.next = next;
        upper.state = state;
        upper.movable = movable;
        self.get_mut(next).prev = upper_id;
        upper_id
    }

    /// Joins an extent with its upper neighbour, neither of them filed; `id` stays.
    #[inline(always)]
    pub(crate) fn join(&mut self, id: Id) {
        let upper = self.get(id).next;
        let Extent { bytes, next, .. } = *self.get(upper);
        let lower = self.get_mut(id);
        lower.bytes += bytes;
        lower.next = next;
        self.get_mut(next).prev = id;
        self.get_mut(upper).state = State::Unused;
        self.spare.push(upper);
    }

    /// Turns the first `bytes` of the hole `id` into a block of `slot`; the rest stays a hole.
    #[inline(always)]
    pub(crate) fn take(&mut self, id: Id, bytes: u64, slot: StreamIndex) -> Grant {
        let offset = self.get(id).start;
        let end = offset + bytes;
        self.unfile(id);
        self.file_above(id, end);
        self.mark_taken(id, slot);
        Grant { id, offset }
    }

    /// Cuts an extent that is not filed off at `end`, and files what lies above.
    #[inline(always)]
    fn file_above(&mut self, id: Id, end: u64) {
        if self.get(id).end() > end {
            let rest = self.cut(id, end);
            self.file(rest);
        }
    }

    #[inline(always)]
    pub(crate) fn mark_taken(&mut self, id: Id, slot: StreamIndex) {
        let extent = self.get_mut(id);
        extent.state = State::Allocated;
        extent.epoch.stream = slot;
        extent.movable = false;
    }

    /// Turns the block `id` into a hole behind `epoch`. Merges it with neighbouring holes of the same slot, and with
    /// those that `covered` says are done. Returns the hole.
    #[inline(always)]
    pub(crate) fn give(&mut self, id: Id, epoch: Epoch, covered: impl Fn(&Extent) -> bool) -> Id {
        let Extent { prev, next, .. } = *self.get(id);
        let Epoch { stream, mut tick } = epoch;
        let joins = |extent: &Extent| {
            extent.state == State::Free && (extent.epoch.stream == stream || covered(extent))
        };
        let (up, down) = (joins(self.get(next)), joins(self.get(prev)));
        let mut at = id;
        for (merges, hole, lower) in [(up, next, id), (down, prev, prev)] {
            if merges {
                self.unfile(hole);
                let theirs = self.get(hole).epoch;
                if theirs.stream == stream {
                    tick = tick.max(theirs.tick);
                }
                self.join(lower);
                at = lower;
            }
        }
        let hole = self.get_mut(at);
        hole.epoch = Epoch::new(stream, tick);
        hole.state = State::Free;
        self.file(at);
        at
    }

    /// Merges the hole `id` with the holes above it, while they are of one slot or `covered` says that both are done.
    pub(crate) fn merge_up(&mut self, id: Id, covered: impl Fn(&Extent) -> bool) {
        loop {
            let extent = *self.get(id);
            let next = *self.get(extent.next);
            let free = [extent.state, next.state] == [State::Free; 2];
            let same = next.epoch.stream == extent.epoch.stream;
            let both = covered(&extent) && covered(&next);
            if !free || !(same || both) {
                return;
            }
            let theirs = next.epoch.tick * u64::from(same);
            let latest = extent.epoch.tick.max(theirs);
            self.merge_as(id, Epoch::new(extent.epoch.stream, latest));
        }
    }

    /// Puts the hole `id` behind another `epoch`.
    pub(crate) fn set_epoch(&mut self, id: Id, epoch: Epoch) {
        self.unfile(id);
        self.get_mut(id).epoch = epoch;
        self.file(id);
    }

    /// Merges the hole `id` with the hole above it, under an `epoch` that covers both.
    pub(crate) fn merge_as(&mut self, id: Id, epoch: Epoch) {
        let next = self.get(id).next;
        self.unfile(id);
        self.unfile(next);
        self.join(id);
        self.get_mut(id).epoch = epoch;
        self.file(id);
    }

    /// Turns [`start`, `start + bytes`) into one block of `slot` and returns it. Consecutive holes from `id` on cover
    /// it, and `slot`'s stream runs behind all of them. What is left on either side stays a hole.
    pub(crate) fn take_window(
        &mut self,
        mut id: Id,
        start: u64,
        bytes: u64,
        slot: StreamIndex,
    ) -> Id {
        let end = start + bytes;
        self.unfile(id);
        if self.get(id).start < start {
            let upper = self.cut(id, start);
            self.file(id);
            id = upper;
        }
        self.file_above(id, end);
        while self.get(id).end() < end {
            let next = self.get(id).next;
            self.unfile(next);
            self.file_above(next, end);
            self.join(id);
        }
        self.mark_taken(id, slot);
        id
    }

    /// Cuts [`start`, `end`) out of a gap, reserves it for a mapping and returns it. [`Extents::retired`] undoes that.
    pub(crate) fn reserve(&mut self, start: u64, end: u64) -> Option<Id> {
        let mut id = self.gap_at(start)?;
        if self.get(id).start < start {
            id = self.cut(id, start);
        } else {
            self.gaps.remove(&start);
        }
        if self.get(id).end() > end {
            let rest = self.cut(id, end);
            self.gaps.insert(end, rest);
        }
        self.get_mut(id).state = State::Reserved;
        Some(id)
    }

    /// Turns [`start`, `end`) of a gap into a hole behind `epoch` and returns it.
    pub(crate) fn map_gap(&mut self, start: u64, end: u64, epoch: Epoch) -> Option<Id> {
        let id = self.reserve(start, end)?;
        let extent = self.get_mut(id);
        extent.state = State::Free;
        extent.epoch = epoch;
        self.file(id);
        Some(id)
    }

    /// Turns the held or reserved extent `id`, whose memory is mapped elsewhere by now, into a stale one with its
    /// history.
    pub(crate) fn vacate(&mut self, id: Id) {
        self.get_mut(id).state = State::Stale;
        self.changes += 1;
    }

    /// Takes [`start`, `start + bytes`) of a hole for a job. It keeps the hole's history.
    pub(crate) fn hold(&mut self, hole: Id, start: u64, bytes: u64) -> Id {
        let held = self.take_window(hole, start, bytes, self.get(hole).epoch.stream);
        self.get_mut(held).state = State::Held;
        held
    }

    /// Turns a stale, reserved or held extent into a gap, merges it with neighbouring gaps and returns the gap.
    pub(crate) fn retired(&mut self, id: Id) -> Id {
        let Extent { prev, next, .. } = *self.get(id);
        let extent = self.get_mut(id);
        extent.state = State::Unmapped;
        extent.epoch = Epoch::PAST;
        if self.get(next).state == State::Unmapped {
            let start = self.get(next).start;
            self.gaps.remove(&start);
            self.join(id);
        }
        if self.get(prev).state == State::Unmapped {
            self.join(prev);
            return prev;
        }
        self.gaps.insert(self.get(id).start, id);
        id
    }

    /// Checks that extents cover the arena in order, every other record is spare, each hole is filed once in its slot's
    /// index, and sums agree. Returns the allocated bytes.
    pub(crate) fn check(&self, granule: u64) -> Result<u64, String> {
        let (mut at, mut prev, mut taken) = (0, NIL, 0);
        let (mut holes, mut gaps) = (Vec::new(), BTreeMap::new());
        for (id, extent) in self.iter() {
            let follows = extent.start == at && extent.bytes != 0 && extent.prev == prev;
            ensure!(follows => "extent {id} {extent:?} does not follow {at:#x} (previous {prev})");
            let unit = match extent.state {
                State::Unused => return Err(format!("unused record {id} is in the list")),
                State::Unmapped | State::Stale | State::Reserved => granule,
                State::Free | State::Held | State::Allocated => UNIT,
            };
            let is_even = extent.start % unit == 0 && extent.bytes % unit == 0;
            ensure!(is_even => "extent {id} {extent:?} is not on multiples of {unit}");
            match extent.state {
                State::Allocated => taken += extent.bytes,
                State::Free => holes.push((extent.epoch.stream, id)),
                State::Unmapped => _ = gaps.insert(extent.start, id),
                _ => {}
            }
            (at, prev) = (extent.end(), id);
        }
        let listed = self.iter().map(|(id, _)| id);
        let mut records: Vec<Id> = listed.chain(self.spare.iter().copied()).collect();
        records.sort_unstable();
        ensure!(records.iter().copied().eq(1..self.table.len() as Id) =>
            "extents and spare records are {records:?}, not each record once");
        let mut unused = [NIL].iter().chain(&self.spare);
        ensure!(unused.all(|&id| self.get(id).state == State::Unused) =>
            "of no extent and {:?} one is in use", self.spare);
        let mut filed = Vec::new();
        let size = |&id: &Id| self.get(id).bytes;
        for slot in 0..self.slots() {
            let ids: Vec<Id> = self.holes_of(slot, 0).take(records.len()).collect();
            let found = |id: &Id| self.best(slot, size(id)).as_ref().map(size) == Some(size(id));
            let linked =
                |it: &[Id]| self.get(it[0]).older != it[1] || self.get(it[1]).newer == it[0];
            let agrees = ids.windows(2).all(linked) && ids.iter().all(found);
            ensure!(agrees => "holes of {slot}: {ids:?}");
            filed.extend(ids.into_iter().map(|id| (slot, id)));
        }
        holes.sort_unstable();
        filed.sort_unstable();
        let bytes = holes.iter().map(|&(_, id)| self.get(id).bytes).sum();
        let found = (holes, gaps, bytes);
        let booked = (filed, self.gaps.clone(), self.hole_bytes());
        ensure!(found == booked && self.holes() == found.0.len() as u64 =>
            "holes, gaps and bytes in holes: {found:?}, booked {booked:?}");
        Ok(taken)
    }
}
