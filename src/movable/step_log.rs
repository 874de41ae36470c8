//! Records of the steps of compaction, for measurements.

use std::time::Duration;

use crate::compact::Moved;
use crate::device::{Device, Event, without_host_calls};
use crate::error::Result;

/// One step of compaction that moved something.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StepRecord {
    /// Bytes moved.
    pub bytes: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// Launches that moved them.
    pub launches: u64,
    /// Nanoseconds the planner expected the moves to take on the device.
    pub predicted_ns: f64,
    /// Nanoseconds they took on the device, without waits for other streams before them.
    pub device_ns: f64,
    /// Host time of the step: planning, queueing and updating the heap.
    pub host: Duration,
}

/// The events around the moves of a step.
pub(super) type Span = (Event, Event);

/// Steps, each with its events, until its device time is read.
pub(super) type Steps = Vec<(StepRecord, Option<Span>)>;

/// Steps since the log was last read.
#[derive(Default)]
pub(super) struct Log {
    records: Steps,
    spare: Vec<Span>,
    /// Records before this index have their device time.
    read: usize,
}

impl Log {
    /// Events that an earlier step is done with.
    pub(super) fn spare(&mut self) -> Option<Span> {
        self.spare.pop()
    }

    /// Adds a step, and reads the device time of earlier ones that are done.
    pub(super) fn add(&mut self, moved: &Moved, host: Duration, span: Option<Span>) {
        while let Some((record, span)) = self.records.get_mut(self.read) {
            match span {
                // The caller holds the registry's lock.
                Some((_, end)) if without_host_calls(|| end.is_done()).is_ok_and(|done| done) => {}
                None => {}
                Some(_) => break,
            }
            self.spare.extend(span.take().inspect(|span| {
                record.device_ns = elapsed(span).unwrap_or(f64::NAN);
            }));
            self.read += 1;
        }
        let record = StepRecord {
            bytes: moved.bytes,
            blocks: moved.blocks,
            launches: moved.launches,
            predicted_ns: moved.predicted_ns,
            device_ns: f64::NAN,
            host,
        };
        self.records.push((record, span));
    }

    /// Keeps the events of a step that moved nothing for a later step.
    pub(super) fn unused(&mut self, span: Option<Span>) {
        self.spare.extend(span);
    }

    /// The steps since the last call, for [`finish`], which waits for them without the registry's lock.
    pub(super) fn take(&mut self) -> Steps {
        self.read = 0;
        std::mem::take(&mut self.records)
    }

    /// Keeps the events of `steps` for later steps; if they could not be `read`, puts the steps
    /// back.
    pub(super) fn put_back(&mut self, mut steps: Steps, read: bool) {
        if read {
            let spans = steps.iter_mut().filter_map(|(_, span)| span.take());
            return self.spare.extend(spans);
        }
        steps.append(&mut self.records);
        (self.records, self.read) = (steps, 0);
    }
}

/// The events for a step; `None` if the device has no timing events. The caller holds no lock, as a driver may make
/// none while any thread queues on a full stream.
pub(super) fn new_span(device: &Device) -> Option<Span> {
    Some((device.timing_event().ok()?, device.timing_event().ok()?))
}

/// Reads the device time of `steps`, once they are done on the device.
pub(super) fn finish(steps: &mut Steps) -> Result<()> {
    for (record, span) in steps {
        if let Some(span) = span {
            span.1.synchronize()?;
            record.device_ns = elapsed(span)?;
        }
    }
    Ok(())
}

fn elapsed((begin, end): &Span) -> Result<f64> {
    end.elapsed_ns(begin)
}
