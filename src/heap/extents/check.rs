//! Checks of the table of extents and its indexes.

use std::collections::BTreeMap;

use super::{Extents, Id, State};
use crate::heap::bins::UNIT;
use crate::heap::ensure;
use crate::heap::extent::NIL;

impl Extents {
    /// Checks that every record is in the list or spare, once.
    fn check_records(&self) -> Result<(), String> {
        let listed = self.iter().map(|(id, _)| id);
        let mut records: Vec<Id> = listed.chain(self.spare.iter().copied()).collect();
        records.sort_unstable();
        ensure!(records.iter().copied().eq(1..self.table.len() as Id) =>
            "extents and spare records are {records:?}, not each record once");
        let mut unused = [NIL].iter().chain(&self.spare);
        ensure!(unused.all(|&id| self.get(id).state == State::Unused) =>
            "of no extent and {:?} one is in use", self.spare);
        Ok(())
    }

    /// Checks that extents cover the arena in order, each hole is filed once in its slot's index, and sums agree.
    /// Returns the allocated bytes.
    pub(crate) fn check(&self, granule: u64) -> Result<u64, String> {
        let (mut at, mut prev, mut taken) = (0, NIL, 0);
        let (mut holes, mut gaps) = (Vec::new(), BTreeMap::new());
        for (id, extent) in self.iter() {
            let follows = extent.start == at && extent.bytes != 0 && extent.prev == prev;
            ensure!(follows => "extent {id} {extent:?} does not follow {at:#x} (previous {prev})");
            let unit = match extent.state {
                State::Unused => return Err(format!("unused record {id} is in the list")),
                State::Unmapped | State::Stale | State::Reserved => granule,
                State::Free | State::Allocated => UNIT,
            };
            let is_even = extent.start % unit == 0 && extent.bytes % unit == 0;
            ensure!(is_even => "extent {id} {extent:?} is not on multiples of {unit}");
            match extent.state {
                State::Allocated => taken += extent.bytes,
                State::Free => holes.push((extent.epoch.stream, id)),
                State::Unmapped => _ = gaps.insert(extent.start, id),
                _ => {}
            }
            (at, prev) = (extent.end(), id);
        }
        self.check_records()?;
        let mut filed = Vec::new();
        for (slot, index) in (0..).zip(&self.indexes) {
            let ids = index.check(&self.table)?.into_iter();
            filed.extend(ids.map(|id| (slot, id)));
        }
        holes.sort_unstable();
        filed.sort_unstable();
        let bytes = holes.iter().map(|&(_, id)| self.get(id).bytes).sum();
        let found = (holes, gaps, bytes);
        let booked = (filed, self.gaps.clone(), self.hole_bytes());
        ensure!(found == booked && self.holes() == found.0.len() as u64 =>
            "holes, gaps and bytes in holes: {found:?}, booked {booked:?}");
        Ok(taken)
    }
}
