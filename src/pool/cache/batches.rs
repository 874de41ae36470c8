//! Free blocks of one size that one stream freed, kept together: see `transfer`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::free_lists::Cached;
use crate::device::Timeline;
use crate::heap::StreamIndex;
use crate::pool::stats::Steps;
use crate::sync::{AtomicU64, Latch, latch};

/// Blocks in a batch.
pub(super) const LEAST: usize = 8;
pub(super) const MOST: usize = 64;

/// Batches kept; of one more the oldest goes into the heap.
pub(super) const KEPT: usize = 16;

/// Blocks kept that other streams still use; for one more its stream waits. A request that misses looks at each.
pub(super) const MOST_USED: usize = 256;

pub(super) struct Batch {
    pub(super) bytes: u64,
    pub(super) stream: StreamIndex,
    pub(super) timeline: Arc<Timeline>,
    /// The stream's tick that covers all uses of all blocks.
    pub(super) tick: u64,
    pub(super) blocks: Vec<Cached>,
}

/// Work of streams, each up to a tick.
pub(crate) type Marks = Vec<(Arc<Timeline>, u64)>;

/// A free block that other streams still use: see `used`.
pub(super) struct Used {
    pub(super) block: Cached,
    /// The stream that freed it.
    pub(super) stream: StreamIndex,
    pub(super) timeline: Arc<Timeline>,
    pub(super) marks: Marks,
}

#[derive(Default)]
pub(super) struct State {
    /// Oldest first.
    pub(super) batches: VecDeque<Batch>,
    /// Oldest first.
    pub(super) used: Vec<Used>,
    /// Empty lists, so that the host's heap is not asked for each.
    pub(super) spare: Vec<Vec<Cached>>,
    /// Batches taken, as steps of the ladder count them.
    pub(super) steps: Steps,
}

pub(crate) struct Transfer {
    pub(super) state: Latch<State>,
    /// Batches and used blocks there are, for a look without the latch.
    count: AtomicU64,
    used: AtomicU64,
    /// Nanoseconds in the driver for drops of blocks with declared uses.
    driver_ns: AtomicU64,
    /// Whether work that is known to be done needs no wait.
    pub(super) opportunistic: bool,
}

impl Transfer {
    pub(crate) fn new(opportunistic: bool) -> Self {
        Self {
            state: Latch::new(State::default()),
            count: AtomicU64::new(0),
            used: AtomicU64::new(0),
            driver_ns: AtomicU64::new(0),
            opportunistic,
        }
    }

    pub(crate) fn steps(&self) -> Steps {
        let driver_ns = self.driver_ns.load(Ordering::Relaxed);
        Steps {
            driver_ns,
            ..latch(&self.state).steps
        }
    }

    /// Counts the time of `calls` of the driver for the drop of a block.
    pub(crate) fn timed<T>(&self, calls: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let outcome = calls();
        let spent = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.driver_ns.fetch_add(spent, Ordering::Relaxed);
        outcome
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    pub(super) fn note_count(&self, state: &State) {
        (self.count).store(state.batches.len() as u64, Ordering::Relaxed);
        (self.used).store(state.used.len() as u64, Ordering::Relaxed);
    }

    /// Whose work the newest batch of `bytes` that another stream freed waits for, up to which tick.
    pub(super) fn newest(&self, stream: StreamIndex, bytes: u64) -> Option<(Arc<Timeline>, u64)> {
        let state = latch(&self.state);
        let mut batches = state.batches.iter().rev();
        let newest = batches.find(|batch| batch.bytes == bytes && batch.stream != stream)?;
        Some((Arc::clone(&newest.timeline), newest.tick))
    }
}
