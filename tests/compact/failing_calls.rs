//! Every device call inside a compaction fails at each of its first uses, once and for ever: the
//! books stay whole, contents, pointers and the address table are right once the device works
//! again, and nothing is lost.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::watched::{MADE_TO_FAIL, Watched};
use common::{BackendOf, Memory, leaving_nothing, read, write};
use warpool::compact::{Budget, Goal, Planner};
use warpool::movable::{AddressTable, Movable, PointerArray};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Error, Pool, PoolConfig, Stream};

/// Most bytes of the pool.
const LIMIT: u64 = 20 << 20;

/// What the pool may grow by once it is fragmented.
const ROOM: u64 = 4 << 20;

/// Words of a block.
const WORDS: usize = 25_000;

/// Bytes of a block handed from stream to stream: a cache has no room for two.
const HANDED: u64 = 3 << 20;

/// The seed and the words of the large one.
const LARGE: u64 = 100;
const LARGE_WORDS: usize = 7 << 17;

/// Uses of a call that are made to fail in turn: 7, or fewer under a sanitizer.
fn uses() -> u64 {
    if common::under_sanitizer() { 1 } else { 7 }
}

macro_rules! suite {
    ($($name:ident: $call:literal,)*) => {
        mod host {
            $(#[test] fn $name() {
                super::leaving_nothing(super::small_host(), |device| super::fails(device, $call));
            })*
        }
        mod cuda {
            $(#[test] fn $name() {
                if let Some(device) = super::common::cuda() {
                    super::leaving_nothing(device, |device| super::fails(device, $call));
                }
            })*
        }
    };
}

suite! {
    a_pass_survives_a_failing_launch: "launch",
    a_pass_survives_a_failing_copy_in: "copy_in",
    a_pass_survives_a_failing_copy_within: "copy_within",
    a_pass_survives_a_failing_event_create: "event_create",
    a_pass_survives_a_failing_event_record: "event_record",
    a_pass_survives_a_failing_event_wait: "event_wait",
    a_pass_survives_a_failing_event_query: "event_query",
    a_pass_survives_a_failing_create: "create",
    a_pass_survives_a_failing_map: "map",
    a_pass_survives_a_failing_unmap: "unmap",
}

/// A host device of little memory: the arena's books, which the checks walk, grow with it.
fn small_host() -> Device {
    Device::host_with_capacity(8 * LIMIT).unwrap()
}

fn fails(device: &Device, call: &'static str) {
    let mut injected = 0;
    for for_ever in [false, true] {
        for use_number in 1..=uses() {
            let (device, watched) = Watched::over(device);
            let mut world = World::new(&device);
            watched.fail(call, use_number, for_ever);
            world.churn();
            injected += watched.failures();
            watched.heal();
            world.check();
            world.works_again();
        }
    }
    assert!(
        injected > 0,
        "no pass called {call}: the test proves nothing"
    );
}

/// A fragmented pool whose blocks an array of pointers and an address table name.
struct World {
    live: Vec<(u64, Movable<u64>)>,
    array: PointerArray,
    table: AddressTable,
    // Behind what uses it.
    memory: Memory,
    streams: [Stream; 2],
    pool: Pool,
    /// Seeds of the blocks that slots point to, by slot.
    slots: Vec<u64>,
}

fn contents(seed: u64, words: usize) -> Vec<u64> {
    (0..words as u64).map(|word| seed << 32 | word).collect()
}

impl World {
    fn new(device: &Device) -> Self {
        let pool = Pool::new(device, PoolConfig::default().limit(LIMIT - ROOM)).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let of = |seeds: std::ops::Range<u64>| -> Vec<(u64, Movable<u64>)> {
            seeds
                .map(|seed| (seed, block(&pool, &streams[0], seed, WORDS)))
                .collect()
        };
        let mut live = of(0..8);
        let middle = pool.alloc(&streams[0], 6 << 20).unwrap();
        let above = of(8..28);
        drop(middle);
        // Idle handles of the middle are stolen for it, which leaves memory apart.
        live.push((LARGE, block(&pool, &streams[1], LARGE, LARGE_WORDS)));
        assert!(pool.stats().steps.steal > 0);
        live.extend(above.into_iter().step_by(6));
        // Room to grow, which a request of all that is free needs.
        pool.set_limit(Some(LIMIT));
        let memory = Memory::new(device, 4096);
        let slots: Vec<u64> = live.iter().map(|(seed, _)| *seed).collect();
        let words: Vec<u64> = live
            .iter()
            .map(|(_, block)| block.hold(&streams[0]).unwrap().addr() + 8)
            .collect();
        write(&streams[0], memory.addr, bytemuck::cast_slice(&words));
        // SAFETY: the memory outlives the array and is used under its pin.
        let array = unsafe { pool.register_pointers(&streams[0], memory.addr, words.len()) };
        Self {
            array: array.unwrap(),
            table: pool.address_table().unwrap(),
            live,
            memory,
            streams,
            pool,
            slots,
        }
    }

    /// Passes, requests that need one, a resize and pins, while the device fails.
    fn churn(&mut self) {
        for round in 0..3u64 {
            // Uses on the other stream, which a move has to wait for.
            let pinned = self.live[0].1.hold(&self.streams[1]);
            self.expected(pinned.map(drop).err());
            let handed = after_others(&self.pool, &self.streams);
            self.pool.check_invariants().unwrap();
            self.expected(handed.map(drop).err());
            let mut pass = self
                .pool
                .begin_compaction(Goal::Full, Budget::bytes(1_000_000))
                .unwrap();
            for _ in 0..6 {
                let before = self.pool.stats();
                let step = pass.step();
                self.pool.check_invariants().unwrap();
                self.expected(step.err());
                // A step that moved nothing is none, whatever it was stopped by.
                let after = self.pool.stats();
                let moved = after.bytes_moved > before.bytes_moved;
                assert_eq!(after.compactions - before.compactions, u64::from(moved));
            }
            let longest = LIMIT - self.pool.stats().allocated.current;
            let large = self.pool.alloc(&self.streams[1], longest);
            self.pool.check_invariants().unwrap();
            self.expected(large.map(drop).err());
            // Old mappings of memory that was brought together go here at the latest.
            let trimmed = self.pool.trim(LIMIT / 2);
            self.pool.check_invariants().unwrap();
            self.expected(trimmed.err());
            let (seed, block) = &mut self.live[2];
            let resized = block.resize(&self.streams[0], WORDS * (2 + round as usize));
            // The new words have been written to by nobody, and are read with the old ones.
            let resized = resized.and_then(|()| write_beyond(block, &self.streams[0]));
            let read = resized.and_then(|()| read_back(block, *seed, &self.streams[0]));
            self.pool.check_invariants().unwrap();
            self.expected(read.err());
        }
    }

    fn expected(&self, error: Option<Error>) {
        let Some(error) = error else { return };
        let ours = matches!(
            error,
            Error::Driver {
                code: MADE_TO_FAIL,
                ..
            }
        );
        assert!(ours || error.is_out_of_memory(), "{error}");
    }

    /// Contents, pointers and table, with the device working.
    fn check(&self) {
        self.pool.check_invariants().unwrap();
        let stream = &self.streams[0];
        let slots = {
            let pinned = self.array.hold(stream).unwrap();
            assert_eq!(pinned.addr(), self.memory.addr);
            read(stream, pinned.addr(), self.slots.len() * 8)
        };
        let slots = slots
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let mut slots = self.slots.iter().copied().zip(slots);
        for (seed, block) in &self.live {
            let written = if *seed == LARGE { LARGE_WORDS } else { WORDS };
            let known = contents(*seed, written.min(block.len()));
            let pinned = block.hold(stream).unwrap();
            let bytes = read(stream, pinned.addr(), 8 * known.len());
            assert!(
                bytes == bytemuck::cast_slice::<u64, u8>(&known),
                "block {seed}"
            );
            let entry = read(stream, self.table.entry(block.id()), 8);
            assert_eq!(entry, pinned.addr().to_le_bytes());
            let (of, slot) = slots.next().unwrap();
            assert_eq!((of, slot), (*seed, pinned.addr() + 8));
        }
    }

    /// What was begun under failures is finished, and all memory is there.
    fn works_again(mut self) {
        assert!(self.pool.compact(&Goal::Full).unwrap().finished);
        self.check();
        let live = self.pool.stats().allocated.current;
        let all = self.pool.alloc(&self.streams[0], LIMIT - live).unwrap();
        self.check();
        drop(all);
        self.live.clear();
        self.pool.trim(0).unwrap();
        self.pool.check_invariants().unwrap();
        let stats = self.pool.stats();
        assert_eq!((stats.allocated.current, stats.reserved.current), (0, 0));
    }
}

/// A block on `own` where another stream freed what suits. A cache keeps one of those blocks, so the other is
/// in the heap, behind a mark: the driver is asked how far that stream is.
fn after_others(pool: &Pool, [own, other]: &[Stream; 2]) -> warpool::Result<Block> {
    let freed = [pool.alloc(other, HANDED)?, pool.alloc(other, HANDED)?];
    drop(freed);
    let bystander = pool.device().stream()?;
    bystander.wait_stream(other)?;
    pool.alloc(own, HANDED)
}

/// A block with its contents.
fn block(pool: &Pool, stream: &Stream, seed: u64, words: usize) -> Movable<u64> {
    let mut block = pool.alloc_movable::<u64>(stream, words).unwrap();
    block.upload(stream, &contents(seed, words)).unwrap();
    block
}

/// Queues a fill of what a block was made larger by, under failures.
fn write_beyond(block: &Movable<u64>, stream: &Stream) -> warpool::Result<()> {
    let pinned = block.hold(stream)?;
    let (before, now) = (8 * WORDS as u64, 8 * block.len() as u64);
    common::fill(stream, pinned.addr() + before, 0, now - before);
    Ok(())
}

/// Reads a block that was resized, under failures.
fn read_back(block: &Movable<u64>, seed: u64, stream: &Stream) -> warpool::Result<()> {
    let words = block.download(stream)?;
    assert!(words[..WORDS] == contents(seed, WORDS));
    Ok(())
}

/// What the driver does not say is not taken for done.
#[test]
fn a_request_fails_where_the_driver_does_not_say_how_far_another_stream_is() {
    leaving_nothing(small_host(), |device| {
        let (device, watched) = Watched::over(device);
        let pool = Pool::new(&device, PoolConfig::default().limit(2 * HANDED)).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        watched.fail("event_query", 1, false);
        let refused = after_others(&pool, &streams).map(drop);
        let code = match refused {
            Err(Error::Driver { code, .. }) => code,
            other => panic!("{other:?}, {} queries failed", watched.failures()),
        };
        assert_eq!((code, watched.failures()), (MADE_TO_FAIL, 1));
        pool.check_invariants().unwrap();
        let taken = pool.alloc(&streams[0], HANDED).unwrap();
        assert!(pool.stats().reserved.current <= 2 * HANDED);
        drop(taken);
    });
}

#[test]
fn the_sum_of_a_pass_has_what_its_failed_steps_moved() {
    let mut failed_midway = 0;
    for use_number in 1..=6 {
        leaving_nothing(small_host(), |device| {
            let (device, watched) = Watched::over(device);
            let world = World::new(&device);
            let moved = || world.pool.stats().bytes_moved;
            let begun = moved();
            let mut pass = (world.pool)
                .begin_compaction(Goal::Full, Budget::bytes(1_000_000))
                .unwrap();
            watched.fail("launch", use_number, false);
            for _ in 0..6 {
                let before = moved();
                let step = pass.step();
                failed_midway += u32::from(step.is_err() && moved() > before);
            }
            assert_eq!(pass.end().bytes, moved() - begun, "launch {use_number}");
            world.works_again();
        });
    }
    assert!(failed_midway > 0, "no failed step moved anything");
}

#[test]
fn a_request_is_served_by_moves_after_which_the_device_refuses_what_follows_them() {
    leaving_nothing(small_host(), |device| {
        let (device, watched) = Watched::over(device);
        let config = PoolConfig::default().handles(HandleSize::UpTo(16 << 20));
        let pool = Pool::new(&device, config.limit(16 << 20)).unwrap();
        let stream = device.stream().unwrap();
        // All in one handle, so that none of it is idle.
        drop(pool.alloc(&stream, 16 << 20).unwrap());
        let alloc = || pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap();
        let mut blocks: Vec<_> = (0..16).map(|_| alloc()).collect();
        let mut at = 0;
        blocks.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        let table = pool.address_table().unwrap();
        // Moves cost more than handles mapped elsewhere, so the registered steps make them.
        let (planner, mut model) = (Planner::new(), Planner::new().model());
        model.handle_ns = 0.0;
        pool.set_planner(planner.with_model(model)).unwrap();
        // The first launch moves, and the one after it writes the table.
        watched.fail("launch", 2, true);
        let served = pool.alloc(&stream, 4 << 20);
        assert!(watched.failures() > 0, "{} moved", pool.stats().bytes_moved);
        assert!(pool.stats().bytes_moved > 0);
        watched.heal();
        pool.check_invariants().unwrap();
        drop((served.unwrap(), table));
    });
}

/// A pass that the device stops between two launches has moved the blocks of the first.
#[test]
fn whoever_listens_is_told_of_what_moved_before_a_launch_failed() {
    let mut stopped_midway = 0;
    leaving_nothing(small_host(), |device| {
        for seed in 0..60u64 {
            let (device, watched) = Watched::over(device);
            let pool = Pool::new(&device, PoolConfig::default().limit(LIMIT)).unwrap();
            let stream = device.stream().unwrap();
            let size = |n: u64| 4096 * (1 + (n * n * 7 + n * seed) as usize % 61);
            let mut fixed = Vec::new();
            let mut live = Vec::new();
            for n in 0..48u64 {
                match (n + seed) % 11 {
                    0 => fixed.push(pool.alloc(&stream, size(n) as u64).unwrap()),
                    _ => live.push(pool.alloc_movable::<u8>(&stream, size(n)).unwrap()),
                }
            }
            let mut place = 0;
            live.retain(|_| {
                place += 1;
                (place * 5 + seed) % 7 > 2
            });
            let at = |block: &Movable<u8>| block.hold(&stream).unwrap().addr();
            let told: Vec<_> = live
                .iter()
                .map(|block| {
                    let told = Arc::new(Mutex::new(at(block)));
                    let tells = Arc::clone(&told);
                    block.on_move(move |moved| *tells.lock().unwrap() = moved.to);
                    told
                })
                .collect();
            let before: Vec<u64> = live.iter().map(at).collect();
            watched.fail("launch", 2, false);
            let outcome = pool.compact(&Goal::Full);
            watched.heal();
            let after: Vec<u64> = live.iter().map(at).collect();
            let known: Vec<u64> = told.iter().map(|told| *told.lock().unwrap()).collect();
            assert_eq!(known, after, "seed {seed}");
            stopped_midway += u64::from(outcome.is_err() && after != before);
            drop((live, fixed));
        }
    });
    assert!(stopped_midway > 0, "no pass was stopped midway");
}

/// A driver that fails to fill the tables, and then to take them back.
#[test]
fn tables_that_the_driver_would_not_take_back_count_until_it_does() {
    leaving_nothing(small_host(), |device| {
        let (device, watched) = Watched::over(device);
        let stream = device.stream().unwrap();
        for refuses in ["unmap", "release", "unreserve"] {
            let pool = Pool::new(&device, PoolConfig::default()).unwrap();
            let beside = || device.backend().counts().bytes - pool.stats().reserved.current;
            let mut block = None;
            let makes: [&mut dyn FnMut() -> warpool::Result<()>; 2] = [
                &mut || {
                    block = Some(pool.alloc_movable::<u8>(&stream, 4096)?);
                    Ok(())
                },
                &mut || pool.address_table().map(drop),
            ];
            // The address table keeps its addresses.
            let rounds = if refuses == "unreserve" { 1 } else { 2 };
            for make in makes.into_iter().take(rounds) {
                let fails = Arc::clone(&watched);
                let hook = move || fails.fail(refuses, 1, true);
                watched.after(["before_", refuses].concat().leak(), hook);
                watched.fail("fill", 1, false);
                assert!(make().is_err());
                assert!(watched.was_hooked());
                assert_eq!(pool.stats().overhead, beside(), "{refuses}");
                watched.heal();
                make().unwrap();
                assert_eq!(pool.stats().overhead, beside(), "{refuses}");
            }
            // It is asked again at the pool's end.
            watched.fail(refuses, 1, false);
            drop((block, pool));
        }
    });
}

/// A driver that waits for events, and for no stream.
#[test]
fn memory_for_moves_goes_behind_them_if_one_of_two_ways_to_wait_for_them_fails() {
    let early = [false, true].map(|with_table| {
        let (device, watched) = Watched::hollow_over(&small_host());
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let [home, held] = [(); 2].map(|()| device.stream().unwrap());
        let [first, mut second] =
            [(); 2].map(|()| pool.alloc_movable::<u8>(&home, 1 << 20).unwrap());
        let (open, gate) = mpsc::channel::<()>();
        let work = Box::new(move || _ = gate.recv());
        device.backend().host_call(held.raw(), work).unwrap();
        // The moves wait for this.
        let mut guard = second.hold_mut(&held).unwrap();
        guard.view_mut().fill(&held, 1).unwrap();
        drop((guard, first));
        if with_table {
            pool.address_table().unwrap();
        }
        assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
        watched.fail("stream_sync", 1, true);
        let [opened, early] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_open, its) = (Arc::clone(&opened), Arc::clone(&early));
        watched.before(move |call, _| {
            let late = call != "unmap" || is_open.load(Ordering::SeqCst);
            its.fetch_or(!late, Ordering::SeqCst);
            true
        });
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            opened.store(true, Ordering::SeqCst);
            drop(open);
        });
        drop((second, pool));
        opener.join().unwrap();
        early.load(Ordering::SeqCst)
    });
    assert_eq!(early, [false, false], "unmapped under the moves");
}

/// A driver that makes the memory of the address table, and does not fill it.
#[test]
fn an_address_table_that_cannot_be_filled_is_not_made() {
    leaving_nothing(small_host(), |device| {
        let (device, watched) = Watched::over(device);
        let stream = device.stream().unwrap();
        for call in ["copy_in", "launch"] {
            let pool = Pool::new(&device, PoolConfig::default()).unwrap();
            let _block = pool.alloc_movable::<u8>(&stream, 4096).unwrap();
            let ranges = device.backend().counts().ranges;
            watched.fail(call, 1, false);
            assert!(pool.address_table().is_err(), "{call}");
            assert_eq!(device.backend().counts().ranges, ranges, "{call}");
            pool.address_table().unwrap();
            pool.check_invariants().unwrap();
        }
    });
}
