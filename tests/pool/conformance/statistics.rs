//! Every figure of the statistics beside a model: a drawn program, looked at after each step.
//!
//! The model of blocks is a list of them. The model of memory is the pool's snapshot, which walks
//! over all pieces where the figures are counted on the way.

use crate::common::BackendOf;
use std::collections::BTreeMap;

use super::common::{Gate, on_every_device};
use super::{MIB, small_handles, whole};
use warpool::compact::Goal;
use warpool::pool::{Counter, Piece, PieceState, PoolStats, Relief, SMALL_BYTES, StreamStats};
use warpool::{Block, Device, Pool, PoolConfig, Stream};

on_every_device! {
    blocks_of_each_class_and_stream_are_those_of_a_model,
    bytes_as_rounded_of_each_class_and_stream_are_those_of_a_model,
    bytes_asked_for_of_each_class_and_stream_are_those_of_a_model,
    active_bytes_of_each_class_are_those_of_the_snapshot,
    active_bytes_are_in_the_blocks_of_the_streams_and_in_their_caches,
    reserved_bytes_of_each_class_are_those_of_the_snapshot,
    inactive_bytes_of_each_class_are_those_beside_blocks,
    holes_and_fragmentation_are_those_of_the_snapshot,
    what_compaction_would_give_is_what_holes_sum_to_between_fixed_blocks,
    a_full_compaction_leaves_the_hole_that_was_told_before_whatever_the_caches_keep,
    peaks_start_again_from_now_when_they_are_reset,
    a_peak_rises_with_blocks_that_the_cache_serves,
    a_class_reaches_a_peak_of_active_bytes_below_that_of_all,
    retries_and_failures_are_counted,
    a_wait_is_told_at_once_in_a_pool_of_many_blocks,
    a_block_resized_into_the_other_class_counts_there,
    what_stands_beside_the_pool_has_a_figure_of_its_own_and_a_bound,
}

/// Counts with their history, kept by the obvious means.
#[derive(Clone, Copy, Default)]
struct Kept {
    allocated: u64,
    freed: u64,
    peak: u64,
}

impl Kept {
    fn change(&mut self, before: u64, after: u64) {
        self.allocated += after.saturating_sub(before);
        self.freed += before.saturating_sub(after);
        self.peak = self.peak.max(self.allocated - self.freed);
    }

    fn is(&self, counter: Counter, what: &str) {
        let current = self.allocated - self.freed;
        assert_eq!(
            (counter.current, counter.allocated, counter.freed),
            (current, self.allocated, self.freed),
            "{what}"
        );
        assert_eq!(counter.peak, self.peak, "peak of {what}");
    }
}

/// Of one class or all: number of blocks, bytes, bytes asked for.
type Sums = [Kept; 3];

/// Small, large, all.
type Classes = [Sums; 3];

fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

fn size(block: &Block) -> [u64; 3] {
    [1, block.capacity(), block.bytes()]
}

fn change(classes: &mut Classes, before: [u64; 3], after: [u64; 3]) {
    let of = class(before[1].max(after[1]));
    for at in [of, 2] {
        for figure in 0..3 {
            classes[at][figure].change(before[figure], after[figure]);
        }
    }
}

/// Numbers that look drawn.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// A pool, a few streams, and what is live.
struct World {
    device: Device,
    pool: Pool,
    streams: Vec<Stream>,
    blocks: Vec<Block>,
    random: Random,
    /// By stream id, and the pool's.
    of_streams: BTreeMap<u64, Classes>,
    of_pool: Classes,
    stats: PoolStats,
    pieces: Vec<Piece>,
}

const STREAMS: u64 = 3;

impl World {
    fn new(device: &Device, seed: u64) -> Self {
        let granule = device.info().granule;
        // Room for some of what is asked for: requests fail now and then.
        let config = small_handles().limit(24 * granule).cache_bytes(3 * MIB);
        let pool = Pool::new(device, config).unwrap();
        let streams: Vec<_> = (0..STREAMS).map(|_| device.stream().unwrap()).collect();
        // Streams count from their first block on.
        for stream in &streams {
            drop(pool.alloc(stream, 256).unwrap());
        }
        let mut world = Self {
            device: device.clone(),
            of_streams: streams
                .iter()
                .map(|s| (s.id(), Classes::default()))
                .collect(),
            pool,
            streams,
            blocks: Vec::new(),
            random: Random(seed),
            of_pool: Classes::default(),
            stats: PoolStats::default(),
            pieces: Vec::new(),
        };
        let streams: Vec<_> = world.streams.iter().map(Stream::id).collect();
        for stream in streams {
            world.note(stream, [0; 3], [1, 256, 256]);
            world.note(stream, [1, 256, 256], [0; 3]);
        }
        world
    }

    fn note(&mut self, stream: u64, before: [u64; 3], after: [u64; 3]) {
        change(&mut self.of_pool, before, after);
        change(self.of_streams.get_mut(&stream).unwrap(), before, after);
    }

    fn any_stream(&mut self) -> Stream {
        self.streams[self.random.below(STREAMS) as usize].clone()
    }

    fn any_block(&mut self) -> Option<Block> {
        let blocks = self.blocks.len() as u64;
        (blocks > 0).then(|| self.blocks.swap_remove(self.random.below(blocks) as usize))
    }

    fn alloc(&mut self) {
        let largest = [2000, 40_000, MIB + MIB / 4, 5 * MIB][self.random.below(4) as usize];
        let (stream, bytes) = (self.any_stream(), 1 + self.random.below(largest));
        // Sizes come again.
        let bytes = bytes.next_multiple_of(if bytes.is_multiple_of(3) { 1 << 14 } else { 1 });
        if let Ok(block) = self.pool.alloc(&stream, bytes) {
            self.note(stream.id(), [0; 3], size(&block));
            self.blocks.push(block);
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..9 => self.alloc(),
            9..13 => {
                if let Some(block) = self.any_block() {
                    self.note(block.stream_id(), size(&block), [0; 3]);
                }
            }
            13..18 => {
                let stream = self.any_stream();
                if let Some(block) = self.any_block() {
                    self.note(block.stream_id(), size(&block), [0; 3]);
                    block.free_on(&stream).unwrap();
                }
            }
            18 => self.shrink(),
            _ => drop(self.pool.trim(MIB).unwrap()),
        }
        self.look();
    }

    /// Within its class.
    fn shrink(&mut self) {
        let Some(mut block) = self.any_block() else {
            return;
        };
        let least = if block.capacity() > SMALL_BYTES {
            SMALL_BYTES
        } else {
            0
        };
        let before = size(&block);
        let bytes = least + 1 + self.random.below(block.bytes() - least);
        block.shrink(bytes).unwrap();
        self.note(block.stream_id(), before, size(&block));
        self.blocks.push(block);
    }

    fn look(&mut self) {
        whole(&self.pool);
        self.stats = self.pool.stats();
        self.pieces = self.pool.snapshot().pieces;
    }

    fn of_stream(&self, uid: u64) -> StreamStats {
        let streams = &self.stats.streams;
        streams.iter().find(|of| of.stream == uid).unwrap().clone()
    }

    /// Bytes of pieces of one class, or all, in some states.
    fn bytes(&self, at: usize, states: &[PieceState]) -> u64 {
        let pieces = self.pieces.iter();
        let of = pieces.filter(|p| states.contains(&p.state) && (at == 2 || class(p.bytes) == at));
        of.map(|piece| piece.bytes).sum()
    }
}

/// Plays programs and shows each step to a checker of its own.
fn play<C: FnMut(&World)>(device: &Device, checker: impl Fn() -> C) {
    for seed in 1..=2 {
        let mut world = World::new(device, seed);
        let mut check = checker();
        for _ in 0..super::common::rounds(150) {
            world.step();
            check(&world);
        }
        world.blocks.clear();
        for stream in &world.streams {
            stream.synchronize().unwrap();
        }
        assert_eq!(world.pool.stats().blocks.current, 0);
    }
}

/// Holds a figure of blocks, number `at` of the sums, to the model: the pool's and each stream's.
fn hold(
    world: &World,
    at: usize,
    of_pool: impl Fn(&PoolStats) -> [Counter; 3],
    of_stream: impl Fn(&StreamStats) -> [Counter; 3],
) {
    let names = ["small blocks", "large blocks", "all blocks"];
    let pool = of_pool(&world.stats);
    for (of, name) in names.iter().enumerate() {
        world.of_pool[of][at].is(pool[of], name);
    }
    for (uid, kept) in &world.of_streams {
        let stream = of_stream(&world.of_stream(*uid));
        for (of, name) in names.iter().enumerate() {
            kept[of][at].is(stream[of], &format!("{name} of stream {uid}"));
        }
    }
}

fn blocks_of_each_class_and_stream_are_those_of_a_model(device: &Device) {
    play(device, || {
        |world: &World| {
            hold(
                world,
                0,
                |pool| [pool.small.blocks, pool.large.blocks, pool.blocks],
                |stream| [stream.small.blocks, stream.large.blocks, stream.blocks],
            )
        }
    });
}

fn bytes_as_rounded_of_each_class_and_stream_are_those_of_a_model(device: &Device) {
    play(device, || {
        |world: &World| {
            hold(
                world,
                1,
                |pool| [pool.small.allocated, pool.large.allocated, pool.allocated],
                |of| [of.small.allocated, of.large.allocated, of.allocated],
            )
        }
    });
}

fn bytes_asked_for_of_each_class_and_stream_are_those_of_a_model(device: &Device) {
    play(device, || {
        |world: &World| {
            hold(
                world,
                2,
                |pool| [pool.small.requested, pool.large.requested, pool.requested],
                |of| [of.small.requested, of.large.requested, of.requested],
            )
        }
    });
}

/// Sees what a counter was at each step.
#[derive(Default)]
struct Seen {
    /// What it was at each step before.
    peak: u64,
    before: Counter,
}

impl Seen {
    /// It is `current` now, agrees with itself, and never goes back.
    fn see(&mut self, counter: Counter, current: u64, what: &str) {
        assert_eq!(counter.current, current, "{what}");
        assert_eq!(
            counter.allocated - counter.freed,
            current,
            "flows of {what}"
        );
        assert!(counter.allocated >= self.before.allocated, "{what}");
        assert!(counter.freed >= self.before.freed, "{what}");
        self.peak = self.peak.max(current);
        assert!(counter.peak >= self.peak, "peak of {what}");
        self.before = counter;
    }

    /// The same, and its peak is the most there was at any step.
    fn see_all(&mut self, counter: Counter, current: u64, what: &str) {
        self.see(counter, current, what);
        assert_eq!(counter.peak, self.peak, "peak of {what}");
    }
}

const IN_USE: [PieceState; 2] = [PieceState::Live, PieceState::Cached];

fn active_bytes_of_each_class_are_those_of_the_snapshot(device: &Device) {
    play(device, || {
        let mut seen = <[Seen; 3]>::default();
        move |world: &World| {
            let stats = &world.stats;
            let counters = [stats.small.active, stats.large.active, stats.active];
            for (at, counter) in counters.into_iter().enumerate() {
                seen[at].see_all(counter, world.bytes(at, &IN_USE), "active bytes");
            }
        }
    });
}

fn active_bytes_are_in_the_blocks_of_the_streams_and_in_their_caches(device: &Device) {
    play(device, || {
        |world: &World| {
            let streams = world.stats.streams.iter();
            let bytes = streams.map(|of| of.allocated.current + of.cached_bytes);
            assert_eq!(bytes.sum::<u64>(), world.stats.active.current);
        }
    });
}

fn reserved_bytes_of_each_class_are_those_of_the_snapshot(device: &Device) {
    play(device, || {
        let mut seen = <[Seen; 3]>::default();
        move |world: &World| {
            let [live, cached] = IN_USE;
            let held = [live, cached, PieceState::Hole, PieceState::Slot];
            let stats = &world.stats;
            let counters = [stats.small.reserved, stats.large.reserved];
            for (at, counter) in counters.into_iter().enumerate() {
                // A step may turn large holes into small ones and back.
                seen[at].see(counter, world.bytes(at, &held), "reserved bytes");
            }
            seen[2].see_all(stats.reserved, world.bytes(2, &held), "reserved bytes");
            let made = stats.calls.created - stats.calls.released;
            assert_eq!(stats.reserved.current, made * world.device.info().granule);
        }
    });
}

/// Bytes of a hole in handles of one granule that it covers, where all handles are such.
fn idle(hole: &Piece, granule: u64) -> u64 {
    let (first, end) = (
        hole.addr.div_ceil(granule),
        (hole.addr + hole.bytes) / granule,
    );
    end.saturating_sub(first) * granule
}

fn inactive_bytes_of_each_class_are_those_beside_blocks(device: &Device) {
    play(device, || {
        let mut seen = <[Seen; 3]>::default();
        move |world: &World| {
            let granule = world.device.info().granule;
            let mut split = [0; 3];
            let free = [PieceState::Hole, PieceState::Slot];
            for piece in world.pieces.iter().filter(|p| free.contains(&p.state)) {
                // A slot lies beside others of its slab, and in no handle of its own.
                let beside = piece.bytes - idle(piece, granule);
                split[class(piece.bytes)] += beside;
                split[2] += beside;
            }
            let of = &world.stats;
            let (small, large) = (of.small.inactive_split, of.large.inactive_split);
            for (at, counter) in [small, large, of.inactive_split].into_iter().enumerate() {
                seen[at].see(counter, split[at], "inactive bytes");
            }
        }
    });
}

fn holes_and_fragmentation_are_those_of_the_snapshot(device: &Device) {
    play(device, || {
        |world: &World| {
            let pieces = world.pieces.iter();
            let holes = pieces.filter(|piece| piece.state == PieceState::Hole);
            let bytes: Vec<u64> = holes.map(|piece| piece.bytes).collect();
            let (stats, free) = (&world.stats, bytes.iter().sum::<u64>());
            let largest = bytes.iter().copied().max().unwrap_or(0);
            assert_eq!(stats.holes, bytes.len() as u64);
            assert_eq!(stats.largest_hole, largest);
            let slots = world.pieces.iter();
            let slots = slots.filter(|piece| piece.state == PieceState::Slot);
            let spare: u64 = slots.map(|piece| piece.bytes).sum();
            assert_eq!(stats.reserved.current, stats.active.current + free + spare);
            let rest = (free - largest) as f64 / free.max(1) as f64;
            assert!((stats.fragmentation - rest).abs() < 1e-9);
        }
    });
}

/// The most bytes of holes with nothing but movable blocks between them, of every stretch of pieces.
fn joined_holes(pieces: &[Piece]) -> u64 {
    let is_hole = |piece: &&Piece| match piece.state {
        PieceState::Hole => true,
        // No slot of a slab.
        PieceState::Cached => piece.bytes.is_multiple_of(256),
        _ => false,
    };
    let adjoins = |pair: &[Piece]| pair[0].addr + pair[0].bytes == pair[1].addr;
    let joined = |row: &[Piece]| {
        let together = row.iter().all(|piece| piece.movable || is_hole(&piece));
        let holes = row.iter().filter(is_hole).map(|piece| piece.bytes);
        if together && row.windows(2).all(adjoins) {
            holes.sum()
        } else {
            0
        }
    };
    let ends = (0..pieces.len()).flat_map(|from| (from..pieces.len()).map(move |to| (from, to)));
    ends.map(|(from, to)| joined(&pieces[from..=to]))
        .max()
        .unwrap_or(0)
}

fn what_compaction_would_give_is_what_holes_sum_to_between_fixed_blocks(device: &Device) {
    let pool = Pool::new(device, small_handles().cache_bytes(0)).unwrap();
    let stream = device.stream().unwrap();
    let mut random = Random(7);
    let (mut fixed, mut movable) = (Vec::new(), Vec::new());
    for step in 0..super::common::rounds(150) {
        let bytes = 1 + random.below(3 * MIB);
        match step % 8 {
            0 => fixed.push(pool.alloc(&stream, bytes).unwrap()),
            1..5 => movable.push(pool.alloc_movable::<u8>(&stream, bytes as usize).unwrap()),
            _ => {
                let at = random.below(movable.len() as u64) as usize;
                drop(movable.swap_remove(at));
            }
        }
        whole(&pool);
        let snapshot = pool.snapshot();
        let after = snapshot.after_compaction();
        assert_eq!(after, joined_holes(&snapshot.pieces), "step {step}");
        assert!(after >= pool.stats().largest_hole);
    }
}

fn a_full_compaction_leaves_the_hole_that_was_told_before_whatever_the_caches_keep(
    device: &Device,
) {
    for seed in 0..super::common::rounds(20) as u64 {
        let pool = Pool::new(device, small_handles()).unwrap();
        let stream = device.stream().unwrap();
        let mut random = Random(seed);
        let (mut fixed, mut movable) = (Vec::new(), Vec::new());
        for step in 0..60 {
            let bytes = 256 * (1 + random.below([10, 3000, 12000][step % 3]));
            match random.below(7) {
                0 => fixed.push(pool.alloc(&stream, bytes).unwrap()),
                1 if !fixed.is_empty() => drop(fixed.swap_remove(0)),
                1..5 => movable.push(pool.alloc_movable::<u8>(&stream, bytes as usize).unwrap()),
                _ if movable.is_empty() => {}
                _ => drop(movable.swap_remove(random.below(movable.len() as u64) as usize)),
            }
        }
        let told = pool.snapshot().after_compaction();
        pool.compact(&Goal::Full).unwrap();
        let mut after = pool.snapshot().pieces;
        after.iter_mut().for_each(|it| it.movable = false);
        assert_eq!(told, joined_holes(&after), "seed {seed}");
    }
}

fn peaks_start_again_from_now_when_they_are_reset(device: &Device) {
    let mut world = World::new(device, 9);
    for round in 0..40 {
        for _ in 0..10 {
            world.step();
        }
        let before = &world.stats;
        world.pool.reset_peaks();
        let after = world.pool.stats();
        assert_eq!(after.steps, before.steps);
        let counters = |stats: &PoolStats| {
            let PoolStats { small, large, .. } = stats;
            let mut counters = vec![
                [stats.blocks, small.blocks, large.blocks],
                [stats.allocated, small.allocated, large.allocated],
                [stats.requested, small.requested, large.requested],
                [stats.active, small.active, large.active],
                [stats.reserved, small.reserved, large.reserved],
                [
                    stats.inactive_split,
                    small.inactive_split,
                    large.inactive_split,
                ],
            ];
            for stream in &stats.streams {
                let (small, large) = (stream.small, stream.large);
                counters.push([stream.blocks, small.blocks, large.blocks]);
                counters.push([stream.allocated, small.allocated, large.allocated]);
                counters.push([stream.requested, small.requested, large.requested]);
            }
            counters.concat()
        };
        for (was, is) in counters(before).into_iter().zip(counters(&after)) {
            assert_eq!(is.peak, is.current, "round {round}");
            let flows = |counter: Counter| (counter.current, counter.allocated, counter.freed);
            assert_eq!(flows(is), flows(was), "round {round}: only peaks change");
        }
    }
}

fn a_peak_rises_with_blocks_that_the_cache_serves(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let sizes = [1024, 2048, 4096, 8192];
    drop(sizes.map(|bytes| pool.alloc(&stream, bytes).unwrap()));
    for most in 1..=sizes.len() {
        pool.reset_peaks();
        let drained = pool.stats().steps.drain;
        let held: Vec<Block> = sizes[..most]
            .iter()
            .map(|&bytes| pool.alloc(&stream, bytes).unwrap())
            .collect();
        drop(held);
        let stats = pool.stats();
        let bytes = sizes[..most].iter().sum::<u64>();
        assert_eq!(stats.steps.drain, drained, "served by the cache");
        for blocks in [stats.blocks, stats.small.blocks, stats.streams[0].blocks] {
            assert_eq!((blocks.current, blocks.peak), (0, most as u64));
        }
        assert_eq!(stats.allocated.peak, bytes);
        assert_eq!(stats.streams[0].small.allocated.peak, bytes);
    }
}

fn a_class_reaches_a_peak_of_active_bytes_below_that_of_all(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    for bytes in [3 * MIB, 1024] {
        drop(pool.alloc(&stream, bytes).unwrap());
        // What the stream keeps is active until it is given up.
        pool.trim(u64::MAX).unwrap();
    }
    let stats = pool.stats();
    let (small, all) = (stats.small.active, stats.active);
    assert_eq!((small.current, small.peak), (0, 1024));
    assert_eq!((all.current, all.peak), (0, 3 * MIB));
}

fn retries_and_failures_are_counted(device: &Device) {
    let granule = device.info().granule;
    let pool = super::limited(device, 2);
    let stream = device.stream().unwrap();
    let tries = std::sync::atomic::AtomicU64::new(0);
    pool.on_pressure(
        move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => Relief::Retry,
            _ => Relief::Exhausted,
        },
    );
    let figures = || {
        let stats = pool.stats();
        let steps = stats.steps;
        (
            stats.retries,
            stats.failures,
            steps.out_of_memory,
            steps.relieved,
        )
    };
    assert_eq!(figures(), (0, 0, 0, 0));
    assert!(pool.alloc(&stream, 3 * granule).is_err());
    assert_eq!(figures(), (2, 1, 1, 0), "tried again twice, in vain");
    assert!(pool.alloc(&stream, 3 * granule).is_err());
    assert_eq!(figures(), (2, 2, 2, 0));
    assert_eq!(pool.stats().blocks.allocated, 0);
    // A wrong request is no failure for want of memory.
    assert!(pool.alloc(&stream, 0).is_err());
    assert_eq!(figures(), (2, 2, 2, 0));
}

fn a_wait_is_told_at_once_in_a_pool_of_many_blocks(device: &Device) {
    let granule = device.info().granule;
    let limit = 2 * granule;
    let pool = Pool::new(device, small_handles().limit(limit).cache_bytes(0)).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let large = pool.alloc(&first, granule).unwrap();
    let held: Vec<Block> = (0..100)
        .map(|_| pool.alloc(&first, 4096).unwrap())
        .collect();
    let gate = Gate::close(&first);
    drop(large);
    // The block freed last is the stream's own, whatever the cache may hold.
    drop(pool.alloc(&first, 4096).unwrap());
    let last = pool.alloc(&first, 4096).unwrap();
    let before = pool.stats().steps;
    let large = pool.alloc(&second, granule).unwrap();
    let after = pool.stats().steps;
    assert_eq!(
        (after.stream_wait, after.waits),
        (before.stream_wait + 1, before.waits + 1)
    );
    let made_room = |steps: warpool::pool::Steps| (steps.drain, steps.steal, steps.grow);
    assert_eq!(made_room(after), made_room(before));
    gate.open();
    drop((large, last, held));
    whole(&pool);
}

fn a_block_resized_into_the_other_class_counts_there(device: &Device) {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let mut block = pool.alloc(&stream, 3 * MIB).unwrap();
    block.shrink(1000).unwrap();
    let stats = pool.stats();
    let flows = |of: Counter| (of.current, of.peak, of.allocated, of.freed);
    assert_eq!(flows(stats.large.blocks), (0, 1, 1, 1));
    assert_eq!(flows(stats.large.allocated), (0, 3 * MIB, 3 * MIB, 3 * MIB));
    assert_eq!(flows(stats.small.blocks), (1, 1, 1, 0));
    assert_eq!(flows(stats.small.requested), (1000, 1000, 1000, 0));
    assert_eq!(stats.small.active.current, 1024);
    assert_eq!(stats.streams[0].small.allocated, stats.small.allocated);
    assert_eq!(stats.allocated.peak, 3 * MIB, "never both");
    drop(block);
    let stats = pool.stats();
    assert_eq!(
        (stats.blocks.current, stats.small.allocated.freed),
        (0, 1024)
    );
    whole(&pool);
}

#[test]
fn the_table_names_every_figure_of_the_pool_and_of_each_stream() {
    let device = super::common::host();
    let world = World::new(&device, 1);
    let text = world.pool.stats().to_string();
    for name in [
        "current",
        "peak",
        "allocated",
        "freed",
        "blocks",
        "requested, small",
        "active, large",
        "reserved",
        "inactive split",
        "largest hole",
        "fragmentation",
        "growing buffers",
        "overhead",
        "retries",
        "failures",
        "cached",
    ] {
        assert!(text.contains(name), "{name} is missing: {text}");
    }
    for stream in &world.streams {
        assert!(
            text.contains(&format!("\nstream {}", stream.id())),
            "{text}"
        );
    }
    let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|&width| width <= 80), "{text}");
}

#[cfg(feature = "cli")]
#[test]
fn the_json_of_the_statistics_reads_back_with_every_figure() {
    let device = super::common::host();
    let mut world = World::new(&device, 2);
    for _ in 0..50 {
        world.step();
    }
    let stats = world.pool.stats();
    let value: serde_json::Value = serde_json::from_str(&stats.to_json()).expect("JSON");
    let of = |counter: Counter| {
        serde_json::json!({
            "current": counter.current,
            "peak": counter.peak,
            "allocated": counter.allocated,
            "freed": counter.freed,
        })
    };
    let PoolStats { small, large, .. } = &stats;
    for (name, all, small, large) in [
        ("blocks", stats.blocks, small.blocks, large.blocks),
        (
            "allocated_bytes",
            stats.allocated,
            small.allocated,
            large.allocated,
        ),
        (
            "requested_bytes",
            stats.requested,
            small.requested,
            large.requested,
        ),
        ("active_bytes", stats.active, small.active, large.active),
        (
            "reserved_bytes",
            stats.reserved,
            small.reserved,
            large.reserved,
        ),
        (
            "inactive_split_bytes",
            stats.inactive_split,
            small.inactive_split,
            large.inactive_split,
        ),
    ] {
        let classes = serde_json::json!({"all": of(all), "small": of(small), "large": of(large)});
        assert_eq!(value[name], classes, "{name}");
    }
    assert_eq!(value["largest_hole_bytes"], stats.largest_hole);
    assert_eq!(value["grown_bytes"], stats.grown);
    assert_eq!(value["overhead_bytes"], stats.overhead);
    assert_eq!(value["failures"], stats.failures);
    assert_eq!(value["steps"]["grow"], stats.steps.grow);
    let streams = value["streams"].as_array().expect("a list");
    assert_eq!(streams.len(), stats.streams.len());
    for (value, stream) in streams.iter().zip(&stats.streams) {
        assert_eq!(value["stream"], stream.stream);
        assert_eq!(
            value["requested_bytes"]["large"],
            of(stream.large.requested)
        );
    }
}

fn what_stands_beside_the_pool_has_a_figure_of_its_own_and_a_bound(device: &Device) {
    let (granule, total) = (device.info().granule, device.info().total_bytes);
    let pool = Pool::new(device, super::small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let given = || device.backend().counts().bytes;
    drop(pool.alloc(&stream, granule).unwrap());
    assert_eq!(pool.stats().overhead, 0, "nothing may move");
    assert_eq!(given(), pool.stats().reserved.current);
    let mut blocks: Vec<_> = (0..200)
        .map(|_| {
            pool.alloc_movable::<u8>(&stream, granule as usize / 2)
                .unwrap()
        })
        .collect();
    let table = pool.address_table().unwrap();
    for _ in 0..4 {
        let mut number = 0;
        blocks.retain(|_| {
            number += 1;
            number % 3 != 0
        });
        pool.compact(&warpool::compact::Goal::Full).unwrap();
        let stats = pool.stats();
        assert!(stats.overhead > 0 && stats.bytes_moved > 0);
        assert_eq!(given(), stats.reserved.current + stats.overhead);
        let most = total / 8000 + (3 << 20) + (128 << 20) + granule;
        assert!(stats.overhead <= most, "{} of {most}", stats.overhead);
    }
    drop((blocks, table));
    whole(&pool);
}
