//! How free memory lies in handles, when that matters, and which end of which hole is taken then.

use super::{
    AT_PEAK_PART, AWAY_PART, CALLS_A_TIME, DUST_PART, EXCESS_PART, FEW_CALLS, FREES_OF_TEMPORARY,
    LARGE_POOL, LOOKS_PER_CHANGES, Lie, MIDDLE_WEIGHT, PART_OF_LARGE, PART_OF_SMALL, Recurring,
    SIZE_WEIGHT, Scatter, Terms, WHOLE_WEIGHT, weight,
};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::extents::FRESH;
use crate::pool::index::UNIT;
use crate::pool::stats::SMALL_BYTES;

fn made(granules: u64) -> (Made, u64) {
    let made = core(PoolConfig::default().handles(HandleSize::Granule), granules);
    let granule = made.core.arena.granule();
    (made, granule)
}

#[test]
fn a_stretch_is_whole_handles_and_a_fragment_at_each_end() {
    let (made, granule) = made(4);
    let quarter = granule / 4;
    let of = |from: u64, to: u64| Lie::of(&made.core.arena, from * quarter, to * quarter);
    for from in 0..16 {
        for to in from..=16 {
            let lie = of(from, to);
            let parts = (from..to).fold([0u64; 4], |mut parts, at| {
                parts[(at / 4) as usize] += 1;
                parts
            });
            let whole = parts.iter().filter(|&&part| part == 4).count() as u64;
            assert_eq!(lie.whole, whole * granule, "{from} to {to}");
            assert_eq!(lie.rest, (to - from) * quarter - lie.whole);
            let weights = parts.iter().filter(|&&part| part < 4);
            let sum: f64 = weights.map(|part| weight(part * quarter, granule)).sum();
            let middle = to > from && from / 4 == (to - 1) / 4 && from % 4 > 0 && to % 4 > 0;
            let times = if middle { MIDDLE_WEIGHT } else { 1.0 };
            assert!((lie.weight - sum * times).abs() < 1e-9, "{from} to {to}");
        }
    }
    assert_eq!(of(9, 3), of(0, 0));
    assert_eq!(of(15, 17), of(0, 0), "what is not mapped is nothing");
    let weights = [granule / 4, granule, 4 * granule].map(|bytes| weight(bytes, granule));
    assert_eq!(weights, [0.5, 1.0, 2.0]);
}

#[test]
fn a_size_recurs_once_a_block_of_it_was_freed_soon() {
    let mut recurring = Recurring::default();
    let sizes = || (1..200u64).map(|at| at * 3 * UNIT);
    assert!(sizes().all(|bytes| !recurring.holds(bytes)));
    for bytes in sizes() {
        recurring.note(bytes, FREES_OF_TEMPORARY + 1);
        assert!(!recurring.holds(bytes));
        recurring.note(bytes, FREES_OF_TEMPORARY);
        assert!(recurring.holds(bytes) && !recurring.holds(bytes + UNIT));
    }
    // Many sizes are remembered at once, each at a place of its own or nearly.
    let held = sizes().filter(|&bytes| recurring.holds(bytes)).count();
    assert!((40..=64).contains(&held), "{held}");
}

/// Six handles half of which are free, each in one piece.
fn halves() -> (Made, u64) {
    let (mut made, granule) = made(6);
    for at in 0..6 {
        made.block(at * granule, granule / 2);
    }
    made.core.check().unwrap();
    // Nor may it grow: else they do not matter.
    made.core.config.limit = Some(6 * granule);
    (made, granule)
}

#[test]
fn fragments_do_not_matter_while_a_request_and_as_much_as_they_may_have_can_be_created() {
    let (mut made, granule) = halves();
    let core = &mut made.core;
    core.peak_taken = 4 * granule;
    // Of 6 handles held, 2 granules may be fragments; the request is one more.
    let mut scatter = |slack: f64, limit: u64| {
        core.config.slack = slack;
        core.config.limit = Some(limit * granule);
        core.scatter(granule)
    };
    assert_eq!(scatter(1.25, 9), Scatter::Little);
    assert_eq!(scatter(1.2, 9), Scatter::TooMuch, "as far as slack goes");
    assert_eq!(scatter(1.25, 8), Scatter::TooMuch, "as far as the limit");
    assert_eq!(scatter(99.0, 6), Scatter::TooMuch);
}

#[test]
fn fragments_matter_to_large_requests_of_a_pool_in_use() {
    let (mut made, granule) = halves();
    let core = &mut made.core;
    let mut scatter = |peak: u64, bytes: u64| {
        core.peak_taken = peak;
        core.scatter(bytes)
    };
    let (live, unit) = (4 * granule, UNIT);
    assert!(granule > SMALL_BYTES);
    assert_eq!(scatter(live, granule), Scatter::TooMuch);
    assert_eq!(scatter(3 * granule, SMALL_BYTES), Scatter::Little);
    assert_eq!(scatter(3 * granule, SMALL_BYTES + unit), Scatter::TooMuch);
    // There may be more the further live memory is from the peak, and any where it is far.
    assert_eq!(scatter(13 * granule, granule), Scatter::TooMuch);
    assert_eq!(scatter(15 * granule, granule), Scatter::Much);
    assert_eq!(scatter(10 * live, granule), Scatter::Much);
    assert_eq!(scatter(10 * live + 10, granule), Scatter::Little);
    made.core.peak_taken = live;
    made.core.may_move = true;
    assert_eq!(made.core.scatter(granule), Scatter::Little);
    made.core.may_move = false;
    made.core.config.remap = false;
    assert_eq!(made.core.scatter(granule), Scatter::Little);
}

#[test]
fn fragments_matter_from_as_many_bytes_on_as_they_may_have() {
    for more in [0, UNIT] {
        let (mut made, granule) = made(4);
        for at in 0..4 {
            let more = if at == 0 { more } else { 0 };
            made.block(at * granule, granule / 2 + more);
        }
        let core = &mut made.core;
        core.peak_taken = 4 * granule;
        assert_eq!(core.fragments_allowed(), 2 * granule);
        let little = core.scatter(granule) == Scatter::Little;
        assert_eq!(little, more > 0);
    }
}

#[test]
fn fragments_may_have_a_part_of_the_peak_or_of_what_is_held_beyond_it() {
    let (mut made, granule) = made(6);
    let core = &mut made.core;
    let mut allowed = |peak: u64| {
        core.peak_taken = peak;
        core.fragments_allowed()
    };
    let part = |bytes: u64, part: f64| (bytes as f64 * part) as u64;
    assert_eq!(allowed(6 * granule), 2 * granule);
    assert_eq!(allowed(granule), part(5 * granule, EXCESS_PART));
    assert_eq!(allowed(LARGE_POOL - 1), part(LARGE_POOL - 1, PART_OF_SMALL));
    assert_eq!(allowed(LARGE_POOL), part(LARGE_POOL, PART_OF_LARGE));
}

#[test]
fn any_number_of_calls_is_worth_it_at_the_peak_and_else_the_more_the_more_fragments() {
    let (mut made, granule) = halves();
    let core = &mut made.core;
    let live = 3 * granule;
    let peak = live + 100 * granule;
    core.peak_taken = peak;
    let near = peak - peak / AT_PEAK_PART - live;
    assert_eq!(core.calls_worth(near), u64::MAX);
    core.seen.bytes = core.too_much(live) as u64;
    assert_eq!(core.calls_worth(near - 1), FEW_CALLS as u64);
    for times in [2, 3] {
        core.seen.bytes = (core.too_much(live) * f64::from(times)) as u64 + 1;
        let more = CALLS_A_TIME * (f64::from(times) - 1.0);
        assert_eq!(core.calls_worth(near - 1), (FEW_CALLS + more) as u64);
    }
    // Too much is what they may have, and a part of what live memory lacks to its peak.
    let lacks = (peak - live) as f64 * AWAY_PART;
    let allowed = core.fragments_allowed() as f64;
    assert!((core.too_much(live) - allowed - lacks).abs() < 1.0);
    assert!((core.too_much(peak + 1) - allowed).abs() < 1.0);
}

#[test]
fn fragments_are_summed_again_once_a_part_of_the_holes_are_others() {
    let (mut made, granule) = halves();
    assert_eq!(made.core.fragment_bytes(), 3 * granule);
    // Dust is none.
    let dust = granule / DUST_PART;
    made.block(granule / 2, granule / 2 - dust + UNIT);
    assert_eq!(made.core.fragment_bytes(), 5 * granule / 2);
    let (mut made, granule) = self::made(40);
    for at in 0..40 {
        made.block(at * granule, granule / 2);
    }
    let all = 20 * granule;
    assert_eq!(made.core.fragment_bytes(), all);
    let changes = made.core.extents.changes();
    for at in 0..3 {
        made.block(at * granule + granule / 2, granule / 4);
    }
    let holes = made.core.extents.holes();
    assert_eq!(holes / LOOKS_PER_CHANGES, 5);
    let since = made.core.extents.changes() - changes;
    let seen = made.core.fragment_bytes();
    assert_eq!(
        seen,
        if since > 5 {
            all - 3 * granule / 4
        } else {
            all
        }
    );
    made.core.seen.changes = made.core.extents.changes() - 5;
    made.core.seen.bytes = 1;
    assert_eq!(made.core.fragment_bytes(), 1);
    made.core.seen.changes -= 1;
    assert_eq!(made.core.fragment_bytes(), all - 3 * granule / 4);
}

/// Handles side by side with a block in each of those of `blocks`, its begin and end in quarters.
fn with_blocks(granules: u64, blocks: &[(u64, u64)]) -> (Made, u64) {
    let (mut made, granule) = made(granules);
    for &(from, to) in blocks {
        made.block(from * granule / 4, (to - from) * granule / 4);
    }
    (made, granule / 4)
}

#[test]
fn the_end_of_a_hole_is_taken_that_breaks_no_whole_handle() {
    // Two quarters and a handle, and the same the other way round.
    for (blocks, at) in [([(0, 2), (8, 12)], 2), ([(0, 4), (10, 12)], 8)] {
        let (made, quarter) = with_blocks(3, &blocks);
        let fit = made.core.fit(made.slot, 2 * quarter).unwrap();
        assert_eq!((fit.start, fit.whole), (at * quarter, 0));
        let fit = made.core.fit(made.slot, 3 * quarter).unwrap();
        assert_eq!(fit.whole, 4 * quarter);
        assert!(made.core.fit(made.slot, 6 * quarter + UNIT).is_none());
    }
}

#[test]
fn of_holes_that_are_as_good_the_smaller_is_taken() {
    // A fragment and two handles, a fragment and four, in either order.
    for (blocks, at) in [
        ([(0, 2), (12, 18), (36, 40)], 2),
        ([(0, 2), (20, 26), (36, 40)], 26),
    ] {
        let (made, quarter) = with_blocks(10, &blocks);
        let fit = made.core.fit(made.slot, 8 * quarter).unwrap();
        let hole = made.at(fit.start);
        assert_eq!(hole.start, at * quarter, "{blocks:?}");
        assert_eq!(fit.whole, 8 * quarter);
    }
}

#[test]
fn an_end_of_a_hole_costs_what_it_breaks_and_leaves_less_what_it_uses_and_its_size() {
    // A hole from each quarter of the first handle to each of the last.
    for (from, to) in (1..8).flat_map(|from| (16..24).map(move |to| (from, to))) {
        let (made, quarter) = with_blocks(6, &[(0, from), (to, 24)]);
        let hole = (made.core.extents).seek(made.core.extents.first(), from * quarter);
        let of = |from: u64, to: u64| Lie::of(&made.core.arena, from * quarter, to * quarter);
        for units in 1..=to - from {
            let low = (from, of(from + units, to));
            let high = (to - units, of(from, to - units));
            let rated = made.core.rated(hole, units * quarter);
            for ((cost, fit), (start, after)) in rated.into_iter().zip([low, high]) {
                let before = of(from, to);
                let broken = (before.whole - after.whole) as f64 / (4 * quarter) as f64;
                let larger = ((to - from) as f64 / units as f64).log2();
                let fragments = after.weight - before.weight;
                let said = broken * WHOLE_WEIGHT + fragments + larger * SIZE_WEIGHT;
                assert!((cost - said).abs() < 1e-9, "{units} of {from} to {to}");
                let place = (fit.hole, fit.start, fit.whole);
                assert_eq!(place, (hole, start * quarter, before.whole - after.whole));
            }
        }
    }
}

#[test]
fn what_is_taken_from_a_hole_by_its_fit_counts_as_the_step_that_it_is() {
    let (mut made, quarter) = with_blocks(3, &[(0, 4), (10, 12)]);
    let slot = made.slot;
    made.core.peak_taken = 0;
    for (owner, own, elsewhere) in [(FRESH, 1, 0), (slot, 2, 0)] {
        let hole = made
            .core
            .extents
            .seek(made.core.extents.first(), 4 * quarter);
        if owner != FRESH {
            made.core.extents.merge_up(hole, |_| true);
            let id = made
                .core
                .extents
                .take_window(hole, 4 * quarter, 6 * quarter, slot);
            made.core.extents.give(id, slot, 0, |_| true);
        }
        let fit = made.core.fit(slot, 2 * quarter).unwrap();
        let grant = made.core.take_fit(slot, 2 * quarter, fit);
        assert_eq!(grant.offset, 8 * quarter);
        let steps = &made.core.steps;
        assert_eq!((steps.own_stream, steps.ready_elsewhere), (own, elsewhere));
        assert_eq!(made.core.peak_taken, made.core.extents.taken().0);
        made.core.extents.give(grant.id, owner, 0, |_| true);
    }
    // To another stream that is done it is a hole from elsewhere.
    let other = made.core.extents.add_slot();
    made.core.streams.push(None);
    let hole = made
        .core
        .extents
        .seek(made.core.extents.first(), 4 * quarter);
    let owner = made.core.extents.get(hole).slot;
    assert_ne!(owner, FRESH);
    let fit = made.core.fit(other, 2 * quarter).unwrap();
    made.core.take_fit(other, 2 * quarter, fit);
    assert_eq!(made.core.steps.ready_elsewhere, 1);
}

#[test]
fn a_block_with_an_edge_at_either_end_that_is_freed_soon_is_a_temporary() {
    for (upper, frees) in [(true, 0), (false, 0), (true, 70), (false, 70)] {
        // A handle whose begin is free, or whose end is, between two that are not.
        let free = if upper {
            [(0, 4), (6, 12)]
        } else {
            [(0, 6), (8, 12)]
        };
        let (mut made, quarter) = with_blocks(3, &free);
        let bytes = 6 * quarter;
        let slot = made.slot;
        let most = Terms {
            created: u64::MAX,
            whole: u64::MAX,
            calls: u64::MAX,
        };
        let grant = made.core.take_with_edges(slot, bytes, most, |_, _| true);
        let grant = grant.unwrap().unwrap();
        let extent = *made.core.extents.get(grant.id);
        assert_eq!(made.core.edges.len(), 1);
        let at_end = made.core.has_edge(extent.end() - UNIT, UNIT);
        assert_eq!(
            (at_end, made.core.has_edge(extent.start, UNIT)),
            (upper, !upper)
        );
        for _ in 0..frees {
            let block = made.core.extents.first();
            made.core.extents.give(block, slot, 0, |_| true);
            let hole = made.core.extents.first();
            made.core.extents.take(hole, free[0].1 * quarter, slot);
        }
        made.core.give(grant.id, slot, 0);
        assert_eq!(
            made.core.recurring.holds(bytes),
            frees == 0,
            "{upper} {frees}"
        );
    }
}
