//! The layout after a plan's moves.

use super::batch::Batch;
use super::layout::{Kind, Layout};
use super::ranges::difference;
use super::ways::Ways;

/// Bytes of the largest hole after `batches`.
///
/// Looks only at extents that the moves touch: every other hole stays as it is.
pub(super) fn largest_hole_after(layout: &Layout, batches: &[Batch]) -> u64 {
    let mut ways = Ways::default();
    batches.iter().for_each(|batch| ways.add(batch.moves()));
    let ways = ways.by_origin();
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
