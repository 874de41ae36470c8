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

/// No limit for [`slide_first`].
pub(super) const ALL: (u64, usize) = (u64::MAX, usize::MAX);

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

/// The moves that slide every block of the `extents` down as far as it goes.
pub(in crate::compact) fn slide_down(extents: &[Extent]) -> Vec<Move> {
    slide_first(extents.iter().copied(), ALL)
}

/// The first of these moves in address order: all, or enough to exceed `most` (bytes, moves) by the last of several.
pub(in crate::compact) fn slide_first(
    extents: impl IntoIterator<Item = Extent>,
    most: (u64, usize),
) -> Vec<Move> {
    let (mut to, mut end, mut sum) = (0, 0, 0);
    let mut moves: Vec<Move> = Vec::new();
    for it in extents {
        to = if it.addr == end { to } else { it.addr };
        end = it.end();
        match it.kind {
            Kind::Hole => continue,
            Kind::Movable if to != it.addr => {
                let (src, dst, bytes) = (it.addr, to, it.bytes);
                moves.push(Move { src, dst, bytes });
                (to, sum) = (to + bytes, sum + bytes);
            }
            Kind::Movable | Kind::Fixed => to = end,
        }
        if moves.len() > 1 && (sum > most.0 || moves.len() > most.1) {
            break;
        }
    }
    moves
}

#[cfg(test)]
pub(in crate::compact) mod tests;
