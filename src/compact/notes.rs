//! What a watcher of the device is told of moves: who holds which bytes before and after.
//!
//! The launch reads the sources and writes the destinations, which may overlap, so while it runs
//! both are the moving stream's. Before it the blocks' old places come to that stream, after it all
//! goes back but the new places. A launch that fails leaves the old places where they were.

use super::plan::{Batch, Move};
use crate::device::{Addr, Note, Stream};

type Range = (Addr, u64);

/// See the module documentation.
pub(super) struct Notes {
    old: Vec<Range>,
    new: Vec<Range>,
    both: Vec<Range>,
}

impl Notes {
    /// Tells that `moves`, offsets from `base`, are about to be launched on `stream`.
    pub(super) fn before(stream: &Stream, moves: &[Move], base: Addr) -> Self {
        let old: Vec<Range> = moves.iter().map(|m| (base + m.src, m.bytes)).collect();
        let new: Vec<Range> = moves.iter().map(|m| (base + m.dst, m.bytes)).collect();
        Self::told(stream, old, new, &[])
    }

    /// Tells that `pieces` are about to be launched on `stream`, which bring blocks where `moves`
    /// say.
    pub(super) fn around(stream: &Stream, moves: &[Move], pieces: &[Batch], base: Addr) -> Self {
        let old: Vec<Range> = moves.iter().map(|m| (base + m.src, m.bytes)).collect();
        let new: Vec<Range> = moves.iter().map(|m| (base + m.dst, m.bytes)).collect();
        let ways = pieces.iter().flat_map(Batch::moves);
        let written: Vec<Range> = ways.map(|m| (base + m.dst, m.bytes)).collect();
        Self::told(stream, old, new, &written)
    }

    fn told(stream: &Stream, old: Vec<Range>, new: Vec<Range>, written: &[Range]) -> Self {
        let both = union(old.iter().chain(&new).chain(written).copied().collect());
        let notes = Self { old, new, both };
        taken_back(stream, &notes.old);
        given(stream, &notes.both);
        notes
    }

    /// Tells that they were launched, or that nothing happened.
    pub(super) fn after(self, stream: &Stream, launched: bool) {
        taken_back(stream, &self.both);
        given(stream, if launched { &self.new } else { &self.old });
        if !launched {
            // The blocks' users know nothing of what this stream was told; the host does then.
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

fn given(stream: &Stream, ranges: &[Range]) {
    for &(addr, bytes) in ranges {
        stream.device().backend().observe(&Note::Alloc {
            addr,
            bytes,
            stream: stream.raw(),
        });
    }
}

fn taken_back(stream: &Stream, ranges: &[Range]) {
    for &(addr, bytes) in ranges {
        stream.device().backend().observe(&Note::Free {
            addr,
            bytes,
            stream: stream.raw(),
        });
    }
}
