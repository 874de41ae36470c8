//! What the sanitizer is told of moves: which bytes are allocated to which stream, before and
//! after.
//!
//! A launch reads the sources and writes the destinations, which may overlap, so while it runs both
//! belong to the moving stream. Before the launch the blocks' old ranges are allocated to that
//! stream. After it everything is freed except the new ranges. If the launch fails, the old ranges
//! stay allocated.

use super::plan::{Batch, Move};
use crate::device::{Addr, Note, Stream};

type Range = (Addr, u64);

/// The ranges of one launch; see the module documentation.
pub(super) struct Notes {
    old: Vec<Range>,
    new: Vec<Range>,
    both: Vec<Range>,
}

impl Notes {
    /// Reports that `moves`, offsets from `base`, are about to be launched on `stream`.
    pub(super) fn before(stream: &Stream, moves: &[Move], base: Addr) -> Self {
        let old: Vec<Range> = moves.iter().map(|m| (base + m.src, m.bytes)).collect();
        let new: Vec<Range> = moves.iter().map(|m| (base + m.dst, m.bytes)).collect();
        Self::begin(stream, old, new, &[])
    }

    /// Reports that `pieces`, which together do `moves`, are about to be launched on `stream`.
    pub(super) fn around(stream: &Stream, moves: &[Move], pieces: &[Batch], base: Addr) -> Self {
        let old: Vec<Range> = moves.iter().map(|m| (base + m.src, m.bytes)).collect();
        let new: Vec<Range> = moves.iter().map(|m| (base + m.dst, m.bytes)).collect();
        let ways = pieces.iter().flat_map(Batch::moves);
        let written: Vec<Range> = ways.map(|m| (base + m.dst, m.bytes)).collect();
        Self::begin(stream, old, new, &written)
    }

    fn begin(stream: &Stream, old: Vec<Range>, new: Vec<Range>, written: &[Range]) -> Self {
        let both = union(old.iter().chain(&new).chain(written).copied().collect());
        let notes = Self { old, new, both };
        note_freed(stream, &notes.old);
        note_allocated(stream, &notes.both);
        notes
    }

    /// Reports that the launch was queued, or that it failed and nothing happened.
    pub(super) fn after(self, stream: &Stream, launched: bool) {
        note_freed(stream, &self.both);
        note_allocated(stream, if launched { &self.new } else { &self.old });
        if !launched {
            // The old ranges were just allocated to the moving stream, which their users do not
            // wait for. Synchronizing makes them usable everywhere.
            let _ = stream.core().synchronize_memory();
        }
    }
}

/// The ranges in order, those that touch or overlap joined.
fn union(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut joined: Vec<Range> = Vec::new();
    for (addr, bytes) in ranges {
        match joined.last_mut().filter(|last| last.0 + last.1 >= addr) {
            Some(last) => last.1 = last.1.max(addr + bytes - last.0),
            None => joined.push((addr, bytes)),
        }
    }
    joined
}

fn note_allocated(stream: &Stream, ranges: &[Range]) {
    for &(addr, bytes) in ranges {
        stream.device().backend().observe(&Note::Alloc {
            addr,
            bytes,
            stream: stream.raw(),
        });
    }
}

fn note_freed(stream: &Stream, ranges: &[Range]) {
    for &(addr, bytes) in ranges {
        stream.device().backend().observe(&Note::Free {
            addr,
            bytes,
            stream: stream.raw(),
        });
    }
}
