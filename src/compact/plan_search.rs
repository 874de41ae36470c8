//! The search behind a plan for one hole; `plan.rs` says what it searches.

use std::collections::BTreeMap;

use super::layout::{Kind, Layout};
use super::plan::{Batch, Move};
use super::plan_order::in_order;
use super::plan_pack::pack;

/// Layouts of at most this many live blocks that may move are searched whole.
const WHOLE: usize = 160;
/// Of larger ones: around this many of the largest holes,
const SEEDS: usize = 24;
/// this many extents to either side,
const REACH: usize = 24;
/// and this many of the largest holes elsewhere to go to.
const BINS: usize = 48;
/// Most blocks lifted beyond those in the window.
const MOST_LIFTED: usize = 8;
/// Steps of one attempt to pack blocks into gaps.
const PACK_STEPS: usize = 1000;
/// The weight of the cost that a layout bodes for later requests against the cost of this plan.
const FORESIGHT: f64 = 0.1;

/// A live block that may move.
#[derive(Debug, Clone, Copy)]
struct Block {
    addr: u64,
    bytes: u64,
}

/// A run of blocks with nothing fixed or unmapped between them.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    begin: u64,
    end: u64,
    first: usize,
    last: usize,
}

/// The part of a layout that a search looks at. A stretch without blocks is a place to go.
#[derive(Debug, Clone, Default)]
pub(super) struct Stretches {
    stretches: Vec<Stretch>,
    blocks: Vec<Block>,
    holes: Vec<(u64, u64)>,
}

impl Stretches {
    /// The whole layout, if it is small.
    pub(super) fn whole(layout: &Layout) -> Option<Self> {
        if layout.movable_blocks() > WHOLE {
            return None;
        }
        let mut all = Self::default();
        for extent in layout.extents().filter(|e| e.kind != Kind::Fixed) {
            all.push(extent.addr, extent.bytes, extent.kind);
        }
        Some(all)
    }

    /// The neighbourhoods of the largest holes, and the tightest holes for what is in them.
    pub(super) fn near_holes(layout: &Layout, bytes: u64) -> Self {
        let mut near = BTreeMap::new();
        for seed in layout.largest_holes().take(SEEDS) {
            near.insert(seed.addr, seed);
            let mut span = seed.bytes;
            let mut edge = seed.addr;
            for e in layout.below(seed.addr).take(REACH) {
                if e.kind == Kind::Fixed || e.end() != edge || span > 4 * bytes {
                    break;
                }
                (edge, span) = (e.addr, span + e.bytes);
                near.insert(e.addr, e);
            }
            (edge, span) = (seed.end(), seed.bytes);
            for e in layout.from(seed.end()).take(REACH) {
                if e.kind == Kind::Fixed || e.addr != edge || span > 4 * bytes {
                    break;
                }
                (edge, span) = (e.end(), span + e.bytes);
                near.insert(e.addr, e);
            }
        }
        let blocks: Vec<u64> = near
            .values()
            .filter(|e| e.kind == Kind::Movable)
            .map(|e| e.bytes)
            .collect();
        for size in blocks {
            near.extend(layout.holes_of(size).take(2).map(|e| (e.addr, e)));
        }
        near.extend(layout.largest_holes().take(BINS).map(|e| (e.addr, e)));
        let mut all = Self::default();
        for extent in near.values() {
            all.push(extent.addr, extent.bytes, extent.kind);
        }
        all
    }

    fn push(&mut self, addr: u64, bytes: u64, kind: Kind) {
        match self.stretches.last_mut().filter(|s| s.end == addr) {
            Some(stretch) => stretch.end += bytes,
            None => {
                let first = self.blocks.len();
                self.stretches.push(Stretch {
                    begin: addr,
                    end: addr + bytes,
                    first,
                    last: first,
                });
            }
        }
        if kind == Kind::Hole {
            self.holes.push((addr, bytes));
        } else {
            self.blocks.push(Block { addr, bytes });
            if let Some(stretch) = self.stretches.last_mut() {
                stretch.last = self.blocks.len();
            }
        }
    }

    fn free(&self) -> u64 {
        let mapped: u64 = self.stretches.iter().map(|s| s.end - s.begin).sum();
        mapped - self.blocks.iter().map(|b| b.bytes).sum::<u64>()
    }
}

/// The blocks `first..last` of one stretch, all lifted; the gap they leave takes the hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    live: u64,
    first: usize,
    last: usize,
    stretch: usize,
}

/// A gap between blocks that stay.
#[derive(Debug, Clone, Copy)]
struct Gap {
    begin: u64,
    room: u64,
}

pub(super) struct Found {
    pub(super) batches: Vec<Batch>,
    pub(super) hole: u64,
    score: f64,
}

pub(super) struct Search<'a> {
    of: &'a Stretches,
    bytes: u64,
    budget: usize,
    left: usize,
    deepest: usize,
    /// Sizes lately asked for that could be served at all, and how often.
    recent: Vec<(u64, u32)>,
    lifted: Vec<usize>,
    gaps: Vec<Gap>,
    items: Vec<usize>,
    best: Option<Found>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        of: &'a Stretches,
        bytes: u64,
        budget: usize,
        recent: impl Iterator<Item = u64>,
    ) -> Self {
        let mut sizes: BTreeMap<u64, u32> = BTreeMap::new();
        let free = of.free();
        for size in recent.filter(|&size| size <= free.saturating_sub(bytes)) {
            *sizes.entry(size).or_default() += 1;
        }
        Self {
            of,
            bytes,
            budget,
            left: 0,
            deepest: 0,
            recent: sizes.into_iter().collect(),
            lifted: Vec::new(),
            gaps: Vec::new(),
            items: Vec::new(),
            best: None,
        }
    }

    /// The cheapest plan within the budget.
    pub(super) fn run(mut self) -> Option<Found> {
        let windows = self.windows();
        for deepest in 0..=MOST_LIFTED {
            self.deepest = deepest;
            self.left = self.budget;
            let before = self.bound();
            for window in &windows {
                if window.live as f64 >= self.bound() || self.left == 0 {
                    break;
                }
                self.descend(*window, window.live, 0);
            }
            // Whatever was lifted in vain at this depth is lifted again at the next.
            let exhausted =
                self.left > 0 && deepest > 0 && self.best.is_some() && before == self.bound();
            if self.of.blocks.len() > WHOLE || (exhausted && deepest >= 4) {
                break;
            }
        }
        self.best
    }

    fn bound(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.score)
    }

    /// Every window wide enough that is not wider than it needs to be by more than its edges, the
    /// cheapest first.
    fn windows(&self) -> Vec<Window> {
        let mut windows = Vec::new();
        for (index, stretch) in self.of.stretches.iter().enumerate() {
            for first in stretch.first..=stretch.last {
                let mut live = 0;
                for last in first..=stretch.last {
                    if self.gap_begin(stretch, last) - self.gap_end(stretch, first) >= self.bytes {
                        windows.push(Window {
                            live,
                            first,
                            last,
                            stretch: index,
                        });
                    }
                    live += if last < stretch.last {
                        self.of.blocks[last].bytes
                    } else {
                        0
                    };
                }
            }
        }
        windows.sort_unstable();
        windows
    }

    /// Where the block before `index` ends: the gap that opens once blocks from `index` on are lifted.
    fn gap_end(&self, stretch: &Stretch, index: usize) -> u64 {
        if index == stretch.first {
            stretch.begin
        } else {
            self.of.blocks[index - 1].addr + self.of.blocks[index - 1].bytes
        }
    }

    /// Where block `index` begins, or the stretch ends.
    fn gap_begin(&self, stretch: &Stretch, index: usize) -> u64 {
        if index == stretch.last {
            stretch.end
        } else {
            self.of.blocks[index].addr
        }
    }

    /// Tries the window with the blocks lifted so far, then with each further block.
    fn descend(&mut self, window: Window, cost: u64, from: usize) {
        if self.left == 0 || cost as f64 >= self.bound() {
            return;
        }
        self.left -= 1;
        self.attempt(window);
        if self.lifted.len() == self.deepest {
            return;
        }
        let stretch = self.of.stretches[window.stretch];
        for block in from..self.of.blocks.len() {
            let inside = block >= window.first && block < window.last;
            // Lifting the window's own neighbour is a wider window, which has its own turn.
            let beside = (block + 1 == window.first && block >= stretch.first)
                || (block == window.last && block < stretch.last);
            let deeper = cost + self.of.blocks[block].bytes;
            if inside || beside || deeper as f64 >= self.bound() {
                continue;
            }
            self.lifted.push(block);
            self.descend(window, deeper, block + 1);
            self.lifted.pop();
        }
    }

    /// Packs what is lifted into the gaps, and keeps the outcome if it is the best so far.
    fn attempt(&mut self, window: Window) {
        let Some(hole_gap) = self.open_gaps(window) else {
            return;
        };
        self.gaps[hole_gap].room -= self.bytes;
        let blocks = &self.of.blocks;
        self.items
            .sort_unstable_by_key(|&i| std::cmp::Reverse(blocks[i].bytes));
        let sizes: Vec<u64> = self.items.iter().map(|&i| blocks[i].bytes).collect();
        let mut rooms: Vec<u64> = self.gaps.iter().map(|g| g.room).collect();
        let mut chosen = Vec::with_capacity(sizes.len());
        let total = sizes.iter().sum();
        if !pack(&sizes, total, &mut rooms, &mut chosen, &mut { PACK_STEPS }) {
            return;
        }
        for hole_first in [true, false] {
            self.settle(hole_gap, hole_first, &chosen);
        }
    }

    /// Fills `gaps` with the gaps between blocks that stay and `items` with the blocks that do not;
    /// answers which gap the window is.
    fn open_gaps(&mut self, window: Window) -> Option<usize> {
        self.gaps.clear();
        self.items.clear();
        let mut hole_gap = None;
        for (index, stretch) in self.of.stretches.iter().enumerate() {
            let mut begin = stretch.begin;
            for block in stretch.first..=stretch.last {
                let ends = block == stretch.last;
                let lifted = !ends
                    && ((block >= window.first && block < window.last)
                        || self.lifted.contains(&block));
                if lifted {
                    self.items.push(block);
                    continue;
                }
                let end = if ends {
                    stretch.end
                } else {
                    self.of.blocks[block].addr
                };
                if end > begin {
                    if index == window.stretch && block == window.last {
                        hole_gap = Some(self.gaps.len());
                    }
                    self.gaps.push(Gap {
                        begin,
                        room: end - begin,
                    });
                }
                if !ends {
                    begin = end + self.of.blocks[block].bytes;
                }
            }
        }
        hole_gap
    }

    /// Turns a packing into moves, with the hole at the lower or the upper end of its gap.
    fn settle(&mut self, hole_gap: usize, hole_first: bool, chosen: &[usize]) {
        let mut next: Vec<u64> = self.gaps.iter().map(|g| g.begin).collect();
        let hole = if hole_first {
            next[hole_gap]
        } else {
            next[hole_gap] + self.gaps[hole_gap].room
        };
        if hole_first {
            next[hole_gap] += self.bytes;
        }
        let mut moves = Vec::with_capacity(chosen.len());
        for (&item, &gap) in self.items.iter().zip(chosen) {
            let block = self.of.blocks[item];
            if block.addr != next[gap] {
                moves.push(Move {
                    src: block.addr,
                    dst: next[gap],
                    bytes: block.bytes,
                });
            }
            next[gap] += block.bytes;
        }
        let cost = moves.iter().map(|m| m.bytes).sum::<u64>() as f64;
        if cost >= self.bound() {
            return;
        }
        let bodes = FORESIGHT * self.bodes(&moves, hole);
        if cost + bodes >= self.bound() {
            return;
        }
        let Some(batches) = in_order(moves, &self.of.holes) else {
            return;
        };
        // With what is moved twice to untie circles.
        let score = batches.iter().map(Batch::bytes).sum::<u64>() as f64 + bodes;
        if score < self.bound() {
            self.best = Some(Found {
                batches,
                hole,
                score,
            });
        }
    }

    /// The placing of the hole's bytes without a move that bodes best.
    pub(super) fn place(self) -> Option<u64> {
        let mut best: Option<(f64, u64, u64)> = None;
        for stretch in &self.of.stretches {
            for block in stretch.first..=stretch.last {
                let (begin, end) = (self.gap_end(stretch, block), self.gap_begin(stretch, block));
                if end - begin < self.bytes {
                    continue;
                }
                for at in [begin, end - self.bytes] {
                    let candidate = (self.bodes(&[], at), end - begin, at);
                    if best.is_none_or(|best| candidate < best) {
                        best = Some(candidate);
                    }
                }
            }
        }
        best.map(|(_, _, at)| at)
    }

    /// Mean bytes to move for a request of a size lately asked for, once `moves` are made and the
    /// hole is taken: the live bytes in the cheapest window, nothing if a hole fits.
    fn bodes(&self, moves: &[Move], hole: u64) -> f64 {
        if self.recent.is_empty() {
            return 0.0;
        }
        let mut after: Vec<Block> = self.of.blocks.clone();
        for m in moves {
            if let Ok(at) = self.of.blocks.binary_search_by_key(&m.src, |b| b.addr) {
                after[at].addr = m.dst;
            }
        }
        after.push(Block {
            addr: hole,
            bytes: self.bytes,
        });
        after.sort_unstable_by_key(|b| b.addr);
        let (mut sum, mut asked) = (0.0, 0.0);
        for &(size, times) in &self.recent {
            asked += f64::from(times);
            sum += f64::from(times) * self.cheapest_window(&after, size) as f64;
        }
        sum / asked
    }

    fn cheapest_window(&self, blocks: &[Block], size: u64) -> u64 {
        let mut cheapest = u64::MAX;
        let mut from = 0;
        for stretch in &self.of.stretches {
            let to = from + blocks[from..].partition_point(|b| b.addr < stretch.end);
            let here = &blocks[from..to];
            from = to;
            let begins = |i: usize| here.get(i).map_or(stretch.end, |b| b.addr);
            let (mut last, mut live, mut ends) = (0, 0, stretch.begin);
            for first in 0..=here.len() {
                if last < first {
                    (last, live) = (first, 0);
                }
                while last < here.len() && begins(last) - ends < size {
                    live += here[last].bytes;
                    last += 1;
                }
                if begins(last) - ends >= size {
                    cheapest = cheapest.min(live);
                }
                if let Some(block) = here.get(first) {
                    ends = block.addr + block.bytes;
                    live -= if last > first { block.bytes } else { 0 };
                }
            }
            if cheapest == 0 {
                return 0;
            }
        }
        if cheapest == u64::MAX { 0 } else { cheapest }
    }
}
