//! Finds a hole or a slot for a request: one that is ready, or one behind a wait. Makes and frees slabs.

use super::ask::Questions;
use super::core::{Core, is_done};
use super::tuning::{ALL_STREAMS, HOLES_LOOKED_AT, OTHER_STREAMS, SLABS_LOOKED_AT, SMALL_PART};
use crate::heap::size_class::{batch, is_slot};
use crate::heap::slab::Found;
use crate::heap::{Epoch, FRESH, Grant, Id, State, StreamIndex};

impl Core {
    /// Takes the best fit among the holes that are ready for `slot`. No driver call.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, slot: StreamIndex, bytes: u64) -> Option<Grant> {
        // Nearly always all holes are the stream's own.
        let id = match self.only_stream() && self.extents.has_none(FRESH) {
            true => self.extents.best(slot, bytes),
            false => self.ready(slot, bytes),
        }?;
        self.count_taken(slot, bytes, self.extents.get(id).epoch);
        Some(self.extents.take(id, bytes, slot))
    }

    /// Whether a request merges neighbouring holes of all streams: it is large, and free memory suffices for it.
    ///
    /// Without this, requests cut up the holes that only their epochs keep apart: five streams whose peaks alternate
    /// reserved 1.025 to 1.030 times their joint peak, with it 1.005 to 1.008.
    pub(super) fn is_merged_for(&self, bytes: u64) -> bool {
        let small = bytes <= self.arena.granule() / SMALL_PART;
        let enough = self.extents.hole_bytes() >= bytes;
        !small && enough && !self.only_stream() && self.config.reuse.device_wait
    }

    /// The smallest hole of at least `bytes` that is ready for `slot`; among equals its own.
    pub(super) fn ready(&self, slot: StreamIndex, bytes: u64) -> Option<Id> {
        let size = |id: Id| self.extents.get(id).bytes;
        let first = |owner: StreamIndex, least: u64| {
            // Nearly always the smallest is ready, and this needs no walk.
            let best = (self.extents.best(owner, bytes)).filter(|&id| size(id) < least)?;
            let covered = self.covered(slot, owner);
            let is_ready = |&id: &Id| self.extents.get(id).epoch.tick <= covered;
            if is_ready(&best) {
                return Some(best);
            }
            let holes = self.extents.holes_of(owner, bytes);
            let mut holes = (holes.take(HOLES_LOOKED_AT)).take_while(|&id| size(id) < least);
            holes.find(is_ready)
        };
        let own = first(slot, u64::MAX);
        let mut found = first(FRESH, own.map_or(u64::MAX, size)).or(own);
        for other in self.others(slot, found.is_some()) {
            let least = found.map_or(u64::MAX, size);
            if least == bytes {
                break;
            }
            found = first(other, least).or(found);
        }
        found
    }

    /// The other streams whose memory a request on `slot` looks at: all, or of many, if it `has_one`, a few, in turn.
    pub(super) fn others(
        &self,
        slot: StreamIndex,
        has_one: bool,
    ) -> impl Iterator<Item = StreamIndex> + use<> {
        let streams = self.extents.slots() - 1;
        // An allocation and its free change up to four holes.
        let turn = || (self.extents.changes() / 4 % u64::from(streams)) as StreamIndex;
        let (first, count) = match has_one && streams > ALL_STREAMS {
            true => (turn(), OTHER_STREAMS),
            false => (0, streams),
        };
        (first..first + count)
            .map(move |at| 1 + at % streams)
            .filter(move |&other| other != slot)
    }

    /// The smallest hole of at least `bytes` that can be waited for.
    pub(super) fn smallest_hole(&self, bytes: u64) -> Option<Id> {
        let may_wait = |id: &Id| self.may_wait(self.extents.get(*id).epoch);
        let first = |slot| self.extents.holes_of(slot, bytes).find(may_wait);
        let holes = (1..self.extents.slots()).filter_map(first);
        holes.min_by_key(|&id| self.extents.get(id).bytes)
    }

    /// Adds to the block `id` the `bytes` behind it, if they are free and `slot`'s stream needs no `waits` for them.
    /// Makes none of these: under capture, the graph's launches would make them.
    pub(crate) fn grow(
        &mut self,
        id: Id,
        bytes: u64,
        slot: StreamIndex,
        waits: &mut Questions,
    ) -> bool {
        let behind = self.hole_behind(id, bytes);
        let behind = behind.filter(|(_, hole)| self.may_wait(hole.epoch));
        *waits = self.waits_for(slot, behind.map(|(_, hole)| hole.epoch));
        let Some((next, _)) = behind.filter(|_| waits.is_empty()) else {
            return false;
        };
        self.extents.take(next, bytes, slot);
        let before = self.extents.get(id).bytes;
        self.active.block_resized(before, before + bytes);
        self.extents.join(id);
        self.peak_taken = self.peak_taken.max(self.live());
        true
    }

    /// Takes a block or slot of `bytes` that is ready for `stream`. No driver call.
    #[inline(always)]
    pub(crate) fn take_ready_of(&mut self, stream: StreamIndex, bytes: u64) -> Option<Grant> {
        if self.asleep {
            None
        } else if is_slot(bytes) {
            self.take_slot_ready(stream, bytes)
        } else {
            self.take_ready(stream, bytes)
        }
    }

    /// Takes a slot of `bytes` that is ready for `stream`, of a slab or of a new slab in a ready hole.
    fn take_slot_ready(&mut self, stream: StreamIndex, bytes: u64) -> Option<Grant> {
        if let Some((id, slot, history)) = self.look_for_slot(stream, bytes, false) {
            self.count_taken(stream, bytes, history);
            return Some(self.slabs.take(id, slot, stream));
        }
        let (best, least) = (self.slabs.wanted(bytes) * bytes, batch(bytes) * bytes);
        let block = (self.take_ready(stream, best)).or_else(|| self.take_ready(stream, least))?;
        Some(self.make_slab(stream, block, bytes))
    }

    /// A free slot that is ready, or with `pending` one that can be waited for; slabs of the stream itself first.
    pub(super) fn look_for_slot(
        &self,
        stream: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Option<Found> {
        let owners = std::iter::once(stream).chain(self.others(stream, false));
        let looks = if pending { usize::MAX } else { SLABS_LOOKED_AT };
        self.slabs.find(bytes, owners, looks, |history| {
            let waits = pending && self.may_wait(history);
            waits || self.is_behind(stream, history)
        })
    }

    /// Makes a slab of a block and takes the first slot.
    pub(super) fn make_slab(&mut self, stream: StreamIndex, block: Grant, bytes: u64) -> Grant {
        let slots = self.extents.get(block.id).bytes / bytes;
        let epoch = Epoch::new(stream, self.open_tick(stream));
        let slab = self.slabs.add(block, bytes, slots, epoch);
        // Of this slab, even if others have ready slots: else it stays empty.
        self.slabs.take(slab, 0, stream)
    }

    pub(crate) fn give_granted(&mut self, Grant { id, offset }: Grant, bytes: u64, epoch: Epoch) {
        if !is_slot(bytes) {
            self.give(id, epoch);
        } else if self.slabs.give(id, offset, epoch) {
            self.release_slab(id);
        }
    }

    /// Frees an empty slab, if one epoch covers it.
    pub(super) fn release_slab(&mut self, id: Id) {
        let pending = || (self.slabs.get(id).epochs()).filter(|&it| !is_done(&self.streams, it));
        let last = pending().max_by_key(|it| it.tick).unwrap_or(Epoch::PAST);
        if pending().any(|it| it.stream != last.stream) {
            return;
        }
        let extent = self.slabs.remove(id);
        self.give(extent, last);
    }

    /// Frees empty slabs and merges neighbouring holes that `slot`'s stream runs behind. Returns the waits that it
    /// needs for the others.
    pub(super) fn unify(&mut self, slot: StreamIndex) -> Questions {
        let mut lacking = Vec::new();
        for id in self.slabs.mixed() {
            let epochs: Vec<Epoch> = self.slabs.get(id).epochs().collect();
            if epochs.iter().all(|&it| self.is_ordered(slot, it)) {
                let extent = self.slabs.remove(id);
                self.give(extent, Epoch::new(slot, self.open_tick(slot)));
            }
            lacking.extend(epochs);
        }
        let mut holes: Vec<Id> = self.extents.holes_from(0).collect();
        holes.sort_unstable();
        for id in holes {
            // A lower hole may have taken it in.
            while self.extents.get(id).state == State::Free
                && let Some((_, upper)) = self.hole_behind(id, 0)
            {
                let both = [self.extents.get(id).epoch, upper.epoch];
                if !both.iter().all(|&it| self.is_ordered(slot, it)) {
                    lacking.extend(both);
                    break;
                }
                let tick = self.open_tick(slot);
                self.extents.merge_as(id, Epoch::new(slot, tick));
            }
        }
        self.unified = self.extents.changes();
        self.waits_for(slot, lacking)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod tests_slabs;
