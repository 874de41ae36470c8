//! Parts of one buffer are ordered apart, and nothing waits without need.

use super::common::watched::Watched;
use super::common::{Gate, on_every_device};
use super::{LEN, World, assert_all, gets_done, settle, to_half, to_single};
use half::f16;
use warpool::Device;

on_every_device! {
    one_half_is_written_while_the_other_is_read,
    the_halves_of_a_buffer_change_hands_behind_waits,
    reads_on_two_streams_do_not_wait_for_each_other,
    a_repeated_conversion_makes_no_call_but_its_launch,
    a_wait_that_was_made_is_not_made_again,
    many_uses_of_many_parts_stay_few_entries_and_right,
}

fn waits(watched: &Watched) -> (u64, u64) {
    (watched.calls("event_record"), watched.calls("event_wait"))
}

fn one_half_is_written_while_the_other_is_read(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let half = LEN / 2;
    let (loader, trainer) = (&world.home, &world.other);
    let mut batch = world.full(3.0);
    let fresh = world.halves();
    let mut seen = world.halves();
    let (mut low, high) = batch.view_mut().split_at(half).unwrap();
    let before = waits(&watched);
    let gate = Gate::close(loader);
    to_single(
        loader,
        fresh.view().slice(..half).unwrap(),
        (&mut low).into(),
    );
    let into = seen.view_mut().slice(half..2 * half).unwrap();
    to_half(trainer, high.as_view(), into);
    assert_eq!(waits(&watched), before, "the reader waits for the loader");
    assert!(gets_done(trainer), "the reader is held up by the loader");
    gate.open();
    assert_all(
        &seen.download().unwrap()[LEN / 2..],
        3.0,
        "read while loaded",
    );
    assert_eq!(batch.download().unwrap()[LEN / 2 - 1], 0.0);
}

fn the_halves_of_a_buffer_change_hands_behind_waits(device: &Device) {
    let world = World::new(device);
    let half = LEN / 2;
    let (loader, trainer) = (&world.home, &world.other);
    let mut batch = world.full(0.0);
    let mut values = world.halves();
    let mut sums = world.halves();
    for round in 1..9 {
        values.upload(&[f16::from_f32(round as f32); LEN]).unwrap();
        let parts = batch.view_mut().split_at(half).unwrap();
        let (mut part, at) = if round % 2 == 0 {
            (parts.0, 0)
        } else {
            (parts.1, half)
        };
        let gate = Gate::close(loader);
        to_single(
            loader,
            values.view().slice(..half).unwrap(),
            (&mut part).into(),
        );
        let into = sums.view_mut().slice(at..at + half).unwrap();
        to_half(trainer, part.as_view(), into);
        settle(trainer);
        gate.open();
        trainer.synchronize().unwrap();
        let found = sums.download().unwrap();
        assert_all(
            &found[at..][..LEN / 2],
            round as f32,
            "the part just loaded",
        );
    }
}

fn reads_on_two_streams_do_not_wait_for_each_other(device: &Device) {
    let world = World::new(device);
    let src = world.full(2.0);
    let (mut one, mut two) = (world.halves(), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), one.view_mut());
    to_half(&world.third, src.view(), two.view_mut());
    assert!(gets_done(&world.third), "a reader is held up by a reader");
    gate.open();
    assert_all(&one.download().unwrap(), 2.0, "the first reader");
    assert_all(&two.download().unwrap(), 2.0, "the second reader");
}

fn a_repeated_conversion_makes_no_call_but_its_launch(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    for stream in [&world.home, &world.other, &world.third] {
        to_half(stream, src.view(), dst.view_mut());
        let before = watched.all_calls();
        for _ in 0..100 {
            to_half(stream, src.view(), dst.view_mut());
        }
        assert_eq!(watched.all_calls() - before, 100);
    }
}

fn a_wait_that_was_made_is_not_made_again(device: &Device) {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device);
    let (src, mut dst) = (world.full(2.0), world.halves());
    let gate = Gate::close(&world.home);
    to_half(&world.home, src.view(), dst.view_mut());
    world.other.wait_stream(&world.home).unwrap();
    let before = waits(&watched);
    to_half(&world.other, src.view(), dst.view_mut());
    assert_eq!(waits(&watched), before);
    gate.open();
    world.other.synchronize().unwrap();
}

fn many_uses_of_many_parts_stay_few_entries_and_right(device: &Device) {
    let world = World::new(device);
    let values = world.halves();
    let mut buffer = world.full(1.0);
    let streams = [&world.home, &world.other, &world.third];
    let part = LEN / 100;
    for round in 0..300u64 {
        let stream = streams[(round % 3) as usize];
        let at = (round % 100) as usize * part;
        let from = values.view().slice(at..at + part).unwrap();
        let into = buffer.view_mut().slice(at..at + part).unwrap();
        to_single(stream, from, into);
        // Ticks go on.
        device.event().unwrap().record(stream).unwrap();
    }
    assert!(format!("{:?}", buffer.view()).contains(" entries"));
    super::assert_singles(&buffer, 0.0);
}
