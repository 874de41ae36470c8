//! Compaction beside threads that allocate, free, resize, pin and use blocks on their own streams.

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::sanitized::Sanitized;
use common::watched::Watched;
use common::{BackendOf, Gate, Memory, on_every_device, write};
use warpool::compact::{Budget, Goal};
use warpool::device::sim::Rng;
use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::movable::{Movable, MovableId, PointerArray};
use warpool::pool::{HandleSize, Relief};
use warpool::{Device, Pool, PoolConfig, Stream};

on_every_device! {
    blocks_keep_their_contents_while_a_pass_runs_beside_their_users,
    other_streams_allocate_and_free_while_a_pass_is_between_its_steps,
}

/// What another thread may take on a busy machine for something that it need not wait for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads beside the one that compacts.
const WORKERS: u64 = 3;

/// Operations of each.
const OPERATIONS: usize = 300;

/// One thread's blocks, and what each holds.
struct Worker {
    pool: Pool,
    stream: Stream,
    random: Rng,
    live: Vec<(u64, Movable<u64>)>,
    next: u64,
}

fn contents(seed: u64, words: usize) -> Vec<u64> {
    (0..words as u64)
        .map(|word| (seed << 24 | word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect()
}

impl Worker {
    fn new(pool: &Pool, number: u64) -> Self {
        Self {
            pool: pool.clone(),
            stream: pool.device().stream().unwrap(),
            random: Rng::new(number),
            live: Vec::new(),
            next: number << 32,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn step(&mut self) {
        let at = self.below(self.live.len().max(1) as u64) as usize;
        match self.below(8) {
            0..=2 => self.alloc(),
            3 if !self.live.is_empty() => drop(self.live.swap_remove(at)),
            4 if !self.live.is_empty() => self.resize(at),
            5 if !self.live.is_empty() => self.rewrite_pinned(at),
            _ if !self.live.is_empty() => self.verify(at),
            _ => {}
        }
    }

    fn alloc(&mut self) {
        let words = 1 + self.below(20_000) as usize;
        // Three threads at the limit: a request may find it taken.
        if let Ok(mut block) = self.pool.alloc_movable::<u64>(&self.stream, words) {
            self.next += 1;
            block
                .upload(&self.stream, &contents(self.next, words))
                .unwrap();
            self.live.push((self.next, block));
        } else {
            self.live.clear();
        }
    }

    fn resize(&mut self, at: usize) {
        let words = 1 + self.below(20_000) as usize;
        let (seed, block) = &mut self.live[at];
        let before = block.len();
        if block.resize(&self.stream, words).is_ok() {
            let kept = before.min(words);
            let pinned = block.hold(&self.stream).unwrap();
            let found = common::read(&self.stream, pinned.addr(), kept * 8);
            drop(pinned);
            assert!(found == bytemuck::cast_slice::<u64, u8>(&contents(*seed, before)[..kept]));
            block.upload(&self.stream, &contents(*seed, words)).unwrap();
        }
    }

    /// Holds a pin over a while in which others compact; the address holds for work on the stream.
    fn rewrite_pinned(&mut self, at: usize) {
        self.next += 1;
        let (seed, block) = &mut self.live[at];
        let words = contents(self.next, block.len());
        let pinned = block.hold(&self.stream).unwrap();
        std::thread::yield_now();
        common::write(&self.stream, pinned.addr(), bytemuck::cast_slice(&words));
        *seed = self.next;
    }

    fn verify(&self, at: usize) {
        let (seed, block) = &self.live[at];
        let found = block.download(&self.stream).unwrap();
        assert!(found == contents(*seed, block.len()), "block {seed:#x}");
    }
}

fn blocks_keep_their_contents_while_a_pass_runs_beside_their_users(device: &Device) {
    let device = &common::for_threads(device);
    let pool = Pool::new(device, PoolConfig::default().limit(12 << 20)).unwrap();
    let table = pool.address_table().unwrap();
    let working = AtomicU64::new(WORKERS);
    let mut moved = 0;
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let mut worker = Worker::new(&pool, number);
            let working = &working;
            scope.spawn(move || {
                // Counted down on the way out of a failure too, so that the pass ends.
                struct Leaves<'a>(&'a AtomicU64);
                impl Drop for Leaves<'_> {
                    fn drop(&mut self) {
                        self.0.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                let _leaves = Leaves(working);
                for _ in 0..common::rounds(OPERATIONS) {
                    worker.step();
                }
                (0..worker.live.len()).for_each(|at| worker.verify(at));
            });
        }
        while working.load(Ordering::Relaxed) > 0 {
            let mut pass = pool
                .begin_compaction(Goal::Full, Budget::bytes(300_000))
                .unwrap();
            for _ in 0..4 {
                let step = pass.step().unwrap();
                moved += step.bytes;
                if step.finished {
                    break;
                }
            }
            pool.check_invariants().unwrap();
        }
    });
    assert!(moved > 0);
    drop(table);
    pool.check_invariants().unwrap();
    assert_eq!(pool.stats().allocated.current, 0);
}

fn other_streams_allocate_and_free_while_a_pass_is_between_its_steps(device: &Device) {
    let device = &common::for_threads(device);
    let pool = Pool::new(device, PoolConfig::default().limit(32 << 20)).unwrap();
    let stream = device.stream().unwrap();
    let all: Vec<_> = (0..64u64)
        .map(|seed| {
            let mut block = pool.alloc_movable::<u64>(&stream, 25_000).unwrap();
            block.upload(&stream, &contents(seed, 25_000)).unwrap();
            (seed, block)
        })
        .collect();
    let kept: Vec<_> = all.into_iter().filter(|(seed, _)| seed % 2 == 0).collect();
    let (stop, pairs) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let own = device.stream().unwrap();
            while !stop.load(Ordering::Relaxed) {
                drop(pool.alloc(&own, 4096).unwrap());
                drop(pool.alloc_movable::<u64>(&own, 9_000).unwrap());
                pairs.fetch_add(2, Ordering::Relaxed);
            }
        });
        let mut pass = pool.begin_compaction(Goal::Full, Budget::bytes(1)).unwrap();
        let mut before = 0;
        for _ in 0..20 {
            pass.step().unwrap();
            // The other thread goes on between two steps, whatever the pass is at.
            while pairs.load(Ordering::Relaxed) < before + 4 {
                std::thread::yield_now();
            }
            before = pairs.load(Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(pass.end().blocks >= 10);
    });
    for (seed, block) in &kept {
        assert!(block.download(&stream).unwrap() == contents(*seed, 25_000));
    }
}

/// A pool over a watched device, a stream, and a block that another stream holds without a wait.
struct Ground {
    device: Device,
    watched: Arc<Watched>,
    pool: Pool,
    stream: Stream,
    other: Stream,
    block: Movable<u64>,
}

impl Ground {
    fn new(config: PoolConfig) -> Self {
        let (device, watched) = Watched::over(&common::host());
        let pool = Pool::new(&device, config).unwrap();
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let block = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
        drop(block.hold(&other).unwrap());
        Self {
            device,
            watched,
            pool,
            stream,
            other,
            block,
        }
    }

    /// Two blocks that were moved, behind the one that is held.
    fn moved(&self) -> [Movable<u64>; 2] {
        let alloc = || self.pool.alloc_movable::<u64>(&self.stream, 500_000);
        let low = alloc().unwrap();
        let blocks = [(); 2].map(|()| alloc().unwrap());
        drop(low);
        assert!(self.pool.compact(&Goal::Full).unwrap().bytes > 0);
        blocks
    }

    /// Checks that another thread holds the block at the next use of `call`, which `act` makes.
    fn holds_during(&self, call: &'static str, act: impl FnOnce(&Self)) {
        let (of, id, other) = (self.pool.clone(), self.block.id(), self.other.clone());
        let held = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&held);
        self.watched.after(call, move || {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || tell.send(of.hold_id(id, &other).is_ok()));
            let done = told.recv_timeout(PATIENCE);
            its.store(done == Ok(true), Ordering::Relaxed);
        });
        act(self);
        assert!(self.watched.was_hooked(), "no {call}");
        assert!(held.load(Ordering::Relaxed), "the lock is held over {call}");
    }
}

#[test]
fn others_hold_blocks_while_a_stream_is_made_to_wait_for_a_move() {
    let ground = Ground::new(PoolConfig::default());
    let blocks = ground.moved();
    let stream = ground.device.stream().unwrap();
    ground.holds_during("event_wait", |_| drop(blocks[0].hold(&stream).unwrap()));
}

#[test]
fn others_hold_blocks_while_a_stream_is_made_to_wait_for_pointers() {
    let ground = Ground::new(PoolConfig::default());
    let memory = Memory::new(&ground.device, 64);
    // SAFETY: the memory outlives the array, and nothing else uses it.
    let array = unsafe { (ground.pool).register_pointers(&ground.stream, memory.addr, 8) };
    let array = array.unwrap();
    let _blocks = ground.moved();
    let stream = ground.device.stream().unwrap();
    ground.holds_during("event_wait", |_| drop(array.hold(&stream).unwrap()));
}

#[test]
fn others_hold_blocks_while_streams_are_recorded_for_a_copy_into_a_larger_block() {
    let ground = Ground::new(PoolConfig::default());
    let alloc = || ground.pool.alloc_movable::<u64>(&ground.stream, 1000);
    let (mut block, _behind) = (alloc().unwrap(), alloc().unwrap());
    let [user, stream] = [(); 2].map(|()| ground.device.stream().unwrap());
    drop(block.hold(&user).unwrap());
    ground.holds_during("event_record", |_| block.resize(&stream, 5000).unwrap());
}

/// A ground; a block with another right behind it, which points to a third that a pass moves; and the hole.
fn pointing() -> (Ground, Movable<u64>, Movable<u64>, PointerArray) {
    let ground = Ground::new(PoolConfig::default());
    let alloc = |words| ground.pool.alloc_movable::<u64>(&ground.stream, words);
    let (low, target) = (alloc(500_000).unwrap(), alloc(500_000).unwrap());
    let (mut list, behind) = (alloc(1000).unwrap(), alloc(1000).unwrap());
    std::mem::forget(behind);
    let addr = target.hold(&ground.stream).unwrap().addr();
    list.upload(&ground.stream, &[addr; 1000]).unwrap();
    let array = list.register_pointers().unwrap();
    drop(low);
    (ground, list, target, array)
}

#[test]
fn others_hold_blocks_while_a_block_is_copied_into_a_larger_one() {
    let (ground, mut list, _target, _array) = pointing();
    let stream = &ground.stream;
    ground.holds_during("before_copy_within", |_| list.resize(stream, 5000).unwrap());
}

#[test]
fn pointers_rewritten_while_their_block_is_copied_into_a_larger_one_are_right_there() {
    let (ground, mut list, target, _array) = pointing();
    let (pool, moved) = (ground.pool.clone(), Arc::new(AtomicU64::new(0)));
    let its = Arc::clone(&moved);
    ground.watched.after("before_copy_within", move || {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(pool.compact(&Goal::Full).unwrap().bytes));
        let done = told.recv_timeout(PATIENCE);
        its.store(done.unwrap_or(0), Ordering::Relaxed);
    });
    list.resize(&ground.stream, 5000).unwrap();
    assert!(moved.load(Ordering::Relaxed) > 0, "nothing moved meanwhile");
    let now = target.hold(&ground.stream).unwrap().addr();
    let found = list.download(&ground.stream).unwrap();
    assert!(found[..1000].iter().all(|&it| it == now));
    ground.pool.check_invariants().unwrap();
}

#[test]
fn a_block_held_while_it_is_copied_into_a_larger_one_stays_as_it_is() {
    let (ground, mut list, target, _array) = pointing();
    let (pool, id, other) = (ground.pool.clone(), list.id(), ground.other.clone());
    ground.watched.after("before_copy_within", move || {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            // The hold has ended when this thread says so.
            let is_held = pool.hold_id(id, &other).is_ok();
            tell.send(is_held)
        });
        let _ = told.recv_timeout(PATIENCE);
    });
    let refused = list.resize(&ground.stream, 5000).unwrap_err();
    assert!(refused.to_string().contains("held"), "{refused}");
    let addr = target.hold(&ground.stream).unwrap().addr();
    assert_eq!(list.download(&ground.stream).unwrap(), [addr; 1000]);
    list.resize(&ground.stream, 5000).unwrap();
    ground.pool.check_invariants().unwrap();
}

#[test]
fn a_write_waits_for_the_copy_that_a_refused_resize_made() {
    let (device, watched) = Watched::over(&common::host());
    let checked = Sanitized::over(&device);
    let pool = Pool::new(&checked.device, PoolConfig::default()).unwrap();
    let [stream, other] = [(); 2].map(|()| checked.device.stream().unwrap());
    let alloc = || pool.alloc_movable::<u64>(&stream, 1000);
    let (mut block, _behind) = (alloc().unwrap(), alloc().unwrap());
    // From here on that stream runs behind the allocation.
    block.upload(&other, &contents(1, 1000)).unwrap();
    let (of, id, on) = (pool.clone(), block.id(), other.clone());
    watched.after("before_copy_within", move || {
        let hold = std::thread::spawn(move || drop(of.hold_id(id, &on).unwrap()));
        hold.join().unwrap();
    });
    let refused = block.resize(&stream, 5000).unwrap_err().to_string();
    assert!(refused.contains("held"), "{refused}");
    block.upload(&other, &contents(2, 1000)).unwrap();
    checked.check().unwrap();
}

#[test]
fn others_hold_blocks_while_host_memory_is_made_for_a_spill() {
    let limit = PoolConfig::default().limit(8 << 20);
    let ground = Ground::new(limit.handles(HandleSize::Granule));
    let host = HostPool::new(&ground.device, HostPoolConfig::default());
    ground.pool.set_spill(Spill::Auto(&host)).unwrap();
    let alloc = |it: &Ground| it.pool.alloc_movable::<u8>(&it.stream, 6 << 20).unwrap();
    let _first = alloc(&ground);
    ground.holds_during("host_alloc", |it| drop(alloc(it)));
}

#[test]
fn others_hold_blocks_while_an_address_table_that_is_not_made_is_waited_for() {
    let ground = Ground::new(PoolConfig::default());
    ground.holds_during("before_stream_sync", |it| {
        it.watched.fail("fill", 1, false);
        assert!(it.pool.address_table().is_err());
    });
}

#[test]
fn a_step_whose_table_is_not_uploaded_does_not_wait_for_the_device() {
    let ground = Ground::new(PoolConfig::default());
    drop(ground.moved());
    let [low, _high] = ground.moved();
    drop(low);
    ground.watched.fail("copy_in", 1, false);
    ground.watched.after("before_stream_sync", || ());
    assert!(ground.pool.compact(&Goal::Full).is_err());
    assert!(!ground.watched.was_hooked(), "it waited under the lock");
    assert!(ground.pool.compact(&Goal::Full).unwrap().bytes > 0);
}

#[test]
fn memory_for_moves_is_not_made_in_a_host_call_which_cannot_wait_until_it_is_zero() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let (its, (tell, told)) = (pool.clone(), mpsc::channel());
    let call = move || tell.send(its.compact(&Goal::Full).is_err()).unwrap();
    let backend = device.backend();
    backend.host_call(stream.raw(), Box::new(call)).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
    assert_eq!((watched.calls("create"), watched.calls("fill")), (0, 0));
    assert!(pool.compact(&Goal::Full).is_ok());
}

/// Makes `act` in a host call, and checks that another thread makes the next use of `call`.
fn is_left_to_another_thread(
    ground: &Ground,
    call: &'static str,
    act: impl FnOnce() + Send + 'static,
) {
    let stream = ground.device.stream().unwrap();
    let here = || std::thread::current().id();
    let ((made, by), (tell, told)) = (mpsc::channel(), mpsc::channel());
    (ground.watched).after(call, move || made.send(here()).unwrap());
    let work = move || {
        act();
        tell.send(here()).unwrap();
    };
    let backend = ground.device.backend();
    backend.host_call(stream.raw(), Box::new(work)).unwrap();
    let [other, own] = [by, told].map(|id| id.recv_timeout(PATIENCE));
    assert_ne!(other.expect("it is made"), own.unwrap());
}

#[test]
fn a_block_freed_in_a_host_call_is_waited_for_by_another_thread() {
    let ground = Ground::new(PoolConfig::default());
    let block = ground.pool.alloc_movable::<u64>(&ground.stream, 5000);
    let (block, to) = (block.unwrap(), ground.device.stream().unwrap());
    let gate = Gate::close(&ground.other);
    drop(block.hold(&ground.other).unwrap());
    let free = move || block.free_on(&to).unwrap();
    is_left_to_another_thread(&ground, "event_wait", free);
    gate.open();
    ground.other.synchronize().unwrap();
    ground.pool.check_invariants().unwrap();
}

#[test]
fn a_block_is_freed_in_a_host_call_on_no_stream_of_another_device() {
    let ground = Ground::new(PoolConfig::default());
    let block = ground.pool.alloc_movable::<u64>(&ground.stream, 5000);
    let (block, theirs) = (block.unwrap(), common::host().stream().unwrap());
    let (tell, told) = mpsc::channel();
    let free = move || tell.send(block.free_on(&theirs)).unwrap();
    let (backend, raw) = (ground.device.backend(), ground.other.raw());
    backend.host_call(raw, Box::new(free)).unwrap();
    let refused = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(refused.to_string().contains("stream"), "{refused}");
}

/// The error of a resize during which a callback under pressure makes room and does `more`. The block is as before.
fn refused_by_a_callback(
    device: &Device,
    more: impl Fn(&Pool, MovableId, &Stream) + Send + Sync + 'static,
    after: impl FnOnce(),
) -> String {
    let pool = Pool::new(device, PoolConfig::default().limit(8 << 20)).unwrap();
    let stream = device.stream().unwrap();
    let mut block = pool.alloc_movable::<u64>(&stream, 250_000).unwrap();
    block.upload(&stream, &contents(1, 250_000)).unwrap();
    let (from, id, on) = (pool.clone(), block.id(), stream.clone());
    let spare = Mutex::new(Some(pool.alloc(&stream, 5 << 20).unwrap()));
    pool.on_pressure(move |_| match spare.lock().unwrap().take() {
        Some(room) => {
            drop(room);
            more(&from, id, &on);
            Relief::Retry
        }
        None => Relief::Exhausted,
    });
    let refused = block.resize(&stream, 500_000).unwrap_err();
    after();
    assert!(block.download(&stream).unwrap() == contents(1, 250_000));
    pool.check_invariants().unwrap();
    refused.to_string()
}

#[test]
fn a_block_that_a_callback_holds_while_a_larger_one_is_made_stays_as_it_is() {
    let device = common::host();
    let other = device.stream().unwrap();
    // For ever.
    let hold = move |pool: &Pool, id, _: &Stream| {
        std::mem::forget(pool.hold_id(id, &other).unwrap());
    };
    let refused = refused_by_a_callback(&device, hold, || ());
    assert!(refused.contains("held"), "{refused}");
}

#[test]
fn a_block_is_not_copied_into_a_capture_that_a_callback_begins() {
    let (device, watched) = Watched::over(&common::host());
    let under_way = Arc::new(Mutex::new(None));
    let its = Arc::clone(&under_way);
    let begin = move |_: &Pool, _, stream: &Stream| {
        *its.lock().unwrap() = Some(stream.begin_capture().unwrap());
    };
    let end = || drop(under_way.lock().unwrap().take().expect("a capture"));
    let refused = refused_by_a_callback(&device, begin, end);
    assert!(refused.contains("capture"), "{refused}");
    assert_eq!(watched.calls("copy_within"), 0);
}

#[test]
fn a_block_is_copied_into_a_larger_one_ahead_of_a_capture_that_another_thread_begins() {
    // As the copy's stream is made to wait for another, and right before the copy.
    for call in ["event_record", "before_copy_within"] {
        let ground = Ground::new(PoolConfig::default());
        let alloc = || ground.pool.alloc_movable::<u64>(&ground.stream, 1000);
        let (mut block, _behind) = (alloc().unwrap(), alloc().unwrap());
        let [user, stream] = [(); 2].map(|()| ground.device.stream().unwrap());
        block.upload(&ground.stream, &contents(1, 1000)).unwrap();
        drop(block.hold(&user).unwrap());
        let (tell, told) = mpsc::channel();
        let on = stream.clone();
        ground.watched.after(call, move || {
            let capture = std::thread::spawn(move || tell.send(on.begin_capture().unwrap()));
            std::thread::sleep(Duration::from_millis(50));
            drop(capture);
        });
        block.resize(&stream, 5000).unwrap();
        assert!(ground.watched.was_hooked(), "no {call}");
        let graph = told.recv_timeout(PATIENCE).unwrap().end().unwrap();
        let found = block.download(&ground.stream).unwrap();
        assert!(found[..1000] == contents(1, 1000), "{call}");
        drop(graph);
        ground.pool.check_invariants().unwrap();
    }
}

/// Has `hook` called right after the `nth` use of `call` from now on.
fn after_the(
    nth: u64,
    watched: &Arc<Watched>,
    call: &'static str,
    hook: impl FnOnce() + Send + 'static,
) {
    let again = Arc::clone(watched);
    let hook: Box<dyn FnOnce() + Send> = match nth {
        1 => Box::new(hook),
        _ => Box::new(move || after_the(nth - 1, &again, call, hook)),
    };
    watched.after(call, hook);
}

#[test]
fn memory_of_a_movable_block_freed_as_a_capture_ends_is_reused_behind_its_uses() {
    // Dropped, freed on another stream, and replaced by a larger block.
    type Free = fn(Movable<u64>, &Stream, &Stream);
    let frees: [Free; 3] = [
        |block, _, _| drop(block),
        |block, captured, _| block.free_on(captured).unwrap(),
        |mut block, _, user| block.resize(user, 200_000).unwrap(),
    ];
    // The capture ends amid the wait for one use, which comes before or after the wait for the other.
    for (at, nth) in [0, 1, 2].into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
        let ground = Ground::new(PoolConfig::default().reuse(false, true));
        let [home, first, user] = [(); 3].map(|()| ground.device.stream().unwrap());
        let mut block = ground.pool.alloc_movable::<u64>(&home, 100_000).unwrap();
        let behind = ground.pool.alloc_movable::<u64>(&home, 100_000).unwrap();
        block.upload(&home, &vec![0; 100_000]).unwrap();
        let gates = [&first, &user].map(|on| {
            let gate = Gate::close(on);
            drop(block.hold(on).unwrap());
            gate
        });
        let addr = block.hold(&home).unwrap().addr();
        let capture = Arc::new(Mutex::new(Some(home.begin_capture().unwrap())));
        let graph = Arc::new(Mutex::new(None));
        let (open, ended) = (Arc::clone(&capture), Arc::clone(&graph));
        // If the stream was made to wait for a use, the wait is the graph's by now.
        after_the(nth, &ground.watched, "event_record", move || {
            let capture = open.lock().unwrap().take();
            *ended.lock().unwrap() = capture.map(|it| it.end().unwrap());
        });
        frees[at](block, &home, &user);
        let left = capture.lock().unwrap().take();
        drop(left.map(|it| it.end().unwrap()));
        let next = ground.pool.alloc(&home, 800_000).unwrap();
        common::fill(&home, next.addr(), 5, 800_000);
        let reused = next.addr() == addr;
        for gate in gates.into_iter().rev() {
            let waits = reused && common::is_held(&home);
            assert!(!reused || waits, "{at}, {nth}: reused ahead of a use");
            gate.open();
        }
        drop((graph, next, behind));
        ground.pool.check_invariants().unwrap();
    }
}

#[test]
fn a_block_is_not_copied_into_a_larger_one_while_an_array_of_pointers_is_held() {
    let (ground, mut list, target, _array) = pointing();
    let memory = Memory::new(&ground.device, 8);
    write(&ground.stream, memory.addr, &[0; 8]);
    // SAFETY: the memory outlives the array.
    let array = unsafe {
        ground
            .pool
            .register_pointers(&ground.stream, memory.addr, 1)
    }
    .unwrap();
    let held = array.hold(&ground.other).unwrap();
    let refused = list.resize(&ground.stream, 5000).unwrap_err().to_string();
    assert!(refused.contains("pointers"), "{refused}");
    assert_eq!(ground.watched.calls("copy_within"), 0);
    drop(held);
    // Nor if the hold begins while it is copied.
    let (array, other) = (Arc::new(array), ground.other.clone());
    let its = Arc::clone(&array);
    ground.watched.after("before_copy_within", move || {
        std::thread::spawn(move || std::mem::forget(its.hold(&other).unwrap()))
            .join()
            .unwrap();
    });
    let refused = list.resize(&ground.stream, 5000).unwrap_err().to_string();
    assert!(refused.contains("pointers"), "{refused}");
    assert!(ground.watched.was_hooked(), "nothing was copied");
    let addr = target.hold(&ground.stream).unwrap().addr();
    assert_eq!(list.download(&ground.stream).unwrap(), [addr; 1000]);
    drop(array);
    list.resize(&ground.stream, 5000).unwrap();
    ground.pool.check_invariants().unwrap();
}

#[test]
fn a_hold_that_the_driver_refuses_under_capture_is_not_the_graphs() {
    let ground = Ground::new(PoolConfig::default());
    let [mut low, _high] = ground.moved();
    let capture = ground.other.begin_capture().unwrap();
    ground.watched.fail("event_wait", 1, false);
    assert!(low.hold(&ground.other).is_err(), "it waited for no move");
    let graph = capture.end().unwrap();
    // What a graph has is not resized.
    low.resize(&ground.stream, 400_000).unwrap();
    let again = ground.other.begin_capture().unwrap();
    drop(low.hold(&ground.other).unwrap());
    let holds = again.end().unwrap();
    assert!(low.resize(&ground.stream, 300_000).is_err());
    drop((graph, holds));
    low.resize(&ground.stream, 300_000).unwrap();
}

#[test]
fn a_hold_whose_wait_for_views_is_refused_under_capture_is_not_the_graphs() {
    let ground = Ground::new(PoolConfig::default());
    let third = ground.device.stream().unwrap();
    let mut low = ground
        .pool
        .alloc_movable::<u64>(&ground.stream, 500_000)
        .unwrap();
    // Of the move and the allocation nothing is left to wait for.
    drop(low.hold(&ground.other).unwrap());
    let mut held = low.hold_mut(&third).unwrap();
    held.view_mut().fill(&third, 3).unwrap();
    drop(held);
    let capture = ground.other.begin_capture().unwrap();
    ground.watched.fail("event_wait", 1, false);
    assert!(low.hold(&ground.other).is_err(), "it waited for no view");
    let graph = capture.end().unwrap();
    // What a graph has is not resized.
    low.resize(&ground.stream, 400_000).unwrap();
    drop(graph);
    assert!(low.download(&ground.stream).unwrap() == [3; 400_000]);
}

#[test]
fn an_address_table_that_is_not_made_in_a_host_call_is_waited_for_by_another_thread() {
    let ground = Ground::new(PoolConfig::default());
    ground.watched.fail("fill", 1, false);
    let pool = ground.pool.clone();
    let ask = move || assert!(pool.address_table().is_err());
    is_left_to_another_thread(&ground, "before_stream_sync", ask);
    assert!(ground.pool.address_table().is_ok());
}

#[test]
fn a_step_makes_no_host_call_for_which_a_driver_would_wait_for_every_full_stream() {
    let ground = Ground::new(PoolConfig::default());
    drop(ground.moved());
    assert_eq!(ground.watched.calls("host_call"), 0);
}

#[test]
fn a_step_whose_launch_fails_does_not_wait_for_the_device() {
    let ground = Ground::new(PoolConfig::default());
    drop(ground.moved());
    let [low, _high] = ground.moved();
    drop(low);
    ground.watched.fail("launch", 1, false);
    ground.watched.after("before_stream_sync", || ());
    assert!(ground.pool.compact(&Goal::Full).is_err());
    assert!(!ground.watched.was_hooked(), "it waited under the lock");
    assert!(ground.pool.compact(&Goal::Full).unwrap().bytes > 0);
}

/// Has a move wait for a closed stream, then `queue` more behind it, until that waits for what is not done: another
/// thread asks for the lock meanwhile, and opens the stream. Ends after many times as much as a stream has room for.
fn waits_unlocked_where_much_is_queued(mut queue: impl FnMut(&Ground)) {
    let ground = Ground::new(PoolConfig::default());
    let low = ground.pool.alloc_movable::<u64>(&ground.stream, 500_000);
    let high = ground.pool.alloc_movable::<u64>(&ground.stream, 500_000);
    let (low, high) = (low.unwrap(), high.unwrap());
    let closed = ground.device.stream().unwrap();
    let gate = Gate::close(&closed);
    drop(high.hold(&closed).unwrap());
    drop(low);
    assert!(ground.pool.compact(&Goal::Full).unwrap().bytes > 0);
    let locked = ground.locked_at_the_next_wait(gate);
    (0..4000).for_each(|_| queue(&ground));
    assert!(ground.watched.was_hooked(), "nothing is waited for");
    assert!(locked.load(Ordering::Relaxed), "the lock is held meanwhile");
}

impl Ground {
    /// Whether another thread gets the lock of movable memory where the host waits next; the gate is opened then.
    fn locked_at_the_next_wait(&self, gate: Gate) -> Arc<AtomicBool> {
        let locked = Arc::new(AtomicBool::new(false));
        let (of, its) = (self.pool.clone(), Arc::clone(&locked));
        self.watched.after("before_event_sync", move || {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || tell.send(of.record_steps(false).is_ok()));
            let done = told.recv_timeout(PATIENCE);
            its.store(done == Ok(true), Ordering::Relaxed);
            gate.open();
        });
        locked
    }
}

#[test]
fn steps_wait_without_the_lock_where_the_moving_stream_has_much_to_do() {
    waits_unlocked_where_much_is_queued(|it| {
        let alloc = || it.pool.alloc_movable::<u64>(&it.stream, 2000).unwrap();
        let [low, _high] = [(); 2].map(|()| alloc());
        drop(low);
        assert!(it.pool.compact(&Goal::Full).unwrap().bytes > 0);
    });
}

#[test]
fn holds_that_store_addresses_wait_without_the_lock_where_the_moving_stream_has_much_to_do() {
    let mut table = None;
    waits_unlocked_where_much_is_queued(move |it| {
        let _table = table.get_or_insert_with(|| it.pool.address_table().unwrap());
        let block = it.pool.alloc_movable::<u64>(&it.stream, 2000).unwrap();
        drop(block.hold(&it.stream).unwrap());
    });
}

#[test]
fn very_many_arrays_of_pointers_are_rewritten_in_parts_that_the_moving_stream_has_room_for() {
    const MANY: usize = 1500;
    let ground = Ground::new(PoolConfig::default());
    let memory = Memory::new(&ground.device, 8 * MANY as u64);
    let alloc = || ground.pool.alloc_movable::<u64>(&ground.stream, 500_000);
    let (low, high) = (alloc().unwrap(), alloc().unwrap());
    let addr = high.hold(&ground.stream).unwrap().addr();
    common::write(
        &ground.stream,
        memory.addr,
        bytemuck::cast_slice(&vec![addr; MANY]),
    );
    let of = |at: usize| memory.addr + 8 * at as u64;
    // SAFETY: the memory outlives the arrays, and nothing else uses it.
    let add = |at| unsafe { (ground.pool).register_pointers(&ground.stream, of(at), 1) };
    let arrays: Vec<_> = (0..MANY).map(|at| add(at).unwrap()).collect();
    let closed = ground.device.stream().unwrap();
    let gate = Gate::close(&closed);
    drop(high.hold(&closed).unwrap());
    drop(low);
    let locked = ground.locked_at_the_next_wait(gate);
    let launches = Arc::new(AtomicU64::new(0));
    let its = Arc::clone(&launches);
    let mut waited = false;
    ground.watched.before(move |call, _| {
        waited |= call == "event_sync";
        let counts = call == "launch" && !waited;
        its.fetch_add(u64::from(counts), Ordering::Relaxed);
        true
    });
    assert!(ground.pool.compact(&Goal::Full).unwrap().bytes > 0);
    assert!(ground.watched.was_hooked(), "nothing is waited for");
    assert!(locked.load(Ordering::Relaxed), "the lock is held meanwhile");
    let before = launches.load(Ordering::Relaxed);
    assert!(before < 800, "{before} launches before the first wait");
    drop(arrays);
    let now = high.hold(&ground.stream).unwrap().addr();
    assert_ne!(now, addr);
    let found = common::read(&ground.stream, memory.addr, 8 * MANY);
    assert!(found.chunks(8).all(|it| it == now.to_le_bytes()));
}

#[test]
fn very_many_small_blocks_are_spilled_and_come_back_in_parts_that_their_streams_have_room_for() {
    const BLOCKS: usize = 1900;
    let limit = PoolConfig::default().limit(10 << 20);
    let ground = Ground::new(limit.handles(HandleSize::Granule));
    let host = HostPool::new(&ground.device, HostPoolConfig::default());
    ground.pool.set_spill(Spill::Auto(&host)).unwrap();
    let closed = ground.device.stream().unwrap();
    let mut blocks: Vec<_> = (0..BLOCKS)
        .map(|_| {
            ground
                .pool
                .alloc_movable::<u8>(&ground.stream, 4096)
                .unwrap()
        })
        .collect();
    for (at, block) in blocks.iter_mut().enumerate() {
        block.upload(&ground.stream, &[at as u8; 4096]).unwrap();
    }
    let gate = Gate::close(&closed);
    blocks.iter().for_each(|it| drop(it.hold(&closed).unwrap()));
    let locked = ground.locked_at_the_next_wait(gate);
    let before = ground.watched.calls("copy_out");
    let large = ground.pool.alloc(&ground.stream, 7 << 20).unwrap();
    assert!(
        ground.watched.calls("copy_out") - before > 1000,
        "few are spilled"
    );
    assert!(ground.watched.was_hooked(), "nothing is waited for");
    assert!(locked.load(Ordering::Relaxed), "the lock is held meanwhile");
    drop(large);
    let gate = Gate::close(&ground.stream);
    let locked = ground.locked_at_the_next_wait(gate);
    let other = ground.device.stream().unwrap();
    blocks.iter().for_each(|it| drop(it.hold(&other).unwrap()));
    assert!(ground.watched.was_hooked(), "nothing is waited for");
    assert!(locked.load(Ordering::Relaxed), "the lock is held meanwhile");
    for (at, block) in blocks.iter().enumerate() {
        assert!(
            block
                .download(&other)
                .unwrap()
                .iter()
                .all(|&it| it == at as u8)
        );
    }
}
#[test]
fn a_hold_taken_under_a_capture_holds_its_stream_behind_the_move_also_once_that_has_ended() {
    for allocates in [true, false] {
        let ground = Ground::new(PoolConfig::default());
        let [user, stream] = [(); 2].map(|()| ground.device.stream().unwrap());
        let mut block = ground.pool.alloc_movable::<u64>(&stream, 1000).unwrap();
        block.upload(&stream, &contents(1, 1000)).unwrap();
        let gate = Gate::close(&user);
        drop(block.hold(&user).unwrap());
        // To be moved into its place.
        drop(ground.block);
        ground.stream.synchronize().unwrap();
        assert!(ground.pool.compact(&Goal::Full).unwrap().blocks > 0);
        let capture = stream.begin_capture().unwrap();
        let spare = allocates.then(|| ground.pool.alloc(&stream, 256).unwrap());
        let held = block.hold(&stream).unwrap();
        let graph = capture.end().unwrap();
        let waits = common::is_held(&stream);
        gate.open();
        assert!(waits, "its next work would run ahead of the move");
        drop((held, graph, spare));
    }
}
