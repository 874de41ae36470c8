//! The stream-ordered pool. `structure` has the types that it is made of.
//!
//! # The path of a request
//!
//! 1. [`Pool::alloc`] finds the calling thread's *lane* of the stream (`cache::thread_map`). The lane's cache has
//!    blocks that were freed there, by size (`cache`): two locked instructions, no other thread.
//! 2. If the cache has none, `Lane::serve_ready` takes a hole that is ready, under the pool's lock. If other threads
//!    have the lock, the lane takes a slightly larger block of its cache (`cache::crowd`).
//! 3. Other requests climb the **ladder** (`ladder`), a list of steps, cheap ones first. The first that works
//!    serves the request:
//!    - *ready*: a batch, a slot or a hole that no queued work uses, or that the stream runs behind
//!      (`cache::transfer`, `holes`; in a pool that fragments made grow, `sparing`), also after asking the driver how
//!      far the streams are;
//!    - *waiting*: blocks that other streams use, other streams' caches and holes, behind a wait on the device
//!      (`cache::used`, `cache::transfer`, `core`);
//!    - *mapped*: new handles while the pool is small, then idle handles mapped elsewhere (`mapping`);
//!    - *measures*: merging, waiting, releasing handles that do not fit (`release`);
//!    - *help*: what layers above and the application registered (`pressure`).
//! 4. A step looks at the **heap** (`crate::heap`, integers only) under the pool's lock. Driver calls are **jobs**
//!    (`job`): a job holds its memory and counts its bytes under the lock, calls the driver without it, and books the
//!    outcome under it. Mappings (`grow`), releases (`release`) and questions to the driver are jobs.
//! 5. A free puts the block into the cache of the lane it was freed on. A full cache passes blocks on to the transfer
//!    cache or the heap (`cache::transfer`). A block that other streams still use waits until they are done
//!    (`cache::used`).
//!
//! `tuning` has all constants with their reasons, `private` the memory of streams under capture, `stats` the
//! counters, `observers` the recording and tracking of blocks.

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
mod sparing;
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

use crate::device::{Device, Stream, beside, may_wait};
use crate::error::{Error, Result, refuse};
use crate::sync::{Mutex, is_latched};
use cache::thread_map;
use structure::Lane;

pub(crate) use self::core::Core;
pub(crate) use crate::heap::{Epoch, UNIT};
pub(crate) use ask::{Ask, Questions};
pub(crate) use buf::bytes_of;
pub(crate) use job::Job;
pub(crate) use moves::Run;
pub(crate) use observers::Event;
pub(crate) use pressure::Need;
pub(crate) use stats::counters::Spilled;
pub(crate) use stats::leaks::tag;
pub(crate) use structure::{Attached, Copies, Ranges, Shared, Way};
pub(crate) use tuning::{LEAST_SLACK, MOST_TURNS};
pub(crate) use view::{bounds, same_len};

/// Rank of releasing idle memory of other parts: after all steps with the part's own memory.
const FAMILY_RANK: u8 = 150;
const APPLICATION_RANK: u8 = 200;

/// A pool of device memory. Cheap to clone; all clones are the same pool.
///
/// Blocks are allocated and freed in the order of a [`Stream`]: an allocation never waits on the host for the device,
/// and the next allocation on a stream may reuse memory freed on it at once. Other streams get that memory once the
/// work that uses it is done, or wait for it on the device.
///
/// The pool reserves addresses when it is made and takes physical memory as needed, up to [`PoolConfig::limit`]. It
/// releases memory on [`Pool::trim`], and when its last handle and last block are dropped, which waits for work that
/// still uses freed memory.
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
    /// Copied here because every allocation reads it: the handle may be in no processor cache.
    uid: u64,
}

struct Handle {
    parts: Mutex<BTreeMap<String, Pool>>,
    /// The pool that this is a part of.
    whole: Weak<Handle>,
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        // It waits for blocks that other streams use.
        beside(move || shared.close());
    }
}

impl Pool {
    /// Makes a pool on `device`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has too little for [`PoolConfig::preallocate`]; what the driver said.
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

    /// The lane for the calling thread. A thread that often finds the lane taken gets one of its own.
    fn lane<'a>(&'a self, stream: &'a Stream) -> Result<&'a Lane> {
        let found = match self.remembered_lane(stream) {
            None => self.shared().open_lane(stream)?,
            Some(lane) if !is_latched(&lane.state) || !thread_map::met() => return Ok(lane),
            Some(lane) => match self.shared().part(stream, lane) {
                None => return Ok(lane),
                Some(own) => own,
            },
        };
        // SAFETY: the caller holds the pool and the stream.
        Ok(unsafe { thread_map::remember(self.uid, stream.handle_id(), &found).get() })
    }

    /// Allocates at least `bytes` on `stream`. In a host call that the device's backend queued, only from memory that is
    /// ready, as it may not call the driver.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, more than 2^46, a stream of another device, or if a host call would need more;
    /// [`Error::OutOfMemory`] when every step of the ladder failed; what the driver said.
    #[inline(always)]
    pub fn alloc(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        if let Some(lane) = self.remembered_lane(stream) {
            let (addr, extent) = lane.serve_kept(bytes);
            if addr != 0 {
                return Ok(Block::unseen(lane, addr, extent, bytes));
            }
        }
        // Matched and rebuilt, so that the block returned above need not be in memory to meet this one.
        match self.alloc_slowly(stream, bytes) {
            Ok(block) => Ok(block),
            Err(error) => Err(error),
        }
    }

    /// Serves what [`Lane::serve_kept`] does not.
    #[cold]
    #[inline(never)]
    fn alloc_slowly(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        let lane = self.lane(stream)?;
        lane.alloc(bytes, lane.slots)
    }

    /// Releases idle memory to the device, keeps at least `keep` bytes, and returns the bytes released. Waits on
    /// the host for work that still uses the memory.
    ///
    /// Memory that growing buffers no longer use is always released, as no request can use it.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a host call; what the driver said: memory that was ready is released all the same.
    #[doc(alias("empty_cache", "release_memory"))]
    pub fn trim(&self, keep: u64) -> Result<u64> {
        may_wait()?;
        let (released, trimmed) = self.shared().trim(keep);
        trimmed.map(|()| released)
    }

    /// Sets the most physical bytes the pool may hold; `None` for as much as the device has. A pool that holds more
    /// keeps it until it is trimmed.
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

    /// Sets the physical bytes above which idle memory is released; `None` keeps it. See [`PoolConfig::soft_limit`].
    pub fn set_soft_limit(&self, bytes: impl Into<Option<u64>>) {
        self.shared().core.lock().config.soft_limit = bytes.into();
    }

    /// Limits the pool to `part` of the device's memory, `0.0 < part <= 1.0`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part outside that range.
    #[doc(alias("set_per_process_memory_fraction", "memory_fraction"))]
    pub fn set_fraction(&self, part: f64) -> Result<()> {
        refuse!(!(part > 0.0 && part <= 1.0) => "part", "{part} is not in (0, 1]");
        let all = self.device().info().total_bytes;
        self.set_limit((all as f64 * part) as u64);
        Ok(())
    }

    /// Registers a callback for requests that are about to fail: it may spill, free, or shrink a batch.
    ///
    /// `callback` runs on the allocating thread without a lock of the pool, so it may allocate, free and trim. It is
    /// called again while it returns [`Relief::Retry`] and the request still fails. Its own requests call no
    /// callback. A panic goes on to the caller that allocates, and the pool is as it was. It must not wait for a
    /// thread that begins a capture of the requesting stream: [`Pool::alloc_from`] keeps captures away until its copy is
    /// made. It is dropped with the pool's last handle, so it may own blocks of the pool, but no handle.
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
        let step = move |need: &Need<'_>| callback(&(need.told)()) == Relief::Retry;
        self.shared().add_relief(APPLICATION_RANK, Arc::new(step));
    }

    /// Waits until all events are in the file of [`PoolConfig::record`], and returns its path; `None` without a
    /// recording.
    ///
    /// # Errors
    /// What went wrong with the file, now or before.
    pub fn flush_recording(&self) -> Result<Option<std::path::PathBuf>> {
        let recording = self.shared().recording.as_ref();
        let flushed = |it: &crate::record::Recording| it.flush().map(|()| it.path().to_owned());
        recording.map(flushed).transpose()
    }

    /// Checks the pool's state, for tests: no overlap, no lost byte, sums agree, all work that free bytes wait for
    /// can be waited for. A walk under the pool's lock.
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
