//! The future cost of a layout: what later requests would cost in it.
//!
//! Recently requested sizes are likely to be requested again. The cost of one request is taken to
//! be the live bytes in its cheapest window, 0 if a hole fits. In addition each hole adds to the
//! cost, as one more piece that will have to be joined.

use std::collections::BTreeMap;

use super::stretches::{Block, Stretches, WHOLE};

/// The weight of later requests' cost against the cost of the plan itself.
const LATER: f64 = 0.1;
/// The cost of each hole, as a fraction of the mean block size.
const HOLE: f64 = 0.1;

pub(super) struct FutureCost {
    /// Recently requested sizes that the free bytes allow, and how often each was requested.
    sizes: Vec<(u64, u32)>,
    /// The number of those requests.
    asked: f64,
}

impl FutureCost {
    /// From the sizes `recent`, except those above `free` bytes.
    pub(super) fn new(recent: impl Iterator<Item = u64>, free: u64) -> Self {
        let mut sizes: BTreeMap<u64, u32> = BTreeMap::new();
        for size in recent.filter(|&size| size <= free) {
            *sizes.entry(size).or_default() += 1;
        }
        Self {
            asked: sizes.values().copied().map(f64::from).sum(),
            sizes: sizes.into_iter().collect(),
        }
    }

    /// Whether there is a prediction for the layout `of`.
    pub(super) fn predicts(&self, of: &Stretches) -> bool {
        !self.sizes.is_empty() || of.blocks.len() <= WHOLE
    }

    /// The future cost of the layout `of`, in bytes, once its blocks are `after`, which ascend;
    /// `None` if it is `most` or more.
    pub(super) fn cost(&self, of: &Stretches, after: &[Block], most: f64) -> Option<f64> {
        let mut cost = 0.0;
        // Among hundreds of holes, one more or less says little, and all of them together would
        // outweigh the cost of the plan.
        if of.blocks.len() <= WHOLE {
            let live: u64 = after.iter().map(|block| block.bytes).sum();
            let mean = live as f64 / after.len().max(1) as f64;
            cost += HOLE * mean * holes(of, after) as f64;
        }
        let mut sum = 0.0;
        for &(size, times) in self.sizes.iter().rev() {
            match cheapest_window(of, after, size) {
                // A hole that takes this size takes all smaller ones too.
                Some(0) => break,
                Some(live) => sum += f64::from(times) * live as f64,
                None => {}
            }
            if cost + LATER * sum / self.asked >= most {
                return None;
            }
        }
        if self.asked > 0.0 {
            cost += LATER * sum / self.asked;
        }
        (cost < most).then_some(cost)
    }
}

fn holes(of: &Stretches, blocks: &[Block]) -> usize {
    let (mut holes, mut from) = (0, 0);
    for stretch in &of.stretches {
        let to = from + blocks[from..].partition_point(|b| b.addr < stretch.end);
        let mut end = stretch.begin;
        for block in &blocks[from..to] {
            holes += usize::from(block.addr != end);
            end = block.addr + block.bytes;
        }
        holes += usize::from(stretch.end != end);
        from = to;
    }
    holes
}

/// The fewest live bytes in a window of `size` bytes; `None` if no stretch is that long.
fn cheapest_window(of: &Stretches, blocks: &[Block], size: u64) -> Option<u64> {
    let mut cheapest = u64::MAX;
    let mut from = 0;
    for stretch in &of.stretches {
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
            break;
        }
    }
    (cheapest != u64::MAX).then_some(cheapest)
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Extent, Kind, Layout, extents_from};
    use super::*;
    use crate::device::sim::Rng;

    /// A random layout of a few extents without adjacent holes, and the stretches in it.
    fn drawn(random: &mut Rng) -> (Layout, Stretches) {
        let (mut extents, mut addr) = (Vec::<Extent>::new(), 0);
        for _ in 0..1 + random.below(12) {
            let kind = [Kind::Hole, Kind::Movable, Kind::Movable, Kind::Fixed];
            let kind = kind[random.below(4) as usize];
            if kind == Kind::Hole && extents.last().is_some_and(|e| e.kind == Kind::Hole) {
                continue;
            }
            let bytes = 256 * (1 + random.below(9));
            extents.push(Extent { addr, bytes, kind });
            addr += bytes;
        }
        let layout = Layout::from_extents(extents).expect("ascends");
        let seen = Stretches::whole(&layout).expect("small");
        (layout, seen)
    }

    #[test]
    fn the_future_cost_is_a_part_of_a_block_for_each_hole_and_a_part_of_what_later_requests_cost() {
        let extents = extents_from(0, "m.m.f.", &[300, 10, 500, 20, 1, 30]);
        let layout = Layout::from_extents(extents).expect("ascends");
        let seen = Stretches::whole(&layout).expect("small");
        let cost = |sizes: &[u64]| {
            let future = FutureCost::new(sizes.iter().copied(), 60);
            let cost = future.cost(&seen, &seen.blocks, f64::INFINITY)?;
            assert_eq!(future.cost(&seen, &seen.blocks, cost), None);
            future.cost(&seen, &seen.blocks, cost.next_up())
        };
        let holes = HOLE * 400.0 * 3.0;
        assert_eq!(cost(&[]), Some(holes));
        // A request for 30 fits. One for 31 displaces a block. One for 61 exceeds the free bytes
        // and is ignored.
        assert_eq!(cost(&[30, 61]), Some(holes));
        assert_eq!(cost(&[31]), Some(holes + LATER * 300.0));
        let often = cost(&[31, 30, 30, 31, 31]);
        assert_eq!(often, Some(holes + LATER * 900.0 / 5.0));
        let none = FutureCost::new([].into_iter(), 9);
        assert_eq!(none.cost(&seen, &[], 1.0), Some(0.0));
    }

    #[test]
    fn the_holes_are_those_of_the_layout() {
        let mut random = Rng::new(1);
        for _ in 0..2000 {
            let (layout, seen) = drawn(&mut random);
            let there = layout.extents().filter(|e| e.kind == Kind::Hole).count();
            assert_eq!(holes(&seen, &seen.blocks), there, "{layout:?}");
        }
    }

    /// The fewest live bytes in any run of extents without a fixed one that is long enough.
    fn fewest(layout: &Layout, size: u64) -> Option<u64> {
        let extents: Vec<Extent> = layout.extents().collect();
        let runs = (0..extents.len()).flat_map(|first| {
            let ends = first + 1..=extents.len();
            ends.map(move |end| (first, end))
        });
        let long = runs.filter_map(|(first, end)| {
            let run = &extents[first..end];
            let of = |kind| run.iter().filter(move |e| e.kind == kind);
            let bytes: u64 = run.iter().map(|e| e.bytes).sum();
            let fits = of(Kind::Fixed).count() == 0 && bytes >= size;
            fits.then(|| of(Kind::Movable).map(|e| e.bytes).sum())
        });
        long.min()
    }

    #[test]
    fn the_cheapest_window_is_the_one_of_fewest_live_bytes() {
        let mut random = Rng::new(2);
        for _ in 0..2000 {
            let (layout, seen) = drawn(&mut random);
            let size = 256 * (1 + random.below(30));
            let cheapest = cheapest_window(&seen, &seen.blocks, size);
            assert_eq!(cheapest, fewest(&layout, size), "{size} in {layout:?}");
        }
    }
}
