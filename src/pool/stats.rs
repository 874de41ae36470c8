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
    /// With several streams, or threads that met on one, blocks are counted together when figures
    /// are read and when the pool has to look for memory beyond ready holes; a joint peak between
    /// two such moments may be missed. So may any peak of the number of blocks, and of small and of
    /// large blocks apart.
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
    /// Handles mapped elsewhere: idle ones, and those a second time under the edge of a block.
    pub steal: u64,
    /// Handles created.
    pub grow: u64,
    /// Requests served only after a registered step gave memory back.
    pub relieved: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
}

/// Figures of a pool. A plain value, read without a lock that an allocation waits for.
///
/// What blocks sum to is read from each stream's own counts. What the pool knows of its memory is
/// as it was when somebody last changed it there. [`PoolStats::inactive_split`] and
/// [`PoolStats::after_compaction`] take a walk over all blocks and holes, so in a pool of more than
/// 16 of them they may be as old as that many changes; where there are thousands, as old as the last
/// step that made memory, gave some back, moved some or failed.
/// [`Pool::snapshot`](super::Pool::snapshot) and
/// [`Pool::check_invariants`](super::Pool::check_invariants) walk over everything and bring them up
/// to date.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
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

/// A count that one thread at a time writes, under its lane's latch, and any thread reads.
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

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one lane counts: each flow has one writer at a time, so that counting costs no locked
/// instruction.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// What the lane's cache served and took in; written under the lane's latch.
    hot: Flow,
    /// What passed the cache by; written under the core's lock.
    cold: Cold,
}

/// The cold flow, and sums that a hot allocation would otherwise have to make of it.
#[derive(Debug, Default)]
struct Cold {
    flow: Flow,
    /// Allocated less freed, in rounded and in requested bytes, as signed numbers: below 0 where
    /// more is freed than allocated.
    live_bytes: Tally,
    live_requested: Tally,
    /// Bytes that went from the lane's cache into the arena or another cache, less those that came.
    left_bytes: Tally,
}

/// One flow of a lane. Two cache lines that no other lane writes, nor the line beside them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flow {
    /// Small blocks, large ones.
    classes: [Class; 2],
    requested: Tally,
    returned: Tally,
    /// Most of what is live in both flows of the lane, as this flow's writer saw it.
    peak_bytes: Tally,
    peak_requested: Tally,
}

#[derive(Debug, Default)]
struct Class {
    allocs: Tally,
    alloc_bytes: Tally,
    frees: Tally,
    free_bytes: Tally,
}

/// 0 for a small block, 1 for a large one.
#[inline]
fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

impl Flow {
    #[inline]
    fn allocated(&self, bytes: u64, requested: u64) {
        let class = &self.classes[class(bytes)];
        class.allocs.add(1);
        class.alloc_bytes.add(bytes);
        self.requested.add(requested);
    }

    #[inline]
    fn freed(&self, bytes: u64, requested: u64) {
        let class = &self.classes[class(bytes)];
        class.frees.add(1);
        class.free_bytes.add(bytes);
        self.returned.add(requested);
    }

    /// Raises the peaks to what is live.
    #[inline]
    fn note_peak(&self, (bytes, requested): (i64, i64)) {
        if bytes > self.peak_bytes.get() as i64 {
            self.peak_bytes.set(bytes as u64);
        }
        if requested > self.peak_requested.get() as i64 {
            self.peak_requested.set(requested as u64);
        }
    }
}

impl Flows {
    /// Counts a block that the cache served.
    #[inline]
    pub(crate) fn served_by_cache(&self, bytes: u64, requested: u64) {
        self.hot.allocated(bytes, requested);
        self.hot.note_peak(self.live());
    }

    /// Counts a freed block that the cache took in.
    #[inline]
    pub(crate) fn kept_in_cache(&self, bytes: u64, requested: u64) {
        self.hot.freed(bytes, requested);
    }

    /// Counts a block that the core served.
    pub(crate) fn served_by_core(&self, bytes: u64, requested: u64) {
        let cold = &self.cold;
        cold.flow.allocated(bytes, requested);
        cold.live_bytes.add(bytes);
        cold.live_requested.add(requested);
        cold.flow.note_peak(self.live());
    }

    /// Counts a freed block that passed the cache by.
    pub(crate) fn given_to_core(&self, bytes: u64, requested: u64) {
        let cold = &self.cold;
        cold.flow.freed(bytes, requested);
        cold.live_bytes.add(bytes.wrapping_neg());
        cold.live_requested.add(requested.wrapping_neg());
    }

    /// Counts a live block of `before` bytes as one of `after`, with `added` more asked for.
    pub(crate) fn grown(&self, before: u64, after: u64, added: u64) {
        let cold = &self.cold;
        cold.flow.classes[class(before)].free_bytes.add(before);
        cold.flow.classes[class(after)].alloc_bytes.add(after);
        cold.flow.requested.add(added);
        cold.live_bytes.add(after - before);
        cold.live_requested.add(added);
        cold.flow.note_peak(self.live());
    }

    /// Counts a live block of `before` bytes as one of `after`, with `returned` fewer asked for.
    pub(crate) fn shrunk(&self, before: u64, after: u64, returned: u64) {
        let cold = &self.cold;
        cold.flow.classes[class(before)].free_bytes.add(before);
        cold.flow.classes[class(after)].alloc_bytes.add(after);
        cold.flow.returned.add(returned);
        cold.live_bytes.add(after.wrapping_sub(before));
        cold.live_requested.add(returned.wrapping_neg());
    }

    /// Notes that `bytes` left the cache for the arena or for another cache.
    pub(crate) fn left_cache(&self, bytes: u64) {
        self.cold.left_bytes.add(bytes);
    }

    /// Notes that `bytes` came into the cache from another.
    pub(crate) fn came_to_cache(&self, bytes: u64) {
        self.cold.left_bytes.add(bytes.wrapping_neg());
    }

    /// Rounded and requested bytes allocated less freed, below 0 where more is freed.
    #[inline]
    fn live(&self) -> (i64, i64) {
        let [small, large] = &self.hot.classes;
        let bytes = (small.alloc_bytes.get())
            .wrapping_add(large.alloc_bytes.get())
            .wrapping_sub(small.free_bytes.get())
            .wrapping_sub(large.free_bytes.get())
            .wrapping_add(self.cold.live_bytes.get());
        let requested = (self.hot.requested.get())
            .wrapping_sub(self.hot.returned.get())
            .wrapping_add(self.cold.live_requested.get());
        (bytes as i64, requested as i64)
    }

    /// Blocks that the cache served less those that it took in. Exact for who holds the latch.
    pub(crate) fn served_less_kept(&self) -> i64 {
        let [small, large] = &self.hot.classes;
        let allocs = small.allocs.get().wrapping_add(large.allocs.get());
        let frees = small.frees.get().wrapping_add(large.frees.get());
        allocs.wrapping_sub(frees) as i64
    }

    /// Bytes in the cache.
    fn cached_bytes(&self) -> u64 {
        let [small, large] = &self.hot.classes;
        let bytes = (small.free_bytes.get())
            .wrapping_add(large.free_bytes.get())
            .wrapping_sub(small.alloc_bytes.get())
            .wrapping_sub(large.alloc_bytes.get())
            .wrapping_sub(self.cold.left_bytes.get());
        // Read while others count, so it may be off by what they do meanwhile.
        (bytes as i64).max(0) as u64
    }

    pub(crate) fn peak_bytes(&self) -> u64 {
        let cold = &self.cold.flow;
        self.hot.peak_bytes.get().max(cold.peak_bytes.get())
    }

    pub(crate) fn peak_requested(&self) -> u64 {
        let cold = &self.cold.flow;
        self.hot.peak_requested.get().max(cold.peak_requested.get())
    }

    /// Sets the peaks to what they count now. A count made meanwhile may be missed by one block.
    pub(crate) fn reset_peaks(&self) {
        let (bytes, requested) = self.live();
        for flow in [&self.hot, &self.cold.flow] {
            flow.peak_bytes.set(bytes.max(0) as u64);
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
            cached_bytes: self.cached_bytes(),
        }
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
        self.add_one(&flows.cold.flow);
    }

    fn add_one(&mut self, flow: &Flow) {
        for (at, class) in flow.classes.iter().enumerate() {
            self.allocs += class.allocs.get();
            self.frees += class.frees.get();
            self.alloc_bytes[at] += class.alloc_bytes.get();
            self.free_bytes[at] += class.free_bytes.get();
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
