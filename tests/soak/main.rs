//! A soak: threads with a stream each do random operations on one pool, near its limit, while two
//! more compact it; every block is stamped and verified by kernels in stream order.
//!
//! `WARPOOL_SOAK_SECONDS=600` is the long form; 4 seconds is the quick one. `mixed` does operations of every
//! kind on streams that threads share.

#[path = "../common/mod.rs"]
mod common;
mod mixed;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::stamps::Stamps;
use warpool::compact::{Budget, Goal};
use warpool::device::sim::Rng;
use warpool::driver::abi;
use warpool::movable::Movable;
use warpool::{Block, Device, Pool, PoolConfig, Stream};

const THREADS: usize = 8;

/// Blocks a thread holds at most.
const MOST_HELD: usize = 24;

fn seconds() -> u64 {
    common::variables::number("WARPOOL_SOAK_SECONDS", 4)
}

enum Held {
    Raw(Block, u64),
    Movable(Movable<u8>, u64),
}

/// What all threads share.
struct Soak<'a> {
    pool: &'a Pool,
    stamps: &'a Stamps,
    streams: &'a [Stream],
    most_bytes: u64,
    over: AtomicBool,
    operations: AtomicU64,
    refused: AtomicU64,
    verified: AtomicU64,
    moved: AtomicU64,
}

/// One thread's part.
struct Worker<'a> {
    soak: &'a Soak<'a>,
    stream: &'a Stream,
    random: Rng,
    held: Vec<Held>,
    seeds: u64,
}

impl Soak<'_> {
    fn launch(&self, stream: &Stream, held: &Held, op: abi::wp_pattern_op) {
        let bytes = match held {
            Held::Raw(block, seed) => {
                let range = (block.addr(), block.bytes());
                self.stamps.launch(stream, range, *seed, op);
                block.bytes()
            }
            Held::Movable(block, seed) => {
                let pinned = block.hold(stream).unwrap();
                let range = (pinned.addr(), block.len() as u64);
                self.stamps.launch(stream, range, *seed, op);
                block.len() as u64
            }
        };
        if op == abi::WP_VERIFY {
            self.verified.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Compacts in steps until the end, now and then by hole, now and then all.
    fn compact(&self, mut random: Rng) {
        while !self.over.load(Ordering::Relaxed) {
            let goal = match random.below(4) {
                0 => Goal::Full,
                _ => Goal::Hole(random.below(4 * self.most_bytes)),
            };
            let budget = Budget::bytes(1 + random.below(4 * self.most_bytes));
            let mut pass = self.pool.begin_compaction(goal, budget).unwrap();
            for _ in 0..4 {
                if pass.step().unwrap().finished {
                    break;
                }
            }
            self.moved.fetch_add(pass.end().bytes, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Worker<'_> {
    fn run(&mut self) {
        while !self.soak.over.load(Ordering::Relaxed) {
            self.step();
            self.soak.operations.fetch_add(1, Ordering::Relaxed);
        }
        while !self.held.is_empty() {
            self.free(0);
        }
    }

    fn step(&mut self) {
        let held = self.held.len();
        match self.random.below(16) {
            0..6 if held < MOST_HELD => self.alloc(),
            0..9 if held > 0 => {
                let at = self.random.below(held as u64) as usize;
                self.free(at);
            }
            9 | 10 if held > 0 => {
                let at = self.random.below(held as u64) as usize;
                self.soak
                    .launch(self.stream, &self.held[at], abi::WP_VERIFY);
            }
            11 if held > 0 => self.used_elsewhere(),
            12 if held > 0 => self.freed_elsewhere(),
            13 => {
                let other = self.random.below(THREADS as u64) as usize;
                self.stream.wait_stream(&self.soak.streams[other]).unwrap();
            }
            14 if self.random.chance(1, 16) => self.stream.synchronize().unwrap(),
            15 if self.random.chance(1, 256) => drop(self.soak.pool.trim(0).unwrap()),
            _ => {}
        }
        // A device that falls behind only grows its queues. A sanitizer, which is slow and has room for
        // few launches, falls behind at once.
        if self.random.chance(1, 64) || common::under_sanitizer() {
            self.stream.synchronize().unwrap();
        }
    }

    fn alloc(&mut self) {
        let most = [4096, self.soak.most_bytes / 16, self.soak.most_bytes];
        let most = most[self.random.below(3) as usize];
        let bytes = 1 + self.random.below(most);
        self.seeds += 1;
        let seed = self.seeds << 24 | self.stream.id();
        let pool = self.soak.pool;
        let made = match self.random.below(2) {
            0 => pool
                .alloc(self.stream, bytes)
                .map(|block| Held::Raw(block, seed)),
            _ => pool
                .alloc_movable::<u8>(self.stream, bytes as usize)
                .map(|block| Held::Movable(block, seed)),
        };
        match made {
            Ok(held) => {
                self.soak.launch(self.stream, &held, abi::WP_STAMP);
                self.held.push(held);
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                self.soak.refused.fetch_add(1, Ordering::Relaxed);
                if !self.held.is_empty() {
                    self.free(0);
                }
            }
        }
    }

    fn free(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        self.soak.launch(self.stream, &held, abi::WP_VERIFY);
    }

    /// Another stream, which waits for this one, reads a block; the block is then this thread's
    /// again.
    fn used_elsewhere(&mut self) {
        let other = &self.soak.streams[self.random.below(THREADS as u64) as usize];
        let at = self.random.below(self.held.len() as u64) as usize;
        other.wait_stream(self.stream).unwrap();
        self.soak.launch(other, &self.held[at], abi::WP_VERIFY);
        if let Held::Raw(block, _) = &mut self.held[at] {
            block.record_use(other).unwrap();
        }
    }

    /// Another stream verifies a block and frees it.
    fn freed_elsewhere(&mut self) {
        let other = &self.soak.streams[self.random.below(THREADS as u64) as usize];
        let at = self.random.below(self.held.len() as u64) as usize;
        other.wait_stream(self.stream).unwrap();
        let held = self.held.swap_remove(at);
        self.soak.launch(other, &held, abi::WP_VERIFY);
        match held {
            Held::Raw(block, _) => block.free_on(other).unwrap(),
            // Its uses are known.
            Held::Movable(block, _) => drop(block),
        }
    }
}

fn soak(device: &Device, limit: u64, most_bytes: u64) {
    let pool = Pool::new(device, PoolConfig::default().limit(limit)).unwrap();
    let stamps = Stamps::new(device);
    let streams: Vec<Stream> = (0..THREADS).map(|_| device.stream().unwrap()).collect();
    let soak = Soak {
        pool: &pool,
        stamps: &stamps,
        streams: &streams,
        most_bytes,
        over: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        verified: AtomicU64::new(0),
        moved: AtomicU64::new(0),
    };
    let begin = Instant::now();
    let ready = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for (seed, stream) in (1..).zip(&streams) {
            let (soak, ready) = (&soak, &ready);
            scope.spawn(move || {
                ready.wait();
                let mut worker = Worker {
                    soak,
                    stream,
                    random: Rng::new(seed),
                    held: Vec::new(),
                    seeds: 0,
                };
                worker.run();
            });
        }
        for seed in [100, 101] {
            let soak = &soak;
            scope.spawn(move || soak.compact(Rng::new(seed)));
        }
        ready.wait();
        while begin.elapsed() < Duration::from_secs(seconds()) {
            std::thread::sleep(Duration::from_millis(100));
            pool.check_invariants().unwrap();
        }
        soak.over.store(true, Ordering::Relaxed);
    });
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    let verified = soak.verified.load(Ordering::Relaxed);
    stamps.assert_clean(device, verified);
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().blocks.current, 0);
    println!(
        "{} s on {:?}: {} operations, {} refused, {} bytes verified, {} moved in {} steps, 0 corrupt",
        begin.elapsed().as_secs(),
        device,
        soak.operations.load(Ordering::Relaxed),
        soak.refused.load(Ordering::Relaxed),
        verified,
        soak.moved.load(Ordering::Relaxed),
        pool.stats().compactions,
    );
    assert!(verified > 0 && pool.stats().compactions > 0);
}

#[test]
fn eight_threads_and_compaction_corrupt_nothing_on_the_host_device() {
    common::leaving_nothing(common::host(), |device| soak(device, 16 << 20, 512 << 10));
}

#[test]
fn eight_threads_and_compaction_corrupt_nothing_on_the_gpu() {
    if let Some(device) = common::cuda() {
        // Compaction moves half the pool at a time, byte by byte under a sanitizer's eyes.
        let (limit, most_bytes) = match common::under_sanitizer() {
            true => (32 << 20, 512 << 10),
            false => (512 << 20, 8 << 20),
        };
        common::leaving_nothing(device, |device| {
            soak(&common::for_threads(device), limit, most_bytes);
        });
    }
}
