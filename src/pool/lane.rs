//! A pool's side of one stream: its cache, its counts, and the way to the shared core.
//!
//! The common pair, free then allocate the same size on the same stream, takes this lane's lock
//! twice and touches nothing that another stream touches. Locks are taken core first, then one
//! lane; the hot path takes only the lane's.

use std::sync::Arc;

use super::block::Block;
use super::cache::{Cache, Cached};
use super::core::Core;
use super::extents::{Id, Slot};
use super::index::UNIT;
use super::shared::Shared;
use super::stats::Flow;
use crate::device::{StreamCore, lock};
use crate::error::{Error, Result};
use crate::sync::Mutex;

/// Blocks a cache holds at most.
const MOST_BLOCKS: usize = 4096;

/// Largest request; far above any device, far below what would overflow.
const LARGEST: u64 = 1 << 46;

/// What a lane's lock guards.
pub(crate) struct LaneState {
    pub(crate) cache: Cache,
    /// The application holds the stream no longer: keep nothing.
    pub(crate) retired: bool,
    /// Room to carry drained blocks to the core, kept to spare the heap.
    carry: Vec<Cached>,
}

/// See the module documentation.
pub(crate) struct Lane {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Arc<StreamCore>,
    pub(crate) slot: Slot,
    pub(crate) state: Mutex<LaneState>,
    pub(crate) flow: Arc<Flow>,
}

/// `bytes` as the pool rounds them.
pub(crate) fn rounded(bytes: u64) -> Result<u64> {
    if bytes == 0 || bytes > LARGEST {
        return Err(Error::invalid(
            "bytes",
            format!("{bytes} is not between 1 and {LARGEST}"),
        ));
    }
    Ok(bytes.div_ceil(UNIT) * UNIT)
}

impl Lane {
    pub(crate) fn new(shared: &Arc<Shared>, stream: &Arc<StreamCore>, slot: Slot) -> Self {
        let state = LaneState {
            cache: Cache::new(),
            retired: false,
            carry: Vec::new(),
        };
        Self {
            shared: Arc::clone(shared),
            stream: Arc::clone(stream),
            slot,
            state: Mutex::new(state),
            flow: Arc::default(),
        }
    }

    /// A block of at least `requested` bytes.
    pub(crate) fn alloc(self: Arc<Self>, requested: u64) -> Result<Block> {
        let bytes = rounded(requested)?;
        let cached = {
            let mut state = lock(&self.state);
            let cached = state.cache.pop(bytes);
            if cached.is_some() {
                self.flow.allocated(bytes, requested);
                self.flow.cached_bytes.set(state.cache.bytes());
            }
            cached
        };
        let (id, offset) = match cached {
            Some(block) => (block.id, block.offset),
            None => {
                let grant = self.shared.acquire(&self, bytes)?;
                let state = lock(&self.state);
                self.flow.allocated(bytes, requested);
                drop(state);
                (grant.id, grant.offset)
            }
        };
        Ok(Block::new(self, id, offset, bytes, requested))
    }

    /// Takes a block back that was allocated here or on another lane of the pool.
    pub(crate) fn free(&self, id: Id, offset: u64, bytes: u64, requested: u64) {
        let tick = self.stream.timeline.open_tick();
        let freed = Cached {
            id,
            offset,
            bytes,
            tick,
        };
        let mut state = lock(&self.state);
        self.flow.freed(bytes, requested);
        if state.retired {
            drop(state);
            lock(&self.shared.core).give(id, self.slot, tick);
            return;
        }
        let full = state.cache.bytes() + bytes > self.shared.cache_bytes
            || state.cache.blocks() >= MOST_BLOCKS;
        let mut carry = std::mem::take(&mut state.carry);
        if full {
            state.cache.drain(|block| carry.push(block));
        }
        state.cache.push(freed);
        self.flow.cached_bytes.set(state.cache.bytes());
        if !full {
            state.carry = carry;
            return;
        }
        drop(state);
        {
            let mut core = lock(&self.shared.core);
            for block in carry.drain(..) {
                core.give(block.id, self.slot, block.tick);
            }
        }
        lock(&self.state).carry = carry;
    }

    /// Empties the cache into the core; true if there was anything.
    pub(crate) fn drain(&self, core: &mut Core) -> bool {
        let mut state = lock(&self.state);
        let any = state.cache.blocks() > 0;
        state
            .cache
            .drain(|block| core.give(block.id, self.slot, block.tick));
        self.flow.cached_bytes.set(0);
        any
    }
}
