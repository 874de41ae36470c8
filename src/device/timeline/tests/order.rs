//! What a stream is known to run behind.

use super::{of, streams};
use crate::device::Device;

#[test]
fn a_second_wait_for_the_same_tick_is_not_queued() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let tick = of(&a).open_tick();
    assert!(!of(&b).is_behind(of(&a), tick));
    assert!(of(&b).wait_for(of(&a), tick).unwrap());
    assert!(of(&b).is_behind(of(&a), tick));
    assert!(!of(&b).wait_for(of(&a), tick).unwrap());
    let next = of(&a).open_tick();
    assert!(next > tick && !of(&b).is_behind(of(&a), next));
}

#[test]
fn a_stream_never_waits_for_itself() {
    let device = Device::host().unwrap();
    let [a, ..] = streams(&device);
    assert!(!of(&a).wait_for(of(&a), of(&a).open_tick()).unwrap());
    assert_eq!(of(&a).open_tick(), 1, "no record was made");
}

#[test]
fn a_free_while_a_record_is_made_is_not_covered_by_it() {
    let device = Device::host().unwrap();
    let [a, ..] = streams(&device);
    let event = device.event().unwrap();
    let mut freed = 0;
    let recorded = of(&a).counted_record(|stream| {
        device.backend().event_record(event.raw(), stream)?;
        // A free on another thread, after the event's record.
        freed = of(&a).open_tick();
        Ok(())
    });
    let (tick, _) = recorded.unwrap();
    assert!(freed > tick, "{freed} is taken as done when {tick} is");
}

#[test]
fn waiting_for_a_stream_that_waits_is_waiting_for_both() {
    let device = Device::host().unwrap();
    let [a, b, c] = streams(&device);
    let tick = of(&a).open_tick();
    b.wait_stream(&a).unwrap();
    c.wait_stream(&b).unwrap();
    assert!(of(&c).is_behind(of(&a), tick));
    assert!(of(&a).waited(of(&c).uid) < 1);
}

#[test]
fn an_event_carries_what_its_stream_had_waited_for_when_it_was_recorded() {
    let device = Device::host().unwrap();
    let [a, b, c] = streams(&device);
    let tick = of(&a).open_tick();
    let (before, after) = (device.event().unwrap(), device.event().unwrap());
    before.record(&b).unwrap();
    b.wait_stream(&a).unwrap();
    after.record(&b).unwrap();
    c.wait(&before).unwrap();
    assert!(of(&c).waited(of(&b).uid) >= 1);
    assert!(of(&c).waited(of(&a).uid) < tick);
    c.wait(&after).unwrap();
    assert!(of(&c).waited(of(&a).uid) >= tick);
}

#[test]
fn a_tick_open_when_its_stream_is_dropped_can_still_be_waited_for() {
    let device = Device::host().unwrap();
    let [a, b, c] = streams(&device);
    let timeline = std::sync::Arc::clone(&a.core().timeline);
    let tick = timeline.open_tick();
    drop(a);
    assert!(timeline.raw().is_none());
    assert!(of(&b).wait_for(&timeline, tick).unwrap());
    timeline.sync_to(tick).unwrap();
    assert!(of(&c).is_behind(&timeline, tick));
    assert!(!of(&c).wait_for(&timeline, tick).unwrap());
}
