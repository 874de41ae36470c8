//! Free blocks that other streams still use.
//!
//! A block with declared uses is free behind work of its own stream and of other streams. If its stream waited for
//! them at the drop, its next work would no longer overlap with theirs. So the pool keeps the block until the driver
//! says that they are done. Only a request that finds no other memory makes the block's stream wait.
//!
//! The transfer cache's latch guards these blocks: see `transfer` for the order of locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::free_lists::Cached;
use super::transfer::MOST_USED;
use crate::device::Timeline;
use crate::error::Result;
use crate::pool::ask::{Ask, Questions};
use crate::pool::core::Core;
use crate::pool::structure::{Block, Lane, Mark, Marks, Shared, Transfer, Used, Uses};
use crate::pool::tuning::DROPS_A_QUESTION;
use crate::sync::latch;

impl Used {
    /// The tick of its own stream after which nothing uses the block, once the other uses are done, or that stream
    /// runs behind them, as its next record then does.
    fn tick(&self) -> Option<u64> {
        let mut marks = self.marks.iter();
        let behind = marks.all(|(theirs, tick)| self.timeline.is_behind(theirs, *tick));
        let done = (self.marks.iter()).all(|(theirs, tick)| theirs.done() >= *tick);
        // Not the open tick: under capture nothing is recorded, and the wait was before it.
        behind.then(|| match done {
            true => self.block.tick,
            false => self.timeline.queued_tick(),
        })
    }
}

impl Uses {
    /// All work that uses the block; for declared streams, all that is queued by now.
    fn all(&self) -> impl Iterator<Item = Mark> + '_ {
        let declared = self.streams.iter().map(|stream| {
            let theirs = &stream.core().timeline;
            (Arc::clone(theirs), theirs.queued_tick())
        });
        // Launches since the buffer gave up its type, also of graphs that are gone.
        let graphs = self.left.graphs.iter();
        let launches = graphs.filter_map(|graph| graph.record().last());
        let left = self.left.marks.iter().cloned().chain(launches);
        left.chain(declared)
    }

    /// Makes `home`, or else the host, wait for all work that uses the block.
    pub(in crate::pool) fn wait(&self, home: &Timeline) -> Result<()> {
        let waited = (self.all()).map(|(theirs, tick)| home.wait_surely(&theirs, tick));
        waited.fold(Ok(()), Result::and)
    }

    /// The work that uses the block, without work that `lane`'s stream runs behind or that is known to be done. One
    /// of a few drops asks the driver, whose answer serves the drops before it too.
    pub(in crate::pool) fn marks(&self, lane: &Lane) -> Result<Marks> {
        let transfer = &lane.shared.transfer;
        let drops = transfer.drops.fetch_add(1, Ordering::Relaxed);
        let asks = drops.is_multiple_of(DROPS_A_QUESTION);
        let mut marks = Marks::new();
        let ahead = |(theirs, tick): &(Arc<Timeline>, u64)| !lane.timeline.is_behind(theirs, *tick);
        for (theirs, tick) in self.all().filter(ahead) {
            if asks {
                transfer.timed(|| theirs.poll_to(tick))?;
            }
            if theirs.done() < tick {
                marks.push((theirs, tick));
            }
        }
        Ok(marks)
    }
}

impl Lane {
    /// Whether a free block may wait here: not if done work may not be used, or if blocks are observed.
    pub(crate) fn keeps_used(&self) -> bool {
        self.shared.transfer.opportunistic && !self.is_observed
    }

    /// Keeps a freed block that `marks` still use, after which the lane may be gone; false if the lane keeps nothing.
    pub(crate) fn free_used(&self, block: &Block, marks: Marks) -> bool {
        let transfer = &self.shared.transfer;
        if transfer.used.load(Ordering::Relaxed) == MOST_USED as u64 {
            self.shared.give_used(&mut self.shared.core.lock());
        }
        let mut waiting = latch(&transfer.state);
        let mut state = latch(&self.state);
        if state.aside || waiting.used.len() == MOST_USED {
            return false;
        }
        let (bytes, requested) = (block.capacity(), block.bytes());
        state.counters.free(bytes, requested);
        waiting.used.push(Used {
            block: Cached::new(block.id(), block.addr(), bytes, self.open_tick()),
            stream: self.slot,
            timeline: Arc::clone(&self.timeline),
            marks,
        });
        transfer.note_count(&waiting);
        // First: once the lane's own latch is released, it may retire and end.
        drop(waiting);
        true
    }

    /// Makes the lane's stream wait for the other uses of blocks that it freed, before [`Lane::retire`]: a driver may
    /// keep the caller until a host call has run, which may ask for the locks of that.
    pub(in crate::pool) fn wait_for_used(&self) {
        // No block is added after this, whatever else sets the lane aside and back.
        self.change(|state| state.leaving = true);
        let is_its = |used: &Used| used.stream == self.slot;
        let marks = (self.shared.transfer).ask_of_used(usize::MAX, is_its, |_, tick| tick);
        for (theirs, tick) in marks {
            // A stream that neither device nor host can wait for runs nothing more.
            let _ = self.timeline.wait_surely(&theirs, tick);
        }
    }
}

impl Transfer {
    /// The questions of `ask` about all uses of the oldest `most` blocks that fit.
    pub(in crate::pool) fn ask_of_used<A>(
        &self,
        most: usize,
        fits: impl Fn(&Used) -> bool,
        ask: impl Fn(&Used, u64) -> A,
    ) -> Vec<(Arc<Timeline>, A)> {
        if !self.has_used() {
            return Vec::new();
        }
        let state = latch(&self.state);
        let used = state.used.iter().filter(|used| fits(used)).take(most);
        let each = used.flat_map(|used| used.marks.iter().map(move |mark| (used, mark)));
        each.map(|(used, (theirs, tick))| (Arc::clone(theirs), ask(used, *tick)))
            .collect()
    }

    /// Asks how far the uses are of the oldest block of exactly `bytes`, or of at least `size`.
    pub(crate) fn how_far_is_used(&self, bytes: u64, size: u64) -> Questions {
        let fits = |used: &Used| used.block.bytes == bytes || used.block.bytes >= size;
        self.ask_of_used(1, fits, |_, tick| Ask::Progress(tick, tick))
    }

    /// Makes that block's stream wait for its uses; if no block fits, all streams for all uses.
    pub(crate) fn waits_for_used(&self, bytes: u64, size: u64) -> Questions {
        let fits = |used: &Used| used.block.bytes == bytes || used.block.bytes >= size;
        // Under capture a wait would be one of the graph's launches.
        let may_wait = |used: &Used| !used.timeline.is_captured();
        let wait = |used: &Used, tick| Ask::Behind(Arc::clone(&used.timeline), tick);
        let oldest = self.ask_of_used(1, |used| fits(used) && may_wait(used), wait);
        match oldest.is_empty() {
            true => self.ask_of_used(usize::MAX, may_wait, wait),
            false => oldest,
        }
    }
}

impl Shared {
    /// Frees into the heap the blocks whose other uses are done or ordered before; true if there were any.
    pub(crate) fn give_used(&self, core: &mut Core) -> bool {
        if !self.transfer.has_used() {
            return false;
        }
        let mut state = latch(&self.transfer.state);
        let before = state.used.len();
        state.used.retain(|used| {
            let tick = used.tick();
            if let Some(tick) = tick {
                core.on_the_way.push(Cached { tick, ..used.block });
                core.give_on_the_way(used.stream);
            }
            tick.is_none()
        });
        self.transfer.note_count(&state);
        state.used.len() < before
    }
}

#[cfg(test)]
mod tests;
