//! What a pool reserves beyond what is live, over made programs on a device whose work is never
//! done by itself.
//!
//! `WARPOOL_SEEDS` sets how many programs of each kind are played, 1 by default.

#[path = "../common/mod.rs"]
mod common;
mod programs;

use common::ordered::Ordered;
use warpool::Device;
use warpool::observe::{ReplayOptions, Report, Trace, Verify, replay};

const GRANULE: u64 = 2 << 20;

/// Whether work that need not be done yet is done when asked about.
type Progress = fn() -> bool;

fn seeds() -> u64 {
    let given = std::env::var("WARPOOL_SEEDS").ok();
    given.map_or(1, |text| text.parse().expect("WARPOOL_SEEDS is a number"))
}

fn play(trace: &Trace, progress: Progress, cap: Option<u64>) -> Report {
    let device: Device = Ordered::device(64 << 30, GRANULE, || (), progress);
    let mut options = ReplayOptions::default().verify(Verify::Off);
    if let Some(cap) = cap {
        options = options.cap(cap);
    }
    replay(trace, &device, &options, &mut |_| ()).expect("the device does what it is told")
}

/// Plays programs made from each seed, checks what is reserved, and that a cap of 1.02 times the
/// peak, in whole granules, is enough.
fn check(name: &str, make: impl Fn(u64) -> Trace) {
    for seed in 1..=seeds() {
        let trace = make(seed);
        let peak = trace.peak_live_bytes;
        let most = if peak > 4 << 30 { 1.01 } else { 1.02 };
        let cap = (peak * 102).div_ceil(100).next_multiple_of(GRANULE);
        let modes: [(&str, Progress); 2] = [("never done", || false), ("done when asked", || true)];
        for (mode, progress) in modes {
            let report = play(&trace, progress, None);
            let ratio = report.reserved_ratio();
            let capped = play(&trace, progress, Some(cap));
            println!(
                "{name} {seed} ({mode}): {} events on {} streams, {} MiB: {ratio:.4}, capped {}",
                report.events,
                report.streams,
                peak >> 20,
                if capped.failed_allocs == 0 {
                    "passes"
                } else {
                    "FAILS"
                },
            );
            if std::env::var_os("WPALL").is_some() {
                continue;
            }
            // A granule is the least that memory comes in.
            let allowed = (peak as f64 * most) as u64;
            assert!(
                report.peak_reserved_bytes <= allowed.next_multiple_of(GRANULE),
                "{name} {seed} ({mode}): {ratio:.4} of {peak} bytes"
            );
            assert_eq!(
                capped.failed_allocs, 0,
                "{name} {seed} ({mode}) under a cap"
            );
        }
    }
}

#[test]
fn training_reserves_little_more_than_its_peak() {
    check("training", |seed| {
        programs::training(seed, 60, 64 * programs::MIB, 12)
    });
}

#[test]
fn training_of_a_small_model_reserves_little_more_than_its_peak() {
    check("small training", |seed| {
        programs::training(seed, 24, 12 * programs::MIB, 20)
    });
}

#[test]
fn inference_of_varying_length_reserves_little_more_than_its_peak() {
    check("inference", |seed| {
        programs::inference(seed, 6 << 30, 40, 500)
    });
}

#[test]
fn five_streams_whose_peaks_alternate_share_one_arena() {
    check("alternating", |seed| {
        programs::alternating(seed, 6 << 30, 15)
    });
    check("small alternating", |seed| {
        programs::alternating(seed, 400 << 20, 20)
    });
}

#[test]
fn small_blocks_by_the_ten_thousand_reserve_little_more_than_their_peak() {
    check("small blocks", |seed| {
        programs::small_blocks(seed, 60_000, 4)
    });
}

#[test]
fn diffusion_reserves_little_more_than_its_peak() {
    check("diffusion", |seed| programs::diffusion(seed, 256 << 20, 30));
    check("small diffusion", |seed| {
        programs::diffusion(seed, 24 << 20, 30)
    });
}

#[test]
fn rendering_reserves_little_more_than_its_peak() {
    check("rendering", |seed| programs::rendering(seed, 400, 300));
}
