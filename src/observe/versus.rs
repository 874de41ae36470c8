//! The results of another allocator with the same trace.

use std::time::Duration;

use super::figures::{Grouped, calls, counted, ratio};
use crate::error::Bytes;

/// The results of another allocator, on the same device and with the same verification.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Versus {
    /// The allocator: [`Peer::name`](super::Peer::name).
    pub name: &'static str,
    /// Events played: all of the trace, or those before a request that did not fit.
    pub events: u64,
    /// Most bytes live at once in the events played, as requested.
    pub peak_live_bytes: u64,
    /// Most physical bytes the allocator held at once.
    pub peak_reserved_bytes: u64,
    /// Host time of a call to allocate: median.
    pub alloc_ns_p50: u64,
    /// Host time of a call to allocate: 99th percentile.
    pub alloc_ns_p99: u64,
    /// Host time of a call to free: median.
    pub free_ns_p50: u64,
    /// Host time of a call to free: 99th percentile.
    pub free_ns_p99: u64,
    /// Bytes that the device compared with their pattern.
    pub verified_bytes: u64,
    /// The same as [`Report::owed_bytes`](super::Report::owed_bytes).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) owed_bytes: u64,
    /// Bytes that differed from their pattern.
    pub corrupt_bytes: u64,
    /// Requests that did not fit, or work on their memory that the device had no memory for: 0 or 1, because the replay
    /// stops there.
    pub failed_allocs: u64,
    /// Time from the first event until all queued work was done.
    pub wall: Duration,
}

impl Versus {
    /// Peak reserved over peak live; 1 is perfect.
    #[must_use]
    pub fn reserved_ratio(&self) -> f64 {
        ratio(self.peak_reserved_bytes, self.peak_live_bytes)
    }

    /// This allocator's value for the line `line` of the report; empty if it has none.
    pub(super) fn beside(&self, line: &str) -> String {
        let (reserved, ratio) = (Bytes(self.peak_reserved_bytes), self.reserved_ratio());
        match line {
            "events" => {
                let wall = self.wall.as_secs_f64();
                format!("{} in {wall:.2} s", Grouped(self.events))
            }
            "peak reserved" => format!("{reserved}, {ratio:.4} x live"),
            "alloc" => calls(self.alloc_ns_p50, self.alloc_ns_p99),
            "free" => calls(self.free_ns_p50, self.free_ns_p99),
            "verified" => Bytes(self.verified_bytes).to_string(),
            "corrupt" => counted(self.corrupt_bytes, "byte"),
            "failed" => counted(self.failed_allocs, "allocation"),
            _ => String::new(),
        }
    }

    /// One JSON object on one line.
    #[cfg(feature = "cli")]
    pub(super) fn to_json(&self) -> String {
        use super::figures::{object, rounded};
        object(&[
            ("name", self.name.into()),
            ("events", self.events.into()),
            ("peak_reserved_bytes", self.peak_reserved_bytes.into()),
            ("reserved_ratio", rounded(self.reserved_ratio()).into()),
            ("alloc_ns_p50", self.alloc_ns_p50.into()),
            ("alloc_ns_p99", self.alloc_ns_p99.into()),
            ("free_ns_p50", self.free_ns_p50.into()),
            ("free_ns_p99", self.free_ns_p99.into()),
            ("verified_bytes", self.verified_bytes.into()),
            ("corrupt_bytes", self.corrupt_bytes.into()),
            ("failed_allocs", self.failed_allocs.into()),
            ("wall_s", rounded(self.wall.as_secs_f64()).into()),
        ])
    }
}
