//! Streams, events, copies and launches of the CUDA device.

use std::any::Any;
use std::collections::HashSet;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::context::{Context, Entered};
use super::kernels::Kernels;
use super::memory::Memory;
use crate::device::{
    Addr, Backend, DeviceInfo, DeviceKind, HandleCounts, Launch, Phys, RawEvent, RawGraph,
    RawStream, host_call,
};
use crate::driver::Driver;
use crate::driver::calls::{CAPTURE_RELAXED, CuDevice, CuEvent, CuGraphExec, CuStream};
use crate::driver::result::launch_words;
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// Higher than every priority of a device; the driver uses its nearest one.
const URGENT: c_int = -100;
/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for every context.
const PORTABLE: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: c_uint = 2;

/// One GPU in one context.
pub(super) struct Cuda {
    driver: &'static Driver,
    kernels: Kernels,
    context: Context,
    info: DeviceInfo,
    memory: Memory,
    /// Handles made here and not destroyed.
    streams: Mutex<HashSet<u64>>,
    events: Mutex<HashSet<u64>>,
    graphs: Mutex<HashSet<u64>>,
    /// The first panic of a host call.
    failed: Arc<OnceLock<Error>>,
    /// Page-locked host memory handed out.
    host_bytes: AtomicU64,
}

impl Cuda {
    pub(super) fn new(
        driver: &'static Driver,
        kernels: Kernels,
        context: Context,
        device: CuDevice,
        info: DeviceInfo,
    ) -> Self {
        let memory = Memory::new(driver, device, info.granule);
        Self {
            driver,
            kernels,
            context,
            info,
            memory,
            streams: Mutex::default(),
            events: Mutex::default(),
            graphs: Mutex::default(),
            failed: Arc::default(),
            host_bytes: AtomicU64::new(0),
        }
    }

    fn enter(&self) -> Result<Entered> {
        self.context.enter(self.driver)
    }

    fn make_stream(&self, priority: c_int) -> Result<RawStream> {
        let _context = self.enter()?;
        let (driver, mut stream) = (self.driver, std::ptr::null_mut());
        // SAFETY: the call writes one handle.
        unsafe { driver.cuStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, priority) }
            .ok(driver)?;
        lock(&self.streams).insert(stream as u64);
        Ok(RawStream(stream as u64))
    }

    /// Returns the error of a host call that panicked.
    fn check_host_calls(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

fn stream_of(raw: RawStream) -> CuStream {
    raw.0 as CuStream
}

fn event_of(raw: RawEvent) -> CuEvent {
    raw.0 as CuEvent
}

/// Removes a handle from the set of those made here.
fn forget(set: &Mutex<HashSet<u64>>, what: &'static str, raw: u64) -> Result<()> {
    if lock(set).remove(&raw) {
        return Ok(());
    }
    Err(Error::invalid(
        what,
        format!("{raw:#x} was not made by this device, or was destroyed"),
    ))
}

/// Work of [`Backend::host_call`], passed to the driver's thread.
struct HostCall {
    work: Box<dyn FnOnce() + Send>,
    failed: Arc<OnceLock<Error>>,
}

/// The function that the driver calls: runs the work, and keeps a panic from unwinding into the
/// driver.
unsafe extern "C" fn run_host_call(data: *mut c_void) {
    // SAFETY: `data` is the box that `host_call` passed on; the driver calls once.
    let call = unsafe { Box::from_raw(data.cast::<HostCall>()) };
    let HostCall { work, failed } = *call;
    if let Err(error) = host_call::run(work) {
        // Only the first panic is reported.
        let _ = failed.set(error);
    }
}

impl Cuda {
    /// Loads the kernels, so that no first launch has to wait for queued work.
    pub(super) fn load_kernels(&self) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: the context is current.
        unsafe { (self.kernels.load)() }.map_err(|(kernel, code)| Error::Launch {
            kernel,
            code,
            words: String::from(
                "the kernels cannot be loaded on this GPU; `warpool info` says for which they were built",
            ),
        })
    }
}

// SAFETY: every method makes the driver's call; memory calls are checked against the mapping table
// first.
unsafe impl Backend for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_watched(&self) -> bool {
        false
    }

    fn free_bytes(&self) -> Result<u64> {
        let _context = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two sizes.
        unsafe { self.driver.cuMemGetInfo(&raw mut free, &raw mut total) }.ok(self.driver)?;
        Ok(free as u64)
    }

    fn counts(&self) -> HandleCounts {
        let mut counts = HandleCounts {
            streams: lock(&self.streams).len() as u64,
            events: lock(&self.events).len() as u64,
            graphs: lock(&self.graphs).len() as u64,
            host_bytes: self.host_bytes.load(Ordering::Relaxed),
            ..HandleCounts::default()
        };
        self.memory.count(&mut counts);
        counts
    }

    fn reserve(&self, bytes: u64) -> Result<Addr> {
        let _context = self.enter()?;
        self.memory.reserve(bytes)
    }

    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let _context = self.enter()?;
        self.memory.unreserve(addr, bytes)
    }

    fn create(&self, bytes: u64) -> Result<Phys> {
        let _context = self.enter()?;
        self.memory.create(bytes)
    }

    fn release(&self, phys: Phys) -> Result<()> {
        let _context = self.enter()?;
        self.memory.release(phys)
    }

    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        let _context = self.enter()?;
        self.memory.map(addr, bytes, phys)
    }

    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        let _context = self.enter()?;
        self.memory.unmap(addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Err(Error::invalid(
                "bytes",
                "allocate at least 1 byte of host memory",
            ));
        }
        let _context = self.enter()?;
        let mut addr = std::ptr::null_mut();
        // SAFETY: the call writes one address.
        unsafe {
            self.driver
                .cuMemHostAlloc(&raw mut addr, bytes as usize, PORTABLE)
        }
        .ok(self.driver)?;
        self.host_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(addr as u64)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: the memory is from `host_alloc` and no work uses it, as the caller of the backend
        // guarantees.
        unsafe { self.driver.cuMemFreeHost(addr as *mut c_void) }.ok(self.driver)?;
        self.host_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn stream_create(&self) -> Result<RawStream> {
        self.make_stream(0)
    }

    fn urgent_stream_create(&self) -> Result<RawStream> {
        self.make_stream(URGENT)
    }

    fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // Removed first: once destroyed, the driver may reuse the value for a new stream.
        forget(&self.streams, "stream", stream.0)?;
        // SAFETY: the stream was made here and not destroyed before.
        unsafe { self.driver.cuStreamDestroy(stream_of(stream)) }.ok(self.driver)
    }

    fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let _context = self.enter()?;
        let mut id = 0;
        // SAFETY: the call writes one integer; the stream is live, as its maker guaranteed.
        unsafe { self.driver.cuStreamGetId(stream_of(stream), &raw mut id) }.ok(self.driver)?;
        Ok(id)
    }

    fn stream_sync(&self, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: the stream is live.
        unsafe { self.driver.cuStreamSynchronize(stream_of(stream)) }.ok(self.driver)?;
        self.check_host_calls()
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let _context = self.enter()?;
        // SAFETY: the stream is live.
        let done = unsafe { self.driver.cuStreamQuery(stream_of(stream)) }.ready(self.driver)?;
        if done {
            self.check_host_calls()?;
        }
        Ok(done)
    }

    fn stream_capturing(&self, stream: RawStream) -> Result<bool> {
        let _context = self.enter()?;
        let mut status = 0;
        // SAFETY: the call writes one integer; the stream is live.
        unsafe {
            self.driver
                .cuStreamIsCapturing(stream_of(stream), &raw mut status)
        }
        .ok(self.driver)?;
        Ok(status != 0)
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        let _context = self.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = if timing { 0 } else { NO_TIMING };
        // SAFETY: the call writes one handle.
        unsafe { self.driver.cuEventCreate(&raw mut event, flags) }.ok(self.driver)?;
        lock(&self.events).insert(event as u64);
        Ok(RawEvent(event as u64))
    }

    fn event_destroy(&self, event: RawEvent) -> Result<()> {
        let _context = self.enter()?;
        forget(&self.events, "event", event.0)?;
        // SAFETY: the event was made here and not destroyed before.
        unsafe { self.driver.cuEventDestroy(event_of(event)) }.ok(self.driver)
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: both are live.
        unsafe {
            self.driver
                .cuEventRecord(event_of(event), stream_of(stream))
        }
        .ok(self.driver)
    }

    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: both are live.
        unsafe {
            self.driver
                .cuStreamWaitEvent(stream_of(stream), event_of(event), 0)
        }
        .ok(self.driver)
    }

    fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
        self.memory.share(addr, bytes, peers)
    }

    fn is_shared(&self, addr: Addr, other: &DeviceInfo) -> bool {
        let own = other.ordinal == self.info.ordinal;
        other.kind == DeviceKind::Cuda && (own || self.memory.is_shared(addr, other.ordinal))
    }

    /// The event itself: streams of any context may wait for it.
    fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
        Ok(Some(Box::new(event)))
    }

    fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
        let event = mark
            .downcast_ref::<RawEvent>()
            .ok_or_else(|| Error::invalid("event", "it is of a device of another kind"))?;
        self.event_wait(stream, *event)
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        let _context = self.enter()?;
        // SAFETY: the event is live.
        unsafe { self.driver.cuEventQuery(event_of(event)) }.ready(self.driver)
    }

    fn event_sync(&self, event: RawEvent) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: the event is live.
        unsafe { self.driver.cuEventSynchronize(event_of(event)) }.ok(self.driver)
    }

    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64> {
        let _context = self.enter()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: the call writes one number; both events are live.
        unsafe {
            self.driver
                .cuEventElapsedTime(&raw mut milliseconds, event_of(start), event_of(end))
        }
        .ok(self.driver)?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    unsafe fn copy_in(
        &self,
        dst: Addr,
        src: *const u8,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _context = self.enter()?;
        // SAFETY: the caller guarantees both ranges until the copy is done.
        unsafe {
            self.driver
                .cuMemcpyHtoDAsync(dst, src.cast(), bytes as usize, stream_of(stream))
        }
        .ok(self.driver)
    }

    unsafe fn copy_out(
        &self,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _context = self.enter()?;
        // SAFETY: the caller guarantees both ranges until the copy is done.
        unsafe {
            self.driver
                .cuMemcpyDtoHAsync(dst.cast(), src, bytes as usize, stream_of(stream))
        }
        .ok(self.driver)
    }

    unsafe fn copy_within(
        &self,
        dst: Addr,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _context = self.enter()?;
        // SAFETY: the caller guarantees both ranges until the copy is done.
        unsafe {
            self.driver
                .cuMemcpyDtoDAsync(dst, src, bytes as usize, stream_of(stream))
        }
        .ok(self.driver)
    }

    unsafe fn fill(&self, addr: Addr, byte: u8, bytes: u64, stream: RawStream) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let _context = self.enter()?;
        // SAFETY: the caller guarantees the range until the fill is done.
        unsafe {
            self.driver
                .cuMemsetD8Async(addr, byte, bytes as usize, stream_of(stream))
        }
        .ok(self.driver)
    }

    fn in_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        let _context = self.enter()?;
        work();
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: the caller guarantees the ranges; the stream's context is current.
        let code = unsafe { (self.kernels.run)(launch, stream_of(stream)) };
        if code == 0 {
            return Ok(());
        }
        Err(Error::Launch {
            kernel: launch.name(),
            code,
            words: launch_words(self.driver, code),
        })
    }

    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        let _context = self.enter()?;
        // In a graph, the driver would call it, and free it, in each run.
        if self.stream_capturing(stream)? {
            return Err(crate::device::capture_emulation::unsupported("host_call"));
        }
        let call = Box::into_raw(Box::new(HostCall {
            work,
            failed: Arc::clone(&self.failed),
        }));
        // SAFETY: the driver calls `run_host_call` once with the box, which it then owns.
        let queued = unsafe {
            self.driver
                .cuLaunchHostFunc(stream_of(stream), run_host_call, call.cast())
        };
        if let Err(error) = queued.ok(self.driver) {
            // SAFETY: a call that was not queued is never made, so the box is still ours.
            drop(unsafe { Box::from_raw(call) });
            return Err(error);
        }
        Ok(())
    }

    fn capture_begin(&self, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // Relaxed, because the pool allocates and queries other streams during the capture, on this
        // thread and others. SAFETY: the stream is live.
        unsafe {
            self.driver
                .cuStreamBeginCapture(stream_of(stream), CAPTURE_RELAXED)
        }
        .ok(self.driver)
    }

    fn capture_end(&self, stream: RawStream) -> Result<RawGraph> {
        let _context = self.enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the call writes one handle; the stream is live.
        unsafe {
            self.driver
                .cuStreamEndCapture(stream_of(stream), &raw mut graph)
        }
        .ok(self.driver)?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was made by the capture; the call writes one handle.
        let made = unsafe {
            self.driver
                .cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)
        };
        // SAFETY: made above, and not needed any more: the executable graph is a copy.
        let _ = unsafe { self.driver.cuGraphDestroy(graph) };
        made.ok(self.driver)?;
        lock(&self.graphs).insert(exec as u64);
        Ok(RawGraph(exec as u64))
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()> {
        let _context = self.enter()?;
        // SAFETY: both are live; the caller guarantees the memory that the graph's work uses.
        unsafe {
            self.driver
                .cuGraphLaunch(graph.0 as CuGraphExec, stream_of(stream))
        }
        .ok(self.driver)
    }

    fn graph_destroy(&self, graph: RawGraph) -> Result<()> {
        let _context = self.enter()?;
        forget(&self.graphs, "graph", graph.0)?;
        // SAFETY: the graph was made here and not destroyed before; queued runs complete.
        unsafe { self.driver.cuGraphExecDestroy(graph.0 as CuGraphExec) }.ok(self.driver)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let Ok(_context) = self.enter() else { return };
        // These were leaked by their owners. If a call fails here, they stay until the process
        // ends.
        for graph in lock(&self.graphs).drain() {
            // SAFETY: the graph was made here and not destroyed.
            let _ = unsafe { self.driver.cuGraphExecDestroy(graph as CuGraphExec) };
        }
        for event in lock(&self.events).drain() {
            // SAFETY: the event was made here and not destroyed.
            let _ = unsafe { self.driver.cuEventDestroy(event as CuEvent) };
        }
        for stream in lock(&self.streams).drain() {
            // SAFETY: the stream was made here and not destroyed; its queued work completes.
            let _ = unsafe { self.driver.cuStreamDestroy(stream as CuStream) };
        }
        self.memory.clear();
    }
}
