//! Plays a trace through a pool on a device.
//!
//! Events are played in the trace's order, each on the stream the trace names. Every block is
//! stamped with a pattern of its own by a kernel as soon as it is allocated, and compared with
//! that pattern by a kernel before it is freed, all queued in stream order and without the host
//! waiting; so memory handed out too early shows as corrupt bytes. Where a trace frees a block on
//! another stream than it was allocated on, that stream is first made to wait for the other, as
//! the recorded program must have done.
//!
//! Timed are only the calls to the pool: the host time of `alloc`, and of the free.

use std::time::Instant;

use super::checker::Checker;
use super::latency::Latencies;
use super::report::Report;
use super::trace::{Event, EventKind, Trace};
use crate::device::{Device, DeviceKind, Stream, host_available_bytes};
use crate::error::{Bytes, Error, Result};
use crate::pool::{Block, Pool, PoolConfig};

/// How much of each block is stamped and verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verify {
    /// Every byte.
    Full,
    /// The first and the last [`EDGE_BYTES`](super::EDGE_BYTES) bytes.
    Edges,
    /// Nothing.
    Off,
}

/// How a trace is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// How much is verified. Default: everything.
    pub verify: Verify,
    /// Most physical bytes the pool may hold. Default: as much as the device gives.
    pub cap: Option<u64>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            verify: Verify::Full,
            cap: None,
        }
    }
}

impl ReplayOptions {
    /// Sets how much is verified.
    #[must_use]
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the most physical bytes the pool may hold.
    #[must_use]
    pub fn cap(mut self, bytes: u64) -> Self {
        self.cap = Some(bytes);
        self
    }
}

/// Events between two calls of the progress callback.
const PROGRESS_EVERY: usize = 1024;

/// Plays `trace` through a new pool on `device`; `progress` is given the number of events played
/// so far, now and then.
///
/// Stops at the first request that does not fit, which is [`Report::failure`]. Whatever happens,
/// every block is freed, and the pool and the streams are gone, when this returns.
///
/// # Errors
/// [`Error::Invalid`] if [`Verify::Full`] on the host device would write more than the machine's
/// free memory; else what the device said.
pub fn replay(
    trace: &Trace,
    device: &Device,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    check_memory(trace, device, options)?;
    let mut player = Player::new(trace, device, options)?;
    let started = Instant::now();
    let failure = match player.play(progress) {
        Ok(()) => None,
        Err(error) if error.is_out_of_memory() => Some(error),
        Err(error) => return Err(error),
    };
    let stats = player.pool.stats();
    player.free_the_rest()?;
    let wall = started.elapsed();
    let findings = player.checker.findings()?;
    Ok(Report {
        trace: trace.name.clone(),
        device: device_name(device),
        verify: options.verify,
        events: player.played,
        streams: trace.streams.len() as u64,
        peak_live_bytes: trace.peak_live_bytes,
        peak_reserved_bytes: stats.reserved.peak,
        largest_hole_bytes: stats.largest_hole,
        alloc_ns_p50: player.allocs.percentile(50),
        alloc_ns_p99: player.allocs.percentile(99),
        free_ns_p50: player.frees.percentile(50),
        free_ns_p99: player.frees.percentile(99),
        verified_bytes: findings.verified_bytes,
        corrupt_bytes: findings.corrupt_bytes,
        first_corrupt: (findings.corrupt_bytes > 0).then_some(findings.first_corrupt),
        failed_allocs: u64::from(failure.is_some()),
        bytes_moved: stats.bytes_moved,
        compactions: stats.compactions,
        wall,
        failure,
    })
}

/// A device as reports name it: `cuda:0 NVIDIA H200`, `host memory, …`.
#[must_use]
pub fn device_name(device: &Device) -> String {
    let info = device.info();
    match info.kind {
        DeviceKind::Cuda => format!("cuda:{} {}", info.ordinal, info.name),
        _ => info.name.clone(),
    }
}

/// On the host device full verification writes every byte of the trace's peak into real memory.
fn check_memory(trace: &Trace, device: &Device, options: &ReplayOptions) -> Result<()> {
    if options.verify != Verify::Full || device.info().kind == DeviceKind::Cuda {
        return Ok(());
    }
    let peak = trace.peak_live_bytes;
    let written = options.cap.map_or(peak, |cap| cap.min(peak));
    match host_available_bytes() {
        Some(free) if written > free => Err(Error::invalid("verify full", refusal(trace, free))),
        _ => Ok(()),
    }
}

fn refusal(trace: &Trace, free: u64) -> String {
    let (name, peak, free) = (&trace.name, Bytes(trace.peak_live_bytes), Bytes(free));
    format!(
        "it writes every byte of {name}, which has {peak} live at its peak, and this machine has \
         {free} of memory free; verify only the edges of each block, or use a GPU"
    )
}

/// A block and the stream it was allocated on.
struct Live {
    block: Block,
    stream: u16,
}

struct Player<'t> {
    trace: &'t Trace,
    /// By block number.
    live: Vec<Option<Live>>,
    allocs: Latencies,
    frees: Latencies,
    played: u64,
    checker: Checker,
    pool: Pool,
    streams: Vec<Stream>,
}

impl<'t> Player<'t> {
    fn new(trace: &'t Trace, device: &Device, options: &ReplayOptions) -> Result<Self> {
        let mut config = PoolConfig::default();
        if let Some(cap) = options.cap {
            config = config.limit(cap);
        }
        let streams = trace
            .streams
            .iter()
            .map(|_| device.stream())
            .collect::<Result<Vec<_>>>()?;
        let mut live = Vec::new();
        live.resize_with(trace.blocks as usize, || None);
        let blocks = trace.blocks as usize;
        Ok(Self {
            trace,
            live,
            allocs: Latencies::with_capacity(blocks),
            frees: Latencies::with_capacity(blocks),
            played: 0,
            checker: Checker::new(device, options.verify, streams.len())?,
            pool: Pool::new(device, config)?,
            streams,
        })
    }

    fn play(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        for events in self.trace.events.chunks(PROGRESS_EVERY) {
            progress(self.played);
            for event in events {
                match event.kind {
                    EventKind::Alloc => self.alloc(event)?,
                    EventKind::Free => self.free(event.block, event.stream)?,
                }
                self.played += 1;
            }
        }
        progress(self.played);
        Ok(())
    }

    fn alloc(&mut self, event: &Event) -> Result<()> {
        let stream = &self.streams[usize::from(event.stream)];
        let start = Instant::now();
        let block = self.pool.alloc(stream, event.bytes);
        let took = start.elapsed();
        let block = block?;
        self.allocs.record(took);
        // SAFETY: the block has these bytes, and is freed in stream order behind this work.
        unsafe {
            self.checker
                .stamp(stream, block.addr(), event.bytes, event.block)?
        };
        self.live[event.block as usize] = Some(Live {
            block,
            stream: event.stream,
        });
        Ok(())
    }

    fn free(&mut self, number: u32, on: u16) -> Result<()> {
        let Some(Live {
            block,
            stream: from,
        }) = self.live[number as usize].take()
        else {
            return Ok(());
        };
        let stream = &self.streams[usize::from(on)];
        if from != on {
            stream.wait_stream(&self.streams[usize::from(from)])?;
        }
        // SAFETY: the block is live, and is freed in stream order behind this work.
        unsafe {
            self.checker
                .verify((stream, on), block.addr(), block.bytes(), number)?
        };
        if from == on {
            let start = Instant::now();
            drop(block);
            self.frees.record(start.elapsed());
        } else {
            let start = Instant::now();
            let freed = block.free_on(stream);
            self.frees.record(start.elapsed());
            freed?;
        }
        Ok(())
    }

    /// Verifies and frees what the trace left live, on the streams it was allocated on, and waits
    /// for everything.
    fn free_the_rest(&mut self) -> Result<()> {
        for number in 0..self.trace.blocks {
            if let Some(stream) = self.live[number as usize].as_ref().map(|live| live.stream) {
                self.free(number, stream)?;
            }
        }
        self.streams.iter().try_for_each(Stream::synchronize)
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        self.live.clear();
        for stream in &self.streams {
            // Work still queued uses the memory that is given back next. A stream that cannot be
            // waited for has failed, and runs nothing more.
            let _ = stream.synchronize();
        }
    }
}
