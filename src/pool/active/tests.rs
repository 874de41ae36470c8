//! Sums, peaks, and what was ever added.

use super::{Active, Gauge};
use crate::pool::stats::SMALL_BYTES;

fn gauge(current: u64, peak: u64, added: u64) -> Gauge {
    Gauge {
        current,
        peak,
        added,
    }
}

#[test]
fn a_gauge_has_its_sum_its_peak_and_all_that_was_ever_added() {
    let mut it = Gauge::default();
    it.add(10);
    it.sub(4);
    assert_eq!(it, gauge(6, 10, 10));
    it.add(3);
    assert_eq!(it, gauge(9, 10, 13));
    it.set(20);
    assert_eq!(it, gauge(20, 20, 24));
    it.set(20);
    it.set(5);
    assert_eq!(it, gauge(5, 20, 24));
    it.reset_peak();
    assert_eq!(it, gauge(5, 5, 24));
}

#[test]
fn active_bytes_are_counted_by_class_and_their_peak_is_of_both() {
    const LARGE: u64 = 2 * SMALL_BYTES;
    let mut it = Active::default();
    let state = |it: &Active| (it.classes, it.peak, it.bytes());
    it.add(100);
    it.add(LARGE);
    let all = 100 + LARGE;
    assert_eq!(
        state(&it),
        ([gauge(100, 100, 100), gauge(LARGE, LARGE, LARGE)], all, all)
    );
    assert_eq!(it.peaks(), 2 * all);
    it.sub(100);
    it.add(30);
    assert_eq!(
        state(&it),
        (
            [gauge(30, 100, 130), gauge(LARGE, LARGE, LARGE)],
            all,
            30 + LARGE
        )
    );
    // In its class by the difference, across by both.
    it.resize(30, 50);
    assert_eq!(it.classes[0], gauge(50, 100, 150));
    it.resize(50, 20);
    assert_eq!(it.classes[0], gauge(20, 100, 150));
    it.resize(LARGE, LARGE + 500);
    assert_eq!(state(&it).1, LARGE + 520);
    it.resize(LARGE + 500, 40);
    let large = gauge(0, LARGE + 500, LARGE + 500);
    assert_eq!(state(&it), ([gauge(60, 100, 190), large], LARGE + 520, 60));
    assert_eq!(it.peaks(), 100 + LARGE + 500 + LARGE + 520);
    it.sub_all([60, 0]);
    it.add(LARGE);
    it.reset_peaks();
    assert_eq!(state(&it).1, LARGE);
    assert_eq!(it.classes.map(|class| class.peak), [0, LARGE]);
    it.sub_all([0, LARGE]);
    assert_eq!(it.bytes(), 0);
}
