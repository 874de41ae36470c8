//! What recorded programs reserve, and how many handles they remap: the bounds that the pool is held to.

use std::path::PathBuf;

use warpool::observe::{ReplayOptions, Report, Share, Trace, Verify, replay};

use crate::common;

/// A recorded program.
struct Recorded {
    name: &'static str,
    /// 2 MiB pages that hold a live byte, over live bytes, under an exact best fit in one endless
    /// range: less is out of reach without moves.
    floor: f64,
    /// Handles it may remap.
    remaps: u64,
}

const RECORDED: [Recorded; 8] = [
    recorded("gpt2_train_varlen", 1.002, 377),
    recorded("resnet50_train_varres", 1.002, 300),
    recorded("detect", 1.002, 308),
    recorded("moe", 1.004, 3_414),
    recorded("dino", 1.002, 454),
    recorded("llama", 1.002, 792),
    recorded("tables", 1.010, 1_300),
    recorded("rl", 1.048, 6_000),
];

const fn recorded(name: &'static str, floor: f64, remaps: u64) -> Recorded {
    Recorded {
        name,
        floor,
        remaps,
    }
}

impl Recorded {
    /// Its trace; `None`, said so, where that is not on this machine: the largest are kept beside the
    /// repository.
    fn trace(&self) -> Option<Trace> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let folders = ["traces", "../shared/traces", "../../shared/traces"];
        let file = format!("{}.csv.gz", self.name);
        let found = folders.map(|folder| root.join(folder).join(&file));
        let Some(path) = found.into_iter().find(|path| path.exists()) else {
            println!("skipped: no {file}");
            return None;
        };
        Some(Trace::read(path, u64::MAX).expect("reads"))
    }

    /// What it may reserve over its live peak.
    fn most(&self) -> f64 {
        f64::max(1.02, self.floor + 0.01)
    }
}

fn play(trace: &Trace, options: ReplayOptions) -> Report {
    let device = common::host();
    let options = options.verify(Verify::Off);
    replay(trace, &device, &options, &mut |_| ()).expect("the device does what it is told")
}

fn each(check: impl Fn(&Recorded, &Trace)) {
    for recorded in &RECORDED {
        if let Some(trace) = recorded.trace() {
            check(recorded, &trace);
        }
    }
}

#[test]
fn recorded_programs_reserve_a_fiftieth_more_than_their_peaks_and_remap_few_handles() {
    each(|recorded, trace| {
        let report = play(trace, ReplayOptions::default());
        let (name, ratio) = (recorded.name, report.reserved_ratio());
        println!(
            "{name}: {ratio:.4}, {} handles created, {} remapped",
            report.handles_made, report.handles_remapped
        );
        assert!(report.passed(), "{name}: {report}");
        assert!(ratio <= recorded.most(), "{name}: {ratio:.4}");
        assert!(report.handles_remapped <= recorded.remaps, "{name}");
    });
}

#[test]
fn recorded_programs_complete_under_a_cap_of_what_they_may_reserve() {
    each(|recorded, trace| {
        let cap = (trace.peak_live_bytes() as f64 * recorded.most()) as u64;
        let report = play(trace, ReplayOptions::default().cap(cap));
        assert!(report.passed(), "{}: {report}", recorded.name);
    });
}

#[test]
fn recorded_programs_of_movable_blocks_complete_under_a_cap_of_their_peak() {
    each(|recorded, trace| {
        // Each takes seconds: one of each kind of reuse.
        if !["resnet50_train_varres", "llama", "tables"].contains(&recorded.name) {
            return;
        }
        let cap = (trace.peak_live_bytes() as f64 * 1.005) as u64;
        let how = ReplayOptions::default().cap(cap).movable(Share::ALL, 1);
        let report = play(trace, how);
        assert!(report.passed(), "{}: {report}", recorded.name);
    });
}
