//! The host device: real memory, real mappings, one thread per stream.
//!
//! It replaces a GPU on a machine without one. Its addresses are ordinary addresses. The operating
//! system reserves, maps and remaps them, so a use of unmapped memory faults here as on a GPU.
//! Kernels are host builds of the same sources.
//!
//! - `memory`: one sparse file, whose ranges are physical handles, mapped into reserved addresses;
//! - `queue`: the threads of streams, and the places in their queues that events refer to.

mod floats;
mod memory;
mod queue;

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use self::queue::{Op, Place, StreamQueue};

pub(super) use self::memory::{GRANULE, Memory, exhausted};
pub(super) use self::queue::{CapturedOp, Transfer, run_launch};
use super::capture_emulation::{self, Branch, CapturedMark};
use super::handle_table::Table;
use super::pages::Pages;
use super::{
    Addr, Backend, DeviceInfo, DeviceKind, HandleCounts, Launch, Phys, RawEvent, RawGraph,
    RawStream, host_call,
};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// Least default capacity: the memory of a large GPU. Memory that is never written costs nothing.
const DEFAULT_CAPACITY: u64 = 64 << 30;

/// Most streams at once; each is a thread. If a new thread has no mappings left for its stack, Rust aborts the
/// process instead of returning an error. Linux allows a process about 65,000 mappings, and a thread takes four.
const MOST_STREAMS: u64 = 4096;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// Bytes of real memory that can be written now without swapping, by the system's estimate and the
/// memory limit of the process's control group. `None` if the system reports no estimate.
#[must_use]
pub fn host_available_bytes() -> Option<u64> {
    let available = meminfo("MemAvailable:")?;
    Some(group_available_bytes().map_or(available, |group| group.min(available)))
}

/// Bytes left under the limit of the control group (version 2); `None` without a limit. Inactive
/// file pages count as free, since the kernel drops them before the limit is reached.
fn group_available_bytes() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let idle_files = read("memory.stat")
        .and_then(|text| figure(&text, "inactive_file"))
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(idle_files)))
}

/// The number after `name` at the start of a line.
fn figure(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines
        .find_map(|mut words| (words.next() == Some(name)).then(|| words.next()))??
        .parse()
        .ok()
}

/// A figure of `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    figure(&text, name)?.checked_mul(1024)
}

/// The processor's name, as the system reports it.
fn processor_name() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| String::from(std::env::consts::ARCH))
}

/// Opens a device with `capacity` physical bytes; for `None`, 64 GiB or the machine's memory,
/// whichever is larger.
pub(super) fn open(capacity: Option<u64>) -> Result<Arc<dyn Backend>> {
    // SAFETY: the call takes nothing.
    if unsafe { abi::wp_host_abi() } != abi::WP_ABI_VERSION {
        return Err(Error::Unavailable {
            missing: String::from("the host kernels of this build have another version"),
            hint: String::from("build again from nothing: cargo clean -p warpool"),
        });
    }
    let wanted = match capacity {
        Some(bytes) => bytes,
        None => meminfo("MemTotal:").unwrap_or(0).max(DEFAULT_CAPACITY),
    };
    let capacity = wanted - wanted % GRANULE;
    if capacity == 0 || i64::try_from(capacity).is_err() {
        let why =
            format!("{wanted} bytes are less than one granule of {GRANULE}, or beyond any file");
        return Err(Error::invalid("capacity", why));
    }
    let name = format!("host memory, {}", processor_name());
    let mut info = DeviceInfo::new(DeviceKind::Host, 0, name, capacity, GRANULE);
    info.processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    Ok(Arc::new(Host {
        pages: Pages::default(),
        info,
        memory: Arc::new(Memory::new(capacity)?),
        streams: Table::new(),
        events: Table::new(),
        graphs: Table::new(),
    }))
}

/// An event: what it has recorded.
struct HostEvent {
    timing: bool,
    marked: Mutex<Marked>,
}

/// What an event has recorded.
enum Marked {
    Nothing,
    /// A place in a stream, and for a timing event the time at which the stream reached it.
    Place(Place, Option<Arc<OnceLock<Instant>>>),
    /// A point of a capture.
    Capture(CapturedMark<CapturedOp>),
}

struct Host {
    pages: Pages,
    info: DeviceInfo,
    memory: Arc<Memory>,
    streams: Table<StreamQueue>,
    events: Table<HostEvent>,
    graphs: Table<Vec<CapturedOp>>,
}

impl Host {
    fn live_stream(&self, stream: RawStream) -> Result<Arc<StreamQueue>> {
        self.streams
            .get(stream.0)
            .ok_or_else(|| no_such("stream", stream.0))
    }

    fn live_event(&self, event: RawEvent) -> Result<Arc<HostEvent>> {
        self.events
            .get(event.0)
            .ok_or_else(|| no_such("event", event.0))
    }

    /// Queues work that a capture can contain, or records it if the stream is under capture.
    fn give(&self, op: CapturedOp, stream: RawStream) -> Result<()> {
        let stream = self.live_stream(stream)?;
        if let Some(branch) = stream.branch() {
            branch.push(op);
            return Ok(());
        }
        stream.push(op.into()).map(|_| ())
    }

    fn transfer(&self, transfer: Transfer, stream: RawStream) -> Result<()> {
        self.give(CapturedOp::Transfer(transfer), stream)
    }

    /// The stream, if it is not under capture; otherwise the call invalidates the capture and is an
    /// error.
    fn running_stream(&self, call: &'static str, stream: RawStream) -> Result<Arc<StreamQueue>> {
        let stream = self.live_stream(stream)?;
        match stream.branch() {
            None => Ok(stream),
            Some(branch) => {
                branch.break_off();
                Err(capture_emulation::unsupported(call))
            }
        }
    }

    /// The place that the event has recorded, if it was ever recorded.
    fn place_of(&self, call: &'static str, event: RawEvent) -> Result<Option<Place>> {
        let event = self.live_event(event)?;
        let marked = lock(&event.marked);
        match &*marked {
            Marked::Nothing => Ok(None),
            Marked::Place(place, _) => Ok(Some(place.clone())),
            Marked::Capture(_) => Err(capture_emulation::captured_event(call)),
        }
    }

    /// The time at which a timing event's place was reached.
    fn time_of(&self, event: RawEvent) -> Result<Instant> {
        let event = self.live_event(event)?;
        if !event.timing {
            return Err(Error::invalid("event", "it was made without timing"));
        }
        let marked = lock(&event.marked);
        let Marked::Place(_, time) = &*marked else {
            return Err(Error::invalid("event", "it was never recorded"));
        };
        time.as_ref()
            .and_then(|time| time.get().copied())
            .ok_or_else(|| Error::Driver {
                call: "event_elapsed",
                code: NOT_READY,
                words: String::from("CUDA_ERROR_NOT_READY: the work before the event is not done"),
            })
    }
}

pub(super) fn no_such(what: &'static str, raw: u64) -> Error {
    Error::invalid(
        what,
        format!("{raw:#x} is not of this device, or was destroyed"),
    )
}

fn full(what: &'static str) -> Error {
    Error::invalid(what, "four billion exist already: destroy some")
}

// SAFETY: the mapping table checks every memory call; a stream's thread runs its queue in order.
unsafe impl Backend for Host {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_watched(&self) -> bool {
        false
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.memory.free_bytes())
    }

    fn counts(&self) -> HandleCounts {
        let mut counts = HandleCounts {
            streams: self.streams.len(),
            events: self.events.len(),
            graphs: self.graphs.len(),
            host_bytes: self.pages.bytes(),
            ..HandleCounts::default()
        };
        self.memory.count(&mut counts);
        counts
    }

    fn reserve(&self, bytes: u64) -> Result<Addr> {
        self.memory.reserve(bytes)
    }

    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        self.memory.unreserve(addr, bytes)
    }

    fn create(&self, bytes: u64) -> Result<Phys> {
        self.memory.create(bytes)
    }

    fn release(&self, phys: Phys) -> Result<()> {
        self.memory.release(phys)
    }

    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        self.memory.map(addr, bytes, phys)
    }

    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        self.memory.unmap(addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        self.pages.alloc(bytes)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.pages.free(addr, bytes)
    }

    fn stream_create(&self) -> Result<RawStream> {
        if self.streams.len() >= MOST_STREAMS {
            let why = format!("the host device runs a thread for each of {MOST_STREAMS} already");
            return Err(Error::invalid("stream", why));
        }
        let stream = StreamQueue::start(Arc::clone(&self.memory))?;
        let Some(raw) = self.streams.insert(Arc::clone(&stream)) else {
            stream.close();
            return Err(full("stream"));
        };
        Ok(RawStream(raw))
    }

    fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        let gone = self
            .streams
            .remove(stream.0)
            .ok_or_else(|| no_such("stream", stream.0))?;
        gone.close();
        Ok(())
    }

    fn stream_id(&self, stream: RawStream) -> Result<u64> {
        Ok(self.live_stream(stream)?.id)
    }

    fn stream_sync(&self, stream: RawStream) -> Result<()> {
        self.running_stream("stream_sync", stream)?.here().sync()
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        self.running_stream("stream_query", stream)?.here().passed()
    }

    fn stream_capturing(&self, stream: RawStream) -> Result<bool> {
        Ok(self.live_stream(stream)?.branch().is_some())
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        let event = Arc::new(HostEvent {
            timing,
            marked: Mutex::new(Marked::Nothing),
        });
        self.events
            .insert(event)
            .map(RawEvent)
            .ok_or_else(|| full("event"))
    }

    fn event_destroy(&self, event: RawEvent) -> Result<()> {
        self.events
            .remove(event.0)
            .map(|_| ())
            .ok_or_else(|| no_such("event", event.0))
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let event = self.live_event(event)?;
        let stream = self.live_stream(stream)?;
        // Not under the event's lock: a host call that the stream has to run first may ask about the event.
        let mark = if let Some(branch) = stream.branch() {
            Marked::Capture(branch.mark())
        } else if event.timing {
            let time = Arc::new(OnceLock::new());
            let number = stream.push(Op::Stamp(Arc::clone(&time)))?;
            Marked::Place(stream.place(number), Some(time))
        } else {
            Marked::Place(stream.here(), None)
        };
        *lock(&event.marked) = mark;
        Ok(())
    }

    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let stream = self.live_stream(stream)?;
        let event = self.live_event(event)?;
        let marked = lock(&event.marked);
        match (stream.branch(), &*marked) {
            (_, Marked::Nothing) => Ok(()),
            (Some(branch), Marked::Capture(mark)) => branch.wait(mark),
            (Some(branch), Marked::Place(..)) => Err(branch.isolated()),
            (None, Marked::Place(place, _)) if place.orders(&stream) => Ok(()),
            (None, Marked::Place(place, _)) => {
                let place = place.clone();
                drop(marked);
                stream.push(Op::Wait(place)).map(|_| ())
            }
            (None, Marked::Capture(mark)) => match mark.join() {
                Some(branch) => {
                    stream.set_branch(Some(branch));
                    Ok(())
                }
                None => Err(capture_emulation::captured_event("event_wait")),
            },
        }
    }

    /// All host devices share one address space.
    fn is_shared(&self, _: Addr, other: &DeviceInfo) -> bool {
        other.kind == DeviceKind::Host
    }

    fn mark_of(&self, event: RawEvent) -> Result<Option<Box<dyn Any>>> {
        let place = self.place_of("mark_of", event)?;
        Ok(place.map(|place| Box::new(place) as Box<dyn Any>))
    }

    fn wait_mark(&self, stream: RawStream, mark: &dyn Any) -> Result<()> {
        let stream = self.running_stream("wait_mark", stream)?;
        let place = mark
            .downcast_ref::<Place>()
            .ok_or_else(|| Error::invalid("event", "it is of a device of another kind"))?;
        stream.push(Op::Wait(place.clone())).map(|_| ())
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        self.place_of("event_query", event)?
            .map_or(Ok(true), |place| place.passed())
    }

    fn event_sync(&self, event: RawEvent) -> Result<()> {
        self.place_of("event_sync", event)?
            .map_or(Ok(()), |place| place.sync())
    }

    fn event_elapsed_ns(&self, start: RawEvent, end: RawEvent) -> Result<f64> {
        let (start, end) = (self.time_of(start)?, self.time_of(end)?);
        let forward = end.saturating_duration_since(start).as_nanos() as f64;
        Ok(forward - start.saturating_duration_since(end).as_nanos() as f64)
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
        self.transfer(
            Transfer::Copy {
                dst,
                src: src as u64,
                bytes,
            },
            stream,
        )
    }

    unsafe fn copy_out(
        &self,
        dst: *mut u8,
        src: Addr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        host_call::may_wait()?;
        self.transfer(
            Transfer::Copy {
                dst: dst as u64,
                src,
                bytes,
            },
            stream,
        )
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
        self.give(CapturedOp::Launch(*launch), stream)
    }

    fn host_call(&self, stream: RawStream, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        let stream = self.live_stream(stream)?;
        if stream.branch().is_some() {
            return Err(capture_emulation::unsupported("host_call"));
        }
        stream.push(Op::Call(work)).map(|_| ())
    }

    fn host_call_in_each_run(
        &self,
        stream: RawStream,
        work: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<()> {
        self.give(CapturedOp::Call(work), stream)
    }

    fn capture_begin(&self, stream: RawStream) -> Result<()> {
        let stream = self.live_stream(stream)?;
        if stream.branch().is_some() {
            return Err(capture_emulation::unsupported("capture_begin"));
        }
        stream.set_branch(Some(Branch::begin()));
        Ok(())
    }

    fn capture_end(&self, stream: RawStream) -> Result<RawGraph> {
        let stream = self.live_stream(stream)?;
        let Some(branch) = stream.branch() else {
            return Err(capture_emulation::not_capturing());
        };
        let ops = branch.end();
        if !branch.is_open() {
            stream.set_branch(None);
        }
        let graph = self.graphs.insert(Arc::new(ops?));
        graph.map(RawGraph).ok_or_else(|| full("graph"))
    }

    unsafe fn graph_launch(&self, graph: RawGraph, stream: RawStream) -> Result<()> {
        let ops = self.graphs.get(graph.0);
        let ops = ops.ok_or_else(|| no_such("graph", graph.0))?;
        let stream = self.running_stream("graph_launch", stream)?;
        stream.push(Op::Graph(ops)).map(|_| ())
    }

    fn graph_destroy(&self, graph: RawGraph) -> Result<()> {
        let gone = self.graphs.remove(graph.0);
        gone.map(|_| ()).ok_or_else(|| no_such("graph", graph.0))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for stream in self.streams.drain() {
            stream.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_by_their_whole_name() {
        let text = "MemAvailableSoon: 7 kB\nMemAvailable:   1234 kB\ninactive_file 99\nempty\n";
        assert_eq!(figure(text, "MemAvailable:"), Some(1234));
        assert_eq!(figure(text, "inactive_file"), Some(99));
        assert_eq!(
            (figure(text, "empty"), figure(text, "MemAvail")),
            (None, None)
        );
    }

    #[test]
    fn the_machine_has_memory_and_no_more_is_available_than_there_is() {
        let (total, available) = (
            meminfo("MemTotal:").unwrap(),
            host_available_bytes().unwrap(),
        );
        assert!(
            0 < available && available <= total,
            "{available} of {total}"
        );
        let device = open(None).unwrap();
        assert!(device.info().total_bytes >= DEFAULT_CAPACITY.max(total - total % GRANULE));
    }

    #[test]
    fn a_host_call_copies_no_memory_of_the_host_which_it_could_not_wait_for() {
        let host = open(None).unwrap();
        let device = crate::device::Device::from_backend(Arc::clone(&host));
        let pool = crate::pool::Pool::new(&device, crate::pool::PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let mut buffer = pool.alloc_typed::<u64>(&stream, 64).unwrap();
        buffer.upload(&[7; 64]).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let call = Box::new(move || {
            let read = buffer.download().map(|_| ());
            let written = buffer.upload(&[9; 64]);
            tell.send((read, written, buffer)).unwrap();
        });
        host.host_call(stream.raw(), call).unwrap();
        let (read, written, buffer) = told.recv().unwrap();
        for refused in [read, written] {
            let words = refused.unwrap_err().to_string();
            assert!(words.contains("host call"), "{words}");
        }
        assert_eq!(buffer.download().unwrap(), [7; 64]);
    }
}
