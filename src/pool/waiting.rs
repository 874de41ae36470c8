//! Taking memory that other streams may still use, behind a wait for them.

use super::core::Core;
use super::stats::Told;
use crate::error::Result;
use crate::heap::placement::{self, Placement};
use crate::heap::{Epoch, Grant, NONE, StreamIndex, Zone};
use crate::seeded::seeded;

impl Core {
    /// The smallest hole, else run of holes, of any streams if `pending`, else of those that the
    /// stream runs behind.
    pub(super) fn find_holes(
        &self,
        slot: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Option<Placement> {
        let indexes = (1..self.extents.slots())
            .flat_map(|s| [Zone::Low, Zone::High].map(|end| self.extents.index(s, end)));
        let holes = indexes.filter_map(|index| index.best(bytes));
        let smallest = holes.min_by_key(|&id| self.extents.get(id).bytes);
        if let Some(id) = smallest.filter(|_| pending) {
            let start = self.extents.get(id).start;
            return Some(Placement::of_free(id, start, bytes));
        }
        // Holes of one stream and holes ready for all are merged when they are made.
        if self.only_stream() || self.extents.hole_bytes() < bytes {
            return None;
        }
        placement::smallest_run(&self.extents, bytes, self.usable(slot, pending))
    }

    /// Takes what [`Core::find_holes`] finds, behind a wait for it. The rest of a hole keeps its own
    /// history, which no longer costs this stream a wait.
    pub(super) fn take_holes(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Result<Option<Grant>> {
        let Some(placement) = self.find_holes(slot, bytes, pending) else {
            return Ok(None);
        };
        for epoch in self.epochs_of(&placement) {
            self.wait_for(slot, epoch)?;
        }
        self.count(Told::StreamWait(bytes));
        let Placement { first, start, .. } = placement;
        let id = self.extents.take_window(first, start, bytes, slot);
        self.merge_behind(id);
        Ok(Some(self.granted(id)))
    }

    /// The histories of the holes that a placement without a gap takes.
    pub(super) fn epochs_of(&self, placement: &Placement) -> Vec<Epoch> {
        let end = placement.start + placement.bytes;
        let mut epochs = Vec::new();
        if seeded!("taken-without-a-wait") {
            return epochs;
        }
        let mut at = placement.first;
        while at != NONE && self.extents.get(at).start < end {
            epochs.push(self.extents.get(at).epoch());
            at = match seeded!("window-waits-for-its-first-hole-only") {
                true => NONE,
                false => self.extents.get(at).next,
            };
        }
        epochs
    }
}
