//! The places of the gradients in their buffer, and its division into buckets and launches.
//!
//! Each sum over the ranks takes about 30 µs in addition to the time for its bytes. The first cast and the
//! last cast cannot overlap with a sum. So the first and the last bucket are small, and towards the middle
//! each is half as large again as its neighbour: then two sums at a time have about as much to do, and the casts
//! beside them as well. With one sum at a time each is four times as large: then a cast takes no longer than the
//! sum that it overlaps with. Casts are queued in pieces, so that a sum finds free multiprocessors in between. Few
//! gradients are one bucket: their casts take less time than the additional sums of more buckets.

use std::ops::Range;

use crate::error::{Error, Result};

/// Every gradient and every bucket begins at a multiple of this many elements: 256 bytes of `f32`.
pub(super) const ALIGN: usize = 64;

/// Gradients are divided into several buckets if they have at least this many times the elements of the
/// first bucket. On two H200, with 32 MiB of `f32` in the first and the last bucket, 64 MiB took 0.195 ms as
/// one bucket and 0.224 ms as two; 256 MiB took 0.709 ms as one and 0.688 ms as three.
const CUT: usize = 4;

/// The size of the bucket after one of `len` elements on the way to the middle: half as large again, or four
/// times as large if only one sum runs at a time.
fn grown(len: usize, links: usize) -> usize {
    match links {
        1 => len.saturating_mul(4),
        _ => (len / 2).saturating_mul(3).next_multiple_of(ALIGN),
    }
}

/// Largest size of a bucket relative to the first and the last one.
const MOST: usize = 64;

/// Elements per launch of a cast: about 25 µs of an H200's memory bandwidth.
pub(super) const CAST: usize = 16 << 20;

/// The places of gradients of these lengths, and the number of elements in total.
pub(super) fn laid_out(lens: &[usize]) -> Result<(Vec<Range<usize>>, usize)> {
    let (mut tensors, mut total) = (Vec::with_capacity(lens.len()), 0usize);
    for &len in lens {
        let end = total.checked_add(len).filter(|end| *end < usize::MAX / 8);
        let end = end.ok_or_else(|| Error::invalid("lens", "they sum to more than memory has"))?;
        tensors.push(total..end);
        total = end.next_multiple_of(ALIGN);
    }
    Ok((tensors, total))
}

/// Whether `total` elements are at most one bucket, if the first of several buckets has `size`
/// elements.
pub(super) fn is_one(total: usize, size: usize) -> bool {
    total / CUT < size
}

/// Divides `total` elements into buckets: `size` at both ends, and more between; one bucket if `total` is less
/// than [`CUT`] times `size`. Both are multiples of [`ALIGN`]. `links` is the number of sums that run at a
/// time.
pub(super) fn cut(total: usize, size: usize, links: usize) -> Vec<Range<usize>> {
    let (mut left, mut len) = (total, size);
    let mut ends = Vec::new();
    while !is_one(total, size) && left / 2 >= len {
        ends.push(len);
        left -= 2 * len;
        len = grown(len, links).min(size.saturating_mul(MOST));
    }
    let mut lens = ends.clone();
    match lens.last_mut() {
        // The rest is too small for a bucket of its own.
        Some(last) if left < *last => *last += left,
        _ if left > 0 => lens.push(left),
        _ => {}
    }
    lens.extend(ends.iter().rev());
    let mut start = 0;
    let bucket = |len| {
        start += len;
        start - len..start
    };
    lens.into_iter().map(bucket).collect()
}

/// Which of `parts`, whose ranges ascend, have elements of `range`.
pub(super) fn meeting<P>(
    parts: &[P],
    range: &Range<usize>,
    of: impl Fn(&P) -> Range<usize>,
) -> Range<usize> {
    let from = parts.partition_point(|part| of(part).end <= range.start);
    let to = parts.partition_point(|part| of(part).start < range.end);
    from..to.max(from)
}

/// Divides a range into pieces of one launch each. Returns each piece, and the same piece relative to the
/// range's start.
pub(super) fn pieces(range: &Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let range = range.clone();
    range.clone().step_by(CAST).map(move |from| {
        let to = (from + CAST).min(range.end);
        (from..to, from - range.start..to - range.start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_from_both_ends_and_leave_nothing_out() {
        for total in (0..400).chain([5_000, 77_777]).map(|at| at * ALIGN) {
            let sizes = [1, 2, 3, 100].map(|at| at * ALIGN);
            for (size, links) in sizes.into_iter().flat_map(|size| [(size, 1), (size, 2)]) {
                let buckets = cut(total, size.min(total.max(ALIGN)), links);
                let mut end = 0;
                for bucket in &buckets {
                    assert_eq!((bucket.start, bucket.start % ALIGN), (end, 0));
                    assert!(!bucket.is_empty(), "{buckets:?}");
                    end = bucket.end;
                }
                assert_eq!(end, total);
                let lens: Vec<usize> = buckets.iter().map(ExactSizeIterator::len).collect();
                let most = 2 * MOST * size;
                assert!(lens.iter().all(|&len| len < most), "{lens:?}");
                match total / size {
                    0 if total == 0 => assert!(lens.is_empty()),
                    0..CUT => assert_eq!(lens, [total]),
                    _ => assert_eq!((lens[0], lens[lens.len() - 1]), (size, size)),
                }
                // The bucket in the middle has the rest, which is less than the next two would
                // have.
                let most = |len| 2 * grown(len, links);
                let beside = |pair: &[usize]| pair[1] < most(pair[0]) && pair[0] < most(pair[1]);
                assert!(lens.windows(2).all(beside), "{lens:?}");
            }
        }
    }

    #[test]
    fn what_meets_a_range_is_found_without_a_look_at_all() {
        let (tensors, total) = laid_out(&[100, 0, 64, 1, 0, 0, 1000, 5000, 3]).unwrap();
        let looks = std::cell::Cell::new(0);
        for range in cut(total, 128, 2)
            .into_iter()
            .chain([0..0, 64..64, total..total + 1])
        {
            let meets =
                |tensor: &Range<usize>| tensor.start < range.end && range.start < tensor.end;
            let found = meeting(&tensors, &range, Range::clone);
            for (at, tensor) in tensors.iter().enumerate() {
                assert_eq!(
                    found.contains(&at),
                    meets(tensor),
                    "{tensor:?} and {range:?}"
                );
            }
        }
        let many = vec![1; 100_000];
        let (tensors, total) = laid_out(&many).unwrap();
        let of = |tensor: &Range<usize>| {
            looks.set(looks.get() + 1);
            tensor.clone()
        };
        assert_eq!(meeting(&tensors, &(total / 2..total), of).len(), 50_000);
        assert!(looks.get() < 100, "{} looks", looks.get());
    }

    #[test]
    fn pieces_are_all_of_a_bucket() {
        let bucket = 640..640 + 2 * CAST + 64;
        let found: Vec<_> = pieces(&bucket).collect();
        let wanted = [(0, CAST), (CAST, 2 * CAST), (2 * CAST, 2 * CAST + 64)];
        assert_eq!(
            found,
            wanted.map(|(from, to)| (640 + from..640 + to, from..to))
        );
        assert_eq!(pieces(&(64..64)).count(), 0);
    }
}
