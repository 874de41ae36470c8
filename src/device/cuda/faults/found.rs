//! Regression tests for faults that the search found.

use std::time::{Duration, Instant};

use super::{LIMIT, MADE_TO_FAIL, Rig, refused};
#[cfg(feature = "convert")]
use crate::compact::Goal;
#[cfg(feature = "convert")]
use crate::convert::{GradScaler, ScalerConfig};
use crate::device::{Device, Stream};
use crate::driver::fake::Machine;
use crate::driver::faults::Failure;
use crate::host::Contents;
#[cfg(feature = "convert")]
use crate::host::{HostPool, HostPoolConfig};
use crate::interop::CudaAsync;
use crate::pool::{HandleSize, Pool, PoolConfig};
#[cfg(feature = "sanitize")]
use crate::sanitize::Sanitizer;

/// A device over the fake driver.
pub(super) fn with_device(test: impl FnOnce(Rig, &Device)) {
    let machine = Machine::with_gpu(2 * LIMIT).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    test(rig, &device);
    drop(device);
    // Another thread may still be releasing an object.
    let deadline = Instant::now() + Duration::from_secs(20);
    while machine.left().counts != Default::default() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(machine.left().counts, Default::default());
    assert_eq!(refused(rig.driver), []);
}

/// Makes these calls fail from now on.
fn fail(rig: Rig, calls: &[&'static str]) {
    let failures = calls.iter().map(|&call| Failure {
        call,
        number: 1,
        for_ever: true,
        code: MADE_TO_FAIL,
    });
    rig.driver.faults.plan(&failures.collect::<Vec<_>>());
}

pub(super) fn pool(device: &Device) -> Pool {
    let config = PoolConfig::default().limit(LIMIT);
    Pool::new(device, config.handles(HandleSize::Granule)).unwrap()
}

#[test]
fn memory_of_a_stream_dropped_while_nothing_works_is_there_when_all_works_again() {
    with_device(|rig, device| {
        let pool = pool(device);
        let (gone, stream) = (device.stream().unwrap(), device.stream().unwrap());
        drop(pool.alloc(&gone, LIMIT).unwrap());
        fail(rig, &["cuCtxPushCurrent"]);
        drop(gone);
        assert!(pool.alloc(&stream, LIMIT).is_err());
        rig.driver.faults.heal();
        drop(pool.alloc(&stream, LIMIT).unwrap());
        pool.check_invariants().unwrap();
    });
}

#[test]
fn a_place_whose_mapping_could_be_neither_used_nor_taken_down_is_used_again() {
    with_device(|rig, device| {
        let pool = pool(device);
        let stream = device.stream().unwrap();
        fail(rig, &["cuMemSetAccess", "cuMemUnmap"]);
        for _ in 0..3 {
            assert!(pool.alloc(&stream, LIMIT / 2).is_err());
        }
        rig.driver.faults.heal();
        drop(pool.alloc(&stream, LIMIT).unwrap());
        pool.check_invariants().unwrap();
    });
}

#[test]
fn a_refused_part_of_a_pool_leaves_nothing_behind() {
    with_device(|rig, device| {
        let whole = pool(device);
        let outer = whole.tagged("outer").unwrap();
        let before = device.counts();
        fail(rig, &["cuMemAddressReserve"]);
        for of in [&whole, &outer] {
            assert!(of.tagged("part").is_err());
            assert!(of.parts(&["part"]).is_err());
        }
        assert_eq!(device.counts(), before);
        assert_eq!(whole.parts(&[]).unwrap().len(), 2);
        rig.driver.faults.heal();
        let part = whole.tagged("part").unwrap();
        let stream = device.stream().unwrap();
        drop(part.alloc(&stream, LIMIT).unwrap());
    });
}

#[test]
fn a_range_is_not_given_back_while_a_mapping_in_it_could_not_be_taken_down() {
    with_device(|rig, device| {
        let backend = device.backend();
        let bytes = backend.info().granule;
        let range = backend.reserve(2 * bytes).unwrap();
        let memory = backend.create(bytes).unwrap();
        fail(rig, &["cuMemSetAccess", "cuMemUnmap"]);
        assert!(backend.map(range, bytes, memory).is_err());
        for answer in [
            backend.unreserve(range, 2 * bytes),
            backend.map(range, bytes, memory),
        ] {
            let error = answer.unwrap_err().to_string();
            assert!(error.contains("cuMemUnmap"), "{error}");
        }
        assert_eq!(backend.counts().ranges, 1);
        // The next range can be mapped; only access to it is refused.
        let beside = backend.map(range + bytes, bytes, memory).unwrap_err();
        assert!(beside.to_string().contains("cuMemSetAccess"), "{beside}");
        rig.driver.faults.heal();
        backend.unreserve(range, 2 * bytes).unwrap();
        backend.release(memory).unwrap();
    });
}

#[test]
fn a_range_whose_memory_the_driver_keeps_is_left_to_it_by_a_device_that_goes() {
    let machine = Machine::with_gpu(2 * LIMIT).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let backend = device.backend();
    let bytes = backend.info().granule;
    for _ in 0..2 {
        let range = backend.reserve(bytes).unwrap();
        let memory = backend.create(bytes).unwrap();
        backend.map(range, bytes, memory).unwrap();
    }
    let failure = Failure {
        call: "cuMemUnmap",
        number: 1,
        for_ever: false,
        code: MADE_TO_FAIL,
    };
    rig.driver.faults.plan(&[failure]);
    drop(device);
    let left = machine.left().counts;
    assert_eq!((left.mappings, left.ranges, left.handles), (1, 1, 0));
    assert_eq!(refused(rig.driver), []);
}

#[test]
fn a_stream_whose_capture_cannot_be_ended_is_not_waited_for_until_it_has() {
    with_device(|rig, device| {
        let pool = pool(device);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = stream.begin_capture().unwrap();
        fail(rig, &["cuStreamEndCapture"]);
        assert!(capture.end().is_err());
        assert!(stream.synchronize().is_err());
        drop(pool.alloc(&stream, LIMIT));
        assert!(pool.alloc(&other, LIMIT).is_err());
        rig.driver.faults.heal();
        let graph = device.backend().capture_end(stream.raw()).unwrap();
        device.backend().graph_destroy(graph).unwrap();
        stream.synchronize().unwrap();
        drop(pool.alloc(&other, LIMIT).unwrap());
        pool.check_invariants().unwrap();
    });
}

#[test]
fn memory_that_queued_work_may_use_is_not_unmapped_where_that_cannot_be_waited_for() {
    let machine = Machine::with_gpu(2 * LIMIT).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let backend = device.backend();
    let bytes = backend.info().granule;
    let stream = backend.stream_create().unwrap();
    let addr = backend.reserve(bytes).unwrap();
    backend
        .map(addr, bytes, backend.create(bytes).unwrap())
        .unwrap();
    let (open, wait) = std::sync::mpsc::channel::<()>();
    let held = Box::new(move || {
        // Returns when the sender is dropped.
        let _ = wait.recv();
    });
    backend.host_call(stream, held).unwrap();
    // SAFETY: the range stays mapped, which is what is tested.
    unsafe { backend.fill(addr, 7, bytes, stream) }.unwrap();
    fail(rig, &["cuCtxSynchronize"]);
    drop(device);
    assert_eq!(machine.left().counts.mappings, 1);
    drop(open);
}

#[test]
fn a_host_call_that_panicked_is_told_of_by_whoever_waits_for_its_stream() {
    with_device(|_, device| {
        let stream = device.stream().unwrap();
        let call = Box::new(|| panic!("it went wrong"));
        device.backend().host_call(stream.raw(), call).unwrap();
        let words = stream.synchronize().unwrap_err().to_string();
        assert!(words.contains("it went wrong"), "{words}");
    });
}

#[test]
fn a_pool_does_not_fall_asleep_under_an_adopted_stream_that_could_not_be_waited_for() {
    with_device(|rig, device| {
        let config = PoolConfig::default().limit(LIMIT).sleeps(true);
        let pool = Pool::new(device, config).unwrap();
        let raw = device.backend().stream_create().unwrap();
        // SAFETY: it is destroyed below.
        let adopted = unsafe { device.adopt_stream(raw) }.unwrap();
        let block = pool.alloc(&adopted, 4000).unwrap();
        let gate = hold(&adopted);
        drop(block);
        fail(rig, WAITS);
        drop(adopted);
        rig.driver.faults.heal();
        let slept = pool.sleep(&[], Contents::Discarded);
        drop(gate);
        device.backend().stream_sync(raw).unwrap();
        device.backend().stream_destroy(raw).unwrap();
        let words = slept.expect_err("its work may still run").to_string();
        assert!(words.contains("the stream is gone"), "{words}");
    });
}

#[test]
fn what_is_dropped_in_a_host_call_is_given_back_by_another_thread() {
    with_device(|_, device| {
        let pool = pool(device);
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let moving = pool.alloc_movable::<u64>(&stream, 500).unwrap();
        let before = device.counts();
        drop(moving.hold(&other).unwrap());
        // Several blocks, because the driver is queried only now and then.
        let mut blocks = [(); 8].map(|()| pool.alloc(&stream, 1 << 20).unwrap());
        for block in &mut blocks {
            block.record_use(&other).unwrap();
        }
        let gate = hold(&other);
        let graph = stream.begin_capture().unwrap().end().unwrap();
        graph.launch(&other).unwrap();
        let (event, gone) = (device.event().unwrap(), device.stream().unwrap());
        let mut used = pool.alloc(&gone, 1 << 20).unwrap();
        used.record_use(&other).unwrap();
        drop(used);
        let under_way = gone.begin_capture().unwrap();
        let dropped = (under_way, gone, moving, blocks, graph, event);
        let (tell, ran) = std::sync::mpsc::channel();
        let work = Box::new(move || {
            drop(dropped);
            let _ = tell.send(());
        });
        device.backend().host_call(stream.raw(), work).unwrap();
        // Waits for the call and not for the stream, which may by now wait for the other stream.
        ran.recv().unwrap();
        drop(gate);
        let is_back = || {
            let counts = device.counts();
            let handles = (counts.streams, counts.graphs) == (before.streams, before.graphs);
            handles && pool.stats().allocated.current == 0
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_back() {
            let left = (device.counts(), pool.leak_report());
            assert!(Instant::now() < deadline, "{left:?} after {before:?}");
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_device_that_goes_in_a_host_call_is_given_back_by_another_thread() {
    with_device(|rig, device| {
        let other = rig.open().unwrap();
        let [ahead, behind] = [(); 2].map(|()| other.stream().unwrap());
        // Its event is a spare of the device's then.
        behind.wait_stream(&ahead).unwrap();
        behind.synchronize().unwrap();
        drop((ahead, behind));
        let stream = device.stream().unwrap();
        let work = Box::new(move || drop(other));
        device.backend().host_call(stream.raw(), work).unwrap();
        stream.synchronize().unwrap();
    });
}

#[cfg(feature = "convert")]
#[test]
fn what_goes_in_a_host_call_asks_the_driver_nothing_there() {
    with_device(|rig, device| {
        let pool = pool(device);
        let [stream, other, calls] = [(); 3].map(|()| device.stream().unwrap());
        let host = HostPool::new(device, HostPoolConfig::default());
        let scaler = GradScaler::new(&pool, &stream, ScalerConfig::default()).unwrap();
        let mut staged = host.alloc::<u32>(500).unwrap();
        let source = pool.alloc_zeroed::<u32>(&stream, 500).unwrap();
        let (hole, pointers) = (1 << 20, pool.alloc_movable::<u64>(&stream, 500).unwrap());
        let hole = pool.alloc_movable::<u8>(&stream, hole).unwrap();
        let moved = pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap();
        let fixed = pool.alloc_zeroed::<u64>(&stream, 8).unwrap();
        // SAFETY: the words outlive the array, and nothing else uses them.
        let array = unsafe { pool.register_pointers(&stream, fixed.addr(), 8) }.unwrap();
        let inner = pointers.register_pointers().unwrap();
        let gate = hold(&other);
        drop(moved.hold(&other).unwrap());
        drop(hole);
        pool.compact(&Goal::Full).unwrap();
        let state = scaler.read(&other).unwrap();
        source.view().download_into(&other, &mut staged).unwrap();
        let mut grown = pool.grow_buf::<u32>(&stream, 1 << 20).unwrap();
        grown.resize(1000).unwrap();
        let mut used = pool.alloc(&stream, 1 << 20).unwrap();
        used.record_use(&other).unwrap();
        drop(used);
        let theirs = CudaAsync::on(rig.driver, device, None).unwrap();
        let all: Vec<Dropped> = vec![
            ("a scaler's state", Box::new(state)),
            ("host memory", Box::new((staged, host))),
            ("a growing buffer", Box::new(grown)),
            ("arrays of pointers", Box::new((array, inner))),
            ("a pool of the driver's", Box::new(theirs)),
            ("movable memory", Box::new((moved, pointers))),
            ("buffers and a scaler", Box::new((source, fixed, scaler))),
            ("a pool", Box::new(pool)),
        ];
        drop_in_host_calls(&rig, &calls, all);
        drop(gate);
    });
}

#[test]
fn a_request_in_a_host_call_is_served_with_what_is_ready_and_calls_no_driver() {
    with_device(|rig, device| {
        let pool = pool(device);
        let [stream, calls] = [(); 2].map(|()| device.stream().unwrap());
        let mut buffer = pool.grow_buf::<u8>(&stream, 1 << 24).unwrap();
        let hole = pool.alloc(&stream, 3 << 20).unwrap();
        let beside = pool.alloc(&stream, 1 << 20).unwrap();
        drop(hole);
        pool.trim(u64::MAX).unwrap();
        let before = pool.stats().reserved.current;
        let (tell, told) = std::sync::mpsc::channel();
        let (queued, is_queued) = std::sync::mpsc::channel();
        let (of, on) = (pool.clone(), stream.clone());
        let work = Box::new(move || {
            // Queueing the call ends with calls of the driver, which are none of the request's.
            is_queued.recv().unwrap();
            rig.driver.faults.plan(&[]);
            let served = of.alloc(&on, 2 << 20).map(drop).is_ok();
            let errors = [of.alloc(&on, 9 << 20).map(drop), buffer.resize(1000)];
            let uses = rig.driver.faults.uses();
            let _ = tell.send((served, errors, uses, buffer));
        });
        device.backend().host_call(calls.raw(), work).unwrap();
        queued.send(()).unwrap();
        let (served, errors, uses, mut buffer) = told.recv().unwrap();
        assert!(served, "what is ready is refused");
        for error in errors {
            let words = error.unwrap_err().to_string();
            assert!(words.contains("host call"), "{words}");
        }
        assert!(uses.is_empty(), "{uses:?}");
        assert_eq!((pool.stats().reserved.current, buffer.len()), (before, 0));
        pool.check_invariants().unwrap();
        buffer.resize(1000).unwrap();
        drop((pool.alloc(&stream, 9 << 20).unwrap(), beside));
    });
}

#[test]
fn the_drivers_pool_takes_no_stream_of_another_device() {
    with_device(|rig, device| {
        let theirs = CudaAsync::on(rig.driver, device, None).unwrap();
        let [own, other] = [device.clone(), Device::host().unwrap()].map(|it| it.stream().unwrap());
        let block = theirs.alloc(&own, 1 << 20).unwrap();
        assert!(theirs.alloc(&other, 1 << 20).is_err());
        let (block, _) = theirs.free(block, &other).unwrap_err();
        fail(rig, &["cuMemFreeAsync"]);
        let (block, error) = theirs.free(block, &own).unwrap_err();
        assert!(error.to_string().contains("cuMemFreeAsync"), "{error}");
        rig.driver.faults.heal();
        theirs.free(block, &own).unwrap();
        own.synchronize().unwrap();
    });
}

#[test]
fn the_drivers_pool_under_a_limit_of_nothing_holds_nothing() {
    with_device(|rig, device| {
        let theirs = CudaAsync::on(rig.driver, device, Some(0)).unwrap();
        let stream = device.stream().unwrap();
        let refused = theirs
            .alloc(&stream, 1)
            .map(|block| theirs.free(block, &stream));
        assert!(refused.unwrap_err().is_device_exhausted());
    });
}

#[test]
fn a_context_entered_twice_is_current_until_both_are_left_in_whatever_order() {
    let machine = Machine::with_gpu(2 * LIMIT).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let pool = CudaAsync::on(rig.driver, &device, None).unwrap();
    let contexts = || machine.left().contexts;
    let before = contexts();
    for first_goes_first in [true, false] {
        let [first, second] = [(); 2].map(|()| pool.enter().unwrap());
        let (goes, stays) = match first_goes_first {
            true => (first, second),
            false => (second, first),
        };
        drop(goes);
        assert_eq!(contexts(), before + 1);
        drop(stays);
        assert_eq!(contexts(), before);
    }
}

#[test]
fn no_function_takes_an_event_or_a_stream_of_another_device() {
    with_device(|_, device| {
        let pool = pool(device);
        let other = Device::host().unwrap();
        let [stream, theirs] = [device, &other].map(|it| it.stream().unwrap());
        let [event, of_other] = [device, &other].map(|it| it.timing_event().unwrap());
        event.record(&stream).unwrap();
        of_other.record(&theirs).unwrap();
        stream.synchronize().unwrap();
        theirs.synchronize().unwrap();
        let words = event.elapsed_ns(&of_other).unwrap_err().to_string();
        assert!(words.contains("another device"), "{words}");
        let pointers = pool.alloc_movable::<u64>(&stream, 8).unwrap();
        let array = pointers.register_pointers().unwrap();
        let words = array.unregister(&theirs).unwrap_err().to_string();
        assert!(words.contains("another device"), "{words}");
        drop(pointers.register_pointers().unwrap());
    });
}

#[test]
fn memory_and_guards_that_go_in_a_host_call_ask_the_driver_nothing_there() {
    with_device(|rig, device| {
        let pool = pool(device);
        let [stream, other, calls] = [(); 3].map(|()| device.stream().unwrap());
        let config = PoolConfig::default().soft_limit(1).cache_bytes(0);
        let eased = Pool::new(device, config.handles(HandleSize::Granule)).unwrap();
        let over = [(); 3].map(|()| eased.alloc(&stream, 1 << 21).unwrap());
        let captured = device.stream().unwrap();
        let capture = captured.begin_capture().unwrap();
        let part = pool.alloc(&captured, 1 << 20).unwrap();
        let graph = capture.end().unwrap();
        let gate = hold(&other);
        let closed = Pool::new(device, PoolConfig::default()).unwrap();
        let mut used = closed.alloc(&stream, 1 << 20).unwrap();
        used.record_use(&other).unwrap();
        drop(used);
        let held_on: &'static Stream = Box::leak(Box::new(device.stream().unwrap()));
        let freed = pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap();
        drop(freed.hold(&other).unwrap());
        let last = pool.hold_id(freed.id(), held_on).unwrap();
        drop(freed);
        let shared = pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap();
        let many = [(); 16].map(|()| device.stream().unwrap());
        for stream in &many {
            drop(pool.hold_id(shared.id(), stream).unwrap());
        }
        let one_more = pool.hold_id(shared.id(), held_on).unwrap();
        let (home, branch) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = home.begin_capture().unwrap();
        branch.wait_stream(&home).unwrap();
        let mut typed = pool.alloc_typed::<u8>(&home, 1 << 20).unwrap();
        typed.view_mut().fill(&branch, 1).unwrap();
        let all: Vec<Dropped> = vec![
            ("a buffer that a branch of a capture uses", Box::new(typed)),
            ("blocks over the soft limit", Box::new(over)),
            ("a part of a graph's memory", Box::new(part)),
            ("a pool whose memory others use", Box::new(closed)),
            ("the last guard of freed memory", Box::new(last)),
            ("a guard after many", Box::new(one_more)),
        ];
        drop_in_host_calls(&rig, &calls, all);
        // Another thread joins the branch and frees the buffer; the capture cannot end before. One block is still held.
        let deadline = Instant::now() + Duration::from_secs(20);
        while pool.stats().blocks.current > 1 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        drop((gate, graph));
        // The thread that drops the buffer may join the branch later than the capture ends.
        home.wait_stream(&branch).unwrap();
        drop(capture.end().unwrap());
        // SAFETY: it was leaked above, and the guards on it are gone.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(held_on).cast_mut()) });
    });
}

#[cfg(feature = "sanitize")]
#[test]
fn a_sanitizer_does_not_ask_the_driver_for_a_stream_in_a_host_call() {
    with_device(|rig, device| {
        let (watched, sanitizer) = Sanitizer::over(device);
        let calls = device.stream().unwrap();
        let raw = device.backend().stream_create().unwrap();
        {
            // SAFETY: it is destroyed below, after all that uses it.
            let adopted = unsafe { watched.adopt_stream(raw) }.unwrap();
            let pool = pool(&watched);
            let block = pool.alloc(&adopted, 1 << 20).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let work = Box::new(move || {
                drop(block);
                tell.send(()).unwrap();
            });
            device.backend().host_call(calls.raw(), work).unwrap();
            told.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(refused(rig.driver), []);
            let again = pool.alloc_zeroed::<u8>(&adopted, 1 << 20).unwrap();
            assert!(again.download().unwrap().iter().all(|&it| it == 0));
        }
        sanitizer.check().unwrap();
        device.backend().stream_destroy(raw).unwrap();
    });
}

/// An object to drop, and its name.
type Dropped = (&'static str, Box<dyn std::any::Any + Send>);

/// Drops each in a host call on the stream, and checks that it made no call of the driver there.
fn drop_in_host_calls(rig: &Rig, calls: &Stream, all: Vec<Dropped>) {
    for (what, it) in all {
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || {
            drop(it);
            tell.send(()).unwrap();
        });
        let backend = calls.device().backend();
        backend.host_call(calls.raw(), work).unwrap();
        told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(refused(rig.driver), [], "{what}");
    }
}

/// Blocks the stream until the returned sender is dropped.
pub(super) fn hold(stream: &Stream) -> std::sync::mpsc::Sender<()> {
    let (open, wait) = std::sync::mpsc::channel::<()>();
    let held = Box::new(move || {
        // Returns when the sender is dropped.
        let _ = wait.recv();
    });
    let backend = stream.device().backend();
    backend.host_call(stream.raw(), held).unwrap();
    open
}

/// Every way to wait for a stream.
const WAITS: &[&str] = &["cuStreamSynchronize", "cuEventRecord", "cuEventSynchronize"];

/// Checks that no copy on `stream` writes to newly allocated host memory of `bytes` after `gate`
/// opens.
fn no_copy_writes_to_new_memory(stream: &Stream, gate: std::sync::mpsc::Sender<()>, bytes: usize) {
    let new: Vec<Vec<u64>> = (0..64).map(|_| vec![0; bytes / 8]).collect();
    drop(gate);
    stream.synchronize().unwrap();
    assert!(new.iter().flatten().all(|&word| word == 0));
}

#[test]
fn a_download_that_cannot_be_waited_for_writes_to_no_memory_that_others_use() {
    with_device(|rig, device| {
        let pool = pool(device);
        let stream = device.stream().unwrap();
        let mut buffer = pool.alloc_typed::<u64>(&stream, 500).unwrap();
        buffer.upload(&[u64::MAX; 500]).unwrap();
        let gate = hold(&stream);
        fail(rig, WAITS);
        assert!(buffer.download().is_err());
        rig.driver.faults.heal();
        no_copy_writes_to_new_memory(&stream, gate, 4000);
        let moving = pool.alloc_movable::<u64>(&stream, 500).unwrap();
        let gate = hold(&stream);
        fail(rig, WAITS);
        assert!(moving.download(&stream).is_err());
        rig.driver.faults.heal();
        no_copy_writes_to_new_memory(&stream, gate, 4000);
    });
}

#[cfg(feature = "convert")]
#[test]
fn a_read_of_a_scaler_that_cannot_be_waited_for_writes_to_no_memory_that_others_use() {
    with_device(|rig, device| {
        let pool = pool(device);
        let stream = device.stream().unwrap();
        let scaler = GradScaler::new(&pool, &stream, ScalerConfig::default()).unwrap();
        let gate = hold(&stream);
        let pending = scaler.read(&stream).unwrap();
        fail(rig, WAITS);
        drop(pending);
        rig.driver.faults.heal();
        no_copy_writes_to_new_memory(&stream, gate, 48);
    });
}

#[cfg(feature = "rustacuda")]
#[test]
fn what_is_lent_to_rustacuda_is_used_in_the_devices_context_whatever_is_current() {
    use crate::device::cuda::context::Context;
    use crate::interop::rustacuda::{lend, lend_mut};
    with_device(|rig, device| {
        let stream = device.stream().unwrap();
        let mut buffer = pool(device).alloc_zeroed::<u32>(&stream, 500).unwrap();
        let current = || Context::current_device(rig.driver).unwrap();
        assert_eq!(current(), None);
        let lent = lend(&stream, buffer.view(), |_| current());
        assert_eq!(lent.unwrap(), Some(0));
        let lent = lend_mut(&stream, buffer.view_mut(), |_| current());
        assert_eq!(lent.unwrap(), Some(0));
        assert_eq!(current(), None, "it stays current");
    });
}

#[cfg(feature = "rustacuda")]
#[test]
fn work_of_rustacudas_whose_wait_fails_is_waited_for_again() {
    use crate::interop::rustacuda::lend;
    with_device(|rig, device| {
        let stream = device.stream().unwrap();
        let buffer = pool(device).alloc_zeroed::<u32>(&stream, 500).unwrap();
        // The first wait is for what writes the buffer.
        rig.driver.faults.plan(&[Failure {
            call: "cuStreamSynchronize",
            number: 2,
            for_ever: false,
            code: MADE_TO_FAIL,
        }]);
        assert!(lend(&stream, buffer.view(), |_| ()).is_err());
        let waits = rig.driver.faults.uses();
        assert_eq!(waits["cuStreamSynchronize"].len(), 3);
        rig.driver.faults.heal();
    });
}
