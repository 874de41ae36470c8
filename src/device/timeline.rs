//! The known order of one stream: its ticks and its marks. What waits for them is in `waits`.
//!
//! # Ticks
//!
//! A stream's tick `t` is its `t`-th record. Memory freed on the stream carries the *open tick*, the number
//! of the next record. Once that record is reached, every use queued on the stream before the free is done.
//! Nothing is recorded until another stream wants the memory.
//!
//! A record counts its tick **before** it calls the driver. If a free reads the count just before that
//! moment, all its uses were queued before the record, so the record covers them. If it reads the count just
//! after, it carries the next tick. In both cases every use is covered.
//!
//! # After the stream
//!
//! A timeline outlives its stream. Closing it makes a last mark that covers everything.

mod waits;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::raw::RawStream;
use super::structure::{Clock, Device, GraphRecord, HeldEvent, Mark, Recorder, Timeline};
use super::ticks::Ticks;
use super::{host_call, lock};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Condvar, Mutex};

/// Each time the number of a stream's marks reaches a multiple of this, the driver is asked whether the older
/// half is done: once in 32 records if the device keeps up.
const MARKS: usize = 64;

impl Drop for HeldEvent {
    fn drop(&mut self) {
        lock(&self.device.inner.spare_events).push(self.raw);
    }
}

const UNDER_CAPTURE: &str =
    "it is being captured: nothing of it can be waited for until the capture ends";

fn gone() -> Error {
    Error::invalid("stream", "the stream is gone: use a live one")
}

/// The error of waiting for a stream under capture, which runs nothing.
fn under_capture() -> Error {
    Error::invalid("stream", UNDER_CAPTURE)
}

/// Whether this is the error of waiting for a stream under capture.
pub(crate) fn is_under_capture(error: &Error) -> bool {
    matches!(error, Error::Invalid { why, .. } if why == UNDER_CAPTURE)
}

/// The error of waiting for a stream whose capture the driver failed to end.
fn stuck() -> Error {
    let why =
        "the driver failed to end its capture: nothing of it can be waited for until that ends";
    Error::invalid("stream", why)
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, done) = (self.open_tick(), self.done());
        write!(f, "Timeline({}, tick {open} open, {done} done)", self.uid)
    }
}

impl Timeline {
    pub(crate) fn new(device: &Device, raw: RawStream) -> Arc<Self> {
        static NEXT_UID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let uid = NEXT_UID.fetch_add(1, Ordering::Relaxed);
        let timeline = Arc::new(Self {
            uid,
            device: device.clone(),
            ticks: Ticks::new(),
            raw: Mutex::new(Some(raw)),
            gone: AtomicU64::new(0),
            order: Mutex::default(),
            recorder: Mutex::default(),
            entering: Mutex::default(),
            outside_left: Condvar::default(),
            captures: AtomicU64::new(0),
            graphs: Mutex::default(),
            stuck: AtomicU64::new(0),
            left: AtomicU64::new(0),
            queueing: Default::default(),
            calls: AtomicU64::new(0),
        });
        device.timelines().insert(uid, Arc::downgrade(&timeline));
        timeline
    }

    /// The capture the stream is under.
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        lock(&self.recorder).clone()
    }

    /// The same until the capture has ended, which lets the stream out soon.
    pub(super) fn recorder_under_way(&self) -> Option<Arc<Recorder>> {
        self.recorder().filter(|recorder| !recorder.has_ended())
    }

    /// Whether this capture is under way, and the stream under it.
    pub(super) fn is_under(&self, recorder: &Arc<Recorder>) -> bool {
        let now = self.recorder_under_way();
        now.is_some_and(|now| Arc::ptr_eq(&now, recorder))
    }

    /// Has the stream enter the capture, and makes a mark of what it was given before. Work whose end does not see the
    /// capture carries a tick that the mark covers: another thread may queue it until the driver begins.
    ///
    /// # Errors
    /// Any error of the driver; the stream is under the capture then too.
    pub(super) fn enter(&self, recorder: &Arc<Recorder>) -> Result<()> {
        // Asked about once their number has doubled, so that a capture beside many graphs costs no more.
        let is_full = |graphs: &Vec<_>| graphs.len() == graphs.capacity();
        let asks = is_full(&lock(&self.graphs));
        let asked = asks.then(|| self.graphs_since(0)).into_iter().flatten();
        // The caller holds a lock that a host call may ask for.
        let is_done = |graph: &Arc<GraphRecord>| host_call::without_any(|| graph.is_done());
        let done: Vec<_> = asked.filter(is_done).collect();
        let event = self.device.take_event();
        // No record and no wait that did not see the capture is being made now.
        let raw = lock(&self.raw);
        let clock = Arc::new(lock(&self.order).seen.clone());
        let tick = {
            let (mut now, mut graphs) = (lock(&self.recorder), lock(&self.graphs));
            self.captures.fetch_add(1, Ordering::SeqCst);
            if asks {
                // Both are in the order of their captures.
                let mut done = done.iter().peekable();
                graphs.retain(|(_, it)| done.next_if(|done| Arc::ptr_eq(done, it)).is_none());
                let left = graphs.len();
                graphs.reserve(left);
            }
            graphs.push((self.captures(), Arc::clone(recorder.record())));
            *now = Some(Arc::clone(recorder));
            self.device.count_capture(true);
            self.ticks.count()
        };
        let (event, stream) = (Arc::new(event?), raw.ok_or_else(gone)?);
        self.device.backend().event_record(event.raw, stream)?;
        let order = &mut *lock(&self.order);
        order.marks.push_back(Mark { tick, event, clock });
        Ok(())
    }

    /// Has the stream leave the capture; false if it is not under that.
    pub(super) fn leave(&self, recorder: &Recorder) -> bool {
        let raw = lock(&self.raw);
        let mut now = lock(&self.recorder);
        let before = now.take_if(|now| std::ptr::eq(&**now, recorder));
        let leaves = before.is_some();
        if leaves {
            self.captures.fetch_add(1, Ordering::SeqCst);
            self.device.count_capture(false);
        }
        drop((now, raw));
        drop(before);
        leaves
    }

    /// Number of captures of the stream begun and ended so far: odd while it is under one.
    #[inline]
    pub(crate) fn captures(&self) -> u64 {
        self.captures.load(Ordering::Acquire)
    }

    /// Whether the stream is under a capture.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        self.captures() % 2 == 1
    }

    /// The graphs of the stream's captures since the count of [captures](Timeline::captures) was
    /// `captures`. Graphs that are gone are left out once their launches are known to be done.
    pub(crate) fn graphs_since(&self, captures: u64) -> Vec<Arc<GraphRecord>> {
        let graphs = lock(&self.graphs);
        let since = graphs.partition_point(|(begun, _)| *begun < captures);
        let since = graphs[since..].iter();
        since.map(|(_, graph)| Arc::clone(graph)).collect()
    }

    /// Called when the stream is destroyed and gets no further work. Launches of its graphs may have been on
    /// the stream itself.
    pub(super) fn forget_graphs(&self) {
        let graphs = std::mem::take(&mut *lock(&self.graphs));
        drop(graphs);
    }

    /// Records that the driver failed to end the stream's capture: nothing can wait for the stream any more.
    pub(super) fn set_stuck(&self) {
        self.stuck.store(1, Ordering::Release);
    }

    /// Whether that still holds: the code that began the capture may have ended it since.
    fn is_stuck(&self) -> bool {
        if self.stuck.load(Ordering::Acquire) == 0 {
            return false;
        }
        // Held, so that the stream is not destroyed meanwhile.
        let raw = lock(&self.raw);
        let capturing = |raw| self.device.backend().stream_capturing(raw);
        let still = raw.is_none_or(|raw| capturing(raw).unwrap_or(true));
        if !still {
            self.stuck.store(0, Ordering::Release);
        }
        still
    }

    /// The tick whose record will cover everything queued on the stream so far.
    #[inline]
    pub(crate) fn open_tick(&self) -> u64 {
        self.ticks.counted() + 1
    }

    /// The tick whose record covers the work queued so far. Under capture that is the tick closed before the
    /// capture began, since captured work is not queued.
    pub(crate) fn queued_tick(&self) -> u64 {
        // No capture begins between the two.
        let recorder = lock(&self.recorder);
        self.open_tick() - u64::from(recorder.is_some())
    }

    /// The same as [`Timeline::queued_tick`]; for a stream that is gone, the tick of its last mark.
    pub(crate) fn last_tick(&self) -> u64 {
        match self.gone.load(Ordering::Acquire) {
            0 => self.queued_tick(),
            _ => self.open_tick() - 1,
        }
    }

    /// Closes the open tick without a record, for a caller about to wait for the stream itself, and returns
    /// it. If the wait fails, a later record covers the tick.
    pub(crate) fn close_tick(&self) -> u64 {
        self.ticks.count()
    }

    /// The highest tick known to be done. Makes no driver call.
    pub(crate) fn done(&self) -> u64 {
        self.ticks.done()
    }

    /// Whether the driver can be asked about `tick`: there is a mark that covers it, and it is not known to
    /// be done.
    pub(crate) fn is_marked(&self, tick: u64) -> bool {
        let newest = lock(&self.order).marks.back().map(|mark| mark.tick);
        tick > self.done() && newest.is_some_and(|newest| newest >= tick)
    }

    /// Whether the driver may be asked: a query may break a capture of any stream of the device.
    pub(crate) fn may_poll(&self) -> bool {
        !self.device.is_capturing()
    }

    /// Returns the highest tick done, after asking the driver if it [may](Timeline::may_poll) be asked. The first query
    /// is about the mark that covers `most`, or the newest mark if none does. If that is not done, a second query is
    /// about the mark that covers `least`. At most two queries, however many marks are open.
    pub(crate) fn poll(&self, least: u64, most: u64) -> Result<u64> {
        if !self.may_poll() {
            return Ok(self.done());
        }
        let newest = lock(&self.order).marks.back().map_or(0, |mark| mark.tick);
        let mut asked = None;
        for mark in [most.min(newest), least].map(|tick| self.made_mark(tick)) {
            let Some(mark) = mark.filter(|it| it.tick > self.done() && asked != Some(it.tick))
            else {
                continue;
            };
            if self.device.backend().event_query(mark.event.raw)? {
                self.reached(mark.tick);
            }
            asked = Some(mark.tick);
        }
        Ok(self.done())
    }

    /// The same as [`Timeline::poll`] from `tick` on; first makes a mark for `tick` if there is none, so that
    /// the driver can be asked.
    pub(crate) fn poll_to(&self, tick: u64) -> Result<u64> {
        self.mark(tick)?;
        self.poll(tick, u64::MAX)
    }

    /// Records that everything up to `tick` is done.
    pub(crate) fn reached(&self, tick: u64) {
        self.ticks.reached(tick);
        let mut order = lock(&self.order);
        while order.marks.front().is_some_and(|mark| mark.tick <= tick) {
            order.marks.pop_front();
        }
    }

    /// Counts a record and calls `record`, which makes it; returns its tick and the clock it carries.
    pub(crate) fn counted_record(
        &self,
        record: impl FnOnce(RawStream) -> Result<()>,
    ) -> Result<(u64, Arc<Clock>)> {
        let raw = lock(&self.raw);
        let stream = raw.ok_or_else(gone)?;
        if lock(&self.recorder).is_some() {
            return Err(under_capture());
        }
        let clock = Arc::new(lock(&self.order).seen.clone());
        let tick = self.ticks.count();
        record(stream)?;
        Ok((tick, clock))
    }

    /// The oldest mark made so far that covers `tick`.
    fn made_mark(&self, tick: u64) -> Option<Mark> {
        let order = lock(&self.order);
        let at = order.marks.partition_point(|mark| mark.tick < tick);
        order.marks.get(at).cloned()
    }

    /// The same if there is one, and `None` for a tick that is done.
    fn known_mark(&self, tick: u64) -> Option<Option<Mark>> {
        let made = self.made_mark(tick).map(Some);
        made.or_else(|| (self.done() >= tick).then_some(None))
    }

    /// The oldest mark that covers `tick`; makes a record if there is none. `None` if `tick` is done.
    fn mark(&self, tick: u64) -> Result<Option<Mark>> {
        if let Some(mark) = self.known_mark(tick) {
            return Ok(mark);
        }
        let captured = self.recorder().is_some();
        if captured || self.is_stuck() {
            // The work before the capture has its mark, perhaps since the first look: the thread that has the stream enter
            // may be making it. A record now would be part of the capture.
            drop(lock(&self.raw));
            let error = if captured { under_capture } else { stuck };
            return self.known_mark(tick).ok_or_else(error);
        }
        let event = Arc::new(self.device.take_event()?);
        let backend = self.device.backend();
        let recorded = self.counted_record(|stream| backend.event_record(event.raw, stream));
        let (tick, clock) = match recorded {
            Ok(recorded) => recorded,
            // The stream may have been dropped since the first look, leaving its last mark. The caller may have read a
            // tick beyond that while it was made, but no work has it.
            Err(error) => {
                let tick = match self.raw() {
                    None => tick.min(self.open_tick() - 1),
                    Some(_) => tick,
                };
                return self.known_mark(tick).ok_or(error);
            }
        };
        let mark = Mark { tick, event, clock };
        let middle = {
            let mut order = lock(&self.order);
            let at = order.marks.partition_point(|other| other.tick < tick);
            order.marks.insert(at, mark.clone());
            let full = order.marks.len().is_multiple_of(MARKS);
            full.then(|| order.marks[order.marks.len() / 2].clone())
        };
        // A stream that others only wait for may never be polled otherwise. An error of the query is ignored
        // here; the next caller that asks gets it. The caller may hold a lock.
        let ask = |mark: &Mark| host_call::without_any(|| backend.event_query(mark.event.raw));
        if let Some(mark) = middle
            && self.may_poll()
            && ask(&mark).unwrap_or(false)
        {
            self.reached(mark.tick);
        }
        Ok(Some(mark))
    }

    /// Makes the record that a wait for `tick` needs, if there is none. A caller that waits under a lock makes it before:
    /// a driver may keep this thread until the stream has room. An error comes again from the wait.
    pub(crate) fn record_ahead(&self, tick: u64) {
        let _ = self.mark(tick);
    }

    /// Whether `tick` can be waited for: no record closes a tick that is open while the stream is under capture.
    pub(crate) fn may_close(&self, tick: u64) -> bool {
        !self.is_captured() || self.done() >= tick || self.made_mark(tick).is_some()
    }

    /// The raw stream, if it is still there.
    pub(crate) fn raw(&self) -> Option<RawStream> {
        *lock(&self.raw)
    }

    /// Makes the last mark, so that memory freed on the stream still becomes ready, and gives up the raw
    /// stream. If this returns true, the caller may destroy it.
    ///
    /// If the mark cannot be made (for example because another library destroyed the stream first), waits for
    /// the work instead. If that fails too, an `owned` stream stays here: it is asked again when its memory
    /// is wanted, and it is destroyed with the timeline. For a stream that is not owned, the open tick stays
    /// open and its memory is never reused.
    pub(crate) fn close(&self, owned: bool) -> bool {
        let open = self.open_tick();
        let mut known = self.mark(open).is_ok();
        if !known && self.raw().is_some_and(|raw| self.sync_raw(raw).is_ok()) {
            self.ticks.count_to(open);
            self.reached(open);
            known = true;
        }
        if !known {
            self.left.store(1, Ordering::Release);
            if owned {
                return false;
            }
            // A wait for all work of the stream waits for this tick, which is never reached.
            self.ticks.count_to(open);
        }
        self.forget()
    }

    /// Closes a stream whose order nothing tracks, without a mark.
    pub(super) fn forget(&self) -> bool {
        self.gone.store(1, Ordering::Release);
        *lock(&self.raw) = None;
        true
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if self.left.load(Ordering::Acquire) > 0
            && let Some(raw) = self.raw()
        {
            lock(&self.device.inner.left_streams).push(raw);
        }
        self.device.timelines().remove(&self.uid);
    }
}

#[cfg(test)]
mod tests;
