//! Movable memory, by the views of its guards.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::common::watched::Watched;
use super::common::{self, Gate, on_every_device};
use super::{LEN, World, assert_all, assert_untouched, gets_done, settle, to_half};
use half::f16;
use warpool::compact::Goal;
use warpool::{Device, Graph, Movable, PoolBuf, ResidentMut};

on_every_device! {
    a_block_moves_behind_what_other_streams_do_with_its_views,
    a_movable_block_is_freed_behind_what_other_streams_do_with_its_views,
    holds_on_two_streams_are_ordered,
    what_a_view_reads_is_read_behind_the_move,
    a_graph_that_was_given_a_view_holds_the_block,
    a_launch_during_a_hold_runs_behind_the_holders_own_work,
    each_launch_during_a_hold_runs_behind_the_holders_own_work,
    a_launch_after_a_hold_waits_for_nothing_that_the_holder_does_since,
    a_holders_own_work_behind_the_end_of_a_capture_runs_behind_what_it_was_to_wait_for,
    a_hold_by_id_holds_its_stream_whatever_capture_begins_and_ends_meanwhile,
    a_launch_during_a_hold_of_its_capture_runs_behind_the_holders_own_work,
    a_graph_of_a_guards_views_runs_behind_the_holders_own_work_also_if_the_guard_goes_under_capture,
    a_view_of_a_resized_block_is_ordered_as_the_block,
    parts_of_a_block_that_grew_keep_their_uses_apart,
    what_a_block_grew_by_is_used_behind_whoever_had_it,
    a_movable_block_in_memory_that_a_capture_had_used_before_is_ordered_with_its_launches,
}

/// A movable block of zeros behind a hole, so that it will move.
fn behind_a_hole(world: &World) -> Movable<f16> {
    let hole = world
        .pool
        .alloc_movable::<f16>(&world.home, 4 * LEN)
        .unwrap();
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    block.upload(&world.home, &[f16::ZERO; LEN]).unwrap();
    drop(hole);
    block
}

fn at(world: &World, block: &Movable<f16>) -> u64 {
    block.hold(&world.home).unwrap().addr()
}

fn a_block_moves_behind_what_other_streams_do_with_its_views(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = behind_a_hole(&world);
    let before = at(&world, &block);
    let gate = Gate::close(&world.other);
    let mut guard = block.hold_mut(&world.home).unwrap();
    to_half(&world.other, src.view(), guard.view_mut());
    drop(guard);
    world.pool.compact(&Goal::Full).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    gate.open();
    world.other.synchronize().unwrap();
    assert_ne!(at(&world, &block), before, "it did not move");
    assert_all(
        &block.download(&world.home).unwrap(),
        2.0,
        "moved too early",
    );
}

fn a_movable_block_is_freed_behind_what_other_streams_do_with_its_views(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    let (addr, bytes) = (at(&world, &block), 2 * LEN as u64);
    let gate = Gate::close(&world.other);
    let mut guard = block.hold_mut(&world.home).unwrap();
    to_half(&world.other, src.view(), guard.view_mut());
    drop(guard);
    drop(block);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn holds_on_two_streams_are_ordered(device: &Device) {
    let world = World::new(device);
    let (src, mut out) = (world.full(2.0), world.full(0.0));
    let mut block = behind_a_hole(&world);
    // By views, and by the address.
    for by_address in [false, true] {
        block.upload(&world.home, &[f16::ZERO; LEN]).unwrap();
        let gate = Gate::close(&world.other);
        let mut guard = block.hold_mut(&world.other).unwrap();
        if by_address {
            super::common::fill(&world.other, guard.addr(), 0x40, 2 * LEN as u64);
        } else {
            to_half(&world.other, src.view(), guard.view_mut());
        }
        drop(guard);
        let guard = block.hold(&world.third).unwrap();
        super::to_single(&world.third, guard.view(), out.view_mut());
        drop(guard);
        settle(&world.third);
        gate.open();
        world.third.synchronize().unwrap();
        let value = if by_address {
            f16::from_bits(0x4040).to_f32()
        } else {
            2.0
        };
        super::assert_singles(&out, value);
    }
}

fn what_a_view_reads_is_read_behind_the_move(device: &Device) {
    let world = World::new(device);
    let (src, mut out) = (world.full(2.0), world.full(0.0));
    let mut block = behind_a_hole(&world);
    let gate = Gate::close(&world.other);
    let mut guard = block.hold_mut(&world.other).unwrap();
    to_half(&world.other, src.view(), guard.view_mut());
    drop(guard);
    // Queued behind the gate.
    world.pool.compact(&Goal::Full).unwrap();
    // The guard's stream waits for the move; the stream that reads is another.
    let guard = block.hold(&world.home).unwrap();
    super::to_single(&world.third, guard.view(), out.view_mut());
    drop(guard);
    settle(&world.third);
    gate.open();
    world.third.synchronize().unwrap();
    super::assert_singles(&out, 2.0);
}

fn a_graph_that_was_given_a_view_holds_the_block(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = behind_a_hole(&world);
    let before = at(&world, &block);
    let mut guard = block.hold_mut(&world.home).unwrap();
    let capture = world.other.begin_capture().unwrap();
    to_half(&world.other, src.view(), guard.view_mut());
    let graph = capture.end().unwrap();
    drop(guard);
    world.pool.compact(&Goal::Full).unwrap();
    assert_eq!(at(&world, &block), before, "the graph's block moved");
    let gate = Gate::close(&world.third);
    graph.launch(&world.third).unwrap();
    drop(graph);
    world.pool.compact(&Goal::Full).unwrap();
    std::thread::sleep(Duration::from_millis(40));
    gate.open();
    world.third.synchronize().unwrap();
    assert_all(
        &block.download(&world.home).unwrap(),
        2.0,
        "moved under a launch",
    );
}

fn a_launch_during_a_hold_runs_behind_the_holders_own_work(device: &Device) {
    let world = World::new(device);
    let mut out = world.full(0.0);
    let mut block = behind_a_hole(&world);
    let graph = that_reads(&world, &block, &mut out);
    let guard = block.hold_mut(&world.home).unwrap();
    // Records there: what the holder does next has another tick than the hold.
    world.home.synchronize().unwrap();
    launched_while_the_holder_writes(&world, guard, &graph);
    super::assert_singles(&out, f16::from_bits(0x4040).to_f32());
}

/// The holder writes of its own accord, and `graph` is launched elsewhere before that is done.
fn launched_while_the_holder_writes(world: &World, guard: ResidentMut<'_, f16>, graph: &Graph) {
    let gate = Gate::close(&world.home);
    super::common::fill(&world.home, guard.addr(), 0x40, 2 * LEN as u64);
    graph.launch(&world.third).unwrap();
    settle(&world.third);
    gate.open();
    drop(guard);
    world.third.synchronize().unwrap();
}

/// A graph that reads `block` into `out`.
fn that_reads(world: &World, block: &Movable<f16>, out: &mut PoolBuf<f32>) -> Graph {
    let guard = block.hold(&world.home).unwrap();
    let capture = world.other.begin_capture().unwrap();
    super::to_single(&world.other, guard.view(), out.view_mut());
    capture.end().unwrap()
}

fn each_launch_during_a_hold_runs_behind_the_holders_own_work(device: &Device) {
    let world = World::new(device);
    let mut out = world.full(0.0);
    let mut block = behind_a_hole(&world);
    let graph = that_reads(&world, &block, &mut out);
    let guard = block.hold_mut(&world.home).unwrap();
    graph.launch(&world.third).unwrap();
    world.third.synchronize().unwrap();
    launched_while_the_holder_writes(&world, guard, &graph);
    super::assert_singles(&out, f16::from_bits(0x4040).to_f32());
}

fn a_launch_after_a_hold_waits_for_nothing_that_the_holder_does_since(device: &Device) {
    let world = World::new(device);
    let mut out = world.full(0.0);
    let mut block = behind_a_hole(&world);
    let graph = that_reads(&world, &block, &mut out);
    drop(block.hold_mut(&world.home).unwrap());
    // Records there.
    world.home.synchronize().unwrap();
    let gate = Gate::close(&world.home);
    graph.launch(&world.third).unwrap();
    let done = gets_done(&world.third);
    gate.open();
    assert!(done, "it waits for what came later");
}

fn a_view_of_a_resized_block_is_ordered_as_the_block(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = behind_a_hole(&world);
    for len in [LEN / 2, LEN, 3 * LEN, LEN] {
        let gate = Gate::close(&world.other);
        let mut guard = block.hold_mut(&world.home).unwrap();
        let count = block_len(&guard).min(LEN);
        let into = guard.view_mut().slice(..count).unwrap();
        to_half(&world.other, src.view().slice(..count).unwrap(), into);
        drop(guard);
        block.resize(&world.third, len).unwrap();
        settle(&world.third);
        gate.open();
        world.other.synchronize().unwrap();
        let found = block.download(&world.third).unwrap();
        let kept = len.min(count);
        assert_all(&found[..kept], 2.0, "copied too early");
    }
}

fn parts_of_a_block_that_grew_keep_their_uses_apart(device: &Device) {
    let world = World::new(device);
    let (src, mut out) = (world.full(2.0), world.full(0.0));
    let mut block = behind_a_hole(&world);
    block.resize(&world.home, 2 * LEN).unwrap();
    let len = LEN;
    let mut guard = block.hold_mut(&world.home).unwrap();
    let gate = Gate::close(&world.other);
    let added = guard.view_mut().slice(len..2 * len).unwrap();
    to_half(&world.other, src.view(), added);
    // What was there before it grew, and no use of what was added.
    let first = guard.view_mut().slice(..len).unwrap();
    to_half(&world.third, src.view(), first);
    assert!(
        gets_done(&world.third),
        "the first part waits for the other"
    );
    let added = guard.view().slice(len..2 * len).unwrap();
    super::to_single(&world.home, added, out.view_mut());
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    super::assert_singles(&out, 2.0);
}

fn what_a_block_grew_by_is_used_behind_whoever_had_it(device: &Device) {
    let world = World::new(device);
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    let next = world.pool.alloc(&world.home, 2 * LEN as u64).unwrap();
    let addr = at(&world, &block);
    assert!(
        (1..1024).contains(&(next.addr() - addr - 2 * LEN as u64)),
        "apart"
    );
    world.home.synchronize().unwrap();
    let gate = Gate::close(&world.other);
    super::common::fill(&world.other, next.addr(), 0x5A, next.bytes());
    next.free_on(&world.other).unwrap();
    block.resize(&world.home, LEN + LEN / 2).unwrap();
    let guard = block.hold(&world.third).unwrap();
    assert_eq!(guard.addr(), addr, "it grew elsewhere");
    super::common::fill(&world.third, addr, 0x40, 3 * LEN as u64);
    drop(guard);
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    let found = block.download(&world.third).unwrap();
    assert_all(&found, f16::from_bits(0x4040).to_f32(), "used too early");
}

fn block_len(guard: &warpool::Resident<'_, f16>) -> usize {
    guard.view().len()
}

/// By itself: the block is never given back.
#[test]
fn a_forgotten_guard_holds_its_block_for_ever() {
    let world = World::new(&super::common::host());
    let src = world.full(2.0);
    let mut block = behind_a_hole(&world);
    let mut guard = block.hold_mut(&world.home).unwrap();
    let addr = guard.addr();
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), guard.view_mut());
    std::mem::forget(guard);
    world.pool.compact(&Goal::Full).unwrap();
    assert_eq!(at(&world, &block), addr, "it moved");
    assert!(block.resize(&world.home, 1).is_err());
    drop(block);
    let blocks: Vec<_> = (0..64)
        .map(|_| world.pool.alloc(&world.home, 2 * LEN as u64).unwrap())
        .collect();
    assert!(
        blocks.iter().all(|block| block.addr() != addr),
        "it was freed"
    );
    gate.open();
    world.other.synchronize().unwrap();
}

fn a_holders_own_work_behind_the_end_of_a_capture_runs_behind_what_it_was_to_wait_for(
    device: &Device,
) {
    let world = World::new(device);
    let (src, dst) = (world.full(2.0), world.halves());
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    // The allocation is nothing to wait for then.
    world.third.wait_stream(&world.home).unwrap();
    let gate = Gate::close(&world.other);
    let mut guard = block.hold_mut(&world.home).unwrap();
    to_half(&world.other, src.view(), guard.view_mut());
    drop(guard);
    let capture = world.third.begin_capture().unwrap();
    let held = block.hold(&world.third).unwrap();
    let graph = capture.end().unwrap();
    common::copy(&world.third, dst.addr(), held.addr(), 2 * LEN as u64);
    settle(&world.third);
    gate.open();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "read too early");
    drop((held, graph));
}

fn a_graph_of_a_guards_views_runs_behind_the_holders_own_work_also_if_the_guard_goes_under_capture(
    device: &Device,
) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    let mut held = block.hold_mut(&world.home).unwrap();
    let capture = world.other.begin_capture().unwrap();
    to_half(&world.other, src.view(), held.view_mut());
    let graph = capture.end().unwrap();
    let gate = Gate::close(&world.home);
    common::fill(&world.home, held.addr(), 0x5A, 2 * LEN as u64);
    let capture = world.home.begin_capture().unwrap();
    drop(held);
    graph.launch(&world.third).unwrap();
    drop(capture.end().unwrap());
    settle(&world.third);
    gate.open();
    world.home.synchronize().unwrap();
    assert_all(
        &block.download(&world.home).unwrap(),
        2.0,
        "the launch came first",
    );
    drop(graph);
}

fn a_hold_by_id_holds_its_stream_whatever_capture_begins_and_ends_meanwhile(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let gate = Gate::close(&world.other);
    let block = world.pool.alloc_movable::<f16>(&world.other, LEN).unwrap();
    let ((tell, told), home) = (mpsc::channel(), world.home.clone());
    watched.after("event_record", move || {
        let begins = thread::spawn(move || tell.send(home.begin_capture().unwrap()).unwrap());
        begins.join().unwrap();
    });
    let held = world.pool.hold_id(block.id(), &world.home).unwrap();
    let graph = told.recv().unwrap().end().unwrap();
    let waits = common::is_held(&world.home);
    gate.open();
    assert!(waits, "its next work would run ahead of the allocation");
    drop((held, graph));
}

fn a_launch_during_a_hold_of_its_capture_runs_behind_the_holders_own_work(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    let capture = world.other.begin_capture().unwrap();
    let mut held = block.hold_mut(&world.other).unwrap();
    to_half(&world.other, src.view(), held.view_mut());
    let graph = capture.end().unwrap();
    let gate = Gate::close(&world.other);
    common::fill(&world.other, held.addr(), 0x5A, 2 * LEN as u64);
    graph.launch(&world.third).unwrap();
    settle(&world.third);
    gate.open();
    drop(held);
    assert_all(
        &block.download(&world.home).unwrap(),
        2.0,
        "the launch came first",
    );
    drop(graph);
}

fn a_movable_block_in_memory_that_a_capture_had_used_before_is_ordered_with_its_launches(
    device: &Device,
) {
    let world = World::new(device);
    let (src, twos) = (world.full(1.5), world.full(2.0));
    let capture = world.home.begin_capture().unwrap();
    let mut before = world.pool.alloc_typed::<f16>(&world.home, LEN).unwrap();
    to_half(&world.home, src.view(), before.view_mut());
    let addr = before.addr();
    drop(before);
    let mut block = world.pool.alloc_movable::<f16>(&world.home, LEN).unwrap();
    let graph = capture.end().unwrap();
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    let mut guard = block.hold_mut(&world.third).unwrap();
    assert_eq!(guard.addr(), addr, "it has other bytes");
    to_half(&world.third, twos.view(), guard.view_mut());
    drop(guard);
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    let left = block.download(&world.home).unwrap();
    assert_all(&left, 2.0, "the launch came last");
}
