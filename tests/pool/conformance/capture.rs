//! Memory of graphs: what a pool hands out while a stream is captured.

use crate::common::BackendOf;
use std::any::Any;

use super::common::stamps::Stamps;
use super::common::watched::Watched;
use super::common::{Gate, copy, fill, on_every_device, read};
use super::{MIB, limited, small_handles, whole};
use warpool::compact::Goal;
use warpool::{Device, Error, Pool};

on_every_device! {
    a_graph_replayed_a_hundred_times_has_its_memory_while_the_pool_serves_other_streams,
    a_graphs_memory_returns_when_it_is_dropped_and_behind_its_launches,
    memory_freed_in_a_capture_is_handed_out_again_in_it_and_to_nobody_else,
    a_graph_takes_no_more_than_its_capture_had_at_once,
    a_block_from_before_that_is_dropped_in_a_capture_is_kept_by_the_graph,
    a_block_used_by_captured_work_and_dropped_elsewhere_is_kept_by_the_graph,
    a_block_held_when_the_capture_ends_is_read_after_a_launch,
    a_block_outlives_the_graph_it_came_from,
    no_event_is_queried_in_a_capture,
    a_request_in_a_capture_takes_memory_pending_elsewhere_and_the_launch_waits_for_it,
    a_request_that_fails_in_a_capture_leaves_the_capture_whole,
    compaction_leaves_a_graphs_memory_alone,
    movable_memory_used_by_a_graph_stays_until_the_graph_is_dropped,
    movable_memory_dropped_under_a_graph_is_kept_by_it,
    movable_memory_of_a_graph_grows_within_what_it_has_and_moves_beyond_it,
    each_stream_of_a_capture_gets_memory_of_the_graph,
    a_pool_first_used_in_a_capture_gives_memory_of_the_graph,
    a_capture_by_another_library_keeps_its_memory_too,
    a_capture_that_fails_or_is_dropped_gives_its_memory_back,
    graphs_pools_streams_and_blocks_may_be_dropped_in_any_order,
    a_block_from_before_a_capture_that_is_dropped_in_it_is_of_what_the_graph_keeps,
    a_block_from_before_a_capture_that_is_dropped_in_it_returns_behind_its_launches,
    the_figures_tell_a_graphs_memory_from_live_blocks,
    a_typed_buffer_of_a_graphs_memory_that_is_dropped_after_the_capture_counts_once,
    a_block_of_a_graph_is_freed_where_it_is_used_and_shrinks,
    graphs_come_and_go_and_leave_nothing,
    a_graph_takes_the_memory_of_one_that_is_gone_before_the_pool_grows,
}

fn a_graph_replayed_a_hundred_times_has_its_memory_while_the_pool_serves_other_streams(
    device: &Device,
) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 8);
    let (captured, other) = (device.stream().unwrap(), device.stream().unwrap());
    let bytes = granule / 2;
    let input = pool.alloc(&captured, bytes).unwrap();
    let capture = captured.begin_capture().unwrap();
    let first = pool.alloc(&captured, bytes).unwrap();
    let output = pool.alloc(&captured, bytes).unwrap();
    stamps.stamp(&captured, &first, 1);
    stamps.verify(&captured, &first, 1);
    let scratch = first.addr();
    drop(first);
    let second = pool.alloc(&captured, bytes).unwrap();
    assert_eq!(second.addr(), scratch, "handed out again in stream order");
    copy(&captured, second.addr(), input.addr(), bytes);
    stamps.verify(&captured, &second, 2);
    copy(&captured, output.addr(), second.addr(), bytes);
    drop(second);
    let graph = capture.end().unwrap();
    let (at, kept) = (output.addr(), graph.memory().bytes());
    assert!(kept >= 2 * bytes);
    stamps.stamp(&captured, &input, 2);
    let mut verified = 0;
    for replay in 0..100 {
        graph.launch(&captured).unwrap();
        stamps.verify(&captured, &output, 2);
        verified += 3 * bytes;
        // All that the pool has left, in changing sizes, used while the graph runs.
        let left = 8 * granule - kept - bytes;
        let sizes = [left / 2 - left / 2 % 512, (replay + 1) * 4096];
        for (size, seed) in sizes.into_iter().zip(100..) {
            let block = pool.alloc(&other, size).unwrap();
            assert!(block.addr() + size <= at || at + bytes <= block.addr());
            stamps.stamp(&other, &block, seed);
            stamps.verify(&other, &block, seed);
            verified += size;
        }
    }
    assert_eq!(output.addr(), at);
    captured.synchronize().unwrap();
    other.synchronize().unwrap();
    stamps.assert_clean(device, verified);
    whole(&pool);
}

fn a_graphs_memory_returns_when_it_is_dropped_and_behind_its_launches(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 4);
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let [captured, launcher, taker] = &streams;
    let capture = captured.begin_capture().unwrap();
    let block = pool.alloc(captured, 3 * granule).unwrap();
    stamps.stamp(captured, &block, 1);
    stamps.verify(captured, &block, 1);
    drop(block);
    let graph = capture.end().unwrap();
    assert!(
        pool.alloc(taker, 2 * granule)
            .unwrap_err()
            .is_out_of_memory(),
        "the graph has the memory"
    );
    pool.trim(0).unwrap();
    assert!(pool.stats().reserved.current >= 3 * granule, "not trimmed");
    let gate = Gate::close(launcher);
    graph.launch(launcher).unwrap();
    drop(graph);
    let block = pool.alloc(taker, 4 * granule).unwrap();
    stamps.stamp(taker, &block, 2);
    stamps.verify(taker, &block, 2);
    assert!(!taker.is_idle().unwrap(), "the taker runs ahead");
    gate.open();
    taker.synchronize().unwrap();
    stamps.assert_clean(device, 7 * granule);
    whole(&pool);
}

fn memory_freed_in_a_capture_is_handed_out_again_in_it_and_to_nobody_else(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (captured, other) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = captured.begin_capture().unwrap();
    let sizes = [512, 4096, 100 << 10, MIB, 3 * MIB];
    let mut taken = Vec::new();
    for bytes in sizes {
        let block = pool.alloc(&captured, bytes).unwrap();
        let addr = block.addr();
        drop(block);
        let again = pool.alloc(&captured, bytes).unwrap();
        assert_eq!(again.addr(), addr, "{bytes} bytes");
        taken.push((addr, bytes));
    }
    // Freed neighbours are one again: all the small ones came from one segment.
    let joined = pool.alloc(&captured, MIB).unwrap();
    assert_eq!(joined.addr(), taken[0].0);
    drop(joined);
    let graph = capture.end().unwrap();
    let foreign: Vec<_> = [&captured, &other]
        .into_iter()
        .flat_map(|stream| sizes.map(|bytes| pool.alloc(stream, bytes).unwrap()))
        .collect();
    for block in &foreign {
        for (addr, bytes) in &taken {
            let apart = block.addr() + block.capacity() <= *addr || addr + bytes <= block.addr();
            assert!(apart, "{block:?} lies in the graph's {addr:#x}");
        }
    }
    drop(graph);
}

fn a_graph_takes_no_more_than_its_capture_had_at_once(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    for _ in 0..50 {
        let _a = pool.alloc(&stream, 3 * MIB).unwrap();
        let _b = pool.alloc(&stream, 64 << 10).unwrap();
    }
    let graph = capture.end().unwrap();
    assert_eq!(graph.memory().bytes(), 3 * MIB + (64 << 10));
}

fn a_block_from_before_that_is_dropped_in_a_capture_is_kept_by_the_graph(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (captured, other) = (device.stream().unwrap(), device.stream().unwrap());
    let input = pool.alloc(&captured, granule).unwrap();
    let elsewhere = pool.alloc(&other, granule / 2).unwrap();
    fill(&captured, input.addr(), 7, granule);
    let capture = captured.begin_capture().unwrap();
    let output = pool.alloc(&captured, 4096).unwrap();
    copy(&captured, output.addr(), input.addr(), 4096);
    drop(input);
    elsewhere.free_on(&captured).unwrap();
    let graph = capture.end().unwrap();
    assert!(pool.alloc(&other, granule).is_err(), "the graph has them");
    for _ in 0..3 {
        graph.launch(&other).unwrap();
        assert_eq!(read(&other, output.addr(), 4096), [7; 4096]);
    }
    drop((graph, output));
    pool.alloc(&other, 2 * granule).unwrap();
    whole(&pool);
}

fn a_block_used_by_captured_work_and_dropped_elsewhere_is_kept_by_the_graph(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (captured, home) = (device.stream().unwrap(), device.stream().unwrap());
    let (mut one, mut two) = (
        pool.alloc(&home, granule).unwrap(),
        pool.alloc(&home, granule / 2).unwrap(),
    );
    fill(&home, one.addr(), 3, granule);
    let capture = captured.begin_capture().unwrap();
    captured.wait_stream(&home).unwrap();
    let output = pool.alloc(&captured, 4096).unwrap();
    copy(&captured, output.addr(), one.addr(), 4096);
    one.record_use(&captured).unwrap();
    two.record_use(&captured).unwrap();
    drop(one);
    two.free_on(&home).unwrap();
    let graph = capture.end().unwrap();
    assert!(pool.alloc(&home, granule).is_err(), "the graph has them");
    graph.launch(&captured).unwrap();
    assert_eq!(read(&captured, output.addr(), 4096), [3; 4096]);
    drop((graph, output));
    pool.alloc(&home, 2 * granule).unwrap();
    whole(&pool);
}

fn a_block_held_when_the_capture_ends_is_read_after_a_launch(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    let mut output = pool.alloc_typed::<u8>(&stream, 3000).unwrap();
    fill(&stream, output.addr(), 42, 3000);
    assert!(matches!(output.download(), Err(Error::Invalid { .. })));
    assert!(matches!(
        output.upload(&[1; 3000]),
        Err(Error::Invalid { .. })
    ));
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(output.download().unwrap(), [42; 3000]);
    output.upload(&[1; 3000]).unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(output.download().unwrap(), [42; 3000]);
}

fn a_block_outlives_the_graph_it_came_from(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = stream.begin_capture().unwrap();
    let output = pool.alloc(&stream, granule).unwrap();
    let scratch = pool.alloc(&stream, granule).unwrap();
    fill(&stream, output.addr(), 5, granule);
    drop(scratch);
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    drop(graph);
    let rest = pool.alloc(&other, granule).unwrap();
    fill(&other, rest.addr(), 6, granule);
    other.synchronize().unwrap();
    assert!(pool.alloc(&other, 512).is_err(), "the block is live");
    assert_eq!(read(&stream, output.addr(), 64), [5; 64]);
    drop((output, rest));
    pool.alloc(&other, 2 * granule).unwrap();
    whole(&pool);
}

fn no_event_is_queried_in_a_capture(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, small_handles().cache_bytes(0)).unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let [captured, busy, other] = &streams;
    let gate = Gate::close(busy);
    let blocks = [MIB, 2 * MIB, 3 * MIB].map(|bytes| pool.alloc(busy, bytes).unwrap());
    drop(blocks);
    // There is something to ask about: a mark behind work that is held up.
    other.wait_stream(busy).unwrap();
    let before = watched.calls("event_query");
    drop(pool.alloc(other, MIB).unwrap());
    let capture = captured.begin_capture().unwrap();
    let asked = watched.calls("event_query");
    for bytes in [512, 4096, MIB, 2 * MIB, 5 * MIB] {
        let _kept = pool.alloc(captured, bytes).unwrap();
        drop(pool.alloc(captured, bytes).unwrap());
        drop(pool.alloc(other, bytes).unwrap());
    }
    assert_eq!(watched.calls("event_query"), asked, "{before} before");
    let graph = capture.end().unwrap();
    gate.open();
    graph.launch(captured).unwrap();
    captured.synchronize().unwrap();
    whole(&pool);
}

fn a_request_in_a_capture_takes_memory_pending_elsewhere_and_the_launch_waits_for_it(
    device: &Device,
) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (captured, busy) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&busy, 2 * granule).unwrap();
    let gate = Gate::close(&busy);
    stamps.stamp(&busy, &block, 1);
    stamps.verify(&busy, &block, 1);
    drop(block);
    let capture = captured.begin_capture().unwrap();
    let block = pool.alloc(&captured, 2 * granule).unwrap();
    stamps.stamp(&captured, &block, 2);
    stamps.verify(&captured, &block, 2);
    drop(block);
    let graph = capture.end().unwrap();
    graph.launch(&captured).unwrap();
    assert!(!captured.is_idle().unwrap(), "the launch runs ahead");
    gate.open();
    captured.synchronize().unwrap();
    stamps.assert_clean(device, 4 * granule);
}

fn a_request_that_fails_in_a_capture_leaves_the_capture_whole(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let stream = device.stream().unwrap();
    let before = pool.alloc(&stream, 4096).unwrap();
    let capture = stream.begin_capture().unwrap();
    let block = pool.alloc(&stream, granule).unwrap();
    let error = pool.alloc(&stream, 2 * granule).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(pool.stats().failures, 1);
    fill(&stream, block.addr(), 1, granule);
    // Less than a segment is left, and it is enough for what is asked.
    let rest = pool.alloc(&stream, granule - 4096).unwrap();
    assert_eq!(pool.stats().failures, 1);
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, block.addr(), 64), [1; 64]);
    drop((before, rest, graph));
    whole(&pool);
}

fn compaction_leaves_a_graphs_memory_alone(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles().preallocate(16 * granule)).unwrap();
    let stream = device.stream().unwrap();
    // The first makes the movers' own blocks, which stay where they are.
    let _first = pool.alloc_movable::<u8>(&stream, 512).unwrap();
    let gaps = [(); 3].map(|()| pool.alloc_movable::<u8>(&stream, 2 * MIB as usize).unwrap());
    let mut moved = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
    moved.upload(&stream, &[77; 1000]).unwrap();
    let capture = stream.begin_capture().unwrap();
    let block = pool.alloc(&stream, granule / 2).unwrap();
    let own = pool.alloc_movable::<u64>(&stream, 5000).unwrap();
    stamps.stamp(&stream, &block, 4);
    stamps.verify(&stream, &block, 4);
    let graph = capture.end().unwrap();
    let at = (block.addr(), own.hold(&stream).unwrap().addr());
    drop(gaps);
    for _ in 0..3 {
        graph.launch(&stream).unwrap();
        pool.compact(&Goal::Full).unwrap();
        assert_eq!((block.addr(), own.hold(&stream).unwrap().addr()), at);
        whole(&pool);
    }
    assert!(pool.stats().bytes_moved > 0, "the other block moved");
    assert_eq!(moved.download(&stream).unwrap(), [77; 1000]);
    stamps.assert_clean(device, 3 * granule / 2);
}

fn movable_memory_used_by_a_graph_stays_until_the_graph_is_dropped(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    // The first makes the movers' own blocks, which stay where they are.
    let _first = pool.alloc_movable::<u8>(&stream, 512).unwrap();
    let below = pool
        .alloc_movable::<u8>(&stream, 2 * granule as usize)
        .unwrap();
    let mut weights = pool.alloc_movable::<u64>(&stream, 1000).unwrap();
    let output = pool.alloc(&stream, 8000).unwrap();
    weights.upload(&stream, &[5; 1000]).unwrap();
    let capture = stream.begin_capture().unwrap();
    let pinned = weights.hold(&stream).unwrap();
    let at = pinned.addr();
    copy(&stream, output.addr(), at, 8000);
    drop(pinned);
    let graph = capture.end().unwrap();
    drop(below);
    pool.compact(&Goal::Full).unwrap();
    assert_eq!(
        weights.hold(&stream).unwrap().addr(),
        at,
        "the graph has it"
    );
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, output.addr(), 8)[0], 5);
    drop(graph);
    pool.compact(&Goal::Full).unwrap();
    assert_ne!(weights.hold(&stream).unwrap().addr(), at, "it moves again");
    assert_eq!(weights.download(&stream).unwrap(), [5; 1000]);
    whole(&pool);
}

fn movable_memory_dropped_under_a_graph_is_kept_by_it(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut weights = pool
        .alloc_movable::<u8>(&stream, 2 * granule as usize)
        .unwrap();
    let output = pool.alloc(&stream, 4096).unwrap();
    weights
        .upload(&stream, &vec![9; 2 * granule as usize])
        .unwrap();
    let capture = stream.begin_capture().unwrap();
    let pinned = weights.hold(&stream).unwrap();
    let at = pinned.addr();
    copy(&stream, output.addr(), at, 4096);
    drop(pinned);
    let graph = capture.end().unwrap();
    drop(weights);
    let taken: Vec<_> = (0..4)
        .map(|_| pool.alloc(&other, 2 * granule).unwrap())
        .collect();
    assert!(taken.iter().all(|block| block.addr() != at));
    for block in &taken {
        fill(&other, block.addr(), 0, block.bytes());
    }
    other.synchronize().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, output.addr(), 4096), [9; 4096]);
    drop((graph, output, taken));
    stream.synchronize().unwrap();
    whole(&pool);
    assert!(pool.leak_report().blocks.is_empty());
}

fn movable_memory_of_a_graph_grows_within_what_it_has_and_moves_beyond_it(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    let mut block = pool.alloc_movable::<u8>(&stream, 100_000).unwrap();
    let behind = pool.alloc(&stream, 100_000).unwrap();
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    block.upload(&stream, &[7; 100_000]).unwrap();
    let at = block.hold(&stream).unwrap().addr();
    let requested = pool.stats().requested.current;
    block.resize(&stream, 100_090).unwrap();
    assert_eq!(block.hold(&stream).unwrap().addr(), at);
    assert_eq!(pool.stats().requested.current, requested + 90);
    block.upload(&stream, &[7; 100_090]).unwrap();
    block.resize(&stream, 200_000).unwrap();
    assert_ne!(
        block.hold(&stream).unwrap().addr(),
        at,
        "not over {behind:?}"
    );
    // What it has grown by was never written, and is not read.
    let at = block.hold(&stream).unwrap().addr();
    assert_eq!(read(&stream, at, 100_090), [7; 100_090]);
    whole(&pool);
    drop((graph, behind, block));
    stream.synchronize().unwrap();
    assert!(pool.leak_report().blocks.is_empty());
}

fn each_stream_of_a_capture_gets_memory_of_the_graph(device: &Device) {
    let stamps = Stamps::new(device);
    let pool = Pool::new(device, small_handles()).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let bytes = 3 * MIB;
    let capture = first.begin_capture().unwrap();
    second.wait_stream(&first).unwrap();
    let mut addrs = Vec::new();
    for (stream, seed) in [(&first, 1), (&second, 2)] {
        let block = pool.alloc(stream, bytes).unwrap();
        stamps.stamp(stream, &block, seed);
        stamps.verify(stream, &block, seed);
        addrs.push(block.addr());
        drop(block);
        // Only behind its own stream's use, so never the other's.
        assert_eq!(
            pool.alloc(stream, bytes).unwrap().addr(),
            addrs[addrs.len() - 1]
        );
    }
    assert_ne!(addrs[0], addrs[1]);
    // Used on the other branch as well: the graph orders its next use behind both.
    let mut shared = pool.alloc(&first, bytes).unwrap();
    second.wait_stream(&first).unwrap();
    stamps.stamp(&second, &shared, 3);
    shared.record_use(&second).unwrap();
    drop(shared);
    let next = pool.alloc(&first, bytes).unwrap();
    stamps.stamp(&first, &next, 4);
    stamps.verify(&first, &next, 4);
    drop(next);
    first.wait_stream(&second).unwrap();
    let graph = capture.end().unwrap();
    for _ in 0..10 {
        graph.launch(&first).unwrap();
    }
    first.synchronize().unwrap();
    stamps.assert_clean(device, 30 * bytes);
    let outside = pool.alloc(&second, bytes).unwrap();
    assert!(!addrs.contains(&outside.addr()));
    drop(graph);
    whole(&pool);
}

fn a_pool_first_used_in_a_capture_gives_memory_of_the_graph(device: &Device) {
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    let pool = Pool::new(device, small_handles()).unwrap();
    let block = pool.alloc(&stream, 4096).unwrap();
    fill(&stream, block.addr(), 1, 4096);
    let addr = block.addr();
    drop(block);
    let graph = capture.end().unwrap();
    assert_ne!(pool.alloc(&stream, 4096).unwrap().addr(), addr);
    // The graph keeps the memory, whoever drops the pool.
    drop(pool);
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, addr, 64), [1; 64]);
}

fn a_capture_by_another_library_keeps_its_memory_too(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let backend = device.backend();
    let mut noted = stream.note_capture().unwrap();
    backend.capture_begin(stream.raw()).unwrap();
    let block = pool.alloc(&stream, granule).unwrap();
    stamps.stamp(&stream, &block, 1);
    stamps.verify(&stream, &block, 1);
    drop(block);
    assert!(noted.end().is_err(), "it goes on");
    let graph = backend.capture_end(stream.raw()).unwrap();
    let memory = noted.end().unwrap();
    assert_eq!(memory.bytes(), granule);
    assert!(noted.end().is_err(), "it has ended");
    for _ in 0..5 {
        let _launch = memory.used_by(&other).unwrap();
        // SAFETY: the graph uses the pool's memory alone, which is kept.
        unsafe { backend.graph_launch(graph, other.raw()) }.unwrap();
        drop(pool.alloc(&other, granule).unwrap());
    }
    assert!(pool.alloc(&other, 2 * granule).is_err());
    drop(memory);
    backend.graph_destroy(graph).unwrap();
    pool.alloc(&other, 2 * granule).unwrap();
    other.synchronize().unwrap();
    stamps.assert_clean(device, 5 * granule);
    // Unused: nothing is kept.
    drop(stream.note_capture().unwrap());
    whole(&pool);
}

fn a_capture_that_fails_or_is_dropped_gives_its_memory_back(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (stream, joined) = (device.stream().unwrap(), device.stream().unwrap());
    for fails in [true, false] {
        let capture = stream.begin_capture().unwrap();
        drop(pool.alloc(&stream, granule).unwrap());
        joined.wait_stream(&stream).unwrap();
        let held = pool.alloc(&joined, granule).unwrap();
        fill(&joined, held.addr(), 2, granule);
        if fails {
            assert!(capture.end().is_err(), "a stream was not joined");
        } else {
            drop(capture);
        }
        drop(held);
        let all = pool.alloc(&stream, 2 * granule).unwrap();
        fill(&stream, all.addr(), 1, 2 * granule);
        drop(all);
        stream.synchronize().unwrap();
        whole(&pool);
    }
}

/// Every order of five things.
fn orders() -> Vec<[usize; 5]> {
    let mut orders = Vec::new();
    for code in 0..5usize.pow(5) {
        let order = [0, 1, 2, 3, 4].map(|place| code / 5usize.pow(place) % 5);
        let mut sorted = order;
        sorted.sort_unstable();
        if sorted == [0, 1, 2, 3, 4] {
            orders.push(order);
        }
    }
    orders
}

fn graphs_pools_streams_and_blocks_may_be_dropped_in_any_order(device: &Device) {
    for order in orders() {
        let start = device.backend().counts();
        let pool = Pool::new(device, small_handles()).unwrap();
        let (captured, launcher) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = captured.begin_capture().unwrap();
        let block = pool.alloc(&captured, 4096).unwrap();
        drop(pool.alloc(&captured, MIB).unwrap());
        fill(&captured, block.addr(), 1, 4096);
        let graph = capture.end().unwrap();
        graph.launch(&launcher).unwrap();
        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new(graph)),
            Some(Box::new(captured)),
            Some(Box::new(launcher)),
            Some(Box::new(pool)),
            Some(Box::new(block)),
        ];
        for at in order {
            things[at] = None;
        }
        let mut end = device.backend().counts();
        // Events are kept for the next use.
        end.events = start.events;
        assert_eq!(end, start, "{order:?}");
    }
}

fn the_figures_tell_a_graphs_memory_from_live_blocks(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let outside = pool.alloc(&stream, 8192).unwrap();
    let capture = stream.begin_capture().unwrap();
    let kept = pool.alloc(&stream, 3000).unwrap();
    drop(pool.alloc(&stream, 3 * MIB).unwrap());
    let stats = pool.stats();
    assert_eq!(stats.allocated.current, 8192 + 3072);
    assert_eq!(stats.requested.current, 8192 + 3000);
    assert_eq!(stats.blocks.current, 2);
    let graph = capture.end().unwrap();
    let stats = pool.stats();
    let of_stream: Vec<_> = stats.streams.iter().collect();
    assert_eq!(of_stream.len(), 1, "one entry for the one stream");
    assert_eq!(
        (of_stream[0].stream, of_stream[0].blocks.allocated),
        (stream.id(), 3)
    );
    assert_eq!(stats.graphs, graph.memory().bytes());
    assert_eq!(stats.graphs, 3 * MIB + 3072);
    assert!(stats.active.current >= stats.graphs + 8192);
    drop(kept);
    assert_eq!(pool.stats().allocated.current, 8192);
    assert_eq!(pool.stats().graphs, 3 * MIB + 3072, "the graph's still");
    drop(graph);
    let stats = pool.stats();
    assert_eq!((stats.graphs, stats.allocated.current), (0, 8192));
    drop(outside);
}

fn a_typed_buffer_of_a_graphs_memory_that_is_dropped_after_the_capture_counts_once(
    device: &Device,
) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    let mut used = pool.alloc_typed::<u8>(&stream, 3 << 20).unwrap();
    used.view_mut().fill(&stream, 1).unwrap();
    let unused = pool.alloc_typed::<u8>(&stream, 1 << 20).unwrap();
    let graph = capture.end().unwrap();
    let figures = || (pool.stats().allocated.current, graph.memory().bytes());
    assert_eq!(figures(), (4 * MIB, 4 * MIB));
    drop(used);
    assert_eq!(figures(), (MIB, 4 * MIB));
    drop(unused);
    assert_eq!(figures(), (0, 4 * MIB));
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    drop(graph);
    assert_eq!(pool.stats().graphs, 0);
}

fn a_block_from_before_a_capture_that_is_dropped_in_it_is_of_what_the_graph_keeps(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let blocks = [3 * MIB, 5 * MIB].map(|bytes| pool.alloc(&stream, bytes).unwrap());
    let capture = stream.begin_capture().unwrap();
    let [used, other] = blocks;
    fill(&stream, used.addr(), 1, 512);
    drop(used);
    let graph = capture.end().unwrap();
    assert_eq!(graph.memory().bytes(), 3 * MIB);
    assert_eq!(pool.stats().allocated.current, 8 * MIB);
    drop(graph);
    assert_eq!(pool.stats().allocated.current, 5 * MIB);
    drop(other);
}

fn a_block_from_before_a_capture_that_is_dropped_in_it_returns_behind_its_launches(
    device: &Device,
) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&stream, granule).unwrap();
    let capture = stream.begin_capture().unwrap();
    fill(&stream, block.addr(), 1, 512);
    drop(block);
    let graph = capture.end().unwrap();
    let gate = Gate::close(&other);
    graph.launch(&other).unwrap();
    drop(graph);
    let all = pool.alloc(&stream, 2 * granule).unwrap();
    fill(&stream, all.addr(), 2, 2 * granule);
    assert!(!stream.is_idle().unwrap(), "behind the graph's launch");
    gate.open();
    assert_eq!(read(&stream, all.addr(), 64), [2; 64]);
    whole(&pool);
}

fn a_block_of_a_graph_is_freed_where_it_is_used_and_shrinks(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = stream.begin_capture().unwrap();
    let mut block = pool.alloc(&stream, granule).unwrap();
    block.shrink(1000).unwrap();
    let rest = pool.alloc(&stream, granule - 1024).unwrap();
    assert_eq!(
        rest.addr(),
        block.addr() + 1024,
        "the rest is free in the capture"
    );
    let graph = capture.end().unwrap();
    assert_eq!(graph.memory().bytes(), granule);
    graph.launch(&stream).unwrap();
    other.wait_stream(&stream).unwrap();
    let gate = Gate::close(&other);
    fill(&other, block.addr(), 1, 1000);
    block.free_on(&other).unwrap();
    let mut rest = rest;
    rest.shrink(512).unwrap();
    drop(rest);
    drop(graph);
    let all = pool.alloc(&stream, 2 * granule).unwrap();
    fill(&stream, all.addr(), 2, 2 * granule);
    assert!(
        !stream.is_idle().unwrap(),
        "behind the use on the other stream"
    );
    gate.open();
    assert_eq!(read(&stream, all.addr(), 64), [2; 64]);
    assert_eq!(pool.stats().allocated.current, 2 * granule);
    whole(&pool);
}

fn graphs_come_and_go_and_leave_nothing(device: &Device) {
    let pool = limited(device, 4);
    let stream = device.stream().unwrap();
    for round in 0..50u64 {
        let capture = stream.begin_capture().unwrap();
        let a = pool.alloc(&stream, (round % 3 + 1) * MIB).unwrap();
        let b = pool.alloc(&stream, 4096).unwrap();
        fill(&stream, a.addr(), 1, 4096);
        drop(a);
        let graph = capture.end().unwrap();
        graph.launch(&stream).unwrap();
        if round % 2 == 0 {
            drop((graph, b));
        } else {
            drop((b, graph));
        }
        drop(pool.alloc(&stream, 3 * MIB).unwrap());
    }
    whole(&pool);
    let stats = pool.stats();
    assert_eq!(
        (stats.blocks.current, stats.graphs, stats.failures),
        (0, 0, 0)
    );
    assert_eq!(stats.blocks.allocated, 150);
    assert!(
        stats.streams.len() < 10,
        "figures of gone graphs are summed"
    );
    assert_eq!(device.backend().counts().streams, 1);
}

fn a_graph_takes_the_memory_of_one_that_is_gone_before_the_pool_grows(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let (captured, launcher) = (device.stream().unwrap(), device.stream().unwrap());
    let gate = Gate::close(&launcher);
    let mut small = Vec::new();
    for _ in 0..12 {
        let capture = captured.begin_capture().unwrap();
        let block = pool.alloc(&captured, 64 << 10).unwrap();
        fill(&captured, block.addr(), 1, 64 << 10);
        drop(block);
        let graph = capture.end().unwrap();
        graph.launch(&launcher).unwrap();
        drop(graph);
        small.push(pool.alloc(&captured, 8192).unwrap());
    }
    // What the launches still use, what one capture has at once, and the small blocks.
    let (held, granule) = (pool.stats().reserved.peak, device.info().granule);
    assert!(held <= 3 * granule, "{held} bytes");
    gate.open();
    drop(small);
    whole(&pool);
}
