//! Plays a trace through a pool on a device.
//!
//! Events are played in the trace's order, each on the stream that the trace names. A kernel stamps every
//! block with its own pattern as soon as it is allocated, and another compares it with that pattern before it
//! is freed. Both are queued in stream order and the host does not wait, so memory that is reused too early
//! shows as corrupt bytes. If a trace frees a block on another stream than it was allocated on, that stream
//! first waits for the other, as the recorded program must have done.
//!
//! Only calls to the pool are timed: the host time of `alloc` and of the free.
//!
//! With [`ReplayOptions::versus`] the same events are then played through another allocator on the same
//! device, with the same verification.

use std::time::{Duration, Instant};

use super::checker::{Checker, Findings};
use super::latency::Latencies;
use super::mixed::{Mixed, Share};
use super::progress::Marks;
use super::report::Report;
use super::subject::Subject;
use super::trace::{Event, EventKind, Trace};
use super::verify::Verify;
use super::versus::Versus;
use crate::device::{Device, DeviceKind, Stream, host_available_bytes};
use crate::error::{Bytes, Error, Result};
use crate::interop::CudaAsync;
use crate::pool::{LEAST_SLACK, Pool, PoolConfig, PoolStats};

/// Another allocator that a trace is played through, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// The CUDA driver's own pool, `cudaMallocAsync`; needs a GPU.
    CudaAsync,
}

impl Peer {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CudaAsync => "cuda-async",
        }
    }
}

/// The options of a replay.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// How much is verified. Default: everything.
    pub verify: Verify,
    /// Most physical bytes that the pool may hold. Default: no limit but the device's memory.
    pub cap: Option<u64>,
    /// Another allocator that plays the same trace afterwards, under the same cap. Default: none.
    pub versus: Option<Peer>,
    /// The fraction of blocks that may be moved; they are chosen at random. Default: none.
    pub movable: Share,
    /// Seed of that choice. Default: 1.
    pub seed: u64,
    /// Whether the pool may map handles elsewhere, see [`PoolConfig::remap`]. Default: yes.
    pub remap: bool,
    /// How far the pool grows before it maps handles elsewhere, see [`PoolConfig::slack`]. Default: 0.018,
    /// also on a GPU, whose pools have more to spare otherwise.
    pub slack: Option<f64>,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            verify: Verify::Full,
            cap: None,
            versus: None,
            movable: Share::NONE,
            seed: 1,
            remap: true,
            slack: None,
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

    /// Sets the most physical bytes that the pool may hold.
    #[must_use]
    pub fn cap(mut self, bytes: u64) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Sets the fraction of blocks that may be moved; `seed` determines which.
    #[must_use]
    pub fn movable(mut self, share: Share, seed: u64) -> Self {
        self.movable = share;
        self.seed = seed;
        self
    }

    /// Sets whether the pool may map handles elsewhere.
    #[must_use]
    pub fn remap(mut self, on: bool) -> Self {
        self.remap = on;
        self
    }

    /// Sets how far the pool grows before it maps handles elsewhere, as a fraction of the live peak.
    #[must_use]
    pub fn slack(mut self, part: f64) -> Self {
        self.slack = Some(part);
        self
    }

    /// Sets another allocator that plays the same trace afterwards.
    #[must_use]
    pub fn versus(mut self, peer: Peer) -> Self {
        self.versus = Some(peer);
        self
    }
}

/// Events between two calls of the progress callback.
const PROGRESS_EVERY: usize = 1024;

/// Plays `trace` through a new pool on `device`. Calls `progress` from time to time with the number of events
/// whose work the device has done. With a peer the count continues into the second pass.
///
/// Stops at the first request that does not fit; the error is [`Report::failure`]. In every case all blocks
/// are freed, and the pool and the streams are dropped, when this returns. A peer plays after the pool is
/// dropped, so that each has the whole device.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::observe::{ReplayOptions, Trace, replay};
///
/// let log = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,512,0\n";
/// let trace = Trace::read_from("log", log.as_bytes(), u64::MAX)?;
/// let report = replay(&trace, &device, &ReplayOptions::default(), &mut |_| ())?;
/// assert!(report.passed());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if [`Verify::Full`] on the host device would write more than the machine's free memory;
/// [`Error::Unavailable`], before anything is played, if the peer does not exist on `device`; otherwise any
/// error of the device, but for one in the peer's pass, which is [`Report::failure`] too.
pub fn replay(
    trace: &Trace,
    device: &Device,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Report> {
    check_memory(trace, device, options)?;
    if let Some(Peer::CudaAsync) = options.versus {
        // Made and dropped at once: a missing peer is reported before the trace is played.
        CudaAsync::new(device, options.cap)?;
    }
    // The same on every device, so that replays on all of them agree.
    let config = PoolConfig::default().slack(options.slack.unwrap_or(LEAST_SLACK));
    let mut config = config.remap(options.remap);
    if let Some(cap) = options.cap {
        config = config.limit(cap);
    }
    let pool = Pool::new(device, config)?;
    let (played, moves) = play_pool(trace, device, options, &pool, progress)?;
    let stats = pool.stats();
    drop(pool);
    let ours = report(trace, device, options, (played, moves), &stats);
    let first = ours.events;
    let mut more = |more| progress(first + more);
    let versus = (options.versus).map(|peer| play_peer(trace, device, options, peer, &mut more));
    Ok(beside(ours, versus.transpose()))
}

/// Plays the trace through a peer.
fn play_peer(
    trace: &Trace,
    device: &Device,
    options: &ReplayOptions,
    peer: Peer,
    progress: &mut dyn FnMut(u64),
) -> Result<Versus> {
    let Peer::CudaAsync = peer;
    let pool = CudaAsync::new(device, options.cap)?;
    let _entered = pool.enter()?;
    let played = play(trace, device, options.verify, &pool, progress)?;
    Ok(versus(peer, trace, options.verify, played))
}

/// The report with a peer's results, or with its failure.
fn beside(ours: Report, versus: Result<Option<Versus>>) -> Report {
    let words = |error: Error| Error::Os {
        call: "replay through the other allocator",
        words: error.to_string(),
    };
    match versus {
        Ok(versus) => Report { versus, ..ours },
        Err(error) => Report {
            failure: ours.failure.or(Some(words(error))),
            ..ours
        },
    }
}

/// The report of a trace played through a pool.
fn report(
    trace: &Trace,
    device: &Device,
    options: &ReplayOptions,
    (mut played, mut moves): (Played, Moves),
    stats: &PoolStats,
) -> Report {
    let findings = played.findings;
    Report {
        trace: trace.name.clone(),
        device: device_name(device),
        verify: options.verify,
        events: played.events,
        streams: trace.streams.len() as u64,
        peak_live_bytes: trace.peak_live_bytes,
        reached_live_bytes: reached_live_bytes(trace, &played),
        cap: options.cap,
        peak_reserved_bytes: played.peak_reserved_bytes,
        overhead_bytes: stats.overhead,
        largest_hole_bytes: played.largest_hole_bytes,
        alloc_ns_p50: played.allocs.percentile(50),
        alloc_ns_p99: played.allocs.percentile(99),
        free_ns_p50: played.frees.percentile(50),
        free_ns_p99: played.frees.percentile(99),
        verified_bytes: findings.verified_bytes,
        owed_bytes: owed_bytes(trace, played.events, options.verify),
        corrupt_bytes: findings.corrupt_bytes,
        first_corrupt: (findings.corrupt_bytes > 0).then_some(findings.first_corrupt),
        failed_allocs: u64::from(played.failure.is_some()),
        handles_made: stats.calls.created,
        handles_remapped: stats.calls.remapped,
        bytes_moved: stats.bytes_moved,
        compactions: stats.compactions,
        movable: options.movable,
        step_ns_p50: moves.host.percentile(50),
        step_ns_p99: moves.host.percentile(99),
        move_ns_p50: moves.device.percentile(50),
        move_ns_p99: moves.device.percentile(99),
        move_ns: moves.device_ns,
        wall: played.wall,
        failure: played.failure,
        versus: None,
    }
}

/// Bytes that must have been verified once the first `events` of the trace were played and all live blocks
/// freed: for each block allocated, as many as `verify` covers.
fn owed_bytes(trace: &Trace, events: u64, verify: Verify) -> u64 {
    let played = trace.events.iter().take(events as usize);
    let allocs = played.filter(|event| event.kind == EventKind::Alloc);
    allocs.map(|event| verify.owed(event.bytes)).sum()
}

/// Most bytes live at once in the events played.
fn reached_live_bytes(trace: &Trace, played: &Played) -> u64 {
    if played.failure.is_none() {
        return trace.peak_live_bytes;
    }
    let mut bytes = vec![0; trace.blocks as usize];
    let (mut live, mut most) = (0, 0);
    for event in trace.events.iter().take(played.events as usize) {
        let block = &mut bytes[event.block as usize];
        live = match event.kind {
            EventKind::Alloc => {
                *block = event.bytes;
                live + event.bytes
            }
            EventKind::Free => live - std::mem::take(block),
        };
        most = most.max(live);
    }
    most
}

/// The times of the steps of compaction.
#[derive(Default)]
struct Moves {
    host: Latencies,
    device: Latencies,
    /// Device time of all steps.
    device_ns: u64,
}

/// Plays the trace through `pool`, with movable blocks if `options` ask for them.
fn play_pool(
    trace: &Trace,
    device: &Device,
    options: &ReplayOptions,
    pool: &Pool,
    progress: &mut dyn FnMut(u64),
) -> Result<(Played, Moves)> {
    let mut moves = Moves::default();
    if options.movable == Share::NONE {
        return Ok((play(trace, device, options.verify, pool, progress)?, moves));
    }
    pool.record_steps(true)?;
    let mixed = Mixed::new(pool.clone(), options.movable, options.seed);
    let played = play(trace, device, options.verify, &mixed, progress)?;
    for step in pool.take_steps()? {
        moves.host.record(step.host);
        moves
            .device
            .record(Duration::from_nanos(step.device_ns as u64));
        moves.device_ns += step.device_ns as u64;
    }
    Ok((played, moves))
}

/// The result of one allocator's pass.
struct Played {
    events: u64,
    allocs: Latencies,
    frees: Latencies,
    peak_reserved_bytes: u64,
    largest_hole_bytes: u64,
    findings: Findings,
    wall: Duration,
    failure: Option<Error>,
}

/// Plays the whole trace through `subject`, which is empty again afterwards.
fn play<S: Subject>(
    trace: &Trace,
    device: &Device,
    verify: Verify,
    subject: &S,
    progress: &mut dyn FnMut(u64),
) -> Result<Played> {
    let mut player = Player::new(trace, device, verify, subject)?;
    let started = Instant::now();
    let failure = match player.play(progress) {
        Ok(()) => None,
        Err(error) if error.is_out_of_memory() || error.is_device_exhausted() => Some(error),
        Err(error) => return Err(error),
    };
    let peak_reserved_bytes = subject.peak_reserved_bytes()?;
    let largest_hole_bytes = subject.largest_hole_bytes();
    player.free_the_rest(progress)?;
    Ok(Played {
        events: player.played,
        peak_reserved_bytes,
        largest_hole_bytes,
        wall: started.elapsed(),
        findings: player.checker.findings()?,
        allocs: std::mem::take(&mut player.allocs),
        frees: std::mem::take(&mut player.frees),
        failure,
    })
}

/// A peer's part of the report.
fn versus(peer: Peer, trace: &Trace, verify: Verify, mut played: Played) -> Versus {
    Versus {
        name: peer.name(),
        events: played.events,
        peak_live_bytes: reached_live_bytes(trace, &played),
        peak_reserved_bytes: played.peak_reserved_bytes,
        alloc_ns_p50: played.allocs.percentile(50),
        alloc_ns_p99: played.allocs.percentile(99),
        free_ns_p50: played.frees.percentile(50),
        free_ns_p99: played.frees.percentile(99),
        verified_bytes: played.findings.verified_bytes,
        owed_bytes: owed_bytes(trace, played.events, verify),
        corrupt_bytes: played.findings.corrupt_bytes,
        failed_allocs: u64::from(played.failure.is_some()),
        wall: played.wall,
    }
}

/// The device's name in reports: `cuda:0 NVIDIA H200`, `host memory, …`.
#[must_use]
pub fn device_name(device: &Device) -> String {
    let info = device.info();
    match info.kind {
        DeviceKind::Cuda => format!("cuda:{} {}", info.ordinal, info.name),
        _ => info.name.clone(),
    }
}

/// Checks the free memory: on the host device, full verification writes all bytes of the trace's peak.
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

/// A block, its requested bytes, and the stream it was allocated on.
struct Live<B> {
    block: B,
    bytes: u64,
    stream: u16,
}

struct Player<'t, S: Subject> {
    trace: &'t Trace,
    subject: &'t S,
    /// By block number.
    live: Vec<Option<Live<S::Block>>>,
    allocs: Latencies,
    frees: Latencies,
    played: u64,
    checker: Checker,
    marks: Marks,
    streams: Vec<Stream>,
}

impl<'t, S: Subject> Player<'t, S> {
    fn new(trace: &'t Trace, device: &Device, verify: Verify, subject: &'t S) -> Result<Self> {
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
            subject,
            live,
            allocs: Latencies::with_capacity(blocks),
            frees: Latencies::with_capacity(blocks),
            played: 0,
            checker: Checker::new(device, verify, streams.len())?,
            marks: Marks::new(device),
            streams,
        })
    }

    fn play(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        progress(0);
        for events in self.trace.events.chunks(PROGRESS_EVERY) {
            if self.played > 0 {
                self.marks.set(self.played, &self.streams);
            }
            if let Some(done) = self.marks.passed() {
                progress(done);
            }
            for event in events {
                match event.kind {
                    EventKind::Alloc => self.alloc(event)?,
                    EventKind::Free => self.free(event.block, event.stream)?,
                }
                self.played += 1;
            }
        }
        Ok(())
    }

    fn alloc(&mut self, event: &Event) -> Result<()> {
        let stream = &self.streams[usize::from(event.stream)];
        let start = Instant::now();
        let block = self.subject.alloc(stream, event.bytes);
        let took = start.elapsed();
        let block = block?;
        self.allocs.record(took);
        // SAFETY: the block has these bytes, and is freed in stream order after this work.
        let stamped = S::with_addr(&block, stream, |addr| unsafe {
            self.checker.stamp(stream, addr, event.bytes, event.block)
        });
        if let Err(error) = stamped {
            // It was not stamped, so it cannot be verified.
            self.subject.free(block, stream)?;
            return Err(error);
        }
        self.live[event.block as usize] = Some(Live {
            block,
            bytes: event.bytes,
            stream: event.stream,
        });
        Ok(())
    }

    fn free(&mut self, number: u32, on: u16) -> Result<()> {
        let Some(live) = &self.live[number as usize] else {
            return Ok(());
        };
        let (from, bytes) = (live.stream, live.bytes);
        let stream = &self.streams[usize::from(on)];
        if from != on {
            stream.wait_stream(&self.streams[usize::from(from)])?;
        }
        // SAFETY: the block is live, and is freed in stream order after this work.
        S::with_addr(&live.block, stream, |addr| unsafe {
            self.checker.verify((stream, on), addr, bytes, number)
        })?;
        let Some(Live { block, .. }) = self.live[number as usize].take() else {
            return Ok(());
        };
        let start = Instant::now();
        let freed = if from == on {
            self.subject.free(block, stream)
        } else {
            self.subject.free_on(block, stream)
        };
        self.frees.record(start.elapsed());
        freed
    }

    /// Verifies and frees the blocks that are live at the end, on the streams they were allocated on, and
    /// waits for everything.
    fn free_the_rest(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        for number in 0..self.trace.blocks {
            if let Some(stream) = self.live[number as usize].as_ref().map(|live| live.stream) {
                self.free(number, stream)?;
            }
        }
        self.marks.wait(progress);
        self.streams.iter().try_for_each(Stream::synchronize)?;
        progress(self.played);
        Ok(())
    }
}

impl<S: Subject> Drop for Player<'_, S> {
    fn drop(&mut self) {
        for live in self.live.drain(..).flatten() {
            // Blocks are left only after an error, which the caller has; a failed stream runs nothing more.
            let stream = &self.streams[usize::from(live.stream)];
            let _ = self.subject.free(live.block, stream);
        }
        for stream in &self.streams {
            // Queued work still uses the memory that is released next. A stream that cannot be waited for has
            // failed and runs nothing more.
            let _ = stream.core().synchronize_memory();
        }
    }
}

#[cfg(test)]
mod tests;
