//! Keeps idle handles whole in a pool that fragments made outgrow its slack.
//!
//! A block in a hole breaks each idle handle that it lies in: the rest of that handle serves small requests alone, and
//! can be mapped nowhere else. The best fit does not look at that. Nearly always a pool has idle handles enough. One
//! that holds more than its peak and the slack has not: there a request takes the end of a hole that breaks the fewest
//! bytes of them, or has idle handles mapped elsewhere if that breaks less than half of these.

use super::core::Core;
use super::job::Job;
use super::mapping::{Terms, total};
use super::tuning::HOLES_SPARED;
use crate::heap::placement::{Placement, cheapest, windows};
use crate::heap::{Extent, FRESH, Grant, Id, StreamIndex};

/// The end of a hole, and the bytes of idle handles that a block there breaks.
#[derive(Clone, Copy)]
pub(super) struct End {
    hole: Id,
    start: u64,
    broken: u64,
}

impl Core {
    /// Whether a block in the best fit would break an idle handle, in a pool that is to spare these.
    pub(super) fn spares(&self, slot: StreamIndex, bytes: u64) -> bool {
        // A smaller hole has no idle handle, and needs no look at its frames.
        let may_break = |hole: &Id| self.extents.get(*hole).bytes >= self.arena.granule();
        let breaks = |hole| self.ends(hole, bytes)[0].broken > 0;
        let hole = || self.ready(slot, bytes).filter(may_break);
        self.has_outgrown() && hole().is_some_and(breaks)
    }

    /// Whether a pool of one stream holds more than its peak, the slack, and a handle of a GPU's pool. Holes of
    /// several streams may merge, which matters more.
    fn has_outgrown(&self) -> bool {
        if !self.only_stream() {
            return false;
        }
        let (held, peak) = (self.held(), self.peak_taken);
        let slack = self.pace.slack(peak, self.most()).max(self.arena.granule());
        let over = held.saturating_sub(peak).saturating_sub(slack);
        held > self.config.preallocate && over > self.handle_sizes(0).0
    }

    /// The ends of a hole.
    fn ends(&self, hole: Id, bytes: u64) -> [End; 2] {
        let free = self.extents.get(hole);
        [free.start, free.end() - bytes].map(|start| End {
            hole,
            start,
            broken: self.broken((free.start, free.end()), start, start + bytes),
        })
    }

    /// The end that breaks the fewest bytes, of the smallest holes of at least `bytes`.
    pub(super) fn sparing_end(&self, slot: StreamIndex, bytes: u64) -> Option<End> {
        let holes = |owner| self.extents.holes_of(owner, bytes).take(HOLES_SPARED);
        let holes = [slot, FRESH].into_iter().flat_map(holes);
        let ends = holes.flat_map(|hole| self.ends(hole, bytes));
        ends.min_by_key(|end| (end.broken, self.extents.get(end.hole).bytes))
    }

    /// Begins to map idle handles for `bytes`, if that breaks less than half of what a block at `end` would.
    pub(super) fn begin_sparing(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
        terms: Terms,
        end: End,
    ) -> Option<Job> {
        if end.broken == 0 {
            return None;
        }
        // Far cheaper than a plan.
        let usable = |hole: &Extent| self.is_behind(slot, hole.epoch);
        let window = cheapest(windows(&self.extents, bytes, self.arena.granule(), usable))?;
        if (window.to_map + self.broken_by(&window)) * 2 > end.broken {
            return None;
        }
        let plan = self.plan(slot, bytes, terms)?;
        let has_all = total(&plan.idle) >= plan.placement.to_map;
        has_all.then(|| self.begin_mapping(slot, plan.placement, &plan.idle))?
    }

    pub(super) fn take_end(&mut self, slot: StreamIndex, bytes: u64, end: End) -> Grant {
        self.count_taken(slot, bytes, self.extents.get(end.hole).epoch);
        let id = (self.extents).take_window(end.hole, end.start, bytes, slot);
        let offset = end.start;
        Grant { id, offset }
    }

    /// Bytes of handles that lie in `free` memory, and that a block from `start` to `end` breaks.
    fn broken(&self, free: (u64, u64), start: u64, end: u64) -> u64 {
        let frames = self.frames_in(start, end).map(|(_, frame)| frame);
        let idle = frames.filter(|it| it.start >= free.0 && it.end() <= free.1);
        idle.map(|it| it.bytes).sum()
    }

    /// The same of a window's parts in holes.
    fn broken_by(&self, window: &Placement) -> u64 {
        let last = self.extents.seek(window.first, window.end() - 1);
        let [first, last] = [window.first, last].map(|id| self.extents.get(id));
        let free = (first.start, last.end());
        let below = self.broken(free, window.start, window.map_from);
        below + self.broken(free, window.map_to(), window.end())
    }
}

#[cfg(test)]
mod tests;
