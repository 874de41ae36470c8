//! Which of the holes that are ready a request takes.

use super::OTHER_STREAMS;
use crate::heap::UNIT;
use crate::heap::{Epoch, FRESH, StreamIndex};
use crate::pool::PoolConfig;
use crate::pool::core::tests::{Made, core};
use crate::pool::job::Job;

/// A core with this many streams in all, each its slot.
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
        made.core.extents.spoil(id).epoch.stream = slot;
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
        let id = made.core.ready(slot, units * UNIT);
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
        (made.at(rest).epoch.stream, made.at(rest).end()),
        (FRESH, 4 * granule)
    );
    let not_ready = |made: &mut Made, start| {
        let tick = made.core.open_tick(other);
        let id = made.core.extents.seek(made.core.extents.first(), start);
        made.core.extents.spoil(id).epoch.tick = tick;
    };
    // The best of another stream is not ready, and what else that has is no better than its own.
    let pending = hole(&mut made, 12, other);
    hole(&mut made, 13, other);
    let as_good = hole(&mut made, 13, own);
    not_ready(&mut made, pending);
    assert_eq!(found(&made, own, 12), Some(as_good));
    assert_eq!(found(&made, other, 12), Some(pending));
    // Or it is better than all there is.
    let pending = hole(&mut made, 20, other);
    let better = hole(&mut made, 21, other);
    not_ready(&mut made, pending);
    assert_eq!(found(&made, own, 20), Some(better));
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
            assert!(made.core.take_ready(slot, bytes).is_none());
            let waits = made.core.unify(slot);
            made.run(Job::asking(waits)).unwrap();
            assert!(made.core.unify(slot).is_empty());
            grant = made.core.take_ready(slot, bytes);
        }
        assert_eq!(grant.map(|grant| made.granted(grant)), taken.then_some(0));
        assert_eq!(made.core.steps.waits, u64::from(taken));
        made.core.check().unwrap();
    }
}
