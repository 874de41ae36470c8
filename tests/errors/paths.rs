//! The public paths of the crate, for suites that make the calls under them fail.
//!
//! Each goes on after an error, checks the books after every step, has the device work again before
//! its end, and sees that then everything else does too. They are run with failures of a device's
//! calls (`every_call`) and with failures of the driver's calls (the unit tests of the CUDA
//! device, which includes this file).

use std::time::Duration;

use bytemuck::Pod;
use half::f16;
use warpool::ViewMut;
use warpool::collective::{Comm, Reducer, ReducerConfig, Wire};
use warpool::compact::{Budget, Goal};
use warpool::convert::{
    ConvertTable, E4m3, Fused, GradScaler, Gradients, Quantize, QuantizeTable, Rounding,
    ScalerConfig, ScalesMut, convert, convert_fused,
};
use warpool::device::{Addr, DeviceKind};
use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::observe::{ReplayOptions, Trace, replay};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Error, Pool, PoolBuf, PoolConfig, Result, Stream};

const MIB: u64 = 1 << 20;
/// The limit of every pool.
pub const LIMIT: u64 = 24 * MIB;

/// What a path is given: the device, the errors it saw, and a way to make the device work again.
pub struct Stage<'a> {
    pub device: &'a Device,
    pub heal: &'a dyn Fn(),
    pub errors: Vec<Error>,
}

impl Stage<'_> {
    /// Takes note of an error.
    pub fn try_to<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.errors.push(error)).ok()
    }

    /// Until it succeeds; after an error the device works again, so that the path goes on.
    pub fn at_last<T>(&mut self, mut attempt: impl FnMut(&Device) -> Result<T>) -> T {
        if let Some(value) = self.try_to(attempt(self.device)) {
            return value;
        }
        (self.heal)();
        attempt(self.device).expect("the device works again")
    }
}

/// Queues a fill of device memory on a device that may refuse.
fn fill_if(stream: &Stream, addr: Addr, byte: u8, bytes: u64) {
    // SAFETY: it is given the fill below alone.
    let backend = unsafe { stream.device().raw_backend() };
    // SAFETY: paths name memory they hold, and keep it until the stream is done.
    let _ = unsafe { backend.fill(addr, byte, bytes, stream.raw()) };
}

/// Sets a buffer to zeros on a device that may refuse to fill, or to copy, but not both: what is read
/// later was written to.
fn zero<T: Pod>(stream: &Stream, buffer: &mut PoolBuf<T>) {
    // SAFETY: it is given the fill below alone.
    let backend = unsafe { stream.device().raw_backend() };
    let bytes = size_of::<T>() * buffer.len();
    // SAFETY: the whole of a live buffer of the stream's.
    if unsafe { backend.fill(buffer.addr(), 0, bytes as u64, stream.raw()) }.is_err() {
        let _ = buffer.upload(&vec![T::zeroed(); buffer.len()]);
    }
}

fn config() -> PoolConfig {
    let config = PoolConfig::default().limit(LIMIT);
    config.handles(HandleSize::Granule).cache_bytes(MIB)
}

/// Page-locked memory goes up and comes down on two streams, is dropped under way, staged and trimmed.
fn host_memory(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let host = HostPool::new(stage.device, HostPoolConfig::default().limit(8 * MIB));
    let mut there = stage.at_last(|_| pool.alloc_zeroed::<u32>(&streams[0], 700_000));
    for round in 0..3 {
        let Some(mut buf) = stage.try_to(host.alloc_waiting::<u32>(700_000)) else {
            continue;
        };
        stage.try_to(buf.get_mut().map(|numbers| numbers.fill(round)));
        stage.try_to(there.view_mut().upload_from(&streams[0], &buf));
        stage.try_to(there.view().download_into(&streams[1], &mut buf));
        stage.try_to(buf.is_idle());
        if round == 1 {
            stage.try_to(buf.get().map(|_| ()));
        }
    }
    let mut data = vec![7; 700_000];
    stage.try_to(host.stage_in(&streams[1], there.view_mut(), &data));
    stage.try_to(host.stage_out(&streams[0], there.view(), &mut data));
    stage.try_to(host.trim());
    (stage.heal)();
    data.fill(8);
    let works = host.stage_in(&streams[1], there.view_mut(), &data);
    works.expect("it works again");
    assert_eq!(there.download().expect("it works again"), data);
    for stream in &streams {
        stream.synchronize().expect("it works again");
    }
    host.trim().expect("it works again");
    assert_eq!(host.stats().reserved.current, 0);
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
                fill_if(on, block.addr(), 1, block.bytes());
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
    (stage.heal)();
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
    (stage.heal)();
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
    (stage.heal)();
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
            // It is read also where the upload fails.
            zero(&stream, &mut buffer);
            let written = stage.try_to(buffer.upload(&data)).is_some();
            if let Some(read) = stage.try_to(buffer.download()) {
                assert!(!written || read == data);
            }
        }
        pool.check_invariants().unwrap();
    }
    (stage.heal)();
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
        if let Some(pinned) = stage.try_to(block.hold(&streams[1])) {
            fill_if(&streams[1], pinned.addr(), 0, 0);
        }
    }
    // Only moving blocks makes room for this.
    drop(stage.try_to(pool.alloc(&streams[0], 3 * MIB)));
    stage.try_to(pool.compact(&Goal::Full));
    pool.check_invariants().unwrap();
    (stage.heal)();
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

/// Movable blocks of more than the limit go to the host and come back; what a block holds outlives every failure.
fn spilled(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config().limit(6 * MIB)));
    let host = HostPool::new(stage.device, HostPoolConfig::default().limit(16 * MIB));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    stage.at_last(|_| pool.set_spill(Spill::Auto(&host)));
    let mut live = Vec::new();
    for seed in 0..10u8 {
        let on = &streams[usize::from(seed % 2)];
        if let Some(mut block) = stage.try_to(pool.alloc_movable::<u8>(on, MIB as usize))
            && stage
                .try_to(block.upload(on, &vec![seed; MIB as usize]))
                .is_some()
        {
            live.push((seed, block));
        }
        pool.check_invariants().unwrap();
    }
    for (at, (_, block)) in live.iter().enumerate() {
        stage.try_to(block.prefetch());
        stage.try_to(block.hold(&streams[at % 2]).map(drop));
        pool.check_invariants().unwrap();
    }
    live.retain(|(seed, _)| seed % 3 != 0);
    drop(stage.try_to(pool.alloc(&streams[0], 3 * MIB)));
    stage.try_to(pool.compact(&Goal::Full));
    (stage.heal)();
    for (seed, block) in &live {
        let read = block.download(&streams[1]).expect("it works again");
        assert!(read.iter().all(|byte| byte == seed), "block {seed}");
    }
    drop(live);
    for stream in &streams {
        stream.synchronize().expect("it works again");
    }
    pool.set_spill(Spill::Never).expect("it works again");
    // What the pool's own copies may use yet goes with the host pool, which the devices' counts show.
    host.trim().expect("it works again");
    let left = [host.stats().allocated, pool.stats().allocated];
    assert_eq!(left.map(|it| it.current), [0, 0]);
}

/// Fills and copies on the device, conversions in place, and formats with scales in tables.
fn on_the_device(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let streams = [(); 2].map(|()| stage.at_last(Device::stream));
    let mut all = stage.at_last(|_| pool.alloc_zeroed::<f32>(&streams[0], 50_000));
    for round in 0..2 {
        let other = stage.try_to(pool.alloc_filled(&streams[1], 50_000, 1.5f32));
        if let Some(other) = &other {
            stage.try_to(all.view_mut().copy_from(&streams[round], other));
        }
        let wide = stage.try_to(pool.alloc_filled(&streams[round], 5000, 0.5f32));
        if let Some(wide) = wide {
            stage.try_to(wide.convert_in_place::<f16>(Rounding::Nearest));
        }
        let codes = stage.try_to(pool.alloc_zeroed::<E4m3>(&streams[1], 5000));
        let scales = stage.try_to(pool.alloc_filled(&streams[1], 1, 1.0f32));
        if let (Some(mut codes), Some(scales)) = (codes, scales) {
            let some = all.slice(..5000).unwrap();
            let tensor = (
                some.into(),
                codes.view_mut().into(),
                ScalesMut::Tensor(scales.view()),
            );
            let table = QuantizeTable::new(&pool, &streams[0], vec![tensor]);
            if let Some(mut table) = stage.try_to(table) {
                stage.try_to(table.quantize(&streams[round], Quantize::default()));
            }
        }
        pool.check_invariants().unwrap();
    }
    (stage.heal)();
    let other = pool
        .alloc_filled(&streams[1], 50_000, 2.5f32)
        .expect("it works again");
    all.view_mut()
        .copy_from(&streams[0], &other)
        .expect("it works again");
    assert_eq!(all.download().expect("it works again"), vec![2.5; 50_000]);
    let halves = other.convert_in_place::<f16>(Rounding::Nearest);
    let halves = halves.expect("it works again").download();
    assert_eq!(
        halves.expect("it works again"),
        vec![f16::from_f32(2.5); 50_000]
    );
}

/// A step of a reducer in several buckets, or none where it fails, and what it had comes back.
fn sums(stage: &mut Stage<'_>) {
    if stage.device.info().kind != DeviceKind::Host {
        return;
    }
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let stream = stage.at_last(Device::stream);
    let ends = Comm::simulated(std::slice::from_ref(stage.device), Duration::from_secs(10));
    let comm = ends.unwrap().remove(0);
    let make = |wire| {
        let config = ReducerConfig::default().wire(wire).bucket_bytes(1 << 16);
        Reducer::new(
            &pool,
            &stream,
            &comm,
            &[1000, 24, 70_000],
            config.feedback(true),
        )
    };
    let step = |reducer: &mut Reducer| {
        for gradient in reducer.gradients() {
            gradient.fill(&stream, 0.5)?;
        }
        (0..3).try_for_each(|tensor| reducer.ready(tensor))?;
        reducer.finish()
    };
    for wire in [Wire::F16, Wire::E4m3] {
        if let Some(mut reducer) = stage.try_to(make(wire)) {
            let made = stage.try_to(step(&mut reducer));
            if made.is_some() {
                stage.try_to(step(&mut reducer));
            }
        }
        pool.check_invariants().unwrap();
    }
    (stage.heal)();
    for wire in [Wire::F16, Wire::E4m3] {
        let mut reducer = make(wire).expect("it works again");
        step(&mut reducer).expect("it works again");
        let gradients = reducer.gradients();
        let read = gradients[2]
            .as_view()
            .download(&stream)
            .expect("it works again");
        assert!(read.iter().all(|&average| average == 0.5));
    }
    stream.synchronize().expect("it works again");
    comm.check().expect("it works again");
    assert_eq!(pool.stats().allocated.current, 0);
}

/// Conversions of every kind, and loss scaling.
fn conversions(stage: &mut Stage<'_>) {
    let pool = stage.at_last(|device| Pool::new(device, config()));
    let stream = stage.at_last(Device::stream);
    let mut source = stage.at_last(|_| pool.alloc_typed::<f32>(&stream, 5000));
    zero(&stream, &mut source);
    let mut half = stage.at_last(|_| pool.alloc_typed::<f16>(&stream, 5000));
    stage.try_to(convert(
        &stream,
        source.view(),
        half.view_mut(),
        Rounding::Nearest,
    ));
    let fused = Fused::default().scale(2.0);
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
    (stage.heal)();
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
    (stage.heal)();
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
            fill_if(&stream, block.addr(), 1, block.bytes());
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
    (stage.heal)();
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

/// One of the paths below.
pub type Path = fn(&mut Stage<'_>);

/// Every path by its name.
pub const PATHS: &[(&str, Path)] = &[
    ("blocks", blocks),
    ("streams", streams),
    ("events", events),
    ("buffers", buffers),
    ("host memory", host_memory),
    ("movable", movable),
    ("spilled", spilled),
    ("on the device", on_the_device),
    ("sums", sums),
    ("conversions", conversions),
    ("replays", replays),
    ("graphs", graphs),
    ("drops", drops),
];
