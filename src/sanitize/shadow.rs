//! The last uses of each byte.
//!
//! The bytes are divided into cells that do not overlap. A cell keeps its last write, and the reads
//! and atomic additions since. A new use of a cell is compared with them, and replaces those that
//! are ordered before it. A use may be reported late, after uses that are ordered after it: those
//! stay.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::order::Op;
use crate::device::AccessKind;

/// An operation and its effect.
#[derive(Debug, Clone)]
pub(super) struct Use {
    pub(super) op: Arc<Op>,
    pub(super) kind: AccessKind,
    /// Whether it is a change of ownership, not work.
    pub(super) is_change: bool,
}

impl Use {
    /// By work.
    pub(super) fn of(op: &Arc<Op>, kind: AccessKind) -> Self {
        Self {
            op: Arc::clone(op),
            kind,
            is_change: false,
        }
    }

    /// A change of ownership, which counts as a write.
    pub(super) fn change(op: &Arc<Op>) -> Self {
        Self {
            is_change: true,
            ..Self::of(op, AccessKind::Write)
        }
    }

    /// Whether the two must be ordered.
    fn conflicts(&self, other: &Self) -> bool {
        self.kind != other.kind || self.kind == AccessKind::Write
    }

    fn races(&self, other: &Self) -> bool {
        self.conflicts(other) && self.op.races(&other.op)
    }
}

#[derive(Debug, Clone)]
struct Cell {
    end: u64,
    write: Option<Use>,
    /// Reads and atomic additions, the last of each stream.
    others: Vec<Use>,
}

/// The last uses of all bytes; see the module documentation. Keys are byte numbers of the caller's
/// choice.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

impl Cell {
    fn uses(&self) -> impl Iterator<Item = &Use> {
        self.write.iter().chain(&self.others)
    }

    /// Adds a use, and removes those that it makes irrelevant.
    fn take(&mut self, new: &Use) {
        // It was reported late, and what must be ordered with it must be ordered with the known use too.
        let covers = |known: &Use| known.kind == AccessKind::Write || known.kind == new.kind;
        if (self.uses()).any(|known| covers(known) && new.op.is_before(&known.op)) {
            return;
        }
        let others = &mut self.others;
        if new.kind == AccessKind::Write {
            others.retain(|known| !known.op.is_before(&new.op));
            self.write = Some(new.clone());
        } else {
            others.retain(|known| known.kind != new.kind || !known.op.is_before(&new.op));
            others.push(new.clone());
        }
    }
}

impl Shadow {
    /// Splits the cell across `at`, if there is one, so that a cell begins there.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back()
            && cell.end > at
        {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }

    /// Adds a use of a range; appends the uses that it races with to `races`.
    pub(super) fn touch(&mut self, range: Range<u64>, new: &Use, races: &mut Vec<Use>) {
        if let Some(cell) = self.cells.get_mut(&range.start)
            && cell.end == range.end
        {
            races.extend(cell.uses().filter(|known| known.races(new)).cloned());
            cell.take(new);
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut late = false;
        for (_, cell) in self.cells.range(range.clone()) {
            for known in cell.uses() {
                late |= !known.op.is_before(&new.op);
                if known.races(new) {
                    races.push(known.clone());
                }
            }
        }
        if new.kind == AccessKind::Write && !late {
            self.replace(range, new);
        } else {
            self.add(range, new);
        }
    }

    /// Replaces all cells of the range by one, for a write that is ordered after everything in it.
    fn replace(&mut self, range: Range<u64>, new: &Use) {
        self.forget(range.clone());
        let cell = Cell {
            end: range.end,
            write: Some(new.clone()),
            others: Vec::new(),
        };
        self.cells.insert(range.start, cell);
    }

    /// Adds the use to every cell of the range, and new cells where there are none.
    fn add(&mut self, range: Range<u64>, new: &Use) {
        let mut at = range.start;
        let mut gaps = Vec::new();
        for (&start, cell) in self.cells.range_mut(range.clone()) {
            if at < start {
                gaps.push(at..start);
            }
            cell.take(new);
            at = cell.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            let mut cell = Cell {
                end: gap.end,
                write: None,
                others: Vec::new(),
            };
            cell.take(new);
            self.cells.insert(gap.start, cell);
        }
    }

    /// Removes the changes of ownership of a range that is used as a whole.
    pub(super) fn forget_changes(&mut self, range: Range<u64>) {
        for (_, cell) in self.cells.range_mut(range) {
            cell.write.take_if(|write| write.is_change);
        }
    }

    /// Removes all uses of a range.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        while let Some((&at, _)) = self.cells.range(range.clone()).next() {
            self.cells.remove(&at);
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::*;
    use crate::device::{RawEvent, RawStream};

    #[test]
    fn a_write_told_late_races_with_a_read_beside_one_behind_it() {
        let mut order = Order::default();
        (1..4).for_each(|raw| order.add(RawStream(raw)));
        let queue = |order: &mut Order, raw| {
            let raw = RawStream(raw);
            let number = order.number(raw, || 0);
            order.queue(number, raw, "work".into())
        };
        let write = queue(&mut order, 1);
        let (first, second) = [1, 2].map(|raw| order.number(RawStream(raw), || 0)).into();
        order.record(RawEvent(1), first);
        order.wait(second, RawEvent(1));
        let (behind, beside) = (queue(&mut order, 2), queue(&mut order, 3));
        let (mut shadow, mut races) = (Shadow::default(), Vec::new());
        for (op, kind) in [
            (&behind, AccessKind::Read),
            (&write, AccessKind::Write),
            (&beside, AccessKind::Read),
        ] {
            shadow.touch(0..8, &Use::of(op, kind), &mut races);
        }
        let found: Vec<u64> = races.iter().map(|race| race.op.number).collect();
        assert_eq!(found, [write.number]);
    }
}
