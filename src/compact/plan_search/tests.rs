//! What a search makes of what a layout bodes.

use super::super::layout::{Layout, extents_from};
use super::super::plan_foresight::Foresight;
use super::{Block, Search, Stretches, way};
use crate::device::sim::Rng;

/// A layout of blocks and holes in a drawn order, and what a search sees of it.
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
fn what_a_plan_bodes_is_what_the_layout_after_it_does() {
    let mut random = Rng::new(11);
    let mut seen = 0;
    for round in 0..600 {
        // Some larger than are searched whole, of which only sizes asked for lately say anything.
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
        let foresight = Foresight::new(recent.iter().copied(), free);
        let sees = of.blocks.len() <= super::WHOLE || recent.iter().any(|&size| size <= free);
        let said = match sees {
            true => foresight.bodes(&of, &with(after, hole, bytes)),
            false => 0.0,
        };
        assert_eq!(search.bodes(&moves, hole), said);
        seen += usize::from(said > 0.0);
    }
    assert!(seen > 200, "{seen}");
}

#[test]
fn a_hole_is_put_where_it_bodes_best_of_all_places() {
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
        let foresight = Foresight::new(recent.iter().copied(), of.free() - bytes);
        let places = of
            .holes
            .iter()
            .filter(|hole| hole.1 >= bytes)
            .flat_map(|&(addr, room)| {
                [addr, addr + room - bytes].map(|at| {
                    let bodes = foresight.bodes(&of, &with(of.blocks.clone(), at, bytes));
                    (bodes, room, at)
                })
            });
        let best = places.min_by(|a, b| a.partial_cmp(b).expect("no NaN"));
        let search = Search::new(&of, bytes, 100, recent.iter().copied());
        assert_eq!(search.place(), best.map(|(_, _, at)| at));
    }
}
