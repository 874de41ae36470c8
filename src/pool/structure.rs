//! What a pool is made of, and which part holds which.
//!
//! The application's handle holds what is [`Shared`], and so does every [`Lane`], the pool's side of one
//! stream. The pool's [`Books`] hold each lane until its last block is gone; [`Lanes`] are those in use. A
//! [`Block`] points to its lane, without a count: see `cache::lifetime`. A stream under capture has
//! [`Private`] memory, whose segments are blocks. What each of them does is in the file of its name.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::cache::{Cache, Cached};
use super::core::CoreLock;
use super::pressure::{MovesFirst, ReliefStep};
use super::stats::Steps;
use super::stats::counters::{Counters, Elsewhere, Spilled, Totals};
use super::stats::leaks::Tracker;
use crate::arena::FrameId;
use crate::device::{Addr, Awake, Device, Left, Recorder, Stream, StreamCore, Timeline};
use crate::error::Result;
use crate::heap::{Id, StreamIndex};
use crate::record::Recording;
use crate::sync::{AtomicI64, AtomicU64, Latch, Mutex};

/// Device addresses and how many bytes from there on, ascending and apart.
pub(crate) type Ranges = Vec<(Addr, u64)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToHost,
    ToDevice,
}

/// Queues copies of the contents of these ranges.
pub(crate) type Copies = Box<dyn FnMut(&Stream, Way, &Ranges) -> Result<()> + Send>;

/// What a pool that sleeps is to wake with.
pub(super) struct Sleeping {
    pub(super) copies: Copies,
    pub(super) stream: Stream,
    /// The contents of frames that end by here are saved; those of others are where they were.
    pub(super) end: Addr,
}

/// What all lanes and handles of a pool share.
pub(crate) struct Shared {
    pub(crate) uid: u64,
    pub(crate) device: Device,
    pub(crate) base: u64,
    pub(crate) cache_bytes: u64,
    /// Bytes up to which requests may become slots: 0 for a pool without slabs.
    pub(crate) slot_most: u64,
    pub(crate) tracker: Option<Tracker>,
    pub(crate) core: CoreLock,
    pub(super) transfer: Transfer,
    pub(super) lanes: Mutex<Lanes>,
    /// Those lanes for who has the core's lock: each while it may have free memory. In the order in which they were
    /// made, so that caches are emptied in the same order in every run of a program.
    pub(super) listed: Latch<Arc<Vec<Arc<Lane>>>>,
    pub(super) attached: OnceLock<Arc<dyn Attached>>,
    /// Steps after the core's own, by rank.
    pub(super) relief: Mutex<Vec<(u8, ReliefStep)>>,
    /// Asked before handles are mapped elsewhere.
    pub(super) moves_first: OnceLock<MovesFirst>,
    /// Times that a request was tried again after a registered step.
    pub(super) retries: AtomicU64,
    /// Device memory that layers above have beside the pool.
    pub(crate) overhead: crate::device::Overhead,
    /// Of growing buffers, those of buffers that are gone too until they are given back.
    pub(super) growing: Mutex<Vec<Arc<Pages>>>,
    pub(crate) spilled: Spilled,
    pub(crate) awake: Arc<Awake>,
    pub(super) asleep: Mutex<Option<Sleeping>>,
    pub(super) books: Mutex<Books>,
    pub(crate) recording: Option<Recording>,
}

/// Free blocks of one size that one stream freed, kept together.
pub(crate) struct Batch {
    pub(super) bytes: u64,
    pub(super) stream: StreamIndex,
    pub(super) timeline: Arc<Timeline>,
    /// The stream's tick that covers all uses of all blocks.
    pub(super) tick: u64,
    pub(super) blocks: Vec<Cached>,
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
    pub(super) batches: VecDeque<Batch>,
    /// Oldest first.
    pub(super) used: Vec<Used>,
    /// Empty lists, so that the host's heap is not asked for each.
    pub(super) spare: Vec<Vec<Cached>>,
    /// Batches taken, as steps of the ladder count them.
    pub(super) steps: Steps,
}

/// The transfer cache: see `cache::transfer`.
#[derive(Default)]
pub(crate) struct Transfer {
    pub(super) state: Latch<TransferState>,
    /// Batches and used blocks there are, for a look without the latch.
    pub(super) count: AtomicU64,
    pub(super) used: AtomicU64,
    /// Drops of blocks with declared uses, and nanoseconds in the driver for them.
    pub(super) drops: AtomicU64,
    pub(super) driver_ns: AtomicU64,
    /// Whether work that is known to be done needs no wait.
    pub(super) opportunistic: bool,
}

/// The handles of a growing buffer.
#[derive(Default)]
pub(super) struct PagesState {
    /// The frames, by address, and where each ends.
    pub(super) frames: Vec<(FrameId, u64)>,
    /// How many of them the buffer uses.
    pub(super) used: usize,
    /// What the others wait for before they go.
    pub(super) awaited: Vec<Mark>,
    /// The buffer is gone, and its addresses are not given back yet.
    pub(super) left: bool,
}

/// The addresses of a growing buffer, and its handles: see `grow_buf::pages`.
pub(super) struct Pages {
    pub(super) device: Device,
    pub(super) base: Addr,
    pub(super) span: u64,
    pub(super) state: Mutex<PagesState>,
}

/// What a layer above keeps with a pool, made on first use.
pub(crate) trait Attached: std::any::Any + Send + Sync {
    /// The pool has no handle any more: let go of what only the pool's users need.
    fn pool_closed(&self);

    /// By address the streams that blocks moved since were allocated on, as far as nobody else is at them now.
    fn homes(&self) -> HashMap<u64, u64>;
}

/// In this order, so that what each request reads lies together, before the cache's bins.
#[derive(Default)]
#[repr(C)]
pub(crate) struct LaneState {
    /// Most bytes that the cache keeps.
    pub(super) room: u64,
    /// The size that the cache did not have last, and how often in a row.
    pub(super) missed: (u64, u64),
    /// Misses for which the lane leaves the pool's lock to others: see `cache::crowd`.
    pub(super) crowded: u32,
    /// Nothing is allocated or freed the short way: the lane is retired or asleep, or under capture.
    pub(crate) aside: bool,
    /// Nothing more is allocated here: keep nothing.
    pub(crate) retired: bool,
    pub(crate) asleep: bool,
    pub(super) counters: Counters,
    pub(crate) cache: Cache,
    /// While the stream is being captured into a graph: the lane of its private memory.
    pub(crate) captured: Option<Arc<Lane>>,
}

/// Blocks that keep a lane alive once it is retired, see `cache::lifetime`: one atomic, so that a free elsewhere takes
/// no lock.
#[derive(Default)]
pub(crate) struct Outstanding(pub(super) AtomicI64);

/// What threads of other streams write, on cache lines of its own, in pairs, as processors fetch them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Others {
    pub(super) outstanding: Outstanding,
    /// Blocks of this lane that were freed on others.
    pub(crate) elsewhere: Elsewhere,
}

/// A pool's side of one stream: see `cache::stream_cache`. First what each request on its own threads reads, which those
/// write too, up to the cache's bins; then what others read.
#[repr(C, align(128))]
pub(crate) struct Lane {
    pub(super) timeline: Arc<Timeline>,
    pub(super) slot_most: u64,
    /// Somebody is told what becomes of its blocks.
    pub(super) is_observed: bool,
    pub(crate) state: Latch<LaneState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Arc<StreamCore>,
    pub(crate) slot: StreamIndex,
    /// Of all lanes of the slot.
    pub(crate) hold: Arc<()>,
    /// Of a lane whose blocks are parts of a graph's memory.
    pub(crate) private: Option<Arc<Private>>,
    pub(crate) others: Others,
}

/// A pointer to a lane that is there for as long as it is used: the holder is a block of the lane, or holds a handle
/// of its stream, and of its pool or a block of that.
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
    /// One of the holders that the type names exists for as long as the reference is used.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a Lane {
        // SAFETY: the caller vouches that the lane is alive.
        unsafe { self.0.as_ref() }
    }
}

#[derive(Default)]
pub(crate) struct Lanes {
    /// By the number of the stream's handle: a stream adopted again is a new use. Of the lanes of one stream the
    /// first is for all threads, and each later one was made for the thread of the number.
    pub(super) by_handle: BTreeMap<u64, Vec<(u64, Arc<Lane>)>>,
    /// The pool has no handle any more.
    pub(crate) closed: bool,
}

/// The stream caches of one stream.
#[derive(Default)]
pub(super) struct Served {
    pub(super) lanes: Vec<Arc<Lane>>,
    /// Of stream caches that are gone, and the joint peaks.
    pub(super) past: Totals<3>,
    /// As it was read last.
    pub(super) now: Totals<3>,
}

/// The counts of all streams a pool has served: the stream caches there are by stream, each held until it
/// ends, and the sum of those gone with the joint peaks of all.
#[derive(Default)]
pub(super) struct Books {
    pub(super) streams: BTreeMap<u64, Served>,
    pub(super) past: Totals<3>,
    /// The pool has no handle any more, and stream caches that ended since.
    pub(super) closed: bool,
    pub(super) gone: Vec<Arc<Lane>>,
}

/// A block of device memory on one stream.
///
/// **Stream order.** The memory may be used by work queued on the block's stream after the
/// allocation. Work on another stream must be ordered behind that (an event, or
/// [`Stream::wait_stream`]) and either ordered before the drop or declared by
/// [`Block::record_use`]. Dropping the block frees it in stream order: work queued before still
/// has the memory.
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
    /// What most blocks do not have, boxed to keep the common block small.
    pub(super) uses: Option<Box<Uses>>,
}

const _: () = assert!(size_of::<Block>() == 40);

/// The extent of a block, and its bytes beyond those asked for. One word: a block is copied right after it was put
/// together, and a load of what two narrower stores wrote waits for both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdAndSlack(u64);

impl IdAndSlack {
    /// Of a block of `bytes` for a request of so many.
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

/// What a block carries beyond its memory.
#[derive(Default)]
pub(super) struct Uses {
    /// Streams declared by `record_use`.
    pub(super) streams: Vec<Stream>,
    /// Uses of a typed buffer that this was the memory of.
    pub(super) left: Left,
}

/// A block that parts of a graph's memory are handed out of.
pub(super) struct Segment {
    pub(super) block: Block,
    /// Bytes of the free parts, by address; the others were handed out, and are perhaps back.
    pub(super) free: BTreeMap<Addr, u64>,
    pub(super) live: usize,
    /// End of the highest part ever handed out.
    pub(super) high: Addr,
}

/// The segments of private memory, by address.
#[derive(Default)]
pub(super) struct Segments {
    pub(super) segments: BTreeMap<Addr, Segment>,
    /// The graph is gone: a segment goes with its last live part.
    pub(super) released: bool,
}

/// Memory of a graph, one for each pool, stream and capture: see `private`.
pub(crate) struct Private {
    pub(super) recorder: Arc<Recorder>,
    pub(super) parts: Mutex<Segments>,
}
