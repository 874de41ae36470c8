//! How gradients lie in their buffer, and how it is cut into buckets and launches.
//!
//! Each sum of the ranks costs some thirty microseconds beside its bytes, and the first cast and the last run
//! beside no sum. So the first bucket and the last are small, and those between grow from both ends by four:
//! then a cast takes no longer than the sum that it runs beside. Casts are queued in pieces, between which a
//! sum finds multiprocessors that are free. Few gradients are one bucket: their casts take less than the sums of
//! more buckets would cost.

use std::ops::Range;

use crate::error::{Error, Result};

/// Elements that every gradient, and every bucket, begins on a multiple of: 256 bytes of `f32`.
pub(super) const ALIGN: usize = 64;

/// How many times the elements of a first and a last bucket there are, at least, where there are such. On two
/// H200, with 32 MiB of f32 at the ends, one bucket took 0.195 ms for 64 MiB, where two took 0.224, and 0.709 for
/// 256 MiB, where three took 0.688.
const CUT: usize = 4;

/// How many times the elements of its neighbour towards an end a bucket has.
const GROWTH: usize = 4;

/// Most times the elements of the first and the last bucket that another has.
const MOST: usize = 64;

/// Elements of a launch that casts: some 25 microseconds of an H200's memory.
pub(super) const CAST: usize = 16 << 20;

/// Where gradients of these lengths lie, and the elements of all.
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

/// Buckets of so many elements: `size` at both ends, and more between; one where `total` is less than [`CUT`]
/// times `size`. Both are multiples of [`ALIGN`].
pub(super) fn cut(total: usize, size: usize) -> Vec<Range<usize>> {
    let (mut left, mut len) = (total, size);
    let mut ends = Vec::new();
    while total / CUT >= size && left / 2 >= len {
        ends.push(len);
        left -= 2 * len;
        len = (len.saturating_mul(GROWTH)).min(size.saturating_mul(MOST));
    }
    let mut lens = ends.clone();
    match lens.last_mut() {
        // Too little for a sum of its own.
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

/// A range in pieces of a launch that casts, each with the part of it from its start on.
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
    fn buckets_grow_by_four_from_both_ends_and_leave_nothing_out() {
        for total in (0..400).chain([5_000, 77_777]).map(|at| at * ALIGN) {
            for size in [1, 2, 3, 100].map(|at| at * ALIGN) {
                let buckets = cut(total, size.min(total.max(ALIGN)));
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
                // One in the middle has what is left, less than the next two would.
                let beside = |pair: &[usize]| {
                    pair[1] < 2 * GROWTH * pair[0] && pair[0] < 2 * GROWTH * pair[1]
                };
                assert!(lens.windows(2).all(beside), "{lens:?}");
            }
        }
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
