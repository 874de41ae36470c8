//! The core's side of compaction: which memory is mapped, and the books of moved blocks.
//!
//! # Runs of mapped memory
//!
//! Mapping idle handles elsewhere leaves gaps, and no block can lie across a gap. So moving blocks inside runs of
//! mapped memory never makes one hole of several runs. A run whose blocks may all move is mapped again, behind
//! another run: its blocks keep their bytes and get new addresses. Its old mappings become stale.

use std::collections::BTreeMap;

use super::ask;
use super::core::{Core, CoreGuard};
use super::stats::Told;
use super::structure::{Mark, Shared};
use crate::error::{Error, Result, refuse};
use crate::heap::{Epoch, FRESH, Id, State, StreamIndex, UNIT};

/// A block's move: from which offset, to which, and its bytes.
pub(crate) type Way = (u64, u64, u64);

/// Mapped memory between two gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) movable: bool,
    pub(crate) free: u64,
    /// Bytes of the gap behind it.
    pub(crate) gap: u64,
}

impl Run {
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The core for moves: holes that nothing can wait for are held until it is dropped, so that no plan has them.
pub(crate) struct MovesGuard<'l>(pub(crate) CoreGuard<'l>, Vec<Id>);

impl Drop for MovesGuard<'_> {
    fn drop(&mut self) {
        let Self(core, held) = self;
        held.drain(..).for_each(|id| core.let_go(id));
    }
}

impl Shared {
    pub(crate) fn lock_for_moves(&self) -> MovesGuard<'_> {
        let mut core = self.lock_drained();
        let stays = |&id: &Id| !core.may_wait(core.extents.get(id).epoch);
        let held: Vec<Id> = core.extents.holes_from(UNIT).filter(stays).collect();
        for &id in &held {
            let hole = *core.extents.get(id);
            core.extents.hold(id, hole.start, hole.bytes);
        }
        MovesGuard(core, held)
    }
}

impl Core {
    /// (offset, bytes, whether allocated) of every mapped extent, in address order.
    pub(crate) fn mapped_extents(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        self.extents.iter().filter_map(|(_, extent)| {
            let taken = matches!(extent.state, State::Allocated | State::Held);
            let mapped = taken || extent.state == State::Free;
            mapped.then_some((extent.start, extent.bytes, taken))
        })
    }

    /// What [`Core::wait_for_holes`] waits for.
    pub(crate) fn uses_of_holes(&self) -> Vec<Mark> {
        self.questions(self.last_epochs(), |tick| tick)
    }

    pub(crate) fn wait_for_holes(&mut self, slot: StreamIndex) -> Result<()> {
        let waits = self.waits_for(slot, self.last_epochs());
        ask::put(&waits, &mut self.steps.waits)
    }

    /// Books moves that are queued before `epoch`, on a stream that runs behind every hole; they ascend by
    /// destination. Returns the blocks' new extents in the same order.
    pub(crate) fn book_moves(&mut self, moves: &[Way], epoch: Epoch) -> Vec<Id> {
        // The blocks' own streams, by source.
        let mut homes: BTreeMap<_, _> = moves.iter().map(|&(from, ..)| (from, FRESH)).collect();
        let mut at = self.extents.first();
        for (&from, home) in &mut homes {
            at = self.extents.seek(at, from);
            *home = self.extents.get(at).epoch.stream;
            // The hole made here may have merged with the one below.
            at = self.extents.give(at, epoch, |_| true);
        }
        at = self.extents.first();
        let each = moves.iter().map(|&(from, to, bytes)| {
            at = self.extents.seek(at, to);
            at = (self.extents).take_window(at, to, bytes, homes[&from]);
            self.extents.set_movable(at, true);
            at
        });
        each.collect()
    }

    /// Books that free ranges (begin, end), which ascend, were written: they are free behind `epoch`.
    pub(crate) fn book_written(&mut self, ranges: &[(u64, u64)], epoch: Epoch) {
        let mut at = self.extents.first();
        for &(begin, end) in ranges {
            at = self.extents.seek(at, begin);
            at = (self.extents).take_window(at, begin, end - begin, epoch.stream);
            at = self.extents.give(at, epoch, |_| true);
        }
    }

    pub(crate) fn count_moves(&mut self, bytes: u64) {
        self.bytes_moved += bytes;
        self.compactions += 1;
        self.count(Told::Moved(bytes));
    }

    /// All runs in address order; `may_move` says whether the block at an offset may move.
    pub(crate) fn runs(&self, may_move: &dyn Fn(u64) -> bool) -> Vec<Run> {
        let mapped: Vec<_> = self.mapped_extents().collect();
        let each = mapped.chunk_by(|below, above| below.0 + below.1 == above.0);
        let run = |part: &[(u64, u64, bool)]| {
            let (start, bytes) = (part[0].0, part.iter().map(|it| it.1).sum::<u64>());
            Run {
                start,
                end: start + bytes,
                movable: part.iter().all(|&(at, _, taken)| !taken || may_move(at)),
                free: part.iter().filter(|it| !it.2).map(|it| it.1).sum(),
                gap: self.gap_behind(start + bytes),
            }
        };
        each.map(run).collect()
    }

    /// Bytes, in granules, that a request lacks if all free memory is one hole; `None` if they are more than the pool
    /// may make.
    pub(crate) fn lacks(&self, bytes: u64) -> Option<u64> {
        let lacking = bytes.saturating_sub(self.extents.hole_bytes());
        let lacking = lacking.next_multiple_of(self.arena.granule());
        (lacking <= self.room()).then_some(lacking)
    }

    pub(crate) fn gap_behind(&self, end: u64) -> u64 {
        let gap = self.extents.gap_at(end).map(|id| self.extents.get(id));
        (gap.filter(|gap| gap.start == end)).map_or(0, |gap| gap.bytes)
    }

    /// Maps `run` at `to`, in a gap, and books its blocks there behind `epoch`, of a stream that runs behind the
    /// run's holes and all uses of its blocks. Returns the blocks' moves in address order, and their new extents.
    /// After a failure the run is where it was.
    pub(crate) fn carry(
        &mut self,
        run: &Run,
        to: u64,
        epoch: Epoch,
    ) -> Result<(Vec<Way>, Vec<Id>)> {
        let frames: Vec<_> = self.frames_in(run.start, run.end).collect();
        let mapped = frames.last().map_or(run.start, |(_, last)| last.end());
        refuse!(mapped < run.end => "run", "nothing is mapped at {mapped:#x} of {run:?}");
        self.unmap_kept(to, to + run.bytes())?;
        let place = |start: u64| to + (start - run.start);
        for (count, &(id, frame)) in frames.iter().enumerate() {
            if let Err(error) = self.arena.map_again(id, place(frame.start)) {
                for (_, mapped) in &frames[..count] {
                    let again = self.stale_at(place(mapped.start), mapped.bytes);
                    self.retiring.extend(again);
                }
                return Err(error);
            }
        }
        let inside = |it: &(u64, u64, bool)| it.2 && (run.start..run.end).contains(&it.0);
        let blocks = self.mapped_extents().filter(inside);
        let ways: Vec<Way> = blocks.map(|it| (it.0, place(it.0), it.1)).collect();
        self.extents.map_gap(to, to + run.bytes(), epoch);
        let ids = self.book_moves(&ways, epoch);
        // Holes without a block between them become one by this.
        self.book_written(&[(run.start, run.end)], epoch);
        let mut hole = self.extents.seek(self.extents.first(), run.start);
        for (id, frame) in frames {
            self.arena.settle(id, place(frame.start));
            let part = self.extents.hold(hole, frame.start, frame.bytes);
            self.extents.vacate(part);
            self.retiring.push_back(part);
            hole = self.extents.get(part).next;
        }
        Ok((ways, ids))
    }

    /// Books the second mapping at `at`, in a gap, as a stale one that nothing uses.
    pub(super) fn stale_at(&mut self, at: u64, bytes: u64) -> Option<Id> {
        let id = self.extents.reserve(at, at + bytes)?;
        self.extents.vacate(id);
        Some(id)
    }
}

#[cfg(test)]
mod tests;
