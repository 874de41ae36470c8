//! Captures, and what is freed on other streams or in other captures than the one that uses it.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::common::watched::Watched;
use super::common::{Gate, host, is_held, on_every_device};
use super::{MIB, limited, small_handles};
use crate::common::BackendOf;
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::{Block, Capture, Device, Graph, Pool, PoolBuf, PoolConfig, Result, Stream};

on_every_device! {
    a_buffer_freed_on_another_stream_in_a_capture_that_uses_it_is_kept_by_the_graph,
    a_buffer_of_two_graphs_is_kept_by_the_second_though_the_first_goes_in_its_capture,
    a_block_of_two_captures_is_kept_by_both,
    what_a_stream_does_with_a_block_that_it_frees_for_a_capture_is_waited_for,
    a_launch_after_a_buffer_gave_up_its_type_is_waited_for,
    memory_of_a_capture_that_is_used_without_a_launch_comes_behind_who_had_it,
    what_a_stream_freed_behind_others_before_its_capture_is_handed_out_during_it,
    a_stream_whose_capture_had_no_memory_goes_on_without_what_the_launches_wait_for,
    memory_that_another_stream_uses_stays_mapped_where_its_pool_goes_in_a_capture_of_its_own,
    memory_of_another_stream_comes_behind_its_work_whatever_capture_begins_and_ends_meanwhile,
}

const LEN: usize = 3 * MIB as usize;

fn streams<const N: usize>(device: &Device) -> [Stream; N] {
    [(); N].map(|()| device.stream().unwrap())
}

/// A pool, two streams, and a buffer of the first.
fn with_a_buffer(device: &Device) -> (Pool, [Stream; 2], PoolBuf<u8>) {
    let pool = Pool::new(device, PoolConfig::default()).unwrap();
    let streams: [Stream; 2] = streams(device);
    let buf = pool.alloc_filled::<u8>(&streams[0], LEN, 1).unwrap();
    streams[0].synchronize().unwrap();
    (pool, streams, buf)
}

/// Whether a launch of `graph` on `stream` leaves memory alone that the pool has handed out for `other` since.
fn leaves_others_alone(graph: &Graph, pool: &Pool, stream: &Stream, other: &Stream) {
    let next: Vec<PoolBuf<u8>> = (0..3)
        .map(|_| pool.alloc_filled::<u8>(other, LEN, 5).unwrap())
        .collect();
    other.synchronize().unwrap();
    graph.launch(stream).unwrap();
    stream.synchronize().unwrap();
    for next in next {
        assert!(next.download().unwrap() == [5; LEN]);
    }
}

fn a_buffer_freed_on_another_stream_in_a_capture_that_uses_it_is_kept_by_the_graph(
    device: &Device,
) {
    let (pool, [stream, other], mut buf) = with_a_buffer(device);
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().fill(&stream, 7).unwrap();
    Block::from(buf).free_on(&other).unwrap();
    let graph = capture.end().unwrap();
    assert!(graph.memory().bytes() >= LEN as u64);
    leaves_others_alone(&graph, &pool, &stream, &other);
}

fn a_buffer_of_two_graphs_is_kept_by_the_second_though_the_first_goes_in_its_capture(
    device: &Device,
) {
    let (pool, [stream, other], mut buf) = with_a_buffer(device);
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().fill(&stream, 3).unwrap();
    let first = capture.end().unwrap();
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().fill(&stream, 7).unwrap();
    drop(buf);
    drop(first);
    let second = capture.end().unwrap();
    leaves_others_alone(&second, &pool, &stream, &other);
}

fn a_block_of_two_captures_is_kept_by_both(device: &Device) {
    // Dropped, freed on a stream of the one, and on its own.
    for freed_on in [None, Some(0), Some(2)] {
        for first_to_go in [0, 1] {
            let pool = Pool::new(device, PoolConfig::default()).unwrap();
            let all: [Stream; 3] = streams(device);
            let home = if freed_on == Some(0) { 2 } else { 0 };
            let mut block = pool.alloc(&all[home], LEN as u64).unwrap();
            let addr = block.addr();
            let captures = [0, 1].map(|at| all[at].begin_capture().unwrap());
            block.record_use(&all[0]).unwrap();
            block.record_use(&all[1]).unwrap();
            match freed_on {
                Some(at) => block.free_on(&all[at]).unwrap(),
                None => drop(block),
            }
            let mut graphs = Vec::from(captures.map(|capture| capture.end().unwrap()));
            drop(graphs.remove(first_to_go));
            let next = [(); 3].map(|()| pool.alloc(&all[2], LEN as u64).unwrap());
            assert!(
                next.iter().all(|next| next.addr() != addr),
                "freed on {freed_on:?}, {first_to_go} gone"
            );
        }
    }
}

fn what_a_stream_does_with_a_block_that_it_frees_for_a_capture_is_waited_for(device: &Device) {
    let pool = Pool::new(device, small_handles().overlap_bytes(0).slack(0.0)).unwrap();
    let [home, user, captured] = streams(device);
    let mut block = pool.alloc(&home, MIB).unwrap();
    user.wait_stream(&home).unwrap();
    let gate = Gate::close(&user);
    // SAFETY: the block is freed behind it.
    unsafe { (device.backend()).fill(block.addr(), 0xEE, MIB, user.raw()) }.unwrap();
    let capture = captured.begin_capture().unwrap();
    block.record_use(&captured).unwrap();
    block.free_on(&user).unwrap();
    drop(capture.end().unwrap());
    let mut next: Vec<PoolBuf<u8>> = (0..3)
        .map(|_| pool.alloc_typed::<u8>(&home, MIB as usize).unwrap())
        .collect();
    for next in &mut next {
        next.view_mut().fill(&home, 0x5A).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    gate.open();
    user.synchronize().unwrap();
    for next in next {
        assert!(next.download().unwrap() == [0x5A; MIB as usize]);
    }
}

fn a_launch_after_a_buffer_gave_up_its_type_is_waited_for(device: &Device) {
    let pool = Pool::new(device, small_handles().overlap_bytes(0).slack(0.0)).unwrap();
    let [home, other] = streams(device);
    let mut buf = pool.alloc_filled::<u8>(&home, LEN, 1).unwrap();
    let capture = home.begin_capture().unwrap();
    buf.view_mut().fill(&home, 7).unwrap();
    let graph = capture.end().unwrap();
    home.synchronize().unwrap();
    let block = Block::from(buf);
    let gate = Gate::close(&other);
    graph.launch(&other).unwrap();
    drop((graph, block));
    let mut next = pool.alloc_typed::<u8>(&home, LEN).unwrap();
    next.view_mut().fill(&home, 0x5A).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    gate.open();
    other.synchronize().unwrap();
    assert!(next.download().unwrap() == [0x5A; LEN]);
}

fn memory_of_a_capture_that_is_used_without_a_launch_comes_behind_who_had_it(device: &Device) {
    for ends in [true, false] {
        let granule = device.info().granule;
        let pool = limited(device, 4);
        let [stream, busy] = streams(device);
        let len = 4 * granule as usize;
        let mut old = pool.alloc_typed::<u8>(&busy, len).unwrap();
        let gate = Gate::close(&busy);
        old.view_mut().fill(&busy, 9).unwrap();
        drop(old);
        let capture = stream.begin_capture().unwrap();
        let mut buf = pool.alloc_typed::<u8>(&stream, len).unwrap();
        let graph = match ends {
            true => Some(capture.end().unwrap()),
            false => {
                drop(capture);
                None
            }
        };
        buf.view_mut().fill(&stream, 5).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        busy.synchronize().unwrap();
        assert!(buf.download().unwrap() == vec![5; len]);
        drop((buf, graph));
    }
}

fn what_a_stream_freed_behind_others_before_its_capture_is_handed_out_during_it(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let [stream, user, next] = streams(device);
    let mut block = pool.alloc(&stream, 4 * granule).unwrap();
    let gate = Gate::close(&user);
    block.record_use(&user).unwrap();
    drop(block);
    stream.wait_stream(&user).unwrap();
    let capture = stream.begin_capture().unwrap();
    let block = pool.alloc(&next, 4 * granule);
    gate.open();
    drop(block.unwrap());
    capture.end().unwrap();
}

fn a_stream_whose_capture_had_no_memory_goes_on_without_what_the_launches_wait_for(
    device: &Device,
) {
    let (_pool, [stream, busy], mut buf) = with_a_buffer(device);
    let gate = Gate::close(&busy);
    buf.view_mut().fill(&busy, 3).unwrap();
    let capture = stream.begin_capture().unwrap();
    buf.view_mut().fill(&stream, 7).unwrap();
    let graph = capture.end().unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while !stream.is_idle().unwrap() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let idle = stream.is_idle().unwrap();
    gate.open();
    graph.launch(&stream).unwrap();
    assert!(buf.download().unwrap() == [7; LEN]);
    assert!(idle, "it waits");
}

fn memory_that_another_stream_uses_stays_mapped_where_its_pool_goes_in_a_capture_of_its_own(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let [stream, other] = streams(&device);
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let mut block = pool.alloc(&stream, MIB).unwrap();
    block.record_use(&other).unwrap();
    let gate = Gate::close(&other);
    drop(block);
    let capture = stream.begin_capture().unwrap();
    // It waits for the other stream, or would unmap the memory at once.
    let goes = std::thread::spawn(move || drop((pool, capture)));
    std::thread::sleep(Duration::from_millis(100));
    let unmapped = watched.calls("unmap");
    gate.open();
    goes.join().unwrap();
    assert_eq!(unmapped, 0, "the other stream's work uses it");
    assert!(watched.calls("unmap") > 0);
}

fn memory_of_another_stream_comes_behind_its_work_whatever_capture_begins_and_ends_meanwhile(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let [stream, other] = streams(&device);
    let granule = device.info().granule;
    let pool = limited(&device, 1);
    let first = pool.alloc(&other, granule).unwrap();
    let gate = Gate::close(&other);
    drop(first);
    let ((tell, told), captured) = (mpsc::channel(), stream.clone());
    watched.after("event_record", move || {
        let begins = std::thread::spawn(move || captured.begin_capture().unwrap());
        tell.send(begins.join().unwrap()).unwrap();
    });
    let block = pool.alloc(&stream, granule).unwrap();
    let graph = told.recv().unwrap().end().unwrap();
    let waits = is_held(&stream);
    gate.open();
    assert!(waits, "its next work would run beside the other stream's");
    drop((block, graph));
}

#[test]
fn of_two_threads_that_begin_to_capture_a_stream_one_does_and_the_other_changes_nothing() {
    let device = host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    for _ in 0..2000 {
        let stream = device.stream().unwrap();
        drop(pool.alloc(&stream, MIB).unwrap());
        let barrier = Barrier::new(2);
        let begin = || {
            barrier.wait();
            stream.begin_capture()
        };
        let [one, two] = std::thread::scope(|scope| {
            let other = scope.spawn(begin);
            [begin(), other.join().unwrap()]
        });
        let ((Ok(capture), Err(_)) | (Err(_), Ok(capture))) = (one, two) else {
            panic!("one of two is to begin");
        };
        drop(pool.alloc(&stream, MIB).unwrap());
        assert!(capture.end().unwrap().memory().bytes() > 0);
    }
}

#[test]
fn a_wait_that_meets_the_beginning_of_a_capture_is_no_part_of_it() {
    for call in ["event_create", "event_query"] {
        let (device, watched) = Watched::over(&host());
        let config = small_handles().overlap_bytes(0).slack(0.0).limit(4 * MIB);
        let pool = Pool::new(&device, config).unwrap();
        let [captured, other] = streams(&device);
        let block = pool.alloc(&captured, 3 * MIB).unwrap();
        let gate = Gate::close(&captured);
        drop(block);
        let capture = Arc::new(Mutex::new(None));
        let (stream, its) = (captured.clone(), Arc::clone(&capture));
        watched.after(call, move || {
            let begun = std::thread::spawn(move || stream.begin_capture()).join();
            *its.lock().unwrap() = Some(begun.unwrap().unwrap());
        });
        let block = pool.alloc(&other, 3 * MIB).unwrap();
        gate.open();
        assert!(!other.is_capturing().unwrap());
        other.synchronize().unwrap();
        drop(block);
        if let Some(capture) = capture.lock().unwrap().take() {
            capture.end().unwrap();
        }
        assert!(watched.was_hooked() || call == "event_query");
    }
}

/// Has another thread begin to capture `stream` at the next use of `call`.
fn begins_meanwhile(
    watched: &Watched,
    call: &'static str,
    stream: &Stream,
) -> mpsc::Receiver<JoinHandle<Capture>> {
    let (begun, has_begun) = mpsc::channel();
    let its = stream.clone();
    watched.after(call, move || {
        let (begins, at_once) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let capture = its.begin_capture().unwrap();
            // Nobody listens once the call goes on.
            let _ = begins.send(());
            capture
        });
        // It may have to wait until the call is made.
        let _ = at_once.recv_timeout(Duration::from_millis(100));
        begun.send(thread).unwrap();
    });
    has_begun
}

#[test]
fn copies_and_waits_that_meet_the_beginning_of_a_capture_leave_it_alone() {
    for call in ["before_copy_in", "before_copy_out", "before_stream_sync"] {
        let (device, watched) = Watched::over(&host());
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let [stream, other] = streams(&device);
        let mut buf = pool.alloc_filled::<u8>(&stream, 64, 1).unwrap();
        stream.synchronize().unwrap();
        let has_begun = begins_meanwhile(&watched, call, &stream);
        let outcome = match call {
            "before_copy_in" => buf.upload(&[2; 64]),
            "before_copy_out" => buf.download().map(|_| ()),
            _ => stream.synchronize(),
        };
        outcome.unwrap();
        let capture = has_begun.recv().unwrap().join().unwrap();
        let graph = capture.end().unwrap();
        drop(buf.upload(&[3; 64]));
        graph.launch(&other).unwrap();
        other.synchronize().unwrap();
        assert_eq!(buf.download().unwrap(), [3; 64], "{call}");
    }
}

/// What `call` gives on a thread of its own, once `stream` is held up and another thread waits there for a copy.
fn beside_a_copy<T: Send + 'static>(
    stream: &Stream,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let pool = Pool::new(stream.device(), PoolConfig::default()).unwrap();
    let buf = pool.alloc_filled::<u8>(stream, 64, 1).unwrap();
    let gate = Gate::close(stream);
    let copies = std::thread::spawn(move || buf.download().map(drop));
    std::thread::sleep(Duration::from_millis(50));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(call()));
    let said = told.recv_timeout(Duration::from_secs(5)).ok();
    gate.open();
    copies.join().unwrap().unwrap();
    said
}

#[test]
fn a_copy_that_is_queued_does_not_wait_for_one_that_another_thread_waits_for() {
    let device = host();
    let (pool, from) = (
        Pool::new(&device, PoolConfig::default()).unwrap(),
        HostPool::new(&device, HostPoolConfig::default()),
    );
    let [stream] = streams(&device);
    let mut buf = pool.alloc_filled::<u8>(&stream, 64, 1).unwrap();
    let mut data = from.alloc::<u8>(64).unwrap();
    data.get_mut().unwrap().fill(2);
    let its = stream.clone();
    let queued = beside_a_copy(&stream, move || {
        let queued = buf.view_mut().upload_from(&its, &data);
        queued.map(|()| (buf, data))
    });
    let (buf, _data) = queued.expect("it waits").unwrap();
    assert_eq!(buf.download().unwrap(), [2; 64]);
}

#[test]
fn a_host_call_that_copies_or_captures_where_a_copy_is_waited_for_is_refused() {
    for captures in [true, false] {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let [stream] = streams(&device);
        let buf = pool.alloc_filled::<u8>(&stream, 64, 1).unwrap();
        let (its, (tell, told)) = (stream.clone(), mpsc::channel());
        let (begin, begun) = mpsc::channel::<()>();
        let call = move || {
            begun.recv().unwrap();
            let outcome: Result<()> = match captures {
                true => its.begin_capture().map(drop),
                false => buf.download().map(drop),
            };
            tell.send(outcome.map_err(|error| error.to_string()))
                .unwrap();
        };
        (device.backend())
            .host_call(stream.raw(), Box::new(call))
            .unwrap();
        let copied = pool.alloc_typed::<u8>(&stream, 64).unwrap();
        let copies = std::thread::spawn(move || copied.download().map(drop));
        std::thread::sleep(Duration::from_millis(50));
        begin.send(()).unwrap();
        let outcome = told.recv_timeout(Duration::from_secs(5));
        let words = outcome.expect("it waits").unwrap_err();
        assert!(words.contains("host call"), "{words}");
        copies.join().unwrap().unwrap();
    }
}

#[test]
fn a_launch_that_meets_the_beginning_of_a_capture_is_no_part_of_it() {
    for call in ["event_record", "before_graph_launch"] {
        let (device, watched) = Watched::over(&host());
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let [stream, other] = streams(&device);
        let mut buf = pool.alloc_filled::<u8>(&stream, 64, 1).unwrap();
        let capture = stream.begin_capture().unwrap();
        buf.view_mut().fill(&stream, 7).unwrap();
        let graph = capture.end().unwrap();
        let has_begun = begins_meanwhile(&watched, call, &other);
        let launched = graph.launch(&other);
        let capture = has_begun.recv().unwrap().join().unwrap();
        drop(capture.end().unwrap());
        other.synchronize().unwrap();
        let found = if launched.is_ok() { 7 } else { 1 };
        assert_eq!(buf.download().unwrap(), [found; 64], "{call}");
    }
}

#[test]
fn a_stream_that_another_librarys_capture_left_may_be_used_again() {
    let device = host();
    let [stream, other] = streams(&device);
    let noted = stream.note_capture().unwrap();
    device.backend().capture_begin(stream.raw()).unwrap();
    drop(noted);
    assert!(other.wait_stream(&stream).is_err());
    let raw = device.backend().capture_end(stream.raw()).unwrap();
    device.backend().graph_destroy(raw).unwrap();
    other.wait_stream(&stream).unwrap();
    drop(stream.begin_capture().unwrap());
}

#[test]
fn memory_that_another_branch_of_a_capture_used_is_handed_out_behind_it() {
    let (device, watched) = Watched::over(&host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, other] = streams(&device);
    let mut result = pool.alloc_zeroed::<u8>(&home, LEN).unwrap();
    home.synchronize().unwrap();
    let capture = home.begin_capture().unwrap();
    other.wait_stream(&home).unwrap();
    let mut scratch = pool.alloc_typed::<u8>(&home, LEN).unwrap();
    scratch.view_mut().fill(&home, 0).unwrap();
    result.view_mut().copy_from(&other, &scratch).unwrap();
    let (addr, waits) = (scratch.addr(), watched.calls("event_wait"));
    drop(scratch);
    let mut next = pool.alloc_typed::<u8>(&home, LEN).unwrap();
    assert_eq!(next.addr(), addr);
    next.view_mut().fill(&home, 1).unwrap();
    assert_eq!(watched.calls("event_wait"), waits + 1);
    home.wait_stream(&other).unwrap();
    drop(capture.end().unwrap());
}

#[test]
fn a_stream_that_the_driver_does_not_have_join_a_capture_is_no_part_of_it() {
    // The first wait is of the capture's gate for the stream.
    for (by_event, fails) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        let (device, watched) = Watched::over(&host());
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let [captured, other] = streams(&device);
        drop(pool.alloc(&other, 5000).unwrap());
        let capture = captured.begin_capture().unwrap();
        let event = device.event().unwrap();
        event.record(&captured).unwrap();
        watched.fail("event_wait", fails, false);
        let joined = match by_event {
            true => other.wait(&event),
            false => other.wait_stream(&captured),
        };
        assert!(joined.is_err());
        drop(pool.alloc_filled::<u8>(&other, LEN, 1).unwrap());
        other.synchronize().unwrap();
        assert_eq!(capture.end().unwrap().memory().bytes(), 0);
    }
}

#[test]
fn a_stream_that_meets_the_end_of_a_capture_is_no_part_of_it() {
    let cases = [(false, false), (true, false), (false, true), (true, true)];
    for (by_event, has_joined) in cases {
        let (device, watched) = Watched::over(&host());
        let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
        let [captured, other] = streams(&device);
        let capture = captured.begin_capture().unwrap();
        let event = device.event().unwrap();
        event.record(&captured).unwrap();
        let (tell, told) = mpsc::channel();
        let ends = move || {
            let thread = std::thread::spawn(|| capture.end().map(drop));
            // It may have to wait until the call is made.
            std::thread::sleep(Duration::from_millis(50));
            tell.send(thread).unwrap();
        };
        // The first wait is of the capture's gate for the stream, the second of the stream for the capture.
        let its = Arc::clone(&watched);
        watched.after("event_wait", move || match has_joined {
            true => its.after("before_event_wait", ends),
            false => ends(),
        });
        if has_joined {
            watched.fail("event_wait", 2, false);
        }
        let met = match by_event {
            true => other.wait(&event),
            false => other.wait_stream(&captured),
        };
        assert!(met.is_err(), "by event: {by_event}, joined: {has_joined}");
        told.recv().unwrap().join().unwrap().unwrap();
        drop(pool.alloc_filled::<u8>(&other, LEN, 1).unwrap());
        other.synchronize().unwrap();
        pool.sleep(&[], Contents::Discarded).unwrap();
    }
}

#[test]
fn a_block_whose_graph_goes_while_its_memory_is_made_is_no_part_of_it() {
    let (device, watched) = Watched::over(&host());
    let pool = Pool::new(&device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    watched.after("map", || {
        let ends = std::thread::spawn(|| drop(capture.end().unwrap()));
        ends.join().unwrap();
    });
    let block = pool.alloc(&stream, 3 * MIB).unwrap();
    assert!(watched.was_hooked(), "no memory is made");
    assert_eq!(pool.stats().blocks.current, 1);
    drop(block);
    assert_eq!(pool.stats().blocks.current, 0);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
    pool.check_invariants().unwrap();
}
