//! What each step of compaction took, for a person who measures.

use std::time::Duration;

use crate::compact::Moved;
use crate::device::{Device, Event};
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
    /// Nanoseconds they took on the device, waits for other streams before them left out.
    pub device_ns: f64,
    /// Host time of the step: the plan, the queueing and the books.
    pub host: Duration,
}

/// Marks around the moves of a step.
pub(super) type Span = (Event, Event);

/// Steps since the log was last read.
#[derive(Default)]
pub(super) struct Log {
    /// With the marks of those whose device time has not been read.
    records: Vec<(StepRecord, Option<Span>)>,
    spare: Vec<Span>,
    /// Records before this one have been read.
    read: usize,
}

impl Log {
    /// Marks for the next step; `None` where the device gives none.
    pub(super) fn span(&mut self, device: &Device) -> Option<Span> {
        let make = || Some((device.timing_event().ok()?, device.timing_event().ok()?));
        self.spare.pop().or_else(make)
    }

    /// Adds a step, and reads the time of earlier ones that are done.
    pub(super) fn add(&mut self, moved: &Moved, host: Duration, span: Option<Span>) {
        while let Some((record, span)) = self.records.get_mut(self.read) {
            match span {
                Some((_, end)) if end.is_done().is_ok_and(|done| done) => {}
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

    /// A step that came to nothing lets its marks go.
    pub(super) fn unused(&mut self, span: Option<Span>) {
        self.spare.extend(span);
    }

    /// All steps, once they are done on the device.
    pub(super) fn take(&mut self) -> Result<Vec<StepRecord>> {
        for (record, span) in &mut self.records {
            if let Some(span) = span.take() {
                span.1.synchronize()?;
                record.device_ns = elapsed(&span)?;
                self.spare.push(span);
            }
        }
        self.read = 0;
        let records = std::mem::take(&mut self.records);
        Ok(records.into_iter().map(|(record, _)| record).collect())
    }
}

fn elapsed((begin, end): &Span) -> Result<f64> {
    end.elapsed_ns(begin)
}
