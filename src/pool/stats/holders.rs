//! Who holds the pool's memory, asked of the pool: see `leaks`.

use super::leaks::{LeakReport, LiveBlock};
use super::snapshot::{Piece, PieceState};
use crate::pool::Pool;
use crate::pool::structure::{Block, Shared};

impl Shared {
    pub(in crate::pool) fn track(&self, block: &mut Block) {
        if let Some(tracker) = &self.tracker {
            let ticket = tracker.enter(block.addr(), block.bytes(), block.stream_id());
            block.carry(ticket);
        }
    }

    pub(crate) fn leak_report(&self) -> LeakReport {
        if let Some(tracker) = &self.tracker {
            let mut blocks = tracker.live();
            let names = self.device.stream_names();
            for block in &mut blocks {
                block.stream_name = names.get(&block.stream).map(ToString::to_string);
            }
            return LeakReport::new(blocks);
        }
        let pieces = self.snapshot().pieces.into_iter();
        let live = pieces.filter(|piece| piece.state == PieceState::Live);
        let block = |piece: Piece| LiveBlock {
            addr: piece.addr,
            bytes: piece.bytes,
            stream: piece.stream.unwrap_or(0),
            stream_name: piece.stream_name,
            tag: piece.tag,
            backtrace: None,
        };
        LeakReport::new(live.map(block).collect())
    }
}

impl Pool {
    /// The live blocks. Under [`PoolConfig::track`](crate::PoolConfig::track) with their tags and
    /// places; else their addresses, bytes as rounded, and streams, from the pool's books, which
    /// are walked under its lock.
    #[must_use]
    pub fn leak_report(&self) -> LeakReport {
        self.shared().leak_report()
    }
}
