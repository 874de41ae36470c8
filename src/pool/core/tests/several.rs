//! What a core does with the holes of several streams, and with neighbours.

use super::*;
use crate::heap::Epoch;
use crate::pool::job::Job;
use crate::pool::tuning::UNIFIED_AT_ONCE;

/// The core, and one more stream of it.
fn two() -> (Made, StreamIndex, (Stream, Hold)) {
    let mut made = made();
    let (other, held) = made.stream();
    assert_eq!((made.slot, other), (1, 2));
    (made, other, held)
}

impl Made {
    /// A hole at `start` behind the open tick of `slot`.
    fn hole(&mut self, start: u64, bytes: u64, slot: StreamIndex) -> Extent {
        let id = self.block(start, bytes);
        self.core.active.sub(bytes);
        let tick = self.core.open_tick(slot);
        self.core
            .extents
            .give(id, Epoch::new(slot, tick), |_| false);
        self.at(start)
    }
}

#[test]
fn a_stream_runs_behind_its_own_holes_and_those_whose_work_is_done_or_waited_for() {
    let (mut made, other, _held) = two();
    let slot = made.slot;
    let theirs = made.hole(0, UNIT, other);
    let own = made.hole(2 * UNIT, UNIT, slot);
    let fresh = made.at(4 * UNIT);
    assert_eq!(
        (theirs.epoch.stream, own.epoch.stream, fresh.epoch.stream),
        (other, slot, FRESH)
    );
    let core = &mut made.core;
    let behind = |core: &Core| [&theirs, &own, &fresh].map(|hole| core.is_behind(slot, hole.epoch));
    assert_eq!(behind(core), [false, true, true]);
    // Of its own and of what nobody used nothing is waited for.
    core.wait_for(slot, own.epoch);
    core.wait_for(slot, fresh.epoch);
    assert_eq!(core.steps.waits, 0);
    core.wait_for(slot, theirs.epoch);
    assert_eq!(core.steps.waits, 1);
    assert_eq!(behind(core), [true; 3]);
    core.wait_for(slot, theirs.epoch);
    assert_eq!(core.steps.waits, 1);
}

#[test]
fn streams_are_polled_that_memory_waits_for_which_a_request_could_have_and_no_others() {
    let (mut made, other, _held) = two();
    let slot = made.slot;
    let third = made._stream.device().stream().unwrap();
    let hold = made.core.add_stream(&third.core().timeline, false);
    let waiting = *hold;
    assert!(
        made.core.ask_how_far(slot, UNIT).is_empty(),
        "nothing waits for any"
    );
    let hole = made.hole(0, UNIT, other);
    made.core.wait_for(waiting, hole.epoch);
    assert!(made.core.ask_how_far(other, UNIT).is_empty());
    // The hole is too small, for a slot too.
    assert!(made.core.ask_how_far(slot, 2 * UNIT).is_empty());
    assert!(made.core.ask_how_far(slot, UNIT + 16).is_empty());
    assert!(!made.core.ask_how_far(slot, 16).is_empty());
    assert!(!made.core.is_behind(slot, hole.epoch));
    let begin = Instant::now();
    while !made.core.is_behind(slot, hole.epoch) {
        let job = Job::asking(made.core.ask_how_far(slot, UNIT));
        assert!(job.is_some());
        made.run(job).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
    // What it knows to be done may not be used where the pool is told not to.
    made.core.config.reuse.opportunistic = false;
    assert!(!made.core.is_behind(slot, hole.epoch));
}

#[test]
fn the_last_tick_of_each_stream_is_that_of_its_holes_and_old_places() {
    let (mut made, other, _held) = two();
    let granule = made.core.arena.granule();
    assert!(made.core.last_epochs().is_empty());
    let tick = made.hole(0, UNIT, other).epoch.tick;
    made.hole(2 * UNIT, UNIT, made.slot);
    let hole = made.core.extents.seek(made.core.extents.first(), 2 * UNIT);
    made.core.extents.spoil(hole).epoch.tick = tick + 7;
    let hole = made.core.extents.seek(hole, 4 * granule);
    let old = made.core.extents.retire(hole, 4 * granule, 5 * granule);
    let extent = made.core.extents.spoil(old);
    (extent.epoch.stream, extent.epoch.tick) = (other, tick + 9);
    let block = made
        .core
        .extents
        .seek(made.core.extents.first(), 2 * granule);
    made.core.extents.spoil(block).epoch.tick = tick + 100;
    assert_eq!(
        made.core.last_epochs(),
        [(made.slot, tick + 7), (other, tick + 9)].map(|(slot, tick)| Epoch::new(slot, tick))
    );
}

#[test]
fn a_block_grows_into_what_is_free_behind_it_and_shrinks_by_its_end() {
    let mut made = made();
    let (slot, granule) = (made.slot, made.core.arena.granule());
    let id = made.block(0, 4 * UNIT);
    let tick = made.core.open_tick(slot);
    made.core.shrink(id, UNIT, Epoch::new(slot, tick));
    assert_eq!(
        (made.at(0).bytes, made.at(3 * UNIT).state),
        (3 * UNIT, State::Free)
    );
    made.core.check().unwrap();
    let waits = &mut Vec::new();
    assert!(made.core.grow(id, 7 * UNIT, slot, waits));
    assert_eq!(made.at(0).bytes, 10 * UNIT);
    made.core.check().unwrap();
    // As far as the block in the middle, and no further.
    let rest = 2 * granule - 10 * UNIT;
    assert!(!made.core.grow(id, rest + UNIT, slot, waits));
    made.core.check().unwrap();
    assert!(made.core.grow(id, rest, slot, waits));
    assert_eq!(made.at(0).bytes, 2 * granule);
    assert_eq!(made.core.peak_taken, made.core.live());
    assert!(!made.core.grow(id, UNIT, slot, waits));
    made.core.check().unwrap();
}

#[test]
fn moves_are_booked_where_they_go_and_what_they_leave_is_free_behind_them() {
    let mut made = made();
    let (slot, granule) = (made.slot, made.core.arena.granule());
    for at in [1, 2, 5] {
        made.block(at * UNIT, UNIT);
    }
    let mapped: Vec<_> = made.core.mapped_extents().take(5).collect();
    let said = [
        (0, 1, false),
        (1, 1, true),
        (2, 1, true),
        (3, 2, false),
        (5, 1, true),
    ];
    assert_eq!(
        mapped,
        said.map(|(at, units, taken)| (at * UNIT, units * UNIT, taken))
    );
    let tick = made.core.open_tick(slot);
    let moves = [(1, 0), (2, 1), (5, 9)].map(|(from, to)| (from * UNIT, to * UNIT, UNIT));
    let ids = made.core.book_moves(&moves, Epoch::new(slot, tick));
    for ((_, to, bytes), id) in moves.into_iter().zip(ids) {
        let extent = made.core.extents.get(id);
        assert_eq!(
            (extent.start, extent.bytes, extent.epoch.stream),
            (to, bytes, slot)
        );
        assert!(extent.movable && extent.state == State::Allocated);
    }
    made.core.check().unwrap();
    let left = made.at(2 * UNIT);
    assert_eq!(
        (left.end(), left.epoch.stream, left.epoch.tick),
        (9 * UNIT, slot, tick)
    );
    assert_eq!(made.at(10 * UNIT).end(), 2 * granule);
    // What was written on the way is free behind it too.
    made.core
        .book_written(&[(4 * granule, 4 * granule + UNIT)], Epoch::new(slot, tick));
    let written = made.at(4 * granule);
    assert_eq!(
        (written.state, written.epoch.stream, written.epoch.tick),
        (State::Free, slot, tick)
    );
    made.core.check().unwrap();
    made.core.count_moves(70);
    made.core.count_moves(7);
    made.core.count(crate::pool::stats::Told::Relieved(1));
    assert_eq!((made.core.bytes_moved, made.core.compactions), (77, 2));
    assert_eq!(made.core.steps.relieved, 1);
}

#[test]
fn a_slot_is_given_anew_once_its_stream_is_gone_and_nothing_waits_for_it() {
    let (mut made, other, held) = two();
    let again = |made: &mut Made| {
        let stream = made._stream.device().stream().unwrap();
        *made.core.add_stream(&stream.core().timeline, false)
    };
    made.hole(0, UNIT, other);
    drop(held);
    assert_eq!(again(&mut made), 3, "a hole waits for it");
    let hole = made.core.extents.first();
    made.core.extents.take(hole, UNIT, FRESH);
    assert_eq!(again(&mut made), 2);
    let granule = made.core.arena.granule();
    let hole = made
        .core
        .extents
        .seek(made.core.extents.first(), 4 * granule);
    let old = made.core.extents.retire(hole, 4 * granule, 5 * granule);
    made.core.extents.spoil(old).epoch.stream = 2;
    made.core.retiring.push_back(old);
    assert_eq!(again(&mut made), 3, "an old place waits for the other");
    made.core.retiring.clear();
    assert_eq!(again(&mut made), 2);
    assert_eq!(made.core.streams.len(), 4);
    assert!(!made.core.only_stream() && self::made().core.only_stream());
}

#[test]
fn a_slot_is_given_anew_beside_a_job_unless_that_holds_memory_of_it() {
    let (mut made, other, held) = two();
    let granule = made.core.arena.granule();
    made.hole(0, granule, other);
    drop(held);
    let job = made.core.begin_trim(0, true).unwrap();
    assert_eq!(made.stream().0, 3, "the job holds memory of the other");
    assert_eq!(made.stream().0, 3, "no memory waits for the one before");
    made.run(Some(job)).unwrap();
    assert_eq!(made.stream().0, 2);
    made.core.check().unwrap();
}

#[test]
fn the_smallest_hole_of_any_stream_is_taken_behind_a_wait_for_it() {
    let (mut made, other, _held) = two();
    let (slot, granule) = (made.slot, made.core.arena.granule());
    let (third, _kept) = made.stream();
    made.block(4 * UNIT, 4 * UNIT);
    made.block(10 * UNIT, 2 * granule - 10 * UNIT);
    made.block(3 * granule, 3 * granule);
    for (at, units, stream) in [(0, 4, other), (8, 2, third)] {
        made.hole(at * UNIT, units * UNIT, stream);
    }
    let found = made.core.smallest_hole(2 * UNIT).unwrap();
    let epoch = made.core.extents.get(found).epoch;
    assert_eq!(epoch.stream, third);
    made.core.wait_for(slot, epoch);
    let grant = made.core.extents.take(found, 2 * UNIT, slot);
    assert_eq!((made.granted(grant), made.core.steps.waits), (8 * UNIT, 1));
    let found = made.core.smallest_hole(2 * UNIT).unwrap();
    assert_eq!(made.core.extents.get(found).epoch.stream, other);
    assert!(made.core.smallest_hole(5 * UNIT).is_none());
}

#[test]
fn holes_side_by_side_are_one_behind_a_wait_for_both() {
    let (mut made, other, _held) = two();
    let slot = made.slot;
    let before = made.core.extents.holes();
    assert!(made.core.unify(slot).is_empty());
    assert_eq!(before, made.core.extents.holes(), "a block lies between");
    made.hole(0, UNIT, other);
    let waits = made.core.unify(slot);
    assert_eq!(
        made.core.extents.holes(),
        before + 1,
        "nothing is waited for"
    );
    made.run(Job::asking(waits)).unwrap();
    assert!(made.core.unify(slot).is_empty());
    assert_eq!(made.core.extents.holes(), before);
    let hole = made.at(0);
    assert_eq!(
        (hole.epoch.stream, hole.epoch.tick),
        (slot, made.core.open_tick(slot))
    );
    assert_eq!(made.core.steps.waits, 1);
    made.core.check().unwrap();
}

#[test]
fn all_holes_are_looked_at_again_while_they_are_few_or_once_as_many_more_changed() {
    let (mut made, other, _held) = two();
    let (slot, more) = (made.slot, 10);
    let mut at = 0;
    for (holes, looks) in [(UNIFIED_AT_ONCE, true), (UNIFIED_AT_ONCE + more, false)] {
        while made.core.extents.holes() < holes {
            made.hole(at, UNIT, other);
            made.block(at + UNIT, UNIT);
            at += 2 * UNIT;
        }
        made.core.unify(slot);
        assert_eq!(made.core.extents.holes(), holes);
        assert_eq!(made.core.has_changed(), looks);
    }
    // Each that is taken is a change, and one less.
    for taken in 1..=more / 2 {
        let id = made.core.extents.best(other, UNIT).unwrap();
        made.core.extents.take(id, UNIT, slot);
        assert_eq!(made.core.has_changed(), taken == more / 2);
    }
}
