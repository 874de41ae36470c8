//! The trait every device implements: the fewest calls the pool, the kernels and the tests need.
//!
//! A backend does what it is told and keeps no policy. Addresses, streams, events and physical
//! handles are plain integers of the backend's own making; they are meaningful only to the backend
//! that gave them. All methods may be called from any thread, and under locks of the crate's: they use
//! nothing that is made of the device they are the backend of.

use std::any::Any;
use std::sync::Arc;

use crate::error::{Error, Result};

use super::access::Note;
use super::launch::Launch;
use super::raw::{Addr, Phys, RawEvent, RawGraph, RawStream};

/// Which implementation stands behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU through its driver.
    Cuda,
    /// Host memory with a thread a stream.
    Host,
    /// The host device under a seeded scheduler.
    Sim,
}

/// Facts about a device that do not change while it is open.
///
/// ```
/// use warpool::Device;
/// use warpool::device::{DeviceInfo, DeviceKind};
///
/// # fn main() -> warpool::Result<()> {
/// let small = Device::host_with_capacity(256 << 20)?;
/// let info: &DeviceInfo = small.info();
/// assert_eq!(info.kind, DeviceKind::Host);
/// # Ok(())
/// # }
///
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Which implementation this is.
    pub kind: DeviceKind,
    /// The device's number among those of its kind.
    pub ordinal: u32,
    /// The name a person knows it by.
    pub name: String,
    /// Physical bytes in all.
    pub total_bytes: u64,
    /// Smallest physical handle and alignment of a mapping, in bytes.
    pub granule: u64,
    /// Compute capability, (0, 0) off CUDA.
    pub capability: (u32, u32),
    /// Multiprocessors, or the number of host cores.
    pub processors: u32,
    /// Version of the driver as CUDA counts it (13000 is 13.0), 0 off CUDA.
    pub driver_version: u32,
    /// Whether the host can read and write device memory through its address.
    pub host_readable: bool,
}

impl DeviceInfo {
    /// Facts with every optional figure at zero.
    #[must_use]
    #[doc(hidden)]
    pub fn new(
        kind: DeviceKind,
        ordinal: u32,
        name: String,
        total_bytes: u64,
        granule: u64,
    ) -> Self {
        Self {
            kind,
            ordinal,
            name,
            total_bytes,
            granule,
            capability: (0, 0),
            processors: 0,
            driver_version: 0,
            host_readable: kind == DeviceKind::Host,
        }
    }
}

/// Counts of what a backend has handed out and not taken back. All equal before and after means
/// nothing leaked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandleCounts {
    /// Address ranges reserved.
    pub ranges: u64,
    /// Physical handles created.
    pub handles: u64,
    /// Physical bytes held: of handles created and not released, and of released ones that a mapping
    /// keeps.
    pub bytes: u64,
    /// Mappings standing.
    pub mappings: u64,
    /// Streams created.
    pub streams: u64,
    /// Events created.
    pub events: u64,
    /// Graphs made by captures.
    pub graphs: u64,
    /// Bytes of host memory from [`Backend::host_alloc`].
    pub host_bytes: u64,
}

/// One device. See the module documentation for what is common to all methods.
///
/// Work given to a stream runs in the order given; work of different streams is ordered only by
/// events. Methods that name a stream queue work and return; the others act at once.
///
/// Safe code makes no calls of it: a device gives its backend out by
/// [`Device::raw_backend`](super::Device::raw_backend) alone, which says what a caller vouches for.
///
/// # Safety
/// The crate uses memory, and lets safe code use memory, on the strength of what these methods say they
/// do: addresses handed out are no one else's, what is mapped can be used until it is unmapped, work of
/// a stream runs in order and behind what it was made to wait for, and what is said to be done is done.
/// Where [`DeviceInfo::host_readable`] is set the crate reads device memory by its address.
pub unsafe trait Backend: Send + Sync + 'static {
    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Physical bytes free now, other programs counted.
    fn free_bytes(&self) -> Result<u64>;

    /// What is handed out now.
    fn counts(&self) -> HandleCounts;

    /// Reserves `bytes` of addresses (a multiple of the granule), aligned to the granule.
    fn reserve(&self, bytes: u64) -> Result<Addr>;
    /// Gives a range from [`Backend::reserve`] back; nothing may be mapped in it.
    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()>;
    /// Makes a physical handle of `bytes`, a multiple of the granule.
    fn create(&self, bytes: u64) -> Result<Phys>;
    /// Gives a handle back. Its memory lives on while a mapping of it stands.
    fn release(&self, phys: Phys) -> Result<()>;
    /// Maps the whole of `phys`, which has `bytes`, at `addr`, and makes it readable and writable.
    ///
    /// One handle may be mapped at several addresses at once.
    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()>;
    /// Takes down one mapping made by [`Backend::map`], whole. No queued work may use it.
    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()>;

    /// Host memory of `bytes` that the device copies to and from while the host goes on: page-locked, at
    /// an address that is the host's and a multiple of 256. Takes milliseconds on a GPU. 0 bytes are an error.
    fn host_alloc(&self, bytes: u64) -> Result<u64>;
    /// Gives memory from [`Backend::host_alloc`] back, whole. No queued work may use it.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()>;

    /// Makes a stream that does not synchronise with the default stream.
    fn stream_create(&self) -> Result<RawStream>;
    /// Destroys a stream from [`Backend::stream_create`]; queued work still completes.
    fn stream_destroy(&self, stream: RawStream) -> Result<()>;
    /// A number that no other stream of this process has or will have.
    fn stream_id(&self, stream: RawStream) -> Result<u64>;
    /// Blocks until all work queued on `stream` is done.
    fn stream_sync(&self, stream: RawStream) -> Result<()>;
    /// Whether all work queued on `stream` is done.
    fn stream_query(&self, stream: RawStream) -> Result<bool>;
    /// Whether `stream` is being captured into a graph.
    fn stream_capturing(&self, stream: RawStream) -> Result<bool>;

    /// Makes an event; only one made with `timing` can be measured.
    fn event_create(&self, timing: bool) -> Result<RawEvent>;
    /// Destroys an event; waits already queued on it still hold.
    fn event_destroy(&self, event: RawEvent) -> Result<()>;
    /// Marks in `event` all work queued on `stream` so far.
    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Makes work queued on `stream` from now on wait for what `event` marks now.
    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()>;
    /// Whether what `event` marks is done; true for an event never recorded.
    fn event_query(&self, event: RawEvent) -> Result<bool>;
    /// Blocks until what `event` marks is done.
    fn event_sync(&self, event: RawEvent) -> Result<()>;
    /// Nanoseconds of device time between two timing events, both done.
    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64>;

    /// Queues a copy from host memory. A driver may hold the caller until the copy is done where
    /// the memory is not page-locked.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable device memory, for `bytes`, until the copy is done.
    unsafe fn copy_in(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()>;
    /// Queues a copy to host memory. A driver may hold the caller until the copy is done where the
    /// memory is not page-locked.
    ///
    /// # Safety
    /// `src` is readable device memory and `dst` writable, for `bytes`, until the copy is done.
    unsafe fn copy_out(&self, dst: *mut u8, src: Addr, bytes: u64, stream: RawStream)
    -> Result<()>;
    /// Queues a copy within the device; the ranges do not overlap.
    ///
    /// # Safety
    /// Both ranges are device memory for `bytes` until the copy is done.
    unsafe fn copy_within(&self, dst: Addr, src: Addr, bytes: u64, stream: RawStream)
    -> Result<()>;
    /// Queues a fill with one byte value.
    ///
    /// # Safety
    /// The range is device memory until the fill is done.
    unsafe fn fill(&self, addr: Addr, byte: u8, bytes: u64, stream: RawStream) -> Result<()>;
    /// Queues one of the crate's kernels.
    ///
    /// # Safety
    /// Every range the launch names is device memory until it is done, and meets the alignment
    /// that `kernels/warpool.h` states.
    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()>;
    /// Queues a call of `work` on the host, in stream order. `work` makes no device call, and does
    /// not wait for other host calls, which may share its thread. If it panics, waiting for the
    /// stream is an error from then on. A stream under capture refuses, since `work` runs once; the
    /// capture goes on.
    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// As [`Backend::host_call`], of work that a graph can hold: it is called in each of its runs, which do
    /// not overlap. A device whose graphs hold no such calls refuses under capture, as there.
    #[doc(hidden)]
    fn host_call_in_each_run(
        &self,
        stream: RawStream,
        work: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<()> {
        self.host_call(stream, Box::new(move || work()))
    }

    /// Begins a capture: from now on work given to `stream`, and to every stream that comes to wait
    /// for an event recorded in the capture, is recorded and not run. Calls of other threads stay
    /// free to do what they like.
    fn capture_begin(&self, stream: RawStream) -> Result<()>;
    /// Ends the capture that began on `stream`, which waits for all streams that joined, and makes
    /// what was recorded ready to launch. The capture has ended even if this is an error.
    fn capture_end(&self, stream: RawStream) -> Result<RawGraph>;
    /// Queues one run of the graph on `stream`. Runs of one graph do not overlap.
    ///
    /// # Safety
    /// What was vouched for when the work was captured holds until this run is done.
    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()>;
    /// Destroys a graph; runs already queued still complete.
    fn graph_destroy(&self, graph: RawGraph) -> Result<()>;

    /// Calls `work` once, with the device's context current on this thread as launches of its own kernels
    /// have it. Tools that wrap a device pass it on. An error means that `work` was not called.
    fn in_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        work();
        Ok(())
    }

    /// Lets the GPUs numbered `peers` read and write whatever is mapped in this range, one from
    /// [`Backend::reserve`] with nothing mapped in it, from now on: every mapping, until the range is given
    /// back. A device whose memory every other one of its kind can use anyway has nothing to do.
    fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
        let _ = (addr, bytes, peers);
        Ok(())
    }

    /// Whether work of `other` can use what is mapped at `addr`, an address of this device.
    #[doc(hidden)]
    fn is_shared(&self, addr: Addr, other: &DeviceInfo) -> bool {
        let _ = (addr, other);
        false
    }

    /// What `event` marks now, for a device of the same kind to wait for; `None` if it marks nothing. The
    /// event lasts until [`Backend::wait_mark`] has been given it.
    #[doc(hidden)]
    fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
        let _ = event;
        Err(Error::invalid(
            "device",
            "no other device can wait for its streams",
        ))
    }

    /// Makes work queued on `stream` from now on wait for a mark of another device.
    #[doc(hidden)]
    fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
        let _ = (stream, mark);
        Err(Error::invalid(
            "device",
            "its streams cannot wait for another device",
        ))
    }

    /// Takes note of something it cannot see for itself. Devices need none of it; tools that watch
    /// a device do, and tools that wrap one pass it on.
    #[doc(hidden)]
    fn observe(&self, note: &Note<'_>) {
        let _ = note;
    }
}
