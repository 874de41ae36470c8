//! A *lane*: the pool's side of one stream, with its cache and its counters.
//!
//! # The hot path
//!
//! The common pair, a free and an allocation of the same size on the same stream, takes the lane's latch twice and
//! touches no cache line of another stream: two compare-and-swaps are its only locked instructions.
//!
//! Threads that share a stream may have a lane each (`thread_map`). Each finds memory that another of them freed as
//! it finds memory of another stream, but needs no wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::free_lists::{ALL_BINS, Cached, LARGE_BINS};
use crate::device::{Addr, StreamCore, beside, is_running, lock};
use crate::error::{Error, Result, refuse};
use crate::heap::size_class::{self, is_slot};
use crate::heap::{Grant, UNIT};
use crate::pool::core::{Core, CoreGuard, Hold};
use crate::pool::observers::Event;
use crate::pool::stats::counters::{Counters, Elsewhere};
use crate::pool::structure::{
    Block, IdAndSlack, Lane, LaneParts, LaneState, Others, Private, Shared,
};
use crate::pool::tuning::MOST_ADDRESSES;
use crate::sync::{Ending, Latch, LatchGuard, latch, try_latch};

/// What [`Lane::serve_kept`] returns without a block.
const NO_BLOCK: (Addr, IdAndSlack) = (0, IdAndSlack::new(0, 0));

#[inline]
fn is_servable(bytes: u64) -> bool {
    bytes.wrapping_sub(1) < MOST_ADDRESSES
}

/// `bytes` as the pool rounds them.
pub(crate) fn rounded(bytes: u64) -> Result<u64> {
    refuse!(!is_servable(bytes) => "bytes", "{bytes} is not between 1 and {MOST_ADDRESSES}");
    Ok(bytes.next_multiple_of(UNIT))
}

impl Lane {
    /// Makes a lane. The pool holds it until it is retired and its blocks are freed. A lane of `private` memory keeps
    /// nothing in its cache and is retired from the start; that of a gate, which has a few segments, keeps nothing.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        stream: &Arc<StreamCore>,
        hold: &Hold,
        private: Option<Private>,
    ) -> Arc<Self> {
        let state = LaneState {
            room: shared.cache_bytes,
            aside: private.is_some() || stream.gate,
            leaving: private.is_some() || stream.gate,
            ..LaneState::default()
        };
        let is_watched = shared.device.backend().is_watched();
        let lane = Arc::new(Ending::of(LaneParts {
            state: Latch::new(state),
            slots: shared.core.lock().config.slabs,
            is_observed: is_watched || shared.recording.is_some() || shared.tracker.is_some(),
            shared: Arc::clone(shared),
            stream: Arc::clone(stream),
            timeline: Arc::clone(&stream.timeline),
            slot: **hold,
            hold: Arc::clone(hold),
            private,
            others: Others::default(),
        }));
        let mut books = lock(&shared.books);
        let served = books.streams.entry(lane.timeline.uid).or_default();
        served.lanes.push(Arc::clone(&lane));
        lane
    }

    #[inline]
    pub(crate) fn open_tick(&self) -> u64 {
        self.timeline.open_tick()
    }

    /// Address and extent of a block of at least `requested` bytes; or address 0 if the cache has none, another thread
    /// has the latch, or blocks are observed. The caller holds the pool and the stream.
    ///
    /// Not inlined, and all in registers: to build a block in memory and copy it costs more than the call.
    #[inline(never)]
    pub(crate) fn serve_kept(&self, requested: u64) -> (Addr, IdAndSlack) {
        if !is_servable(requested) || self.is_observed {
            return NO_BLOCK;
        }
        let bytes = size_class::rounded(requested, self.slots);
        let Some(mut state) = try_latch(&self.state).filter(|state| !state.aside) else {
            return NO_BLOCK;
        };
        let Some(kept) = state.cache.pop(bytes) else {
            return match state.crowded > 0 {
                true => NO_BLOCK,
                false => self.serve_ready(state, bytes, requested),
            };
        };
        (state.counters).allocate(bytes, requested, &self.others.elsewhere);
        (kept.addr, IdAndSlack::of(kept.id, bytes, requested))
    }

    /// [`Lane::serve_kept`] after a miss: takes a batch or a hole that is ready.
    ///
    /// It keeps the latch, as taking it again costs as much as all else here. So it only tries the core's lock: a
    /// thread that holds that may wait for the latch.
    #[inline(never)]
    fn serve_ready<'l>(
        &'l self,
        mut state: LatchGuard<'l, LaneState>,
        bytes: u64,
        requested: u64,
    ) -> (Addr, IdAndSlack) {
        let extent = |id| IdAndSlack::of(id, bytes, requested);
        if self.shared.transfer.has_any() {
            drop(state);
            if let Some(block) = self.take_ready_batch(bytes, requested) {
                return (block.addr, extent(block.id));
            }
            state = latch(&self.state);
        }
        let Some(mut core) = self.shared.core.try_lock() else {
            return NO_BLOCK;
        };
        let has_large = !is_slot(bytes) && state.cache.first_of(LARGE_BINS).is_some();
        if has_large || self.shared.transfer.has_used() {
            drop(state);
            self.shared.give_used(&mut core);
            if has_large {
                self.drain(LARGE_BINS, &mut core);
            }
            state = latch(&self.state);
        }
        if !is_slot(bytes) && core.spares(self.slot, bytes) {
            return NO_BLOCK;
        }
        let Some(grant) = core.take_ready_of(self.slot, bytes) else {
            return NO_BLOCK;
        };
        (state.counters).allocate(bytes, requested, &self.others.elsewhere);
        drop(state);
        self.served(bytes, core);
        self.shared.tell();
        (self.shared.base + grant.offset, extent(grant.id))
    }

    /// Counts a settled request of the core. Eases a pool that is over its soft limit.
    #[inline]
    pub(crate) fn served(&self, bytes: u64, mut core: CoreGuard<'_>) {
        core.active.add(bytes);
        core.peak_taken = core.peak_taken.max(core.live());
        self.shared.note_peak(&mut core, false);
        let is_over = core.is_over_soft_limit();
        drop(core);
        if is_over {
            drop(self.shared.lock_drained());
            let shared = Arc::clone(&self.shared);
            beside(move || shared.ease());
        }
    }

    /// Counts a served request, which a retired lane then waits for.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lane has ended: nothing keeps it alive for a block.
    pub(crate) fn settle(&self, bytes: u64, requested: u64) -> Result<()> {
        let mut state = latch(&self.state);
        let more = |blocks| (blocks > 0).then_some(blocks + 1);
        let out = &self.others.outstanding;
        let enter = || out.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let has_ended = self.others.elsewhere.is_retired() && enter().is_err();
        refuse!(has_ended => "pool", "it is closed: make another");
        (state.counters).allocate(bytes, requested, &self.others.elsewhere);
        Ok(())
    }

    pub(crate) fn count<T>(&self, count: impl FnOnce(&mut Counters, &Elsewhere) -> T) -> T {
        count(&mut latch(&self.state).counters, &self.others.elsewhere)
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        latch(&self.state).cache.bytes
    }

    /// A block of at least `requested` bytes, or with `slots` a slot if there is memory for a slab. The caller holds the
    /// pool and the stream, or a block of this lane.
    pub(crate) fn alloc(&self, requested: u64, slots: bool) -> Result<Block> {
        let whole = rounded(requested)?;
        let mut state = latch(&self.state);
        if let Some(captured) = state.captured.clone() {
            drop(state);
            // A graph's memory has no slabs.
            if let Some(block) = captured.alloc_private(whole, requested)? {
                return Ok(block);
            }
            // It is gone by now, and serves nobody.
            self.change(|it| _ = it.captured.take_if(|it| Arc::ptr_eq(it, &captured)));
            return self.alloc(requested, slots);
        }
        let bytes = size_class::rounded(requested, slots);
        if !state.aside
            && let Some(kept) = state.cache.pop(bytes)
        {
            (state.counters).allocate(bytes, requested, &self.others.elsewhere);
            return Ok(Block::new(self, kept.id, kept.addr, bytes, requested));
        }
        drop(state);
        let kept = self.take_ready_batch(bytes, requested);
        if let Some(kept) = kept.or_else(|| self.take_near(bytes, requested)) {
            return Ok(Block::new(self, kept.id, kept.addr, kept.bytes, requested));
        }
        if is_slot(bytes)
            && let Some(block) = self.climb(bytes, requested, None)?
        {
            return Ok(block);
        }
        self.climb_for(self, bytes.next_multiple_of(UNIT), requested)
    }

    /// A block of `bytes` from a hole that is ready: the ladder's first step.
    pub(crate) fn take_ready(&self, bytes: u64, core: &mut Core) -> Option<Grant> {
        if !is_slot(bytes) {
            self.drain_large(core);
        }
        core.take_ready_of(self.slot, bytes)
    }

    /// A large block in the cache keeps the holes beside it apart. With such blocks left there, training in 260 MiB
    /// reserved 1.016 to 1.058 times its peak, with this 1.008 to 1.016.
    pub(crate) fn drain_large(&self, core: &mut Core) {
        if !self.is_crowded() {
            self.drain(LARGE_BINS, core);
        }
    }

    /// Frees a block of this lane. Not inlined, as [`Lane::serve_kept`] is not.
    #[inline(never)]
    pub(crate) fn free(&self, addr: Addr, extent: IdAndSlack, requested: u64) {
        let bytes = requested + u64::from(extent.slack());
        let tick = self.open_tick();
        let mut state = latch(&self.state);
        // Built where it goes, not copied there.
        let block = || Cached::new(extent.id(), addr, bytes, tick);
        if self.is_observed || !self.has_room(&state, bytes) {
            return self.free_slowly(state, self, block(), requested);
        }
        // Nothing uses the lane after this: once the latch is released, it may retire and end.
        state.counters.free(bytes, requested);
        state.cache.push(block());
    }

    /// Whether the cache may keep one more block; an empty cache keeps a block of any size.
    #[inline]
    pub(super) fn has_room(&self, state: &LaneState, bytes: u64) -> bool {
        let fits = state.cache.bytes + bytes <= state.room || state.cache.bytes == 0;
        fits && !state.cache.is_full() && !state.aside
    }

    /// Has another thread free a block of this lane, which it keeps alive until then.
    pub(crate) fn free_late(&self, block: Cached, requested: u64) {
        let late = Block::freed(self, &block, requested);
        beside(move || {
            let lane = late.lane();
            lane.free_slowly(latch(&lane.state), lane, block, requested);
        });
    }

    /// Frees here a block of `home`, a lane of the pool. A full cache is emptied under the core's lock, so that a request
    /// sees all free memory. That lock keeps this lane alive, and the block keeps `home`.
    #[inline(never)]
    pub(crate) fn free_slowly<'l>(
        &'l self,
        mut state: LatchGuard<'l, LaneState>,
        home: &Self,
        mut block: Cached,
        requested: u64,
    ) {
        // Also while a capture begins: a record may not cover the tick before the capture is over.
        let kept =
            home.private.is_some() || state.captured.is_some() || self.timeline.is_captured();
        // In a host call the driver may keep another thread, which has the core, until the call has run.
        let late = is_running() && std::ptr::eq(self, home);
        if late && (kept || self.is_observed) {
            drop(state);
            return self.free_late(block, requested);
        }
        if kept {
            drop(state);
            if self.free_captured(home, block, requested) {
                return;
            }
            state = latch(&self.state);
        }
        if self.is_observed {
            drop(state);
            // No graph keeps it, whatever capture begins from now on.
            Block::freed(home, &block, requested).tell(Event::Free(&self.stream));
            // A record in between is ahead of what was told.
            block.tick = self.open_tick();
            state = latch(&self.state);
        }
        if !self.has_room(&state, block.bytes) {
            // A full cache gets more room if others have the pool's lock.
            self.look_for_others(&mut state);
        }
        let mut core = None;
        if !self.has_room(&state, block.bytes) {
            drop(state);
            let lock = &self.shared.core;
            core = lock.try_lock().or_else(|| (!late).then(|| lock.lock()));
            let Some(core) = &mut core else {
                return self.free_late(block, requested);
            };
            state = latch(&self.state);
            if state.crowded == 0 {
                state.room = core.cache_room();
            }
            if !self.has_room(&state, block.bytes) {
                let mut stays = state.crowded > 0;
                if home.slot != self.slot {
                    drop(state);
                    stays |= self.hand_over(block.bytes, core);
                    state = latch(&self.state);
                }
                if !stays {
                    (state.cache).drain(ALL_BINS, |block| core.on_the_way.push(block));
                }
            }
        }
        // A retired lane waits for each of its blocks. One that keeps the block will not be until the latch is released.
        let leaves = if std::ptr::eq(self, home) {
            state.counters.free(block.bytes, requested);
            home.others.elsewhere.is_retired()
        } else {
            home.others.elsewhere.add(block.bytes, requested)
        };
        match &mut core {
            Some(core) if !self.has_room(&state, block.bytes) => core.on_the_way.push(block),
            _ => state.cache.push(block),
        }
        drop(state);
        if let Some(mut core) = core {
            core.give_on_the_way(self.slot);
            let over = core.is_over_soft_limit().then(|| Arc::clone(&self.shared));
            drop(core);
            if let Some(shared) = over {
                beside(move || shared.ease());
            }
        }
        if leaves {
            home.leave();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
