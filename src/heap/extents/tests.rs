//! What becomes of holes' histories when holes are merged.

mod model;
mod wrong;

use super::{Extent, Extents, Id, State};
use crate::heap::Epoch;

impl Extents {
    /// The extent, for tests that make books wrong.
    pub(crate) fn spoil(&mut self, id: Id) -> &mut Extent {
        self.get_mut(id)
    }

    /// Turns [`start`, `end`) of the hole `id` into a stale extent with the hole's history and returns it.
    pub(crate) fn retire(&mut self, id: Id, start: u64, end: u64) -> Id {
        let id = self.take_window(id, start, end - start, self.get(id).epoch.stream);
        self.vacate(id);
        id
    }

    pub(crate) fn taken(&self) -> u64 {
        let taken = self.iter().filter(|(_, it)| it.state == State::Allocated);
        taken.map(|(_, it)| it.bytes).sum()
    }
}

/// A done hole of another stream parts two of one stream, of which the upper is still in use.
#[test]
fn a_hole_merged_over_a_done_one_keeps_the_later_history_of_its_stream() {
    let mut extents = Extents::new(2 << 20);
    let (one, two) = (extents.add_slot(), extents.add_slot());
    let mut hole = |start: u64, slot, tick| {
        let hole = extents.map_gap(start, start + 1024, Epoch::new(slot, tick));
        hole.unwrap()
    };
    let lowest = hole(0, one, 5);
    hole(1024, two, 3);
    hole(2048, one, 9);
    extents.merge_up(lowest, |extent| extent.epoch.tick < 9);
    let merged = extents.get(lowest);
    assert_eq!(
        (merged.bytes, merged.epoch.stream, merged.epoch.tick),
        (3072, one, 9)
    );
}
