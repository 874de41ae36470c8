//! Splitting a cycle of moves into pieces.
//!
//! Two blocks that swap places, or more that rotate, have no order in which each could be moved
//! whole. In pieces they have one. If part of a destination is free, that part is filled, which
//! frees as many bytes elsewhere. If no part is free, the fewest bytes in the way of some block are
//! parked in free ranges that are no block's destination, in as many pieces as those ranges
//! require. Only parked bytes are copied twice.

use super::batch::{Batch, Move};
use super::next_batch::{next_batch, readers};
use super::ranges::{difference, free_after};

/// Most launches of one cycle.
const MOST_LAUNCHES: usize = 64;

/// A piece is launched before the rest of its move if it is at least 1/`AHEAD` of the move.
const AHEAD: u64 = 4;

/// The launches that execute `moves`, which ascend and change every address. `free` are ranges
/// (begin, end). `None` if this takes too many launches, or if no free range can be used.
pub(super) fn take_apart(mut moves: Vec<Move>, mut free: Vec<(u64, u64)>) -> Option<Vec<Batch>> {
    let mut launches = Vec::new();
    while !moves.is_empty() {
        if launches.len() == MOST_LAUNCHES {
            return None;
        }
        let batch = match next_batch(&mut moves) {
            Some(batch) => batch,
            None => Batch::Disjoint(match ahead(&mut moves) {
                Some(piece) => vec![piece],
                None => park(&mut moves, &free)?,
            }),
        };
        free = free_after(free, batch.moves());
        launches.push(batch);
    }
    Some(launches)
}

/// The part of `m` that reads `begin..end`.
fn part(m: &Move, begin: u64, end: u64) -> Move {
    Move {
        src: begin,
        dst: m.dst + (begin - m.src),
        bytes: end - begin,
    }
}

/// The parts of `m` that read outside `begin..end`.
fn around(m: &Move, begin: u64, end: u64) -> impl Iterator<Item = Move> {
    let ends = m.src + m.bytes;
    let parts = [part(m, m.src, begin), part(m, end, ends)];
    parts.into_iter().filter(|part| part.bytes > 0)
}

/// Takes the largest piece of any move whose destination is not occupied, if it is worth a launch.
fn ahead(moves: &mut Vec<Move>) -> Option<Move> {
    let mut best: Option<(usize, Move)> = None;
    for (i, m) in moves.iter().enumerate() {
        let taken = readers(moves, i).map(|r| (moves[r].src, moves[r].src + moves[r].bytes));
        for (begin, end) in difference(vec![(m.dst, m.dst + m.bytes)], taken.collect()) {
            let piece = part(m, m.src + (begin - m.dst), m.src + (end - m.dst));
            let larger = best.is_none_or(|(_, best)| piece.bytes > best.bytes);
            if larger && piece.bytes >= m.bytes.div_ceil(AHEAD) {
                best = Some((i, piece));
            }
        }
    }
    let (i, piece) = best?;
    let whole = moves.remove(i);
    moves.extend(around(&whole, piece.src, piece.src + piece.bytes));
    moves.sort_unstable_by_key(|m| m.src);
    Some(piece)
}

/// Parks the fewest bytes of other blocks that lie in some move's destination, as far as free
/// ranges hold them. Their moves continue from there.
fn park(moves: &mut Vec<Move>, free: &[(u64, u64)]) -> Option<Vec<Move>> {
    let sources = moves.iter().map(|m| (m.src, m.src + m.bytes));
    let targets = moves.iter().map(|m| (m.dst, m.dst + m.bytes));
    let mut rooms = difference(free.to_vec(), sources.chain(targets).collect()).into_iter();
    let (_, blocked) = (0..moves.len())
        .map(|i| (in_the_way(moves, i).map(|m| m.1 - m.0).sum::<u64>(), i))
        .min()?;
    let obstacles: Vec<(u64, u64)> = in_the_way(moves, blocked).collect();
    let mut parked = Vec::new();
    let mut room = rooms.next()?;
    for (mut begin, end) in obstacles {
        while begin < end {
            if room.0 == room.1 {
                let Some(next) = rooms.next() else {
                    return Some(parked);
                };
                room = next;
            }
            let bytes = (end - begin).min(room.1 - room.0);
            parked.push(divert(moves, begin, bytes, room.0)?);
            room.0 += bytes;
            begin += bytes;
        }
    }
    Some(parked)
}

/// The ranges in the destination of move `i` that other moves have yet to read.
fn in_the_way(moves: &[Move], i: usize) -> impl Iterator<Item = (u64, u64)> {
    let m = moves[i];
    readers(moves, i).filter(move |&r| r != i).map(move |r| {
        let other = moves[r];
        let end = (m.dst + m.bytes).min(other.src + other.bytes);
        (m.dst.max(other.src), end)
    })
}

/// Redirects `bytes` from `begin` on, part of one move, to `to`; a further move continues from
/// there.
fn divert(moves: &mut Vec<Move>, begin: u64, bytes: u64, to: u64) -> Option<Move> {
    let of = moves.partition_point(|m| m.src + m.bytes <= begin);
    if of == moves.len() {
        return None;
    }
    let whole = moves.remove(of);
    let piece = part(&whole, begin, begin + bytes);
    moves.extend(around(&whole, begin, begin + bytes));
    moves.push(Move { src: to, ..piece });
    moves.sort_unstable_by_key(|m| m.src);
    Some(Move { dst: to, ..piece })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::sim::Rng;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn two_blocks_swap_places_by_way_of_holes_too_small_for_either() {
        let moves = vec![mv(0, 64, 64), mv(64, 0, 64)];
        let launches = take_apart(moves, vec![(512, 552), (600, 640)]).expect("there is room");
        let parked = [mv(64, 512, 40), mv(104, 600, 24)];
        assert_eq!(launches[0], Batch::Disjoint(parked.to_vec()));
        let bytes: u64 = launches.iter().map(Batch::bytes).sum();
        assert_eq!((launches.len(), bytes), (3, 192));
    }

    #[test]
    fn what_is_free_of_a_destination_is_filled_before_anything_is_parked() {
        // The upper half of the first move's destination is free.
        let moves = vec![mv(0, 96, 64), mv(64, 0, 64)];
        let launches = take_apart(moves, vec![(128, 160), (512, 1024)]).expect("there is room");
        assert_eq!(launches[0], Batch::Disjoint(vec![mv(32, 128, 32)]));
        let bytes: u64 = launches.iter().map(Batch::bytes).sum();
        assert!(bytes <= 160, "{launches:?}");
    }

    const SPACE: u64 = 96;

    /// Moves of adjacent or separate blocks in a small space, from random places to random places.
    /// Every block changes its address.
    fn drawn(random: &mut Rng) -> Vec<Move> {
        let sizes: Vec<u64> = (0..2 + random.below(5))
            .map(|_| 1 + random.below(14))
            .collect();
        let mut places = || {
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
            let (mut at, mut places) = (0, vec![0; sizes.len()]);
            for of in order {
                at += random.below(6) / 3;
                places[of] = at;
                at += sizes[of];
            }
            places
        };
        let (from, to) = (places(), places());
        let ways = from.into_iter().zip(to).zip(sizes);
        let mut moves: Vec<Move> = ways
            .map(|((src, dst), bytes)| mv(src, dst, bytes))
            .collect();
        moves.retain(|m| m.src != m.dst);
        moves.sort_unstable_by_key(|m| m.src);
        moves
    }

    /// The destination of each byte that `moves` read.
    fn ways(moves: &[Move]) -> BTreeMap<u64, u64> {
        let bytes = moves
            .iter()
            .flat_map(|m| (0..m.bytes).map(|at| (m.src + at, m.dst + at)));
        bytes.collect()
    }

    /// The ranges of bytes for which `is` returns true.
    fn ranges(is: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let bytes: Vec<u64> = (0..SPACE).filter(|&at| is(at)).collect();
        let runs = bytes.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| (run[0], run[run.len() - 1] + 1)).collect()
    }

    #[test]
    fn every_byte_arrives_whatever_circles_blocks_move_in_and_no_other_is_touched() {
        let (mut random, mut apart) = (Rng::new(23), 0);
        for _ in 0..3000 {
            let moves = drawn(&mut random);
            let ways = ways(&moves);
            let fixed: Vec<u64> = (0..SPACE)
                .filter(|at| !ways.contains_key(at) && !ways.values().any(|to| to == at))
                .filter(|_| random.below(3) == 0)
                .collect();
            let free = ranges(|at| !ways.contains_key(&at) && !fixed.contains(&at));
            let Some(launches) = take_apart(moves.clone(), free) else {
                continue;
            };
            let before: Vec<u64> = (0..SPACE).collect();
            let mut memory = before.clone();
            for launch in &launches {
                // A launch reads before it writes.
                let read = memory.clone();
                for m in launch.moves() {
                    let from = &read[m.src as usize..(m.src + m.bytes) as usize];
                    memory[m.dst as usize..][..from.len()].copy_from_slice(from);
                }
            }
            assert!(ways.iter().all(|(from, &to)| memory[to as usize] == *from));
            assert!(fixed.iter().all(|&at| memory[at as usize] == at));
            let bytes: u64 = launches.iter().map(Batch::bytes).sum();
            assert!(bytes <= 2 * ways.len() as u64, "{bytes}: {moves:?}");
            apart += usize::from(bytes > ways.len() as u64);
        }
        assert!(apart > 200, "{apart}");
    }

    #[test]
    fn what_goes_ahead_is_the_largest_piece_that_nothing_stands_in_the_way_of() {
        let (mut random, mut seen) = (Rng::new(24), 0);
        for _ in 0..3000 {
            let moves = drawn(&mut random);
            let before = ways(&moves);
            let mut largest: Option<Move> = None;
            for m in &moves {
                let runs =
                    ranges(|at| at.wrapping_sub(m.dst) < m.bytes && !before.contains_key(&at));
                for (begin, end) in runs {
                    let piece = mv(m.src + (begin - m.dst), begin, end - begin);
                    let enough = AHEAD * piece.bytes >= m.bytes;
                    if enough && largest.is_none_or(|than| piece.bytes > than.bytes) {
                        largest = Some(piece);
                    }
                }
            }
            let mut rest = moves.clone();
            assert_eq!(ahead(&mut rest), largest, "{moves:?}");
            seen += usize::from(largest.is_some());
            assert!(rest.is_sorted_by_key(|m| m.src) && rest.iter().all(|m| m.bytes > 0));
            let mut after = ways(&rest);
            after.extend(ways(largest.as_slice()));
            assert_eq!(after, before);
        }
        assert!(seen > 500, "{seen}");
    }

    #[test]
    fn the_fewest_bytes_in_the_way_of_a_block_are_parked_and_go_on_from_there() {
        let (mut random, mut seen) = (Rng::new(25), 0);
        for _ in 0..3000 {
            let moves = drawn(&mut random);
            let before = ways(&moves);
            if moves.is_empty() {
                continue;
            }
            let obstacles = moves.iter().map(|m| {
                let own = |at: &u64| (m.src..m.src + m.bytes).contains(at);
                let there = (m.dst..m.dst + m.bytes).filter(|at| before.contains_key(at));
                there.filter(|at| !own(at)).count()
            });
            let fewest = obstacles.min().expect("a move");
            let free = ranges(|at| at % 5 > 1 && !before.contains_key(&at));
            let room = |at: &u64| free.iter().any(|&(begin, end)| (begin..end).contains(at));
            let rooms: Vec<u64> = (0..SPACE).filter(room).collect();
            let usable = |at: &&u64| !before.values().any(|to| to == *at);
            let usable: Vec<u64> = rooms.iter().filter(usable).copied().collect();
            let mut rest = moves.clone();
            let Some(parked) = park(&mut rest, &free) else {
                assert!(usable.is_empty());
                continue;
            };
            let parked = ways(&parked);
            assert_eq!(parked.len(), fewest.min(usable.len()), "{moves:?}");
            seen += usize::from(fewest > 0);
            let to: Vec<u64> = parked.values().copied().collect();
            assert!(to.iter().all(|at| usable.contains(at)));
            let after = ways(&rest);
            for (from, to) in &before {
                assert_eq!(after.get(parked.get(from).unwrap_or(from)), Some(to));
            }
            assert_eq!(after.len(), before.len());
            assert!(rest.is_sorted_by_key(|m| m.src) && rest.iter().all(|m| m.bytes > 0));
        }
        assert!(seen > 500, "{seen}");
    }

    #[test]
    fn nothing_free_takes_no_circle_apart() {
        assert_eq!(take_apart(vec![mv(0, 64, 64), mv(64, 0, 64)], vec![]), None);
    }
}
