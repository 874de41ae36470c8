//! A program's own allocations, recorded and played back.

use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use warpool::compact::Goal;
use warpool::observe::{EventKind, Trace};
use warpool::{Device, Error, Pool, PoolConfig, Stream};

use super::common::{self, on_every_device};

on_every_device! {
    a_program_plays_back_with_its_counts_bytes_and_peak,
    threads_that_hand_blocks_on_make_a_log_that_can_have_happened,
    moved_resized_and_captured_blocks_are_freed_once_each,
}

/// Numbers that look drawn.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

fn folder() -> TempDir {
    TempDir::new().unwrap()
}

/// A name that this build can write.
fn name(stem: &str) -> String {
    let ending = if cfg!(feature = "gzip") { ".gz" } else { "" };
    format!("{stem}.csv{ending}")
}

fn read(path: &Path) -> Trace {
    Trace::read(path, u64::MAX).unwrap_or_else(|error| panic!("{error}"))
}

/// Allocations, frees, and bytes allocated.
fn sums(trace: &Trace) -> (u64, u64, u64) {
    let allocated = trace
        .events()
        .iter()
        .filter(|event| event.kind == EventKind::Alloc);
    let bytes = allocated.clone().map(|event| event.bytes).sum();
    let count = allocated.count() as u64;
    (count, trace.events().len() as u64 - count, bytes)
}

fn a_program_plays_back_with_its_counts_bytes_and_peak(device: &Device) {
    let folder = folder();
    let path = folder.path().join(name("program"));
    let pool = Pool::new(device, PoolConfig::default().record(&path)).unwrap();
    assert_eq!(pool.flush_recording().unwrap().as_deref(), Some(&*path));
    let streams: Vec<Stream> = (0..3).map(|_| device.stream().unwrap()).collect();
    let mut rng = Rng(7);
    let mut live = Vec::new();
    let (mut now, mut peak) = (0, 0);
    for step in 0..3000usize {
        if live.len() > 200 || (rng.below(5) < 2 && !live.is_empty()) {
            let block: warpool::Block = live.swap_remove(rng.below(live.len() as u64) as usize);
            now -= block.bytes();
            match rng.below(4) {
                0 => block.free_on(&streams[step % 3]).unwrap(),
                _ => drop(block),
            }
        } else {
            let bytes = 1 + rng.below(1 << (1 + step % 18));
            live.push(pool.alloc(&streams[step % 3], bytes).unwrap());
            now += bytes;
            peak = peak.max(now);
        }
    }
    let stats = pool.stats();
    pool.flush_recording().unwrap();
    let trace = read(&path);
    let (allocated, freed, bytes) = sums(&trace);
    assert_eq!(
        (allocated, freed),
        (stats.blocks.allocated, stats.blocks.freed)
    );
    assert_eq!(bytes, stats.requested.allocated);
    assert_eq!(trace.peak_live_bytes(), peak);
    assert_eq!(trace.streams().len(), 3);
    drop(live);
    drop(pool);
    let trace = read(&path);
    let (allocated, freed, _) = sums(&trace);
    assert_eq!(allocated, freed, "the log ends before the program");
}

fn threads_that_hand_blocks_on_make_a_log_that_can_have_happened(device: &Device) {
    const THREADS: usize = 4;
    let folder = folder();
    let path = folder.path().join(name("threads"));
    let pool = Pool::new(device, PoolConfig::default().record(&path)).unwrap();
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| std::sync::mpsc::channel()).unzip();
    std::thread::scope(|scope| {
        for (at, from) in receivers.into_iter().enumerate() {
            let (pool, stream) = (pool.clone(), device.stream().unwrap());
            let to = senders[(at + 1) % THREADS].clone();
            scope.spawn(move || {
                for step in 0..2000u64 {
                    let block = pool.alloc(&stream, 64 + step % 7 * 500).unwrap();
                    // The thread that was to have it may be done.
                    let _ = to.send(block);
                    if let Ok(block) = from.try_recv() {
                        drop::<warpool::Block>(block);
                    }
                }
            });
        }
        drop(senders);
    });
    let stats = pool.stats();
    drop(pool);
    let (allocated, freed, bytes) = sums(&read(&path));
    assert_eq!(
        (allocated, freed),
        (stats.blocks.allocated, stats.blocks.freed)
    );
    assert_eq!((allocated, bytes), (8000, stats.requested.allocated));
}

fn moved_resized_and_captured_blocks_are_freed_once_each(device: &Device) {
    let folder = folder();
    let path = folder.path().join(name("moved"));
    let pool = Pool::new(device, PoolConfig::default().record(&path)).unwrap();
    let stream = device.stream().unwrap();
    let movables: Vec<_> = (0..8)
        .map(|_| pool.alloc_movable::<u8>(&stream, 2 << 20).unwrap())
        .collect();
    let mut kept: Vec<_> = movables
        .into_iter()
        .enumerate()
        .filter_map(|(at, block)| (at % 2 == 1).then_some(block))
        .collect();
    assert!(pool.compact(&Goal::Full).unwrap().blocks > 0);
    let filler = pool.alloc(&stream, 8 << 20).unwrap();
    kept[0].resize(&stream, 3 << 20).unwrap();
    kept[1].resize(&stream, 1 << 20).unwrap();
    let mut shrunk = pool.alloc(&stream, 1 << 20).unwrap();
    shrunk.shrink(4096).unwrap();
    // A graph keeps the first, and has the second from its own memory.
    let outer = pool.alloc(&stream, 5000).unwrap();
    let capture = stream.begin_capture().unwrap();
    let inner = pool.alloc(&stream, 6000).unwrap();
    drop((outer, inner));
    let graph = capture.end().unwrap();
    drop(pool.alloc(&stream, 7000).unwrap());
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    drop(graph);
    drop((kept, filler, shrunk));
    drop(pool);
    let trace = read(&path);
    let (allocated, freed, _) = sums(&trace);
    assert_eq!(allocated, freed);
    let all = trace
        .events()
        .iter()
        .filter(|event| event.kind == EventKind::Alloc);
    let mut sizes: Vec<u64> = all.map(|event| event.bytes).collect();
    sizes.sort_unstable();
    let mut wanted = vec![2 << 20; 8];
    wanted.extend([8 << 20, 3 << 20, 1 << 20, 1 << 20, 4096, 5000, 6000, 7000]);
    wanted.sort_unstable();
    assert_eq!(sizes, wanted);
}

#[test]
fn a_request_that_fails_under_capture_is_recorded_as_it_was_made() {
    let (folder, device) = (folder(), common::host());
    let path = folder.path().join("log.csv");
    let config = PoolConfig::default().limit(4 << 20).record(&path);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    assert!(pool.alloc(&stream, 5_000_001).is_err());
    drop(capture);
    assert!(pool.alloc(&stream, 5_000_001).is_err());
    let text = std::fs::read_to_string(&path).unwrap();
    let of = |row: &str| row.split("failure").nth(1).map(str::to_owned);
    let rows: Vec<String> = text.lines().filter_map(of).collect();
    assert!(rows.len() == 2 && rows[0] == rows[1], "{text}");
}

#[test]
fn what_came_before_a_growing_buffer_got_no_memory_is_in_the_file() {
    let (folder, device) = (folder(), common::host());
    let path = folder.path().join("log.csv");
    let config = PoolConfig::default().limit(4 << 20).record(&path);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let mut buffer = pool.grow_buf::<u8>(&stream, 1 << 30).unwrap();
    for round in 0..8 {
        let block = pool.alloc(&stream, 1000 + round).unwrap();
        assert!(buffer.resize(5 << 20).unwrap_err().is_out_of_memory());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!(",{},", 1000 + round)), "{text}");
        drop(block);
    }
}

#[test]
fn each_pool_of_a_name_has_a_file_of_its_own() {
    let (folder, device) = (folder(), common::host());
    let config = PoolConfig::default().record(folder.path().join("all.csv"));
    let pools = [0, 1, 2].map(|_| Pool::new(&device, config.clone()).unwrap());
    let stream = device.stream().unwrap();
    for (at, pool) in pools.iter().enumerate() {
        drop(pool.alloc(&stream, 100 + at as u64).unwrap());
    }
    drop(pools);
    for (at, name) in ["all.csv", "all.2.csv", "all.3.csv"].iter().enumerate() {
        let trace = read(&folder.path().join(name));
        assert_eq!(sums(&trace), (1, 1, 100 + at as u64));
    }
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
    let (folder, device) = (folder(), common::host());
    let path = folder.path().join("missing").join("log.csv");
    let made = Pool::new(&device, PoolConfig::default().record(&path));
    let error = made.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "record", .. }));
    assert!(error.to_string().contains("missing/log.csv"), "{error}");
    if cfg!(not(feature = "gzip")) {
        let config = PoolConfig::default().record(folder.path().join("log.csv.gz"));
        let error = Pool::new(&device, config).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("gzip"), "{error}");
    }
}

#[test]
fn a_pool_that_cannot_be_made_leaves_the_file_of_another_as_it_was() {
    let (folder, device) = (folder(), Device::host_with_capacity(64 << 20).unwrap());
    let path = folder.path().join("log.csv");
    std::fs::write(&path, "of another program").unwrap();
    let config = PoolConfig::default().record(&path);
    assert!(Pool::new(&device, config.clone().preallocate(1 << 30)).is_err());
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "of another program");
    let pool = Pool::new(&device, config).unwrap();
    assert_eq!(pool.flush_recording().unwrap(), Some(path));
}

#[test]
fn a_file_that_takes_no_more_ends_the_recording_and_not_the_program() {
    let (folder, device) = (folder(), common::host());
    let path = folder.path().join("pipe");
    let in_c = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the call reads the text.
    assert_eq!(unsafe { libc::mkfifo(in_c.as_ptr(), 0o600) }, 0);
    let reader = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::File::open(path).unwrap())
    };
    let pool = Pool::new(&device, PoolConfig::default().record(&path)).unwrap();
    let mut reader = reader.join().unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 100).unwrap());
    pool.flush_recording().unwrap();
    let mut begun = [0; 20];
    reader.read_exact(&mut begun).unwrap();
    assert!(begun.starts_with(b"Thread,Time"));
    drop(reader);
    let block = pool.alloc(&stream, 100).unwrap();
    // A process that another test starts has the reader too, until it runs its own program.
    let deadline = Instant::now() + Duration::from_secs(10);
    let error = loop {
        drop(pool.alloc(&stream, 100).unwrap());
        match pool.flush_recording() {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "the file takes more"),
        }
    };
    assert!(matches!(error, Error::Os { .. }), "{error}");
    drop(block);
    // More than any buffer takes: nobody waits for a file that is not written.
    for _ in 0..100_000 {
        drop(pool.alloc(&stream, 100).unwrap());
    }
    assert!(pool.flush_recording().is_err());
    pool.check_invariants().unwrap();
}

/// What the tests below start again as a process of their own; which end it takes is in the environment.
#[test]
#[ignore = "a program for other tests"]
fn a_program_of_its_own() {
    let pool: &'static Pool = Box::leak(Box::new(
        Pool::new(&common::host(), PoolConfig::default()).unwrap(),
    ));
    let stream = pool.device().stream().unwrap();
    for at in 0..1000 {
        drop(pool.alloc(&stream, 1000 + at).unwrap());
    }
    let kept = pool.alloc(&stream, 77).unwrap();
    match std::env::var("END").as_deref() {
        Ok("exit") => std::process::exit(0),
        Ok("kill") => {
            std::thread::sleep(Duration::from_millis(500));
            drop(pool.alloc(&stream, 5).unwrap());
            // SAFETY: the process ends itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        Ok("fork") => {
            // SAFETY: the child allocates and ends by `exit`, which is what is tested.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(kept);
                assert!(pool.flush_recording().is_ok());
                // SAFETY: as above.
                unsafe { libc::exit(0) };
            }
            let mut status = 0;
            // SAFETY: the call writes one number.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child did not end by itself");
            drop(kept);
            std::process::exit(0);
        }
        Ok("full") => {
            let path = pool.flush_recording().unwrap().unwrap();
            // As on a full disk, a write is cut off and the next fails.
            let most = std::fs::metadata(path).unwrap().len() + 1000;
            let most = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            // SAFETY: the calls read one structure, and set what this process does at a signal.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &most), 0);
            }
            for at in 0..2000 {
                drop(pool.alloc(&stream, 1000 + at).unwrap());
            }
            let told = pool.flush_recording();
            assert!(matches!(told, Err(Error::Os { .. })), "{told:?}");
            std::process::exit(0);
        }
        Ok("memory") => {
            let small = Pool::new(pool.device(), PoolConfig::default().limit(2 << 20)).unwrap();
            assert!(small.alloc(&stream, 3 << 20).is_err());
            // SAFETY: the process ends itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        _ => std::mem::forget(kept),
    }
}

/// Runs the program with `WARPOOL_RECORD`; gives the file.
fn run(folder: &TempDir, end: &str, file: &str) -> PathBuf {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recording::a_program_of_its_own", "--ignored"])
        .env("WARPOOL_RECORD", folder.path().join(file))
        .env("END", end)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    let code = child.wait().unwrap().code();
    assert!(code.is_none_or(|code| code == 0), "{end}: {code:?}");
    let number = child.id().to_string();
    folder.path().join(file.replace("%p", &number))
}

#[test]
fn a_program_that_cannot_be_changed_is_recorded_to_its_end() {
    let folder = folder();
    for end in ["return", "exit", "fork"] {
        let trace = read(&run(&folder, end, &name(end)));
        let freed = if end == "fork" { 1001 } else { 1000 };
        let bytes = (1000..2000).sum::<u64>() + 77;
        assert_eq!(sums(&trace), (1001, freed, bytes), "{end}");
    }
}

#[test]
fn a_program_that_is_killed_leaves_all_but_its_last_tenth_of_a_second() {
    let folder = folder();
    let trace = read(&run(&folder, "kill", &name("killed-%p")));
    let (allocated, ..) = sums(&trace);
    assert!(allocated >= 1001, "{allocated} of 1001");
}

#[test]
fn a_full_disk_leaves_all_that_was_whole_before() {
    let folder = folder();
    for file in ["full.csv", &name("full")] {
        let trace = read(&run(&folder, "full", file));
        assert_eq!(sums(&trace).0, 1001, "{file}");
    }
}

#[test]
fn a_request_that_fails_is_in_the_log_of_a_program_that_ends_at_it() {
    let folder = folder();
    let first = run(&folder, "memory", "memory.csv");
    let text = std::fs::read_to_string(first.with_file_name("memory.2.csv")).unwrap();
    assert!(text.contains("allocate failure,0x0,3145728,"), "{text}");
}

#[test]
fn a_variable_that_names_no_file_is_an_error_of_the_pool() {
    let folder = folder();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "recording::a_program_of_its_own",
            "--ignored",
            "--nocapture",
        ])
        .env("WARPOOL_RECORD", folder.path().join("none/log.csv"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && told.contains("WARPOOL_RECORD"),
        "{told}"
    );
}

#[test]
fn two_processes_do_not_write_one_file() {
    let (folder, device) = (folder(), common::host());
    let path = folder.path().join("shared.csv");
    let file = std::fs::File::create(&path).unwrap();
    // As another process has it: a lock is of a file that was opened, not of a process.
    // SAFETY: the calls take a file that is open; the copy closes itself.
    let other = unsafe {
        use std::os::fd::AsRawFd;
        assert_eq!(libc::flock(file.as_raw_fd(), libc::LOCK_EX), 0);
        std::fs::File::from_raw_fd(libc::dup(file.as_raw_fd()))
    };
    drop(file);
    let made = Pool::new(&device, PoolConfig::default().record(&path));
    let error = made.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("another process") && error.contains("%p"),
        "{error}"
    );
    drop(other);
}

#[cfg(feature = "cli")]
#[test]
fn a_recorded_replay_is_the_trace_that_it_plays() {
    let folder = folder();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/gpt2_train_varlen.csv.gz");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let binary = std::env::var_os("CARGO_BIN_EXE_warpool")
        .map_or_else(|| env!("CARGO_BIN_EXE_warpool").into(), PathBuf::from);
    let recorded = folder.path().join("again.csv.gz");
    let play = |trace: &Path, record: Option<&Path>| {
        let mut command = Command::new(&binary);
        command.args([
            "replay",
            &text(trace),
            "--device",
            "host",
            "--verify",
            "edges",
            "--json",
        ]);
        if let Some(path) = record {
            command.env("WARPOOL_RECORD", path);
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        ["events", "streams", "peak_live_bytes", "verified_bytes"].map(|key| told[key].clone())
    };
    let first = play(&source, Some(&recorded));
    let (played, again) = (read(&source), read(&recorded));
    assert_eq!(sums(&again).0, sums(&played).0);
    assert_eq!(sums(&again).2, sums(&played).2);
    assert_eq!(again.peak_live_bytes(), played.peak_live_bytes());
    // What the trace leaves live is freed when its replay ends.
    assert_eq!(again.events()[..played.events().len()], played.events()[..]);
    let second = play(&recorded, None);
    assert_eq!(second[1..], first[1..]);
}
