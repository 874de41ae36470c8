//! What is kept, and for how long.

use super::{of, streams};
use crate::device::timeline::MARKS;
use crate::device::timeline::waits::SHORT_CLOCK;
use crate::device::{Device, lock};

#[test]
fn a_stream_that_others_only_wait_for_keeps_few_events() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let open = |device: &Device| device.backend().counts().events;
    let before = open(&device);
    for round in 0..1000 {
        // New work to wait for each time.
        b.wait_stream(&a).unwrap();
        if round % 16 == 0 {
            device.backend().stream_sync(a.raw()).unwrap();
        }
    }
    assert!(open(&device) - before <= MARKS as u64 + 16);
}

#[test]
fn a_graph_keeps_no_streams_that_nobody_else_has() {
    let device = Device::host().unwrap();
    let stream = device.stream().unwrap();
    let graph = stream.begin_capture().unwrap().end().unwrap();
    for _ in 0..50 {
        graph.launch(&device.stream().unwrap()).unwrap();
    }
    let streams = device.counts().streams;
    assert!(streams <= 5, "{streams} streams");
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_graph_keeps_no_adopted_streams_whose_owners_nobody_else_has() {
    let device = Device::host().unwrap();
    let graph = device.stream().unwrap();
    let graph = graph.begin_capture().unwrap().end().unwrap();
    let owners = [(); 50].map(|()| {
        let raw = device.backend().stream_create().unwrap();
        let owner = std::sync::Arc::new(());
        let weak = std::sync::Arc::downgrade(&owner);
        // SAFETY: nobody destroys it.
        let stream = unsafe { device.adopt_owned(raw, owner) }.unwrap();
        graph.launch(&stream).unwrap();
        weak
    });
    let kept = owners.iter().filter(|it| it.strong_count() > 0).count();
    assert!(kept <= 1, "{kept} streams");
}

#[test]
fn a_stream_keeps_no_more_of_its_graphs_than_may_run_still() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let graph = || a.begin_capture().unwrap().end().unwrap();
    let kept = graph();
    for _ in 0..50 {
        let gone = graph();
        gone.launch(&b).unwrap();
        drop(gone);
        device.backend().stream_sync(b.raw()).unwrap();
    }
    assert!(lock(&of(&a).graphs).len() <= 4);
    let timeline = std::sync::Arc::downgrade(&a.core().timeline);
    kept.launch(&a).unwrap();
    drop((kept, a, b));
    assert!(timeline.upgrade().is_none(), "it keeps itself");
}

#[test]
fn a_clock_forgets_streams_that_are_gone_and_no_others() {
    let device = Device::host().unwrap();
    let [a, b, kept] = streams(&device);
    let tick = of(&kept).open_tick();
    b.wait_stream(&kept).unwrap();
    for _ in 0..500 {
        let gone = device.stream().unwrap();
        b.wait_stream(&gone).unwrap();
        a.wait_stream(&b).unwrap();
    }
    for stream in [&a, &b] {
        let length = lock(&of(stream).order).seen.len();
        assert!(length <= 2 * SHORT_CLOCK, "{length} entries");
        assert!(of(stream).waited(of(&kept).uid) >= tick);
    }
}
