//! Kernels of the application's own. A fill of the device stands for one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::common::watched::Watched;
use super::common::{self, Gate, on_every_device};
use super::{World, assert_all, assert_untouched, settle, to_half};
use half::f16;
use warpool::{Device, Error, Graph, PoolBuf, Stream};

on_every_device! {
    a_kernel_of_the_applications_own_runs_behind_what_it_uses,
    what_follows_runs_behind_a_kernel_of_the_applications_own,
    a_kernel_whose_launch_panics_is_taken_to_be_queued,
    a_kernel_whose_launch_fails_is_taken_to_be_queued,
    a_record_made_while_a_kernel_is_queued_does_not_stand_for_it,
    a_launch_that_uses_the_crate_is_served,
    addresses_by_themselves_are_ordered_by_declared_uses,
    a_kernel_queued_behind_the_end_of_its_capture_runs_behind_what_it_uses,
    a_kernel_runs_behind_what_it_uses_whatever_capture_begins_and_ends_meanwhile,
    a_launch_of_a_graph_runs_behind_a_kernel_queued_behind_the_end_of_its_capture,
    a_graph_that_a_kernel_came_into_is_ordered_with_the_graphs_of_its_memory,
    a_kernel_queued_behind_the_end_of_its_capture_runs_behind_graphs_that_run_on_its_memory,
    other_graphs_run_behind_a_kernel_queued_behind_the_end_of_its_capture,
    a_graph_is_not_launched_while_a_kernel_is_queued_that_began_under_its_capture,
}

/// Queues a fill with the bytes of 0x3C3C, which is about 1.06.
fn fill(stream: &Stream, addr: u64, bytes: u64) {
    common::fill(stream, addr, 0x3C, bytes);
}

fn filled() -> f32 {
    f16::from_bits(0x3C3C).to_f32()
}

fn bytes(buffer: &PoolBuf<f16>) -> u64 {
    2 * buffer.len() as u64
}

fn a_kernel_of_the_applications_own_runs_behind_what_it_uses(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let (addr, count) = (dst.addr(), bytes(&dst));
    let gate = Gate::close(&world.home);
    to_half(&world.home, src.view(), dst.view_mut());
    let kernel = world
        .other
        .kernel("fill")
        .reads(src.view())
        .writes(dst.view_mut());
    kernel.launch(|stream| fill(stream, addr, count)).unwrap();
    settle(&world.other);
    gate.open();
    world.home.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), filled(), "the fill came first");
}

fn what_follows_runs_behind_a_kernel_of_the_applications_own(device: &Device) {
    let world = World::new(device);
    let mut dst = world.halves();
    let (addr, count) = (dst.addr(), bytes(&dst));
    let gate = Gate::close(&world.other);
    let kernel = world.other.kernel("fill").writes(dst.view_mut());
    let given = kernel.launch(|stream| {
        fill(stream, addr, count);
        17
    });
    assert_eq!(given.unwrap(), 17);
    drop(dst);
    let next = world.next_owner(count, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_kernel_whose_launch_panics_is_taken_to_be_queued(device: &Device) {
    let world = World::new(device);
    let mut dst = world.halves();
    let (addr, count) = (dst.addr(), bytes(&dst));
    let gate = Gate::close(&world.other);
    let kernel = world.other.kernel("fill").writes(dst.view_mut());
    let ended = catch_unwind(AssertUnwindSafe(|| {
        kernel.launch(|stream| {
            fill(stream, addr, count);
            panic!("after the launch");
        })
    }));
    assert!(ended.is_err());
    drop(dst);
    let next = world.next_owner(count, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_kernel_whose_launch_fails_is_taken_to_be_queued(device: &Device) {
    let world = World::new(device);
    let mut dst = world.halves();
    let (addr, count) = (dst.addr(), bytes(&dst));
    let gate = Gate::close(&world.other);
    let kernel = world.other.kernel("fill").writes(dst.view_mut());
    let failed = kernel.launch(|stream| {
        fill(stream, addr, count);
        Err::<(), &str>("said it failed")
    });
    assert_eq!(failed.unwrap(), Err("said it failed"));
    drop(dst);
    let next = world.next_owner(count, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_record_made_while_a_kernel_is_queued_does_not_stand_for_it(device: &Device) {
    let world = World::new(device);
    let mut dst = world.halves();
    let (addr, count) = (dst.addr(), bytes(&dst));
    let mut gate = None;
    let kernel = world.other.kernel("fill").writes(dst.view_mut());
    let launched = kernel.launch(|stream| {
        world.third.wait_stream(stream).unwrap();
        gate = Some(Gate::close(stream));
        fill(stream, addr, count);
    });
    launched.unwrap();
    drop(dst);
    let next = world.next_owner(count, addr);
    settle(&world.home);
    drop(gate);
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_launch_that_uses_the_crate_is_served(device: &Device) {
    let world = World::new(device);
    let (src, mut dst, mut other) = (world.full(2.0), world.halves(), world.halves());
    let (mut seen, idle) = (world.halves(), world.halves());
    let capture = world.third.begin_capture().unwrap();
    to_half(&world.third, src.view(), dst.view_mut());
    let graph = capture.end().unwrap();
    let capture = world.third.begin_capture().unwrap();
    to_half(&world.third, src.view(), other.view_mut());
    let apart = capture.end().unwrap();
    let kernel = world.other.kernel("own").writes(dst.view_mut());
    let outcome = kernel.launch(|stream| {
        to_half(stream, src.view(), seen.view_mut());
        drop(idle);
        apart.launch(stream).unwrap();
        graph.launch(stream)
    });
    match outcome.unwrap() {
        Err(Error::Invalid { what: "graph", .. }) => {}
        other => panic!("a graph of the kernel's own memory: {other:?}"),
    }
    graph.launch(&world.other).unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "launched after the kernel");
    assert_all(
        &other.download().unwrap(),
        2.0,
        "launched beside the kernel",
    );
    assert_all(
        &seen.download().unwrap(),
        2.0,
        "converted beside the kernel",
    );
}

fn addresses_by_themselves_are_ordered_by_declared_uses(device: &Device) {
    let world = World::new(device);
    let dst = world.halves();
    let (addr, count) = (dst.addr(), bytes(&dst));
    let gate = Gate::close(&world.other);
    let mut dst = warpool::Block::from(dst);
    dst.record_use(&world.other).unwrap();
    fill(&world.other, addr, count);
    drop(dst);
    let next = world.next_owner(count, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

/// Fills `dst` from the home stream, after the `end` of a capture of that, and finds it filled behind what `gate` holds up.
fn fills_last(world: &World, mut dst: PoolBuf<f16>, gate: Gate, end: impl FnOnce() -> Graph) {
    let (addr, count) = (dst.addr(), bytes(&dst));
    let kernel = world.home.kernel("fill").writes(dst.view_mut());
    let launched = kernel.launch(|stream| {
        let graph = end();
        fill(stream, addr, count);
        graph
    });
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), filled(), "the fill came first");
    drop(launched.unwrap());
}

fn a_kernel_queued_behind_the_end_of_its_capture_runs_behind_what_it_uses(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    let capture = world.home.begin_capture().unwrap();
    fills_last(&world, dst, gate, || capture.end().unwrap());
}

fn a_kernel_runs_behind_what_it_uses_whatever_capture_begins_and_ends_meanwhile(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    let ((tell, told), home) = (mpsc::channel(), world.home.clone());
    watched.after("event_record", move || {
        let begins = thread::spawn(move || tell.send(home.begin_capture().unwrap()).unwrap());
        begins.join().unwrap();
    });
    fills_last(&world, dst, gate, || told.recv().unwrap().end().unwrap());
}

fn a_launch_of_a_graph_runs_behind_a_kernel_queued_behind_the_end_of_its_capture(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let (addr, count) = (dst.addr(), bytes(&dst));
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let kernel = world.home.kernel("fill").writes(dst.view_mut());
    let launched = kernel.launch(|stream| {
        let graph = capture.end().unwrap();
        let gate = Gate::close(stream);
        fill(stream, addr, count);
        (graph, gate)
    });
    let (graph, gate) = launched.unwrap();
    graph.launch(&world.other).unwrap();
    settle(&world.other);
    gate.open();
    world.home.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the graph came first");
}

fn a_kernel_queued_behind_the_end_of_its_capture_runs_behind_graphs_that_run_on_its_memory(
    device: &Device,
) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let running = capture.end().unwrap();
    let gate = Gate::close(&world.other);
    running.launch(&world.other).unwrap();
    let capture = world.home.begin_capture().unwrap();
    fills_last(&world, dst, gate, || capture.end().unwrap());
}

fn other_graphs_run_behind_a_kernel_queued_behind_the_end_of_its_capture(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let (addr, count) = (dst.addr(), bytes(&dst));
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let other = capture.end().unwrap();
    let capture = world.home.begin_capture().unwrap();
    let kernel = world.home.kernel("fill").writes(dst.view_mut());
    let launched = kernel.launch(|stream| {
        let graph = capture.end().unwrap();
        let gate = Gate::close(stream);
        fill(stream, addr, count);
        (graph, gate)
    });
    let (graph, gate) = launched.unwrap();
    other.launch(&world.other).unwrap();
    settle(&world.other);
    gate.open();
    world.home.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the graph came first");
    drop(graph);
}

fn a_graph_that_a_kernel_came_into_is_ordered_with_the_graphs_of_its_memory(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let (addr, count) = (dst.addr(), bytes(&dst));
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let first = capture.end().unwrap();
    let kernel = world.home.kernel("fill").writes(dst.view_mut());
    let launched = kernel.launch(|stream| {
        let capture = stream.begin_capture().unwrap();
        fill(stream, addr, count);
        capture.end().unwrap()
    });
    let second = launched.unwrap();
    let gate = Gate::close(&world.other);
    first.launch(&world.other).unwrap();
    second.launch(&world.third).unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), filled(), "the first came last");
}

fn a_graph_is_not_launched_while_a_kernel_is_queued_that_began_under_its_capture(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let capture = world.home.begin_capture().unwrap();
    to_half(&world.home, src.view(), dst.view_mut());
    let (tell, told) = mpsc::channel();
    let on = world.third.clone();
    let kernel = world.home.kernel("own").writes(dst.view_mut());
    let launched = kernel.launch(|_| {
        thread::spawn(move || {
            let graph = capture.end().unwrap();
            // The thread ends when it likes, and keeps no stream.
            tell.send((graph.launch(&on), (graph, on))).unwrap();
        });
        told.recv_timeout(Duration::from_millis(100))
    });
    assert!(launched.unwrap().is_err(), "launched amid the kernel");
    let (launched, kept) = told.recv().unwrap();
    launched.unwrap();
    drop(kept);
}
