//! Latencies of single calls, kept one by one so that their percentiles are exact.

use std::time::Duration;

/// Nanoseconds of calls of one kind, 8 bytes per call.
///
/// Recording takes no lock and, up to the capacity, makes no heap call. One thread records; sharing needs an
/// external lock.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    ns: Vec<u64>,
}

impl Latencies {
    /// Reserves space for `calls` calls, so that they need no heap call.
    #[must_use]
    pub fn with_capacity(calls: usize) -> Self {
        Self {
            ns: Vec::with_capacity(calls),
        }
    }

    /// Adds one call.
    pub fn record(&mut self, took: Duration) {
        self.ns
            .push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Number of calls recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ns.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    /// The smallest recorded value that at least `percent` of all calls do not exceed (nearest
    /// rank); 0 when nothing was recorded. `percent` beyond 100 counts as 100.
    ///
    /// Takes `&mut self` because it reorders the values; O(n).
    pub fn percentile(&mut self, percent: u32) -> u64 {
        if self.ns.is_empty() {
            return 0;
        }
        let calls = self.ns.len();
        let rank = (calls * percent.min(100) as usize).div_ceil(100).max(1);
        let (_, value, _) = self.ns.select_nth_unstable(rank - 1);
        *value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(ns: &[u64]) -> Latencies {
        let mut latencies = Latencies::with_capacity(ns.len());
        for &value in ns {
            latencies.record(Duration::from_nanos(value));
        }
        latencies
    }

    #[test]
    fn no_calls_have_the_percentile_zero() {
        assert!(Latencies::default().is_empty());
        assert_eq!(Latencies::default().percentile(99), 0);
    }

    #[test]
    fn a_call_of_hours_keeps_its_length() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_secs(7200));
        assert_eq!(latencies.percentile(50), 7_200_000_000_000);
    }

    #[test]
    fn of_a_hundred_calls_the_99th_percentile_is_the_second_largest() {
        let values: Vec<u64> = (1..=100).rev().collect();
        let mut latencies = of(&values);
        assert_eq!(latencies.percentile(99), 99);
        assert_eq!(latencies.percentile(50), 50);
        assert_eq!(latencies.percentile(100), 100);
        assert_eq!(latencies.percentile(0), 1);
        assert_eq!(latencies.len(), 100);
    }

    proptest! {
        #[test]
        fn a_percentile_is_the_least_value_that_enough_calls_do_not_exceed(
            values in prop::collection::vec(any::<u64>(), 1..200),
            percent in 1u32..=100,
        ) {
            let found = of(&values).percentile(percent);
            let within = |limit: u64| values.iter().filter(|v| **v <= limit).count() * 100;
            let needed = values.len() * percent as usize;
            prop_assert!(within(found) >= needed);
            prop_assert!(found == 0 || within(found - 1) < needed);
        }
    }
}
