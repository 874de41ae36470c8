//! The part of a pool that its lanes and handles share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::ask::{self, Ask};
use super::cache::thread_map::{MOST_LANES, this_thread};
use super::core::{Core, CoreGuard, CoreLock, Hold};
use super::grow_buf;
use super::job::Job;
use super::stats::Told;
use super::stats::leaks::Tracker;
use super::structure::{Attached, Block, Lane, Lanes, Shared, Transfer};
use super::tuning::{LEAST_CACHE, MANY_LEFT};
use super::{APPLICATION_RANK, PoolConfig};
use crate::device::{Device, Recorder, Stream, StreamWatcher, beside, is_running, lock};
use crate::error::{Error, Result, refuse};
use crate::record::Recording;
use crate::sync::{AtomicU64, Latch, Mutex, latch, latch_mut};

impl Shared {
    pub(crate) fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        static NEXT_UID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let cache_bytes = config.cache_bytes.unwrap_or(LEAST_CACHE);
        let tracker = config.track.then(|| Tracker {
            backtraces: config.backtraces,
            entries: Mutex::default(),
        });
        let transfer = Transfer {
            opportunistic: config.reuse.opportunistic,
            ..Transfer::default()
        };
        if config.sleeps {
            device.let_sleep();
        }
        let record = config.record.clone();
        let core = Core::new(device, config)?;
        let mut shared = Self {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            base: core.arena.base(),
            cache_bytes,
            tracker,
            core: CoreLock::new(core),
            transfer,
            lanes: Mutex::default(),
            listed: Latch::default(),
            attached: OnceLock::new(),
            relief: Mutex::default(),
            retries: AtomicU64::new(0),
            overhead: Default::default(),
            growing: Mutex::default(),
            spilled: Default::default(),
            awake: Arc::default(),
            asleep: Mutex::default(),
            books: Mutex::default(),
            recording: None,
        };
        shared.preallocate()?;
        // Last, as it empties its file: a pool that cannot be made leaves an older recording alone.
        shared.recording = Recording::asked_for(record.as_deref())?;
        Ok(shared)
    }

    fn preallocate(&self) -> Result<()> {
        let mut core = self.core.lock();
        let (most, granule) = (core.config.preallocate, core.arena.granule());
        let bytes = most.min(core.limit()) / granule * granule;
        let made = core.create_frames(0, bytes);
        drop(core);
        match made {
            Err(error) if error.is_device_exhausted() => Err(self.out_of_memory(bytes)),
            made => made,
        }
    }

    /// The attached state, made by `make` on first use; `None` if it is of another type.
    pub(crate) fn attached<A: Attached>(&self, make: impl FnOnce() -> Arc<A>) -> Option<Arc<A>> {
        let attached = Arc::clone(self.attached.get_or_init(|| make() as _));
        let attached: Arc<dyn std::any::Any + Send + Sync> = attached;
        attached.downcast().ok()
    }

    /// The calling thread's lane of `stream`, made on first use; `None` if there is none in a closed pool.
    pub(crate) fn lane(self: &Arc<Self>, stream: &Stream) -> Result<Option<Arc<Lane>>> {
        self.refuse_other_device(stream)?;
        let mut lanes = lock(&self.lanes);
        if let Some(of_stream) = lanes.get(&stream.handle_id()) {
            let at = this_thread() as usize % of_stream.len();
            return Ok(Some(Arc::clone(&of_stream[at])));
        }
        if lock(&self.books).closed {
            return Ok(None);
        }
        let core = stream.core();
        let mut heap = self.core.lock();
        let hold = heap.add_stream(&core.timeline, core.gate);
        let asks = !core.gate && !is_running() && hold.is_multiple_of(MANY_LEFT);
        drop(heap);
        let watcher = Arc::downgrade(self);
        stream.watch(watcher);
        let lane = self.add_lane(&mut lanes, stream, &hold);
        drop(lanes);
        // Without it, only slots are kept.
        let _ = asks.then(|| self.catch_up(false));
        Ok(Some(lane))
    }

    pub(super) fn refuse_other_device(&self, stream: &Stream) -> Result<()> {
        let same = self.device.same(stream.device());
        refuse!(!same => "stream", "it is of another device than the pool");
        Ok(())
    }

    fn add_lane(self: &Arc<Self>, lanes: &mut Lanes, stream: &Stream, hold: &Hold) -> Arc<Lane> {
        let lane = Lane::new(self, stream.core(), hold, None);
        // The pool already watches the stream: a capture that begins later finds the lane.
        lane.route(stream.recorder().as_ref());
        if !stream.core().gate {
            Arc::make_mut(&mut latch(&self.listed)).push(Arc::clone(&lane));
        }
        let asleep = self.core.lock().asleep;
        lane.change(|state| state.asleep = asleep);
        let of_stream = lanes.entry(stream.handle_id()).or_default();
        of_stream.push(Arc::clone(&lane));
        lane
    }

    /// Makes a lane for the calling thread, which often finds `lane` of `stream` taken; `None` if there are
    /// enough. The caller holds the pool and the stream.
    pub(crate) fn part(self: &Arc<Self>, stream: &Stream, lane: &Lane) -> Option<Arc<Lane>> {
        let mut lanes = lock(&self.lanes);
        let count = lanes.get(&stream.handle_id()).map_or(0, Vec::len);
        let may_part = (1..*MOST_LANES).contains(&count);
        may_part.then(|| self.add_lane(&mut lanes, stream, &lane.hold))
    }

    /// The lane of `stream`, while the pool has a handle.
    pub(crate) fn open_lane(self: &Arc<Self>, stream: &Stream) -> Result<Arc<Lane>> {
        let lane = self.lane(stream)?;
        lane.ok_or_else(|| Error::invalid("pool", "it is closed: make another"))
    }

    pub(crate) fn set_movable(&self, block: &Block, movable: bool) {
        // A part of a graph's memory has no extent and does not move.
        if !block.is_private() {
            (self.core.lock().extents).set_movable(block.id(), movable);
        }
    }

    /// Begins a job if there is anything to do, runs it without the lock, and ends it.
    pub(crate) fn work(&self, begin: impl FnOnce(&mut Core) -> Option<Job>) -> Result<()> {
        let Some(job) = begin(&mut self.core.lock()) else {
            return Ok(());
        };
        let outcome = job.run();
        self.core.lock().end(outcome).map(drop)
    }

    /// The core, with the caches of all streams emptied into it.
    pub(crate) fn lock_drained(&self) -> CoreGuard<'_> {
        let mut core = self.core.lock();
        self.drain(None, &mut core);
        core
    }

    pub(super) fn listed(&self) -> Arc<Vec<Arc<Lane>>> {
        Arc::clone(&latch(&self.listed))
    }

    /// Called when the application drops its last handle: retires all lanes. Live blocks keep the pool.
    pub(crate) fn close(&self) {
        if let Some(attached) = self.attached.get() {
            attached.pool_closed();
        }
        // The application's callbacks may own blocks of the pool, which keep it. They are dropped without the lock.
        let is_its = |step: &mut (u8, _)| step.0 == APPLICATION_RANK;
        let callbacks: Vec<_> = lock(&self.relief).extract_if(.., is_its).collect();
        drop(callbacks);
        // First, so that no lane is made once these are taken.
        lock(&self.books).closed = true;
        let lanes = std::mem::take(&mut *lock(&self.lanes));
        self.retire(&lanes.into_values().flatten().collect::<Vec<_>>());
        let mut core = self.core.lock();
        let live = core.live();
        if live > 0 {
            core.count(Told::LeftLive(live));
        }
        drop(core);
        self.tell();
    }

    /// Retires lanes that no thread finds any more. The caller drops them without a lock: a stream may end with its
    /// last lane.
    fn retire(&self, lanes: &[Arc<Lane>]) {
        lanes.iter().for_each(|lane| lane.wait_for_used());
        (lanes.iter()).for_each(|lane| lane.retire(&mut self.core.lock()));
        lanes.iter().for_each(|lane| lane.leave());
    }

    /// Sends the noted events to the subscriber, without a lock of the pool.
    #[inline]
    pub(crate) fn tell(&self) {
        if cfg!(feature = "tracing") {
            let notes = std::mem::take(&mut self.core.lock().told);
            notes.into_iter().for_each(|step| step.tell(self.uid));
        }
    }
}

impl Drop for Shared {
    /// Waits for work that uses free memory, then unmaps all. A device that fails to wait runs no more work.
    fn drop(&mut self) {
        let core = latch_mut(&mut self.core);
        let waits = core.ask_of_all(Ask::Done);
        let arena = core.arena.take();
        let growing = std::mem::take(&mut *lock(&self.growing));
        if crate::sync::get_mut(&mut self.asleep).is_some() {
            self.device.resume(&self.awake);
        }
        beside(move || {
            let _ = ask::put(&waits, &mut 0);
            grow_buf::end(&growing, arena);
        });
    }
}

impl StreamWatcher for Shared {
    fn stream_retired(&self, handle: u64) {
        let lanes = lock(&self.lanes).remove(&handle);
        self.retire(&lanes.unwrap_or_default());
    }

    fn stream_captured(&self, stream: &Stream, recorder: Option<&Arc<Recorder>>) {
        let lanes = lock(&self.lanes).get(&stream.handle_id()).cloned();
        let each = lanes.iter().flatten();
        each.for_each(|lane| lane.route(recorder));
    }
}
