//! What the tests of this folder found, each as small as it became.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::watched::{OUT_OF_MEMORY, Watched};
use crate::common::{self, BackendOf};

use warpool::device::sim::SimConfig;
use warpool::pool::{HandleSize, Relief};
use warpool::{Block, Device, Error, Pool, PoolBuf, PoolConfig, Result, Stream};

const MIB: u64 = 1 << 20;

/// Found by `state_machine`: a hole of another stream that suffices by itself was overlooked where
/// only failing is worse than waiting.
#[test]
fn pending_memory_is_taken_rather_than_fail_where_waits_are_switched_off() {
    let device = common::host();
    let config = PoolConfig::default()
        .limit(6 * MIB)
        .handles(HandleSize::Granule)
        .reuse(false, false)
        .cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let first = pool.alloc(&streams[0], 4 * MIB).unwrap();
    let mut second = pool.alloc(&streams[2], 2049).unwrap();
    second.shrink(1).unwrap();
    let gate = common::Gate::close(&streams[0]);
    drop(first);
    let third = pool.alloc(&streams[1], 1).unwrap();
    gate.open();
    pool.check_invariants().unwrap();
    drop((second, third));
}

/// Found by `state_machine`.
#[test]
fn pending_holes_beside_a_gap_do_not_stand_in_the_way_of_growth() {
    let device = Device::sim(&SimConfig::default().with_capacity(48 * MIB)).unwrap();
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .reuse(false, false)
        .overlap_bytes(0)
        .slack(0.0)
        .cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let first = pool.alloc(&streams[0], 1).unwrap();
    let mut large = pool.alloc(&streams[0], 2_235_554).unwrap();
    large.shrink(1).unwrap();
    drop(large);
    let mut second = pool.alloc(&streams[1], 1).unwrap();
    let third = pool.alloc(&streams[0], 1).unwrap();
    let fourth = pool.alloc(&streams[0], 2_094_081).unwrap();
    drop(third);
    streams[0].wait_stream(&streams[1]).unwrap();
    second.record_use(&streams[0]).unwrap();
    drop(fourth);
    drop(second);
    let fifth = pool.alloc(&streams[2], 1537).unwrap();
    streams[1].wait_stream(&streams[2]).unwrap();
    fifth.free_on(&streams[1]).unwrap();
    drop(pool.alloc(&streams[1], 6_290_945).unwrap());
    drop(first);
}

#[test]
fn a_request_that_fails_at_a_threads_end_is_an_error_there_too() {
    struct Late(Pool, Stream);
    impl Drop for Late {
        fn drop(&mut self) {
            assert!(self.0.alloc(&self.1, 1 << 30).is_err());
        }
    }
    thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20)).unwrap();
    pool.on_pressure(|_| Relief::Exhausted);
    let stream = device.stream().unwrap();
    let failing = std::thread::spawn(move || {
        // First, so that it goes after what the request uses.
        LATE.set(Some(Late(pool.clone(), stream.clone())));
        assert!(pool.alloc(&stream, 1 << 30).is_err());
    });
    failing.join().unwrap();
}

#[test]
fn requests_that_no_device_could_serve_fail_where_several_threads_make_them() {
    const THREADS: usize = 8;
    let capacity = 8 * MIB;
    let (device, watched) = Watched::over(&Device::host_with_capacity(capacity).unwrap());
    let pool = Pool::new(&device, PoolConfig::default().overlap_bytes(0)).unwrap();
    // A driver that takes its time to refuse.
    watched.before(|call, _| {
        if call == "create" {
            std::thread::sleep(Duration::from_micros(500));
        }
        true
    });
    let (tell, told) = mpsc::channel();
    for _ in 0..THREADS {
        let (pool, stream, tell) = (pool.clone(), device.stream().unwrap(), tell.clone());
        std::thread::spawn(move || {
            let _ = tell.send(pool.alloc(&stream, 2 * capacity).is_err());
        });
    }
    for _ in 0..THREADS {
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
    pool.check_invariants().unwrap();
}

/// A request for so many bytes fails, and soon, while others map and give back without a pause.
fn fails_beside_others(watched: &Watched, pool: &Pool, bytes: u64) {
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    watched.before(move |call, _| {
        if matches!(call, "create" | "release") {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    });
    let over = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    let stream = || pool.device().stream().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (stream, over) = (stream(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drop(pool.alloc(&stream, 8 * MIB).unwrap());
                    pool.trim(0).unwrap();
                }
            });
        }
        let stream = stream();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let before = calls.load(Ordering::Relaxed);
            let failed = pool.alloc(&stream, bytes).is_err();
            let _ = tell.send((failed, calls.load(Ordering::Relaxed) - before));
        });
        let failed = told.recv_timeout(Duration::from_secs(20));
        over.store(true, Ordering::Relaxed);
        let (failed, calls) = failed.expect("it waits for others without an end");
        assert!(
            failed && calls < 12_000,
            "{calls} calls of others meanwhile"
        );
    });
}

#[test]
fn a_request_beyond_the_limit_fails_while_others_map_and_give_back_without_a_pause() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let pool = Pool::new(&device, PoolConfig::default().limit(256 * MIB)).unwrap();
    fails_beside_others(&watched, &pool, 257 * MIB);
}

#[test]
fn a_request_beyond_what_growing_buffers_leave_fails_while_others_map_and_give_back() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let pool = Pool::new(&device, PoolConfig::default().limit(256 * MIB)).unwrap();
    let stream = device.stream().unwrap();
    let mut buffer = pool.grow_buf::<u8>(&stream, 180 << 20).unwrap();
    buffer.resize(180 << 20).unwrap();
    fails_beside_others(&watched, &pool, 100 * MIB);
}

#[test]
fn a_request_that_fragments_leave_no_place_for_fails_while_others_map_and_give_back() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let pool = Pool::new(&device, config.limit(256 * MIB)).unwrap();
    let stream = device.stream().unwrap();
    let halves: Vec<_> = (0..160).map(|_| pool.alloc(&stream, MIB)).collect();
    let kept: Vec<_> = halves.into_iter().step_by(2).collect();
    fails_beside_others(&watched, &pool, 100 * MIB);
    drop(kept);
}

#[test]
fn a_request_has_what_a_growing_buffer_is_giving_back() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let granule = device.info().granule;
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let pool = Pool::new(&device, config.limit(4 * granule)).unwrap();
    let stream = device.stream().unwrap();
    let mut buffer = pool.grow_buf::<u8>(&stream, 4 << 30).unwrap();
    buffer.resize(4 * granule as usize).unwrap();
    stream.synchronize().unwrap();
    let (tell, told) = mpsc::channel();
    let of = pool.clone();
    watched.after("unmap", move || {
        std::thread::spawn(move || tell.send(of.alloc(&stream, 3 * granule).is_ok()));
        std::thread::sleep(Duration::from_millis(50));
    });
    buffer.resize(0).unwrap();
    assert_eq!(told.recv(), Ok(true));
}

#[test]
fn a_request_beyond_the_device_fails_while_others_map_and_give_back() {
    let (device, watched) = Watched::over(&Device::host_with_capacity(256 * MIB).unwrap());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    fails_beside_others(&watched, &pool, 257 * MIB);
}

/// Requests of so many threads for eight granules, which the device does not give; all are to come to an end.
fn fail_together(pool: &Pool, threads: usize) {
    let (tell, told) = mpsc::channel();
    for _ in 0..threads {
        let (pool, tell) = (pool.clone(), tell.clone());
        let stream = pool.device().stream().unwrap();
        std::thread::sleep(Duration::from_millis(3));
        std::thread::spawn(move || {
            let outcome = pool.alloc(&stream, 8 * pool.device().info().granule);
            let _ = tell.send(outcome.is_err_and(|error| error.is_out_of_memory()));
        });
    }
    for _ in 0..threads {
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(true));
    }
}

/// Has each use of `call` last so many milliseconds.
fn slow(watched: &Arc<Watched>, before_call: &'static str, millis: u64) {
    let its = Arc::clone(watched);
    watched.after(before_call, move || {
        slow(&its, before_call, millis);
        std::thread::sleep(Duration::from_millis(millis));
    });
}

#[test]
fn requests_that_fail_together_come_to_an_end_where_the_device_does_not_take_a_handle_back() {
    let granule = Device::host().unwrap().info().granule;
    let (device, watched) = Watched::over(&Device::host_with_capacity(8 * granule).unwrap());
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slabs(false);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let kept = pool.alloc(&stream, 3 * granule).unwrap();
    drop(pool.alloc(&stream, granule).unwrap());
    watched.fail("release", 1, true);
    assert!(pool.trim(0).is_err());
    slow(&watched, "before_release", 20);
    watched.before(|call, _| {
        if call == "create" {
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    });
    fail_together(&pool, 2);
    watched.after("nothing", || ());
    watched.heal();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 3 * granule);
    drop(kept);
}

#[test]
fn requests_that_fail_together_come_to_an_end_where_the_device_maps_no_handle_that_it_makes() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    watched.fail_with("map", 1, true, OUT_OF_MEMORY);
    slow(&watched, "before_map", 12);
    fail_together(&pool, 4);
    watched.after("nothing", || ());
    assert_eq!(pool.stats().reserved.current, 0);
}

/// A pool of `count` granules, each in a block of its own, and those.
fn granules(
    device: &Device,
    stream: &Stream,
    config: PoolConfig,
    count: usize,
) -> (Pool, Vec<Block>) {
    let pool = Pool::new(device, config.handles(HandleSize::Granule).cache_bytes(0)).unwrap();
    let blocks = (0..count).map(|_| pool.alloc(stream, 2 * MIB).unwrap());
    let blocks = blocks.collect();
    (pool, blocks)
}

#[test]
fn a_buffer_grows_within_a_limit_that_idle_memory_is_beyond() {
    let device = common::host();
    let stream = device.stream().unwrap();
    let (pool, blocks) = granules(&device, &stream, PoolConfig::default(), 6);
    drop(blocks);
    pool.set_limit(5 * MIB);
    let mut buffer = pool.grow_buf::<u8>(&stream, 4 << 20).unwrap();
    buffer.resize(4 << 20).unwrap();
    assert_eq!(pool.stats().reserved.current, 4 * MIB);
}

#[test]
fn a_request_is_served_within_a_limit_that_idle_memory_is_beyond() {
    let device = common::host();
    let stream = device.stream().unwrap();
    let config = PoolConfig::default().remap(false);
    let (pool, mut blocks) = granules(&device, &stream, config, 7);
    for at in [6, 4, 2, 0] {
        drop(blocks.remove(at));
    }
    pool.set_limit(11 * MIB);
    let block = pool.alloc(&stream, 4 * MIB).unwrap();
    assert_eq!(pool.stats().reserved.current, 10 * MIB);
    drop(block);
}

#[test]
fn who_could_not_help_is_asked_again_once_another_has() {
    let device = Device::host_with_capacity(16 * MIB).unwrap();
    let stream = device.stream().unwrap();
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let root = Pool::new(&device, config.limit(10 * MIB)).unwrap();
    let [part, other] = ["part", "other"].map(|tag| root.tagged(tag).unwrap());
    drop(other.alloc(&stream, 10 * MIB).unwrap());
    let spare = Mutex::new(Some(part.alloc(&stream, 4 * MIB).unwrap()));
    part.on_pressure(move |_| match spare.lock().unwrap().take() {
        Some(_) => Relief::Retry,
        None => Relief::Exhausted,
    });
    // Its limit is in the way until the block is free; then what is idle in the other part.
    assert!(part.alloc(&stream, 8 * MIB).is_ok());
}

#[test]
fn movable_memory_begins_where_the_pool_has_all_that_the_device_has_and_it_is_idle() {
    let device = Device::host_with_capacity(16 * MIB).unwrap();
    let stream = device.stream().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    drop(pool.alloc(&stream, 16 * MIB).unwrap());
    assert!(pool.alloc_movable::<u8>(&stream, 8 << 20).is_ok());
    // Nothing is idle: that is no error of the driver's.
    let full = Pool::new(&device, PoolConfig::default()).unwrap();
    let rest = device.info().total_bytes - pool.stats().reserved.current - pool.stats().overhead;
    let _block = full.alloc(&stream, rest).unwrap();
    let outcome = full.alloc_movable::<u8>(&stream, 1);
    assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
}

#[test]
fn movable_memory_begins_where_idle_memory_is_ready_beside_a_capture_that_goes_on() {
    let device = Device::sim(&SimConfig::default().with_capacity(10 * MIB)).unwrap();
    let (device, watched) = Watched::over(&device);
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let pool = Pool::new(&device, config.cache_bytes(0)).unwrap();
    let (stuck, home) = (device.stream().unwrap(), device.stream().unwrap());
    // What is left of its handle serves the movable block.
    let _live = pool.alloc(&home, MIB).unwrap();
    let sizes = [(&stuck, 4 * MIB), (&home, 4 * MIB)];
    let blocks = sizes.map(|(stream, bytes)| pool.alloc(stream, bytes).unwrap());
    let capture = stuck.begin_capture().unwrap();
    watched.fail("capture_end", 1, true);
    drop((capture, blocks));
    assert_eq!(pool.stats().reserved.current, 10 * MIB);
    drop(pool.alloc_movable::<u8>(&home, 1000).unwrap());
    watched.heal();
    // SAFETY: the graph is empty, and is not launched.
    let graph = unsafe { device.raw_backend() }.capture_end(stuck.raw());
    // SAFETY: as above.
    unsafe { device.raw_backend() }
        .graph_destroy(graph.unwrap())
        .unwrap();
}

#[test]
fn a_growing_buffer_fails_where_memory_that_is_joined_for_it_would_take_its_room() {
    let (device, watched) = Watched::over(&common::host());
    let stream = device.stream().unwrap();
    let config = PoolConfig::default().limit(10 * MIB).preallocate(6 * MIB);
    let pool = Pool::new(&device, config.handles(HandleSize::Granule).cache_bytes(0)).unwrap();
    let first = pool.alloc(&stream, 5 * MIB).unwrap();
    let _second = pool.alloc(&stream, 2 * MIB).unwrap();
    drop(first);
    // What is free is not in whole handles.
    let _third = pool.alloc(&stream, 4 * MIB).unwrap();
    drop(pool.alloc_movable::<u8>(&stream, 1).unwrap());
    // It would go on and on, and ends by another error.
    watched.fail("create", 100, true);
    let mut buffer = pool.grow_buf::<u8>(&stream, 4 << 20).unwrap();
    let outcome = buffer.resize(4 << 20);
    assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
}

#[test]
fn a_request_for_more_than_the_device_has_takes_none_of_it() {
    let (device, watched) = Watched::over(&Device::host_with_capacity(64 * MIB).unwrap());
    let stream = device.stream().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let _block = pool.alloc(&stream, 4 * MIB).unwrap();
    let (reserved, made) = (pool.stats().reserved.current, watched.calls("create"));
    for bytes in [62 * MIB, 1 << 40] {
        let outcome = pool.alloc(&stream, bytes);
        assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
        let mut buffer = pool.grow_buf::<u8>(&stream, 1 << 40).unwrap();
        let outcome = buffer.resize(bytes as usize);
        assert!(outcome.is_err_and(|error| error.is_out_of_memory()));
    }
    assert_eq!(pool.stats().reserved.current, reserved);
    assert_eq!(watched.calls("create"), made);
    drop(pool.alloc(&stream, 60 * MIB).unwrap());
}

#[test]
fn a_capture_whose_memory_the_host_waits_for_keeps_nobody_from_its_stream() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    drop(pool.alloc(&stream, MIB).unwrap());
    watched.fail("event_wait", 1, false);
    let asked = Arc::new(AtomicBool::new(false));
    let (its, again) = (Arc::clone(&asked), stream.clone());
    watched.after("before_event_sync", move || {
        let (tell, told) = mpsc::channel();
        // The stream refuses it, and the thread goes on.
        std::thread::spawn(move || tell.send(again.is_idle().is_err()));
        let done = told.recv_timeout(Duration::from_secs(5));
        its.store(done == Ok(true), Ordering::Relaxed);
    });
    drop(capture.end().unwrap());
    assert!(watched.was_hooked(), "the host did not wait");
    assert!(asked.load(Ordering::Relaxed), "a lock is held meanwhile");
}

#[test]
fn memory_of_a_capture_is_not_used_ahead_of_what_the_host_waits_for_as_it_ends() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
    let capture = stream.begin_capture().unwrap();
    let buffer = Arc::new(pool.alloc_typed::<u32>(&stream, 1000).unwrap());
    watched.fail("event_wait", 1, false);
    let (tell, told) = mpsc::channel();
    let its = Arc::clone(&buffer);
    watched.after("before_event_sync", move || {
        let used = std::thread::spawn(move || its.view().download(&other).is_ok());
        tell.send(used.join().unwrap()).unwrap();
    });
    let graph = capture.end().unwrap();
    assert_eq!(told.try_recv(), Ok(false));
    assert!(buffer.download().is_ok());
    drop(graph);
}

#[test]
fn no_capture_that_begins_amid_the_making_of_a_buffer_has_its_memory() {
    type Made = fn(&Pool, &Stream) -> Result<PoolBuf<u32>>;
    let ways: [Made; 2] = [
        |pool, stream| pool.alloc_from(stream, &[7; MIB as usize]),
        |pool, stream| pool.alloc_filled(stream, MIB as usize, 7),
    ];
    for made in ways {
        let device = common::host();
        let pool = Pool::new(&device, PoolConfig::default().limit(6 * MIB)).unwrap();
        let stream = device.stream().unwrap();
        let spare = Mutex::new(Some(pool.alloc(&stream, 4 * MIB).unwrap()));
        let captures = Arc::new(Mutex::new(Vec::new()));
        let (on, begun) = (stream.clone(), Arc::clone(&captures));
        // As another thread might, amid the request.
        pool.on_pressure(move |_| {
            let Some(block) = spare.lock().unwrap().take() else {
                return Relief::Exhausted;
            };
            drop(block);
            begun.lock().unwrap().push(on.begin_capture());
            Relief::Retry
        });
        let buffer = made(&pool, &stream);
        let capture = captures.lock().unwrap().pop().unwrap();
        let kept = capture.map(|capture| capture.end().unwrap());
        assert_eq!(kept.map_or(0, |graph| graph.memory().bytes()), 0);
        assert_eq!(buffer.unwrap().download().unwrap()[MIB as usize - 1], 7);
    }
}

#[test]
fn a_block_dropped_while_its_streams_capture_ends_is_reused_behind_its_declared_uses() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default().reuse(false, true)).unwrap();
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc(&home, MIB).unwrap();
    let addr = block.addr();
    let capture = home.begin_capture().unwrap();
    let gate = common::Gate::close(&other);
    common::fill(&other, addr, 3, MIB);
    block.record_use(&other).unwrap();
    let capture = Arc::new(Mutex::new(Some(capture)));
    let open = Arc::clone(&capture);
    let end = move || {
        let capture = open.lock().unwrap().take();
        capture.map(|it| it.end().unwrap())
    };
    let (ended, by_now) = (Arc::new(Mutex::new(None)), end.clone());
    let graph = Arc::clone(&ended);
    // If the drop waits for that use, the wait is the graph's by now.
    watched.after("event_record", move || *graph.lock().unwrap() = by_now());
    drop(block);
    let by_now = ended.lock().unwrap().take();
    let graph = by_now.or_else(end);
    let next = pool.alloc(&home, MIB).unwrap();
    assert_ne!(next.addr(), addr, "reused ahead of its use");
    gate.open();
    drop((graph, next));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn a_driver_without_addresses_left_is_no_lack_of_memory() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let buffer = || pool.grow_buf::<u8>(&stream, 1 << 20).map(drop);
    let another = || Pool::new(&device, PoolConfig::default()).map(drop);
    for reserves in [&buffer as &dyn Fn() -> _, &another] {
        watched.fail_with("reserve", 1, false, OUT_OF_MEMORY);
        let refused = reserves().unwrap_err();
        assert!(matches!(refused, Error::Driver { .. }) && !refused.is_out_of_memory());
        reserves().unwrap();
    }
    pool.check_invariants().unwrap();
}

#[test]
fn parts_without_memory_that_nobody_holds_leave_their_addresses_to_another() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let ranges = || device.backend().counts().ranges;
    let [held, ..] = ["held", "unused"].map(|tag| pool.tagged(tag).unwrap());
    let live = pool.tagged("live").unwrap().alloc(&stream, 100).unwrap();
    drop(pool.tagged("idle").unwrap().alloc(&stream, 100).unwrap());
    let inner = held.tagged("inner").unwrap();
    drop(inner.tagged("unused").unwrap());
    assert_eq!(ranges(), 7);
    watched.fail("reserve", 1, false);
    let part = pool.tagged("another").unwrap();
    assert_eq!(
        ranges(),
        5,
        "the whole, what is held, what is live, and the new"
    );
    assert_eq!(pool.tagged("live").unwrap().stats().blocks.current, 1);
    assert_eq!(ranges(), 5);
    drop((part, live));
    // All are held, or have memory.
    let _live = pool.tagged("live").unwrap();
    let _another = pool.tagged("another").unwrap();
    watched.fail("reserve", 1, false);
    pool.tagged("more").unwrap_err();
}
