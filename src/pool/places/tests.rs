//! Where the parts of a block go, against all places tried one by one.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::Place;
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::extents::{End, Id};
use crate::pool::parts::{Fragment, NO_FRAGMENT, Parts};

/// Granules below and above the bound between the arena's ends.
const BELOW: u64 = 12;
const ABOVE: u64 = 6;

/// Handles of a granule around the bound: those that there are, and which quarters of them are free.
fn arena(handles: &[Option<[bool; 4]>]) -> Made {
    let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 0);
    let granule = made.core.arena.granule();
    let bound = made.core.extents.gaps().last().expect("two gaps");
    let first = made.core.extents.get(bound).start - BELOW * granule;
    let mut start = first;
    for run in handles.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let end = start + run.len() as u64 * granule;
        if run[0].is_some() {
            made.core.create_frames(start, end).unwrap();
        }
        start = end;
    }
    for (at, quarters) in (0..).zip(handles) {
        let Some(quarters) = quarters else { continue };
        let start = first + at * granule;
        for (at, _) in (0..).zip(quarters).filter(|(_, free)| !**free) {
            made.block(start + at * granule / 4, granule / 4);
        }
    }
    made.core.check().unwrap();
    made
}

/// Whether nothing is mapped from `from` to `to`, all of it in one end of the arena with `beside`.
fn is_gap(made: &Made, (from, to): (u64, u64), beside: u64) -> bool {
    let extents = &made.core.extents;
    let one_end = |at| extents.end_of(at) == extents.end_of(beside);
    let mut quarters = (from..to).step_by(made.core.arena.granule() as usize / 4);
    quarters.all(|at| one_end(at) && extents.gap_at(at).is_some())
}

/// From where to where the hole `id` has whole handles of the parts.
fn kept(made: &Made, parts: &Parts, id: Id) -> (u64, u64) {
    let hole = made.core.extents.get(id);
    let within = |edge: &Fragment| edge.bytes > 0 && edge.hole == id;
    let lower = Some(parts.lower).filter(within);
    let upper = Some(parts.upper).filter(within);
    let from = lower.map_or(hole.start, |edge| edge.start + edge.bytes);
    (from, upper.map_or(hole.end(), |edge| edge.start))
}

/// What of the places with the whole handles from `base` on around the hole `id` is to be mapped: the
/// lower edge, the upper edge, bytes between them. `None` if they cannot lie there.
fn around(made: &Made, parts: &Parts, id: Id, base: u64) -> Option<(bool, bool, u64)> {
    let (lower, upper) = (parts.lower, parts.upper);
    let [is_lower, is_upper] = [lower, upper].map(|edge| edge.bytes > 0 && edge.hole == id);
    let (from, to) = kept(made, parts, id);
    let top = base + parts.whole;
    let granule = made.core.arena.granule();
    let whole = from % granule == 0 && to % granule == 0;
    let fits = base <= from && from <= to && to <= top && (from == to || whole);
    let in_place = (!is_lower || base == from) && (!is_upper || top == to);
    let map_lower = lower.bytes > 0 && !is_lower;
    let map_upper = upper.bytes > 0 && !is_upper;
    let lowest = base - u64::from(map_lower) * lower.frame_bytes;
    let highest = top + u64::from(map_upper) * upper.frame_bytes;
    let free = is_gap(made, (lowest, from), from) && is_gap(made, (to, highest), to - 1);
    let lacks = parts.whole.checked_sub(to.checked_sub(from)?)?;
    (fits && in_place && free).then_some((map_lower, map_upper, lacks))
}

/// Where the parts go, and what of it is to be mapped: where it is the least, else in the smallest
/// gap of the low end.
fn cheapest(made: &Made, parts: &Parts) -> Option<(u64, bool, bool, u64)> {
    let extents = &made.core.extents;
    let granule = made.core.arena.granule();
    let large = extents
        .each_hole()
        .filter(|(_, hole)| hole.bytes >= granule);
    let edges = [parts.lower, parts.upper].into_iter();
    let edges = edges.filter(|edge| edge.bytes > 0).map(|edge| edge.hole);
    let mut best = None;
    for id in large.map(|(id, _)| id).chain(edges) {
        let (from, to) = kept(made, parts, id);
        let upward = (from, around(made, parts, id, from));
        let downward = to
            .checked_sub(parts.whole)
            .map(|base| (base, around(made, parts, id, base)));
        let place = [Some(upward), downward]
            .into_iter()
            .flatten()
            .find(|it| it.1.is_some());
        if let Some((base, Some((lower, upper, lacks)))) = place {
            let cost = lacks + (u64::from(lower) + u64::from(upper)) * granule;
            best = best
                .into_iter()
                .chain([(cost, base, lower, upper, lacks)])
                .min();
        }
    }
    let (lower, upper) = (parts.lower.frame_bytes, parts.upper.frame_bytes);
    let gaps = extents.gaps().map(|id| extents.get(id));
    let gaps = gaps.filter(|gap| gap.bytes >= lower + parts.whole + upper);
    let gaps = gaps.filter(|gap| extents.end_of(gap.start) == End::Low);
    let apart = gaps.map(|gap| (gap.bytes, gap.start)).min();
    let apart = apart.map(|(_, start)| (start + lower, lower > 0, upper > 0, parts.whole));
    best.map(|(_, base, lower, upper, lacks)| (base, lower, upper, lacks))
        .or(apart)
}

/// None, one that is free, or one with blocks.
fn handle() -> impl Strategy<Value = Option<[bool; 4]>> {
    prop_oneof![
        4 => Just(None),
        3 => Just(Some([true; 4])),
        3 => any::<[bool; 4]>().prop_map(Some),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn parts_go_where_the_least_of_them_is_to_be_mapped(
        handles in vec(handle(), (BELOW + ABOVE) as usize),
        whole in 0u64..5,
        edges in any::<[Option<Index>; 2]>(),
    ) {
        let made = arena(&handles);
        let (lower, upper) = made.core.fragments(|_| true);
        let of = |all: &[Fragment], at: Option<Index>| at.map_or(NO_FRAGMENT, |at| *at.get(all));
        let (lower, upper) = (of(&lower, edges[0]), of(&upper, edges[1]));
        let whole = whole * made.core.arena.granule();
        let bytes = lower.bytes + whole + upper.bytes;
        let both = lower.bytes.min(upper.bytes) > 0;
        prop_assume!(bytes > 0 && !(both && lower.frame == upper.frame));
        let parts = Parts { lower, whole, upper, skipped: 0 };
        let place = made.core.place(&parts, bytes, |_| true);
        let seen = place.as_ref().map(|it: &Place| {
            (it.base, it.map_lower, it.map_upper, it.lacks.1 - it.lacks.0)
        });
        prop_assert_eq!(seen, cheapest(&made, &parts));
        if let Some(Place { base, lacks, .. }) = place {
            prop_assert!(base <= lacks.0 && lacks.1 <= base + parts.whole);
            prop_assert!(is_gap(&made, lacks, lacks.0));
        }
    }
}
