//! Captures and graphs: work recorded once and launched repeatedly.
//!
//! [`Stream::begin_capture`] records the work queued on a stream, including the application's own kernels,
//! until [`Capture::end`] makes a [`Graph`] of it. Memory can be allocated and freed meanwhile; see [`Graph`]
//! for its lifetime.
//!
//! ```
//! # fn main() -> warpool::Result<()> {
//! use warpool::{Device, Pool, PoolConfig};
//!
//! let device = Device::host()?;
//! let pool = Pool::new(&device, PoolConfig::default())?;
//! let stream = device.stream()?;
//! let capture = stream.begin_capture()?;
//! let scratch = pool.alloc(&stream, 1 << 20)?; // the graph's own from here on
//! // launch kernels on `stream` that use scratch.addr()
//! drop(scratch);
//! let graph = capture.end()?;
//! for _ in 0..100 {
//!     graph.launch(&stream)?;
//! }
//! drop(graph); // the memory goes back to the pool, after the last launch
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;

use super::awake::Queueing;
use super::capture::OfAnother;
use super::structure::{GraphRecord, Recorder, Timeline};
use super::{RawGraph, Stream, beside, is_running};
use crate::error::{Error, Result, refuse};

/// A capture under way. Dropping it ends it and discards the recorded work.
pub struct Capture {
    recorder: Option<Arc<Recorder>>,
    origin: Stream,
}

/// Captured work, ready to be launched any number of times.
///
/// **Memory.** Memory that pools allocate on a stream under capture belongs to the graph: its addresses stay
/// valid as long as the graph lives, even if the block is dropped. A block dropped during the capture may be
/// reused within the same capture, in stream order, and nowhere else. A block that is still held when the
/// capture ends can be read after a launch, as a result of the graph; a launch may overwrite what other work wrote there.
/// Blocks from before the capture that are dropped during it are kept too, and movable memory held on a captured stream
/// does not move. When the graph is dropped, all of it goes back to the pools, after every launch, without a wait on the
/// host.
///
/// **Typed buffers** that the capture allocated, or used through their views, live as long as the graph, even if they
/// are dropped. Each launch is a use of them on its stream: other operations on them run after the launches
/// before and before the launches after. Memory that the application's own kernels use only by address must
/// be kept and ordered by the application.
///
/// Safe to use from any thread; launches of one graph do not overlap.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// let mut counts = pool.alloc_zeroed::<u32>(&stream, 4)?;
/// let ones = pool.alloc_filled(&stream, 4, 1u32)?;
/// let capture = stream.begin_capture()?;
/// counts.view_mut().copy_from(&stream, &ones)?;
/// let graph = capture.end()?;
/// graph.launch(&stream)?;
/// assert_eq!(counts.download()?, [1; 4]);
/// # Ok(())
/// # }
/// ```
pub struct Graph {
    raw: RawGraph,
    memory: GraphMemory,
}

/// The memory that a graph keeps; for a graph captured by another library, see [`Stream::note_capture`].
///
/// Dropping it returns the memory to the pools, after all launches reported to [`GraphMemory::used_by`].
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::device::{Capture, Graph, GraphMemory};
///
/// let ones = pool.alloc_from(&stream, &[1.0_f32; 256])?;
/// let mut sums = pool.alloc_typed::<f32>(&stream, 256)?;
/// let capture: Capture = stream.begin_capture()?;
/// sums.view_mut().copy_from(&stream, &ones)?;
/// let graph: Graph = capture.end()?;
/// graph.launch(&stream)?;
/// let kept: &GraphMemory = graph.memory();
/// println!("{} bytes kept for its launches", kept.bytes());
/// assert_eq!(sums.download()?, [1.0; 256]);
/// # Ok(())
/// # }
/// ```
pub struct GraphMemory {
    recorder: Arc<Recorder>,
}

/// A capture that another library makes. Dropping it without [`NotedCapture::end`] returns the memory at
/// once.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::device::NotedCapture;
///
/// let mut noted: NotedCapture = stream.note_capture()?; // before the library begins to capture
/// let memory = noted.end()?; // after the library ends its capture
/// println!("{} bytes kept", memory.bytes());
/// let launch = memory.used_by(&stream)?; // before each launch that the library makes
/// drop(launch); // once it is queued
/// # Ok(())
/// # }
/// ```
pub struct NotedCapture {
    recorder: Option<Arc<Recorder>>,
    origin: Stream,
    _counted: OfAnother,
}

impl Stream {
    /// Begins to record the work queued on this stream instead of running it.
    ///
    /// A stream that waits for this one ([`Stream::wait_stream`], or an event recorded here) joins the
    /// capture; this stream must wait for it again before the end. The capture need not wait for work queued
    /// before: the launches do. Waiting for the stream on the host, uploads and downloads return errors until
    /// the capture ends; it begins after those that other threads are making, after the allocation of a
    /// buffer that one is for, and after copies of movable blocks that are resized. Calls of this crate that other
    /// threads make for the stream meanwhile are recorded one at a time; for an application's own, see
    /// [`Stream::raw`].
    ///
    /// Calls for other streams, from this thread or others, are not restricted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is being captured already, or where a host call would have to wait for
    /// such a copy; any error of the driver.
    #[doc(alias = "cudaStreamBeginCapture")]
    #[doc(alias = "CUDAGraph")]
    pub fn begin_capture(&self) -> Result<Capture> {
        let recorder = Recorder::of(self)?;
        let capture = Capture {
            recorder: Some(Arc::clone(&recorder)),
            origin: self.clone(),
        };
        match recorder.begin(self) {
            Ok(()) => Ok(capture),
            Err(error) => {
                capture.forget();
                Err(error)
            }
        }
    }

    /// Announces that another library is about to capture this stream, so that memory allocated on it lives
    /// as long as that library's graph. Call it before that capture begins, and [`NotedCapture::end`] after
    /// it has ended.
    ///
    /// Streams that join the capture must wait through this crate ([`Stream::wait_stream`]), so that they are
    /// noted too.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is being captured already; any error of the driver.
    pub fn note_capture(&self) -> Result<NotedCapture> {
        let recorder = Recorder::of(self)?;
        Ok(NotedCapture {
            recorder: Some(recorder),
            origin: self.clone(),
            _counted: OfAnother::begin(),
        })
    }

    /// Whether the stream is being captured, by this crate or by other code.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn is_capturing(&self) -> Result<bool> {
        self.device().backend().stream_capturing(self.raw())
    }
}

impl Capture {
    /// Ends the capture and makes the recorded work ready to launch.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a host call; any error of the driver, for example if a stream that joined was not waited
    /// for. The capture has then ended, or another thread ends it soon, and its memory is back in the pools.
    pub fn end(mut self) -> Result<Graph> {
        // Its drop leaves that to another thread.
        refuse!(is_running() => "thread",
            "a host call may not call the driver, and the capture is discarded: end it outside of host calls");
        let Some(recorder) = self.recorder.take() else {
            return Err(Error::invalid("capture", "it has ended"));
        };
        let backend = self.origin.device().backend();
        let mut ended = Err(Error::invalid("capture", "it has ended"));
        recorder.leave(|| {
            ended = backend.capture_end(self.origin.raw());
            ended.is_ok()
                || matches!(self.origin.is_capturing(), Ok(false))
                || discard(&self.origin)
        });
        let memory = GraphMemory { recorder };
        Ok(Graph {
            raw: ended?,
            memory,
        })
    }

    /// Releases the streams without a driver call: the driver's capture has not begun.
    fn forget(mut self) {
        if let Some(recorder) = self.recorder.take() {
            recorder.leave(|| true);
            recorder.release();
        }
    }
}

/// Ends the capture of `stream` and discards the recorded work; false if the driver fails to end it.
fn discard(stream: &Stream) -> bool {
    let backend = stream.device().backend();
    // A call that fails without having ended the capture is tried again.
    for _ in 0..2 {
        match backend.capture_end(stream.raw()) {
            Ok(raw) => {
                // The graph is never launched; a failure leaks only the driver's record of it.
                let _ = backend.graph_destroy(raw);
                return true;
            }
            Err(_) if matches!(stream.is_capturing(), Ok(false)) => return true,
            Err(_) => {}
        }
    }
    false
}

impl Drop for Capture {
    fn drop(&mut self) {
        let Some(recorder) = self.recorder.take() else {
            return;
        };
        let origin = self.origin.clone();
        beside(move || {
            recorder.leave(|| discard(&origin));
            recorder.release();
        });
    }
}

impl Graph {
    /// Queues one run of the captured work on `stream`, after everything queued there.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device or is being captured, if memory of the graph sleeps, or in
    /// the closure of a kernel that uses its memory; the failure of a communicator whose collectives it has; any error of
    /// the driver.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.memory.recorder.launch(stream, self.raw)
    }

    /// The memory that the graph keeps.
    #[must_use]
    pub fn memory(&self) -> &GraphMemory {
        &self.memory
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let (recorder, raw) = (Arc::clone(&self.memory.recorder), self.raw);
        beside(move || {
            // Queued runs still complete; a failure leaks only the driver's record of the graph.
            let _ = recorder.gate().device().backend().graph_destroy(raw);
        });
    }
}

impl GraphMemory {
    /// Reports that the graph is about to be launched on `stream`. The stream waits for everything that the
    /// memory waits for, and the memory is kept until the work queued on the stream by the time of its
    /// release is done. Call it before each launch; [`Graph::launch`] does.
    ///
    /// Drop what it returns once the launch is queued. Until then no pool of the memory falls asleep: its `sleep`
    /// waits for a second, and is an error then. Nor may other threads queue work on the memory until then, as that
    /// work would not wait for the launch.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device or is being captured, or if memory of the graph sleeps; the
    /// failure of a communicator whose collectives it has; any error of the driver.
    pub fn used_by<'s>(&self, stream: &'s Stream) -> Result<impl fmt::Debug + use<'s>> {
        // Before it is asked whether the memory sleeps.
        let queueing = Queueing::begin(&stream.core().timeline);
        self.recorder.used_by(stream)?;
        Ok(LaunchOfAnother {
            graph: Arc::clone(self.recorder.record()),
            on: &stream.core().timeline,
            _queueing: queueing,
        })
    }

    /// Bytes of device memory kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.recorder.bytes()
    }
}

/// A launch that another library makes, until this is dropped.
struct LaunchOfAnother<'s> {
    graph: Arc<GraphRecord>,
    on: &'s Arc<Timeline>,
    _queueing: Queueing<'s>,
}

impl Drop for LaunchOfAnother<'_> {
    fn drop(&mut self) {
        let (graph, timeline) = (Arc::clone(&self.graph), Arc::clone(self.on));
        beside(move || graph.hold_behind(&timeline));
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        let recorder = Arc::clone(&self.recorder);
        beside(move || recorder.release());
    }
}

impl NotedCapture {
    /// Reports that the other library's capture has ended, and returns the memory that its graph needs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the capture has not ended, after which it may be called again; or if it returned
    /// the memory before.
    pub fn end(&mut self) -> Result<GraphMemory> {
        if self.origin.is_capturing()? {
            return Err(Error::invalid("capture", "it has not ended: end it first"));
        }
        let recorder = self.recorder.take();
        let recorder = recorder.ok_or_else(|| Error::invalid("capture", "it has ended"))?;
        recorder.leave(|| true);
        Ok(GraphMemory { recorder })
    }
}

impl Drop for NotedCapture {
    fn drop(&mut self) {
        let Some(recorder) = self.recorder.take() else {
            return;
        };
        let origin = self.origin.clone();
        beside(move || {
            recorder.leave(|| !origin.is_capturing().unwrap_or(false));
            recorder.release();
        });
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({:?})", self.origin)
    }
}

impl fmt::Debug for NotedCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotedCapture({:?})", self.origin)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:#x}, {:?})", self.raw.0, self.memory)
    }
}

impl fmt::Debug for LaunchOfAnother<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launch(on {:?})", self.on)
    }
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphMemory({} bytes)", self.bytes())
    }
}
