//! Which hole a request takes: one that is ready, or one behind a wait for other streams.

use super::core::Core;
use super::stats::Told;
use super::tuning::{ALL_STREAMS, HOLES_LOOKED_AT, OTHER_STREAMS, SMALL_PART};
use crate::heap::{Epoch, FRESH, Grant, Id, StreamIndex};
use crate::seeded::seeded;

impl Core {
    /// The hole that suits the request best of those that are ready for `slot`. No driver call.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, slot: StreamIndex, bytes: u64) -> Option<Grant> {
        // Nearly always there is only the stream's own memory, the best of which will do.
        if self.only_stream()
            && self.extents.has_none(FRESH)
            && let Some(best) = self.extents.best(slot, bytes)
        {
            self.count(Told::OwnStream(bytes));
            return Some(self.take(best, bytes, slot));
        }
        self.take_ready_of_any(slot, bytes)
    }

    #[inline(never)]
    fn take_ready_of_any(&mut self, slot: StreamIndex, bytes: u64) -> Option<Grant> {
        let id = self.ready(slot, bytes)?;
        self.count_taken(slot, bytes, self.extents.get(id).epoch(), false);
        Some(self.take(id, bytes, slot))
    }

    /// Whether neighbouring holes of all streams are made one for a request: it is large, and may find room then.
    ///
    /// Holes that only their histories keep apart are else cut up one by one: five streams whose peaks alternate
    /// reserved 1.025 to 1.030 times their joint peak without this, 1.005 to 1.008 with it.
    pub(super) fn is_merged_for(&self, bytes: u64) -> bool {
        let small = bytes <= self.arena.granule() / SMALL_PART;
        let enough = self.extents.hole_bytes() >= bytes;
        !small && enough && !self.only_stream() && self.config.reuse.device_wait
    }

    /// The smallest hole that is ready for a large request, once holes were [merged](Core::unify).
    pub(super) fn take_merged(&mut self, slot: StreamIndex, bytes: u64) -> Option<Grant> {
        let id = self.ready(slot, bytes)?;
        self.count(Told::StreamWait(bytes));
        Some(self.take(id, bytes, slot))
    }

    /// The smallest hole of at least `bytes` that is ready for `slot`; of equal ones its own.
    fn ready(&self, slot: StreamIndex, bytes: u64) -> Option<Id> {
        let size = |id: Id| self.extents.get(id).bytes;
        let place = |id: Id| (size(id), self.extents.get(id).start);
        let first = |owner: StreamIndex, least: u64| {
            // Nearly always the smallest will do, and takes no walk in order.
            let best = (self.extents.best(owner, bytes)).filter(|&id| size(id) < least)?;
            let covered = self.covered(slot, owner);
            let is_ready = |&id: &Id| self.extents.get(id).tick <= covered;
            if is_ready(&best) {
                return Some(best);
            }
            let holes = self.extents.at_least(owner, bytes);
            let mut holes = (holes.take(HOLES_LOOKED_AT)).take_while(|&id| size(id) < least);
            holes.find(is_ready)
        };
        let mut found = match (first(slot, u64::MAX), first(FRESH, u64::MAX)) {
            (Some(own), Some(fresh)) if place(fresh) < place(own) => Some(fresh),
            (own, fresh) => own.or(fresh),
        };
        for other in self.others(slot, found.is_some()) {
            let least = found.map_or(u64::MAX, size);
            if least == bytes {
                break;
            }
            found = first(other, least).or(found);
        }
        found
    }

    /// The streams whose holes a request on `slot` looks at: all others; of many, if it has a hole already, a few,
    /// which are others each time.
    fn others(
        &self,
        slot: StreamIndex,
        has_one: bool,
    ) -> impl Iterator<Item = StreamIndex> + use<> {
        let streams = self.extents.slots() - 1;
        let (first, count) = match has_one && streams > ALL_STREAMS {
            // A block that is taken and freed changes up to four holes.
            true => (
                (self.extents.changes() / 4) % u64::from(streams),
                OTHER_STREAMS,
            ),
            false => (0, streams),
        };
        let first = first as StreamIndex;
        (first..first + count)
            .map(move |at| 1 + at % streams)
            .filter(move |&other| other != slot)
    }

    /// The smallest hole of at least `bytes`, whichever stream uses it still, and its history.
    pub(super) fn smallest_hole(&self, bytes: u64) -> Option<(Id, Epoch)> {
        let holes = (1..self.extents.slots()).filter_map(|slot| self.extents.best(slot, bytes));
        let id = holes.min_by_key(|&id| self.extents.get(id).bytes)?;
        let mut epoch = self.extents.get(id).epoch();
        epoch.tick *= u64::from(!seeded!("taken-without-a-wait"));
        Some((id, epoch))
    }

    /// Takes that hole, which the stream has waited for. What is left of it keeps its history.
    pub(super) fn take_waited(&mut self, slot: StreamIndex, bytes: u64, id: Id) -> Grant {
        self.count(Told::StreamWait(bytes));
        let grant = self.take(id, bytes, slot);
        self.merge_behind(id);
        grant
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
