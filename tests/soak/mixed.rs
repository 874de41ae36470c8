//! Threads that share streams do operations of every kind on two parts of one pool, near its limit, and some
//! of what the pool calls panics. Errors are counted. Wrong bytes, hangs, crashes and leaks are failures.
//!
//! `WARPOOL_SOAK_SECONDS` sets how long each test takes, 3 by default, in rounds with a seed each.

mod operations;
mod world;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, leaving_nothing, variables};
use operations::OPERATIONS;
use warpool::Device;
use warpool::device::sim::Rng;
use warpool::host::Contents;
use world::{GRANULE, GRANULES, Shared, TAGS, THREADS, Watch, Worker};

/// A device and its pool are used so long.
const ROUND: Duration = Duration::from_secs(5);

/// Nothing is left, and everything can be used.
fn check_at_the_end(shared: &Shared) {
    for graph in &shared.graphs {
        drop(graph.lock().unwrap().take());
    }
    for stream in &shared.streams {
        stream.synchronize().unwrap();
    }
    shared.others_have(0).unwrap();
    shared.root.wake(&TAGS).unwrap();
    for part in &shared.parts {
        part.check_invariants().unwrap();
        assert_eq!(part.stats().blocks.current, 0, "{}", part.stats());
        assert_eq!(part.stats().spilled.current, 0, "{}", part.stats());
        for stream in &shared.streams {
            let buffer = part.alloc_filled::<u8>(stream, 5000, 7).unwrap();
            assert_eq!(buffer.download().unwrap(), [7; 5000]);
            let capture = stream.begin_capture().unwrap();
            drop(part.alloc(stream, 5000).unwrap());
            capture.end().unwrap().launch(stream).unwrap();
            stream.synchronize().unwrap();
        }
    }
    shared.root.sleep(&TAGS, Contents::Discarded).unwrap();
}

fn worker(shared: &Arc<Shared>, seed: u64, thread: usize) -> Worker {
    let own = shared.streams[thread].clone();
    Worker {
        shared: Arc::clone(shared),
        random: Rng::new(seed * 100 + thread as u64),
        private: own.device().stream().unwrap(),
        own,
        held: Vec::new(),
        graphs: Vec::new(),
    }
}

fn round(device: &Device, captures: bool, seed: u64, end: Instant) {
    println!("seed {seed}, shared streams are captured: {captures}");
    let idle = || Mutex::new(("nothing", Instant::now()));
    let watch = Arc::new(Watch {
        over: AtomicBool::new(false),
        doing: (0..THREADS).map(|_| idle()).collect(),
    });
    let shared = Arc::new(Shared::new(device, captures, Arc::clone(&watch)));
    let work = |thread| {
        let mut worker = worker(&shared, seed, thread);
        thread::spawn(move || worker.run(thread, &OPERATIONS))
    };
    watch.join((0..THREADS).map(work).collect(), end);
    println!("{}", shared.told());
    watch.begin(0, "check at the end");
    let checks = thread::spawn(move || check_at_the_end(&shared));
    watch.join(vec![checks], end);
}

fn host() -> Option<Device> {
    Some(Device::host_with_capacity(GRANULES as u64 * GRANULE).unwrap())
}

/// Rounds with a seed each, on a device that is made for each.
fn soak(captures: bool, device: fn() -> Option<Device>) {
    let seconds = variables::number("WARPOOL_SOAK_SECONDS", 3);
    let end = Instant::now() + Duration::from_secs(seconds);
    for seed in 1.. {
        let Some(device) = device() else {
            return;
        };
        let round_ends = end.min(Instant::now() + ROUND);
        leaving_nothing(device, |device| {
            round(&common::for_threads(device), captures, seed, round_ends);
        });
        if Instant::now() >= end {
            break;
        }
    }
}

#[test]
fn threads_that_share_streams_read_what_they_wrote() {
    soak(false, host);
}

#[test]
fn threads_that_capture_the_streams_of_others_break_nothing() {
    soak(true, host);
}

#[test]
fn threads_that_share_streams_read_what_they_wrote_on_the_gpu() {
    soak(false, common::cuda);
}

#[test]
fn threads_that_capture_the_streams_of_others_break_nothing_on_the_gpu() {
    soak(true, common::cuda);
}
