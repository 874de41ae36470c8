//! What a pool tells of itself: plain values, put together in `figures`.

use crate::arena::ArenaCalls;
pub use crate::heap::extent::SMALL_BYTES;

/// A figure with its history.
///
/// Figures of bytes are in bytes. `current` is `allocated` less `freed`; read while other threads
/// allocate, none is below 0, and each is as it was at some moment of the reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most it has been since the pool was made or [`Pool::reset_peaks`](super::Pool::reset_peaks).
    ///
    /// Of active and reserved bytes exact, all streams together. Of what live blocks sum to
    /// (blocks, allocated, requested) exact for a stream that one thread at a time allocates on. Of
    /// a whole pool, and of threads that met on one stream, those are added up when figures are
    /// read and when the pool has to look for memory beyond ready holes: never more than there was,
    /// and a joint peak between two such moments may be missed, which the peak of active bytes
    /// bounds.
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

/// What the blocks of one size class sum to. See [`PoolStats`] for each figure.
///
/// A block is small or large by its bytes as rounded, see [`SMALL_BYTES`]. A block resized from one
/// class into the other counts as freed in the one and allocated in the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockStats {
    /// Live blocks.
    pub blocks: Counter,
    /// Their bytes as rounded by the pool.
    pub allocated: Counter,
    /// Their bytes as asked for.
    pub requested: Counter,
    /// Bytes of live blocks and of blocks in streams' caches.
    pub active: Counter,
}

/// A pool's figures of one size class. See [`PoolStats`] for each; small and large add up to the
/// pool's, but for peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// Live blocks of the class.
    pub blocks: Counter,
    /// Their bytes as rounded by the pool.
    pub allocated: Counter,
    /// Their bytes as asked for.
    pub requested: Counter,
    /// Bytes of active blocks of the class. A graph's memory counts by its segments, pieces of at
    /// least 2 MiB where there is room, and not by the blocks that the graph cuts from them.
    pub active: Counter,
    /// Physical bytes that active blocks of the class have, and that holes have which such a block
    /// would take: holes of up to [`SMALL_BYTES`] are small. A handle may hold blocks of both
    /// classes, so it is bytes that are told apart, not handles. `allocated` and `freed` are ups
    /// and downs from one use of the pool's shared memory to the next.
    pub reserved: Counter,
    /// Free bytes in holes of the class inside handles that also hold blocks.
    pub inactive_split: Counter,
}

/// Figures of a pool. A plain value, read without a lock that an allocation waits for.
///
/// What blocks sum to is read from each stream's own counts. What the pool knows of its memory is
/// as it was when somebody last changed it there. [`PoolStats::inactive_split`] and
/// [`PoolStats::after_compaction`] take a walk over all blocks and holes, so in a pool of more than
/// 16 of them they may be as old as eight times as many changes; where there are thousands, as old
/// as the last step that made memory, gave some back, moved some or failed.
/// [`Pool::snapshot`](super::Pool::snapshot) and
/// [`Pool::check_invariants`](super::Pool::check_invariants) walk over everything and bring them up
/// to date.
///
/// `Display` prints a table.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
    pub blocks: Counter,
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// Bytes in live blocks, in streams' caches and in graphs' memory: what is not in holes.
    /// Memory that goes from the cache of one stream to another counts as freed and allocated.
    pub active: Counter,
    /// Physical bytes held, as the device counts them: while an old mapping of a handle stands that was
    /// given back, its memory is held. `allocated` and `freed` count bytes created and released.
    pub reserved: Counter,
    /// Free bytes inside handles that also hold blocks, which cannot be given back. All of the
    /// counter is as the walks saw it that [`PoolStats`] speaks of.
    pub inactive_split: Counter,
    /// The same of small blocks.
    pub small: ClassStats,
    /// The same of large blocks.
    pub large: ClassStats,
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
    /// Physical bytes of the device that stand beside the pool, in no other figure and under no
    /// limit: the tables and flags of compaction, which has to work when the pool is full, and the
    /// [address table](super::Pool::address_table). 0 until there is movable memory. The tables take
    /// an 8,000th of the device's memory and up to 3 MiB, the flags 2 to 128 MiB (or twice the 2,048th
    /// part of the largest block moved), the address table 8 bytes a handle.
    pub overhead: u64,
    /// Times that a request which the pool's own steps could not serve was tried again, after a
    /// step above them (compaction, [`Pool::on_pressure`](super::Pool::on_pressure)) said that it
    /// made room.
    pub retries: u64,
    /// Requests that failed for want of memory.
    pub failures: u64,
    /// Which steps served requests.
    pub steps: Steps,
    /// Driver calls of the arena.
    pub calls: ArenaCalls,
    /// Figures by stream, of streams that have blocks or a handle.
    pub streams: Vec<StreamStats>,
}

/// Figures of one stream in a pool.
///
/// A block counts with the stream it was allocated on, also when it is freed in the order of
/// another; then its memory is free on that other, and active there while it is in its cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's [`id`](crate::Stream::id).
    pub stream: u64,
    /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
    pub blocks: Counter,
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// Bytes in live blocks and in the stream's cache. Of a graph's memory, what is handed out.
    pub active: Counter,
    /// The same of small blocks.
    pub small: BlockStats,
    /// The same of large blocks.
    pub large: BlockStats,
    /// Bytes in the stream's cache.
    pub cached_bytes: u64,
}
