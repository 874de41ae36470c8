//! Which idle handles a request has mapped elsewhere, and which go back.

use super::{Core, Extent, Terms};
use crate::error::{Error, Result};
use crate::heap::{Epoch, Grant, State};
use crate::pool::core::tests::{Made, all_of_a_device, core};
use crate::pool::release::tests::trim;
use crate::pool::{HandleSize, PoolConfig};

const TERMS: Terms = Terms {
    pending: true,
    refused: None,
};

/// Takes `bytes` in what is mapped for them: of idle handles, and new ones.
pub(in crate::pool) fn take_mapped(made: &mut Made, bytes: u64) -> Result<Option<Grant>> {
    let plan = made.core.plan(made.slot, bytes, TERMS);
    let plan = plan.filter(|plan| plan.lacking == 0);
    let job = plan.and_then(|plan| {
        made.core
            .begin_mapping(made.slot, plan.placement, &plan.idle)
    });
    made.run(job)
}

fn take_overlapping(made: &mut Made, bytes: u64) -> Result<Option<Grant>> {
    let job = made
        .core
        .begin_overlapping(made.slot, bytes, (false, false));
    made.run(job)
}

#[test]
fn a_request_would_have_as_many_handles_mapped_elsewhere_as_its_window_lacks() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0);
    let mut made = core(config, 9);
    let granule = made.core.arena.granule();
    // Blocks in every third handle: no three are free together, and two at the end.
    for at in [0, 3, 6] {
        made.block(at * granule, granule);
    }
    let slot = made.slot;
    let would = |core: &Core, granules: u64| {
        let plan = core.plan(slot, granules * granule, TERMS);
        plan.map_or(0, |plan| plan.steals)
    };
    let core = &mut made.core;
    core.peak_taken = 9 * granule;
    core.config.limit = Some(9 * granule);
    // Two lie before the gap, so that what is beyond them comes from elsewhere.
    assert_eq!([3, 4, 6].map(|granules| would(core, granules)), [1, 2, 4]);
    assert_eq!(would(core, 7), 5, "as many as would do");
    core.config.limit = Some(10 * granule);
    assert_eq!([3, 4, 7].map(|granules| would(core, granules)), [1, 2, 4]);
    assert_eq!(would(core, 8), 6, "as many as would do");
    // Within the slack of the peak new ones are made.
    core.peak_taken = 10 * granule;
    assert_eq!([3, 4].map(|granules| would(core, granules)), [0, 2]);
}

#[test]
fn handles_that_lie_wholly_in_a_hole_are_idle_and_taken_as_they_fit() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = core(config, 8);
    let granule = made.core.arena.granule();
    for (from, to) in [(0, 2), (6, 8), (18, 20), (31, 32)] {
        made.block(from * granule / 4, (to - from) * granule / 4);
    }
    let core = &made.core;
    let holes: Vec<Extent> = core.extents.iter().map(|(_, it)| *it).collect();
    let holes = holes.iter().filter(|it| it.state == State::Free);
    let mut said = Vec::new();
    for hole in holes {
        let (mut at, end) = (hole.start.next_multiple_of(granule), hole.end());
        while at + granule <= end {
            said.push(at);
            at += granule;
        }
    }
    let all = core.idle(|_| true);
    let mut seen: Vec<u64> = all.iter().map(|it| it.frame.start).collect();
    seen.sort_unstable();
    assert_eq!(seen, said);
    assert!(all.iter().all(|it| it.frame.bytes == granule));
    assert_eq!(super::total(&all), said.len() as u64 * granule);
    for (bytes, count) in [(2 * granule, 2), (2 * granule - 1, 1), (0, 0)] {
        assert_eq!(super::first(all.clone(), bytes).len(), count);
    }
    assert!(core.idle(|_| false).is_empty());
}

/// Three handles with a block in the second, and what is beyond it freed by another stream; no more
/// may be made.
pub(in crate::pool) fn two_apart() -> (Made, impl Sized) {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = core(config, 3);
    let granule = made.core.arena.granule();
    made.core.config.limit = Some(3 * granule);
    made.block(granule, granule);
    let (other, held) = made.stream();
    for at in [0, 2 * granule] {
        let id = made.block(at, granule);
        made.core.active.sub(granule);
        let tick = made.core.open_tick(other);
        made.core
            .extents
            .give(id, Epoch::new(other, tick), |_| false);
    }
    (made, held)
}

#[test]
fn what_free_handles_do_not_make_up_is_not_served_and_costs_nothing() {
    for granules in [2, 3] {
        let (mut made, _held) = two_apart();
        let granule = made.core.arena.granule();
        let grant = take_mapped(&mut made, granules * granule).unwrap();
        assert_eq!(grant.is_some(), granules == 2);
        assert_eq!(made.core.steps.steal, u64::from(granules == 2));
        assert_eq!(made.core.arena.reserved(), 3 * granule);
    }
    // With room for the third it is made, and the others are mapped beside it.
    let (mut made, _held) = two_apart();
    let granule = made.core.arena.granule();
    made.core.config.limit = Some(4 * granule);
    let grant = take_mapped(&mut made, 3 * granule).unwrap();
    made.granted(grant.unwrap());
    assert_eq!(made.core.arena.reserved(), 4 * granule);
    assert_eq!(made.core.extents.hole_bytes(), 0);
}

#[test]
fn a_small_pool_of_several_streams_maps_new_memory_before_any_stream_waits() {
    for (reserved, several, granules, said) in [
        (4, true, 4, true),
        (4, true, 5, false),
        (4, false, 4, false),
        (7, true, 1, true),
        (8, true, 1, false),
    ] {
        let config = PoolConfig::default().handles(HandleSize::Granule);
        let mut made = core(config, reserved);
        let granule = made.core.arena.granule();
        made.core.config.overlap_bytes = 8 * granule;
        let held = several.then(|| made.stream());
        made.block(0, reserved * granule);
        let grant = take_overlapping(&mut made, granules * granule).unwrap();
        let grant = grant.map(|grant| made.granted(grant));
        assert_eq!(grant.is_some(), said, "{granules} beside {reserved}");
        let more = if said { granules } else { 0 };
        assert_eq!(made.core.arena.reserved(), (reserved + more) * granule);
        // The limit holds here too.
        made.core.config.limit = Some(made.core.arena.reserved());
        assert!(take_overlapping(&mut made, granule).unwrap().is_none());
        drop(held);
    }
}

#[test]
fn what_a_mapping_under_way_will_make_counts_for_the_next_that_grows_a_small_pool() {
    let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 4);
    let granule = made.core.arena.granule();
    made.core.config.overlap_bytes = 8 * granule;
    let _held = made.stream();
    made.block(0, 4 * granule);
    let slot = made.slot;
    let begin = |made: &mut Made, granules| {
        made.core
            .begin_overlapping(slot, granules * granule, (false, false))
    };
    let first = begin(&mut made, 3);
    assert!(first.is_some() && begin(&mut made, 2).is_none());
    let second = begin(&mut made, 1);
    for (job, granules) in [(first, 7), (second, 8)] {
        let grant = made.run(job).unwrap().unwrap();
        made.granted(grant);
        assert_eq!(made.core.arena.reserved(), granules * granule);
    }
}

#[test]
fn a_crowded_lane_has_the_pool_grow_within_the_slack_and_the_limits() {
    for (crowded, granules, limit, soft, said) in [
        (true, 2, 100, 100, true),
        (false, 2, 100, 100, false),
        // 12 in all are the peak of 10 and a fifth of it; six are another stream's.
        (true, 3, 100, 100, false),
        (true, 2, 11, 100, false),
        (true, 2, 100, 11, false),
    ] {
        let config = PoolConfig::default().handles(HandleSize::Granule);
        let mut made = core(config.slack(0.2).overlap_bytes(0), 10);
        let granule = made.core.arena.granule();
        made.core.config.limit = Some(limit * granule);
        made.core.config.soft_limit = Some(soft * granule);
        let (other, _held) = made.stream();
        let [id, _] = [(0, 6), (6, 4)].map(|(at, of)| made.block(at * granule, of * granule));
        made.core.active.sub(6 * granule);
        made.core
            .extents
            .give(id, Epoch::new(other, made.core.open_tick(other)), |_| false);
        made.core.peak_taken = 10 * granule;
        let job = (made.core).begin_overlapping(made.slot, granules * granule, (crowded, false));
        let grant = made.run(job).unwrap();
        assert_eq!(grant.is_some(), said, "{granules}, {limit}, {soft}");
        grant.map(|grant| made.granted(grant));
        made.core.check().unwrap();
    }
}

#[test]
fn where_the_device_has_no_more_memory_nothing_is_served_and_that_is_no_failure() {
    let mut made = all_of_a_device(PoolConfig::default().handles(HandleSize::Granule), 3);
    let granule = made.core.arena.granule();
    let _held = made.stream();
    made.block(0, 3 * granule);
    // Within the slack, and in the small pool that grows rather than have a stream wait.
    made.core.peak_taken = 9 * granule;
    made.core.peak_reserved = u64::MAX;
    let slot = made.slot;
    assert!(take_overlapping(&mut made, granule).unwrap().is_none());
    assert!(made.core.take_ready(slot, 256).is_none());
    assert!(take_mapped(&mut made, granule).unwrap().is_none());
    made.core.check().unwrap();
    assert_eq!(made.core.arena.reserved(), 3 * granule);
}

#[test]
fn where_the_device_has_less_than_a_handle_smaller_ones_are_made_and_stay() {
    let config = PoolConfig::default().handles(HandleSize::UpTo(u64::MAX));
    let mut made = all_of_a_device(config, 3);
    let granule = made.core.arena.granule();
    trim(&mut made, 0);
    assert_eq!(made.core.arena.reserved(), 0);
    let refused = made.core.create_frames(0, 4 * granule);
    assert!(refused.is_err_and(|error| error.is_device_exhausted()));
    assert_eq!(made.core.arena.reserved(), 3 * granule);
    assert_eq!(made.at(0).bytes, 3 * granule);
    made.core.check().unwrap();
}

#[test]
fn a_failure_that_is_no_want_of_memory_is_the_requests() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    for several in [true, false] {
        let mut made = core(config.clone(), 1);
        let granule = made.core.arena.granule();
        let held = several.then(|| made.stream());
        made.block(0, granule);
        // Where the next handle would go.
        made.unknown_at(granule);
        let refused = match several {
            true => take_overlapping(&mut made, granule),
            false => take_mapped(&mut made, granule),
        };
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{several}");
        drop(held);
    }
}

#[test]
fn what_is_ready_is_used_before_new_memory_is_mapped_beside_it() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = core(config, 4);
    let granule = made.core.arena.granule();
    let _held = made.stream();
    made.block(0, 3 * granule);
    let at = take_overlapping(&mut made, 3 * granule).unwrap();
    assert_eq!(made.granted(at.unwrap()), 3 * granule);
    assert_eq!(made.core.arena.reserved(), 6 * granule);
}

#[test]
fn holes_that_are_whole_handles_give_theirs_first_and_then_the_smallest() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0);
    let mut made = core(config, 16);
    let granule = made.core.arena.granule();
    // Blocks between holes of a handle and a half, of three handles, of two, and of one and two halves.
    for (at, bytes) in [(0, 3), (6, 2), (14, 2), (20, 3), (27, 5)] {
        made.block(at * granule / 2, bytes * granule / 2);
    }
    let first = |granules: u64| {
        let idle = super::first(made.core.idle(|_| true), granules * granule);
        let starts = idle.iter().map(|it| it.frame.start / granule);
        starts.collect::<Vec<_>>()
    };
    assert_eq!(first(1), [8], "of the hole of two handles");
    assert_eq!(first(5), [8, 9, 4, 5, 6], "then of three");
    assert_eq!(
        first(6),
        [8, 9, 4, 5, 6, 2],
        "then of the smallest of the rest"
    );
}

#[test]
fn a_window_does_not_lean_on_the_handles_that_it_lacks_if_there_is_another() {
    for remap in [true, false] {
        let config = PoolConfig::default()
            .handles(HandleSize::Granule)
            .remap(remap);
        let mut made = core(config, 4);
        let granule = made.core.arena.granule();
        let parts = |of: u64| of * granule / 16;
        made.block(0, parts(6));
        made.block(parts(32), parts(12));
        let last = made.block(parts(44), parts(20));
        // The second handle goes; then the fourth is idle, at the end of a hole larger than that of the first.
        assert_eq!(trim(&mut made, 0), granule);
        made.core.config.limit = Some(3 * granule);
        made.free(last);
        let grant = take_mapped(&mut made, parts(24)).unwrap();
        assert_eq!(grant.is_some(), remap, "without remapping it is released");
        if !remap {
            let plan = made.core.plan(made.slot, parts(24), TERMS).unwrap();
            assert_eq!((plan.lacking, plan.idle.len()), (granule, 0));
            let job = (made.core).begin_giving_up(Some(&plan.placement), plan.lacking, true);
            made.run(job).unwrap();
        }
        let grant = grant.or_else(|| take_mapped(&mut made, parts(24)).unwrap());
        assert!(made.granted(grant.unwrap()) < 2 * granule);
        assert_eq!(made.core.arena.reserved(), 3 * granule);
        // One that even all memory does not serve gets the cheapest window, as before.
        let plan = made.core.plan(made.slot, parts(80), TERMS).unwrap();
        assert_ne!(plan.lacking, 0);
    }
}
