//! The progress of a replay, by the work that the device has done; queueing is far ahead of that.

use std::collections::VecDeque;

use crate::device::{Device, RawEvent, Stream};

/// Marks in the streams, in the order they were set, each with the number of events played before it.
///
/// They are raw events of the device, not events of the crate. The pool learns nothing from them, so a replay
/// behaves the same with and without a progress display. A mark that the device refuses is left out.
pub(super) struct Marks {
    device: Device,
    set: VecDeque<(u64, Vec<RawEvent>)>,
}

impl Marks {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            set: VecDeque::new(),
        }
    }

    /// Marks the work queued on the streams so far: the first `played` events.
    pub(super) fn set(&mut self, played: u64, streams: &[Stream]) {
        let backend = self.device.backend();
        let mut events = Vec::with_capacity(streams.len());
        for stream in streams {
            let Ok(event) = backend.event_create(false) else {
                break;
            };
            events.push(event);
            if backend.event_record(event, stream.raw()).is_err() {
                break;
            }
        }
        self.set.push_back((played, events));
    }

    /// The event count of the last mark that the device has passed, if it passed any since the last call.
    pub(super) fn passed(&mut self) -> Option<u64> {
        let mut last = None;
        while let Some((played, events)) = self.set.front() {
            let backend = self.device.backend();
            let done = |event: &RawEvent| backend.event_query(*event).unwrap_or(true);
            if !events.iter().all(done) {
                break;
            }
            last = Some(*played);
            self.drop_first();
        }
        last
    }

    /// Waits for each mark in turn and reports it.
    pub(super) fn wait(&mut self, progress: &mut dyn FnMut(u64)) {
        while let Some((played, events)) = self.set.front() {
            let played = *played;
            for event in events {
                // If the device fails here, the wait for its streams fails too, and that is reported.
                let _ = self.device.backend().event_sync(*event);
            }
            progress(played);
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        for event in self
            .set
            .pop_front()
            .into_iter()
            .flat_map(|(_, events)| events)
        {
            // Nothing can be done about a failure; the device's count of events shows it.
            let _ = self.device.backend().event_destroy(event);
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        while !self.set.is_empty() {
            self.drop_first();
        }
    }
}
