//! Where the parts of a block with edges go, and that edges whose books are wrong are found.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Edge, Parts, Terms};
use crate::pool::PoolConfig;
use crate::pool::config::HandleSize;
use crate::pool::core::tests::{Made, core};
use crate::pool::extents::State;
use crate::pool::index::UNIT;
use crate::pool::parts::NO_FRAGMENT;

fn made(granules: u64) -> Made {
    core(PoolConfig::default().handles(HandleSize::Granule), granules)
}

/// Mapped granules by their bits, of the sixteen below the high end and the eight from there on.
fn arena(bits: &[bool]) -> Made {
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
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whole_handles_that_nothing_is_in_place_of_go_into_the_smallest_gap(
        bits in vec(prop::bool::weighted(0.35), 24),
        whole in 1u64..5,
    ) {
        let made = arena(&bits);
        let whole = whole * made.core.arena.granule();
        let none = Parts { lower: NO_FRAGMENT, whole, upper: NO_FRAGMENT, skipped: 0 };
        let place = made.core.place(&none, whole, |_| false);
        let extents = &made.core.extents;
        let gaps = extents.gaps().map(|id| extents.get(id));
        // A core that has held nothing has one end for all.
        let low = made.core.end_for(whole);
        let fits = gaps.filter(|gap| gap.bytes >= whole && extents.end_of(gap.start) == low);
        let smallest = fits.map(|gap| (gap.bytes, gap.start)).min();
        let seen = place.map(|it| (it.base, it.map_lower, it.map_upper));
        assert_eq!(seen, smallest.map(|(_, start)| (start, false, false)));
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
    let most = Terms {
        created: u64::MAX,
        whole: u64::MAX,
        calls: u64::MAX,
    };
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
fn what_a_second_mapping_shows_is_counted_once_where_a_block_begins_with_it() {
    let (mut made, offset, edges) = edged();
    let granule = made.core.arena.granule();
    let extents = &mut made.core.extents;
    let block = extents.seek(extents.first(), offset);
    let upper = extents.split_taken(block, granule / 2);
    assert_eq!(extents.get(upper).start, edges[1]);
    made.core.check_edges().unwrap();
    // The two together show what is away, and neither alone does.
    made.core.extents.get_mut(upper).state = State::Hole;
    assert!(made.core.check_edges().is_err());
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
        assert!(made.core.has_edge(offset, granule) && made.core.has_edge(end - granule, granule));
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
