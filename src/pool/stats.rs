//! What a pool counts, and how it is read without stopping anyone.

use std::sync::atomic::Ordering;

use crate::arena::ArenaCalls;
use crate::sync::AtomicU64;

/// Blocks of up to this many bytes count as small, as in other allocators of the field.
pub const SMALL_BYTES: u64 = 1 << 20;

/// A figure with its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most it has been since the pool was made or [`Pool::reset_peaks`](super::Pool::reset_peaks).
    /// With several streams, blocks are counted together when figures are read and when the pool has
    /// to look for memory beyond ready holes; a joint peak between two such moments may be missed.
    pub peak: u64,
    /// Everything ever added.
    pub allocated: u64,
    /// Everything ever taken away.
    pub freed: u64,
}

/// How often each step of the ladder served a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Steps {
    /// A hole of the requesting stream, or one that no stream had used.
    pub own_stream: u64,
    /// A hole of another stream that was ready.
    pub ready_elsewhere: u64,
    /// Times that the caches of all streams were emptied into the arena.
    pub drain: u64,
    /// A hole, or run of holes, of other streams after a wait on the device.
    pub stream_wait: u64,
    /// Waits queued on the device.
    pub waits: u64,
    /// Idle handles mapped elsewhere.
    pub steal: u64,
    /// Handles created.
    pub grow: u64,
    /// Requests served only after a registered step gave memory back.
    pub relieved: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
}

/// Figures of a pool. A plain value, read without a lock that an allocation waits for, except the
/// figures about holes, which take the pool's own lock for a moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// Live blocks.
    pub blocks: Counter,
    /// Physical bytes held. `allocated` and `freed` count bytes created and released.
    pub reserved: Counter,
    /// Bytes in live blocks and in streams' caches.
    pub active: Counter,
    /// [`PoolStats::allocated`] for blocks of at most [`SMALL_BYTES`].
    pub small: Counter,
    /// [`PoolStats::allocated`] for larger blocks.
    pub large: Counter,
    /// Free bytes inside handles that also hold blocks, which cannot be given back.
    pub inactive_split: u64,
    /// Bytes of the largest hole.
    pub largest_hole: u64,
    /// Number of holes.
    pub holes: u64,
    /// Free mapped bytes that are not in the largest hole, as a part of all free mapped bytes.
    pub fragmentation: f64,
    /// Bytes of the largest hole if every movable block were moved together.
    pub after_compaction: u64,
    /// Bytes moved by compaction.
    pub bytes_moved: u64,
    /// Compaction passes.
    pub compactions: u64,
    /// Bytes of memory private to graphs, handed out or not: in [`PoolStats::active`], and in
    /// [`PoolStats::allocated`] as far as handed out. Of blocks from before a capture that its graph
    /// keeps, only the latter.
    pub graphs: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Which steps served requests.
    pub steps: Steps,
    /// Driver calls of the arena.
    pub calls: ArenaCalls,
    /// Figures by stream.
    pub streams: Vec<StreamStats>,
}

/// Figures of one stream in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's [`id`](crate::Stream::id).
    pub stream: u64,
    /// Blocks allocated on the stream.
    pub allocs: u64,
    /// Blocks freed on the stream, wherever they came from.
    pub frees: u64,
    /// Bytes allocated on the stream.
    pub allocated_bytes: u64,
    /// Bytes freed on the stream, wherever they came from.
    pub freed_bytes: u64,
    /// Bytes in the stream's cache.
    pub cached_bytes: u64,
}

impl StreamStats {
    /// Adds another part of the same stream.
    pub(crate) fn add(&mut self, other: &Self) {
        self.allocs += other.allocs;
        self.frees += other.frees;
        self.allocated_bytes += other.allocated_bytes;
        self.freed_bytes += other.freed_bytes;
        self.cached_bytes += other.cached_bytes;
    }
}

/// A count that one thread at a time writes, under its lane's lock, and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Adds, as the only writer, wrapping around; a plain load and store, no locked instruction.
    #[inline]
    pub(crate) fn add(&self, amount: u64) -> u64 {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(sum, Ordering::Relaxed);
        sum
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one lane counts: each flow has one writer at a time, so that counting costs no locked
/// instruction.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// What the lane's cache served, and all frees; written under the lane's lock.
    pub(crate) hot: Flow,
    /// What the core served; written under the core's lock.
    pub(crate) cold: Flow,
}

impl Flows {
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.hot.peak_bytes.get().max(self.cold.peak_bytes.get())
    }

    pub(crate) fn peak_requested(&self) -> u64 {
        self.hot
            .peak_requested
            .get()
            .max(self.cold.peak_requested.get())
    }

    /// Sets the peaks to what they count now. A count made meanwhile may be missed by one block.
    pub(crate) fn reset_peaks(&self) {
        let sum = |hot: &Tally, cold: &Tally| hot.get().wrapping_add(cold.get()) as i64;
        let live = sum(&self.hot.live_bytes, &self.cold.live_bytes);
        let requested = sum(&self.hot.live_requested, &self.cold.live_requested);
        for flow in [&self.hot, &self.cold] {
            flow.peak_bytes.set(live.max(0) as u64);
            flow.peak_requested.set(requested.max(0) as u64);
        }
    }

    pub(crate) fn of_stream(&self, stream: u64) -> StreamStats {
        let mut totals = Totals::default();
        totals.add(self);
        let [small, large] = totals.by_class();
        StreamStats {
            stream,
            allocs: totals.allocs,
            frees: totals.frees,
            allocated_bytes: small.0 + large.0,
            freed_bytes: small.1 + large.1,
            cached_bytes: self.hot.cached_bytes.get(),
        }
    }
}

/// One flow of a lane. Index 0 is small blocks, 1 large ones.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Flow {
    pub(crate) allocs: [Tally; 2],
    pub(crate) alloc_bytes: [Tally; 2],
    pub(crate) requested: Tally,
    pub(crate) frees: [Tally; 2],
    pub(crate) free_bytes: [Tally; 2],
    pub(crate) returned: Tally,
    /// Allocated less freed, in rounded and in requested bytes, as signed numbers: below 0 where
    /// more is freed than allocated.
    pub(crate) live_bytes: Tally,
    pub(crate) live_requested: Tally,
    /// Most of what is live in both flows of the lane.
    pub(crate) peak_bytes: Tally,
    pub(crate) peak_requested: Tally,
    pub(crate) cached_bytes: Tally,
}

/// 0 for a small block, 1 for a large one.
fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

impl Flow {
    /// Counts an allocation. `other` is the lane's other flow.
    #[inline]
    pub(crate) fn allocated(&self, bytes: u64, requested: u64, other: &Self) {
        let class = class(bytes);
        self.allocs[class].add(1);
        self.alloc_bytes[class].add(bytes);
        self.came(bytes, requested, other);
    }

    /// Counts bytes that are live from now on, and the peaks.
    #[inline]
    fn came(&self, bytes: u64, requested: u64, other: &Self) {
        self.requested.add(requested);
        let live = self
            .live_bytes
            .add(bytes)
            .wrapping_add(other.live_bytes.get()) as i64;
        if live > self.peak_bytes.get() as i64 {
            self.peak_bytes.set(live as u64);
        }
        let live = self.live_requested.add(requested);
        let live = live.wrapping_add(other.live_requested.get()) as i64;
        if live > self.peak_requested.get() as i64 {
            self.peak_requested.set(live as u64);
        }
    }

    #[inline]
    pub(crate) fn freed(&self, bytes: u64, requested: u64) {
        let class = class(bytes);
        self.frees[class].add(1);
        self.free_bytes[class].add(bytes);
        self.returned.add(requested);
        self.live_bytes.add(bytes.wrapping_neg());
        self.live_requested.add(requested.wrapping_neg());
    }

    /// Counts a live block of `before` bytes as one of `after`, with `requested` more asked for.
    /// `other` is the lane's other flow.
    pub(crate) fn grown(&self, before: u64, after: u64, requested: u64, other: &Self) {
        self.free_bytes[class(before)].add(before);
        self.alloc_bytes[class(after)].add(after);
        self.came(after - before, requested, other);
    }

    /// Counts a live block of `before` bytes as one of `after`, with `requested` fewer asked for.
    pub(crate) fn shrunk(&self, before: u64, after: u64, requested: u64) {
        self.free_bytes[class(before)].add(before);
        self.alloc_bytes[class(after)].add(after);
        self.returned.add(requested);
        self.live_bytes.add(after.wrapping_sub(before));
        self.live_requested.add(requested.wrapping_neg());
    }
}

/// Sums over lanes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    allocs: u64,
    frees: u64,
    alloc_bytes: [u64; 2],
    free_bytes: [u64; 2],
    requested: u64,
    returned: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, flows: &Flows) {
        self.add_one(&flows.hot);
        self.add_one(&flows.cold);
    }

    fn add_one(&mut self, flow: &Flow) {
        for class in 0..2 {
            self.allocs += flow.allocs[class].get();
            self.frees += flow.frees[class].get();
            self.alloc_bytes[class] += flow.alloc_bytes[class].get();
            self.free_bytes[class] += flow.free_bytes[class].get();
        }
        self.requested += flow.requested.get();
        self.returned += flow.returned.get();
    }

    pub(crate) fn allocs(&self) -> u64 {
        self.allocs
    }

    pub(crate) fn frees(&self) -> u64 {
        self.frees
    }

    pub(crate) fn requested(&self) -> u64 {
        self.requested
    }

    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// (allocated, freed) bytes of small and of large blocks.
    pub(crate) fn by_class(&self) -> [(u64, u64); 2] {
        [0, 1].map(|class| (self.alloc_bytes[class], self.free_bytes[class]))
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        let [small, large] = self.by_class();
        (small.0 + large.0).saturating_sub(small.1 + large.1)
    }

    pub(crate) fn live_requested(&self) -> u64 {
        self.requested.saturating_sub(self.returned)
    }
}
