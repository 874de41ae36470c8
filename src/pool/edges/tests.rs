//! Where the parts of a block with edges go, and that edges whose books are wrong are found.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Edge, Parts, Place};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::extents::{NONE, State};
use crate::pool::index::UNIT;
use crate::pool::parts::Fragment;

fn made(granules: u64) -> Made {
    core(PoolConfig::default().handles(HandleSize::Granule), granules)
}

/// A fragment of `bytes` at the end or at the begin of the granule `at`; none of 0.
fn fragment(made: &Made, at: u64, bytes: u64, upper: bool) -> Fragment {
    let granule = made.core.arena.granule();
    let frame = made.core.arena.frame_at(at * granule).map(|(id, _)| id);
    let none = bytes == 0;
    Fragment {
        start: match upper {
            _ if none => 0,
            true => at * granule,
            false => (at + 1) * granule - bytes,
        },
        bytes,
        hole: NONE,
        frame: frame.unwrap_or(0),
        frame_start: if none { 0 } else { at * granule },
        frame_bytes: if none { 0 } else { granule },
    }
}

/// The bounds of what is mapped where the parts go, without what is there already.
fn mapped(place: &Place, parts: &Parts) -> (u64, u64) {
    let below = if place.map_lower {
        parts.lower.frame_bytes
    } else {
        0
    };
    let above = if place.map_upper {
        parts.upper.frame_bytes
    } else {
        0
    };
    (place.base - below, place.base + parts.whole + above)
}

/// Where parts go, by looking at every granule of the two ends.
fn place_of_all(made: &Made, parts: &Parts) -> Option<(u64, bool, bool)> {
    let (granule, extents) = (made.core.arena.granule(), &made.core.extents);
    let Parts {
        lower,
        upper,
        whole,
        ..
    } = parts;
    let gap = |from: u64, to: u64| {
        let all = (from..to)
            .step_by(granule as usize)
            .all(|at| extents.gap_at(at).is_some());
        all && extents.end_of(from) == extents.end_of((to - 1).max(from))
    };
    let (has_lower, has_upper) = (lower.bytes > 0, upper.bytes > 0);
    let at = lower.start + lower.bytes;
    if has_lower && gap(lower.start / granule * granule, at) {
        return None;
    }
    let behind = (at, at + whole + upper.frame_bytes);
    let joined = extents.end_of(lower.start) == extents.end_of(at);
    if has_lower && joined && gap(behind.0, behind.1.max(at + 1)) {
        return Some((at, false, has_upper));
    }
    let least = whole + lower.frame_bytes;
    if has_upper && upper.start >= least.max(1) {
        let joined = extents.end_of(upper.start - 1) == extents.end_of(upper.start);
        let from = upper.start - least.max(1);
        if joined && gap(from / granule * granule, upper.start) {
            return Some((upper.start - whole, has_lower, false));
        }
    }
    None
}

/// Mapped granules by their bits, of the sixteen below the high end and the eight from there on.
fn arena(bits: &[bool]) -> (Made, u64) {
    let mut made = made(0);
    let granule = made.core.arena.granule();
    let span = made
        .core
        .extents
        .iter()
        .last()
        .map(|(_, it)| it.end())
        .unwrap();
    let bound = (0..span / granule)
        .map(|at| at * granule)
        .find(|&at| made.core.extents.end_of(at) == made.core.extents.end_of(span - 1))
        .unwrap();
    let first = bound - 16 * granule;
    // Nothing else is free but three granules at the very begin.
    made.core.extents.map_gap(1, 3 * granule, first, 0, 0);
    let rest = bound + 8 * granule;
    let gap = made.core.extents.gap_at(rest).unwrap();
    made.core.extents.map_gap(gap, rest, span, 0, 0);
    for (at, _) in (0..).zip(bits).filter(|(_, is)| **is) {
        let start = first + at * granule;
        made.core.create_frames(start, start + granule).unwrap();
    }
    (made, first / granule)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn parts_go_beside_an_edge_that_has_room_or_into_the_smallest_gap(
        bits in vec(prop::bool::weighted(0.35), 24),
        (low, high) in (0u64..24, 0u64..24),
        (lower, upper, whole) in (0u64..3, 0u64..3, 0u64..4),
    ) {
        let (made, first) = arena(&bits);
        let granule = made.core.arena.granule();
        let is_mapped = |at: u64| bits[at as usize];
        let part = |is: bool, units: u64| if is { units * UNIT } else { 0 };
        let parts = Parts {
            lower: fragment(&made, first + low, part(is_mapped(low), lower), false),
            whole: whole * granule,
            upper: fragment(&made, first + high, part(is_mapped(high), upper), true),
            skipped: 0,
        };
        let (lower, upper) = (parts.lower, parts.upper);
        prop_assume!(parts.whole > 0 || lower.bytes.min(upper.bytes) > 0);
        let bytes = lower.bytes + parts.whole + upper.bytes;
        let place = made.core.place(&parts, bytes);
        let seen = place.as_ref().map(|it| (it.base, it.map_lower, it.map_upper));
        if let Some(beside) = place_of_all(&made, &parts) {
            assert_eq!(seen, Some(beside));
            return Ok(());
        }
        let needed = parts.whole + lower.frame_bytes + upper.frame_bytes;
        let extents = &made.core.extents;
        let gaps = extents.gaps().map(|id| extents.get(id));
        // A core that has held nothing has one end for all.
        let low = made.core.end_for(bytes);
        let fits = gaps.filter(|gap| gap.bytes >= needed && extents.end_of(gap.start) == low);
        let smallest = fits.map(|gap| (gap.bytes, gap.start)).min();
        let said = smallest.map(|(_, start)| (start + lower.frame_bytes, lower.bytes > 0, upper.bytes > 0));
        assert_eq!(seen, said);
        if let Some(place) = place {
            let (from, to) = mapped(&place, &parts);
            assert!(smallest.is_some_and(|(bytes, start)| start == from && to <= start + bytes));
        }
    }
}

/// A core one block of which has both edges in handles of others, its offset and the two edges'.
fn edged() -> (Made, u64, [u64; 2]) {
    let mut made = made(4);
    let granule = made.core.arena.granule();
    let half = granule / 2;
    made.block(0, 3 * half);
    made.block(2 * granule, granule);
    made.block(7 * half, half);
    made.core.check().unwrap();
    let most = (u64::MAX, u64::MAX);
    let slot = made.slot;
    let grant = made
        .core
        .take_with_edges(slot, 2 * granule, most, |_, _| true);
    let grant = grant.unwrap().unwrap();
    made.core.active.add(2 * granule);
    made.core.check().unwrap();
    let edges: Vec<u64> = made.core.edges.keys().copied().collect();
    assert_eq!(
        edges,
        [grant.offset + half - granule, grant.offset + 3 * half]
    );
    assert!(made.core.extents.get(grant.id).edged);
    (made, grant.offset, [edges[0], edges[1]])
}

#[test]
fn an_edge_whose_books_are_wrong_is_found() {
    let (mut made, offset, edges) = edged();
    let core = &mut made.core;
    let block = core.extents.seek(core.extents.first(), offset);
    core.check_edges().unwrap();
    // A block that may have an edge is marked; that one marked has none is nothing wrong.
    core.extents.get_mut(block).edged = false;
    assert!(core.check_edges().is_err());
    core.extents.get_mut(block).edged = true;
    core.extents.get_mut(1).edged = true;
    core.check_edges().unwrap();
    for at in edges {
        let edge = core.edges[&at];
        for state in [State::Retiring, State::Hole] {
            core.extents.get_mut(edge.away).state = state;
            assert!(core.check_edges().is_err());
            core.extents.get_mut(edge.away).state = State::Away;
        }
        for bytes in [UNIT, core.extents.get(edge.away).bytes] {
            core.extents.get_mut(edge.away).bytes -= bytes;
            assert!(core.check_edges().is_err());
            core.extents.get_mut(edge.away).bytes += bytes;
        }
        core.check_edges().unwrap();
        assert!(core.is_home(at - 1) || core.is_home(at + edge.bytes));
        assert!(!core.is_home(at) && !core.is_home(at + edge.bytes - 1));
    }
    // One that shows nothing of any block.
    let none = Edge {
        home: 0,
        ..core.edges[&edges[0]]
    };
    core.edges.insert(offset + 64 * none.bytes, none);
    assert!(core.check_edges().is_err());
}

#[test]
fn a_block_with_edges_gives_each_back_to_its_place_and_whole_or_in_parts() {
    for parts in 0..3 {
        let (mut made, offset, edges) = edged();
        let (granule, slot) = (made.core.arena.granule(), made.slot);
        let half = granule / 2;
        let end = offset + 2 * granule;
        let block = made.core.extents.seek(made.core.extents.first(), offset);
        let tick = made.core.open_tick(slot);
        assert!(made.core.has_edge(offset, 2 * granule));
        assert!(made.core.has_edge(end - UNIT, UNIT) && made.core.has_edge(offset, UNIT));
        assert!(!made.core.has_edge(offset + half, granule));
        let give = |made: &mut Made, id| {
            made.core.give(id, slot, tick);
            made.core.check().unwrap();
        };
        if parts > 0 {
            // A part of the upper edge first, then the rest of it and more.
            for bytes in [UNIT, half].iter().take(parts) {
                let before = made.core.extents.get(block).bytes;
                made.core.active.resize(before, before - bytes);
                let rest = made.core.extents.split_taken(block, *bytes);
                give(&mut made, rest);
            }
        }
        let left = made.core.extents.get(block).bytes;
        made.core.active.sub(left);
        give(&mut made, block);
        assert!(made.core.edges.is_empty());
        assert_eq!(made.core.retiring.len(), 2);
        for (at, from) in [(edges[0], 3 * half), (edges[1], 6 * half)] {
            assert_eq!(made.at(at).state, State::Retiring);
            let hole = made.at(from);
            assert_eq!(
                (hole.state, hole.start, hole.bytes),
                (State::Hole, from, half)
            );
            assert_eq!((hole.slot, hole.tick), (slot, tick));
        }
        let whole = made.at(offset + half);
        assert_eq!((whole.state, whole.bytes), (State::Hole, granule));
    }
}
