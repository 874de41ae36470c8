//! Which hole a request takes, one that is ready or behind a wait for others, and at which end of the arena.
//!
//! # Why two ends
//!
//! A handle can be mapped elsewhere or given back only when nothing in it is live, so one small
//! block that outlives its neighbours holds a whole handle. Small blocks therefore lie together:
//! first in what is left of handles that hold blocks anyway, then at the high end of the arena, in
//! handles of one granule each. Large blocks lie at the low end and take the high one last.
//!
//! A pool that is small against a granule has one end: a handle more would be dearer than any
//! order.

use std::hint::select_unpredictable;

use super::core::{Core, is_done};
use super::grow::Mapping;
use super::idle::{IdleFrame, total};
use super::mapping::Terms;
use super::stats::Told;
use super::tuning::{
    ALL_STREAMS, GRANULES_BEFORE_ENDS, HOLES_LOOKED_AT, OTHER_STREAMS, SMALL_PART, SMALLEST,
};
use crate::error::Result;
use crate::heap::placement::Placement;
use crate::heap::{Epoch, Extent, FRESH, Grant, Id, StreamIndex, Zone};
use crate::seeded::seeded;

impl Core {
    /// Whether the handle mapped at `offset` is of the smallest size.
    fn is_granule_sized(&self, offset: u64) -> bool {
        let frame = self.arena.frame_at(offset);
        frame.is_some_and(|(_, frame)| frame.bytes == self.arena.granule())
    }

    #[inline(always)]
    pub(super) fn zone_for(&self, bytes: u64) -> Zone {
        let granule = self.arena.granule();
        let high = (bytes <= granule / SMALL_PART)
            & (self.peak_reserved >= GRANULES_BEFORE_ENDS * granule);
        // Without a branch: which it is changes from request to request.
        select_unpredictable(high, Zone::High, Zone::Low)
    }

    /// The hole that suits the request best of those that are ready for `slot`. No driver call: a small
    /// request for which a handle can be mapped at the high end gets no other at the low end if it
    /// `may_map`.
    #[inline(always)]
    pub(crate) fn take_ready(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
        may_map: bool,
    ) -> Option<Grant> {
        // Nearly always there is only the stream's own memory, the best of which will do.
        let end = self.zone_for(bytes);
        if self.only_stream()
            && self.extents.has_none_in(FRESH, end)
            && let Some(best) = self.extents.best(slot, end, bytes)
        {
            self.count(Told::OwnStream(bytes));
            return Some(self.take(best, bytes, slot));
        }
        self.take_ready_of_any(slot, bytes, may_map)
    }

    #[inline(never)]
    fn take_ready_of_any(&mut self, slot: StreamIndex, bytes: u64, may_map: bool) -> Option<Grant> {
        let found = if self.zone_for(bytes) == Zone::High {
            let granule = self.arena.granule();
            // The smallest are the ones that outlive everything: they hold no large handle.
            let cramped = |extent: &Extent| {
                extent.bytes < granule && (bytes > SMALLEST || self.is_granule_sized(extent.start))
            };
            let found = (self.ready(slot, bytes, Zone::High, |_| true))
                .or_else(|| self.ready(slot, bytes, Zone::Low, cramped));
            if found.is_none() && may_map && self.plan_high(slot, bytes).is_some() {
                return None;
            }
            found.or_else(|| self.ready(slot, bytes, Zone::Low, |_| true))
        } else {
            self.ready_anywhere(slot, bytes)
        };
        let id = found?;
        self.count_taken(slot, bytes, self.extents.get(id).epoch(), false);
        Some(self.take(id, bytes, slot))
    }

    /// Whether a request is large enough that neighbouring holes of all streams are made one for it, and
    /// may find room then.
    ///
    /// Holes that only their histories keep apart are else cut up one by one, until what is free
    /// fits no large request: five streams whose peaks alternate reserved 1.025 to 1.030 times their
    /// joint peak without this, 1.005 to 1.008 with it.
    pub(super) fn is_merged_for(&self, bytes: u64) -> bool {
        let small = bytes <= self.arena.granule() / SMALL_PART;
        let enough = self.extents.hole_bytes() >= bytes;
        !small && enough && !self.only_stream() && self.config.reuse.device_wait
    }

    /// The smallest hole that is ready for a large request, wherever it lies, once holes were
    /// [merged](Core::unify).
    pub(super) fn take_merged(&mut self, slot: StreamIndex, bytes: u64) -> Option<Grant> {
        let id = self.ready_anywhere(slot, bytes)?;
        self.count(Told::StreamWait(bytes));
        Some(self.take(id, bytes, slot))
    }

    fn ready_anywhere(&self, slot: StreamIndex, bytes: u64) -> Option<Id> {
        let mut ends = [Zone::Low, Zone::High].into_iter();
        ends.find_map(|end| self.ready(slot, bytes, end, |_| true))
    }

    /// The smallest hole of at least `bytes` in one end that is ready for `slot` and that `suits`;
    /// of equal ones its own.
    fn ready(
        &self,
        slot: StreamIndex,
        bytes: u64,
        end: Zone,
        suits: impl Fn(&Extent) -> bool,
    ) -> Option<Id> {
        let size = |id: Id| self.extents.get(id).bytes;
        let place = |id: Id| (size(id), self.extents.get(id).start);
        let first = |owner: StreamIndex, least: u64| {
            let covered = self.covered(slot, owner);
            let holes = self.extents.at_least(owner, end, bytes);
            let mut holes = (holes.take(HOLES_LOOKED_AT)).take_while(|&id| size(id) < least);
            holes.find(|&id| {
                let extent = self.extents.get(id);
                extent.tick <= covered && suits(extent)
            })
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

    /// The streams whose holes a request on `slot` looks at: all others, or, if it has a hole already
    /// and there are many, a few of them, which are others each time.
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

    /// How a handle would be mapped at the high end for a small request: an idle one that is ready or a
    /// new one within the slack.
    pub(super) fn plan_high(
        &self,
        slot: StreamIndex,
        bytes: u64,
    ) -> Option<(Placement, Vec<IdleFrame>)> {
        if self.zone_for(bytes) == Zone::Low {
            return None;
        }
        let terms = Terms {
            fill_gaps: false,
            ..Terms::at_first(false)
        };
        let placement = self.place(slot, bytes, terms, Zone::High)?;
        if self.slack(bytes).min(self.room()) >= placement.to_map {
            return Some((placement, Vec::new()));
        }
        // What other streams still use may be worth more where it is.
        let free = |it: &Extent| it.slot == slot || is_done(&self.streams, it.epoch());
        let (placement, idle) = self.idle_for(placement, free);
        (total(&idle) >= placement.to_map).then_some((placement, idle))
    }

    pub(super) fn begin_high(&mut self, slot: StreamIndex, bytes: u64) -> Option<Mapping> {
        let (placement, idle) = self.plan_high(slot, bytes)?;
        self.begin_mapping(slot, placement, &idle)
    }

    /// The smallest hole of at least `bytes`, whichever stream uses it still, and its history.
    pub(super) fn smallest_hole(&self, bytes: u64) -> Option<(Id, Epoch)> {
        let holes = (1..self.extents.slots())
            .flat_map(|s| [Zone::Low, Zone::High].map(|end| self.extents.best(s, end, bytes)))
            .flatten();
        let id = holes.min_by_key(|&id| self.extents.get(id).bytes)?;
        Some(match seeded!("taken-without-a-wait") {
            true => (id, Epoch::PAST),
            false => (id, self.extents.get(id).epoch()),
        })
    }

    /// Takes that hole, behind a wait for it. What is left of it keeps its own history, which no longer
    /// costs this stream a wait.
    pub(super) fn take_behind_a_wait(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
        (id, epoch): (Id, Epoch),
    ) -> Result<Grant> {
        self.wait_for(slot, epoch)?;
        self.count(Told::StreamWait(bytes));
        let grant = self.take(id, bytes, slot);
        self.merge_behind(id);
        Ok(grant)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
