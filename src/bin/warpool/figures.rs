//! Checks every figure of a replay's JSON with an unusual value: replays through the command line,
//! on a device that corrupts, leaves out, delays or counts calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use warpool::Device;
use warpool::device::{Launch, RawStream};
use warpool::driver::abi;
use warpool::observe::device_name;

use crate::args::{Args, Command};
use crate::outcome::{Console, Outcome};
use crate::replay::run_on;
use crate::watched::Watched;

const MIB: u64 = 1 << 20;
const SLOW: Duration = Duration::from_millis(20);
const SLOW_NS: u64 = SLOW.as_nanos() as u64;

/// A replay's outcome, its JSON, and its notes.
struct Played {
    outcome: Outcome,
    json: Value,
    notes: String,
}

impl Played {
    fn number(&self, key: &str) -> u64 {
        self.json[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {}", self.json))
    }
}

/// Replays a trace of these rows with these arguments, on a device that calls `before` ahead of
/// each call.
fn play(
    rows: &[String],
    arguments: &[&str],
    mut before: impl FnMut(&Device, &str, Option<(&Launch, RawStream)>) -> bool + Send + 'static,
) -> Played {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.csv");
    let text = format!(
        "Thread,Time,Action,Pointer,Size,Stream\n{}\n",
        rows.join("\n")
    );
    std::fs::write(&path, text).expect("writes");
    let line = ["warpool", "replay", path.to_str().expect("UTF-8"), "--json"];
    let args = Args::try_parse_from(line.iter().chain(arguments)).expect("arguments");
    let Command::Replay(options) = args.command else {
        panic!("no replay")
    };
    let host = Device::host().expect("the host device");
    let (device, watched) = Watched::over(&host);
    watched.before(move |call, launch| before(&host, call, launch));
    drop(watched);
    let (mut results, mut notes) = (Vec::new(), Vec::new());
    let outcome = run_on(
        device,
        &options,
        &mut Console::new(&mut results, &mut notes),
    );
    let results = String::from_utf8(results).expect("UTF-8");
    assert_eq!(results.lines().count(), 1, "{results}");
    Played {
        outcome,
        json: serde_json::from_str(&results).expect("JSON"),
        notes: String::from_utf8(notes).expect("UTF-8"),
    }
}

/// The same as [`play`], on an unchanged device.
fn plainly(rows: &[String], arguments: &[&str]) -> Played {
    let played = play(rows, arguments, |_, _, _| true);
    assert_eq!(played.notes, "");
    assert_eq!(played.outcome, Outcome::Ok);
    played
}

fn alloc(block: u64, bytes: u64, stream: u64) -> String {
    format!("1,0,allocate,{block},{bytes},{stream}")
}

fn free(block: u64, bytes: u64, stream: u64) -> String {
    format!("1,0,free,{block},{bytes},{stream}")
}

/// 32 blocks of 3 MiB, every other one freed, and one more that only fits into the freed memory if
/// handles are remapped or blocks are moved.
fn scattered() -> Vec<String> {
    let all = (0..32).map(|n| alloc(n, 3 * MIB, 0));
    let gone = (0..32).step_by(2).map(|n| free(n, 3 * MIB, 0));
    all.chain(gone).chain([alloc(99, 40 * MIB, 0)]).collect()
}

/// 64 blocks of every size up to 3 MiB, every other one freed, and one as large as the free memory.
fn moved() -> Vec<String> {
    let bytes = |n: u64| (1 + n * 37 % 96) * 32_768;
    let sum: u64 = (0..64).map(bytes).sum();
    let left: u64 = (1..64).step_by(2).map(bytes).sum();
    let all = (0..64).map(|n| alloc(n, bytes(n), n % 2));
    let gone = (0..64).step_by(2).map(|n| free(n, bytes(n), n % 2));
    let last = alloc(100, sum.next_multiple_of(2 * MIB) - left, 0);
    all.chain(gone).chain([last]).collect()
}

/// Whether a call is the verification of a block.
fn verifies(launch: Option<(&Launch, RawStream)>) -> Option<(&abi::wp_pattern, RawStream)> {
    match launch {
        Some((Launch::Pattern(pattern), stream)) if pattern.op == abi::WP_VERIFY => {
            Some((pattern, stream))
        }
        _ => None,
    }
}

#[test]
fn what_a_trace_says_is_reported() {
    let rows = [alloc(1, 5000, 7), alloc(2, 3 * MIB, 8), free(1, 5000, 9)];
    let played = plainly(&rows, &[]);
    let trace = played.json["trace"].as_str().expect("a text");
    assert!(trace.ends_with("/t.csv"), "{trace}");
    let host = device_name(&Device::host().expect("the host device"));
    assert_eq!(played.json["device"], host);
    assert_eq!((played.number("events"), played.number("streams")), (3, 3));
    assert_eq!(played.number("peak_live_bytes"), 3 * MIB + 5000);
    assert_eq!(played.number("verified_bytes"), 5000 + 8192);
    let full = plainly(&rows, &["--verify", "full"]);
    assert_eq!(full.number("verified_bytes"), 3 * MIB + 5000);
}

#[test]
fn corrupt_bytes_are_counted_and_fail_the_replay() {
    for spoilt in [1, 3] {
        let rows = [alloc(1, 9000, 0), alloc(2, 9000, 0), free(1, 9000, 0)];
        let played = play(&rows, &[], move |host, _, launch| {
            if let Some((pattern, stream)) = verifies(launch) {
                // SAFETY: used only for the fill below.
                let work = unsafe { host.raw_backend() };
                // SAFETY: the block is live, and the fill is queued after its stamp.
                unsafe { work.fill(pattern.addr, 0xA5, spoilt, stream) }.expect("fills");
            }
            true
        });
        assert_eq!(played.outcome, Outcome::Failed);
        let corrupt = played.number("corrupt_bytes");
        // One byte in 256 is unchanged by chance.
        assert!((1..=2 * spoilt).contains(&corrupt), "{corrupt} of {spoilt}");
        assert!(
            played.notes.contains("corrupt: memory was handed out"),
            "{}",
            played.notes
        );
    }
}

#[test]
fn a_replay_that_verified_nothing_fails_and_says_why() {
    let rows = [alloc(1, 9000, 0), free(1, 9000, 0)];
    let played = play(&rows, &[], |_, _, launch| verifies(launch).is_none());
    assert_eq!(played.number("verified_bytes"), 0);
    assert_eq!(played.outcome, Outcome::Failed);
    let owed = "0 B verified of the 8.00 KiB owed: the check is incomplete";
    assert!(played.notes.contains(owed), "{}", played.notes);
    play(&rows, &["--verify", "off"], |_, _, launch| {
        verifies(launch).is_none()
    });
}

#[test]
fn a_request_that_does_not_fit_is_counted() {
    let played = play(&scattered(), &["--cap", "1.0x", "--no-remap"], |_, _, _| {
        true
    });
    assert_eq!(played.outcome, Outcome::Failed);
    assert_eq!(played.number("failed_allocs"), 1);
    assert_eq!(played.number("events"), 48);
}

#[test]
fn handles_made_and_mapped_elsewhere_are_those_of_the_device() {
    for (arguments, elsewhere) in [(&[][..], true), (&["--no-remap"], false)] {
        let made = Arc::new(AtomicU64::new(0));
        let mapped = Arc::new(AtomicU64::new(0));
        let (creates, maps) = (Arc::clone(&made), Arc::clone(&mapped));
        let played = play(&scattered(), &[arguments, &["--verify", "off"]].concat(), {
            move |_, call, _| {
                creates.fetch_add(u64::from(call == "create"), Ordering::Relaxed);
                maps.fetch_add(u64::from(call == "map"), Ordering::Relaxed);
                true
            }
        });
        let (made, mapped) = (made.load(Ordering::Relaxed), mapped.load(Ordering::Relaxed));
        assert_eq!(played.number("handles_made"), made);
        assert_eq!(played.number("handles_remapped"), mapped - made);
        assert_eq!(mapped > made, elsewhere, "{}", played.json);
        // After a release, the pool's peak may be a little more than its present handles.
        let reserved = played.number("peak_reserved_bytes");
        assert!(reserved >= 3 * 32 * MIB && reserved.is_multiple_of(2 * MIB));
        let ratio = played.json["reserved_ratio"].as_f64().expect("a number");
        let live = played.number("peak_live_bytes") as f64;
        assert!((ratio - reserved as f64 / live).abs() < 1e-5);
    }
}

#[test]
fn the_largest_hole_is_that_of_the_end() {
    let all = (0..32).map(|n| alloc(n, 3 * MIB, 0));
    let gone = (0..30).map(|n| free(n, 3 * MIB, 1));
    let rows: Vec<String> = all.chain(gone).collect();
    let played = plainly(&rows, &[]);
    let hole = played.number("largest_hole_bytes");
    let free = played.number("peak_reserved_bytes") - 2 * 3 * MIB;
    assert!((3 * MIB..=free).contains(&hole), "{}", played.json);
    assert_eq!(plainly(&rows[..1], &[]).number("largest_hole_bytes"), MIB);
}

#[test]
fn what_compaction_moved_and_how_long_it_took_is_reported() {
    let steps = Arc::new(AtomicU64::new(0));
    let launches = Arc::clone(&steps);
    let arguments = ["--cap", "1.0x", "--movable", "all"];
    let played = play(&moved(), &arguments, move |_, _, launch| {
        if matches!(launch, Some((Launch::Relocate(_) | Launch::Slide(_), _))) {
            launches.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(SLOW);
        }
        true
    });
    assert_eq!(played.outcome, Outcome::Ok, "{}", played.notes);
    assert!(steps.load(Ordering::Relaxed) > 0);
    assert!(played.number("compactions") > 0 && played.number("bytes_moved") >= MIB);
    assert_eq!(played.json["movable"], 1.0);
    assert!(played.number("overhead_bytes") > 0);
    for key in [
        "step_ns_p50",
        "step_ns_p99",
        "move_ns_p50",
        "move_ns_p99",
        "move_ns",
    ] {
        assert!(played.number(key) >= SLOW_NS, "{key}: {}", played.json);
    }
    assert_eq!(plainly(&moved(), &[]).number("overhead_bytes"), 0);
    let still = plainly(&moved(), &["--movable", "0.25"]);
    assert_eq!(still.json["movable"], 0.25);
    for key in [
        "compactions",
        "bytes_moved",
        "step_ns_p50",
        "step_ns_p99",
        "move_ns",
    ] {
        assert_eq!(still.number(key), 0, "{key}: {}", still.json);
    }
}

#[test]
fn the_seed_draws_which_blocks_may_be_moved() {
    let moved = |seed: &str| {
        let arguments = ["--cap", "1.0x", "--movable", "0.5", "--seed", seed];
        let played = play(&moved(), &arguments, |_, _, _| true);
        ["bytes_moved", "compactions", "failed_allocs"].map(|key| played.number(key))
    };
    assert_eq!(moved("7"), moved("7"));
    assert!(
        ["1", "2", "3", "4", "5"]
            .into_iter()
            .any(|seed| moved(seed) != moved("7"))
    );
}

#[test]
fn slow_calls_show_in_the_percentiles_and_the_wall_time() {
    // Two blocks in forty need new memory, and each driver call for that is slow.
    let few: Vec<String> = (0..38)
        .flat_map(|n| [alloc(n, 4096, 0), free(n, 4096, 0)])
        .chain([alloc(50, 64 * MIB, 0), alloc(51, 64 * MIB, 0)])
        .collect();
    let played = play(&few, &[], |_, call, _| {
        if call == "map" {
            std::thread::sleep(SLOW);
        }
        true
    });
    assert!(
        (1..SLOW_NS).contains(&played.number("alloc_ns_p50")),
        "{}",
        played.json
    );
    assert!(played.number("alloc_ns_p99") >= SLOW_NS, "{}", played.json);
    let wall = played.json["wall_s"].as_f64().expect("a number");
    assert!((0.04..60.0).contains(&wall), "{wall}");
    assert!(plainly(&few, &[]).json["wall_s"].as_f64() < Some(wall));
}
