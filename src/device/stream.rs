//! Streams: queues of device work, owned or adopted from another library.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::access::Note;
use super::names::{CAPTURE, stream_words};
use super::raw::RawStream;
use super::structure::{Device, Stream, StreamCore, StreamHandle, StreamWatcher, Timeline};
use super::{beside, host_call, is_running, lock};
use crate::error::{Error, Result};
use crate::sync::{Mutex, wait};

impl StreamCore {
    /// Whether the application has a handle of it.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) fn has_handle(&self) -> bool {
        lock(&self.handle).strong_count() > 0
    }

    /// The application's handle of it.
    #[cfg(feature = "convert")]
    pub(crate) fn to_handle(&self) -> Result<Stream> {
        let handle = lock(&self.handle).upgrade();
        let gone = || Error::invalid("stream", "it is gone: use a live one");
        handle.map(Stream::of).ok_or_else(gone)
    }

    /// Waits on the host for everything queued so far, and records that it is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is being captured; any error of the driver.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _outside = self.outside_capture()?;
        // Closed before the wait: memory freed during the wait is not covered.
        let covered = self.timeline.close_tick();
        self.timeline.sync_raw(self.raw)?;
        self.timeline.reached(covered);
        Ok(())
    }

    /// The same as [`StreamCore::synchronize`], after work that uses the caller's memory. If the wait fails,
    /// it also tries to wait through an event, because the work may still be running.
    pub(crate) fn synchronize_memory(&self) -> Result<()> {
        let timeline = &self.timeline;
        self.synchronize()
            .or_else(|error| timeline.sync_to(timeline.open_tick()).and(Err(error)))
    }

    /// No capture of the stream begins while the guard lives. For copies of host memory, which a graph would repeat
    /// after that memory is gone, and for waits and queries, which break captures. A thread may hold the guard while
    /// it waits for the stream, and several threads may hold one at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is being captured, or is about to be.
    pub(crate) fn outside_capture(&self) -> Result<OutsideCapture<'_>> {
        let mut entering = lock(&self.timeline.entering);
        while entering.changing {
            if is_running() {
                return Err(being_captured());
            }
            entering = wait(&self.timeline.outside_left, entering);
        }
        self.refuse_under_capture()?;
        if entering.waiting > 0 && self.timeline.refuse_while_outside().is_ok() {
            return Err(being_captured());
        }
        entering.outside += 1;
        let _ = OUTSIDE.try_with(|streams| streams.borrow_mut().push(self.timeline.uid));
        Ok(OutsideCapture(&self.timeline, PhantomData))
    }

    /// Returns an error if the stream is being captured, for calls that a capture cannot contain. The driver
    /// is not called, so the capture stays valid.
    pub(crate) fn refuse_under_capture(&self) -> Result<()> {
        match self.timeline.recorder() {
            None => Ok(()),
            Some(_) => Err(being_captured()),
        }
    }
}

fn being_captured() -> Error {
    let why = "it is being captured, and runs nothing that could be waited for: do this before or after the \
               capture, or on another stream";
    Error::invalid("stream", why)
}

crate::sync::thread_local! {
    /// The streams on which this thread queues work that no graph may contain. A capture that the thread begins on
    /// one of them would wait for itself.
    static OUTSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Counts a thread that queues work on the stream that no graph may contain. Dropped on the same
/// thread.
pub(crate) struct OutsideCapture<'t>(&'t Timeline, PhantomData<*const ()>);

/// The thread has the stream enter a capture or leave it, until this is dropped.
pub(super) struct Changing<'t>(&'t Timeline);

impl Timeline {
    /// Waits until no other thread has the stream enter a capture or leave it, and if it `enters`, until no thread
    /// queues work that no graph may contain.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a host call that would wait in order to enter: those threads may wait for the stream that
    /// runs it, or run it themselves.
    pub(super) fn change(&self, enters: bool) -> Result<Changing<'_>> {
        let mut entering = lock(&self.entering);
        while entering.changing || enters && entering.outside > 0 {
            if enters {
                host_call::may_wait()?;
            }
            entering.waiting += u64::from(enters);
            entering = wait(&self.outside_left, entering);
            entering.waiting -= u64::from(enters);
        }
        entering.changing = true;
        Ok(Changing(self))
    }

    /// Returns an error on a thread that is queueing work on the stream that no graph may contain.
    pub(super) fn refuse_while_outside(&self) -> Result<()> {
        let is_outside = OUTSIDE.try_with(|streams| streams.borrow().contains(&self.uid));
        match is_outside.unwrap_or(false) {
            false => Ok(()),
            true => Err(Error::invalid(
                "stream",
                "this thread is inside a call on it that a graph cannot contain, such as a copy of host memory: \
                 begin the capture once that call has returned",
            )),
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        lock(&self.0.entering).changing = false;
        self.0.outside_left.notify_all();
    }
}

impl Drop for OutsideCapture<'_> {
    fn drop(&mut self) {
        // A thread that is ending begins no capture.
        let _ = OUTSIDE.try_with(|streams| {
            let mut streams = streams.borrow_mut();
            if let Some(at) = streams.iter().rposition(|&uid| uid == self.0.uid) {
                streams.swap_remove(at);
            }
        });
        lock(&self.0.entering).outside -= 1;
        self.0.outside_left.notify_all();
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        if let Some(id) = self.adopted_as {
            let mut adopted = lock(&self.device.inner.adopted);
            if adopted
                .get(&id)
                .is_some_and(|core| core.strong_count() == 0)
            {
                adopted.remove(&id);
            }
        }
        self.device.forget_name(self.timeline.uid);
        self.timeline.forget_graphs();
        // If the timeline is shared, other parts of the crate still track this stream's order.
        let followed = Arc::strong_count(&self.timeline) > 1;
        let (timeline, raw, owned) = (Arc::clone(&self.timeline), self.raw, self.owned);
        let owner = self.owner.take();
        beside(move || {
            let let_go = match followed {
                true => timeline.close(owned),
                false => timeline.forget(),
            };
            if owned && let_go {
                // The driver lets queued work complete; a failure needs no cleanup.
                let _ = timeline.device.backend().stream_destroy(raw);
            }
            timeline.device.tidy();
            drop(owner);
        });
    }
}

impl StreamHandle {
    fn new(core: &Arc<StreamCore>) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            core: Arc::clone(core),
            watchers: Mutex::default(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        })
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let (watchers, id) = (std::mem::take(&mut *lock(&self.watchers)), self.id);
        beside(move || {
            for watcher in watchers {
                if let Some(watcher) = watcher.upgrade() {
                    watcher.stream_retired(id);
                }
            }
        });
    }
}

impl Stream {
    pub(super) fn create(device: &Device) -> Result<Self> {
        let raw = device.backend().stream_create()?;
        Ok(Self::wrap(device, raw, true, false, None).0)
    }

    /// A stream whose kernels begin ahead of others'.
    pub(crate) fn create_urgent(device: &Device) -> Result<Self> {
        let raw = device.backend().urgent_stream_create()?;
        Ok(Self::wrap(device, raw, true, false, None).0)
    }

    /// A stream that represents others under capture.
    pub(super) fn create_gate(device: &Device) -> Result<Self> {
        let raw = device.backend().stream_create()?;
        let stream = Self::wrap(device, raw, true, true, None).0;
        stream.set_name(CAPTURE);
        Ok(stream)
    }

    pub(super) fn adopt(device: &Device, raw: RawStream) -> Result<Self> {
        let id = device.backend().stream_id(raw)?;
        let mut adopted = lock(&device.inner.adopted);
        if let Some(core) = adopted.get(&id).and_then(Weak::upgrade) {
            let mut handle = lock(&core.handle);
            if let Some(handle) = handle.upgrade() {
                return Ok(Self::of(handle));
            }
            let again = StreamHandle::new(&core);
            *handle = Arc::downgrade(&again);
            return Ok(Self::of(again));
        }
        let (stream, core) = Self::wrap(device, raw, false, false, Some(id));
        adopted.insert(id, Arc::downgrade(&core));
        Ok(stream)
    }

    fn wrap(
        device: &Device,
        raw: RawStream,
        owned: bool,
        gate: bool,
        adopted_as: Option<u64>,
    ) -> (Self, Arc<StreamCore>) {
        let core = Arc::new(StreamCore {
            device: device.clone(),
            timeline: Timeline::new(device, raw),
            raw,
            owned,
            gate,
            adopted_as,
            handle: Mutex::default(),
            owner: OnceLock::new(),
        });
        let handle = StreamHandle::new(&core);
        *lock(&core.handle) = Arc::downgrade(&handle);
        (Self::of(handle), core)
    }

    fn of(handle: Arc<StreamHandle>) -> Self {
        let id = handle.id;
        Self { handle, id }
    }

    pub(crate) fn core(&self) -> &Arc<StreamCore> {
        &self.handle.core
    }

    /// Calls `watcher` when the application drops its last clone.
    pub(crate) fn watch(&self, watcher: Weak<dyn StreamWatcher>) {
        let mut watchers = lock(&self.handle.watchers);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }

    /// The watchers, which keep state for the stream.
    pub(super) fn watchers(&self) -> Vec<Arc<dyn StreamWatcher>> {
        let watchers = lock(&self.handle.watchers);
        watchers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Id of the application's stream handle, the same for all clones.
    #[inline]
    pub(crate) fn handle_id(&self) -> u64 {
        self.id
    }

    /// The device the stream belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.core().device
    }

    /// A number that is unique among all streams of this process, also over time.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.core().timeline.uid
    }

    /// The backend's handle: the `CUstream` on CUDA.
    ///
    /// A driver lets one thread at a time record into a graph. While the stream is captured, an application's own
    /// driver calls with the handle must not run at the same time as other calls for the streams of the capture, or
    /// as its end; calls of this crate wait for each other.
    #[must_use]
    pub fn raw(&self) -> RawStream {
        self.core().raw
    }

    /// Makes work queued here from now on wait for everything queued on `other` so far.
    ///
    /// If `other` is being captured, this stream joins the capture. If only this stream is being captured,
    /// the launches of the graph wait, and what is queued here after the capture.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let other = device.stream()?;
    /// other.wait_stream(&stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the streams are of different devices or different captures, or any error of the
    /// driver.
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        if !self.device().same(other.device()) {
            return Err(Error::invalid(
                "stream",
                "it is of another device; wait on the host instead",
            ));
        }
        if let Some(recorder) = other.recorder() {
            match self.recorder() {
                None => return recorder.fork(other, self),
                Some(own) if Arc::ptr_eq(&own, &recorder) => {}
                Some(_) => return Err(Error::invalid("stream", "it is of another capture")),
            }
        }
        let theirs = &other.core().timeline;
        self.core()
            .timeline
            .wait_for(theirs, theirs.open_tick())
            .map(|_| ())
    }

    /// Blocks the calling thread until everything queued here so far is done.
    ///
    /// Every stream can then use memory that was freed here before.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is being captured; any error of the driver; errors of earlier queued
    /// work.
    pub fn synchronize(&self) -> Result<()> {
        self.core().synchronize()
    }

    /// Whether everything queued here so far is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is being captured; any error of the driver; errors of earlier queued
    /// work.
    pub fn is_idle(&self) -> Result<bool> {
        let timeline = &self.core().timeline;
        // A query would break a capture. It may also run host calls, which use the stream.
        let outside = self.core().outside_capture()?;
        let covered = timeline.open_tick() - 1;
        let idle = self.device().backend().stream_query(self.raw())?;
        drop(outside);
        if idle {
            timeline.reached(covered);
        }
        Ok(idle)
    }
}

impl Stream {
    /// The name from [`Stream::set_name`].
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.device().stream_name(self.id())
    }

    /// Names the stream, for every report that mentions it: snapshots, live blocks, statistics, errors, and
    /// tools that watch the device.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// let stream = device.stream()?;
    /// stream.set_name("loader");
    /// let block = pool.alloc(&stream, 1000)?;
    /// assert!(pool.leak_report().to_string().contains("(loader)"));
    /// assert_eq!(stream.name().as_deref(), Some("loader"));
    /// # drop(block);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_name(&self, name: &str) {
        self.device().name_stream(self.id(), name);
        self.device().backend().observe(&Note::Name {
            stream: self.raw(),
            name,
        });
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = stream_words(self.id(), self.name().as_deref());
        write!(f, "Stream({words} on {:?})", self.device())
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::device::{Device, Stream};

    #[test]
    fn a_stream_that_a_capture_waits_for_is_given_nothing_more_to_wait_for() {
        let device = Device::host().expect("the host device");
        let stream = device.stream().expect("a stream");
        let outside = stream.core().outside_capture().expect("no capture");
        std::thread::scope(|scope| {
            let capture = scope.spawn(|| stream.begin_capture().map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!capture.is_finished(), "it did not wait");
            let other = scope.spawn(|| stream.core().outside_capture().is_ok());
            assert!(!other.join().expect("no panic"), "it is to wait for more");
            drop(stream.core().outside_capture().expect("part of the same"));
            drop(outside);
            (capture.join().expect("no panic")).expect("no thread is outside any more");
        });
        stream.synchronize().expect("no capture");
    }

    #[test]
    fn a_host_call_asks_about_its_stream_while_a_capture_of_it_waits_for_a_call_that_has_no_room() {
        /// As many operations as a stream of the host device has room for.
        const FULL: usize = 1 << 16;
        let (tell, told) = mpsc::channel();
        // All is the threads' own, so that a failure waits for nothing.
        std::thread::spawn(move || {
            let device = Device::host().expect("the host device");
            let stream = device.stream().expect("a stream");
            let queue = |stream: &Stream, work: Box<dyn FnOnce() + Send>| {
                let (backend, core) = (stream.device().backend(), stream.core());
                let queued = (core.timeline).queue(|| backend.host_call(core.raw, work));
                queued.expect("queued");
            };
            let ((begin, begun), asked) = (mpsc::channel(), stream.clone());
            let first = move || {
                begin.send(()).expect("it waits");
                // The two others wait by now.
                std::thread::sleep(Duration::from_millis(500));
                let _ = asked.is_idle();
            };
            queue(&stream, Box::new(first));
            begun.recv().expect("it runs");
            (0..FULL).for_each(|_| queue(&stream, Box::new(|| ())));
            std::thread::scope(|scope| {
                scope.spawn(|| queue(&stream, Box::new(|| ())));
                std::thread::sleep(Duration::from_millis(100));
                let capture = stream.begin_capture().expect("begun");
                drop(capture.end().expect("a graph"));
            });
            stream.synchronize().expect("all is done");
            tell.send(()).expect("it waits");
        });
        let done = told.recv_timeout(Duration::from_secs(20));
        done.expect("it waits for itself");
    }
}
