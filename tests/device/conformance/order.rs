//! What runs before what: streams, events and waits.

use crate::common::BackendOf;
use std::time::Duration;

use warpool::{Device, Error};

use crate::common::{Gate, Memory, copy, fill, on_every_device, read};

on_every_device! {
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
