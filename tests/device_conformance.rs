//! One suite for every device: what the host device promises a GPU keeps, and the other way round.
//!
//! Each sentence below is run on each device; afterwards the device must have back everything it
//! handed out.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gate, Memory, copy, fill, leaving_nothing, read, write};
use warpool::device::{Backend, DeviceKind, HandleCounts, Phys, RawEvent, RawStream};
use warpool::{Device, Error};

macro_rules! suite {
    ($($name:ident,)*) => {
        mod host {
            $(#[test] fn $name() { super::leaving_nothing(super::common::host(), super::$name); })*
        }
        mod cuda {
            $(#[test] fn $name() {
                if let Some(device) = super::common::cuda() {
                    super::leaving_nothing(device, super::$name);
                }
            })*
        }
    };
}

suite! {
    bytes_written_are_read_back_whatever_their_number,
    a_place_shows_the_handle_that_is_mapped_there_now,
    one_handle_at_two_addresses_shows_the_same_bytes,
    a_released_handle_lives_while_it_is_mapped,
    a_fill_may_cross_the_border_of_two_mappings,
    a_tebibyte_of_addresses_can_be_reserved,
    wrong_memory_arguments_are_errors_and_change_nothing,
    more_memory_than_there_is_is_an_error_the_pool_can_recognise,
    every_handle_is_counted,
    work_of_one_stream_runs_in_the_order_it_was_given,
    streams_do_not_wait_for_each_other_unasked,
    a_wait_orders_work_across_streams,
    waits_chain_through_a_third_stream,
    waiting_for_a_stream_covers_what_it_was_given_so_far,
    a_wait_holds_what_was_marked_when_it_was_made,
    an_event_never_recorded_is_done_and_holds_nobody,
    an_event_marks_what_was_queued_before_it_and_no_more,
    a_wait_outlives_its_event,
    work_of_a_dropped_stream_still_completes,
    timing_events_measure_the_time_between_them,
    events_without_timing_or_not_done_cannot_be_measured,
    host_calls_run_in_stream_order,
    a_panic_in_a_host_call_is_an_error_at_the_next_wait,
    a_stream_may_be_dropped_by_its_own_work,
    devices_streams_and_events_may_be_dropped_in_any_order,
    stream_ids_are_never_given_twice,
    an_adopted_stream_is_one_stream_and_stays_its_owners,
    objects_of_another_device_are_refused,
    many_threads_may_use_one_device,
}

fn bytes_written_are_read_back_whatever_their_number(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 20);
    for bytes in [0, 1, 3, 4, 15, 16, 17, 4095, 65_537, 1 << 20] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + bytes) as u8).collect();
        fill(&stream, memory.addr, 0, memory.bytes);
        write(&stream, memory.addr, &data);
        assert!(read(&stream, memory.addr, bytes) == data, "{bytes} bytes");
        fill(&stream, memory.addr, 0x5A, bytes as u64);
        assert!(
            read(&stream, memory.addr, bytes)
                .iter()
                .all(|&byte| byte == 0x5A),
            "{bytes} bytes"
        );
    }
}

fn a_place_shows_the_handle_that_is_mapped_there_now(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(2 * granule).unwrap();
    let handles = [
        backend.create(granule).unwrap(),
        backend.create(granule).unwrap(),
    ];
    let places = [addr, addr + granule];
    for (byte, (&place, &phys)) in (1u8..).zip(places.iter().zip(&handles)) {
        backend.map(place, granule, phys).unwrap();
        fill(&stream, place, byte, granule);
    }
    stream.synchronize().unwrap();
    for place in places {
        backend.unmap(place, granule).unwrap();
    }
    backend.map(places[0], granule, handles[1]).unwrap();
    backend.map(places[1], granule, handles[0]).unwrap();
    assert!(
        read(&stream, places[0], granule as usize)
            .iter()
            .all(|&byte| byte == 2)
    );
    assert!(
        read(&stream, places[1], granule as usize)
            .iter()
            .all(|&byte| byte == 1)
    );
    for (place, phys) in places.into_iter().zip(handles) {
        backend.unmap(place, granule).unwrap();
        backend.release(phys).unwrap();
    }
    backend.unreserve(addr, 2 * granule).unwrap();
}

fn one_handle_at_two_addresses_shows_the_same_bytes(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(4 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    let twin = addr + 2 * granule;
    backend.map(addr, granule, phys).unwrap();
    fill(&stream, addr, 0x11, granule);
    backend.map(twin, granule, phys).unwrap();
    assert_eq!(read(&stream, twin + 100, 1), [0x11]);
    fill(&stream, twin + 100, 0x22, 1);
    assert_eq!(read(&stream, addr + 99, 3), [0x11, 0x22, 0x11]);
    backend.unmap(addr, granule).unwrap();
    assert_eq!(
        read(&stream, twin + 100, 1),
        [0x22],
        "the other mapping stands"
    );
    backend.unmap(twin, granule).unwrap();
    backend.release(phys).unwrap();
    backend.unreserve(addr, 4 * granule).unwrap();
}

fn a_released_handle_lives_while_it_is_mapped(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(granule).unwrap();
    let phys = backend.create(granule).unwrap();
    backend.map(addr, granule, phys).unwrap();
    fill(&stream, addr, 0x33, granule);
    backend.release(phys).unwrap();
    let other = backend.create(granule).unwrap();
    assert_eq!(read(&stream, addr + granule - 1, 1), [0x33]);
    assert!(matches!(backend.release(phys), Err(Error::Invalid { .. })));
    backend.unmap(addr, granule).unwrap();
    assert!(matches!(
        backend.map(addr, granule, phys),
        Err(Error::Invalid { .. })
    ));
    backend.release(other).unwrap();
    backend.unreserve(addr, granule).unwrap();
}

fn a_fill_may_cross_the_border_of_two_mappings(device: &Device) {
    let stream = device.stream().unwrap();
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(2 * granule).unwrap();
    let handles = [
        backend.create(granule).unwrap(),
        backend.create(granule).unwrap(),
    ];
    backend.map(addr, granule, handles[1]).unwrap();
    backend.map(addr + granule, granule, handles[0]).unwrap();
    fill(&stream, addr, 0, 2 * granule);
    fill(&stream, addr + granule - 2, 7, 4);
    assert_eq!(read(&stream, addr + granule - 3, 6), [0, 7, 7, 7, 7, 0]);
    backend.unmap(addr, granule).unwrap();
    backend.unmap(addr + granule, granule).unwrap();
    for phys in handles {
        backend.release(phys).unwrap();
    }
    backend.unreserve(addr, 2 * granule).unwrap();
}

fn a_tebibyte_of_addresses_can_be_reserved(device: &Device) {
    let backend = device.backend();
    let addr = backend.reserve(1 << 40).unwrap();
    assert_eq!(addr % device.info().granule, 0);
    backend.unreserve(addr, 1 << 40).unwrap();
}

fn wrong_memory_arguments_are_errors_and_change_nothing(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let addr = backend.reserve(4 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    let big = backend.create(2 * granule).unwrap();
    backend.map(addr + granule, granule, phys).unwrap();
    let before = backend.counts();
    let refused = [
        ("reserve nothing", backend.reserve(0).map(|_| ())),
        (
            "reserve part of a granule",
            backend.reserve(granule + 4096).map(|_| ()),
        ),
        (
            "reserve more than there are addresses",
            backend.reserve(u64::MAX - granule + 1).map(|_| ()),
        ),
        ("create nothing", backend.create(0).map(|_| ())),
        (
            "create part of a granule",
            backend.create(granule / 2).map(|_| ()),
        ),
        (
            "unreserve part of a range",
            backend.unreserve(addr, granule),
        ),
        (
            "unreserve inside a range",
            backend.unreserve(addr + granule, granule),
        ),
        (
            "unreserve what was not reserved",
            backend.unreserve(granule, granule),
        ),
        (
            "unreserve under a mapping",
            backend.unreserve(addr, 4 * granule),
        ),
        (
            "map over a mapping",
            backend.map(addr + granule, granule, phys),
        ),
        (
            "map into a mapping from below",
            backend.map(addr, 2 * granule, big),
        ),
        (
            "map part of a handle",
            backend.map(addr + 2 * granule, granule, big),
        ),
        (
            "map more than a handle",
            backend.map(addr + 2 * granule, 2 * granule, phys),
        ),
        (
            "map off the granule",
            backend.map(addr + 2 * granule + 4096, granule, phys),
        ),
        ("map outside any range", backend.map(granule, granule, phys)),
        (
            "map over the end of a range",
            backend.map(addr + 3 * granule, 2 * granule, big),
        ),
        (
            "map an unknown handle",
            backend.map(addr, granule, Phys(u64::MAX)),
        ),
        ("release an unknown handle", backend.release(Phys(u64::MAX))),
        ("unmap what is not mapped", backend.unmap(addr, granule)),
        (
            "unmap more than a mapping",
            backend.unmap(addr + granule, 2 * granule),
        ),
    ];
    for (what, result) in refused {
        let invalid = matches!(result, Err(Error::Invalid { .. }));
        // The size of the address space is the driver's to say.
        let known_to_the_driver =
            matches!(result, Err(Error::Driver { .. })) && what.contains("addresses");
        assert!(invalid || known_to_the_driver, "{what}: {result:?}");
    }
    assert_eq!(backend.counts(), before);
    // What was there still works.
    let stream = device.stream().unwrap();
    fill(&stream, addr + granule, 9, granule);
    assert_eq!(read(&stream, addr + 2 * granule - 1, 1), [9]);
    backend.map(addr + 2 * granule, 2 * granule, big).unwrap();
    backend.unmap(addr + 2 * granule, 2 * granule).unwrap();
    backend.unmap(addr + granule, granule).unwrap();
    backend.release(phys).unwrap();
    backend.release(big).unwrap();
    assert!(
        matches!(backend.release(big), Err(Error::Invalid { .. })),
        "released twice"
    );
    backend.unreserve(addr, 4 * granule).unwrap();
    assert!(
        matches!(
            backend.unreserve(addr, 4 * granule),
            Err(Error::Invalid { .. })
        ),
        "given back twice"
    );
}

fn more_memory_than_there_is_is_an_error_the_pool_can_recognise(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let total = device.info().total_bytes;
    let too_much = (total + granule).next_multiple_of(granule);
    let before = backend.counts();
    let error = backend.create(too_much).unwrap_err();
    assert!(error.is_device_exhausted(), "{error}");
    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
    assert_eq!(backend.counts(), before);
    assert!(backend.free_bytes().unwrap() <= total);
    let phys = backend.create(granule).unwrap();
    backend.release(phys).unwrap();
}

fn every_handle_is_counted(device: &Device) {
    let backend = device.backend();
    let granule = device.info().granule;
    let start = HandleCounts::default();
    assert_eq!(backend.counts(), start);
    let addr = backend.reserve(2 * granule).unwrap();
    let phys = backend.create(granule).unwrap();
    backend.map(addr, granule, phys).unwrap();
    backend.map(addr + granule, granule, phys).unwrap();
    let (stream, event) = (
        backend.stream_create().unwrap(),
        backend.event_create(true).unwrap(),
    );
    let all = HandleCounts {
        ranges: 1,
        handles: 1,
        mappings: 2,
        streams: 1,
        events: 1,
    };
    assert_eq!(backend.counts(), all);
    backend.release(phys).unwrap();
    assert_eq!(
        backend.counts(),
        HandleCounts { handles: 0, ..all },
        "counted until released, mapped or not"
    );
    backend.unmap(addr, granule).unwrap();
    backend.unmap(addr + granule, granule).unwrap();
    backend.unreserve(addr, 2 * granule).unwrap();
    assert_eq!(
        backend.counts(),
        HandleCounts {
            streams: 1,
            events: 1,
            ..start
        }
    );
    backend.stream_destroy(stream).unwrap();
    backend.event_destroy(event).unwrap();
    assert_eq!(backend.counts(), start);
    assert!(backend.stream_destroy(stream).is_err() && backend.event_destroy(event).is_err());
    assert!(backend.stream_destroy(RawStream(u64::MAX)).is_err());
    assert!(backend.event_destroy(RawEvent(u64::MAX)).is_err());
    assert_eq!(backend.counts(), start);
}

fn work_of_one_stream_runs_in_the_order_it_was_given(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 16);
    let slots = memory.addr + 4096;
    let gate = Gate::close(&stream);
    for i in 0..200u64 {
        fill(&stream, memory.addr, i as u8, 64);
        copy(&stream, slots + 64 * i, memory.addr, 64);
    }
    assert!(!stream.is_idle().unwrap());
    gate.open();
    let got = read(&stream, slots, 64 * 200);
    assert!(stream.is_idle().unwrap());
    for (i, slot) in got.chunks(64).enumerate() {
        assert!(
            slot.iter().all(|&byte| byte == i as u8),
            "slot {i} holds {:?}",
            &slot[..4]
        );
    }
}

fn streams_do_not_wait_for_each_other_unasked(device: &Device) {
    let (held, free) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = Memory::new(device, 1 << 16);
    let gate = Gate::close(&held);
    fill(&held, memory.addr, 1, 64);
    fill(&free, memory.addr + 4096, 2, 64);
    assert_eq!(read(&free, memory.addr + 4096, 1), [2]);
    assert!(!held.is_idle().unwrap() && free.is_idle().unwrap());
    gate.open();
    held.synchronize().unwrap();
    assert_eq!(read(&free, memory.addr, 1), [1]);
}

fn a_wait_orders_work_across_streams(device: &Device) {
    let (producer, consumer) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = Memory::new(device, 1 << 16);
    let seen = memory.addr + 4096;
    let event = device.event().unwrap();
    for round in 1..=50u8 {
        let gate = Gate::close(&producer);
        fill(&producer, memory.addr, round, 256);
        event.record(&producer).unwrap();
        consumer.wait(&event).unwrap();
        copy(&consumer, seen, memory.addr, 256);
        assert!(
            !consumer.is_idle().unwrap(),
            "round {round}: the consumer ran ahead"
        );
        gate.open();
        assert_eq!(read(&consumer, seen, 256), vec![round; 256]);
    }
}

fn waits_chain_through_a_third_stream(device: &Device) {
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let memory = Memory::new(device, 1 << 16);
    let events: Vec<_> = (0..2).map(|_| device.event().unwrap()).collect();
    for round in 1..=20u8 {
        let gate = Gate::close(&streams[0]);
        fill(&streams[0], memory.addr, round, 64);
        events[0].record(&streams[0]).unwrap();
        streams[1].wait(&events[0]).unwrap();
        events[1].record(&streams[1]).unwrap();
        streams[2].wait(&events[1]).unwrap();
        copy(&streams[2], memory.addr + 4096, memory.addr, 64);
        assert!(!events[1].is_done().unwrap());
        gate.open();
        assert_eq!(read(&streams[2], memory.addr + 4096, 64), [round; 64]);
        assert!(events.iter().all(|event| event.is_done().unwrap()));
    }
}

fn waiting_for_a_stream_covers_what_it_was_given_so_far(device: &Device) {
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = Memory::new(device, 1 << 16);
    for round in 1..=20u8 {
        let gate = Gate::close(&first);
        fill(&first, memory.addr, round, 64);
        second.wait_stream(&first).unwrap();
        copy(&second, memory.addr + 4096, memory.addr, 64);
        // Work that comes later is not waited for.
        gate.open();
        let later = Gate::close(&first);
        assert_eq!(read(&second, memory.addr + 4096, 64), [round; 64]);
        assert!(!first.is_idle().unwrap());
        later.open();
    }
    first.wait_stream(&first).unwrap();
    first.synchronize().unwrap();
}

fn a_wait_holds_what_was_marked_when_it_was_made(device: &Device) {
    let streams: Vec<_> = (0..3).map(|_| device.stream().unwrap()).collect();
    let [held, waiter, idle] = &streams[..] else {
        unreachable!()
    };
    let event = device.event().unwrap();
    let gate = Gate::close(held);
    event.record(held).unwrap();
    assert!(!event.is_done().unwrap());
    waiter.wait(&event).unwrap();
    event.record(idle).unwrap();
    event.synchronize().unwrap();
    assert!(
        event.is_done().unwrap(),
        "the event marks the idle stream now"
    );
    std::thread::sleep(Duration::from_millis(5));
    assert!(
        !waiter.is_idle().unwrap(),
        "the wait was for the first mark"
    );
    // And the other way round: a wait for the new mark does not wait for the old one.
    let other = device.stream().unwrap();
    other.wait(&event).unwrap();
    other.synchronize().unwrap();
    gate.open();
    waiter.synchronize().unwrap();
}

fn an_event_never_recorded_is_done_and_holds_nobody(device: &Device) {
    let (held, waiter) = (device.stream().unwrap(), device.stream().unwrap());
    let event = device.event().unwrap();
    assert!(event.is_done().unwrap());
    event.synchronize().unwrap();
    waiter.wait(&event).unwrap();
    let gate = Gate::close(&held);
    event.record(&held).unwrap();
    waiter.synchronize().unwrap();
    assert!(!event.is_done().unwrap());
    gate.open();
    event.synchronize().unwrap();
}

fn an_event_marks_what_was_queued_before_it_and_no_more(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 16);
    let event = device.event().unwrap();
    fill(&stream, memory.addr, 4, 64);
    event.record(&stream).unwrap();
    let gate = Gate::close(&stream);
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap() && !stream.is_idle().unwrap());
    let other = device.stream().unwrap();
    assert_eq!(read(&other, memory.addr, 64), [4; 64]);
    gate.open();
    stream.synchronize().unwrap();
}

fn a_wait_outlives_its_event(device: &Device) {
    let (held, waiter) = (device.stream().unwrap(), device.stream().unwrap());
    let memory = Memory::new(device, 1 << 16);
    let gate = Gate::close(&held);
    fill(&held, memory.addr, 8, 64);
    let event = device.event().unwrap();
    event.record(&held).unwrap();
    waiter.wait(&event).unwrap();
    drop(event);
    copy(&waiter, memory.addr + 4096, memory.addr, 64);
    assert!(!waiter.is_idle().unwrap());
    gate.open();
    assert_eq!(read(&waiter, memory.addr + 4096, 64), [8; 64]);
}

fn work_of_a_dropped_stream_still_completes(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let event = device.event().unwrap();
    let stream = device.stream().unwrap();
    let gate = Gate::close(&stream);
    fill(&stream, memory.addr, 6, 64);
    event.record(&stream).unwrap();
    // On a driver that waits for the stream's work here, the gate must be open soon.
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
    });
    drop(stream);
    event.synchronize().unwrap();
    let reader = device.stream().unwrap();
    assert_eq!(read(&reader, memory.addr, 64), [6; 64]);
    opener.join().unwrap();
}

fn timing_events_measure_the_time_between_them(device: &Device) {
    let stream = device.stream().unwrap();
    let (start, end) = (
        device.timing_event().unwrap(),
        device.timing_event().unwrap(),
    );
    start.record(&stream).unwrap();
    let nap = Box::new(|| std::thread::sleep(Duration::from_millis(20)));
    device.backend().host_call(stream.raw(), nap).unwrap();
    end.record(&stream).unwrap();
    end.synchronize().unwrap();
    let ns = end.elapsed_ns(&start).unwrap();
    assert!((19.0e6..60.0e9).contains(&ns), "{ns} ns");
    // Recorded again, the event has a new time.
    start.record(&stream).unwrap();
    end.record(&stream).unwrap();
    stream.synchronize().unwrap();
    let ns = end.elapsed_ns(&start).unwrap();
    assert!((0.0..19.0e6).contains(&ns), "{ns} ns");
}

fn events_without_timing_or_not_done_cannot_be_measured(device: &Device) {
    let stream = device.stream().unwrap();
    let (plain, start, end) = (
        device.event().unwrap(),
        device.timing_event().unwrap(),
        device.timing_event().unwrap(),
    );
    assert!(end.elapsed_ns(&start).is_err(), "never recorded");
    start.record(&stream).unwrap();
    plain.record(&stream).unwrap();
    let gate = Gate::close(&stream);
    end.record(&stream).unwrap();
    let early = end.elapsed_ns(&start).unwrap_err();
    assert!(matches!(early, Error::Driver { code: 600, .. }), "{early}");
    gate.open();
    stream.synchronize().unwrap();
    assert!(end.elapsed_ns(&plain).is_err(), "made without timing");
    assert!(end.elapsed_ns(&start).unwrap() >= 0.0);
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
    assert!(!device.same(&other) && device.same(&device.clone()));
}

fn many_threads_may_use_one_device(device: &Device) {
    let memory = Memory::new(device, 1 << 20);
    let turn = device.event().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (addr, turn) = (memory.addr + thread * 65_536, &turn);
            scope.spawn(move || {
                let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
                for round in 1..=50u8 {
                    fill(&first, addr, round, 4096);
                    turn.record(&first).unwrap();
                    second.wait(turn).unwrap();
                    second.wait_stream(&first).unwrap();
                    copy(&second, addr + 8192, addr, 4096);
                    first.wait_stream(&second).unwrap();
                }
                assert_eq!(read(&first, addr + 8192, 4096), vec![50; 4096]);
            });
        }
    });
}

#[test]
fn a_gpu_beyond_the_last_is_unavailable_and_says_how_many_there_are() {
    let error = Device::cuda(4095).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    if let Ok(count) = Device::cuda_count() {
        assert!(
            error.to_string().contains(&format!("sees {count}")),
            "{error}"
        );
    } else {
        let text = error.to_string();
        assert!(text.contains("driver"), "{text}");
        assert!(
            text.contains("Device::host"),
            "the next step is named: {text}"
        );
    }
}

#[test]
fn any_device_is_the_gpu_or_says_why_not() {
    let (device, reason) = Device::any().unwrap();
    assert_eq!(device.info().kind == DeviceKind::Host, reason.is_some());
    assert_eq!(device.info().granule % 4096, 0);
}

#[test]
fn the_host_device_has_the_capacity_it_was_given_and_no_more() {
    let config = warpool::device::HostConfig::default().with_capacity((8 << 20) + 4096);
    let device = Device::host_with(config).unwrap();
    let backend: &Arc<dyn Backend> = device.backend();
    assert_eq!(
        (device.info().total_bytes, backend.free_bytes().unwrap()),
        (8 << 20, 8 << 20)
    );
    let handles: Vec<_> = (0..4).map(|_| backend.create(2 << 20).unwrap()).collect();
    assert_eq!(backend.free_bytes().unwrap(), 0);
    assert!(backend.create(2 << 20).unwrap_err().is_device_exhausted());
    for phys in handles {
        backend.release(phys).unwrap();
    }
    assert_eq!(backend.free_bytes().unwrap(), 8 << 20);
    let nothing = warpool::device::HostConfig::default().with_capacity(4096);
    assert!(matches!(
        Device::host_with(nothing),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn a_host_call_may_not_wait_for_device_work_on_the_host_device() {
    let device = common::host();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let answer = Arc::new(Mutex::new(None));
    let (its, backend) = (Arc::clone(&answer), Arc::clone(device.backend()));
    let raw = other.raw();
    let work = Box::new(move || *its.lock().unwrap() = Some(backend.stream_sync(raw)));
    device.backend().host_call(stream.raw(), work).unwrap();
    stream.synchronize().unwrap();
    let answer = answer.lock().unwrap().take().unwrap();
    assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
}
