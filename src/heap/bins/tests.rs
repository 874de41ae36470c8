//! An index that is wrong in one place is found to be. What it answers is tested with the table of
//! extents, which owns the holes.

use std::collections::BTreeSet;

use super::{BINS, Bin, Bins, Bitmap, NIL, SIZES, UNIT};
use crate::device::sim::Rng;
use crate::heap::{Extent, Id, State};

/// Bytes of holes in lists, beside others of their size, and without a bin.
const LISTED: u64 = 70 * UNIT;
const BESIDE: u64 = (BINS as u64 + 1) * UNIT;
const LARGE: u64 = SIZES as u64 * UNIT;

/// Three holes of each kind, filed from the middle; as `ids` has them, the lowest first.
fn made() -> (Bins, Vec<Extent>) {
    let mut table = vec![Extent::BLANK];
    let mut start = UNIT;
    for bytes in [
        LISTED, LISTED, LISTED, BESIDE, BESIDE, BESIDE, LARGE, LARGE, LARGE,
    ] {
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
    for id in [2, 1, 3, 5, 4, 6, 8, 7, 9] {
        let bytes = table[id as usize].bytes;
        index.insert(&mut table, id, bytes);
    }
    assert_eq!(index.check(&table), Ok((3 * (LISTED + BESIDE + LARGE), 9)));
    (index, table)
}

fn is_wrong(change: impl FnOnce(&mut Bins, &mut Vec<Extent>)) -> bool {
    let (mut index, mut table) = made();
    change(&mut index, &mut table);
    index.check(&table).is_err()
}

#[test]
fn a_bit_that_does_not_agree_with_those_below_is_found() {
    for at in 0..16 {
        assert!(is_wrong(|index, _| index.filled.groups ^= 1 << at), "{at}");
        for bit in [0, 1, 33, 62, 63] {
            let wrong = is_wrong(|index, _| index.filled.words[at] ^= 1 << bit);
            assert!(wrong, "{at} {bit}");
        }
    }
    for bits in [0, 1, 64, 1023] {
        let before = made().0.filled.bits[bits];
        let other = if before == 0 { 1 } else { 0 };
        assert!(
            is_wrong(|index, _| index.filled.bits[bits] = other),
            "{bits}"
        );
    }
    assert!(is_wrong(|index, _| index.filled.set(Bin(77))));
}

#[test]
fn a_hole_in_a_bin_that_is_not_its_own_is_found() {
    for (id, of) in [(3, LISTED), (1, LISTED), (4, BESIDE)] {
        let id = id as usize;
        assert!(is_wrong(|_, table| table[id].bytes += UNIT), "{id}");
        assert!(
            is_wrong(|_, table| table[id].state = State::Allocated),
            "{id}"
        );
        let bin = Bin((of / UNIT) as usize);
        assert!(is_wrong(|index, _| index.heads.set(bin, NIL)), "{id}");
        assert!(is_wrong(|index, _| index.heads.set(bin, 100)), "{id}");
    }
    assert!(is_wrong(|_, table| table[3].newer = 1));
    assert!(is_wrong(|_, table| table[1].newer = NIL));
    assert!(is_wrong(|_, table| table[2].older = 100));
    // What is beside others of its size has no neighbour that was filed later.
    assert!(!is_wrong(|_, table| table[4].newer = 1));
}

#[test]
fn holes_that_are_not_filed_are_not_held() {
    let (mut index, table) = made();
    for id in 1..=9 {
        assert!(index.holds(&table, id), "{id}");
    }
    // Beside itself, and beside one that lies higher, or where it lies.
    for id in [4, 6] {
        let key = (BESIDE, table[id as usize].start, id);
        let was = index.others.contains(&key);
        assert_eq!(was, id == 6);
        if was {
            index.others.remove(&key);
        } else {
            index.others.insert(key);
        }
        assert!(!index.holds(&table, id), "{id}");
    }
    let (index, mut higher) = made();
    for start in [higher[6].start + UNIT, higher[6].start] {
        higher[4].start = start;
        assert!(!index.holds(&higher, 6));
    }
    for id in [3, 1, 2, 6, 4, 5, 9, 8, 7] {
        let (mut index, mut table) = made();
        index.remove(&mut table, id);
        for other in 1..=9 {
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
    let firsts: Vec<Id> = [UNIT, LISTED + UNIT, BESIDE + UNIT]
        .iter()
        .filter_map(|&bytes| index.best(bytes))
        .collect();
    assert_eq!(firsts, [3, 4, 7]);
    let all: Vec<Id> = index.at_least(0).collect();
    assert_eq!(all, [3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn the_first_bit_from_any_on_is_found_whatever_bits_there_are() {
    let mut random = Rng::new(9);
    for round in 0..300 {
        let (mut bits, mut said) = (Bitmap::new(), BTreeSet::new());
        // Bits of a word, of a group, of all; few and many.
        let reach = [64, 400, 4096, 9000, SIZES as u64][round % 5];
        let first = random.below(SIZES as u64 - reach + 1);
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
            assert_eq!(bits.last(), said.last().copied());
            for from in [drawn(&mut random), bin, first as usize, 0, SIZES - 1] {
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
