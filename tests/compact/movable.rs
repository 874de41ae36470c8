//! Movable memory and compaction: contents survive every move, and every owner knows.

use crate::common;

use crate::common::BackendOf;
use common::on_every_device;
use common::watched::Watched;
use proptest::prelude::*;
use warpool::compact::{Budget, Goal};
use warpool::movable::{Movable, MovableId};
use warpool::pool::Relief;
use warpool::{Device, Pool, PoolConfig, Stream};

on_every_device! {
    packed_blocks_are_read_back_right_after_a_full_compaction,
    a_pinned_block_stays_and_the_rest_is_packed_around_it,
    a_request_that_only_compaction_can_serve_succeeds,
    the_prediction_of_a_plan_is_exact,
    a_pass_may_be_left_at_any_step,
    each_step_of_a_pass_is_recorded_with_what_it_moved_and_took,
    a_stale_handle_is_an_error,
    a_use_on_another_stream_is_waited_for,
    blocks_freed_and_allocated_between_steps_are_part_of_the_next,
    any_layout_survives_any_goal,
    a_block_grows_in_place_where_the_memory_behind_it_is_free_and_moves_where_it_is_not,
    a_peak_counts_what_a_block_has_grown_by_in_place,
    a_block_that_shrinks_gives_its_end_back_behind_every_use,
    a_resize_that_is_refused_leaves_the_block_as_it_was,
    a_copy_that_is_refused_under_capture_leaves_the_block_to_nobody,
    a_block_pinned_by_its_id_outlives_its_handle,
    a_block_freed_on_another_stream_is_that_streams_at_once,
    a_block_whose_stream_is_captured_does_not_grow_in_place,
    a_block_of_a_capture_may_be_freed_on_another_stream,
    a_block_of_a_capture_stays_where_its_graph_has_it,
    a_block_held_in_a_capture_stays_under_its_graph_whenever_the_guard_goes,
    a_hold_by_an_id_is_kept_by_each_capture_that_saw_it,
    a_block_held_over_several_captures_stays_under_the_graph_of_each,
    a_block_moves_behind_a_launch_of_a_graph_that_went_before_its_guard,
    a_block_keeps_no_more_of_the_streams_that_used_it_than_may_use_it_still,
}

fn pool(device: &Device, limit: u64) -> Pool {
    Pool::new(device, PoolConfig::default().limit(limit)).unwrap()
}

/// Contents that name the block and the place in it.
fn contents(seed: u64, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|i| (seed << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect()
}

fn make(pool: &Pool, stream: &Stream, seed: u64, len: usize) -> Movable<u64> {
    let mut block = pool.alloc_movable::<u64>(stream, len).unwrap();
    block.upload(stream, &contents(seed, len)).unwrap();
    block
}

fn check(block: &Movable<u64>, stream: &Stream, seed: u64) {
    assert!(
        block.download(stream).unwrap() == contents(seed, block.len()),
        "block {seed}"
    );
}

/// Every second of 64 blocks of 200,000 bytes.
fn fragmented(pool: &Pool, stream: &Stream) -> Vec<(u64, Movable<u64>)> {
    let all: Vec<_> = (0..64)
        .map(|seed| (seed, make(pool, stream, seed, 25_000)))
        .collect();
    all.into_iter().filter(|(seed, _)| seed % 2 == 0).collect()
}

fn packed_blocks_are_read_back_right_after_a_full_compaction(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    let before = pool.stats();
    let moved = pool.compact(&Goal::Full).unwrap();
    assert!(moved.finished && moved.reached && moved.bytes > 0);
    let after = pool.stats();
    assert!(after.largest_hole > before.largest_hole);
    assert_eq!(after.bytes_moved, moved.bytes);
    pool.check_invariants().unwrap();
    for (seed, block) in &blocks {
        check(block, &stream, *seed);
    }
}

fn a_pinned_block_stays_and_the_rest_is_packed_around_it(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    let (_, held) = &blocks[10];
    let pinned = held.hold(&stream).unwrap();
    let at = pinned.addr();
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    assert_eq!(held.hold(&stream).unwrap().addr(), at);
    drop(pinned);
    for (seed, block) in &blocks {
        check(block, &stream, *seed);
    }
}

fn a_request_that_only_compaction_can_serve_succeeds(device: &Device) {
    let pool = pool(device, 18 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    // 6.4 MB are live with holes of 0.2 MB between them; nothing else makes 6 MiB together.
    let filler: Vec<_> = std::iter::from_fn(|| pool.alloc(&stream, 300_000).ok())
        .take(8)
        .collect();
    let large = pool.alloc(&stream, 6 << 20).unwrap();
    assert!(pool.stats().steps.relieved > 0);
    pool.check_invariants().unwrap();
    for (seed, block) in &blocks {
        check(block, &stream, *seed);
    }
    drop((filler, large));
}

fn the_prediction_of_a_plan_is_exact(device: &Device) {
    let pool = pool(device, 64 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    for goal in [Goal::Hole(1 << 20), Goal::Full] {
        let plan = pool.plan_compaction(&goal).unwrap().unwrap();
        let moved = pool.compact(&goal).unwrap();
        assert_eq!((moved.bytes, moved.reached), (plan.bytes, true), "{goal:?}");
        let again = pool.plan_compaction(&goal).unwrap().unwrap();
        assert_eq!(again.bytes, 0, "{goal:?}");
    }
    drop(blocks);
}

fn each_step_of_a_pass_is_recorded_with_what_it_moved_and_took(device: &Device) {
    let pool = pool(device, 64 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    pool.record_steps(true).unwrap();
    let budget = Budget::bytes(1_000_000);
    let mut pass = pool.begin_compaction(Goal::Full, budget).unwrap();
    let mut made = Vec::new();
    loop {
        let moved = pass.step().unwrap();
        if moved.bytes > 0 {
            made.push((moved.bytes, moved.blocks, moved.launches));
        }
        if moved.finished {
            break;
        }
    }
    let steps = pool.take_steps().unwrap();
    let recorded = steps.iter().map(|it| (it.bytes, it.blocks, it.launches));
    assert_eq!(recorded.collect::<Vec<_>>(), made);
    assert!(
        made.len() > 2
            && made
                .iter()
                .all(|&(_, blocks, launches)| blocks >= launches && launches > 0)
    );
    for step in steps {
        // From before its first launch to behind its last.
        assert!(step.device_ns >= 0.0 && step.predicted_ns > 0.0, "{step:?}");
    }
    assert!(pool.take_steps().unwrap().is_empty());
    drop(blocks);
}

fn a_pass_may_be_left_at_any_step(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    for steps in 0..8 {
        let mut pass = pool
            .begin_compaction(Goal::Full, Budget::bytes(500_000))
            .unwrap();
        for _ in 0..steps {
            let moved = pass.step().unwrap();
            assert!(moved.bytes <= 500_000);
            if moved.finished {
                break;
            }
        }
        drop(pass);
        pool.check_invariants().unwrap();
        for (seed, block) in &blocks {
            check(block, &stream, *seed);
        }
    }
}

fn a_stale_handle_is_an_error(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let first = pool.alloc_movable::<u8>(&stream, 100).unwrap();
    let stale = first.id();
    drop(first);
    let second = pool.alloc_movable::<u8>(&stream, 100).unwrap();
    assert_eq!(second.id().index, stale.index);
    assert_ne!(second.id(), stale);
    let MovableId { index, generation } = second.id();
    drop(second);
    // The last two are of blocks that have not been made.
    let next = generation.wrapping_add(1);
    for (index, generation) in [(index, generation), (index, next), (index + 1, next)] {
        let id = MovableId { index, generation };
        let refused = pool.hold_id(id, &stream).unwrap_err().to_string();
        assert!(refused.contains("stale"), "{refused}");
    }
    let third = pool.alloc_movable::<u8>(&stream, 100).unwrap();
    drop(pool.hold_id(third.id(), &stream).unwrap());
    pool.check_invariants().unwrap();
}

fn a_use_on_another_stream_is_waited_for(device: &Device) {
    let pool = pool(device, 32 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = fragmented(&pool, &stream);
    for round in 0..20u64 {
        // Work that takes its time on another stream reads and rewrites each block where it is.
        for (seed, block) in &blocks {
            let pinned = block.hold(&other).unwrap();
            let backend = device.backend();
            backend
                .host_call(
                    other.raw(),
                    Box::new(|| std::thread::sleep(std::time::Duration::from_micros(50))),
                )
                .unwrap();
            let value = (seed + round) as u8;
            // SAFETY: the block is pinned for the stream, and has the bytes.
            unsafe {
                backend
                    .fill(pinned.addr(), value, 200_000, other.raw())
                    .unwrap()
            };
        }
        let goal = if round % 2 == 0 {
            Goal::Full
        } else {
            Goal::Hole(12 << 20)
        };
        pool.compact(&goal).unwrap();
        // Where a block was not moved, nothing orders its readers behind its writers but this.
        stream.wait_stream(&other).unwrap();
        for (seed, block) in &blocks {
            let value = u64::from_ne_bytes([(seed + round) as u8; 8]);
            assert!(
                block
                    .download(&stream)
                    .unwrap()
                    .iter()
                    .all(|&word| word == value)
            );
        }
    }
}

fn blocks_freed_and_allocated_between_steps_are_part_of_the_next(device: &Device) {
    let pool = pool(device, 32 << 20);
    let stream = device.stream().unwrap();
    let mut blocks = fragmented(&pool, &stream);
    let mut pass = pool
        .begin_compaction(Goal::Full, Budget::bytes(400_000))
        .unwrap();
    let mut next = 1000;
    loop {
        let moved = pass.step().unwrap();
        pool.check_invariants().unwrap();
        if moved.finished || next > 1030 {
            break;
        }
        blocks.swap_remove(next as usize % blocks.len());
        blocks.push((next, make(&pool, &stream, next, 10_000)));
        next += 1;
    }
    for (seed, block) in &blocks {
        check(block, &stream, *seed);
    }
}

/// The first `words` of a block: those behind may never have been written.
fn begin(block: &Movable<u64>, stream: &Stream, words: usize) -> Vec<u64> {
    let pinned = block.hold(stream).unwrap();
    let bytes = common::read(stream, pinned.addr(), words * 8);
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn a_block_grows_in_place_where_the_memory_behind_it_is_free_and_moves_where_it_is_not(
    device: &Device,
) {
    let pool = pool(device, 16 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut low = make(&pool, &stream, 1, 40_000);
    let between = make(&pool, &stream, 2, 60_000);
    let high = make(&pool, &stream, 3, 10_000);
    let at = low.hold(&stream).unwrap().addr();
    let allocated = pool.stats().allocated.current;
    // Behind a use of it on another stream.
    drop(between.hold(&other).unwrap());
    drop(between);
    low.resize(&stream, 90_000).unwrap();
    assert_eq!(low.hold(&stream).unwrap().addr(), at);
    assert_eq!(low.len(), 90_000);
    assert!(begin(&low, &other, 40_000) == contents(1, 40_000));
    assert_eq!(
        pool.stats().allocated.current,
        allocated - 480_256 + 400_384
    );
    low.upload(&other, &contents(1, 90_000)).unwrap();
    low.resize(&stream, 200_000).unwrap();
    assert_ne!(low.hold(&stream).unwrap().addr(), at);
    assert_eq!(low.len(), 200_000);
    assert!(begin(&low, &stream, 90_000) == contents(1, 90_000));
    low.upload(&stream, &contents(1, 200_000)).unwrap();
    check(&high, &stream, 3);
    pool.check_invariants().unwrap();
    pool.compact(&Goal::Full).unwrap();
    check(&low, &stream, 1);
    drop((low, high));
    assert_eq!(pool.stats().allocated.current, 0);
}

fn a_peak_counts_what_a_block_has_grown_by_in_place(device: &Device) {
    let pool = pool(device, 4 << 20);
    let stream = device.stream().unwrap();
    let mut block = make(&pool, &stream, 1, 64_000);
    drop(make(&pool, &stream, 2, 128_000));
    let at = block.hold(&stream).unwrap().addr();
    pool.reset_peaks();
    block.resize(&stream, 96_001).unwrap();
    assert_eq!(block.hold(&stream).unwrap().addr(), at);
    block.resize(&stream, 1000).unwrap();
    let stats = pool.stats();
    let peaks = (stats.allocated.peak, stats.requested.peak);
    assert_eq!(peaks, (768_256, 768_008));
    drop(block);
}

fn a_block_that_shrinks_gives_its_end_back_behind_every_use(device: &Device) {
    let pool = pool(device, 4 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = make(&pool, &stream, 1, 400_000);
    for round in 0..20u64 {
        let backend = device.backend();
        let pinned = block.hold(&other).unwrap();
        let slow = Box::new(|| std::thread::sleep(std::time::Duration::from_millis(1)));
        backend.host_call(other.raw(), slow).unwrap();
        // SAFETY: the block is pinned for the stream, and has the bytes.
        unsafe {
            backend
                .fill(pinned.addr(), 7, 3_200_000, other.raw())
                .unwrap()
        };
        drop(pinned);
        block.resize(&stream, 100_000).unwrap();
        // Whoever gets the end writes it behind that use.
        let next = make(&pool, &stream, round, 200_000);
        check(&next, &stream, round);
        drop(next);
        block.resize(&stream, 400_000).unwrap();
        pool.check_invariants().unwrap();
    }
}

fn a_resize_that_is_refused_leaves_the_block_as_it_was(device: &Device) {
    let pool = pool(device, 4 << 20);
    let stream = device.stream().unwrap();
    let mut block = make(&pool, &stream, 1, 100_000);
    let fixed = pool.alloc(&stream, 1 << 20).unwrap();
    assert!(block.resize(&stream, usize::MAX).is_err());
    let refused = block.resize(&stream, 4 << 20).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let pinned = pool.hold_id(block.id(), &stream).unwrap();
    let refused = block.resize(&stream, 50_000).unwrap_err().to_string();
    assert!(refused.contains("held"), "{refused}");
    drop(pinned);
    let capture = stream.begin_capture().unwrap();
    for len in [50_000, 99_999, 100_001, 200_000] {
        let refused = block.resize(&stream, len).unwrap_err().to_string();
        assert!(refused.contains("capture"), "{refused}");
    }
    drop(capture);
    assert_eq!(block.len(), 100_000);
    check(&block, &stream, 1);
    pool.check_invariants().unwrap();
    drop(fixed);
}

fn a_copy_that_is_refused_under_capture_leaves_the_block_to_nobody(device: &Device) {
    let pool = pool(device, 4 << 20);
    let stream = device.stream().unwrap();
    let mut block = make(&pool, &stream, 1, 1000);
    let capture = stream.begin_capture().unwrap();
    let up = block.upload(&stream, &contents(2, 1000)).unwrap_err();
    let down = block.download(&stream).unwrap_err();
    for refused in [up, down] {
        assert!(refused.to_string().contains("capture"), "{refused}");
    }
    let graph = capture.end().unwrap();
    // What the graph had would not be resized.
    block.resize(&stream, 900).unwrap();
    assert_eq!(block.download(&stream).unwrap(), contents(1, 1000)[..900]);
    drop(graph);
}

fn a_block_pinned_by_its_id_outlives_its_handle(device: &Device) {
    let pool = pool(device, 8 << 20);
    let stream = device.stream().unwrap();
    let block = make(&pool, &stream, 1, 10_000);
    let id = block.id();
    let (first, second) = (
        pool.hold_id(id, &stream).unwrap(),
        pool.hold_id(id, &stream).unwrap(),
    );
    drop(block);
    assert!(pool.hold_id(id, &stream).is_err());
    drop(first);
    assert_eq!((second.bytes(), second.id()), (80_000, id));
    assert_eq!(pool.stats().allocated.current, 80_128);
    pool.compact(&Goal::Full).unwrap();
    let bytes = common::read(&stream, second.addr(), 80_000);
    assert!(bytes == bytemuck::cast_slice::<u64, u8>(&contents(1, 10_000)));
    drop(second);
    assert_eq!(pool.stats().allocated.current, 0);
    assert!(pool.hold_id(id, &stream).is_err());
}

fn a_block_freed_on_another_stream_is_that_streams_at_once(device: &Device) {
    let pool = pool(device, 8 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let block = make(&pool, &stream, 1, 10_000);
    let at = block.hold(&other).unwrap().addr();
    block.free_on(&other).unwrap();
    let waits = pool.stats().steps.waits;
    let next = pool.alloc(&other, 80_000).unwrap();
    assert_eq!((next.addr(), pool.stats().steps.waits), (at, waits));
}

fn a_block_whose_stream_is_captured_does_not_grow_in_place(device: &Device) {
    for captured in [false, true] {
        let pool = pool(device, 64 << 20);
        let [home, other, user] = [(); 3].map(|()| device.stream().unwrap());
        let mut block = make(&pool, &home, 1, 500_000);
        let at = block.hold(&user).unwrap().addr();
        // What is free behind it is the other's.
        drop(make(&pool, &other, 2, 500_000));
        home.synchronize().unwrap();
        let capture = captured.then(|| home.begin_capture().unwrap());
        block.resize(&user, 1_000_000).unwrap();
        assert_eq!(block.hold(&user).unwrap().addr() == at, !captured);
        let held = block.hold(&user).unwrap();
        let first = held.view().slice(..500_000).unwrap();
        assert!(first.download(&user).unwrap() == contents(1, 500_000));
        drop(capture);
    }
}

fn a_block_of_a_capture_may_be_freed_on_another_stream(device: &Device) {
    for is_captured_too in [false, true] {
        let pool = pool(device, 8 << 20);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let capture = stream.begin_capture().unwrap();
        let block = pool.alloc_movable::<u64>(&stream, 500).unwrap();
        let beside = is_captured_too.then(|| other.begin_capture().unwrap());
        block.free_on(&other).unwrap();
        drop(beside.map(|capture| capture.end().unwrap()));
        capture.end().unwrap();
    }
}

fn a_block_of_a_capture_stays_where_its_graph_has_it(device: &Device) {
    let (pool, stream) = (pool(device, 64 << 20), device.stream().unwrap());
    let (low, first) = (
        make(&pool, &stream, 1, 500_000),
        make(&pool, &stream, 2, 1000),
    );
    let capture = stream.begin_capture().unwrap();
    let mut block = pool.alloc_movable::<u64>(&stream, 250_000).unwrap();
    let graph = capture.end().unwrap();
    let addr = block.hold(&stream).unwrap().addr();
    drop(low);
    block.upload(&stream, &contents(3, 250_000)).unwrap();
    assert!(
        pool.compact(&Goal::Full).unwrap().blocks > 0,
        "what may move does"
    );
    check(&first, &stream, 2);
    assert_eq!(block.hold(&stream).unwrap().addr(), addr);
    check(&block, &stream, 3);
    pool.check_invariants().unwrap();
    drop(graph);
}

fn a_block_held_in_a_capture_stays_under_its_graph_whenever_the_guard_goes(device: &Device) {
    for (late, by_id) in [(false, false), (true, false), (false, true), (true, true)] {
        let pool = pool(device, 64 << 20);
        let stream = device.stream().unwrap();
        let low = make(&pool, &stream, 0, 500_000);
        let high = make(&pool, &stream, 1, 500_000);
        let target = pool.alloc_zeroed::<u8>(&stream, 400).unwrap();
        let at = high.hold(&stream).unwrap().addr();
        stream.synchronize().unwrap();
        let capture = stream.begin_capture().unwrap();
        let mut held = (!by_id).then(|| high.hold(&stream).unwrap());
        let mut held_by_id = by_id.then(|| pool.hold_id(high.id(), &stream).unwrap());
        common::copy(&stream, target.addr(), at, 400);
        if !late {
            (held, held_by_id) = (None, None);
        }
        let graph = capture.end().unwrap();
        drop((held, held_by_id, low));
        pool.compact(&Goal::Full).unwrap();
        assert_eq!(
            high.hold(&stream).unwrap().addr(),
            at,
            "late: {late}, by id: {by_id}"
        );
        drop(graph);
        stream.synchronize().unwrap();
        pool.compact(&Goal::Full).unwrap();
        assert_ne!(high.hold(&stream).unwrap().addr(), at);
        check(&high, &stream, 1);
    }
}

fn a_hold_by_an_id_is_kept_by_each_capture_that_saw_it(device: &Device) {
    // Made before or in the first capture, dropped in the second or after it.
    for (made_in, dropped_in) in [(false, false), (false, true), (true, false), (true, true)] {
        let pool = pool(device, 64 << 20);
        let stream = device.stream().unwrap();
        let low = make(&pool, &stream, 0, 500_000);
        let high = make(&pool, &stream, 1, 500_000);
        let at = high.hold(&stream).unwrap().addr();
        let hold = || pool.hold_id(high.id(), &stream).unwrap();
        let mut held = (!made_in).then(hold);
        let first = made_in.then(|| {
            let capture = stream.begin_capture().unwrap();
            held = Some(hold());
            capture.end().unwrap()
        });
        let capture = stream.begin_capture().unwrap();
        if dropped_in {
            held = None;
        }
        let second = capture.end().unwrap();
        drop((held, first, low));
        pool.compact(&Goal::Full).unwrap();
        let now = high.hold(&stream).unwrap().addr();
        assert_eq!(now, at, "made in: {made_in}, dropped in: {dropped_in}");
        drop(second);
        stream.synchronize().unwrap();
        pool.compact(&Goal::Full).unwrap();
        assert_ne!(high.hold(&stream).unwrap().addr(), at);
        check(&high, &stream, 1);
    }
}

fn a_block_held_over_several_captures_stays_under_the_graph_of_each(device: &Device) {
    for by in ["view", "address", "id"] {
        let pool = pool(device, 64 << 20);
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let low = make(&pool, &stream, 0, 500_000);
        let high = make(&pool, &stream, 1, 500_000);
        let mut target = pool.alloc_zeroed::<u64>(&stream, 50).unwrap();
        let held = high.hold(&stream).unwrap();
        let at = held.addr();
        let held = (by != "id").then_some(held);
        let held_by_id = (by == "id").then(|| pool.hold_id(high.id(), &stream).unwrap());
        stream.synchronize().unwrap();
        let view = held.as_ref().filter(|_| by == "view").map(|it| it.view());
        let [first, second] = [(); 2].map(|()| {
            let on = if view.is_some() { &other } else { &stream };
            let capture = on.begin_capture().unwrap();
            match view {
                Some(view) => (target.view_mut())
                    .copy_from(on, view.slice(..50).unwrap())
                    .unwrap(),
                None => common::copy(on, target.addr(), at, 400),
            }
            capture.end().unwrap()
        });
        drop((held, held_by_id, low));
        for graph in [second, first] {
            pool.compact(&Goal::Full).unwrap();
            assert_eq!(high.hold(&stream).unwrap().addr(), at, "{by}");
            drop(graph);
            stream.synchronize().unwrap();
        }
        pool.compact(&Goal::Full).unwrap();
        assert_ne!(high.hold(&stream).unwrap().addr(), at, "{by}");
        check(&high, &stream, 1);
    }
}

fn a_block_moves_behind_a_launch_of_a_graph_that_went_before_its_guard(device: &Device) {
    for by_id in [false, true] {
        let pool = pool(device, 10 << 20);
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        let low = make(&pool, &stream, 0, 500_000);
        let high = make(&pool, &stream, 1, 500_000);
        let target = pool.alloc_zeroed::<u64>(&stream, 50).unwrap();
        let held = high.hold(&stream).unwrap();
        let at = held.addr();
        let held = (!by_id).then_some(held);
        let held_by_id = by_id.then(|| pool.hold_id(high.id(), &stream).unwrap());
        stream.synchronize().unwrap();
        let capture = stream.begin_capture().unwrap();
        common::copy(&stream, target.addr(), at, 400);
        let graph = capture.end().unwrap();
        let gate = common::Gate::close(&other);
        graph.launch(&other).unwrap();
        drop(graph);
        drop((held, held_by_id, low));
        pool.compact(&Goal::Full).unwrap();
        let third = device.stream().unwrap();
        let mut next = pool.alloc_typed::<u64>(&third, 500_000).unwrap();
        next.view_mut().fill(&third, 0).unwrap();
        assert!((next.addr()..next.addr() + 4_000_000).contains(&at));
        // Would run now, were it not behind the launch.
        std::thread::sleep(std::time::Duration::from_millis(50));
        gate.open();
        other.synchronize().unwrap();
        assert!(
            target.download().unwrap() == contents(1, 50),
            "by id: {by_id}"
        );
    }
}

/// While an upload is under way a launch that reads the block is refused on its thread, as with a buffer.
#[test]
fn an_upload_to_a_block_and_a_launch_that_reads_it_are_ordered() {
    let (device, watched) = Watched::over(&common::host());
    let pool = pool(&device, 64 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = make(&pool, &stream, 1, 1000);
    let mut target = pool.alloc_zeroed::<u64>(&stream, 1000).unwrap();
    let capture = stream.begin_capture().unwrap();
    let held = block.hold(&stream).unwrap();
    target.view_mut().copy_from(&stream, &held).unwrap();
    drop(held);
    let graph = std::sync::Arc::new(capture.end().unwrap());
    let refused = std::sync::Arc::new(std::sync::Mutex::new(None));
    let (launched, told, on) = (graph.clone(), refused.clone(), other.clone());
    watched.after("before_copy_in", move || {
        *told.lock().unwrap() = Some(launched.launch(&on).is_err());
    });
    block.upload(&stream, &contents(2, 1000)).unwrap();
    assert_eq!(refused.lock().unwrap().take(), Some(true));
    graph.launch(&other).unwrap();
    other.synchronize().unwrap();
    assert!(target.download().unwrap() == contents(2, 1000));
}

fn a_block_keeps_no_more_of_the_streams_that_used_it_than_may_use_it_still(device: &Device) {
    for waits in [true, false] {
        let pool = pool(device, 8 << 20);
        let stream = device.stream().unwrap();
        let block = make(&pool, &stream, 1, 1000);
        let events = || device.backend().counts().events;
        let before = events();
        for _ in 0..300 {
            let user = device.stream().unwrap();
            check(&block, &user, 1);
            if waits {
                user.synchronize().unwrap();
            }
        }
        assert!(events() < before + 100, "{}", events() - before);
        check(&block, &stream, 1);
    }
}

/// A hold ends under a lock, and a driver may keep whoever makes an event.
#[test]
fn holds_on_many_streams_end_without_a_record() {
    let (device, watched) = Watched::over(&common::host());
    let (pool, stream) = (pool(&device, 8 << 20), device.stream().unwrap());
    let block = make(&pool, &stream, 1, 1000);
    let users: Vec<Stream> = (0..50).map(|_| device.stream().unwrap()).collect();
    let id = block.id();
    let guards = users.iter().map(|user| pool.hold_id(id, user).unwrap());
    let guards: Vec<_> = guards.collect();
    let before = watched.calls("event_record");
    drop(guards);
    assert_eq!(watched.calls("event_record"), before);
    check(&block, &stream, 1);
}

/// Who leaks a guard has the block stay, and what of the pool it needs; a device cannot tell that from a leak.
#[test]
fn a_block_freed_under_a_leaked_guard_outlives_its_pool() {
    let device = common::host();
    let pool = pool(&device, 64 << 20);
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let mut block = make(&pool, &home, 1, 1_000_000);
    let mut guard = block.hold_mut(&other).unwrap();
    let gate = common::Gate::close(&other);
    // Of equal bytes, so that nothing is copied from the host.
    let value = u64::from_ne_bytes([7; 8]);
    guard.view_mut().fill(&other, value).unwrap();
    let at = guard.addr();
    std::mem::forget(guard);
    drop((block, pool));
    assert!(device.backend().counts().mappings > 0);
    gate.open();
    let last = common::read(&other, at + 7_999_992, 8);
    assert_eq!(last, [7; 8]);
}

#[derive(Debug, Clone)]
enum Op {
    Alloc(usize, usize),
    Raw(u64),
    Free(usize),
    FreeRaw(usize),
    Pin(usize),
    Unpin,
    Compact(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..2usize, 1..60_000usize).prop_map(|(stream, len)| Op::Alloc(stream, len)),
        1 => (1..300_000u64).prop_map(Op::Raw),
        4 => any::<usize>().prop_map(Op::Free),
        1 => any::<usize>().prop_map(Op::FreeRaw),
        1 => any::<usize>().prop_map(Op::Pin),
        1 => Just(Op::Unpin),
        2 => (0..6_000_000u64, 1..3_000_000u64).prop_map(|(hole, budget)| Op::Compact(hole, budget)),
    ]
}

fn any_layout_survives_any_goal(device: &Device) {
    let cases = ProptestConfig::with_cases(common::rounds(48) as u32);
    proptest!(cases, |(ops in prop::collection::vec(op(), 1..120))| {
        let pool = pool(device, 8 << 20);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let (mut live, mut raw) = (Vec::new(), Vec::new());
        for (seed, op) in ops.into_iter().enumerate() {
            match op {
                Op::Alloc(stream, len) => {
                    if let Ok(mut block) = pool.alloc_movable::<u64>(&streams[stream], len) {
                        block.upload(&streams[stream], &contents(seed as u64, len)).unwrap();
                        live.push((seed as u64, block));
                    }
                }
                Op::Raw(bytes) => raw.extend(pool.alloc(&streams[0], bytes)),
                Op::Free(at) if !live.is_empty() => drop(live.swap_remove(at % live.len())),
                Op::FreeRaw(at) if !raw.is_empty() => drop(raw.swap_remove(at % raw.len())),
                Op::Pin(at) if !live.is_empty() => {
                    let (_, block) = &live[at % live.len()];
                    let pinned = block.hold(&streams[1]).unwrap();
                    let addr = pinned.addr();
                    pool.compact(&Goal::Full).unwrap();
                    prop_assert_eq!(block.hold(&streams[0]).unwrap().addr(), addr);
                }
                Op::Compact(hole, budget) => {
                    let goal = if hole < 1000 { Goal::Full } else { Goal::Hole(hole) };
                    let mut pass = pool.begin_compaction(goal, Budget::bytes(budget)).unwrap();
                    while !pass.step().unwrap().finished {}
                }
                _ => {}
            }
            if let Err(why) = pool.check_invariants() {
                prop_assert!(false, "{}", why);
            }
        }
        for (seed, block) in &live {
            prop_assert!(block.download(&streams[1]).unwrap() == contents(*seed, block.len()));
        }
    });
}

#[test]
fn handles_of_more_bytes_than_can_be_counted_are_a_goal_as_others_are() {
    let pool = pool(&common::host(), 64 << 20);
    let stream = pool.device().stream().unwrap();
    let blocks = fragmented(&pool, &stream);
    let handles = vec![(0, u64::MAX - 1), (1 << 30, 1 << 20)];
    let bytes = u64::MAX;
    pool.compact(&Goal::EmptyHandles { handles, bytes })
        .unwrap();
    for (seed, block) in &blocks {
        check(block, &stream, *seed);
    }
}

#[test]
fn handles_that_end_within_a_unit_are_emptied_into_places_for_blocks() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
    let stream = device.stream().unwrap();
    let mut block = pool.alloc_movable::<u8>(&stream, 4096).unwrap();
    block.upload(&stream, &[7; 4096]).unwrap();
    for handle in [
        (0, 4096 + 112),
        (0, 4096 + 100),
        (9000, 0),
        (4096, 1),
        (1, 8191),
    ] {
        let goal = Goal::EmptyHandles {
            handles: vec![handle],
            bytes: 1,
        };
        pool.compact(&goal).unwrap();
        pool.check_invariants().unwrap();
        let addr = block.hold(&stream).unwrap().addr();
        assert_eq!(addr % 256, 0, "{handle:?}");
        assert_eq!(block.download(&stream).unwrap(), [7; 4096]);
    }
}

#[test]
fn the_tables_of_movable_memory_get_what_is_idle_in_other_parts_and_what_the_application_frees() {
    let granule = common::host().info().granule;
    for from in ["other part", "application"] {
        let device = Device::host_with_capacity(16 * granule).unwrap();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
        let fixed = parts[0].alloc(&stream, 6 * granule - 4096).unwrap();
        let others = parts[1].alloc(&stream, 10 * granule).unwrap();
        // The tables lie beside it.
        parts[0].set_limit(6 * granule);
        assert!(parts[0].alloc_movable::<u8>(&stream, 4096).is_err());
        match from {
            "application" => {
                let spare = std::sync::Mutex::new(Some(others));
                parts[0].on_pressure(move |_| match spare.lock().unwrap().take() {
                    Some(_) => Relief::Retry,
                    None => Relief::Exhausted,
                });
            }
            _ => drop(others),
        }
        parts[0].alloc_movable::<u8>(&stream, 4096).expect(from);
        drop(fixed);
    }
}

#[test]
fn the_address_table_gets_memory_that_is_idle_and_is_none_without() {
    let granule = common::host().info().granule;
    let device = Device::host_with_capacity(16 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let block = pool.alloc_movable::<u8>(&stream, 4096).unwrap();
    let all = 16 * granule - pool.stats().overhead - granule;
    let rest = pool.alloc(&stream, all).unwrap();
    assert!(pool.address_table().is_err_and(|it| it.is_out_of_memory()));
    drop(block.hold(&stream).expect("nobody has a table"));
    drop(rest);
    let table = pool.address_table().unwrap();
    let addr = block.hold(&stream).unwrap().addr();
    let word = common::read(&stream, table.entry(block.id()), 8);
    assert_eq!(word, addr.to_le_bytes());
}

#[test]
fn a_handle_that_the_address_table_has_no_room_for_asks_for_memory_as_a_block_does() {
    let granule = common::host().info().granule;
    let device = Device::host_with_capacity(64 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let table = pool.address_table().unwrap();
    let made = |_| pool.alloc_movable::<u8>(&stream, 1).unwrap();
    let handles: Vec<_> = (0..granule / 8).map(made).collect();
    let small = pool.alloc(&stream, 1).unwrap();
    let mut rest = Vec::new();
    while let Ok(block) = pool.alloc(&stream, granule) {
        rest.push(block);
    }
    drop(small);
    let refused = pool.alloc_movable::<u8>(&stream, 1);
    assert!(refused.is_err_and(|it| it.is_out_of_memory()));
    assert_eq!(table.entries(), granule / 8);
    let rest = std::sync::Mutex::new(rest);
    pool.on_pressure(
        move |_| match std::mem::take(&mut *rest.lock().unwrap()).is_empty() {
            true => Relief::Exhausted,
            false => Relief::Retry,
        },
    );
    let block = pool.alloc_movable::<u8>(&stream, 1).unwrap();
    let addr = block.hold(&stream).unwrap().addr();
    let word = common::read(&stream, table.entry(block.id()), 8);
    assert_eq!(word, addr.to_le_bytes());
    drop(handles);
    pool.check_invariants().unwrap();
}
