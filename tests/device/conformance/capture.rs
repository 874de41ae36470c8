//! Work recorded into graphs and launched from them.

use crate::common::BackendOf;
use warpool::device::HandleCounts;
use warpool::{Device, Error};

use crate::common::{Gate, Memory, copy, fill, on_every_device, read};

on_every_device! {
    captured_work_runs_when_it_is_launched_and_each_time_it_is,
    a_stream_that_waits_for_a_captured_one_joins_the_capture,
    work_joins_a_capture_through_an_event_recorded_in_it,
    a_stream_that_joined_and_is_not_waited_for_makes_the_capture_fail,
    a_stream_under_capture_cannot_be_waited_for_and_the_capture_goes_on,
    an_event_recorded_in_a_capture_marks_nothing_outside,
    what_a_captured_stream_waits_for_is_waited_for_by_the_launches,
    work_given_before_the_capture_runs_before_the_launches,
    a_host_call_is_not_captured,
    a_stream_is_captured_once_at_a_time,
    a_capture_that_is_dropped_records_nothing,
    a_graph_dropped_while_it_runs_still_completes,
    graphs_are_counted,
}

fn is_invalid<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Invalid { .. })), "{outcome:?}");
}

fn captured_work_runs_when_it_is_launched_and_each_time_it_is(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let (a, b) = (memory.addr, memory.addr + 4096);
    fill(&stream, a, 1, 64);
    fill(&stream, b, 2, 64);
    stream.synchronize().unwrap();
    let capture = stream.begin_capture().unwrap();
    assert!(stream.is_capturing().unwrap());
    copy(&stream, b, a, 64);
    let graph = capture.end().unwrap();
    assert!(!stream.is_capturing().unwrap());
    assert_eq!(read(&stream, b, 1), [2], "recorded, not run");
    for byte in 10..20 {
        fill(&other, a, byte, 64);
        graph.launch(&other).unwrap();
        assert_eq!(read(&other, b, 64), [byte; 64]);
    }
}

fn a_stream_that_waits_for_a_captured_one_joins_the_capture(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let (a, b, c) = (memory.addr, memory.addr + 4096, memory.addr + 8192);
    let capture = first.begin_capture().unwrap();
    fill(&first, a, 5, 64);
    second.wait_stream(&first).unwrap();
    assert!(second.is_capturing().unwrap());
    copy(&second, b, a, 64);
    first.wait_stream(&second).unwrap();
    copy(&first, c, b, 64);
    let graph = capture.end().unwrap();
    assert!(!second.is_capturing().unwrap());
    fill(&first, c, 0, 64);
    graph.launch(&first).unwrap();
    assert_eq!(read(&first, c, 64), [5; 64]);
    // Both streams work as before.
    fill(&second, a, 7, 64);
    second.synchronize().unwrap();
    assert_eq!(read(&first, a, 1), [7]);
}

fn work_joins_a_capture_through_an_event_recorded_in_it(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let (there, back) = (device.event().unwrap(), device.event().unwrap());
    let capture = first.begin_capture().unwrap();
    fill(&first, memory.addr, 9, 64);
    there.record(&first).unwrap();
    second.wait(&there).unwrap();
    copy(&second, memory.addr + 4096, memory.addr, 64);
    back.record(&second).unwrap();
    first.wait(&back).unwrap();
    let graph = capture.end().unwrap();
    graph.launch(&second).unwrap();
    assert_eq!(read(&second, memory.addr + 4096, 64), [9; 64]);
    is_invalid(second.wait(&there));
    there.record(&first).unwrap();
    second.wait(&there).unwrap();
    there.synchronize().unwrap();
}

fn a_stream_that_joined_and_is_not_waited_for_makes_the_capture_fail(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = first.begin_capture().unwrap();
    second.wait_stream(&first).unwrap();
    fill(&second, memory.addr, 1, 64);
    let outcome = capture.end();
    assert!(matches!(outcome, Err(Error::Driver { .. })), "{outcome:?}");
    for stream in [&first, &second] {
        assert!(!stream.is_capturing().unwrap(), "the capture has ended");
        fill(stream, memory.addr, 2, 64);
        stream.synchronize().unwrap();
    }
}

fn a_stream_under_capture_cannot_be_waited_for_and_the_capture_goes_on(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (stream, outside) = (device.stream().unwrap(), device.stream().unwrap());
    let capture = stream.begin_capture().unwrap();
    is_invalid(stream.synchronize());
    is_invalid(stream.is_idle());
    fill(&stream, memory.addr, 3, 64);
    outside.synchronize().unwrap();
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, memory.addr, 64), [3; 64]);
}

fn an_event_recorded_in_a_capture_marks_nothing_outside(device: &Device) {
    let stream = device.stream().unwrap();
    let event = device.event().unwrap();
    let capture = stream.begin_capture().unwrap();
    event.record(&stream).unwrap();
    is_invalid(event.is_done());
    is_invalid(event.synchronize());
    let graph = capture.end().unwrap();
    is_invalid(event.is_done());
    graph.launch(&stream).unwrap();
    event.record(&stream).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
}

fn what_a_captured_stream_waits_for_is_waited_for_by_the_launches(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let streams = [(); 4].map(|()| device.stream().unwrap());
    let [captured, by_stream, by_event, taker] = &streams;
    let (a, b, out) = (memory.addr, memory.addr + 4096, memory.addr + 8192);
    let gate = Gate::close(by_stream);
    by_event.wait_stream(by_stream).unwrap();
    fill(by_stream, a, 1, 64);
    fill(by_event, b, 2, 64);
    let event = device.event().unwrap();
    event.record(by_event).unwrap();
    let capture = captured.begin_capture().unwrap();
    captured.wait_stream(by_stream).unwrap();
    captured.wait(&event).unwrap();
    copy(captured, out, a, 64);
    copy(captured, out + 64, b, 64);
    let graph = capture.end().unwrap();
    graph.launch(taker).unwrap();
    assert!(!taker.is_idle().unwrap(), "the launch runs ahead");
    gate.open();
    let got = read(taker, out, 128);
    assert_eq!((got[0], got[64]), (1, 2));
}

fn work_given_before_the_capture_runs_before_the_launches(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (stream, taker) = (device.stream().unwrap(), device.stream().unwrap());
    let gate = Gate::close(&stream);
    fill(&stream, memory.addr, 4, 64);
    let capture = stream.begin_capture().unwrap();
    copy(&stream, memory.addr + 4096, memory.addr, 64);
    let graph = capture.end().unwrap();
    graph.launch(&taker).unwrap();
    assert!(!taker.is_idle().unwrap(), "the launch runs ahead");
    gate.open();
    assert_eq!(read(&taker, memory.addr + 4096, 64), [4; 64]);
}

fn a_host_call_is_not_captured(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    let refused = device
        .backend()
        .host_call(stream.raw(), Box::new(|| panic!("it is not run")));
    assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    fill(&stream, memory.addr, 6, 64);
    let graph = capture.end().unwrap();
    graph.launch(&stream).unwrap();
    assert_eq!(read(&stream, memory.addr, 64), [6; 64]);
}

fn a_stream_is_captured_once_at_a_time(device: &Device) {
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let one = first.begin_capture().unwrap();
    is_invalid(first.begin_capture());
    is_invalid(first.note_capture().map(|_| ()));
    let two = second.begin_capture().unwrap();
    is_invalid(first.wait_stream(&second));
    let graph = one.end().unwrap();
    is_invalid(graph.launch(&second));
    two.end().unwrap();
    graph.launch(&second).unwrap();
    second.synchronize().unwrap();
}

fn a_capture_that_is_dropped_records_nothing(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let (stream, joined) = (device.stream().unwrap(), device.stream().unwrap());
    fill(&stream, memory.addr, 1, 64);
    let capture = stream.begin_capture().unwrap();
    joined.wait_stream(&stream).unwrap();
    fill(&stream, memory.addr, 2, 64);
    drop(capture);
    assert!(!stream.is_capturing().unwrap() && !joined.is_capturing().unwrap());
    assert_eq!(read(&stream, memory.addr, 1), [1]);
}

fn a_graph_dropped_while_it_runs_still_completes(device: &Device) {
    let memory = Memory::new(device, 1 << 16);
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    fill(&stream, memory.addr, 8, 64);
    let graph = capture.end().unwrap();
    fill(&stream, memory.addr, 0, 64);
    let gate = Gate::close(&stream);
    graph.launch(&stream).unwrap();
    drop(graph);
    gate.open();
    assert_eq!(read(&stream, memory.addr, 64), [8; 64]);
}

fn graphs_are_counted(device: &Device) {
    let backend = device.backend();
    let stream = device.stream().unwrap();
    backend.capture_begin(stream.raw()).unwrap();
    let graph = backend.capture_end(stream.raw()).unwrap();
    assert_eq!(backend.counts().graphs, 1);
    backend.graph_destroy(graph).unwrap();
    assert!(backend.graph_destroy(graph).is_err());
    assert!(backend.capture_end(stream.raw()).is_err(), "none began");
    drop(stream);
    assert_eq!(backend.counts(), HandleCounts::default());
}
