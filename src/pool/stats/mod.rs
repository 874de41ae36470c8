//! What a pool tells of itself: figures, which `report` puts together from `counters`; the `snapshot` piece
//! by piece; who holds memory, in `leaks`; and the slow steps.

pub(crate) mod counters;
pub(crate) mod leaks;
pub(crate) mod report;
pub(crate) mod snapshot;

use crate::arena::ArenaCalls;
pub use crate::heap::extent::SMALL_BYTES;

/// A figure with its history.
///
/// `current` is `allocated` less `freed`, and not below 0. Read while other threads allocate, each is as it
/// was at some moment of the reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most it has been since the pool was made or [`Pool::reset_peaks`](super::Pool::reset_peaks);
    /// [`PoolStats`] says of which figures it is exact.
    pub peak: u64,
    /// Everything ever added.
    pub allocated: u64,
    /// Everything ever taken away.
    pub freed: u64,
}

/// How often each step of the ladder served a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Nanoseconds that threads spent in the driver, and on waits of the host, to serve requests, to give
    /// memory back, and to learn at the drop of a block what still uses it; not for growing buffers.
    pub driver_ns: u64,
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockStats {
    /// Live blocks.
    pub blocks: Counter,
    /// Their bytes as rounded by the pool.
    pub allocated: Counter,
    /// Their bytes as asked for.
    pub requested: Counter,
}

/// A pool's figures of one size class. Small and large add up to those of [`PoolStats`], but for peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Physical bytes of active blocks and holes of the class: holes of up to [`SMALL_BYTES`] are small.
    /// A handle may hold both classes, so it is bytes that are told apart, not handles. `allocated` and
    /// `freed` are ups and downs from one reading to the next.
    pub reserved: Counter,
    /// Free bytes in holes of the class inside handles that also hold blocks.
    pub inactive_split: Counter,
}

/// Figures of a pool, a plain value.
///
/// **What is exact.** All of `current`, `allocated` and `freed`, where nobody allocates meanwhile. The
/// peaks of active and reserved bytes; those of blocks, allocated and requested bytes for a stream that one
/// thread at a time allocates on. **What is sampled.** For a whole pool, and for threads that met on one
/// stream, the latter peaks are taken when figures are read, when a request brings active bytes to more than
/// they were, and when one has the caches emptied: never more than there was. What may be missed is a thousandth
/// of it and what the caches hold, a few MiB a stream; of more than 64 streams also what a 64th as many requests take.
/// The peak of active bytes bounds it.
/// [`PoolStats::inactive_split`] and the reserved bytes of one class have the history of what readers saw.
/// What takes a walk over all memory is in [`Snapshot`](super::Snapshot).
///
/// `Display` prints a table.
///
/// ```
/// # use warpool::{Device, Pool, PoolConfig};
/// # let pool = Pool::new(&Device::host()?, PoolConfig::default())?;
/// # let stream = pool.device().stream()?;
/// use warpool::pool::{BlockStats, ClassStats, Counter, PoolStats, Steps, StreamStats};
///
/// let block = pool.alloc(&stream, 4 << 20)?;
/// let stats: PoolStats = pool.stats();
/// let held: &Counter = &stats.reserved;
/// println!("{} bytes held, {} at most", held.current, held.peak);
/// let (large, steps): (&ClassStats, &Steps) = (&stats.large, &stats.steps);
/// assert!(large.allocated.current >= 4 << 20 && steps.out_of_memory == 0);
/// let of_stream: &StreamStats = &stats.streams[0];
/// let of_class: &BlockStats = &of_stream.large;
/// assert_eq!((of_stream.stream, of_class.blocks.current), (stream.id(), 1));
/// drop(block);
/// pool.reset_peaks();
/// # Ok::<(), warpool::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolStats {
    /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
    pub blocks: Counter,
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// Bytes that are not in holes: in live blocks, in streams' caches or between them, in graphs' memory.
    pub active: Counter,
    /// Physical bytes held, as the device counts them: those of a handle given back too, while an old
    /// mapping of it stands. `allocated` and `freed` count bytes created and released.
    pub reserved: Counter,
    /// Free bytes inside handles that also hold blocks, which cannot be given back.
    pub inactive_split: Counter,
    /// The same of small blocks.
    pub small: ClassStats,
    /// The same of large blocks.
    pub large: ClassStats,
    /// Bytes of the largest hole; emptying the streams' caches may make a larger one.
    pub largest_hole: u64,
    /// Number of holes.
    pub holes: u64,
    /// Free mapped bytes that are not in the largest hole, as a part of all free mapped bytes.
    pub fragmentation: f64,
    /// Bytes moved by compaction.
    pub bytes_moved: u64,
    /// Compaction passes.
    pub compactions: u64,
    /// Bytes of memory private to graphs: in [`PoolStats::active`], and in [`PoolStats::allocated`] as far
    /// as handed out. Not of blocks from before a capture that its graph keeps.
    pub graphs: u64,
    /// Bytes of [growing buffers](super::GrowBuf), those of buffers that are gone too until the work that
    /// uses them is done: in [`PoolStats::reserved`], and in no figure of blocks.
    pub grown: u64,
    /// Bytes of handles that the device has while the pool sleeps: see [`Pool::sleep`](super::Pool::sleep).
    /// In no other figure; the blocks in them count as ever.
    pub sleeping: u64,
    /// Bytes of movable blocks that are [on the host](crate::host::Spill), as asked for; `allocated` and
    /// `freed` count what went there, and what came back or was dropped. In no other figure.
    pub spilled: Counter,
    /// Physical bytes beside the pool, in no other figure and under no limit, 0 until there is movable
    /// memory: compaction's tables (an 8,000th of the device's memory and up to 3 MiB) and flags (2 to
    /// 128 MiB, or twice the 2,048th part of the largest block moved); 8 bytes a handle of the
    /// [address table](super::Pool::address_table).
    pub overhead: u64,
    /// Times that a request was tried again after compaction or
    /// [`Pool::on_pressure`](super::Pool::on_pressure) said that it made room.
    pub retries: u64,
    /// Requests that failed for want of memory.
    pub failures: u64,
    /// Which steps served requests.
    pub steps: Steps,
    /// Driver calls for the pool's handles, those of growing buffers too.
    pub calls: ArenaCalls,
    /// Figures by stream, of streams that have blocks or a handle.
    pub streams: Vec<StreamStats>,
}

/// Figures of one stream in a pool.
///
/// A block counts with the stream it was allocated on, also when it is freed in the order of another;
/// then its memory counts as cached on that other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamStats {
    /// The stream's [`id`](crate::Stream::id).
    pub stream: u64,
    /// Its name, if it has one.
    pub stream_name: Option<String>,
    /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
    pub blocks: Counter,
    /// Bytes in live blocks, as rounded by the pool.
    pub allocated: Counter,
    /// Bytes in live blocks, as asked for.
    pub requested: Counter,
    /// The same of small blocks.
    pub small: BlockStats,
    /// The same of large blocks.
    pub large: BlockStats,
    /// Bytes in the stream's cache.
    pub cached_bytes: u64,
}

// The slow steps: which figure counts each, and what the application's `tracing` subscriber is told. A subscriber may
// allocate. So a step, which is taken under the pool's lock, leaves a note, and whoever took it tells what was noted
// once the lock is let go. Without the feature `tracing` nothing is noted.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident $(counts $figure:ident)?, $level:ident $words:literal;)+) => {
        /// A slow step of the pool, as [`Steps`] says, with the bytes asked for, mapped, made, moved or given back.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Told {
            $($(#[$doc])* $step(u64)),+
        }

        impl Told {
            #[inline(always)]
            pub(in crate::pool) fn count(self, steps: &mut Steps) {
                match self {
                    $(Self::$step(_) => { $(steps.$figure += 1;)? })+
                }
            }

            /// Tells the subscriber, without a lock of the pool.
            #[inline]
            pub(in crate::pool) fn tell(self, pool: u64) {
                #[cfg(feature = "tracing")]
                match self {
                    $(Self::$step(bytes) => tracing::event!(
                        target: "warpool", tracing::Level::$level, pool, bytes, $words
                    ),)+
                }
                #[cfg(not(feature = "tracing"))]
                let _ = pool;
            }
        }
    };
}

steps! {
    OwnStream counts own_stream, TRACE "own stream";
    ReadyElsewhere counts ready_elsewhere, TRACE "ready elsewhere";
    Drain counts drain, DEBUG "caches emptied";
    StreamWait counts stream_wait, DEBUG "stream wait";
    Steal counts steal, DEBUG "idle handle remapped";
    Grow counts grow, DEBUG "handle created";
    Relieved counts relieved, INFO "relieved";
    OutOfMemory counts out_of_memory, WARN "out of memory";
    /// By a step of compaction.
    Moved, DEBUG "blocks moved";
    Trimmed, DEBUG "trimmed";
}
