//! A table that is wrong in one place is found to be.

use std::fmt::Write;

use crate::heap::bins::UNIT;
use crate::heap::extent::NIL;
use crate::heap::{Epoch, Extents, FRESH, Id, State, StreamIndex};

const GRANULE: u64 = 64 << 10;
const ALL: u64 = 2 << 30;

/// The table, and the holes, blocks and other extents in it by what they are.
struct Made {
    table: Extents,
    /// In lists, beside others of their size, of sizes without a bin; of two streams.
    holes: Vec<Id>,
    blocks: [Id; 2],
    /// Two that follow each other, a retiring extent behind them, and one more behind that.
    row: [Id; 2],
    retiring: Id,
    behind: Id,
    gap: Id,
}

/// Cuts the last `bytes` off the block and returns them.
fn cut(table: &mut Extents, block: Id, bytes: u64) -> Id {
    let at = table.get(block).end() - bytes;
    table.cut(block, at)
}

fn made() -> Made {
    let mut table = Extents::new(ALL);
    let (one, two) = (table.add_slot(), table.add_slot());
    let mut at = 0;
    let mut hole = |table: &mut Extents, bytes: u64, slot: StreamIndex| {
        let mapped = bytes.next_multiple_of(GRANULE) + GRANULE;
        let id = table.map_gap(at, at + mapped, Epoch::new(slot, 0)).unwrap();
        at += mapped + GRANULE;
        // The end stays taken, so that holes do not join.
        table.take_window(id, at - 2 * GRANULE, GRANULE, slot);
        let rest = mapped - GRANULE - bytes;
        if rest > 0 {
            table.take_window(id, at - 2 * GRANULE - rest, rest, slot);
        }
        id
    };
    let mut holes = Vec::new();
    for slot in [FRESH, one, two] {
        for bytes in [
            256,
            256,
            256,
            70 << 10,
            2 << 20,
            2 << 20,
            2 << 20,
            20 << 20,
            20 << 20,
        ] {
            holes.push(hole(&mut table, bytes, slot));
        }
    }
    // Of two blocks one record is spare, and of two more another.
    let whole = hole(&mut table, 64 * GRANULE, one);
    table.take(whole, 64 * GRANULE, one);
    let mut blocks = [whole; 2];
    for _ in 0..2 {
        cut(&mut table, whole, GRANULE);
        table.join(whole);
    }
    let parts = [(); 3].map(|()| cut(&mut table, whole, 4 * GRANULE));
    blocks[1] = parts[1];
    let first = hole(&mut table, 16 * GRANULE, one);
    let start = table.get(first).start;
    let retiring = table.retire(first, start + 8 * GRANULE, start + 12 * GRANULE);
    let behind = table.get(retiring).next;
    table.take(behind, 4 * GRANULE, one);
    table.take(first, 8 * GRANULE, one);
    let second = cut(&mut table, first, 4 * GRANULE);
    // Records that are spare.
    for _ in 0..2 {
        let more = hole(&mut table, 4 * GRANULE, one);
        table.take(more, 4 * GRANULE, one);
        let parts = [(); 3].map(|()| cut(&mut table, more, GRANULE));
        assert_eq!(table.get(more).next, parts[2]);
        (0..3).for_each(|_| table.join(more));
    }
    let gap = table.gap_at(ALL - GRANULE).unwrap();
    table.check(GRANULE).unwrap();
    assert!(table.spare.len() >= 2);
    Made {
        table,
        holes,
        blocks,
        row: [first, second],
        retiring,
        behind,
        gap,
    }
}

type Change = Box<dyn Fn(&mut Made)>;

fn change(change: impl Fn(&mut Made) + 'static) -> Change {
    Box::new(change)
}

/// Every change is found, each in a table of its own.
fn all_are_found(changes: Vec<(String, Change)>) {
    let mut missed = String::new();
    for (what, change) in changes {
        let mut made = made();
        change(&mut made);
        if made.table.check(GRANULE).is_ok() {
            writeln!(missed, "{what}").unwrap();
        }
    }
    assert!(missed.is_empty(), "not found:\n{missed}");
}

#[test]
fn an_extent_of_another_place_size_state_or_owner_is_found() {
    let mut changes: Vec<(String, Change)> = Vec::new();
    let mut add = |what: &str, number: usize, with: Change| {
        changes.push((format!("{what} {number}"), with));
    };
    for number in 0..made().holes.len() {
        let of = move |made: &mut Made, with: &dyn Fn(&mut crate::heap::Extent)| {
            with(made.table.spoil(made.holes[number]));
        };
        add(
            "slot",
            number,
            change(move |m| of(m, &|it| it.epoch.stream = (it.epoch.stream + 1) % 3)),
        );
        add(
            "bytes",
            number,
            change(move |m| of(m, &|it| it.bytes += UNIT)),
        );
        add(
            "start",
            number,
            change(move |m| of(m, &|it| it.start += UNIT)),
        );
        for state in [
            State::Unused,
            State::Allocated,
            State::Unmapped,
            State::Stale,
        ] {
            add(
                "state",
                number,
                change(move |m| of(m, &|it| it.state = state)),
            );
        }
        add(
            "not filed",
            number,
            change(move |m| {
                let id = m.holes[number];
                let slot = m.table.get(id).epoch.stream as usize;
                m.table.indexes[slot].remove(&mut m.table.table, id);
            }),
        );
        add(
            "in another's index",
            number,
            change(move |m| {
                let (id, index) = (
                    m.holes[number],
                    (m.table.get(m.holes[number]).epoch.stream + 1) % 3,
                );
                let bytes = m.table.get(id).bytes;
                m.table.indexes[index as usize].insert(&mut m.table.table, id, bytes);
            }),
        );
    }
    let all: Vec<Id> = made().table.iter().map(|(id, _)| id).skip(1).collect();
    for (number, id) in all.into_iter().enumerate() {
        add("prev", number, change(move |m| m.table.spoil(id).prev = id));
        add(
            "next",
            number,
            change(move |m| {
                let before = m.table.get(id).prev;
                m.table.spoil(before).next = m.table.get(id).next;
            }),
        );
    }
    all_are_found(changes);
}

/// Moves the bound between two neighbours.
fn shift(made: &mut Made, lower: Id, by: u64) {
    let upper = made.table.get(lower).next;
    made.table.spoil(lower).bytes += by;
    made.table.spoil(upper).start += by;
    made.table.spoil(upper).bytes -= by;
}

#[test]
fn a_hole_in_the_bin_of_another_size_is_found() {
    let larger = |number: usize| {
        change(move |m: &mut Made| {
            shift(m, m.holes[number], UNIT);
            m.table.hole_sums.1 += UNIT;
        })
    };
    // Those without a bin of their size are still in the right one.
    let wrong = (0..27).filter(|it| it % 9 < 4);
    all_are_found(wrong.map(|it| (format!("{it}"), larger(it))).collect());
}

#[test]
fn a_bound_between_extents_off_its_unit_is_found() {
    all_are_found(vec![
        (
            "start of a block".into(),
            change(|m| m.table.spoil(m.blocks[1]).start += UNIT),
        ),
        (
            "nothing in an extent".into(),
            change(|m| {
                let bytes = m.table.get(m.row[0]).bytes;
                m.table.spoil(m.row[0]).bytes = 0;
                m.table.spoil(m.row[1]).start -= bytes;
                m.table.spoil(m.row[1]).bytes += bytes;
            }),
        ),
        (
            "half a unit more".into(),
            change(|m| shift(m, m.row[0], UNIT / 2)),
        ),
        (
            "half a unit of a block, behind a block".into(),
            change(|m| {
                let lower = m.table.get(m.blocks[1]).prev;
                shift(m, lower, UNIT / 2);
            }),
        ),
        (
            "retiring off a granule at one end".into(),
            change(|m| shift(m, m.row[1], UNIT)),
        ),
        (
            "retiring off a granule at the other".into(),
            change(|m| shift(m, m.retiring, UNIT)),
        ),
        (
            "retiring off a granule at both".into(),
            change(|m| {
                shift(m, m.row[1], UNIT);
                shift(m, m.retiring, UNIT);
            }),
        ),
        (
            "a granule more of a retiring extent is none".into(),
            change(|m| {
                shift(m, m.retiring, GRANULE);
                let behind = m.table.spoil(m.behind);
                behind.state = State::Unused;
            }),
        ),
    ]);
    let mut made = made();
    let (first, retiring) = (made.row[0], made.retiring);
    shift(&mut made, first, UNIT);
    shift(&mut made, retiring, GRANULE);
    made.table.check(GRANULE).unwrap();
}

#[test]
fn a_list_of_holes_that_is_wrong_in_a_link_is_found() {
    let mut changes: Vec<(String, Change)> = Vec::new();
    let first = made();
    // Three of a size, each filed before the next. None asks for what is newer than the last.
    for (number, &id) in first.holes.iter().enumerate().filter(|it| it.0 % 9 < 3) {
        let extent = *first.table.get(id);
        for other in [NIL, id - 1, id, id + 1] {
            let older = change(move |m| m.table.spoil(id).older = other);
            let newer = change(move |m| m.table.spoil(id).newer = other);
            let links = [(older, extent.older), (newer, extent.newer)];
            for (at, (link, before)) in links.into_iter().enumerate().take(3 - number % 9) {
                if before != other {
                    changes.push((format!("link {at} of {id} is {other}"), link));
                }
            }
        }
    }
    assert!(changes.len() > 30, "{}", changes.len());
    all_are_found(changes);
}

#[test]
fn sums_that_are_not_those_of_the_extents_are_found() {
    all_are_found(vec![
        (
            "number of holes".into(),
            change(|m| m.table.hole_sums.0 += 1),
        ),
        (
            "bytes in holes".into(),
            change(|m| m.table.hole_sums.1 += UNIT),
        ),
        (
            "a gap of another".into(),
            change(|m| {
                let start = m.table.get(m.gap).start;
                m.table.gaps.insert(start, m.gap + 1);
            }),
        ),
        (
            "a gap lost".into(),
            change(|m| {
                let start = m.table.get(m.gap).start;
                m.table.gaps.remove(&start);
            }),
        ),
    ]);
}

#[test]
fn a_record_that_is_lost_or_has_two_uses_is_found() {
    all_are_found(vec![
        ("lost".into(), change(|m| m.table.spare.truncate(1))),
        (
            "lost, and one spare twice".into(),
            change(|m| {
                let again = m.table.spare[0];
                m.table.spare[1] = again;
            }),
        ),
        (
            "spare twice".into(),
            change(|m| {
                let again = m.table.spare[0];
                m.table.spare.push(again);
            }),
        ),
        (
            "spare and an extent".into(),
            change(|m| {
                let id = m.table.spare[0];
                m.table.spoil(id).state = State::Allocated;
            }),
        ),
        (
            "none's, and spare".into(),
            change(|m| m.table.spare[0] = NIL),
        ),
        (
            "none's, and an extent".into(),
            change(|m| m.table.spoil(NIL).state = State::Allocated),
        ),
    ]);
}
