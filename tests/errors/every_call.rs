//! Every device call on every public path fails at its k-th use, once and for ever, and with
//! out-of-memory where it may. The caller gets an error that says so, the books stay whole, and
//! when the device works again so does everything, with nothing left behind.
//!
//! Which calls there are is said by `common::watched`, where a call that is left out does not
//! compile; a path is a function of `paths`. What a path uses is counted first, without a failure.

use crate::common;
use crate::paths;

use crate::common::BackendOf;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::sanitized::Sanitized;
use common::watched::{CALLS, MADE_TO_FAIL, OUT_OF_MEMORY, Watched};
use paths::{LIMIT, PATHS, Path, Stage};
use warpool::device::HandleCounts;
use warpool::device::sim::SimConfig;
use warpool::{Device, Error};

/// Uses of a call, from the first on, that fail in turn; the last one does too.
const USES: u64 = 4;

/// Calls by which a driver says that it is out of memory.
const EXHAUSTIBLE: &[&str] = &[
    "reserve",
    "create",
    "host_alloc",
    "map",
    "stream_create",
    "event_create",
    "event_record",
    "copy_in",
    "copy_out",
    "launch",
    "host_call",
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
        heal: &|| watched.heal(),
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
            let brief = common::under_sanitizer();
            let most = if brief { 1 } else { USES };
            let numbers: BTreeSet<u64> = (1..=uses.min(most)).chain([uses]).collect();
            for &code in codes {
                for &number in &numbers {
                    for for_ever in [false, true] {
                        // A sanitizer takes its time: out of memory for ever, all else once.
                        if brief && for_ever != (code == OUT_OF_MEMORY) {
                            continue;
                        }
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

/// Calls that no public path makes but on the host device, whose simulated ranks are host calls.
const OF_THE_HOST: &[&str] = &["host_call"];

fn survives(open: &dyn Fn() -> Device, unused: &[&str]) {
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
        unused.iter().collect::<Vec<_>>(),
        "calls that never failed"
    );
}

#[test]
fn every_failure_on_the_host_device_is_survived() {
    survives(&|| Device::host_with_capacity(2 * LIMIT).unwrap(), &[]);
}

#[test]
fn every_failure_on_the_simulated_device_is_survived() {
    let sim = SimConfig::default().with_capacity(2 * LIMIT);
    survives(&|| Device::sim(&sim).unwrap(), OF_THE_HOST);
}

#[test]
fn every_failure_on_the_gpu_is_survived() {
    if common::cuda().is_some() {
        survives(&|| Device::cuda(0).unwrap(), OF_THE_HOST);
    }
}
