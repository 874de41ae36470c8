//! Holes that become one, and blocks that are taken across several.

use super::{Epoch, Extent, Extents, Id, NONE, State, StreamIndex};
use crate::seeded::seeded;

impl Extents {
    /// Merges the hole `id` with its upper neighbours as far as they are holes of one slot, or `covered` accepts
    /// both: done, so that either history may stand for both.
    pub(crate) fn merge_up(&mut self, id: Id, covered: impl Fn(&Extent) -> bool) {
        loop {
            let extent = *self.get(id);
            if extent.next == NONE || extent.state != State::Free {
                return;
            }
            let next = *self.get(extent.next);
            let same = next.slot == extent.slot;
            let both = covered(&extent) && (covered(&next) || seeded!("merge-asks-one-side-only"));
            if next.state != State::Free || !(same || both) {
                return;
            }
            let theirs = next.tick * u64::from(same && !seeded!("join-forgets-a-history"));
            self.merge_as(id, Epoch::new(extent.slot, extent.tick.max(theirs)));
        }
    }

    /// Merges the hole `id` with its upper neighbour, a hole too, under a history later than both.
    pub(crate) fn merge_as(&mut self, id: Id, epoch: Epoch) {
        let next = self.get(id).next;
        self.unfile(id);
        self.unfile(next);
        self.join(id);
        let extent = self.get_mut(id);
        (extent.slot, extent.tick) = (epoch.stream, epoch.tick);
        self.file(id);
    }

    /// Cuts the hole `id` in two at offset `at` inside it, both with its history; gives the upper.
    fn split_hole(&mut self, id: Id, at: u64) -> Id {
        self.unfile(id);
        let upper = self.cut(id, at);
        self.file(id);
        self.file(upper);
        upper
    }

    /// Turns [`start`, `start + bytes`), which lies in consecutive holes from `id` on, into one block of `slot`,
    /// whose stream runs behind them all; gives it. What is left over on either side stays a hole.
    pub(crate) fn take_window(
        &mut self,
        mut id: Id,
        start: u64,
        bytes: u64,
        slot: StreamIndex,
    ) -> Id {
        let end = start + bytes;
        if self.get(id).start < start {
            id = self.split_hole(id, start);
        }
        self.unfile(id);
        while self.get(id).end() < end {
            let next = self.get(id).next;
            if self.get(next).end() > end {
                self.split_hole(next, end);
            }
            self.unfile(next);
            self.join(id);
        }
        if self.get(id).end() > end {
            let rest = self.cut(id, end);
            self.file(rest);
        }
        self.mark_taken(id, slot);
        id
    }
}
