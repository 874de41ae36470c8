//! In what order moves may be made, and which of them in one launch.
//!
//! A move may be made once nothing that another move has yet to read lies in its destination. The
//! moves that wait for none are one disjoint batch. Most that wait do so along a row of neighbours
//! that shift the same way: those are one slide, which reads before it writes. What is neither is a
//! circle, which needs room that the plan does not have.

use super::plan::{Batch, Move};

/// Puts `moves` in an order that loses nothing, or `None` if there is no such order.
///
/// `holes` are free ranges (address, bytes) before the first move, as far as they may be used. A
/// block that waits for itself in a circle is parked in what is free meanwhile and is the target of
/// no one, the smallest that fits; it is then moved twice.
pub(super) fn in_order(mut moves: Vec<Move>, holes: &[(u64, u64)]) -> Option<Vec<Batch>> {
    moves.retain(|m| m.src != m.dst && m.bytes > 0);
    moves.sort_unstable_by_key(|m| m.src);
    let mut batches: Vec<Batch> = Vec::new();
    let mut to_park = moves.len();
    while !moves.is_empty() {
        let free: Vec<bool> = (0..moves.len())
            .map(|i| readers(&moves, i).is_empty())
            .collect();
        let slides = [false, true].map(|upward| (upward, slidable(&moves, upward)));
        let (upward, row) = slides.into_iter().max_by_key(|(_, row)| count(row))?;
        // Disjoint moves need no flags, so they are taken first; but a row in which each waits for
        // the one before would then take a launch a move.
        if 2 * count(&free) >= count(&row).max(1) {
            batches.push(Batch::Disjoint(extract(&mut moves, &free)));
        } else if count(&row) > 0 {
            batches.push(Batch::Slide {
                upward,
                moves: extract(&mut moves, &row),
            });
        } else if to_park > 0 {
            to_park -= 1;
            batches.push(Batch::Disjoint(vec![park(&mut moves, &batches, holes)?]));
        } else {
            return None;
        }
    }
    Some(batches)
}

/// Sends the smallest block that fits somewhere there and leaves it to go on from there.
fn park(moves: &mut [Move], batches: &[Batch], holes: &[(u64, u64)]) -> Option<Move> {
    let mut free: Vec<(u64, u64)> = holes
        .iter()
        .map(|&(addr, bytes)| (addr, addr + bytes))
        .collect();
    free.extend(
        batches
            .iter()
            .flat_map(Batch::moves)
            .map(|m| (m.src, m.src + m.bytes)),
    );
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for batch in batches {
        // A parked block that has gone on leaves its place free again.
        taken.retain(|range| batch.moves().iter().all(|m| m.src != range.0));
        taken.extend(batch.moves().iter().map(|m| (m.dst, m.dst + m.bytes)));
    }
    taken.extend(moves.iter().map(|m| (m.src, m.src + m.bytes)));
    taken.extend(moves.iter().map(|m| (m.dst, m.dst + m.bytes)));
    let rooms = difference(free, taken);
    let fitting = |bytes: u64| rooms.iter().find(|room| room.1 - room.0 >= bytes);
    let smallest = moves
        .iter_mut()
        .filter(|m| fitting(m.bytes).is_some())
        .min_by_key(|m| m.bytes)?;
    let place = fitting(smallest.bytes)?.0;
    let parked = Move {
        dst: place,
        ..*smallest
    };
    smallest.src = place;
    moves.sort_unstable_by_key(|m| m.src);
    Some(parked)
}

/// The ranges (begin, end) of `free`, touching ones joined, without what any of `taken` covers.
fn difference(mut free: Vec<(u64, u64)>, mut taken: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
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
fn readers(moves: &[Move], i: usize) -> std::ops::Range<usize> {
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

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn two_blocks_that_swap_places_have_no_order() {
        assert_eq!(in_order(vec![mv(0, 64, 64), mv(64, 0, 64)], &[]), None);
    }

    #[test]
    fn two_blocks_swap_places_by_way_of_a_hole() {
        let batches =
            in_order(vec![mv(0, 96, 96), mv(96, 0, 64)], &[(512, 80)]).expect("there is room");
        let moves: Vec<Move> = batches.iter().flat_map(|b| b.moves().to_vec()).collect();
        assert_eq!(moves, [mv(96, 512, 64), mv(0, 96, 96), mv(512, 0, 64)]);
    }

    #[test]
    fn a_block_may_be_parked_where_an_earlier_batch_made_room() {
        let (away, swap) = (mv(512, 2048, 64), [mv(0, 64, 64), mv(64, 0, 64)]);
        let moves = vec![swap[0], swap[1], away];
        let batches = in_order(moves, &[(2048, 64)]).expect("there is room");
        let moves: Vec<Move> = batches.iter().flat_map(|b| b.moves().to_vec()).collect();
        assert_eq!(
            moves,
            [away, mv(0, 512, 64), mv(64, 0, 64), mv(512, 64, 64)]
        );
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
