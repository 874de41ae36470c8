//! What drops and what gives back memory.

use std::sync::{Arc, mpsc};
use std::thread;

use super::common::watched::Watched;
use super::common::{self, Gate, on_every_device};
use super::{LEN, World, assert_all, assert_untouched, settle, to_half, to_single};
use warpool::convert::Rounding;
use warpool::{Device, Pool};

on_every_device! {
    a_buffer_written_on_another_stream_is_freed_behind_that,
    a_buffer_read_on_another_stream_is_freed_behind_that,
    a_buffer_given_up_for_its_block_is_freed_behind_its_uses,
    a_buffer_given_up_and_freed_elsewhere_waits_for_its_own_stream_too,
    a_buffer_given_up_for_its_block_shrinks_behind_its_uses,
    a_block_freed_elsewhere_is_free_behind_its_uses_whatever_capture_begins_and_ends_meanwhile,
    a_buffer_converted_in_place_keeps_its_order,
    a_buffer_outlives_the_streams_that_used_it,
    a_buffer_of_a_closed_pool_is_freed_behind_its_uses,
}

fn a_buffer_written_on_another_stream_is_freed_behind_that(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    drop(dst);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn a_buffer_read_on_another_stream_is_freed_behind_that(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (src.addr(), src.block().bytes());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    drop(src);
    let _next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    super::assert_all(&dst.download().unwrap(), 1.5, "read before the free");
}

fn a_buffer_given_up_for_its_block_is_freed_behind_its_uses(device: &Device) {
    for elsewhere in [false, true] {
        let world = World::new(device);
        let (src, mut dst) = (world.full(1.5), world.halves());
        let (addr, bytes) = (dst.addr(), dst.block().bytes());
        let gate = Gate::close(&world.other);
        to_half(&world.other, src.view(), dst.view_mut());
        let block = warpool::Block::from(dst);
        if elsewhere {
            block.free_on(&world.third).unwrap();
            world.home.wait_stream(&world.third).unwrap();
        } else {
            drop(block);
        }
        let next = match elsewhere {
            true => world.pool.alloc(&world.home, bytes).unwrap(),
            false => world.next_owner(bytes, addr),
        };
        super::common::fill(&world.home, next.addr(), 0x5A, bytes);
        settle(&world.home);
        gate.open();
        world.other.synchronize().unwrap();
        assert_untouched(&world.home, &next);
    }
}

fn a_buffer_given_up_and_freed_elsewhere_waits_for_its_own_stream_too(device: &Device) {
    // The last use on its own stream, or on another.
    for read_elsewhere in [false, true] {
        let world = World::new(device);
        let (src, mut dst) = (world.full(1.5), world.halves());
        let mut seen = world.full(0.0);
        let (addr, bytes) = (dst.addr(), dst.block().bytes());
        let gate = Gate::close(&world.home);
        to_half(&world.home, src.view(), dst.view_mut());
        if read_elsewhere {
            to_single(&world.other, dst.view(), seen.view_mut());
        }
        let block = warpool::Block::from(dst);
        block.free_on(&world.third).unwrap();
        let next = world.pool.alloc(&world.third, bytes).unwrap();
        assert_eq!(next.addr(), addr, "other memory than what was freed");
        super::common::fill(&world.third, addr, 0x5A, bytes);
        settle(&world.third);
        gate.open();
        world.home.synchronize().unwrap();
        world.other.synchronize().unwrap();
        assert_untouched(&world.third, &next);
    }
}

fn a_buffer_given_up_for_its_block_shrinks_behind_its_uses(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), dst.view_mut());
    let mut block = warpool::Block::from(dst);
    let tail = block.addr() + 4096;
    block.shrink(4096).unwrap();
    let blocks: Vec<_> = (0..16)
        .map(|_| world.pool.alloc(&world.home, 8192).unwrap())
        .collect();
    assert!(
        blocks
            .iter()
            .any(|block| block.addr() >= tail && block.addr() < tail + 70_000)
    );
    for block in &blocks {
        super::common::fill(&world.home, block.addr(), 0x5A, block.bytes());
    }
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    blocks
        .iter()
        .for_each(|block| assert_untouched(&world.home, block));
}

fn a_block_freed_elsewhere_is_free_behind_its_uses_whatever_capture_begins_and_ends_meanwhile(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let (world, another) = (World::new(&device), device.stream().unwrap());
    let mut block = world.pool.alloc(&world.home, 1 << 20).unwrap();
    let addr = block.addr();
    block.record_use(&world.other).unwrap();
    block.record_use(&another).unwrap();
    let gate = Gate::close(&world.other);
    let ((tell, told), third, again) = (mpsc::channel(), world.third.clone(), Arc::clone(&watched));
    // As the first wait is about to be made, and as the second is.
    watched.after("event_record", move || {
        let begun = thread::spawn(move || third.begin_capture().unwrap());
        let capture = begun.join().unwrap();
        again.after("event_record", move || {
            let ended = thread::spawn(move || capture.end().unwrap());
            tell.send(ended.join().unwrap()).unwrap();
        });
    });
    block.free_on(&world.third).unwrap();
    let graph = told.recv().unwrap();
    let next = world.pool.alloc(&world.third, 1 << 20).unwrap();
    assert_eq!(next.addr(), addr, "other memory than what was freed");
    let waits = common::is_held(&world.third);
    gate.open();
    assert!(waits, "its next work would run beside a use");
    drop((graph, next));
}

fn a_buffer_converted_in_place_keeps_its_order(device: &Device) {
    let world = World::new(device);
    let (mut src, mut seen) = (world.full(1.5), world.halves());
    let twos = {
        let mut twos = world.halves();
        twos.upload(&[half::f16::from_f32(2.0); LEN]).unwrap();
        twos
    };
    let gate = Gate::close(&world.other);
    to_half(&world.other, src.view(), seen.view_mut());
    to_single(&world.other, twos.view(), src.view_mut());
    let halves = src
        .convert_in_place::<half::f16>(Rounding::Nearest)
        .unwrap();
    settle(&world.home);
    gate.open();
    assert_all(&halves.download().unwrap(), 2.0, "converted too early");
    assert_all(&seen.download().unwrap(), 1.5, "converted under a reader");
    // And its result is waited for.
    let mut out = world.full(0.0);
    let gate = Gate::close(&world.home);
    let singles = world.full_later(3.0);
    let halves = singles
        .convert_in_place::<half::f16>(Rounding::Nearest)
        .unwrap();
    to_single(&world.third, halves.view(), out.view_mut());
    settle(&world.third);
    gate.open();
    super::assert_singles(&out, 3.0);
}

fn a_buffer_outlives_the_streams_that_used_it(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let passing = device.stream().unwrap();
    let gate = Gate::close(&passing);
    to_half(&passing, src.view(), dst.view_mut());
    drop(passing);
    drop(dst);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.home.synchronize().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(40));
    assert_untouched(&world.home, &next);
}

fn a_buffer_of_a_closed_pool_is_freed_behind_its_uses(device: &Device) {
    let world = World::new(device);
    let (home, other) = (world.home.clone(), world.other.clone());
    let (src, mut dst) = (world.full(1.5), world.halves());
    let gate = Gate::close(&other);
    to_half(&other, src.view(), dst.view_mut());
    drop(world);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(40));
        gate.open();
    });
    // The last of them unmaps what the conversion uses.
    drop((src, dst));
    opener.join().unwrap();
    other.synchronize().unwrap();
    let again = Pool::new(device, Default::default()).unwrap();
    drop(again.alloc(&home, 4096).unwrap());
}
