//! What a pool reserves beyond what is live: over made programs, on a device whose work is never
//! done by itself, and for small blocks.
//!
//! `WARPOOL_SEEDS` sets how many programs of each kind are played, 1 by default.

#[path = "../common/mod.rs"]
mod common;
mod floor;
mod more;
mod on_a_gpu;
mod programs;
mod unseen;

use common::ordered::Ordered;
use programs::MIB;
use warpool::device::sim::Rng;
use warpool::observe::{EventKind, ReplayOptions, Report, Trace, Verify, replay};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Pool, PoolConfig};

const GRANULE: u64 = 2 << 20;

/// Whether work that need not be done yet is done when asked about.
type Progress = fn() -> bool;

fn device(progress: Progress) -> Device {
    Ordered::device(64 << 30, GRANULE, || (), progress)
}

fn seeds() -> u64 {
    common::variables::number("WARPOOL_SEEDS", 1)
}

fn play(trace: &Trace, progress: Progress, cap: Option<u64>) -> Report {
    let options = ReplayOptions::default().verify(Verify::Off);
    let options = match cap {
        Some(cap) => options.cap(cap),
        None => options,
    };
    play_as(trace, progress, &options)
}

fn play_as(trace: &Trace, progress: Progress, options: &ReplayOptions) -> Report {
    let report = replay(trace, &device(progress), options, &mut |_| ());
    report.expect("the device does what it is told")
}

/// The handles of a report that were made and that were mapped elsewhere, and its seconds.
fn costs(report: &Report) -> String {
    format!(
        "{} + {} handles, {:.3} s",
        report.handles_made,
        report.handles_remapped,
        report.wall.as_secs_f64()
    )
}

/// Plays programs made from each seed: no more than `most` times the peak is reserved, and a cap of
/// as much is enough. Both in whole granules.
fn check(name: &str, most: f64, make: impl Fn(u64) -> Trace) {
    for seed in 1..=seeds() {
        let trace = make(seed);
        let peak = trace.peak_live_bytes;
        let allowed = ((peak as f64 * most) as u64).next_multiple_of(GRANULE);
        let floors = (floor::best_fit(&trace), floor::shared_ends(&trace));
        let modes: [(&str, Progress); 2] = [("never done", || false), ("done when asked", || true)];
        for (mode, progress) in modes {
            let free = play(&trace, progress, None);
            let capped = play(&trace, progress, Some(allowed));
            let grown = ReplayOptions::default().verify(Verify::Off).remap(false);
            let grown = play_as(&trace, progress, &grown);
            println!(
                "{name} {seed}, {mode}: {} events on {} streams, {} MiB: {:.4}, {} failures at {most}; \
                 by placement alone {:.4}, with shared ends {:.4}; made and remapped {}, at the cap {}, \
                 without remaps {:.4} and {}",
                free.events,
                free.streams,
                peak >> 20,
                free.reserved_ratio(),
                capped.failed_allocs,
                floors.0,
                floors.1,
                costs(&free),
                costs(&capped),
                grown.reserved_ratio(),
                costs(&grown),
            );
            assert!(
                free.peak_reserved_bytes <= allowed,
                "{name} {seed}, {mode}: {:.4} of {peak} bytes",
                free.reserved_ratio()
            );
            assert_eq!(capped.failed_allocs, 0, "{name} {seed}, {mode}, at {most}");
        }
    }
}

#[test]
fn a_program_maps_the_same_handles_in_every_run() {
    let trace = programs::rendering(1, 400, 300);
    let first = play(&trace, || false, None);
    assert!(first.handles_remapped > 1000, "{}", costs(&first));
    for _ in 0..4 {
        let again = play(&trace, || false, None);
        assert_eq!(again.peak_reserved_bytes, first.peak_reserved_bytes);
        assert_eq!(again.handles_made, first.handles_made);
        assert_eq!(again.handles_remapped, first.handles_remapped);
    }
}

#[test]
fn training_reserves_a_hundredth_more_than_its_peak() {
    check("training", 1.01, |seed| {
        programs::training(seed, 60, 64 * MIB, 12)
    });
}

#[test]
fn five_streams_whose_peaks_alternate_reserve_a_hundredth_more_than_the_joint_peak() {
    check("alternating", 1.01, |seed| {
        programs::alternating(seed, 6 << 30, 15)
    });
}

#[test]
fn small_blocks_by_the_ten_thousand_reserve_a_fortieth_more_than_their_peak() {
    check("small blocks", 1.025, |seed| {
        programs::small_blocks(seed, 60_000, 4)
    });
}

#[test]
fn diffusion_reserves_a_fiftieth_more_than_its_peak() {
    check("diffusion", 1.01, |seed| {
        programs::diffusion(seed, 256 << 20, 30)
    });
    check("small diffusion", 1.02, |seed| {
        programs::diffusion(seed, 24 << 20, 30)
    });
}

#[test]
fn streams_that_take_turns_reserve_no_more_than_their_joint_peak_asks() {
    check("two in turns", 1.02, |seed| {
        more::in_turns(seed, 800 * MIB, 2, 16)
    });
    check("three in turns", 1.01, |seed| {
        more::in_turns(seed, 5 << 30, 3, 16)
    });
    check("five in turns", 1.02, |seed| {
        more::in_turns(seed, 1500 * MIB, 5, 20)
    });
    // A miss looks at the holes of two of the other streams only.
    check("sixteen in turns", 1.02, |seed| {
        more::in_turns(seed, 1500 * MIB, 16, 64)
    });
}

#[test]
fn sharded_training_reserves_a_hundredth_more_than_its_peak() {
    check("sharded", 1.01, |seed| more::sharded(seed, 32, 96 * MIB, 8));
}

/// Some of these miss a hundredth above 4 GiB or a fiftieth below. They have many blocks of a few
/// granules each, so that the ends of blocks weigh: an exact best fit in one endless range, counting
/// only granules with a live byte, needs 1.02 to 1.04 times the peak of inference and of mixtures, 1.06
/// to 1.10 of small analytics and 1.13 to 1.15 of small mixtures; the bounds are what the pool was seen
/// to reserve over three seeds, and a little more.
#[test]
fn programs_of_blocks_of_few_granules_reserve_no_more_than_these_measured_bounds() {
    check("small training", 1.02, |seed| {
        programs::training(seed, 24, 12 * MIB, 20)
    });
    check("small alternating", 1.03, |seed| {
        programs::alternating(seed, 400 << 20, 20)
    });
    check("small sharded", 1.02, |seed| {
        more::sharded(seed, 16, 12 * MIB, 12)
    });
    check("rendering", 1.02, |seed| {
        programs::rendering(seed, 400, 300)
    });
    check("serving", 1.012, |seed| {
        more::serving(seed, 4 << 30, 24, 400)
    });
}

/// As [`programs_of_blocks_of_few_granules_reserve_no_more_than_these_measured_bounds`].
#[test]
fn programs_of_blocks_of_every_size_reserve_no_more_than_these_measured_bounds() {
    check("analytics", 1.01, |seed| {
        more::analytics(seed, 512 * MIB, 3, 120)
    });
    check("small analytics", 1.04, |seed| {
        more::analytics(seed, 24 * MIB, 2, 200)
    });
    check("mixture", 1.015, |seed| {
        more::mixture(seed, 5 << 30, 128 * MIB, 3, 12_000)
    });
    check("small mixture", 1.11, |seed| {
        more::mixture(seed, 400 * MIB, 16 * MIB, 2, 12_000)
    });
}

#[test]
fn inference_reserves_a_hundredth_more_than_its_peak() {
    check("inference", 1.01, |seed| {
        programs::inference(seed, 6 << 30, 40, 300)
    });
}

#[test]
fn a_pool_with_room_to_grow_maps_no_handle_elsewhere_and_reserves_no_more_than_one_that_never_does()
{
    let trace = programs::inference(1, 6 << 30, 40, 300);
    let how = ReplayOptions::default().verify(Verify::Off);
    let roomy = play_as(&trace, || true, &how.clone().slack(0.1));
    let grown = play_as(&trace, || true, &how.clone().remap(false));
    assert_eq!(roomy.handles_remapped, 0);
    assert_eq!(roomy.peak_reserved_bytes, grown.peak_reserved_bytes);
    let usual = play_as(&trace, || true, &how);
    assert!(usual.handles_remapped > 1000 && usual.peak_reserved_bytes < grown.peak_reserved_bytes);
}

/// Programs that nothing was tuned on; the bounds are what was seen over two seeds, and a little more.
#[test]
fn unseen_programs_reserve_no_more_than_these_measured_bounds() {
    const FIRST: u64 = 9000;
    check("speculative", 1.01, |seed| {
        unseen::speculative(FIRST + seed, 5 << 30, 60, 500)
    });
    check("small speculative", 1.03, |seed| {
        unseen::speculative(FIRST + seed, 600 * MIB, 24, 500)
    });
    check("mesh", 1.02, |seed| {
        unseen::mesh(FIRST + seed, 400 * MIB, 14, 24)
    });
    check("small mesh", 1.07, |seed| {
        unseen::mesh(FIRST + seed, 40 * MIB, 14, 30)
    });
    check("two models", 1.01, |seed| {
        unseen::two_models(FIRST + seed, 6 << 30, 24)
    });
    check("small two models", 1.02, |seed| {
        unseen::two_models(FIRST + seed, 800 * MIB, 24)
    });
    check("five peaks", 1.01, |seed| {
        unseen::five_peaks(FIRST + seed, 5 << 30, 20)
    });
    check("small five peaks", 1.03, |seed| {
        unseen::five_peaks(FIRST + seed, 600 * MIB, 25)
    });
}

#[test]
fn the_live_peak_that_a_replay_reports_is_the_most_that_all_streams_had_at_any_event() {
    let trace = unseen::five_peaks(9001, 600 * MIB, 25);
    let (mut live, mut joint) = (vec![0; trace.streams.len()], 0);
    let (mut own, mut home) = (live.clone(), vec![0; trace.blocks as usize]);
    for event in &trace.events {
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
    let report = play(&trace, || false, None);
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

/// Where edges are mapped for every temporary, 110,000 handles are, 34 times as many as the pool has.
#[test]
fn temporaries_that_come_again_near_the_peak_do_not_map_handles_each_time() {
    let report = play(&unseen::two_models(9001, 6 << 30, 24), || false, None);
    let (made, remapped) = (report.handles_made, report.handles_remapped);
    println!("{made} handles made, {remapped} mapped elsewhere");
    assert!(remapped <= 10 * made, "{remapped} of {made}");
}

/// The whole handles that a block put together from fragments had lie beside a gap once it is freed: the
/// next one of the kind maps its edge there, and no other handle.
#[test]
fn a_block_like_one_just_freed_finds_its_whole_handles_mapped() {
    let device = device(|| true);
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .limit(4 * GRANULE)
        .cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let take = |halves: u64| pool.alloc(&stream, halves * GRANULE / 2).unwrap();
    // Two handles of two blocks each, of which one goes, and two handles of one block.
    let (head, below) = (take(1), take(1));
    let whole = take(4);
    let (above, tail) = (take(1), take(1));
    drop((head, whole, tail));
    let steals = || pool.stats().steps.steal;
    let first = take(6);
    assert_eq!(steals(), 3, "two handles behind the tail, and an edge");
    drop(first);
    stream.synchronize().unwrap();
    let second = pool.alloc(&stream, 3 * GRANULE - 4096).unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(steals(), 4, "an edge");
    drop((below, above, second));
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}
