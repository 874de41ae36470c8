//! An index that is wrong in one place is found to be. What it answers is tested with the table of
//! extents, which owns the holes.

use std::collections::BTreeSet;

use super::{BINS, Bin, Bins, Bitmap, NIL, UNIT, WORDS};
use crate::device::sim::Rng;
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
fn a_bit_that_does_not_agree_with_those_below_is_found() {
    for bit in 0..WORDS {
        assert!(is_wrong(|index, _| index.filled.words ^= 1 << bit), "{bit}");
        let before = made().0.filled.bits[bit];
        let other = if before == 0 { 1 } else { 0 };
        let wrong = is_wrong(|index, _| index.filled.bits[bit] = other);
        assert!(wrong, "{bit}");
    }
    assert!(is_wrong(|index, _| index.filled.set(Bin(77))));
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

#[test]
fn the_first_bit_from_any_on_is_found_whatever_bits_there_are() {
    let mut random = Rng::new(9);
    for round in 0..300 {
        let (mut bits, mut said): (Bitmap, _) = (Bins::default().filled, BTreeSet::new());
        // Bits of a word, of a group, of all; few and many.
        let reach = [64, 200, 400, 2000, BINS as u64][round % 5];
        let first = random.below(BINS as u64 - reach + 1);
        let drawn = |random: &mut Rng| (first + random.below(reach)) as usize;
        for _ in 0..1 + round % 40 {
            let bin = drawn(&mut random);
            match random.below(3) {
                0 => {
                    let empty = random.below(3) > 0;
                    bits.clear_if(Bin(bin), empty);
                    said.retain(|&at| at != bin || !empty);
                }
                _ => {
                    bits.set(Bin(bin));
                    said.insert(bin);
                }
            }
            bits.check().unwrap();
            assert_eq!(bits.last().map(|bin| bin.0), said.last().copied());
            for from in [drawn(&mut random), bin, first as usize, 0, BINS] {
                let next = said.range(from..).next().copied();
                assert_eq!(
                    bits.next(Bin(from)).map(|bin| bin.0),
                    next,
                    "{said:?} from {from}"
                );
            }
        }
    }
}
