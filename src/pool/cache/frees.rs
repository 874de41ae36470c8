//! A free block's way into the cache of its stream, or past it to the heap.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::free_lists::{ALL_BINS, Cached};
use crate::device::Addr;
use crate::heap::NONE;
use crate::pool::observers::Event;
use crate::pool::structure::{Block, IdAndSlack, Lane, LaneState};
use crate::seeded::seeded;
use crate::sync::{LatchGuard, latch};

impl Lane {
    /// Takes back a block that was allocated here: not inlined, as [`Lane::serve_kept`].
    #[inline(never)]
    pub(crate) fn free(&self, addr: Addr, extent: IdAndSlack, requested: u64) {
        if self.is_observed {
            let block = ManuallyDrop::new(Block::unseen(self, addr, extent, requested));
            block.tell(Event::Free(&self.stream));
        }
        let bytes = requested + u64::from(extent.slack());
        self.take_back(
            Cached::new(extent.id(), addr, bytes, self.open_tick()),
            requested,
        );
    }

    #[inline(always)]
    fn take_back(&self, block: Cached, requested: u64) {
        let mut state = latch(&self.own.state);
        if !self.has_room(&state, block.bytes) {
            return self.free_by_core(state, self, block, requested);
        }
        let rounds = seeded!("rounded-bytes-counted-as-requested");
        let requested = if rounds { block.bytes } else { requested };
        // The last touch of the lane: once the latch is let go, it may be retired and end.
        state.counters.free(block.bytes, requested);
        state.cache.push(block);
    }

    /// Takes back a block that was allocated on `home`, another lane of the pool, which keeps this one.
    pub(crate) fn free_foreign(&self, home: &Self, block: Cached, requested: u64) {
        let mut state = latch(&self.own.state);
        // A part of a graph's memory is no extent.
        if block.id == NONE || !self.has_room(&state, block.bytes) {
            return self.free_by_core(state, home, block, requested);
        }
        // A lane with room is in use, and will be until the latch is let go.
        let leaves = home.count_elsewhere(&block, requested);
        state.cache.push(block);
        drop(state);
        if leaves {
            home.leave();
        }
    }

    /// Counts a block of this lane that is freed on another; whether it has to leave.
    #[inline]
    fn count_elsewhere(&self, block: &Cached, requested: u64) -> bool {
        if seeded!("foreign-free-holds-its-lane") {
            self.enter();
        }
        self.others.elsewhere.add(block.bytes, requested)
    }

    /// Whether the cache may keep one more block: there is always room for one alone.
    #[inline]
    pub(super) fn has_room(&self, state: &LaneState, bytes: u64) -> bool {
        let fits = state.cache.bytes() + bytes <= state.room || state.cache.is_empty();
        fits && !state.cache.is_full() && !state.aside
    }

    /// Frees a block of `home` where the cache is full, which is emptied first, or the lane is retired. All under
    /// the core's lock, so that a request sees all free memory; that holds a lane in use, and the block `home`.
    #[cold]
    #[inline(never)]
    fn free_by_core<'l>(
        &'l self,
        mut state: LatchGuard<'l, LaneState>,
        home: &Self,
        block: Cached,
        requested: u64,
    ) {
        let at_home = std::ptr::eq(self, home);
        if home.private.is_some() || self.timeline.is_captured() {
            drop(state);
            if self.free_captured(home, block, requested) {
                return;
            }
            state = latch(&self.own.state);
        }
        // A full cache has room where others have the pool's lock.
        self.look_for_others(&mut state);
        let has_room = block.id != NONE && self.has_room(&state, block.bytes);
        drop(state);
        if has_room {
            return match at_home {
                true => self.take_back(block, requested),
                false => self.free_foreign(home, block, requested),
            };
        }
        let mut core = self.shared.core.lock();
        let mut state = latch(&self.own.state);
        if state.crowded == 0 {
            state.room = core.cache_room();
        }
        if !self.has_room(&state, block.bytes) {
            let mut stays = state.crowded > 0;
            if home.slot != self.slot {
                drop(state);
                stays |= self.hand_over(block.bytes, &mut core);
                state = latch(&self.own.state);
            }
            if !stays {
                (state.cache).drain(ALL_BINS, |block| core.on_the_way.push(block));
            }
        }
        // A retired lane counted on each of its blocks, one in use only on those freed elsewhere.
        let leaves = match at_home {
            true => {
                state.counters.free(block.bytes, requested);
                state.retired
            }
            false => home.count_elsewhere(&block, requested),
        };
        match self.has_room(&state, block.bytes) {
            true => state.cache.push(block),
            false => core.on_the_way.push(block),
        }
        drop(state);
        core.give_on_the_way(self.slot);
        let over = core.is_over_soft_limit().then(|| Arc::clone(&self.shared));
        drop(core);
        if let Some(shared) = over {
            shared.ease_holes();
        }
        if leaves {
            home.leave();
        }
    }
}
