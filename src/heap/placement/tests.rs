//! The windows found against all that there are, in arenas small enough to look at each.

use std::cmp::Reverse;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Placement, cheapest, windows};
use crate::heap::UNIT;
use crate::heap::{Epoch, Extent, Extents, FRESH, NONE, State};

impl Placement {
    /// A window of `bytes`, whole granules, in a gap.
    pub(crate) fn of_gap(start: u64, bytes: u64) -> Self {
        Self {
            first: NONE,
            start,
            bytes,
            map_from: start,
            to_map: bytes,
            spare: 0,
        }
    }
}

const GRANULE: u64 = 4 * UNIT;
const ALL: u64 = 60 * UNIT;

/// An arena of granules that are gaps or mapped, and of units that are blocks or holes of two streams.
fn arena(mapped: &[bool], units: &[u8]) -> Extents {
    let mut extents = Extents::new(ALL);
    let slots = [FRESH, extents.add_slot(), extents.add_slot()];
    for (at, _) in (0..).zip(mapped).filter(|&(_, &mapped)| mapped) {
        extents.map_gap(at * GRANULE, (at + 1) * GRANULE, Epoch::PAST);
    }
    for (at, &unit) in (0..).zip(units) {
        let id = extents.seek(extents.first(), at * UNIT);
        if extents.get(id).state != State::Free {
            continue;
        }
        let block = extents.take_window(id, at * UNIT, UNIT, FRESH);
        if unit < 3 {
            extents.give(block, Epoch::new(slots[unit as usize], 0), |_| false);
        }
    }
    extents.check(GRANULE).unwrap();
    extents
}

/// What `usable` says of a unit: none for a block or a hole that is not, else whether it is a gap.
fn units(extents: &Extents, usable: impl Fn(&Extent) -> bool) -> Vec<Option<bool>> {
    let mut units = Vec::new();
    for (_, extent) in extents.iter() {
        let unit = match extent.state {
            State::Unmapped => Some(true),
            State::Free if usable(extent) => Some(false),
            _ => None,
        };
        units.extend((0..extent.bytes / UNIT).map(|_| unit));
    }
    units
}

/// What [`cheapest`] says of itself, tried at every place: bytes to map, bytes in holes, start.
fn cheapest_of_all(
    extents: &Extents,
    units: &[Option<bool>],
    bytes: u64,
) -> Option<(u64, Reverse<u64>, u64)> {
    let whole = extents.gaps().map(|id| *extents.get(id));
    let gaps: Vec<Extent> = whole.collect();
    let places = (0..=ALL - bytes).step_by(UNIT as usize);
    let tried = places.filter_map(|start| {
        let range = (start / UNIT) as usize..((start + bytes) / UNIT) as usize;
        let inside = &units[range];
        let free = inside.iter().all(Option::is_some);
        let touched = |gap: &&Extent| gap.start < start + bytes && gap.end() > start;
        let mut touching = gaps.iter().filter(touched);
        let (gap, more) = (touching.next()?, touching.next());
        if !free || more.is_some() {
            return None;
        }
        let (from, to) = (gap.start.max(start), gap.end().min(start + bytes));
        let to_map = (to - from).next_multiple_of(GRANULE);
        // At one end of the gap.
        let beside = from == gap.start || to == gap.end();
        beside.then_some((to_map, Reverse(bytes - (to - from)), start))
    });
    tried.min()
}

/// Whether the window is what it says.
fn is_sound(extents: &Extents, window: &Placement, bytes: u64) {
    let first = extents.get(window.first);
    assert!(first.start <= window.start && window.start < first.end());
    assert_eq!(window.bytes, bytes);
    assert!(window.to_map > 0);
    let gap = extents.gap_at(window.map_from).unwrap();
    let gap = extents.get(gap);
    let end = window.map_from + window.to_map;
    assert!(gap.start <= window.map_from && end <= gap.end());
    assert_eq!((window.map_from % GRANULE, window.to_map % GRANULE), (0, 0));
    let spare = if window.end() > window.map_to() {
        assert_eq!(end, gap.end());
        window.map_from - gap.start
    } else {
        assert_eq!(window.map_from, gap.start);
        gap.end() - end
    };
    assert_eq!(window.spare, spare);
    let (from, to) = (
        gap.start.max(window.start),
        gap.end().min(window.start + bytes),
    );
    assert!(window.map_from <= from && to <= end);
    let wider = window.widened(spare);
    assert_eq!((wider.map_from, wider.to_map), (gap.start, gap.bytes));
    assert_eq!((wider.spare, wider.start), (0, window.start));
    assert!(window.touches(window.start, window.start + 1));
    assert!(window.touches(0, window.start + 1) && !window.touches(0, window.start));
    let end = window.start + bytes;
    assert!(window.touches(end - 1, ALL) && !window.touches(end, ALL));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_cheapest_window_is_the_cheapest_of_all_places(
        mapped in vec(prop::bool::weighted(0.6), 15),
        blocks in vec(0u8..5, 60),
        many in 1u64..24,
        both in any::<bool>(),
    ) {
        let extents = arena(&mapped, &blocks);
        let usable = |extent: &Extent| both || extent.epoch.stream != 2;
        let units = units(&extents, usable);
        let bytes = many * UNIT;
        let found = cheapest(windows(&extents, bytes, GRANULE, usable));
        let said = cheapest_of_all(&extents, &units, bytes);
        let key = |it: Placement| (it.to_map, Reverse(it.leans()), it.start);
        // Beside holes that hold the request nothing is looked for.
        let mut runs = units.split(|unit| *unit != Some(false));
        if runs.all(|run| (run.len() as u64) < many) {
            assert_eq!(found.map(key), said);
        }
        if let Some(window) = found {
            is_sound(&extents, &window, bytes);
        }
    }
}
