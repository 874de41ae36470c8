//! What each file below proves its name says.

use crate::device::{Device, Stream, Timeline};

mod done;
mod graphs;
mod host_calls;
mod kept;
mod order;

fn streams(device: &Device) -> [Stream; 3] {
    [(); 3].map(|()| device.stream().unwrap())
}

fn of(stream: &Stream) -> &Timeline {
    &stream.core().timeline
}
