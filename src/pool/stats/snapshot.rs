//! A list of all pieces of the pool's memory at one moment.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use super::leaks::{LeakReport, LiveBlock, Tracker};
use crate::device::{Addr, stream_words};
use crate::error::Bytes;
use crate::heap::size_class::is_slot;
use crate::heap::{State, StreamIndex};
use crate::pool::Pool;
use crate::pool::structure::Shared;

/// What a piece of the pool's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum PieceState {
    /// A live block, or memory that a graph keeps.
    Live,
    /// Free, in the cache of a stream.
    Cached,
    /// Free.
    Hole,
    /// Free, a slot of a slab: for small blocks of its size.
    Slot,
    /// A stale mapping: the memory is mapped elsewhere by now, and work may still use it here.
    Retiring,
}

impl PieceState {
    fn word(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// A piece of the pool's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Piece {
    /// Address of the first byte.
    pub addr: Addr,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is.
    pub state: PieceState,
    /// The [`id`](crate::Stream::id) of the stream it was allocated on, perhaps of one that had the block before; for a
    /// free piece, freed on, if any.
    pub stream: Option<u64>,
    /// The name of that stream, if it has one.
    pub stream_name: Option<String>,
    /// The tag of a live block, in a pool that tracks.
    pub tag: Option<&'static str>,
    /// Whether compaction may move it while nothing holds it.
    pub movable: bool,
}

/// Every mapped byte of a pool, in address order, and the blocks that [sleep](Pool::sleep). Made by
/// [`Pool::snapshot`].
///
/// `Display` prints a line for each piece.
///
/// ```
/// # use warpool::{Device, Pool, PoolConfig};
/// # let pool = Pool::new(&Device::host()?, PoolConfig::default())?;
/// # let stream = pool.device().stream()?;
/// use warpool::pool::{Piece, PieceState, Snapshot};
///
/// let block = pool.alloc(&stream, 4 << 20)?;
/// let snapshot: Snapshot = pool.snapshot();
/// let is_it = |piece: &&Piece| piece.addr == block.addr() && piece.state == PieceState::Live;
/// assert_eq!(snapshot.pieces.iter().filter(is_it).count(), 1);
/// assert!(snapshot.bytes(PieceState::Live) >= 4 << 20);
/// # Ok::<(), warpool::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The pieces, by address.
    pub pieces: Vec<Piece>,
    /// Physical bytes the pool holds: all pieces except retiring and sleeping ones, released handles with an old mapping
    /// left, and growing buffers.
    pub reserved: u64,
    /// Part of these: bytes of [growing buffers](crate::pool::GrowBuf), which are no pieces.
    pub grown: u64,
}

impl Snapshot {
    /// Bytes in pieces of one state.
    #[must_use]
    pub fn bytes(&self, state: PieceState) -> u64 {
        let pieces = self.pieces.iter().filter(|piece| piece.state == state);
        pieces.map(|piece| piece.bytes).sum()
    }

    /// Bytes of the largest hole if the caches were emptied, and the movable blocks between fixed blocks moved
    /// together.
    #[must_use]
    pub fn after_compaction(&self) -> u64 {
        let is_free = |piece: &&Piece| match piece.state {
            PieceState::Hole => true,
            PieceState::Cached => !is_slot(piece.bytes),
            _ => false,
        };
        let gives_way = |piece: &Piece| piece.movable || is_free(&piece);
        let runs = self.pieces.chunk_by(|below, above| {
            below.addr + below.bytes == above.addr && gives_way(below) && gives_way(above)
        });
        let free = |run: &[Piece]| run.iter().filter(is_free).map(|it| it.bytes).sum();
        runs.map(free).max().unwrap_or(0)
    }

    /// The snapshot as JSON: `{"reserved": .., "grown": .., "pieces": [{"addr": .., "bytes": .., "state": ..,
    /// "stream": .., "stream_name": .., "tag": .., "movable": ..}, ..]}`, bytes and addresses as numbers.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn to_json(&self) -> String {
        let piece = |it: &Piece| {
            serde_json::json!({ "addr": it.addr, "bytes": it.bytes, "state": it.state.word(),
                "stream": it.stream, "stream_name": it.stream_name, "tag": it.tag,
                "movable": it.movable })
        };
        let pieces: Vec<serde_json::Value> = self.pieces.iter().map(piece).collect();
        serde_json::json!({ "reserved": self.reserved, "grown": self.grown, "pieces": pieces })
            .to_string()
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, reserved) = (self.pieces.len(), Bytes(self.reserved));
        write!(f, "{count} pieces, {reserved} reserved")?;
        for it in &self.pieces {
            let (addr, bytes, word) = (it.addr, it.bytes, it.state.word());
            write!(f, "\n  {addr:#x}: {bytes} bytes {word}")?;
            let on = |id| stream_words(id, it.stream_name.as_deref());
            let said = it.stream.map(on).into_iter();
            let mut said = said.chain(it.tag.map(str::to_owned));
            said.try_for_each(|word| write!(f, ", {word}"))?;
        }
        Ok(())
    }
}

impl Shared {
    /// The live blocks without their streams' names: of the tracker, or of a walk's `pieces`.
    pub(crate) fn live(&self, pieces: impl FnOnce() -> Vec<Piece>) -> Vec<LiveBlock> {
        let block = |piece: Piece| LiveBlock {
            addr: piece.addr,
            bytes: piece.bytes,
            stream: piece.stream.unwrap_or(0),
            stream_name: None,
            tag: piece.tag,
            backtrace: None,
        };
        let of_pieces = || {
            let live = (pieces().into_iter()).filter(|it| it.state == PieceState::Live);
            live.map(block).collect()
        };
        (self.tracker.as_ref()).map_or_else(of_pieces, Tracker::live)
    }

    /// A snapshot without names and tags.
    pub(crate) fn walk(&self) -> Snapshot {
        let mut made = Snapshot::default();
        let cached = self.look(|core, cached| {
            let piece = |offset, bytes, index: StreamIndex, state, movable| {
                let used_by = core.streams[index as usize].as_ref();
                Piece {
                    addr: self.base + offset,
                    bytes,
                    state,
                    stream: used_by.map(|it| it.timeline.uid),
                    stream_name: None,
                    // A block of a gate is a graph's segment.
                    tag: (used_by.filter(|it| it.gate && state == PieceState::Live))
                        .map(|_| "graph memory"),
                    movable: movable && state == PieceState::Live,
                }
            };
            let slabs = core.slabs.by_extent();
            for (id, it) in core.extents.iter() {
                if let Some(&slab) = slabs.get(&id) {
                    for (at, bytes, stream, free) in core.slabs.get(slab).slots() {
                        let state = [PieceState::Live, PieceState::Slot][usize::from(free)];
                        made.pieces.push(piece(at, bytes, stream, state, false));
                    }
                    continue;
                }
                let state = match it.state {
                    State::Allocated => PieceState::Live,
                    State::Free | State::Held => PieceState::Hole,
                    State::Stale => PieceState::Retiring,
                    _ => continue,
                };
                let stream = it.epoch.stream;
                (made.pieces).push(piece(it.start, it.bytes, stream, state, it.movable));
            }
            (made.reserved, made.grown) = (core.arena.reserved(), core.arena.beside());
            cached
        });
        // Without the lock, as this takes longest.
        for it in &mut made.pieces {
            if it.state == PieceState::Live && cached.contains(&(it.addr - self.base, it.bytes)) {
                (it.state, it.tag, it.movable) = (PieceState::Cached, None, false);
            }
        }
        made
    }
}

impl Pool {
    /// The live blocks. Under [`PoolConfig::track`](crate::PoolConfig::track) with tags and backtraces; otherwise
    /// addresses, bytes as rounded, and streams, by a walk under the pool's lock.
    #[must_use]
    pub fn leak_report(&self) -> LeakReport {
        let shared = self.shared();
        let mut blocks = shared.live(|| shared.walk().pieces);
        for block in &mut blocks {
            block.stream_name = shared.device.stream_name(block.stream);
        }
        blocks.sort_by_key(|block| (Reverse(block.bytes), block.addr));
        LeakReport { blocks }
    }

    /// Every mapped byte of the pool: blocks and holes with address, size, state, stream and, under
    /// [`PoolConfig::track`](crate::PoolConfig::track), tag. A walk under the pool's lock.
    #[doc(alias = "memory_snapshot")]
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let shared = self.shared();
        let tracked = shared.tracker.iter().flat_map(Tracker::live);
        let tags: HashMap<Addr, _> = tracked.map(|block| (block.addr, block.tag)).collect();
        let mut made = shared.walk();
        for it in &mut made.pieces {
            it.stream_name = it.stream.and_then(|id| shared.device.stream_name(id));
            if it.state == PieceState::Live {
                it.tag = it.tag.or_else(|| *tags.get(&it.addr)?);
            }
        }
        made
    }
}
