//! That no thread waits for the pool's lock while another is at the driver.
//!
//! The device is watched: right after a call, on the thread that made it and under whatever locks it holds,
//! another thread asks the pool for memory that only the heap has, and has to get it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::watched::Watched;
use crate::common::{BackendOf, Gate};
use warpool::compact::Goal;
use warpool::device::RawStream;
use warpool::pool::HandleSize;
use warpool::{Block, Device, Pool, PoolConfig, Stream};

/// How long the other thread may take: it asks for what is ready.
const LONG: Duration = Duration::from_secs(5);

/// Bytes that are ready for it.
const HOLE: u64 = 8192;

struct World {
    watched: Arc<Watched>,
    pool: Pool,
    stream: Stream,
    other: Stream,
    granule: u64,
}

impl World {
    /// A pool of so many handles at most, whose first is in use but for a hole of the other stream's that
    /// no gap is beside.
    fn of(granules: u64) -> Self {
        let (device, watched) = Watched::over(&Device::host().unwrap());
        let granule = device.info().granule;
        let config = PoolConfig::default()
            .handles(HandleSize::Granule)
            .slabs(false)
            .cache_bytes(0)
            .overlap_bytes(0)
            .limit(granules * granule);
        let pool = Pool::new(&device, config).unwrap();
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let [hole, small, rest] =
            [HOLE, 256, granule - HOLE - 256].map(|bytes| pool.alloc(&other, bytes).unwrap());
        drop(hole);
        // The cache has room for one, and the other leaves it.
        drop(small);
        std::mem::forget(rest);
        Self {
            watched,
            pool,
            stream,
            other,
            granule,
        }
    }

    fn block(&self, granules: u64) -> Block {
        self.pool
            .alloc(&self.stream, granules * self.granule)
            .unwrap()
    }

    /// Whether another thread is served right after the next use of `call`, which `act` makes.
    fn serves_during(&self, call: &'static str, act: impl FnOnce()) {
        let (pool, other) = (self.pool.clone(), self.other.clone());
        let served = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&served);
        self.watched.after(call, move || {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                let block = pool.alloc(&other, 1024);
                let _ = tell.send(block.is_ok());
            });
            its.store(told.recv_timeout(LONG) == Ok(true), Ordering::Relaxed);
        });
        act();
        assert!(self.watched.was_hooked(), "{call} is not made");
        assert!(
            served.load(Ordering::Relaxed),
            "who is at {call} holds the lock"
        );
        self.pool.check_invariants().unwrap();
    }
}

#[test]
fn others_are_served_while_handles_are_made_and_mapped() {
    for call in ["create", "map"] {
        let world = World::of(8);
        let mut block = None;
        world.serves_during(call, || block = Some(world.block(3)));
    }
}

#[test]
fn others_are_served_while_handles_are_mapped_elsewhere_and_old_mappings_are_taken_down() {
    let world = World::of(6);
    let mut blocks: Vec<Block> = (0..5).map(|_| world.block(1)).collect();
    let freed: Vec<Block> = [4, 2, 0].map(|at| blocks.remove(at)).into();
    drop(freed);
    let mut block = None;
    world.serves_during("map", || block = Some(world.block(3)));
    assert!(world.pool.stats().steps.steal > 0);
    // In one piece again: what was mapped elsewhere leaves old mappings, whose work is done.
    drop((block.take(), blocks));
    world.stream.synchronize().unwrap();
    world.pool.trim(0).unwrap();
    let mut blocks: Vec<Block> = (0..5).map(|_| world.block(1)).collect();
    let freed: Vec<Block> = [4, 2, 0].map(|at| blocks.remove(at)).into();
    drop(freed);
    drop(world.block(3));
    blocks.push(world.block(1));
    let before = world.pool.stats().calls.unmapped;
    world.stream.synchronize().unwrap();
    world.serves_during("unmap", || _ = world.pool.trim(u64::MAX).unwrap());
    assert!(world.pool.stats().calls.unmapped > before);
}

#[test]
fn others_are_served_while_the_device_is_asked_what_memory_it_has_left() {
    let world = World::of(1);
    world.serves_during("free_bytes", || {
        let refused = world.pool.alloc(&world.stream, world.granule);
        assert!(refused.is_err_and(|error| error.is_out_of_memory()));
    });
}

#[test]
fn others_are_served_while_memory_is_waited_for_and_given_back() {
    for call in ["event_sync", "unmap", "release"] {
        let world = World::of(8);
        let blocks = [world.block(2), world.block(3)];
        let gate = Gate::close(&world.stream);
        drop(blocks);
        let opens = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            gate.open();
        });
        world.serves_during(call, || _ = world.pool.trim(0).unwrap());
        opens.join().unwrap();
    }
}

#[test]
fn others_are_served_while_a_stream_is_made_to_wait_for_another() {
    for call in ["event_record", "event_wait"] {
        let world = World::of(6);
        let blocks = [world.block(3), world.block(2)];
        let gate = Gate::close(&world.stream);
        for block in blocks {
            drop(block);
        }
        let third = world.pool.device().stream().unwrap();
        let mut block = None;
        world.serves_during(call, || {
            block = Some(world.pool.alloc(&third, 4 * world.granule).unwrap());
        });
        assert_eq!(world.pool.stats().steps.waits, 1);
        gate.open();
    }
}

#[test]
fn others_are_served_while_a_block_waits_to_grow_where_it_is() {
    let world = World::of(6);
    let words = world.granule as usize / 8;
    let mut block = world
        .pool
        .alloc_movable::<u64>(&world.stream, words)
        .unwrap();
    let third = world.pool.device().stream().unwrap();
    // One that is freed into the cache, and one behind the block that is not.
    let behind = world.pool.alloc(&third, 2 * world.granule).unwrap();
    let gate = Gate::close(&third);
    drop(behind);
    world.pool.trim(u64::MAX).unwrap();
    world.serves_during("event_wait", || {
        block.resize(&world.stream, 2 * words).unwrap()
    });
    assert_eq!(world.pool.stats().steps.waits, 1);
    gate.open();
}

#[test]
fn others_are_served_while_a_stream_that_goes_waits_for_the_uses_of_its_blocks() {
    for call in ["event_record", "event_wait"] {
        let world = World::of(6);
        let gone = world.pool.device().stream().unwrap();
        let mut block = world.pool.alloc(&gone, world.granule).unwrap();
        let gate = Gate::close(&world.stream);
        block.record_use(&world.stream).unwrap();
        drop(block);
        world.serves_during(call, || drop(gone));
        gate.open();
    }
}

#[test]
fn others_are_served_while_streams_are_recorded_for_a_step_of_compaction() {
    let world = World::of(6);
    let words = world.granule as usize / 8;
    let alloc = || world.pool.alloc_movable::<u64>(&world.stream, words);
    let [low, high] = [(); 2].map(|()| alloc().unwrap());
    let third = world.pool.device().stream().unwrap();
    let gate = Gate::close(&third);
    drop(high.hold(&third).unwrap());
    drop(low);
    world.serves_during("event_record", || {
        assert!(world.pool.compact(&Goal::Full).unwrap().bytes > 0);
    });
    gate.open();
}

#[test]
fn a_host_call_frees_into_a_full_cache_while_another_thread_is_at_the_driver() {
    for elsewhere in [false, true] {
        let world = World::of(6);
        let words = world.granule as usize / 8;
        let alloc = || world.pool.alloc_movable::<u64>(&world.stream, words);
        let [low, _high] = [(); 2].map(|()| alloc().unwrap());
        let [home, other] = [(); 2].map(|()| world.pool.device().stream().unwrap());
        // The cache has room for one.
        let blocks = [(); 2].map(|()| world.pool.alloc(&home, 8192).unwrap());
        drop(low);
        let before = world.pool.stats().blocks.current;
        let ((go, begin), (tell, told)) = (mpsc::channel::<()>(), mpsc::channel());
        let its = other.clone();
        let work = move || {
            let _ = begin.recv();
            for block in blocks {
                match elsewhere {
                    true => block.free_on(&its).unwrap(),
                    false => drop(block),
                }
            }
            let _ = tell.send(());
        };
        let backend = world.pool.device().backend();
        backend.host_call(home.raw(), Box::new(work)).unwrap();
        let freed = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&freed);
        world.watched.after("before_copy_in", move || {
            drop(go);
            its.store(told.recv_timeout(LONG).is_ok(), Ordering::Relaxed);
        });
        assert!(world.pool.compact(&Goal::Full).unwrap().bytes > 0);
        assert!(world.watched.was_hooked(), "nothing is uploaded");
        assert!(freed.load(Ordering::Relaxed), "it waits for the lock");
        let begun = std::time::Instant::now();
        while world.pool.stats().blocks.current + 2 > before {
            assert!(begun.elapsed() < 4 * LONG, "it is never freed");
            std::thread::yield_now();
        }
        world.pool.check_invariants().unwrap();
    }
}

#[test]
fn a_request_in_a_host_call_waits_for_no_thread_that_waits_for_its_stream() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let granule = device.info().granule;
    let config = PoolConfig::default()
        .handles(HandleSize::UpTo(6 * granule))
        .remap(false)
        .overlap_bytes(0)
        .limit(8 * granule);
    let pool = Pool::new(&device, config).unwrap();
    let [stream, other, third] = [(); 3].map(|()| device.stream().unwrap());
    let block = pool.alloc(&stream, 6 * granule).unwrap();
    let _behind = pool.alloc(&stream, granule).unwrap();
    let ((go, begin), (tell, told)) = (mpsc::channel::<()>(), mpsc::channel());
    let its = pool.clone();
    let work = move || {
        let _ = begin.recv();
        let _ = tell.send(its.alloc(&third, 3 * granule).map(drop));
    };
    let backend = device.backend();
    backend.host_call(stream.raw(), Box::new(work)).unwrap();
    drop(block);
    // The handle is in the wrong place: it is released, once the stream is done with it.
    watched.after("before_event_sync", move || drop(go));
    let of = pool.clone();
    let asks = std::thread::spawn(move || of.alloc(&other, 7 * granule).map(drop));
    let answer = told.recv_timeout(LONG).expect("each waits for the other");
    let words = answer.expect_err("nothing is ready").to_string();
    assert!(words.contains("host call"), "{words}");
    asks.join().unwrap().unwrap();
    pool.check_invariants().unwrap();
}

#[test]
fn others_are_served_while_a_stream_is_destroyed_whose_place_another_gets() {
    let world = World::of(8);
    let device = world.pool.device();
    let left = device.stream().unwrap();
    let block = world.pool.alloc(&left, 4096).unwrap();
    world.stream.wait_stream(&left).unwrap();
    block.free_on(&world.stream).unwrap();
    // A stream whose capture does not end stays until nothing tracks its order.
    let capture = left.begin_capture().unwrap();
    world.watched.fail("capture_end", 1, true);
    assert!(capture.end().is_err());
    drop(left);
    world.watched.heal();
    let late = device.stream().unwrap();
    world.serves_during("stream_destroy", || {
        drop(world.pool.alloc(&late, 4096).unwrap());
        // What ended under a lock goes with the next stream.
        drop(late);
    });
}

/// A stream that freed two blocks, and one that uses the second and is gone but for its order: the driver did not end
/// its capture.
fn used_by_a_stream_that_stays(world: &World) -> (Stream, RawStream) {
    let device = world.pool.device();
    let [home, left] = [(); 2].map(|()| device.stream().unwrap());
    let blocks = [(); 2].map(|()| world.pool.alloc(&home, 4096).unwrap());
    let capture = left.begin_capture().unwrap();
    world.watched.fail("capture_end", 1, true);
    assert!(capture.end().is_err());
    // The first of four drops asks how far the others are.
    for (mut block, user) in blocks.into_iter().zip([&world.stream, &left]) {
        block.record_use(user).unwrap();
    }
    let raw = left.raw();
    drop(left);
    world.watched.heal();
    (home, raw)
}

#[test]
fn others_are_served_while_a_stream_is_destroyed_that_used_what_one_that_goes_freed() {
    let world = World::of(8);
    let (home, _left) = used_by_a_stream_that_stays(&world);
    world.serves_during("stream_destroy", || drop(home));
}

#[test]
fn others_are_served_while_a_stream_is_destroyed_that_is_done_with_a_block() {
    let world = World::of(8);
    let device = world.pool.device();
    let (_home, raw) = used_by_a_stream_that_stays(&world);
    // The driver can be asked about the stream again.
    let graph = device.backend().capture_end(raw).unwrap();
    device.backend().graph_destroy(graph).unwrap();
    world.serves_during("stream_destroy", || {
        world.pool.trim(0).unwrap();
        drop(device.stream().unwrap());
    });
}

#[test]
fn others_are_served_while_the_events_of_a_stream_that_is_gone_are_destroyed() {
    let world = World::of(6);
    let device = world.pool.device();
    let [home, left] = [(); 2].map(|()| device.stream().unwrap());
    let mut block = world.block(1);
    block.record_use(&left).unwrap();
    let gate = Gate::close(&left);
    drop(block);
    drop(left);
    // As many spare events as the device keeps.
    let others: Vec<_> = (0..300).map(|_| device.stream().unwrap()).collect();
    for other in &others {
        home.wait_stream(other).unwrap();
    }
    drop(others);
    world.serves_during("event_destroy", || {
        let all = world.pool.alloc(&home, 5 * world.granule).unwrap();
        drop((all, device.stream().unwrap()));
    });
    gate.open();
}
