//! Counts at their edges.

use super::{Sums, Tallies, Tally, class};
use crate::pool::stats::SMALL_BYTES;

fn sums([blocks, bytes, requested]: [i64; 3]) -> Sums {
    Sums {
        blocks: blocks as u64,
        bytes: bytes as u64,
        requested: requested as u64,
    }
}

#[test]
fn a_count_may_be_below_zero_and_is_the_more_the_nearer_it_is() {
    let tally = Tally::default();
    tally.add(5);
    tally.sub(8);
    assert_eq!(tally.get(), -3i64 as u64);
    assert!(tally.is_below(-2i64 as u64) && tally.is_below(0) && !tally.is_below(-3i64 as u64));
    tally.raise_to(-4i64 as u64);
    assert_eq!(tally.get(), -3i64 as u64);
    tally.raise_to(7);
    assert_eq!(tally.get(), 7);
    assert!(!tally.is_below(7) && tally.is_below(8) && !tally.is_below(-1i64 as u64));
}

#[test]
fn sums_are_compared_and_added_field_by_field() {
    let (a, b) = (sums([1, -20, 300]), sums([-4, 50, 60]));
    assert_eq!(a + b, sums([-3, 30, 360]));
    assert_eq!(a - b, sums([5, -70, 240]));
    assert_eq!(a.least(b), sums([-4, -20, 60]));
    assert_eq!(b.least(a), a.least(b));
    assert_eq!(a.seen(), sums([1, 0, 300]));
    assert_eq!(b.seen(), sums([0, 50, 60]));
    let (c, d) = (sums([1, 20, 300]), sums([4, 5, 600]));
    assert_eq!(
        (c.most(d), d.most(c)),
        (sums([4, 20, 600]), sums([4, 20, 600]))
    );
    assert_eq!(Sums::block(70, 60), sums([1, 70, 60]));
    let tallies = Tallies::default();
    assert_eq!(tallies.add(a), a);
    assert_eq!(tallies.add(b), a + b);
    assert_eq!(tallies.get(), a + b);
    tallies.raise_to(sums([-5, 31, 361]));
    assert_eq!(tallies.get(), sums([-3, 31, 361]));
    tallies.set(c);
    for at in 0..8u64 {
        // Which of the fields are more.
        let more = [0, 1, 2].map(|bit| (at >> bit & 1) as i64);
        let other = sums([1 + more[0], 20 + more[1], 300 + more[2]]);
        assert_eq!(tallies.is_below(other), at != 0, "{more:?}");
    }
    assert!(!tallies.is_below(sums([0, 19, 299])));
    assert_eq!([1, SMALL_BYTES, SMALL_BYTES + 1].map(class), [0, 0, 1]);
}
