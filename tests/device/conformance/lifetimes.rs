//! Host calls, and the lives of streams, events and devices.

use crate::common::BackendOf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use warpool::device::DeviceKind;
use warpool::{Device, Error};

use crate::common::{
    Memory, copy, fill, for_threads, on_every_device, on_the_simulated_device, read,
};

on_every_device! {
    host_calls_run_in_stream_order,
    a_panic_in_a_host_call_is_an_error_at_the_next_wait,
    a_stream_may_be_dropped_by_its_own_work,
    devices_streams_and_events_may_be_dropped_in_any_order,
    stream_ids_are_never_given_twice,
    an_adopted_stream_is_one_stream_and_stays_its_owners,
    objects_of_another_device_are_refused,
    many_threads_may_use_one_device,
}

on_the_simulated_device! {
    stream_ids_are_never_given_twice,
    an_adopted_stream_is_one_stream_and_stays_its_owners,
    objects_of_another_device_are_refused,
}

fn host_calls_run_in_stream_order(device: &Device) {
    let stream = device.stream().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    for i in 0..100 {
        let order = Arc::clone(&order);
        let work = Box::new(move || order.lock().unwrap().push(i));
        device.backend().host_call(stream.raw(), work).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
    assert_eq!(
        Arc::strong_count(&order),
        1,
        "work is dropped once it has run"
    );
}

fn a_panic_in_a_host_call_is_an_error_at_the_next_wait(device: &Device) {
    let stream = device.stream().unwrap();
    let work = Box::new(|| std::panic::resume_unwind(Box::new("the cat is on the table")));
    device.backend().host_call(stream.raw(), work).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(
        error.to_string().contains("the cat is on the table"),
        "{error}"
    );
    assert!(
        stream.synchronize().is_err() && stream.is_idle().is_err(),
        "the error stays"
    );
    // The stream still runs what it is given.
    let ran = Arc::new(AtomicU32::new(0));
    let its = Arc::clone(&ran);
    let work = Box::new(move || its.store(1, Ordering::SeqCst));
    device.backend().host_call(stream.raw(), work).unwrap();
    assert!(stream.synchronize().is_err());
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

fn a_stream_may_be_dropped_by_its_own_work(device: &Device) {
    if device.info().kind == DeviceKind::Cuda {
        // The driver forbids calls from host calls; there the stream is dropped beside them.
        let stream = device.stream().unwrap();
        device
            .backend()
            .host_call(stream.raw(), Box::new(|| ()))
            .unwrap();
        return;
    }
    let stream = device.stream().unwrap();
    let raw = stream.raw();
    let event = device.event().unwrap();
    let backend = Arc::clone(device.backend());
    let ran = Arc::new(AtomicU32::new(0));
    let its = Arc::clone(&ran);
    backend
        .host_call(raw, Box::new(move || drop(stream)))
        .unwrap();
    let last = Box::new(move || its.store(1, Ordering::SeqCst));
    // Either the stream is still there and does this too, or it is gone and says so.
    let queued = backend
        .host_call(raw, last)
        .and_then(|()| backend.event_record(event.raw(), raw));
    if queued.is_ok() {
        event.synchronize().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }
    while backend.counts().streams > 0 {
        std::thread::yield_now();
    }
}

fn devices_streams_and_events_may_be_dropped_in_any_order(device: &Device) {
    // Six orders of (device clone, stream, event), the stream with work and a wait in it.
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let (other, stream) = (device.stream().unwrap(), device.stream().unwrap());
        let event = device.event().unwrap();
        event.record(&other).unwrap();
        stream.wait(&event).unwrap();
        stream.wait_stream(&other).unwrap();
        device
            .backend()
            .host_call(stream.raw(), Box::new(|| ()))
            .unwrap();
        let (mut device, mut stream, mut event) = (Some(device.clone()), Some(stream), Some(event));
        for what in order {
            match what {
                0 => drop(device.take()),
                1 => drop(stream.take()),
                _ => drop(event.take()),
            }
        }
    }
}

fn stream_ids_are_never_given_twice(device: &Device) {
    let backend = device.backend();
    let mut ids = std::collections::HashSet::new();
    for _ in 0..50 {
        let stream = backend.stream_create().unwrap();
        let id = backend.stream_id(stream).unwrap();
        assert_eq!(backend.stream_id(stream).unwrap(), id);
        assert!(ids.insert(id), "stream id {id} was given before");
        backend.stream_destroy(stream).unwrap();
    }
}

fn an_adopted_stream_is_one_stream_and_stays_its_owners(device: &Device) {
    let backend = device.backend();
    let raw = backend.stream_create().unwrap();
    {
        // SAFETY: the stream lives until the end of this test, longer than what is adopted.
        let (first, second) = unsafe {
            (
                device.adopt_stream(raw).unwrap(),
                device.adopt_stream(raw).unwrap(),
            )
        };
        assert_eq!(first, second);
        assert_eq!(first.raw(), raw);
        let own = device.stream().unwrap();
        assert_ne!(first, own);
        own.wait_stream(&first).unwrap();
        own.synchronize().unwrap();
    }
    assert_eq!(
        backend.counts().streams,
        1,
        "letting go of an adopted stream does not destroy it"
    );
    // SAFETY: as above.
    let again = unsafe { device.adopt_stream(raw).unwrap() };
    again.synchronize().unwrap();
    drop(again);
    backend.stream_destroy(raw).unwrap();
}

fn objects_of_another_device_are_refused(device: &Device) {
    let other = Device::host().unwrap();
    let (here, there) = (device.stream().unwrap(), other.stream().unwrap());
    let event = other.event().unwrap();
    assert!(matches!(
        here.wait_stream(&there),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(here.wait(&event), Err(Error::Invalid { .. })));
    assert!(matches!(event.record(&here), Err(Error::Invalid { .. })));
    assert!(*device != other && *device == device.clone());
}

fn many_threads_may_use_one_device(device: &Device) {
    const ROUNDS: u8 = 50;
    const BYTES: u64 = 4096;
    let device = &for_threads(device);
    // A thread's: what is written in each round, and a copy of it for every round.
    let each = (u64::from(ROUNDS) + 1) * BYTES;
    let memory = Memory::new(device, 8 * each);
    let turn = device.event().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (addr, turn) = (memory.addr + thread * each, &turn);
            scope.spawn(move || {
                let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
                for round in 1..=ROUNDS {
                    fill(&first, addr, round, BYTES);
                    turn.record(&first).unwrap();
                    second.wait(turn).unwrap();
                    second.wait_stream(&first).unwrap();
                    copy(&second, addr + u64::from(round) * BYTES, addr, BYTES);
                    first.wait_stream(&second).unwrap();
                }
                let copies = read(&first, addr + BYTES, (each - BYTES) as usize);
                for (round, copied) in (1..=ROUNDS).zip(copies.chunks_exact(BYTES as usize)) {
                    assert!(copied.iter().all(|&byte| byte == round), "{round}");
                }
            });
        }
    });
}
