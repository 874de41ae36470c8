//! The checker itself: order, places and uses brought together.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::order::{Op, Order};
use super::places::{Part, Places};
use super::report::{Fault, Party, Report};
use super::shadow::{Shadow, Use};
use crate::device::{Access, AccessKind, Addr};

/// Reports kept in full; more are counted.
const KEPT: usize = 100;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) order: Order,
    pub(super) places: Places,
    shadow: Shadow,
    reports: Vec<Report>,
    /// Pairs reported, so that each is reported once.
    known: HashSet<(Fault, u64, u64)>,
}

/// What an operation that is not a read or write of memory does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Given,
    TakenBack,
}

impl Books {
    /// The reports kept, and how many there were in all.
    pub(super) fn reports(&self) -> (Vec<Report>, u64) {
        (self.reports.clone(), self.known.len() as u64)
    }

    pub(super) fn clear(&mut self) {
        self.reports.clear();
        self.known.clear();
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
        if !self.known.insert((fault, number, op.number)) || self.reports.len() >= KEPT {
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

    /// Takes in what an operation uses.
    pub(super) fn uses(&mut self, op: &Arc<Op>, accesses: &[Access]) {
        for access in accesses {
            let range = access.range.clone();
            if range.is_empty() {
                continue;
            }
            self.check_owner(op, access);
            self.touch(range, op, access.kind, None);
        }
    }

    /// Whether the bytes are a block's, as far as `op` goes.
    fn check_owner(&mut self, op: &Arc<Op>, access: &Access) {
        let (owners, nobody) = self.places.owners(access.range.clone());
        let freed = owners
            .into_iter()
            .find(|(_, owner)| !owner.live && owner.op.is_before(op));
        let freed = freed.map(|(range, owner)| (range, Arc::clone(&owner.op)));
        if let Some((range, free)) = freed {
            let free = Use {
                op: free,
                kind: AccessKind::Write,
            };
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

    /// Compares a use with those before it, and notes it; a change of owner is as a write. What sleeps has no
    /// memory, and may be taken back.
    fn touch(
        &mut self,
        range: Range<Addr>,
        op: &Arc<Op>,
        kind: AccessKind,
        change: Option<Change>,
    ) {
        let new = Use {
            op: Arc::clone(op),
            kind,
        };
        let mut races = Vec::new();
        for part in (self.places).parts(range.clone(), change.is_none().then_some(op)) {
            match part {
                Part::Mapped(bytes) => self.shadow.touch(bytes, &new, &mut races),
                Part::Bare(_) if change == Some(Change::TakenBack) => {}
                Part::Bare(bare) => self.report(Fault::NotMapped, bare, None, (op, kind)),
            }
        }
        for known in races {
            self.report(Fault::Race, range.clone(), Some(&known), (op, kind));
        }
    }

    /// Takes in that bytes change their owner in the order of a stream. Whoever had them before,
    /// and whoever gets them next, must be ordered with it as with a write.
    pub(super) fn change(&mut self, op: &Arc<Op>, change: Change, range: Range<Addr>) {
        let (owners, _) = self.places.owners(range.clone());
        let held: u64 = owners
            .iter()
            .filter(|(_, owner)| owner.live)
            .map(|(part, _)| part.end - part.start)
            .sum();
        let last = owners.last().map(|(_, owner)| Use {
            op: Arc::clone(&owner.op),
            kind: AccessKind::Write,
        });
        let whole = range.end - range.start;
        let wrong = match change {
            Change::Given => (held > 0).then_some(Fault::GivenTwice),
            Change::TakenBack => (held < whole).then_some(Fault::FreedTwice),
        };
        if let Some(fault) = wrong {
            let party = (&**op, AccessKind::Write);
            self.report(fault, range.clone(), last.as_ref(), party);
        }
        self.touch(range.clone(), op, AccessKind::Write, Some(change));
        self.places.own(range, Some((change == Change::Given, op)));
    }

    /// Takes in that a mapping is about to be taken down.
    pub(super) fn unmap(&mut self, addr: Addr, bytes: u64) {
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
        if let Some(gone) = self.places.unmap(addr) {
            self.shadow.forget(gone);
        }
    }

    pub(super) fn release(&mut self, phys: crate::device::Phys) {
        if let Some(gone) = self.places.release(phys) {
            self.shadow.forget(gone);
        }
    }
}
