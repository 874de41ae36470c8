//! How many slots a slab has, and that books that are wrong are found to be.

use std::mem::replace;

use super::*;
use crate::heap::size_class::{MOST, STEP, is_slot, rounded};
use crate::heap::{FRESH, UNIT};

const GRANULE: u64 = 1 << 20;

/// The tick behind which the blocks of slabs were free.
const OPEN: u64 = 7;

fn slots() -> impl Iterator<Item = u64> {
    let classes = (STEP..MOST).step_by(STEP as usize);
    classes.filter(|&bytes| is_slot(bytes) && rounded(bytes, true) == bytes)
}

#[test]
fn a_slab_has_a_quarter_of_the_slots_out_within_its_bounds_in_whole_units() {
    for bytes in slots() {
        let mut slabs = Slabs::default();
        for out in [0, 3, 16, 40, 64, 100, 256, 1000, 100_000] {
            slabs.out = vec![out; class_of(bytes) + 1];
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

/// Slabs and the extents that they lie in: two, of 16 slots and of 4, some of whose are out, and one of 64
/// whose all are.
struct Books {
    extents: Extents,
    slabs: Slabs,
    stream: StreamIndex,
}

impl Books {
    fn check(&self) -> Result<(), String> {
        self.slabs.check(&self.extents)
    }

    /// Whether `wrong` at that place is found; the books are right again then.
    fn finds<T>(&mut self, at: impl Fn(&mut Self) -> &mut T, wrong: T) -> bool {
        let right = replace(at(self), wrong);
        let found = self.check().is_err();
        *at(self) = right;
        self.check().unwrap();
        found
    }
}

fn books() -> Books {
    let mut extents = Extents::new(2 * GRANULE);
    let stream = extents.add_slot();
    let hole = extents.map_gap(0, GRANULE, Epoch::new(stream, 0));
    let mut hole = hole.unwrap();
    let mut slabs = Slabs::default();
    for (start, bytes, slots, out) in [(0, 48, 16, 1), (4096, 320, 4, 3), (1 << 16, 16, 64, 64)] {
        hole = extents.seek(hole, start);
        hole = extents.take_window(hole, start, slots * bytes, stream);
        let id = slabs.add(
            Grant {
                id: hole,
                offset: start,
            },
            bytes,
            slots,
            Epoch::new(stream, OPEN),
        );
        (0..out).for_each(|slot| _ = slabs.take(id, slot, stream));
    }
    let books = Books {
        extents,
        slabs,
        stream,
    };
    books.check().unwrap();
    books
}

#[test]
fn a_slab_that_is_not_its_extent_is_found() {
    let mut books = books();
    for id in 0..3 {
        let extent = books.slabs.table[id].extent;
        let Extent { start, bytes, .. } = *books.extents.get(extent);
        assert!(books.finds(|it| &mut it.extents.spoil(extent).start, start + UNIT));
        assert!(books.finds(|it| &mut it.extents.spoil(extent).bytes, bytes + UNIT));
        for state in [State::Unmapped, State::Free] {
            assert!(books.finds(|it| &mut it.extents.spoil(extent).state, state));
        }
    }
    // A record that is spare is no slab.
    books.slabs.table.push(Slab {
        extent: NONE,
        start: 0,
        bytes: 48,
        slots: 16,
        owner: FRESH,
        free: 0,
        streams: [FRESH; MOST_SLOTS as usize],
        ticks: [0; MOST_SLOTS as usize],
    });
    books.check().unwrap();
}

#[test]
fn slots_that_are_not_counted_as_they_are_are_found() {
    let mut books = books();
    let stream = books.stream as usize;
    let free = books.slabs.free_bytes;
    assert!(books.finds(|it| &mut it.slabs.free_bytes, free + 16));
    let mut counted = books.slabs.of_stream.clone();
    counted[stream] += 1;
    assert!(books.finds(|it| &mut it.slabs.of_stream, counted));
    let (partial, full) = (books.slabs.partial.clone(), books.slabs.table[2].key(2));
    for id in [0, 1] {
        let mut less = partial.clone();
        assert!(less.remove(&books.slabs.table[id as usize].key(id)));
        assert!(books.finds(|it| &mut it.slabs.partial, less));
    }
    let mut more = partial;
    more.insert(full);
    assert!(books.finds(|it| &mut it.slabs.partial, more));
    // Bits of slots that there are not, though all is counted as if there were.
    let slabs = &mut books.slabs;
    slabs.free_bytes += 48;
    slabs.of_stream[stream] += 1;
    slabs.table[0].streams[20] = books.stream;
    slabs.table[0].free |= 1 << 20;
    assert!(books.check().is_err());
}

#[test]
fn a_slab_without_a_slot_out_is_one_until_it_is_taken_from_again() {
    let mut books = books();
    let (start, stream) = (books.slabs.table[0].start, books.stream);
    assert!(books.slabs.mixed().is_empty());
    assert!(books.slabs.give(0, start, Epoch::new(stream, 0)));
    assert_eq!(books.slabs.mixed(), [0]);
    books.check().unwrap();
    books.slabs.take(0, 3, stream);
    books.check().unwrap();
    assert!(books.slabs.mixed().is_empty());
}

#[test]
fn a_free_slot_waits_for_what_used_its_block_or_for_who_gave_it_last() {
    let mut slabs = Slabs::default();
    let block = Grant { id: 0, offset: 0 };
    let id = slabs.add(block, 48, 16, Epoch::new(3, OPEN));
    assert!(slabs.get(id).epochs().all(|it| it == Epoch::new(3, OPEN)));
    let slots = [0, 1].map(|slot| slabs.take(id, slot, 4));
    assert!(!slabs.give(id, slots[1].offset, Epoch::new(5, 2)));
    assert!(slabs.give(id, slots[0].offset, Epoch::new(4, 9)));
    let slab = slabs.get(id);
    let history = [0, 1, 2].map(|slot| slab.history(slot));
    let expected = [(4, 9), (5, 2), (3, OPEN)].map(|(stream, tick)| Epoch::new(stream, tick));
    assert_eq!(history, expected);
    let none = [1, 2, 3, 4, 5].map(|stream| slabs.has_none(stream));
    assert_eq!(none, [true, true, false, false, false]);
}
