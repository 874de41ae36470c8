//! The command line as a user meets it: what it prints where, and how it exits.
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// The keys of a replay's JSON object.
const KEYS: [&str; 26] = [
    "trace",
    "device",
    "result",
    "reason",
    "cap",
    "verify",
    "events",
    "streams",
    "peak_live_bytes",
    "reached_live_bytes",
    "peak_reserved_bytes",
    "reserved_ratio",
    "overhead_bytes",
    "largest_hole_bytes",
    "alloc_ns_p50",
    "alloc_ns_p99",
    "free_ns_p50",
    "free_ns_p99",
    "verified_bytes",
    "corrupt_bytes",
    "failed_allocs",
    "handles_made",
    "handles_remapped",
    "bytes_moved",
    "compactions",
    "wall_s",
];

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// The command line; elsewhere than where it was built if the environment says so.
fn binary() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_warpool")
        .map_or_else(|| env!("CARGO_BIN_EXE_warpool").into(), PathBuf::from)
}

fn warpool(args: &[&str]) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(binary()).args(args).output().expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran {
        code: status.code(),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn recorded(name: &str) -> String {
    repository().join("traces").join(name).display().to_string()
}

/// A trace file with these rows.
fn file(rows: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = write(dir.path(), "t.csv", format!("{HEADER}{rows}").as_bytes());
    (dir, path)
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    File::create(&path)
        .and_then(|mut file| file.write_all(bytes))
        .expect("writes");
    path.display().to_string()
}

fn json(ran: &Ran) -> Value {
    assert_eq!(
        ran.stdout.lines().count(),
        1,
        "one line and nothing else: {}",
        ran.stdout
    );
    serde_json::from_str(&ran.stdout).expect("one JSON object")
}

#[test]
fn a_replay_ends_with_a_report_a_person_reads() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n1,0,free,0x10,4096,0\n");
    let ran = warpool(&["replay", &path, "--device", "host"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for name in [
        "trace",
        "device",
        "events",
        "peak live",
        "peak reserved",
        "largest hole",
        "handles",
        "alloc",
        "free",
        "moved",
        "verified",
        "corrupt",
        "failed",
        "result",
    ] {
        assert!(
            ran.stdout.lines().any(|line| line.starts_with(name)),
            "{name}:\n{}",
            ran.stdout
        );
    }
    assert!(
        ran.stdout
            .contains("4.00 KiB, 4 KiB at both ends of each block"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.stderr, "", "no progress bar where there is no terminal");
}

#[test]
fn json_is_one_object_with_the_documented_keys_and_nothing_else() {
    let (_dir, path) = file("1,0,allocate,0x10,9000,0\n1,0,free,0x10,9000,1\n");
    let ran = warpool(&[
        "replay", &path, "--device", "host", "--verify", "full", "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let object = json(&ran);
    let mut found: Vec<&str> = object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    let mut keys = KEYS.to_vec();
    found.sort_unstable();
    keys.sort_unstable();
    assert_eq!(found, keys);
    assert_eq!(object["events"], 2);
    assert_eq!(object["streams"], 2);
    assert_eq!(object["verified_bytes"], 9000);
    assert_eq!(object["corrupt_bytes"], 0);
    assert_eq!(object["peak_live_bytes"], 9000);
    assert_eq!(object["trace"], path);
}

#[test]
fn several_traces_give_one_object_a_line_and_the_worst_exit_code() {
    let (_dir, good) = file("1,0,allocate,0x10,4096,0\n");
    let (_dir2, bad) = file("1,0,free,0x10,4096,0\n");
    let ran = warpool(&["replay", &good, &good, "--device", "host", "--json"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 2));
    let ran = warpool(&["replay", &bad, &good, "--device", "host", "--json"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(json(&ran)["trace"], good);
}

#[test]
fn verification_can_be_off_on_the_edges_or_full() {
    let (_dir, path) = file("1,0,allocate,0x10,1000000,0\n");
    for (verify, bytes) in [("off", 0), ("edges", 8192), ("full", 1_000_000)] {
        let ran = warpool(&[
            "replay", &path, "--device", "host", "--verify", verify, "--json",
        ]);
        assert_eq!(json(&ran)["verified_bytes"], bytes, "{verify}");
    }
    let ran = warpool(&["replay", &path, "--device", "host", "--json"]);
    assert_eq!(
        json(&ran)["verified_bytes"],
        8192,
        "edges is the default on the host"
    );
}

#[test]
fn auto_says_which_device_it_took_and_keeps_standard_output_clean() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n");
    let ran = warpool(&["replay", &path, "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let device = json(&ran)["device"].as_str().expect("a text").to_owned();
    assert!(
        ran.stderr.starts_with(&format!("device: {device}")),
        "{}",
        ran.stderr
    );
    let line = ran.stderr.trim_end();
    assert!(
        line.lines().count() == 1 && line.len() < 100,
        "one short line: {line}"
    );
    if !device.starts_with("cuda") {
        assert!(
            line.ends_with("(no CUDA device: `warpool info` says why)"),
            "{line}"
        );
    }
}

#[test]
fn a_cap_below_one_granule_is_an_error_that_says_so() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n");
    let ran = warpool(&["replay", &path, "--device", "host", "--cap", "2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    for part in ["cap: 2 bytes", "one granule of the device, 2.00 MiB", "4G"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = warpool(&[
        "replay", &path, "--device", "host", "--cap", "1.5GiB", "--json",
    ]);
    assert_eq!(json(&ran)["cap"], 3u64 << 29);
}

#[test]
fn a_trace_is_read_from_standard_input_plain_or_gzip() {
    let rows = format!("{HEADER}1,0,allocate,0x10,4096,0\n");
    let gzip = std::fs::read(recorded("five_streams.csv.gz")).expect("reads");
    for (bytes, least) in [(rows.as_bytes(), 1), (&gzip, 1000)] {
        let mut command = Command::new(binary());
        command.args(["replay", "-", "--device", "host", "--json"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("runs");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(bytes).expect("writes");
        drop(pipe);
        let ran = child.wait_with_output().expect("ends");
        let object: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        assert_eq!(object["trace"], "standard input");
        assert!(object["events"].as_u64() >= Some(least), "{object}");
    }
}

#[test]
fn full_verification_on_the_host_says_beforehand_how_long_it_will_take() {
    // Terabytes in all, of which the first block does not fit under the limit.
    let rows: String = (0..100_000)
        .map(|n| format!("1,0,allocate,{n},33554432,0\n1,0,free,{n},33554432,0\n"))
        .collect();
    let (_dir, path) = file(&rows);
    let full = [
        "replay", &path, "--device", "host", "--cap", "2M", "--verify",
    ];
    let ran = warpool(&[&full[..], &["full"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let note = "note: full verification writes and reads 3.05 TiB on the host: about ";
    assert!(ran.stderr.starts_with(note), "{}", ran.stderr);
    let ran = warpool(&[&full[..], &["edges"]].concat());
    assert!(!ran.stderr.contains("note:"), "{}", ran.stderr);
}

#[test]
fn the_recorded_traces_replay_on_the_host_without_a_corrupt_byte_in_little_memory() {
    for name in [
        "resnet50_train_varres.csv.gz",
        "gpt2_train_varlen.csv.gz",
        "five_streams.csv.gz",
    ] {
        let ran = warpool(&["replay", &recorded(name), "--device", "host", "--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let object = json(&ran);
        assert_eq!(
            (&object["corrupt_bytes"], &object["failed_allocs"]),
            (&0.into(), &0.into())
        );
        assert!(object["reserved_ratio"].as_f64() <= Some(1.10), "{object}");
    }
    // SAFETY: an all-zero rusage is a valid one, and the call writes it whole.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    let most = usage.ru_maxrss as u64 * 1024;
    assert!(
        most < 4 << 30,
        "a trace of 17.8 GiB took {most} bytes of real memory"
    );
}

#[test]
fn without_remaps_or_with_slack_a_trace_is_played_in_a_pool_that_grows() {
    let rows: String = (0..64)
        .map(|at| format!("1,0,allocate,{at},3000000,0\n"))
        .chain(
            (0..64)
                .step_by(2)
                .map(|at| format!("1,0,free,{at},3000000,0\n")),
        )
        .chain(["1,0,allocate,99,60000000,0\n".to_owned()])
        .collect();
    let (_dir, path) = file(&rows);
    let reserved = |more: &[&str]| {
        let ran = warpool(&[&["replay", &path, "--device", "host", "--json"], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        json(&ran)["peak_reserved_bytes"]
            .as_u64()
            .expect("a number")
    };
    assert!(reserved(&["--no-remap"]) >= 64 * 3_000_000 + 60_000_000);
    assert!(reserved(&["--slack", "1"]) >= 64 * 3_000_000 + 60_000_000);
    assert!(reserved(&["--slack", "0"]) < 64 * 3_000_000 + 30_000_000);
    assert!(reserved(&[]) < 64 * 3_000_000 + 30_000_000);
    let ran = warpool(&["replay", &path, "--device", "host", "--no-remap"]);
    assert!(
        ran.stdout.contains(" made, 0 mapped elsewhere"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_cap_of_half_the_peak_ends_in_words_and_exit_code_1() {
    let trace = recorded("resnet50_train_varres.csv.gz");
    let ran = warpool(&[
        "replay", &trace, "--device", "host", "--cap", "0.5x", "--json",
    ]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let object = json(&ran);
    assert_eq!(object["failed_allocs"], 1);
    let limit =
        (object["peak_live_bytes"].as_u64().expect("a number") / 2).next_multiple_of(2 << 20);
    assert!(object["peak_reserved_bytes"].as_u64() <= Some(limit));
    assert_eq!(
        (&object["result"], &object["cap"]),
        (&"failed".into(), &limit.into())
    );
    assert_eq!(object["verify"], "edges");
    let reason = object["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("stopped after ") && reason.contains("out of memory"),
        "{reason}"
    );
    // The ratio is of what was reached, not of a peak that the replay never came to.
    let number = |key: &str| object[key].as_f64().expect("a number");
    let reached = number("reached_live_bytes");
    assert!(
        reached < number("peak_live_bytes") && reached > 0.0,
        "{object}"
    );
    let ratio = number("peak_reserved_bytes") / reached;
    assert!(
        (number("reserved_ratio") - ratio).abs() < 1e-5 && ratio >= 1.0,
        "{object}"
    );
    for part in [
        "out of memory",
        "requested",
        "live",
        "of a limit of 2.51 GiB",
        "raise the limit",
    ] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("leak"), "{}", ran.stderr);
}

#[test]
fn a_cap_in_bytes_is_rounded_up_to_one_granule() {
    let (_dir, path) = file("1,0,allocate,0x10,2097152,0\n");
    let ran = warpool(&[
        "replay", &path, "--device", "host", "--cap", "2097153", "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(json(&ran)["cap"], 4 << 20);
    assert_eq!(json(&ran)["peak_reserved_bytes"], 2 << 20);
}

#[test]
fn full_on_the_host_is_refused_where_the_trace_exceeds_the_free_memory() {
    // Many blocks: each fits the device, all of them no machine.
    let rows: String = (0..100_000)
        .map(|n| format!("1,0,allocate,{n},{},0\n", 1u64 << 34))
        .collect();
    let (_dir, path) = file(&rows);
    let ran = warpool(&[
        "replay", &path, "--device", "host", "--verify", "full", "--json",
    ]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert!(
        ran.stderr.contains("of memory free; verify only the edges"),
        "{}",
        ran.stderr
    );
}

#[test]
fn every_unusable_trace_is_one_error_with_file_and_line_and_exit_code_2() {
    let dir = tempfile::tempdir().expect("a folder");
    let gzip = std::fs::read(recorded("resnet50_train_varres.csv.gz")).expect("reads");
    let live = "1,0,allocate,0x10,4096,0\n";
    let rows = |rows: &str| format!("{HEADER}{rows}").into_bytes();
    for (bytes, line, part) in [
        (Vec::new(), ":1:", "the file is empty"),
        (HEADER.as_bytes().to_vec(), ":1:", "no events"),
        (rows("1,0,allocate\n"), ":2:", "3 fields"),
        (rows("1,0,grow,0x10,4096,0\n"), ":2:", "unknown action"),
        (rows("1,0,free,0x10,4096,0\n"), ":2:", "is not live"),
        (rows(&format!("{live}{live}")), ":3:", "allocated again"),
        (
            rows(&format!("{live}1,0,free,0x10,1,0\n")),
            ":3:",
            "was allocated with 4096",
        ),
        (
            rows("1,0,allocate,0x10,9000000000000000000,0\n"),
            ":2:",
            "more than the whole device",
        ),
        (gzip[..gzip.len() / 2].to_vec(), ":", "truncated"),
    ] {
        let path = write(dir.path(), "bad.csv", &bytes);
        let ran = warpool(&["replay", &path, "--device", "host", "--json"]);
        assert_eq!(ran.code, Some(2), "{part}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{part}");
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(
            ran.stderr.starts_with(&format!("error: {path}{line}")),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = warpool(&["replay", "/nowhere/t.csv", "--device", "host"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.starts_with("error: /nowhere/t.csv: cannot open"),
        "{}",
        ran.stderr
    );
}

#[test]
fn wrong_arguments_exit_with_2_and_say_what_is_expected() {
    for (args, part) in [
        (
            &["replay", "t", "--device", "gpu"][..],
            "expected auto, host or cuda:N",
        ),
        (&["replay", "t", "--cap", "1.02"], "expected a size"),
        (&["replay", "t", "--cap", "0x"], "must be more than 0"),
        (&["replay", "t", "--slack", "NaN"], "a number from 0"),
        (&["replay", "t", "--slack=-1"], "a number from 0"),
        (&["replay", "t", "--slack", "inf"], "a number from 0"),
        (&["replay", "t", "--verify", "some"], "full"),
        (&["replay", "t", "--versus", "jemalloc"], "cuda-async"),
        (&["replay"], "<TRACE>"),
        (&["nonsense"], "nonsense"),
    ] {
        let ran = warpool(args);
        assert_eq!(ran.code, Some(2), "{args:?}");
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_says_what_is_missing() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n");
    let ran = warpool(&["replay", &path, "--device", "cuda:4000"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

#[test]
fn another_allocator_that_the_device_does_not_have_is_an_error_in_words() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n");
    let ran = warpool(&[
        "replay",
        &path,
        "--device",
        "host",
        "--versus",
        "cuda-async",
        "--json",
    ]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    for part in ["cudaMallocAsync", "not a GPU"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
}

/// The command line with its standard output going to `to`.
fn into(to: impl Into<Stdio>, args: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    let ran = command.args(args).stdout(to).stderr(Stdio::piped());
    let ran = ran.spawn().and_then(|child| child.wait_with_output());
    let ran = ran.expect("runs");
    Ran {
        code: ran.status.code(),
        stdout: String::new(),
        stderr: String::from_utf8(ran.stderr).expect("UTF-8"),
    }
}

#[test]
fn output_that_is_lost_is_an_error() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n1,0,free,0x10,4096,0\n");
    let replay = ["replay", &path, "--device", "host"];
    for args in [
        &[&replay[..], &["--json"]].concat()[..],
        &replay,
        &["info"],
        &["--help"],
        &["help", "replay"],
        &["replay", "--help"],
        &["--version"],
    ] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("opens");
        let (gone, pipe) = std::io::pipe().expect("a pipe");
        drop(gone);
        for ran in [into(full, args), into(pipe, args)] {
            assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
            let said = ran.stderr.starts_with("error: standard output: ");
            assert!(said && ran.stderr.lines().count() == 1, "{}", ran.stderr);
        }
    }
}

#[test]
fn a_note_that_is_lost_is_an_error_too() {
    let (_dir, path) = file("1,0,allocate,0x10,4096,0\n");
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("opens");
    let mut command = Command::new(binary());
    let ran = command.args(["replay", &path, "--json"]).stderr(full);
    assert_eq!(ran.output().expect("runs").status.code(), Some(2));
}

#[test]
fn info_names_the_kernels_the_gpus_or_why_there_are_none_and_the_host() {
    let ran = warpool(&["info"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let kernels = warpool::driver::build_info::kernels().to_string();
    let starts = |start: &str| ran.stdout.lines().any(|line| line.starts_with(start));
    assert!(ran.stdout.contains(&kernels), "{}", ran.stdout);
    assert!(starts("features  cli"), "{}", ran.stdout);
    assert!(starts("host"), "{}", ran.stdout);
    match warpool::Device::cuda(0) {
        Ok(device) => assert!(ran.stdout.contains(&device.info().name), "{}", ran.stdout),
        Err(error) => assert!(ran.stdout.contains(&error.to_string()), "{}", ran.stdout),
    }
}

#[test]
fn info_is_json_for_a_program() {
    let ran = warpool(&["info", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let info = json(&ran);
    assert_eq!(info["warpool"], env!("CARGO_PKG_VERSION"));
    let built = warpool::driver::build_info::kernels();
    assert_eq!(
        info["kernels"]["toolkit"],
        built.toolkit.map_or(Value::Null, Value::from)
    );
    assert_eq!(
        info["kernels"]["left_out"],
        built.left_out.map_or(Value::Null, Value::from)
    );
    assert!(
        info["host"]["total_bytes"].as_u64() > Some(1 << 30),
        "{info}"
    );
    match warpool::Device::cuda(0) {
        Ok(device) => assert_eq!(info["cuda"]["gpus"][0]["name"], device.info().name),
        Err(error) => assert_eq!(info["cuda"]["reason"], error.to_string()),
    }
    let features = info["features"].as_array().expect("a list");
    assert_eq!(
        features.contains(&"sanitize".into()),
        cfg!(feature = "sanitize")
    );
}

#[test]
fn the_help_is_wrapped_to_the_terminal() {
    for (columns, most) in [("60", 60), ("300", 100)] {
        let mut command = Command::new(binary());
        command.args(["replay", "--help"]).env("COLUMNS", columns);
        let text = String::from_utf8(command.output().expect("runs").stdout).expect("UTF-8");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(
            widest <= Some(most) && widest > Some(most - 12),
            "{widest:?}: {text}"
        );
    }
}

#[test]
fn the_help_says_what_each_verification_needs() {
    let help = warpool(&["replay", "--help"])
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for part in [
        "auto",
        "cuda:N",
        "1.02x",
        "18 GiB trace runs in 4 GiB",
        "Exit code: 0",
    ] {
        assert!(help.contains(part), "{part} is not in {help}");
    }
}

#[test]
fn documents_and_plots_are_what_the_kept_measurements_make() {
    let root = repository().display().to_string();
    let ran = warpool(&["benchmarks", "--check", "--root", &root]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[cfg(feature = "convert")]
#[test]
fn the_kernels_are_measured_beside_a_copy_on_the_same_device() {
    let ran = warpool(&["bench", "--quick", "--device", "host"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut lines = ran.stdout.lines();
    let host = warpool::Device::host().expect("the host device");
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with(&host.info().name))
    );
    let columns = ["us", "GB/s", "of", "copy", "wanted"];
    assert!(
        lines
            .next()
            .is_some_and(|line| line.split_whitespace().eq(columns))
    );
    let mut copy = None;
    let mut kernels = 0;
    for line in lines
        .by_ref()
        .take_while(|line| !line.contains("its times say nothing"))
    {
        let mut numbers = line
            .split_whitespace()
            .rev()
            .map(|word| word.parse::<f64>());
        let mut next = || numbers.next().expect("a column").expect(line);
        let (wanted, part, speed, us) = (next(), next(), next(), next());
        assert!(us > 0.0 && (0.0..=1.0).contains(&wanted), "{line}");
        let copy = *copy.get_or_insert(speed);
        // Each is rounded to a digit or three.
        assert!(
            (speed / copy - part).abs() < 0.01 + 0.1 / copy + 0.1 * part / copy,
            "{line}"
        );
        kernels += 1;
    }
    assert!(kernels > 20 && copy.is_some(), "{}", ran.stdout);
    assert!(!ran.stdout.contains("off: "), "{}", ran.stdout);
    assert_eq!(
        warpool(&["bench", "--quick", "--device", "cuda:77"]).code,
        Some(2)
    );
}
