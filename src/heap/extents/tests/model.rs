//! Any steps on the table against a plain list of who has which bytes.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::heap::UNIT;
use crate::heap::{Epoch, Extent, Extents, FRESH, Id, State, StreamIndex};

const GRANULE: u64 = 64 << 10;
const ALL: u64 = 40 << 20;

/// What the list says of one extent; the history counts of holes and retiring extents only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    bytes: u64,
    state: State,
    history: (StreamIndex, u64),
}

impl Part {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The table, the list, and how far each stream has come.
struct Both {
    table: Extents,
    list: Vec<Part>,
    done: [u64; 3],
    most: usize,
}

impl Both {
    fn new() -> Self {
        let mut table = Extents::new(ALL);
        assert_eq!((table.add_slot(), table.add_slot()), (1, 2));
        let gap = Part {
            start: 0,
            bytes: ALL,
            state: State::Unmapped,
            history: (FRESH, 0),
        };
        Self {
            table,
            list: vec![gap],
            done: [0; 3],
            most: 2,
        }
    }

    fn is_done(&self, (slot, tick): (StreamIndex, u64)) -> bool {
        tick <= self.done[slot as usize]
    }

    /// Places in the list of what is `state` and `suits`, one of them drawn.
    fn pick(&self, draw: u64, state: State, suits: impl Fn(usize, &Part) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.list.len())
            .filter(|&at| self.list[at].state == state && suits(at, &self.list[at]))
            .collect();
        (!found.is_empty()).then(|| found[(draw % found.len() as u64) as usize])
    }

    fn id(&self, at: usize) -> Id {
        let start = self.list[at].start;
        let mut all = self.table.iter();
        all.find(|(_, extent)| extent.start == start).unwrap().0
    }

    fn next_is(&self, at: usize, state: State) -> bool {
        self.list
            .get(at + 1)
            .is_some_and(|next| next.state == state)
    }

    /// Cuts the list at `offset`.
    fn cut(&mut self, offset: u64) {
        let at = self.list.iter().position(|part| part.end() > offset);
        let at = at.unwrap();
        let part = self.list[at];
        if part.start < offset {
            self.list[at].bytes = offset - part.start;
            let upper = Part {
                start: offset,
                bytes: part.end() - offset,
                ..part
            };
            self.list.insert(at + 1, upper);
        }
    }

    /// Makes [`start`, `end`) one part.
    fn put(&mut self, start: u64, end: u64, state: State, history: (StreamIndex, u64)) -> usize {
        self.cut(start);
        if end < ALL {
            self.cut(end);
        }
        let at = self.list.iter().position(|part| part.start == start);
        let at = at.unwrap();
        self.list
            .retain(|part| part.start < start || part.start >= end);
        let bytes = end - start;
        self.list.insert(
            at,
            Part {
                start,
                bytes,
                state,
                history,
            },
        );
        at
    }

    /// The part at `at`, joined with the one behind it.
    fn join(&mut self, at: usize) {
        self.list[at].bytes += self.list[at + 1].bytes;
        self.list.remove(at + 1);
    }

    fn map(&mut self, [a, b, c, d]: [u64; 4]) {
        let Some(at) = self.pick(a, State::Unmapped, |_, _| true) else {
            return;
        };
        let part = self.list[at];
        let granules = part.bytes / GRANULE;
        let first = if b % 3 == 0 { 0 } else { b % granules };
        let most = granules - first;
        let count = if c % 4 == 0 {
            most
        } else {
            1 + c % most.min(1 + c % 80)
        };
        let (start, end) = (
            part.start + first * GRANULE,
            part.start + (first + count) * GRANULE,
        );
        let history = self.history(d);
        let gap = self.table.gap_at(start + d % (end - start)).unwrap();
        assert_eq!(gap, self.id(at));
        let hole = (self.table).map_gap(start, end, Epoch::new(history.0, history.1));
        assert_eq!(self.table.get(hole.unwrap()).start, start);
        self.put(start, end, State::Free, history);
    }

    /// A slot and a tick of it, some of them done.
    fn history(&self, draw: u64) -> (StreamIndex, u64) {
        let slot = (draw % 3) as usize;
        let ahead = if slot == 0 { 0 } else { draw / 3 % 4 };
        (slot as StreamIndex, self.done[slot] + ahead)
    }

    /// Up to `bytes`, of many sizes.
    fn size(draw: u64, bytes: u64) -> u64 {
        let units = match draw % 6 {
            0 => 1 + draw / 6 % 4,
            1 => 60 + draw / 6 % 8,
            2 => 4028 + draw / 6 % 8,
            3 => 65_532 + draw / 6 % 8,
            4 => u64::MAX / UNIT,
            _ => 1 + draw / 6 % 8192,
        };
        (units * UNIT).min(bytes)
    }

    fn take(&mut self, [a, b, c, _]: [u64; 4]) {
        let Some(at) = self.pick(a, State::Free, |_, _| true) else {
            return;
        };
        let part = self.list[at];
        let (id, bytes, slot) = (
            self.id(at),
            Self::size(b, part.bytes),
            (c % 3) as StreamIndex,
        );
        self.table.take(id, bytes, slot);
        assert_eq!(self.table.get(id).epoch.stream, slot);
        assert!(!self.table.get(id).movable);
        self.put(part.start, part.start + bytes, State::Allocated, (slot, 0));
    }

    fn split(&mut self, [a, b, c, _]: [u64; 4]) {
        let Some(at) = self.pick(a, State::Allocated, |_, part| part.bytes > UNIT) else {
            return;
        };
        let (part, id) = (self.list[at], self.id(at));
        let bytes = Self::size(b, part.bytes - UNIT);
        self.table.spoil(id).movable = c & 1 == 1;
        let upper = self.table.cut(id, part.end() - bytes);
        assert_eq!(self.table.get(upper).movable, c & 1 == 1);
        self.put(
            part.end() - bytes,
            part.end(),
            State::Allocated,
            part.history,
        );
    }

    fn join_taken(&mut self, [a, ..]: [u64; 4]) {
        let next = |at: usize, _: &Part| self.next_is(at, State::Allocated);
        let Some(at) = self.pick(a, State::Allocated, next) else {
            return;
        };
        self.table.join(self.id(at));
        self.join(at);
    }

    /// A block becomes a hole.
    fn give(&mut self, [a, b, ..]: [u64; 4]) {
        let Some(mut at) = self.pick(a, State::Allocated, |_, _| true) else {
            return;
        };
        let (id, (slot, mut tick)) = (self.id(at), self.history(b));
        let done = self.done;
        let covered = |extent: &Extent| extent.epoch.tick <= done[extent.epoch.stream as usize];
        let hole = self.table.give(id, Epoch::new(slot, tick), covered);
        let joins = |part: &Part| {
            part.state == State::Free && (part.history.0 == slot || self.is_done(part.history))
        };
        let up = self.list.get(at + 1).is_some_and(joins);
        let down = at > 0 && joins(&self.list[at - 1]);
        let beside = |is: bool, at: usize| is.then(|| self.list[at].history);
        for (other, theirs) in [beside(up, at + 1), beside(down, at.wrapping_sub(1))]
            .into_iter()
            .flatten()
        {
            tick = if other == slot {
                tick.max(theirs)
            } else {
                tick
            };
        }
        if up {
            self.join(at);
        }
        if down {
            at -= 1;
            self.join(at);
        }
        self.list[at].state = State::Free;
        self.list[at].history = (slot, tick);
        assert_eq!(hole, self.id(at));
    }

    fn merge_up(&mut self, [a, ..]: [u64; 4]) {
        let Some(at) = self.pick(a, State::Free, |_, _| true) else {
            return;
        };
        let done = self.done;
        let id = self.id(at);
        self.table.merge_up(id, |extent| {
            extent.epoch.tick <= done[extent.epoch.stream as usize]
        });
        while self.next_is(at, State::Free) {
            let (lower, upper) = (self.list[at].history, self.list[at + 1].history);
            if lower.0 == upper.0 {
                self.list[at].history.1 = lower.1.max(upper.1);
            } else if !(self.is_done(lower) && self.is_done(upper)) {
                break;
            }
            self.join(at);
        }
    }

    fn merge_as(&mut self, [a, b, ..]: [u64; 4]) {
        let next = |at: usize, _: &Part| self.next_is(at, State::Free);
        if let Some(at) = self.pick(a, State::Free, next) {
            let history = self.history(b);
            self.table
                .merge_as(self.id(at), Epoch::new(history.0, history.1));
            self.join(at);
            self.list[at].history = history;
        }
    }

    /// Whole granules of a hole retire.
    fn retire(&mut self, [a, b, c, _]: [u64; 4]) {
        let inner = |part: &Part| {
            let first = part.start.next_multiple_of(GRANULE);
            (first, part.end() / GRANULE * GRANULE)
        };
        let holds = |_: usize, part: &Part| inner(part).0 < inner(part).1;
        let Some(at) = self.pick(a, State::Free, holds) else {
            return;
        };
        let (first, last) = inner(&self.list[at]);
        let granules = (last - first) / GRANULE;
        let start = first + b % granules * GRANULE;
        let most = (last - start) / GRANULE;
        let end = start + (1 + c % most) * GRANULE;
        let id = self.table.retire(self.id(at), start, end);
        let extent = self.table.get(id);
        assert_eq!((extent.start, extent.end()), (start, end));
        self.put(start, end, State::Stale, self.list[at].history);
    }

    fn retired(&mut self, [a, ..]: [u64; 4]) {
        let Some(mut at) = self.pick(a, State::Stale, |_, _| true) else {
            return;
        };
        let gap = self.table.retired(self.id(at));
        self.list[at].state = State::Unmapped;
        self.list[at].history = (FRESH, 0);
        if self.next_is(at, State::Unmapped) {
            self.join(at);
        }
        if at > 0 && self.list[at - 1].state == State::Unmapped {
            at -= 1;
            self.join(at);
        }
        assert_eq!(gap, self.id(at));
    }

    /// A block over one hole or several.
    fn window(&mut self, [a, b, c, d]: [u64; 4]) {
        let Some(at) = self.pick(a, State::Free, |_, _| true) else {
            return;
        };
        let mut last = at;
        while self.next_is(last, State::Free) && (d >> (last - at)) & 1 == 1 && last < at + 30 {
            last += 1;
        }
        let first = self.list[at];
        let start = first.start + (Self::size(b, first.bytes) - UNIT);
        let least = self.list[last].start.max(start);
        let end = least + Self::size(c, self.list[last].end() - least);
        let slot = (c % 3) as StreamIndex;
        let id = self
            .table
            .take_window(self.id(at), start, end - start, slot);
        let extent = self.table.get(id);
        assert_eq!(
            (extent.start, extent.end(), extent.epoch.stream),
            (start, end, slot)
        );
        self.put(start, end, State::Allocated, (slot, 0));
    }

    fn step(&mut self, kind: u8, draws: [u64; 4]) {
        let before = (self.holes(), self.table.changes());
        match kind {
            0 | 1 => self.map(draws),
            2..=4 => self.take(draws),
            5 => self.split(draws),
            6 => self.join_taken(draws),
            7..=9 => self.give(draws),
            10 => self.merge_up(draws),
            11 => self.merge_as(draws),
            12 => self.retire(draws),
            13 => self.retired(draws),
            14 => self.window(draws),
            _ => self.done[1 + (draws[0] % 2) as usize] += draws[1] % 3,
        }
        if self.holes() != before.0 {
            assert_ne!(self.table.changes(), before.1);
        }
        self.most = self.most.max(self.list.len());
    }

    fn holes(&self) -> Vec<Part> {
        let holes = self.list.iter().filter(|part| part.state == State::Free);
        holes.copied().collect()
    }

    /// Whether the table says what the list says.
    fn agree(&self) {
        let seen: Vec<Part> = self.table.iter().map(|(_, it)| part_of(it)).collect();
        let said: Vec<Part> = self.list.iter().map(|part| plain(*part)).collect();
        assert_eq!(seen, said);
        self.table.check(GRANULE).unwrap();
        let holes = self.holes();
        let sum =
            |parts: &mut dyn Iterator<Item = &Part>| parts.map(|part| part.bytes).sum::<u64>();
        assert_eq!(self.table.holes(), holes.len() as u64);
        assert_eq!(self.table.hole_bytes(), sum(&mut holes.iter()));
        let largest = holes.iter().map(|part| part.bytes).max().unwrap_or(0);
        assert_eq!(self.table.largest_hole(), largest);
        let mut taken = (self.list.iter()).filter(|part| part.state == State::Allocated);
        assert_eq!(self.table.taken(), sum(&mut taken));
        let gaps: Vec<u64> = self
            .table
            .gaps()
            .map(|id| self.table.get(id).start)
            .collect();
        let said = self
            .list
            .iter()
            .filter(|part| part.state == State::Unmapped);
        assert_eq!(gaps, said.map(|part| part.start).collect::<Vec<_>>());
        // A block over several holes is cut out at both ends first.
        let records = self.table.table.len() as u64 - 1;
        assert!(
            records <= self.most as u64 + 2,
            "{records} of {}",
            self.most
        );
    }

    /// Whether holes and addresses are found.
    fn found(&self, offset: u64, bytes: u64) {
        let holding = |offset| {
            let at = self.list.iter().position(|part| part.end() > offset);
            at.map(|at| (at, self.list[at]))
        };
        let (at, part) = holding(offset).unwrap();
        let gap = (part.state == State::Unmapped).then(|| self.id(at));
        assert_eq!(self.table.gap_at(offset), gap);
        assert_eq!(self.table.seek(self.table.first(), offset), self.id(at));
        assert_eq!(
            self.table.seek(self.id(at), ALL),
            self.id(self.list.len() - 1)
        );
        for slot in 0..3 {
            let fits = |part: &&Part| part.history.0 == slot && part.bytes >= bytes;
            let holes = self.holes();
            let fitting = || holes.iter().filter(fits);
            let starts = |ids: &mut dyn Iterator<Item = Id>| {
                ids.map(|id| self.table.get(id).start).collect::<Vec<u64>>()
            };
            let all = starts(&mut self.table.holes_of(slot, bytes));
            let set: BTreeSet<u64> = all.iter().copied().collect();
            assert_eq!(set.len(), all.len());
            assert_eq!(set, fitting().map(|part| part.start).collect());
            let any = holes.iter().any(|part| part.history.0 == slot);
            assert_eq!(self.table.has_none(slot), !any);
            let size = |id: Id| self.table.get(id).bytes;
            let best = self.table.best(slot, bytes).map(size);
            assert_eq!(best, fitting().map(|part| part.bytes).min());
            let own = holes.iter().filter(|part| part.history.0 == slot);
            let largest = own.map(|part| part.bytes).max();
            let index = &self.table.indexes[slot as usize];
            assert_eq!(index.largest(&self.table.table), largest.unwrap_or(0));
            // Of one size, those in lists are in no order of addresses.
            let listed = |bytes: u64| bytes < 4096 * UNIT;
            let order = |bytes, start| (bytes, if listed(bytes) { 0 } else { start });
            let said = fitting().map(|part| order(part.bytes, part.start));
            let mut said: Vec<(u64, u64)> = said.collect();
            said.sort_unstable();
            let seen = index.filed(&self.table.table, bytes);
            let seen = seen.map(|id| self.table.get(id));
            let seen: Vec<(u64, u64)> = seen.map(|it| order(it.bytes, it.start)).collect();
            assert_eq!(seen, said);
        }
    }
}

fn plain(part: Part) -> Part {
    let history = match part.state {
        State::Free | State::Stale => part.history,
        _ => (FRESH, 0),
    };
    Part { history, ..part }
}

fn part_of(extent: &Extent) -> Part {
    plain(Part {
        start: extent.start,
        bytes: extent.bytes,
        state: extent.state,
        history: (extent.epoch.stream, extent.epoch.tick),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_steps_on_the_table_leave_what_they_leave_of_a_plain_list(
        steps in vec((0u8..17, any::<[u64; 4]>()), 1..160),
    ) {
        let mut both = Both::new();
        for (kind, draws) in steps {
            both.step(kind, draws);
            both.agree();
            both.found(draws[2] % ALL, Both::size(draws[3], ALL));
        }
    }
}
