//! The layout after a plan's moves.

use std::collections::HashMap;

use super::batch::{Batch, Move};
use super::layout::{Kind, Layout};
use super::ranges::difference;

/// Bytes of the largest hole after `batches`.
///
/// Looks only at extents that the moves touch: every other hole stays as it is.
pub(super) fn largest_hole_after(layout: &Layout, batches: &[Batch]) -> u64 {
    let ways = whole_ways(batches);
    let sources = ways.iter().map(|m| (m.src, m.src + m.bytes));
    let targets: Vec<(u64, u64)> = ways.iter().map(|m| (m.dst, m.dst + m.bytes)).collect();
    // Free ranges around everything touched: the holes there and the sources; the destinations are
    // subtracted below.
    let mut free: Vec<(u64, u64)> = sources.clone().collect();
    for (begin, end) in sources.chain(targets.iter().copied()) {
        let near = layout.from(begin).take_while(|e| e.addr <= end);
        let holes = near
            .chain(layout.below(begin).take(1))
            .filter(|e| e.kind == Kind::Hole);
        free.extend(holes.map(|e| (e.addr, e.end())));
    }
    free.sort_unstable();
    let mut holes = layout.largest_holes();
    let untouched = holes.find(|hole| free.binary_search(&(hole.addr, hole.end())).is_err());
    let touched = difference(free, targets);
    let touched = touched.iter().map(|(begin, end)| end - begin);
    touched
        .chain(untouched.map(|hole| hole.bytes))
        .max()
        .unwrap_or(0)
}

/// One move per block, from its first to its last address; intermediate places are left out.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn a_block_that_was_parked_has_one_way_from_first_to_last() {
        let batches = [mv(0, 100, 10), mv(50, 0, 10), mv(100, 50, 10)];
        let batches = batches.map(|m| Batch::Disjoint(vec![m]));
        let mut ways = whole_ways(&batches);
        ways.sort_unstable_by_key(|m| m.src);
        assert_eq!(ways, [mv(0, 50, 10), mv(50, 0, 10)]);
    }
}
