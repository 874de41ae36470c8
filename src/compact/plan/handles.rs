//! Emptying physical handles, those with the fewest live bytes first, so that their memory can be
//! released.

use super::batch::Move;
use super::layout::{Extent, Kind, Layout};

type Range = (u64, u64);

/// Moves that empty handles of `bytes` bytes together, and the handles they empty.
///
/// Handles with a fixed block in them are left out. Of the others, those with the fewest live bytes
/// are taken, as many as make up `bytes`, or as many as their blocks find space elsewhere.
pub(super) fn empty(layout: &Layout, handles: &[Range], bytes: u64) -> (Vec<Move>, Vec<Range>) {
    let mut handles = handles.to_vec();
    handles.sort_unstable();
    // No handle is left that overlaps one before it, so each byte counts once.
    handles.dedup_by(|above, below| above.0 < below.0.saturating_add(below.1));
    let mut ranked: Vec<(u64, Range)> = handles
        .iter()
        .filter(|&&handle| live_in(layout, handle).all(|e| e.kind == Kind::Movable))
        .map(|&handle| (live_in(layout, handle).map(|e| e.bytes).sum(), handle))
        .collect();
    ranked.sort_unstable();
    let chosen: Vec<Range> = ranked.into_iter().map(|(_, handle)| handle).collect();
    let (mut wanted, mut done) = (0, 0);
    while wanted < chosen.len() && done < bytes {
        done = chosen[wanted].1.saturating_add(done);
        wanted += 1;
    }
    // Binary search for the most handles that can be emptied. If the blocks of n handles fit
    // elsewhere, those of fewer handles do too, except in rare cases of packing.
    let (mut fits, mut fails) = (0, wanted + 1);
    let mut moves = Vec::new();
    while fits + 1 < fails {
        let middle = if fits == 0 && fails == wanted + 1 {
            wanted
        } else {
            (fits + fails) / 2
        };
        match evacuate(layout, &chosen[..middle]) {
            Some(found) => (fits, moves) = (middle, found),
            None => fails = middle,
        }
    }
    (moves, chosen[..fits].to_vec())
}

/// Extents with at least one byte in the range.
fn meeting(layout: &Layout, (addr, bytes): Range) -> impl Iterator<Item = Extent> + '_ {
    let end = addr.saturating_add(bytes);
    let first = layout
        .below(addr)
        .next()
        .filter(|e| e.end() > addr)
        .map_or(addr, |e| e.addr);
    layout.from(first).take_while(move |e| e.addr < end)
}

fn live_in(layout: &Layout, range: Range) -> impl Iterator<Item = Extent> + '_ {
    meeting(layout, range).filter(|e| e.kind != Kind::Hole)
}

/// Moves of everything in `handles` to holes outside them; `None` if not everything fits.
fn evacuate(layout: &Layout, handles: &[Range]) -> Option<Vec<Move>> {
    let mut rest = layout.clone();
    let mut blocks = Vec::new();
    for &handle in handles {
        blocks.extend(live_in(layout, handle));
        let holes: Vec<Extent> = meeting(&rest, handle)
            .filter(|e| e.kind == Kind::Hole)
            .collect();
        for hole in holes {
            let (from, to) = (
                hole.addr.max(handle.0),
                hole.end().min(handle.0.saturating_add(handle.1)),
            );
            rest.place(from, to - from, Kind::Fixed);
        }
    }
    // A block across the border of two handles was found twice.
    blocks.sort_unstable_by_key(|b| (std::cmp::Reverse(b.bytes), b.addr));
    blocks.dedup();
    let mut moves = Vec::with_capacity(blocks.len());
    for block in blocks {
        let hole = rest.holes_of(block.bytes).next()?;
        rest.place(hole.addr, block.bytes, Kind::Movable);
        moves.push(Move {
            src: block.addr,
            dst: hole.addr,
            bytes: block.bytes,
        });
    }
    Some(moves)
}

#[cfg(test)]
mod tests;
