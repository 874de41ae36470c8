//! The types that make up a device, its streams and its graphs, and their references to each other.
//!
//! Streams, timelines and captures hold their [`Device`]; the device has only weak references to them. The
//! application's [`Stream`] holds the [`StreamCore`], as blocks do. The core holds its [`Timeline`], which
//! can outlive it. A stream under capture points to the [`Recorder`]; a [`GraphRecord`] orders the launches
//! of the recorder's graph. The methods of each type are in the file of its name.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use super::backend::Backend;
use super::raw::{RawEvent, RawStream};
use super::ticks::Ticks;
use crate::error::Result;
use crate::sync::{AtomicU64, Condvar, Latch, Mutex};

/// One device. Cheap to clone; all clones are the same device.
///
/// Safe to use from any thread.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// let device = warpool::Device::host()?;
/// println!("{}: {} bytes", device.info().name, device.info().total_bytes);
/// let (load, train) = (device.stream()?, device.stream()?);
/// # drop((load, train));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    pub(super) inner: Arc<DeviceInner>,
}

pub(super) struct DeviceInner {
    pub(super) spare_events: Mutex<Vec<RawEvent>>,
    /// Streams that were left to their timelines, which are gone: see [`Device::tidy`].
    pub(super) left_streams: Mutex<Vec<RawStream>>,
    pub(super) adopted: Mutex<HashMap<u64, Weak<StreamCore>>>,
    /// Streams whose order may still be needed, by uid.
    pub(super) timelines: Mutex<HashMap<u64, Weak<Timeline>>>,
    /// Streams under capture.
    pub(super) captured: AtomicU64,
    /// Pools that sleep.
    pub(super) suspended: AtomicU64,
    /// Above 0 once there has been a pool whose memory may sleep.
    pub(super) sleepers: AtomicU64,
    /// The index of the count that new operations use, out of the two of each stream.
    pub(super) counted_in: AtomicU64,
    /// Held by the thread that waits for operations that have begun.
    pub(super) suspending: Mutex<()>,
    pub(super) turns: Turns,
    /// Held over each driver call that records into a graph, and over the end of a capture.
    pub(super) recording: Mutex<()>,
    /// Names by the [`id`](super::Stream::id) of the stream.
    pub(super) names: Mutex<HashMap<u64, String>>,
    pub(super) no_gpu: Option<crate::Error>,
    pub(super) backend: ManuallyDrop<Arc<dyn Backend>>,
    /// Keeps the device's context alive, if its user does not.
    pub(super) owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Keeps state for a stream; called when the stream's last handle is dropped.
pub(crate) trait StreamWatcher: Send + Sync {
    /// The application dropped its last clone of the stream with this [`Stream::handle_id`]; nothing more
    /// will be allocated through it.
    fn stream_retired(&self, handle: u64);
    /// `stream` is about to be captured by `recorder`, or, with `None`, its capture has ended.
    fn stream_captured(&self, stream: &Stream, recorder: Option<&Arc<Recorder>>);
}

/// The stream itself. Blocks keep it alive after the application's handles are gone.
pub(crate) struct StreamCore {
    pub(crate) device: Device,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) raw: RawStream,
    pub(super) owned: bool,
    /// Whether the crate made it to represent streams under capture.
    pub(crate) gate: bool,
    /// The backend's id while this is an adopted stream in the device's registry.
    pub(super) adopted_as: Option<u64>,
    pub(super) handle: Mutex<Weak<StreamHandle>>,
    /// Keeps an adopted stream alive, if its user does not.
    #[allow(dead_code, reason = "held for its drop; features alone set it")]
    pub(crate) owner: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// The application's reference to the stream; its drop tells the watchers.
pub(super) struct StreamHandle {
    pub(super) core: Arc<StreamCore>,
    pub(super) watchers: Mutex<Vec<Weak<dyn StreamWatcher>>>,
    /// Never reused, whereas the stream's own number stays the same if the stream is adopted again.
    pub(super) id: u64,
}

/// A queue of device work. Cheap to clone; all clones are the same stream.
///
/// Safe to use from any thread; calls from several threads interleave in some order.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// let other = device.stream()?;
/// other.wait_stream(&stream)?; // on the device
/// other.synchronize()?; // on the host
/// assert!(stream.is_idle()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    pub(super) handle: Arc<StreamHandle>,
    /// A copy of the handle's id for allocations: the handle itself may be in no cache of the processor.
    pub(super) id: u64,
}

/// (stream uid, tick) pairs, at most one per stream, sorted by uid.
pub(crate) type Clock = Vec<(u64, u64)>;

/// A recorded event. It goes back to the device's spares when its last holder drops it.
#[derive(Debug)]
pub(crate) struct HeldEvent {
    pub(super) device: Device,
    pub(crate) raw: RawEvent,
}

/// One record: everything queued on the stream up to tick `tick`.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) tick: u64,
    pub(crate) event: Arc<HeldEvent>,
    /// What the stream itself had waited for at the record.
    pub(crate) clock: Arc<Clock>,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) seen: Clock,
    /// Length of `seen` at which entries of streams that are gone are removed.
    pub(super) prune_at: usize,
    /// Marks not known to be done, oldest first.
    pub(super) marks: VecDeque<Mark>,
}

/// Waits between captures and operations that a graph may not contain.
#[derive(Default)]
pub(super) struct Entering {
    /// A thread has the stream enter a capture or leave one. It calls the driver meanwhile, which may wait for a host
    /// call that asks about the stream, and so not under this lock.
    pub(super) changing: bool,
    /// Number of threads that are queueing work that no graph may contain. They do not wait for
    /// each other.
    pub(super) outside: u64,
    /// Number of captures that wait for those threads. Further threads are refused meanwhile, so that the wait
    /// ends.
    pub(super) waiting: u64,
}

/// The known order of one stream: see the module `timeline`.
pub(crate) struct Timeline {
    pub(crate) uid: u64,
    pub(super) device: Device,
    pub(super) ticks: Ticks,
    /// `None` once the stream is gone.
    pub(super) raw: Mutex<Option<RawStream>>,
    /// Above 0 once it is: a driver may keep a thread that holds `raw`.
    pub(super) gone: AtomicU64,
    pub(super) order: Mutex<Order>,
    /// The capture the stream is under; see the module `capture`.
    pub(super) recorder: Mutex<Option<Arc<Recorder>>>,
    /// Who has the stream enter a capture or leave it, and who keeps it from that.
    pub(super) entering: Mutex<Entering>,
    /// Notified when a thread of `Entering` is done.
    pub(super) outside_left: Condvar,
    /// Number of captures of the stream begun and ended: odd while it is under one.
    pub(super) captures: AtomicU64,
    /// The graphs of the stream's captures until their last launch is done, each with the value of
    /// `captures` at its begin.
    pub(super) graphs: Mutex<Vec<(u64, Arc<GraphRecord>)>>,
    /// Above 0 once the driver failed to end a capture of the stream: any record would be part of that
    /// capture.
    pub(super) stuck: AtomicU64,
    /// Above 0 once the stream was left to this timeline to destroy, because its last mark could not be made.
    pub(super) left: AtomicU64,
    /// Number of operations that are queueing work on the stream now, in two counts: see the module `awake`.
    pub(super) queueing: [AtomicU64; 2],
    /// Number of driver calls that are queueing work on the stream now, outside of captures: see the module `calls`.
    pub(super) calls: AtomicU64,
}

/// A resource that a graph keeps.
pub(crate) trait Kept: Send {
    /// The graph is gone: releases the resource after the work queued on `gate` so far.
    fn release(self: Box<Self>, gate: &Stream);

    /// Bytes of device memory kept.
    fn bytes(&self) -> u64 {
        0
    }
}

/// An end of a communicator, whose collectives a graph has.
pub(crate) trait Checked: Send + Sync {
    /// Returns the first failure of queued work.
    fn check(&self) -> Result<()>;
}

/// The state of a capture and its graph.
#[derive(Default)]
pub(super) struct Captured {
    /// Streams under capture, the one it began on first; they are held until it ends.
    pub(super) streams: Vec<Stream>,
    /// Streams the graph was launched on.
    pub(super) users: Vec<Stream>,
    pub(super) kept: Vec<Box<dyn Kept>>,
    /// Kept too. No launch follows a failure.
    pub(super) checked: Vec<Arc<dyn Checked>>,
    /// The graph is gone.
    pub(super) released: bool,
}

/// A capture and its graph: see the module `capture`.
pub(crate) struct Recorder {
    pub(super) device: Device,
    pub(super) gate: Stream,
    pub(super) record: Arc<GraphRecord>,
    /// Above 0 once the capture has ended: no stream joins it any more. Set under `state`.
    pub(super) ended: AtomicU64,
    /// Above 0 once the gate waited for a caller that may not know of the capture: the streams wait for it as they leave.
    pub(super) stood_in: AtomicU64,
    pub(super) state: Mutex<Captured>,
}

/// The last work queued on a stream, up to a tick.
pub(super) type LastQueued = (Arc<Timeline>, u64);

/// The last launch of a table.
#[derive(Default)]
pub(crate) struct TableRecord {
    pub(super) last: Latch<Option<LastQueued>>,
    pub(super) over: AtomicBool,
}

/// The last launch of a graph, and the work that the next one waits for.
#[derive(Default)]
pub(super) struct GraphState {
    pub(super) last: Option<LastQueued>,
    /// Work that was reported to the graph: the next launch waits for it.
    pub(super) reported: Vec<LastQueued>,
    /// Streams on which callers queue their own work under a guard: each launch waits for everything queued
    /// there.
    pub(super) holders: Vec<Arc<Timeline>>,
    /// Other graphs that use the same bytes, by the addresses of their records.
    pub(super) peers: BTreeMap<usize, Arc<GraphRecord>>,
    /// The states of sleepable memory that the graph uses.
    pub(super) sleepers: Vec<Arc<Awake>>,
    /// Operations that have read `last` and have not reported themselves yet.
    pub(super) under_way: usize,
    /// A launch is being queued, without the turn: operations, and launches of this graph and of peers, wait for that.
    pub(super) launching: bool,
    pub(super) over: bool,
}

/// The record by which a graph's launches are ordered.
pub(crate) struct GraphRecord {
    pub(super) recorder: Weak<Recorder>,
    pub(super) state: Mutex<GraphState>,
}

/// A lock held in turn by operations on memory of graphs and by launches of graphs.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) taken: Mutex<()>,
    pub(super) changed: Condvar,
}

/// Whether operations may use the memory.
#[derive(Debug, Default)]
pub(crate) struct Awake {
    /// How often it was suspended and resumed: odd while it is suspended.
    pub(super) changes: AtomicU64,
}
