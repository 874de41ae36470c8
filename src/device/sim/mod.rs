//! The simulated device: the host device's memory under a seeded scheduler.
//!
//! Streams are queues. Nothing in them runs until the program waits for it or queries it. Then the
//! scheduler runs operations in an order that streams, events and waits allow, chosen by its seed.
//! The same program with the same seed runs the same way. So an ordering bug that shows on a GPU
//! once a week shows here in a loop over seeds, and again with the seed that found it.
//!
//! - **Work runs late.** Work stays queued until the program waits, so memory that is reused too
//!   early really has two users.
//! - **Handles are reused at once**, as drivers do: a new stream or event gets the raw handle of
//!   the last one destroyed.
//! - **No threads.** Operations run on the thread that waits. Programs with several threads work,
//!   but then the seed alone does not determine the run.
//! - **Memory may have no contents** ([`SimConfig::without_bytes`]): addresses, handles and
//!   mappings are tracked, but there are no bytes. Kernels and copies then do nothing; host calls
//!   run. This allows ten times as many schedules, for a checker of stream order that needs no
//!   contents.
//!
//! Operations take one simulated microsecond each, which is what timing events measure.

mod choose;
mod explore;
mod rng;
mod schedule;
mod store;
mod tracked;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

#[doc(hidden)]
pub use choose::Strategy;
#[doc(hidden)]
pub use explore::Explored;
pub use explore::explore;
#[doc(hidden)]
pub use rng::Rng;

use self::choose::Chooser;
use self::schedule::{Op, Place, Schedule, Step};
use self::store::Store;
use super::capture_emulation::{self, Branch, CapturedMark};
use super::host::{CapturedOp, GRANULE, Transfer, no_such, run_launch};
use super::pages::Pages;
use super::{
    Addr, Backend, DeviceInfo, DeviceKind, HandleCounts, Launch, Phys, RawEvent, RawGraph,
    RawStream, host_call,
};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// Default capacity in bytes.
const DEFAULT_CAPACITY: u64 = 1 << 30;

/// Simulated nanoseconds per operation.
const STEP_NS: f64 = 1000.0;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// The configuration of a simulated device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SimConfig {
    /// The seed of all choices.
    pub(crate) seed: u64,
    /// The strategy that chooses the order of operations.
    #[doc(hidden)]
    pub strategy: Strategy,
    /// Physical bytes, rounded down to the granule of 2 MiB.
    pub(crate) capacity: u64,
    /// Whether memory has contents.
    pub(crate) bytes: bool,
}

impl Default for SimConfig {
    /// Seed 0, random order, 1 GiB with contents.
    fn default() -> Self {
        Self {
            seed: 0,
            strategy: Strategy::Random,
            capacity: DEFAULT_CAPACITY,
            bytes: true,
        }
    }
}

impl SimConfig {
    /// Sets the seed of all choices.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the strategy that chooses the order of operations.
    #[must_use]
    #[doc(hidden)]
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the capacity in physical bytes.
    #[must_use]
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Keeps no contents of memory; see the [module](self) documentation.
    #[must_use]
    #[doc(hidden)]
    pub fn without_bytes(mut self) -> Self {
        self.bytes = false;
        self
    }
}

#[doc(hidden)]
/// The seeds to run a test with: `0..count`, or only the one in `WARPOOL_SIM_SEED`, which repeats a
/// failure.
///
/// # Errors
/// [`Error::Invalid`] if the variable is set to anything other than a seed.
pub fn seeds(count: u64) -> Result<std::ops::Range<u64>> {
    let given = std::env::var_os("WARPOOL_SIM_SEED");
    let given = given.map(|text| text.to_string_lossy().into_owned());
    seeds_from(given.as_deref(), count)
}

#[doc(hidden)]
/// The same as [`seeds`], with the variable's text as a parameter.
///
/// # Errors
/// See [`seeds`].
pub fn seeds_from(given: Option<&str>, count: u64) -> Result<std::ops::Range<u64>> {
    let Some(text) = given else {
        return Ok(0..count);
    };
    match text.trim().parse::<u64>() {
        Ok(seed) if seed < u64::MAX => Ok(seed..seed + 1),
        _ => Err(Error::invalid(
            "WARPOOL_SIM_SEED",
            format!("{text:?} is not a seed: use the number that a failure printed"),
        )),
    }
}

pub(super) fn open(config: &SimConfig) -> Result<Arc<dyn Backend>> {
    open_with(config, Chooser::new(config.strategy, config.seed))
}

fn open_with(config: &SimConfig, chooser: Chooser) -> Result<Arc<dyn Backend>> {
    let capacity = config.capacity - config.capacity % GRANULE;
    if capacity == 0 || i64::try_from(capacity).is_err() {
        let why = format!(
            "{} bytes are less than one granule of {GRANULE}, or beyond any file",
            config.capacity
        );
        return Err(Error::invalid("capacity", why));
    }
    let store = Store::new(capacity, config.bytes)?;
    let name = format!("simulated device, seed {}", config.seed);
    let mut info = DeviceInfo::new(DeviceKind::Sim, 0, name, capacity, GRANULE);
    info.processors = 1;
    info.host_readable = config.bytes;
    Ok(Arc::new(Sim {
        pages: Pages::default(),
        info,
        store,
        state: Mutex::new(State {
            schedule: Schedule::new(chooser),
            streams: Slots::default(),
            events: Slots::default(),
            graphs: Slots::default(),
        }),
        called: Condvar::new(),
    }))
}

/// Values by handle; the handle released last is the next one used.
struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    fn insert(&mut self, value: T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(value);
        at as u64 + 1
    }

    fn get(&mut self, what: &'static str, raw: u64) -> Result<&mut T> {
        let slot = usize::try_from(raw.wrapping_sub(1))
            .ok()
            .and_then(|at| self.slots.get_mut(at));
        slot.and_then(Option::as_mut)
            .ok_or_else(|| no_such(what, raw))
    }

    /// Returns the value: what it drops may be the application's, and may use the device, so the caller drops it
    /// without the device's lock.
    fn remove(&mut self, what: &'static str, raw: u64) -> Result<Option<T>> {
        self.get(what, raw)?;
        let at = (raw - 1) as usize;
        self.free.push(at);
        Ok(self.slots[at].take())
    }

    fn len(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }
}

/// What an event has recorded.
#[derive(Default)]
struct SimEvent {
    timing: bool,
    place: Option<Place>,
    /// For a timing event, the number of steps when its place was reached.
    stamp: Option<Arc<OnceLock<u64>>>,
    /// Set if the event was recorded in a capture.
    captured: Option<CapturedMark<CapturedOp>>,
}

/// The state of a stream's handle.
struct SimStream {
    queue: usize,
    /// The stream's branch in a capture, which may have ended.
    branch: Option<Branch<CapturedOp>>,
}

struct State {
    schedule: Schedule,
    streams: Slots<SimStream>,
    events: Slots<SimEvent>,
    graphs: Slots<Vec<CapturedOp>>,
}

impl State {
    fn queue(&mut self, stream: RawStream) -> Result<usize> {
        Ok(self.streams.get("stream", stream.0)?.queue)
    }

    /// The stream's branch in a capture that has not ended.
    fn branch(&mut self, stream: RawStream) -> Result<Option<Branch<CapturedOp>>> {
        let branch = self.streams.get("stream", stream.0)?.branch.as_ref();
        Ok(branch.filter(|branch| branch.is_open()).cloned())
    }

    /// The queue of a stream that is not under capture; otherwise the call invalidates the capture
    /// and is an error.
    fn running(&mut self, call: &'static str, stream: RawStream) -> Result<usize> {
        if let Some(branch) = self.branch(stream)? {
            branch.break_off();
            return Err(capture_emulation::unsupported(call));
        }
        self.queue(stream)
    }

    /// Queues work that a capture can contain, or records it if the stream is under capture.
    fn give(&mut self, op: CapturedOp, stream: RawStream) -> Result<()> {
        match self.branch(stream)? {
            Some(branch) => {
                branch.push(op);
                Ok(())
            }
            None => self.push(stream, op.into()).map(|_| ()),
        }
    }

    /// The place that an event has recorded outside captures, if it was ever recorded.
    fn place(&mut self, call: &'static str, event: RawEvent) -> Result<Option<Place>> {
        let event = self.event(event)?;
        if event.captured.is_some() {
            return Err(capture_emulation::captured_event(call));
        }
        Ok(event.place)
    }

    fn event(&mut self, event: RawEvent) -> Result<&mut SimEvent> {
        self.events.get("event", event.0)
    }

    fn push(&mut self, stream: RawStream, op: Op) -> Result<Place> {
        let queue = self.queue(stream)?;
        Ok(self.schedule.push(queue, op))
    }

    fn stamp(&mut self, event: RawEvent) -> Result<u64> {
        let event = self.event(event)?;
        if !event.timing {
            return Err(Error::invalid("event", "it was made without timing"));
        }
        let Some(stamp) = &event.stamp else {
            return Err(Error::invalid("event", "it was never recorded"));
        };
        stamp.get().copied().ok_or_else(|| Error::Driver {
            call: "event_elapsed",
            code: NOT_READY,
            words: String::from("CUDA_ERROR_NOT_READY: the work before the event is not done"),
        })
    }
}

struct Sim {
    info: DeviceInfo,
    store: Store,
    state: Mutex<State>,
    /// Woken when a host call on another thread has ended.
    called: Condvar,
    pages: Pages,
}

impl Sim {
    /// Runs one operation; returns false if none can run now.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let (queue, op) = match state.schedule.step(!host_call::may_run_none()) {
            Step::Nothing => return (state, false),
            Step::Run(queue, op) => (queue, op),
        };
        let outcome = match op {
            Op::Call(work) => {
                drop(state);
                let outcome = host_call::run(work);
                state = lock(&self.state);
                self.called.notify_all();
                outcome
            }
            Op::Stamp(stamp) => {
                // Each stamp is queued once.
                let _ = stamp.set(state.schedule.steps());
                Ok(())
            }
            // SAFETY: the caller that queued the launch guarantees its ranges until it is done.
            Op::Launch(launch) if self.store.has_bytes() => unsafe { run_launch(&launch) },
            Op::Transfer(transfer) if self.store.has_bytes() => {
                // SAFETY: the caller that queued the transfer guarantees its ranges.
                unsafe { transfer.run() };
                Ok(())
            }
            Op::Launch(_) | Op::Transfer(_) | Op::Wait(_) => Ok(()),
        };
        state.schedule.ran(queue, outcome);
        (state, true)
    }

    /// Runs steps until `place` is passed.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, State>, place: Place) -> Result<()> {
        host_call::may_wait()?;
        while !state.schedule.passed(place)? {
            let (now, ran) = self.step(state);
            state = now;
            if !ran && !state.schedule.passed(place)? {
                // Only a host call on another thread can block all work.
                state = self
                    .called
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }

    /// Runs as many steps as the scheduler chooses, and returns whether `place` is passed.
    fn query<'a>(&'a self, mut state: MutexGuard<'a, State>, place: Place) -> Result<bool> {
        while !state.schedule.passed(place)? {
            if host_call::may_run_none() || !state.schedule.goes_on() {
                return Ok(false);
            }
            let (now, ran) = self.step(state);
            state = now;
            if !ran {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn transfer(&self, transfer: Transfer, stream: RawStream) -> Result<()> {
        lock(&self.state).give(CapturedOp::Transfer(transfer), stream)
    }
}

/// A number that is unique among the simulated streams of this process.
fn next_id() -> u64 {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

// SAFETY: the memory is the host device's or there is none; the schedule respects the order of
// streams and events.
unsafe impl Backend for Sim {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_watched(&self) -> bool {
        false
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.store.free_bytes())
    }

    fn counts(&self) -> HandleCounts {
        let state = lock(&self.state);
        let mut counts = HandleCounts {
            streams: state.streams.len(),
            events: state.events.len(),
            graphs: state.graphs.len(),
            host_bytes: self.pages.bytes(),
            ..HandleCounts::default()
        };
        self.store.count(&mut counts);
        counts
    }

    fn reserve(&self, bytes: u64) -> Result<Addr> {
        self.store.reserve(bytes)
    }

    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        self.store.unreserve(addr, bytes)
    }

    fn create(&self, bytes: u64) -> Result<Phys> {
        self.store.create(bytes)
    }

    fn release(&self, phys: Phys) -> Result<()> {
        self.store.release(phys)
    }

    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        self.store.map(addr, bytes, phys)
    }

    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        self.store.unmap(addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        self.pages.alloc(bytes)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.pages.free(addr, bytes)
    }

    fn stream_create(&self) -> Result<RawStream> {
        let mut state = lock(&self.state);
        let queue = state.schedule.add(next_id());
        let branch = None;
        Ok(RawStream(state.streams.insert(SimStream { queue, branch })))
    }

    fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        let mut state = lock(&self.state);
        let queue = state.queue(stream)?;
        state.schedule.close(queue);
        let gone = state.streams.remove("stream", stream.0);
        drop(state);
        gone.map(drop)
    }

    fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let mut state = lock(&self.state);
        let queue = state.queue(stream)?;
        Ok(state.schedule.id(queue))
    }

    fn stream_sync(&self, stream: RawStream) -> Result<()> {
        let mut state = lock(&self.state);
        let queue = state.running("stream_sync", stream)?;
        let place = state.schedule.here(queue);
        self.sync(state, place)
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let mut state = lock(&self.state);
        let queue = state.running("stream_query", stream)?;
        let place = state.schedule.here(queue);
        self.query(state, place)
    }

    fn stream_capturing(&self, stream: RawStream) -> Result<bool> {
        Ok(lock(&self.state).branch(stream)?.is_some())
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        let event = SimEvent {
            timing,
            ..SimEvent::default()
        };
        Ok(RawEvent(lock(&self.state).events.insert(event)))
    }

    fn event_destroy(&self, event: RawEvent) -> Result<()> {
        let gone = lock(&self.state).events.remove("event", event.0);
        gone.map(drop)
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let mut state = lock(&self.state);
        let queue = state.queue(stream)?;
        let timing = state.event(event)?.timing;
        if let Some(branch) = state.branch(stream)? {
            let event = state.event(event)?;
            *event = SimEvent {
                timing,
                captured: Some(branch.mark()),
                ..SimEvent::default()
            };
            return Ok(());
        }
        let (place, stamp) = if timing {
            let stamp = Arc::new(OnceLock::new());
            let op = Op::Stamp(Arc::clone(&stamp));
            (state.schedule.push(queue, op), Some(stamp))
        } else {
            (state.schedule.here(queue), None)
        };
        let event = state.event(event)?;
        event.place = Some(place);
        event.stamp = stamp;
        event.captured = None;
        Ok(())
    }

    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let mut state = lock(&self.state);
        let queue = state.queue(stream)?;
        let branch = state.branch(stream)?;
        if let Some(mark) = state.event(event)?.captured.clone() {
            let Some(branch) = branch else {
                let joined = mark.join();
                let joined =
                    joined.ok_or_else(|| capture_emulation::captured_event("event_wait"))?;
                state.streams.get("stream", stream.0)?.branch = Some(joined);
                return Ok(());
            };
            return branch.wait(&mark);
        }
        if let Some(place) = state.event(event)?.place {
            if let Some(branch) = branch {
                return Err(branch.isolated());
            }
            if place.queue != queue {
                state.schedule.push(queue, Op::Wait(place));
            }
        }
        Ok(())
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        let mut state = lock(&self.state);
        match state.place("event_query", event)? {
            Some(place) => self.query(state, place),
            None => Ok(true),
        }
    }

    fn event_sync(&self, event: RawEvent) -> Result<()> {
        let mut state = lock(&self.state);
        match state.place("event_sync", event)? {
            Some(place) => self.sync(state, place),
            None => Ok(()),
        }
    }

    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64> {
        let mut state = lock(&self.state);
        let (start, end) = (state.stamp(start)?, state.stamp(end)?);
        Ok((end as f64 - start as f64) * STEP_NS)
    }

    unsafe fn copy_in(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        // The caller that copies host memory has to wait for the copy before it frees that memory.
        host_call::may_wait()?;
        let src = src as u64;
        self.transfer(Transfer::Copy { dst, src, bytes }, stream)
    }

    unsafe fn copy_out(
        &self,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        host_call::may_wait()?;
        let dst = dst as u64;
        self.transfer(Transfer::Copy { dst, src, bytes }, stream)
    }

    unsafe fn copy_within(
        &self,
        dst: Addr,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        self.transfer(Transfer::Copy { dst, src, bytes }, stream)
    }

    unsafe fn fill(&self, addr: Addr, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        self.transfer(Transfer::Fill { addr, byte, bytes }, stream)
    }

    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()> {
        lock(&self.state).give(CapturedOp::Launch(*launch), stream)
    }

    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.branch(stream)?.is_some() {
            return Err(capture_emulation::unsupported("host_call"));
        }
        state.push(stream, Op::Call(work)).map(|_| ())
    }

    fn host_call_in_each_run(
        &self,
        stream: RawStream,
        work: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<()> {
        lock(&self.state).give(CapturedOp::Call(work), stream)
    }

    fn capture_begin(&self, stream: RawStream) -> Result<()> {
        let mut state = lock(&self.state);
        if state.branch(stream)?.is_some() {
            return Err(capture_emulation::unsupported("capture_begin"));
        }
        state.streams.get("stream", stream.0)?.branch = Some(Branch::begin());
        Ok(())
    }

    fn capture_end(&self, stream: RawStream) -> Result<RawGraph> {
        let mut state = lock(&self.state);
        let branch = state.branch(stream)?;
        let ops = branch.ok_or_else(capture_emulation::not_capturing)?.end()?;
        Ok(RawGraph(state.graphs.insert(ops)))
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()> {
        let mut state = lock(&self.state);
        state.running("graph_launch", stream)?;
        let ops = state.graphs.get("graph", graph.0)?.clone();
        // Each operation is a separate step; steps of other streams may run between them.
        for op in ops {
            state.push(stream, op.into())?;
        }
        Ok(())
    }

    fn graph_destroy(&self, graph: RawGraph) -> Result<()> {
        let gone = lock(&self.state).graphs.remove("graph", graph.0);
        gone.map(drop)
    }
}

impl Drop for Sim {
    /// Runs everything still queued, as a real device completes it.
    fn drop(&mut self) {
        while self.step(lock(&self.state)).1 {}
    }
}
