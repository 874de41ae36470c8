//! What views do by themselves: copies to and from the host, copies within the device, fills.

use super::common::{self, Gate, on_every_device};
use super::{LEN, World, assert_singles, settle};
use warpool::convert::{Rounding, convert};
use warpool::{Device, Error, PoolBuf, Resident};
use warpool::{View, ViewMut};

on_every_device! {
    a_copy_runs_behind_the_work_that_writes_its_source,
    a_copy_runs_behind_the_work_that_reads_its_destination,
    a_source_is_overwritten_behind_the_copy_from_it,
    a_fill_runs_behind_the_work_that_reads_the_elements,
    parts_go_up_and_come_down_on_the_stream_that_is_given,
    an_upload_and_a_download_on_another_stream_wait_for_the_elements,
    a_fill_sets_every_element_and_no_other,
    captured_copies_and_fills_run_with_their_graph,
    what_cannot_be_copied_is_refused_and_nothing_changes,
    buffers_of_nothing_are_taken_everywhere,
}

fn a_copy_runs_behind_the_work_that_writes_its_source(device: &Device) {
    let world = World::new(device);
    let mut dst = world.full(0.0);
    let gate = Gate::close(&world.home);
    let src = world.full_later(2.5);
    dst.view_mut().copy_from(&world.other, &src).unwrap();
    settle(&world.other);
    gate.open();
    world.other.synchronize().unwrap();
    assert_singles(&dst, 2.5);
}

fn a_copy_runs_behind_the_work_that_reads_its_destination(device: &Device) {
    let world = World::new(device);
    let (mut middle, new) = (world.full(1.0), world.full(2.0));
    let mut seen = world.full(0.0);
    let gate = Gate::close(&world.other);
    seen.view_mut().copy_from(&world.other, &middle).unwrap();
    middle.view_mut().copy_from(&world.third, &new).unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_singles(&seen, 1.0);
    assert_singles(&middle, 2.0);
}

fn a_source_is_overwritten_behind_the_copy_from_it(device: &Device) {
    let world = World::new(device);
    let (mut src, mut dst) = (world.full(1.0), world.full(0.0));
    let gate = Gate::close(&world.other);
    dst.view_mut().copy_from(&world.other, &src).unwrap();
    src.view_mut().fill(&world.third, 0.0).unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_singles(&dst, 1.0);
}

fn a_fill_runs_behind_the_work_that_reads_the_elements(device: &Device) {
    let world = World::new(device);
    let (mut src, mut dst) = (world.full(1.0), world.halves());
    let gate = Gate::close(&world.other);
    convert(&world.other, &src, &mut dst, Rounding::Nearest).unwrap();
    src.view_mut().fill(&world.third, 0.0).unwrap();
    settle(&world.third);
    gate.open();
    super::assert_all(&dst.download().unwrap(), 1.0, "filled under its reader");
}

fn parts_go_up_and_come_down_on_the_stream_that_is_given(device: &Device) {
    let world = World::new(device);
    let mut numbers = world.pool.alloc_zeroed::<u32>(&world.home, 100).unwrap();
    let part: Vec<u32> = (1..=7).collect();
    numbers
        .slice_mut(30..37)
        .unwrap()
        .upload(&world.other, &part)
        .unwrap();
    let seen = numbers
        .slice(29..=37)
        .unwrap()
        .download(&world.third)
        .unwrap();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 0]);
    let (mut low, high) = numbers.view_mut().split_at(33).unwrap();
    ViewMut::from(&mut low)
        .slice(..3)
        .unwrap()
        .copy_from(&world.other, high.as_view().slice(..3).unwrap())
        .unwrap();
    assert_eq!(numbers.download().unwrap()[..4], [4, 5, 6, 0]);
    assert_eq!(
        numbers
            .download()
            .unwrap()
            .iter()
            .filter(|&&n| n > 0)
            .count(),
        10
    );
}

fn an_upload_and_a_download_on_another_stream_wait_for_the_elements(device: &Device) {
    let world = World::new(device);
    let (ones, mut numbers) = (world.full(1.0), world.full(0.0));
    let behind = |gate: Gate| {
        std::thread::sleep(std::time::Duration::from_millis(40));
        gate.open();
    };
    let gate = Gate::close(&world.home);
    numbers.view_mut().copy_from(&world.home, &ones).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| behind(gate));
        let seen = numbers.view().download(&world.other).unwrap();
        assert_eq!(seen, vec![1.0; LEN], "it came down too early");
    });
    let gate = Gate::close(&world.home);
    numbers.view_mut().copy_from(&world.home, &ones).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| behind(gate));
        let threes = vec![3.0; LEN];
        numbers.view_mut().upload(&world.other, &threes).unwrap();
    });
    world.home.synchronize().unwrap();
    assert_singles(&numbers, 3.0);
}

/// Fills the middle of a buffer with `value` and looks at all of it.
fn filled<T: warpool::bytemuck::Pod + PartialEq + std::fmt::Debug>(world: &World, value: T) {
    for len in [1, 2, 3, 1000, 8191, 8192, 8193, 70_000] {
        let mut buffer = world.pool.alloc_zeroed::<T>(&world.home, len + 2).unwrap();
        let part = buffer.slice_mut(1..=len).unwrap();
        part.fill(&world.other, value).unwrap();
        let seen = buffer.download().unwrap();
        assert_eq!((seen[0], seen[len + 1]), (T::zeroed(), T::zeroed()));
        let wrong = seen[1..=len].iter().filter(|&&element| element != value);
        assert_eq!(wrong.count(), 0, "{len} elements of {value:?}");
    }
}

fn a_fill_sets_every_element_and_no_other(device: &Device) {
    let world = World::new(device);
    filled(&world, 0x5Au8);
    filled(&world, 0x0102u16);
    filled(&world, 1.5f32);
    filled(&world, -1i64);
    filled(&world, [1u32, 2, 3]);
    let ones = world.pool.alloc_filled(&world.home, 40_000, 1.0f64);
    assert_eq!(ones.unwrap().download().unwrap(), vec![1.0; 40_000]);
}

fn captured_copies_and_fills_run_with_their_graph(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.0), world.full(5.0));
    let capture = world.home.begin_capture().unwrap();
    let (low, high) = dst.view_mut().split_at(LEN / 2).unwrap();
    let from = src.slice(..LEN / 2).unwrap();
    low.copy_from(&world.home, from).unwrap();
    high.fill(&world.home, 0.0).unwrap();
    let different = dst.view_mut().fill(&world.home, 1.5);
    assert!(matches!(
        different,
        Err(Error::Invalid { what: "stream", .. })
    ));
    let down = src.view().download(&world.home);
    assert!(matches!(down, Err(Error::Invalid { what: "stream", .. })));
    let graph = capture.end().unwrap();
    assert_singles(&dst, 5.0);
    graph.launch(&world.home).unwrap();
    let seen = dst.download().unwrap();
    assert_eq!(seen[..LEN / 2], vec![1.0; LEN / 2]);
    assert_eq!(seen[LEN / 2..], vec![0.0; LEN / 2]);
}

fn what_cannot_be_copied_is_refused_and_nothing_changes(device: &Device) {
    let world = World::new(device);
    let foreign = common::host().stream().unwrap();
    let (src, mut dst) = (world.full(1.0), world.full(5.0));
    let refused = |outcome: warpool::Result<()>, wanted: &str| match outcome {
        Err(Error::Invalid { what, .. }) => assert_eq!(what, wanted),
        other => panic!("{wanted}: {other:?}"),
    };
    let short = src.slice(1..).unwrap();
    refused(dst.view_mut().copy_from(&world.home, short), "src");
    refused(dst.view_mut().copy_from(&foreign, &src), "stream");
    refused(dst.view_mut().fill(&foreign, 0.0), "stream");
    refused(dst.view_mut().fill(&foreign, 1.5), "stream");
    refused(dst.view_mut().upload(&foreign, &[0.0; LEN]), "stream");
    refused(dst.view_mut().upload(&world.home, &[0.0; 3]), "data");
    refused(src.view().download(&foreign).map(|_| ()), "stream");
    // SAFETY: the memory is the buffer's; nothing is queued, since they overlap.
    let (from, into) = unsafe {
        let from = View::<f32>::from_raw(dst.addr(), 100).unwrap();
        (
            from,
            ViewMut::<f32>::from_raw(dst.addr() + 396, 100).unwrap(),
        )
    };
    refused(into.copy_from(&world.home, from), "src");
    // SAFETY: as above, and side by side.
    let (from, into) = unsafe {
        let from = View::<f32>::from_raw(dst.addr(), 100).unwrap();
        (
            from,
            ViewMut::<f32>::from_raw(dst.addr() + 400, 100).unwrap(),
        )
    };
    into.copy_from(&world.home, from).unwrap();
    assert_singles(&dst, 5.0);
}

fn buffers_of_nothing_are_taken_everywhere(device: &Device) {
    let world = World::new(device);
    let (pool, home) = (&world.pool, &world.home);
    let mut none = pool.alloc_typed::<f32>(home, 0).unwrap();
    assert!(none.is_empty() && none.addr() != 0);
    let mut halves = pool.alloc_filled(home, 0, half::f16::ONE).unwrap();
    none.upload(&[]).unwrap();
    assert!(none.download().unwrap().is_empty());
    convert(&world.other, &none, &mut halves, Rounding::Nearest).unwrap();
    none.view_mut().fill(&world.other, 1.5).unwrap();
    let other = pool.alloc_from::<f32>(home, &[]).unwrap();
    none.view_mut().copy_from(&world.other, &other).unwrap();
    assert!(
        none.slice(..)
            .unwrap()
            .download(&world.other)
            .unwrap()
            .is_empty()
    );
    assert!(none.view_mut().split_at(0).is_ok() && none.slice(1..).is_err());
    let kernel = world
        .other
        .kernel("nothing")
        .reads(&other)
        .writes(&mut none);
    kernel.launch(|_| ()).unwrap();
    let halves = none.convert_in_place::<half::f16>(Rounding::Nearest);
    assert!(halves.unwrap().download().unwrap().is_empty());
    let room = pool.alloc_typed_with_room::<half::f16>(home, 0, 0).unwrap();
    let wide: PoolBuf<f32> = room.convert_in_place(Rounding::Nearest).unwrap();
    assert!(warpool::Block::from(wide).bytes() > 0);
    let units = pool.alloc_from(home, &[(); 5]).unwrap();
    assert_eq!((units.len(), units.download().unwrap().len()), (5, 5));

    let mut movable = pool.alloc_movable::<u64>(home, 0).unwrap();
    movable.upload(home, &[]).unwrap();
    assert!(movable.download(home).unwrap().is_empty());
    let held: Resident<'_, u64> = movable.hold(home).unwrap();
    assert!(View::from(&held).is_empty());
    drop(held);
    movable.resize(home, 3).unwrap();
    movable.upload(home, &[1, 2, 3]).unwrap();
    pool.compact(&warpool::compact::Goal::Full).unwrap();
    movable.resize(home, 0).unwrap();
    assert!(movable.download(home).unwrap().is_empty());
    assert_eq!(movable.register_pointers().unwrap().slots(), 0);
    pool.check_invariants().unwrap();
}
