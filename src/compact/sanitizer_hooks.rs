//! Reports moves to the sanitizer: which bytes are allocated to which stream before and after.
//!
//! A launch reads the sources and writes the destinations, which may overlap, so while it runs both
//! belong to the moving stream. Before the launch the blocks' old ranges are allocated to that
//! stream. After it everything is freed except the new ranges. If the launch fails, the old ranges
//! stay allocated.

use super::plan::ranges::difference;
use super::plan::{Batch, Move};
use crate::device::{Addr, Note, Stream, without_host_calls};

/// The first address, and the one behind the last.
type Range = (Addr, Addr);

/// The ranges of one launch; see the module documentation.
pub(super) struct SanitizerHooks {
    old: Vec<Range>,
    new: Vec<Range>,
    both: Vec<Range>,
}

impl SanitizerHooks {
    /// Reports that `moves`, offsets from `base`, are about to be launched on `stream`.
    pub(super) fn before(stream: &Stream, moves: &[Move], base: Addr) -> Self {
        Self::around(stream, moves, &[], base)
    }

    /// Reports that `pieces`, which together do `moves`, are about to be launched on `stream`.
    pub(super) fn around(stream: &Stream, moves: &[Move], pieces: &[Batch], base: Addr) -> Self {
        let range = |from: u64, bytes: u64| (base + from, base + from + bytes);
        let written = |m: &Move| range(m.dst, m.bytes);
        let old: Vec<Range> = moves.iter().map(|m| range(m.src, m.bytes)).collect();
        let new: Vec<Range> = moves.iter().map(written).collect();
        let ways = pieces.iter().flat_map(Batch::moves).map(written);
        let both = difference(ways.chain([&old[..], &new].concat()).collect(), Vec::new());
        note_freed(stream, &old);
        note_allocated(stream, &both);
        Self { old, new, both }
    }

    /// Reports that the launch was queued, or that it failed and nothing happened.
    pub(super) fn after(self, stream: &Stream, launched: bool) {
        note_freed(stream, &self.both);
        note_allocated(stream, if launched { &self.new } else { &self.old });
        if !launched && stream.device().backend().is_watched() {
            // The old ranges were just allocated to the moving stream, which their users do not
            // wait for. Synchronizing makes them usable everywhere. The caller holds locks.
            let _ = without_host_calls(|| stream.core().synchronize_memory());
        }
    }
}

fn note_allocated(stream: &Stream, ranges: &[Range]) {
    for &(addr, end) in ranges {
        stream.device().backend().observe(&Note::Alloc {
            addr,
            bytes: end - addr,
            stream: stream.raw(),
        });
    }
}

fn note_freed(stream: &Stream, ranges: &[Range]) {
    for &(addr, end) in ranges {
        stream.device().backend().observe(&Note::Free {
            addr,
            bytes: end - addr,
            stream: stream.raw(),
        });
    }
}
