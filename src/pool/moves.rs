//! What compaction asks of the core: what is mapped where, and where blocks are once they are moved.

use super::core::Core;
use super::stats::Told;
use crate::error::Result;
use crate::heap::{Epoch, Id, State, StreamIndex};
use crate::seeded::seeded;

/// The way of a block from one offset to another, and its bytes.
pub(crate) type Way = (u64, u64, u64);

impl Core {
    /// (offset, bytes, whether taken) of every mapped extent, in address order.
    pub(crate) fn mapped_extents(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        self.extents.iter().filter_map(|(_, extent)| {
            let taken = extent.state == State::Allocated;
            let mapped = taken || extent.state == State::Free;
            mapped.then_some((extent.start, extent.bytes, taken))
        })
    }

    pub(crate) fn wait_for_holes(&mut self, slot: StreamIndex) -> Result<()> {
        let mut epochs = self.last_epochs().into_iter();
        epochs.try_for_each(|it| self.wait_for(slot, it))
    }

    /// Books moves, ascending by where they go, that are queued before `epoch`, on a stream that runs behind every
    /// hole; gives the blocks' new extents in the same order.
    pub(crate) fn book_moves(&mut self, moves: &[Way], mut epoch: Epoch) -> Vec<Id> {
        epoch.tick *= u64::from(!seeded!("sources-free-before-the-move"));
        let mut sources: Vec<u64> = moves.iter().map(|&(from, _, _)| from).collect();
        sources.sort_unstable();
        let mut at = self.extents.first();
        for from in sources {
            at = self.extents.seek(at, from);
            // A hole made here may have joined the one below it, so the walk goes on from there.
            at = self.extents.give(at, epoch, |_| true);
        }
        self.take_moved(moves, epoch.stream)
    }

    /// Takes the blocks of these moves, which ascend, where they are now; gives their extents.
    pub(super) fn take_moved(&mut self, moves: &[Way], slot: StreamIndex) -> Vec<Id> {
        let mut at = self.extents.first();
        let each = moves.iter().map(|&(_, to, bytes)| {
            at = self.extents.seek(at, to);
            at = self.extents.take_window(at, to, bytes, slot);
            self.extents.set_movable(at, true);
            at
        });
        each.collect()
    }

    /// Books that the ranges (begin, end), which are free and ascend, were written: they are free behind `epoch`.
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
}
