//! A pool's side of one stream: its cache, its counts, and the way to the shared core.
//!
//! # The hot path
//!
//! The common pair, free then allocate the same size on the same stream, takes this lane's lock
//! twice and touches nothing that another stream touches. Locks are taken core first, then one
//! lane; the hot path takes only the lane's.
//!
//! # How long a lane lives
//!
//! Every block points to its lane, and a lane must outlive its blocks; a shared count of
//! references would cost two locked instructions a pair. Instead a lane owns itself until it is
//! *retired* (its stream or its pool has no handle any more) and its last block is freed.
//! `outstanding` counts blocks against that: frees on other lanes take from it at once, so it is
//! below zero while the lane is in use; retiring adds what the lane's own counts say is still out,
//! and from then on whoever brings it to zero ends the lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::block::Block;
use super::cache::{Cache, Cached};
use super::core::{Core, Grant};
use super::extents::{Id, NONE, Slot};
use super::index::UNIT;
use super::private::{Captured, Private};
use super::shared::Shared;
use super::stats::Flows;
use super::told::Told;
use crate::device::{StreamCore, lock};
use crate::error::{Error, Result};
use crate::seeded::seeded;
use crate::sync::{AtomicI64, Mutex};

/// Blocks a cache holds at most.
const MOST_BLOCKS: usize = 4096;

/// Blocks taken over from another stream's cache behind one wait.
const TAKEN_OVER: usize = 64;

/// Largest request; far above any device, far below what would overflow.
const LARGEST: u64 = 1 << 46;

/// What a lane's lock guards.
pub(crate) struct LaneState {
    pub(crate) cache: Cache,
    /// Blocks handed out here less blocks of this lane freed here.
    out: i64,
    /// Nothing is allocated or freed the short way: the lane is retired, or under capture.
    aside: bool,
    /// Nothing more is allocated here: keep nothing.
    retired: bool,
    /// The stream is being captured into a graph.
    captured: Option<Arc<Captured>>,
}

/// See the module documentation.
#[repr(align(64))]
pub(crate) struct Lane {
    pub(crate) state: Mutex<LaneState>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stream: Arc<StreamCore>,
    pub(crate) slot: Slot,
    pub(crate) flows: Arc<Flows>,
    /// Of a lane whose blocks are parts of a graph's memory.
    pub(super) private: Option<Arc<Private>>,
    outstanding: Outstanding,
}

/// On a cache line of its own: other streams' threads write it.
#[repr(align(64))]
struct Outstanding(AtomicI64);

/// A pointer to a lane that is alive for as long as the pointer is used: the holder is a block of
/// the lane, or holds a handle of its pool and of its stream.
#[derive(Clone, Copy)]
pub(crate) struct LanePtr(*const Lane);

// SAFETY: a lane may be used from any thread; the pointer is only a way to it.
unsafe impl Send for LanePtr {}
// SAFETY: as above.
unsafe impl Sync for LanePtr {}

impl LanePtr {
    /// No lane; never followed.
    pub(crate) const NONE: Self = Self(std::ptr::null());

    pub(crate) fn of(lane: &Arc<Lane>) -> Self {
        Self(Arc::as_ptr(lane))
    }

    /// The lane.
    ///
    /// # Safety
    /// One of the holders that the type names exists for as long as the reference is used.
    pub(crate) unsafe fn get<'a>(self) -> &'a Lane {
        // SAFETY: the caller vouches that the lane is alive.
        unsafe { &*self.0 }
    }
}

/// `bytes` as the pool rounds them.
#[inline]
pub(crate) fn rounded(bytes: u64) -> Result<u64> {
    if bytes == 0 || bytes > LARGEST {
        return Err(Error::invalid(
            "bytes",
            format!("{bytes} is not between 1 and {LARGEST}"),
        ));
    }
    Ok(bytes.next_multiple_of(UNIT))
}

impl Lane {
    /// A lane that owns itself until it is retired and its blocks are freed.
    pub(crate) fn new(shared: &Arc<Shared>, stream: &Arc<StreamCore>, slot: Slot) -> Arc<Self> {
        Self::make(shared, stream, slot, None)
    }

    /// A lane for blocks of `private` memory on the stream of `home`. It has no cache and ends when
    /// its blocks are freed and [`Lane::leave`] is called once more.
    pub(super) fn new_private(home: &Self, private: Arc<Private>) -> Arc<Self> {
        let lane = Self::make(&home.shared, &home.stream, home.slot, Some(private));
        let mut state = lock(&lane.state);
        (state.aside, state.retired) = (true, true);
        drop(state);
        lane.enter();
        lane
    }

    fn make(
        shared: &Arc<Shared>,
        stream: &Arc<StreamCore>,
        slot: Slot,
        private: Option<Arc<Private>>,
    ) -> Arc<Self> {
        let state = LaneState {
            cache: Cache::new(),
            out: 0,
            aside: false,
            retired: false,
            captured: None,
        };
        let lane = Arc::new(Self {
            state: Mutex::new(state),
            shared: Arc::clone(shared),
            stream: Arc::clone(stream),
            slot,
            flows: Arc::default(),
            private,
            outstanding: Outstanding(AtomicI64::new(0)),
        });
        // Taken back by `end`.
        std::mem::forget(Arc::clone(&lane));
        lane
    }

    /// A block of at least `requested` bytes. The caller holds the pool and the stream, or a
    /// block of this lane.
    #[inline]
    pub(crate) fn alloc(&self, requested: u64) -> Result<Block> {
        let bytes = rounded(requested)?;
        let mut state = lock(&self.state);
        if state.aside {
            drop(state);
            return self.alloc_aside(bytes, requested);
        }
        // Counted before it is there, so that the lane cannot end while the core looks for it.
        state.out += 1;
        if let Some(block) = state.cache.pop(bytes) {
            let flows = &self.flows;
            flows.hot.allocated(bytes, requested, &flows.cold);
            flows.hot.cached_bytes.set(state.cache.bytes());
            drop(state);
            return Ok(Block::new(self, block.id, block.offset, bytes, requested));
        }
        drop(state);
        self.alloc_from_core(bytes, requested)
    }

    #[cold]
    fn alloc_from_core(&self, bytes: u64, requested: u64) -> Result<Block> {
        match self.shared.acquire(self, bytes, requested) {
            Ok(grant) => Ok(Block::new(self, grant.id, grant.offset, bytes, requested)),
            Err(error) => {
                self.take_back();
                Err(error)
            }
        }
    }

    /// Uncounts a block that was counted and not given.
    fn take_back(&self) {
        let mut state = lock(&self.state);
        if state.retired {
            drop(state);
            self.leave();
        } else {
            state.out -= i64::from(!seeded!("failed-request-holds-its-lane"));
        }
    }

    /// A block of a lane under capture, or of one that is retired and kept by another of its blocks.
    #[cold]
    fn alloc_aside(&self, bytes: u64, requested: u64) -> Result<Block> {
        if let Some(captured) = self.captured() {
            return captured.alloc(bytes, requested);
        }
        let mut state = lock(&self.state);
        if state.retired {
            drop(state);
            self.enter();
        } else {
            // The capture has ended since the first look.
            state.out += 1;
        }
        self.alloc_from_core(bytes, requested)
    }

    /// A block of `bytes` if the core has it without help from above.
    pub(super) fn try_alloc(&self, bytes: u64) -> Result<Option<Block>> {
        lock(&self.state).out += 1;
        let granted = self.shared.climb(self, bytes, bytes);
        if let Ok(Some(grant)) = granted {
            return Ok(Some(Block::new(self, grant.id, grant.offset, bytes, bytes)));
        }
        self.take_back();
        granted.map(|_| None)
    }

    /// Counts one block more that ends the lane when it leaves. Of a lane that is retired.
    pub(super) fn enter(&self) {
        self.outstanding.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The capture the lane is under.
    pub(super) fn captured(&self) -> Option<Arc<Captured>> {
        lock(&self.state).captured.clone()
    }

    /// Sets the capture the lane is under; gives the one before.
    pub(super) fn set_captured(&self, captured: Option<Arc<Captured>>) -> Option<Arc<Captured>> {
        let mut state = lock(&self.state);
        state.aside = state.retired || captured.is_some();
        std::mem::replace(&mut state.captured, captured)
    }

    /// Frees the last bytes of the `block`, which has `before`, down to `after`, in stream
    /// order; `returned` fewer were asked for.
    pub(crate) fn shrink(&self, block: &Block, before: u64, after: u64, returned: u64) {
        if let Some(private) = &self.private {
            return self.shrink_private(private, block.addr(), before, after, returned);
        }
        let id = block.id();
        let tick = self.stream.timeline.open_tick() * u64::from(!seeded!("tail-free-at-once"));
        let mut core = lock(&self.shared.core);
        self.flows.cold.shrunk(before, after, returned);
        core.shrink(id, before - after, self.slot, tick);
    }

    /// Lets the block `id`, which has `before` bytes, have `after`, with `added` more asked for;
    /// false where the memory behind it is not free.
    pub(crate) fn grow(&self, id: Id, before: u64, after: u64, added: u64) -> Result<bool> {
        if let Some(private) = &self.private {
            return Ok(self.grow_private(private, before == after, added));
        }
        let mut core = lock(&self.shared.core);
        let grown = before == after || core.grow(id, after - before, self.slot)?;
        if grown {
            let flows = &self.flows;
            flows.cold.grown(before, after, added, &flows.hot);
        }
        Ok(grown)
    }

    /// The pointer that a block of this lane keeps.
    pub(crate) fn pointer(&self) -> LanePtr {
        LanePtr(self)
    }

    /// Takes back a block that was allocated here.
    #[inline]
    pub(crate) fn free(&self, block: Cached, requested: u64) {
        let mut state = lock(&self.state);
        if state.aside || !self.has_room(&state, block.bytes) {
            drop(state);
            self.free_by_core(self, block, requested);
            return;
        }
        // The last touch of the lane: once this is unlocked, it may be retired and end.
        state.out -= 1;
        self.keep(&mut state, block, requested);
    }

    /// Takes back a block that was allocated on `home`, another lane of the pool. The caller holds
    /// a count of this lane.
    pub(crate) fn free_foreign(&self, home: &Self, block: Cached, requested: u64) {
        let mut state = lock(&self.state);
        // A part of a graph's memory is no extent.
        if state.aside || block.id == NONE || !self.has_room(&state, block.bytes) {
            drop(state);
            self.free_by_core(home, block, requested);
            return;
        }
        self.keep(&mut state, block, requested);
        drop(state);
        if !seeded!("foreign-free-holds-its-lane") {
            home.leave();
        }
    }

    #[inline]
    fn has_room(&self, state: &LaneState, bytes: u64) -> bool {
        state.cache.bytes() + bytes <= self.shared.cache_bytes && state.cache.blocks() < MOST_BLOCKS
    }

    /// Counts a free and keeps the block in the cache.
    #[inline]
    fn keep(&self, state: &mut LaneState, block: Cached, requested: u64) {
        let requested = match seeded!("rounded-bytes-counted-as-requested") {
            true => block.bytes,
            false => requested,
        };
        self.flows.hot.freed(block.bytes, requested);
        state.cache.push(block);
        self.flows.hot.cached_bytes.set(state.cache.bytes());
    }

    /// Frees a block of `home` where the cache is full, which is emptied first, or the lane is
    /// retired. All under the core's lock, so that no free memory is ever out of the sight of a
    /// request; the block holds `home` until the end.
    #[cold]
    fn free_by_core(&self, home: &Self, block: Cached, requested: u64) {
        if self.free_captured(home, block, requested) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut core = lock(&shared.core);
        self.drain(&mut core);
        let mut state = lock(&self.state);
        if !state.retired {
            if std::ptr::eq(self, home) {
                state.out -= 1;
                self.keep(&mut state, block, requested);
                drop(state);
                let _ = core.ease();
                return;
            }
            self.keep(&mut state, block, requested);
        } else {
            self.flows.cold.freed(block.bytes, requested);
            core.give(block.id, self.slot, block.tick);
        }
        drop(state);
        // As for a request: what the driver refuses is offered again next time.
        let _ = core.ease();
        drop(core);
        home.leave();
    }

    /// A block of exactly `bytes` from another stream's cache, behind a wait for that stream; more
    /// of the same size come along into this lane's cache, so that one wait serves many.
    ///
    /// Under the core's lock, so that no free memory is out of the sight of a request meanwhile.
    pub(crate) fn take_over(
        &self,
        lanes: &[Arc<Self>],
        bytes: u64,
        core: &mut Core,
    ) -> Result<Option<Grant>> {
        for other in lanes.iter().filter(|other| other.slot != self.slot) {
            let mut theirs = lock(&other.state);
            let Some(tick) = theirs.cache.newest(bytes) else {
                continue;
            };
            // Their order is asked for before anything is taken, so a failure changes nothing.
            let timeline = &self.stream.timeline;
            if !seeded!("taken-over-without-a-wait")
                && timeline.wait_for(&other.stream.timeline, tick)?
            {
                core.steps.waits += 1;
                core.steps.stream_wait += 1;
                core.told.note(Told::StreamWait(bytes));
            } else {
                core.steps.ready_elsewhere += 1;
                core.told.note(Told::ReadyElsewhere(bytes));
            }
            let tick = timeline.open_tick();
            let taken = std::iter::from_fn(|| theirs.cache.pop(bytes)).take(TAKEN_OVER);
            let taken: Vec<Cached> = taken.map(|block| Cached { tick, ..block }).collect();
            other.flows.hot.cached_bytes.set(theirs.cache.bytes());
            drop(theirs);
            let Some((first, rest)) = taken.split_first() else {
                continue;
            };
            let mut state = lock(&self.state);
            for &block in rest {
                if state.retired || !self.has_room(&state, bytes) {
                    core.give(block.id, self.slot, tick);
                } else {
                    state.cache.push(block);
                }
            }
            self.flows.hot.cached_bytes.set(state.cache.bytes());
            return Ok(Some(Grant {
                id: first.id,
                offset: first.offset,
            }));
        }
        Ok(None)
    }

    /// Shows all blocks in the cache.
    pub(super) fn each_cached(&self, see: impl FnMut(&Cached)) {
        lock(&self.state).cache.each(see);
    }

    /// Empties the cache into the core; true if there was anything.
    pub(crate) fn drain(&self, core: &mut Core) -> bool {
        let mut state = lock(&self.state);
        let any = state.cache.blocks() > 0;
        let kept = u64::from(!seeded!("cache-forgets-its-histories"));
        state
            .cache
            .drain(|block| core.give(block.id, self.slot, block.tick * kept));
        self.flows.hot.cached_bytes.set(0);
        any
    }

    /// Ends the lane's use: from now on frees go straight to the core, and the last one ends it.
    pub(crate) fn retire(&self, core: &mut Core) {
        self.drain(core);
        let mut state = lock(&self.state);
        state.aside = true;
        if std::mem::replace(&mut state.retired, true) {
            return;
        }
        // A free that came between the drain and this lock left its block in the cache.
        state
            .cache
            .drain(|block| core.give(block.id, self.slot, block.tick));
        let out = state.out;
        drop(state);
        if self.outstanding.0.fetch_add(out, Ordering::AcqRel) + out == 0 {
            self.end();
        }
    }

    /// One block of this lane is gone, freed elsewhere or after the lane was retired. The lane may
    /// be gone afterwards.
    pub(super) fn leave(&self) {
        // Before the lane is retired the count is not above zero, so it cannot pass one.
        if self.outstanding.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    /// Gives up the lane's hold on itself.
    fn end(&self) {
        // SAFETY: `new` forgot one count, and `outstanding` reaches zero once after `retire`.
        unsafe { Arc::decrement_strong_count(std::ptr::from_ref(self)) };
    }
}
