//! The order in which a step's work is queued, equal on every rank.

/// A part of a bucket's work, with the bucket's index.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Compute the largest magnitude over all ranks.
    Measure(usize),
    /// Cast to codes.
    Narrow(usize),
    /// Sum the ranks' codes, and cast the sums back.
    Sum(usize),
}

impl Work {
    /// The index of its bucket.
    pub(super) fn bucket(self) -> usize {
        let (Self::Measure(at) | Self::Narrow(at) | Self::Sum(at)) = self;
        at
    }
}

/// The work of a step, in the order in which every rank queues it.
pub(super) fn schedule(buckets: usize, is_measured: bool) -> Vec<Work> {
    let measure = |at| (is_measured && at < buckets).then_some(Work::Measure(at));
    let of_bucket = |at| {
        let narrow = [Some(Work::Narrow(at)), measure(at + 1), Some(Work::Sum(at))];
        narrow.into_iter().flatten()
    };
    let first = measure(0).into_iter();
    first.chain((0..buckets).flat_map(of_bucket)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_measured_behind_the_casts_and_ahead_of_the_sums_of_the_one_before() {
        for buckets in 0..5 {
            let words = |work: &Work| match work {
                Work::Measure(at) => format!("m{at}"),
                Work::Narrow(at) => format!("n{at}"),
                Work::Sum(at) => format!("s{at}"),
            };
            let said = |is_measured| {
                schedule(buckets, is_measured)
                    .iter()
                    .map(words)
                    .collect::<Vec<_>>()
            };
            let measured = [
                "m0", "n0", "m1", "s0", "n1", "m2", "s1", "n2", "m3", "s2", "n3", "m4", "s3",
            ];
            let plain = said(false);
            let all: Vec<String> = (0..buckets)
                .flat_map(|at| [format!("n{at}"), format!("s{at}")])
                .collect();
            assert_eq!(plain, all);
            let found = said(true);
            assert_eq!(found.len(), 3 * buckets);
            let last = format!("m{buckets}");
            let wanted = measured.iter().filter(|&&it| it != last);
            let whole = found.len().saturating_sub(2);
            assert_eq!(
                found[..whole],
                wanted.take(whole).copied().collect::<Vec<_>>()
            );
            assert!(found.ends_with(&plain[2 * buckets.saturating_sub(1)..]));
        }
    }
}
