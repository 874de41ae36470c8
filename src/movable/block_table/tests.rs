use super::{MANY, Marks};
use crate::device::Device;

#[test]
fn ticks_of_streams_that_are_gone_go_soon_after_a_long_capture() {
    let device = Device::host().unwrap();
    let captured = device.stream().unwrap();
    let mut marks = Marks::default();
    let mut use_once = || {
        let stream = device.stream().unwrap();
        let timeline = &stream.core().timeline;
        marks.note(timeline, timeline.open_tick());
    };
    let capture = captured.begin_capture().unwrap();
    (0..600).for_each(|_| use_once());
    drop(capture);
    (0..2).for_each(|_| use_once());
    let kept = marks.0.len();
    assert!(kept <= MANY, "{kept} ticks");
}
