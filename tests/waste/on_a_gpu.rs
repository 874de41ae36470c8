//! Made programs on a GPU, where work is done when it is done and each mapping takes its time.

use warpool::Device;
use warpool::observe::{ReplayOptions, Report, Trace, Verify, replay};

use super::programs::{self, MIB};
use super::{costs, more, seeds, unseen};
use crate::common;

/// A program by its name, and how many times its peak it may reserve.
type Made = (&'static str, f64, fn(u64) -> Trace);

/// When work is done differs from run to run here, and with it what is reserved: of analytics 1.0072 to
/// 1.0101 times its peak was seen.
const MADE: [Made; 8] = [
    ("sharded", 1.01, |seed| more::sharded(seed, 32, 96 * MIB, 8)),
    ("five in turns", 1.02, |seed| {
        more::in_turns(seed, 1500 * MIB, 5, 20)
    }),
    ("inference", 1.01, |seed| {
        programs::inference(seed, 6 << 30, 40, 300)
    }),
    ("rendering", 1.02, |seed| {
        programs::rendering(seed, 400, 300)
    }),
    ("serving", 1.012, |seed| {
        more::serving(seed, 4 << 30, 24, 400)
    }),
    ("analytics", 1.012, |seed| {
        more::analytics(seed, 512 * MIB, 3, 120)
    }),
    ("mixture", 1.015, |seed| {
        more::mixture(seed, 5 << 30, 128 * MIB, 3, 12_000)
    }),
    ("five peaks", 1.01, |seed| {
        unseen::five_peaks(9000 + seed, 5 << 30, 20)
    }),
];

fn play(trace: &Trace, device: &Device, options: &ReplayOptions) -> Report {
    let report = replay(trace, device, options, &mut |_| ());
    report.expect("the device does what it is told")
}

/// Part of the peak that a pool may grow by first, in the plays with room.
const ROOM: f64 = 0.05;

/// One play: nothing may be lost of it. What it reserved and took, in words, and the report.
fn played(name: &str, trace: &Trace, device: &Device, how: &ReplayOptions) -> (String, Report) {
    let report = play(trace, device, how);
    let lost = (report.corrupt_bytes, report.failed_allocs);
    assert_eq!(lost, (0, 0), "{name}, {how:?}");
    let said = format!("{:.4}, {}", report.reserved_ratio(), costs(&report));
    (said, report)
}

/// Printed beside it, not asserted: what mapping handles elsewhere takes of the replay's time, as the
/// pool is, with room, and never.
#[test]
fn made_programs_on_a_gpu_lose_no_byte_and_reserve_no_more_than_on_the_host() {
    let Some(device) = common::cuda() else { return };
    let _alone = common::alone_on_the_gpu();
    let made = if common::under_sanitizer() {
        &MADE[1..2]
    } else {
        &MADE[..]
    };
    for &(name, most, make) in made {
        for seed in 1..=seeds() {
            let trace = make(seed);
            for verify in [Verify::Full, Verify::Off] {
                let how = ReplayOptions::default().verify(verify);
                let (usual, report) = played(name, &trace, &device, &how);
                let (roomy, _) = played(name, &trace, &device, &how.clone().slack(ROOM));
                let (grown, never) = played(name, &trace, &device, &how.clone().remap(false));
                println!(
                    "{name} {seed}, verify {verify:?}: {} MiB: {usual}; with slack {ROOM} {roomy}; \
                     without remaps {grown}; {:.2} times its time",
                    trace.peak_live_bytes >> 20,
                    report.wall.as_secs_f64() / never.wall.as_secs_f64(),
                );
                assert!(
                    report.reserved_ratio() <= most,
                    "{name} {seed}: {:.4}, {most} allowed",
                    report.reserved_ratio()
                );
            }
        }
    }
}
