//! Which idle handles a request has mapped elsewhere, and which go back.

use std::time::{Duration, Instant};

use super::{Core, Extent, Search, is_done};
use crate::error::Error;
use crate::heap::State;
use crate::pool::core::tests::{Made, all_of_a_device, core};
use crate::pool::{HandleSize, PoolConfig};

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
    let would = |core: &Core, granules: u64| core.would_steal(slot, granules * granule);
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
    let all = core.idle(None, u64::MAX, |_| true);
    let mut seen: Vec<u64> = all.iter().map(|it| it.start).collect();
    seen.sort_unstable();
    assert_eq!(seen, said);
    assert!(all.iter().all(|it| it.bytes == granule));
    assert_eq!(super::total(&all), said.len() as u64 * granule);
    assert_eq!(core.idle(None, 2 * granule, |_| true).len(), 2);
    assert_eq!(core.idle(None, 2 * granule - 1, |_| true).len(), 1);
    assert!(core.idle(None, 0, |_| true).is_empty());
    assert!(core.idle(None, u64::MAX, |_| false).is_empty());
}

#[test]
fn holes_are_merged_once_a_request_and_only_where_they_have_as_much_as_it_or_a_handle() {
    let mut made = core(PoolConfig::default(), 3);
    let granule = made.core.arena.granule();
    let may = |made: &Made, search: &mut Search, bytes| made.core.may_unify(search, bytes);
    for (free, bytes, said) in [
        (2 * granule, 9 * granule, true),
        (granule, granule, true),
        (granule - 256, granule, false),
        (512, 512, true),
        (256, 512, false),
    ] {
        let block = made.block(0, 3 * granule - free);
        let mut search = Search::new(true);
        assert_eq!(may(&made, &mut search, bytes), said, "{free} for {bytes}");
        // What was not done may be done once there is more.
        assert_eq!(search.unified, said);
        assert!(!said || !may(&made, &mut search, bytes));
        made.free(block);
    }
}

/// Three handles with a block in the second, and what is beyond it freed by another stream; no more
/// may be made.
fn two_apart() -> (Made, impl Sized) {
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
        made.core.extents.give(id, other, tick, |_| false);
    }
    (made, held)
}

#[test]
fn an_old_place_goes_once_the_work_that_used_it_is_done_whoever_saw_that() {
    let (mut made, _held) = two_apart();
    let granule = made.core.arena.granule();
    let grant = made.core.take_mapping(made.slot, 2 * granule).unwrap();
    made.granted(grant.unwrap());
    assert_eq!((made.core.steps.steal, made.core.steps.waits), (1, 1));
    let calls = made.core.arena.calls();
    let made_here = calls.mapped - calls.created;
    assert_eq!((calls.remapped, made_here), (1, 1), "{calls:?}");
    assert_eq!(made.core.retiring.len(), 1);
    let begin = Instant::now();
    while !made.core.retiring.is_empty() {
        made.core.reap().unwrap();
        made.core.check().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(made.core.arena.reserved(), 3 * granule);
}

#[test]
fn what_free_handles_do_not_make_up_is_not_served_and_costs_nothing() {
    for granules in [2, 3] {
        let (mut made, _held) = two_apart();
        let granule = made.core.arena.granule();
        let grant = made
            .core
            .take_mapping(made.slot, granules * granule)
            .unwrap();
        assert_eq!(grant.is_some(), granules == 2);
        assert_eq!(made.core.steps.steal, u64::from(granules == 2));
        assert_eq!(made.core.arena.reserved(), 3 * granule);
    }
    // With room for the third it is made, and the others are mapped beside it.
    let (mut made, _held) = two_apart();
    let granule = made.core.arena.granule();
    made.core.config.limit = Some(4 * granule);
    let grant = made.core.take_mapping(made.slot, 3 * granule).unwrap();
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
        let grant = (made.core.take_overlapping(made.slot, granules * granule)).unwrap();
        let grant = grant.map(|grant| made.granted(grant));
        assert_eq!(grant.is_some(), said, "{granules} beside {reserved}");
        let more = if said { granules } else { 0 };
        assert_eq!(made.core.arena.reserved(), (reserved + more) * granule);
        // The limit holds here too.
        made.core.config.limit = Some(made.core.arena.reserved());
        assert!(
            made.core
                .take_overlapping(made.slot, granule)
                .unwrap()
                .is_none()
        );
        drop(held);
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
    assert!(made.core.take_overlapping(slot, granule).unwrap().is_none());
    assert!(made.core.take_ready(slot, 256).unwrap().is_none());
    assert!(made.core.take_mapping(slot, granule).unwrap().is_none());
    made.core.check().unwrap();
    assert_eq!(made.core.arena.reserved(), 3 * granule);
}

#[test]
fn where_the_device_has_less_than_a_handle_smaller_ones_are_made_and_stay() {
    let config = PoolConfig::default().handles(HandleSize::UpTo(u64::MAX));
    let mut made = all_of_a_device(config, 3);
    let granule = made.core.arena.granule();
    made.core.trim(0).unwrap();
    assert_eq!(made.core.arena.reserved(), 0);
    let refused = made.core.create_frames(0, 4 * granule);
    assert!(refused.is_err_and(|error| error.is_device_exhausted()));
    assert_eq!(made.core.arena.reserved(), 3 * granule);
    assert_eq!(made.at(0).bytes, 3 * granule);
    made.core.check().unwrap();
}

#[test]
fn a_pool_is_over_its_soft_limit_with_more_than_that() {
    let mut made = core(PoolConfig::default(), 3);
    let granule = made.core.arena.granule();
    for (soft, over) in [(2, true), (3, false), (4, false)] {
        made.core.config.soft_limit = Some(soft * granule);
        assert_eq!(made.core.is_over_soft_limit(), over, "{soft}");
    }
    made.core.config.soft_limit = None;
    assert!(!made.core.is_over_soft_limit());
}

#[test]
fn a_failure_that_is_no_want_of_memory_is_the_requests() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    for several in [true, false] {
        let mut made = core(config.clone(), 1);
        let granule = made.core.arena.granule();
        let held = several.then(|| made.stream());
        made.block(0, granule);
        // Where the next handle would go there is one that the books know nothing of.
        made.core.arena.create_at(granule, granule).unwrap();
        let slot = made.slot;
        let refused = match several {
            true => made.core.take_overlapping(slot, granule),
            false => made.core.take_mapping(slot, granule),
        };
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{several}");
        drop(held);
    }
}

#[test]
fn a_trim_that_keeps_all_there_is_waits_for_nobody_and_one_that_does_not_for_all() {
    for kept in [3, 2] {
        let (mut made, _held) = two_apart();
        let granule = made.core.arena.granule();
        let released = made.core.trim(kept * granule).unwrap();
        assert_eq!(released, (3 - kept) * granule);
        made.core.check().unwrap();
        let holes = (made.core.extents.iter()).filter(|(_, it)| it.state == State::Free);
        let waiting = holes.filter(|(_, hole)| !is_done(&made.core.streams, hole.epoch()));
        assert_eq!(waiting.count(), if kept == 3 { 2 } else { 0 });
    }
}

#[test]
fn a_handle_whose_parts_several_streams_freed_is_given_back_by_a_trim() {
    let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 1);
    let (other, _held) = made.stream();
    let half = made.core.arena.granule() / 2;
    for (at, slot) in [(0, made.slot), (half, other)] {
        let id = made.block(at, half);
        made.core.active.sub(half);
        let tick = made.core.open_tick(slot);
        made.core.extents.give(id, slot, tick, |_| false);
    }
    assert_eq!(made.core.extents.holes(), 2);
    assert_eq!(made.core.trim(0).unwrap(), 2 * half);
    assert_eq!(made.core.arena.reserved(), 0);
    made.core.check().unwrap();
}

#[test]
fn what_is_ready_is_used_before_new_memory_is_mapped_beside_it() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = core(config, 4);
    let granule = made.core.arena.granule();
    let _held = made.stream();
    made.block(0, 3 * granule);
    let at = made.core.take_overlapping(made.slot, 3 * granule).unwrap();
    assert_eq!(made.granted(at.unwrap()), 3 * granule);
    assert_eq!(made.core.arena.reserved(), 6 * granule);
}

#[test]
fn idle_handles_are_given_back_as_far_as_they_are_asked_for_or_none() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    for (asked, within, said) in [
        (0, 0, 0),
        (1, 0, 1),
        (4, 0, 4),
        (5, 0, 0),
        (3, 2, 3),
        (4, 2, 0),
    ] {
        let mut made = core(config.clone(), 6);
        let granule = made.core.arena.granule();
        // Handles 0 and 3 have a block; of the rest, some are in the window.
        made.block(0, granule / 2);
        made.block(3 * granule, granule);
        let mut window = super::Placement::of_gap(4 * granule, within / 2 * granule);
        window.first = made
            .core
            .extents
            .seek(made.core.extents.first(), 4 * granule);
        let bytes = asked * granule;
        let enough = made.core.release_idle(&window, bytes).unwrap();
        made.core.check().unwrap();
        assert_eq!(enough, said == asked, "{asked} beside {within}");
        assert_eq!(made.core.arena.reserved(), (6 - said) * granule);
        assert_eq!(made.core.arena.calls().released, said);
    }
}
