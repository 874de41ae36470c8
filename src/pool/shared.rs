//! What all lanes and handles of a pool share, and the climb of a request up the ladder.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::block::Block;
use super::core::Core;
use super::lane::{Lane, SlotHold};
use super::seats::Lanes;
use super::stats::report::Ledger;
use super::told::Told;
use super::track::Tracker;
use super::transfer::Transfer;
use super::{PoolConfig, Pressure, Relief};
use crate::device::{Device, Recorder, Stream, StreamWatcher, beside, lock};
use crate::error::{Error, OutOfMemory, Result};
use crate::heap::Grant;
use crate::heap::StreamIndex;
use crate::heap::size_class::{self, is_slot};
use crate::seeded::seeded;
use crate::sync::{
    AtomicU64, Latch, LatchGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, latch,
    latch_mut,
};

/// A step above the core: frees or moves memory, and says whether it may have helped.
pub(crate) type ReliefStep = Arc<dyn Fn(&Pressure) -> Relief + Send + Sync>;

/// Moves what makes room for a request of so many bytes where that is cheaper than mapping so many
/// handles elsewhere; says whether it did.
pub(crate) type MovesFirst = Arc<dyn Fn(u64, u64) -> bool + Send + Sync>;

/// How a climb of the ladder ended.
enum Climbed {
    /// With a grant, and whether the pool is over its soft limit.
    Served(Grant, bool),
    /// Before so many handles are mapped elsewhere.
    Dear(u64),
    Refused,
}

/// Rank of what moves memory before handles are mapped elsewhere; below all steps.
const MOVES_FIRST_RANK: u8 = 0;

crate::sync::thread_local! {
    /// Steps under way on this thread: the pool's number and the step's rank.
    static UNDER_WAY: RefCell<Vec<(u64, u8)>> = const { RefCell::new(Vec::new()) };
}

/// A step under way on this thread. What the step itself asks of the pool is helped only by steps of
/// lower rank, so that no request asks for help without an end.
struct Asked(());

impl Asked {
    /// `None` where a step of this pool, of this rank or a lower one, is under way already.
    fn of(pool: u64, rank: u8) -> Option<Self> {
        UNDER_WAY.with(|steps| {
            let mut steps = steps.borrow_mut();
            let again = steps.iter().any(|&(uid, of)| uid == pool && of <= rank);
            if again && !seeded!("pressure-asks-again-and-again") {
                return None;
            }
            steps.push((pool, rank));
            Some(Self(()))
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        UNDER_WAY.with(|steps| _ = steps.borrow_mut().pop());
    }
}

/// What a layer above keeps with a pool, made on first use.
pub(crate) trait Attached: std::any::Any + Send + Sync {
    /// The pool has no handle any more: let go of what only the pool's users need.
    fn pool_closed(&self);
}

/// The core behind its lock.
pub(crate) struct CoreLock(Latch<Core>);

/// The core's lock held.
pub(crate) type CoreGuard<'l> = LatchGuard<'l, Core>;

impl CoreLock {
    #[inline]
    pub(crate) fn lock(&self) -> CoreGuard<'_> {
        latch(&self.0)
    }
}

/// See the module documentation.
pub(crate) struct Shared {
    pub(crate) uid: u64,
    pub(crate) device: Device,
    pub(crate) base: u64,
    pub(crate) cache_bytes: u64,
    /// Bytes up to which requests may become slots: 0 for a pool without slabs.
    pub(crate) slot_most: u64,
    /// Of a pool that tracks its blocks.
    pub(crate) tracker: Option<Arc<Tracker>>,
    pub(crate) core: CoreLock,
    pub(super) transfer: Transfer,
    lanes: RwLock<Lanes>,
    /// What a layer above keeps with the pool.
    attached: OnceLock<Arc<dyn Attached>>,
    /// Steps after the core's own, by rank.
    relief: Mutex<Vec<(u8, ReliefStep)>>,
    /// Asked before handles are mapped elsewhere.
    moves_first: OnceLock<MovesFirst>,
    pub(crate) failures: AtomicU64,
    /// Times that a request was tried again after a registered step.
    pub(super) retries: AtomicU64,
    /// Device memory that layers above have beside the pool.
    pub(crate) overhead: crate::device::Overhead,
    /// Bytes in segments of private memory.
    pub(super) graph_bytes: AtomicU64,
    pub(super) counts: Ledger,
}

impl Shared {
    pub(crate) fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        static NEXT_UID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let cache_bytes = config.cache_bytes;
        let slot_most = if config.slabs { size_class::MOST } else { 0 };
        let tracker = config.track.then(|| Tracker::new(config.backtraces));
        let transfer = Transfer::new(config.reuse.opportunistic);
        let core = Core::new(device, config)?;
        Ok(Self {
            uid: NEXT_UID.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            base: core.arena.base(),
            cache_bytes,
            slot_most,
            tracker,
            core: CoreLock(Latch::new(core)),
            transfer,
            lanes: RwLock::default(),
            attached: OnceLock::new(),
            relief: Mutex::default(),
            moves_first: OnceLock::new(),
            failures: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            overhead: Default::default(),
            graph_bytes: AtomicU64::new(0),
            counts: Ledger::default(),
        })
    }

    fn lanes(&self) -> RwLockReadGuard<'_, Lanes> {
        self.lanes
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn lanes_mut(&self) -> RwLockWriteGuard<'_, Lanes> {
        self.lanes
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What is attached, made by `make` on first use; `None` if something else is.
    pub(crate) fn attached<A: Attached>(&self, make: impl FnOnce() -> Arc<A>) -> Option<Arc<A>> {
        let attached = Arc::clone(self.attached.get_or_init(|| make() as _));
        (attached as Arc<dyn std::any::Any + Send + Sync>)
            .downcast()
            .ok()
    }

    /// All lanes now.
    pub(crate) fn all_lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes().all().cloned().collect()
    }

    /// The lane of `stream` for the calling thread, made if this is the stream's first use here;
    /// `None` once the pool is closed.
    pub(crate) fn lane(self: &Arc<Self>, stream: &Stream) -> Result<Option<Arc<Lane>>> {
        if !self.device.same(stream.device()) {
            return Err(Error::invalid(
                "stream",
                "it is of another device than the pool",
            ));
        }
        let handle = stream.handle_id();
        if let Some(lane) = self.lanes().of(handle) {
            return Ok(Some(Arc::clone(lane)));
        }
        let mut lanes = self.lanes_mut();
        if lanes.closed {
            return Ok(None);
        }
        if let Some(lane) = lanes.of(handle) {
            return Ok(Some(Arc::clone(lane)));
        }
        let core = stream.core();
        let (slot, hold) = self.core.lock().add_stream(&core.timeline, core.gate);
        let watcher: Arc<dyn StreamWatcher> = Arc::clone(self) as _;
        stream.watch(Arc::downgrade(&watcher));
        let lane = self.add_lane(&mut lanes, stream, slot, &hold);
        Ok(Some(lane))
    }

    fn add_lane(
        self: &Arc<Self>,
        lanes: &mut Lanes,
        stream: &Stream,
        slot: StreamIndex,
        hold: &Arc<SlotHold>,
    ) -> Arc<Lane> {
        let lane = Lane::new(self, stream.core(), slot, hold);
        // The pool watches the stream by now: a capture that this does not see finds the lane.
        if let Some(recorder) = stream.recorder() {
            lane.route(Some(&recorder));
        }
        lanes.add(stream.handle_id(), Arc::clone(&lane));
        lane
    }

    /// A lane of its own for the calling thread, which keeps meeting others at `lane`, that of
    /// `stream`; the lane it has if there are enough.
    ///
    /// The caller holds the pool and the stream.
    pub(crate) fn part(self: &Arc<Self>, stream: &Stream, lane: &Lane) -> Option<Arc<Lane>> {
        let handle = stream.handle_id();
        if !self.lanes().may_part(handle) {
            return None;
        }
        let mut lanes = self.lanes_mut();
        if !lanes.may_part(handle) {
            return lanes.of(handle).cloned();
        }
        Some(self.add_lane(&mut lanes, stream, lane.slot, &lane.hold))
    }

    /// The lane of `stream`, while the pool has a handle.
    pub(crate) fn open_lane(self: &Arc<Self>, stream: &Stream) -> Result<Arc<Lane>> {
        let lane = self.lane(stream)?;
        lane.ok_or_else(|| Error::invalid("pool", "it is closed: make another"))
    }

    /// Says whether a live block may be moved.
    pub(crate) fn set_movable(&self, block: &Block, movable: bool) {
        // A part of a graph's memory is no extent, and stays where it is.
        if !block.is_private() && !is_slot(block.capacity()) {
            self.core.lock().set_movable(block.id(), movable);
        }
    }

    /// Shows the core, and the offsets of the blocks in caches; changes nothing.
    pub(crate) fn look<T>(&self, see: impl FnOnce(&Core, &HashSet<u64>) -> T) -> T {
        let lanes = self.all_lanes();
        let core = self.core.lock();
        let mut cached = HashSet::new();
        self.each_cached(&lanes, |block| {
            // A slot is a part of an extent.
            if !is_slot(block.bytes) {
                cached.insert(block.addr - self.base);
            }
        });
        see(&core, &cached)
    }

    /// Empties the caches of all streams into the arena.
    pub(crate) fn drain_all(&self) {
        drop(self.lock_drained());
    }

    /// The core, with the caches of all streams emptied into it.
    pub(crate) fn lock_drained(&self) -> CoreGuard<'_> {
        let lanes = self.all_lanes();
        let mut core = self.core.lock();
        self.drain(&lanes, &mut core);
        core
    }

    /// Registers a step of the ladder; lower ranks come first.
    pub(crate) fn add_relief(&self, rank: u8, step: ReliefStep) {
        let mut relief = lock(&self.relief);
        let at = relief.partition_point(|(other, _)| *other <= rank);
        relief.insert(at, (rank, step));
    }

    /// Registers who may move memory before handles are mapped elsewhere; the first counts.
    pub(crate) fn moves_first(&self, moves: MovesFirst) {
        let _ = self.moves_first.set(moves);
    }

    /// Memory for a request of `lane` that its cache could not serve.
    pub(crate) fn acquire(&self, lane: &Lane, bytes: u64, requested: u64) -> Result<Grant> {
        let grant = self.find(lane, bytes, requested);
        self.tell();
        grant
    }

    fn find(&self, lane: &Lane, bytes: u64, requested: u64) -> Result<Grant> {
        let mut climbed =
            self.climb_to(lane, bytes, requested, self.moves_first.get().is_some())?;
        if let (Climbed::Dear(handles), Some(moves)) = (&climbed, self.moves_first.get()) {
            let asked = Asked::of(self.uid, MOVES_FIRST_RANK);
            let moved = asked.is_some_and(|_asked| moves(bytes, *handles));
            climbed = self.climb_to(lane, bytes, requested, false)?;
            if moved && matches!(climbed, Climbed::Served(..)) {
                self.core.lock().relieved(bytes);
            }
        }
        if let Climbed::Served(grant, is_over) = climbed {
            if is_over {
                self.ease();
            }
            return Ok(grant);
        }
        let steps: Vec<(u8, ReliefStep)> = lock(&self.relief).clone();
        for (rank, step) in steps {
            let Some(_asked) = Asked::of(self.uid, rank) else {
                break;
            };
            while step(&self.pressure(lane, bytes)) == Relief::Retry {
                self.retries.fetch_add(1, Ordering::Relaxed);
                if let Some((grant, _)) = self.climb(lane, bytes, requested)? {
                    self.core.lock().relieved(bytes);
                    return Ok(grant);
                }
            }
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        Err(self.out_of_memory(bytes))
    }

    /// Gives idle memory back while the pool is over its soft limit.
    #[cold]
    pub(crate) fn ease(&self) {
        self.drain_all();
        // What the driver refuses stays idle memory of the pool, and is offered again next time.
        let _ = self.core.lock().ease();
    }

    /// The core's own steps; with a grant, whether the pool is over its soft limit.
    pub(super) fn climb(
        &self,
        lane: &Lane,
        bytes: u64,
        requested: u64,
    ) -> Result<Option<(Grant, bool)>> {
        Ok(match self.climb_to(lane, bytes, requested, false)? {
            Climbed::Served(grant, is_over) => Some((grant, is_over)),
            Climbed::Dear(_) | Climbed::Refused => None,
        })
    }

    /// The core's own steps; if `moves_first` only up to where handles would be mapped elsewhere.
    fn climb_to(
        &self,
        lane: &Lane,
        bytes: u64,
        requested: u64,
        moves_first: bool,
    ) -> Result<Climbed> {
        let served = |grant: Grant, core: &mut Core| {
            lane.served(grant, bytes, requested, core);
            Ok(Climbed::Served(grant, core.is_over_soft_limit()))
        };
        let (mut core, grant) = self.climb_caches(lane, bytes)?;
        if let Some(grant) = grant {
            return served(grant, &mut core);
        }
        // Another thread may have freed memory since the lock was let go, so this is not only for
        // what was drained.
        if let Some(grant) = core.take_ready(lane.slot, bytes)? {
            return served(grant, &mut core);
        }
        if let Some(grant) = core.take_merged(lane.slot, bytes)? {
            return served(grant, &mut core);
        }
        if let Some(grant) = core.take_waiting(lane.slot, bytes)? {
            return served(grant, &mut core);
        }
        if core.has_mixed() && core.config.reuse.device_wait {
            core.release_mixed(lane.slot)?;
            if let Some(grant) = core.take_ready(lane.slot, bytes)? {
                return served(grant, &mut core);
            }
        }
        if let Some(growth) = core.begin_growth(lane.slot, bytes)? {
            drop(core);
            let grown = growth.make(&self.device);
            core = self.core.lock();
            if let Some(grant) = core.end_growth(growth, grown)? {
                return served(grant, &mut core);
            }
        }
        if moves_first && let handles @ 1.. = core.would_steal(lane.slot, bytes) {
            return Ok(Climbed::Dear(handles));
        }
        let mut grant = core.take_mapping(lane.slot, bytes)?;
        if grant.is_none() && core.has_mixed() {
            core.release_mixed(lane.slot)?;
            grant = core.take_mapping(lane.slot, bytes)?;
        }
        match grant {
            Some(grant) => served(grant, &mut core),
            None => Ok(Climbed::Refused),
        }
    }

    /// The steps that a block and a slot have in common: what is ready, what is to be had without a
    /// wait, other caches; these are empty where it gives none. The core is still locked then.
    fn climb_caches(&self, lane: &Lane, bytes: u64) -> Result<(CoreGuard<'_>, Option<Grant>)> {
        // Lanes are listed before the core is locked: making a lane locks in that order.
        let siblings = self.siblings(lane);
        let mut core = self.core.lock();
        let mut grant = lane.take_ready(bytes, &mut core)?;
        if grant.is_none() {
            grant = lane.take_over(&siblings, bytes, &mut core)?;
        }
        if grant.is_none() && core.poll(lane.slot)? {
            grant = lane.take_over(&[], bytes, &mut core)?;
            if grant.is_none() {
                grant = lane.take_ready(bytes, &mut core)?;
            }
        }
        if grant.is_none() {
            grant = core.take_overlapping_of(lane.slot, bytes)?;
        }
        if grant.is_some() {
            return Ok((core, grant));
        }
        drop(core);
        self.counts.note_peak();
        let lanes = self.all_lanes();
        let mut core = self.core.lock();
        if core.config.reuse.device_wait {
            grant = lane.take_over(&lanes, bytes, &mut core)?;
        }
        if grant.is_none() && self.drain(&lanes, &mut core) {
            core.steps.drain += 1;
            core.told.note(Told::Drain(bytes));
        }
        Ok((core, grant))
    }

    /// A slot for a request of `lane` that its cache could not serve: the steps of [`Shared::find`]
    /// up to the core's last, over slots and slabs. `None` where memory is short; a block of its own
    /// may still be found for the request.
    pub(super) fn acquire_slot(
        &self,
        lane: &Lane,
        bytes: u64,
        requested: u64,
    ) -> Result<Option<Grant>> {
        let found = self.climb_for_slot(lane, bytes, requested);
        self.tell();
        let Some((grant, is_over)) = found? else {
            return Ok(None);
        };
        if is_over {
            self.ease();
        }
        Ok(Some(grant))
    }

    fn climb_for_slot(
        &self,
        lane: &Lane,
        bytes: u64,
        requested: u64,
    ) -> Result<Option<(Grant, bool)>> {
        let served = |grant: Grant, core: &mut Core| {
            lane.served(grant, bytes, requested, core);
            Ok(Some((grant, core.is_over_soft_limit())))
        };
        let (mut core, grant) = self.climb_caches(lane, bytes)?;
        if let Some(grant) = grant {
            return served(grant, &mut core);
        }
        match core.take_slot_any(lane.slot, bytes)? {
            Some(grant) => served(grant, &mut core),
            None => Ok(None),
        }
    }

    /// The other lanes of a lane's stream, whose memory is ready for it.
    fn siblings(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        if Arc::strong_count(&lane.hold) == 1 {
            return Vec::new();
        }
        let lanes = self.lanes();
        let siblings = lanes.all().filter(|other| other.slot == lane.slot);
        siblings.cloned().collect()
    }

    fn pressure(&self, lane: &Lane, bytes: u64) -> Pressure {
        Pressure {
            requested: bytes,
            stream: lane.stream.timeline.uid,
            figures: self.figures(bytes),
        }
    }

    /// The figures of an error for a request of `bytes`.
    fn figures(&self, bytes: u64) -> OutOfMemory {
        let holders = self.leak_report().holders();
        let after_compaction = self.snapshot().after_compaction();
        let core = self.core.lock();
        let (live, _) = core.extents.taken();
        OutOfMemory {
            requested: bytes,
            live: live
                - core.slabs.free_bytes() * u64::from(!seeded!("free-slots-counted-as-live")),
            reserved: core.arena.reserved(),
            limit: core.limit(),
            device_free: self.device.backend().free_bytes().ok(),
            largest_hole: core.extents.largest_hole(),
            after_compaction,
            holders,
        }
    }

    fn out_of_memory(&self, bytes: u64) -> Error {
        let figures = self.figures(bytes);
        let mut core = self.core.lock();
        core.steps.out_of_memory += 1;
        core.told.note(Told::OutOfMemory(bytes));
        drop(core);
        Error::OutOfMemory(Box::new(figures))
    }
}

impl Shared {
    /// The application holds the pool no longer: live blocks keep it, streams' caches do not.
    pub(crate) fn close(&self) {
        if let Some(attached) = self.attached.get() {
            attached.pool_closed();
        }
        let lanes = self.lanes_mut().close();
        let mut core = self.core.lock();
        for lane in &lanes {
            lane.retire(&mut core);
        }
        #[cfg(feature = "tracing")]
        {
            let (bytes, blocks) = core.extents.taken();
            // The subscriber is the application's.
            drop(core);
            if blocks > 0 {
                tracing::warn!(target: "warpool", blocks, bytes, "pool dropped with live blocks");
            }
        }
    }
}

impl Drop for Shared {
    /// Waits for the work that still uses the pool's free memory, which is then unmapped. Failures
    /// are passed over: a device that cannot say when work is done will not run it either.
    fn drop(&mut self) {
        let (arena, ticks) = latch_mut(&mut self.core.0).take_apart();
        beside(move || {
            for (timeline, tick) in &ticks {
                let _ = timeline.sync_to(*tick);
            }
            drop(arena);
        });
    }
}

impl StreamWatcher for Shared {
    fn stream_retired(&self, handle: u64) {
        let mut lanes = self.lanes_mut();
        let retired = lanes.of_handle(handle);
        // Listed until its cache is empty: a request that looks meanwhile must find it.
        let mut core = self.core.lock();
        let kept = seeded!("retired-stream-keeps-its-cache");
        for lane in retired.iter().filter(|_| !kept) {
            lane.retire(&mut core);
        }
        drop(core);
        lanes.remove(handle);
        drop(lanes);
        // Without a lock: the stream may go with its last lane.
        drop(retired);
    }

    fn stream_captured(&self, stream: &Stream, recorder: Option<&Arc<Recorder>>) {
        let lanes = self.lanes().of_handle(stream.handle_id());
        for lane in lanes {
            lane.route(recorder);
        }
    }
}
