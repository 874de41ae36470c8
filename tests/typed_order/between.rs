//! Order between operations on several streams.

use std::time::Duration;

use super::common::{Gate, host, on_every_device};
use super::{LEN, World, assert_all, assert_singles, settle, to_half, to_single};
use half::f16;
use warpool::Device;
use warpool::convert::{Rows, RowsMut, Transpose, cast_transpose};

on_every_device! {
    a_read_on_another_stream_runs_behind_the_write,
    a_write_on_another_stream_runs_behind_the_read,
    a_write_on_another_stream_runs_behind_the_write,
    an_upload_and_a_download_run_behind_what_other_streams_were_given,
    a_turned_cast_runs_behind_the_writes_of_its_scale_and_its_maximum,
    streams_that_come_and_go_leave_nothing_at_a_buffer_that_all_of_them_read,
}

fn a_read_on_another_stream_runs_behind_the_write(device: &Device) {
    let world = World::new(device);
    let (src, mut middle, mut last) = (world.full(2.5), world.halves(), world.full(0.0));
    let gate = Gate::close(&world.home);
    to_half(&world.home, src.view(), middle.view_mut());
    to_single(&world.other, middle.view(), last.view_mut());
    settle(&world.other);
    gate.open();
    world.other.synchronize().unwrap();
    assert_singles(&last, 2.5);
}

fn a_write_on_another_stream_runs_behind_the_read(device: &Device) {
    let world = World::new(device);
    let (mut src, mut dst) = (world.full(2.5), world.halves());
    let mut ones = world.halves();
    ones.upload(&[f16::ONE; LEN]).unwrap();
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    to_single(&world.third, ones.view(), src.view_mut());
    settle(&world.third);
    gate.open();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.5, "overwritten under the read");
}

fn a_write_on_another_stream_runs_behind_the_write(device: &Device) {
    let world = World::new(device);
    let (first, second, mut dst) = (world.full(1.0), world.full(2.0), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, first.view(), dst.view_mut());
    to_half(&world.third, second.view(), dst.view_mut());
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    world.third.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 2.0, "the earlier write came last");
}

fn an_upload_and_a_download_run_behind_what_other_streams_were_given(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.0), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(40));
            gate.open();
        });
        assert_all(&dst.download().unwrap(), 1.0, "downloaded too early");
    });
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(40));
            gate.open();
        });
        dst.upload(&[f16::ZERO; LEN]).unwrap();
    });
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 0.0, "uploaded too early");
}

/// On the host device alone: a download may wait in the driver, and nothing else is queued then.
#[test]
fn a_read_that_ends_late_does_not_hide_one_that_was_queued_after_it() {
    let world = World::new(&host());
    let (pool, reader) = (&world.pool, &world.other);
    let mut src = pool.alloc_filled(&world.home, LEN, 1u32).unwrap();
    let mut dst = pool.alloc_zeroed::<u32>(&world.home, 100).unwrap();
    world.home.synchronize().unwrap();
    let first = Gate::close(reader);
    let second = std::thread::scope(|scope| {
        let whole = scope.spawn(|| src.view().download(reader).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let second = Gate::close(reader);
        let part = src.slice(..100).unwrap();
        dst.view_mut().copy_from(reader, part).unwrap();
        first.open();
        assert!(whole.join().unwrap() == [1; LEN]);
        second
    });
    src.view_mut().fill(&world.third, 0x0202_0202).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    second.open();
    assert_eq!(dst.download().unwrap(), [1; 100]);
}

fn a_turned_cast_runs_behind_the_writes_of_its_scale_and_its_maximum(device: &Device) {
    let world = World::new(device);
    let (src, mut ones, mut dst) = (world.full(2.5), world.halves(), world.halves());
    ones.upload(&[f16::ONE; LEN]).unwrap();
    for of_scale in [true, false] {
        let (mut scale, mut amax) = (world.full(3.0), world.full(9.0));
        let gate = Gate::close(&world.home);
        let late = if of_scale { &mut scale } else { &mut amax };
        to_single(&world.home, ones.view(), late.view_mut());
        let from = Rows::new(src.view(), 1, LEN, LEN).unwrap();
        let to = RowsMut::new(dst.view_mut(), LEN, 1, 1).unwrap();
        let how = Transpose::default();
        let how = match of_scale {
            true => how.scale(scale.view()),
            false => how.amax(amax.view_mut()),
        };
        cast_transpose(&world.other, from, None, to, how).unwrap();
        settle(&world.other);
        gate.open();
        world.other.synchronize().unwrap();
        assert_all(&dst.download().unwrap(), 2.5, "scaled too early");
        if !of_scale {
            assert_eq!(amax.download().unwrap()[0], 2.5, "overwritten later");
        }
    }
}

/// As in a server that has a stream for each request: nobody asks how far those streams are.
fn streams_that_come_and_go_leave_nothing_at_a_buffer_that_all_of_them_read(device: &Device) {
    let world = World::new(device);
    let (weights, mut result) = (world.full(2.5), world.halves());
    let before = device.counts().events;
    for _ in 0..1000 {
        let request = device.stream().unwrap();
        to_half(&request, weights.view(), result.view_mut());
        drop(request);
        let result = result.view().slice(..1).unwrap();
        assert_eq!(result.download(&world.home).unwrap(), [f16::from_f32(2.5)]);
    }
    let left = device.counts().events - before;
    assert!(left < 500, "{left} events");
}
