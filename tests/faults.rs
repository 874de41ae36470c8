//! Every device call on every public path fails at its k-th use, once and for ever, and with
//! out-of-memory where it may. The caller gets an error that says so, the books stay whole, and
//! when the device works again so does everything, with nothing left behind.
//!
//! Which calls there are is said by `common::watched`, where a call that is left out does not
//! compile; a path is a function below. What a path uses is counted first, without a failure.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::sanitized::Sanitized;
use common::watched::{CALLS, MADE_TO_FAIL, OUT_OF_MEMORY, Watched};
use half::f16;
use warpool::compact::{Budget, Goal};
use warpool::convert::{
    ConvertTable, Fused, GradScaler, Gradients, Rounding, ScalerConfig, ViewMut, convert,
    convert_fused,
};
use warpool::device::sim::SimConfig;
use warpool::device::{HandleCounts, HostConfig};
use warpool::observe::{ReplayOptions, Trace, replay};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Error, Pool, PoolConfig, Result};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 24 * MIB;

/// Uses of a call, from the first on, that fail in turn; the last one does too.
const USES: u64 = 4;

/// Calls by which a driver says that it is out of memory.
const EXHAUSTIBLE: &[&str] = &[
    "reserve",
    "create",
    "map",
    "stream_create",
    "event_create",
    "event_record",
    "copy_in",
    "copy_out",
    "launch",
    "host_call",
];

/// What a path is given: the device, the errors it saw, and a way to make the device work again.
struct Stage<'a> {
    device: &'a Device,
    watched: &'a Watched,
    errors: Vec<Error>,
}

impl Stage<'_> {
    /// Takes note of an error.
    fn try_to<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.errors.push(error)).ok()
    }

    /// Until it succeeds; after an error the device works again, so that the path goes on.
    fn at_last<T>(&mut self, mut attempt: impl FnMut(&Device) -> Result<T>) -> T {
        if let Some(value) = self.try_to(attempt(self.device)) {
            return value;
        }
        self.watched.heal();
        attempt(self.device).expect("the device works again")
    }
}

fn config() -> PoolConfig {
    let config = PoolConfig::default().limit(LIMIT);
    config.handles(HandleSize::Granule).cache_bytes(MIB)
}

/// Blocks of many sizes on two streams at the edge of the limit, handed over, shrunk and trimmed.
fn blocks(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config().soft_limit(LIMIT / 2)));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..4usize {
        for (i, mebibytes) in [6, 4, 8, 2].into_iter().enumerate() {
            let on = &streams[(i + round) % 2];
            if let Some(block) = stage.try_to(pool.alloc(on, mebibytes * MIB - 4096)) {
                common::fill_if(on, block.addr(), 1, block.bytes());
                blocks.push(block);
            }
            pool.check_invariants().unwrap();
        }
        for i in (0..blocks.len()).rev().step_by(2) {
            let mut block = blocks.swap_remove(i);
            let other = &streams[i % 2];
            match i % 3 {
                0 => {
                    stage.try_to(block.record_use(other));
                    drop(block);
                }
                1 if block.stream_id() == other.id()
                    || stage
                        .try_to(other.wait_stream(&streams[1 - i % 2]))
                        .is_some() =>
                {
                    stage.try_to(block.free_on(other));
                }
                1 => drop(block),
                _ => {
                    let half = block.bytes() / 2;
                    stage.try_to(block.shrink(half));
                    blocks.push(block);
                }
            }
            pool.check_invariants().unwrap();
        }
        if round % 2 == 1 {
            stage.try_to(pool.trim(LIMIT / 4));
            pool.check_invariants().unwrap();
        }
    }
    stage.watched.heal();
    drop(blocks);
    pool.check_invariants().unwrap();
    drop(pool.alloc(&streams[0], LIMIT / 2).expect("it works again"));
    pool.trim(0).expect("it works again");
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().allocated.current, 0);
    assert_eq!(pool.stats().reserved.current, 0);
}

/// Streams come and go while their memory is in use.
fn streams(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let mut kept = Vec::new();
    for _ in 0..3 {
        let stream = stage.at_last(Device::stream);
        kept.extend(stage.try_to(pool.alloc(&stream, 5 * MIB)));
        drop(stage.try_to(pool.alloc(&stream, 2 * MIB)));
        drop(stream);
        pool.check_invariants().unwrap();
    }
    let (owner, twin) = {
        let owner = stage.at_last(Device::stream);
        // SAFETY: the stream is kept while its adopted twin is in use.
        let twin = stage.at_last(|device| unsafe { device.adopt_stream(owner.raw()) });
        (owner, twin)
    };
    kept.extend(stage.try_to(pool.alloc(&twin, 3 * MIB)));
    drop(twin);
    stage.watched.heal();
    drop(kept);
    pool.check_invariants().unwrap();
    drop(pool.alloc(&owner, 6 * MIB).expect("it works again"));
}

/// Events and waits of the application's own.
fn events(stage: &mut Stage<'_>) {
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let plain = stage.at_last(Device::event);
    let timing = [(); 2].map(|()| stage.at_last(Device::timing_event));
    for round in 0..2 {
        for event in [&plain, &timing[round]] {
            stage.try_to(event.record(&streams[0]));
            stage.try_to(streams[1].wait(event));
            stage.try_to(event.is_done());
            stage.try_to(event.synchronize());
        }
        stage.try_to(streams[0].wait_stream(&streams[1]));
        stage.try_to(streams[1].wait_stream(&streams[0]));
        stage.try_to(streams[0].is_idle());
        stage.try_to(streams[round].synchronize());
    }
    // A record that failed leaves nothing to measure.
    if stage.errors.is_empty() {
        stage.try_to(timing[1].elapsed_ns(&timing[0]));
    }
    stage.watched.heal();
    plain.record(&streams[0]).expect("it works again");
    streams[1].wait(&plain).expect("it works again");
    streams[1].synchronize().expect("it works again");
    assert!(plain.is_done().unwrap());
}

/// Typed buffers, up and down.
fn buffers(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let stream = stage.at_last(Device::stream);
    let data: Vec<u32> = (0..4000).collect();
    for _ in 0..3 {
        if let Some(mut buffer) = stage.try_to(pool.alloc_typed::<u32>(&stream, data.len())) {
            let written = stage.try_to(buffer.upload(&data)).is_some();
            if let Some(read) = stage.try_to(buffer.download()) {
                assert!(!written || read == data);
            }
        }
        pool.check_invariants().unwrap();
    }
    stage.watched.heal();
    let mut buffer = pool.alloc_typed::<u32>(&stream, data.len()).unwrap();
    buffer.upload(&data).unwrap();
    assert_eq!(buffer.download().unwrap(), data);
}

/// Movable blocks and every way to compact; what a block holds outlives every failure.
fn movable(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config().limit(6 * MIB)));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let mut live = Vec::new();
    for seed in 0..12u8 {
        let on = &streams[usize::from(seed % 2)];
        let made = stage.try_to(pool.alloc_movable::<u8>(on, 200_000));
        if let Some(mut block) = made
            && stage.try_to(block.upload(on, &[seed; 200_000])).is_some()
        {
            live.push((seed, block));
        }
        pool.check_invariants().unwrap();
    }
    live.retain(|(seed, _)| seed % 3 != 0);
    stage.try_to(pool.plan_compaction(&Goal::Full));
    for goal in [Goal::Hole(2 * MIB), Goal::Full] {
        if let Some(mut pass) = stage.try_to(pool.begin_compaction(goal, Budget::bytes(600_000))) {
            for _ in 0..3 {
                stage.try_to(pass.step());
                pool.check_invariants().unwrap();
            }
        }
    }
    for (_, block) in &live {
        if let Some(pinned) = stage.try_to(block.pin(&streams[1])) {
            common::fill_if(&streams[1], pinned.addr(), 0, 0);
        }
    }
    // Only moving blocks makes room for this.
    drop(stage.try_to(pool.alloc(&streams[0], 3 * MIB)));
    stage.try_to(pool.compact(&Goal::Full));
    pool.check_invariants().unwrap();
    stage.watched.heal();
    for (seed, block) in &live {
        let read = block.download(&streams[0]).expect("it works again");
        assert!(read.iter().all(|byte| byte == seed), "block {seed}");
    }
    pool.compact(&Goal::Full).expect("it works again");
    for (seed, block) in &live {
        let read = block.download(&streams[1]).expect("it works again");
        assert!(read.iter().all(|byte| byte == seed), "block {seed}");
    }
}

/// Conversions of every kind, and loss scaling.
fn conversions(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let stream = stage.at_last(Device::stream);
    let source = stage.at_last(|_| pool.alloc_typed::<f32>(&stream, 5000));
    let mut half = stage.at_last(|_| pool.alloc_typed::<f16>(&stream, 5000));
    stage.try_to(convert(
        &stream,
        source.view(),
        half.view_mut(),
        Rounding::Nearest,
    ));
    let fused = Fused::new().scale(2.0);
    stage.try_to(convert_fused(
        &stream,
        source.view(),
        half.view_mut(),
        Rounding::Nearest,
        fused,
    ));
    let pairs = vec![(source.view(), half.view_mut())];
    if let Some(mut table) = stage.try_to(ConvertTable::new(&pool, &stream, pairs)) {
        stage.try_to(table.convert(&stream, Rounding::Nearest));
    }
    if let Some(mut scaler) = stage.try_to(GradScaler::new(&pool, &stream, ScalerConfig::default()))
    {
        // SAFETY: the buffer outlives the stream's work, which is waited for.
        let view = unsafe { ViewMut::<f32>::from_raw(source.addr(), 5000) }.unwrap();
        if let Some(mut gradients) = stage.try_to(Gradients::new(&pool, &stream, vec![view])) {
            stage.try_to(scaler.unscale(&stream, &mut gradients));
        }
        stage.try_to(scaler.update(&stream));
        if let Some(pending) = stage.try_to(scaler.read(&stream)) {
            stage.try_to(pending.ready());
            stage.try_to(pending.wait());
        }
    }
    drop(stage.try_to(source.convert_in_place::<f16>(Rounding::Nearest)));
    pool.check_invariants().unwrap();
    stage.watched.heal();
    half.upload(&[f16::ONE; 5000]).expect("it works again");
    assert_eq!(half.download().expect("it works again"), [f16::ONE; 5000]);
}

/// A whole replay, with every block verified.
fn replays(stage: &mut Stage<'_>) {
    const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
        1,0,allocate,0x10,3000000,0\n1,0,allocate,0x20,700,1\n1,0,free,0x10,3000000,0\n\
        1,0,allocate,0x30,5000000,1\n1,0,allocate,0x40,100000,0\n1,0,free,0x20,700,1\n";
    let trace = Trace::read_from("log", LOG.as_bytes(), u64::MAX).unwrap();
    let options = ReplayOptions::default().cap(LIMIT);
    let report = stage.try_to(replay(&trace, stage.device, &options, &mut |_| ()));
    assert_eq!(report.map_or(0, |report| report.corrupt_bytes), 0);
    stage.watched.heal();
    let report = replay(&trace, stage.device, &options, &mut |_| ()).expect("it works again");
    assert!(report.passed());
}

/// Captures and their graphs, launched and dropped.
fn graphs(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    for round in 0..3 {
        let (stream, other) = (stage.at_last(Device::stream), stage.at_last(Device::stream));
        drop(stage.try_to(pool.alloc(&other, 2 * MIB)));
        let Some(capture) = stage.try_to(stream.begin_capture()) else {
            continue;
        };
        let block = stage.try_to(pool.alloc(&stream, 3 * MIB));
        if let Some(block) = &block {
            common::fill_if(&stream, block.addr(), 1, block.bytes());
        }
        if round == 1 {
            drop(capture);
            continue;
        }
        let graph = stage.try_to(capture.end());
        if let Some(graph) = &graph {
            stage.try_to(graph.launch(&other));
        }
        drop(block);
        drop(graph);
        pool.check_invariants().unwrap();
    }
    stage.watched.heal();
    let stream = stage.device.stream().expect("it works again");
    drop(pool.alloc(&stream, LIMIT).expect("it works again"));
    assert_eq!(pool.stats().graphs, 0);
    pool.check_invariants().unwrap();
}

/// A pool, its streams and their blocks are dropped while the device fails.
fn drops(stage: &mut Stage<'_>) {
    let Some(pool) = stage.try_to(Pool::new(stage.device, config())) else {
        return;
    };
    let streams: Vec<_> = (0..2)
        .filter_map(|_| stage.try_to(stage.device.stream()))
        .collect();
    for stream in &streams {
        let block = stage.try_to(pool.alloc(stream, 3 * MIB));
        let moving = stage.try_to(pool.alloc_movable::<u8>(stream, 100_000));
        if let Some(mut block) = block {
            stage.try_to(block.record_use(&streams[0]));
        }
        drop(moving);
    }
    drop(streams);
    drop(pool);
}

type Path = fn(&mut Stage<'_>);

const PATHS: &[(&str, Path)] = &[
    ("blocks", blocks),
    ("streams", streams),
    ("events", events),
    ("buffers", buffers),
    ("movable", movable),
    ("conversions", conversions),
    ("replays", replays),
    ("graphs", graphs),
    ("drops", drops),
];

/// Runs a path, with a failure or without; gives uses by call, failures made, and what is left.
fn run(
    open: &dyn Fn() -> Device,
    (name, path): (&str, Path),
    failure: Option<(&'static str, u64, bool, i32)>,
) -> (BTreeMap<&'static str, u64>, u64) {
    let device = open();
    let backend = Arc::clone(device.backend());
    let before = backend.counts();
    let sanitized = Sanitized::over(&device);
    let (over, watched) = Watched::over(&sanitized.device);
    if let Some((call, use_number, for_ever, code)) = failure {
        watched.fail_with(call, use_number, for_ever, code);
    }
    let mut stage = Stage {
        device: &over,
        watched: &watched,
        errors: Vec::new(),
    };
    path(&mut stage);
    let errors = stage.errors;
    drop(over);
    watched.heal();
    let failures = watched.failures();
    for error in &errors {
        let code = failure.map_or(0, |(.., code)| code);
        let made = matches!(error, Error::Driver { code: its, .. } if *its == code);
        // A pool whose device has no more says so with its figures.
        assert!(
            made || error.is_out_of_memory(),
            "{name}: {failure:?} gave {error}"
        );
        assert!(failures > 0 || error.is_out_of_memory(), "{name}: {error}");
    }
    if let Err(report) = sanitized.check() {
        panic!("{name}: {failure:?} made a fault: {report}");
    }
    drop(sanitized);
    let uses = CALLS.iter().map(|&call| (call, watched.calls(call)));
    let uses = uses.filter(|&(_, uses)| uses > 0).collect();
    drop(watched);
    drop(device);
    let left = backend.counts();
    check_left(name, failure, failures, before, left);
    (uses, failures)
}

/// Nothing is left but what the device itself refused to take back.
fn check_left(
    name: &str,
    failure: Option<(&'static str, u64, bool, i32)>,
    failures: u64,
    before: HandleCounts,
    left: HandleCounts,
) {
    let refused = |call: &str| match failure {
        Some((failing, ..)) if failing == call => failures,
        _ => 0,
    };
    // A mapping that stays keeps its range, and a handle that is not unmapped is its mapping's.
    let pairs = [
        (left.streams - before.streams, refused("stream_destroy")),
        (left.events - before.events, refused("event_destroy")),
        (left.graphs - before.graphs, refused("graph_destroy")),
        (left.mappings - before.mappings, refused("unmap")),
        (
            left.ranges - before.ranges,
            refused("unreserve") + refused("unmap"),
        ),
        (
            left.handles - before.handles,
            refused("release") + refused("unmap"),
        ),
    ];
    for (left, refused) in pairs {
        assert!(
            left <= refused,
            "{name}: {failure:?} left something behind: {pairs:?}"
        );
    }
}

/// Every failure of every path; the number of failures made and the calls they were made in.
fn every_failure(open: &dyn Fn() -> Device) -> (u64, BTreeSet<&'static str>) {
    let (mut made, mut failed) = (0, BTreeSet::new());
    for &path in PATHS {
        let (uses, _) = run(open, path, None);
        for (call, uses) in uses {
            let codes = [MADE_TO_FAIL, OUT_OF_MEMORY];
            let codes = &codes[..1 + usize::from(EXHAUSTIBLE.contains(&call))];
            let most = if common::under_sanitizer() { 1 } else { USES };
            let numbers: BTreeSet<u64> = (1..=uses.min(most)).chain([uses]).collect();
            for &code in codes {
                for &number in &numbers {
                    for for_ever in [false, true] {
                        let (_, failures) = run(open, path, Some((call, number, for_ever, code)));
                        made += failures;
                        if failures > 0 {
                            failed.insert(call);
                        }
                    }
                }
            }
        }
    }
    (made, failed)
}

/// Calls that no public path of the crate makes: they are there for applications and tests.
const UNUSED: &[&str] = &["copy_within"];

fn survives(open: &dyn Fn() -> Device) {
    let (made, failed) = every_failure(open);
    println!(
        "{made} failures in {} of {} calls, on {} paths",
        failed.len(),
        CALLS.len(),
        PATHS.len()
    );
    let missed: Vec<_> = CALLS
        .iter()
        .filter(|call| !failed.contains(*call))
        .collect();
    assert_eq!(
        missed,
        UNUSED.iter().collect::<Vec<_>>(),
        "calls that never failed"
    );
}

#[test]
fn every_failure_on_the_host_device_is_survived() {
    survives(&|| Device::host_with(HostConfig::default().with_capacity(2 * LIMIT)).unwrap());
}

#[test]
fn every_failure_on_the_simulated_device_is_survived() {
    survives(&|| Device::sim(&SimConfig::default().with_capacity(2 * LIMIT)).unwrap());
}

#[test]
fn every_failure_on_the_gpu_is_survived() {
    if common::cuda().is_some() {
        let _alone = common::alone_on_the_gpu();
        survives(&|| Device::cuda(0).unwrap());
    }
}
