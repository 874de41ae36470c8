//! Which memory goes back to the device, and when old mappings go.

mod kept;

use std::time::{Duration, Instant};

use super::Placement;
use crate::heap::Epoch;
use crate::pool::ask::Ask;
use crate::pool::core::tests::{Made, core};
use crate::pool::job::Job;
use crate::pool::mapping::tests::{take_mapped, two_apart};
use crate::pool::{HandleSize, PoolConfig};

/// As [`Pool::trim`](crate::Pool::trim), of a core by itself.
pub(in crate::pool) fn trim(made: &mut Made, keep: u64) -> u64 {
    let before = made.core.arena.reserved();
    if before > keep {
        let asked = made.core.ask_of_all(Ask::Done);
        made.run(Job::asking(asked)).unwrap();
        made.core.merge_done();
    }
    let job = made.core.begin_trim(keep, true);
    made.run(job).unwrap();
    before - made.core.arena.reserved()
}

#[test]
fn an_old_place_goes_once_the_work_that_used_it_is_done_whoever_saw_that() {
    let (mut made, _held) = two_apart();
    let granule = made.core.arena.granule();
    let grant = take_mapped(&mut made, 2 * granule).unwrap();
    made.granted(grant.unwrap());
    assert_eq!((made.core.steps.steal, made.core.steps.waits), (1, 1));
    let calls = made.core.arena.calls();
    let made_here = calls.mapped - calls.created;
    assert_eq!((calls.remapped, made_here), (1, 1), "{calls:?}");
    assert_eq!(made.core.retiring.len(), 1);
    let begin = Instant::now();
    while !made.core.retiring.is_empty() {
        let asked = made.core.ask_of_old();
        made.run(Job::asking(asked)).unwrap();
        let reaped = made.core.begin_reaping();
        made.run(reaped).unwrap();
        made.core.check().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(made.core.arena.reserved(), 3 * granule);
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
fn each_stream_is_asked_once_of_its_old_mappings() {
    let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 4);
    let granule = made.core.arena.granule();
    let streams = [made.stream(), made.stream()];
    for at in 0..4 {
        let stream = streams[at as usize % 2].0;
        let id = made.block(at * granule, granule);
        made.core.active.sub(granule);
        let tick = made.core.open_tick(stream);
        let epoch = Epoch::new(stream, tick);
        made.core.extents.give(id, epoch, |_| false);
        made.core.retiring.push_back(id);
    }
    let asked = made.core.ask_of_old();
    let uid = |stream| made.core.timeline(stream).unwrap().uid;
    assert_eq!(
        (asked.iter().map(|(of, _)| of.uid)).collect::<Vec<_>>(),
        [uid(streams[0].0), uid(streams[1].0)]
    );
    made.core.retiring.clear();
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
        made.core
            .extents
            .give(id, Epoch::new(slot, tick), |_| false);
    }
    assert_eq!(made.core.extents.holes(), 2);
    assert_eq!(trim(&mut made, 0), 2 * half);
    assert_eq!(made.core.arena.reserved(), 0);
    made.core.check().unwrap();
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
        let mut window = Placement::of_gap(4 * granule, within / 2 * granule);
        window.first = made
            .core
            .extents
            .seek(made.core.extents.first(), 4 * granule);
        let bytes = asked * granule;
        let job = made.core.begin_giving_up(Some(&window), bytes, true);
        let enough = job.is_some() || bytes == 0;
        made.run(job).unwrap();
        made.core.check().unwrap();
        assert_eq!(enough, said == asked, "{asked} beside {within}");
        assert_eq!(made.core.arena.reserved(), (6 - said) * granule);
        assert_eq!(made.core.arena.calls().released, said);
    }
}
