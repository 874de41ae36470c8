//! Events: points in a stream that other streams and the host can wait for.

use std::sync::Arc;

use super::captured_record::CapturedRecord;
use super::raw::RawEvent;
use super::structure::{Clock, Device, Stream, Timeline};
use super::timeline::is_under_capture;
use super::{beside, lock};
use crate::error::{Error, Result};
use crate::sync::{Mutex, pause};

/// What the event has recorded: a tick of a stream, and what that stream had waited for by then.
#[derive(Clone)]
struct Marked {
    timeline: Arc<Timeline>,
    tick: u64,
    clock: Arc<Clock>,
}

/// The last record.
#[derive(Clone)]
enum Last {
    Marked(Marked),
    Captured(Arc<CapturedRecord>),
}

impl Event {
    /// Returns an error if the event was recorded under capture, where it represents no work.
    fn refuse_captured(&self) -> Result<()> {
        if !matches!(*lock(&self.last), Some(Last::Captured(_))) {
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
    /// Held during record and wait, so that the order learnt is that of the record that was
    /// waited for. A driver may keep a thread that holds it.
    turn: Mutex<()>,
    /// `None` also while the driver makes a record. Not locked over a driver's call, which may
    /// wait for a host call that asks about the event.
    last: Mutex<Option<Last>>,
}

impl Event {
    pub(super) fn create(device: &Device, timing: bool) -> Result<Self> {
        let raw = device.backend().event_create(timing)?;
        Ok(Self {
            device: device.clone(),
            raw,
            turn: Mutex::default(),
            last: Mutex::default(),
        })
    }

    /// The backend's handle: the `CUevent` on CUDA. After a record under capture another one, which is part of the graph,
    /// until the next record.
    ///
    /// For waiting and measuring only. Record it through [`Event::record`] alone: the crate takes a
    /// wait for the event as a wait for its last record there, and reuses memory based on that.
    #[must_use]
    pub fn raw(&self) -> RawEvent {
        match &*lock(&self.last) {
            Some(Last::Captured(record)) => record.raw(),
            _ => self.raw,
        }
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
        let _turn = lock(&self.turn);
        let backend = self.device.backend();
        let mut looks = 0;
        loop {
            if let Some(recorder) = timeline.recorder()
                && let Some(record) = recorder.record_event(stream)?
            {
                let before = lock(&self.last).replace(Last::Captured(Arc::new(record)));
                drop(before);
                return Ok(());
            }
            let before = lock(&self.last).take();
            match timeline.counted_record(|raw| backend.event_record(self.raw, raw)) {
                Ok((tick, clock)) => {
                    *lock(&self.last) = Some(Last::Marked(Marked {
                        timeline: Arc::clone(timeline),
                        tick,
                        clock,
                    }));
                    return Ok(());
                }
                Err(error) => {
                    *lock(&self.last) = before;
                    if timeline.recorder().is_none() && !is_under_capture(&error) {
                        return Err(error);
                    }
                    // The stream has entered a capture, or is about to leave one, or has left it by now.
                    pause(looks);
                }
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
        let _turn = lock(&self.turn);
        let last = lock(&self.last).clone();
        match last {
            Some(Last::Captured(record)) => record.make_wait(stream),
            Some(Last::Marked(marked)) => self.wait_outside(stream, Some(&marked)),
            None => self.wait_outside(stream, None),
        }
    }

    /// Makes the stream, or the gate of its capture, wait for the event's record outside of captures.
    fn wait_outside(&self, stream: &Stream, marked: Option<&Marked>) -> Result<()> {
        let timeline = &stream.core().timeline;
        let raw = lock(&timeline.raw);
        if let Some(recorder) = timeline.recorder_under_way() {
            // The event is not of the capture: its work comes before the graph.
            drop(raw);
            self.wait_outside(recorder.gate(), marked)?;
            recorder.stand_in();
            // The graph may have been launched before.
            return match timeline.wait_for_gate(&recorder)? {
                false => self.wait_outside(stream, marked),
                true => Ok(()),
            };
        }
        (self.device.backend()).event_wait(stream.raw(), self.raw)?;
        drop(raw);
        if let Some(marked) = marked {
            timeline.learn(marked.timeline.uid, marked.tick, &marked.clock);
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
        let marked = || match &*lock(&self.last) {
            Some(Last::Marked(marked)) => Some((Arc::clone(&marked.timeline), marked.tick)),
            _ => None,
        };
        let before = marked();
        let done = ask()?;
        // If the event was recorded again meanwhile, the answer may have been about the new record, so
        // nothing is learnt.
        if let (true, Some((timeline, tick)), Some((of, now))) = (done, before, marked())
            && Arc::ptr_eq(&timeline, &of)
            && tick == now
        {
            timeline.reached(now);
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

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;

    /// What a busy machine may take for something that waits for nothing.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// As many operations as a stream of the host device has room for.
    const FULL: usize = 1 << 16;

    /// Calls `queue`, which queues more on a full stream, whose first host call asks about the event.
    fn is_asked_about_meanwhile(queue: fn(&Event, &Stream) -> Result<()>) {
        let (tell, told) = mpsc::channel();
        // All is the thread's own, so that a failure waits for nothing.
        std::thread::spawn(move || {
            let device = Device::host().unwrap();
            let [full, other] = [(); 2].map(|()| device.stream().unwrap());
            let event = Arc::new(device.timing_event().unwrap());
            let (end, ended) = mpsc::channel::<()>();
            let work = Box::new(move || _ = ended.recv());
            device.backend().host_call(other.raw(), work).unwrap();
            event.record(&other).unwrap();
            let ((begin, begun), asked) = (mpsc::channel(), Arc::clone(&event));
            let first = move || {
                begin.send(()).unwrap();
                // The other thread is in the driver's call by now.
                std::thread::sleep(Duration::from_millis(300));
                let _ = asked.is_done();
                let _ = asked.raw();
            };
            let backend = device.backend();
            backend.host_call(full.raw(), Box::new(first)).unwrap();
            begun.recv().unwrap();
            for _ in 0..FULL {
                backend.host_call(full.raw(), Box::new(|| ())).unwrap();
            }
            queue(&event, &full).unwrap();
            drop(end);
            full.synchronize().unwrap();
            assert!(event.is_done().unwrap());
            tell.send(()).unwrap();
        });
        told.recv_timeout(PATIENCE).expect("it waits for itself");
    }

    #[test]
    fn an_event_is_asked_about_in_a_host_call_while_its_record_waits_for_a_full_stream() {
        is_asked_about_meanwhile(Event::record);
    }

    #[test]
    fn an_event_is_asked_about_in_a_host_call_while_a_full_stream_is_made_to_wait_for_it() {
        is_asked_about_meanwhile(|event, full| full.wait(event));
    }

    #[test]
    fn a_stream_whose_capture_ends_as_it_is_made_to_wait_for_an_event_waits_for_it() {
        let device = Device::host().unwrap();
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let (event, theirs) = (device.event().unwrap(), &other.core().timeline);
        let tick = theirs.open_tick();
        event.record(&other).unwrap();
        let capture = stream.begin_capture().unwrap();
        let recorder = stream.recorder().unwrap();
        let kept = lock(&recorder.gate().core().timeline.raw);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stream.wait(&event));
            std::thread::sleep(Duration::from_millis(100));
            scope.spawn(|| drop(capture.end().unwrap()));
            while stream.recorder().is_some() {
                std::thread::yield_now();
            }
            drop(kept);
            waits.join().unwrap().unwrap();
        });
        assert!(stream.core().timeline.is_behind(theirs, tick));
    }

    #[test]
    fn an_event_of_a_capture_is_asked_about_while_a_stream_waits_to_join_it() {
        let device = Device::host().unwrap();
        let [first, joins] = [(); 2].map(|()| device.stream().unwrap());
        let event = Arc::new(device.event().unwrap());
        let capture = first.begin_capture().unwrap();
        event.record(&first).unwrap();
        let copying = joins.core().outside_capture().unwrap();
        std::thread::scope(|scope| {
            let (waits, on) = (Arc::clone(&event), joins.clone());
            let waits = scope.spawn(move || on.wait(&waits));
            std::thread::sleep(Duration::from_millis(100));
            let ((tell, told), asked) = (mpsc::channel(), Arc::clone(&event));
            std::thread::spawn(move || tell.send(asked.is_done().is_err()));
            let refused = told.recv_timeout(PATIENCE);
            drop(copying);
            waits.join().unwrap().unwrap();
            assert_eq!(refused, Ok(true), "the asking thread waits for the copy");
        });
        drop(capture.end().unwrap());
    }

    #[test]
    fn a_stream_that_several_threads_have_join_a_capture_at_once_is_part_of_it() {
        let device = Device::host().unwrap();
        let [first, joins] = [(); 2].map(|()| device.stream().unwrap());
        let events = [(); 2].map(|()| device.event().unwrap());
        let capture = first.begin_capture().unwrap();
        (events.iter()).for_each(|event| event.record(&first).unwrap());
        let changing = joins.core().timeline.change(false).unwrap();
        std::thread::scope(|scope| {
            let by_event = events.each_ref().map(|it| scope.spawn(|| joins.wait(it)));
            let by_stream = [(); 2].map(|()| scope.spawn(|| joins.wait_stream(&first)));
            std::thread::sleep(Duration::from_millis(100));
            drop(changing);
            let all = by_event.into_iter().chain(by_stream);
            all.for_each(|waits| waits.join().unwrap().unwrap());
        });
        first.wait_stream(&joins).unwrap();
        drop(capture.end().unwrap());
    }

    #[test]
    fn a_record_that_a_capture_keeps_out_is_made_if_the_capture_ends_meanwhile() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let event = device.event().unwrap();
        let pause = || std::thread::sleep(Duration::from_millis(100));
        std::thread::scope(|scope| {
            // The other thread has seen no capture, then sees one, and then none again.
            let kept = lock(&event.last);
            let records = scope.spawn(|| event.record(&stream));
            pause();
            let capture = stream.begin_capture().unwrap();
            let raw = lock(&stream.core().timeline.raw);
            drop(kept);
            pause();
            let kept = lock(&event.last);
            drop(raw);
            pause();
            drop(capture.end().unwrap());
            drop(kept);
            records.join().unwrap().unwrap();
        });
        event.synchronize().unwrap();
    }
}
