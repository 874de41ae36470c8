//! How addresses become holes and gaps: what is mapped, what is mapped elsewhere, and what is used under
//! the other address of a handle mapped twice.

use super::{Extent, Extents, FRESH, Id, NONE, Slot, State};
use crate::seeded::seeded;

impl Extents {
    /// Turns the part [`start`, `end`) of the hole `id` into bytes that are away; gives them.
    pub(crate) fn lend(&mut self, id: Id, start: u64, end: u64) -> Id {
        let id = self.retire(id, start, end);
        let extent = self.get_mut(id);
        extent.state = State::Away;
        extent.slot = FRESH;
        extent.tick = 0;
        id
    }

    /// Cuts bytes that are away in two at offset `at`, unless that is where they start; gives the
    /// upper part.
    pub(crate) fn cut_away(&mut self, id: Id, at: u64) -> Id {
        if self.get(id).start < at {
            return self.cut(id, at);
        }
        id
    }

    /// Turns the block `id` into bytes that are away.
    pub(crate) fn put_away(&mut self, id: Id) -> Id {
        self.taken_bytes -= self.get(id).bytes;
        self.taken -= 1;
        let extent = self.get_mut(id);
        extent.state = State::Away;
        extent.slot = FRESH;
        extent.tick = 0;
        id
    }

    /// Joins bytes that are away with those behind them.
    pub(crate) fn join_away(&mut self, id: Id) {
        self.join(id);
    }

    /// Turns bytes that are away into a retiring extent with the history (`slot`, `tick`).
    pub(crate) fn retire_away(&mut self, id: Id, slot: Slot, tick: u64) {
        let extent = self.get_mut(id);
        extent.state = State::Retiring;
        extent.slot = slot;
        extent.tick = tick;
    }

    /// Turns the part [`start`, `end`) of the gap `id` into a hole with a history; gives it.
    pub(crate) fn map_gap(
        &mut self,
        mut id: Id,
        start: u64,
        end: u64,
        slot: Slot,
        tick: u64,
    ) -> Id {
        if self.get(id).start < start {
            id = self.cut(id, start);
        } else {
            self.gaps.remove(&start);
        }
        if self.get(id).end() > end {
            let rest = self.cut(id, end);
            if !seeded!("gap-behind-a-mapping-lost") {
                self.gaps.insert(end, rest);
            }
        }
        self.stamp = self.stamp.wrapping_add(1);
        let stamp = self.stamp;
        let extent = self.get_mut(id);
        extent.state = State::Hole;
        extent.slot = slot;
        extent.tick = tick;
        extent.stamp = stamp;
        self.file(id);
        id
    }

    /// Turns the part [`start`, `end`) of the hole `id` into a retiring extent with the hole's
    /// history; gives it. What remains of the hole on either side stays a hole.
    pub(crate) fn retire(&mut self, mut id: Id, start: u64, end: u64) -> Id {
        if self.get(id).start < start {
            id = self.split_hole(id, start);
        }
        if self.get(id).end() > end {
            self.split_hole(id, end);
        }
        self.unfile(id);
        self.get_mut(id).state = State::Retiring;
        id
    }

    /// Turns a retiring extent into a gap and merges it with neighbouring gaps; gives the gap.
    pub(crate) fn retired(&mut self, id: Id) -> Id {
        let Extent { prev, next, .. } = *self.get(id);
        let extent = self.get_mut(id);
        extent.state = State::Gap;
        extent.slot = FRESH;
        extent.tick = 0;
        if next != NONE && self.get(next).state == State::Gap && self.get(next).start != self.bound
        {
            let start = self.get(next).start;
            self.gaps.remove(&start);
            self.join(id);
        }
        if prev != NONE && self.get(prev).state == State::Gap && self.get(id).start != self.bound {
            self.join(prev);
            return prev;
        }
        self.gaps.insert(self.get(id).start, id);
        id
    }
}
