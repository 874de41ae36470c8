//! Movable memory and compaction: contents survive every move, and every owner knows.

#[path = "common/mod.rs"]
mod common;

use common::on_every_device;
use proptest::prelude::*;
use warpool::compact::{Budget, Goal};
use warpool::movable::Movable;
use warpool::{Device, Pool, PoolConfig, Stream};

on_every_device! {
    packed_blocks_are_read_back_right_after_a_full_compaction,
    a_pinned_block_stays_and_the_rest_is_packed_around_it,
    a_request_that_only_compaction_can_serve_succeeds,
    the_prediction_of_a_plan_is_exact,
    a_pass_may_be_left_at_any_step,
    a_stale_handle_is_an_error,
    a_use_on_another_stream_is_waited_for,
    blocks_freed_and_allocated_between_steps_are_part_of_the_next,
    any_layout_survives_any_goal,
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
    let pinned = held.pin(&stream).unwrap();
    let at = pinned.addr();
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    assert_eq!(held.pin(&stream).unwrap().addr(), at);
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
        let free = pool
            .plan_compaction(&Goal::Hole(plan.largest_hole))
            .unwrap()
            .unwrap();
        assert_eq!(
            (free.bytes, free.largest_hole),
            (0, plan.largest_hole),
            "{goal:?}"
        );
    }
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
}

fn a_use_on_another_stream_is_waited_for(device: &Device) {
    let pool = pool(device, 32 << 20);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = fragmented(&pool, &stream);
    for round in 0..20u64 {
        // Work that takes its time on another stream reads and rewrites each block where it is.
        for (seed, block) in &blocks {
            let pinned = block.pin(&other).unwrap();
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
    let cases = ProptestConfig::with_cases(48);
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
                    let pinned = block.pin(&streams[1]).unwrap();
                    let addr = pinned.addr();
                    pool.compact(&Goal::Full).unwrap();
                    prop_assert_eq!(block.pin(&streams[0]).unwrap().addr(), addr);
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
