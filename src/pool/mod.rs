//! The stream-ordered pool. What a pool is made of is in `structure`, and what each part does in the file of
//! its name.
//!
//! # The path of a request
//!
//! 1. [`Pool::alloc`] finds the calling thread's *lane* of the stream (`cache::thread_map`). Its cache has what was
//!    freed there, by size (`cache`): two locked instructions, no other thread.
//! 2. What the cache has not, a hole may have that is ready: `Lane::serve_ready`, under the pool's lock. Where
//!    others have the lock, the lane makes do with a block nearly of the size (`cache::crowd`).
//! 3. All else climbs the **ladder** (`ladder`), one list of steps, the cheap ones first; the first that works
//!    serves the request:
//!    - *ready*: a batch, a slot or a hole that nothing queued uses, or that the stream runs behind
//!      (`cache::transfer`, `holes`); what the driver says when asked how far the streams are;
//!    - *waiting*: blocks that others still use, other streams' caches and holes, behind a wait on the device
//!      (`cache::used`, `cache::transfer`, `core`);
//!    - *mapped*: new handles while the pool is small, then idle handles mapped elsewhere (`mapping`);
//!    - *measures*: merging, waiting, giving back what does not fit (`release`);
//!    - *help*: what layers above and the application registered (`pressure`).
//! 4. A step looks at the **heap** (`crate::heap`, integers only) under the pool's lock. What calls the
//!    driver is a **job** (`job`): its memory is held and its bytes are counted under the lock, the driver is
//!    called without it, and then what came of it is booked. Mappings (`grow`), releases (`release`) and
//!    questions to the driver are jobs.
//! 5. A block freed goes to the cache of the lane it was freed on; what that has no room for goes
//!    to the transfer cache or into the heap (`cache::transfer`). One that other streams still use is kept until
//!    they are done (`cache::used`).
//!
//! Every constant of these is in `tuning`, with its reason. A stream under capture has memory of its graph's
//! (`private`). `stats` has what is counted on the way, and `observers` who listens to what becomes of blocks.

mod ask;
mod block;
mod buf;
mod cache;
mod config;
mod core;

mod grow;
mod grow_buf;
mod holes;
mod job;
mod kernel;
mod ladder;
mod mapping;
mod moves;
mod observers;
mod pace;
mod parts;
mod pressure;
mod private;
mod release;
mod shared;
mod sleep;
mod stats;
mod structure;
mod tuning;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

pub use buf::PoolBuf;
pub use config::{HandleSize, PoolConfig};
pub use grow_buf::GrowBuf;
pub use kernel::Kernel;
pub use pressure::{Pressure, Relief};
#[doc(hidden)]
pub use stats::SMALL_BYTES;
pub use stats::leaks::{LeakReport, LiveBlock, TagScope, tag_scope};
pub use stats::snapshot::{Piece, PieceState, Snapshot};
pub use stats::{BlockStats, ClassStats, Counter, PoolStats, Steps, StreamStats};
pub use structure::Block;
pub use view::{Rows, RowsMut, View, ViewMut};

use crate::device::{Device, Stream};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use cache::{MISSED, thread_map};
use structure::{Lane, LanePtr};

pub(crate) use self::core::Core;
pub(crate) use crate::heap::{Epoch, UNIT};
pub(crate) use buf::bytes_of;
pub(crate) use moves::Run;
pub(crate) use observers::Event;
pub(crate) use stats::counters::Spilled;
pub(crate) use structure::{Attached, Copies, Ranges, Shared, Way};
pub(crate) use tuning::LEAST_SLACK;
pub(crate) use view::{bounds, same_len};

/// Rank of the application's callbacks among the registered steps.
const APPLICATION_RANK: u8 = 200;

/// A pool of device memory. Cheap to clone; all clones are the same pool.
///
/// Blocks are allocated and freed in the order of a [`Stream`]: an allocation never waits on the host for
/// the device, and memory freed on a stream is there again for the next allocation on it. Other streams get
/// it once its work is done, or wait for it on the device.
///
/// The pool reserves addresses when it is made and takes physical memory as it is needed, up to
/// [`PoolConfig::limit`]. It gives memory back on [`Pool::trim`] and when the last handle and the
/// last block are dropped, which waits for work that still uses freed memory.
///
/// Safe to use from any thread. Threads with streams of their own share no lock on the hot path.
///
/// ```
/// use warpool::{Device, Pool, PoolConfig};
///
/// let device = Device::host()?;
/// let pool = Pool::new(&device, PoolConfig::default().limit(1 << 30))?;
/// let stream = pool.device().stream()?;
/// let block = pool.alloc(&stream, 1 << 20)?;
/// let addr = block.addr();
/// drop(block); // freed in the stream's order
/// let again = pool.alloc(&stream, 1 << 20)?;
/// assert_eq!(again.addr(), addr);
/// drop(again);
/// assert!(pool.trim(0)? >= 1 << 20); // back to the device
/// # Ok::<(), warpool::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    handle: Arc<Handle>,
    /// What every allocation reads is here: where the handle is, it may be in no cache of the processor.
    uid: u64,
}

struct Handle {
    /// What was allocated by tag.
    parts: Mutex<BTreeMap<String, Pool>>,
    /// The pool that this is a part of.
    whole: Weak<Handle>,
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Pool {
    /// Makes a pool on `device`.
    ///
    /// # Errors
    /// What the driver said when addresses were reserved or memory preallocated.
    pub fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        Self::part_of(Weak::new(), device, config)
    }

    fn part_of(whole: Weak<Handle>, device: &Device, config: PoolConfig) -> Result<Self> {
        let shared = Arc::new(Shared::new(device, config)?);
        Ok(Self::of(Arc::new(Handle {
            parts: Mutex::default(),
            whole,
            shared,
        })))
    }

    fn of(handle: Arc<Handle>) -> Self {
        let uid = handle.shared.uid;
        Self { handle, uid }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// The device the pool is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared().device
    }

    #[inline]
    fn remembered_lane<'a>(&'a self, stream: &'a Stream) -> Option<&'a Lane> {
        let lane = thread_map::remembered(self.uid, stream.handle_id())?;
        // SAFETY: the caller holds the pool and the stream.
        Some(unsafe { lane.get() })
    }

    /// The lane for the calling thread, its own if it keeps finding others at it.
    fn lane<'a>(&'a self, stream: &'a Stream) -> Result<&'a Lane> {
        let found = match self.remembered_lane(stream) {
            None => self.shared().open_lane(stream)?,
            Some(lane) if !lane.is_busy() || !thread_map::met() => return Ok(lane),
            Some(lane) => match self.shared().part(stream, lane) {
                None => return Ok(lane),
                Some(own) => own,
            },
        };
        thread_map::remember(self.uid, stream.handle_id(), &found);
        // SAFETY: the caller holds the pool and the stream.
        Ok(unsafe { LanePtr::of(&found).get() })
    }

    /// Allocates at least `bytes` on `stream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, more than 2^46, or a stream of another device;
    /// [`Error::OutOfMemory`] when every step of the ladder failed; what the driver said.
    #[inline(always)]
    pub fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        let mut missed = None;
        if let Some(lane) = self.remembered_lane(stream) {
            let (addr, extent) = lane.serve_kept(bytes);
            if addr != 0 {
                return Ok(Block::unseen(lane, addr, extent, bytes));
            }
            missed = (extent == MISSED).then_some(lane);
        }
        // Taken apart, so that a block served above need not pass through memory to meet this one.
        match self.alloc_slowly(stream, bytes, missed) {
            Ok(block) => Ok(block),
            Err(error) => Err(error),
        }
    }

    /// What the cache does not serve; `missed` is the lane that has looked already.
    #[cold]
    #[inline(never)]
    fn alloc_slowly(&self, stream: &Stream, bytes: u64, missed: Option<&Lane>) -> Result<Block> {
        match missed {
            Some(lane) => lane.alloc_missed(bytes),
            None => self.lane(stream)?.alloc(bytes),
        }
    }

    /// Gives idle memory back to the device, keeping at least `keep` bytes, and returns the bytes
    /// released. Waits on the host for work that still uses the memory.
    ///
    /// What growing buffers no longer use goes however much is kept, as no request could have it.
    ///
    /// # Errors
    /// What the driver said; what was released until then stays released.
    #[doc(alias = "empty_cache")]
    #[doc(alias = "release_memory")]
    pub fn trim(&self, keep: u64) -> Result<u64> {
        let released = self.shared().trim(keep);
        self.shared().tell();
        released
    }

    /// Changes the most physical bytes the pool may hold; `None` for as much as the device gives.
    /// A pool that holds more keeps it until it is trimmed.
    ///
    /// ```
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// pool.set_limit(64 << 20);
    /// assert!(pool.alloc(&stream, 65 << 20).is_err());
    /// pool.set_fraction(0.5)?; // of the device's memory
    /// pool.set_limit(None);
    /// pool.set_soft_limit(64 << 20);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    pub fn set_limit(&self, limit: impl Into<Option<u64>>) {
        self.shared().core.lock().config.limit = limit.into();
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.shared().core.lock().config.limit
    }

    /// Changes the physical bytes above which idle memory is given back, as [`PoolConfig::soft_limit`]
    /// says; `None` to keep it.
    pub fn set_soft_limit(&self, bytes: impl Into<Option<u64>>) {
        self.shared().core.lock().config.soft_limit = bytes.into();
    }

    /// Limits the pool to `part` of the device's memory, `0.0 < part <= 1.0`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part outside that range.
    #[doc(alias = "set_per_process_memory_fraction")]
    #[doc(alias = "memory_fraction")]
    pub fn set_fraction(&self, part: f64) -> Result<()> {
        if !(part > 0.0 && part <= 1.0) {
            return Err(Error::invalid("part", format!("{part} is not in (0, 1]")));
        }
        let all = self.device().info().total_bytes;
        self.set_limit((all as f64 * part) as u64);
        Ok(())
    }

    /// Registers what the application does before a request fails: spill, free, shrink a batch.
    ///
    /// `callback` runs on the allocating thread without a lock of the pool, so it may allocate, free and
    /// trim. It is asked again while it says [`Relief::Retry`] and the request still fails. Its own requests
    /// ask no callback. A panic goes on to whoever asked for memory, and the pool is as it was.
    ///
    /// ```
    /// # let device = warpool::Device::host()?;
    /// # let stream = device.stream()?;
    /// use std::sync::Mutex;
    /// use warpool::pool::{Pressure, Relief};
    /// use warpool::{Block, PoolConfig};
    ///
    /// let pool = warpool::Pool::new(&device, PoolConfig::default().limit(4 << 20))?;
    /// let spare: Mutex<Vec<Block>> = Mutex::new(vec![pool.alloc(&stream, 3 << 20)?]);
    /// pool.on_pressure(move |_: &Pressure| {
    ///     let taken = spare.lock().ok().and_then(|mut spare| spare.pop());
    ///     if taken.is_some() { Relief::Retry } else { Relief::Exhausted }
    /// });
    /// let block = pool.alloc(&stream, 3 << 20)?; // the spare block made room
    /// # drop(block);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    pub fn on_pressure(&self, callback: impl Fn(&Pressure) -> Relief + Send + Sync + 'static) {
        self.shared()
            .add_relief(APPLICATION_RANK, Arc::new(callback));
    }

    /// Waits until all that was asked for so far is in the file of [`PoolConfig::record`], and returns its
    /// path; `None` where nothing is recorded.
    ///
    /// # Errors
    /// What went wrong with the file, now or before.
    pub fn flush_recording(&self) -> Result<Option<std::path::PathBuf>> {
        let recording = self.shared().recording.as_ref();
        let flushed = |it: &crate::record::Recording| it.flush().map(|()| it.path().to_owned());
        recording.map(flushed).transpose()
    }

    /// Everything that is counted, by size class and stream. Costs some microseconds, in which allocations
    /// wait for the reader no longer than for each other.
    #[doc(alias = "memory_stats")]
    #[doc(alias = "memory_summary")]
    #[doc(alias = "memory_allocated")]
    #[doc(alias = "memory_reserved")]
    #[doc(alias = "max_memory_allocated")]
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.shared().stats()
    }

    /// Sets all peaks to what they count now: the pool's, those of its classes and of its streams.
    #[doc(alias = "reset_peak_memory_stats")]
    pub fn reset_peaks(&self) {
        self.shared().reset_peaks();
    }

    /// Checks the pool's state: no overlap, no lost byte, sums agree, every free byte's history can be
    /// waited for. For tests; walks everything under the pool's lock.
    ///
    /// # Errors
    /// What is wrong, in words.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> std::result::Result<(), String> {
        self.shared().core.lock().check()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} on {:?})", self.shared().uid, self.device())
    }
}

#[cfg(test)]
mod tests;
