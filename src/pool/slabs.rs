//! How slabs find memory, and when it goes back.

use super::cache::Cached;
use super::core::{Core, is_done};
use super::tuning::SLABS_LOOKED_AT;
use crate::heap::size_class::{batch, is_slot};
use crate::heap::slab::Found;
use crate::heap::{Epoch, Grant, Id, StreamIndex};
use crate::seeded::seeded;

impl Core {
    /// A block or slot of `bytes`, whichever that size is, that is ready for `stream`. No driver call.
    #[inline(always)]
    pub(crate) fn take_ready_of(&mut self, stream: StreamIndex, bytes: u64) -> Option<Grant> {
        if self.is_asleep() {
            None
        } else if is_slot(bytes) {
            self.take_slot_ready(stream, bytes)
        } else {
            self.take_ready(stream, bytes)
        }
    }

    /// Bytes of the next slab of slots of `bytes`, and of the smallest.
    pub(super) fn slab_bytes(&self, bytes: u64) -> (u64, u64) {
        (self.slabs.wanted(bytes) * bytes, batch(bytes) * bytes)
    }

    /// A slot of `bytes` that is ready for `stream`, of a slab there is or of a new one in a ready hole.
    fn take_slot_ready(&mut self, stream: StreamIndex, bytes: u64) -> Option<Grant> {
        if let Some(found) = self.look_for_slot(stream, bytes, false) {
            return Some(self.take_slot(stream, bytes, found, false));
        }
        let (best, least) = self.slab_bytes(bytes);
        let block = (self.take_ready(stream, best)).or_else(|| self.take_ready(stream, least))?;
        Some(self.make_slab(stream, block, bytes))
    }

    /// A free slot, its own stream's first, that is ready, or that others still use if `pending`.
    pub(super) fn look_for_slot(
        &self,
        stream: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Option<Found> {
        let others = (1..self.extents.slots()).filter(|&other| other != stream);
        let owners = std::iter::once(stream).chain(others);
        let looks = if pending { usize::MAX } else { SLABS_LOOKED_AT };
        self.slabs.find(bytes, owners, looks, |history| {
            pending || seeded!("any-free-slot-will-do") || self.is_behind(stream, history)
        })
    }

    /// Takes a slot found, which the stream has `waited` for or runs behind.
    pub(super) fn take_slot(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        (id, slot, history): Found,
        waited: bool,
    ) -> Grant {
        self.count_taken(stream, bytes, history, waited);
        self.slabs.take(id, slot, stream)
    }

    /// Cuts the block granted into slots and takes the first.
    pub(super) fn make_slab(&mut self, stream: StreamIndex, block: Grant, bytes: u64) -> Grant {
        let slots = self.extents.get(block.id).bytes / bytes;
        let epoch = Epoch::new(stream, self.open_tick(stream));
        let slab = self.slabs.add(block, bytes, slots, epoch);
        // Of this slab, whatever others there are: it would stay behind without a slot out.
        self.slabs.take(slab, 0, stream)
    }

    /// Takes a free slot back, with the history (`stream`, `tick`).
    pub(crate) fn give_slot(&mut self, block: &Cached, stream: StreamIndex, tick: u64) {
        let offset = block.addr - self.arena.base();
        if self.slabs.give(block.id, offset, stream, tick) {
            self.release_slab(block.id);
        }
    }

    /// Gives a slab without a slot out back, if one stream's history covers it.
    pub(super) fn release_slab(&mut self, id: Id) {
        let mut pending: Option<Epoch> = None;
        let histories = self.slabs.get(id).epochs();
        for history in histories.filter(|&it| !is_done(&self.streams, it)) {
            let joined = pending.unwrap_or(history).joined(history);
            if joined.is_none() && !seeded!("slab-forgets-one-stream") {
                return;
            }
            pending = joined.or(pending);
        }
        let Epoch { stream, tick } = pending.unwrap_or(Epoch::PAST);
        let extent = self.slabs.remove(id);
        self.give(extent, stream, tick);
    }

    /// Gives back slabs that several streams use if `stream` runs behind all of those; gives what it would have
    /// to wait for so that the others go.
    pub(super) fn release_mixed(&mut self, stream: StreamIndex) -> Vec<Epoch> {
        let mut lacking = Vec::new();
        for id in self.slabs.mixed() {
            let before = lacking.len();
            let epochs = self.slabs.get(id).epochs();
            lacking.extend(epochs.filter(|&it| !self.is_ordered(stream, it)));
            if lacking.len() == before {
                let tick = self.open_tick(stream);
                let extent = self.slabs.remove(id);
                self.give(extent, stream, tick);
            }
        }
        lacking
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
