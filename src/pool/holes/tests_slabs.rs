//! Which of its slots is found, and when it goes back.

use crate::heap::{Epoch, FRESH, Grant, State};
use crate::pool::PoolConfig;
use crate::pool::core::Core;
use crate::pool::core::tests::{Made, core};

fn made(granules: u64) -> Made {
    core(PoolConfig::default(), granules)
}

impl Made {
    /// A slab in the block at `start`; the slot taken.
    fn slab(&mut self, start: u64, bytes: u64, slots: u64) -> Grant {
        let core = &mut self.core;
        let hole = core.extents.seek(core.extents.first(), start);
        let id = (core.extents).take_window(hole, start, slots * bytes, self.slot);
        let block = Grant { id, offset: start };
        let grant = core.make_slab(self.slot, block, bytes);
        core.active.add(bytes);
        core.check().unwrap();
        grant
    }
}

#[test]
fn a_slot_taken_counts_as_the_step_that_found_it() {
    let Made { mut core, slot, .. } = made(1);
    let steps = |core: &Core| {
        let steps = &core.steps;
        (steps.own_stream, steps.ready_elsewhere)
    };
    let before = steps(&core);
    let other = slot + 1;
    for (at, of, said) in [
        (1, slot, (1, 0)),
        (2, FRESH, (2, 0)),
        (3, other, (2, 1)),
        (4, other, (2, 2)),
    ] {
        core.count_taken(slot, 48, Epoch::new(of, 0));
        let now = steps(&core);
        let since = (now.0 - before.0, now.1 - before.1);
        assert_eq!(since, said, "{at}");
    }
}

#[test]
fn a_slab_goes_back_behind_its_stream_once_the_others_are_done_with_it() {
    for done in [true, false] {
        let mut made = made(2);
        let (other, held) = made.stream();
        let first = made.slab(0, 64, 16);
        let mut taken = vec![first];
        while taken.len() < 4 {
            let found = made.core.look_for_slot(made.slot, 64, false).unwrap();
            taken.push(made.core.slabs.take(found.0, found.1, made.slot));
            made.core.active.add(64);
        }
        let [mine, theirs] = [made.slot, other].map(|slot| made.core.open_tick(slot));
        for (at, block) in taken.into_iter().enumerate() {
            made.core.active.sub(64);
            let (slot, tick) = match at % 2 {
                0 => (made.slot, mine),
                _ => (other, if done { 0 } else { theirs }),
            };
            (made.core).give_granted(block, 64, Epoch::new(slot, tick));
        }
        made.core.check().unwrap();
        assert_eq!(made.core.slabs.mixed().len(), usize::from(!done));
        let freed = made.at(0);
        let state = if done { State::Free } else { State::Allocated };
        assert_eq!(freed.state, state);
        if done {
            assert_eq!((freed.epoch.stream, freed.epoch.tick), (made.slot, mine));
        }
        drop(held);
    }
}

#[test]
fn a_slot_that_another_stream_uses_is_found_only_behind_a_wait() {
    let mut made = made(1);
    let (other, held) = made.stream();
    made.slab(0, 64, 16);
    let (mine, core) = (made.slot, &mut made.core);
    let ready = |core: &mut Core, stream| {
        let found = core.look_for_slot(stream, 64, false)?;
        Some(core.slabs.take(found.0, found.1, stream))
    };
    assert!(ready(core, other).is_none());
    let found = core.look_for_slot(other, 64, true);
    let found = found.map(|found| {
        core.wait_for(other, found.2);
        core.slabs.take(found.0, found.1, other)
    });
    assert!(found.is_some());
    assert_eq!(core.steps.waits, 1);
    // The one wait is for all of them.
    assert!(ready(core, other).is_some());
    assert!(ready(core, mine).is_some());
    assert_eq!(core.steps.waits, 1);
    drop(held);
}

#[test]
fn a_free_slot_that_waits_for_no_record_is_found() {
    for (ahead, found) in [(0, false), (1, true)] {
        let mut made = made(1);
        let grant = made.slab(0, 64, 16);
        let open = made.core.open_tick(made.slot);
        made.core.active.sub(64);
        // A slot is left out, so that the slab stays.
        let other = made.core.look_for_slot(made.slot, 64, false).unwrap();
        made.core.slabs.take(other.0, other.1, made.slot);
        made.core.active.add(64);
        let epoch = Epoch::new(made.slot, open + ahead);
        (made.core).give_granted(grant, 64, epoch);
        assert_eq!(made.core.check().is_err(), found);
    }
}
