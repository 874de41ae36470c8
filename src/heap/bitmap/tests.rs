use std::collections::BTreeSet;

use super::{Bitmap, GROUPS, MOST};
use crate::device::sim::Rng;

#[test]
fn the_first_bit_from_any_on_is_found_whatever_bits_there_are() {
    let mut random = Rng::new(9);
    for round in 0..300 {
        let (mut bits, mut said) = (Bitmap::EMPTY, BTreeSet::new());
        // Bits of a word, of some, of a group, of all; few and many.
        let reach = [64, 200, 400, 64 * 64, MOST as u64][round % 5];
        let first = random.below(MOST as u64 - reach + 1);
        let drawn = |random: &mut Rng| (first + random.below(reach)) as usize;
        for _ in 0..1 + round % 40 {
            let bin = drawn(&mut random);
            match random.below(3) {
                0 => {
                    let empty = random.below(3) > 0;
                    bits.clear_if(bin, empty);
                    said.retain(|&at| at != bin || !empty);
                }
                _ => {
                    bits.set(bin);
                    said.insert(bin);
                }
            }
            assert_eq!(bits.is_empty(), said.is_empty());
            let half = MOST / GROUPS;
            for from in [drawn(&mut random), bin, first as usize, 0, half - 1, half] {
                let next = said.range(from..).next().copied();
                assert_eq!(bits.next(from), next, "{said:?} from {from}");
            }
        }
    }
}
