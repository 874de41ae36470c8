//! What free parts of handles there are, and what is left of them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{DUST_PART, Fragment, MAPPING_WEIGHT, MIDDLE_WEIGHT, Parts, weight};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::extents::FRESH;
use crate::pool::index::UNIT;

const GRANULE: u64 = 1 << 20;

fn fragment(frame: u32, bytes: u64) -> Fragment {
    let frame_start = u64::from(frame) * GRANULE;
    Fragment {
        start: frame_start + GRANULE - bytes,
        bytes,
        hole: 0,
        frame,
        frame_start,
        frame_bytes: GRANULE,
    }
}

fn parts(lower: u64, whole: u64, upper: u64) -> Parts {
    Parts {
        lower: fragment(1, lower),
        whole,
        upper: fragment(2, upper),
        skipped: 0,
    }
}

#[test]
fn what_is_left_over_is_taken_from_the_larger_edge_if_that_has_as_much() {
    let trimmed = |it: Parts, bytes| {
        let after = it.trimmed(bytes);
        let start = after.lower.start - it.lower.start;
        (after.lower.bytes, start, after.upper.bytes)
    };
    let half = GRANULE / 2;
    assert_eq!(
        trimmed(parts(half, GRANULE, 256), GRANULE + half),
        (half - 256, 256, 256)
    );
    assert_eq!(
        trimmed(parts(256, GRANULE, half), GRANULE + half),
        (256, 0, half - 256)
    );
    assert_eq!(trimmed(parts(half, 0, half), 2 * half), (half, 0, half));
    assert_eq!(
        trimmed(parts(half, 0, half), 2 * half - 256),
        (half - 256, 256, half)
    );
    // Not where nothing would be left of it, nor where the begin is skipped.
    assert_eq!(trimmed(parts(256, GRANULE, 512), GRANULE), (256, 0, 512));
    assert_eq!(
        trimmed(parts(256, GRANULE, 512), GRANULE + 256),
        (256, 0, 512)
    );
    assert_eq!(
        trimmed(parts(256, GRANULE, 512), GRANULE + 512),
        (256, 0, 256)
    );
    let skipped = Parts {
        skipped: 256,
        ..parts(256, GRANULE, half)
    };
    assert_eq!(trimmed(skipped, GRANULE + half), (256, 0, half));
    assert_eq!(parts(1, 2, 4).left(4), 3);
    assert_eq!(parts(1, 2, 4).left(8), 0);
}

#[test]
fn parts_cost_what_they_leave_less_what_they_use() {
    let (quarter, half) = (GRANULE / 4, GRANULE / 2);
    let of = |bytes| weight(bytes, GRANULE);
    let cost = |it: Parts, bytes| it.cost(bytes, GRANULE);
    let near = |seen: Option<f64>, said: f64| seen.is_some_and(|seen| (seen - said).abs() < 1e-9);
    let both = cost(parts(quarter, GRANULE, half), GRANULE + quarter + half);
    assert!(near(both, 2.0 * MAPPING_WEIGHT - of(quarter) - of(half)));
    // A rest of an edge lies between blocks, one of whole handles does not.
    let rest = cost(parts(quarter, GRANULE, half), GRANULE + half);
    let said = MIDDLE_WEIGHT * of(quarter) + 2.0 * MAPPING_WEIGHT - of(quarter) - of(half);
    assert!(near(rest, said));
    let none = cost(parts(0, GRANULE, 0), half);
    assert!(near(none, of(half)));
    let one = cost(parts(0, GRANULE, quarter), half);
    assert!(near(one, of(3 * quarter) + MAPPING_WEIGHT - of(quarter)));
    let one = cost(parts(half, 0, 0), half);
    assert!(near(one, MAPPING_WEIGHT - of(half)));
    // One of two that is not needed, and two of one handle.
    assert_eq!(cost(parts(quarter, GRANULE, half), GRANULE + quarter), None);
    let same = Parts {
        upper: fragment(1, half),
        ..parts(quarter, GRANULE, 0)
    };
    assert_eq!(cost(same, GRANULE + half), None);
}

#[test]
fn what_is_hardly_a_part_of_a_handle_is_no_fragment() {
    for (less, said) in [(0, 1), (UNIT, 0)] {
        let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 2);
        let granule = made.core.arena.granule();
        // A free end of the first handle; the second is used up.
        let free = granule / DUST_PART - less;
        made.block(0, granule - free);
        made.block(granule, granule);
        let (lower, upper) = made.core.fragments(|_| true);
        let bytes: Vec<u64> = lower.iter().skip(1).map(|it| it.bytes).collect();
        assert_eq!(bytes, vec![free; said]);
        assert_eq!(upper.len(), 1);
    }
}

/// Handles of a granule in which quarters are blocks, or holes of two owners.
fn arena(quarters: &[u8]) -> (Made, u64) {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = core(config, quarters.len() as u64 / 4);
    let quarter = made.core.arena.granule() / 4;
    let slot = made.slot;
    for (at, &kind) in (0..).zip(quarters) {
        if kind > 0 {
            let extents = &mut made.core.extents;
            let hole = extents.seek(extents.first(), at * quarter);
            let id = extents.take_window(hole, at * quarter, quarter, slot);
            if kind == 1 {
                extents.give(id, slot, 0, |_| false);
            }
        }
    }
    (made, quarter)
}

/// The quarters of six handles, of some of which all are alike.
fn handles() -> impl Strategy<Value = Vec<u8>> {
    let alike = (0u8..4).prop_map(|quarter| [quarter; 4]);
    let handle = prop_oneof![3 => alike, 2 => any::<[u8; 4]>().prop_map(|of| of.map(|it| it % 4))];
    vec(handle, 6).prop_map(|handles| handles.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_fragments_are_the_free_ends_and_begins_of_handles_that_hold_blocks(
        quarters in vec(0u8..4, 24),
        own in any::<bool>(),
    ) {
        let (made, quarter) = arena(&quarters);
        let usable = |slot| own || slot == FRESH;
        let granule = 4 * quarter;
        let (lower, upper) = made.core.fragments(|extent| usable(extent.slot));
        let mut said = (vec![(0, 0)], vec![(0, 0)]);
        for (_, hole) in made.core.extents.iter() {
            if hole.state != crate::pool::extents::State::Hole || !usable(hole.slot) {
                continue;
            }
            let begin = hole.start.next_multiple_of(granule);
            if begin > hole.start && hole.end() >= begin {
                said.0.push((begin - hole.start, hole.start));
            }
            let end = hole.end() / granule * granule;
            if end < hole.end() && hole.start <= end {
                said.1.push((hole.end() - end, end));
            }
        }
        said.0.sort_unstable();
        said.1.sort_unstable();
        let seen = |of: &[Fragment]| of.iter().map(|it| (it.bytes, it.start)).collect::<Vec<_>>();
        assert_eq!((seen(&lower), seen(&upper)), said);
        for it in lower.iter().chain(&upper).filter(|it| it.bytes > 0) {
            assert_eq!((it.frame_start, it.frame_bytes), (it.start / granule * granule, granule));
            let hole = made.core.extents.get(it.hole);
            assert!(hole.start <= it.start && it.start + it.bytes <= hole.end());
        }
    }

    #[test]
    fn what_a_request_is_put_together_from_holds_it_with_the_fewest_whole_handles_at_the_least_cost(
        quarters in handles(),
        wanted in 1u64..14,
    ) {
        let (made, quarter) = arena(&quarters);
        let (granule, bytes) = (4 * quarter, wanted * quarter);
        let (lower, upper) = made.core.fragments(|_| true);
        // With each lower edge and so many whole handles the smallest upper edge that suffices; beside
        // whole handles alone, the largest.
        let mut best = (u64::MAX, f64::INFINITY);
        for low in &lower {
            for whole in (0..=bytes.div_ceil(granule)).map(|count| count * granule) {
                let lacking = bytes.saturating_sub(low.bytes + whole);
                let largest = upper.last().filter(|_| lacking == 0 && low.bytes == 0);
                let up = upper.iter().find(|up| up.bytes >= lacking);
                for &up in up.into_iter().chain(largest) {
                    let parts = Parts { lower: *low, whole, upper: up, skipped: 0 };
                    let cost = parts.cost(bytes, granule).unwrap_or(f64::INFINITY);
                    if cost < f64::INFINITY && (whole, cost) < best {
                        best = (whole, cost);
                    }
                }
            }
        }
        let parts = made.core.parts(bytes, |_| true).unwrap();
        let plain = Parts { skipped: 0, ..parts };
        assert_eq!((parts.whole, plain.cost(bytes, granule)), (best.0, Some(best.1)));
        let (low, up) = (parts.lower.bytes, parts.upper.bytes);
        assert!(low + parts.whole + up >= bytes);
        // What is left of whole handles is the begin of the first, beside an upper edge alone.
        let left = low + parts.whole + up - bytes;
        assert!(left < granule);
        let skips = low == 0 && up > 0 && left >= up;
        assert_eq!(parts.skipped, if skips { left } else { 0 });
    }
}
