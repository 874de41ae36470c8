//! Rows: extents with nothing fixed or unmapped in between, which can slide down together.

use super::batch::Move;
use super::layout::{Extent, Kind};

/// Adjacent extents `first..=last`, by index, and the bytes of their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::compact) struct Row {
    pub(in crate::compact) first: usize,
    pub(in crate::compact) last: usize,
    pub(in crate::compact) live: u64,
}

/// The longest rows, in address order.
pub(in crate::compact) fn stretches(extents: &[Extent]) -> impl Iterator<Item = &[Extent]> {
    let moves = |extent: &Extent| extent.kind != Kind::Fixed;
    let all = extents.chunk_by(move |a, b| a.end() == b.addr && moves(a) && moves(b));
    all.filter(move |stretch| moves(&stretch[0]))
}

/// The lowest row with `bytes` in holes and at most `cheap` in blocks; if there is none, the row with the
/// fewest bytes in blocks.
pub(in crate::compact) fn row(extents: &[Extent], bytes: u64, cheap: u64) -> Option<Row> {
    let mut best: Option<Row> = None;
    let (mut first, mut free, mut live, mut end) = (0, 0, 0, 0);
    for (last, extent) in extents.iter().enumerate() {
        if extent.kind == Kind::Fixed || extent.addr != end {
            (first, free, live) = (last + usize::from(extent.kind == Kind::Fixed), 0, 0);
        }
        end = extent.end();
        match extent.kind {
            Kind::Hole => free += extent.bytes,
            Kind::Movable => live += extent.bytes,
            Kind::Fixed => continue,
        }
        while first <= last && (extents[first].kind == Kind::Movable || free >= bytes) {
            if extents[first].kind == Kind::Movable {
                live -= extents[first].bytes;
            } else {
                if best.is_none_or(|best| live < best.live) {
                    best = Some(Row { first, last, live });
                }
                if live <= cheap {
                    return best;
                }
                free -= extents[first].bytes;
            }
            first += 1;
        }
    }
    best
}

/// The moves that slide every block of the adjacent `extents` down as far as it goes.
pub(in crate::compact) fn slide_down(extents: &[Extent]) -> Vec<Move> {
    let mut to = extents.first().map_or(0, |e| e.addr);
    let blocks = extents.iter().filter(|e| e.kind == Kind::Movable);
    let slid = blocks.map(|block| {
        to += block.bytes;
        Move {
            src: block.addr,
            dst: to - block.bytes,
            bytes: block.bytes,
        }
    });
    slid.filter(|m| m.src != m.dst).collect()
}

#[cfg(test)]
pub(in crate::compact) mod tests;
