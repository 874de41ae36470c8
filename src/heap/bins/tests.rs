//! An index that is wrong in one place is found to be. What it answers is tested with the table of
//! extents, which owns the holes.

use super::{BINS, Bin, Bins, NIL, UNIT};
use crate::heap::{Extent, Id, State};

/// Bytes of holes in lists, and of those without a bin.
const LISTED: u64 = 70 * UNIT;
const LARGE: u64 = (BINS as u64 + 1) * UNIT;

/// Three holes of each kind, filed from the middle; as `ids` has them, the lowest first.
fn made() -> (Bins, Vec<Extent>) {
    let mut table = vec![Extent::BLANK];
    let mut start = UNIT;
    for bytes in [LISTED, LISTED, LISTED, LARGE, LARGE, LARGE] {
        let state = State::Free;
        table.push(Extent {
            start,
            bytes,
            state,
            ..Extent::BLANK
        });
        start += bytes;
    }
    let mut index = Bins::default();
    for id in [2, 1, 3, 5, 4, 6] {
        let bytes = table[id as usize].bytes;
        index.insert(&mut table, id, bytes);
    }
    assert_eq!(index.check(&table), Ok((3 * (LISTED + LARGE), 6)));
    (index, table)
}

fn is_wrong(change: impl FnOnce(&mut Bins, &mut Vec<Extent>)) -> bool {
    let (mut index, mut table) = made();
    change(&mut index, &mut table);
    index.check(&table).is_err()
}

#[test]
fn a_hole_in_a_bin_that_is_not_its_own_is_found() {
    let bin = Bin((LISTED / UNIT) as usize);
    for id in [3, 1] {
        assert!(is_wrong(|_, table| table[id].bytes += UNIT), "{id}");
        assert!(
            is_wrong(|_, table| table[id].state = State::Allocated),
            "{id}"
        );
    }
    assert!(is_wrong(|index, _| index.heads.set(bin, NIL)));
    assert!(is_wrong(|index, _| index.heads.set(bin, 100)));
    assert!(is_wrong(|index, _| index.filled.set(77)));
    assert!(is_wrong(|_, table| table[3].newer = 1));
    assert!(is_wrong(|_, table| table[1].newer = NIL));
    assert!(is_wrong(|_, table| table[2].older = 100));
    // What is in no list has no neighbour that was filed later.
    assert!(!is_wrong(|_, table| table[4].newer = 1));
}

#[test]
fn holes_that_are_not_filed_are_not_held() {
    let (index, table) = made();
    for id in 1..=6 {
        assert!(index.holds(&table, id), "{id}");
    }
    let (index, mut higher) = made();
    higher[4].start += UNIT;
    assert!(!index.holds(&higher, 4));
    for id in [3, 1, 2, 6, 4, 5] {
        let (mut index, mut table) = made();
        index.remove(&mut table, id);
        for other in 1..=6 {
            assert_eq!(
                index.holds(&table, other),
                other != id,
                "{other} without {id}"
            );
        }
    }
}

#[test]
fn the_larger_sizes_have_their_lowest_hole_first_and_lists_their_last() {
    let (index, _) = made();
    let firsts = [UNIT, LISTED + UNIT].map(|bytes| index.best(bytes));
    assert_eq!(firsts, [Some(3), Some(4)]);
    let all: Vec<Id> = index.at_least(0).collect();
    assert_eq!(all, [3, 4, 5, 6]);
}
