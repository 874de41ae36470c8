//! Events: points in a stream that other streams and the host can wait for.

use std::sync::Arc;

use super::captured_record::CapturedRecord;
use super::raw::RawEvent;
use super::structure::{Clock, Device, Stream, Timeline};
use super::{beside, lock};
use crate::error::{Error, Result};
use crate::seeded::seeded;
use crate::sync::{Mutex, pause};

/// What the event has recorded: a tick of a stream, and what that stream had waited for by then.
struct Marked {
    timeline: Arc<Timeline>,
    tick: u64,
    clock: Arc<Clock>,
}

impl Event {
    /// Returns an error if the event was recorded under capture, where it represents no work.
    fn refuse_captured(&self) -> Result<()> {
        if lock(&self.captured).is_none() {
            return Ok(());
        }
        Err(Error::invalid(
            "event",
            "it was recorded in a capture, which runs nothing: record it again",
        ))
    }
}

/// A point in a stream. It may be recorded again; a wait refers to the record at the time of the
/// wait.
///
/// Safe to use from any thread.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// let event = device.event()?;
/// event.record(&stream)?;
/// device.stream()?.wait(&event)?; // on the device
/// if !event.is_done()? {
///     event.synchronize()?; // on the host
/// }
/// # Ok(())
/// # }
/// ```
pub struct Event {
    device: Device,
    raw: RawEvent,
    /// Locked during record and wait, so that the order learnt is that of the record that was
    /// waited for.
    marked: Mutex<Option<Marked>>,
    /// The last record, if that was under capture. Locked after `marked`.
    captured: Mutex<Option<CapturedRecord>>,
}

impl Event {
    pub(super) fn create(device: &Device, timing: bool) -> Result<Self> {
        let raw = device.backend().event_create(timing)?;
        Ok(Self {
            device: device.clone(),
            raw,
            marked: Mutex::default(),
            captured: Mutex::default(),
        })
    }

    /// The backend's handle: the `CUevent` on CUDA. After a record under capture another one, which is part of the graph,
    /// until the next record.
    ///
    /// For waiting and measuring only. Record it through [`Event::record`] alone: the crate takes a
    /// wait for the event as a wait for its last record there, and reuses memory based on that.
    #[must_use]
    pub fn raw(&self) -> RawEvent {
        let captured = lock(&self.captured);
        captured.as_ref().map_or(self.raw, CapturedRecord::raw)
    }

    /// Records everything queued on `stream` so far.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device, or any error of the driver.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        if !self.device.same(stream.device()) {
            return Err(Error::invalid(
                "stream",
                "it is of another device than the event",
            ));
        }
        let timeline = &stream.core().timeline;
        let mut marked = lock(&self.marked);
        let backend = self.device.backend();
        let mut looks = 0;
        loop {
            if let Some(recorder) = timeline.recorder()
                && let Some(record) = recorder.record_event(stream)?
            {
                *marked = None;
                let before = lock(&self.captured).replace(record);
                drop(before);
                return Ok(());
            }
            match timeline.counted_record(|raw| backend.event_record(self.raw, raw)) {
                Ok((tick, clock)) => {
                    *marked = Some(Marked {
                        timeline: Arc::clone(timeline),
                        tick,
                        clock,
                    });
                    let before = lock(&self.captured).take();
                    drop(before);
                    return Ok(());
                }
                Err(error) if timeline.recorder().is_none() => return Err(error),
                // The stream has entered a capture, or is about to leave one.
                Err(_) => pause(looks),
            }
            looks += 1;
        }
    }

    pub(super) fn make_wait(&self, stream: &Stream) -> Result<()> {
        if !self.device.same(stream.device()) {
            return Err(Error::invalid(
                "event",
                "it is of another device than the stream",
            ));
        }
        let marked = lock(&self.marked);
        if let Some(record) = &*lock(&self.captured) {
            return record.make_wait(stream);
        }
        self.wait_outside(stream, marked.as_ref())
    }

    /// Makes the stream, or the gate of its capture, wait for the event's record outside of captures.
    fn wait_outside(&self, stream: &Stream, marked: Option<&Marked>) -> Result<()> {
        let timeline = &stream.core().timeline;
        let raw = lock(&timeline.raw);
        let recorder = lock(&timeline.recorder).clone();
        if let Some(recorder) = recorder {
            // The event is not of the capture: its work comes before the graph.
            drop(raw);
            return self.wait_outside(recorder.gate(), marked);
        }
        (self.device.backend()).event_wait(stream.raw(), self.raw)?;
        drop(raw);
        if let Some(marked) = marked {
            timeline.learn(
                marked.timeline.uid,
                match seeded!("event-wait-covers-work-behind-the-record") {
                    true => marked.timeline.open_tick(),
                    false => marked.tick,
                },
                &marked.clock,
            );
        }
        Ok(())
    }

    /// Whether the recorded work is done; true for an event never recorded.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was recorded in a capture; any error of the driver.
    pub fn is_done(&self) -> Result<bool> {
        self.refuse_captured()?;
        self.passed(|| self.device.backend().event_query(self.raw))
    }

    /// Asks whether the record is done, or waits for it, without a lock: a host call that runs meanwhile may use the
    /// event.
    fn passed(&self, ask: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let before = lock(&self.marked)
            .as_ref()
            .map(|m| (Arc::clone(&m.timeline), m.tick));
        let done = ask()?;
        // If the event was recorded again meanwhile, the answer may have been about the new record, so
        // nothing is learnt.
        if let (true, Some((timeline, tick)), Some(now)) =
            (done, before, lock(&self.marked).as_ref())
            && Arc::ptr_eq(&timeline, &now.timeline)
            && (tick == now.tick || seeded!("event-waited-for-is-the-one-recorded-again"))
        {
            timeline.reached(now.tick);
        }
        Ok(done)
    }

    /// Blocks the calling thread until the recorded work is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was recorded in a capture; any error of the driver.
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_captured()?;
        let wait = || self.device.backend().event_sync(self.raw);
        self.passed(|| wait().map(|()| true)).map(|_| ())
    }

    /// Nanoseconds of device time from `earlier` to this event, both made by
    /// [`Device::timing_event`], recorded and done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `earlier` is of another device, or one of them was recorded in a capture; any error of the
    /// driver.
    pub fn elapsed_ns(&self, earlier: &Self) -> Result<f64> {
        if !self.device.same(&earlier.device) {
            return Err(Error::invalid(
                "event",
                "it is of another device than the later one",
            ));
        }
        earlier.refuse_captured()?;
        self.refuse_captured()?;
        self.device
            .backend()
            .event_elapsed_ns(earlier.raw, self.raw)
    }
}

impl Stream {
    /// Makes work queued here from now on wait for the work that `event` has recorded now.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let (event, other) = (device.event()?, device.stream()?);
    /// event.record(&stream)?;
    /// other.wait(&event)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the event is of another device, or any error of the driver.
    pub fn wait(&self, event: &Event) -> Result<()> {
        event.make_wait(self)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let (device, raw) = (self.device.clone(), self.raw);
        // Queued waits stay valid; a failure leaks only the event.
        beside(move || _ = device.backend().event_destroy(raw));
    }
}
