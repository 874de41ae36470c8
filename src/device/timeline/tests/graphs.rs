//! Work that meets a capture or a launch of its graph.

use super::{of, streams};
use crate::device::{Device, lock};
use crate::pool::{Pool, PoolConfig};

#[test]
fn a_growing_buffer_outlasts_the_last_launch_of_a_graph_that_goes_as_the_buffer_does() {
    let device = Device::host().unwrap();
    let [home, captured, held] = streams(&device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let mut buffer = pool.grow_buf::<u32>(&home, 1 << 20).unwrap();
    buffer.resize(1 << 20).unwrap();
    let capture = captured.begin_capture().unwrap();
    buffer.view_mut().fill(&captured, 0x0101_0101).unwrap();
    let graph = capture.end().unwrap();
    let reserved = || pool.stats().reserved.current;
    let before = reserved();
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || _ = closed.recv());
    device.backend().host_call(held.raw(), work).unwrap();
    std::thread::scope(|scope| {
        let recorder = lock(&of(&home).recorder);
        let dropped = scope.spawn(|| drop(buffer));
        std::thread::sleep(std::time::Duration::from_millis(50));
        graph.launch(&held).unwrap();
        drop((graph, recorder));
        dropped.join().unwrap();
    });
    assert_eq!(reserved(), before, "released under the launch");
    drop(open);
    held.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(reserved(), 0);
}

#[test]
fn work_under_a_guard_runs_behind_a_launch_of_another_library_since_the_guard_began() {
    let device = Device::host().unwrap();
    let [home, other, third] = streams(&device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let mut block = pool.alloc_movable::<u32>(&home, 64).unwrap();
    let mut noted = home.note_capture().unwrap();
    device.backend().capture_begin(home.raw()).unwrap();
    let mut guard = block.hold_mut(&home).unwrap();
    guard.view_mut().fill(&home, 0x0101_0101).unwrap();
    drop(guard);
    let raw = device.backend().capture_end(home.raw()).unwrap();
    let memory = noted.end().unwrap();
    let guard = block.hold_mut(&other).unwrap();
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || _ = closed.recv());
    device.backend().host_call(third.raw(), work).unwrap();
    let launch = memory.used_by(&third).unwrap();
    // SAFETY: the memory is kept.
    unsafe { device.backend().graph_launch(raw, third.raw()) }.unwrap();
    drop(launch);
    // SAFETY: the guard holds the memory for work of its stream.
    unsafe { (device.backend()).fill(guard.addr(), 2, 256, other.raw()) }.unwrap();
    drop(guard);
    std::thread::sleep(std::time::Duration::from_millis(50));
    drop(open);
    third.synchronize().unwrap();
    assert_eq!(block.download(&home).unwrap(), [0x0202_0202; 64]);
    device.backend().graph_destroy(raw).unwrap();
}

#[test]
fn the_tick_of_queued_work_covers_it_also_if_a_capture_begins_while_that_is_read() {
    let device = Device::host().unwrap();
    let [stream, other, _] = streams(&device);
    let capture = other.begin_capture().unwrap();
    let timeline = of(&stream);
    std::thread::scope(|scope| {
        let mut recorder = lock(&timeline.recorder);
        let reader = scope.spawn(|| timeline.queued_tick());
        std::thread::sleep(std::time::Duration::from_millis(50));
        // As a capture that begins.
        let queued = timeline.close_tick();
        *recorder = of(&other).recorder();
        drop(recorder);
        assert_eq!(reader.join().unwrap(), queued);
    });
    *lock(&timeline.recorder) = None;
    drop(capture);
}

#[test]
fn what_was_moved_before_a_guard_under_capture_is_waited_for_by_work_after_that_capture() {
    let device = Device::host().unwrap();
    let [home, captured, _] = streams(&device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let block = pool.alloc_movable::<u32>(&home, 64).unwrap();
    let ready = of(&home).open_tick();
    let capture = captured.begin_capture().unwrap();
    let guard = pool.hold_id(block.id(), &captured).unwrap();
    let graph = capture.end().unwrap();
    assert!(of(&captured).is_behind(of(&home), ready));
    drop((guard, graph));
}

#[test]
fn a_stream_that_a_capture_lets_out_again_runs_behind_what_it_was_made_to_wait_for_meanwhile() {
    let device = Device::host().unwrap();
    let [origin, stream, other] = streams(&device);
    let capture = origin.begin_capture().unwrap();
    let recorder = of(&origin).recorder().unwrap();
    recorder.enter(&stream).unwrap();
    let tick = of(&other).open_tick();
    // By another thread, before the driver refuses to let the stream join.
    stream.wait_stream(&other).unwrap();
    recorder.withdraw(&stream);
    assert!(of(&stream).is_behind(of(&other), tick));
    drop(capture);
}
