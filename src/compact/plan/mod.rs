//! Which blocks to move where: pure arithmetic over a [`Layout`].
//!
//! # The problem
//!
//! To make a hole of N bytes, the blocks in a window of addresses must leave it and fit elsewhere.
//! The cost is the bytes moved. If much memory is free, it is enough to choose the cheapest window
//! and the tightest holes elsewhere. If little is free, the blocks fit nowhere, and further blocks
//! have to move so that small holes join. If the free bytes are exactly N, every gap has to be
//! filled exactly.
//!
//! # The method
//!
//! A plan is the set of blocks that stay. A gap is the space between two of them. One gap takes the
//! hole; the blocks that do not stay are packed into the other gaps. The search goes through
//! windows in ascending order of the bytes in them, then through sets of further blocks to lift,
//! and prunes whatever already costs more than the best plan found. The free bytes beyond the hole
//! are the same for every set of lifted blocks. So if the bytes that must stay unused in the gaps
//! exceed them, the next block to lift is one that changes such a gap. Small layouts are searched
//! completely. In large ones only the neighbourhoods of the largest holes are searched, with the
//! tightest holes elsewhere as destinations. Sliding all blocks of one stretch together is always a
//! candidate, so a plan is found whenever one stretch has enough free bytes.
//!
//! Blocks may swap places: blocks that wait for each other in a cycle (a [`Batch::Circle`]) are
//! moved in pieces, and bytes that are copied twice for that count twice.
//!
//! Among plans of similar cost, the planner prefers the layout in which the recently requested
//! sizes cost least, with the fewest holes; see [`Planner::note_request`].

pub(super) mod batch;
mod cycle;
mod future_cost;
mod handles;
pub(super) mod layout;
mod next_batch;
mod order;
mod pack;
pub(super) mod ranges;
pub(super) mod rows;
pub(super) mod search;
mod split_slides;
mod stretches;
pub(super) mod ways;

use std::collections::VecDeque;

pub(super) use batch::VOID;
pub use batch::{Batch, CostModel, Move};
use layout::{Extent, Layout};
use order::in_order;
use rows::{ALL, row, slide_down, slide_first};
use search::Search;
use split_slides::split_slides;
use stretches::Stretches;

/// Number of past requests whose sizes influence the choice among plans.
const REMEMBERED: usize = 128;

/// A large layout is searched with 1/`LARGE_PART` of the budget: a request that waits for one hole
/// among hundreds gains less from a better plan than from an early one.
pub(super) const LARGE_PART: usize = 4;

/// What a plan is to achieve.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// A hole of at least this many bytes.
    Hole(u64),
    /// As many of these ranges (address, bytes) without live bytes as can be emptied into holes
    /// outside them. Takes the ranges with the fewest live bytes first, until this many bytes are
    /// empty.
    EmptyHandles {
        /// The physical handles as mapped, in any order. If some overlap, the lowest counts.
        handles: Vec<(u64, u64)>,
        /// Bytes to empty.
        bytes: u64,
    },
    /// In every stretch between fixed blocks, all free bytes in one hole.
    Full,
}

/// Moves that reach a goal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// What to execute, in this order.
    pub batches: Vec<Batch>,
    /// Bytes copied in all.
    pub bytes: u64,
    /// Number of block moves.
    pub moves: usize,
    /// The hole asked for by [`Goal::Hole`]; the bytes emptied by [`Goal::EmptyHandles`] are in
    /// [`Plan::emptied`].
    pub hole: Option<u64>,
    /// Ranges of [`Goal::EmptyHandles`] that are empty afterwards.
    pub emptied: Vec<(u64, u64)>,
    /// Nanoseconds the moves will take by the planner's [`CostModel`].
    pub predicted_ns: f64,
    /// Number of executed batches, and number of executed moves of the next batch.
    pub(in crate::compact) done: (usize, usize),
}

impl Plan {
    /// A plan of `batches`, whose slides are split; what it reaches is left out.
    pub(super) fn of(batches: Vec<Batch>, model: &CostModel) -> Self {
        let batches = split_slides(batches);
        Self {
            bytes: batches.iter().map(Batch::bytes).sum(),
            moves: batches.iter().map(|batch| batch.moves().len()).sum(),
            predicted_ns: model.nanos(&batches),
            batches,
            ..Self::default()
        }
    }
}

/// Makes plans, and remembers the sizes of recent requests.
#[derive(Debug, Clone)]
pub struct Planner {
    model: CostModel,
    budget: usize,
    recent: VecDeque<u64>,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// A planner for an H200. It mostly spends at most 1 ms on a plan, or 3 ms if it searches a whole layout, of up
    /// to 160 blocks that may move and 640 holes. 150 blocks of nearly equal sizes have taken a quarter of a second.
    #[must_use]
    pub fn new() -> Self {
        Self {
            model: CostModel::default(),
            budget: 500,
            recent: VecDeque::with_capacity(REMEMBERED),
        }
    }

    /// The cost model of predictions.
    #[must_use]
    pub fn model(&self) -> CostModel {
        self.model
    }

    /// Replaces the cost model.
    #[must_use]
    pub fn with_model(mut self, model: CostModel) -> Self {
        self.model = model;
        self
    }

    /// Looks at up to `budget` sets of blocks to move at each depth of the search, at a few
    /// microseconds each. A larger budget finds cheaper plans when almost nothing is free.
    #[must_use]
    pub fn with_budget(mut self, budget: usize) -> Self {
        self.budget = budget.max(1);
        self
    }

    /// Limits the budget to `most`.
    pub(super) fn limited(&self, most: usize) -> Self {
        self.clone().with_budget(self.budget.min(most))
    }

    /// Remembers a request for `bytes`. The planner judges layouts by what the last 128 requests
    /// would cost in them.
    pub fn note_request(&mut self, bytes: u64) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(bytes);
    }

    /// The address for a block of `bytes` at which the recently requested sizes stay cheap to
    /// serve; `None` if no hole is large enough. Meant for layouts of a few hundred blocks; in
    /// larger ones it returns the tightest hole.
    #[must_use]
    pub fn place(&self, layout: &Layout, bytes: u64) -> Option<u64> {
        // Nothing lies also where a hole begins or ends, and beyond all memory.
        let bytes = bytes.max(1);
        let tightest = layout.holes_of(bytes).next()?;
        match Stretches::whole(layout) {
            Some(stretches) => Some(
                self.search(&stretches, bytes, self.budget)
                    .place()
                    .unwrap_or(tightest.addr),
            ),
            None => Some(tightest.addr),
        }
    }

    /// The moves that reach `goal`; `None` if no moves reach it.
    ///
    /// [`Goal::Full`] and [`Goal::EmptyHandles`] always have a plan, which may be empty.
    #[must_use]
    pub fn plan(&self, layout: &Layout, goal: &Goal) -> Option<Plan> {
        match goal {
            Goal::Hole(bytes) => self.plan_hole(layout, *bytes),
            Goal::EmptyHandles { handles, bytes } => self.plan_emptying(layout, handles, *bytes),
            Goal::Full => self.plan_full(layout.extents(), ALL),
        }
    }

    fn search<'a>(&'a self, stretches: &'a Stretches, bytes: u64, budget: usize) -> Search<'a> {
        Search::new(stretches, bytes, budget, self.recent.iter().copied())
    }

    fn plan_hole(&self, layout: &Layout, bytes: u64) -> Option<Plan> {
        if let Some(hole) = layout.holes_of(bytes).next() {
            return Some(Plan {
                hole: Some(hole.addr),
                ..Plan::default()
            });
        }
        if bytes > layout.free_bytes() {
            return None;
        }
        let (near, budget) = match Stretches::whole(layout) {
            Some(all) => (all, self.budget),
            None => (
                Stretches::near_holes(layout, bytes),
                (self.budget / LARGE_PART).max(1),
            ),
        };
        let found = self.search(&near, bytes, budget).run();
        let (batches, hole) = match found {
            Some(found) => (found.batches, found.hole),
            None => slide_one_row(layout, bytes)?,
        };
        Some(Plan {
            hole: Some(hole),
            ..Plan::of(batches, &self.model)
        })
    }

    /// The plan for [`Goal::Full`], or its first moves if they exceed `most` (bytes, moves).
    pub(in crate::compact) fn plan_full(
        &self,
        extents: impl Iterator<Item = Extent>,
        most: (u64, usize),
    ) -> Option<Plan> {
        let moves = slide_first(extents, most);
        Some(Plan::of(in_order(moves, &[])?, &self.model))
    }

    fn plan_emptying(&self, layout: &Layout, handles: &[(u64, u64)], bytes: u64) -> Option<Plan> {
        let (moves, emptied) = handles::empty(layout, handles, bytes);
        let plan = Plan::of(in_order(moves, &[])?, &self.model);
        Some(Plan { emptied, ..plan })
    }
}

/// Slides the cheapest row whose holes sum to `bytes`. Returns the batches and the address of the hole.
fn slide_one_row(layout: &Layout, bytes: u64) -> Option<(Vec<Batch>, u64)> {
    let extents: Vec<Extent> = layout.extents().collect();
    let row = row(&extents, bytes, 0)?;
    let slid = &extents[row.first..=row.last];
    Some((in_order(slide_down(slid), &[])?, slid[0].addr + row.live))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::plan::layout::{Kind, extents_from};
    use crate::device::sim::Rng;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn the_last_requests_are_remembered_and_no_more() {
        let mut planner = Planner::new().with_budget(0);
        assert_eq!(planner.budget, 1);
        for bytes in 0..REMEMBERED as u64 + 5 {
            planner.note_request(bytes);
        }
        assert_eq!(planner.recent.len(), REMEMBERED);
        assert_eq!(planner.recent.front(), Some(&5));
        assert_eq!(planner.recent.back(), Some(&(REMEMBERED as u64 + 4)));
    }

    #[test]
    fn a_hole_of_no_bytes_takes_no_moves() {
        let planner = Planner::new();
        for (kinds, hole) in [("m.m", Some(10)), ("mm", None), ("", None)] {
            let extents = extents_from(0, kinds, &[10; 3]);
            let layout = Layout::from_extents(extents).expect("ascends");
            assert_eq!(planner.place(&layout, 0), hole, "{kinds}");
            let plan = planner.plan(&layout, &Goal::Hole(0));
            assert_eq!(plan.map(|it| it.moves), (!kinds.is_empty()).then_some(0));
        }
    }

    #[test]
    fn a_planner_predicts_by_the_model_that_it_was_given() {
        let model = CostModel {
            launch_ns: 1000.0,
            bytes_per_ns: 0.5,
            ..CostModel::default()
        };
        let planner = Planner::new().with_model(model);
        assert_eq!(planner.model(), model);
        let extents = extents_from(0, ".m.", &[256, 512, 256]);
        let layout = Layout::from_extents(extents).expect("ascends");
        let plan = planner.plan(&layout, &Goal::Hole(512)).expect("as much");
        assert_eq!((plan.bytes, plan.predicted_ns), (512, 1000.0 + 1024.0));
        assert_eq!(plan.predicted_ns, model.nanos(&plan.batches));
    }

    #[test]
    fn stretches_end_at_fixed_blocks_and_where_nothing_is_mapped() {
        let extent = |addr, kind| Extent {
            addr,
            bytes: 10,
            kind,
        };
        let (hole, block, fixed) = (Kind::Hole, Kind::Movable, Kind::Fixed);
        let kinds = [(0, block), (10, hole), (20, fixed), (30, fixed), (40, hole)];
        let more = [(60, hole), (70, block), (80, fixed), (100, block)];
        let all = kinds
            .iter()
            .chain(&more)
            .map(|&(addr, kind)| extent(addr, kind));
        let all: Vec<Extent> = all.collect();
        let seen: Vec<Vec<u64>> = rows::stretches(&all)
            .map(|stretch| stretch.iter().map(|e| e.addr).collect())
            .collect();
        assert_eq!(seen, [vec![0, 10], vec![40], vec![60, 70], vec![100]]);
    }

    #[test]
    fn the_row_that_slides_is_found_in_one_pass_however_long() {
        // Each row is cheaper than the one before it.
        let blocks = 300_000;
        let kinds = ".m".repeat(blocks);
        let sizes: Vec<u64> = (0..blocks as u64)
            .flat_map(|at| [1, (1 << 20) + (1 << 19) - at])
            .collect();
        let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
        let began = std::time::Instant::now();
        let (batches, hole) = slide_one_row(&layout, blocks as u64 / 2).expect("there is a row");
        assert!(began.elapsed() < std::time::Duration::from_secs(30));
        assert_eq!(
            (batches.len(), batches[0].moves().len()),
            (1, blocks / 2 - 1)
        );
        assert!(hole < layout.extents().last().expect("extents").addr);
    }

    #[test]
    fn the_row_that_slides_is_the_cheapest_of_all_rows_with_as_much_free() {
        let mut random = Rng::new(19);
        for _ in 0..3000 {
            let kind = |_| ['.', 'm', 'm', 'f'][(random.below(10) / 3) as usize];
            let kinds: String = (0..12).map(kind).collect();
            let sizes: Vec<u64> = (0..12).map(|_| 1 + random.below(9)).collect();
            let extents = extents_from(0, &kinds, &sizes);
            let layout = Layout::from_extents(extents).expect("ascends");
            let bytes = 1 + random.below(20);
            let mut cheapest = None;
            let extents: Vec<Extent> = layout.extents().collect();
            for stretch in rows::stretches(&extents) {
                for (from, to) in (0..stretch.len()).flat_map(|to| (0..=to).map(move |it| (it, to)))
                {
                    let of = |kind| stretch[from..=to].iter().filter(move |e| e.kind == kind);
                    let free: u64 = of(Kind::Hole).map(|e| e.bytes).sum();
                    let live: u64 = of(Kind::Movable).map(|e| e.bytes).sum();
                    if free >= bytes && cheapest.is_none_or(|cheapest| live < cheapest) {
                        cheapest = Some(live);
                    }
                }
            }
            let found = slide_one_row(&layout, bytes);
            assert_eq!(found.is_some(), cheapest.is_some(), "{bytes} of {layout:?}");
            let Some((batches, hole)) = found else {
                continue;
            };
            let moved: u64 = batches.iter().map(Batch::bytes).sum();
            // The row found may begin with blocks, which do not move.
            assert!(Some(moved) <= cheapest, "{bytes} of {layout:?}");
            let mut after = layout.clone();
            let moves = || batches.iter().flat_map(Batch::moves);
            assert!(moves().all(|m| after.free(m.src)));
            assert!(moves().all(|m| after.place(m.dst, m.bytes, Kind::Movable)));
            assert!(
                after.place(hole, bytes, Kind::Movable),
                "{bytes} of {layout:?}"
            );
        }
    }

    #[test]
    fn the_row_that_slides_is_the_cheapest_and_no_longer_than_it_has_to_be() {
        let pieces = [
            (20, Kind::Hole),
            (80, Kind::Movable),
            (10, Kind::Hole),
            (30, Kind::Movable),
            (25, Kind::Hole),
            (90, Kind::Movable),
        ];
        let mut at = 0;
        let extents = pieces.map(|(bytes, kind)| {
            at += bytes;
            let addr = at - bytes;
            Extent { addr, bytes, kind }
        });
        let layout = Layout::from_extents(extents).expect("ascends");
        let slid = |bytes| slide_one_row(&layout, bytes).expect("there is as much");
        let row = |src, bytes| mv(src, src - 10, bytes);
        let moves = |batches: Vec<Batch>| batches.iter().flat_map(|b| b.moves().to_vec()).collect();
        let (batches, hole): (Vec<Move>, u64) = (moves(slid(35).0), slid(35).1);
        assert_eq!((batches, hole), (vec![row(110, 30)], 130));
        let (batches, hole) = (moves(slid(55).0), slid(55).1);
        assert_eq!((batches, hole), (vec![mv(20, 0, 80), mv(110, 80, 30)], 110));
        // Among rows of the same cost, the lowest.
        let row = [
            (20, Kind::Hole),
            (30, Kind::Movable),
            (20, Kind::Hole),
            (5, Kind::Fixed),
        ];
        let mut at = 0;
        let extents = row.into_iter().cycle().take(8).map(|(bytes, kind)| {
            at += bytes;
            let addr = at - bytes;
            Extent { addr, bytes, kind }
        });
        let layout = Layout::from_extents(extents).expect("ascends");
        let (batches, hole) = slide_one_row(&layout, 40).expect("there is as much");
        assert_eq!((moves(batches), hole), (vec![mv(20, 0, 30)], 30));
    }
}
