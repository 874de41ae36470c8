//! Whether the table of extents and the indexes over it are whole.

use std::collections::HashSet;

use super::{Extents, Id, NONE, State, small_bytes};
use crate::heap::bins::UNIT;
use crate::heap::ensure;
use crate::heap::extent::NIL;

impl Extents {
    /// Every record is an extent of the list or spare, once.
    fn check_records(&self) -> Result<(), String> {
        let listed = self.iter().count();
        let spare: HashSet<Id> = self.spare.iter().copied().collect();
        let twice = spare.len() < self.spare.len();
        ensure(!twice, || "a spare record is spare twice".to_string())?;
        let used = (spare.iter()).find(|&&id| self.get(id).state != State::Unused);
        if let Some(&id) = used {
            return Err(format!("spare record {id} is {:?}", self.get(id)));
        }
        let is_none = !spare.contains(&NIL) && self.get(NIL).state == State::Unused;
        ensure(is_none, || "the record of no extent is one".to_string())?;
        let (spare, all) = (spare.len(), self.table.len() - 1);
        ensure(listed + spare == all, || {
            format!("{listed} extents and {spare} spare records are not the {all} there are")
        })
    }

    /// Whether extents cover the arena in order, each hole is filed once in its slot's index, and sums agree.
    pub(crate) fn check(&self, granule: u64) -> Result<(), String> {
        let mut at = 0;
        let mut prev = NONE;
        let mut taken = 0;
        let mut small = 0;
        let mut holes = vec![(0u64, 0u64); self.indexes.len()];
        for (id, extent) in self.iter() {
            let follows = extent.start == at && extent.bytes != 0 && extent.prev == prev;
            ensure(follows, || {
                format!("extent {id} {extent:?} does not follow {at:#x} (previous {prev})")
            })?;
            let unit = match extent.state {
                State::Unused => return Err(format!("unused record {id} is in the list")),
                State::Unmapped | State::Stale | State::Reserved => granule,
                State::Free | State::Allocated => UNIT,
            };
            let is_even = extent.start % unit == 0 && extent.bytes % unit == 0;
            ensure(is_even, || {
                format!("extent {id} {extent:?} is not on multiples of {unit}")
            })?;
            match extent.state {
                State::Allocated => taken += extent.bytes,
                State::Free => {
                    small += small_bytes(extent.bytes);
                    let sum = &mut holes[extent.slot as usize];
                    *sum = (sum.0 + extent.bytes, sum.1 + 1);
                    let filed = self.indexes[extent.slot as usize].holds(&self.table, id);
                    ensure(filed, || format!("hole {id} {extent:?} is not filed"))?;
                }
                State::Unmapped => {
                    let filed = self.gaps.get(&extent.start) == Some(&id);
                    ensure(filed, || format!("gap {id} {extent:?} is not filed"))?;
                }
                _ => {}
            }
            at = extent.end();
            prev = id;
        }
        self.check_records()?;
        let counted = self.taken;
        ensure(taken == counted, || {
            format!("blocks sum to {taken}, counted {counted}")
        })?;
        let all = holes
            .iter()
            .fold((0, 0), |(bytes, count), of| (bytes + of.0, count + of.1));
        let counted = ((self.hole_sums.1, self.hole_sums.0), self.small_holes);
        ensure((all, small) == counted, || {
            format!("holes sum to {all:?} and {small} small, counted {counted:?}")
        })?;
        for (slot, sum) in holes.iter().enumerate() {
            let filed = self.indexes[slot].check(&self.table)?;
            ensure(*sum == filed, || {
                format!("holes of slot {slot} sum to {sum:?}, filed {filed:?}")
            })?;
        }
        Ok(())
    }
}
