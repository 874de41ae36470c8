//! The largest set of moves that one launch can execute now.

use super::batch::{Batch, Move};

/// Removes from `moves`, which ascend, the largest set that one launch can execute now, and returns
/// it.
pub(super) fn next_batch(moves: &mut Vec<Move>) -> Option<Batch> {
    let free: Vec<bool> = (0..moves.len())
        .map(|i| readers(moves, i).is_empty())
        .collect();
    let slides = [false, true].map(|upward| (upward, slidable(moves, upward)));
    let (upward, row) = slides.into_iter().max_by_key(|(_, row)| count(row))?;
    // Disjoint moves need no flags, so they are preferred. But in a row of moves that each wait for
    // the one before, taking disjoint moves would mean one launch per move.
    if 2 * count(&free) >= count(&row).max(1) {
        Some(Batch::Disjoint(extract(moves, &free)))
    } else if count(&row) > 0 {
        let moves = extract(moves, &row);
        Some(Batch::Slide { upward, moves })
    } else {
        None
    }
}

fn count(which: &[bool]) -> usize {
    which.iter().filter(|&&chosen| chosen).count()
}

/// The range of moves, by index, whose sources overlap the destination of move `i`; it may include
/// `i`.
pub(super) fn readers(moves: &[Move], i: usize) -> std::ops::Range<usize> {
    let (begin, end) = (moves[i].dst, moves[i].dst + moves[i].bytes);
    let first = moves.partition_point(|m| m.src + m.bytes <= begin);
    let last = moves.partition_point(|m| m.src < end);
    first..last.max(first)
}

/// Which of `moves` can form one slide in the given direction.
fn slidable(moves: &[Move], upward: bool) -> Vec<bool> {
    let mut member: Vec<bool> = moves.iter().map(|m| (m.dst > m.src) == upward).collect();
    keep_ascending(moves, &mut member);
    // A move that reads the destination of another lies in the direction of the slide, so it is
    // decided first.
    let mut look = |i: usize| {
        member[i] = member[i] && readers(moves, i).all(|reader| member[reader]);
    };
    match upward {
        true => (0..moves.len()).rev().for_each(&mut look),
        false => (0..moves.len()).for_each(&mut look),
    }
    member
}

/// Removes members whose destination does not lie after that of the member before.
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

    #[test]
    fn a_block_that_passes_over_another_is_no_part_of_its_slide() {
        let block = |src, dst| Move {
            src,
            dst,
            bytes: 10,
        };
        let down = [(100, 50), (200, 10), (300, 60)].map(|(src, dst)| block(src, dst));
        assert_eq!(slidable(&down, false), [true, false, true]);
        assert_eq!(slidable(&down, true), [false; 3]);
        let up = [(100, 450), (200, 410), (300, 460)].map(|(src, dst)| block(src, dst));
        assert_eq!(slidable(&up, true), [true, false, true]);
        // One byte short of lying behind the one before.
        let close = [(100, 50), (200, 59), (300, 69)].map(|(src, dst)| block(src, dst));
        assert_eq!(slidable(&close, false), [true, false, true]);
    }

    #[test]
    fn a_move_reads_where_another_goes_if_they_share_a_byte_and_not_if_they_touch() {
        let block = |src, dst| Move {
            src,
            dst,
            bytes: 10,
        };
        // The destination of the first is [35, 45). The sources lie before it, at its start, at its
        // end, and after it.
        let moves = [(25, 35), (34, 0), (44, 10), (54, 20)].map(|(src, dst)| block(src, dst));
        assert_eq!(readers(&moves, 0), 1..3);
        let touch = [(25, 35), (45, 0)].map(|(src, dst)| block(src, dst));
        assert_eq!(readers(&touch, 0), 1..1);
    }
}
