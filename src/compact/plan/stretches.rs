//! The part of a layout that a search looks at.

use std::collections::BTreeMap;

use super::layout::{Kind, Layout};

/// Layouts of at most this many live movable blocks are searched completely,
pub(super) const WHOLE: usize = 160;
/// unless they have more holes than this: each set of blocks is tried in all of them.
const WHOLE_HOLES: usize = 4 * WHOLE;
/// In larger ones the search looks at this many of the largest holes,
const SEEDS: usize = 24;
/// at this many extents on either side of each,
const REACH: usize = 24;
/// and at this many of the largest holes elsewhere, as destinations.
const BINS: usize = 48;

/// A live block that may move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) bytes: u64,
}

/// A run of extents with nothing fixed or unmapped in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Its blocks are those from this index,
    pub(super) first: usize,
    /// up to and excluding this one.
    pub(super) last: usize,
}

/// The part of a layout that a search looks at. A stretch without blocks is only a destination.
#[derive(Debug, Clone, Default)]
pub(super) struct Stretches {
    pub(super) stretches: Vec<Stretch>,
    pub(super) blocks: Vec<Block>,
    pub(super) holes: Vec<(u64, u64)>,
}

impl Stretches {
    /// The whole layout, if it is small.
    pub(super) fn whole(layout: &Layout) -> Option<Self> {
        let many = layout.largest_holes().nth(WHOLE_HOLES).is_some();
        if layout.movable_blocks() > WHOLE || many {
            return None;
        }
        let mut all = Self::default();
        for extent in layout.extents().filter(|e| e.kind != Kind::Fixed) {
            all.push(extent.addr, extent.bytes, extent.kind);
        }
        Some(all)
    }

    /// The neighbourhoods of the largest holes, and the tightest holes for the blocks in them.
    pub(super) fn near_holes(layout: &Layout, bytes: u64) -> Self {
        let mut near = BTreeMap::new();
        for seed in layout.largest_holes().take(SEEDS) {
            near.insert(seed.addr, seed);
            let mut span = seed.bytes;
            let mut edge = seed.addr;
            for e in layout.below(seed.addr).take(REACH) {
                if e.kind == Kind::Fixed || e.end() != edge || span > bytes.saturating_mul(4) {
                    break;
                }
                (edge, span) = (e.addr, span + e.bytes);
                near.insert(e.addr, e);
            }
            (edge, span) = (seed.end(), seed.bytes);
            for e in layout.from(seed.end()).take(REACH) {
                if e.kind == Kind::Fixed || e.addr != edge || span > bytes.saturating_mul(4) {
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

    /// Bytes of its holes.
    pub(super) fn free(&self) -> u64 {
        let mapped: u64 = self.stretches.iter().map(|s| s.end - s.begin).sum();
        mapped - self.blocks.iter().map(|b| b.bytes).sum::<u64>()
    }

    /// The end of the block before `index`: where the gap begins if blocks from `index` on are lifted.
    pub(super) fn gap_end(&self, stretch: &Stretch, index: usize) -> u64 {
        if index == stretch.first {
            stretch.begin
        } else {
            self.blocks[index - 1].addr + self.blocks[index - 1].bytes
        }
    }

    /// The start of block `index`, or the end of the stretch.
    pub(super) fn gap_begin(&self, stretch: &Stretch, index: usize) -> u64 {
        if index == stretch.last {
            stretch.end
        } else {
            self.blocks[index].addr
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Extent, extents_from};
    use super::super::{Goal, Planner};
    use super::*;

    #[test]
    fn a_layout_is_seen_whole_up_to_so_many_blocks() {
        for blocks in [1, WHOLE, WHOLE + 1] {
            let kinds = "m".repeat(blocks) + "f";
            let extents = extents_from(0, &kinds, &vec![10; blocks + 1]);
            let whole = Stretches::whole(&Layout::from_extents(extents).expect("ascends"));
            let seen = whole.map(|it| it.blocks.len());
            assert_eq!(seen, (blocks <= WHOLE).then_some(blocks));
        }
    }

    #[test]
    fn a_few_blocks_among_holes_by_the_ten_thousand_are_no_longer_to_search() {
        let blocks = 150;
        let kinds = "m.".repeat(blocks) + &"f.".repeat(60_000);
        let sizes = (0..kinds.len() as u64)
            .map(|at| 300 + at % 7)
            .collect::<Vec<_>>();
        let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
        let mut planner = Planner::new();
        planner.note_request(7000);
        let began = std::time::Instant::now();
        let tightest = layout.holes_of(302).next().map(|hole| hole.addr);
        assert_eq!(planner.place(&layout, 302), tightest);
        assert!(planner.plan(&layout, &Goal::Hole(7000)).is_some());
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn neighbours_of_a_hole_are_looked_at_up_to_four_times_the_request() {
        let seen = |pattern: &str, bytes| {
            let sizes = vec![10; pattern.len()];
            let layout = Layout::from_extents(extents_from(0, pattern, &sizes)).expect("ascends");
            Stretches::near_holes(&layout, bytes).blocks.len()
        };
        for pattern in [".mmmmmm", "mmmmmm."] {
            assert_eq!(seen(pattern, 2), 0, "the hole is five times that");
            assert_eq!([5, 10].map(|bytes| seen(pattern, bytes)), [2, 4]);
            assert_eq!([100, u64::MAX].map(|bytes| seen(pattern, bytes)), [6; 2]);
        }
    }

    #[test]
    fn neighbours_of_a_hole_end_at_fixed_blocks_and_where_nothing_is_mapped() {
        let blocks = |extents: Vec<Extent>| {
            let layout = Layout::from_extents(extents).expect("ascends");
            let seen = Stretches::near_holes(&layout, 100);
            seen.blocks
                .iter()
                .map(|block| block.addr)
                .collect::<Vec<_>>()
        };
        let sizes = [10; 9];
        assert_eq!(
            blocks(extents_from(0, "mfmm.mmfm", &sizes)),
            [20, 30, 50, 60]
        );
        let mut apart = extents_from(0, "mmm.mmm", &sizes);
        for extent in &mut apart {
            // Nothing is mapped between the first two stretches and between the last two.
            extent.addr +=
                if extent.addr >= 10 { 5 } else { 0 } + if extent.addr >= 60 { 5 } else { 0 };
        }
        assert_eq!(blocks(apart), [15, 25, 45, 55]);
    }

    #[test]
    fn what_is_beside_a_hole_may_go_to_the_tightest_holes_for_it() {
        let kinds = "m.f".to_string() + &".f".repeat(60);
        let rooms = (0..60).flat_map(|at| [20 + at, 1]);
        let sizes: Vec<u64> = [30, 200, 1].into_iter().chain(rooms).collect();
        let layout = Layout::from_extents(extents_from(0, &kinds, &sizes)).expect("ascends");
        let seen = Stretches::near_holes(&layout, 100);
        let mut rooms: Vec<u64> = seen.holes.iter().map(|hole| hole.1).collect();
        rooms.sort_unstable();
        let largest: Vec<u64> = (81 - BINS as u64..80).collect();
        let said = [vec![30, 31], largest, vec![200]].concat();
        assert_eq!(rooms, said);
    }
}
