//! Packing blocks into gaps: exact within a limited number of steps.

/// Packs `sizes`, which descend and sum to `total`, into `rooms`, the tightest first, with
/// backtracking. Appends the index of each block's room to `chosen`. Returns false if there is no
/// packing, or if `steps` ran out.
pub(super) fn pack(
    sizes: &[u64],
    total: u64,
    rooms: &mut [u64],
    chosen: &mut Vec<usize>,
    steps: &mut usize,
) -> bool {
    let (Some(&size), Some(&smallest)) = (sizes.first(), sizes.last()) else {
        return true;
    };
    if *steps == 0 {
        return false;
    }
    *steps -= 1;
    let usable: u64 = rooms.iter().filter(|&&room| room >= smallest).sum();
    if usable < total {
        return false;
    }
    let mut tried = size;
    let mut first = true;
    loop {
        // The tightest size not tried yet: rooms of equal size are interchangeable.
        let wanted = |room: u64| if first { room >= tried } else { room > tried };
        let next = (0..rooms.len())
            .filter(|&i| wanted(rooms[i]))
            .min_by_key(|&i| rooms[i]);
        let Some(room) = next else { return false };
        (tried, first) = (rooms[room], false);
        rooms[room] -= size;
        chosen.push(room);
        if pack(&sizes[1..], total - size, rooms, chosen, steps) {
            return true;
        }
        chosen.pop();
        rooms[room] += size;
    }
}

/// Every sum of a subset of `sizes`, including the empty one, up to `most`; ascending.
pub(super) fn sums(sizes: &[u64], most: u64) -> Vec<u64> {
    let mut sums = vec![0];
    for &size in sizes {
        // The sums without `size` and those with it both ascend: merge them, do not sort.
        let mut with = 0;
        let mut both = Vec::with_capacity(2 * sums.len());
        for &without in &sums {
            while sums[with] + size < without {
                both.push(sums[with] + size);
                with += 1;
            }
            with += usize::from(sums[with] + size == without);
            both.push(without);
        }
        let rest = sums[with..].iter().map(|sum| sum + size);
        both.extend(rest.take_while(|&sum| sum <= most));
        sums = both;
    }
    sums
}

/// The fewest bytes of a room that stay empty whichever blocks go there: computed from the `sums`
/// of the blocks' sizes or, without those, from the `smallest` size.
pub(super) fn least_waste(room: u64, sums: Option<&[u64]>, smallest: u64) -> u64 {
    match sums {
        Some(sums) => {
            let beyond = sums.partition_point(|&sum| sum <= room);
            room - beyond.checked_sub(1).map_or(0, |last| sums[last])
        }
        None if room < smallest => room,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::device::sim::Rng;

    #[test]
    fn what_stays_empty_of_a_room_is_what_no_sum_fills() {
        let sums = sums(&[7, 4], 11);
        assert_eq!(sums, [0, 4, 7, 11]);
        let waste = |room| least_waste(room, Some(&sums), 4);
        assert_eq!([3, 4, 6, 10, 12].map(waste), [3, 0, 2, 3, 1]);
        assert_eq!([3, 4].map(|room| least_waste(room, None, 4)), [3, 0]);
    }

    #[test]
    fn the_sums_are_those_of_every_subset_once_and_ascend() {
        let mut random = Rng::new(1);
        for _ in 0..2000 {
            let sizes: Vec<u64> = (0..random.below(7)).map(|_| 1 + random.below(9)).collect();
            let most = random.below(40);
            let subset = |bits: u64| {
                let of = (0..sizes.len()).filter(|at| bits >> at & 1 == 1);
                of.map(|at| sizes[at]).sum::<u64>()
            };
            let all: BTreeSet<u64> = (0..1 << sizes.len()).map(subset).collect();
            let expected: Vec<u64> = all.into_iter().filter(|&sum| sum <= most).collect();
            assert_eq!(sums(&sizes, most), expected, "{sizes:?} to {most}");
        }
    }

    fn packed(sizes: &[u64], rooms: &[u64], mut steps: usize) -> Option<Vec<usize>> {
        let (mut rooms, mut chosen) = (rooms.to_vec(), Vec::new());
        let total = sizes.iter().sum();
        pack(sizes, total, &mut rooms, &mut chosen, &mut steps).then_some(chosen)
    }

    #[test]
    fn the_tightest_room_is_taken_first() {
        assert_eq!(packed(&[5, 3], &[9, 5, 4], 10), Some(vec![1, 2]));
    }

    #[test]
    fn a_room_that_leaves_the_rest_without_one_is_given_up() {
        assert_eq!(packed(&[6, 4, 3], &[7, 6], 10), Some(vec![1, 0, 0]));
        assert_eq!(packed(&[5, 4, 3], &[7, 5], 10), Some(vec![1, 0, 0]));
        assert_eq!(packed(&[4, 3, 3], &[6, 4], 10), Some(vec![1, 0, 0]));
        assert_eq!(packed(&[5, 4, 4, 3], &[8, 8], 20), Some(vec![0, 1, 1, 0]));
    }

    #[test]
    fn what_fits_in_bytes_but_in_no_room_is_not_packed() {
        assert_eq!(packed(&[5, 5], &[7, 3], 100), None);
    }

    #[test]
    fn an_attempt_ends_with_its_steps() {
        assert_eq!(packed(&[5, 3], &[5, 3], 1), None);
        assert_eq!(packed(&[5, 3], &[5, 3], 2), Some(vec![0, 1]));
    }
}
