//! How addresses become holes and gaps: what is mapped, and what is mapped elsewhere.

use super::{Epoch, Extent, Extents, FRESH, Id, NONE, State};
use crate::seeded::seeded;

impl Extents {
    /// Cuts the part [`start`, `end`) out of the gap `id`; gives it, which is filed nowhere.
    fn cut_gap(&mut self, mut id: Id, start: u64, end: u64) -> Id {
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
        id
    }

    /// Reserves that part for who maps it; gives it. [`Extents::retired`] makes it a gap again.
    pub(crate) fn reserve(&mut self, id: Id, start: u64, end: u64) -> Id {
        let id = self.cut_gap(id, start, end);
        self.get_mut(id).state = State::Reserved;
        id
    }

    /// Turns that part into a hole with a history; gives it.
    pub(crate) fn map_gap(&mut self, id: Id, start: u64, end: u64, epoch: Epoch) -> Id {
        let id = self.cut_gap(id, start, end);
        let extent = self.get_mut(id);
        extent.state = State::Free;
        (extent.slot, extent.tick) = (epoch.stream, epoch.tick);
        self.file(id);
        id
    }

    /// Turns [`start`, `end`) of the hole `id` into a retiring extent with the hole's history; gives it.
    pub(crate) fn retire(&mut self, id: Id, start: u64, end: u64) -> Id {
        let epoch = self.get(id).epoch();
        let id = self.take_window(id, start, end - start, epoch.stream);
        self.vacate(id, epoch);
        id
    }

    /// Turns the block `id`, whose memory is mapped elsewhere, into a stale extent with a history.
    pub(crate) fn vacate(&mut self, id: Id, epoch: Epoch) {
        let extent = self.get_mut(id);
        extent.state = State::Stale;
        (extent.slot, extent.tick) = (epoch.stream, epoch.tick);
        self.taken -= self.get(id).bytes;
        self.changes += 1;
    }

    /// Turns a retiring or a reserved extent into a gap and merges it with neighbouring gaps; gives the gap.
    pub(crate) fn retired(&mut self, id: Id) -> Id {
        let Extent { prev, next, .. } = *self.get(id);
        let extent = self.get_mut(id);
        extent.state = State::Unmapped;
        (extent.slot, extent.tick) = (FRESH, 0);
        if next != NONE && self.get(next).state == State::Unmapped {
            let start = self.get(next).start;
            self.gaps.remove(&start);
            self.join(id);
        }
        if prev != NONE && self.get(prev).state == State::Unmapped {
            self.join(prev);
            return prev;
        }
        self.gaps.insert(self.get(id).start, id);
        id
    }
}
