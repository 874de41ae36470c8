//! What is known to be done.

use super::{of, streams};
use crate::device::Device;

#[test]
fn what_was_freed_before_a_synchronize_is_done_after_it_and_nothing_later() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let tick = of(&a).open_tick();
    assert_eq!(of(&a).done(), 0);
    a.synchronize().unwrap();
    assert!(of(&b).is_behind(of(&a), tick));
    assert!(!of(&b).wait_for(of(&a), tick).unwrap());
    let next = of(&a).open_tick();
    assert!(next > tick && !of(&b).is_behind(of(&a), next));
    assert!(of(&b).wait_for(of(&a), next).unwrap());
}

#[test]
fn waiting_for_an_event_makes_its_tick_known_to_be_done() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let event = device.event().unwrap();
    let tick = of(&a).open_tick();
    event.record(&a).unwrap();
    assert!(!of(&b).is_behind(of(&a), tick));
    event.synchronize().unwrap();
    assert!(of(&b).is_behind(of(&a), tick));
    assert!(!of(&b).is_behind(of(&a), of(&a).open_tick()));
}

#[test]
fn polling_learns_from_marks_and_a_mark_is_made_once() {
    let device = Device::host().unwrap();
    let [a, b, c] = streams(&device);
    let tick = of(&a).open_tick();
    assert!(of(&b).wait_for(of(&a), tick).unwrap());
    assert!(of(&c).wait_for(of(&a), tick).unwrap());
    assert_eq!(of(&a).open_tick(), tick + 1, "both waits share one record");
    device.backend().stream_sync(a.raw()).unwrap();
    assert_eq!(of(&a).poll(tick, tick).unwrap(), tick);
}

#[test]
fn a_tick_read_while_a_stream_that_goes_makes_its_last_mark_is_done_with_it() {
    let device = Device::host().unwrap();
    let [a, b, _] = streams(&device);
    let timeline = std::sync::Arc::clone(&a.core().timeline);
    // Its record counts the tick before the driver makes it, and the stream goes after that.
    let tick = of(&a).open_tick() + 1;
    drop(a);
    timeline.sync_to(tick).unwrap();
    assert!(!of(&b).wait_for(&timeline, tick).unwrap());
}
