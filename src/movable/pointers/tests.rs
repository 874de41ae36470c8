//! Arrays of pointers: which are refused, and how long many registrations and removals take.

use super::*;
use crate::compact::Goal;
use crate::device::sim::SimConfig;
use crate::device::{Device, lock};
use crate::movable::registry::Registry;
use crate::pool::{Pool, PoolConfig};

fn block(index: u32) -> Place {
    Place::Block(MovableId {
        index,
        generation: 1,
    })
}

#[test]
fn arrays_by_the_hundred_thousand_are_added_and_forgotten_soon() {
    let begun = std::time::Instant::now();
    let mut arrays = Arrays::default();
    for at in 0..100_000 {
        arrays.add(block(at), 4, None).expect("no other");
        let fixed = Place::Fixed(0x1000 + 8 * u64::from(at));
        arrays.add(fixed, 1, None).expect("no other");
    }
    for index in 0..100_000 {
        arrays.forget(MovableId {
            index,
            generation: 1,
        });
    }
    assert_eq!(arrays.list.len(), 100_000);
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}

#[test]
fn arrays_with_a_slot_in_common_are_refused_and_others_are_not() {
    let mut arrays = Arrays::default();
    let fixed = |arrays: &mut Arrays, addr, slots| arrays.add(Place::Fixed(addr), slots, None);
    let first = fixed(&mut arrays, 800, 10).expect("no other");
    fixed(&mut arrays, 840, 0).expect("no slots");
    let none = fixed(&mut arrays, 800, 0).expect("no slots");
    arrays.remove(none);
    fixed(&mut arrays, 960, 10).expect("no other");
    for (addr, slots) in [
        (800, 1),
        (792, 2),
        (872, 1),
        (848, 2),
        (0, 1000),
        (952, 2),
        (888, u64::MAX),
    ] {
        assert!(
            fixed(&mut arrays, addr, slots).is_err(),
            "{slots} at {addr}"
        );
    }
    fixed(&mut arrays, 792, 1).expect("it ends where one begins");
    fixed(&mut arrays, 880, 10).expect("between two");
    arrays.remove(first);
    fixed(&mut arrays, 800, 10).expect("the other is gone");
    fixed(&mut arrays, u64::MAX - 7, u64::MAX).expect("no other");
    arrays.add(block(1), 4, None).expect("no other");
    assert!(arrays.add(block(1), 1, None).is_err());
    arrays.add(block(2), 0, None).expect("no slots");
    arrays
        .add(block(2), 1, None)
        .expect("the other has no slots");
    let all = arrays.list.len();
    for index in [1, 2] {
        let generation = 1;
        arrays.forget(MovableId { index, generation });
    }
    assert_eq!(arrays.list.len(), all - 3);
    arrays.add(block(1), 4, None).expect("the other is gone");
}

#[test]
fn an_array_may_go_in_a_host_call_that_runs_while_uses_are_asked_about() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..20 {
            let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
            let pool = Pool::new(&device, PoolConfig::default()).unwrap();
            let streams = [(); 20].map(|()| device.stream().unwrap());
            let pointers = pool.alloc_movable::<u64>(&streams[0], 8).unwrap();
            let array = pointers.register_pointers().unwrap();
            let work = Box::new(move || drop(array));
            device.backend().host_call(streams[0].raw(), work).unwrap();
            for stream in &streams {
                drop(pool.hold_id(pointers.id(), stream).unwrap());
            }
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn an_array_may_go_in_a_host_call_that_runs_while_the_times_of_steps_are_asked_about() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..40 {
            let device = Device::sim(&SimConfig::default().with_seed(seed)).unwrap();
            let pool = Pool::new(&device, PoolConfig::default()).unwrap();
            let [stream, calls] = [(); 2].map(|()| device.stream().unwrap());
            pool.record_steps(true).unwrap();
            let pointers = pool.alloc_movable::<u64>(&stream, 8).unwrap();
            let array = pointers.register_pointers().unwrap();
            let work = Box::new(move || drop(array));
            device.backend().host_call(calls.raw(), work).unwrap();
            for _ in 0..3 {
                let blocks = [(); 2].map(|()| pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap());
                let [low, _high] = blocks;
                drop(low);
                assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
            }
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60))
        .expect("it waits for itself");
}

#[test]
fn a_stream_waits_for_the_last_update_of_a_held_array_whatever_capture_begins_meanwhile() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
    let (theirs, registry) = (&other.core().timeline, Registry::of(&pool).unwrap());
    // SAFETY: nothing is moved.
    let array = unsafe { pool.register_pointers(&stream, 0x1000, 1) }.unwrap();
    let mut state = lock(&registry.state);
    let updated = state.arrays.list.values_mut().next().unwrap();
    updated.ready.note(theirs, theirs.open_tick());
    let tick = theirs.open_tick();
    let pause = || std::thread::sleep(std::time::Duration::from_millis(50));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let holds = scope.spawn(|| array.hold(&stream).unwrap());
        pause();
        let on = &stream;
        let captures = scope.spawn(move || {
            let capture = on.begin_capture().unwrap();
            told.recv().unwrap();
            drop(capture.end().unwrap());
        });
        pause();
        drop(state);
        let held = holds.join().unwrap();
        tell.send(()).unwrap();
        captures.join().unwrap();
        assert!(stream.core().timeline.is_behind(theirs, tick));
        drop(held);
    });
}
