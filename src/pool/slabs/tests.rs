//! How many slots a slab has, where it lies, and that books of slabs that are wrong are found to be.

use std::mem::replace;

use crate::heap::UNIT;
use crate::heap::size_class::{MOST, STEP, batch, class_of, is_slot, rounded};
use crate::heap::slab::{CHEAP_SLOTS, MOST_SLOTS, SLAB_BYTES, Slab, Slabs};
use crate::heap::{Epoch, FRESH, Grant, NONE, State};
use crate::pool::PoolConfig;
use crate::pool::cache::Cached;
use crate::pool::core::Core;
use crate::pool::core::tests::{Made, core};

fn slots() -> impl Iterator<Item = u64> {
    let classes = (STEP..MOST).step_by(STEP as usize);
    classes.filter(|&bytes| is_slot(bytes) && rounded(bytes, MOST) == bytes)
}

#[test]
fn a_slab_has_a_quarter_of_the_slots_out_within_its_bounds_in_whole_units() {
    for bytes in slots() {
        let mut slabs = Slabs::default();
        for out in [0, 3, 16, 40, 64, 100, 256, 1000, 100_000] {
            slabs.out[class_of(bytes)] = out;
            let fits = |count: &u64| {
                let cheap = *count <= CHEAP_SLOTS;
                let small = count * bytes <= SLAB_BYTES && *count <= MOST_SLOTS;
                (count * bytes).is_multiple_of(UNIT) && (cheap || small) && *count <= out / 4
            };
            let most = (1..=MOST_SLOTS).rev().find(fits);
            let least = (1..).find(|count| (count * bytes).is_multiple_of(UNIT));
            assert_eq!(
                Some(slabs.wanted(bytes)),
                most.or(least),
                "{bytes}, {out} out"
            );
        }
    }
}

fn made(granules: u64) -> Made {
    core(PoolConfig::default(), granules)
}

impl Made {
    /// A slab in the block at `start`; the slot taken.
    fn slab(&mut self, start: u64, bytes: u64, slots: u64) -> Option<Grant> {
        let core = &mut self.core;
        let hole = core.extents.seek(core.extents.first(), start);
        let id = (core.extents).take_window(hole, start, slots * bytes, self.slot);
        let block = Grant { id, offset: start };
        let grant = core.make_slab(self.slot, block, bytes, slots);
        if grant.is_some() {
            core.active.add(bytes);
        }
        core.check().unwrap();
        grant
    }

    fn give(&mut self, grant: Grant, bytes: u64) {
        let core = &mut self.core;
        let addr = core.arena.base() + grant.offset;
        let (id, tick) = (grant.id, 0);
        core.active.sub(bytes);
        let block = Cached {
            addr,
            bytes,
            tick,
            id,
        };
        core.give_slot(&block, self.slot, tick);
        core.check().unwrap();
    }
}

#[test]
fn a_slab_lies_in_the_first_granule_that_has_room_for_a_part_of_it() {
    let mut made = made(4);
    let bound = made.core.arena.granule();
    for bytes in [16, 48, 272, 336, 1040, 3968] {
        let part = batch(bytes) * bytes;
        for slots in [1, 2, 4].map(|parts| parts * batch(bytes)) {
            let units = (slots * bytes / UNIT + 1).min(12);
            for below in (0..=units).chain([part / UNIT, slots * bytes / UNIT]) {
                let (start, end) = (bound - below * UNIT, bound - below * UNIT + slots * bytes);
                if below * UNIT > slots * bytes + UNIT || slots > MOST_SLOTS {
                    continue;
                }
                let room = |from: u64, to: u64| to.saturating_sub(from) / part * part;
                let lower = room(start, end.min(bound));
                let said = match room(start.max(bound), end) {
                    _ if lower > 0 => Some((start, lower)),
                    upper if upper > 0 => Some((start.max(bound), upper)),
                    _ => None,
                };
                let grant = made.slab(start, bytes, slots);
                let seen = grant.map(|it| {
                    let slab = &made.core.slabs.table[it.id as usize];
                    assert_eq!(it.offset, slab.start);
                    (slab.start, u64::from(slab.slots) * slab.bytes)
                });
                assert_eq!(seen, said, "{slots} of {bytes}, {below} units below");
                if let Some(grant) = grant {
                    made.give(grant, bytes);
                }
                assert_eq!(made.core.extents.taken(), (0, 0));
            }
        }
    }
}

/// Two slabs, of 16 slots and of 4, some of whose slots are out, and one of 64 whose all are.
fn slabs() -> Made {
    let mut made = made(2);
    made.slab(0, 48, 16).unwrap();
    let other = made.slab(4096, 320, 4).unwrap();
    made.slab(1 << 16, 16, 64).unwrap();
    let Made { core, slot, .. } = &mut made;
    let mut taken = Vec::new();
    core.take_slots(other, *slot, 2, &mut taken);
    let full = Grant { id: 2, offset: 0 };
    core.take_slots(full, *slot, 64, &mut taken);
    assert_eq!(taken.len(), 65);
    taken.iter().for_each(|block| core.active.add(block.bytes));
    core.check().unwrap();
    made
}

/// Whether books with `wrong` at that place are found to be wrong; they are right again then.
fn is_found<T>(core: &mut Core, at: impl Fn(&mut Core) -> &mut T, wrong: T) -> bool {
    let right = replace(at(core), wrong);
    let found = core.check_slabs().is_err();
    *at(core) = right;
    core.check_slabs().unwrap();
    found
}

#[test]
fn a_slab_that_is_not_its_extent_is_found() {
    let Made { mut core, .. } = slabs();
    let core = &mut core;
    for id in 0..3 {
        let start = core.slabs.table[id].start;
        let extent = core.slabs.table[id].extent;
        assert!(is_found(
            core,
            |it| &mut it.extents.get_mut(extent).start,
            start + UNIT
        ));
        let bytes = core.extents.get(extent).bytes;
        assert!(is_found(
            core,
            |it| &mut it.extents.get_mut(extent).bytes,
            bytes + UNIT
        ));
        for state in [State::Unmapped, State::Free] {
            assert!(is_found(
                core,
                |it| &mut it.extents.get_mut(extent).state,
                state
            ));
        }
    }
    // A record that is spare is no slab.
    core.slabs.table.push(Slab {
        extent: NONE,
        ..Slab {
            extent: 0,
            start: 0,
            bytes: 48,
            slots: 16,
            owner: FRESH,
            free: 0,
            streams: [FRESH; MOST_SLOTS as usize],
            ticks: [0; MOST_SLOTS as usize],
        }
    });
    core.check_slabs().unwrap();
}

#[test]
fn slots_that_are_not_counted_as_they_are_are_found() {
    let Made { mut core, slot, .. } = slabs();
    let core = &mut core;
    let free = core.slabs.free_bytes;
    assert!(is_found(core, |it| &mut it.slabs.free_bytes, free + 16));
    let mut counted = core.slabs.of_stream.clone();
    counted[slot as usize] += 1;
    assert!(is_found(core, |it| &mut it.slabs.of_stream, counted));
    let (partial, full) = (core.slabs.partial.clone(), core.slabs.table[2].key(2));
    for id in [0, 1] {
        let mut less = partial.clone();
        assert!(less.remove(&core.slabs.table[id as usize].key(id)));
        assert!(is_found(core, |it| &mut it.slabs.partial, less));
        let mixed = [id].into();
        assert!(is_found(core, |it| &mut it.slabs.mixed, mixed));
    }
    let mut more = partial;
    more.insert(full);
    assert!(is_found(core, |it| &mut it.slabs.partial, more));
    // Bits of slots that there are not, though all is counted as if there were.
    let bits = core.slabs.table[0].free | 1 << 20;
    let more = core.slabs.free_bytes + 48;
    let (right, _) = (
        core.slabs.free_bytes,
        replace(&mut core.slabs.free_bytes, more),
    );
    core.slabs.of_stream[slot as usize] += 1;
    let before = replace(&mut core.slabs.table[0].free, bits);
    core.slabs.table[0].streams[20] = slot;
    assert!(core.check_slabs().is_err());
    core.slabs.table[0].free = before;
    core.slabs.free_bytes = right;
    core.slabs.of_stream[slot as usize] -= 1;
    core.check_slabs().unwrap();
}

#[test]
fn a_slab_without_a_slot_out_that_is_kept_without_a_reason_is_found() {
    let Made { mut core, slot, .. } = slabs();
    let start = core.slabs.table[0].start;
    assert!(core.slabs.give(0, start, slot, 0));
    assert!(core.check_slabs().is_err());
    core.slabs.mixed.insert(0);
    core.check_slabs().unwrap();
    core.slabs.mixed.remove(&0);
    assert!(core.check_slabs().is_err());
    core.slabs.mixed.insert(0);
    // Taken again it is no longer one.
    core.slabs.take(0, 3, slot);
    core.check_slabs().unwrap();
}

#[test]
fn a_slot_that_waits_for_no_record_is_found() {
    let Made { mut core, slot, .. } = slabs();
    let open = core.open_tick(slot);
    let core = &mut core;
    let free = core.slabs.table[0].free_slots().next().unwrap();
    assert!(!is_found(
        core,
        |it| &mut it.slabs.table[0].ticks[free],
        open
    ));
    assert!(is_found(
        core,
        |it| &mut it.slabs.table[0].ticks[free],
        open + 1
    ));
    // What is out has no history, and of memory that no stream has used any tick is one.
    let out = 0;
    assert!(!is_found(
        core,
        |it| &mut it.slabs.table[0].ticks[out],
        open + 1
    ));
    core.slabs.table[0].streams[free] = FRESH;
    core.slabs.of_stream[slot as usize] -= 1;
    core.slabs.of_stream[FRESH as usize] += 1;
    let far = core.open_tick(FRESH) + 100;
    assert!(!is_found(
        core,
        |it| &mut it.slabs.table[0].ticks[free],
        far
    ));
}

#[test]
fn a_slot_taken_counts_as_the_step_that_found_it() {
    let Made { mut core, slot, .. } = slabs();
    let steps = |core: &Core| {
        let steps = &core.steps;
        (steps.own_stream, steps.ready_elsewhere, steps.stream_wait)
    };
    let before = steps(&core);
    let other = slot + 1;
    for (at, of, pending, said) in [
        (1, slot, false, (1, 0, 0)),
        (2, FRESH, false, (2, 0, 0)),
        (3, other, false, (2, 1, 0)),
        (4, other, false, (2, 2, 0)),
        (5, other, true, (2, 2, 1)),
        (6, slot, true, (2, 2, 2)),
    ] {
        core.count_taken(slot, 48, Epoch::new(of, 0), pending);
        let now = steps(&core);
        let since = (now.0 - before.0, now.1 - before.1, now.2 - before.2);
        assert_eq!(since, said, "{at}");
    }
}

#[test]
fn a_slab_goes_back_behind_its_stream_once_the_others_are_done_with_it() {
    for done in [true, false] {
        let mut made = made(2);
        let (other, held) = made.stream();
        let first = made.slab(0, 64, 16).unwrap();
        let mut taken = Vec::new();
        made.core.take_slots(first, made.slot, 3, &mut taken);
        made.core.active.add(3 * 64);
        taken.push(Cached {
            addr: made.core.arena.base() + first.offset,
            bytes: 64,
            tick: 0,
            id: first.id,
        });
        let [mine, theirs] = [made.slot, other].map(|slot| made.core.open_tick(slot));
        for (at, block) in taken.iter().enumerate() {
            made.core.active.sub(64);
            let (slot, tick) = match at % 2 {
                0 => (made.slot, mine),
                _ => (other, if done { 0 } else { theirs }),
            };
            made.core.give_slot(block, slot, tick);
        }
        made.core.check().unwrap();
        assert_eq!(made.core.slabs.mixed.len(), usize::from(!done));
        let freed = made.at(0);
        let state = if done { State::Free } else { State::Allocated };
        assert_eq!(freed.state, state);
        if done {
            assert_eq!((freed.slot, freed.tick), (made.slot, mine));
        }
        drop(held);
    }
}

#[test]
fn a_slot_that_another_stream_uses_is_found_only_behind_a_wait() {
    let mut made = made(1);
    let (other, held) = made.stream();
    made.slab(0, 64, 16).unwrap();
    let (mine, core) = (made.slot, &mut made.core);
    let ready = |core: &mut Core, stream| {
        let found = core.look_for_slot(stream, 64, false)?;
        Some(core.take_slot(stream, 64, found, false))
    };
    assert!(ready(core, other).is_none());
    let found = core.take_slot_waiting(other, 64).unwrap();
    assert!(found.is_some());
    assert_eq!((core.steps.stream_wait, core.steps.waits), (1, 1));
    // The one wait is for all of them.
    assert!(ready(core, other).is_some());
    assert!(ready(core, mine).is_some());
    assert_eq!(core.steps.waits, 1);
    drop(held);
}
