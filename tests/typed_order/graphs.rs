//! Work captured into graphs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::common::watched::Watched;
use super::common::{self, BackendOf, Gate, on_every_device};
use super::{LEN, World, assert_all, assert_singles, assert_untouched, settle, to_half, to_single};
use half::f16;
use warpool::convert::{ConvertTable, GradScaler, Gradients, Rounding, ScalerConfig, convert};
use warpool::device::Graph;
use warpool::{Block, Device, PoolBuf};

on_every_device! {
    a_graph_keeps_the_buffers_of_its_work,
    a_launch_of_a_graph_is_a_use_of_its_buffers,
    a_launch_runs_behind_what_other_streams_did_since_the_capture,
    two_graphs_that_use_the_same_bytes_run_one_after_the_other,
    a_graph_captured_while_another_runs_is_launched_behind_it,
    a_buffer_of_a_graph_that_is_converted_in_place_keeps_all_of_its_memory,
    a_buffer_of_a_graphs_own_memory_is_converted_in_place,
    a_buffer_that_outlives_its_graph_is_freed_behind_the_last_launch,
    a_buffer_of_two_graphs_is_freed_behind_both,
    streams_of_one_capture_wait_for_each_other_where_they_must,
    a_graph_keeps_captured_tables_and_scalers,
    work_beside_a_capture_does_not_wait_for_it,
    launches_of_another_thread_do_not_come_into_a_kernel,
    a_launch_that_the_driver_keeps_holds_up_no_other_graph,
    a_wait_of_a_launch_or_of_work_on_its_memory_holds_up_no_other_graph,
    a_launch_whose_wait_is_refused_leaves_the_launch_before_to_be_waited_for,
    work_whose_wait_is_refused_holds_up_no_launch,
    work_on_memory_of_a_graph_comes_behind_a_launch_that_the_driver_keeps,
    memory_of_the_graph_itself_is_ordered_too,
    memory_that_a_capture_had_used_before_is_ordered_with_its_launches,
    work_on_a_stream_whose_capture_is_announced_runs_behind_an_event,
    streams_that_come_and_go_leave_nothing_at_a_graph_that_is_not_launched,
}

/// A graph that converts `src` into `dst`, captured from the home stream.
fn down(world: &World, src: &PoolBuf<f32>, dst: &mut PoolBuf<f16>) -> Graph {
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    capture.end().unwrap()
}

fn a_graph_keeps_the_buffers_of_its_work(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let capture = world.other.begin_capture().unwrap();
    to_half(&world.other, src.view(), dst.view_mut());
    let graph = capture.end().unwrap();
    drop((src, dst));
    let next = world.pool.alloc(&world.home, bytes).unwrap();
    assert_ne!(next.addr(), addr, "the graph's memory was handed out");
    super::common::fill(&world.home, next.addr(), 0x5A, bytes);
    graph.launch(&world.other).unwrap();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
    drop(graph);
    world.home.synchronize().unwrap();
}

fn a_launch_of_a_graph_is_a_use_of_its_buffers(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let graph = capture.end().unwrap();
    let twos = world.full(2.0);
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    to_half(&world.third, twos.view(), dst.view_mut());
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the launch came last");
}

fn a_launch_that_the_driver_keeps_holds_up_no_other_graph(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, mut dst, mut far) = (world.full(1.5), world.halves(), world.halves());
    let graph = down(&world, &src, &mut dst);
    let (other, third) = (
        down(&world, &world.full(2.0), &mut far),
        world.third.clone(),
    );
    let launched = Arc::new(Mutex::new(None));
    let its = Arc::clone(&launched);
    watched.after("before_graph_launch", move || {
        let (tell, told) = mpsc::channel();
        // The thread ends when it likes, and keeps nothing.
        std::thread::spawn(move || tell.send((other.launch(&third), (other, third))));
        *its.lock().unwrap() = told.recv_timeout(Duration::from_secs(5)).ok();
    });
    graph.launch(&world.other).unwrap();
    assert!(watched.was_hooked(), "nothing is launched");
    let (launched, _kept) = (launched.lock().unwrap().take()).expect("it holds the turn");
    launched.unwrap();
    assert_all(&far.download().unwrap(), 2.0, "the other graph's");
    assert_all(&dst.download().unwrap(), 1.5, "its own");
}

/// Has `hook` called right before the `nth` wait from now on.
fn before_wait(watched: &Arc<Watched>, nth: u64, hook: impl FnOnce() + Send + 'static) {
    let again = Arc::clone(watched);
    let hook: Box<dyn FnOnce() + Send> = match nth {
        1 => Box::new(hook),
        _ => Box::new(move || before_wait(&again, nth - 1, hook)),
    };
    watched.after("before_event_wait", hook);
}

fn a_wait_of_a_launch_or_of_work_on_its_memory_holds_up_no_other_graph(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (mut src, mut dst, mut far) = (world.full(1.5), world.halves(), world.halves());
    let (threes, twos) = (world.halves(), world.full(2.0));
    let graph = down(&world, &src, &mut dst);
    let other = Arc::new(down(&world, &twos, &mut far));
    let (launched, fourth) = (Arc::new(AtomicU64::new(0)), device.stream().unwrap());
    let launches = |nth| {
        let (its, other, fourth) = (Arc::clone(&launched), Arc::clone(&other), fourth.clone());
        before_wait(&watched, nth, move || {
            let (tell, told) = mpsc::channel();
            let launch = move || tell.send(other.launch(&fourth).is_ok());
            let launcher = std::thread::spawn(launch);
            if told.recv_timeout(Duration::from_secs(5)) == Ok(true) {
                launcher.join().unwrap().unwrap();
                its.fetch_add(1, Ordering::Relaxed);
            }
        });
    };
    to_single(&world.third, threes.view(), src.view_mut());
    // The first is for what the graph keeps.
    launches(2);
    graph.launch(&world.other).unwrap();
    assert!(watched.was_hooked(), "the launch waits for nothing");
    assert_eq!(launched.load(Ordering::Relaxed), 1, "a launch holds it up");
    launches(1);
    to_single(&world.third, threes.view(), src.view_mut());
    assert!(watched.was_hooked(), "the work waits for nothing");
    assert_eq!(launched.load(Ordering::Relaxed), 2, "work holds it up");
    fourth.synchronize().unwrap();
    assert_all(&far.download().unwrap(), 2.0, "the other graph's");
    assert_all(&dst.download().unwrap(), 0.0, "its own");
}

fn a_launch_whose_wait_is_refused_leaves_the_launch_before_to_be_waited_for(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, twos, mut dst) = (world.full(1.5), world.full(2.0), world.halves());
    let graph = down(&world, &src, &mut dst);
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    // The first is for what the graph keeps.
    watched.fail("event_wait", 2, false);
    graph.launch(&world.third).unwrap_err();
    to_half(&world.home, twos.view(), dst.view_mut());
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the launch came last");
}

fn work_whose_wait_is_refused_holds_up_no_launch(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, twos, mut dst) = (world.full(1.5), world.full(2.0), world.halves());
    let graph = down(&world, &src, &mut dst);
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    watched.fail("event_wait", 1, false);
    let refused = convert(&world.third, twos.view(), dst.view_mut(), Rounding::Nearest);
    refused.unwrap_err();
    gate.open();
    let (tell, told) = mpsc::channel();
    let third = world.third.clone();
    let launcher = std::thread::spawn(move || tell.send(graph.launch(&third).is_ok()));
    let launched = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(launched, Ok(true), "it waits for what was refused");
    launcher.join().unwrap().unwrap();
}

fn work_on_memory_of_a_graph_comes_behind_a_launch_that_the_driver_keeps(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, twos, mut dst) = (world.full(1.5), world.full(2.0), world.halves());
    let graph = down(&world, &src, &mut dst);
    let (gate, third) = (Gate::close(&world.other), world.third.clone());
    let writes = Arc::new(Mutex::new(None));
    let its = Arc::clone(&writes);
    watched.after("before_graph_launch", move || {
        let writer = std::thread::spawn(move || {
            to_half(&third, twos.view(), dst.view_mut());
            dst
        });
        std::thread::sleep(Duration::from_millis(50));
        *its.lock().unwrap() = Some(writer);
    });
    graph.launch(&world.other).unwrap();
    let writer = writes.lock().unwrap().take().unwrap();
    let dst = writer.join().unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the launch came last");
}

fn a_launch_runs_behind_what_other_streams_did_since_the_capture(device: &Device) {
    let world = World::new(device);
    let (mut src, mut dst, mut fives) = (world.full(1.5), world.halves(), world.halves());
    fives.upload(&[f16::from_f32(5.0); LEN]).unwrap();
    let graph = down(&world, &src, &mut dst);
    for _ in 0..2 {
        let gate = Gate::close(&world.third);
        to_single(&world.third, fives.view(), src.view_mut());
        graph.launch(&world.other).unwrap();
        settle(&world.other);
        gate.open();
        world.other.synchronize().unwrap();
        assert_all(&dst.download().unwrap(), 5.0, "launched too early");
        src.upload(&[1.5; LEN]).unwrap();
    }
}

fn two_graphs_that_use_the_same_bytes_run_one_after_the_other(device: &Device) {
    let world = World::new(device);
    let (ones, twos, mut dst) = (world.full(1.0), world.full(2.0), world.halves());
    let graphs = [down(&world, &ones, &mut dst), down(&world, &twos, &mut dst)];
    for (first, second, value) in [(0, 1, 2.0), (1, 0, 1.0)] {
        let gate = Gate::close(&world.other);
        graphs[first].launch(&world.other).unwrap();
        graphs[second].launch(&world.third).unwrap();
        settle(&world.third);
        gate.open();
        world.other.synchronize().unwrap();
        world.third.synchronize().unwrap();
        assert_all(&dst.download().unwrap(), value, "the first came last");
    }
}

fn a_graph_captured_while_another_runs_is_launched_behind_it(device: &Device) {
    let world = World::new(device);
    let (ones, twos, mut dst) = (world.full(1.0), world.full(2.0), world.halves());
    let one = down(&world, &ones, &mut dst);
    let gate = Gate::close(&world.other);
    one.launch(&world.other).unwrap();
    let two = down(&world, &twos, &mut dst);
    two.launch(&world.third).unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the first came last");
}

fn a_buffer_of_a_graph_that_is_converted_in_place_keeps_all_of_its_memory(device: &Device) {
    let world = World::new(device);
    let (halves, mut singles) = (world.halves(), world.full(1.5));
    let capture = world.other.begin_capture().unwrap();
    to_single(&world.other, halves.view(), singles.view_mut());
    let graph = capture.end().unwrap();
    // Half as wide, but a launch writes all of it.
    let half = singles.convert_in_place::<f16>(Rounding::Nearest).unwrap();
    let blocks: Vec<_> = (0..8)
        .map(|_| {
            world
                .pool
                .alloc(&world.home, 2 * LEN as u64 - 1024)
                .unwrap()
        })
        .collect();
    for block in &blocks {
        common::fill(&world.home, block.addr(), 0x5A, block.bytes());
    }
    world.home.synchronize().unwrap();
    graph.launch(&world.other).unwrap();
    world.other.synchronize().unwrap();
    blocks
        .iter()
        .for_each(|block| assert_untouched(&world.home, block));
    drop(half);
}

/// What a conversion in place needs besides the buffer comes from the stream's memory, whichever that is by then.
fn a_buffer_of_a_graphs_own_memory_is_converted_in_place(device: &Device) {
    for under_capture in [true, false] {
        let world = World::new(device);
        let full = world.full(1.5);
        let capture = world.home.begin_capture().unwrap();
        let mut singles = world.pool.alloc_typed::<f32>(&world.home, LEN).unwrap();
        singles.view_mut().copy_from(&world.home, &full).unwrap();
        let convert = |it: PoolBuf<f32>| it.convert_in_place::<f16>(Rounding::Nearest).unwrap();
        let (graph, halves) = match under_capture {
            true => {
                let halves = convert(singles);
                let graph = capture.end().unwrap();
                graph.launch(&world.home).unwrap();
                (graph, halves)
            }
            false => {
                let graph = capture.end().unwrap();
                graph.launch(&world.home).unwrap();
                (graph, convert(singles))
            }
        };
        drop(graph);
        // Nobody else has the memory, now that only the buffer does.
        let others: Vec<_> = (0..64)
            .map(|_| world.pool.alloc(&world.home, 4 * LEN as u64).unwrap())
            .collect();
        for other in &others {
            common::fill(&world.home, other.addr(), 0x5A, other.bytes());
        }
        assert_all(&halves.download().unwrap(), 1.5, "not converted");
        drop((full, halves, others));
        world.pool.check_invariants().unwrap();
        assert_eq!(world.pool.stats().allocated.current, 0);
    }
}

fn a_buffer_that_outlives_its_graph_is_freed_behind_the_last_launch(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let graph = down(&world, &src, &mut dst);
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    drop(graph);
    drop(dst);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_buffer_of_two_graphs_is_freed_behind_both(device: &Device) {
    let world = World::new(device);
    let (ones, twos, mut dst) = (world.full(1.0), world.full(2.0), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let (one, two) = (down(&world, &ones, &mut dst), down(&world, &twos, &mut dst));
    drop(dst);
    drop(one);
    let early = world.pool.alloc(&world.home, bytes).unwrap();
    assert_ne!(early.addr(), addr, "the second graph has it");
    let gate = Gate::close(&world.other);
    two.launch(&world.other).unwrap();
    drop(two);
    let next = world.pool.alloc(&world.home, bytes).unwrap();
    common::fill(&world.home, next.addr(), 0x5A, bytes);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn streams_of_one_capture_wait_for_each_other_where_they_must(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, mut middle, mut last) = (world.full(2.5), world.halves(), world.full(0.0));
    let capture = world.home.begin_capture().unwrap();
    world.other.wait_stream(&world.home).unwrap();
    to_half(&world.home, src.view(), middle.view_mut());
    let waits = watched.calls("event_wait");
    to_single(&world.other, middle.view(), last.view_mut());
    assert_eq!(
        watched.calls("event_wait") - waits,
        1,
        "edges of the capture"
    );
    world.home.wait_stream(&world.other).unwrap();
    let graph = capture.end().unwrap();
    graph.launch(&world.third).unwrap();
    assert_singles(&last, 2.5);
}

fn a_graph_keeps_captured_tables_and_scalers(device: &Device) {
    let world = World::new(device);
    let (src, mut dst, mut values) = (world.full(1.5), world.halves(), world.full(4.0));
    let (config, on) = (ScalerConfig::default(), &world.home);
    let mut scaler = GradScaler::new(&world.pool, on, config).unwrap();
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(&world.pool, on, pairs).unwrap();
    let tensors = vec![values.view_mut()];
    let mut gradients = Gradients::new(&world.pool, on, tensors).unwrap();
    let capture = world.other.begin_capture().unwrap();
    table.convert(&world.other, Rounding::Nearest).unwrap();
    scaler.unscale(&world.other, &mut gradients).unwrap();
    scaler.update(&world.other).unwrap();
    let graph = capture.end().unwrap();
    drop((table, gradients, scaler));
    let _next = world.small_blocks();
    // Tensors are ordered with the launches although their tables are gone.
    let gate = Gate::close(&world.third);
    graph.launch(&world.third).unwrap();
    let twos = world.full(2.0);
    to_half(&world.other, twos.view(), dst.view_mut());
    settle(&world.other);
    gate.open();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the launch came last");
    assert_singles(&values, 4.0 / 65536.0);
    drop((src, dst, values));
    let blocks: Vec<_> = (0..8)
        .map(|_| world.pool.alloc(&world.home, 4 * LEN as u64).unwrap())
        .collect();
    for block in &blocks {
        common::fill(&world.home, block.addr(), 0x5A, block.bytes());
    }
    graph.launch(&world.other).unwrap();
    world.other.synchronize().unwrap();
    blocks
        .iter()
        .for_each(|block| assert_untouched(&world.home, block));
}

fn work_beside_a_capture_does_not_wait_for_it(device: &Device) {
    let world = World::new(device);
    let (mut src, mut dst, ones) = (world.full(1.5), world.halves(), world.halves());
    let capture = world.other.begin_capture().unwrap();
    to_half(&world.other, src.view(), dst.view_mut());
    // The captured work runs with the launches, so the buffers are free for others now.
    to_single(&world.third, ones.view(), src.view_mut());
    src.upload(&[7.0; LEN]).unwrap();
    assert_all(&dst.download().unwrap(), 0.0, "nothing was launched");
    let graph = capture.end().unwrap();
    graph.launch(&world.third).unwrap();
    assert_all(&dst.download().unwrap(), 7.0, "as it is at the launch");
}

fn launches_of_another_thread_do_not_come_into_a_kernel(device: &Device) {
    let device = &common::for_threads(device);
    let world = World::new(device);
    let (mut src, mut dst) = (world.full(0.0), world.halves());
    let graph = down(&world, &src, &mut dst);
    let (addr, half) = (src.addr(), 2 * LEN as u64);
    let rounds = common::rounds(200) as u8;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                // The bytes of 2.0 and its like: every float of them is a half.
                let byte = 0x40 + round % 2;
                let kernel = world.third.kernel("two fills").writes(src.view_mut());
                let launch = kernel.launch(|stream| {
                    common::fill(stream, addr, byte, half);
                    std::thread::yield_now();
                    common::fill(stream, addr + half, byte, half);
                });
                launch.unwrap();
            }
        });
        for _ in 0..rounds {
            graph.launch(&world.other).unwrap();
            let found = dst.download().unwrap();
            let first = found[0];
            let other = found.iter().filter(|&&x| x != first).count();
            assert_eq!(other, 0, "launched between the two fills");
        }
    });
}

fn memory_of_the_graph_itself_is_ordered_too(device: &Device) {
    let world = World::new(device);
    let (src, mut out) = (world.full(1.5), world.full(0.0));
    let capture = world.home.begin_capture().unwrap();
    let mut own = world.pool.alloc_typed::<f16>(&world.home, LEN).unwrap();
    to_half(&world.home, src.view(), own.view_mut());
    let graph = capture.end().unwrap();
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    to_single(&world.third, own.view(), out.view_mut());
    settle(&world.third);
    gate.open();
    world.third.synchronize().unwrap();
    assert_singles(&out, 1.5);
    drop(graph);
    assert_all(&own.download().unwrap(), 1.5, "held beyond the graph");
}

/// No captured work uses the buffer, but bytes that it has now.
fn memory_that_a_capture_had_used_before_is_ordered_with_its_launches(device: &Device) {
    let world = World::new(device);
    let (src, twos, mut out) = (world.full(1.5), world.full(2.0), world.full(0.0));
    let capture = world.home.begin_capture().unwrap();
    let mut before = world.pool.alloc_typed::<f16>(&world.home, LEN).unwrap();
    to_half(&world.home, src.view(), before.view_mut());
    to_single(&world.home, before.view(), out.view_mut());
    let addr = before.addr();
    drop(before);
    let mut buffer = world.pool.alloc_typed::<f16>(&world.home, LEN).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(buffer.addr(), addr, "it has other bytes");
    let gate = Gate::close(&world.other);
    graph.launch(&world.other).unwrap();
    to_half(&world.third, twos.view(), buffer.view_mut());
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&buffer.download().unwrap(), 2.0, "the launch came last");
    let gate = Gate::close(&world.third);
    to_half(&world.third, twos.view(), buffer.view_mut());
    graph.launch(&world.other).unwrap();
    settle(&world.other);
    gate.open();
    world.third.synchronize().unwrap();
    assert_all(&buffer.download().unwrap(), 1.5, "the launch came first");
    assert_singles(&out, 1.5);
}

/// The library that was to capture the stream has not begun, so the work runs.
fn work_on_a_stream_whose_capture_is_announced_runs_behind_an_event(device: &Device) {
    let world = World::new(device);
    let memory = world.pool.alloc(&world.home, 64).unwrap();
    world.home.synchronize().unwrap();
    let event = device.event().unwrap();
    let gate = Gate::close(&world.other);
    super::common::fill(&world.other, memory.addr(), 1, 64);
    event.record(&world.other).unwrap();
    let mut noted = world.home.note_capture().unwrap();
    world.home.wait(&event).unwrap();
    super::common::fill(&world.home, memory.addr(), 2, 64);
    std::thread::sleep(Duration::from_millis(20));
    gate.open();
    drop(noted.end().unwrap());
    assert_eq!(super::common::read(&world.home, memory.addr(), 64), [2; 64]);
}

#[test]
fn work_whose_stream_is_announced_for_a_capture_amid_its_waits_runs_behind_what_it_needs() {
    let (device, watched) = Watched::over(&common::host());
    let world = World::new(&device);
    let (from, mut src, mut dst) = (world.full(1.5), world.full(0.0), world.halves());
    let gate = Gate::close(&world.other);
    src.view_mut().copy_from(&world.other, &from).unwrap();
    let (home, (tell, told)) = (world.home.clone(), mpsc::channel());
    watched.after("event_record", move || {
        tell.send(home.note_capture().unwrap()).unwrap();
    });
    to_half(&world.home, src.view(), dst.view_mut());
    std::thread::sleep(Duration::from_millis(20));
    gate.open();
    drop(told.recv().unwrap().end().unwrap());
    assert_all(&dst.download().unwrap(), 1.5, "before what it needs");
}

/// Blocks of whatever memory is free, filled as [`assert_untouched`] expects.
fn next_owners(world: &World, bytes: u64) -> Vec<Block> {
    let one = |_| {
        let block = world.pool.alloc(&world.home, bytes).unwrap();
        super::common::fill(&world.home, block.addr(), 0x5A, bytes);
        block
    };
    let next = (0..64).map(one).collect();
    settle(&world.home);
    next
}

#[test]
fn a_buffer_is_freed_behind_work_that_ends_as_a_capture_of_its_stream_begins() {
    let (device, watched) = Watched::over(&common::host());
    let world = World::new(&device);
    let mut used = world.halves();
    let (other, bytes) = (world.other.clone(), used.block().bytes());
    let ((begin, begun), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let ((end, ended), (tell, told)) = (mpsc::channel(), mpsc::channel());
    watched.after("before_fill", move || {
        begin.send(()).unwrap();
        goes.recv().unwrap();
    });
    let capture = std::thread::scope(|scope| {
        scope.spawn(|| {
            let filled = used.view_mut().fill(&world.other, f16::from_bits(0x3C3C));
            end.send(()).unwrap();
            filled.unwrap();
        });
        begun.recv().unwrap();
        // The mark of what the stream was given before the capture is made, and the driver has not begun.
        watched.after("event_record", move || {
            tell.send(Gate::close(&other)).unwrap();
            go.send(()).unwrap();
            ended.recv().unwrap();
        });
        world.other.begin_capture().unwrap()
    });
    drop(used);
    let next = next_owners(&world, bytes);
    told.recv().unwrap().open();
    drop(capture.end().unwrap());
    world.other.synchronize().unwrap();
    for block in &next {
        assert_untouched(&world.home, block);
    }
}

#[test]
fn a_buffer_is_freed_behind_work_of_a_stream_that_was_to_join_a_graph_that_is_gone() {
    let (device, watched) = Watched::over(&common::host());
    let world = World::new(&device);
    let (mut used, from, mut to) = (world.halves(), world.full(1.5), world.full(0.0));
    let bytes = used.block().bytes();
    let (begin, begun) = mpsc::channel();
    let ((fill, fills), (copy, copies)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let capture = world.third.begin_capture().unwrap();
    let next = std::thread::scope(|scope| {
        let is_in = begin.clone();
        watched.after("before_fill", move || {
            is_in.send(()).unwrap();
            let _ = fills.recv();
        });
        let filled = scope.spawn(|| {
            let value = f16::from_bits(0x3C3C);
            used.view_mut().fill(&world.other, value).unwrap();
            used
        });
        begun.recv().unwrap();
        let is_in = begin.clone();
        watched.after("before_copy_within", move || {
            is_in.send(()).unwrap();
            let _ = copies.recv();
        });
        scope.spawn(|| to.view_mut().copy_from(&world.other, &from).unwrap());
        begun.recv().unwrap();
        watched.after("event_wait", move || begin.send(()).unwrap());
        // It is about to join, and waits for the copy.
        scope.spawn(|| world.other.wait_stream(&world.third).unwrap_err());
        begun.recv().unwrap();
        let gate = Gate::close(&world.other);
        drop(fill);
        let used = filled.join().unwrap();
        let (gone, is_gone) = mpsc::channel();
        scope.spawn(move || {
            drop(capture.end().unwrap());
            let _ = gone.send(());
        });
        // The graph may stay until the stream has joined it or not.
        let _ = is_gone.recv_timeout(Duration::from_millis(100));
        drop(used);
        let next = next_owners(&world, bytes);
        drop(copy);
        gate.open();
        next
    });
    world.other.synchronize().unwrap();
    for block in &next {
        assert_untouched(&world.home, block);
    }
}

#[test]
fn a_buffer_of_anothers_graph_is_dropped_in_a_host_call_that_a_wait_is_kept_for() {
    let (device, watched) = Watched::over(&common::host());
    let world = World::new(&device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let mut noted = world.home.note_capture().unwrap();
    device.backend().capture_begin(world.home.raw()).unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let raw = device.backend().capture_end(world.home.raw()).unwrap();
    let memory = noted.end().unwrap();
    drop(memory.used_by(&world.other).unwrap());
    let (kept, third) = (device.clone(), world.third.raw());
    let (tell, told) = mpsc::channel();
    watched.after("before_event_wait", move || {
        let (say, said) = mpsc::channel();
        let call = Box::new(move || {
            drop(dst);
            let _ = say.send(());
        });
        kept.backend().host_call(third, call).unwrap();
        let dropped = said.recv_timeout(Duration::from_secs(5));
        tell.send(dropped.is_ok()).unwrap();
    });
    world.other.wait_stream(&world.home).unwrap();
    assert!(told.recv().unwrap(), "each waits for the other");
    device.backend().graph_destroy(raw).unwrap();
}

/// As in a server that has a graph for each size of a batch, and a stream for each request.
fn streams_that_come_and_go_leave_nothing_at_a_graph_that_is_not_launched(device: &Device) {
    let world = World::new(device);
    let (mut input, mut output, mut read) = (world.full(1.0), world.halves(), world.halves());
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, input.view(), output.view_mut());
    let graph = capture.end().unwrap();
    graph.launch(&world.home).unwrap();
    let before = device.counts().events;
    for request in 0..1000 {
        let on = device.stream().unwrap();
        match request % 2 {
            0 => input.view_mut().fill(&on, 0.0).unwrap(),
            _ => read.view_mut().copy_from(&on, &output).unwrap(),
        }
        // All is done, but nobody knows it of this stream.
        world.other.wait_stream(&on).unwrap();
        world.other.synchronize().unwrap();
    }
    let left = device.counts().events - before;
    assert!(left < 250, "{left} events");
    assert_all(&read.download().unwrap(), 1.0, "read before the launch");
    graph.launch(&world.home).unwrap();
    assert_all(&output.download().unwrap(), 0.0, "launched after the fills");
}
