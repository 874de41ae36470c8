//! In what order moves may be made, and which of them in one launch.
//!
//! A move may be made once nothing that another move has yet to read lies in its destination. The
//! moves that wait for none are one disjoint batch. Most that wait do so along a row of neighbours
//! that shift the same way: those are one slide, which reads before it writes. What is neither is a
//! circle, which `plan_circle.rs` takes apart.

use super::plan::{Batch, Move};
use super::plan_circle::take_apart;

/// Puts `moves` in an order that loses nothing, or `None` if there is no such order.
///
/// `holes` are free ranges (address, bytes) before the first move, as far as they may be used.
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

/// Takes the most of `moves`, which ascend, that one launch can make now.
pub(super) fn next_batch(moves: &mut Vec<Move>) -> Option<Batch> {
    let free: Vec<bool> = (0..moves.len())
        .map(|i| readers(moves, i).is_empty())
        .collect();
    let slides = [false, true].map(|upward| (upward, slidable(moves, upward)));
    let (upward, row) = slides.into_iter().max_by_key(|(_, row)| count(row))?;
    // Disjoint moves need no flags, so they are taken first; but a row in which each waits for
    // the one before would then take a launch a move.
    if 2 * count(&free) >= count(&row).max(1) {
        Some(Batch::Disjoint(extract(moves, &free)))
    } else if count(&row) > 0 {
        let moves = extract(moves, &row);
        Some(Batch::Slide { upward, moves })
    } else {
        None
    }
}

/// The ranges (begin, end) that are free once `made` are made where `free` were before.
pub(super) fn free_after(mut free: Vec<(u64, u64)>, made: &[Move]) -> Vec<(u64, u64)> {
    free.extend(made.iter().map(|m| (m.src, m.src + m.bytes)));
    difference(
        free,
        made.iter().map(|m| (m.dst, m.dst + m.bytes)).collect(),
    )
}

/// The ranges (begin, end) of `free`, touching ones joined, without what any of `taken` covers.
pub(super) fn difference(mut free: Vec<(u64, u64)>, mut taken: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    free.sort_unstable();
    taken.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in free {
        match joined.last_mut().filter(|last| begin <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => joined.push((begin, end)),
        }
    }
    let mut rooms = Vec::new();
    for (mut begin, end) in joined {
        for &(from, to) in &taken {
            if from >= end || to <= begin {
                continue;
            }
            if from > begin {
                rooms.push((begin, from));
            }
            begin = begin.max(to);
        }
        if begin < end {
            rooms.push((begin, end));
        }
    }
    rooms
}

fn count(which: &[bool]) -> usize {
    which.iter().filter(|&&chosen| chosen).count()
}

/// The range of moves, by index, whose sources meet the destination of move `i`; itself included.
pub(super) fn readers(moves: &[Move], i: usize) -> std::ops::Range<usize> {
    let (begin, end) = (moves[i].dst, moves[i].dst + moves[i].bytes);
    let first = moves.partition_point(|m| m.src + m.bytes <= begin);
    let last = moves.partition_point(|m| m.src < end);
    first..last.max(first)
}

/// Which of `moves` can be one slide in the given direction.
fn slidable(moves: &[Move], upward: bool) -> Vec<bool> {
    let mut member: Vec<bool> = moves.iter().map(|m| (m.dst > m.src) == upward).collect();
    keep_ascending(moves, &mut member);
    loop {
        let stuck: Vec<usize> = (0..moves.len())
            .filter(|&i| member[i] && readers(moves, i).any(|reader| !member[reader]))
            .collect();
        if stuck.is_empty() {
            return member;
        }
        for i in stuck {
            member[i] = false;
        }
    }
}

/// Drops members whose destination is not beyond that of the member before.
fn keep_ascending(moves: &[Move], member: &mut [bool]) {
    let mut end = 0;
    for (m, member) in moves.iter().zip(member) {
        *member &= m.dst >= end;
        if *member {
            end = m.dst + m.bytes;
        }
    }
}

fn extract(moves: &mut Vec<Move>, which: &[bool]) -> Vec<Move> {
    let mut at = which.iter();
    let mut out = Vec::new();
    moves.retain(|&m| {
        let taken = at.next().is_some_and(|&taken| taken);
        if taken {
            out.push(m);
        }
        !taken
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::Rng;

    /// The bytes below 64 in any of the ranges.
    fn bytes_in(ranges: &[(u64, u64)]) -> Vec<u64> {
        let inside = |at: &u64| ranges.iter().any(|range| (range.0..range.1).contains(at));
        (0..64).filter(inside).collect()
    }

    #[test]
    fn what_is_left_of_ranges_is_every_byte_of_theirs_that_no_other_covers() {
        let mut random = Rng::new(7);
        for _ in 0..3000 {
            let mut drawn = |most: u64| -> Vec<(u64, u64)> {
                let range = |random: &mut Rng| {
                    let begin = random.below(60);
                    (begin, begin + 1 + random.below(12).min(63 - begin))
                };
                (0..random.below(most))
                    .map(|_| range(&mut random))
                    .collect()
            };
            let (free, taken) = (drawn(5), drawn(4));
            let left = difference(free.clone(), taken.clone());
            let covered = bytes_in(&taken);
            let mut said = bytes_in(&free);
            said.retain(|at| !covered.contains(at));
            assert_eq!(bytes_in(&left), said, "{free:?} without {taken:?}");
            // In order and apart, but for what is taken of no byte.
            assert!(left.iter().all(|range| range.0 < range.1));
            assert!(
                left.windows(2)
                    .all(|pair| pair[0].1 < pair[1].0 || !taken.is_empty())
            );
        }
    }

    #[test]
    fn what_blocks_left_is_free_and_what_they_went_to_is_not() {
        let free = free_after(vec![(0, 8), (40, 48)], &[mv(8, 40, 4), mv(20, 2, 3)]);
        assert_eq!(free, [(0, 2), (5, 12), (20, 23), (44, 48)]);
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
        // Of a block that does not move nothing is left.
        assert_eq!(
            in_order([&moves[..2], &[mv(512, 512, 64)]].concat(), &[]),
            None
        );
        assert_eq!(in_order(vec![mv(0, 64, 0)], &[]), Some(Vec::new()));
    }

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
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
    fn a_row_that_shifts_by_its_own_pitch_does_not_take_a_launch_a_block() {
        let batches = in_order(
            (1..1000).map(|i| mv(i * 64, (i - 1) * 64, 64)).collect(),
            &[],
        );
        assert!(batches.expect("there is an order").len() <= 2);
    }
}
