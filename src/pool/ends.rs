//! Which hole a request takes, and at which end of the arena.
//!
//! # Why two ends
//!
//! A handle can be mapped elsewhere or given back only when nothing in it is live, so one small
//! block that outlives its neighbours holds a whole handle. Small blocks therefore lie together:
//! first in what is left of handles that hold blocks anyway, then at the high end of the arena, in
//! handles of one granule each. Large blocks lie at the low end and take the high one last.
//!
//! Played over the ResNet-50 training trace on the host device, nothing verified, small blocks of up
//! to a quarter of a granule lowered what is reserved from 1.0091 to 1.0056 times the live peak; up
//! to half a granule gave 1.0071, up to a thirty-second 1.0075.
//!
//! A pool that is small against a granule has one end: a handle more would be dearer than any
//! order.

use std::hint::select_unpredictable;

use super::core::{Core, is_done};
use super::stats::Told;
use crate::error::Result;
use crate::heap::placement;
use crate::heap::{Extent, FRESH, Grant, Id, StreamIndex, Zone};

/// Holes looked at for one that may be taken, of each stream.
const LOOKS: usize = 8;

/// Streams up to which the holes of all others are looked at for one that fits better than the
/// stream's own: a pool that few streams share wastes least so. Where sixteen shared one and each looked
/// at all, a miss took 5,200 cycles under the lock on a host of an H200; with two others 2,000.
const ALL: StreamIndex = 5;

/// Where there are more streams, how many are looked at.
const OTHERS: StreamIndex = 2;

/// Blocks of up to a granule over this are small.
const SMALL_PART: u64 = 4;

/// Blocks of up to this many bytes lie in handles of one granule only, where there is room.
const SMALLEST: u64 = 4096;

/// Granules that a pool has held before its small blocks go to the high end, where a handle that
/// is hardly used costs it at most a part in so many.
const GRANULES_BEFORE_ENDS: u64 = 256;

impl Core {
    /// Whether a request of `bytes` goes to the high end.
    #[inline(always)]
    fn goes_high(&self, bytes: u64) -> bool {
        let granule = self.arena.granule();
        (bytes <= granule / SMALL_PART) & (self.peak_reserved >= GRANULES_BEFORE_ENDS * granule)
    }

    /// Whether the handle mapped at `offset` is of the smallest size.
    fn is_granule_sized(&self, offset: u64) -> bool {
        let frame = self.arena.frame_at(offset);
        frame.is_some_and(|(_, frame)| frame.granules == 1)
    }

    /// Where to map memory for a request of `bytes`.
    #[inline(always)]
    pub(super) fn zone_for(&self, bytes: u64) -> Zone {
        // Without a branch: which it is changes from request to request.
        select_unpredictable(self.goes_high(bytes), Zone::High, Zone::Low)
    }

    /// Steps 1 and 2: the hole that suits the request best of those that are ready for `slot`. No
    /// driver call but, for a small block, to bring an idle handle to the high end.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        // Nearly always there is only the stream's own memory, the best of which will do.
        let end = self.zone_for(bytes);
        if self.only_stream()
            && self.extents.index(FRESH, end).is_empty()
            && let Some(best) = (self.extents.index(slot, end).best(bytes))
                .or_else(|| self.cramped_below(slot, bytes, end))
        {
            self.steps.own_stream += 1;
            self.told.note(Told::OwnStream(bytes));
            return Ok(Some(self.take(best, bytes, slot)));
        }
        self.take_ready_of_any(slot, bytes)
    }

    /// For a request of the high end where that has no hole: the best one at the low end, if it is
    /// smaller than a granule and the only stream's.
    #[inline(always)]
    fn cramped_below(&self, slot: StreamIndex, bytes: u64, end: Zone) -> Option<Id> {
        if end == Zone::Low || bytes <= SMALLEST || !self.extents.index(FRESH, Zone::Low).is_empty()
        {
            return None;
        }
        let best = self.extents.index(slot, Zone::Low).best(bytes)?;
        (self.extents.get(best).bytes < self.arena.granule()).then_some(best)
    }

    #[inline(never)]
    fn take_ready_of_any(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        let found = if self.goes_high(bytes) {
            let granule = self.arena.granule();
            // The smallest are the ones that outlive everything: they hold no large handle.
            let cramped = |extent: &Extent| {
                extent.bytes < granule && (bytes > SMALLEST || self.is_granule_sized(extent.start))
            };
            let found = self
                .ready(slot, bytes, Zone::High, |_| true)
                .or_else(|| self.ready(slot, bytes, Zone::Low, cramped));
            if found.is_none()
                && let Some(grant) = self.take_high(slot, bytes)?
            {
                return Ok(Some(grant));
            }
            found.or_else(|| self.ready(slot, bytes, Zone::Low, |_| true))
        } else {
            self.ready(slot, bytes, Zone::Low, |_| true)
                .or_else(|| self.ready(slot, bytes, Zone::High, |_| true))
        };
        let Some(id) = found else {
            return Ok(None);
        };
        if matches!(self.extents.get(id).slot, s if s == slot || s == FRESH) {
            self.steps.own_stream += 1;
            self.told.note(Told::OwnStream(bytes));
        } else {
            self.steps.ready_elsewhere += 1;
            self.told.note(Told::ReadyElsewhere(bytes));
        }
        Ok(Some(self.take(id, bytes, slot)))
    }

    /// Step 3 for a large request: the smallest hole once neighbouring holes of all streams are one,
    /// behind a wait for who freed them.
    ///
    /// Holes that only their histories keep apart are else cut up one by one, until what is free
    /// fits no large request: five streams whose peaks alternate reserved 1.025 to 1.030 times their
    /// joint peak without this, 1.005 to 1.008 with it.
    pub(crate) fn take_merged(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        let small = bytes <= self.arena.granule() / SMALL_PART;
        let enough = self.extents.hole_bytes() >= bytes;
        if small || !enough || self.only_stream() || !self.config.reuse.device_wait {
            return Ok(None);
        }
        if !self.unify(slot)? {
            return Ok(None);
        }
        let found = self
            .ready(slot, bytes, Zone::Low, |_| true)
            .or_else(|| self.ready(slot, bytes, Zone::High, |_| true));
        let Some(id) = found else {
            return Ok(None);
        };
        self.steps.stream_wait += 1;
        self.told.note(Told::StreamWait(bytes));
        Ok(Some(self.take(id, bytes, slot)))
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
            let index = self.extents.index(owner, end);
            // Mostly the first will do, which `best` finds without an iterator's state.
            let best = index.best(bytes).filter(|&id| size(id) < least)?;
            let covered = self.covered(slot, owner);
            let usable = |&id: &Id| {
                let extent = self.extents.get(id);
                extent.tick <= covered && suits(extent)
            };
            if usable(&best) {
                return Some(best);
            }
            let others = index.at_least(bytes).take(LOOKS).skip(1);
            others.take_while(|&id| size(id) < least).find(usable)
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
        let (first, count) = match has_one && streams > ALL {
            true => (
                (self.extents.changes() % u64::from(streams)) as StreamIndex,
                OTHERS,
            ),
            false => (0, streams),
        };
        (first..first + count)
            .map(move |at| 1 + at % streams)
            .filter(move |&other| other != slot)
    }

    /// Maps a handle at the high end, an idle one that is ready or a new one within the slack, and
    /// takes `bytes` there.
    fn take_high(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        let granule = self.arena.granule();
        let ready = |extent: &Extent| self.is_behind(slot, extent.epoch());
        let Some(window) =
            placement::cheapest(&self.extents, bytes, granule, ready, false, Zone::High)
        else {
            return Ok(None);
        };
        let (window, idle) = if self.slack(bytes).min(self.room()) >= window.to_map {
            (window, Vec::new())
        } else {
            // What other streams still use may be worth more where it is.
            let free =
                |extent: &Extent| is_done(&self.streams, extent.epoch()) || extent.slot == slot;
            let (window, idle) = self.idle_for(window, free);
            if idle.iter().map(|frame| frame.bytes).sum::<u64>() < window.to_map {
                return Ok(None);
            }
            (window, idle)
        };
        match self.fill(slot, &window, &idle) {
            Ok(first) => self.take_placement(slot, &window, first).map(Some),
            Err(error) if error.is_device_exhausted() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
