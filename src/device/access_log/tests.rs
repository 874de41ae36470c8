use std::sync::Arc;

use super::{AccessLog, By, END, Span};
use crate::device::Device;
use crate::sync::latch;

#[test]
fn uses_by_streams_that_are_gone_go_soon_after_a_long_capture() {
    let device = Device::host().unwrap();
    let [home, captured] = [(); 2].map(|()| device.stream().unwrap());
    let home = &home.core().timeline;
    let log = AccessLog::new(home, 100);
    let use_once = || {
        let stream = device.stream().unwrap();
        let timeline = &stream.core().timeline;
        let (from, to, writes) = (0, END, false);
        let by = By::Stream(Arc::clone(timeline), timeline.open_tick());
        log.stamp(home, Span { from, to, writes }, by, true);
    };
    let capture = captured.begin_capture().unwrap();
    (0..600).for_each(|_| use_once());
    drop(capture);
    (0..30).for_each(|_| use_once());
    let kept = latch(&log.entries).len();
    assert!(kept <= 60, "{kept} uses");
}
