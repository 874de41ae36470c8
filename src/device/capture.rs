//! What is known of a capture while it goes on, and what its graph keeps afterwards.
//!
//! # The trouble with graphs
//!
//! Work captured into a graph runs later and again, at the addresses it was captured with. So
//! memory that it uses must not be handed to others when it is freed, nor move, while the graph
//! lives. And while a stream is captured nothing of it can be waited for: an event recorded in it
//! marks no work, and a wait for work outside cannot be put into the graph.
//!
//! # The recorder
//!
//! A [`Recorder`] stands for one capture and its graph. Streams under capture point to it, and pools
//! give it to keep what the captured work uses. It has a stream of its own, the *gate*, which takes
//! the place of the captured streams in all order towards the outside:
//!
//! - when a stream joins, the gate is made to wait for everything the stream was given before;
//! - what a captured stream would have to wait for, the gate waits for;
//! - every launch of the graph runs behind the gate;
//! - when the graph is dropped the gate waits for the streams it was launched on, and what was kept
//!   is freed in the gate's order.
//!
//! Nothing waits on the host.

use std::sync::atomic::{AtomicU64 as PlainU64, Ordering};
use std::sync::{Arc, Weak};

use super::lock;
use super::raw::RawGraph;
use super::structure::{GraphRecord, Kept, Recorder, Stream, Timeline};
use crate::error::{Error, Result};
use crate::seeded::seeded;
use crate::sync::Mutex;

/// Captures by other libraries that go on in the process. While there are any, calls of the driver
/// are made in its relaxed mode, or they might break a capture that is in another.
static OF_OTHERS: PlainU64 = PlainU64::new(0);

/// Whether another library's capture goes on.
pub(super) fn others_capture() -> bool {
    OF_OTHERS.load(Ordering::Acquire) > 0
}

/// Counts one capture of another library for as long as it lives.
pub(super) struct OfAnother(());

impl OfAnother {
    pub(super) fn begin() -> Self {
        OF_OTHERS.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for OfAnother {
    fn drop(&mut self) {
        OF_OTHERS.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Recorder {
    /// Of a capture that is about to begin on `stream`, which it takes in.
    ///
    /// # Errors
    /// As [`Recorder::enter`].
    pub(super) fn of(stream: &Stream) -> Result<Arc<Self>> {
        let device = stream.device();
        let gate = Stream::create_gate(device)?;
        let recorder = Arc::new_cyclic(|recorder| Self {
            device: device.clone(),
            gate,
            record: GraphRecord::new(recorder.clone()),
            state: Mutex::default(),
        });
        if let Err(error) = recorder.enter(stream) {
            // What pools gave it to keep holds it in turn.
            recorder.release();
            return Err(error);
        }
        Ok(recorder)
    }

    /// Whether the graph is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.record.is_over()
    }

    /// What orders the launches with other work on the same typed memory.
    pub(crate) fn record(&self) -> &Arc<GraphRecord> {
        &self.record
    }

    /// The stream that stands for the captured ones towards the outside.
    pub(crate) fn gate(&self) -> &Stream {
        &self.gate
    }

    /// Takes `stream`, which is about to be captured, in: from now on what is allocated and freed on
    /// it belongs to the graph.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is under capture already; what the driver said. It is then as before.
    fn enter(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        let timeline = &stream.core().timeline;
        if timeline.recorder().is_some() || self.device.backend().stream_capturing(stream.raw())? {
            return Err(Error::invalid(
                "stream",
                "it is being captured already: end that capture first",
            ));
        }
        // Pools first: a free that comes before the mark carries a tick that the mark covers, one
        // that comes after is kept by the graph.
        for watcher in stream.watchers() {
            watcher.stream_captured(stream, Some(self));
        }
        let entered = self
            .gate
            .core()
            .timeline
            .wait_for(timeline, timeline.open_tick());
        if let Err(error) = entered {
            let kept = seeded!("failed-capture-keeps-its-lanes");
            for watcher in stream.watchers().into_iter().filter(|_| !kept) {
                watcher.stream_captured(stream, None);
            }
            return Err(error);
        }
        timeline.set_recorder(Some(Arc::clone(self)));
        self.device.count_capture(true);
        lock(&self.state).streams.push(stream.clone());
        // A pool that came to the stream since the first look has not seen the recorder.
        for watcher in stream.watchers() {
            watcher.stream_captured(stream, Some(self));
        }
        Ok(())
    }

    /// Lets all streams go: the capture has `ended`, or else the driver would not end it.
    pub(super) fn leave(&self, ended: bool) {
        let streams = std::mem::take(&mut lock(&self.state).streams);
        for stream in &streams {
            let timeline = &stream.core().timeline;
            if !ended {
                timeline.set_stuck();
            }
            timeline.set_recorder(None);
            self.device.count_capture(false);
            for watcher in stream.watchers() {
                watcher.stream_captured(stream, None);
            }
        }
    }

    /// Whether `timeline` is of a stream of this capture.
    fn has(&self, timeline: &Timeline) -> bool {
        let state = lock(&self.state);
        let mut streams = state.streams.iter();
        streams.any(|stream| stream.id() == timeline.uid)
    }

    /// Makes the captured stream of `timeline` wait for `tick` of `other`: inside the graph if that
    /// is of this capture too, else before it. True if a wait was made.
    pub(super) fn wait_for(
        &self,
        timeline: &Timeline,
        other: &Timeline,
        tick: u64,
    ) -> Result<bool> {
        if !self.has(other) {
            return self.gate.core().timeline.wait_for(other, tick);
        }
        self.edge(other, timeline)?;
        Ok(true)
    }

    /// Makes `to`'s stream wait for everything captured on `from`'s so far.
    fn edge(&self, from: &Timeline, to: &Timeline) -> Result<()> {
        let (Some(from), Some(to)) = (from.raw(), to.raw()) else {
            return Err(Error::invalid("stream", "it is gone: use a live one"));
        };
        let backend = self.device.backend();
        // Recorded again before it is asked for anything.
        let event = self.device.take_event()?;
        backend.event_record(event.raw, from)?;
        backend.event_wait(to, event.raw)
    }

    /// Makes `stream`, which is not under capture, join behind everything captured on `from`.
    pub(super) fn fork(self: &Arc<Self>, from: &Stream, stream: &Stream) -> Result<()> {
        self.enter(stream)?;
        self.edge(&from.core().timeline, &stream.core().timeline)
    }

    /// Keeps something for as long as the graph lives; false if the graph is gone, and the thing with it.
    pub(crate) fn keep(&self, thing: Box<dyn Kept>) -> bool {
        let mut state = lock(&self.state);
        let kept = !state.released;
        if kept {
            state.kept.push(thing);
        } else {
            drop(state);
            thing.release(&self.gate);
        }
        kept
    }

    /// Makes what is kept last until `tick` of `timeline`; where the device cannot be made to wait,
    /// the host waits.
    pub(crate) fn outlast(&self, timeline: &Timeline, tick: u64) {
        if self.gate.core().timeline.wait_for(timeline, tick).is_err() {
            // A stream that can do neither runs nothing more.
            let _ = timeline.sync_to(tick);
        }
    }

    /// Queues a launch of `graph`, behind everything that its work has to run behind.
    pub(super) fn launch(&self, stream: &Stream, graph: RawGraph) -> Result<()> {
        self.enlist(stream)?;
        self.record.launch(stream.core(), || {
            // SAFETY: the graph calls this with its own handle, before its drop. What pools handed out in
            // the capture, and buffers whose views it was given, are kept until the graph is gone, and
            // given back behind this run; whoever captured work on other memory vouched for that.
            unsafe { self.device.backend().graph_launch(graph, stream.raw()) }
        })
    }

    /// As [`Recorder::launch`], for a launch by somebody else.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<()> {
        self.enlist(stream)?;
        self.record.about_to_launch(stream.core())
    }

    /// Makes `stream` run behind the gate, and remembers that the graph runs on it.
    fn enlist(&self, stream: &Stream) -> Result<()> {
        if !self.device.same(stream.device()) {
            return Err(Error::invalid(
                "stream",
                "it is of another device than the graph",
            ));
        }
        let (theirs, gate) = (&stream.core().timeline, &self.gate.core().timeline);
        if theirs.recorder().is_some() {
            return Err(Error::invalid(
                "stream",
                "it is being captured: a graph is not launched into another",
            ));
        }
        theirs.wait_for(gate, gate.open_tick())?;
        let mut state = lock(&self.state);
        if !state.users.contains(stream) {
            state.users.push(stream.clone());
        }
        Ok(())
    }

    /// Bytes of device memory kept.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.state).kept.iter().map(|kept| kept.bytes()).sum()
    }

    /// Gives everything up, behind all launches.
    pub(super) fn release(&self) {
        let (users, kept) = {
            let mut state = lock(&self.state);
            state.released = true;
            self.record.end();
            (
                std::mem::take(&mut state.users),
                std::mem::take(&mut state.kept),
            )
        };
        let some = seeded!("graph-freed-behind-its-first-stream-only");
        for user in users.iter().take(if some { 1 } else { usize::MAX }) {
            let timeline = &user.core().timeline;
            self.outlast(timeline, timeline.queued_tick());
        }
        for kept in kept.into_iter().rev() {
            kept.release(&self.gate);
        }
    }
}

impl Stream {
    /// The capture that the stream is under.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.core().timeline.recorder()
    }
}

/// What an event recorded under capture marks.
pub(super) struct CapturedIn {
    pub(super) recorder: Weak<Recorder>,
}

impl CapturedIn {
    /// Takes `stream` into the event's capture, if it is not part of it, before it waits.
    pub(super) fn admit(&self, stream: &Stream) -> Result<()> {
        let recorder = self.recorder.upgrade();
        let recorder = recorder.filter(|recorder| !lock(&recorder.state).streams.is_empty());
        let Some(recorder) = recorder else {
            return Err(Error::invalid(
                "event",
                "it was recorded in a capture that has ended: record it again",
            ));
        };
        match stream.recorder() {
            None => recorder.enter(stream),
            Some(theirs) if Arc::ptr_eq(&theirs, &recorder) => Ok(()),
            Some(_) => Err(Error::invalid(
                "event",
                "it was recorded in another capture than the stream's",
            )),
        }
    }
}
