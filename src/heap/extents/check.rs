//! Whether the table of extents and the indexes over it are whole.

use std::collections::HashSet;

use super::{Extents, Id, NONE, State, small_bytes};
use crate::heap::bins::UNIT;
use crate::heap::extent::NIL;

impl Extents {
    /// Every record is an extent of the list or spare, once.
    fn check_records(&self) -> Result<(), String> {
        let listed = self.iter().count();
        let spare: HashSet<Id> = self.spare.iter().copied().collect();
        if spare.len() < self.spare.len() {
            return Err("a spare record is spare twice".to_string());
        }
        if let Some(id) = (spare.iter()).find(|&&id| self.get(id).state != State::Unused) {
            return Err(format!("spare record {id} is {:?}", self.get(*id)));
        }
        if spare.contains(&NIL) || self.get(NIL).state != State::Unused {
            return Err("the record of no extent is one".to_string());
        }
        if listed + spare.len() + 1 == self.table.len() {
            return Ok(());
        }
        Err(format!(
            "{listed} extents and {} spare records are not the {} there are",
            spare.len(),
            self.table.len() - 1
        ))
    }

    /// Whether the table is whole: extents cover the arena in order, links agree, every hole is
    /// filed once in its slot's index, sums agree.
    pub(crate) fn check(&self, granule: u64) -> Result<(), String> {
        let mut at = 0;
        let mut prev = NONE;
        let mut taken = (0, 0);
        let mut small = 0;
        let mut holes = vec![(0u64, 0u64); self.indexes.len()];
        for (id, extent) in self.iter() {
            if extent.start != at || extent.bytes == 0 || extent.prev != prev {
                return Err(format!(
                    "extent {id} {extent:?} does not follow {at:#x} (previous {prev})"
                ));
            }
            let unit = match extent.state {
                State::Unused => return Err(format!("unused record {id} is in the list")),
                State::Unmapped | State::Stale | State::Reserved => granule,
                State::Free | State::Allocated => UNIT,
            };
            if extent.start % unit != 0 || extent.bytes % unit != 0 {
                return Err(format!(
                    "extent {id} {extent:?} is not on multiples of {unit}"
                ));
            }
            match extent.state {
                State::Allocated => taken = (taken.0 + extent.bytes, taken.1 + 1),
                State::Free => {
                    small += small_bytes(extent.bytes);
                    let sum = &mut holes[extent.slot as usize];
                    *sum = (sum.0 + extent.bytes, sum.1 + 1);
                    let index = self.index(extent.slot, self.zone_of(extent.start));
                    if !index.holds(&self.table, id) {
                        return Err(format!("hole {id} {extent:?} is not filed"));
                    }
                }
                State::Unmapped if self.gaps.get(&extent.start) != Some(&id) => {
                    return Err(format!("gap {id} {extent:?} is not filed"));
                }
                _ => {}
            }
            at = extent.end();
            prev = id;
        }
        self.check_records()?;
        if taken != self.taken() {
            return Err(format!(
                "blocks sum to {taken:?}, counted {:?}",
                self.taken()
            ));
        }
        let all = holes
            .iter()
            .fold((0, 0), |(bytes, count), of| (bytes + of.0, count + of.1));
        if (all.1, all.0) != self.hole_sums || small != self.small_holes {
            return Err(format!(
                "holes sum to {all:?} and {small} small, counted {:?} and {}",
                self.hole_sums, self.small_holes
            ));
        }
        for (slot, sum) in holes.iter().enumerate() {
            let mut filed = (0, 0);
            for index in &self.indexes[slot] {
                let (bytes, holes) = index.check(&self.table)?;
                filed = (filed.0 + bytes, filed.1 + holes);
            }
            if *sum != filed {
                return Err(format!(
                    "holes of slot {slot} sum to {sum:?}, filed {filed:?}"
                ));
            }
        }
        Ok(())
    }
}
