//! The types that a pool is made of, and which holds which.
//!
//! The application's handle and every [`Lane`], the pool's side of one stream, hold [`Shared`]. The pool's [`Books`]
//! hold each lane until its last block is gone; [`Lanes`] are those in use. A [`Block`] points to its lane without a
//! reference count: see `cache::lifetime`. A stream under capture has [`Private`] memory, whose segments are blocks.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::cache::{Cache, Cached};
use super::core::{CoreLock, Hold};
use super::pressure::ReliefStep;
use super::stats::Steps;
use super::stats::counters::{Counters, Elsewhere, Spilled, Totals};
use super::stats::leaks::Tracker;
use crate::arena::{FrameId, Site};
use crate::device::{Addr, Awake, Device, Left, Recorder, Stream, StreamCore, Timeline};
use crate::error::Result;
use crate::heap::{Id, StreamIndex};
use crate::record::Recording;
use crate::sync::{AtomicI64, AtomicU64, Ending, Latch, Mutex};

/// Ranges of device memory as (address, bytes), ascending, with space between them.
pub(crate) type Ranges = Vec<(Addr, u64)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToHost,
    ToDevice,
}

/// Queues copies of these ranges' contents.
pub(crate) type Copies = Box<dyn FnMut(&Stream, Way, &Ranges) -> Result<()> + Send>;

/// What a sleeping pool needs to wake.
pub(super) struct Sleeping {
    pub(super) copies: Copies,
    pub(super) stream: Stream,
    /// The contents of frames that end at or below this are saved; other frames were never unmapped.
    pub(super) end: Addr,
}

/// What a request that misses its cache reads comes first; the counts of the transfer cache lie beside it.
#[repr(C, align(128))]
pub(crate) struct Shared {
    pub(super) transfer: Transfer,
    pub(crate) base: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) core: CoreLock,
    pub(crate) uid: u64,
    pub(crate) device: Device,
    pub(crate) tracker: Option<Tracker>,
    pub(super) lanes: Mutex<Lanes>,
    /// The lanes that may have free memory, for a thread with the core's lock. In the order in which they were made,
    /// so that every run of a program empties caches in the same order.
    pub(super) listed: Latch<Arc<Vec<Arc<Lane>>>>,
    pub(super) attached: OnceLock<Arc<dyn Attached>>,
    /// Registered steps by rank, called after the ladder's own.
    pub(super) relief: Mutex<Vec<(u8, ReliefStep)>>,
    /// Requests tried again after a registered step.
    pub(super) retries: AtomicU64,
    /// Device memory that layers above have beside the pool.
    pub(crate) overhead: crate::device::Overhead,
    /// Also those of dropped buffers, until their memory is released.
    pub(super) growing: Mutex<Vec<Arc<Pages>>>,
    pub(crate) spilled: Spilled,
    pub(crate) awake: Arc<Awake>,
    pub(super) asleep: Mutex<Option<Sleeping>>,
    pub(super) books: Mutex<Books>,
    pub(crate) recording: Option<Recording>,
}

/// Free blocks of one size that one stream freed.
pub(crate) struct Batch {
    pub(super) bytes: u64,
    pub(super) stream: StreamIndex,
    pub(super) timeline: Arc<Timeline>,
    /// The stream's tick that covers all uses of all blocks.
    pub(super) tick: u64,
    /// Half of what a cache keeps of each: they are written by one thread and read by another.
    pub(super) blocks: Vec<(Addr, Id)>,
}

/// Work of a stream up to a tick.
pub(crate) type Mark = (Arc<Timeline>, u64);
pub(crate) type Marks = Vec<Mark>;

/// A free block that other streams still use: see `cache::used`.
pub(crate) struct Used {
    pub(super) block: Cached,
    /// The stream that freed it.
    pub(super) stream: StreamIndex,
    pub(super) timeline: Arc<Timeline>,
    pub(super) marks: Marks,
}

#[derive(Default)]
pub(crate) struct TransferState {
    /// Oldest first.
    pub(super) batches: Vec<Batch>,
    /// Oldest first.
    pub(super) used: Vec<Used>,
    /// Empty lists, kept so that a batch allocates no host memory.
    pub(super) spare: Vec<Vec<(Addr, Id)>>,
    /// Batches taken.
    pub(super) steps: Steps,
}

/// The transfer cache: see `cache::transfer`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Transfer {
    pub(super) state: Latch<TransferState>,
    /// Work known to be done needs no wait.
    pub(super) opportunistic: bool,
    /// Drops of blocks with declared uses, and nanoseconds in the driver for them.
    pub(super) drops: AtomicU64,
    pub(super) driver_ns: AtomicU64,
    /// Number of batches and of used blocks, to be read without the latch.
    pub(super) count: AtomicU64,
    pub(super) used: AtomicU64,
}

#[derive(Default)]
pub(super) struct PagesState {
    /// The frames by address, and the end of each.
    pub(super) frames: Vec<(FrameId, u64)>,
    /// How many of them the buffer uses.
    pub(super) used: usize,
    /// Work that has to be done before the other frames are released.
    pub(super) awaited: Vec<Mark>,
    /// The buffer was dropped, and its addresses are still reserved.
    pub(super) left: bool,
}

/// The addresses and handles of a growing buffer: see `grow_buf::pages`.
pub(super) struct Pages {
    pub(super) site: Site,
    pub(super) span: u64,
    pub(super) state: Mutex<PagesState>,
    /// Above 0 if it has unused handles, or its buffer was dropped. To be read without the lock.
    pub(super) leaving: AtomicU64,
}

/// State that a layer above keeps with a pool, made on first use.
pub(crate) trait Attached: std::any::Any + Send + Sync {
    /// The pool has no handle any more: drop what only its users need.
    fn pool_closed(&self);

    /// Moves memory to make room for `bytes`, if that is cheaper than mapping `handles` elsewhere; true if it did.
    fn make_room(&self, bytes: u64, handles: u64) -> bool;
}

/// In this order, so that fields that each request reads lie together, before the cache's bins.
#[derive(Default)]
#[repr(C)]
pub(crate) struct LaneState {
    /// Most bytes that the cache keeps.
    pub(super) room: u64,
    /// Misses for which the lane leaves the pool's lock to others: see `cache::crowd`.
    pub(super) crowded: u32,
    /// The cache is not used: the lane is leaving, asleep or under capture.
    pub(crate) aside: bool,
    /// Its stream or its pool has no handle any more.
    pub(super) leaving: bool,
    pub(crate) asleep: bool,
    pub(super) counters: Counters,
    pub(crate) cache: Cache,
    /// While the stream is being captured into a graph: the lane of its private memory.
    pub(crate) captured: Option<Arc<Lane>>,
}

/// What threads of other streams write, on a pair of cache lines of its own, as processors fetch pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Others {
    /// Blocks that keep a retired lane alive, see `cache::lifetime`. Atomic, so that a free elsewhere takes no lock.
    pub(super) outstanding: AtomicI64,
    pub(crate) elsewhere: Elsewhere,
}

/// A pool's side of one stream: see `cache::stream_cache`. The free of its last block ends it.
pub(crate) type Lane = Ending<LaneParts>;

/// The fields that its own threads read and write at each request come first, up to the cache's bins; then those that
/// other threads read.
#[repr(C, align(128))]
pub(crate) struct LaneParts {
    pub(super) timeline: Arc<Timeline>,
    /// Small requests may become slots.
    pub(crate) slots: bool,
    /// See `observers`.
    pub(super) is_observed: bool,
    pub(crate) state: Latch<LaneState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Arc<StreamCore>,
    pub(crate) slot: StreamIndex,
    pub(crate) hold: Hold,
    /// The graph's memory that this lane's blocks are parts of.
    pub(crate) private: Option<Private>,
    pub(crate) others: Others,
}

/// A pointer to a lane that is alive while it is used. Its holder is a block of the lane; or a caller that holds the
/// lane's stream, and its pool or a block of that.
#[derive(Clone, Copy)]
pub(crate) struct LanePtr(NonNull<Lane>);

// SAFETY: a lane may be used from any thread; the pointer is only a way to it.
unsafe impl Send for LanePtr {}
// SAFETY: as above.
unsafe impl Sync for LanePtr {}

impl LanePtr {
    /// No lane; never followed.
    pub(crate) const NONE: Self = Self(NonNull::dangling());

    #[inline]
    pub(crate) fn of(lane: &Lane) -> Self {
        Self(NonNull::from(lane))
    }

    /// # Safety
    /// A holder that the type names exists while the reference is used.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a Lane {
        // SAFETY: the caller vouches that the lane is alive.
        unsafe { self.0.as_ref() }
    }
}

/// The lanes in use by the number of their stream's handle: a stream adopted again has a new one.
pub(super) type Lanes = BTreeMap<u64, Vec<Arc<Lane>>>;

/// The lanes of one stream, and their counts.
#[derive(Default)]
pub(super) struct Served {
    pub(super) lanes: Vec<Arc<Lane>>,
    /// The counts of lanes that ended, and the joint peaks.
    pub(super) past: Totals<3>,
    /// All counts, when last read.
    pub(super) now: Totals<3>,
}

/// The lanes of a pool by stream, each held until it ends, and all counts.
#[derive(Default)]
pub(super) struct Books {
    pub(super) streams: BTreeMap<u64, Served>,
    /// The counts of streams whose lanes ended, and the joint peaks.
    pub(super) past: Totals<3>,
    /// The pool has no handle any more, and makes no lane.
    pub(super) closed: bool,
    /// Lanes that ended since.
    pub(super) gone: Vec<Arc<Lane>>,
}

/// A block of device memory on one stream.
///
/// **Stream order.** Work queued on the block's stream after the allocation may use the memory. Work on another
/// stream must be ordered behind the allocation (an event, or [`Stream::wait_stream`]), and either be ordered before
/// the drop or declared by [`Block::record_use`]. Dropping the block frees it in stream order: work queued before
/// still has the memory.
///
/// The address does not change while the block lives. Safe to send to and use from any thread.
///
/// ```
/// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
/// # let stream = pool.device().stream()?;
/// let block = pool.alloc(&stream, 4000)?;
/// // kernels on `stream` may use block.addr() from here on
/// drop(block); // and those queued before still have it
/// # Ok::<(), warpool::Error>(())
/// ```
pub struct Block {
    pub(super) lane: LanePtr,
    pub(super) addr: Addr,
    pub(super) requested: u64,
    pub(super) extent: IdAndSlack,
    /// Most blocks have none; boxed to keep blocks small.
    pub(super) uses: Option<Box<Uses>>,
}

const _: () = assert!(size_of::<Block>() == 40);

/// The extent of a block, and its bytes beyond those asked for. One word: a block is copied right after it is built,
/// and a load of two narrower stores waits for both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdAndSlack(u64);

impl IdAndSlack {
    #[inline]
    pub(super) fn of(id: Id, bytes: u64, requested: u64) -> Self {
        Self::new(id, (bytes - requested) as u32)
    }

    #[inline]
    pub(super) const fn new(id: Id, slack: u32) -> Self {
        Self((slack as u64) << 32 | id as u64)
    }

    #[inline]
    pub(super) fn id(self) -> Id {
        self.0 as u32
    }

    #[inline]
    pub(super) fn slack(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Uses of a block's memory on other streams.
#[derive(Default)]
pub(super) struct Uses {
    /// Declared by `record_use`.
    pub(super) streams: Vec<Stream>,
    /// Left by a typed buffer of the same memory.
    pub(super) left: Left,
}

/// A block that is cut into parts of a graph's memory.
pub(super) struct Segment {
    pub(super) block: Block,
    /// Bytes of the parts that may be allocated, by address. Other parts are live, or freed and not used again.
    pub(super) free: BTreeMap<Addr, u64>,
    pub(super) live: usize,
    /// End of the highest part ever allocated.
    pub(super) high: Addr,
}

#[derive(Default)]
pub(super) struct Segments {
    pub(super) segments: BTreeMap<Addr, Segment>,
    /// The graph is gone: a segment is freed with its last live part.
    pub(super) released: bool,
}

/// Memory of a graph, one for each pool, stream and capture: see `private`.
pub(crate) struct Private {
    pub(super) recorder: Arc<Recorder>,
    pub(super) parts: Mutex<Segments>,
}
