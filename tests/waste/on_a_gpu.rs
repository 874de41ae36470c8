//! Synthetic workloads on a GPU, where work is done when it is done and each mapping takes its time.

use warpool::observe::{ReplayOptions, Trace, Verify, replay};

use super::programs::{self, MIB};
use super::{LOOSE, programs_held_out, programs_varied, seeds};
use crate::common;

type Workload = (&'static str, fn(u64) -> Trace);

const WORKLOADS: [Workload; 8] = [
    ("sharded", |seed| {
        programs_varied::sharded(seed, 32, 96 * MIB, 8)
    }),
    ("five in turns", |seed| {
        programs_varied::in_turns(seed, 1500 * MIB, 5, 20)
    }),
    ("inference", |seed| {
        programs::inference(seed, 6 << 30, 40, 300)
    }),
    ("rendering", |seed| programs::rendering(seed, 400, 300)),
    ("serving", |seed| {
        programs_varied::serving(seed, 4 << 30, 24, 400)
    }),
    ("analytics", |seed| {
        programs_varied::analytics(seed, 512 * MIB, 3, 120)
    }),
    ("mixture", |seed| {
        programs_varied::mixture(seed, 5 << 30, 128 * MIB, 3, 12_000)
    }),
    ("five peaks", |seed| {
        programs_held_out::five_peaks(9000 + seed, 5 << 30, 20)
    }),
];

#[test]
fn synthetic_workloads_on_a_gpu_lose_no_byte() {
    let Some(device) = common::cuda() else { return };
    let workloads = if common::under_sanitizer() {
        &WORKLOADS[1..2]
    } else {
        &WORKLOADS[..]
    };
    for &(name, make) in workloads {
        for seed in 1..=seeds() {
            let trace = make(seed);
            let how = ReplayOptions::default().verify(Verify::Full);
            let report = replay(&trace, &device, &how, &mut |_| ());
            let report = report.expect("the device does what it is told");
            println!("{name} {seed}: {report}");
            assert!(report.passed(), "{name} {seed}: {report}");
            assert!(report.reserved_ratio() <= LOOSE, "{name} {seed}: {report}");
        }
    }
}
