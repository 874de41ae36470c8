//! The layout after a plan's moves.

use std::collections::HashMap;

use super::batch::{Batch, Move};
use super::layout::{Kind, Layout};

/// Bytes of the largest hole after `batches`.
///
/// Looks only at extents that the moves touch: every other hole stays as it is.
pub(super) fn largest_hole_after(layout: &Layout, batches: &[Batch]) -> u64 {
    let ways = whole_ways(batches);
    let mut changes: Vec<(u64, u64, bool)> = ways
        .iter()
        .map(|m| (m.dst, m.dst + m.bytes, true))
        .collect();
    changes.extend(ways.iter().map(|m| (m.src, m.src + m.bytes, false)));
    if changes.is_empty() {
        return layout.largest_hole();
    }
    // Free ranges around everything touched: the holes there and the sources; the destinations are
    // subtracted below.
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

/// The longest run of `free`, adjacent ranges joined, without any byte of a target. Both ascend.
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
