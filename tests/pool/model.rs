//! The pool against a naive model, on a device that checks the order of every use.
//!
//! `WARPOOL_STEPS` sets the length of the random walks, 10,000 by default; the long form is
//! 1,000,000.

use crate::common;

use crate::common::BackendOf;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use common::fill;
use common::ordered::Ordered;
use proptest::prelude::*;
use warpool::device::HandleCounts;
use warpool::device::sim::Rng;
use warpool::pool::{HandleSize, Piece, PieceState};
use warpool::{Block, Device, Pool, PoolConfig, Stream};

const GRANULE: u64 = 2 << 20;
const STREAMS: usize = 3;

thread_local! {
    static CHOICES: Cell<u64> = const { Cell::new(0) };
}

/// Every third question is answered "done".
fn now_and_then() -> bool {
    CHOICES.with(|choices| {
        choices.set(choices.get() + 1);
        choices.get().is_multiple_of(3)
    })
}

/// Runs `test` on a device of `granules` and checks that it has everything back.
fn on_books<T>(granules: u64, test: impl FnOnce(&Device) -> T) -> T {
    let device = Ordered::device(granules * GRANULE, GRANULE, || (), now_and_then);
    let backend = Arc::clone(device.backend());
    let outcome = test(&device);
    drop(device);
    assert_eq!(
        backend.counts(),
        HandleCounts::default(),
        "something leaked"
    );
    outcome
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, u64),
    Free(usize),
    /// Handed to another stream, which waits, uses and frees it.
    FreeOn(usize, usize),
    /// Used on another stream, which waits; declared.
    Use(usize, usize),
    Wait(usize, usize),
    Synchronize(usize),
    /// Dropped and made anew.
    Replace(usize),
    Trim(u64),
    Limit(Option<u64>),
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..4096u64,
        1..GRANULE,
        GRANULE..5 * GRANULE,
        (1..8u64).prop_map(|granules| granules * GRANULE),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let stream = 0..STREAMS;
    prop_oneof![
        8 => (stream.clone(), sizes()).prop_map(|(s, bytes)| Op::Alloc(s, bytes)),
        6 => any::<usize>().prop_map(Op::Free),
        2 => (any::<usize>(), stream.clone()).prop_map(|(at, s)| Op::FreeOn(at, s)),
        2 => (any::<usize>(), stream.clone()).prop_map(|(at, s)| Op::Use(at, s)),
        1 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Op::Wait(a, b)),
        1 => stream.clone().prop_map(Op::Synchronize),
        1 => stream.prop_map(Op::Replace),
        1 => (0..32 * GRANULE).prop_map(Op::Trim),
        1 => prop::option::of(0..40 * GRANULE).prop_map(Op::Limit),
    ]
}

fn configs() -> impl Strategy<Value = PoolConfig> {
    let handles = prop_oneof![
        Just(HandleSize::Granule),
        Just(HandleSize::UpTo(4 * GRANULE)),
        Just(HandleSize::Adaptive),
    ];
    let cache = prop_oneof![Just(0), Just(64 << 20)];
    let soft = prop::option::weighted(0.3, 0..24 * GRANULE);
    (handles, cache, soft, any::<bool>(), any::<bool>()).prop_map(
        |(handles, cache, soft, ready, wait)| {
            let config = PoolConfig::default().handles(handles);
            let config = config.cache_bytes(cache).reuse(ready, wait);
            soft.map_or(config.clone(), |soft| config.soft_limit(soft))
        },
    )
}

/// A pool, its streams and what is live: the model is the list of blocks.
struct World {
    device: Device,
    pool: Pool,
    streams: Vec<Stream>,
    /// Blocks, each with the stream whose handle it was allocated through.
    live: Vec<(Block, Stream)>,
    limit: Option<u64>,
    /// What the pool held at the last check.
    held: Cell<u64>,
}

impl World {
    fn new(device: &Device, config: PoolConfig, streams: usize) -> Self {
        Self {
            device: device.clone(),
            pool: Pool::new(device, config).unwrap(),
            streams: (0..streams).map(|_| device.stream().unwrap()).collect(),
            live: Vec::new(),
            limit: None,
            held: Cell::new(0),
        }
    }

    /// Granules that hold a live byte, or one of a slab that has a live slot.
    fn touched(&self) -> u64 {
        let pieces = self.pool.snapshot().pieces;
        // Slots of one size in a row are of a slab, or of one beside it.
        let is_row = |a: &Piece, b: &Piece| {
            a.addr + a.bytes == b.addr && a.bytes == b.bytes && !a.bytes.is_multiple_of(256)
        };
        let rows = pieces.chunk_by(is_row).map(|row| {
            let live = row.iter().any(|it| it.state == PieceState::Live);
            let bytes = row[0].bytes * row.len() as u64 * u64::from(live);
            (row[0].addr, bytes)
        });
        let live = self.live.iter().map(|(b, _)| (b.addr(), b.capacity()));
        let used = rows.chain(live).filter(|(_, bytes)| *bytes > 0);
        let granules = used.flat_map(|(at, bytes)| at / GRANULE..=(at + bytes - 1) / GRANULE);
        granules.collect::<BTreeSet<_>>().len() as u64
    }

    /// Whether `bytes` fit into granules that hold nothing live.
    fn fits(&self, bytes: u64) -> bool {
        let total = self.device.info().total_bytes;
        let most = self.limit.unwrap_or(total).min(total) / GRANULE;
        bytes.div_ceil(GRANULE) + self.touched() <= most
    }

    fn alloc(&mut self, stream: usize, bytes: u64) -> Result<(), String> {
        let stream = self.streams[stream].clone();
        match self.pool.alloc(&stream, bytes) {
            Ok(block) => {
                fill(&stream, block.addr(), 1, block.capacity());
                self.live.push((block, stream));
                Ok(())
            }
            Err(error) if error.is_out_of_memory() => Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    }

    fn take(&mut self, at: usize) -> Option<(Block, Stream)> {
        let len = self.live.len();
        (len > 0).then(|| self.live.swap_remove(at % len))
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Alloc(stream, bytes) => {
                // A failure must be of memory; whether it may be is the random walks' question.
                let _ = self.alloc(stream, bytes);
            }
            Op::Free(at) => drop(self.take(at)),
            Op::FreeOn(at, stream) => {
                if let Some((block, home)) = self.take(at) {
                    let stream = &self.streams[stream];
                    stream.wait_stream(&home).unwrap();
                    fill(stream, block.addr(), 2, block.capacity());
                    block.free_on(stream).unwrap();
                }
            }
            Op::Use(at, stream) => {
                if let Some((mut block, home)) = self.take(at) {
                    let stream = self.streams[stream].clone();
                    stream.wait_stream(&home).unwrap();
                    fill(&stream, block.addr(), 3, block.capacity());
                    block.record_use(&stream).unwrap();
                    // Freed through its own stream, which then waits for the use.
                    drop(block);
                }
            }
            Op::Wait(a, b) => self.streams[a].wait_stream(&self.streams[b]).unwrap(),
            Op::Synchronize(stream) => self.streams[stream].synchronize().unwrap(),
            Op::Replace(stream) => self.streams[stream] = self.device.stream().unwrap(),
            Op::Trim(keep) => {
                self.pool.trim(keep).unwrap();
            }
            Op::Limit(limit) => {
                self.limit = limit;
                self.pool.set_limit(limit);
            }
        }
    }

    /// Compares the pool with the model.
    fn check(&self) -> Result<(), String> {
        self.pool.check_invariants()?;
        let mut ranges: Vec<_> = self
            .live
            .iter()
            .map(|(block, _)| (block.addr(), block.addr() + block.capacity()))
            .collect();
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return Err(format!("blocks share bytes: {pair:x?}"));
        }
        let stats = self.pool.stats();
        let (given, held) = (self.device.backend().counts().bytes, stats.reserved.current);
        if given != held {
            return Err(format!(
                "the device has given {given} bytes, {held} are in the books"
            ));
        }
        let most = self.limit.unwrap_or(u64::MAX).max(self.held.replace(held));
        if held > most {
            return Err(format!("{held} bytes are held, {most} allowed"));
        }
        let sums = [
            (
                stats.allocated.current,
                self.live.iter().map(|(b, _)| b.capacity()).sum::<u64>(),
            ),
            (
                stats.requested.current,
                self.live.iter().map(|(b, _)| b.bytes()).sum(),
            ),
            (stats.blocks.current, self.live.len() as u64),
        ];
        match sums.iter().find(|(found, expected)| found != expected) {
            Some(wrong) => Err(format!("counted and live differ: {wrong:?} in {sums:?}")),
            None => Ok(()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn blocks_never_overlap_uses_stay_in_order_and_the_books_agree_with_the_model(
        config in configs(),
        ops in prop::collection::vec(ops(), 1..150),
    ) {
        on_books(32, |device| {
            let mut world = World::new(device, config, STREAMS);
            for op in ops {
                world.run(op);
                if let Err(why) = world.check() {
                    return Err(TestCaseError::fail(why));
                }
            }
            Ok(())
        })?;
    }
}

fn steps() -> u64 {
    common::variables::number("WARPOOL_STEPS", 10_000)
}

/// A walk of random requests and frees near the limit, in which no request that fits may fail.
fn walk(streams: usize, limit: Option<u64>, seed: u64) {
    let mut random = Rng::new(seed);
    on_books(32, |device| {
        let config = PoolConfig::default().handles(HandleSize::Granule);
        let mut world = World::new(device, config, streams);
        world.run(Op::Limit(limit));
        for step in 0..steps() {
            let stream = random.below(streams as u64) as usize;
            match random.below(16) {
                0 => world.run(Op::Synchronize(stream)),
                1 => world.run(Op::Replace(stream)),
                2 => world.run(Op::FreeOn(random.next_u64() as usize, stream)),
                3..8 => world.run(Op::Free(random.next_u64() as usize)),
                _ => {
                    let most = [4096, GRANULE / 2, 3 * GRANULE, 12 * GRANULE];
                    let most = most[random.below(4) as usize];
                    let bytes = 1 + random.below(most);
                    let outcome = world.alloc(stream, bytes);
                    if let (Err(why), true) = (&outcome, world.fits(bytes)) {
                        panic!("step {step}: {why}\n{:#?}", world.pool.stats());
                    }
                    if outcome.is_err() {
                        world.run(Op::Free(random.next_u64() as usize));
                    }
                }
            }
            if step % 64 == 0 {
                world.check().unwrap();
            }
        }
    });
}

/// A walk near the limit with handles of up to four granules. What is idle is counted in handles, as
/// the pool's own figures say, since a granule of a larger handle cannot be had alone.
fn walk_with_large_handles(streams: usize, limit: Option<u64>, seed: u64) {
    let mut random = Rng::new(seed);
    on_books(32, |device| {
        let config = PoolConfig::default().handles(HandleSize::UpTo(4 * GRANULE));
        let mut world = World::new(device, config.cache_bytes(0), streams);
        world.run(Op::Limit(limit));
        let most = limit.unwrap_or(32 * GRANULE);
        for step in 0..steps() {
            let stream = random.below(streams as u64) as usize;
            match random.below(16) {
                0 => world.run(Op::Synchronize(stream)),
                1 => world.run(Op::FreeOn(random.next_u64() as usize, stream)),
                2..8 => world.run(Op::Free(random.next_u64() as usize)),
                _ => {
                    let largest = [4096, GRANULE / 2, 3 * GRANULE, 12 * GRANULE];
                    let largest = largest[random.below(4) as usize];
                    let bytes = 1 + random.below(largest);
                    world.pool.check_invariants().unwrap();
                    let before = world.pool.stats();
                    let free = before.reserved.current - before.active.current;
                    let idle = free - before.inactive_split.current;
                    let fits = bytes <= before.largest_hole
                        || bytes.next_multiple_of(GRANULE) <= idle + most - before.reserved.current;
                    let outcome = world.alloc(stream, bytes);
                    if let (Err(why), true) = (&outcome, fits) {
                        panic!("step {step}: {why}\n{before:#?}");
                    }
                    if outcome.is_err() {
                        world.run(Op::Free(random.next_u64() as usize));
                    }
                }
            }
            if step % 64 == 0 {
                world.check().unwrap();
            }
        }
    });
}

#[test]
fn a_request_that_fits_into_large_handles_never_fails() {
    walk_with_large_handles(1, Some(24 * GRANULE), 11);
    walk_with_large_handles(1, Some(17 * GRANULE), 222);
    for seed in [11, 15, 17, 21] {
        walk_with_large_handles(4, Some(24 * GRANULE), seed);
    }
}

#[test]
fn a_request_that_fits_into_large_handles_never_fails_where_the_device_is_the_limit() {
    for seed in [11, 14, 33] {
        walk_with_large_handles(4, None, seed);
    }
}

#[test]
fn a_request_that_fits_never_fails_on_one_stream() {
    walk(1, Some(24 * GRANULE), 7);
}

#[test]
fn a_request_that_fits_never_fails_on_several_streams() {
    // A slab in use ends in a granule that holds nothing live.
    walk(4, Some(24 * GRANULE), 38);
}

#[test]
fn a_request_that_fits_never_fails_where_the_device_is_the_limit() {
    walk(4, None, 7);
}

#[test]
fn idle_handles_larger_than_the_need_serve_it_where_the_device_has_no_more() {
    on_books(32, |device| {
        let config = PoolConfig::default().handles(HandleSize::UpTo(4 * GRANULE));
        let pool = Pool::new(device, config).unwrap();
        let stream = device.stream().unwrap();
        let mut blocks: Vec<Block> = (0..8)
            .map(|_| pool.alloc(&stream, 4 * GRANULE).unwrap())
            .collect();
        // One handle has four granules of the request; the fifth is in a handle of four. Both go, for new ones that fit.
        drop(blocks.remove(5));
        drop(blocks.remove(2));
        let five = pool.alloc(&stream, 5 * GRANULE).unwrap();
        assert_eq!(pool.stats().reserved.current, 29 * GRANULE);
        pool.check_invariants().unwrap();
        drop(five);
    });
}

/// What a random pool is made with: each seed another mixture.
fn drawn_config(random: &mut Rng) -> PoolConfig {
    let handles = [
        HandleSize::Granule,
        HandleSize::UpTo(4 * GRANULE),
        HandleSize::Adaptive,
    ];
    let config = PoolConfig::default()
        .handles(handles[random.below(3) as usize])
        .slack([0.0, 0.004, 1.0][random.below(3) as usize])
        .cache_bytes([0, 64 << 10, 64 << 20][random.below(3) as usize])
        .overlap_bytes([0, 64 << 20][random.below(2) as usize])
        .reuse(random.chance(3, 4), random.chance(3, 4));
    let soft = random.chance(1, 2).then(|| random.below(16) * GRANULE);
    soft.map_or(config.clone(), |soft| config.soft_limit(soft))
}

fn drawn_op(random: &mut Rng) -> Op {
    let (at, bytes) = (random.next_u64() as usize, random.below(4));
    let stream = |random: &mut Rng| random.below(STREAMS as u64) as usize;
    match random.below(24) {
        0..9 => {
            let most = [4096, GRANULE, 5 * GRANULE, 8 * GRANULE][bytes as usize];
            Op::Alloc(stream(random), 1 + random.below(most))
        }
        9..15 => Op::Free(at),
        15 | 16 => Op::FreeOn(at, stream(random)),
        17 | 18 => Op::Use(at, stream(random)),
        19 => Op::Wait(stream(random), stream(random)),
        20 => Op::Synchronize(stream(random)),
        21 => Op::Replace(stream(random)),
        22 if random.chance(1, 4) => Op::Trim(random.below(32) * GRANULE),
        _ => Op::Limit(random.chance(3, 4).then(|| random.below(40) * GRANULE)),
    }
}

#[test]
fn the_device_holds_what_the_books_say_and_no_more_than_the_limit_in_random_pools() {
    let pools = common::variables::number("WARPOOL_SEEDS", 200);
    for seed in 0..pools {
        let mut random = Rng::new(seed);
        on_books(24, |device| {
            let mut world = World::new(device, drawn_config(&mut random), STREAMS);
            for step in 0..200 {
                world.run(drawn_op(&mut random));
                if let Err(why) = world.check() {
                    panic!("seed {seed}: step {step}: {why}");
                }
            }
        });
    }
}
