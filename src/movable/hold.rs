//! Holds: a block or an array of pointers stays at its address while work on it is being queued.

use std::sync::Arc;

use super::block_table::stale;
use super::id::MovableId;
use super::pointers::Place;
use super::registry::{Registry, State};
use crate::device::{Addr, GraphRecord, Kept, Queueing, Recorder, Stream, beside, lock};
use crate::error::{Error, Result, refuse};

impl Registry {
    /// Holds a block for `stream`; returns its address and bytes.
    pub(crate) fn hold(self: &Arc<Self>, id: MovableId, stream: &Stream) -> Result<(Addr, u64)> {
        self.check_stream(stream)?;
        let mut state = self.here(id)?;
        if state.is_behind(id)? {
            drop(state);
            state = self.settled(|| self.here(id))?;
            refuse!(state.table.entry(id)?.stale_word => "stream",
                "one read the block's word of the address table as its capture began: end that first");
        }
        let _queueing = Queueing::begin(&stream.core().timeline);
        self.awake.check()?;
        let now = state.holds + 1;
        let entry = state.table.entry(id)?;
        let block = entry.block.as_ref().ok_or_else(|| stale(id))?;
        let held = (block.addr(), block.bytes());
        entry.held_at = now;
        entry.holds += 1;
        let ready = entry.ready.lacking(&stream.core().timeline);
        state.holds = now;
        drop(state);
        // Not under the lock: the driver may block the caller if the stream has much queued. The hold keeps the
        // block in place.
        if let Err(error) = ready.wait_on(&stream.core().timeline) {
            // No captured work has the address.
            self.let_go(id, stream, &[]);
            return Err(error);
        }
        Ok(held)
    }

    /// Ends a hold of the block for `stream`, whose work these captures recorded beside those that the block's log has.
    /// Their graphs may be gone.
    pub(super) fn let_go(
        self: &Arc<Self>,
        id: MovableId,
        stream: &Stream,
        graphs: &[Arc<GraphRecord>],
    ) {
        self.hold_for_graphs(id);
        let captures: Vec<Arc<Recorder>> = graphs.iter().filter_map(|it| it.recorder()).collect();
        let doomed = {
            let mut state = lock(&self.state);
            let timeline = &stream.core().timeline;
            // Under capture, the work before the capture has a mark; captured work has none.
            let tick = timeline.queued_tick();
            if state.words.is_some() {
                state.readers.note(timeline, tick);
            }
            let Some(entry) = state.table.place(id) else {
                return;
            };
            entry.holds = entry.holds.saturating_sub(1);
            // Captured work has the address: each graph takes over a hold.
            entry.holds += captures.len() as u64;
            entry.uses.note(timeline, tick);
            for (timeline, tick) in graphs.iter().filter_map(|it| it.last()) {
                entry.uses.note(&timeline, tick);
            }
            entry.note_typed_uses();
            entry.doomed && entry.holds == 0
        };
        for recorder in captures {
            let registry = Arc::clone(self);
            recorder.keep(Box::new(GraphHold { registry, id }));
        }
        if doomed {
            // Freeing fails only for a stream that the caller passes; there is none here.
            let registry = Arc::clone(self);
            beside(move || _ = registry.free(id, None));
        }
    }

    /// Adds a hold for each graph that captured work on views of the block, once per graph.
    fn hold_for_graphs(self: &Arc<Self>, id: MovableId) {
        let graphs = {
            let mut state = lock(&self.state);
            let Some(entry) = state.table.place(id) else {
                return;
            };
            let graphs = entry.log.as_ref().map(|log| log.graphs_to_hold());
            let graphs = graphs.unwrap_or_default();
            entry.holds += graphs.len() as u64;
            graphs
        };
        for graph in graphs {
            let registry = Arc::clone(self);
            graph.keep(Box::new(GraphHold { registry, id }));
        }
    }

    /// Holds an array at a fixed address; the caller holds the block of one that is in a block. Returns its place.
    pub(super) fn hold_pointers(&self, key: u64, stream: &Stream) -> Result<Place> {
        self.check_stream(stream)?;
        let captured = |_| {
            let why = "it is being captured, and a graph would read pointers while they are rewritten: hold the blocks \
                       that they point to";
            Error::invalid("stream", why)
        };
        // Until the stream waits: a capture's waits would be its launches'.
        let _outside = stream.core().outside_capture().map_err(captured)?;
        let mut state = lock(&self.state);
        if state.arrays.is_behind() {
            drop(state);
            state = self.settled(|| Ok(lock(&self.state)))?;
        }
        let array = state.arrays.get(key)?;
        let place = array.place;
        if let Place::Fixed(_) = place {
            let ready = array.hold(stream);
            drop(state);
            // Not under the lock, as in `hold`.
            let waited = ready.wait_on(&stream.core().timeline);
            waited.inspect_err(|_| self.let_go_of_pointers(key, stream))?;
        }
        Ok(place)
    }

    /// The same as [`State::settle`], for callers that have not checked that the pool is awake: arrays may be in
    /// its memory.
    pub(super) fn settle(&self, state: &mut State) -> Result<bool> {
        let timeline = Arc::clone(&state.mover.stream.core().timeline);
        let _queueing = Queueing::begin(&timeline);
        if state.arrays.is_behind() {
            self.awake.check()?;
        }
        state.settle()
    }

    /// Ends a hold of an array at a fixed address.
    pub(super) fn let_go_of_pointers(&self, key: u64, stream: &Stream) {
        if let Ok(array) = lock(&self.state).arrays.get(key) {
            array.let_go(stream);
        }
    }
}

impl State {
    /// Whether updates are pending that a hold of the block needs.
    fn is_behind(&mut self, id: MovableId) -> Result<bool> {
        Ok(self.table.entry(id)?.stale_word || self.arrays.is_behind())
    }
}

/// A hold of a block by a graph.
struct GraphHold {
    registry: Arc<Registry>,
    id: MovableId,
}

impl Kept for GraphHold {
    fn release(self: Box<Self>, gate: &Stream) {
        self.registry.let_go(self.id, gate, &[]);
    }
}
