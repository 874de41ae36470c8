//! Packing blocks into gaps: exact within a number of steps.

/// Packs `sizes`, which descend and sum to `total`, into `rooms`, tightest first, going back where
/// that fails. The room of each is appended to `chosen`.
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
        // The tightest room not tried: rooms of one size are the same.
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

#[cfg(test)]
mod tests {
    use super::*;

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
