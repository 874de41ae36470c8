//! The fake driver's streams, events, captures, copies and host calls.

use std::ffi::{c_int, c_uint, c_void};

use super::super::calls::{CAPTURE_RELAXED, CuEvent, CuGraph, CuGraphExec, CuHostFn, CuStream};
use super::super::code::NOT_READY;
use super::gpu::{INVALID_VALUE, answer, in_context};
use crate::device::{RawEvent, RawGraph, RawStream};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

fn of(stream: CuStream) -> RawStream {
    RawStream(stream as u64)
}

/// The answer to a query.
fn ready(done: bool) -> Result<()> {
    if done {
        return Ok(());
    }
    Err(Error::Driver {
        call: "query",
        code: NOT_READY,
        words: String::new(),
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CuStream,
    _flags: c_uint,
    _priority: c_int,
) -> c_int {
    in_context(|gpu| {
        let made = gpu.host.stream_create()?;
        lock(&gpu.streams).insert(made.0);
        // SAFETY: the caller passes space for one handle.
        unsafe { stream.write(made.0 as CuStream) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamDestroy(stream: CuStream) -> c_int {
    answer(|gpu| {
        if !gpu.host.stream_capturing(of(stream))? {
            let end = gpu.host.event_create(false)?;
            gpu.host.event_record(end, of(stream))?;
            lock(&gpu.ends).push(end);
        }
        lock(&gpu.streams).remove(&of(stream).0);
        gpu.host.stream_destroy(of(stream))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamGetId(stream: CuStream, id: *mut u64) -> c_int {
    answer(|gpu| {
        let its = gpu.host.stream_id(of(stream))?;
        // SAFETY: the caller passes space for one integer.
        unsafe { id.write(its) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamSynchronize(stream: CuStream) -> c_int {
    if stream.is_null() {
        // Nothing is queued on the default stream here.
        return 0;
    }
    answer(|gpu| gpu.host.stream_sync(of(stream)))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamQuery(stream: CuStream) -> c_int {
    answer(|gpu| ready(gpu.host.stream_query(of(stream))?))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamIsCapturing(stream: CuStream, status: *mut c_int) -> c_int {
    answer(|gpu| {
        let capturing = gpu.host.stream_capturing(of(stream))?;
        // SAFETY: the caller passes space for one integer.
        unsafe { status.write(c_int::from(capturing)) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamBeginCapture(stream: CuStream, mode: c_int) -> c_int {
    if mode != CAPTURE_RELAXED {
        return INVALID_VALUE;
    }
    in_context(|gpu| {
        gpu.captures("cuStreamBeginCapture");
        gpu.host.capture_begin(of(stream))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) -> c_int {
    answer(|gpu| {
        gpu.captures("cuStreamEndCapture");
        let made = gpu.host.capture_end(of(stream))?;
        lock(&gpu.graphs).insert(made.0, false);
        // SAFETY: the caller passes space for one handle.
        unsafe { graph.write(made.0 as CuGraph) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGraphInstantiateWithFlags(
    exec: *mut CuGraphExec,
    graph: CuGraph,
    _flags: u64,
) -> c_int {
    in_context(|gpu| {
        let mut graphs = lock(&gpu.graphs);
        let gone = || Error::invalid("graph", "there is none of this handle");
        *graphs.get_mut(&(graph as u64)).ok_or_else(gone)? = true;
        // SAFETY: the caller passes space for one handle.
        unsafe { exec.write(graph) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGraphDestroy(graph: CuGraph) -> c_int {
    answer(|gpu| match lock(&gpu.graphs).remove(&(graph as u64)) {
        // The executable graph is destroyed separately.
        Some(true) => Ok(()),
        Some(false) => gpu.host.graph_destroy(RawGraph(graph as u64)),
        None => Err(Error::invalid("graph", "there is none of this handle")),
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) -> c_int {
    answer(|gpu| {
        gpu.late("cuGraphLaunch", stream);
        // SAFETY: the caller guarantees the memory that the graph uses.
        unsafe { gpu.host.graph_launch(RawGraph(exec as u64), of(stream)) }
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGraphExecDestroy(exec: CuGraphExec) -> c_int {
    answer(|gpu| gpu.host.graph_destroy(RawGraph(exec as u64)))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamWaitEvent(
    stream: CuStream,
    event: CuEvent,
    _flags: c_uint,
) -> c_int {
    answer(|gpu| {
        gpu.uses_stream("cuStreamWaitEvent", stream);
        gpu.uses_event("cuStreamWaitEvent", event);
        gpu.host.event_wait(of(stream), RawEvent(event as u64))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventCreate(event: *mut CuEvent, flags: c_uint) -> c_int {
    in_context(|gpu| {
        // 2 is CU_EVENT_DISABLE_TIMING.
        let made = gpu.host.event_create(flags & 2 == 0)?;
        // SAFETY: the caller passes space for one handle.
        unsafe { event.write(made.0 as CuEvent) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventDestroy(event: CuEvent) -> c_int {
    answer(|gpu| {
        gpu.uses_event("cuEventDestroy", event);
        gpu.host.event_destroy(RawEvent(event as u64))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventRecord(event: CuEvent, stream: CuStream) -> c_int {
    answer(|gpu| {
        gpu.uses_stream("cuEventRecord", stream);
        gpu.uses_event("cuEventRecord", event);
        gpu.host.event_record(RawEvent(event as u64), of(stream))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventQuery(event: CuEvent) -> c_int {
    answer(|gpu| ready(gpu.host.event_query(RawEvent(event as u64))?))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventSynchronize(event: CuEvent) -> c_int {
    answer(|gpu| gpu.host.event_sync(RawEvent(event as u64)))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CuEvent,
    end: CuEvent,
) -> c_int {
    answer(|gpu| {
        let ns = gpu
            .host
            .event_elapsed_ns(RawEvent(start as u64), RawEvent(end as u64))?;
        // SAFETY: the caller passes space for one number.
        unsafe { milliseconds.write((ns / 1e6) as f32) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemcpyHtoDAsync(
    dst: u64,
    src: *const c_void,
    bytes: usize,
    stream: CuStream,
) -> c_int {
    answer(|gpu| {
        gpu.late("cuMemcpyHtoDAsync", stream);
        if gpu.is_pinned(src as u64) || gpu.host.stream_capturing(of(stream))? {
            // SAFETY: the caller guarantees both ranges until the copy is done, or as long as the graph lives.
            return unsafe { gpu.host.copy_in(dst, src.cast(), bytes as u64, of(stream)) };
        }
        // Memory that is not page-locked is read before the call returns.
        // SAFETY: the caller guarantees the source.
        let staged = unsafe { std::slice::from_raw_parts(src.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: the caller guarantees the destination; the host call after the copy keeps the source
        // until it is done.
        unsafe {
            gpu.host
                .copy_in(dst, staged.as_ptr(), bytes as u64, of(stream))?
        };
        gpu.host
            .host_call(of(stream), Box::new(move || drop(staged)))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemcpyDtoHAsync(
    dst: *mut c_void,
    src: u64,
    bytes: usize,
    stream: CuStream,
) -> c_int {
    answer(|gpu| {
        gpu.late("cuMemcpyDtoHAsync", stream);
        // SAFETY: the caller guarantees both ranges.
        unsafe { gpu.host.copy_out(dst.cast(), src, bytes as u64, of(stream)) }
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemcpyDtoDAsync(
    dst: u64,
    src: u64,
    bytes: usize,
    stream: CuStream,
) -> c_int {
    answer(|gpu| {
        gpu.late("cuMemcpyDtoDAsync", stream);
        // SAFETY: the caller guarantees both ranges.
        unsafe { gpu.host.copy_within(dst, src, bytes as u64, of(stream)) }
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemsetD8Async(
    dst: u64,
    byte: u8,
    bytes: usize,
    stream: CuStream,
) -> c_int {
    answer(|gpu| {
        gpu.late("cuMemsetD8Async", stream);
        // SAFETY: the caller guarantees the range.
        unsafe { gpu.host.fill(dst, byte, bytes as u64, of(stream)) }
    })
}

/// A host call and its data, on their way to the stream's thread.
struct Call(CuHostFn, *mut c_void);

// SAFETY: the caller that queues a host call passes its data to the thread that runs it.
unsafe impl Send for Call {}

impl Call {
    fn make(self) {
        // SAFETY: called once, with the data it was queued with.
        unsafe { self.0(self.1) };
    }
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuLaunchHostFunc(
    stream: CuStream,
    work: CuHostFn,
    data: *mut c_void,
) -> c_int {
    let call = Call(work, data);
    answer(|gpu| {
        gpu.uses_stream("cuLaunchHostFunc", stream);
        gpu.host
            .host_call(of(stream), Box::new(move || call.make()))
    })
}
