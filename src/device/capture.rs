//! The state of a capture while it is under way, and the resources that its graph keeps afterwards.
//!
//! # Why graphs are special
//!
//! Work captured into a graph runs later and repeatedly, at the addresses it was captured with. So while the
//! graph lives, memory that it uses must not be reused when it is freed, nor move. And nothing can wait for a
//! stream under capture: an event recorded in it represents no work, and a wait for work outside the capture
//! cannot be part of the graph.
//!
//! # The recorder
//!
//! A [`Recorder`] represents one capture and its graph. Streams under capture point to it, and pools pass it
//! the resources that the captured work uses. It has its own stream, the *gate*, which represents the
//! captured streams in all ordering with other work:
//!
//! - when a stream joins, the gate waits for everything queued on the stream before;
//! - when a captured stream would have to wait for other work, the gate waits for it;
//! - when a stream leaves, the gate waits for what other threads queued on it as it entered;
//! - every launch of the graph waits for the gate;
//! - when the graph is dropped, the gate waits for the streams that it was launched on, and the kept
//!   resources are freed in the gate's order.
//!
//! The host waits for nothing.
//!
//! # One thread at a time
//!
//! A driver's graph is not synchronised: two threads may not record into it at once, nor may one record while another
//! ends the capture. An event that is recorded in a capture is part of its graph too. So all such calls of a device
//! hold its lock ([`Recorder::recording`]). For calls that queue work, see the module `calls`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as PlainU64, Ordering};

use super::raw::{RawGraph, RawStream};
use super::stream::Changing;
use super::structure::{Checked, GraphRecord, Kept, Recorder, Stream, Timeline};
use super::{host_call, lock};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Mutex, MutexGuard};
#[cfg(all(test, feature = "convert"))]
use {super::structure::Device, crate::sync::try_lock};

/// Number of captures by other libraries in this process. While there are any, driver calls are made in the
/// driver's relaxed mode; otherwise they might break a capture in another mode.
static OF_OTHERS: PlainU64 = PlainU64::new(0);

/// Values of [`Recorder::ended`]: the driver's capture has ended, and the streams wait for what the gate waits for.
const ENDED: u64 = 1;
const LET_GO: u64 = 2;

/// Whether a capture by another library is under way.
pub(super) fn others_capture() -> bool {
    OF_OTHERS.load(Ordering::Acquire) > 0
}

/// Counts one capture by another library as long as it lives.
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

pub(super) fn has_ended() -> Error {
    let why = "its capture, or the one that it was to join, has ended meanwhile: try again";
    Error::invalid("stream", why)
}

impl Recorder {
    /// Makes the recorder of a capture that is about to begin on `stream`, which joins it.
    ///
    /// # Errors
    /// See [`Recorder::enter`].
    pub(super) fn of(stream: &Stream) -> Result<Arc<Self>> {
        let device = stream.device();
        let gate = Stream::create_gate(device)?;
        let recorder = Arc::new_cyclic(|recorder| Self {
            device: device.clone(),
            gate,
            record: GraphRecord::new(recorder.clone()),
            ended: AtomicU64::new(0),
            stood_in: AtomicU64::new(0),
            state: Mutex::default(),
        });
        if let Err(error) = recorder.enter(stream) {
            // The kept resources hold the recorder, so it must release them.
            recorder.release();
            return Err(error);
        }
        Ok(recorder)
    }

    /// Whether the graph is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.record.is_over()
    }

    /// The record that orders launches with other work on the same typed memory.
    pub(crate) fn record(&self) -> &Arc<GraphRecord> {
        &self.record
    }

    /// The stream that represents the captured ones to other work.
    pub(crate) fn gate(&self) -> &Stream {
        &self.gate
    }

    /// Adds `stream`, which is about to be captured: from now on, memory allocated and freed on it belongs to
    /// the graph. Returns false if another thread has added it meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is under another capture, where a host call would have to wait for a copy, or if the
    /// capture ends meanwhile; any error of the driver. The stream is then unchanged.
    pub(super) fn enter(self: &Arc<Self>, stream: &Stream) -> Result<bool> {
        let timeline = &stream.core().timeline;
        timeline.refuse_while_outside()?;
        let changing = timeline.change(true)?;
        if timeline.is_under(self) {
            return Ok(false);
        }
        if timeline.recorder().is_some() || self.device.backend().stream_capturing(stream.raw())? {
            return Err(Error::invalid(
                "stream",
                "it is being captured already: end that capture first",
            ));
        }
        // Before all else: the capture that ends meanwhile lets the stream out, and its graph is not gone before.
        self.join(stream)?;
        // Pools first: a free before the mark carries a tick that the mark covers, and the graph keeps a
        // block that is freed after it.
        for watcher in stream.watchers() {
            watcher.stream_captured(stream, Some(self));
        }
        let gate = &self.gate.core().timeline;
        let entered = (timeline.enter(self))
            .and_then(|()| gate.wait_for(timeline, timeline.queued_tick()))
            .and_then(|_| timeline.wait_for_calls());
        if let Err(error) = entered {
            self.let_back(stream, Some(changing));
            return Err(error);
        }
        // A pool that began to use the stream after the first loop has not seen the recorder.
        for watcher in stream.watchers() {
            watcher.stream_captured(stream, Some(self));
        }
        Ok(true)
    }

    fn join(&self, stream: &Stream) -> Result<()> {
        let mut state = lock(&self.state);
        if self.has_ended() {
            return Err(has_ended());
        }
        state.streams.push(stream.clone());
        Ok(())
    }

    /// While the guard lives, no other thread records into a graph of the device or ends a capture.
    pub(super) fn recording(&self) -> MutexGuard<'_, ()> {
        lock(&self.device.inner.recording)
    }

    /// Makes a driver call that records into the graph. `None` once the capture has ended: its streams may be under
    /// another one.
    pub(super) fn record_call<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        let _recording = self.recording();
        (!self.has_ended()).then(|| host_call::without_any(call))
    }

    /// Whether the capture has ended; it does not end while the caller has the [lock](Recorder::recording).
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) > 0
    }

    /// Whether the capture has ended, and its streams do not wait yet for what the gate was made to wait for.
    pub(super) fn is_ending(&self) -> bool {
        self.ended.load(Ordering::SeqCst) == ENDED
    }

    /// Returns an error if the driver does not capture `stream`, which is under this capture: work recorded on it would
    /// be no part of the graph, and a wait for it would make the driver fail the capture.
    pub(super) fn check_joined(&self, stream: RawStream) -> Result<()> {
        match self.device.backend().stream_capturing(stream)? {
            true => Ok(()),
            false => Err(Error::invalid(
                "stream",
                "a capture of it was announced and has not begun, or has just ended: nothing on it can be waited for now",
            )),
        }
    }

    /// Begins the driver's capture of `stream`.
    pub(super) fn begin(&self, stream: &Stream) -> Result<()> {
        let _recording = self.recording();
        self.device.backend().capture_begin(stream.raw())
    }

    /// Calls `end`, which is false if the driver fails to end the capture, and releases all streams.
    pub(super) fn leave(&self, end: impl FnOnce() -> bool) {
        let recording = self.recording();
        let ended = host_call::without_any(end);
        let mut state = lock(&self.state);
        self.ended.store(ENDED, Ordering::SeqCst);
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        drop(recording);
        // Memory allocated in the capture may be used without a launch, and work may come too late for the capture, with its
        // waits made by the gate. So the streams wait for the gate, on which nothing else runs.
        let gate = &self.gate.core().timeline;
        let tick = gate.open_tick();
        let stood_in = self.stood_in.load(Ordering::SeqCst) > 0;
        let is_late = stood_in || self.record.has_work_under_way();
        let waits = ended && (self.bytes() > 0 || is_late);
        // During a capture by another library, a wait would break that capture.
        let is_refused = |stream: &&Stream| {
            !self.may_wait(stream) || stream.core().timeline.wait_for(gate, tick).is_err()
        };
        if waits && streams.iter().filter(is_refused).count() > 0 {
            // Before others use the memory, or queue work behind the capture.
            let _ = gate.sync_to(tick);
        }
        self.ended.store(LET_GO, Ordering::SeqCst);
        for stream in &streams {
            let timeline = &stream.core().timeline;
            let changing = timeline.change(false).ok();
            if !ended {
                timeline.set_stuck();
            }
            let left = self.let_out(stream);
            // Before the host waits: a host call that the gate waits for may ask about the stream.
            drop(changing);
            let _ = left.map_or(Ok(()), |tick| timeline.sync_to(tick));
        }
    }

    /// Lets the stream out of the capture, if it is still under it, and makes the gate wait for it. Returns the tick that
    /// the host has to wait for, if the gate cannot.
    fn let_out(&self, stream: &Stream) -> Option<u64> {
        let timeline = &stream.core().timeline;
        if !timeline.leave(self) {
            return None;
        }
        for watcher in stream.watchers() {
            watcher.stream_captured(stream, None);
        }
        // Work that other threads queued as the capture began may have run instead of being recorded. What was freed
        // under capture is free behind it.
        let tick = timeline.open_tick();
        let covered =
            self.may_wait(stream) && self.gate.core().timeline.wait_for(timeline, tick).is_ok();
        (!covered).then_some(tick)
    }

    /// Whether a wait or a record of the stream is no part of another library's capture.
    fn may_wait(&self, stream: &Stream) -> bool {
        let backend = self.device.backend();
        matches!(backend.stream_capturing(stream.raw()), Ok(false))
    }

    /// Undoes [`Recorder::enter`] for a stream that the driver did not let join.
    pub(super) fn withdraw(&self, stream: &Stream) {
        // Another capture of it begins after this.
        let timeline = &stream.core().timeline;
        let changing = timeline.change(false).ok();
        // Else the end of the capture lets it out.
        if self.has(timeline) {
            self.let_back(stream, changing);
        }
    }

    /// Lets out a stream that is no part of the capture, behind what the gate was made to wait for in its place.
    fn let_back(&self, stream: &Stream, changing: Option<Changing<'_>>) {
        let left = self.let_out(stream);
        let (timeline, gate) = (&stream.core().timeline, &self.gate.core().timeline);
        let tick = gate.open_tick();
        let waits = self.may_wait(stream) && timeline.wait_for(gate, tick).is_ok();
        // The end of the capture, if it comes before, waits for `changing`.
        lock(&self.state).streams.retain(|other| other != stream);
        // Calls that have seen it here return before it enters another capture.
        drop(self.recording());
        drop(changing);
        let _ = left.map_or(Ok(()), |tick| timeline.sync_to(tick));
        if !waits {
            let _ = gate.sync_to(tick);
        }
    }

    /// Records that the gate has waited for a caller that may not know of the capture, and go on after its end.
    pub(super) fn stand_in(&self) {
        self.stood_in.store(1, Ordering::SeqCst);
    }

    /// Whether the stream of `timeline` is part of this capture.
    fn has(&self, timeline: &Timeline) -> bool {
        let state = lock(&self.state);
        let mut streams = state.streams.iter();
        streams.any(|stream| stream.id() == timeline.uid)
    }

    /// Makes the captured stream of `timeline` wait for `tick` of `other`: inside the graph if `other` is in
    /// this capture too, otherwise before the graph. Returns true if a wait was made.
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

    /// Makes `to`'s stream wait for everything captured so far on `from`'s.
    fn edge(&self, from: &Timeline, to: &Timeline) -> Result<()> {
        let (Some(from), Some(to)) = (from.raw(), to.raw()) else {
            return Err(Error::invalid("stream", "it is gone: use a live one"));
        };
        let backend = self.device.backend();
        let made = self.record_call(|| {
            // Of another stream that is joining now, and has not yet.
            if backend.stream_capturing(to)? {
                self.check_joined(from)?;
            }
            // An event of its own: recorded elsewhere later, it would still be part of this graph.
            let event = backend.event_create(false)?;
            let recorded = backend.event_record(event, from);
            let made = recorded.and_then(|()| backend.event_wait(to, event));
            // A failure leaks only the event.
            let _ = backend.event_destroy(event);
            made
        });
        made.unwrap_or_else(|| Err(has_ended()))
    }

    /// Makes `stream`, which is not under capture, join after everything captured on `from`.
    pub(super) fn fork(self: &Arc<Self>, from: &Stream, stream: &Stream) -> Result<()> {
        let joins = self.enter(stream)?;
        let joined = self.edge(&from.core().timeline, &stream.core().timeline);
        if joins && joined.is_err() {
            self.withdraw(stream);
        }
        joined
    }

    /// Keeps `thing` as long as the graph lives. If the graph is gone, releases it and returns false.
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

    /// Keeps an end of a communicator as long as the graph lives, and makes no launch once it has failed. Returns false
    /// if the graph is gone.
    pub(crate) fn keep_checked(&self, end: &Arc<dyn Checked>) -> bool {
        let mut state = lock(&self.state);
        let is_known = state.checked.iter().any(|it| Arc::ptr_eq(it, end));
        if !state.released && !is_known {
            state.checked.push(Arc::clone(end));
        }
        !state.released
    }

    /// Keeps the resources until `tick` of `timeline` is done. If the device cannot be made to wait, the host
    /// waits.
    pub(crate) fn outlast(&self, timeline: &Timeline, tick: u64) {
        // A stream for which both waits fail runs nothing more.
        let _ = self.gate.core().timeline.wait_surely(timeline, tick);
    }

    /// Queues a launch of `graph` after everything that its work has to wait for.
    pub(super) fn launch(&self, stream: &Stream, graph: RawGraph) -> Result<()> {
        self.enlist(stream)?;
        self.record.launch(stream.core(), || {
            // SAFETY: the graph calls this with its own handle, before its drop. Memory that pools allocated
            // in the capture, and buffers whose views it used, are kept until the graph is gone and released
            // after this run. The caller that captured work on other memory guarantees that memory.
            unsafe { self.device.backend().graph_launch(graph, stream.raw()) }
        })
    }

    /// The same as [`Recorder::launch`], for a launch that another library makes.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<()> {
        self.enlist(stream)?;
        self.record.about_to_launch(stream.core())
    }

    /// Makes `stream` wait for the gate, and records that the graph runs on it.
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
        let checked = lock(&self.state).checked.clone();
        checked.iter().try_for_each(|end| end.check())?;
        theirs.wait_for(gate, gate.open_tick())?;
        let mut state = lock(&self.state);
        if state.users.contains(stream) {
            return Ok(());
        }
        // A stream of the crate's, or one with an owner, that only the graph has is given nothing more.
        let is_left = |user: &mut Stream| {
            let core = user.core();
            let owns = core
                .owner
                .get()
                .is_some_and(|it| Arc::strong_count(it) == 1);
            (core.owned || owns) && Arc::strong_count(&user.handle) == 1
        };
        let left: Vec<Stream> = state.users.extract_if(.., is_left).collect();
        state.users.push(stream.clone());
        drop(state);
        for user in left {
            let timeline = &user.core().timeline;
            self.outlast(timeline, timeline.queued_tick());
        }
        Ok(())
    }

    /// Bytes of device memory kept.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.state).kept.iter().map(|kept| kept.bytes()).sum()
    }

    /// Releases everything, after all launches.
    pub(super) fn release(&self) {
        // Before `released` is set: from then on a resource passed to [`Recorder::keep`] is released at once,
        // so the gate has to wait for the users first. No launch follows.
        let users = std::mem::take(&mut lock(&self.state).users);
        for user in &users {
            let timeline = &user.core().timeline;
            self.outlast(timeline, timeline.queued_tick());
        }
        let (kept, checked) = {
            let mut state = lock(&self.state);
            state.released = true;
            self.record.end();
            let kept = std::mem::take(&mut state.kept);
            (kept, std::mem::take(&mut state.checked))
        };
        drop(checked);
        for kept in kept.into_iter().rev() {
            kept.release(&self.gate);
        }
    }
}

#[cfg(all(test, feature = "convert"))]
impl Device {
    /// Tells whether a thread holds the lock of [`Recorder::recording`] now.
    pub(crate) fn recording_is_held(&self) -> impl Fn() -> bool + Send + use<> {
        let inner = Arc::downgrade(&self.inner);
        move || {
            let inner = inner.upgrade();
            inner.is_some_and(|inner| try_lock(&inner.recording).is_none())
        }
    }
}

impl Stream {
    /// The capture that the stream is under.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.core().timeline.recorder()
    }
}
