//! The checker itself: combines order, places and uses.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::order::{Op, Order};
use super::places::{Mapping, Part, Places};
use super::report::{Fault, Party, Report};
use super::shadow::{Shadow, Use};
use crate::device::{Access, AccessKind, Addr};

/// Most reports kept; further ones are only counted.
const KEPT: usize = 100;

/// Most pairs remembered to avoid repeated reports. Pairs of operations that are long done do not
/// recur.
const MANY: usize = 1 << 16;

/// The checker's state; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) order: Order,
    pub(super) places: Places,
    shadow: Shadow,
    reports: Vec<Report>,
    /// The last pairs reported, so that each is reported once.
    known: HashSet<(Fault, u64, u64)>,
    found: u64,
}

/// A change of ownership of memory by a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Given,
    TakenBack,
}

impl Books {
    /// The reports kept, and the number of all reports.
    pub(super) fn reports(&self) -> (Vec<Report>, u64) {
        (self.reports.clone(), self.found)
    }

    pub(super) fn clear(&mut self) {
        self.reports.clear();
        self.known.clear();
        self.found = 0;
    }

    fn party(&self, op: &Op, kind: AccessKind) -> Party {
        Party {
            what: op.what.to_string(),
            kind,
            stream: op.raw,
            stream_name: self.order.name(op.stream).map(str::to_owned),
            number: op.number,
        }
    }

    fn report(
        &mut self,
        fault: Fault,
        range: Range<Addr>,
        first: Option<&Use>,
        (op, kind): (&Op, AccessKind),
    ) {
        let number = first.map_or(0, |first| first.op.number);
        if self.known.len() >= MANY {
            self.known.clear();
        }
        if !self.known.insert((fault, number, op.number)) {
            return;
        }
        self.found += 1;
        if self.reports.len() >= KEPT {
            return;
        }
        let mut first = first.map(|first| self.party(&first.op, first.kind));
        let mut second = self.party(op, kind);
        if let Some(first) = first.as_mut().filter(|first| first.number > second.number) {
            std::mem::swap(first, &mut second);
        }
        self.reports.push(Report {
            fault,
            range,
            first,
            second,
        });
    }

    /// Records the ranges that an operation uses, and checks them.
    pub(super) fn uses(&mut self, op: &Arc<Op>, accesses: &[Access]) {
        for access in accesses {
            let range = access.range.clone();
            if range.is_empty() {
                continue;
            }
            self.check_owner(op, access);
            self.touch(range, &Use::of(op, access.kind));
        }
    }

    /// Checks that the bytes belong to a live block, as far as the order before `op` shows. While a pool sleeps
    /// only its copies use its memory, and they may copy a block that was just dropped.
    fn check_owner(&mut self, op: &Arc<Op>, access: &Access) {
        if self.places.is_asleep(access.range.start) {
            return;
        }
        let (owners, nobody) = self.places.owners(access.range.clone());
        let freed = owners
            .into_iter()
            .find(|(_, owner)| !owner.live && owner.op.is_before(op));
        let freed = freed.map(|(range, owner)| (range, Arc::clone(&owner.op)));
        if let Some((range, free)) = freed {
            let free = Use::change(&free);
            self.report(Fault::UseAfterFree, range, Some(&free), (op, access.kind));
        }
        if nobody {
            self.report(
                Fault::NoBlock,
                access.range.clone(),
                None,
                (op, access.kind),
            );
        }
    }

    /// Compares a use with earlier ones, and records it. A change of ownership counts as a write.
    fn touch(&mut self, range: Range<Addr>, new: &Use) {
        let (op, kind) = (&new.op, new.kind);
        let mut races = Vec::new();
        for part in (self.places).parts(range.clone(), (!new.is_change).then_some(op)) {
            match part {
                Part::Mapped(bytes) => self.shadow.touch(bytes, new, &mut races),
                Part::Bare(bare) => self.report(Fault::NotMapped, bare, None, (op, kind)),
            }
        }
        for known in races {
            self.report(Fault::Race, range.clone(), Some(&known), (op, kind));
        }
    }

    /// Records that the ownership of bytes changes in the order of a stream. The previous and the next
    /// owner's uses must be ordered with this, as with a write. Not while a pool sleeps: see [`Books::sleep`].
    pub(super) fn change(&mut self, op: &Arc<Op>, change: Change, range: Range<Addr>) {
        let (owners, _) = self.places.owners(range.clone());
        let held: u64 = owners
            .iter()
            .filter(|(_, owner)| owner.live)
            .map(|(part, _)| part.end - part.start)
            .sum();
        let last = owners.last().map(|(_, owner)| Use::change(&owner.op));
        let whole = range.end - range.start;
        let wrong = match change {
            Change::Given => (held > 0).then_some(Fault::GivenTwice),
            Change::TakenBack => (held < whole).then_some(Fault::FreedTwice),
        };
        if let Some(fault) = wrong {
            let party = (&**op, AccessKind::Write);
            self.report(fault, range.clone(), last.as_ref(), party);
        }
        if !self.places.is_asleep(range.start) {
            self.touch(range.clone(), &Use::change(op));
        }
        self.places.own(range, Some((change == Change::Given, op)));
    }

    /// Records that the pool whose addresses begin here falls asleep or wakes. The host waits for all work on its memory
    /// before it sleeps, and for the copies before anyone has the memory again. So the uses must be ordered with each
    /// other, but blocks may come and go beside the copies.
    pub(super) fn sleep(&mut self, addr: Addr, asleep: bool) {
        for part in self.places.sleep(addr, asleep) {
            if let Part::Mapped(bytes) = part {
                self.shadow.forget_changes(bytes);
            }
        }
    }

    /// Records that a mapping is about to be removed, and takes it out.
    pub(super) fn unmap(&mut self, addr: Addr, bytes: u64) -> Option<Mapping> {
        let pending: Vec<Arc<Op>> = self
            .places
            .uses(addr)
            .iter()
            .filter(|op| !self.order.is_done(op))
            .cloned()
            .collect();
        for op in pending {
            let party = (&*op, AccessKind::Write);
            self.report(Fault::UnmapInUse, addr..addr + bytes, None, party);
        }
        self.places.unmap(addr)
    }

    /// Forgets the uses of bytes that are freed.
    pub(super) fn forget(&mut self, gone: Option<Range<u64>>) {
        if let Some(gone) = gone {
            self.shadow.forget(gone);
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RawStream;

    #[test]
    fn a_program_that_races_for_ever_takes_no_more_and_more_memory() {
        const RACES: u64 = 300_000;
        let (mut books, streams) = (Books::default(), [1, 2].map(RawStream));
        streams.iter().for_each(|&raw| books.order.add(raw));
        books.places.reserve(0, 10);
        books.places.create(crate::device::Phys(1), 10);
        books.places.map(0, 10, crate::device::Phys(1));
        for at in 0..=RACES as usize {
            let op = books.order.queue(at % 2, streams[at % 2], "work".into());
            books.uses(&op, &[Access::write(0, 10)]);
        }
        let (kept, found) = books.reports();
        assert_eq!((kept.len(), found), (KEPT, RACES));
        assert!(books.known.len() <= MANY, "{}", books.known.len());
    }
}
