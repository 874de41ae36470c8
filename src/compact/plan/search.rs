//! The search for the plan of one hole; the module `plan` describes the method.

use super::batch::{Batch, Move};
use super::future_cost::FutureCost;
use super::order::in_order;
use super::pack::{least_waste, pack, sums};
use super::stretches::{Block, Stretch, Stretches, WHOLE};

/// Most blocks lifted in addition to those in the window.
const MOST_LIFTED: usize = 8;
/// With this many additional blocks lifted, a search that has a plan ends unless the last depth
/// improved it.
const ENOUGH_LIFTED: usize = 4;
/// With more lifted blocks than this, the exact waste of a gap is not computed.
const MOST_SUMMED: usize = 10;
/// Steps of one attempt at packing blocks into gaps.
const PACK_STEPS: usize = 1000;

/// The blocks `first..last` of one stretch, all lifted; their gap takes the hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    live: u64,
    first: usize,
    last: usize,
    stretch: usize,
}

/// A gap between two blocks that stay.
#[derive(Debug, Clone, Copy)]
struct Gap {
    begin: u64,
    room: u64,
    /// The blocks of its stretch that stay directly below and above it.
    beside: [Option<usize>; 2],
}

/// The decision on a block in the current branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Stays,
    Lifted,
}

/// The result of one set of lifted blocks.
enum Outcome {
    /// A plan was found, or none from here can be better.
    Settled,
    /// At least one of these blocks has to be lifted as well.
    Lacking(Vec<usize>),
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
    future_cost: FutureCost,
    fates: Vec<Fate>,
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
        Self {
            of,
            bytes,
            budget,
            left: 0,
            future_cost: FutureCost::new(recent, of.free().saturating_sub(bytes)),
            fates: vec![Fate::Open; of.blocks.len()],
            gaps: Vec::new(),
            items: Vec::new(),
            best: None,
        }
    }

    /// Returns the cheapest plan found within the budget.
    pub(super) fn run(mut self) -> Option<Found> {
        if self.of.free() < self.bytes {
            return None;
        }
        self.slide();
        let windows = self.windows();
        for deepest in 0..=MOST_LIFTED {
            self.left = self.budget;
            let before = self.bound();
            for window in &windows {
                if window.live as f64 >= self.bound() || self.left == 0 {
                    break;
                }
                self.open_window(*window, deepest);
            }
            // The next depth lifts the same blocks again that this depth lifted without result.
            let in_vain = self.left > 0 && self.best.is_some() && before == self.bound();
            if self.of.blocks.len() > WHOLE || (in_vain && deepest >= ENOUGH_LIFTED) {
                break;
            }
        }
        self.best
    }

    fn bound(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |best| best.score)
    }

    /// Offers the cheapest row of neighbours with enough free bytes between them, slid together in
    /// either direction.
    fn slide(&mut self) {
        let mut best: Option<(u64, Stretch, usize, usize)> = None;
        for stretch in &self.of.stretches {
            let (mut first, mut free, mut live) = (stretch.first, 0, 0);
            for last in stretch.first..=stretch.last {
                free += self.of.gap_begin(stretch, last) - self.of.gap_end(stretch, last);
                while first < last {
                    let below = self.of.gap_begin(stretch, first) - self.of.gap_end(stretch, first);
                    if free - below < self.bytes {
                        break;
                    }
                    free -= below;
                    live -= self.of.blocks[first].bytes;
                    first += 1;
                }
                if free >= self.bytes && best.is_none_or(|(cost, ..)| live < cost) {
                    best = Some((live, *stretch, first, last));
                }
                live += match last < stretch.last {
                    true => self.of.blocks[last].bytes,
                    false => 0,
                };
            }
        }
        let Some((_, stretch, first, last)) = best else {
            return;
        };
        let row = &self.of.blocks[first..last];
        let mut to = self.of.gap_end(&stretch, first);
        let mut down = Vec::new();
        for block in row {
            down.push(way(block, to));
            to += block.bytes;
        }
        self.offer(down, to);
        let mut to = self.of.gap_begin(&stretch, last);
        let mut up = Vec::new();
        for block in row.iter().rev() {
            to -= block.bytes;
            up.push(way(block, to));
        }
        self.offer(up, to - self.bytes);
    }

    /// Every window that is wide enough and has fewer live bytes than the best plan moves, the
    /// cheapest first.
    fn windows(&self) -> Vec<Window> {
        let (mut windows, bound) = (Vec::new(), self.bound());
        for (index, stretch) in self.of.stretches.iter().enumerate() {
            for first in stretch.first..=stretch.last {
                let mut live = 0;
                let begin = self.of.gap_end(stretch, first);
                for last in first..=stretch.last {
                    if live as f64 >= bound {
                        break;
                    }
                    if self.of.gap_begin(stretch, last) - begin >= self.bytes {
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

    /// Tries the window with up to `deepest` additional blocks lifted.
    fn open_window(&mut self, window: Window, deepest: usize) {
        let stretch = self.of.stretches[window.stretch];
        self.fates.fill(Fate::Open);
        self.fates[window.first..window.last].fill(Fate::Lifted);
        // With its neighbour lifted too it would be a wider window, which is tried separately.
        if window.first > stretch.first {
            self.fates[window.first - 1] = Fate::Stays;
        }
        if window.last < stretch.last {
            self.fates[window.last] = Fate::Stays;
        }
        self.descend(window, window.live, deepest);
    }

    /// Tries the blocks lifted so far, then each additional block that could make the packing
    /// possible.
    fn descend(&mut self, window: Window, cost: u64, deeper: usize) {
        if self.left == 0 || cost as f64 >= self.bound() {
            return;
        }
        self.left -= 1;
        let Outcome::Lacking(blocks) = self.attempt(window, deeper > 0) else {
            return;
        };
        let mut tried = 0;
        for &block in &blocks {
            if self.left == 0 {
                break;
            }
            self.fates[block] = Fate::Lifted;
            self.descend(window, cost + self.of.blocks[block].bytes, deeper - 1);
            // Sets with this block and later ones have been tried.
            self.fates[block] = Fate::Stays;
            tried += 1;
        }
        for &block in &blocks[..tried] {
            self.fates[block] = Fate::Open;
        }
    }

    /// Packs the lifted blocks into the gaps, and keeps the result if it is the best so far.
    ///
    /// The free bytes beyond the hole are the same for every set of lifted blocks. In a gap that no
    /// subset of the lifted blocks fills exactly, some bytes stay unused. If these exceed the free
    /// bytes, the gap has to grow, or another block has to be lifted that fits into it.
    fn attempt(&mut self, window: Window, deeper: bool) -> Outcome {
        let Some(hole_gap) = self.open_gaps(window) else {
            return Outcome::Settled;
        };
        self.gaps[hole_gap].room -= self.bytes;
        let blocks = &self.of.blocks;
        self.items
            .sort_unstable_by_key(|&i| std::cmp::Reverse(blocks[i].bytes));
        let sizes: Vec<u64> = self.items.iter().map(|&i| blocks[i].bytes).collect();
        let total: u64 = sizes.iter().sum();
        let mut rooms: Vec<u64> = self.gaps.iter().map(|g| g.room).collect();
        let spare = self.of.free() - self.bytes;
        let widest = rooms.iter().copied().max().unwrap_or(0);
        let sums = (sizes.len() <= MOST_SUMMED).then(|| sums(&sizes, widest));
        let least = sizes.last().copied().unwrap_or(u64::MAX);
        let wasted: Vec<u64> = rooms
            .iter()
            .map(|&room| least_waste(room, sums.as_deref(), least))
            .collect();
        if wasted.iter().sum::<u64>() > spare {
            return match deeper {
                true => Outcome::Lacking(self.menders(&wasted, spare)),
                false => Outcome::Settled,
            };
        }
        let mut chosen = Vec::with_capacity(sizes.len());
        if pack(&sizes, total, &mut rooms, &mut chosen, &mut { PACK_STEPS }) {
            self.settle(hole_gap, &chosen);
            return Outcome::Settled;
        }
        let open = |&block: &usize| self.fates[block] == Fate::Open;
        match deeper {
            true => Outcome::Lacking((0..blocks.len()).filter(open).collect()),
            false => Outcome::Settled,
        }
    }

    /// The blocks of which at least one has to be lifted so that no more than `spare` bytes are
    /// wasted. If one gap alone wastes more than that, those that change this gap; otherwise those
    /// that change any of the gaps that waste too much together.
    fn menders(&self, wasted: &[u64], spare: u64) -> Vec<usize> {
        let alone = (0..wasted.len())
            .filter(|&gap| wasted[gap] > spare)
            .min_by_key(|&gap| self.gaps[gap].room);
        let mut gaps: Vec<usize> = (0..wasted.len()).collect();
        match alone {
            Some(gap) => gaps = vec![gap],
            None => {
                gaps.sort_by_key(|&gap| std::cmp::Reverse(wasted[gap]));
                let mut sum = 0;
                let before = |&gap: &usize| {
                    let needed = sum <= spare;
                    sum += wasted[gap];
                    needed
                };
                gaps = gaps.into_iter().take_while(before).collect();
            }
        }
        let mut menders: Vec<usize> = Vec::new();
        for block in gaps.iter().flat_map(|&gap| self.gaps[gap].beside).flatten() {
            if self.fates[block] == Fate::Open && !menders.contains(&block) {
                menders.push(block);
            }
        }
        let beside = menders.len();
        let widest = gaps.iter().map(|&gap| self.gaps[gap].room).max();
        for block in 0..self.of.blocks.len() {
            let goes = Some(self.of.blocks[block].bytes) <= widest;
            if goes && self.fates[block] == Fate::Open && !menders[..beside].contains(&block) {
                menders.push(block);
            }
        }
        menders
    }

    /// Fills `gaps` with the gaps between blocks that stay, and `items` with the lifted blocks.
    /// Returns the index of the window's gap.
    fn open_gaps(&mut self, window: Window) -> Option<usize> {
        self.gaps.clear();
        self.items.clear();
        let mut hole_gap = None;
        for (index, stretch) in self.of.stretches.iter().enumerate() {
            let mut begin = stretch.begin;
            let mut below = None;
            for block in stretch.first..=stretch.last {
                let ends = block == stretch.last;
                if !ends && self.fates[block] == Fate::Lifted {
                    self.items.push(block);
                    continue;
                }
                let end = self.of.gap_begin(stretch, block);
                if end > begin {
                    if index == window.stretch && block == window.last {
                        hole_gap = Some(self.gaps.len());
                    }
                    self.gaps.push(Gap {
                        begin,
                        room: end - begin,
                        beside: [below, (!ends).then_some(block)],
                    });
                }
                if !ends {
                    begin = end + self.of.blocks[block].bytes;
                    below = Some(block);
                }
            }
        }
        hole_gap
    }

    /// Turns a packing into moves, in four variants: the hole at the lower or the upper end of its
    /// gap, and the blocks of a gap in descending or ascending order of size.
    fn settle(&mut self, hole_gap: usize, chosen: &[usize]) {
        let into: Vec<(usize, usize)> = self
            .items
            .iter()
            .copied()
            .zip(chosen.iter().copied())
            .collect();
        let reversed: Vec<(usize, usize)> = into.iter().rev().copied().collect();
        for (into, hole_first) in [
            (&into, true),
            (&into, false),
            (&reversed, true),
            (&reversed, false),
        ] {
            let mut next: Vec<u64> = self.gaps.iter().map(|g| g.begin).collect();
            let hole = if hole_first {
                next[hole_gap]
            } else {
                next[hole_gap] + self.gaps[hole_gap].room
            };
            if hole_first {
                next[hole_gap] += self.bytes;
            }
            let mut moves = Vec::with_capacity(into.len());
            for &(item, gap) in into {
                let block = &self.of.blocks[item];
                moves.push(way(block, next[gap]));
                next[gap] += block.bytes;
            }
            self.offer(moves, hole);
        }
    }

    /// Keeps a plan if it is the best so far.
    fn offer(&mut self, mut moves: Vec<Move>, hole: u64) {
        moves.retain(|m| m.src != m.dst);
        let cost = moves.iter().map(|m| m.bytes).sum::<u64>() as f64;
        if cost >= self.bound() {
            return;
        }
        let Some(future) = self.future_cost(&moves, hole, self.bound() - cost) else {
            return;
        };
        let Some(batches) = in_order(moves, &self.of.holes) else {
            return;
        };
        // Includes the bytes that cycles copy twice.
        let score = batches.iter().map(Batch::bytes).sum::<u64>() as f64 + future;
        if score < self.bound() {
            self.best = Some(Found {
                batches,
                hole,
                score,
            });
        }
    }

    /// The address for a block of the hole's size, without any move, that has the least future
    /// cost.
    pub(super) fn place(self) -> Option<u64> {
        let mut best: Option<(f64, u64, u64)> = None;
        for stretch in &self.of.stretches {
            for block in stretch.first..=stretch.last {
                let begin = self.of.gap_end(stretch, block);
                let end = self.of.gap_begin(stretch, block);
                if end - begin < self.bytes {
                    continue;
                }
                for at in [begin, end - self.bytes] {
                    let future = self.future_cost(&[], at, f64::INFINITY);
                    let candidate = (future.unwrap_or(f64::INFINITY), end - begin, at);
                    if best.is_none_or(|best| candidate < best) {
                        best = Some(candidate);
                    }
                }
            }
        }
        best.map(|(_, _, at)| at)
    }

    /// The future cost of the layout after `moves` and with the hole taken; `None` if it is `most`
    /// or more.
    fn future_cost(&self, moves: &[Move], hole: u64, most: f64) -> Option<f64> {
        if !self.future_cost.predicts(self.of) {
            return (most > 0.0).then_some(0.0);
        }
        let after = self.after(moves, hole);
        self.future_cost.cost(self.of, &after, most)
    }

    /// The blocks after `moves` and with the hole taken, ascending. Merges the blocks that stay
    /// with those at new places, in half the time of sorting them all.
    fn after(&self, moves: &[Move], hole: u64) -> Vec<Block> {
        let mut gone: Vec<u64> = moves.iter().map(|m| m.src).collect();
        gone.sort_unstable();
        let come = moves.iter().map(|m| (m.dst, m.bytes));
        let mut come: Vec<Block> = come
            .chain([(hole, self.bytes)])
            .map(|(addr, bytes)| Block { addr, bytes })
            .collect();
        come.sort_unstable_by_key(|b| b.addr);
        let (mut gone, mut come) = (gone.into_iter().peekable(), come.into_iter().peekable());
        let mut after = Vec::with_capacity(self.of.blocks.len() + 1);
        for block in &self.of.blocks {
            if gone.next_if_eq(&block.addr).is_none() {
                after.extend(std::iter::from_fn(|| come.next_if(|b| b.addr < block.addr)));
                after.push(*block);
            }
        }
        after.extend(come);
        after
    }
}

fn way(block: &Block, to: u64) -> Move {
    Move {
        src: block.addr,
        dst: to,
        bytes: block.bytes,
    }
}

#[cfg(test)]
pub(in crate::compact) mod tests;
