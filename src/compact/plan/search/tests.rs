//! What a search finds, and the future cost of its plans.

use super::super::future_cost::FutureCost;
use super::super::layout::{Layout, extents_from};
use super::super::{Batch, Goal, LARGE_PART, Planner};
use super::{Block, Search, Stretches, way};
use crate::device::sim::Rng;

/// The stretches of a random layout of blocks and holes.
fn drawn(random: &mut Rng, most: u64) -> Stretches {
    let count = 2 + random.below(most) as usize;
    let kinds: String = (0..count)
        .map(|_| ['m', 'm', '.', 'f'][random.below(4) as usize])
        .collect();
    let sizes: Vec<u64> = kinds.chars().map(|_| 256 * (1 + random.below(9))).collect();
    let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
    Stretches::whole(&layout).unwrap_or_else(|| Stretches::near_holes(&layout, 256))
}

/// The blocks with `hole` among them.
fn with(mut blocks: Vec<Block>, hole: u64, bytes: u64) -> Vec<Block> {
    blocks.push(Block { addr: hole, bytes });
    blocks.sort_by_key(|block| block.addr);
    blocks
}

#[test]
fn the_future_cost_of_a_plan_is_that_of_the_layout_after_it() {
    let mut random = Rng::new(11);
    let mut seen = 0;
    for round in 0..600 {
        // Every sixth layout is too large to be searched completely: there only requested sizes
        // count.
        let of = drawn(&mut random, if round % 6 == 0 { 800 } else { 14 });
        let recent: Vec<u64> = (0..random.below(3))
            .map(|_| 256 * (1 + random.below(20)))
            .collect();
        let (Some(&(hole, bytes)), Some(block)) = (of.holes.last(), of.blocks.first()) else {
            continue;
        };
        let search = Search::new(&of, bytes, 100, recent.iter().copied());
        let mut after = of.blocks.clone();
        let moves = match of.holes[0].1 >= block.bytes && of.holes.len() > 1 {
            true => {
                after[0].addr = of.holes[0].0;
                vec![way(block, of.holes[0].0)]
            }
            false => Vec::new(),
        };
        let free = of.free() - bytes;
        let future = FutureCost::new(recent.iter().copied(), free);
        let sees = of.blocks.len() <= super::WHOLE || recent.iter().any(|&size| size <= free);
        let said = match sees {
            true => future.cost(&of, &with(after, hole, bytes), f64::INFINITY),
            false => Some(0.0),
        };
        assert_eq!(search.future_cost(&moves, hole, f64::INFINITY), said);
        assert_eq!(
            search.future_cost(&moves, hole, said.expect("below infinity")),
            None
        );
        seen += usize::from(said > Some(0.0));
    }
    assert!(seen > 200, "{seen}");
}

#[test]
fn a_hole_is_put_where_the_future_cost_is_least() {
    let mut random = Rng::new(12);
    for _ in 0..400 {
        let of = drawn(&mut random, 16);
        let recent: Vec<u64> = (0..random.below(3))
            .map(|_| 256 * (1 + random.below(12)))
            .collect();
        let bytes = 256 * (1 + random.below(6));
        if of.free() < bytes {
            continue;
        }
        let future = FutureCost::new(recent.iter().copied(), of.free() - bytes);
        let places = of
            .holes
            .iter()
            .filter(|hole| hole.1 >= bytes)
            .flat_map(|&(addr, room)| {
                [addr, addr + room - bytes].map(|at| {
                    let after = with(of.blocks.clone(), at, bytes);
                    let cost = future.cost(&of, &after, f64::INFINITY);
                    (cost, room, at)
                })
            });
        let best = places.min_by(|a, b| a.partial_cmp(b).expect("no NaN"));
        let search = Search::new(&of, bytes, 100, recent.iter().copied());
        assert_eq!(search.place(), best.map(|(_, _, at)| at));
    }
}

/// A layout in which a request for all free bytes needs a chain of `links` lifted blocks in
/// addition to the one in its window. Each block fits exactly into the place of the next one and
/// the hole beside it. The next block lies above the one before, or below it if `down`.
pub(in crate::compact) fn chain(links: u64, down: bool) -> (Layout, u64) {
    let size = |at: u64| 2560 * (links + 1 - at);
    let mut kinds = String::from("f.mf");
    let mut sizes = vec![256, 1024, size(0), 256];
    for at in 1..=links {
        let at = if down { links + 1 - at } else { at };
        kinds.push_str("m.f");
        sizes.extend([size(at), size(at - 1) - size(at), 256]);
    }
    kinds.push_str(".f");
    sizes.extend([size(links), 256]);
    let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
    let bytes = layout.free_bytes();
    (layout, bytes)
}

#[test]
fn a_hole_is_made_at_the_end_of_its_gap_where_the_future_cost_is_less() {
    // The block of 50 goes to the last hole. Its gap has 20 bytes more than the hole: a later request of 50 bytes takes
    // them and the block beside them, of 30 bytes below the gap or of 400 above it.
    let made = |below, above| {
        let extents = extents_from(0, "m.m.mf.f.", &[below, 30, 50, 40, above, 1, 50, 1, 30]);
        let mut planner = Planner::new();
        planner.note_request(50);
        let layout = Layout::from_extents(extents).expect("ascends");
        let plan = planner.plan(&layout, &Goal::Hole(100)).expect("room");
        assert_eq!((plan.bytes, plan.moves), (50, 1));
        plan.hole
    };
    assert_eq!(made(30, 400), Some(30 + 20));
    assert_eq!(made(400, 30), Some(400));
}

#[test]
fn as_many_blocks_are_lifted_one_for_the_other_as_may_be() {
    let all = (0..=super::MOST_LIFTED as u64 + 1).flat_map(|links| [(links, 1), (links, 1000)]);
    // One attempt per link is enough, and a larger budget does not change the result.
    for (links, more) in all {
        let (layout, bytes) = chain(links, links % 2 == 0);
        let of = Stretches::whole(&layout).expect("small");
        let budget = links as usize + more;
        let found = Search::new(&of, bytes, budget, std::iter::empty()).run();
        let moves = found.map(|it| it.batches.iter().map(|b| b.moves().len()).sum::<usize>());
        let said = (links <= super::MOST_LIFTED as u64).then_some(links as usize + 1);
        assert_eq!(moves, said, "{links} by {budget}");
    }
}

#[test]
fn no_set_of_lifted_blocks_is_tried_that_has_more_than_it_may() {
    // None of the twelve blocks fits anywhere, whatever is lifted.
    let kinds = "m.f".repeat(12) + "m.m.f";
    let sizes: Vec<u64> = [[2560, 256, 256].repeat(12), vec![2560, 256, 2560, 256, 256]].concat();
    let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
    let of = Stretches::whole(&layout).expect("small");
    let mut search = Search::new(&of, 1024, 0, std::iter::empty());
    let window = *search.windows().first().expect("a window");
    let mut before = 0;
    for deepest in 0..3 {
        search.left = 1_000_000;
        search.open_window(window, deepest);
        let tried = 1_000_000 - search.left;
        let sets = [1, 1 + 14, 1 + 14 + 91][deepest];
        assert!(tried > before && tried <= sets, "{tried} of {deepest}");
        before = tried;
    }
    // A search with a budget of 0, or for more than is free, finds nothing.
    assert!(
        Search::new(&of, 1024, 0, std::iter::empty())
            .run()
            .is_none()
    );
    assert!(
        Search::new(&of, layout.free_bytes() + 1, 1000, std::iter::empty())
            .run()
            .is_none()
    );
}

#[test]
fn what_is_free_beyond_the_request_may_stay_empty_beside_a_block() {
    for spare in [0, 256, 768] {
        let sizes = [256, 1024, 2560, 256, 2560 + spare, 256];
        let layout = Layout::from_extents(extents_from(0, "f.mf.f", &sizes)).expect("ascends");
        let of = Stretches::whole(&layout).expect("small");
        let found = Search::new(&of, 3584, 1, std::iter::empty()).run();
        let found = found.unwrap_or_else(|| panic!("none beside {spare}"));
        assert_eq!(
            found.batches.iter().map(|b| b.moves().len()).sum::<usize>(),
            1
        );
        assert_eq!(found.hole, 256);
        assert!(
            Search::new(&of, 3584 + 256, 9, std::iter::empty())
                .run()
                .is_none()
        );
    }
}

/// A [`chain`], and a row that slides together for the same request at a higher cost: its blocks fit
/// nowhere else.
fn chain_and_row(links: u64) -> (Stretches, u64) {
    let (layout, bytes) = chain(links, false);
    let end = layout.extents().last().expect("an extent").end();
    let rooms = bytes.div_ceil(1024);
    let kinds = "m.".repeat(rooms as usize) + "mf";
    let sizes = [[1 << 20, 1024].repeat(rooms as usize), vec![1 << 20, 256]].concat();
    let row = extents_from(end, &kinds, &sizes);
    let layout = Layout::from_extents(layout.extents().chain(row)).expect("ascends");
    (Stretches::whole(&layout).expect("small"), bytes)
}

/// The moves of the plan found with this budget per depth, and the address of its hole.
fn found_by(budget: usize, of: &Stretches, bytes: u64) -> Option<(usize, u64)> {
    let found = Search::new(of, bytes, budget, std::iter::empty()).run()?;
    let moves = found.batches.iter().map(|b| b.moves().len()).sum();
    Some((moves, found.hole))
}

#[test]
fn an_expensive_plan_does_not_end_the_search_before_four_more_blocks_were_lifted() {
    for links in 1..=4 {
        let (of, bytes) = chain_and_row(links);
        let found = found_by(10_000, &of, bytes);
        assert_eq!(found, Some((links as usize + 1, 256)), "{links}");
    }
}

#[test]
fn a_search_that_was_cut_short_goes_on_to_where_more_blocks_are_lifted() {
    for links in super::ENOUGH_LIFTED as u64 + 1..=super::MOST_LIFTED as u64 {
        let (of, bytes) = chain_and_row(links);
        // The budget is too small for every depth, but the last one needs no more.
        let budget = links as usize + 1;
        let found = found_by(budget, &of, bytes);
        assert_eq!(found, Some((budget, 256)), "{links}");
    }
}

#[test]
fn a_search_goes_on_as_long_as_more_lifted_blocks_make_a_better_plan() {
    let unit = 2560;
    // The one window contains a block of 20 units. It fits where four blocks of 3 lie, or five
    // blocks of 1.
    let kinds = String::from("fm.f") + &"m.".repeat(4) + "f" + &"m.".repeat(5) + "f";
    let sizes = [
        vec![256, 20 * unit, 4 * unit, 256],
        [3 * unit, 2 * unit].repeat(4),
        vec![256],
        [unit, 3 * unit].repeat(5),
        vec![256],
    ];
    let layout = Layout::from_extents(extents_from(0, &kinds, &sizes.concat())).expect("ascends");
    let of = Stretches::whole(&layout).expect("small");
    assert_eq!(super::ENOUGH_LIFTED, 4);
    let mut search = Search::new(&of, 24 * unit, 100_000, std::iter::empty());
    search.left = usize::MAX;
    let window = search.windows()[0];
    search.open_window(window, 4);
    let moved = |found: &super::Found| found.batches.iter().map(Batch::bytes).sum::<u64>();
    assert_eq!(search.best.as_ref().map(moved), Some(32 * unit));
    let search = Search::new(&of, 24 * unit, 100_000, std::iter::empty());
    let found = search.run().expect("a plan");
    assert_eq!((moved(&found), found.hole), (25 * unit, 256));
}

/// Every row of neighbours of a stretch: (blocks `first..last`, their bytes, free bytes between and
/// beside them, bytes of their place if they leave it).
fn rows(of: &Stretches) -> Vec<(std::ops::Range<usize>, u64, u64, u64)> {
    let mut rows = Vec::new();
    for stretch in &of.stretches {
        for first in stretch.first..=stretch.last {
            for last in first..=stretch.last {
                let live = of.blocks[first..last].iter().map(|block| block.bytes).sum();
                let place = of.gap_begin(stretch, last) - of.gap_end(stretch, first);
                rows.push((first..last, live, place - live, place));
            }
        }
    }
    rows
}

#[test]
fn the_row_that_slides_is_the_cheapest_of_all_with_as_much_free() {
    let mut random = Rng::new(13);
    let mut slid = 0;
    for _ in 0..2000 {
        let of = drawn(&mut random, 16);
        let bytes = 256 * (1 + random.below(12));
        let mut search = Search::new(&of, bytes, 1, std::iter::empty());
        search.slide();
        let enough = rows(&of).into_iter().filter(|row| row.2 >= bytes);
        let cheapest = enough.map(|row| row.1).min();
        assert_eq!(search.best.is_some(), cheapest.is_some());
        let (Some(found), Some(live)) = (search.best, cheapest) else {
            continue;
        };
        let moved: u64 = found.batches.iter().map(|batch| batch.bytes()).sum();
        assert!(moved <= live, "{moved} of {live}");
        slid += usize::from(moved > 0);
    }
    assert!(slid > 50, "{slid}");
}

#[test]
fn the_score_of_a_plan_is_what_it_moves_and_its_future_cost() {
    let mut random = Rng::new(15);
    let mut seen = 0;
    for _ in 0..1500 {
        let of = drawn(&mut random, 14);
        let bytes = 256 * (1 + random.below(8));
        let recent: Vec<u64> = (0..3).map(|_| 256 * (1 + random.below(9))).collect();
        let mut search = Search::new(&of, bytes, 1, recent.into_iter());
        search.slide();
        let Some(found) = search.best.take() else {
            continue;
        };
        let circle = |batch: &Batch| matches!(batch, Batch::Circle { .. });
        let moves: Vec<_> = found.batches.iter().flat_map(Batch::moves).collect();
        let moves: Vec<_> = moves.into_iter().copied().collect();
        let cost = search.future_cost(&moves, found.hole, f64::INFINITY);
        let cost = cost.expect("below infinity");
        let moved: u64 = found.batches.iter().map(Batch::bytes).sum();
        assert!((found.score - moved as f64 - cost).abs() < 1e-6);
        seen += usize::from(cost > 0.0 && moved > 0 && !found.batches.iter().any(circle));
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn a_window_is_wide_enough_lifts_no_block_in_vain_and_its_neighbours_stay() {
    let mut random = Rng::new(14);
    for _ in 0..1000 {
        let of = drawn(&mut random, 16);
        let bytes = 256 * (1 + random.below(20));
        let mut search = Search::new(&of, bytes, 0, std::iter::empty());
        let windows = search.windows();
        assert!(windows.is_sorted());
        let wide = rows(&of).into_iter().filter(|row| row.3 >= bytes);
        let wide: Vec<_> = wide.map(|row| (row.0, row.1)).collect();
        let said = |window: &super::Window| (window.first..window.last, window.live);
        assert!(windows.iter().all(|window| wide.contains(&said(window))));
        // Every row that is wide enough contains a window of the search.
        for (row, _) in &wide {
            let within = |it: &&super::Window| row.start <= it.first && it.last <= row.end;
            assert!(windows.iter().any(|window| within(&window)));
        }
        for window in windows {
            search.open_window(window, 0);
            let stretch = of.stretches[window.stretch];
            for (at, fate) in search.fates.iter().enumerate() {
                let below = at + 1 == window.first && at >= stretch.first;
                let said = match at {
                    _ if (window.first..window.last).contains(&at) => super::Fate::Lifted,
                    _ if below || (at == window.last && at < stretch.last) => super::Fate::Stays,
                    _ => super::Fate::Open,
                };
                assert_eq!(*fate, said, "{at} of {window:?}");
            }
        }
    }
}

/// `of`, followed by a stretch of `blocks` blocks that fit into no hole.
fn with_more(of: &Stretches, blocks: usize) -> Stretches {
    let (mut all, before) = (Stretches::default(), of.blocks.len());
    all.blocks.clone_from(&of.blocks);
    all.holes.clone_from(&of.holes);
    all.stretches.clone_from(&of.stretches);
    let begin = 1 << 40;
    let addrs = (0..blocks as u64).map(|at| begin + (at << 20));
    let bytes = 1 << 20;
    all.blocks.extend(addrs.map(|addr| Block { addr, bytes }));
    all.stretches.push(super::Stretch {
        begin,
        end: begin + ((blocks as u64) << 20),
        first: before,
        last: before + blocks,
    });
    all
}

#[test]
fn in_a_large_layout_no_block_is_lifted_besides_those_of_a_window() {
    for links in [0, 1] {
        let (layout, bytes) = chain(links, false);
        let of = Stretches::whole(&layout).expect("small");
        for more in [0, 1, 100] {
            let all = with_more(&of, super::WHOLE - of.blocks.len() + more);
            assert_eq!(all.blocks.len(), super::WHOLE + more);
            let found = Search::new(&all, bytes, 1000, std::iter::empty()).run();
            assert_eq!(found.is_some(), links == 0 || more == 0, "{links} {more}");
        }
    }
}

#[test]
fn a_large_layout_is_searched_by_a_part_of_the_budget() {
    let (layout, bytes) = chain(3, false);
    let end = layout.extents().last().expect("an extent").end();
    let padding = super::WHOLE + 1;
    let row = extents_from(end, &"m".repeat(padding), &vec![1 << 20; padding]);
    let layout = Layout::from_extents(layout.extents().chain(row)).expect("ascends");
    let near = Stretches::near_holes(&layout, bytes);
    let found = |budget: usize| {
        let goal = Goal::Hole(bytes);
        let plan = Planner::new().with_budget(budget).plan(&layout, &goal);
        let part = (budget / LARGE_PART).max(1);
        let search = Search::new(&near, bytes, part, std::iter::empty()).run();
        assert_eq!(plan.is_some(), search.is_some(), "by {budget}");
        plan.is_some()
    };
    let found: Vec<bool> = (1..8 * LARGE_PART).map(found).collect();
    assert!(!found[0] && found[found.len() - 1]);
}
