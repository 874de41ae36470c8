//! The order in which moves may be executed, and which of them share a launch.
//!
//! A move may be executed once its destination overlaps no source that another move has yet to
//! read. Moves that wait for no other move form one disjoint batch. Most moves that wait are in a
//! row of neighbours that shift in the same direction: they form one slide, which reads before it
//! writes. Any other moves form a cycle, which `cycle.rs` splits into pieces.

use super::batch::{Batch, Move};
use super::cycle::take_apart;
use super::next_batch::next_batch;
use super::ranges::free_after;

/// Orders `moves` so that no data is lost; `None` if there is no such order.
///
/// `holes` are the free ranges (address, bytes) before the first move that parked bytes may use.
pub(super) fn in_order(mut moves: Vec<Move>, holes: &[(u64, u64)]) -> Option<Vec<Batch>> {
    moves.retain(|m| m.src != m.dst && m.bytes > 0);
    moves.sort_unstable_by_key(|m| m.src);
    let mut free: Vec<(u64, u64)> = holes.iter().map(|&(at, bytes)| (at, at + bytes)).collect();
    let mut batches: Vec<Batch> = Vec::new();
    while let Some(batch) = next_batch(&mut moves) {
        free = free_after(free, batch.moves());
        batches.push(batch);
    }
    if !moves.is_empty() {
        let pieces = take_apart(moves.clone(), free)?;
        batches.push(Batch::Circle { moves, pieces });
    }
    Some(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn a_circle_goes_by_way_of_what_moves_before_it_left() {
        let moves = vec![mv(0, 64, 64), mv(64, 0, 64), mv(512, 1024, 64)];
        let batches = in_order(moves.clone(), &[]).expect("room for a block");
        assert_eq!(batches[0], Batch::Disjoint(vec![moves[2]]));
        let Batch::Circle { moves: of, pieces } = &batches[1] else {
            panic!("{batches:?}");
        };
        assert_eq!((of.as_slice(), pieces.len()), (&moves[..2], 3));
        let ways = pieces.iter().flat_map(Batch::moves);
        assert!(ways.into_iter().any(|way| way.dst == 512));
        // A block that does not move leaves no free range.
        assert_eq!(
            in_order([&moves[..2], &[mv(512, 512, 64)]].concat(), &[]),
            None
        );
        assert_eq!(in_order(vec![mv(0, 64, 0)], &[]), Some(Vec::new()));
    }

    #[test]
    fn two_blocks_that_swap_places_have_no_order() {
        assert_eq!(in_order(vec![mv(0, 64, 64), mv(64, 0, 64)], &[]), None);
    }

    #[test]
    fn a_row_of_neighbours_is_one_slide() {
        let row: Vec<Move> = (0..100).map(|i| mv(64 + i * 64, i * 64 + 16, 64)).collect();
        assert_eq!(
            in_order(row.clone(), &[]),
            Some(vec![Batch::Slide {
                upward: false,
                moves: row
            }])
        );
    }

    #[test]
    fn a_move_into_room_that_another_leaves_comes_after_it() {
        let (first, second) = (mv(0, 1024, 64), mv(512, 0, 64));
        let expected = vec![Batch::Disjoint(vec![first]), Batch::Disjoint(vec![second])];
        assert_eq!(in_order(vec![second, first], &[]), Some(expected));
    }

    #[test]
    fn rows_that_part_are_a_slide_each_way() {
        let down = mv(64, 32, 64);
        let up = mv(128, 160, 64);
        let expected = vec![
            Batch::Slide {
                upward: false,
                moves: vec![down],
            },
            Batch::Slide {
                upward: true,
                moves: vec![up],
            },
        ];
        let mut batches = in_order(vec![down, up], &[]).expect("there is an order");
        batches.sort_by_key(|batch| matches!(batch, Batch::Slide { upward: true, .. }));
        assert_eq!(batches, expected);
    }

    #[test]
    fn a_long_row_behind_a_block_that_goes_elsewhere_is_ordered_in_one_pass() {
        let count = 100_000;
        let mut moves = vec![mv(0, 64 * count, 64)];
        moves.extend((1..count).map(|i| mv(i * 64, (i - 1) * 64, 64)));
        let began = std::time::Instant::now();
        let batches = in_order(moves, &[]).expect("there is an order");
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
        assert_eq!(batches.len(), 2);
    }

    #[test]
    fn a_row_that_shifts_by_its_own_pitch_does_not_take_a_launch_a_block() {
        let batches = in_order(
            (1..1000).map(|i| mv(i * 64, (i - 1) * 64, 64)).collect(),
            &[],
        );
        assert!(batches.expect("there is an order").len() <= 2);
    }
}
