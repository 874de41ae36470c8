//! Which end of the arena a request goes to, and which of the holes that are ready it takes.

use super::{GRANULES_BEFORE_ENDS, OTHER_STREAMS, SMALL_PART, SMALLEST, Zone};
use crate::error::{Error, Result};
use crate::heap::UNIT;
use crate::heap::{Epoch, FRESH, Grant, StreamIndex};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::job::Job;

/// Handles of a granule each, in a pool that has held enough to have two ends.
fn made(granules: u64) -> (Made, u64) {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0);
    let mut made = core(config, granules);
    let granule = made.core.arena.granule();
    made.core.peak_reserved = GRANULES_BEFORE_ENDS * granule;
    made.core.config.limit = Some(granules * granule);
    (made, granule)
}

#[test]
fn small_requests_go_to_the_high_end_of_a_pool_that_has_been_large() {
    let (mut made, granule) = made(1);
    let end = |made: &Made, bytes| made.core.zone_for(bytes);
    let small = granule / SMALL_PART;
    assert_eq!(end(&made, UNIT), Zone::High);
    assert_eq!(end(&made, small), Zone::High);
    assert_eq!(end(&made, small + UNIT), Zone::Low);
    made.core.peak_reserved -= 1;
    assert_eq!(end(&made, UNIT), Zone::Low);
}

/// Takes `bytes` from what is ready; gives the offset.
fn take(made: &mut Made, bytes: u64) -> Option<u64> {
    let mut grant = made.core.take_ready(made.slot, bytes, true);
    if grant.is_none() {
        grant = high(made, bytes).unwrap();
    }
    grant.map(|grant| made.granted(grant))
}

/// Takes `bytes` in a handle that is mapped at the high end for it.
fn high(made: &mut Made, bytes: u64) -> Result<Option<Grant>> {
    let job = made.core.begin_high(made.slot, bytes);
    made.run(job)
}

#[test]
fn a_small_request_brings_an_idle_handle_to_the_high_end_if_there_is_one() {
    for idle in [true, false] {
        let (mut made, granule) = made(3);
        let reserved = made.core.arena.reserved();
        for at in 0..3 {
            made.block(at * granule, granule / 2);
        }
        if idle {
            let block = made.core.extents.seek(made.core.extents.first(), granule);
            made.free(block);
        }
        // Holes below a granule come first.
        let low = take(&mut made, UNIT).unwrap();
        assert!(
            low < 3 * granule,
            "in what is left of a handle that is used"
        );
        // Where none of those will do.
        let high = high(&mut made, UNIT).unwrap();
        assert_eq!(high.is_some(), idle);
        assert_eq!(made.core.steps.steal, u64::from(idle));
        if let Some(grant) = high {
            let at = made.granted(grant);
            assert_eq!(made.core.extents.zone_of(at), Zone::High);
        }
        assert_eq!(made.core.arena.reserved(), reserved, "nothing is made");
    }
}

#[test]
fn a_free_handle_is_brought_to_the_high_end_rather_than_cut_where_it_is() {
    for bytes in [UNIT, SMALLEST + UNIT] {
        let (mut made, granule) = made(2);
        made.block(0, granule);
        assert_eq!(made.at(granule).bytes, granule);
        let at = take(&mut made, bytes).unwrap();
        assert_eq!(made.core.extents.zone_of(at), Zone::High, "{bytes}");
        assert_eq!(made.core.steps.steal, 1);
    }
}

#[test]
fn a_handle_goes_to_the_high_end_once_nobody_else_uses_it() {
    // Whose the free handle is, and whether its work is done.
    for (own, done, said) in [
        (true, false, true),
        (true, true, true),
        (false, true, true),
        (false, false, false),
    ] {
        let (mut made, granule) = made(2);
        let (other, _held) = made.stream();
        let slot = if own { made.slot } else { other };
        made.block(0, granule);
        let id = made.block(granule, granule);
        made.core.active.sub(granule);
        let tick = if done { 0 } else { made.core.open_tick(slot) };
        made.core
            .extents
            .give(id, Epoch::new(slot, tick), |_| false);
        let grant = high(&mut made, UNIT).unwrap();
        assert_eq!(grant.is_some(), said, "{own} {done}");
        assert_eq!(made.core.steps.steal, u64::from(said));
        assert_eq!(made.core.steps.waits, 0);
        if let Some(grant) = grant {
            let at = made.granted(grant);
            assert_eq!(made.core.extents.zone_of(at), Zone::High);
        }
    }
}

#[test]
fn a_failure_at_the_high_end_that_is_no_want_of_memory_is_the_requests() {
    let (mut made, granule) = made(1);
    made.block(0, granule);
    made.core.config.limit = Some(8 * granule);
    made.core.peak_taken = 3 * granule;
    let gap = made.core.extents.gaps().last().unwrap();
    made.unknown_at(made.core.extents.get(gap).start);
    let refused = high(&mut made, UNIT);
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}

#[test]
fn a_small_request_maps_new_memory_at_the_high_end_within_the_slack() {
    for allowed in [true, false] {
        let (mut made, granule) = made(2);
        made.block(0, 2 * granule);
        made.core.config.limit = Some(8 * granule);
        made.core.peak_taken = if allowed { 3 * granule } else { 0 };
        let grant = high(&mut made, UNIT).unwrap();
        let grant = grant.map(|grant| made.granted(grant));
        assert_eq!(grant.is_some(), allowed);
        let reserved = made.core.arena.reserved() / granule;
        assert_eq!(reserved, if allowed { 3 } else { 2 });
    }
}

#[test]
fn without_a_hole_at_the_high_end_small_requests_take_one_below_a_granule() {
    let (mut made, granule) = made(3);
    // A hole of a handle and one of half of one; the next is used up.
    made.block(granule, granule / 2);
    made.block(2 * granule, granule);
    let half = granule + granule / 2;
    assert_eq!(take(&mut made, SMALLEST + UNIT), Some(half));
    assert_eq!(take(&mut made, SMALLEST), Some(half + SMALLEST + UNIT));
    let at = take(&mut made, granule / 4).unwrap();
    assert_eq!(at, half + 2 * SMALLEST + UNIT);
    let at = take(&mut made, granule / 4).unwrap();
    assert_eq!(
        made.core.extents.zone_of(at),
        Zone::High,
        "the handle was idle"
    );
}

#[test]
fn the_smallest_lie_in_handles_of_one_granule_and_others_where_less_than_one_is_free() {
    // A handle of two granules and two of one, half of each used: large ones would be held by few.
    let mut made = core(PoolConfig::default().slack(0.0), 0);
    let granule = made.core.arena.granule();
    made.core.config.handles = HandleSize::UpTo(2 * granule);
    made.core.create_frames(0, 2 * granule).unwrap();
    made.core.config.handles = HandleSize::Granule;
    made.core.create_frames(2 * granule, 4 * granule).unwrap();
    made.core.peak_reserved = GRANULES_BEFORE_ENDS * granule;
    made.core.config.limit = Some(4 * granule);
    let of = |made: &Made, at| made.core.is_granule_sized(at);
    let sized = [0, granule, 2 * granule, 3 * granule, 4 * granule].map(|at| of(&made, at));
    assert_eq!(sized, [false, false, true, true, false]);
    // Holes of a quarter in the large one, of three in the next, and none smaller than those.
    made.block(0, 2 * granule - granule / 4);
    made.block(2 * granule, granule / 4);
    made.block(3 * granule, granule);
    let (large, small) = (2 * granule - granule / 4, 2 * granule + granule / 4);
    assert_eq!(take(&mut made, SMALLEST), Some(small));
    assert_eq!(take(&mut made, SMALLEST + UNIT), Some(large));
}

/// A core with so many streams in all, each its slot.
fn with_streams(count: usize) -> (Made, Vec<StreamIndex>, impl Sized) {
    let mut made = core(PoolConfig::default(), 4);
    let (mut slots, mut held) = (vec![made.slot], Vec::new());
    for _ in 1..count {
        let (slot, hold) = made.stream();
        slots.push(slot);
        held.push(hold);
    }
    (made, slots, held)
}

#[test]
fn a_miss_looks_at_all_other_streams_and_a_better_fit_at_a_few_of_many() {
    for count in [1, 2, 5, 6, 16] {
        let (mut made, slots, _held) = with_streams(count);
        let slot = slots[count / 2];
        let rest: Vec<StreamIndex> = slots.iter().copied().filter(|&it| it != slot).collect();
        let sorted = |others: Vec<StreamIndex>| {
            let mut others = others;
            others.sort_unstable();
            others
        };
        let others = |made: &Made, has| made.core.others(slot, has).collect::<Vec<_>>();
        assert_eq!(sorted(others(&made, false)), rest);
        if count <= 5 {
            assert_eq!(sorted(others(&made, true)), rest);
            continue;
        }
        // Other ones each time, until it was all of them.
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2 * count {
            let some = others(&made, true);
            assert!(
                some.len() <= OTHER_STREAMS as usize && some.len() + 1 >= OTHER_STREAMS as usize
            );
            seen.extend(some);
            let id = made.block(0, UNIT);
            made.free(id);
        }
        assert!(seen.into_iter().eq(rest), "{count} streams");
    }
}

#[test]
fn of_ready_holes_the_smallest_is_taken_and_of_equal_ones_its_own() {
    let (mut made, slots, _held) = with_streams(3);
    let [own, other, third] = slots[..] else {
        panic!("three streams");
    };
    let granule = made.core.arena.granule();
    // Holes with a block behind each, all ready: of (units, whose).
    let mut start = 0;
    let mut hole = |made: &mut Made, units: u64, slot| {
        let id = made.block(start, units * UNIT);
        made.core.extents.spoil(id).slot = slot;
        made.block(start + units * UNIT, UNIT);
        made.core.active.sub(units * UNIT);
        made.core.extents.give(id, Epoch::new(slot, 0), |_| false);
        let at = start;
        start += (units + 1) * UNIT;
        at
    };
    let theirs = hole(&mut made, 4, other);
    let mine = hole(&mut made, 4, own);
    let smaller = hole(&mut made, 3, third);
    let larger = hole(&mut made, 9, other);
    let as_large = hole(&mut made, 9, own);
    let found = |made: &Made, slot, units: u64| {
        let id = made.core.ready(slot, units * UNIT, Zone::Low, |_| true);
        id.map(|id| made.core.extents.get(id).start)
    };
    assert_eq!(found(&made, own, 4), Some(mine));
    assert_eq!(found(&made, other, 4), Some(theirs));
    assert_eq!(found(&made, own, 3), Some(smaller));
    assert_eq!(found(&made, own, 2), Some(smaller));
    assert_eq!(found(&made, own, 5), Some(as_large));
    assert_eq!(found(&made, other, 5), Some(larger));
    // What nobody used is behind all of these, and larger.
    let rest = found(&made, own, 10).unwrap();
    assert_eq!(
        (made.at(rest).slot, made.at(rest).end()),
        (FRESH, 4 * granule)
    );
    let id = made
        .core
        .ready(own, 3 * UNIT, Zone::Low, |it| it.bytes != 3 * UNIT);
    assert_eq!(id.map(|id| made.core.extents.get(id).start), Some(mine));
}

#[test]
fn a_large_request_takes_what_holes_of_several_streams_make_together() {
    for (small, enough, waits) in [
        (false, true, true),
        (true, true, true),
        (false, false, true),
        (false, true, false),
    ] {
        let (mut made, slots, _held) = with_streams(2);
        let (slot, other) = (slots[0], slots[1]);
        let granule = made.core.arena.granule();
        let part = if small { granule / 8 } else { granule / 2 };
        // All that is free: two parts side by side, of two streams.
        made.block(2 * part, 4 * granule - 2 * part);
        for (at, slot) in [(0, slot), (part, other)] {
            let id = made.block(at, part);
            let tick = made.core.open_tick(slot);
            made.core.active.sub(part);
            made.core
                .extents
                .give(id, Epoch::new(slot, tick), |_| false);
        }
        made.core.config.reuse.device_wait = waits;
        let bytes = 2 * part + if enough { 0 } else { UNIT };
        let taken = !small && enough && waits;
        assert_eq!(made.core.is_merged_for(bytes), taken);
        let mut grant = None;
        if taken {
            assert!(made.core.take_merged(slot, bytes).is_none());
            let lacking = made.core.unify(slot);
            let waits = made.core.waits_for(slot, lacking);
            made.run(Some(Job::Ask(waits))).unwrap();
            assert!(made.core.unify(slot).is_empty());
            grant = made.core.take_merged(slot, bytes);
        }
        assert_eq!(grant.map(|grant| made.granted(grant)), taken.then_some(0));
        let steps = &made.core.steps;
        assert_eq!(
            (steps.stream_wait, steps.waits),
            (u64::from(taken), u64::from(taken))
        );
        made.core.check().unwrap();
    }
}
