//! Runs of mapped memory, and bringing them together without copying a byte.
//!
//! Stealing idle handles leaves gaps, and a block cannot lie across one: memory that is free in
//! several runs is not one hole however the blocks are moved inside them. A run whose blocks may all
//! move is mapped a second time, behind another run: its blocks have new addresses and their old
//! bytes. The old mappings retire as those of stolen handles do.

use super::core::Core;
use crate::arena::Kept;
use crate::error::{Error, Result};
use crate::heap::{Epoch, Id, NONE, State};
use crate::seeded::seeded;

/// Mapped memory between two places where nothing is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whether every block in it may move.
    pub(crate) movable: bool,
    /// Bytes of its holes.
    pub(crate) free: u64,
    /// Bytes behind it where nothing is mapped, nor retiring.
    pub(crate) gap: u64,
}

impl Run {
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// A block that came along with its run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
    pub(crate) id: Id,
}

impl Core {
    /// All runs in address order; `may_move` is asked about each block.
    pub(crate) fn runs(&self, may_move: &dyn Fn(u64) -> bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (_, extent) in self.extents.iter() {
            let (start, is_hole) = (extent.start, extent.state == State::Free);
            if is_hole || extent.state == State::Allocated {
                if runs.last().is_none_or(|run| run.end != start) {
                    runs.push(Run {
                        start,
                        end: start,
                        movable: true,
                        free: 0,
                        gap: 0,
                    });
                }
                if let Some(run) = runs.last_mut() {
                    let movable = is_hole || may_move(start);
                    run.movable = movable && (run.movable || seeded!("run-moves-if-its-last-does"));
                    run.free += if is_hole { extent.bytes } else { 0 };
                    run.end = extent.end();
                }
            } else if let Some(run) = runs.last_mut().filter(|run| run.end == start)
                && extent.state == State::Unmapped
            {
                run.gap = extent.bytes;
            }
        }
        runs
    }

    /// Bytes that a request of `bytes` lacks if all free memory were one hole, in granules; `None`
    /// if the pool may not grow by so many.
    pub(crate) fn lacks(&self, bytes: u64) -> Option<u64> {
        let lacking = bytes.saturating_sub(self.extents.hole_bytes());
        let lacking = lacking.next_multiple_of(self.arena.granule());
        (self.reserved().saturating_add(lacking) <= self.limit()).then_some(lacking)
    }

    /// Bytes of the gap that begins at `end`.
    pub(crate) fn gap_behind(&self, end: u64) -> u64 {
        let gap = self.extents.gap_at(end).map(|id| self.extents.get(id));
        gap.filter(|gap| gap.start == end)
            .map_or(0, |gap| gap.bytes)
    }

    /// Bytes of the frames that lie wholly in [`from`, `to`), which is mapped throughout: all but its parts of the
    /// first and the last.
    pub(crate) fn whole_frames(&self, from: u64, to: u64) -> u64 {
        let frame = |at| {
            let (_, frame) = self.arena.frame_at(at)?;
            let (start, bytes) = self.arena.extent_of(&frame);
            Some((start, start + bytes))
        };
        let first = frame(from).filter(|&(start, _)| start < from);
        let last = frame(to.saturating_sub(1)).filter(|&(_, end)| end > to);
        let begin = first.map_or(from, |(_, end)| end);
        last.map_or(to, |(start, _)| start).saturating_sub(begin)
    }

    /// Maps `run` at `to`, in a gap, and books its blocks there behind `epoch`, of the stream that moves them;
    /// gives them in address order.
    ///
    /// The stream runs behind the history of every hole and the uses of every block of the run. A
    /// failure leaves the run where it is.
    pub(crate) fn carry(&mut self, run: &Run, to: u64, epoch: Epoch) -> Result<Vec<Carried>> {
        let frames: Vec<_> = self.frames_in(run.start, run.end).collect();
        let mapped = frames
            .last()
            .map_or(run.start, |&(_, start, bytes)| start + bytes);
        if mapped < run.end {
            let why = format!("nothing is mapped at {mapped:#x} of {run:?}");
            return Err(Error::invalid("run", why));
        }
        self.clear_now(to, to + run.bytes())?;
        let place = |start: u64| to + (start - run.start);
        for (count, &(frame, start, _)) in frames.iter().enumerate() {
            if let Err(error) = self.arena.map_again(frame, place(start)) {
                for &(_, start, bytes) in &frames[..count] {
                    self.retire_again(place(start), bytes);
                }
                return Err(error);
            }
        }
        let (mut hole, blocks) = self.vacate(run, epoch);
        for (frame, start, bytes) in frames {
            self.arena.settle(frame, place(start));
            let part = self.extents.retire(hole, start, start + bytes);
            self.retiring.push_back(part);
            hole = self.extents.get(part).next;
        }
        let Some(hole) = self.map(to, run.bytes(), epoch) else {
            return Ok(Vec::new());
        };
        let moved = blocks.iter().map(|&(from, bytes)| (place(from), bytes));
        let ids = self.take_moved(hole, moved, epoch.stream);
        let carried = blocks.iter().zip(ids).map(|(&(from, bytes), id)| Carried {
            from,
            to: place(from),
            bytes,
            id,
        });
        Ok(carried.collect())
    }

    /// Turns the run into one hole with a history; gives it, and the (offset, bytes) of the blocks that were in it.
    fn vacate(&mut self, run: &Run, epoch: Epoch) -> (Id, Vec<(u64, u64)>) {
        let mut blocks = Vec::new();
        let mut at = self.extents.seek(self.extents.first(), run.start);
        loop {
            let extent = *self.extents.get(at);
            if extent.state == State::Allocated {
                blocks.push((extent.start, extent.bytes));
                at = self.extents.give(at, epoch, |_| true);
            }
            let extent = *self.extents.get(at);
            if extent.end() >= run.end || extent.next == NONE {
                break;
            }
            at = extent.next;
        }
        // Holes that no block lay between.
        let hole = self.extents.seek(self.extents.first(), run.start);
        while self.extents.get(hole).end() < run.end {
            self.extents.merge_as(hole, epoch);
        }
        (hole, blocks)
    }

    /// Takes down the kept mappings in [`from`, `to`).
    fn clear_now(&mut self, from: u64, to: u64) -> Result<()> {
        let in_the_way: Vec<Kept> = self.arena.kept_in(from, to).collect();
        for kept in in_the_way {
            self.arena.site().unmap(kept.start, kept.bytes)?;
            self.arena.stale_unmapped(kept.start);
        }
        Ok(())
    }

    /// Lets a second mapping go that nothing was told of.
    pub(super) fn retire_again(&mut self, at: u64, bytes: u64) {
        let part = self.stale_at(at, bytes);
        self.retiring.extend(part);
    }

    /// Books the mapping at `at`, in a gap, as an old one that nothing uses.
    pub(super) fn stale_at(&mut self, at: u64, bytes: u64) -> Option<Id> {
        let hole = self.map(at, bytes, Epoch::PAST)?;
        Some(self.extents.retire(hole, at, at + bytes))
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
