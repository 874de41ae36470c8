//! Splits off the parts of a slide whose moves do not overlap.
//!
//! The time of a slide includes every byte between its first and last source, holes too: on an H200
//! a step of 180 MB took 98 us if its blocks were adjacent, and up to 205 us with holes between
//! them. The time of disjoint moves depends only on the bytes of the blocks. In a slide, each block
//! moves farther than those before it. Once blocks move farther than the length of a piece of the
//! slide, that piece overlaps itself nowhere. It becomes a launch of its own if that saves more
//! than a launch costs.

use super::batch::{Batch, Move};

/// Bytes of holes that a slide passes over in the time of one launch.
const LAUNCH_PASSES: u64 = 70 << 20;

/// Disjoint moves of `SLIDE_PART` bytes are faster than a slide of them by the time that a slide
/// needs to pass over one byte.
const SLIDE_PART: u64 = 20;

/// Returns `batches` with their slides split, to be executed in this order.
pub(super) fn split_slides(batches: Vec<Batch>) -> Vec<Batch> {
    let each = batches.into_iter().map(|batch| match batch {
        Batch::Slide { upward, moves } => split_slide(upward, moves),
        other @ (Batch::Disjoint(_) | Batch::Circle { .. }) => vec![other],
    });
    each.flatten().collect()
}

/// Splits one slide.
fn split_slide(upward: bool, mut moves: Vec<Move>) -> Vec<Batch> {
    if upward {
        moves.reverse();
    }
    let (mut batches, mut rest) = (Vec::new(), 0);
    // `moves[from..to]` is the next piece, in the order of execution: no destination in it overlaps
    // a source of the others.
    let (mut from, mut to, mut bytes) = (0, 0, 0);
    while from < moves.len() {
        while to < moves.len() && (to == from || clear(upward, &moves[from], &moves[to])) {
            bytes += moves[to].bytes;
            to += 1;
        }
        let alone = clear(upward, &moves[from], &moves[from]);
        let worth = alone && passed(&moves[from..to], bytes) + bytes / SLIDE_PART >= LAUNCH_PASSES;
        if worth || (alone && (from, to) == (0, moves.len())) {
            batches.extend(slide(upward, &moves[rest..from]));
            batches.push(Batch::Disjoint(moves[from..to].to_vec()));
            (from, rest, bytes) = (to, to, 0);
        } else {
            bytes -= moves[from].bytes;
            from += 1;
        }
    }
    batches.extend(slide(upward, &moves[rest..]));
    batches
}

/// Bytes between adjacent `moves`, which have `bytes` together; either direction.
fn passed(moves: &[Move], bytes: u64) -> u64 {
    let (Some(first), Some(last)) = (moves.first(), moves.last()) else {
        return 0;
    };
    let (low, high) = if first.src < last.src {
        (first, last)
    } else {
        (last, first)
    };
    high.src + high.bytes - low.src - bytes
}

/// Whether the destination of `last` lies past the source of `first`, in the slide's direction.
fn clear(upward: bool, first: &Move, last: &Move) -> bool {
    match upward {
        true => last.dst >= first.src + first.bytes,
        false => last.dst + last.bytes <= first.src,
    }
}

fn slide(upward: bool, moves: &[Move]) -> Option<Batch> {
    let mut moves = moves.to_vec();
    moves.sort_unstable_by_key(|m| m.src);
    (!moves.is_empty()).then_some(Batch::Slide { upward, moves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The moves that slide all `blocks` (bytes of the hole before the block, its bytes) together.
    fn rows(upward: bool, blocks: &[(u64, u64)]) -> Vec<Move> {
        let mut at = 0;
        let mut to = 0;
        let down: Vec<Move> = blocks
            .iter()
            .map(|&(hole, bytes)| {
                let (src, dst) = (at + hole, to);
                (at, to) = (src + bytes, dst + bytes);
                Move { src, dst, bytes }
            })
            .filter(|m| m.src != m.dst)
            .collect();
        let mirror = |m: &Move| Move {
            src: at - m.src - m.bytes,
            dst: at - m.dst - m.bytes,
            ..*m
        };
        match upward {
            true => down.iter().rev().map(mirror).collect(),
            false => down,
        }
    }

    /// The origin of each unit of memory after `batches`. Each batch reads before it writes.
    fn made(batches: &[Batch], units: usize, unit: u64) -> Vec<usize> {
        let mut memory: Vec<usize> = (0..units).collect();
        for batch in batches {
            let before = memory.clone();
            for m in batch.moves() {
                let [src, dst, count] = [m.src, m.dst, m.bytes].map(|v| (v / unit) as usize);
                if matches!(batch, Batch::Disjoint(_)) {
                    let others = batch.moves().iter();
                    let meets = |o: &Move| m.dst < o.src + o.bytes && o.src < m.dst + m.bytes;
                    assert!(!others.clone().any(meets), "{m:?}");
                }
                memory[dst..dst + count].copy_from_slice(&before[src..src + count]);
            }
        }
        memory
    }

    #[test]
    fn what_a_slide_passes_over_is_what_lies_between_its_moves() {
        let way = |src: u64, bytes| Move {
            src,
            dst: src / 2,
            bytes,
        };
        let row = [
            way(1024, 256),
            way(2048, 512),
            way(2560, 256),
            way(4096, 256),
        ];
        let bytes = row.iter().map(|m| m.bytes).sum();
        let between = (2048 - 1280) + (4096 - 2816);
        assert_eq!(passed(&row, bytes), between);
        let mut back = row;
        back.reverse();
        assert_eq!(passed(&back, bytes), between);
        assert_eq!((passed(&row[..1], 256), passed(&[], 0)), (0, 0));
        for (upward, to, is) in [(false, 768, true), (false, 769, false), (true, 1280, true)] {
            let last = Move {
                dst: to,
                ..way(9000, 256)
            };
            assert_eq!(clear(upward, &row[0], &last), is, "{to}");
        }
        let last = Move {
            dst: 1279,
            ..way(9000, 256)
        };
        assert!(!clear(true, &row[0], &last));
    }

    /// Expected pieces: each starts at the first move from which disjoint moves are worth a launch.
    fn worth_it(upward: bool, moves: &[Move]) -> Vec<Batch> {
        let mut ordered = moves.to_vec();
        if upward {
            ordered.reverse();
        }
        let overlaps = |m: &Move, of: &Move| m.dst < of.src + of.bytes && of.src < m.dst + m.bytes;
        let piece = |from: usize, rest: &[Move]| {
            let row = &rest[from..];
            // Destinations ascend with sources, so a destination that overlaps no source lies after
            // all of them.
            let apart = row.iter().take_while(|m| {
                let before = row.iter().take_while(|of| of.src != m.src);
                !before.chain([*m]).any(|of| overlaps(m, of)) && (m.dst > row[0].src) == upward
            });
            let row = &row[..apart.count()];
            let low = row.iter().map(|m| m.src).min()?;
            let high = row.iter().map(|m| m.src + m.bytes).max()?;
            let bytes: u64 = row.iter().map(|m| m.bytes).sum();
            let saved = (high - low - bytes) + bytes / SLIDE_PART;
            let all = from == 0 && rest.len() == moves.len() && row.len() == moves.len();
            (saved >= LAUNCH_PASSES || all).then(|| row.to_vec())
        };
        let (mut batches, mut rest) = (Vec::new(), &ordered[..]);
        while let Some((from, row)) =
            (0..rest.len()).find_map(|from| Some((from, piece(from, rest)?)))
        {
            batches.extend(slide(upward, &rest[..from]));
            rest = &rest[from + row.len()..];
            batches.push(Batch::Disjoint(row));
        }
        batches.extend(slide(upward, rest));
        batches
    }

    proptest! {
        #[test]
        fn a_slide_is_taken_apart_as_soon_as_a_launch_is_worth_it(
            upward in any::<bool>(),
            blocks in prop::collection::vec((0..12u64, 1..9u64), 1..40),
            unit in prop::sample::select(vec![1u64 << 20, 5 << 20, 30 << 20]),
        ) {
            let blocks: Vec<_> = blocks.iter().map(|&(h, b)| (h * unit, b * unit)).collect();
            let moves = rows(upward, &blocks);
            prop_assume!(!moves.is_empty());
            prop_assert_eq!(split_slide(upward, moves.clone()), worth_it(upward, &moves));
        }

        #[test]
        fn the_pieces_of_a_slide_do_what_the_slide_does(
            upward in any::<bool>(),
            blocks in prop::collection::vec((0..12u64, 1..9u64), 1..40),
        ) {
            let unit = 16 << 20;
            let blocks: Vec<_> = blocks.iter().map(|&(h, b)| (h * unit, b * unit)).collect();
            let units = (blocks.iter().map(|(h, b)| h + b).sum::<u64>() / unit) as usize;
            let moves = rows(upward, &blocks);
            prop_assume!(!moves.is_empty());
            let whole = [Batch::Slide { upward, moves }];
            let pieces = split_slides(whole.to_vec());
            let expected = made(&whole, units, unit);
            let got = made(&pieces, units, unit);
            for m in whole[0].moves() {
                let at = (m.dst / unit) as usize..((m.dst + m.bytes) / unit) as usize;
                prop_assert_eq!(&got[at.clone()], &expected[at]);
            }
            let count = |batches: &[Batch]| batches.iter().map(|b| b.moves().len()).sum::<usize>();
            prop_assert_eq!(count(&pieces), count(&whole));
        }
    }

    #[test]
    fn a_long_row_is_a_slide_at_first_and_few_disjoint_pieces_then() {
        for upward in [false, true] {
            let moves = rows(upward, &vec![(5 << 20, 10 << 20); 5000]);
            let pieces = split_slides(vec![Batch::Slide { upward, moves }]);
            let disjoint = |batch: &&Batch| matches!(batch, Batch::Disjoint(_));
            let bytes: u64 = pieces.iter().filter(disjoint).map(Batch::bytes).sum();
            assert!(pieces.len() < 25, "{}", pieces.len());
            assert!(bytes > 48_000 << 20, "{bytes}");
        }
    }

    #[test]
    fn a_row_that_overlaps_throughout_stays_one_slide() {
        let moves = rows(
            false,
            &[vec![(1 << 20, 100 << 20)], vec![(0, 100 << 20); 9]].concat(),
        );
        let whole = vec![Batch::Slide {
            upward: false,
            moves,
        }];
        assert_eq!(split_slides(whole.clone()), whole);
    }
}
