//! What happens at the moment it must not be missed: work is held up while memory changes hands, and
//! what another thread might do in the middle of a call is done there.

use std::sync::Arc;

use super::common::stamps::Stamps;
use super::common::watched::Watched;
use super::common::{Gate, fill, is_held, on_every_device, read};
use super::{limited, small_handles, whole};
use warpool::compact::{Budget, Goal};
use warpool::{Device, Pool};

on_every_device! {
    a_block_grows_in_place_behind_who_had_the_memory,
    a_block_that_has_room_for_a_resize_waits_for_nobody,
    a_pass_goes_round_a_block_that_was_pinned_between_its_steps,
    a_resize_copies_what_pending_work_writes,
    a_block_of_a_closed_pool_is_freed_behind_the_stream_it_is_freed_on,
    a_block_freed_while_a_wait_is_made_is_not_taken_over_behind_that_wait,
    an_event_recorded_again_while_it_is_waited_for_is_not_known_to_be_done,
}

fn a_block_grows_in_place_behind_who_had_the_memory(device: &Device) {
    let stamps = Stamps::new(device);
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc_movable::<u8>(&home, granule as usize).unwrap();
    let behind = pool.alloc(&other, granule).unwrap();
    let at = block.hold(&home).unwrap().addr();
    assert_eq!(behind.addr(), at + granule, "they are neighbours");
    stamps.stamp(&other, &behind, 1);
    let gate = Gate::close(&other);
    stamps.verify(&other, &behind, 1);
    drop(behind);
    block.resize(&home, 2 * granule as usize).unwrap();
    let pin = block.hold(&home).unwrap();
    assert_eq!(pin.addr(), at, "there is no other memory");
    fill(&home, at, 0xEE, 2 * granule);
    assert!(is_held(&home), "it runs ahead of who had the memory");
    gate.open();
    home.synchronize().unwrap();
    other.synchronize().unwrap();
    stamps.assert_clean(device, granule);
    drop(pin);
    whole(&pool);
}

fn a_block_that_has_room_for_a_resize_waits_for_nobody(device: &Device) {
    let granule = device.info().granule;
    let pool = limited(device, 2);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let few = granule as usize - 100;
    let mut block = pool.alloc_movable::<u8>(&home, few).unwrap();
    let behind = pool.alloc(&other, granule).unwrap();
    let gate = Gate::close(&other);
    drop(behind);
    block.resize(&home, granule as usize).unwrap();
    assert!(!is_held(&home), "it waits for who had the memory behind");
    gate.open();
    other.synchronize().unwrap();
    whole(&pool);
}

fn a_pass_goes_round_a_block_that_was_pinned_between_its_steps(device: &Device) {
    let part = device.info().granule as usize / 4;
    let stream = device.stream().unwrap();
    let mut kept = 0;
    // Whichever block the next step would move is one of them.
    for pinned in 0..6 {
        let pool = Pool::new(device, small_handles()).unwrap();
        let mut blocks: Vec<_> = (0..12)
            .map(|_| pool.alloc_movable::<u8>(&stream, part).unwrap())
            .collect();
        let mut number = 0;
        blocks.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        let mut pass = pool
            .begin_compaction(Goal::Full, Budget::bytes(part as u64))
            .unwrap();
        assert!(!pass.step().unwrap().finished, "there is more to do");
        let pin = blocks[pinned].hold(&stream).unwrap();
        while !pass.step().unwrap().finished {
            kept += 1;
        }
        let again = blocks[pinned].hold(&stream).unwrap();
        assert_eq!(again.addr(), pin.addr(), "a pinned block moved");
        drop((pin, again));
        whole(&pool);
    }
    assert!(kept > 0, "no pass went on");
}

fn a_resize_copies_what_pending_work_writes(device: &Device) {
    let granule = device.info().granule;
    let pool = Pool::new(device, small_handles()).unwrap();
    let (home, writer, copier) = (
        device.stream().unwrap(),
        device.stream().unwrap(),
        device.stream().unwrap(),
    );
    let mut block = pool.alloc_movable::<u8>(&home, granule as usize).unwrap();
    let _behind = pool.alloc_movable::<u8>(&home, granule as usize).unwrap();
    let gate = Gate::close(&writer);
    {
        let pin = block.hold(&writer).unwrap();
        fill(&writer, pin.addr(), 0x5A, granule);
    }
    block.resize(&copier, 2 * granule as usize).unwrap();
    assert!(is_held(&copier), "it copied what was there before");
    gate.open();
    let found = block.download(&copier).unwrap();
    assert!(found[..granule as usize].iter().all(|&byte| byte == 0x5A));
    whole(&pool);
}

fn a_block_of_a_closed_pool_is_freed_behind_the_stream_it_is_freed_on(device: &Device) {
    let pool = limited(device, 2);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let [block, last] = [4096, 8192].map(|bytes| pool.alloc(&home, bytes).unwrap());
    drop(pool);
    other.wait_stream(&home).unwrap();
    let gate = Gate::close(&other);
    fill(&other, block.addr(), 1, 4096);
    block.free_on(&other).unwrap();
    assert!(is_held(&home), "the memory is free ahead of its last use");
    gate.open();
    assert_eq!(read(&home, last.addr(), 16).len(), 16);
    drop(last);
}

fn a_block_freed_while_a_wait_is_made_is_not_taken_over_behind_that_wait(device: &Device) {
    let (device, watched) = Watched::over(device);
    let bytes = device.info().granule / 2;
    let pool = Pool::new(&device, small_handles().overlap_bytes(0)).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let [before, meanwhile] = [0; 2].map(|_| pool.alloc(&first, bytes).unwrap());
    let (expected, late) = (before.addr(), meanwhile.addr());
    drop(before);
    let (gates, gate) = std::sync::mpsc::channel();
    let on = first.clone();
    watched.after("event_wait", move || {
        gates.send(Gate::close(&on)).unwrap();
        fill(&on, late, 1, bytes);
        drop(meanwhile);
    });
    let taken = pool.alloc(&second, bytes).unwrap();
    assert!(watched.was_hooked(), "no wait was made");
    let next = pool.alloc(&second, bytes).unwrap();
    assert_eq!(
        taken.addr(),
        expected,
        "freed behind the mark that was waited for"
    );
    fill(&second, taken.addr(), 2, bytes);
    fill(&second, next.addr(), 2, bytes);
    assert_eq!(
        is_held(&second),
        next.addr() == late,
        "late memory is had behind a wait"
    );
    gate.recv().unwrap().open();
    second.synchronize().unwrap();
    drop((taken, next));
    whole(&pool);
}

fn an_event_recorded_again_while_it_is_waited_for_is_not_known_to_be_done(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 2);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let block = pool.alloc(&first, 2 * granule).unwrap();
    let event = Arc::new(device.event().unwrap());
    event.record(&first).unwrap();
    let (gates, gate) = std::sync::mpsc::channel();
    let (again, on) = (Arc::clone(&event), first.clone());
    watched.after("event_sync", move || {
        gates.send(Gate::close(&on)).unwrap();
        fill(&on, block.addr(), 1, 2 * granule);
        drop(block);
        again.record(&on).unwrap();
    });
    event.synchronize().unwrap();
    let block = pool.alloc(&second, 2 * granule).unwrap();
    fill(&second, block.addr(), 2, 2 * granule);
    assert!(is_held(&second), "the new mark is taken as done");
    gate.recv().unwrap().open();
    second.synchronize().unwrap();
    drop(block);
    whole(&pool);
}
