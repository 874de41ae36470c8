//! Private memory: what a pool hands out on a stream that is being captured into a graph.
//!
//! A stream's lane under capture sends its requests here. Memory comes from the pool in *segments*,
//! ordinary blocks allocated on the recorder's gate (see the device's module `capture`), and is cut
//! into parts by exact best fit. A part freed during the capture is joined with its neighbours and
//! handed out again in the same capture, since the graph replays both uses in the order they were
//! captured in. Nobody else gets it: towards the pool the segment is a live block, which is not
//! remapped, not moved and not trimmed. When the graph is gone, a segment goes back to the pool as
//! soon as no part of it is live.
//!
//! A part is a [`Block`] like any other, on a lane of its own that has no cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache::Cached;
use super::stats::counters::Sums;
use super::structure::{Block, Captured, Lane, Part, Private, Segment, Segments, Shared, Stretch};
use super::tuning::GRAPH_SEGMENT;
use crate::device::{Addr, Kept, Recorder, Stream, Timeline, lock};
use crate::error::{Error, Result};
use crate::heap::NONE;
use crate::seeded::seeded;
use crate::sync::{Mutex, latch};

impl Segments {
    fn segment_of(&mut self, addr: Addr) -> Option<&mut Segment> {
        self.segments.range_mut(..=addr).next_back().map(|(_, s)| s)
    }

    /// A new segment, free.
    fn add(&mut self, block: Block) {
        let (start, bytes) = (block.addr(), block.capacity());
        let state = Stretch::Free;
        self.parts.insert(start, Part { bytes, state });
        self.free.insert((bytes, start));
        let segment = Segment {
            block,
            live: 0,
            high: start,
        };
        self.segments.insert(start, segment);
    }

    /// The smallest free part of at least `bytes`, cut to size; its address.
    fn take(&mut self, bytes: u64) -> Option<Addr> {
        let &(size, addr) = self.free.range((bytes, 0)..).next()?;
        self.free.remove(&(size, addr));
        let state = Stretch::Taken;
        self.parts.insert(addr, Part { bytes, state });
        if size > bytes {
            let (start, bytes, state) = (addr + bytes, size - bytes, Stretch::Free);
            self.parts.insert(start, Part { bytes, state });
            self.free.insert((bytes, start));
        }
        if let Some(segment) = self.segment_of(addr) {
            segment.live += 1;
            segment.high = segment.high.max(addr + bytes);
        }
        Some(addr)
    }

    /// Files [`addr`, `addr + bytes`) as free, joined with its free neighbours in the segment.
    fn file(&mut self, mut addr: Addr, mut bytes: u64) {
        let Some(segment) = self.segment_of(addr) else {
            return;
        };
        let (from, to) = (
            segment.block.addr(),
            segment.block.addr() + segment.block.capacity(),
        );
        let free = |part: &Part| part.state == Stretch::Free;
        if addr + bytes < to
            && let Some(next) = self.parts.get(&(addr + bytes)).copied().filter(free)
        {
            self.parts.remove(&(addr + bytes));
            self.free.remove(&(next.bytes, addr + bytes));
            bytes += next.bytes;
        }
        if addr > from
            && let Some((&before, &part)) = self.parts.range(..addr).next_back()
            && free(&part)
        {
            self.parts.remove(&addr);
            self.free.remove(&(part.bytes, before));
            (addr, bytes) = (before, bytes + part.bytes);
        }
        let state = Stretch::Free;
        self.parts.insert(addr, Part { bytes, state });
        self.free.insert((bytes, addr));
    }

    /// Takes back the live part at `addr`, to be handed out `again` or not; gives its segment if
    /// that is to go.
    fn give(&mut self, addr: Addr, again: bool) -> Option<Block> {
        let part = self.parts.get(&addr).copied()?;
        if again {
            self.file(addr, part.bytes);
        }
        let released = self.released;
        let segment = self.segment_of(addr)?;
        segment.live -= 1;
        let start = (released && segment.live == 0).then(|| segment.block.addr())?;
        self.forget(start)
    }

    /// Takes a segment without live parts out.
    fn forget(&mut self, start: Addr) -> Option<Block> {
        let segment = self.segments.remove(&start)?;
        let end = start + segment.block.capacity();
        let gone: Vec<Addr> = self
            .parts
            .range(start..end)
            .map(|(&addr, _)| addr)
            .collect();
        for addr in gone {
            if let Some(part) = self.parts.remove(&addr) {
                self.free.remove(&(part.bytes, addr));
            }
        }
        Some(segment.block)
    }

    /// Gives the pool back what no part of was ever handed out at the end of each segment; gives
    /// the bytes.
    fn trim(&mut self) -> u64 {
        let mut trimmed = 0;
        let Self {
            segments,
            parts,
            free,
            ..
        } = self;
        for segment in segments.values_mut() {
            let (start, end) = (
                segment.block.addr(),
                segment.block.addr() + segment.block.capacity(),
            );
            let last = parts.range(start..end).next_back();
            let Some((&at, &part)) = last.filter(|(_, part)| part.state == Stretch::Free) else {
                continue;
            };
            let keep = match seeded!("trimmed-to-the-last-live-part") {
                true => at,
                false => segment.high.max(at),
            };
            if keep < end && keep > start && segment.block.shrink(keep - start).is_ok() {
                free.remove(&(part.bytes, at));
                parts.remove(&at);
                let (bytes, state) = (keep - at, Stretch::Free);
                if bytes > 0 {
                    parts.insert(at, Part { bytes, state });
                    free.insert((bytes, at));
                }
                trimmed += end - keep;
            }
        }
        trimmed
    }
}

impl Private {
    fn new(recorder: &Arc<Recorder>) -> Self {
        Self {
            recorder: Arc::clone(recorder),
            parts: Mutex::default(),
        }
    }

    /// A segment that holds `bytes`, from the pool's memory.
    fn segment(&self, shared: &Arc<Shared>, bytes: u64) -> Result<Block> {
        let lane = shared.open_lane(self.recorder.gate())?;
        if bytes < GRAPH_SEGMENT
            && let Some(block) = lane.try_alloc(GRAPH_SEGMENT)?
        {
            return Ok(block);
        }
        lane.alloc(bytes)
    }

    fn bytes(&self) -> u64 {
        let parts = lock(&self.parts);
        parts.segments.values().map(|s| s.block.capacity()).sum()
    }

    /// Gives the segments up: those without live parts now, the others with their last.
    fn release(&self, shared: &Shared) {
        let gone: Vec<Block> = {
            let mut parts = lock(&self.parts);
            parts.released = true;
            let idle: Vec<Addr> = parts
                .segments
                .iter()
                .filter(|(_, segment)| segment.live == 0)
                .map(|(&start, _)| start)
                .collect();
            idle.into_iter()
                .filter_map(|start| parts.forget(start))
                .collect()
        };
        let bytes = gone.iter().map(Block::capacity).sum();
        shared.graph_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The lane of a capture's private memory, kept until its graph is gone.
struct KeptLane(Arc<Lane>);

impl Kept for KeptLane {
    fn release(self: Box<Self>, _gate: &Stream) {
        if let Some(private) = &self.0.private {
            private.release(&self.0.shared);
        }
        self.0.leave();
    }

    fn bytes(&self) -> u64 {
        self.0.private.as_ref().map_or(0, |private| private.bytes())
    }
}

/// A block that captured work uses, dropped during the capture.
struct KeptBlock {
    block: Block,
    /// Other captures whose work uses it.
    others: Vec<Arc<Recorder>>,
}

impl Kept for KeptBlock {
    fn release(mut self: Box<Self>, gate: &Stream) {
        if let Some(other) = self.others.pop() {
            let timeline = &gate.core().timeline;
            other.outlast(timeline, timeline.open_tick());
            if let Err(thing) = other.keep(self) {
                // That graph is gone too.
                thing.release(gate);
            }
            return;
        }
        // A wait that the driver refuses is made by the host; nothing more can be done here.
        let _ = self.block.free_on(gate);
    }

    fn bytes(&self) -> u64 {
        self.block.capacity()
    }
}

/// Keeps `block` until the graphs of all `recorders` are gone; frees it if there are none.
pub(super) fn keep_block(block: Block, mut recorders: Vec<Arc<Recorder>>) {
    let Some(first) = recorders.pop() else { return };
    let home = &block.lane().stream.timeline;
    if home.recorder().is_none() {
        first.outlast(home, home.open_tick());
    }
    let kept = KeptBlock {
        block,
        others: recorders,
    };
    if let Err(thing) = first.keep(Box::new(kept)) {
        thing.release(first.gate());
    }
}

impl Captured {
    /// A block of private memory.
    pub(super) fn alloc(&self, bytes: u64, requested: u64) -> Result<Block> {
        let lane = &self.lane;
        let Some(private) = &lane.private else {
            return Err(Error::invalid("stream", "its capture has no memory"));
        };
        loop {
            {
                let mut parts = lock(&private.parts);
                if let Some(addr) = parts.take(bytes) {
                    lane.count(|counters, away| counters.allocate(bytes, requested, away));
                    lane.enter();
                    return Ok(Block::new(lane, NONE, addr, bytes, requested));
                }
            }
            // Without the lock: the application may be asked to free something.
            let segment = private.segment(&lane.shared, bytes)?;
            let graph_bytes = &lane.shared.graph_bytes;
            graph_bytes.fetch_add(segment.capacity(), Ordering::Relaxed);
            lock(&private.parts).add(segment);
        }
    }
}

impl Lane {
    /// The capture the lane is under.
    pub(crate) fn captured(&self) -> Option<Arc<Captured>> {
        latch(&self.own.state).captured.clone()
    }

    /// Sets the capture the lane is under; gives the one before.
    pub(crate) fn set_captured(&self, captured: Option<Arc<Captured>>) -> Option<Arc<Captured>> {
        let mut state = latch(&self.own.state);
        state.aside = state.retired || state.asleep || captured.is_some();
        std::mem::replace(&mut state.captured, captured)
    }

    /// Sends what is allocated and freed on the stream to private memory of `recorder`'s graph, or,
    /// with `None`, to the pool again.
    pub(crate) fn route(&self, recorder: Option<&Arc<Recorder>>) {
        let Some(recorder) = recorder else {
            let captured = self.set_captured(None);
            if let Some(private) = captured.as_ref().and_then(|c| c.lane.private.as_ref()) {
                let trimmed = lock(&private.parts).trim();
                let graph_bytes = &self.shared.graph_bytes;
                graph_bytes.fetch_sub(trimmed, Ordering::Relaxed);
            }
            return;
        };
        let already = self.captured();
        if already.is_some_and(|captured| Arc::ptr_eq(&captured.recorder, recorder)) {
            return;
        }
        recorder.record().sleeps_with(&self.shared.awake);
        let private = Arc::new(Private::new(recorder));
        let lane = Self::new_private(self, private);
        let captured = Captured {
            recorder: Arc::clone(recorder),
            lane: Arc::clone(&lane),
        };
        if let Err(thing) = recorder.keep(Box::new(KeptLane(lane))) {
            thing.release(recorder.gate());
            return;
        }
        self.set_captured(Some(Arc::new(captured)));
    }

    /// Takes back a block that a graph keeps or will keep, freed on this lane; false if it is none.
    pub(super) fn free_captured(&self, home: &Self, block: Cached, requested: u64) -> bool {
        let capture = self.stream.timeline.recorder();
        match (&home.private, capture) {
            (None, None) => false,
            (Some(private), capture)
                if capture
                    .as_ref()
                    .is_none_or(|capture| Arc::ptr_eq(capture, &private.recorder)) =>
            {
                // On another stream of the capture, or after it, the part is not handed out again:
                // the graph does not order the next use behind this one.
                let same =
                    std::ptr::eq(self, home) || seeded!("private-part-reused-across-streams");
                let again = capture.is_some() && same;
                home.free_private(private, block, requested, again, &self.stream.timeline);
                true
            }
            (_, Some(capture)) => {
                let block = Block::again(home, block, requested);
                keep_block(block, vec![capture]);
                true
            }
            (Some(_), None) => false,
        }
    }

    fn free_private(
        &self,
        private: &Private,
        block: Cached,
        requested: u64,
        again: bool,
        freed_on: &Timeline,
    ) {
        if freed_on.recorder().is_none() {
            private.recorder.outlast(freed_on, block.tick);
        }
        let gone = {
            let mut parts = lock(&private.parts);
            self.count(|counters, _| counters.free(block.bytes, requested));
            parts.give(block.addr, again)
        };
        if let Some(segment) = gone {
            let graph_bytes = &self.shared.graph_bytes;
            graph_bytes.fetch_sub(segment.capacity(), Ordering::Relaxed);
        }
        self.leave();
    }

    /// As [`Lane::grow`], of a block of private memory: in place or not at all.
    pub(super) fn grow_private(&self, private: &Private, before: Sums, after: Sums) -> bool {
        let _parts = lock(&private.parts);
        let in_place = before.bytes == after.bytes;
        if in_place {
            self.count(|counters, away| counters.resize(before, after, away));
        }
        in_place
    }

    /// As [`Lane::shrink`], of a block of private memory.
    pub(super) fn shrink_private(&self, private: &Private, addr: Addr, before: Sums, after: Sums) {
        let again = self.stream.timeline.recorder();
        let again = again.is_some_and(|capture| Arc::ptr_eq(&capture, &private.recorder));
        let mut parts = lock(&private.parts);
        self.count(|counters, away| counters.resize(before, after, away));
        if again {
            let (bytes, state) = (after.bytes, Stretch::Taken);
            parts.parts.insert(addr, Part { bytes, state });
            parts.file(addr + bytes, before.bytes - bytes);
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
