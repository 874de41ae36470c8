//! What queued work and graphs use of a buffer stays until they are done with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::device::sim::SimConfig;
use crate::host::Contents;

#[test]
fn what_queued_work_may_use_is_not_unmapped_before_it_is_done() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let mut buffer = ground.filled(4, 1);
    let hold = ground.hold(other);
    buffer.view_mut().fill(other, 2).unwrap();
    let before = ground.counts();
    buffer.resize(ground.granule).unwrap();
    assert_eq!(buffer.capacity(), ground.granule);
    for _ in 0..3 {
        buffer.resize(ground.granule - 1).unwrap();
        ground.pool.shared().settle_all(false);
    }
    assert_eq!(ground.counts().mappings, before.mappings);
    assert_eq!(ground.grown(), 4);
    drop(hold);
    ground.finish();
    buffer.resize(ground.granule - 2).unwrap();
    assert_eq!((ground.grown(), ground.counts().mappings), (1, 1));
    assert_eq!(bytes_at(&buffer, home, 0), 2);
}

#[test]
fn memory_whose_address_was_declared_used_is_not_unmapped_before_that_is_done() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    for held in [home, other] {
        let mut buffer = ground.filled(2, 1);
        ground.finish();
        let hold = ground.hold(held);
        held.kernel("work")
            .writes(buffer.view_mut())
            .launch(|_| ())
            .unwrap();
        buffer.resize(0).unwrap();
        assert_eq!(ground.grown(), 2);
        drop(buffer);
        assert_eq!(ground.grown(), 2);
        drop(hold);
        ground.finish();
        ground.pool.trim(0).unwrap();
        assert_eq!(ground.grown(), 0);
    }
}

#[test]
fn what_buffers_no_longer_use_is_gone_before_there_is_more_once_its_work_is_done() {
    let ground = ground(small());
    let [home, _] = &ground.streams;
    let left_behind = |keep| {
        let hold = ground.hold(home);
        let mut buffer = ground.filled(4, 1);
        buffer.resize(keep * ground.granule).unwrap();
        let kept = Some(buffer).filter(|_| keep > 0);
        drop(hold);
        ground.finish();
        kept
    };
    for _ in 0..10 {
        left_behind(0);
        assert_eq!(ground.grown(), 4);
    }
    let _buffer = left_behind(1);
    assert_eq!(ground.grown(), 4);
    let _block = ground.pool.alloc(home, 4 * ground.granule as u64).unwrap();
    assert_eq!(ground.grown(), 1);
    assert_eq!(ground.counts().ranges, 2, "of the pool and the buffer");
}

#[test]
fn a_buffer_that_gives_memory_up_and_has_it_back_all_the_time_keeps_no_mark_of_work_that_is_done() {
    let ground = ground(small());
    let mut buffer = ground.filled(4, 1);
    for _ in 0..20 {
        let stream = ground.device.stream().unwrap();
        let hold = ground.hold(&stream);
        buffer
            .view_mut()
            .slice(..1)
            .unwrap()
            .fill(&stream, 2)
            .unwrap();
        buffer.resize(ground.granule).unwrap();
        buffer.resize(4 * ground.granule).unwrap();
        drop(hold);
        stream.synchronize().unwrap();
    }
    let marks = crate::device::lock(&buffer.pages.state).awaited.len();
    assert!(marks <= 4, "{marks} marks");
}

#[test]
fn a_buffer_that_grows_before_its_memory_is_gone_has_it_back() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let mut buffer = ground.filled(4, 3);
    let hold = ground.hold(other);
    other
        .kernel("work")
        .writes(buffer.view_mut())
        .launch(|_| ())
        .unwrap();
    buffer.resize(1).unwrap();
    let before = ground.counts();
    buffer.resize(6 * ground.granule).unwrap();
    let made = ground.counts().handles - before.handles;
    assert_eq!((made, ground.grown()), (2, 6));
    drop(hold);
    ground.finish();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 6);
    assert_eq!(bytes_at(&buffer, home, 4 * ground.granule - 1), 3);
}

#[test]
fn a_buffer_that_cannot_grow_waits_on_for_the_work_on_what_it_gave_up() {
    let ground = limited(4);
    let [_, other] = &ground.streams;
    let mut buffer = ground.filled(4, 3);
    ground.finish();
    let hold = ground.hold(other);
    buffer.view_mut().fill(other, 4).unwrap();
    buffer.resize(1).unwrap();
    // Were the held stream waited for, this would not return: there is no room behind it.
    assert!(buffer.resize(5 * ground.granule).is_err());
    assert_eq!(buffer.capacity(), ground.granule);
    assert_eq!((ground.grown(), ground.counts().mappings), (4, 4));
    drop(hold);
    ground.finish();
    ground.pool.trim(0).unwrap();
    assert_eq!((ground.grown(), buffer.len()), (1, 1));
}

#[test]
fn what_a_dropped_buffer_leaves_is_waited_for_before_the_program_is_asked_for_memory() {
    let ground = limited(4);
    let [home, other] = &ground.streams;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    ground.pool.on_pressure(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Relief::Exhausted
    });
    let mut buffer = ground.filled(4, 1);
    let hold = ground.hold(other);
    buffer.view_mut().fill(other, 2).unwrap();
    drop(buffer);
    release_soon(hold);
    let whole = 4 * ground.granule as u64;
    let _block = ground.pool.alloc(home, whole).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert!(ground.pool.alloc(home, whole).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_buffer_dropped_behind_queued_work_goes_when_that_is_done_and_leaves_nothing() {
    let device = Device::host().unwrap();
    let none = device.backend().counts();
    let ground = ground_on(device.clone(), small());
    let [_, other] = &ground.streams;
    let mut buffer = ground.filled(4, 1);
    let hold = ground.hold(other);
    buffer.view_mut().fill(other, 2).unwrap();
    // Were the held stream waited for, this would not return.
    drop(buffer);
    assert_eq!(ground.grown(), 4);
    drop(hold);
    ground.finish();
    assert_eq!(ground.pool.trim(0).unwrap(), 4 * ground.granule as u64);
    assert_eq!(ground.grown(), 0);
    assert_eq!(ground.counts().ranges, none.ranges + 1, "the pool's own");
    // And of a pool that goes first.
    let mut buffer = ground.filled(4, 1);
    buffer.view_mut().fill(other, 2).unwrap();
    drop((ground, buffer));
    let left = device.backend().counts();
    assert_eq!((left.ranges, left.handles), (none.ranges, none.handles));
    assert_eq!((left.mappings, left.bytes), (none.mappings, none.bytes));
}

#[test]
fn a_graph_keeps_the_memory_of_a_buffer_it_uses() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let mut buffer = ground.filled(2, 1);
    let copy = ground.pool.alloc_typed::<u8>(home, 16).unwrap();
    let mut copy = copy;
    let capture = home.begin_capture().unwrap();
    buffer
        .view_mut()
        .slice(..16)
        .unwrap()
        .fill(home, 5)
        .unwrap();
    let part = buffer.view().slice(..16).unwrap();
    copy.view_mut().copy_from(home, part).unwrap();
    let graph = capture.end().unwrap();
    buffer.resize(16).unwrap();
    ground.finish();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 2);
    drop(buffer);
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 2);
    assert!(graph.memory().bytes() >= 2 * ground.granule as u64);
    graph.launch(other).unwrap();
    assert_eq!(copy.view().download(other).unwrap(), [5; 16]);
    drop(graph);
    ground.finish();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_buffer_that_a_graph_kept_releases_memory_once_it_is_resized_after_that() {
    let ground = ground(small());
    let [_, other] = &ground.streams;
    let mut buffer = ground.filled(2, 1);
    let capture = other.begin_capture().unwrap();
    let part = buffer.view_mut().slice(..16).unwrap();
    part.fill(other, 5).unwrap();
    let graph = capture.end().unwrap();
    buffer.resize(16).unwrap();
    drop(graph);
    ground.finish();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 2);
    buffer.resize(16).unwrap();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 1);
}

#[test]
fn a_buffer_that_shrinks_while_its_own_stream_is_captured_keeps_its_memory() {
    let ground = ground(small());
    let [home, _] = &ground.streams;
    let mut buffer = ground.filled(2, 1);
    ground.finish();
    let capture = home.begin_capture().unwrap();
    // A kernel of the application's own: only its stream says that it uses the buffer.
    let backend = ground.device.backend();
    // SAFETY: the buffer has as many bytes.
    unsafe { backend.fill(buffer.addr(), 5, 16, home.raw()).unwrap() };
    buffer.resize(0).unwrap();
    assert_eq!((buffer.len(), ground.grown()), (0, 2));
    let graph = capture.end().unwrap();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 2);
    graph.launch(home).unwrap();
    ground.finish();
    buffer.resize(0).unwrap();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 0);
}

/// Waits for a drop in a host call, which ends on another thread.
fn nothing_is_left_soon(ground: &Ground) {
    for _ in 0..200 {
        ground.pool.trim(0).unwrap();
        if ground.pool.stats().grown == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_buffer_may_be_dropped_in_a_host_call_and_while_its_stream_is_captured() {
    let ground = ground(small());
    let [home, _] = &ground.streams;
    let buffer = ground.filled(2, 1);
    let work = Box::new(move || drop(buffer));
    ground.device.backend().host_call(home.raw(), work).unwrap();
    home.synchronize().unwrap();
    let buffer = ground.filled(2, 1);
    let capture = home.begin_capture().unwrap();
    drop(buffer);
    drop(capture.end().unwrap());
    ground.finish();
    nothing_is_left_soon(&ground);
}

#[test]
fn a_buffer_dropped_while_its_pool_sleeps_leaves_its_addresses_once_that_is_awake() {
    let device = Device::host().unwrap();
    let none = device.backend().counts();
    let ground = ground_on(device, small().sleeps(true));
    let buffer = ground.filled(4, 1);
    ground.finish();
    ground.pool.sleep(&[], Contents::Discarded).unwrap();
    drop(buffer);
    ground.pool.wake(&[]).unwrap();
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 0);
    assert_eq!(ground.counts().ranges, none.ranges + 1, "the pool's own");
}

#[test]
fn a_buffer_may_be_dropped_in_a_host_call_that_a_full_queue_of_its_stream_waits_for() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let buffer = ground.filled(2, 1);
    let (tell, told) = mpsc::channel();
    let recorded = home.core().timeline.counted_record(|_| {
        // As a driver that has room for no record until the call is made.
        let work = Box::new(move || {
            drop(buffer);
            tell.send(()).unwrap();
        });
        let backend = ground.device.backend();
        backend.host_call(other.raw(), work)?;
        assert_eq!(told.recv_timeout(Duration::from_secs(5)), Ok(()));
        Ok(())
    });
    recorded.unwrap();
    ground.finish();
    nothing_is_left_soon(&ground);
}

#[test]
fn a_trim_gives_back_what_buffers_no_longer_use_however_much_it_keeps() {
    let ground = ground(small().slack(8.0));
    let granule = ground.granule as u64;
    let [home, other] = &ground.streams;
    for keep in [4 * granule, 6 * granule, u64::MAX] {
        drop(ground.pool.alloc(home, 2 * granule).unwrap());
        let mut buffer = ground.filled(4, 1);
        let hold = ground.hold(other);
        buffer.view_mut().fill(other, 2).unwrap();
        buffer.resize(1).unwrap();
        drop(hold);
        ground.finish();
        assert_eq!(ground.grown(), 4);
        ground.pool.trim(keep).unwrap();
        assert_eq!(ground.grown(), 1);
        assert_eq!(ground.pool.stats().reserved.current, 3 * granule);
    }
}

#[test]
fn a_trim_waits_for_the_work_on_what_buffers_no_longer_use_however_much_it_keeps() {
    for keep in [0, u64::MAX] {
        let ground = ground(small());
        let [_, other] = &ground.streams;
        let mut buffer = ground.filled(4, 1);
        let hold = ground.hold(other);
        buffer.view_mut().fill(other, 2).unwrap();
        buffer.resize(1).unwrap();
        assert_eq!(ground.grown(), 4);
        release_soon(hold);
        let released = ground.pool.trim(keep).unwrap();
        assert_eq!((released, ground.grown()), (3 * ground.granule as u64, 1));
    }
}

#[test]
fn a_buffer_may_go_in_a_host_call_that_runs_while_its_work_is_asked_about() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..20 {
            let sim = SimConfig::default().with_seed(seed);
            let ground = ground_on(Device::sim(&sim).unwrap(), small());
            let [home, other] = &ground.streams;
            let mut buffer = ground.filled(4, 1);
            buffer.view_mut().fill(other, 2).unwrap();
            buffer.resize(ground.granule).unwrap();
            let work = Box::new(move || drop(buffer));
            ground.device.backend().host_call(home.raw(), work).unwrap();
            for _ in 0..3 {
                ground.pool.shared().settle_all(false);
            }
            ground.finish();
            while ground.pool.stats().grown > 0 {
                ground.pool.trim(0).unwrap();
            }
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn a_pool_that_ends_waits_for_each_stream_whichever_failed() {
    for at in [0, 1] {
        let ground = ground(small());
        let [failed, held] = [at, 1 - at].map(|at| ground.streams[at].clone());
        let buffer = ground.filled(2, 1);
        ground.finish();
        let failing = Box::new(|| panic!("it went wrong"));
        let backend = ground.device.backend();
        backend.host_call(failed.raw(), failing).unwrap();
        let hold = ground.hold(&held);
        for reader in [&failed, &held] {
            let kernel = reader.kernel("read").reads(buffer.view());
            kernel.launch(|_| ()).unwrap();
        }
        drop(buffer);
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            tell.send(()).unwrap();
            drop(hold);
        });
        drop(ground);
        told.try_recv().expect("it did not wait");
    }
}
