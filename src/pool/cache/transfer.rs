//! The transfer cache: moves free blocks of one size from stream to stream, past the heap.
//!
//! # Batches
//!
//! If one thread allocates what another frees, block after block of one size, the heap would merge each block into a
//! hole and cut it out again. So a full lane gives up blocks of such a size as one *batch*, with the epoch after
//! which nothing uses them. A lane that misses takes the whole batch and serves the next requests by itself: one
//! visit here, and one wait on the device, for up to [`MOST`] blocks.
//!
//! A request takes a batch of its own stream, or one that its stream runs behind already. Then it looks for ready
//! memory in the heap. Only then its stream waits for a batch, [`Lane::wait_for_batch`]. If there is none,
//! [`Lane::take_over`] makes one of the blocks of another lane. Beyond [`KEPT`], the oldest goes into the heap.
//!
//! # A request sees all free memory
//!
//! Locks are taken in one order: the heap's, the transfer cache's, a lane's latch. Blocks move between lanes under
//! the last two. A request that empties all caches holds the transfer cache's until it is done, so every free block
//! is in the heap, in a batch, or in a lane that the request empties.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::free_lists::{ALL_BINS, Cached};
use crate::heap::{Epoch, Grant, StreamIndex};
use crate::pool::ask::{Ask, Questions};
use crate::pool::core::Core;
use crate::pool::stats::Told;
use crate::pool::structure::{Batch, Lane, Shared, Transfer, TransferState};
use crate::sync::latch;

/// Blocks in a batch.
const LEAST: usize = 8;
const MOST: usize = 64;

/// Most batches.
const KEPT: usize = 16;

/// Most blocks that wait for other streams; for one more, its own stream waits. A request that misses looks at each.
pub(super) const MOST_USED: usize = 256;

impl Transfer {
    /// Counts the time that `calls` spends in the driver for the drop of a block.
    pub(crate) fn timed<T>(&self, calls: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let outcome = calls();
        let spent = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.driver_ns.fetch_add(spent, Ordering::Relaxed);
        outcome
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    pub(super) fn note_count(&self, state: &TransferState) {
        (self.count).store(state.batches.len() as u64, Ordering::Relaxed);
        (self.used).store(state.used.len() as u64, Ordering::Relaxed);
    }
}

impl Batch {
    fn cached(&self) -> impl Iterator<Item = Cached> {
        let blocks = self.blocks.iter();
        blocks.map(|&(addr, id)| Cached::new(id, addr, self.bytes, self.tick))
    }
}

impl Lane {
    /// Makes a batch of the cache's blocks of `bytes`, if there are `least`; true if so.
    fn make_batch(&self, bytes: u64, least: usize, core: &mut Core) -> bool {
        let transfer = &self.shared.transfer;
        let mut state = latch(&transfer.state);
        let mut blocks = (state.spare.pop()).unwrap_or_else(|| Vec::with_capacity(MOST));
        let mut own = latch(&self.state);
        let mut newest = 0;
        let taken = std::iter::from_fn(|| own.cache.pop(bytes)).take(MOST);
        blocks.extend(taken.map(|it| {
            newest = newest.max(it.tick);
            (it.addr, it.id)
        }));
        if blocks.len() < least {
            let back = blocks.drain(..).rev();
            back.for_each(|(addr, id)| own.cache.push(Cached::new(id, addr, bytes, newest)));
        }
        drop(own);
        if blocks.is_empty() {
            state.spare.push(blocks);
            return false;
        }
        state.batches.push(Batch {
            bytes,
            stream: self.slot,
            timeline: Arc::clone(&self.stream.timeline),
            tick: newest,
            blocks,
        });
        let oldest = (state.batches.len() > KEPT).then(|| state.batches.remove(0));
        transfer.note_count(&state);
        drop(state);
        oldest.into_iter().for_each(|it| core.give_batch(it));
        true
    }

    /// Makes a batch of a full cache's blocks of `bytes`, unless they are few; true if there is room now.
    pub(crate) fn hand_over(&self, bytes: u64, core: &mut Core) -> bool {
        !core.is_over_soft_limit() && self.make_batch(bytes, LEAST, core)
    }

    /// Whether work that the lane's stream is given from now on runs behind all uses of the batch. A wait for what is
    /// done is not queued, so after one that counts too, even if the pool is set not to use it. No wait covers blocks
    /// that were freed after it.
    fn is_behind(&self, batch: &Batch, waited: bool) -> bool {
        let theirs = &batch.timeline;
        let uses_done = waited || self.shared.transfer.opportunistic;
        uses_done && batch.tick <= theirs.done() || batch.tick <= self.timeline.waited(theirs.uid)
    }

    /// Takes a block of exactly `bytes` from a batch of the lane's own stream, or one that its stream runs behind, or
    /// has `waited` for; and says which.
    pub(crate) fn take_batch(&self, bytes: u64, waited: bool) -> Option<(Cached, Told)> {
        let transfer = &self.shared.transfer;
        if !transfer.has_any() {
            return None;
        }
        let mut state = latch(&transfer.state);
        // One question to a stream, as its ticks grow: it takes a lock, and a request that misses looks at all batches.
        let mut asked = None;
        let fits = |batch: &Batch| {
            let is_new = batch.bytes == bytes && asked.replace(batch.stream) != Some(batch.stream);
            is_new && self.is_behind(batch, waited)
        };
        let at = state.batches.iter().position(fits)?;
        let mut batch = state.batches.remove(at);
        let own = batch.stream == self.slot;
        // The stream runs behind all of them: the others go into the cache, while there is room.
        let (tick, mut kept) = (self.open_tick(), latch(&self.state));
        let cached = |(addr, id)| Cached::new(id, addr, bytes, tick);
        let block = batch.blocks.pop().map(cached);
        while let Some(block) = batch.blocks.pop_if(|_| self.has_room(&kept, bytes)) {
            kept.cache.push(cached(block));
        }
        drop(kept);
        match batch.blocks.is_empty() {
            true => state.spare.push(batch.blocks),
            false => state.batches.insert(0, batch),
        }
        transfer.note_count(&state);
        let step = match (own, waited) {
            (true, _) => Told::OwnStream(bytes),
            (_, true) => Told::StreamWait(bytes),
            _ => Told::ReadyElsewhere(bytes),
        };
        step.count(&mut state.steps);
        Some((block?, step))
    }

    /// A block of exactly `bytes` that needs no wait, for a request that the cache missed.
    pub(crate) fn take_ready_batch(&self, bytes: u64, requested: u64) -> Option<Cached> {
        let (block, step) = self.take_batch(bytes, false)?;
        if self.settle(bytes, requested).is_err() {
            // The ladder returns the error.
            let (tick, mut core) = (self.open_tick(), self.shared.core.lock());
            core.on_the_way.push(Cached { tick, ..block });
            core.give_on_the_way(self.slot);
            return None;
        }
        step.tell(self.shared.uid);
        Some(block)
    }

    /// As [`Lane::take_batch`]; if there is none, from another lane of the stream, or of `any` stream.
    pub(crate) fn take_over(
        &self,
        bytes: u64,
        any: bool,
        waited: bool,
        core: &mut Core,
    ) -> Option<Grant> {
        let (block, step) = self.take_batch(bytes, waited).or_else(|| {
            // Blocks of the own stream need no wait. Another stream's may be in a batch already.
            let lacks = !any || self.wait_for_batch(bytes).is_empty();
            let gathered = lacks && self.gather(bytes, any, core);
            gathered.then(|| self.take_batch(bytes, waited))?
        })?;
        // `take_batch` has counted it.
        if cfg!(feature = "tracing") {
            core.told.push(step);
        }
        // It is active already, and `served` adds it.
        core.active.sub(bytes);
        let (id, offset) = (block.id, block.addr - self.shared.base);
        Some(Grant { id, offset })
    }

    /// The wait after which the newest batch of `bytes` of another stream is ready, if there is one.
    pub(crate) fn wait_for_batch(&self, bytes: u64) -> Questions {
        let state = latch(&self.shared.transfer.state);
        let mut batches = state.batches.iter().rev();
        let newest = batches.find(|batch| batch.bytes == bytes && batch.stream != self.slot);
        let mine = Arc::clone(&self.stream.timeline);
        let wait = newest.map(|it| (Arc::clone(&it.timeline), Ask::Behind(mine, it.tick)));
        wait.into_iter().collect()
    }

    /// Makes a batch in the first other lane of the stream, or of `any` stream, that has blocks of `bytes`.
    fn gather(&self, bytes: u64, any: bool, core: &mut Core) -> bool {
        if !any && Arc::strong_count(&self.hold) == 1 {
            return false;
        }
        let lanes = self.shared.listed();
        let others = lanes.iter().filter(|lane| !std::ptr::eq(&***lane, self));
        let mut others = others.filter(|lane| any || lane.slot == self.slot);
        others.any(|lane| lane.make_batch(bytes, 1, core))
    }

    /// Empties the `bins` of the cache into the heap; true if they had anything. Releases the latch before the heap
    /// merges them: the heap's lock keeps them from being missed.
    pub(crate) fn drain(&self, bins: Range<usize>, core: &mut Core) -> bool {
        let blocks = &mut core.on_the_way;
        (latch(&self.state).cache).drain(bins, |block| blocks.push(block));
        let any = !blocks.is_empty();
        core.give_on_the_way(self.slot);
        any
    }
}

impl Shared {
    /// Empties the batches of `stream` into the heap; without one, all batches and all lanes' caches. True if there
    /// was anything. Meanwhile no block moves between caches.
    pub(crate) fn drain(&self, stream: Option<StreamIndex>, core: &mut Core) -> bool {
        let lanes = stream.map_or_else(|| self.listed(), |_| Arc::default());
        let any = self.give_used(core);
        let mut state = latch(&self.transfer.state);
        let any = (lanes.iter()).fold(any, |any, lane| lane.drain(ALL_BINS, core) | any);
        let is_taken = |batch: &mut Batch| stream.is_none_or(|it| batch.stream == it);
        let taken: Vec<_> = state.batches.extract_if(.., is_taken).collect();
        self.transfer.note_count(&state);
        drop(state);
        let any = any || !taken.is_empty();
        taken.into_iter().for_each(|batch| core.give_batch(batch));
        any
    }

    /// Calls `see` with the core and with all cached blocks as (offset, bytes).
    pub(crate) fn look<T>(&self, see: impl FnOnce(&Core, HashSet<(u64, u64)>) -> T) -> T {
        let core = self.core.lock();
        let state = latch(&self.transfer.state);
        let mut cached = HashSet::new();
        let mut note = |block: &Cached| {
            let is_new = cached.insert((block.addr - self.base, block.bytes));
            debug_assert!(is_new, "a free block is in one place");
        };
        for lane in self.listed().iter() {
            latch(&lane.state).cache.each(&mut note);
        }
        let blocks = state.batches.iter().flat_map(Batch::cached);
        let used = state.used.iter().map(|used| used.block);
        blocks.chain(used).for_each(|block| note(&block));
        drop(state);
        see(&core, cached)
    }
}

impl Core {
    fn give_batch(&mut self, batch: Batch) {
        self.on_the_way.extend(batch.cached());
        self.give_on_the_way(batch.stream);
    }

    /// Frees into the heap the blocks on the way, which `stream` freed.
    pub(crate) fn give_on_the_way(&mut self, stream: StreamIndex) {
        let mut blocks = std::mem::take(&mut self.on_the_way);
        for block in blocks.drain(..) {
            self.active.sub(block.bytes);
            let epoch = Epoch::new(stream, block.tick);
            let (id, offset) = (block.id, block.addr - self.arena.base());
            self.give_granted(Grant { id, offset }, block.bytes, epoch);
        }
        self.on_the_way = blocks;
    }
}

#[cfg(test)]
mod tests;
