//! Arithmetic on free ranges.

use super::batch::Move;

/// The ranges (begin, end) that are free after the moves `made`, if `free` were free before.
pub(super) fn free_after(mut free: Vec<(u64, u64)>, made: &[Move]) -> Vec<(u64, u64)> {
    free.extend(made.iter().map(|m| (m.src, m.src + m.bytes)));
    difference(
        free,
        made.iter().map(|m| (m.dst, m.dst + m.bytes)).collect(),
    )
}

/// The ranges (begin, end) of `free`, adjacent ones joined, minus those of `taken`.
pub(in crate::compact) fn difference(
    mut free: Vec<(u64, u64)>,
    mut taken: Vec<(u64, u64)>,
) -> Vec<(u64, u64)> {
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
    let (mut taken, mut covered) = (taken.into_iter().peekable(), 0);
    for (begin, end) in joined {
        let mut begin = begin.max(covered);
        while let Some((from, to)) = taken.next_if(|range| range.0 < end) {
            if from > begin {
                rooms.push((begin, from));
            }
            begin = begin.max(to);
        }
        covered = begin;
        if begin < end {
            rooms.push((begin, end));
        }
    }
    rooms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::Rng;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

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
            // Ascending and not empty; adjacent ranges are joined unless something was taken.
            assert!(left.iter().all(|range| range.0 < range.1));
            assert!(
                left.windows(2)
                    .all(|pair| pair[0].1 < pair[1].0 || !taken.is_empty())
            );
        }
    }

    #[test]
    fn ranges_by_the_hundred_thousand_are_taken_out_in_one_pass() {
        let every = |from: u64| {
            (0..200_000)
                .map(|at| (4 * at + from, 4 * at + from + 1))
                .collect()
        };
        let free = (0..200_000).map(|at| (4 * at, 4 * at + 3)).collect();
        let began = std::time::Instant::now();
        assert_eq!(difference(free, every(1)).len(), 400_000);
        assert_eq!(difference(every(0), every(1)).len(), 200_000);
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn what_blocks_left_is_free_and_what_they_went_to_is_not() {
        let free = free_after(vec![(0, 8), (40, 48)], &[mv(8, 40, 4), mv(20, 2, 3)]);
        assert_eq!(free, [(0, 2), (5, 12), (20, 23), (44, 48)]);
    }
}
