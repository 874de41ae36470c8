//! Which holes an index has, and which it takes first. More is tested with the table of extents, which owns the holes
//! and checks the indexes.

use super::{Bins, MOST, OWN, SHARED, UNIT, bin_of};
use crate::heap::{Extent, Id, State};

/// Bytes of holes in lists, of the smallest that share a bin, and of others in that bin.
const LISTED: u64 = 70 * UNIT;
const LARGE: u64 = OWN as u64 * UNIT;
const LARGER: u64 = LARGE + UNIT;

fn held(index: &Bins, table: &[Extent]) -> Vec<Id> {
    let mut held: Vec<Id> = index.filed(table, 0).collect();
    held.sort_unstable();
    held
}

/// Three holes of each kind, filed from the middle: 5 is in the shared bin, 4 and 6 beside it.
fn made() -> (Bins, Vec<Extent>) {
    let mut table = vec![Extent::default()];
    let mut start = UNIT;
    for bytes in [LISTED, LISTED, LISTED, LARGE, LARGER, LARGE] {
        let state = State::Free;
        table.push(Extent {
            start,
            bytes,
            state,
            ..Extent::default()
        });
        start += bytes;
    }
    let mut index = Bins::default();
    for id in [2, 1, 3, 5, 4, 6] {
        let bytes = table[id as usize].bytes;
        index.insert(&mut table, id, bytes);
    }
    assert_eq!(held(&index, &table), [1, 2, 3, 4, 5, 6]);
    assert!(index.others.iter().map(|it| it.2).eq([4, 6]));
    (index, table)
}

#[test]
fn sizes_have_bins_in_order_and_large_ones_share_them_within_a_part_in_128() {
    for units in 1..OWN as u64 {
        assert_eq!(bin_of(units * UNIT) as u64, units);
    }
    // Around each edge of a bin up to 2^46 bytes.
    let mut last = OWN - 1;
    for power in 12..38 {
        for part in 0..SHARED as u64 {
            let first = (1 << power) + (part << (power - 7));
            let bins = [first - 1, first, first + (1 << (power - 7)) - 1].map(|u| bin_of(u * UNIT));
            let next = last + 1;
            assert!(bins == [last, next, next], "2^{power}, {part}");
            last = next;
        }
    }
    assert!(last < MOST && bin_of(u64::MAX) < MOST);
}

#[test]
fn holes_that_are_not_filed_are_not_held() {
    for id in [3, 1, 2, 6, 4, 5] {
        let (mut index, mut table) = made();
        index.remove(&mut table, id);
        let others: Vec<Id> = (1..=6).filter(|&other| other != id).collect();
        assert_eq!(held(&index, &table), others);
    }
}

#[test]
fn the_larger_sizes_have_their_lowest_hole_first_and_lists_their_last() {
    let (mut index, mut table) = made();
    let sizes = [UNIT, LISTED + UNIT, LARGE, LARGER, LARGER + UNIT];
    let firsts = sizes.map(|bytes| index.best(&table, bytes));
    assert_eq!(firsts, [Some(3), Some(4), Some(4), Some(5), None]);
    let all: Vec<Id> = index.filed(&table, 0).collect();
    assert_eq!(all, [3, 1, 2, 4, 6, 5]);
    assert_eq!(index.largest(&table), LARGER);
    // Once the bin is empty the next hole is in it, and the others come behind.
    index.remove(&mut table, 5);
    table[5].bytes = LARGE - UNIT;
    index.insert(&mut table, 5, LARGE - UNIT);
    assert_eq!(
        (index.best(&table, LARGE), index.largest(&table)),
        (Some(4), LARGE)
    );
    index.remove(&mut table, 5);
    table[5].bytes = LARGER;
    index.insert(&mut table, 5, LARGER);
    let all: Vec<Id> = index.filed(&table, LARGE).collect();
    assert_eq!(all, [4, 6, 5]);
}

#[test]
fn the_last_bin_has_holes_of_any_size_from_its_first_on_and_nothing_is_behind_it() {
    let (mut index, mut table) = made();
    index.remove(&mut table, 5);
    table[5].bytes = 1 << 60;
    index.insert(&mut table, 5, 1 << 60);
    assert_eq!(bin_of(1 << 60), MOST - 1);
    let sizes = [1 << 59, 1 << 60, (1 << 60) + UNIT];
    let firsts = sizes.map(|bytes| index.best(&table, bytes));
    assert_eq!(firsts, [Some(5), Some(5), None]);
}

/// Thousands of one size, and of sizes that share a bin, however they come and go.
#[test]
fn many_holes_of_a_bin_are_taken_in_order() {
    for distance in [0, UNIT] {
        let mut index = Bins::default();
        let mut table = vec![Extent::default()];
        table.extend((1..=3000).map(|at| Extent {
            start: at << 30,
            bytes: (OWN as u64 * 64) * UNIT + at % 500 * distance,
            state: State::Free,
            ..Extent::default()
        }));
        for at in 0..3000 {
            let id = 1 + at * 7 % 3000;
            let bytes = table[id as usize].bytes;
            index.insert(&mut table, id, bytes);
        }
        let mut left: Vec<Id> = (1..=3000).collect();
        left.sort_by_key(|&id| (table[id as usize].bytes, id));
        for (at, &id) in left.iter().enumerate() {
            assert_eq!(index.best(&table, LARGER), Some(id), "{at}");
            index.remove(&mut table, id);
        }
        assert!(index.is_empty());
    }
}
