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

#[cfg(test)]
mod tests {
    use super::super::batch::Move;
    use super::super::layout::extents_from;
    use super::*;

    #[test]
    fn a_block_that_goes_leaves_one_hole_with_those_on_either_side() {
        let kinds = [(".mf.", 30), ("m.f.", 30), (".m.f.", 40), ("mmf.", 20)];
        for (kinds, largest) in kinds {
            let sizes: Vec<u64> = kinds
                .chars()
                .map(|kind| if kind == '.' { 10 } else { 20 })
                .collect();
            let mut extents = extents_from(0, kinds, &sizes);
            let last = extents.len() - 1;
            extents[last].bytes = 20;
            let block = extents[kinds.find('m').expect("a block")];
            let way = Move {
                src: block.addr,
                dst: extents[last].addr,
                bytes: 20,
            };
            let layout = Layout::from_extents(extents).expect("ascends");
            let after = largest_hole_after(&layout, &[Batch::Disjoint(vec![way])]);
            assert_eq!(after, largest, "{kinds}");
        }
    }
}
