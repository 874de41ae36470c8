//! Made programs on a GPU, where work is done when it is done and each mapping takes its time.

use warpool::Device;
use warpool::observe::{ReplayOptions, Report, Trace, Verify, replay};

use super::programs::{self, MIB};
use super::{costs, more, seeds, unseen};
use crate::common;

/// A program by its name, and how many times its peak it may reserve.
type Made = (&'static str, f64, fn(u64) -> Trace);

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
    ("serving", 1.016, |seed| {
        more::serving(seed, 4 << 30, 24, 400)
    }),
    ("analytics", 1.01, |seed| {
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

/// Printed beside it, not asserted: what mapping handles elsewhere takes of the replay's time.
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
                let options = ReplayOptions::default().verify(verify);
                let report = play(&trace, &device, &options);
                let grown = play(&trace, &device, &options.clone().remap(false));
                println!(
                    "{name} {seed}, verify {verify:?}: {} MiB: {:.4}, {}; without remaps {:.4}, {}; \
                     {:.2} times its time",
                    trace.peak_live_bytes >> 20,
                    report.reserved_ratio(),
                    costs(&report),
                    grown.reserved_ratio(),
                    costs(&grown),
                    report.wall.as_secs_f64() / grown.wall.as_secs_f64(),
                );
                assert_eq!(
                    (report.corrupt_bytes, report.failed_allocs),
                    (0, 0),
                    "{name}"
                );
                assert_eq!((grown.corrupt_bytes, grown.failed_allocs), (0, 0), "{name}");
                assert!(
                    report.reserved_ratio() <= most,
                    "{name} {seed}: {:.4}, {most} allowed",
                    report.reserved_ratio()
                );
            }
        }
    }
}
