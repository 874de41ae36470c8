//! Which blocks to move where: pure arithmetic over a [`Layout`].
//!
//! # The problem
//!
//! To make a hole of N bytes some blocks must leave a window, and what leaves must fit elsewhere.
//! The price is the bytes moved. Where much is free the cheapest window and the tightest holes
//! elsewhere do; where little is free nothing fits anywhere, and further blocks have to move so
//! that small holes become one. At no slack at all every gap has to be filled exactly.
//!
//! # The method
//!
//! A plan is the set of blocks that stay. What lies between two of them is a gap; one gap takes the
//! hole, and the blocks that do not stay are packed into the rest. The search goes through windows
//! in order of the bytes in them, then through further blocks to lift, and prunes whatever already
//! costs more than the best plan found. What is free beyond the hole is the same whatever is lifted,
//! so where gaps that no set of lifted blocks fills waste more than that, only blocks that change
//! such a gap are lifted next. Small layouts are searched whole; of large ones only the
//! neighbourhoods of the largest holes, with the tightest holes elsewhere as places to go. Sliding
//! every block of one stretch together is always among the candidates, so a plan is found whenever
//! one stretch has the bytes.
//!
//! Blocks may change places: those that wait for each other in a circle are moved in pieces, and
//! what is copied twice for that counts twice.
//!
//! Among plans of like cost the one is taken whose outcome serves the sizes lately asked for the
//! cheapest, with the fewest holes; see [`Planner::note_request`].

use std::collections::{HashMap, VecDeque};

use super::apart::apart;
use super::layout::{Extent, Kind, Layout};
use super::plan_order::in_order;
use super::plan_search::Search;
use super::plan_stretches::Stretches;

/// Bytes between two moves of a slide beyond which they are two launches: what a slide keeps books of
/// counts what lies between its moves too.
pub(super) const VOID: u64 = 16 << 30;

/// Sizes of past requests that weigh in the choice among plans.
const REMEMBERED: usize = 128;

/// The part of the budget, one in so many, that the search of a large layout has: who waits for one
/// hole of hundreds there gains less by a better plan than by an early one.
pub(super) const LARGE_PART: usize = 4;

/// One block's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where the block stands.
    pub src: u64,
    /// Where it goes.
    pub dst: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Moves made together. Batches are made one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// No destination overlaps any source: any order, all at once.
    Disjoint(Vec<Move>),
    /// Moves in ascending order that may overlap, all downwards or all upwards.
    Slide {
        /// Whether destinations lie above their sources.
        upward: bool,
        /// The moves by ascending source, which is ascending destination too.
        moves: Vec<Move>,
    },
    /// Blocks each of which stands where another goes, with no order among them: they are moved in
    /// pieces, some of them by way of free bytes elsewhere. In between no block is whole anywhere,
    /// so they are all moved or none.
    Circle {
        /// From where to where each block goes, by ascending source.
        moves: Vec<Move>,
        /// The launches that bring them there, one after the other; of the other two kinds.
        pieces: Vec<Batch>,
    },
}

impl Batch {
    /// The moves of the batch.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        match self {
            Self::Disjoint(moves) | Self::Slide { moves, .. } | Self::Circle { moves, .. } => moves,
        }
    }

    /// Bytes the batch copies: of a circle, those of its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Disjoint(moves) | Self::Slide { moves, .. } => {
                moves.iter().map(|m| m.bytes).sum()
            }
            Self::Circle { pieces, .. } => pieces.iter().map(Self::bytes).sum(),
        }
    }

    /// Launches that make it, if their tables have room for it.
    #[must_use]
    pub fn launches(&self) -> usize {
        match self {
            Self::Disjoint(_) | Self::Slide { .. } => 1,
            Self::Circle { pieces, .. } => pieces.len(),
        }
    }

    /// Bytes the batch passes over: of a slide those between its sources, but for voids, at which it is
    /// cut into launches.
    fn passed(&self) -> u64 {
        let Self::Slide { moves, .. } = self else {
            return 0;
        };
        let between = moves
            .windows(2)
            .map(|two| two[1].src - two[0].src - two[0].bytes);
        between.filter(|&bytes| bytes <= VOID).sum()
    }
}

/// What a plan is to achieve.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// A hole of at least this many bytes.
    Hole(u64),
    /// No live byte in as many of these ranges (address, bytes) as can be emptied into holes
    /// outside them, those with the fewest live bytes first, until this many bytes of them are empty.
    EmptyHandles {
        /// The physical handles as mapped, in any order.
        handles: Vec<(u64, u64)>,
        /// Bytes to empty.
        bytes: u64,
    },
    /// In every stretch between fixed blocks, all free bytes in one hole.
    Full,
}

/// How long moves take: a line through what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Bytes moved in a nanosecond; a copy reads and writes each once.
    pub bytes_per_ns: f64,
    /// Nanoseconds of each launch, its table's upload included.
    pub launch_ns: f64,
    /// Bytes that a slide passes over in a nanosecond: holes between its first and last source.
    pub passed_bytes_per_ns: f64,
    /// Nanoseconds of the host for each physical handle that is mapped elsewhere: what moving costs
    /// where memory is mapped again and not copied.
    pub handle_ns: f64,
}

impl Default for CostModel {
    /// An H200: 4.1 TB/s read and written together, 10 µs a launch, a seventh of a microsecond for each
    /// MiB that a slide passes over, and 52 µs a handle, of which the access to the new mapping takes
    /// 31 and the end of the old one 21.
    fn default() -> Self {
        Self {
            bytes_per_ns: 2050.0,
            launch_ns: 10_000.0,
            passed_bytes_per_ns: 7000.0,
            handle_ns: 52_000.0,
        }
    }
}

impl CostModel {
    /// Nanoseconds of the device for `batches`, made one after the other.
    #[must_use]
    pub fn nanos(&self, batches: &[Batch]) -> f64 {
        let each = batches.iter().map(|batch| {
            batch.launches() as f64 * self.launch_ns
                + batch.bytes() as f64 / self.bytes_per_ns
                + batch.passed() as f64 / self.passed_bytes_per_ns
        });
        each.sum()
    }
}

/// Moves that reach a goal, and what they will have done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// What to do, in this order.
    pub batches: Vec<Batch>,
    /// Bytes copied in all.
    pub bytes: u64,
    /// Moves of blocks in all.
    pub moves: usize,
    /// Bytes of the largest hole afterwards.
    pub largest_hole: u64,
    /// The hole asked for by [`Goal::Hole`]; the bytes emptied by [`Goal::EmptyHandles`] are in
    /// [`Plan::emptied`].
    pub hole: Option<u64>,
    /// Ranges of [`Goal::EmptyHandles`] that are empty afterwards.
    pub emptied: Vec<(u64, u64)>,
    /// Nanoseconds the moves will take by the planner's [`CostModel`].
    pub predicted_ns: f64,
}

/// Makes plans, and remembers what sizes are asked for.
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
    /// A planner for an H200 that spends about a millisecond at most on a plan, and some three where
    /// it searches the whole layout, of up to 160 blocks that may move.
    #[must_use]
    pub fn new() -> Self {
        Self {
            model: CostModel::default(),
            budget: 500,
            recent: VecDeque::with_capacity(REMEMBERED),
        }
    }

    /// The model of time that predictions are made by.
    #[must_use]
    pub fn model(&self) -> CostModel {
        self.model
    }

    /// With another model of time.
    #[must_use]
    pub fn with_model(mut self, model: CostModel) -> Self {
        self.model = model;
        self
    }

    /// Looks at up to `budget` sets of blocks to move at each depth of the search, a few
    /// microseconds each. More finds cheaper plans where hardly anything is free.
    #[must_use]
    pub fn with_budget(mut self, budget: usize) -> Self {
        self.budget = budget.max(1);
        self
    }

    /// With a budget of `most` at most.
    pub(super) fn limited(&self, most: usize) -> Self {
        self.clone().with_budget(self.budget.min(most))
    }

    /// Remembers that `bytes` were asked for. Layouts are judged by what the last 128 requests
    /// would cost in them.
    pub fn note_request(&mut self, bytes: u64) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(bytes);
    }

    /// Where to put a block of `bytes` so that the sizes lately asked for stay cheap to serve;
    /// `None` if no hole takes it. Meant for layouts of a few hundred blocks; of larger ones it
    /// answers the tightest hole.
    #[must_use]
    pub fn place(&self, layout: &Layout, bytes: u64) -> Option<u64> {
        let tightest = layout.holes_of(bytes.max(1)).next()?;
        match Stretches::whole(layout) {
            Some(stretches) => Some(
                self.search(&stretches, bytes, self.budget)
                    .place()
                    .unwrap_or(tightest.addr),
            ),
            None => Some(tightest.addr),
        }
    }

    /// The moves that reach `goal`; `None` if no moves can.
    ///
    /// [`Goal::Full`] and [`Goal::EmptyHandles`] always have a plan, which may be empty.
    #[must_use]
    pub fn plan(&self, layout: &Layout, goal: &Goal) -> Option<Plan> {
        match goal {
            Goal::Hole(bytes) => self.plan_hole(layout, *bytes),
            Goal::EmptyHandles { handles, bytes } => self.plan_emptying(layout, handles, *bytes),
            Goal::Full => self.plan_full(layout),
        }
    }

    fn search<'a>(&'a self, stretches: &'a Stretches, bytes: u64, budget: usize) -> Search<'a> {
        Search::new(stretches, bytes, budget, self.recent.iter().copied())
    }

    fn plan_hole(&self, layout: &Layout, bytes: u64) -> Option<Plan> {
        if let Some(hole) = layout.holes_of(bytes.max(1)).next() {
            return Some(Plan {
                hole: Some(hole.addr),
                largest_hole: layout.largest_hole(),
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
            None => slide_one_stretch(layout, bytes)?,
        };
        let plan = self.finish(layout, batches);
        Some(Plan {
            hole: Some(hole),
            ..plan
        })
    }

    fn plan_full(&self, layout: &Layout) -> Option<Plan> {
        let mut moves = Vec::new();
        for stretch in stretches_of(layout) {
            let mut to = stretch[0].addr;
            for block in stretch.iter().filter(|e| e.kind == Kind::Movable) {
                moves.push(Move {
                    src: block.addr,
                    dst: to,
                    bytes: block.bytes,
                });
                to += block.bytes;
            }
        }
        Some(self.finish(layout, in_order(moves, &[])?))
    }

    fn plan_emptying(&self, layout: &Layout, handles: &[(u64, u64)], bytes: u64) -> Option<Plan> {
        let (moves, emptied) = super::plan_handles::empty(layout, handles, bytes);
        let plan = self.finish(layout, in_order(moves, &[])?);
        Some(Plan { emptied, ..plan })
    }

    fn finish(&self, layout: &Layout, batches: Vec<Batch>) -> Plan {
        let batches = apart(batches);
        let bytes: u64 = batches.iter().map(Batch::bytes).sum();
        let moves = batches.iter().map(|b| b.moves().len()).sum();
        let predicted_ns = self.model.nanos(&batches);
        let largest_hole = largest_hole_after(layout, &batches);
        Plan {
            batches,
            bytes,
            moves,
            largest_hole,
            predicted_ns,
            ..Plan::default()
        }
    }
}

/// Bytes of the largest hole once `batches` are made.
///
/// Looks only at what the moves touch: a hole that no move touches is as it was.
fn largest_hole_after(layout: &Layout, batches: &[Batch]) -> u64 {
    let ways = whole_ways(batches);
    let mut changes: Vec<(u64, u64, bool)> = ways
        .iter()
        .map(|m| (m.dst, m.dst + m.bytes, true))
        .collect();
    changes.extend(ways.iter().map(|m| (m.src, m.src + m.bytes, false)));
    if changes.is_empty() {
        return layout.largest_hole();
    }
    // Free ranges around everything touched: the holes there and the sources, less the targets.
    let mut free: Vec<(u64, u64)> = Vec::new();
    for &(begin, end, target) in &changes {
        if !target {
            free.push((begin, end));
        }
        free.extend(
            layout
                .below(begin)
                .take(1)
                .filter(|e| e.kind == Kind::Hole)
                .map(|e| (e.addr, e.end())),
        );
        free.extend(
            layout
                .from(begin)
                .take_while(|e| e.addr <= end)
                .filter(|e| e.kind == Kind::Hole)
                .map(|e| (e.addr, e.end())),
        );
    }
    free.sort_unstable();
    free.dedup();
    let mut targets: Vec<(u64, u64)> = changes.iter().filter(|c| c.2).map(|c| (c.0, c.1)).collect();
    targets.sort_unstable();
    let touched = largest_difference(&free, &targets);
    let untouched = layout
        .largest_holes()
        .find(|hole| free.binary_search(&(hole.addr, hole.end())).is_err());
    touched.max(untouched.map_or(0, |hole| hole.bytes))
}

/// Each block's way from first to last, one move a block: what was parked in between is joined.
fn whole_ways(batches: &[Batch]) -> Vec<Move> {
    let mut at: HashMap<u64, Move> = HashMap::new();
    for batch in batches {
        let gone: Vec<Option<Move>> = batch.moves().iter().map(|m| at.remove(&m.src)).collect();
        for (m, before) in batch.moves().iter().zip(gone) {
            at.insert(
                m.dst,
                Move {
                    src: before.map_or(m.src, |b| b.src),
                    ..*m
                },
            );
        }
    }
    at.into_values().collect()
}

/// The longest run of `free`, adjacent ranges joined, that no target meets. Both ascend.
fn largest_difference(free: &[(u64, u64)], targets: &[(u64, u64)]) -> u64 {
    let (mut largest, mut begin, mut end) = (0, 0, 0);
    let mut targets = targets.iter().copied().peekable();
    let mut close = |mut begin: u64, end: u64| {
        while let Some(&(from, to)) = targets.peek().filter(|t| t.0 < end) {
            largest = largest.max(from.saturating_sub(begin));
            begin = begin.max(to);
            targets.next();
        }
        largest = largest.max(end.saturating_sub(begin));
    };
    for &(from, to) in free {
        if from > end {
            close(begin, end);
            begin = from;
        }
        end = end.max(to);
    }
    close(begin, end);
    largest
}

/// The extents of each stretch: what lies together with nothing fixed or unmapped in between.
fn stretches_of(layout: &Layout) -> Vec<Vec<Extent>> {
    let mut all: Vec<Vec<Extent>> = Vec::new();
    let mut end = None;
    for extent in layout.extents() {
        if extent.kind == Kind::Fixed {
            end = None;
            continue;
        }
        match all.last_mut().filter(|_| end == Some(extent.addr)) {
            Some(stretch) => stretch.push(extent),
            None => all.push(vec![extent]),
        }
        end = Some(extent.end());
    }
    all
}

/// The cheapest row of neighbours whose holes sum to `bytes`, slid together.
fn slide_one_stretch(layout: &Layout, bytes: u64) -> Option<(Vec<Batch>, u64)> {
    let mut best: Option<(u64, Vec<Extent>)> = None;
    for stretch in stretches_of(layout) {
        let (mut first, mut free, mut live) = (0, 0, 0);
        for last in 0..stretch.len() {
            match stretch[last].kind {
                Kind::Hole => free += stretch[last].bytes,
                Kind::Movable | Kind::Fixed => live += stretch[last].bytes,
            }
            while free >= bytes.max(1) {
                if best.as_ref().is_none_or(|(cost, _)| live < *cost) {
                    best = Some((live, stretch[first..=last].to_vec()));
                }
                match stretch[first].kind {
                    Kind::Hole => free -= stretch[first].bytes,
                    Kind::Movable | Kind::Fixed => live -= stretch[first].bytes,
                }
                first += 1;
            }
        }
    }
    let (_, row) = best?;
    let mut to = row.first()?.addr;
    let mut moves = Vec::new();
    for block in row.iter().filter(|e| e.kind == Kind::Movable) {
        moves.push(Move {
            src: block.addr,
            dst: to,
            bytes: block.bytes,
        });
        to += block.bytes;
    }
    Some((in_order(moves, &[])?, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::layout::extents_from;
    use crate::device::sim::Rng;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn a_batch_takes_the_time_of_its_launches_its_bytes_and_what_it_passes_over() {
        let row = vec![mv(100, 0, 30), mv(200, 40, 50), mv(VOID + 250, 90, 7)];
        let far = vec![mv(100, 0, 30), mv(VOID + 131, 30, 7)];
        let slide = |moves: &[Move]| Batch::Slide {
            upward: false,
            moves: moves.to_vec(),
        };
        let pieces = vec![Batch::Disjoint(row.clone()), slide(&row), slide(&far)];
        let circle = Batch::Circle {
            moves: far.clone(),
            pieces: pieces.clone(),
        };
        let figures = |batch: &Batch| (batch.launches(), batch.bytes(), batch.passed());
        let of_all = pieces.iter().map(figures).collect::<Vec<_>>();
        assert_eq!(of_all, [(1, 87, 0), (1, 87, 70 + VOID), (1, 37, 0)]);
        assert_eq!(figures(&circle), (3, 211, 0));
        let model = CostModel {
            launch_ns: 1000.0,
            bytes_per_ns: 0.5,
            passed_bytes_per_ns: 0.25,
            ..CostModel::default()
        };
        assert_eq!(model.nanos(&pieces[..1]), 1000.0 + 174.0);
        assert_eq!(model.nanos(&[slide(&row[..2])]), 1000.0 + 160.0 + 280.0);
        assert_eq!(model.nanos(&[pieces[0].clone(), circle]), 1174.0 + 3422.0);
        assert_eq!(model.nanos(&[]), 0.0);
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
        let layout = Layout::from_extents(all).expect("ascends");
        let seen: Vec<Vec<u64>> = (stretches_of(&layout).iter())
            .map(|stretch| stretch.iter().map(|e| e.addr).collect())
            .collect();
        assert_eq!(seen, [vec![0, 10], vec![40], vec![60, 70], vec![100]]);
    }

    #[test]
    fn a_block_that_was_parked_has_one_way_from_first_to_last() {
        let batches = [mv(0, 100, 10), mv(50, 0, 10), mv(100, 50, 10)];
        let batches = batches.map(|m| Batch::Disjoint(vec![m]));
        let mut ways = whole_ways(&batches);
        ways.sort_unstable_by_key(|m| m.src);
        assert_eq!(ways, [mv(0, 50, 10), mv(50, 0, 10)]);
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
            for stretch in stretches_of(&layout) {
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
            let found = slide_one_stretch(&layout, bytes);
            assert_eq!(found.is_some(), cheapest.is_some(), "{bytes} of {layout:?}");
            let Some((batches, hole)) = found else {
                continue;
            };
            let moved: u64 = batches.iter().map(Batch::bytes).sum();
            // Of a row that begins with blocks those stay.
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
        let slid = |bytes| slide_one_stretch(&layout, bytes).expect("there is as much");
        let row = |src, bytes| mv(src, src - 10, bytes);
        let moves = |batches: Vec<Batch>| batches.iter().flat_map(|b| b.moves().to_vec()).collect();
        let (batches, hole): (Vec<Move>, u64) = (moves(slid(35).0), slid(35).1);
        assert_eq!((batches, hole), (vec![row(110, 30)], 130));
        let (batches, hole) = (moves(slid(55).0), slid(55).1);
        assert_eq!((batches, hole), (vec![mv(20, 0, 80), mv(110, 80, 30)], 110));
    }
}
