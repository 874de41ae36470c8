//! What a pool reserves beyond what is live: bounds over recorded programs (`real`), synthetic workloads
//! as a smoke test, and small blocks.
//!
//! `WARPOOL_SEEDS` sets how many synthetic workloads of each kind are played, 1 by default.

#[path = "../common/mod.rs"]
mod common;
mod on_a_gpu;
mod programs;
mod programs_held_out;
mod programs_varied;
mod real;

use common::ordered::Ordered;
use programs::MIB;
use warpool::observe::{EventKind, ReplayOptions, Report, Trace, Verify, replay};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Pool, PoolConfig};

use warpool::device::sim::Rng;

const GRANULE: u64 = 2 << 20;

/// What a synthetic workload may reserve over its live peak. Loose: no program is like these, and the
/// pool is not tuned on them.
const LOOSE: f64 = 1.25;

/// Whether work that need not be done yet is done when asked about.
type Progress = fn() -> bool;

fn device(progress: Progress) -> Device {
    Ordered::device(64 << 30, GRANULE, || (), progress)
}

fn seeds() -> u64 {
    common::variables::number("WARPOOL_SEEDS", 1)
}

fn play(trace: &Trace, device: &Device, verify: Verify) -> Report {
    let options = ReplayOptions::default().verify(verify);
    let report = replay(trace, device, &options, &mut |_| ());
    report.expect("the device does what it is told")
}

/// Plays workloads made from each seed: on a device whose work is never done unless waited for, and on
/// the host device with the edges of every block verified.
fn completes(name: &str, make: impl Fn(u64) -> Trace) {
    for seed in 1..=seeds() {
        let trace = make(seed);
        for (mode, device, verify) in [
            ("never done", device(|| false), Verify::Off),
            ("verified", common::host(), Verify::Edges),
        ] {
            let report = play(&trace, &device, verify);
            let ratio = report.reserved_ratio();
            println!(
                "{name} {seed}, {mode}: {} events, {} MiB: {ratio:.4}; {} handles created, {} remapped",
                report.events,
                trace.peak_live_bytes() >> 20,
                report.handles_made,
                report.handles_remapped,
            );
            assert!(report.passed(), "{name} {seed}, {mode}: {report}");
            assert!(ratio <= LOOSE, "{name} {seed}, {mode}: {ratio:.4}");
        }
    }
}

#[test]
fn synthetic_workloads_on_one_stream_complete() {
    completes("training", |seed| {
        programs::training(seed, 60, 64 * MIB, 12)
    });
    completes("small blocks", |seed| {
        programs::small_blocks(seed, 60_000, 4)
    });
    completes("diffusion", |seed| programs::diffusion(seed, 256 << 20, 30));
    completes("rendering", |seed| programs::rendering(seed, 400, 300));
    completes("inference", |seed| {
        programs::inference(seed, 6 << 30, 40, 300)
    });
    completes("mesh", |seed| {
        programs_held_out::mesh(9000 + seed, 400 * MIB, 14, 24)
    });
}

#[test]
fn synthetic_workloads_on_several_streams_complete() {
    completes("alternating", |seed| {
        programs::alternating(seed, 6 << 30, 15)
    });
    completes("two in turns", |seed| {
        programs_varied::in_turns(seed, 800 * MIB, 2, 16)
    });
    completes("sixteen in turns", |seed| {
        programs_varied::in_turns(seed, 1500 * MIB, 16, 64)
    });
    completes("sharded", |seed| {
        programs_varied::sharded(seed, 32, 96 * MIB, 8)
    });
    completes("serving", |seed| {
        programs_varied::serving(seed, 4 << 30, 24, 400)
    });
    completes("analytics", |seed| {
        programs_varied::analytics(seed, 512 * MIB, 3, 120)
    });
    completes("mixture", |seed| {
        programs_varied::mixture(seed, 5 << 30, 128 * MIB, 3, 12_000)
    });
    completes("speculative", |seed| {
        programs_held_out::speculative(9000 + seed, 5 << 30, 60, 500)
    });
    completes("two models", |seed| {
        programs_held_out::two_models(9000 + seed, 6 << 30, 24)
    });
    completes("five peaks", |seed| {
        programs_held_out::five_peaks(9000 + seed, 5 << 30, 20)
    });
}

#[test]
fn a_program_maps_the_same_handles_in_every_run() {
    let trace = programs::rendering(1, 400, 300);
    let device = device(|| false);
    let first = play(&trace, &device, Verify::Off);
    assert!(first.handles_remapped > 0, "{first}");
    for _ in 0..4 {
        let again = play(&trace, &device, Verify::Off);
        assert_eq!(again.peak_reserved_bytes, first.peak_reserved_bytes);
        assert_eq!(again.handles_made, first.handles_made);
        assert_eq!(again.handles_remapped, first.handles_remapped);
    }
}

#[test]
fn the_live_peak_that_a_replay_reports_is_the_most_that_all_streams_had_at_any_event() {
    let trace = programs_held_out::five_peaks(9001, 600 * MIB, 25);
    let (mut live, mut joint) = (vec![0; trace.streams().len()], 0);
    let (mut own, mut home) = (live.clone(), vec![0; trace.blocks() as usize]);
    for event in trace.events() {
        let at = &mut home[event.block as usize];
        if event.kind == EventKind::Alloc {
            *at = usize::from(event.stream);
            live[*at] += event.bytes;
        } else {
            live[*at] -= event.bytes;
        }
        own[*at] = own[*at].max(live[*at]);
        joint = joint.max(live.iter().sum());
    }
    let report = play(&trace, &device(|| false), Verify::Off);
    assert_eq!(report.peak_live_bytes, joint);
    assert!(
        joint < own.iter().sum(),
        "the streams' own peaks do not coincide"
    );
}

#[test]
fn small_blocks_of_all_sizes_cost_an_eighth_at_most() {
    let device = device(|| false);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let mut random = Rng::new(7);
    let sizes = (0..200_000).map(|_| 1 + random.below(4096));
    let blocks: Vec<Block> = sizes
        .map(|bytes| pool.alloc(&stream, bytes).unwrap())
        .collect();
    let requested: u64 = blocks.iter().map(Block::bytes).sum();
    let reserved = pool.stats().reserved.current;
    println!(
        "{:.4} of {requested} bytes",
        reserved as f64 / requested as f64
    );
    assert!(reserved <= requested + requested / 8);
}

/// What 200,000 blocks of one size reserve, over what they asked for.
fn cost_of(mut bytes: impl FnMut() -> u64) -> (u64, u64) {
    let device = device(|| false);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let blocks: Vec<Block> = (0..200_000)
        .map(|_| pool.alloc(&stream, bytes()).unwrap())
        .collect();
    pool.check_invariants().unwrap();
    let requested = blocks.iter().map(Block::bytes).sum();
    (requested, pool.stats().reserved.current)
}

/// The last handle may be hardly used, so a granule is allowed beyond the eighth.
#[test]
fn small_blocks_of_any_one_size_cost_an_eighth_and_a_last_handle_at_most() {
    let sizes = [
        128, 129, 145, 177, 200, 257, 300, 513, 520, 769, 800, 1025, 1030, 1281, 1537, 1793, 1821,
        2049, 2305, 2561, 3073, 3841, 3850, 4095,
    ];
    for size in sizes {
        let (requested, reserved) = cost_of(|| size);
        println!("{size:5} B: {:.4}", reserved as f64 / requested as f64);
        assert!(reserved <= requested + requested / 8 + GRANULE, "{size}");
    }
    for size in [16, 40, 100] {
        let (requested, reserved) = cost_of(|| size);
        println!("{size:5} B: {:.4}", reserved as f64 / requested as f64);
        let rounded = 200_000 * size.next_multiple_of(16);
        assert!(reserved <= rounded + rounded / 50 + GRANULE, "{size}");
    }
}

#[test]
fn small_blocks_of_sizes_spread_over_their_logarithms_cost_an_eighth_at_most() {
    let mut random = Rng::new(3);
    let (requested, reserved) = cost_of(|| {
        let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
        (16.0 * 256f64.powf(part)) as u64
    });
    println!("16 B to 4 KiB: {:.4}", reserved as f64 / requested as f64);
    assert!(reserved <= requested + requested / 8);
}

#[test]
fn handles_of_slabs_empty_as_the_survivors_of_many_small_blocks_go() {
    let device = device(|| true);
    let pool = Pool::new(&device, PoolConfig::default().handles(HandleSize::Granule)).unwrap();
    let stream = device.stream().unwrap();
    let mut random = Rng::new(5);
    let mut one = |pool: &Pool| pool.alloc(&stream, 257 + random.below(200)).unwrap();
    let mut live: Vec<Block> = (0..200_000).map(|_| one(&pool)).collect();
    let mut at = 0;
    live.retain(|_| {
        at += 1;
        at % 100 == 0
    });
    // As many more come, and those left go.
    let new: Vec<Block> = live.iter().map(|_| one(&pool)).collect();
    drop(std::mem::replace(&mut live, new));
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    pool.check_invariants().unwrap();
    let bytes: u64 = live.iter().map(Block::bytes).sum();
    let held = pool.stats().reserved.current;
    println!("{held} bytes for {bytes}");
    assert!(
        held <= bytes + bytes / 8 + 8 * GRANULE,
        "{held} for {bytes}"
    );
}

#[test]
fn small_survivors_keep_no_large_handle() {
    const HANDLE: u64 = 64 * GRANULE;
    let device = device(|| true);
    let config = PoolConfig::default().handles(HandleSize::UpTo(HANDLE));
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let mut large: Vec<Block> = (0..16)
        .map(|_| pool.alloc(&stream, HANDLE - 4096).unwrap())
        .collect();
    let mut survivors = Vec::new();
    for _ in 0..10 {
        let mut small: Vec<Block> = (0..10_000)
            .map(|at| pool.alloc(&stream, 1 + at % 4096).unwrap())
            .collect();
        survivors.push(small.swap_remove(5_000));
        large.remove(0);
        large.push(pool.alloc(&stream, HANDLE - 4096).unwrap());
    }
    drop(large);
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    pool.check_invariants().unwrap();
    let held = pool.stats().reserved.current;
    assert!(
        held <= survivors.len() as u64 * GRANULE,
        "{} MiB for {} blocks",
        held >> 20,
        survivors.len()
    );
}
