//! Old mappings that are kept: when their handles come back to them, and when they go.

use super::trim;
use crate::error::Result;
use crate::heap::placement::Placement;
use crate::heap::{Epoch, State};
use crate::pool::core::tests::{Made, all_of_a_device, core};
use crate::pool::job::Job;
use crate::pool::tuning::MOST_KEPT;
use crate::pool::{HandleSize, PoolConfig};

/// A core with `handles` handles of `granules` granules each, all of them free.
fn made(handles: u64, granules: u64) -> (Made, u64) {
    let granule = core(PoolConfig::default(), 0).core.arena.granule();
    let sizes = HandleSize::UpTo(granules * granule);
    (
        core(PoolConfig::default().handles(sizes), handles * granules),
        granule,
    )
}

/// Has the handles mapped at `from` mapped one behind the other at `to`.
fn move_all(made: &mut Made, from: &[u64], to: u64) -> Result<()> {
    let mut idle = Vec::new();
    for &at in from {
        let hole = made.core.extents.seek(made.core.extents.first(), at);
        let found = made.core.idle_in(hole).find(|it| it.frame.start == at);
        idle.push(found.expect("a handle"));
    }
    let bytes = crate::pool::mapping::total(&idle);
    let job = (made.core).begin_mapping(made.slot, Placement::of_gap(to, bytes), &idle);
    made.core.check().unwrap();
    let ended = made.run(job);
    // Nothing used it.
    let ended = ended.map(|grant| made.core.give(grant.unwrap().id, Epoch::new(made.slot, 0)));
    made.core.check().unwrap();
    ended
}

/// Nothing uses the old mappings any more.
fn reap(made: &mut Made) {
    let asked = made.core.ask_of_old();
    made.run(Job::asking(asked)).unwrap();
    let job = made.core.begin_reaping();
    made.run(job).unwrap();
    made.core.check().unwrap();
}

/// Mapped elsewhere, and taken down, so far.
fn calls(made: &Made) -> (u64, u64) {
    let calls = made.core.arena.calls();
    (calls.remapped, calls.unmapped)
}

fn kept(made: &Made) -> Vec<u64> {
    let all = made.core.arena.kept_in(0, u64::MAX);
    let mut starts: Vec<u64> = all.map(|it| it.start).collect();
    starts.reverse();
    starts
}

#[test]
fn handles_that_go_back_to_where_they_were_cost_no_call() {
    for handles in 1..5_u64 {
        let (mut made, granule) = made(handles, 1);
        let here: Vec<u64> = (0..handles).map(|at| at * granule).collect();
        let there: Vec<u64> = here.iter().map(|at| at + 10 * granule).collect();
        move_all(&mut made, &here, there[0]).unwrap();
        assert_eq!(calls(&made), (handles, 0));
        reap(&mut made);
        assert_eq!(kept(&made), here);
        for _ in 0..3 {
            move_all(&mut made, &there, 0).unwrap();
            reap(&mut made);
            assert_eq!(kept(&made), there);
            move_all(&mut made, &here, there[0]).unwrap();
            reap(&mut made);
            assert_eq!(kept(&made), here);
        }
        assert_eq!(calls(&made), (handles, 0));
        assert_eq!(made.core.arena.reserved(), handles * granule);
        assert_eq!(made.core.steps.steal, 7 * handles);
    }
}

#[test]
fn the_addresses_of_a_kept_mapping_are_free_and_it_goes_when_another_handle_comes() {
    let (mut made, granule) = made(3, 2);
    move_all(&mut made, &[0], 20 * granule).unwrap();
    assert_eq!(made.at(granule).state, State::Stale);
    reap(&mut made);
    assert_eq!(made.at(granule).state, State::Unmapped);
    // Another handle of the same size, right there.
    move_all(&mut made, &[2 * granule], 0).unwrap();
    assert_eq!(calls(&made), (2, 1));
    reap(&mut made);
    assert_eq!(kept(&made), [2 * granule]);
    // It goes back, but the first one comes to where it was, and more than that is free again.
    move_all(&mut made, &[0], 30 * granule).unwrap();
    reap(&mut made);
    assert_eq!(kept(&made), [0, 2 * granule]);
    move_all(&mut made, &[20 * granule], granule).unwrap();
    assert_eq!(calls(&made), (4, 3));
    let places = [0, 1, 2, 3].map(|at| made.at(at * granule).state);
    let (gap, hole) = (State::Unmapped, State::Free);
    assert_eq!(places, [gap, hole, hole, gap]);
    reap(&mut made);
    assert_eq!(kept(&made), [20 * granule]);
}

#[test]
fn a_new_handle_takes_the_place_of_kept_mappings() {
    let (mut made, granule) = made(2, 2);
    move_all(&mut made, &[0, 2 * granule], 10 * granule).unwrap();
    reap(&mut made);
    made.core.create_frames(granule, 3 * granule).unwrap();
    made.core.check().unwrap();
    assert_eq!(calls(&made), (2, 2));
    assert!(kept(&made).is_empty());
    assert_eq!(made.core.arena.reserved(), 6 * granule);
    // So does a run that comes along with its blocks.
    move_all(&mut made, &[10 * granule], 20 * granule).unwrap();
    reap(&mut made);
    assert_eq!(kept(&made), [10 * granule]);
    let run = made.core.runs(&|_| true)[0];
    let (slot, tick) = (made.slot, made.core.open_tick(made.slot));
    made.core
        .carry(&run, 9 * granule, Epoch::new(slot, tick))
        .unwrap();
    made.core.check().unwrap();
    assert_eq!((calls(&made), kept(&made)), ((4, 3), vec![]));
}

#[test]
fn a_handle_given_back_takes_its_kept_mappings_along() {
    let mut made = all_of_a_device(PoolConfig::default().handles(HandleSize::Granule), 3);
    let granule = made.core.arena.granule();
    move_all(&mut made, &[0], 10 * granule).unwrap();
    reap(&mut made);
    move_all(&mut made, &[10 * granule, 2 * granule], 20 * granule).unwrap();
    reap(&mut made);
    assert_eq!(kept(&made), [0, 2 * granule, 10 * granule]);
    assert_eq!(trim(&mut made, 0), 3 * granule);
    assert_eq!((kept(&made), made.core.arena.left_over()), (vec![], 0));
    assert!(made.core.retiring.is_empty());
    let calls = made.core.arena.calls();
    assert_eq!((calls.unmapped, calls.released), (calls.mapped, 3));
    // The device has its memory back, which is all it has.
    made.core.create_frames(0, 3 * granule).unwrap();
    made.core.check().unwrap();
}

#[test]
fn a_mapping_that_fails_keeps_what_it_did_not_come_to() {
    // Two handles whose old places are in the way of two others.
    for fails_at in [0, 1, 2, 3] {
        let (mut made, granule) = made(4, 1);
        move_all(&mut made, &[0, granule], 10 * granule).unwrap();
        reap(&mut made);
        let site = made.core.arena.site().clone();
        let unmapped_behind = |at: u64| {
            site.unmap(at, granule).unwrap();
        };
        // The highest is cleared first; a mapping that is gone cannot be taken down.
        match fails_at {
            0 => unmapped_behind(granule),
            1 => unmapped_behind(0),
            _ => (),
        }
        let handles = match fails_at {
            2 => [10 * granule, 2 * granule],
            _ => [2 * granule, 3 * granule],
        };
        if fails_at == 2 {
            unmapped_behind(granule);
        }
        let moved = move_all(&mut made, &handles, 0);
        assert_eq!(moved.is_err(), fails_at < 3, "{fails_at}");
        let left: &[u64] = match fails_at {
            0 => &[0, granule],
            1 => &[0],
            2 => &[0, granule],
            _ => &[],
        };
        let mut seen = kept(&made);
        seen.retain(|&at| at < 2 * granule);
        assert_eq!(seen, left, "{fails_at}");
        assert_eq!(made.core.arena.reserved(), 4 * granule);
        assert_eq!(made.core.under_way.jobs, 0);
        // So that the books are true when they are closed.
        for &at in left.iter().filter(|_| fails_at < 3) {
            let _ = site.unmap(at, granule);
        }
    }
}

#[test]
fn of_too_many_kept_mappings_the_oldest_go() {
    let (mut made, granule) = made(1, 1);
    let more = 3;
    let places = MOST_KEPT as u64 + more;
    let mut at = 0;
    for next in 1..=places {
        move_all(&mut made, &[at], next * granule).unwrap();
        at = next * granule;
        reap(&mut made);
    }
    assert_eq!(calls(&made), (places, more));
    let kept = kept(&made);
    assert_eq!((kept.len(), kept[0]), (MOST_KEPT, more * granule));
    made.core.check().unwrap();
}

#[test]
fn a_mapping_found_done_while_its_handle_is_given_back_is_not_kept_for_ever() {
    let (mut made, granule) = made(1, 1);
    move_all(&mut made, &[0], 10 * granule).unwrap();
    let asked = made.core.ask_of_old();
    made.run(Job::asking(asked)).unwrap();
    // Not of a trim, which takes old mappings down too.
    made.core.merge_done();
    let release = made.core.begin_trim(0, false).unwrap();
    let ran = release.run();
    reap(&mut made);
    assert_eq!(kept(&made), [0]);
    made.core.end(ran).unwrap();
    made.core.check().unwrap();
    assert!(kept(&made).is_empty());
    reap(&mut made);
    assert_eq!(made.core.arena.reserved(), 0);
}
