//! Host time of allocations: this crate's pool beside the driver's (`cudaMallocAsync`) in one run.
//!
//! - `pair_hot`: allocate and free one size on one stream, over and over;
//! - `live_set`: free a random one of so many live blocks and allocate another of random size;
//! - `free_blocks`: the same with so many holes in the pool, the latency of every pair kept;
//! - `threads`, `one_stream`: threads with a stream each, and threads that share one; beside the
//!   first the same threads at plain arithmetic, for what the machine itself gains from threads;
//! - `live_sets`: threads with a stream and a live set of 10,000 blocks each;
//! - `producer_consumer`: allocated on one thread and stream, freed on another; beside it the same with
//!   plain arithmetic for blocks, which leaves the hand-over and the order of the two streams;
//! - `unwarmed`: rounds of kernels with scratch memory from a new pool and from a preallocated one.
//!
//! `WARPOOL_BENCH_DEVICE` picks the device (host or cuda). `WARPOOL_BENCH_JSON` names a file to
//! which all figures are written, in the form of `benches/results/`. `WARPOOL_BENCH_ROUNDS` plays
//! everything so often, one after the other, and keeps the medians: on a machine that others use
//! some seconds are slower than others. On the host device there is no peer; the system's `malloc`,
//! which knows no streams, stands there as a floor.

mod common;

use crate::common::BackendOf;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::contender::{Arithmetic, Contender, DriverPool, Malloc, Warpool};
use common::record::About;
use common::ring::Ring;
use common::{Figure, Lab, Random, median};
use warpool::device::{DeviceKind, Launch};
use warpool::driver::abi;
use warpool::observe::Latencies;
use warpool::{Device, PoolConfig, Stream};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn main() {
    let mut lab = Lab::new("alloc");
    let lab = &mut lab;
    let device = lab.device.clone();
    macro_rules! each {
        ($bench:ident) => {
            $bench(lab, &|| Warpool::new(&device));
            if device.info().kind == DeviceKind::Cuda {
                $bench(lab, &|| DriverPool::new(&device));
            } else {
                $bench(lab, &|| Malloc);
            }
        };
    }
    let rounds = std::env::var("WARPOOL_BENCH_ROUNDS").unwrap_or_else(|_| "1".to_owned());
    let rounds: usize = rounds.parse().expect("WARPOOL_BENCH_ROUNDS is a number");
    for _ in 0..rounds {
        each!(pair_hot);
        each!(live_set);
        each!(free_blocks);
        each!(threads);
        threads(lab, &|| Arithmetic);
        each!(one_stream);
        each!(live_sets);
        each!(producer_consumer);
        producer_consumer(lab, &|| Arithmetic);
        if lab.wants("alloc/unwarmed") {
            unwarmed(lab);
        }
    }
    lab.criterion.final_summary();
    lab.record.print();
    if let Some(path) = std::env::var_os("WARPOOL_BENCH_JSON") {
        let about = About {
            title: "Host time of allocations",
            command: match rounds {
                1 => "cargo bench --bench alloc".to_owned(),
                _ => format!("WARPOOL_BENCH_ROUNDS={rounds} cargo bench --bench alloc"),
            },
        };
        lab.record.write(&PathBuf::from(path), &device, &about);
    }
}

fn stream(device: &Device) -> Stream {
    device.stream().expect("a stream")
}

/// `iters` pairs of one size.
fn pairs<C: Contender>(contender: &C, stream: &Stream, bytes: u64, iters: u64) {
    for _ in 0..iters {
        let block = contender.alloc(stream, black_box(bytes));
        black_box(C::addr(&block));
        contender.free(block, stream);
    }
}

fn pair_hot<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    for (case, bytes) in [
        ("256 B", 256),
        ("4 KiB", 4 * KIB),
        ("64 KiB", 64 * KIB),
        ("1 MiB", MIB),
        ("64 MiB", 64 * MIB),
    ] {
        let (contender, stream) = (make(), stream(&lab.device));
        let _guard = contender.enter();
        lab.measure(("pair_hot", case, C::NAME), Figure::NsPerPair, |iters| {
            let start = Instant::now();
            pairs(&contender, &stream, bytes, iters);
            start.elapsed()
        });
    }
}

/// Live blocks and a drawn sequence of which goes and how large the next is.
struct LiveSet<'c, C: Contender> {
    contender: &'c C,
    stream: Stream,
    slots: Vec<Option<C::Block>>,
    /// (slot, bytes), played round and round.
    plan: Vec<(u32, u32)>,
    at: usize,
}

impl<'c, C: Contender> LiveSet<'c, C> {
    const STEPS: usize = 1 << 16;

    /// `live` blocks of `step` to `most` bytes, in steps.
    fn new(contender: &'c C, stream: Stream, live: u64, (step, most): (u64, u64)) -> Self {
        let mut random = Random(live);
        let mut size = || (1 + random.below(most / step)) * step;
        let slots = (0..live)
            .map(|_| Some(contender.alloc(&stream, size())))
            .collect();
        let sizes: Vec<u64> = (0..Self::STEPS).map(|_| size()).collect();
        let plan = sizes
            .into_iter()
            .map(|bytes| (random.below(live) as u32, bytes as u32))
            .collect();
        Self {
            contender,
            stream,
            slots,
            plan,
            at: 0,
        }
    }

    #[inline]
    fn pair(&mut self) {
        let (slot, bytes) = self.plan[self.at];
        self.at = (self.at + 1) % Self::STEPS;
        let slot = &mut self.slots[slot as usize];
        if let Some(block) = slot.take() {
            self.contender.free(block, &self.stream);
        }
        let block = self.contender.alloc(&self.stream, u64::from(bytes));
        black_box(C::addr(&block));
        *slot = Some(block);
    }

    fn time(&mut self, iters: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..iters {
            self.pair();
        }
        start.elapsed()
    }
}

impl<C: Contender> Drop for LiveSet<'_, C> {
    fn drop(&mut self) {
        for block in self.slots.drain(..).flatten() {
            self.contender.free(block, &self.stream);
        }
    }
}

fn live_set<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    for (case, live) in [("100", 100), ("1,000", 1_000), ("10,000", 10_000)] {
        let contender = make();
        let _guard = contender.enter();
        let stream = stream(&lab.device);
        // Grown and played once beforehand: until each size has been there, handles are still made
        // and mapped elsewhere, and the warm-up is too short for a round of it.
        let mut set = LiveSet::new(&contender, stream.clone(), live, (1, MIB));
        set.time(LiveSet::<C>::STEPS as u64);
        lab.measure(("live_set", case, C::NAME), Figure::NsPerPair, |iters| {
            set.time(iters)
        });
    }
}

/// Pairs whose latency is kept.
const TIMED: usize = 20_000;

/// Rounds of them; their median counts.
const TURNS: usize = 9;

/// Longest time given to a round of them; fewer are kept of an allocator that takes longer.
const LONGEST: Duration = Duration::from_millis(200);

/// Longest time given to making holes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Allocates `2 * holes` small blocks and frees every second one; the others keep the holes apart.
/// `None` if that takes too long.
fn fragment<C: Contender>(contender: &C, stream: &Stream, holes: u64) -> Option<Vec<C::Block>> {
    let mut random = Random(holes);
    let start = Instant::now();
    let mut made = Vec::with_capacity(2 * holes as usize);
    while (made.len() as u64) < 2 * holes && start.elapsed() < PATIENCE {
        made.push(contender.alloc(stream, 512 * (1 + random.below(16))));
    }
    let whole = made.len() as u64 == 2 * holes;
    let mut kept = Vec::with_capacity(holes as usize);
    for (at, block) in made.into_iter().enumerate() {
        if at % 2 == 0 && whole {
            kept.push(block);
        } else {
            contender.free(block, stream);
        }
    }
    whole.then_some(kept)
}

/// Times every call by itself. Each figure holds one reading of the clock, which the caller takes
/// off.
fn one_by_one(mut call: impl FnMut()) -> Latencies {
    let mut latencies = Latencies::with_capacity(TIMED);
    let first = Instant::now();
    while latencies.len() < TIMED {
        let start = Instant::now();
        call();
        latencies.record(start.elapsed());
        if start - first > LONGEST {
            break;
        }
    }
    latencies
}

/// Holes by case.
const HOLES: [(&str, u64); 4] = [
    ("10", 10),
    ("1,000", 1_000),
    ("100,000", 100_000),
    ("1,000,000", 1_000_000),
];

/// Live blocks beside holes.
struct Fragmented<'c, C: Contender> {
    case: &'static str,
    set: LiveSet<'c, C>,
    /// What keeps the holes apart.
    kept: Vec<C::Block>,
    /// Latencies of pairs by round: half of them shorter, all but a hundredth shorter.
    rounds: [Vec<f64>; 2],
}

impl<'c, C: Contender> Fragmented<'c, C> {
    fn new(contender: &'c C, stream: Stream, (case, holes): (&'static str, u64)) -> Option<Self> {
        let kept = fragment(contender, &stream, holes)?;
        Some(Self {
            case,
            set: LiveSet::new(contender, stream, 1_000, (512, 64 * KIB)),
            kept,
            rounds: Default::default(),
        })
    }

    /// One round: some pairs untimed, as another case had the processor's caches before.
    fn round(&mut self) {
        self.set.time(TIMED as u64 / 10);
        let mut latencies = one_by_one(|| self.set.pair());
        let timer = one_by_one(|| ()).percentile(50);
        for (values, percent) in self.rounds.iter_mut().zip([50, 99]) {
            values.push(latencies.percentile(percent).saturating_sub(timer) as f64);
        }
    }

    fn end(mut self, lab: &mut Lab) {
        for (figure, values) in ["p50 ns", "p99 ns"].into_iter().zip(&mut self.rounds) {
            let value = median(values).expect("rounds");
            (lab.record).add("free_blocks", self.case, figure, C::NAME, value);
        }
        let LiveSet {
            contender, stream, ..
        } = &self.set;
        for block in self.kept.drain(..) {
            contender.free(block, stream);
        }
    }
}

/// All cases at once, round by round in turns, as their latencies are compared with each other and
/// other programs on the machine lengthen some rounds.
fn free_blocks<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    if !lab.wants("alloc/free_blocks") {
        return;
    }
    let contenders = HOLES.map(|case| (case, make()));
    let _guard = contenders[0].1.enter();
    let mut all = Vec::new();
    for (case, contender) in &contenders {
        let Some(mut one) = Fragmented::new(contender, stream(&lab.device), *case) else {
            let (name, case) = (C::NAME, case.0);
            println!("free_blocks: {name} took over {PATIENCE:?} for {case} holes");
            continue;
        };
        let what = ("free_blocks", case.0, C::NAME);
        lab.measure(what, Figure::NsPerPair, |iters| one.set.time(iters));
        all.push(one);
    }
    for _ in 0..TURNS {
        all.iter_mut().for_each(Fragmented::round);
    }
    all.into_iter().for_each(|one| one.end(lab));
}

/// Holds threads until all are there, without putting one to sleep.
struct Line {
    missing: AtomicUsize,
}

impl Line {
    fn of(threads: usize) -> Self {
        Self {
            missing: AtomicUsize::new(threads),
        }
    }

    fn wait(&self) {
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }
}

/// From the first start to the last end.
fn span(times: &[(Instant, Instant)]) -> Duration {
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    match (start, end) {
        (Some(start), Some(end)) => end - start,
        _ => Duration::ZERO,
    }
}

/// `iters` pairs by each worker, on a thread of its own, behind a few that are not counted.
fn at_once<C: Contender, W: Send>(
    contender: &C,
    workers: impl ExactSizeIterator<Item = W>,
    work: impl Fn(&mut W, u64) + Sync,
    iters: u64,
) -> Duration {
    let (line, work) = (&Line::of(workers.len()), &work);
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .map(|mut worker| {
                scope.spawn(move || {
                    let _guard = contender.enter();
                    work(&mut worker, 16);
                    line.wait();
                    let start = Instant::now();
                    work(&mut worker, iters);
                    (start, Instant::now())
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|times| times.expect("no panic")).collect()
    });
    span(&times)
}

/// The same for pairs of one size on each stream; the streams may be one.
fn in_threads<C: Contender>(contender: &C, streams: &[Stream], iters: u64) -> Duration {
    let work = |stream: &mut &Stream, iters| pairs(contender, stream, 64 * KIB, iters);
    at_once(contender, streams.iter(), work, iters)
}

const THREADS: [(&str, usize); 5] = [("1", 1), ("2", 2), ("4", 4), ("8", 8), ("16", 16)];

fn threads<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    for (case, count) in THREADS {
        let contender = make();
        let streams: Vec<Stream> = (0..count).map(|_| stream(&lab.device)).collect();
        let figure = Figure::MpairsPerS {
            threads: count as u64,
        };
        lab.measure(("threads", case, C::NAME), figure, |iters| {
            in_threads(&contender, &streams, iters)
        });
    }
}

fn one_stream<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    for (case, count) in THREADS {
        let contender = make();
        let streams = vec![stream(&lab.device); count];
        let figure = Figure::MpairsPerS {
            threads: count as u64,
        };
        lab.measure(("one_stream", case, C::NAME), figure, |iters| {
            in_threads(&contender, &streams, iters)
        });
    }
}

/// Live blocks of each thread of `live_sets`.
const LIVE: u64 = 10_000;

/// Pairs that count as one there, so that few of a short run fall to threads that begin sooner.
const TOGETHER: u64 = 256;

/// Every thread has a stream and a live set of its own, so nearly every pair goes past its cache.
fn live_sets<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    for (case, count) in THREADS {
        if !lab.wants(&format!("alloc/live_sets/{}/{case}", C::NAME)) {
            continue;
        }
        // Half a MiB each, and a fifth for what is free beside them.
        if count as u64 * LIVE * MIB / 2 > lab.device.info().total_bytes / 6 * 5 {
            println!("live_sets: the device has no room for {case} threads");
            continue;
        }
        let contender = make();
        let _guard = contender.enter();
        let mut sets: Vec<LiveSet<C>> = (0..count)
            .map(|_| LiveSet::new(&contender, stream(&lab.device), LIVE, (1, MIB)))
            .collect();
        let figure = Figure::MpairsPerS {
            threads: count as u64,
        };
        let work = |set: &mut &mut LiveSet<C>, iters| _ = set.time(iters);
        // As in `live_set`, once beforehand.
        at_once(
            &contender,
            sets.iter_mut(),
            work,
            LiveSet::<C>::STEPS as u64,
        );
        lab.measure(("live_sets", case, C::NAME), figure, |iters| {
            at_once(&contender, sets.iter_mut(), work, TOGETHER * iters) / TOGETHER as u32
        });
    }
}

/// Blocks handed over at once; the consumer's stream waits for the producer's once for them all.
const HANDED: u64 = 64;

/// Allocates `iters` blocks here and frees them on another thread and stream.
fn hand_over<C: Contender>(contender: &C, from: &Stream, to: &Stream, iters: u64) -> Duration {
    let mut ring = Ring::new();
    let (mut writer, mut reader) = ring.split();
    let line = &Line::of(2);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let _guard = contender.enter();
            line.wait();
            let mut left = iters;
            while left > 0 {
                let ordered = || to.wait_stream(from).expect("ordered");
                left -= reader.drain(|block| contender.free_on(block, to), ordered) as u64;
            }
            Instant::now()
        });
        let _guard = contender.enter();
        line.wait();
        let start = Instant::now();
        for made in 1..=iters {
            let block = contender.alloc(from, 64 * KIB);
            black_box(C::addr(&block));
            writer.push(block);
            if made % HANDED == 0 {
                writer.publish();
            }
        }
        writer.publish();
        consumer.join().expect("no panic") - start
    })
}

fn producer_consumer<C: Contender>(lab: &mut Lab, make: &dyn Fn() -> C) {
    let contender = make();
    let (from, to) = (stream(&lab.device), stream(&lab.device));
    let name = ("producer_consumer", "64 KiB, two streams", C::NAME);
    lab.measure(name, Figure::NsPerPair, |iters| {
        hand_over(&contender, &from, &to, iters)
    });
}

/// Rounds of kernels timed for each pool, beyond the first.
const ROUNDS: usize = 200;

/// Streams of the rounds, and kernels on each.
const STREAMS: usize = 4;

/// Four streams, and on each four kernels that each write scratch memory of their own.
fn round<C: Contender>(contender: &C, device: &Device, streams: &[Stream]) -> f64 {
    let start = Instant::now();
    for _ in 0..STREAMS {
        for stream in streams {
            let scratch = contender.alloc(stream, MIB);
            let stamp = abi::wp_pattern {
                addr: C::addr(&scratch),
                bytes: MIB,
                seed: 1,
                edge: 0,
                report: 0,
                op: abi::WP_STAMP,
                pad: 0,
            };
            // SAFETY: the scratch memory is freed in stream order behind the kernel.
            unsafe {
                device
                    .backend()
                    .launch(&Launch::Pattern(stamp), stream.raw())
            }
            .expect("launched");
            contender.free(scratch, stream);
        }
    }
    for stream in streams {
        stream.synchronize().expect("done");
    }
    start.elapsed().as_nanos() as f64 / 1e3
}

/// The rounds of a pool, turn about with those of the others.
struct Rounds<'d, C> {
    contender: C,
    device: &'d Device,
    streams: Vec<Stream>,
    took: Vec<f64>,
}

impl<'d, C: Contender> Rounds<'d, C> {
    fn new(contender: C, device: &'d Device) -> Self {
        Self {
            contender,
            device,
            streams: (0..STREAMS).map(|_| stream(device)).collect(),
            took: Vec::with_capacity(ROUNDS + 1),
        }
    }

    fn next(&mut self) {
        let took = round(&self.contender, self.device, &self.streams);
        self.took.push(took);
    }

    fn keep(mut self, lab: &mut Lab, case: &str) {
        let mut add = |case: String, value| {
            lab.record.add("unwarmed", &case, "us", C::NAME, value);
        };
        add(format!("{case}first round"), self.took[0]);
        if let Some(later) = median(&mut self.took[1..]) {
            add(format!("{case}later rounds"), later);
        }
    }
}

fn unwarmed(lab: &mut Lab) {
    let device = lab.device.clone();
    // Kernels are loaded when first launched: no pool's business.
    round(&Warpool::new(&device), &device, &[stream(&device)]);
    let warmed = PoolConfig::default().preallocate(64 * MIB);
    let mut ours = Rounds::new(Warpool::new(&device), &device);
    let mut warm = Rounds::new(Warpool::with(&device, warmed), &device);
    let cuda = device.info().kind == DeviceKind::Cuda;
    let mut peer = cuda.then(|| Rounds::new(DriverPool::new(&device), &device));
    let _guard = peer.as_ref().map(|peer| peer.contender.enter());
    for turn in 0..=ROUNDS {
        // Turn about, so that neither always follows the other's caches.
        if turn % 2 == 0 {
            ours.next();
            warm.next();
        } else {
            warm.next();
            ours.next();
        }
        if let Some(peer) = &mut peer {
            peer.next();
        }
    }
    ours.keep(lab, "");
    warm.keep(lab, "preallocated, ");
    if let Some(peer) = peer {
        peer.keep(lab, "");
    }
}
