//! Maps memory for a request: idle handles that are mapped elsewhere, and new ones.
//!
//! A mapping is a job (`job`). It reserves addresses, and holds the idle handles to map there and the holes beside
//! them that become part of the block. After a failure, memory mapped so far is free memory; the rest is as before.

use super::config::HandleSize;
use super::core::{Core, is_done};
use super::job::{Job, Mapping, Moving, Part, make_handles, piece};
use super::mapping::{IdleFrame, total};
use super::stats::Told;
use super::tuning::{HANDLES_A_STRETCH, HANDLES_AIMED_AT, LARGEST_HANDLE};
use crate::arena::{Kept, Made};
use crate::error::{Error, Result};
use crate::heap::placement::{Placement, cheapest, windows};
use crate::heap::{Epoch, Extent, FRESH, Grant, Id, StreamIndex};

impl Core {
    /// Bytes that new handles may have now.
    pub(crate) fn room(&self) -> u64 {
        let granule = self.arena.granule();
        // The driver would be asked for handle after handle until it has none.
        let most = self.limit().min(self.arena.site().device_bytes());
        most.saturating_sub(self.held()) / granule * granule
    }

    /// Bytes of handles that the pool holds, or that jobs under way will make.
    pub(super) fn held(&self) -> u64 {
        self.arena.reserved() + self.under_way.to_create
    }

    /// Bytes that new handles may have before the pool looks for idle ones.
    pub(super) fn slack(&self, bytes: u64) -> u64 {
        let reserved = self.held();
        if reserved.saturating_add(bytes) > self.soft_limit() {
            return 0;
        }
        // What is promised will be allocated by then.
        let live = self.live() + self.under_way.wanted;
        let peak = self.peak_taken.max(live + bytes);
        let allowance = peak.saturating_add(self.pace.slack(peak, self.most()));
        allowance.saturating_sub(reserved - self.arena.beside())
    }

    /// Bytes in blocks; memory that jobs hold is free.
    #[inline]
    pub(crate) fn live(&self) -> u64 {
        self.active.bytes()[2] + self.slabs.free_bytes()
    }

    /// Begins to map new memory for `bytes` before any stream waits or caches are emptied. It does so in a small pool
    /// of several streams; for a `crowded` lane within the slack over the peak, which counts what such lanes keep;
    /// and if other streams still use free blocks (`used`), within the slack over what was live.
    pub(super) fn begin_overlapping(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        (crowded, used): (bool, bool),
    ) -> Option<Job> {
        let several = used || !self.only_stream();
        let small = self.config.overlap_bytes * u64::from(several);
        let (live, _) = self.seen;
        let beside = live.saturating_add(self.pace.slack(live, self.most())) * u64::from(used);
        let slack = if crowded { self.slack(bytes) } else { 0 };
        let most = small.max(beside).saturating_sub(self.held());
        let most = most.max(slack).min(self.room());
        let usable = |hole: &Extent| self.is_behind(stream, hole.epoch);
        let find = || cheapest(windows(&self.extents, bytes, self.arena.granule(), usable));
        let placement = (bytes <= most).then(find)?.filter(|it| it.to_map <= most)?;
        self.begin_mapping(stream, placement, &[])
    }

    /// Begins to map `placement`: the `idle` handles, and new ones for the rest. Frames of one hole ascend.
    pub(super) fn begin_mapping(
        &mut self,
        stream: StreamIndex,
        placement: Placement,
        idle: &[IdleFrame],
    ) -> Option<Job> {
        let placement = self.in_whole_handles(placement, total(idle));
        let (from, to) = (placement.map_from, placement.map_to());
        let mut clear: Vec<Kept> = self.arena.kept_in(from, to).collect();
        // A kept mapping lies in one gap, but may reach beyond the part to map.
        let lowest = clear.last().map_or(from, |kept| kept.start.min(from));
        let highest = clear.first().map_or(to, |kept| kept.end().max(to));
        let reserved = self.extents.reserve(lowest, highest)?;
        clear.iter().for_each(|kept| self.arena.unkeep(kept.start));
        let to_create = placement.to_map - total(idle);
        let (mut moving, mut place) = (Vec::new(), from);
        for at in self.hold_frames(idle) {
            let there = clear.iter().position(|kept| kept.is_of(&at.frame, place));
            let stands = there.map(|kept| clear.remove(kept)).is_some();
            moving.push(Moving { at, place, stands });
            place += at.frame.bytes;
        }
        let mut lean = self.hold_free(placement.first, placement.start, from);
        let above = self.extents.get(reserved).next;
        lean.extend(self.hold_free(above, to.max(placement.start), placement.end()));
        let holes = (moving.iter().map(|it| it.at.hole)).chain(lean.iter().copied());
        let epochs: Vec<Epoch> = holes.map(|id| self.extents.get(id).epoch).collect();
        let waits = self.waits_for(stream, epochs.iter().copied());
        self.under_way.to_create += to_create;
        self.under_way.wanted += placement.bytes;
        // Where the device is what limits the pool, also whether others freed memory.
        let asks = self.pace.asks() && (to_create > 0 || self.pace.most < self.limit());
        let clear = clear.into_iter().map(Part::Clear).chain([Part::New]);
        let parts = clear.chain(moving.into_iter().map(Part::Move)).collect();
        let mut job = self.begin(waits, &epochs, parts);
        job.mapping = Some(Box::new(Mapping {
            stream,
            placement,
            reserved,
            lean,
            to_create,
            largest: self.handle_sizes(to_create).1,
            made: Vec::new(),
            free: asks.then_some(0),
        }));
        Some(job)
    }

    /// Holds the free bytes from `start` to `end`, each hole by itself, sought upwards from `at`.
    fn hold_free(&mut self, mut at: Id, mut start: u64, end: u64) -> Vec<Id> {
        let mut free = Vec::new();
        while start < end {
            at = self.extents.seek(at, start);
            let bytes = self.extents.get(at).end().min(end) - start;
            at = self.extents.hold(at, start, bytes);
            start += bytes;
            free.push(at);
        }
        free
    }

    /// Ends a mapping: books the new handles and allocates the block. `None` if the device has too little memory.
    pub(super) fn end_mapping(
        &mut self,
        mut mapping: Mapping,
        error: Option<Error>,
    ) -> Result<Option<Grant>> {
        self.under_way.to_create -= mapping.to_create;
        self.under_way.wanted -= mapping.placement.bytes;
        let booked = self.book_made(std::mem::take(&mut mapping.made));
        if let Some(free) = mapping.free {
            // After a refusal the next attempt asks for no more than the request lacks.
            self.pace.most = self.held().saturating_add(free);
        }
        let Some(error) = error.or(booked.err()) else {
            return Ok(self.take_mapped(&mapping));
        };
        mapping.lean.iter().for_each(|&held| self.let_go(held));
        match error.is_device_exhausted() {
            true => Ok(None),
            false => Err(error),
        }
    }

    /// Books an idle handle as free memory where it is mapped now, and its old place as stale.
    pub(super) fn book_moved(&mut self, stream: StreamIndex, moving: &Moving) {
        let IdleFrame { hole, id, frame } = moving.at;
        let (bytes, history) = (frame.bytes, self.extents.get(hole).epoch);
        match moving.stands {
            true => self.arena.settle(id, moving.place),
            false => self.arena.remapped(id, moving.place),
        }
        self.extents.vacate(hole);
        self.retiring.push_back(hole);
        self.count(Told::Steal(bytes));
        let is_done = self.config.reuse.opportunistic && is_done(&self.streams, history);
        let stream = if is_done { FRESH } else { stream };
        let epoch = Epoch::new(stream, self.open_tick(stream));
        (self.extents).map_gap(moving.place, moving.place + bytes, epoch);
    }

    /// Books new handles as free memory, merged with the free memory above, as requests look for one hole. Returns
    /// the error of a handle that was not mapped, the last one.
    fn book_made(&mut self, made: Vec<Made>) -> Result<()> {
        let from = made.first().map_or(0, |first| first.offset);
        let mut end = from;
        let booked = made.into_iter().try_for_each(|made| {
            let bytes = made.bytes;
            self.arena.adopt(made)?;
            end += bytes;
            self.count(Told::Grow(bytes));
            Ok(())
        });
        self.peak_reserved = self.peak_reserved.max(self.arena.reserved());
        if end > from
            && let Some(hole) = self.extents.map_gap(from, end, Epoch::PAST)
        {
            (self.extents).merge_up(hole, |extent| extent.epoch.stream == FRESH);
        }
        booked
    }

    /// Allocates the block of a mapping: what was mapped, and the holes held beside it.
    fn take_mapped(&mut self, mapping: &Mapping) -> Option<Grant> {
        let (start, end) = mapping.placement.mapped();
        let hole = self.extents.seek(mapping.reserved, start);
        let mapped = (self.extents).take_window(hole, start, end - start, mapping.stream);
        let parts = mapping.lean.iter().copied().chain([mapped]);
        let id = parts.min_by_key(|&id| self.extents.get(id).start)?;
        mapping.lean.iter().for_each(|_| self.extents.join(id));
        self.extents.mark_taken(id, mapping.stream);
        self.merge_done_from(self.extents.get(id).next);
        let offset = self.extents.get(id).start;
        Some(Grant { id, offset })
    }

    /// Maps new memory at [`from`, `to`) of a gap, under the lock. After a failure, what was mapped stays.
    pub(crate) fn create_frames(&mut self, from: u64, to: u64) -> Result<()> {
        self.unmap_kept(from, to)?;
        let (bytes, mut made) = (to - from, Vec::new());
        let largest = self.handle_sizes(bytes).1;
        let done = make_handles(self.arena.site(), (from, bytes), largest, &mut made);
        done.and(self.book_made(made))
    }

    pub(super) fn unmap_kept(&mut self, from: u64, to: u64) -> Result<()> {
        for kept in self.arena.kept_in(from, to).collect::<Vec<_>>() {
            self.arena.site().unmap(kept.start, kept.bytes)?;
            self.arena.stale_unmapped(kept.start);
        }
        Ok(())
    }

    /// Least and most bytes of a new handle for `bytes`. Adaptive: a part of the pool, or of these bytes if that is
    /// more. So the number of handles, which sets the cost of growing and remapping, stays in the low thousands.
    pub(super) fn handle_sizes(&self, bytes: u64) -> (u64, u64) {
        match self.config.handles {
            HandleSize::Granule => (0, self.arena.granule()),
            HandleSize::UpTo(most) => (0, most),
            HandleSize::Adaptive => {
                let held = self.in_arena().saturating_add(bytes);
                let least = (self.pace.handle(held, self.most())).min(LARGEST_HANDLE);
                let most = (held / HANDLES_AIMED_AT).max(bytes / HANDLES_A_STRETCH);
                (least, most.clamp(least, LARGEST_HANDLE))
            }
        }
    }

    /// Widens the placement to whole new handles of the least size, if the pool may hold them.
    fn in_whole_handles(&self, placement: Placement, idle: u64) -> Placement {
        let new = placement.to_map - idle;
        let handle = piece(u64::MAX, self.handle_sizes(new).0, self.arena.granule());
        let whole = new.checked_next_multiple_of(handle);
        let more = whole.map_or(0, |whole| whole - new);
        let room = self.most().saturating_sub(self.held());
        let fits = new.saturating_add(more) <= room && more <= placement.spare;
        placement.widened(if fits { more } else { 0 })
    }
}

#[cfg(test)]
mod tests;
