//! The trait that every device implements: the minimum of calls that the pool, the kernels and the tests
//! need.
//!
//! A backend executes calls and makes no policy decisions. Addresses, streams, events and physical handles
//! are integers that the backend chooses; only the same backend can interpret them. All methods may be called
//! from any thread, and while locks of the crate are held, so they must not use anything built on the device
//! that they implement.

use std::any::Any;
use std::sync::Arc;

use crate::error::{Error, Result};

use super::access::Note;
use super::launch::Launch;
use super::raw::{Addr, Phys, RawEvent, RawGraph, RawStream};

/// The implementation of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// An NVIDIA GPU through its driver.
    Cuda,
    /// Host memory with one thread per stream.
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
    /// The implementation.
    pub kind: DeviceKind,
    /// Index among the devices of its kind.
    pub ordinal: u32,
    /// Human-readable name.
    pub name: String,
    /// Total physical bytes.
    pub total_bytes: u64,
    /// Smallest size of a physical handle, and alignment of a mapping, in bytes.
    pub granule: u64,
    /// Compute capability; (0, 0) on devices other than CUDA.
    pub capability: (u32, u32),
    /// Number of multiprocessors, or of host cores.
    pub processors: u32,
    /// Driver version in CUDA's form (13000 is 13.0); 0 on devices other than CUDA.
    pub driver_version: u32,
    /// Whether the host can read and write device memory by its address.
    pub host_readable: bool,
}

impl DeviceInfo {
    /// Facts with every optional field 0.
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

/// Numbers of a backend's live objects. If they are equal before and after, nothing leaked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandleCounts {
    /// Reserved address ranges.
    pub ranges: u64,
    /// Physical handles created and not released.
    pub handles: u64,
    /// Physical bytes in use: of handles not released, and of released handles that are still mapped.
    pub bytes: u64,
    /// Existing mappings.
    pub mappings: u64,
    /// Streams not destroyed.
    pub streams: u64,
    /// Events not destroyed.
    pub events: u64,
    /// Graphs made by captures and not destroyed.
    pub graphs: u64,
    /// Bytes of host memory from [`Backend::host_alloc`].
    pub host_bytes: u64,
}

/// One device. See the module documentation for the rules of all methods.
///
/// Work queued on one stream runs in order; work of different streams is ordered only by events. Methods with
/// a stream parameter queue work and return; the others take effect at once.
///
/// Safe code cannot call a device's backend: only [`Device::raw_backend`](super::Device::raw_backend) returns
/// it, and says what its caller must guarantee.
///
/// # Safety
/// The crate relies on these methods for memory safety. Addresses that they return overlap no others. Mapped
/// memory can be used until it is unmapped. Work of a stream runs in order and after everything it was made
/// to wait for. Work reported as done is done. If [`DeviceInfo::host_readable`] is set, the crate reads
/// device memory by its address.
pub unsafe trait Backend: Send + Sync + 'static {
    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Free physical bytes at present, with the memory of other programs counted as used.
    fn free_bytes(&self) -> Result<u64>;

    /// The numbers of live objects.
    fn counts(&self) -> HandleCounts;

    /// Reserves `bytes` of address space (a multiple of the granule), aligned to the granule.
    fn reserve(&self, bytes: u64) -> Result<Addr>;
    /// Releases a range from [`Backend::reserve`]; nothing may be mapped in it.
    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()>;
    /// Creates a physical handle of `bytes`, a multiple of the granule.
    fn create(&self, bytes: u64) -> Result<Phys>;
    /// Releases a handle. Its memory stays allocated while it is mapped.
    fn release(&self, phys: Phys) -> Result<()>;
    /// Maps the whole of `phys`, which has `bytes`, at `addr`, with read and write access.
    ///
    /// One handle may be mapped at several addresses at once.
    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()>;
    /// Removes one mapping made by [`Backend::map`], whole. No queued work may use it.
    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()>;

    /// Allocates `bytes` of page-locked host memory, which the device can copy asynchronously. The address is
    /// a host address and a multiple of 256. Takes milliseconds on a GPU. 0 bytes are an error.
    fn host_alloc(&self, bytes: u64) -> Result<u64>;
    /// Frees memory from [`Backend::host_alloc`], whole. No queued work may use it.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()>;

    /// Makes a stream that does not synchronise with the default stream.
    fn stream_create(&self) -> Result<RawStream>;
    /// Makes one whose kernels the device begins ahead of those of other streams that are ready too.
    fn urgent_stream_create(&self) -> Result<RawStream> {
        self.stream_create()
    }
    /// Destroys a stream from [`Backend::stream_create`]; queued work still completes.
    fn stream_destroy(&self, stream: RawStream) -> Result<()>;
    /// A number that is unique among all streams of this process, also over time.
    fn stream_id(&self, stream: RawStream) -> Result<u64>;
    /// Blocks until all work queued on `stream` is done.
    fn stream_sync(&self, stream: RawStream) -> Result<()>;
    /// Whether all work queued on `stream` is done.
    fn stream_query(&self, stream: RawStream) -> Result<bool>;
    /// Whether `stream` is being captured into a graph.
    fn stream_capturing(&self, stream: RawStream) -> Result<bool>;

    /// Creates an event; only events with `timing` can be measured.
    fn event_create(&self, timing: bool) -> Result<RawEvent>;
    /// Destroys an event; waits already queued on it still hold.
    fn event_destroy(&self, event: RawEvent) -> Result<()>;
    /// Records in `event` all work queued on `stream` so far.
    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Makes work queued on `stream` from now on wait for the work that `event` has recorded now.
    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()>;
    /// Whether the recorded work is done; true for an event never recorded.
    fn event_query(&self, event: RawEvent) -> Result<bool>;
    /// Blocks until the recorded work is done.
    fn event_sync(&self, event: RawEvent) -> Result<()>;
    /// Nanoseconds of device time between two timing events, both done.
    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64>;

    /// Queues a copy from host memory. If that is not page-locked, a driver may block the caller until the
    /// copy is done.
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
    /// Queues a copy to host memory. If that is not page-locked, a driver may block the caller until the copy
    /// is done.
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
    /// Every range in the launch is device memory until it is done, and has the alignment that
    /// `kernels/warpool.h` requires.
    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()>;
    /// Queues a call of `work` on the host, in stream order. `work` must not call the device, nor wait for
    /// other host calls, which may share its thread. If it panics, every later wait for the stream returns an
    /// error. A stream under capture refuses the call, since `work` can run only once; the capture continues.
    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// The same as [`Backend::host_call`] for work that a graph can repeat: it is called in each run of the
    /// graph; runs do not overlap. A device whose graphs cannot contain host calls refuses it under capture.
    #[doc(hidden)]
    fn host_call_in_each_run(
        &self,
        stream: RawStream,
        work: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<()> {
        self.host_call(stream, Box::new(move || work()))
    }

    /// Begins a capture: from now on, work queued on `stream`, and on every stream that waits for an event
    /// recorded in the capture, is recorded instead of run. Calls for other streams, from any thread, are not
    /// restricted. Calls for the streams of captures and for events recorded there, and the ends of captures, are
    /// made one at a time.
    fn capture_begin(&self, stream: RawStream) -> Result<()>;
    /// Ends the capture that began on `stream`, and makes the recorded work ready to launch. `stream` must
    /// wait for all streams that joined the capture. The capture has ended even if this returns an error.
    fn capture_end(&self, stream: RawStream) -> Result<RawGraph>;
    /// Queues one run of the graph on `stream`. Runs of one graph do not overlap.
    ///
    /// # Safety
    /// Whatever the caller guaranteed when the work was captured holds until this run is done.
    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()>;
    /// Destroys a graph; runs already queued still complete.
    fn graph_destroy(&self, graph: RawGraph) -> Result<()>;

    /// Calls `work` once, with the device's context current on this thread, as for launches of its own
    /// kernels. Tools that wrap a device pass the call on. An error means that `work` was not called.
    fn in_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        work();
        Ok(())
    }

    /// Lets the GPUs numbered `peers` read and write all present and future mappings in this range, until the
    /// range is released. The range is from [`Backend::reserve`] and has no mapping yet. A device whose
    /// memory is accessible to all others of its kind does nothing.
    fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
        let _ = (addr, bytes, peers);
        Ok(())
    }

    /// Whether work of `other` can use the memory mapped at `addr`, an address of this device.
    #[doc(hidden)]
    fn is_shared(&self, addr: Addr, other: &DeviceInfo) -> bool {
        let _ = (addr, other);
        false
    }

    /// The work that `event` has recorded, in a form that a device of the same kind can wait for; `None` if
    /// it has recorded nothing. The event must exist until [`Backend::wait_mark`] was called with it.
    #[doc(hidden)]
    fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
        let _ = event;
        Err(Error::invalid(
            "device",
            "no other device can wait for its streams",
        ))
    }

    /// Makes work queued on `stream` from now on wait for recorded work of another device.
    #[doc(hidden)]
    fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
        let _ = (stream, mark);
        Err(Error::invalid(
            "device",
            "its streams cannot wait for another device",
        ))
    }

    /// Reports an event that the device cannot observe itself. Devices ignore it; tools that watch a device
    /// use it, and tools that wrap one pass it on.
    #[doc(hidden)]
    fn observe(&self, note: &Note<'_>) {
        let _ = note;
    }

    /// Whether anything uses the notes passed to [`Backend::observe`]; a pool asks once per stream. A device
    /// that wraps another may have to pass notes on, so only a device that wraps none returns false.
    #[doc(hidden)]
    fn is_watched(&self) -> bool {
        cfg!(feature = "sanitize")
    }
}
