//! Free blocks of one size that one stream freed, kept together: see `transfer`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::free_lists::Cached;
use crate::device::Timeline;
use crate::heap::StreamIndex;
use crate::sync::{AtomicU64, Latch, latch};

/// Blocks in a batch.
pub(super) const LEAST: usize = 8;
pub(super) const MOST: usize = 64;

/// Batches kept; of one more the oldest goes into the heap.
pub(super) const KEPT: usize = 16;

/// Sizes missed last that are kept together.
pub(super) const WANTED: usize = 4;

/// Blocks of one size that one stream freed.
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
}

/// See the module documentation.
pub(crate) struct Transfer {
    pub(super) state: Latch<State>,
    /// Batches and used blocks there are, for a look without the latch.
    count: AtomicU64,
    used: AtomicU64,
    wanted: [AtomicU64; WANTED],
    /// Batches taken without a wait: by their own stream, by others.
    pub(super) own: AtomicU64,
    pub(super) ready: AtomicU64,
    /// Whether work that is known to be done needs no wait.
    pub(super) opportunistic: bool,
}

impl Transfer {
    pub(crate) fn new(opportunistic: bool) -> Self {
        Self {
            state: Latch::new(State::default()),
            count: AtomicU64::new(0),
            used: AtomicU64::new(0),
            wanted: [0; WANTED].map(AtomicU64::new),
            own: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            opportunistic,
        }
    }

    /// A stream cache misses blocks of `bytes` again and again. Of two sizes noted at once one may be
    /// forgotten.
    pub(crate) fn want(&self, bytes: u64) {
        if !self.is_wanted(bytes) {
            for at in (1..WANTED).rev() {
                let earlier = self.wanted[at - 1].load(Ordering::Relaxed);
                self.wanted[at].store(earlier, Ordering::Relaxed);
            }
            self.wanted[0].store(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn is_wanted(&self, bytes: u64) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.any(|size| size.load(Ordering::Relaxed) == bytes)
    }

    /// Batches that served requests without a wait: of their own stream, of others.
    pub(crate) fn steps(&self) -> (u64, u64) {
        let [own, ready] = [&self.own, &self.ready].map(|count| count.load(Ordering::Relaxed));
        (own, ready)
    }

    /// Whether there are batches, without the latch.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether there are used blocks, without the latch.
    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    pub(super) fn note_count(&self, state: &State) {
        (self.count).store(state.batches.len() as u64, Ordering::Relaxed);
        (self.used).store(state.used.len() as u64, Ordering::Relaxed);
    }

    /// The newest batch of `bytes` that another stream than `stream` freed: whose work it waits for, up
    /// to which tick.
    pub(super) fn newest(&self, stream: StreamIndex, bytes: u64) -> Option<(Arc<Timeline>, u64)> {
        let state = latch(&self.state);
        let mut batches = state.batches.iter().rev();
        let newest = batches.find(|batch| batch.bytes == bytes && batch.stream != stream)?;
        Some((Arc::clone(&newest.timeline), newest.tick))
    }

    /// Takes all batches out, or those that `stream` freed, while nothing goes between caches: `with`
    /// is called before.
    pub(super) fn take_all(
        &self,
        stream: Option<StreamIndex>,
        with: impl FnOnce(),
    ) -> VecDeque<Batch> {
        let mut state = latch(&self.state);
        with();
        let batches = std::mem::take(&mut state.batches);
        let is_taken = |batch: &Batch| stream.is_none_or(|stream| batch.stream == stream);
        let (taken, left) = batches.into_iter().partition(is_taken);
        state.batches = left;
        self.note_count(&state);
        taken
    }
}
