//! Parts of a graph's memory: given up in its capture, and used in another.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::common::BackendOf;
use super::common::watched::Watched;
use super::common::{Gate, copy, fill, on_every_device, read};
use super::{MIB, limited, small_handles, whole};
use warpool::{Device, Error, Pool, Result};

on_every_device! {
    what_a_block_of_a_graph_gives_up_is_handed_out_in_its_capture_and_no_more,
    a_block_of_one_graph_dropped_in_the_capture_of_another_is_kept_by_both,
    a_block_used_by_captured_work_and_freed_on_a_third_stream_is_kept_by_the_graph,
    a_block_of_a_closed_pool_that_is_freed_on_a_stream_under_capture_is_kept_by_the_graph,
    a_part_freed_on_another_stream_of_its_capture_is_not_handed_out_again,
    a_capture_that_could_not_begin_leaves_the_stream_the_pools_own_memory,
    what_a_graph_cannot_copy_takes_none_of_its_memory,
    a_block_that_another_thread_drops_as_its_streams_capture_begins_fails_no_other_request,
    blocks_of_a_pool_that_is_closed_in_a_capture_are_freed_once_its_graph_is_gone,
    a_request_that_waits_as_another_thread_ends_the_capture_makes_the_stream_wait,
}

fn what_a_block_of_a_graph_gives_up_is_handed_out_in_its_capture_and_no_more(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    // A segment of its own, of which 6 parts of 8 are given up in two steps.
    let part = 512 << 10;
    let mut block = pool.alloc(&stream, 8 * part).unwrap();
    let (from, to) = (block.addr(), block.addr() + 8 * part);
    block.shrink(5 * part).unwrap();
    block.shrink(2 * part).unwrap();
    let parts: Vec<_> = (0..7).map(|_| pool.alloc(&stream, part).unwrap()).collect();
    let mut inside: Vec<u64> = parts.iter().map(|it| it.addr()).collect();
    inside.retain(|at| (from..to).contains(at));
    inside.sort_unstable();
    let said: Vec<u64> = (2..8).map(|at| from + at * part).collect();
    assert_eq!(inside, said);
    let graph = capture.end().unwrap();
    // The seventh lies in memory of its own.
    assert!(graph.memory().bytes() >= 9 * part);
    drop((parts, block, graph));
    whole(&pool);
}

fn a_block_of_one_graph_dropped_in_the_capture_of_another_is_kept_by_both(device: &Device) {
    let granule = device.info().granule;
    for first_goes_first in [true, false] {
        let pool = limited(device, 2);
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = one.begin_capture().unwrap();
        let block = pool.alloc(&one, granule).unwrap();
        let first = capture.end().unwrap();
        let capture = other.begin_capture().unwrap();
        fill(&other, block.addr(), 1, 64);
        block.free_on(&other).unwrap();
        let second = capture.end().unwrap();
        let (goes, stays) = match first_goes_first {
            true => (first, second),
            false => (second, first),
        };
        drop(goes);
        let refused = pool.alloc(&one, 2 * granule).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        drop(stays);
        drop(pool.alloc(&one, 2 * granule).unwrap());
        whole(&pool);
    }
}

fn a_block_used_by_captured_work_and_freed_on_a_third_stream_is_kept_by_the_graph(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let [captured, home, third] = [(); 3].map(|()| device.stream().unwrap());
    let mut block = pool.alloc(&home, granule).unwrap();
    let capture = captured.begin_capture().unwrap();
    fill(&captured, block.addr(), 3, granule);
    block.record_use(&captured).unwrap();
    block.free_on(&third).unwrap();
    let graph = capture.end().unwrap();
    let refused = pool.alloc(&third, 2 * granule).map(drop);
    assert!(refused.is_err(), "the graph has it");
    drop(graph);
    drop(pool.alloc(&third, 2 * granule).unwrap());
    whole(&pool);
}

fn a_block_of_a_closed_pool_that_is_freed_on_a_stream_under_capture_is_kept_by_the_graph(
    device: &Device,
) {
    let [closed, open] = [(); 2].map(|()| limited(device, 1));
    let [captured, home] = [(); 2].map(|()| device.stream().unwrap());
    let input = closed.alloc(&home, 4096).unwrap();
    let output = open.alloc(&captured, 4096).unwrap();
    fill(&home, input.addr(), 3, 4096);
    drop(closed);
    let capture = captured.begin_capture().unwrap();
    captured.wait_stream(&home).unwrap();
    copy(&captured, output.addr(), input.addr(), 4096);
    input.free_on(&captured).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(device.backend().counts().handles, 2, "the graph has it");
    graph.launch(&captured).unwrap();
    assert_eq!(read(&captured, output.addr(), 4096), [3; 4096]);
    drop(graph);
    assert_eq!(device.backend().counts().handles, 1);
}

fn a_part_freed_on_another_stream_of_its_capture_is_not_handed_out_again(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = first.begin_capture().unwrap();
    second.wait_stream(&first).unwrap();
    let block = pool.alloc(&first, 3 * MIB).unwrap();
    let (from, to) = (block.addr(), block.addr() + 3 * MIB);
    fill(&second, from, 1, 3 * MIB);
    block.free_on(&second).unwrap();
    // Nothing orders the first stream's next work behind the second's fill.
    let next = pool.alloc(&first, 3 * MIB).unwrap();
    assert!(next.addr() >= to || next.addr() + 3 * MIB <= from);
    first.wait_stream(&second).unwrap();
    let graph = capture.end().unwrap();
    drop((next, graph));
    whole(&pool);
}

fn a_capture_that_could_not_begin_leaves_the_stream_the_pools_own_memory(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let before = pool.alloc(&stream, MIB).unwrap();
    fill(&stream, before.addr(), 1, MIB);
    watched.fail("event_wait", 1, true);
    assert!(stream.begin_capture().is_err());
    assert!(watched.failures() > 0);
    watched.heal();
    let after = pool.alloc(&stream, 3 * MIB).unwrap();
    assert_eq!(pool.stats().graphs, 0, "memory of a graph that is none");
    drop((before, after));
    whole(&pool);
}

fn what_a_graph_cannot_copy_takes_none_of_its_memory(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let mut values = pool.alloc_zeroed::<f32>(&stream, 8).unwrap();
    let before = pool.stats();
    let capture = stream.begin_capture().unwrap();
    let refused = |made: Result<()>| {
        let error = made.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(
            error.to_string().contains("before or after the capture"),
            "{error}"
        );
        let stats = pool.stats();
        assert_eq!((stats.graphs, stats.active), (0, before.active));
    };
    refused(pool.alloc_from(&stream, &[1, 2, 3]).map(drop));
    refused(pool.alloc_filled(&stream, 4, 0x0102_0304).map(drop));
    #[cfg(feature = "convert")]
    {
        use warpool::convert::{GradScaler, Gradients, ScalerConfig};
        refused(GradScaler::new(&pool, &stream, ScalerConfig::default()).map(drop));
        refused(Gradients::new(&pool, &stream, vec![values.view_mut()]).map(drop));
    }
    // These need no copy.
    drop(pool.alloc_filled(&stream, 0, 0x0102_0304).unwrap());
    let even = pool.alloc_filled(&stream, 8, 0x0101_0101).unwrap();
    values.view_mut().fill(&stream, 0.0).unwrap();
    assert!(pool.stats().graphs > 0);
    drop((even, capture.end().unwrap(), values));
    whole(&pool);
}

fn a_block_that_another_thread_drops_as_its_streams_capture_begins_fails_no_other_request(
    device: &Device,
) {
    let granule = device.info().granule;
    let (device, watched) = Watched::over(device);
    let pool = limited(&device, 2);
    let (captured, other) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&captured, granule).unwrap();
    fill(&captured, block.addr(), 1, granule);
    let (dropping, drops) = mpsc::channel();
    // The gate waits for the stream's last mark, and the stream does not look captured yet.
    watched.after("event_wait", move || {
        let (done, is_done) = mpsc::channel();
        let thread = thread::spawn(move || {
            drop(block);
            let _ = done.send(());
        });
        // Without end if the drop waits for the gate too.
        let _ = is_done.recv_timeout(Duration::from_millis(200));
        dropping.send(thread).unwrap();
    });
    let capture = captured.begin_capture().unwrap();
    assert!(watched.was_hooked());
    drops.recv().unwrap().join().unwrap();
    let refused = pool.alloc(&other, 2 * granule).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    pool.trim(0).unwrap();
    drop(capture.end().unwrap());
    drop(pool.alloc(&other, 2 * granule).unwrap());
    whole(&pool);
}

fn blocks_of_a_pool_that_is_closed_in_a_capture_are_freed_once_its_graph_is_gone(device: &Device) {
    for in_the_capture in [true, false] {
        let pool = limited(device, 2);
        let (captured, other) = (device.stream().unwrap(), device.stream().unwrap());
        let own = pool.alloc(&captured, 4096).unwrap();
        let foreign = pool.alloc(&other, 4096).unwrap();
        let capture = captured.begin_capture().unwrap();
        drop(pool);
        let free = || {
            drop(own);
            foreign.free_on(&captured).unwrap();
        };
        if in_the_capture {
            free();
            drop(capture.end().unwrap());
        } else {
            drop(capture.end().unwrap());
            free();
        }
        assert_eq!(device.backend().counts().handles, 0);
    }
}

fn a_request_that_waits_as_another_thread_ends_the_capture_makes_the_stream_wait(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule as usize;
    let pool = limited(&device, 1);
    let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut before = pool.alloc_typed::<u8>(&other, granule).unwrap();
    let gate = Gate::close(&other);
    before.view_mut().fill(&other, 1).unwrap();
    drop(before);
    let capture = one.begin_capture().unwrap();
    let (backend, raw) = (device.backend().clone(), one.raw());
    watched.after("before_event_wait", move || {
        thread::spawn(move || drop(capture));
        while backend.stream_capturing(raw).unwrap() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(20));
    });
    let mut after = pool.alloc_typed::<u8>(&one, granule).unwrap();
    assert!(watched.was_hooked(), "it waited for nothing");
    after.view_mut().fill(&one, 2).unwrap();
    thread::sleep(Duration::from_millis(20));
    gate.open();
    other.synchronize().unwrap();
    assert!(after.download().unwrap() == vec![2; granule]);
}
