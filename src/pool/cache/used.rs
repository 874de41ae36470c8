//! Free blocks that other streams still use.
//!
//! A block with declared uses is free behind its own stream and behind each of the others. Were its stream made
//! to wait for those at once, what it does next would no longer run beside them. So the block is kept, with a
//! mark on each of the others, until the driver says that they have come there. Only a request that finds no
//! other memory has the block's stream wait.
//!
//! The transfer cache's latch guards them: see `transfer` for the order of locks.

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
use crate::seeded::seeded;
use crate::sync::latch;

impl Used {
    /// The tick of its own stream behind which nothing uses the block, once the other uses are done or that
    /// stream runs behind them: then it does from its next record on.
    fn tick(&self) -> Option<u64> {
        let mut marks = self.marks.iter();
        if marks.all(|(theirs, tick)| theirs.done() >= *tick) {
            return Some(self.block.tick);
        }
        let mut marks = self.marks.iter();
        let behind = marks.all(|(theirs, tick)| self.timeline.is_behind(theirs, *tick));
        behind.then(
            || match seeded!("used-block-carries-the-tick-of-its-drop") {
                true => self.block.tick,
                // Under capture nothing is recorded; it waited before that.
                false => self.timeline.queued_tick(),
            },
        )
    }
}

/// Makes `home` wait for `tick` of `theirs`; where the driver refuses, the host waits.
pub(in crate::pool) fn wait_for(home: &Timeline, theirs: &Timeline, tick: u64) -> Result<()> {
    let waited = home.wait_for(theirs, tick).map(drop);
    waited.or_else(|error| {
        if !seeded!("refused-wait-made-by-nobody") {
            theirs.sync_to(tick)?;
        }
        Err(error)
    })
}

impl Uses {
    /// All that uses the block, of declared streams what is queued by now.
    fn all(&self) -> impl Iterator<Item = Mark> + '_ {
        let forgotten = usize::from(seeded!("first-declared-use-forgotten"));
        let declared = self.streams.iter().skip(forgotten).map(|stream| {
            let theirs = &stream.core().timeline;
            (Arc::clone(theirs), theirs.open_tick())
        });
        // Launches since the buffer gave up its type, of graphs that may be gone by now.
        let graphs = self.left.graphs.iter();
        let launches = graphs.filter_map(|graph| graph.record().last());
        let launches = launches.filter(|_| !seeded!("launch-after-the-type-forgotten"));
        let left = self.left.marks.iter().cloned().chain(launches);
        left.chain(declared)
    }

    /// Makes `home`, or else the host, wait for all of it.
    pub(in crate::pool) fn wait(&self, home: &Timeline) -> Result<()> {
        let each = self.all();
        let waited = each.map(|(theirs, tick)| wait_for(home, &theirs, tick));
        (waited.reduce(|before, waited| waited.and(before))).unwrap_or(Ok(()))
    }

    /// What of it `lane`'s stream does not run behind, and is not known to be done. Of a few drops one asks the
    /// driver, which tells of those before it too.
    pub(in crate::pool) fn marks(&self, lane: &Lane) -> Result<Marks> {
        let transfer = &lane.shared.transfer;
        let drops = transfer.drops.fetch_add(1, Ordering::Relaxed);
        let asks = drops.is_multiple_of(DROPS_A_QUESTION);
        let mut marks = Marks::new();
        for (theirs, tick) in self.all() {
            if lane.timeline.is_behind(&theirs, tick) {
                continue;
            }
            let done = match asks {
                true => transfer.timed(|| theirs.poll_to(tick))?,
                false => theirs.done(),
            };
            if done < tick {
                marks.push((theirs, tick));
            }
        }
        Ok(marks)
    }
}

impl Lane {
    /// Whether a free block may be kept until other streams are known to be done with it. Where what is done is
    /// not to be used before a wait, or somebody is told when blocks are free, its stream waits at once.
    pub(crate) fn keeps_used(&self) -> bool {
        self.shared.transfer.opportunistic && !self.is_observed
    }

    /// Takes back a block of this lane that `marks` still use, after which the lane may be gone; false where the
    /// lane keeps nothing.
    pub(crate) fn free_used(&self, block: &Block, marks: Marks) -> bool {
        let transfer = &self.shared.transfer;
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
        drop(waiting);
        // The last touch of the lane: once the latch is let go, it may be retired and end.
        drop(state);
        true
    }

    /// Has the lane's stream wait for what others still use of the blocks that it freed.
    pub(super) fn end_used(&self) {
        let mut state = latch(&self.shared.transfer.state);
        for used in (state.used.iter_mut()).filter(|used| used.stream == self.slot) {
            for (theirs, tick) in std::mem::take(&mut used.marks) {
                // A stream that neither device nor host can wait for runs nothing more.
                let _ = wait_for(&self.timeline, &theirs, tick);
            }
            used.block.tick = self.open_tick();
        }
    }
}

impl Transfer {
    /// What `ask` says of all that uses the oldest `most` blocks that fit.
    fn ask_of_used(
        &self,
        most: usize,
        fits: impl Fn(&Used) -> bool,
        ask: impl Fn(&Used, u64) -> Ask,
    ) -> Questions {
        if !self.has_used() {
            return Vec::new();
        }
        let state = latch(&self.state);
        let used = state.used.iter().filter(|used| fits(used)).take(most);
        let each = used.flat_map(|used| used.marks.iter().map(move |mark| (used, mark)));
        each.map(|(used, (theirs, tick))| (Arc::clone(theirs), ask(used, *tick)))
            .collect()
    }

    /// How far the work is that uses the oldest block for a request of `bytes`, or of a new block of `size`.
    pub(crate) fn how_far_is_used(&self, bytes: u64, size: u64) -> Questions {
        let fits = |used: &Used| used.block.bytes == bytes || used.block.bytes >= size;
        self.ask_of_used(1, fits, |_, tick| Ask::Progress(tick, tick))
    }

    /// The waits of its stream for that work; where no block is large enough, of all streams for all such work. A
    /// request of 0 bytes has them wait for all.
    pub(crate) fn waits_for_used(&self, bytes: u64, size: u64) -> Questions {
        let fits = |used: &Used| used.block.bytes == bytes || used.block.bytes >= size;
        // What a stream waits for under capture, the launches of its graph wait for.
        let may_wait = |used: &Used| !used.timeline.is_captured();
        let wait = |used: &Used, tick| Ask::Behind(Arc::clone(&used.timeline), tick);
        let most = usize::from(bytes > 0);
        let oldest = self.ask_of_used(most, |used| fits(used) && may_wait(used), wait);
        match oldest.is_empty() {
            true => self.ask_of_used(usize::MAX, may_wait, wait),
            false => oldest,
        }
    }

    /// The questions about all such work, or waits of the host for it.
    pub(crate) fn ask_of_all_used(&self, wait: bool) -> Questions {
        let ask = |_: &Used, tick| match wait {
            true => Ask::Done(tick),
            false => Ask::Progress(tick, tick),
        };
        self.ask_of_used(usize::MAX, |_| true, ask)
    }
}

impl Shared {
    /// Gives the heap the blocks whose other uses are done, or which their streams run behind; true if there were any.
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
