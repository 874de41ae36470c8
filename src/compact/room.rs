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

use super::gather::{slid_down, slide_down};
use super::plan::layout::{Extent, Kind, Layout};
use super::plan::{CostModel, Goal, Plan, Planner};

/// A row is cheap if at most `CHEAP_PART` times the request's bytes have to move,
const CHEAP_PART: u64 = 8;

/// and if that takes at most this many nanoseconds of device time in addition to the launch.
const CHEAP_NS: f64 = 600_000.0;

/// Host nanoseconds per set of the planner's budget, all depths together: 3.5 ms for 500 sets where 100
/// blocks may move.
const SET_NS: f64 = 7_000.0;

/// Adjacent extents `first..=last`, by index, and the bytes of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    first: usize,
    last: usize,
    live: u64,
}

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

/// The lowest row with `bytes` in holes and at most `cheap` in blocks; if there is none, the row with the
/// fewest bytes in blocks.
fn row(extents: &[Extent], bytes: u64, cheap: u64) -> Option<Row> {
    let mut best: Option<Row> = None;
    let (mut first, mut free, mut live, mut end) = (0, 0, 0, 0);
    for (last, extent) in extents.iter().enumerate() {
        if extent.kind == Kind::Fixed || extent.addr != end {
            (first, free, live) = (last + usize::from(extent.kind == Kind::Fixed), 0, 0);
        }
        end = extent.end();
        match extent.kind {
            Kind::Hole => free += extent.bytes,
            Kind::Movable => live += extent.bytes,
            Kind::Fixed => continue,
        }
        while first <= last && (extents[first].kind == Kind::Movable || free >= bytes.max(1)) {
            if extents[first].kind == Kind::Movable {
                live -= extents[first].bytes;
            } else {
                if best.is_none_or(|best| live < best.live) {
                    best = Some(Row { first, last, live });
                }
                if live <= cheap {
                    return best;
                }
                free -= extents[first].bytes;
            }
            first += 1;
        }
    }
    best
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
    let (begin, end) = (extents[0].addr, extents[extents.len() - 1].end());
    let moves = slide_down(extents);
    Plan {
        largest_hole: end - begin - row.live,
        hole: Some(begin + row.live),
        ..slid_down(moves, model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::plan::layout::extents_from;
    use crate::compact::plan::search::tests::chain;
    use crate::compact::{Batch, Move};
    use crate::device::sim::Rng;

    #[test]
    fn the_lowest_cheap_row_is_taken_before_the_cheapest() {
        let extents = extents_from(0, "m.m.m.m.", &[9, 5, 3, 5, 9, 6, 1, 6]);
        let of = |first, last, live| Some(Row { first, last, live });
        assert_eq!(row(&extents, 10, 3), of(1, 3, 3));
        assert_eq!(row(&extents, 10, 2), of(5, 7, 1));
        assert_eq!(row(&extents, 10, 0), of(5, 7, 1));
        assert_eq!(row(&extents, 22, 0), of(1, 7, 13));
        assert_eq!(row(&extents, 23, 99), None);
    }

    /// A layout of a few extents, some of them apart.
    fn drawn(random: &mut Rng) -> Vec<Extent> {
        let mut addr = 0;
        let mut drawn = |_| {
            addr += random.below(6) / 5;
            let kind = [Kind::Hole, Kind::Movable, Kind::Movable, Kind::Fixed];
            let kind = kind[(random.below(10) / 3) as usize];
            // Blocks are larger than holes, so that some are too dear to bring along.
            let bytes = 1 + random.below(if kind == Kind::Movable { 30 } else { 6 });
            addr += bytes;
            Extent {
                addr: addr - bytes,
                bytes,
                kind,
            }
        };
        (0..14).map(&mut drawn).collect()
    }

    /// Bytes of the holes and of the blocks of `extents[from..to]`; `None` if they do not lie together
    /// with nothing fixed among them.
    fn sums(extents: &[Extent], from: usize, to: usize) -> Option<(u64, u64)> {
        let row = &extents[from..to];
        let together = row.windows(2).all(|two| two[0].end() == two[1].addr);
        let fixed = row.iter().any(|e| e.kind == Kind::Fixed);
        let of = |kind| row.iter().filter(|e| e.kind == kind).map(|e| e.bytes).sum();
        (together && !fixed).then(|| (of(Kind::Hole), of(Kind::Movable)))
    }

    /// Every row from a hole to the first behind it with which there is as much free, by its end.
    fn rows(extents: &[Extent], bytes: u64) -> Vec<Row> {
        let holes = (0..extents.len()).filter(|&at| extents[at].kind == Kind::Hole);
        let ending = |first| {
            let enough = (first..extents.len()).map(|last| (last, sums(extents, first, last + 1)));
            let mut enough = enough.map_while(|(last, sums)| Some((last, sums?)));
            let (last, (_, live)) = enough.find(|(_, (free, _))| *free >= bytes)?;
            Some(Row { first, last, live })
        };
        let mut rows: Vec<Row> = holes.filter_map(ending).collect();
        rows.sort_by_key(|row| (row.last, row.first));
        rows
    }

    #[test]
    fn the_row_is_the_first_that_is_cheap_or_the_cheapest_of_all() {
        let mut random = Rng::new(17);
        for _ in 0..4000 {
            let extents = drawn(&mut random);
            let (bytes, cheap) = (1 + random.below(12), random.below(60));
            let rows = rows(&extents, bytes);
            let lowest = rows.iter().find(|row| row.live <= cheap);
            let said = lowest.or_else(|| rows.iter().min_by_key(|row| row.live));
            assert_eq!(row(&extents, bytes, cheap), said.copied(), "{extents:?}");
        }
    }

    #[test]
    fn a_row_grows_downwards_hole_by_hole_as_far_as_that_is_cheap() {
        let mut random = Rng::new(18);
        for _ in 0..4000 {
            let extents = drawn(&mut random);
            let bytes = 1 + random.below(9);
            let Some(begun) = row(&extents, bytes, random.below(60)) else {
                continue;
            };
            // What it costs to grow down to some extent, exactly, or anything.
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
            assert_eq!((plan.largest_hole, hole.bytes >= free), (free, true));
        }
    }

    #[test]
    fn a_row_ends_at_a_fixed_block_and_where_nothing_is_mapped() {
        let mut extents = extents_from(0, ".mf.m.m.", &[5, 1, 1, 5, 1, 5, 1, 5]);
        assert_eq!(row(&extents, 15, 99).map(|row| row.first), Some(3));
        assert_eq!(row(&extents, 16, 99), None);
        for extent in &mut extents[6..] {
            extent.addr += 100;
        }
        assert_eq!(row(&extents, 10, 99).map(|row| row.last), Some(5));
        assert_eq!(row(&extents, 11, 99), None);
    }

    #[test]
    fn a_row_brings_along_the_holes_below_it_that_are_as_cheap() {
        let first = |hole, block, cheap| {
            let extents = extents_from(0, ".m.", &[hole, block, 20]);
            let (first, last, live) = (2, 2, 0);
            lengthened(Row { first, last, live }, &extents, cheap).first
        };
        assert_eq!(first(2, 2 * CHEAP_PART, 100), 0);
        assert_eq!(first(2, 2 * CHEAP_PART + 1, 100), 2, "dearer by the byte");
        assert_eq!(first(2, 2 * CHEAP_PART, 2 * CHEAP_PART - 1), 2, "dear");
    }

    #[test]
    fn a_slid_row_leaves_its_holes_in_one_piece() {
        let extents = extents_from(0, "m.m.mm", &[8, 4, 2, 6, 1, 1]);
        let plan = plan(&Planner::new(), extents, 10, f64::INFINITY).expect("a plan");
        assert_eq!(
            (plan.bytes, plan.hole, plan.largest_hole),
            (2, Some(10), 10)
        );
        let moves = [Move {
            src: 12,
            dst: 8,
            bytes: 2,
        }];
        assert_eq!(plan.batches[0].moves(), moves);
    }

    #[test]
    fn the_lowest_row_slides_if_it_is_cheap_and_else_blocks_go_elsewhere() {
        let moved = |block: u64| {
            // A row around the block, and beside it a block of 6 that fits into a hole elsewhere.
            let extents = extents_from(0, ".m.f.mf.f", &[5, block, 5, 1, 5, 6, 1, 6, 1]);
            let plan = plan(&Planner::new(), extents, 10, f64::INFINITY);
            plan.expect("a plan").bytes
        };
        let cheap = CHEAP_PART * 10;
        assert_eq!([cheap, cheap + 1].map(moved), [cheap, 6]);
    }

    #[test]
    fn a_search_is_no_longer_than_its_moves_may_take() {
        let links = 5;
        let (layout, bytes) = chain(links, false);
        // Launches that cost next to nothing, so that a plan is dear by its search alone.
        let model = CostModel {
            launch_ns: 0.001,
            ..CostModel::default()
        };
        let planner = Planner::new().with_model(model);
        let planned = |sets: f64| {
            let extents = layout.extents().collect();
            plan(&planner, extents, bytes, sets * SET_NS).is_some()
        };
        // A set for each block that is lifted and one for the window.
        let needed = links as f64 + 1.0;
        assert_eq!([needed - 1.0, needed].map(planned), [false, true]);
    }

    #[test]
    fn a_plan_dearer_than_what_it_is_worth_is_none() {
        let extents = extents_from(0, ".m.", &[5, 1, 5]);
        assert!(plan(&Planner::new(), extents, 10, 100.0).is_none());
    }
}
