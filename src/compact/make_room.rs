//! Making a hole for one request at the least cost, when an allocation needs it.
//!
//! # Rows
//!
//! A row is a run of extents with nothing fixed or unmapped in between. Sliding a row downwards joins its
//! holes into one, at the cost of its live bytes. Among the cheap rows the lowest is taken. Successive
//! requests then take the next row up, so no free memory is left between rows that are already packed, and
//! the last request finds its hole as cheaply as the first. Always taking the cheapest row leaves small holes
//! everywhere, which cost a pass over all blocks in the end.
//!
//! If no row is cheap, the planner searches for blocks that fit into holes elsewhere. The search takes no
//! longer than the moves may take.

use super::gather::slid_down;
use super::plan::layout::{Extent, Kind, Layout};
use super::plan::rows::{Row, row, slide_down};
use super::plan::{CostModel, Goal, Plan, Planner};

/// A row is cheap if at most `CHEAP_PART` times the request's bytes have to move,
const CHEAP_PART: u64 = 8;

/// and if that takes at most this many nanoseconds of device time in addition to the launch.
const CHEAP_NS: f64 = 600_000.0;

/// Host nanoseconds per set of the planner's budget, all depths together: 3.5 ms for 500 sets where 100
/// blocks may move.
const SET_NS: f64 = 7_000.0;

/// The moves that make a hole of `bytes` in `extents`, which ascend, in at most `most_ns` of device time.
/// `None` if there are none.
pub(super) fn plan(
    planner: &Planner,
    extents: Vec<Extent>,
    bytes: u64,
    most_ns: f64,
) -> Option<Plan> {
    let model = planner.model();
    let affordable = |plan: &Plan| plan.predicted_ns <= most_ns;
    let cheap = (CHEAP_PART * bytes).min((CHEAP_NS * model.bytes_per_ns) as u64);
    let row = row(&extents, bytes, cheap);
    if let Some(row) = row.filter(|row| row.live <= cheap) {
        let row = lengthened(row, &extents, cheap);
        return Some(slid(&extents, row, &model)).filter(affordable);
    }
    let layout = Layout::from_extents(extents)?;
    let planner = planner.limited((most_ns / SET_NS) as usize);
    planner.plan(&layout, &Goal::Hole(bytes)).filter(affordable)
}

/// The row, extended downwards over holes that cost no more per byte than a cheap row.
fn lengthened(mut row: Row, extents: &[Extent], cheap: u64) -> Row {
    let (mut live, mut free) = (row.live, 0);
    for at in (0..row.first).rev() {
        let extent = &extents[at];
        if extent.kind == Kind::Fixed || extent.end() != extents[at + 1].addr {
            break;
        }
        match extent.kind {
            Kind::Hole => free += extent.bytes,
            Kind::Movable | Kind::Fixed => live += extent.bytes,
        }
        if live > cheap {
            break;
        }
        if extent.kind == Kind::Hole && live - row.live <= CHEAP_PART * free {
            (row.first, row.live, free) = (at, live, 0);
        }
    }
    row
}

/// A plan that slides every block of `row` downwards, in one launch.
fn slid(extents: &[Extent], row: Row, model: &CostModel) -> Plan {
    let extents = &extents[row.first..=row.last];
    Plan {
        hole: Some(extents[0].addr + row.live),
        ..slid_down(slide_down(extents), model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::plan::layout::extents_from;
    use crate::compact::plan::rows::tests::{drawn, sums};
    use crate::compact::plan::search::tests::chain;
    use crate::compact::{Batch, Move};
    use crate::device::sim::Rng;

    #[test]
    fn a_row_grows_downwards_hole_by_hole_as_far_as_that_is_cheap() {
        let mut random = Rng::new(18);
        for _ in 0..4000 {
            let extents = drawn(&mut random);
            let bytes = 1 + random.below(9);
            let Some(begun) = row(&extents, bytes, random.below(60)) else {
                continue;
            };
            // Either the exact cost of extending down to a random extent, or a random cost.
            let down_to = random.below(begun.first as u64 + 1) as usize;
            let exact = sums(&extents, down_to, begun.last + 1);
            let cheap = exact.map_or(begun.live + random.below(60), |(_, live)| live);
            let mut said = begun;
            let brings = |at: usize, said: Row| {
                let (_, live) = sums(&extents, at, said.last + 1)?;
                let (free, _) = sums(&extents, at, said.first)?;
                let cheap = live <= cheap && live - said.live <= CHEAP_PART * free;
                let first = at;
                (cheap && extents[at].kind == Kind::Hole).then_some(Row {
                    first,
                    live,
                    ..said
                })
            };
            while let Some(longer) = (0..said.first).rev().find_map(|at| brings(at, said)) {
                said = longer;
            }
            assert_eq!(lengthened(begun, &extents, cheap), said, "{extents:?}");
            let plan = slid(&extents, said, &CostModel::default());
            let mut layout = Layout::from_extents(extents.iter().copied()).expect("ascends");
            for m in plan.batches.iter().flat_map(Batch::moves) {
                assert!(layout.free(m.src) && layout.place(m.dst, m.bytes, Kind::Movable));
            }
            let hole = layout.get(plan.hole.expect("a hole")).expect("an extent");
            assert_eq!(hole.kind, Kind::Hole);
            let (free, _) = sums(&extents, said.first, said.last + 1).expect("a row");
            assert!(hole.bytes >= free);
        }
    }

    #[test]
    fn a_row_brings_along_the_holes_below_it_that_are_as_cheap() {
        let first = |hole, block, cheap| {
            let extents = extents_from(0, ".m.", &[hole, block, 20]);
            let (first, last, live) = (2, 2, 0);
            lengthened(Row { first, last, live }, &extents, cheap).first
        };
        assert_eq!(first(2, 2 * CHEAP_PART, 100), 0);
        assert_eq!(
            first(2, 2 * CHEAP_PART + 1, 100),
            2,
            "more expensive per byte"
        );
        assert_eq!(
            first(2, 2 * CHEAP_PART, 2 * CHEAP_PART - 1),
            2,
            "too expensive"
        );
    }

    #[test]
    fn a_slid_row_leaves_its_holes_in_one_piece() {
        let extents = extents_from(0, "m.m.mm", &[8, 4, 2, 6, 1, 1]);
        let plan = plan(&Planner::new(), extents, 10, f64::INFINITY).expect("a plan");
        assert_eq!((plan.bytes, plan.hole), (2, Some(10)));
        let moves = [Move {
            src: 12,
            dst: 8,
            bytes: 2,
        }];
        assert_eq!(plan.batches[0].moves(), moves);
    }

    #[test]
    fn the_lowest_row_slides_if_it_is_cheap_and_else_blocks_go_elsewhere() {
        let moved = |block: u64, bytes_per_ns: f64| {
            // A row around the block, and another block of 6 that fits into a hole elsewhere.
            let extents = extents_from(0, ".m.f.mf.f", &[5, block, 5, 1, 5, 6, 1, 6, 1]);
            let model = CostModel {
                bytes_per_ns,
                ..CostModel::default()
            };
            let planner = Planner::new().with_model(model);
            let plan = plan(&planner, extents, 10, f64::INFINITY);
            plan.expect("a plan").bytes
        };
        // For its bytes; or for its time, on a device that moves no more than this many bytes in it.
        let fast = CostModel::default().bytes_per_ns;
        for (cheap, speed) in [(CHEAP_PART * 10, fast), (20, 20.5 / CHEAP_NS)] {
            let moved = [cheap, cheap + 1].map(|block| moved(block, speed));
            assert_eq!(moved, [cheap, 6]);
        }
    }

    #[test]
    fn a_search_is_no_longer_than_its_moves_may_take() {
        let links = 5;
        let (layout, bytes) = chain(links, false);
        // Launches cost almost nothing, so the plan is expensive only by its search.
        let model = CostModel {
            launch_ns: 0.001,
            ..CostModel::default()
        };
        let planner = Planner::new().with_model(model);
        let planned = |sets: f64| {
            let extents = layout.extents().collect();
            plan(&planner, extents, bytes, sets * SET_NS).is_some()
        };
        // One set for each lifted block, and one for the window.
        let needed = links as f64 + 1.0;
        assert_eq!([needed - 1.0, needed].map(planned), [false, true]);
    }

    #[test]
    fn a_plan_that_takes_longer_than_it_may_is_none() {
        let extents = extents_from(0, ".m.", &[5, 1, 5]);
        assert!(plan(&Planner::new(), extents, 10, 100.0).is_none());
    }
}
