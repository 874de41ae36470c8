//! A pool's statistics: `counters`, their `report`, the `snapshot` of all memory, live blocks (`leaks`), slow steps.

pub(crate) mod counters;
pub(crate) mod leaks;
pub(crate) mod report;
pub(crate) mod snapshot;

use crate::arena::ArenaCalls;
pub use crate::heap::extent::SMALL_BYTES;

/// A figure with its history.
///
/// `current` is `allocated` less `freed`, at least 0. While other threads allocate, each is of its own moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most since the pool was made or [`Pool::reset_peaks`](super::Pool::reset_peaks); [`PoolStats`] says
    /// which peaks are exact.
    pub peak: u64,
    /// All ever added.
    pub allocated: u64,
    /// All ever taken away.
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
    /// Times that the caches of all streams were emptied.
    pub drain: u64,
    /// A hole, or run of holes, of other streams after a wait on the device.
    pub stream_wait: u64,
    /// Waits queued on the device.
    pub waits: u64,
    /// Idle handles mapped elsewhere.
    pub steal: u64,
    /// Handles created.
    pub grow: u64,
    /// Nanoseconds that threads spent in the driver and in waits of the host: to serve requests, to release
    /// memory, and to ask at the drop of a block what still uses it. Without growing buffers.
    pub driver_ns: u64,
    /// Requests served only after a registered step freed memory.
    pub relieved: u64,
    /// Requests that failed.
    pub out_of_memory: u64,
}

/// Makes structs of figures: those of blocks, then their own.
macro_rules! figures {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $of:ty,)* })+) => {$(
        $(#[$about])*
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub struct $name {
            /// Live blocks; `allocated` and `freed` are the numbers of allocations and frees.
            pub blocks: Counter,
            /// Bytes in live blocks, as rounded by the pool.
            pub allocated: Counter,
            /// Bytes in live blocks, as asked for.
            pub requested: Counter,
            $($(#[$doc])* pub $field: $of,)*
        }

        impl $name {
            /// With these figures of blocks alone.
            fn of([blocks, allocated, requested]: [Counter; 3]) -> Self {
                Self { blocks, allocated, requested, ..Self::default() }
            }
        }
    )+};
}

figures! {
    /// Figures of the blocks of one size class.
    ///
    /// Blocks of up to [`SMALL_BYTES`], as rounded, are small. A block resized from one class into the other counts as
    /// freed in the first and allocated in the second.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    BlockStats {}

    /// A pool's figures of one size class. Small and large add up to those of [`PoolStats`], except for peaks, and for
    /// what of the reserved bytes was allocated and freed.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    ClassStats {
        /// Bytes of active blocks of the class. A graph's memory counts by its segments, of at least 2 MiB if there is
        /// room, and not by the blocks that the graph cuts from them.
        active: Counter,
        /// Physical bytes of active blocks and holes of the class: holes of up to [`SMALL_BYTES`] are small. A handle
        /// may hold both classes. `allocated` and `freed` sum up the changes from one read to the next.
        reserved: Counter,
        /// Free bytes in holes of the class inside handles that are not all in one hole.
        inactive_split: Counter,
    }

    /// Figures of a pool, a plain value.
    ///
    /// **Exact** are `current`, `allocated` and `freed`, if no thread allocates during the read; the peaks of active
    /// and reserved bytes; and the peaks of blocks, allocated and requested bytes of a stream that one thread at a time
    /// allocates on. **Sampled** are those last peaks for a whole pool, and for a stream that several threads use at
    /// once. The pool takes samples when figures are read, when active bytes reach a new peak, and when a request
    /// empties the caches. So a peak is never too high. It may be too low by a thousandth and by what the caches hold,
    /// a few MiB a stream; with more than 64 streams, also by one request for every 64 streams. The peak of active
    /// bytes is an upper bound. [`PoolStats::inactive_split`] and the reserved bytes of one class change only at reads.
    /// Figures that need a walk over all memory are in [`Snapshot`](super::Snapshot).
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
    PoolStats {
        /// Bytes that are not in holes: in live blocks, in caches, in graphs' memory.
        active: Counter,
        /// Physical bytes held, as the device counts them: a released handle counts while an old mapping of it
        /// remains. `allocated` and `freed` count bytes created and released.
        reserved: Counter,
        /// Free bytes in handles that are not all in one hole: they also hold blocks, or streams that freed parts of them
        /// still use those.
        inactive_split: Counter,
        /// The same for small blocks.
        small: ClassStats,
        /// The same for large blocks.
        large: ClassStats,
        /// Bytes of the largest hole; with the streams' caches emptied there may be a larger one.
        largest_hole: u64,
        /// Number of holes.
        holes: u64,
        /// The part of free mapped bytes that is not in the largest hole.
        fragmentation: f64,
        /// Bytes moved by compaction.
        bytes_moved: u64,
        /// Compaction passes.
        compactions: u64,
        /// Bytes of memory private to graphs: in [`PoolStats::active`], and in [`PoolStats::allocated`] if blocks have
        /// them. Without blocks from before a capture that its graph keeps.
        graphs: u64,
        /// Bytes of [growing buffers](super::GrowBuf), also of dropped ones until the work that uses them is done: in
        /// [`PoolStats::reserved`], and in no figure of blocks.
        grown: u64,
        /// Bytes of handles that the pool gave up to [sleep](super::Pool::sleep), in no other figure. Their blocks
        /// still count.
        sleeping: u64,
        /// Bytes of movable blocks that are [on the host](crate::host::Spill), as asked for, in no other figure.
        /// `allocated` and `freed` count what went there, and what came back or was dropped.
        spilled: Counter,
        /// Physical bytes beside the pool, in no other figure and under no limit, 0 until the first call about movable
        /// memory or compaction: compaction's tables (an 8,000th of the device's memory and up to 3 MiB) and flags (2
        /// to 128 MiB, or twice the 2,048th part of the largest block moved); 8 bytes for each handle of the
        /// [address table](super::Pool::address_table).
        overhead: u64,
        /// Requests tried again because compaction or [`Pool::on_pressure`](super::Pool::on_pressure) made room.
        retries: u64,
        /// Requests that failed for lack of memory.
        failures: u64,
        /// Which steps served requests.
        steps: Steps,
        /// Driver calls for the pool's handles, with those of growing buffers.
        calls: ArenaCalls,
        /// Figures of each stream that has blocks or a handle.
        streams: Vec<StreamStats>,
    }

    /// Figures of one stream in a pool.
    ///
    /// A block counts for the stream it was allocated on. If it is freed in the order of another stream, its memory
    /// counts as cached there.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    StreamStats {
        /// The same for small blocks.
        small: BlockStats,
        /// The same for large blocks.
        large: BlockStats,
        /// The stream's [`id`](crate::Stream::id).
        stream: u64,
        /// Its name, if it has one.
        stream_name: Option<String>,
        /// Free bytes in the stream's cache, in batches for others, and in blocks that others still use.
        cached_bytes: u64,
    }
}

// The slow steps: the figure that counts each, and its `tracing` event. A subscriber may allocate. So a step, which
// runs under the pool's lock, leaves a note, and the thread sends the events once it has released the lock.
macro_rules! steps {
    ($($step:ident $(counts $figure:ident)?, $level:ident $words:literal;)+) => {
        /// A slow step, with the bytes asked for, mapped, made, moved, released or left live.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Told {
            $($step(u64)),+
        }

        impl Told {
            #[inline(always)]
            pub(in crate::pool) fn count(self, steps: &mut Steps) {
                match self {
                    $(Self::$step(_) => { $(steps.$figure += 1;)? })+
                }
            }

            /// Sends the event. The caller has no lock of the pool. A panic of the subscriber ends here: the caller
            /// may have taken memory, or be a drop.
            #[inline]
            pub(in crate::pool) fn tell(self, pool: u64) {
                #[cfg(feature = "tracing")]
                let _ = std::panic::catch_unwind(|| match self {
                    $(Self::$step(bytes) => tracing::event!(
                        target: "warpool", tracing::Level::$level, pool, bytes, $words
                    ),)+
                })
                .map_err(|panic| crate::device::panicked("subscriber", panic));
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
    Moved, DEBUG "blocks moved";
    Trimmed, DEBUG "trimmed";
    LeftLive, WARN "pool dropped with live blocks";
}
