//! How far a replay is: not what is queued, which a host does in no time, but what the device has done.

use std::collections::VecDeque;

use crate::device::{Device, RawEvent, Stream};

/// Marks in the streams, in the order they were set, each with the events played up to it.
///
/// They are the device's own events and not the crate's: the pool learns nothing from them, so that a
/// replay that is looked at does the same as one that is not. A mark that the device refuses is left out.
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

    /// Marks what was queued on the streams so far, the first `played` events.
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

    /// The events of the last mark that the device has passed since the last call, if there is one.
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

    /// Waits for each mark in turn, and tells of it.
    pub(super) fn wait(&mut self, progress: &mut dyn FnMut(u64)) {
        while let Some((played, events)) = self.set.front() {
            let played = *played;
            for event in events {
                // A device that fails here fails the wait for its streams too, which is told.
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
            // Nothing can be done about a failure, and the device's own count tells of it.
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
