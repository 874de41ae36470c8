//! Steps 4 and 5 of the ladder: memory that is idle elsewhere, and memory that is new.
//!
//! A window names gap bytes to map. Idle frames, those that lie wholly inside a hole, are mapped
//! there a second time in stream order; their old mapping retires and goes when the work that may
//! still use it is done. Nobody waits on the host. What idle frames do not cover, new ones do.

use super::core::{Core, is_done};
use super::stats::Told;
use crate::arena::FrameId;
use crate::error::Result;
use crate::heap::placement::{self, Placement};
use crate::heap::{Epoch, Extent, FRESH, Grant, Id, NONE, StreamIndex, Zone};
use crate::seeded::seeded;

/// Old mappings that are looked at in a mapping step though their work is not done.
const PENDING_LOOKED_AT: usize = 256;

/// A frame that lies wholly inside a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleFrame {
    hole: Id,
    frame: FrameId,
    start: u64,
    pub(super) bytes: u64,
}

/// How far a search for memory to map has come: each measure is taken once, dearer ones later.
pub(super) struct Search {
    /// Memory that other streams still use counts, behind a wait for them.
    pending: bool,
    /// Windows that fill a whole gap count.
    fill_gaps: bool,
    /// Holes of different histories were merged.
    unified: bool,
    /// The device has no more memory to give.
    refused: bool,
    /// Idle memory was given back for that.
    released: bool,
}

impl Search {
    pub(super) fn new(pending: bool) -> Self {
        Self {
            pending,
            fill_gaps: true,
            unified: false,
            refused: false,
            released: false,
        }
    }
}

/// Follows a hole while frames are cut out of it in address order: each cut leaves the part
/// behind it with a number of its own.
struct HoleCursor {
    original: Id,
    now: Id,
}

impl Default for HoleCursor {
    fn default() -> Self {
        Self {
            original: NONE,
            now: NONE,
        }
    }
}

impl HoleCursor {
    /// The hole in which `frame` lies now.
    fn at(&mut self, frame: &IdleFrame) -> Id {
        if self.original != frame.hole {
            *self = Self {
                original: frame.hole,
                now: frame.hole,
            };
        }
        self.now
    }
}

impl Core {
    /// Takes `bytes` from new memory and what is ready, while the pool is small and several streams
    /// use it: before any stream waits or caches are emptied.
    pub(crate) fn take_overlapping(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        let most = self.config.overlap_bytes.min(self.limit());
        if self.only_stream() || self.arena.reserved().saturating_add(bytes) > most {
            return Ok(None);
        }
        let granule = self.arena.granule();
        let ready = |extent: &Extent| self.is_behind(slot, extent.epoch());
        let Some(window) =
            placement::cheapest(&self.extents, bytes, granule, ready, true, Zone::Low)
        else {
            return Ok(None);
        };
        if self.arena.reserved() + window.to_map > most {
            return Ok(None);
        }
        match self.fill(slot, &window, &[]) {
            Ok(first) => self.take_placement(slot, &window, first).map(Some),
            Err(error) if error.is_device_exhausted() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes `bytes` after mapping what the cheapest window lacks. `None` if idle memory and
    /// growth together do not suffice.
    pub(crate) fn take_mapping(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        self.reap()?;
        // Where device waits are switched off, pending memory is taken only instead of failing.
        let mut search = Search::new(self.config.reuse.device_wait);
        loop {
            let Some(window) = self.placement(slot, bytes, &search) else {
                // Holes that suffice by themselves are in no window.
                if let Some(grant) = self.take_holes(slot, bytes, search.pending)? {
                    return Ok(Some(grant));
                }
                // Addresses are short only while old mappings stand.
                if self.retiring.is_empty() {
                    return Ok(None);
                }
                self.reap_all()?;
                continue;
            };
            let room = if search.refused { 0 } else { self.room() };
            let usable = |extent: &Extent| search.pending || self.is_behind(slot, extent.epoch());
            let (window, idle) = if self.slack(bytes).min(room) >= window.to_map {
                (window, Vec::new())
            } else {
                self.idle_for(window, usable)
            };
            if total(&idle) < window.to_map && search.pending && self.may_unify(&mut search, bytes)
            {
                // Cheaper than a handle: holes that only their histories keep apart.
                if self.unify(slot)?
                    && let Some(grant) = self.take_ready(slot, bytes)?
                {
                    return Ok(Some(grant));
                }
                continue;
            }
            let lacking = window.to_map.saturating_sub(total(&idle));
            if lacking > room {
                if !std::mem::replace(&mut search.pending, true) {
                    // What suffices by itself is in no window.
                    match self.take_holes(slot, bytes, true)? {
                        None => continue,
                        taken => return Ok(taken),
                    }
                }
                if self.try_harder(&mut search, &window, room)? {
                    continue;
                }
                return Ok(None);
            }
            match self.fill(slot, &window, &idle) {
                Ok(first) => return self.take_placement(slot, &window, first).map(Some),
                Err(error) if error.is_device_exhausted() && !search.refused => {
                    search.refused = true;
                }
                Err(error) if error.is_device_exhausted() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Handles that [`Core::take_mapping`] would map elsewhere for a request: 0 where it would map
    /// new ones, or none. Where idle ones do not suffice, as many as would.
    pub(super) fn would_steal(&self, slot: StreamIndex, bytes: u64) -> u64 {
        let search = Search::new(self.config.reuse.device_wait);
        let Some(window) = self.placement(slot, bytes, &search) else {
            return 0;
        };
        let room = self.room();
        if self.slack(bytes).min(room) >= window.to_map {
            return 0;
        }
        let usable = |extent: &Extent| search.pending || self.is_behind(slot, extent.epoch());
        let (window, idle) = self.idle_for(window, usable);
        match total(&idle).saturating_add(room) < window.to_map {
            true => window.to_map / self.arena.granule(),
            false => idle.len() as u64,
        }
    }

    /// The window that the request would be mapped into, as far as `search` has come.
    pub(super) fn placement(
        &self,
        slot: StreamIndex,
        bytes: u64,
        search: &Search,
    ) -> Option<Placement> {
        let usable = |extent: &Extent| search.pending || self.is_behind(slot, extent.epoch());
        let granule = self.arena.granule();
        let at =
            |end| placement::cheapest(&self.extents, bytes, granule, usable, search.fill_gaps, end);
        at(self.zone_for(bytes)).or_else(|| at(Zone::Low))
    }

    /// Whether to merge holes of different histories now: once a request, and only where that may
    /// make a hole for it or free a handle.
    fn may_unify(&self, search: &mut Search, bytes: u64) -> bool {
        let least = bytes.min(self.arena.granule());
        self.extents.hole_bytes() >= least && !std::mem::replace(&mut search.unified, true)
    }

    /// Takes down the old mappings that keep memory given up, waiting on the host for the work that
    /// may use them; whether the device has more of it back.
    fn let_left_over_go(&mut self) -> Result<bool> {
        let before = self.arena.left_over();
        if before == 0 {
            return Ok(false);
        }
        self.reap_all()?;
        // What it refuses again is offered again.
        let _ = self.arena.offer_refused();
        Ok(self.arena.left_over() < before)
    }

    /// Takes the next measure after idle memory and growth did not suffice for `window`; false if
    /// there is none left.
    fn try_harder(&mut self, search: &mut Search, window: &Placement, room: u64) -> Result<bool> {
        if std::mem::replace(&mut search.fill_gaps, false) {
            return Ok(true);
        }
        if self.let_left_over_go()? {
            search.refused = false;
            return Ok(true);
        }
        // Frames too large for what is left can still be given up for new ones that fit; where the
        // device refused memory before, it has as much again then.
        if std::mem::replace(&mut search.released, search.refused)
            || !self.release_idle(window, window.to_map - room)?
        {
            return Ok(false);
        }
        search.refused = false;
        Ok(true)
    }

    /// Idle frames for `window`, which is made larger where only a frame larger than what it lacks
    /// is left.
    pub(super) fn idle_for(
        &self,
        window: Placement,
        usable: impl Fn(&Extent) -> bool,
    ) -> (Placement, Vec<IdleFrame>) {
        if !self.config.remap {
            return (window, Vec::new());
        }
        let mut frames = self.idle(Some(&window), window.to_map, &usable);
        let lacking = window.to_map - total(&frames);
        if lacking == 0 || window.spare == 0 {
            return (window, frames);
        }
        let most = lacking + window.spare;
        let all = self.idle(Some(&window), u64::MAX, &usable);
        let large = all
            .into_iter()
            .filter(|frame| (lacking..=most).contains(&frame.bytes))
            .filter(|frame| frames.iter().all(|taken| taken.frame != frame.frame))
            .min_by_key(|frame| frame.bytes);
        let Some(large) = large else {
            return (window, frames);
        };
        frames.push(large);
        frames.sort_by_key(|frame| (frame.hole, frame.start));
        (window.widened(large.bytes - lacking), frames)
    }

    /// Frames that lie in holes outside `window` that `usable` accepts, those of the smallest holes
    /// first, as many as fit into `left` bytes: large holes stay whole for large requests.
    pub(super) fn idle(
        &self,
        window: Option<&Placement>,
        mut left: u64,
        usable: impl Fn(&Extent) -> bool,
    ) -> Vec<IdleFrame> {
        let granule = self.arena.granule();
        let slots = 0..self.extents.slots();
        let mut holes: Vec<Id> = slots
            .flat_map(|slot| self.extents.holes_of(slot, granule))
            .filter(|&id| usable(self.extents.get(id)))
            .collect();
        holes.sort_by_key(|&id| self.extents.get(id).bytes);
        let mut frames = Vec::new();
        for id in holes {
            if left == 0 {
                break;
            }
            let (mut most, mut within) = (u64::MAX, Vec::new());
            self.idle_in(id, &mut most, &mut within);
            // A hole that the window takes a part of may give the rest.
            for frame in within {
                let end = frame.start + frame.bytes;
                let inside = window.is_some_and(|window| window.touches(frame.start, end));
                if !inside && frame.bytes <= left {
                    left -= frame.bytes;
                    frames.push(frame);
                }
            }
        }
        frames
    }

    /// The idle frames of one hole, in address order, while they fit into `left`.
    pub(super) fn idle_in(&self, hole: Id, left: &mut u64, frames: &mut Vec<IdleFrame>) {
        let extent = self.extents.get(hole);
        let mut at = extent.start;
        while at < extent.end() {
            // A hole is mapped throughout; a granule without a frame would be a fault of the books,
            // and is passed over.
            let Some((id, frame)) = self.arena.frame_at(at) else {
                return;
            };
            let (start, bytes) = self.arena.extent_of(&frame);
            let within = start + bytes <= extent.end() || seeded!("frame-partly-in-use-is-idle");
            if start >= extent.start && within && bytes <= *left {
                frames.push(IdleFrame {
                    hole,
                    frame: id,
                    start,
                    bytes,
                });
                *left -= bytes;
            }
            at = start + bytes;
        }
    }

    /// Maps the window's gap part from `idle` and new frames; gives the window's first extent.
    pub(super) fn fill(
        &mut self,
        slot: StreamIndex,
        window: &Placement,
        idle: &[IdleFrame],
    ) -> Result<Id> {
        let (from, to) = (window.map_from, window.map_from + window.to_map);
        let mut at = from;
        let mut lowest = None;
        let mut hole = HoleCursor::default();
        for frame in idle {
            let (mapped, rest) = self.steal(slot, hole.at(frame), frame, at)?;
            hole.now = rest;
            lowest = lowest.or(mapped);
            at += frame.bytes;
        }
        if at < to {
            let mapped = self.create_frames(at, to)?;
            lowest = lowest.or(mapped);
        }
        let first = lowest
            .filter(|_| window.start >= from)
            .unwrap_or(window.first);
        Ok(self.extents.seek(first, window.start))
    }

    /// Maps the idle `frame`, which lies in the hole `id`, at `at`. Gives the hole made there and
    /// the extent behind the frame's old place.
    fn steal(
        &mut self,
        slot: StreamIndex,
        id: Id,
        frame: &IdleFrame,
        at: u64,
    ) -> Result<(Option<Id>, Id)> {
        let extent = *self.extents.get(id);
        let done = is_done(&self.streams, extent.epoch());
        if !done {
            let tick = match seeded!("steal-waits-for-the-wrong-event") {
                true => extent.tick.saturating_sub(1),
                false => extent.tick,
            };
            self.wait_for(slot, Epoch::new(extent.slot, tick))?;
        }
        self.arena.remap(frame.frame, at)?;
        let part = self
            .extents
            .retire(id, frame.start, frame.start + frame.bytes);
        let rest = self.extents.get(part).next;
        self.retiring.push_back(part);
        self.steps.steal += 1;
        self.told.note(Told::Steal(frame.bytes));
        let (home, tick) = match &self.streams[slot as usize] {
            Some(state) if !done && !seeded!("stolen-memory-is-anyones") => {
                (slot, state.timeline.open_tick())
            }
            _ => (FRESH, 0),
        };
        Ok((self.map(at, frame.bytes, home, tick), rest))
    }

    /// Books [`at`, `at + bytes`) of a gap as a hole; gives it.
    pub(super) fn map(&mut self, at: u64, bytes: u64, slot: StreamIndex, tick: u64) -> Option<Id> {
        let gap = self.extents.gap_at(at)?;
        Some(self.extents.map_gap(gap, at, at + bytes, slot, tick))
    }

    /// Takes down old mappings whose work is done. Asks the driver, once a stream: where old mappings
    /// stand no request can go on, and a question costs a fortieth of a mapping.
    pub(crate) fn reap(&mut self) -> Result<()> {
        let mut asked: Vec<StreamIndex> = Vec::new();
        let mut pending = 0;
        for _ in 0..self.retiring.len() {
            // The next call goes on behind those looked at.
            if pending == PENDING_LOOKED_AT {
                break;
            }
            let Some(&id) = self.retiring.front() else {
                break;
            };
            let extent = *self.extents.get(id);
            if let Some(state) = &self.streams[extent.slot as usize]
                && !is_done(&self.streams, extent.epoch())
                && !asked.contains(&extent.slot)
            {
                asked.push(extent.slot);
                state.timeline.poll_to(extent.tick)?;
            }
            if !is_done(&self.streams, extent.epoch()) && !seeded!("unmapped-under-queued-work") {
                self.retiring.rotate_left(1);
                pending += 1;
                continue;
            }
            self.arena.unmap_stale(extent.start)?;
            self.retiring.pop_front();
            self.extents.retired(id);
        }
        Ok(())
    }

    /// Takes down all old mappings, waiting on the host for the work that may use them.
    fn reap_all(&mut self) -> Result<()> {
        while let Some(&id) = self.retiring.front() {
            let extent = *self.extents.get(id);
            if let Some(state) = &self.streams[extent.slot as usize] {
                state.timeline.sync_to(extent.tick)?;
            }
            self.reap()?;
        }
        Ok(())
    }

    /// Gives idle frames outside `window` back until `bytes` more may be created; false, with
    /// nothing done, if there are not so many.
    fn release_idle(&mut self, window: &Placement, bytes: u64) -> Result<bool> {
        let idle = self.idle(Some(window), u64::MAX, |_| true);
        if total(&idle) < bytes {
            return Ok(false);
        }
        let mut released = 0;
        let mut hole = HoleCursor::default();
        for frame in idle {
            if released >= bytes {
                break;
            }
            hole.now = self.release(hole.at(&frame), &frame)?;
            released += frame.bytes;
        }
        Ok(true)
    }

    /// Unmaps the idle `frame`, which lies in the hole `id`, and gives it back to the device, once
    /// the work that used it is done. Gives the extent behind it.
    fn release(&mut self, id: Id, frame: &IdleFrame) -> Result<Id> {
        let extent = *self.extents.get(id);
        if let Some(state) = &self.streams[extent.slot as usize]
            && !seeded!("released-under-queued-work")
        {
            state.timeline.sync_to(extent.tick)?;
        }
        let released = self.arena.release(frame.frame);
        if self.arena.frame_at(frame.start).is_some() {
            return released.map(|()| NONE);
        }
        let part = self
            .extents
            .retire(id, frame.start, frame.start + frame.bytes);
        let rest = self.extents.get(part).next;
        self.extents.retired(part);
        released.map(|()| rest)
    }

    /// Gives idle memory back to the device, keeping at least `keep` bytes; gives the bytes
    /// released. Waits on the host for work that still uses idle memory.
    pub(crate) fn trim(&mut self, keep: u64) -> Result<u64> {
        let before = self.arena.reserved();
        if before > keep {
            self.release_mixed_on_host()?;
            self.unify_on_host()?;
        }
        let mut hole = HoleCursor::default();
        let excess = self.arena.mapped().saturating_sub(keep);
        for frame in self.idle(None, excess, |_| true) {
            hole.now = self.release(hole.at(&frame), &frame)?;
        }
        self.reap_all()?;
        self.arena.offer_refused()?;
        let released = before - self.arena.reserved();
        self.told.note(Told::Trimmed(released));
        Ok(released)
    }
}

impl Core {
    /// Whether the pool holds more than its soft limit.
    pub(crate) fn is_over_soft_limit(&self) -> bool {
        let soft = self.config.soft_limit.unwrap_or(u64::MAX);
        self.arena.reserved() > soft
    }

    /// Gives back what the pool holds above its soft limit, as far as it is idle and its work is
    /// done. Nobody waits.
    pub(crate) fn ease(&mut self) -> Result<()> {
        let soft = self.config.soft_limit.unwrap_or(u64::MAX);
        if self.arena.reserved() <= soft {
            return Ok(());
        }
        // What was given up goes as soon as its old mappings do.
        let excess = self.arena.mapped().saturating_sub(soft);
        // Nothing is recorded until someone asks: without a mark no work is ever known to be done.
        for (slot, tick) in self.last_ticks() {
            if let Some(state) = &self.streams[slot as usize] {
                state.timeline.request(tick)?;
            }
        }
        self.poll(FRESH)?;
        let mut hole = HoleCursor::default();
        for frame in self.idle(None, excess, |extent| {
            is_done(&self.streams, extent.epoch())
        }) {
            hole.now = self.release(hole.at(&frame), &frame)?;
        }
        self.reap()
    }
}

pub(super) fn total(frames: &[IdleFrame]) -> u64 {
    frames.iter().map(|frame| frame.bytes).sum()
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
