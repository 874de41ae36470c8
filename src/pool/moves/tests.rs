//! Runs of mapped memory, what they have, and what comes along when one is mapped elsewhere.

use crate::heap::UNIT;
use crate::heap::{Epoch, FRESH, State};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};

use super::Run;

/// Runs of two, three and one handle of a granule, with gaps of two and four granules between.
fn made() -> (Made, u64) {
    let mut made = core(PoolConfig::default().handles(HandleSize::Granule), 2);
    let granule = made.core.arena.granule();
    made.core.create_frames(4 * granule, 7 * granule).unwrap();
    made.core.create_frames(11 * granule, 12 * granule).unwrap();
    (made, granule)
}

#[test]
fn a_run_ends_where_nothing_is_mapped_and_moves_if_all_of_its_blocks_may() {
    let (mut made, granule) = made();
    made.block(UNIT, UNIT);
    made.block(4 * granule, granule);
    made.block(6 * granule, UNIT);
    made.block(11 * granule, granule);
    let runs = made.core.runs(&|at| at != 6 * granule);
    let run = |start: u64, granules: u64, movable, free, gap| Run {
        start: start * granule,
        end: (start + granules) * granule,
        movable,
        free,
        gap,
    };
    let behind = made.core.extents.gap_at(12 * granule).unwrap();
    let rest = made.core.extents.get(behind).bytes;
    let said = [
        run(0, 2, true, 2 * granule - UNIT, 2 * granule),
        run(4, 3, false, 2 * granule - UNIT, 4 * granule),
        run(11, 1, true, 0, rest),
    ];
    assert_eq!(runs, said);
    // What retires is no room.
    let hole = made.core.extents.seek(made.core.extents.first(), granule);
    made.core.extents.retire(hole, granule, 2 * granule);
    let runs = made.core.runs(&|_| true);
    assert_eq!((runs[0].end, runs[0].gap), (granule, 0));
}

#[test]
fn what_is_lacking_and_where_there_is_room_is_told_in_granules() {
    let (made, granule) = made();
    let mut core = made.core;
    assert_eq!(core.extents.hole_bytes(), 6 * granule);
    assert_eq!(core.lacks(6 * granule), Some(0));
    assert_eq!(core.lacks(6 * granule + 1), Some(granule));
    core.config.limit = Some(7 * granule);
    assert_eq!(core.lacks(7 * granule), Some(granule));
    assert_eq!(core.lacks(7 * granule + 1), None);
    assert_eq!(core.gap_behind(2 * granule), 2 * granule);
    assert_eq!(core.gap_behind(3 * granule), 0);
    assert_eq!(core.gap_behind(granule), 0);
    let whole = |from, to| core.whole_in(from, to).map(|(_, it)| it.bytes).sum::<u64>();
    for (from, to, bytes) in [(0, 2, 2), (4, 7, 3), (5, 6, 1), (0, 0, 0)] {
        assert_eq!(whole(from * granule, to * granule), bytes * granule);
    }
    let cut = |from: u64, to: u64| whole(4 * granule + from, 7 * granule - to);
    assert_eq!(
        [cut(UNIT, 0), cut(0, UNIT), cut(UNIT, UNIT)],
        [2, 2, 1].map(|n| n * granule)
    );
}

#[test]
fn a_run_mapped_elsewhere_brings_its_blocks_and_leaves_its_old_place_to_retire() {
    let (mut made, granule) = made();
    let slot = made.slot;
    let blocks = [
        (UNIT, UNIT),
        (granule - UNIT, 2 * UNIT),
        (2 * granule - UNIT, UNIT),
    ];
    for (start, bytes) in blocks {
        made.block(start, bytes);
    }
    let behind = made.block(5 * granule, UNIT);
    let run = made.core.runs(&|_| true)[0];
    let tick = made.core.open_tick(slot);
    let to = 7 * granule;
    let (seen, ids) = made.core.carry(&run, to, Epoch::new(slot, tick)).unwrap();
    made.core.check().unwrap();
    assert_eq!(
        seen,
        blocks.map(|(start, bytes)| (start, to + start, bytes))
    );
    for (&(_, to, bytes), &id) in seen.iter().zip(&ids) {
        let extent = made.core.extents.get(id);
        assert_eq!(
            (extent.start, extent.bytes, extent.epoch.stream),
            (to, bytes, slot)
        );
        assert!(extent.movable && extent.state == State::Allocated);
    }
    let behind = made.core.extents.get(behind);
    assert_eq!(
        (behind.start, behind.state),
        (5 * granule, State::Allocated),
        "a block of the next run stays"
    );
    for at in [0, granule] {
        let old = made.at(at);
        assert_eq!(
            (old.state, old.epoch.stream, old.epoch.tick),
            (State::Stale, slot, tick)
        );
    }
    assert_eq!(made.core.retiring.len(), 2);
    let hole = made.at(to + 2 * UNIT);
    assert_eq!(
        (hole.state, hole.epoch.stream, hole.epoch.tick),
        (State::Free, slot, tick)
    );
    assert_eq!(
        (hole.start, hole.end()),
        (to + 2 * UNIT, to + granule - UNIT)
    );
}

#[test]
fn holes_of_several_streams_come_along_as_one_behind_the_move() {
    let (mut made, granule) = made();
    let (other, _held) = made.stream();
    let (slot, half) = (made.slot, granule / 2);
    // Nothing but holes: of the one stream, of nobody, of the other, across the bounds of handles.
    for (at, slot) in [(8 * half, slot), (11 * half, other)] {
        let id = made.block(at, half);
        made.core.active.sub(half);
        let tick = made.core.open_tick(slot);
        made.core
            .extents
            .give(id, Epoch::new(slot, tick), |_| false);
    }
    let run = made.core.runs(&|_| true)[1];
    assert_eq!((run.start, run.end), (4 * granule, 7 * granule));
    made.core.wait_for_holes(slot).unwrap();
    let (tick, to) = (made.core.open_tick(slot), 7 * granule);
    let remapped = made.core.arena.calls().remapped;
    let (ways, ids) = made.core.carry(&run, to, Epoch::new(slot, tick)).unwrap();
    assert!(ways.is_empty() && ids.is_empty());
    made.core.check().unwrap();
    assert_eq!(made.core.arena.calls().remapped - remapped, 3);
    for at in [4, 5, 6] {
        let old = made.at(at * granule);
        assert_eq!((old.state, old.bytes), (State::Stale, granule));
        assert_eq!((old.epoch.stream, old.epoch.tick), (slot, tick));
    }
    let hole = made.at(to);
    assert_eq!((hole.state, hole.bytes), (State::Free, 3 * granule));
    assert_eq!((hole.epoch.stream, hole.epoch.tick), (slot, tick));
}

#[test]
fn a_run_of_nothing_mapped_is_an_error_and_one_refused_midway_stays() {
    let (mut made, granule) = made();
    let slot = made.slot;
    let none = Run {
        start: 0,
        end: 3 * granule,
        movable: true,
        free: 0,
        gap: 0,
    };
    assert!(
        made.core
            .carry(&none, 7 * granule, Epoch::new(slot, 1))
            .is_err()
    );
    made.core.check().unwrap();
    // The second handle would lie where there is one.
    let run = made.core.runs(&|_| true)[0];
    assert!(
        made.core
            .carry(&run, 10 * granule, Epoch::new(slot, 1))
            .is_err()
    );
    assert_eq!(made.core.retiring.len(), 1);
    assert_eq!(made.at(10 * granule).epoch.stream, FRESH);
    made.core.check().unwrap();
}

#[test]
fn what_is_lacking_is_no_more_than_mappings_under_way_leave_of_the_limit() {
    let (made, granule) = made();
    let mut core = made.core;
    core.config.limit = Some(8 * granule);
    core.under_way.to_create = 2 * granule;
    assert_eq!(core.lacks(6 * granule), Some(0));
    assert_eq!(core.lacks(6 * granule + 1), None);
}

#[test]
fn a_request_that_lacks_nothing_is_told_so_above_a_limit_that_was_lowered() {
    let (made, granule) = made();
    let mut core = made.core;
    core.config.limit = Some(3 * granule);
    assert_eq!(core.lacks(6 * granule), Some(0));
    assert_eq!(core.lacks(6 * granule + 1), None);
}

#[test]
fn moves_wait_for_no_stale_mapping_that_a_stream_used_as_its_capture_began() {
    let (mut made, granule) = made();
    let (other, (stream, _hold)) = made.stream();
    let _capture = stream.begin_capture().unwrap();
    let open = Epoch::new(other, made.core.open_tick(other));
    let (from, to) = (11 * granule, 12 * granule);
    let hole = made.core.extents.seek(made.core.extents.first(), from);
    made.core.extents.set_epoch(hole, open);
    made.core.extents.retire(hole, from, to);
    made.core.wait_for_holes(made.slot).unwrap();
}
