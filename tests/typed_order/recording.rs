//! A driver's graph is not synchronised: threads record into it one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::common::watched::Watched;
use super::common::{BackendOf, Gate, fill, for_threads, on_every_device, read, rounds};
use super::{LEN, World, assert_all, settle, to_half, to_single};
use half::f16;
use warpool::convert::{GradScaler, ScalerConfig};
use warpool::device::{Capture, Event};
use warpool::movable::Movable;
use warpool::{Block, Device, PoolBuf, ViewMut};

on_every_device! {
    one_thread_at_a_time_records_into_a_graph,
    no_call_is_lost_as_captures_of_its_stream_begin_and_end,
    a_capture_begins_behind_calls_for_its_stream_that_have_begun,
    an_event_is_not_recorded_again_while_the_gate_of_a_capture_is_made_to_wait_for_it,
    an_event_between_streams_of_a_capture_is_used_for_nothing_else,
    an_event_is_asked_about_and_waited_for_as_it_is_recorded_in_a_capture,
    an_event_of_a_graph_that_is_gone_stays_so_if_it_cannot_be_recorded_again,
    what_was_queued_as_a_capture_began_is_done_before_its_memory_is_free,
    work_that_was_to_be_captured_as_the_capture_ended_runs_behind_what_it_uses,
    work_queued_while_its_capture_ends_runs_behind_what_the_stream_is_made_to_wait_for,
    a_captured_stream_waits_for_none_that_has_not_joined_yet,
}

/// What the thread uses whose call is held up.
struct Own {
    bytes: PoolBuf<u8>,
    pairs: PoolBuf<u16>,
    movable: Movable<u8>,
    /// Recorded on the third stream.
    event: Arc<Event>,
}

/// What the other thread uses.
struct Amid {
    src: PoolBuf<f32>,
    dst: PoolBuf<f16>,
    scaler: GradScaler,
    /// Recorded on the home stream.
    event: Option<Event>,
    /// The first thread's.
    theirs: Arc<Event>,
    capture: Option<Capture>,
}

/// A call of the device, and what asks about an event by it.
type Ask = (&'static str, fn(&Event));

/// A call of the device, and what makes it.
type Call = (&'static str, fn(&World, &mut Own));

const FILL: Call = ("before_fill", |world, own| {
    own.bytes.view_mut().fill(&world.home, 1).unwrap();
});

/// Whether `work` of another thread ends while the device is in a call for the home stream, `captured` or not.
fn ends_amid(
    device: &Device,
    captured: bool,
    (call, calls): Call,
    work: impl FnOnce(&World, &mut Amid) + Send,
) -> bool {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let event = Arc::new(device.event().unwrap());
    event.record(&world.third).unwrap();
    let mut own = Own {
        bytes: world.pool.alloc_typed(&world.home, LEN).unwrap(),
        pairs: world.pool.alloc_typed(&world.home, LEN).unwrap(),
        movable: world.pool.alloc_movable(&world.home, LEN).unwrap(),
        event: Arc::clone(&event),
    };
    let mut amid = Amid {
        src: world.full(1.5),
        dst: world.halves(),
        scaler: GradScaler::new(&world.pool, &world.home, ScalerConfig::default()).unwrap(),
        capture: captured.then(|| world.home.begin_capture().unwrap()),
        event: device.event().ok(),
        theirs: event,
    };
    amid.event.as_ref().unwrap().record(&world.home).unwrap();
    let (begin, begun) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let (sets, looks) = (Arc::clone(&ended), Arc::clone(&ended));
    let (tell, told) = mpsc::channel();
    watched.after(call, move || {
        begin.send(()).unwrap();
        thread::sleep(Duration::from_millis(100));
        tell.send(looks.load(Ordering::SeqCst)).unwrap();
    });
    let world = &world;
    thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().unwrap();
            work(world, &mut amid);
            sets.store(true, Ordering::SeqCst);
        });
        calls(world, &mut own);
    });
    assert!(ended.load(Ordering::SeqCst));
    told.recv().unwrap()
}

fn one_thread_at_a_time_records_into_a_graph(device: &Device) {
    type Work = fn(&World, &mut Amid);
    let works: [(&str, Work); 10] = [
        ("fill", |world, amid| {
            amid.src.view_mut().fill(&world.home, 0.0).unwrap();
        }),
        ("copy", |world, amid| {
            let (from, to) = amid.src.view_mut().split_at(LEN / 2).unwrap();
            to.copy_from(&world.home, from.as_view()).unwrap();
        }),
        ("conversion", |world, amid| {
            to_half(&world.home, amid.src.view(), amid.dst.view_mut());
        }),
        ("scaler", |world, amid| {
            amid.scaler.update(&world.home).unwrap();
        }),
        ("join", |world, _| {
            world.other.wait_stream(&world.home).unwrap();
        }),
        ("record", |world, amid| {
            amid.event.as_ref().unwrap().record(&world.home).unwrap();
        }),
        ("record elsewhere", |world, amid| {
            amid.event.as_ref().unwrap().record(&world.other).unwrap();
        }),
        ("drop of an event", |_, amid| amid.event = None),
        ("end", |_, amid| {
            amid.capture.take().unwrap().end().unwrap();
        }),
        ("drop of the capture", |_, amid| amid.capture = None),
    ];
    for (name, work) in works {
        let ends = ends_amid(device, true, FILL, work);
        assert!(!ends, "{name} amid a fill");
    }
    let beside = |world: &World, amid: &mut Amid| {
        amid.dst.view_mut().fill(&world.other, f16::ZERO).unwrap();
    };
    assert!(ends_amid(device, true, FILL, beside), "of another stream");
    // An event that is no part of the graph any more.
    let elsewhere = |world: &World, amid: &mut Amid| {
        let event = amid.event.as_ref().unwrap();
        event.record(&world.other).unwrap();
    };
    assert!(
        ends_amid(device, false, FILL, elsewhere),
        "of another event"
    );
}

/// Each is made once, by the stream or in a graph, which is launched once. Some calls have other streams join.
fn no_call_is_lost_as_captures_of_its_stream_begin_and_end(device: &Device) {
    let (device, calls) = (&for_threads(device), rounds(30_000));
    let world = World::new(device);
    let home = &world.home;
    let blocks = [(); 4].map(|()| world.pool.alloc(home, calls as u64).unwrap());
    for block in &blocks {
        fill(home, block.addr(), 0, block.bytes());
    }
    let captures = AtomicU64::new(0);
    let work = |block: &Block| {
        let branch = device.stream().unwrap();
        for at in 0..calls {
            // SAFETY: of the block, which is there until the stream is done.
            let byte = || unsafe { ViewMut::<u8>::from_raw(block.addr() + at as u64, 1) };
            // Refused where a capture has been announced and has not begun.
            while byte().unwrap().fill(home, 1).is_err() {
                thread::yield_now();
            }
            // So that many captures begin and end amid the calls.
            let seen = captures.load(Ordering::SeqCst);
            while at % 50 == 0 && captures.load(Ordering::SeqCst) == seen {
                thread::yield_now();
            }
            if at % 16 == 0 {
                let event = device.event().unwrap();
                // Refused where the capture has ended in between.
                let _ = event.record(home).and_then(|()| branch.wait(&event));
            }
        }
    };
    thread::scope(|scope| {
        let threads = blocks.each_ref().map(|block| scope.spawn(|| work(block)));
        while !threads.iter().all(|thread| thread.is_finished()) {
            let capture = home.begin_capture().unwrap();
            captures.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(50));
            capture.end().unwrap().launch(home).unwrap();
            // The device is to keep up.
            home.synchronize().unwrap();
        }
    });
    for block in &blocks {
        let bytes = read(home, block.addr(), calls);
        let lost = bytes.iter().filter(|byte| **byte != 1).count();
        assert_eq!(lost, 0, "of {calls} calls, beside {captures:?} captures");
    }
}

fn a_capture_begins_behind_calls_for_its_stream_that_have_begun(device: &Device) {
    let calls: [(&str, Call); 3] = [
        ("a fill", FILL),
        (
            "a fill with a pattern",
            ("before_copy_within", |world, own| {
                own.pairs.view_mut().fill(&world.home, 0x102).unwrap();
            }),
        ),
        (
            "the copy of a resize",
            ("before_copy_within", |world, own| {
                own.movable.resize(&world.home, 100 * LEN).unwrap();
            }),
        ),
    ];
    let begins = |world: &World, _: &mut Amid| drop(world.home.begin_capture().unwrap());
    for (name, call) in calls {
        assert!(!ends_amid(device, false, call, begins), "amid {name}");
    }
    let joins = |world: &World, _: &mut Amid| {
        let capture = world.other.begin_capture().unwrap();
        world.home.wait_stream(&world.other).unwrap();
        drop(capture);
    };
    assert!(!ends_amid(device, false, FILL, joins));
    let others = |world: &World, _: &mut Amid| drop(world.other.begin_capture().unwrap());
    assert!(ends_amid(device, false, FILL, others), "of another stream");
}

/// It would be recorded in the capture that the gate is about to wait for.
fn an_event_is_not_recorded_again_while_the_gate_of_a_capture_is_made_to_wait_for_it(
    device: &Device,
) {
    let wait: Call = ("before_event_wait", |world, own| {
        world.home.wait(&own.event).unwrap();
    });
    let records = |world: &World, amid: &mut Amid| amid.theirs.record(&world.home).unwrap();
    assert!(!ends_amid(device, true, wait, records));
    let others = |world: &World, amid: &mut Amid| {
        amid.event.as_ref().unwrap().record(&world.home).unwrap();
    };
    assert!(ends_amid(device, true, wait, others), "of another event");
}

fn an_event_between_streams_of_a_capture_is_used_for_nothing_else(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let capture = world.home.begin_capture().unwrap();
    let destroyed = watched.calls("event_destroy");
    world.other.wait_stream(&world.home).unwrap();
    assert_eq!(watched.calls("event_destroy"), destroyed + 1);
    world.home.wait_stream(&world.other).unwrap();
    assert_eq!(watched.calls("event_destroy"), destroyed + 2);
    drop(capture.end().unwrap());
}

/// A driver that is asked about an event of a capture fails the capture.
fn an_event_is_asked_about_and_waited_for_as_it_is_recorded_in_a_capture(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let asks: [Ask; 2] = [
        ("before_event_query", |event| {
            assert!(event.is_done().unwrap())
        }),
        ("before_event_sync", |event| event.synchronize().unwrap()),
    ];
    for (call, ask) in asks {
        let event = Arc::new(device.event().unwrap());
        event.record(&world.third).unwrap();
        world.third.synchronize().unwrap();
        let capture = world.home.begin_capture().unwrap();
        let (own, home) = (Arc::clone(&event), world.home.clone());
        watched.after(call, move || own.record(&home).unwrap());
        ask(&event);
        assert!(watched.was_hooked(), "{call}");
        event.is_done().unwrap_err();
        event.elapsed_ns(&event).unwrap_err();
        // Its graph's event is another one.
        let outside = event.raw();
        world.other.wait(&event).unwrap();
        world.home.wait_stream(&world.other).unwrap();
        event.record(&world.third).unwrap();
        assert_ne!(event.raw(), outside);
        drop(capture.end().expect("a capture that went on"));
    }
}

fn an_event_of_a_graph_that_is_gone_stays_so_if_it_cannot_be_recorded_again(device: &Device) {
    let world = World::new(device);
    let event = device.event().unwrap();
    let capture = world.home.begin_capture().unwrap();
    event.record(&world.home).unwrap();
    drop(capture.end().unwrap());
    // Another library's, which has not begun.
    let noted = world.other.note_capture().unwrap();
    event.record(&world.other).unwrap_err();
    let refused = world.third.wait(&event).unwrap_err().to_string();
    assert!(refused.contains("has ended: record it again"), "{refused}");
    drop(noted);
    event.record(&world.other).unwrap();
    world.third.wait(&event).unwrap();
    world.third.synchronize().unwrap();
}

/// The stream is about to be captured, and its gate waits for what was queued before.
fn what_was_queued_as_a_capture_began_is_done_before_its_memory_is_free(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let mut buffer = world.pool.alloc_typed::<u8>(&world.home, LEN).unwrap();
    let (addr, home) = (buffer.addr(), world.home.clone());
    let ((begin, begun), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let ((end, ended), (tell, told)) = (mpsc::channel(), mpsc::channel());
    // The fill begins before the capture.
    watched.after("before_fill", move || {
        begin.send(()).unwrap();
        goes.recv().unwrap();
    });
    let on = home.clone();
    thread::spawn(move || {
        buffer.view_mut().fill(&on, 1).unwrap();
        end.send(buffer).unwrap();
    });
    begun.recv().unwrap();
    watched.after("event_wait", move || {
        let gate = Gate::close(&home);
        go.send(()).unwrap();
        tell.send((ended.recv().unwrap(), gate)).unwrap();
    });
    let capture = world.home.begin_capture().unwrap();
    let (buffer, gate) = told.try_recv().expect("a wait");
    drop(buffer);
    drop(capture);
    let mut next = world.pool.alloc_typed::<u8>(&world.other, LEN).unwrap();
    assert_eq!(next.addr(), addr);
    next.view_mut().fill(&world.other, 2).unwrap();
    settle(&world.other);
    gate.open();
    assert_eq!(next.download().unwrap(), [2; LEN]);
}

/// The gate of the capture waits for what the work uses, and then the work is no part of the capture.
fn work_that_was_to_be_captured_as_the_capture_ended_runs_behind_what_it_uses(device: &Device) {
    let (device, watched) = Watched::over(device);
    // The gate is made to wait after the capture has ended, or before.
    for call in ["before_event_record", "before_event_wait"] {
        let world = World::new(&device);
        let (mut src, mut dst, halves) = (world.full(1.5), world.halves(), world.halves());
        let gate = Gate::close(&world.other);
        to_single(&world.other, halves.view(), src.view_mut());
        let capture = world.home.begin_capture().unwrap();
        let (tell, ended) = mpsc::channel();
        watched.after(call, move || {
            thread::spawn(move || tell.send(capture.end().unwrap()));
            thread::sleep(Duration::from_millis(100));
        });
        to_half(&world.home, src.view(), dst.view_mut());
        let graph = ended.recv().unwrap();
        settle(&world.home);
        gate.open();
        assert_all(&dst.download().unwrap(), 0.0, call);
        drop(graph);
    }
}

fn work_queued_while_its_capture_ends_runs_behind_what_the_stream_is_made_to_wait_for(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (mut src, mut dst, halves) = (world.full(1.5), world.halves(), world.halves());
    let gate = Gate::close(&world.other);
    to_single(&world.other, halves.view(), src.view_mut());
    let capture = world.home.begin_capture().unwrap();
    let ((begin, begun), its) = (mpsc::channel(), Arc::clone(&watched));
    watched.after("before_capture_end", move || {
        begin.send(()).unwrap();
        // The work has made its waits by then, and comes to its queue before the stream is made to wait.
        thread::sleep(Duration::from_millis(100));
        its.after("before_event_record", || {
            thread::sleep(Duration::from_millis(100));
        });
    });
    let ends = thread::spawn(move || capture.end().unwrap());
    begun.recv().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let graph = ends.join().unwrap();
    assert!(watched.was_hooked(), "the stream is not made to wait");
    settle(&world.home);
    gate.open();
    assert_all(&dst.download().unwrap(), 0.0, "it ran ahead");
    drop(graph);
}

fn a_captured_stream_waits_for_none_that_has_not_joined_yet(device: &Device) {
    let world = World::new(device);
    let mut noted = world.home.note_capture().unwrap();
    world.other.wait_stream(&world.home).unwrap();
    let (backend, raw) = (device.backend(), world.home.raw());
    // As the other library does.
    backend.capture_begin(raw).unwrap();
    let refused = world.home.wait_stream(&world.other).unwrap_err();
    assert!(refused.to_string().contains("not begun"), "{refused}");
    let event = device.event().unwrap();
    let refused = event.record(&world.other).unwrap_err();
    assert!(refused.to_string().contains("not begun"), "{refused}");
    let graph = backend.capture_end(raw).expect("a capture that went on");
    backend.graph_destroy(graph).unwrap();
    drop(noted.end().unwrap());
    world.other.synchronize().unwrap();
}
