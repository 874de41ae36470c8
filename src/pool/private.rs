//! Private memory of graphs: the memory that a pool allocates on streams under capture.
//!
//! A lane under capture sends its requests here. The pool provides *segments*, blocks allocated on the
//! recorder's gate (see the device's module `capture`), which are cut into parts by exact best fit. A part freed
//! during the capture merges with its free neighbours, and the same capture may allocate it again: the graph
//! replays both uses in the order of capture. For the pool a segment is a live block, which is not remapped, moved or
//! trimmed. Once the graph is gone, a segment is freed with its last live part.
//!
//! A part is a [`Block`] of a lane of its own, which has no cache.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache::Cached;
use super::observers::Event;
use super::structure::{Block, Lane, LaneState, Private, Segment, Segments};
use super::tuning::GRAPH_SEGMENT;
use crate::device::{AccessLog, Addr, Kept, Recorder, Stream, StreamCore, lock};
use crate::error::{Error, Result};
use crate::heap::NONE;
use crate::sync::{Mutex, latch};

impl Segments {
    fn segment_of(&mut self, addr: Addr) -> Option<&mut Segment> {
        self.segments.range_mut(..=addr).next_back().map(|(_, s)| s)
    }

    fn add(&mut self, block: Block) {
        let (high, live) = (block.addr(), 0);
        let free = BTreeMap::from([(high, block.capacity())]);
        let segment = Segment {
            block,
            free,
            live,
            high,
        };
        self.segments.insert(high, segment);
    }

    /// Allocates `bytes` of the smallest free part that has them; returns the address. A capture has few parts.
    fn take(&mut self, bytes: u64) -> Option<Addr> {
        let free = self.segments.values().flat_map(|it| &it.free);
        let fitting = free.filter(|(_, size)| **size >= bytes);
        let (&addr, &size) = fitting.min_by_key(|(_, size)| **size)?;
        let segment = self.segment_of(addr)?;
        segment.free.remove(&addr);
        if size > bytes {
            segment.free.insert(addr + bytes, size - bytes);
        }
        segment.live += 1;
        segment.high = segment.high.max(addr + bytes);
        Some(addr)
    }

    /// Files [`addr`, `addr + bytes`) as free, merged with its free neighbours in the segment.
    pub(super) fn file(&mut self, mut addr: Addr, mut bytes: u64) {
        let Some(Segment { free, .. }) = self.segment_of(addr) else {
            return;
        };
        bytes += free.remove(&(addr + bytes)).unwrap_or(0);
        if let Some((&before, &more)) = free.range(..addr).next_back()
            && before + more == addr
        {
            (addr, bytes) = (before, bytes + more);
        }
        free.insert(addr, bytes);
    }

    /// Frees the live part at `addr`, to be allocated `again` or not; returns its segment if that is to be freed.
    fn give(&mut self, addr: Addr, bytes: u64, again: bool) -> Option<Block> {
        if again {
            self.file(addr, bytes);
        }
        let released = self.released;
        let segment = self.segment_of(addr)?;
        segment.live -= 1;
        let start = (released && segment.live == 0).then(|| segment.block.addr())?;
        self.segments.remove(&start).map(|it| it.block)
    }

    /// Returns the segments without live parts, to be freed. The others are freed with their last part.
    fn release(&mut self) -> Vec<Block> {
        self.released = true;
        let all = std::mem::take(&mut self.segments).into_iter();
        let (idle, live): (BTreeMap<_, _>, _) = all.partition(|(_, it)| it.live == 0);
        self.segments = live;
        idle.into_values().map(|it| it.block).collect()
    }

    /// Frees the end of each segment that was never allocated.
    fn trim(&mut self) {
        for segment in self.segments.values_mut() {
            let (start, bytes) = (segment.block.addr(), segment.block.capacity());
            let (end, keep) = (segment.high, segment.high - start);
            if (1..bytes).contains(&keep) && segment.block.shrink(keep).is_ok() {
                // It was the end of the last free part.
                let rest = segment.free.pop_last().filter(|(at, _)| *at < end);
                segment.free.extend(rest.map(|(at, _)| (at, end - at)));
            }
        }
    }
}

/// The graph keeps the lane of its private memory.
impl Kept for Arc<Lane> {
    fn release(self: Box<Self>, _gate: &Stream) {
        if let Some(private) = &self.private {
            let _gone = lock(&private.parts).release();
        }
        self.leave();
    }

    fn bytes(&self) -> u64 {
        self.private.as_ref().map_or(0, |private| {
            let parts = lock(&private.parts);
            parts.segments.values().map(|s| s.block.capacity()).sum()
        })
    }
}

type LetGo = Box<dyn FnOnce(Option<&Stream>) + Send>;

/// Bytes of memory that captured work uses, and what frees it behind the work of a gate.
impl Kept for (u64, LetGo) {
    fn release(self: Box<Self>, gate: &Stream) {
        (self.1)(Some(gate));
    }

    fn bytes(&self) -> u64 {
        self.0
    }
}

/// Frees memory once the graphs of all `others` are gone, behind the last one's gate; `gate` is that of the one before.
pub(super) fn keep_for(
    mut others: Vec<Arc<Recorder>>,
    bytes: u64,
    gate: Option<&Stream>,
    let_go: LetGo,
) {
    let Some(other) = others.pop() else {
        return let_go(gate);
    };
    if let Some(gate) = gate {
        let timeline = &gate.core().timeline;
        other.outlast(timeline, timeline.open_tick());
    }
    let let_go: LetGo = Box::new(move |gate| keep_for(others, bytes, gate, let_go));
    other.keep(Box::new((bytes, let_go)));
}

impl Block {
    /// Notes in the log of a buffer in a graph's memory that launches use it, also if captured work does not: they use its
    /// bytes for what was freed before.
    #[inline]
    pub(crate) fn note_launches(&self, log: &AccessLog) {
        if self.is_private()
            && let Some(private) = &self.lane().private
        {
            log.note_launches(&self.lane().stream.timeline, private.recorder.record());
        }
    }
}

/// Frees `block` once the graphs of all `recorders` are gone, behind the work of its stream and of `on` so far.
pub(super) fn keep_block(block: Block, recorders: Vec<Arc<Recorder>>, on: &StreamCore) {
    block.tell(Event::Keep(on));
    let streams = [&*block.lane().stream.timeline, &on.timeline].map(|it| (it, it.open_tick()));
    for (stream, tick) in streams {
        // Also under capture, which another thread may have begun since.
        recorders.last().inspect(|last| last.outlast(stream, tick));
    }
    let awake = &block.lane().shared.awake;
    (recorders.iter()).for_each(|it| it.record().sleeps_with(awake));
    let bytes = block.capacity();
    // If the driver refuses a wait, the host makes it; nothing more can be done here.
    let free = move |gate: Option<&Stream>| _ = gate.map(|gate| block.free_on(gate));
    keep_for(recorders, bytes, None, Box::new(free));
}

impl Lane {
    /// A part of the graph's memory; `None` if the graph is gone by now: it has let go of the lane.
    pub(super) fn alloc_private(&self, bytes: u64, requested: u64) -> Result<Option<Block>> {
        let Some(private) = &self.private else {
            return Err(Error::invalid("stream", "its capture has no memory"));
        };
        let mut made = None;
        loop {
            let mut parts = lock(&private.parts);
            if parts.released {
                return Ok(None);
            }
            made.take().into_iter().for_each(|it| parts.add(it));
            if let Some(addr) = parts.take(bytes) {
                self.settle(bytes, requested)?;
                return Ok(Some(Block::new(self, NONE, addr, bytes, requested)));
            }
            drop(parts);
            private.recorder.record().sleeps_with(&self.shared.awake);
            // Without the lock: the application's callbacks may free parts.
            let gate = self.shared.open_lane(private.recorder.gate())?;
            let roomy =
                (bytes < GRAPH_SEGMENT).then(|| gate.climb(GRAPH_SEGMENT, GRAPH_SEGMENT, None));
            let roomy = roomy.transpose()?.flatten();
            made = Some(roomy.map_or_else(|| gate.climb_for(self, bytes, requested), Ok)?);
            // The gate has waited in its place. If another thread has ended the capture meanwhile, the stream waits too.
            self.timeline.wait_for(&gate.timeline, gate.open_tick())?;
        }
    }

    /// Changes whether the lane is leaving, sleeps or is under capture, and so whether its cache is used.
    pub(super) fn change(&self, change: impl FnOnce(&mut LaneState)) {
        let mut state = latch(&self.state);
        change(&mut state);
        state.aside = state.leaving || state.asleep || state.captured.is_some();
    }

    /// Routes requests and frees of the stream to a graph's private memory, or to the pool again.
    pub(crate) fn route(&self, recorder: Option<&Arc<Recorder>>) {
        // Held here, so that a lane does not end under the latch.
        let before = latch(&self.state).captured.clone();
        let before = before.as_ref().and_then(|lane| lane.private.as_ref());
        let Some(recorder) = recorder else {
            self.change(|state| state.captured = None);
            before.inspect(|private| lock(&private.parts).trim());
            return;
        };
        if before.is_some_and(|it| Arc::ptr_eq(&it.recorder, recorder)) {
            return;
        }
        let private = Private {
            recorder: Arc::clone(recorder),
            parts: Mutex::default(),
        };
        let lane = Self::new(&self.shared, &self.stream, &self.hold, Some(private));
        // The lane ends when its blocks are freed and its graph is gone.
        lane.others.elsewhere.retire();
        lane.others.outstanding.store(1, Ordering::Release);
        if recorder.keep(Box::new(Arc::clone(&lane))) {
            self.change(|state| state.captured = Some(lane));
        }
    }

    /// Frees on this lane a block that a graph keeps or will keep; false for another block.
    pub(super) fn free_captured(&self, home: &Self, block: Cached, requested: u64) -> bool {
        let timeline = &self.stream.timeline;
        let routed = latch(&self.state).captured.clone();
        let begins = || {
            let recorder = &routed.as_ref()?.private.as_ref()?.recorder;
            // A closed pool does not hear that a capture has ended, or has not begun.
            let is_over = recorder.has_ended() || recorder.is_over();
            (!is_over).then(|| Arc::clone(recorder))
        };
        let capture = timeline.recorder().or_else(begins);
        let is_its = |its: &Recorder| capture.as_ref().is_none_or(|it| std::ptr::eq(&**it, its));
        let freed = Block::freed(home, &block, requested);
        let Some(private) = home.private.as_ref().filter(|it| is_its(&it.recorder)) else {
            let keep = |it| keep_block(ManuallyDrop::into_inner(freed), vec![it], &self.stream);
            return capture.map(keep).is_some();
        };
        freed.tell(Event::Free(&self.stream));
        if capture.is_none() {
            private.recorder.outlast(timeline, block.tick);
        }
        // Not after the capture or on another stream of it: the graph does not order the next use behind this one.
        let same = std::ptr::eq(self, home);
        home.count(|counters, _| counters.free(block.bytes, requested));
        let gone = lock(&private.parts).give(block.addr, block.bytes, capture.is_some() && same);
        drop(gone);
        home.leave();
        true
    }
}

#[cfg(test)]
mod tests;
