//! Records of an application's event in a capture.
//!
//! Each has a driver's event of its own, which is part of the graph: a query of it breaks the capture, and a record of
//! it elsewhere changes the graph. So the application's event itself is recorded outside of captures alone, and any thread
//! may ask about it or record it again.

use std::sync::{Arc, Weak};

use super::capture::has_ended;
use super::raw::RawEvent;
use super::structure::{Device, Recorder, Stream};
use super::{beside, lock};
use crate::error::{Error, Result};

/// One record. The driver's event goes with it.
pub(super) struct CapturedRecord {
    device: Device,
    recorder: Weak<Recorder>,
    raw: RawEvent,
}

impl Recorder {
    /// Records the captured `stream`; `None` once the capture has ended.
    pub(super) fn record_event(
        self: &Arc<Self>,
        stream: &Stream,
    ) -> Result<Option<CapturedRecord>> {
        let backend = self.device.backend();
        let record = CapturedRecord {
            device: self.device.clone(),
            recorder: Arc::downgrade(self),
            raw: backend.event_create(false)?,
        };
        let made = self.record_call(|| {
            self.check_joined(stream.raw())?;
            backend.event_record(record.raw, stream.raw())
        });
        made.map(|made| made.map(|()| record)).transpose()
    }
}

impl CapturedRecord {
    pub(super) fn raw(&self) -> RawEvent {
        self.raw
    }

    /// Makes `stream` wait inside the capture; it joins the capture if it is under none.
    pub(super) fn make_wait(&self, stream: &Stream) -> Result<()> {
        let recorder = self.recorder.upgrade();
        let recorder = recorder.filter(|recorder| !lock(&recorder.state).streams.is_empty());
        let Some(recorder) = recorder else {
            return Err(Error::invalid(
                "event",
                "it was recorded in a capture that has ended: record it again",
            ));
        };
        let joins = match stream.recorder() {
            None => recorder.enter(stream)?,
            Some(theirs) if Arc::ptr_eq(&theirs, &recorder) => false,
            Some(_) => {
                return Err(Error::invalid(
                    "event",
                    "it was recorded in another capture than the stream's",
                ));
            }
        };
        let backend = self.device.backend();
        let waited = recorder.record_call(|| backend.event_wait(stream.raw(), self.raw));
        let waited = waited.unwrap_or_else(|| Err(has_ended()));
        if joins && waited.is_err() {
            recorder.withdraw(stream);
        }
        waited
    }
}

impl Drop for CapturedRecord {
    fn drop(&mut self) {
        let (device, raw) = (self.device.clone(), self.raw);
        let recorder = self.recorder.upgrade();
        beside(move || {
            let _recording = recorder.as_ref().map(|recorder| recorder.recording());
            // Waits in the graph stay; a failure leaks only the event.
            let _ = device.backend().event_destroy(raw);
        });
    }
}
