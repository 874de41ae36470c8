//! Movable memory that goes to the host and comes back: contents, order, choice, and what stays.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::hunt::{cases, hunt};
use common::sanitized::Sanitized;
use common::watched::{MADE_TO_FAIL, Watched};
use common::{Gate, on_every_device, on_the_simulated_device};
use warpool::compact::Goal;
use warpool::device::sim::{Rng, SimConfig};
use warpool::host::{Contents, HostPool, HostPoolConfig, Spill};
use warpool::movable::Movable;
use warpool::pool::{HandleSize, Relief};
use warpool::{Device, Error, Pool, PoolConfig, Stream};

#[path = "../../examples/spill.rs"]
mod program;

const MIB: usize = 1 << 20;

/// A pool that may hold `mebibytes`, and spills to the host pool.
fn spilling(device: &Device, mebibytes: usize) -> (Pool, HostPool) {
    let config = PoolConfig::default()
        .sleeps(true)
        .limit((mebibytes * MIB) as u64)
        .handles(HandleSize::Granule);
    let pool = Pool::new(device, config).unwrap();
    let host = HostPool::new(device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    (pool, host)
}

fn filled(pool: &Pool, stream: &Stream, value: u8, len: usize) -> Movable<u8> {
    let mut block = pool.alloc_movable::<u8>(stream, len).unwrap();
    block
        .hold_mut(stream)
        .unwrap()
        .view_mut()
        .fill(stream, value)
        .unwrap();
    block
}

fn is_all(block: &Movable<u8>, stream: &Stream, value: u8) -> bool {
    block
        .download(stream)
        .unwrap()
        .iter()
        .all(|&byte| byte == value)
}

fn whole(pool: &Pool) {
    pool.check_invariants().unwrap();
}

fn twice_the_memory_is_used_in_turns_and_every_byte_is_right(device: &Device) {
    let watched = Sanitized::over(device);
    let outcome = program::in_turns(&watched.device, 18 << 20, 4).unwrap();
    assert_eq!(outcome.corrupt, 0);
    // Of 32 MiB that are used three times in turns half a time to one: none goes ahead of its use.
    for moved in [outcome.moved.0, outcome.moved.1] {
        assert!((48 << 20..=100 << 20).contains(&moved), "{moved}");
    }
    watched.check().unwrap();
}

fn what_is_spilled_comes_back_when_it_is_held_and_figures_say_so(device: &Device) {
    let (pool, host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let blocks: Vec<_> = (0..4)
        .map(|at| filled(&pool, &stream, at, 4 * MIB))
        .collect();
    let stats = pool.stats();
    assert_eq!(stats.spilled.current, 8 * MIB as u64);
    assert_eq!(stats.failures, 0);
    assert!(stats.to_string().contains("spilled"));
    assert_eq!(host.stats().allocated.current, 8 * MIB as u64);
    for (at, block) in (0..).zip(&blocks) {
        assert!(is_all(block, &stream, at));
    }
    whole(&pool);
    let spilled = pool.stats().spilled;
    assert_eq!(spilled.current, 8 * MIB as u64);
    assert!(spilled.freed >= 8 * MIB as u64);
    drop(blocks);
    assert_eq!(pool.stats().spilled.current, 0);
    assert_eq!(host.stats().allocated.current, 0);
}

fn what_is_held_stays_and_a_request_that_needs_it_fails(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let blocks: Vec<_> = (0..2)
        .map(|at| filled(&pool, &stream, at, 4 * MIB))
        .collect();
    let held = blocks[0].hold(&stream).unwrap();
    let addr = held.addr();
    let fixed = pool.alloc(&stream, 4 * MIB as u64).unwrap();
    assert_eq!(pool.stats().spilled.current, 4 * MIB as u64);
    assert!(
        pool.alloc(&stream, 4 * MIB as u64)
            .unwrap_err()
            .is_out_of_memory()
    );
    let lost = blocks[1].hold(&stream).map(drop);
    assert!(lost.unwrap_err().is_out_of_memory());
    assert_eq!(held.addr(), addr);
    drop((held, fixed));
    assert!(is_all(&blocks[1], &stream, 1) && is_all(&blocks[0], &stream, 0));
    whole(&pool);
}

fn a_request_of_more_than_the_pool_may_hold_spills_nothing(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 4 * MIB);
    let error = pool.alloc(&stream, 9 * MIB as u64).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(pool.stats().spilled.allocated, 0);
    assert!(is_all(&block, &stream, 7));
    drop(pool.alloc(&stream, 8 * MIB as u64).unwrap());
    assert_eq!(pool.stats().spilled.current, 4 * MIB as u64);
    whole(&pool);
}

fn the_block_that_was_not_held_for_longest_goes_first(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let blocks: Vec<_> = (0..4)
        .map(|at| filled(&pool, &stream, at, 2 * MIB))
        .collect();
    let addrs: Vec<_> = blocks
        .iter()
        .map(|it| it.hold(&stream).unwrap().addr())
        .collect();
    for at in [0, 2, 3] {
        drop(blocks[at].hold(&stream).unwrap());
    }
    let taken = pool.alloc(&stream, 2 * MIB as u64).unwrap();
    for at in [0, 2, 3] {
        assert_eq!(blocks[at].hold(&stream).unwrap().addr(), addrs[at]);
    }
    assert_eq!(pool.stats().spilled.current, 2 * MIB as u64);
    drop(taken);
    assert!(is_all(&blocks[1], &stream, 1));
}

fn a_block_is_brought_back_ahead_of_its_hold(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 6 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    assert_eq!(pool.stats().spilled.current, 6 * MIB as u64);
    block.prefetch().unwrap();
    assert_eq!(pool.stats().spilled.current, 0);
    block.prefetch().unwrap();
    assert!(is_all(&block, &stream, 7));
}

fn nothing_goes_while_others_know_addresses_and_what_went_comes_back_first(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 6 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let table = pool.address_table().unwrap();
    assert_eq!(pool.stats().spilled.current, 0);
    assert!(
        pool.alloc(&stream, 6 * MIB as u64)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert!(is_all(&block, &stream, 7));
    drop(table);
    // Nor is host memory made for nothing.
    let (pool, host) = spilling(device, 8);
    let (_block, _table) = (filled(&pool, &stream, 7, 6 * MIB), pool.address_table());
    assert!(pool.alloc(&stream, 6 * MIB as u64).is_err());
    assert_eq!(host.stats().reserved.current, 0);
}

fn a_full_host_a_switch_and_a_sleeping_pool_leave_things_as_they_are(device: &Device) {
    let (pool, host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let blocks = [1, 2].map(|at| filled(&pool, &stream, at, 4 * MIB));
    let few = HostPool::new(device, HostPoolConfig::default().limit(MIB as u64));
    for spill in [Spill::Auto(&few), Spill::Never] {
        pool.set_spill(spill).unwrap();
        let outcome = pool.alloc(&stream, 4 * MIB as u64);
        assert!(outcome.unwrap_err().is_out_of_memory());
        assert_eq!(pool.stats().spilled.allocated, 0);
    }
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let taken = pool.alloc(&stream, 4 * MIB as u64).unwrap();
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    assert!(blocks[0].hold(&stream).is_err() && blocks[0].prefetch().is_err());
    pool.wake(&[]).unwrap();
    drop(taken);
    assert!(is_all(&blocks[0], &stream, 1) && is_all(&blocks[1], &stream, 2));
    whole(&pool);
}

fn a_copy_that_is_refused_brings_no_block_back(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let mut block = filled(&pool, &stream, 7, 4 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let away = || pool.stats().spilled.current;
    assert_eq!(away(), 4 * MIB as u64);
    let refused = block.upload(&stream, &[1; 5]).unwrap_err().to_string();
    assert!(refused.contains("data"), "{refused}");
    let capture = stream.begin_capture().unwrap();
    assert!(block.upload(&stream, &vec![1; 4 * MIB]).is_err());
    assert!(block.download(&stream).is_err());
    drop(capture);
    assert_eq!(away(), 4 * MIB as u64);
    assert!(is_all(&block, &stream, 7));
    assert_eq!(away(), 0);
    whole(&pool);
}

fn a_block_on_the_host_is_freed_on_no_stream_of_another_device(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 4 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let other = common::host();
    let refused = block.free_on(&other.stream().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("stream"), "{refused}");
    assert_eq!(pool.stats().spilled.current, 0);
    whole(&pool);
}

fn a_block_that_comes_back_elsewhere_tells_its_callback(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let block = filled(&pool, &stream, 7, 4 * MIB);
    let tells = Arc::clone(&told);
    block.on_move(move |it| tells.lock().unwrap().push((it.from, it.to)));
    let before = block.hold(&stream).unwrap().addr();
    let taken = [(); 2].map(|()| pool.alloc(&stream, 4 * MIB as u64).unwrap());
    let [_, second] = taken;
    drop(second);
    let after = block.hold(&stream).unwrap().addr();
    assert_eq!(*told.lock().unwrap(), [(before, after)]);
}

fn a_block_on_the_host_is_shrunk_there_whatever_room_the_whole_would_need(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let mut block = filled(&pool, &stream, 7, 6 * MIB);
    let fixed = pool.alloc(&stream, 6 * MIB as u64).unwrap();
    for len in [3 * MIB, MIB, MIB] {
        block.resize(&stream, len).unwrap();
        assert_eq!(pool.stats().spilled.current, len as u64);
    }
    assert!(
        block
            .resize(&stream, 3 * MIB)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert!(block.len() == MIB && is_all(&block, &stream, 7));
    assert_eq!(pool.stats().spilled.current, 0);
    drop((fixed, block));
    whole(&pool);
}

fn a_block_that_is_shrunk_while_it_comes_back_has_what_is_left_of_it(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 6 * MIB);
    let id = block.id();
    let fixed = pool.alloc(&stream, 6 * MIB as u64).unwrap();
    let both = Mutex::new((block, Some(fixed)));
    let both = Arc::new(both);
    let (own, from) = (Arc::downgrade(&both), stream.clone());
    pool.on_pressure(move |_| {
        let both = own.upgrade().unwrap();
        let mut both = both.lock().unwrap();
        both.0.resize(&from, MIB).unwrap();
        match both.1.take() {
            Some(_) => Relief::Retry,
            None => Relief::Exhausted,
        }
    });
    assert_eq!(pool.hold_id(id, &stream).unwrap().bytes(), MIB as u64);
    assert!(is_all(&both.lock().unwrap().0, &stream, 7));
    drop(both);
    whole(&pool);
}

fn addresses_of_more_than_the_device_holds_are_an_error_and_not_a_circle(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let blocks = [1, 2, 3].map(|at| filled(&pool, &stream, at, 4 * MIB));
    let refused = pool.address_table().map(drop).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    // Blocks go as before.
    for (block, value) in blocks.iter().zip(1..) {
        assert!(is_all(block, &stream, value));
    }
    let [first, ..] = blocks;
    drop(first);
    drop(pool.address_table().unwrap());
    whole(&pool);
}

fn a_block_whose_callback_pushes_it_out_each_time_cannot_be_held(device: &Device) {
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let block = filled(&pool, &stream, 7, 6 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let (again, from) = (pool.clone(), stream.clone());
    block.on_move(move |_| drop(again.alloc(&from, 6 * MIB as u64).unwrap()));
    let refused = block.hold(&stream).map(drop).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    block.on_move(|_| ());
    assert!(is_all(&block, &stream, 7));
    whole(&pool);
}

#[test]
fn a_block_whose_callback_pushes_it_out_each_time_cannot_be_resized() {
    let device = &common::host();
    let (pool, _host) = spilling(device, 8);
    let stream = device.stream().unwrap();
    let mut block = filled(&pool, &stream, 7, 6 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let (again, from) = (pool.clone(), stream.clone());
    block.on_move(move |_| drop(again.alloc(&from, 6 * MIB as u64).unwrap()));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let refused = block.resize(&stream, 7 * MIB).unwrap_err();
        block.on_move(|_| ());
        let _ = tell.send(refused.is_out_of_memory() && is_all(&block, &stream, 7));
    });
    let refused = told.recv_timeout(Duration::from_secs(120));
    assert_eq!(refused, Ok(true), "it is brought back without an end");
    whole(&pool);
}

/// The callback that the block calls when it comes back begins a capture, and one under pressure ends it.
#[test]
fn a_block_is_not_resized_into_the_memory_of_a_capture_that_begins_meanwhile() {
    let (pool, _host) = spilling(&common::host(), 8);
    let stream = pool.device().stream().unwrap();
    let mut block = filled(&pool, &stream, 7, 4 * MIB);
    drop(pool.alloc(&stream, 6 * MIB as u64).unwrap());
    let under_way = Arc::new(Mutex::new(None));
    let (its, from, on) = (under_way.clone(), pool.clone(), stream.clone());
    let first = AtomicBool::new(true);
    block.on_move(move |_| {
        if !first.swap(false, Ordering::Relaxed) {
            return;
        }
        let other = from.device().stream().unwrap();
        let behind = from.alloc(&other, 4 * MIB as u64).unwrap();
        *its.lock().unwrap() = Some((behind, on.begin_capture().unwrap()));
    });
    let (graph, its) = (Arc::new(Mutex::new(None)), under_way.clone());
    let ended = graph.clone();
    pool.on_pressure(move |_| match its.lock().unwrap().take() {
        Some((_behind, capture)) => {
            *ended.lock().unwrap() = Some(capture.end().unwrap());
            Relief::Retry
        }
        None => Relief::Exhausted,
    });
    let refused = block.resize(&stream, 5 * MIB).unwrap_err().to_string();
    assert!(refused.contains("capture"), "{refused}");
    assert!(graph.lock().unwrap().take().is_some(), "no capture ended");
    block.on_move(|_| ());
    assert!(is_all(&block, &stream, 7));
    block.resize(&stream, 5 * MIB).unwrap();
    pool.compact(&Goal::Full).unwrap();
    whole(&pool);
}

/// What is free beside the blocks would do for a block, and is no whole handle.
#[test]
fn blocks_go_for_a_growing_buffer_whatever_hole_there_is() {
    for mebibytes in [2, 4] {
        let device = &common::host();
        let all = 8 * MIB as u64;
        let config = PoolConfig::default().limit(all).preallocate(all);
        let pool = Pool::new(device, config.handles(HandleSize::UpTo(all))).unwrap();
        let host = HostPool::new(device, HostPoolConfig::default());
        pool.set_spill(Spill::Auto(&host)).unwrap();
        let stream = device.stream().unwrap();
        let block = filled(&pool, &stream, 7, 5 * MIB);
        let mut buffer = pool.grow_buf::<u8>(&stream, 8 * MIB).unwrap();
        buffer.resize(mebibytes * MIB).unwrap();
        assert_eq!(pool.stats().spilled.current, 5 * MIB as u64);
        drop(buffer);
        assert!(is_all(&block, &stream, 7));
        whole(&pool);
    }
}

/// The pool of host memory goes with the setting, and waits for a copy that is held up.
#[test]
fn a_setting_whose_host_memory_is_still_written_holds_no_block_up() {
    let device = &common::host();
    for next in [false, true] {
        let (pool, host) = spilling(device, 8);
        let streams = [(); 2].map(|()| device.stream().unwrap());
        let block = filled(&pool, &streams[0], 7, 6 * MIB);
        let gate = Gate::close(&streams[0]);
        drop(block.hold(&streams[0]).unwrap());
        let there = pool.alloc_movable::<u8>(&streams[1], 6 * MIB).unwrap();
        assert_eq!(pool.stats().spilled.current, 6 * MIB as u64);
        drop((block, host));
        let (tell, told) = mpsc::channel();
        let held = std::thread::scope(|scope| {
            let (pool, streams, there) = (&pool, &streams, &there);
            scope.spawn(move || match next {
                true => pool.set_spill(Spill::Auto(&HostPool::new(
                    device,
                    HostPoolConfig::default(),
                ))),
                false => pool.set_spill(Spill::Never),
            });
            std::thread::sleep(Duration::from_millis(50));
            scope.spawn(move || tell.send(there.hold(&streams[1]).is_ok()));
            let held = told.recv_timeout(Duration::from_secs(5));
            gate.open();
            held
        });
        assert_eq!(held, Ok(true), "a wait for copies holds all blocks up");
        whole(&pool);
    }
}

on_every_device! {
    twice_the_memory_is_used_in_turns_and_every_byte_is_right,
    what_is_spilled_comes_back_when_it_is_held_and_figures_say_so,
    what_is_held_stays_and_a_request_that_needs_it_fails,
    a_request_of_more_than_the_pool_may_hold_spills_nothing,
    the_block_that_was_not_held_for_longest_goes_first,
    a_block_is_brought_back_ahead_of_its_hold,
    nothing_goes_while_others_know_addresses_and_what_went_comes_back_first,
    a_full_host_a_switch_and_a_sleeping_pool_leave_things_as_they_are,
    a_copy_that_is_refused_brings_no_block_back,
    a_block_on_the_host_is_freed_on_no_stream_of_another_device,
    a_block_that_comes_back_elsewhere_tells_its_callback,
    a_block_on_the_host_is_shrunk_there_whatever_room_the_whole_would_need,
    a_block_that_is_shrunk_while_it_comes_back_has_what_is_left_of_it,
    addresses_of_more_than_the_device_holds_are_an_error_and_not_a_circle,
    a_block_whose_callback_pushes_it_out_each_time_cannot_be_held,
}

on_the_simulated_device! {
    twice_the_memory_is_used_in_turns_and_every_byte_is_right,
    what_is_spilled_comes_back_when_it_is_held_and_figures_say_so,
    what_is_held_stays_and_a_request_that_needs_it_fails,
    the_block_that_was_not_held_for_longest_goes_first,
    a_block_is_brought_back_ahead_of_its_hold,
    nothing_goes_while_others_know_addresses_and_what_went_comes_back_first,
    a_full_host_a_switch_and_a_sleeping_pool_leave_things_as_they_are,
    a_copy_that_is_refused_brings_no_block_back,
    a_block_on_the_host_is_freed_on_no_stream_of_another_device,
    a_block_that_comes_back_elsewhere_tells_its_callback,
    a_block_on_the_host_is_shrunk_there_whatever_room_the_whole_would_need,
    a_block_that_is_shrunk_while_it_comes_back_has_what_is_left_of_it,
}

#[test]
fn whatever_call_fails_no_byte_is_lost() {
    let mut injected = 0;
    let calls = [
        "copy_in",
        "copy_out",
        "host_alloc",
        "event_record",
        "event_wait",
        "create",
        "map",
    ];
    for (call, uses, for_ever) in calls
        .into_iter()
        .flat_map(|call| (1..6).map(move |uses| (call, uses)))
        .flat_map(|(call, uses)| [(call, uses, false), (call, uses, true)])
    {
        let (device, watched) = Watched::over(&common::host());
        let (pool, _host) = spilling(&device, 8);
        let stream = device.stream().unwrap();
        let mut blocks: Vec<_> = (0..3)
            .map(|at| filled(&pool, &stream, at, 4 * MIB))
            .collect();
        watched.fail(call, uses, for_ever);
        let mut errors = Vec::new();
        for round in 0..3 {
            errors.extend(pool.alloc(&stream, 4 * MIB as u64).err());
            errors.extend(blocks[round].hold(&stream).err());
            errors.extend(blocks[2 - round].prefetch().err());
            whole(&pool);
        }
        watched.heal();
        injected += watched.failures();
        for error in errors {
            let ours = matches!(
                error,
                Error::Driver {
                    code: MADE_TO_FAIL,
                    ..
                }
            );
            assert!(
                ours || error.is_out_of_memory(),
                "{call} {uses} {for_ever}: {error}"
            );
        }
        for (at, block) in (0..).zip(&blocks) {
            assert!(is_all(block, &stream, at), "{call} {uses} {for_ever}: {at}");
        }
        blocks.clear();
        assert_eq!(pool.stats().spilled.current, 0);
        whole(&pool);
    }
    assert!(injected > 30, "{injected}");
}

/// A step; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
enum Op {
    Alloc {
        stream: usize,
        len: usize,
    },
    Fill {
        block: usize,
        stream: usize,
        value: u8,
    },
    Read {
        block: usize,
        stream: usize,
    },
    /// Two at once, the one copied to the front of the other.
    Copy {
        from: usize,
        to: usize,
        stream: usize,
    },
    Resize {
        block: usize,
        stream: usize,
        len: usize,
    },
    Prefetch {
        block: usize,
    },
    Drop {
        block: usize,
    },
    Fixed {
        stream: usize,
        len: usize,
    },
    Compact,
}

fn op(rng: &mut Rng) -> Op {
    let mut below = |most: u64| rng.below(most) as usize;
    let (block, to, stream) = (below(1 << 20), below(1 << 20), below(3));
    let len = [below(5000), below(900_000), below(2_500_000)][below(3)] + 1;
    match below(16) {
        0..4 => Op::Alloc { stream, len },
        4..7 => Op::Fill {
            block,
            stream,
            value: below(256) as u8,
        },
        7..9 => Op::Read { block, stream },
        9..11 => Op::Copy {
            from: block,
            to,
            stream,
        },
        11 => Op::Resize { block, stream, len },
        12 => Op::Prefetch { block },
        13 => Op::Drop { block },
        14 => Op::Fixed { stream, len },
        _ => Op::Compact,
    }
}

/// What one must say of memory that is short; any other error is a fault.
fn or_full<T>(outcome: warpool::Result<T>) -> Result<Option<T>, String> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_out_of_memory() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Fills the elements from `from` on; false where there is no memory to hold them in.
fn fill(block: &mut Movable<u8>, stream: &Stream, value: u8, from: usize) -> Result<bool, String> {
    let Some(mut held) = or_full(block.hold_mut(stream))? else {
        return Ok(false);
    };
    let part = held.view_mut().slice(from..);
    let filled = part.and_then(|part| part.fill(stream, value));
    filled.map(|()| true).map_err(|error| error.to_string())
}

fn run(seed: u64, program: &[Op]) -> Result<(), String> {
    let device = Device::sim(&SimConfig::default().with_seed(seed)).map_err(|it| it.to_string())?;
    let watched = Sanitized::over(&device);
    let device = &watched.device;
    let (pool, _host) = spilling(device, 8);
    let streams: Vec<Stream> = (0..3).map(|_| device.stream().unwrap()).collect();
    let mut blocks: Vec<(Movable<u8>, Vec<u8>)> = Vec::new();
    let mut fixed = None;
    for &op in program {
        let count = blocks.len().max(1);
        let has = !blocks.is_empty();
        match op {
            Op::Alloc { stream, len } => {
                let made = or_full(pool.alloc_movable::<u8>(&streams[stream], len))?;
                let Some(mut block) = made else { continue };
                if fill(&mut block, &streams[stream], len as u8, 0)? {
                    blocks.push((block, vec![len as u8; len]));
                }
            }
            Op::Fill {
                block,
                stream,
                value,
            } if has => {
                let (block, data) = &mut blocks[block % count];
                if fill(block, &streams[stream], value, 0)? {
                    data.fill(value);
                }
            }
            Op::Read { block, stream } if has => {
                let (block, data) = &blocks[block % count];
                if or_full(block.download(&streams[stream]))?.is_some_and(|it| it != *data) {
                    return Err("a byte is wrong".into());
                }
            }
            Op::Copy { from, to, stream } if from % count != to % count => {
                let (stream, [(from, data), (to, changed)]) = (
                    &streams[stream],
                    blocks.get_disjoint_mut([from % count, to % count]).unwrap(),
                );
                let Some(source) = or_full(from.hold(stream))? else {
                    continue;
                };
                let Some(mut target) = or_full(to.hold_mut(stream))? else {
                    continue;
                };
                let len = data.len().min(changed.len());
                let (part, whole) = (source.view().slice(..len), target.view_mut().slice(..len));
                let copied = whole.unwrap().copy_from(stream, part.unwrap());
                copied.map_err(|it| it.to_string())?;
                changed[..len].copy_from_slice(&data[..len]);
            }
            Op::Resize { block, stream, len } if has => {
                let (at, stream) = (block % count, &streams[stream]);
                let (block, data) = &mut blocks[at];
                if or_full(block.resize(stream, len))?.is_some() {
                    // What was added has any value.
                    let added = data.len().min(len);
                    data.resize(len, 1);
                    if !fill(block, stream, 1, added)? {
                        drop(blocks.swap_remove(at));
                    }
                }
            }
            Op::Prefetch { block } if has => _ = or_full(blocks[block % count].0.prefetch())?,
            Op::Drop { block } if has => drop(blocks.swap_remove(block % count)),
            Op::Fixed { stream, len } => fixed = or_full(pool.alloc(&streams[stream], len as u64))?,
            Op::Compact => _ = pool.compact(&Goal::Full).map_err(|it| it.to_string())?,
            _ => {}
        }
        pool.check_invariants()?;
        watched.check()?;
    }
    drop(fixed);
    for (block, data) in &blocks {
        if block.download(&streams[0]).map_err(|it| it.to_string())? != *data {
            return Err("a byte is wrong at the end".into());
        }
    }
    drop((blocks, pool));
    watched.check()
}

#[test]
fn random_programs_in_less_memory_than_they_have_find_every_byte() {
    let test = "--test compact spill::random_programs";
    let program = |rng: &mut Rng| (0..60).map(|_| op(rng)).collect();
    let ran = hunt(test, cases(150), program, run);
    println!("{ran} programs");
}

#[test]
fn a_block_on_the_host_that_is_freed_keeps_nobody_waiting_but_whoever_frees_it() {
    let device = common::host();
    let (pool, host) = spilling(&device, 8);
    let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
    let first = filled(&pool, &stream, 1, 6 * MIB);
    let small = filled(&pool, &stream, 2, 1024);
    let gate = Gate::close(&stream);
    // Its copy to the host waits for the gate, and the last user of the host's memory for the copy.
    drop(small.hold(&stream).unwrap());
    drop(first.hold(&stream).unwrap());
    let second = pool.alloc_movable::<u8>(&stream, 6 * MIB).unwrap();
    assert_eq!(pool.stats().spilled.current, 6 * MIB as u64);
    pool.set_spill(Spill::Never).unwrap();
    drop(host);
    let freeing = std::thread::spawn(move || drop(first));
    let (tell, told) = mpsc::channel();
    let holding = std::thread::spawn(move || {
        // Long after the other has begun, and found that it has to wait.
        std::thread::sleep(Duration::from_millis(200));
        tell.send(small.hold(&other).is_ok()).unwrap();
        drop((small, second));
    });
    let held = told.recv_timeout(Duration::from_secs(20));
    gate.open();
    assert_eq!(held, Ok(true));
    freeing.join().unwrap();
    holding.join().unwrap();
}

/// What another thread does with a block that was chosen, while host memory is made for it.
type Meanwhile = fn(&Pool, &mut Movable<u8>, &Stream);

#[test]
fn a_block_stays_that_may_not_go_any_more_once_there_is_host_memory_for_it() {
    let is_held: Meanwhile = |pool, block, stream| {
        std::mem::forget(pool.hold_id(block.id(), stream).unwrap());
    };
    let is_larger: Meanwhile = |_, block, stream| block.resize(stream, 7 * MIB).unwrap();
    let is_known: Meanwhile = |pool, _, _| std::mem::forget(pool.address_table().unwrap());
    let is_over: Meanwhile = |pool, _, _| pool.set_spill(Spill::Never).unwrap();
    // The request looks again, and a larger block goes as it is by then.
    let all = [
        (is_held, false),
        (is_larger, true),
        (is_known, false),
        (is_over, false),
    ];
    for (meanwhile, goes) in all {
        let (device, watched) = Watched::over(&common::host());
        let (pool, _host) = spilling(&device, 8);
        let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
        // All memory is mapped, so that the block grows in place.
        drop(pool.alloc(&stream, 8 * MIB as u64).unwrap());
        let block = Arc::new(Mutex::new(filled(&pool, &stream, 1, 5 * MIB)));
        let (its, of) = (Arc::clone(&block), pool.clone());
        watched.after("before_host_alloc", move || {
            let work = move || meanwhile(&of, &mut its.lock().unwrap(), &other);
            std::thread::spawn(work).join().unwrap();
        });
        assert_eq!(pool.alloc(&stream, 6 * MIB as u64).is_ok(), goes);
        assert!(watched.was_hooked(), "no host memory is made");
        let found = block.lock().unwrap().download(&stream).unwrap();
        assert!(found[..5 * MIB].iter().all(|&byte| byte == 1));
        whole(&pool);
    }
}

#[test]
fn an_address_table_for_which_there_is_no_memory_spills_nothing_that_it_brings_back() {
    let granule = common::host().info().granule;
    let device = Device::host_with_capacity(16 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let stream = device.stream().unwrap();
    let rest = 16 * granule - pool.stats().overhead;
    let block = pool.alloc_movable::<u8>(&stream, rest as usize).unwrap();
    assert!(pool.address_table().is_err_and(|it| it.is_out_of_memory()));
    drop(block.hold(&stream).unwrap());
}

#[test]
fn a_request_that_spilling_serves_makes_no_figures() {
    let (device, watched) = Watched::over(&Device::host().unwrap());
    let (pool, host) = spilling(&device, 8);
    let stream = device.stream().unwrap();
    let blocks: Vec<Movable<u8>> = (0..12)
        .map(|value| filled(&pool, &stream, value, MIB))
        .collect();
    assert!(host.stats().allocated.current > 0, "some are on the host");
    // The figures of a failure, a walk over all blocks, ask the device what is free.
    let asked = watched.calls("free_bytes");
    let values = (0..).zip(&blocks);
    values.for_each(|(value, block)| assert!(is_all(block, &stream, value)));
    assert_eq!(watched.calls("free_bytes"), asked);
    assert!(pool.alloc(&stream, 9 << 20).is_err());
    assert!(watched.calls("free_bytes") > asked, "of this one");
}
