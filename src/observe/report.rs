//! The results of a replay, for people and programs.

use std::fmt;
use std::time::Duration;

use super::figures::{Grouped, calls, counted, ratio};
#[cfg(feature = "cli")]
use super::figures::{object, rounded};
use super::mixed::Share;
use super::verify::Verify;
use super::versus::Versus;
use crate::error::{Bytes, Error};

/// The results of a replay. [`Display`](fmt::Display) is for people, `to_json` for programs.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The trace's name.
    pub trace: String,
    /// The device: its kind and name.
    pub device: String,
    /// How much of each block was stamped and verified.
    pub verify: Verify,
    /// Events played: all of the trace, or those before the failure.
    pub events: u64,
    /// Streams in the trace.
    pub streams: u64,
    /// Most bytes live at once in the whole trace, as requested.
    pub peak_live_bytes: u64,
    /// Most bytes live at once in the events played; less than the trace's peak if the replay stopped before
    /// it.
    pub reached_live_bytes: u64,
    /// Most physical bytes that the pool was allowed to hold, if there was a limit.
    pub cap: Option<u64>,
    /// Most physical bytes the pool held at once.
    pub peak_reserved_bytes: u64,
    /// Physical bytes at the end that belong to the pool but are not in it: tables and flags of compaction.
    pub overhead_bytes: u64,
    /// The largest free extent after the last event, before the blocks still live are freed.
    pub largest_hole_bytes: u64,
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
    /// Bytes that had to be compared: of every block played, freed or live at the end, as many as
    /// [`verify`](Self::verify) covers. A replay that verified a different number has failed.
    pub owed_bytes: u64,
    /// Bytes that differed from their pattern.
    pub corrupt_bytes: u64,
    /// Address of one corrupt byte.
    pub first_corrupt: Option<u64>,
    /// Requests that did not fit, or work on their memory that the device had no memory for: 0 or 1, because the replay
    /// stops there.
    pub failed_allocs: u64,
    /// Physical handles created.
    pub handles_made: u64,
    /// Times that a handle was mapped elsewhere.
    pub handles_remapped: u64,
    /// Bytes that compaction moved.
    pub bytes_moved: u64,
    /// Steps of compaction that moved something.
    pub compactions: u64,
    /// The fraction of blocks that could be moved.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_part"))]
    pub movable: Share,
    /// Host time of a step of compaction, with its plan: median.
    pub step_ns_p50: u64,
    /// Host time of a step of compaction: 99th percentile.
    pub step_ns_p99: u64,
    /// Device time of a step's moves: median.
    pub move_ns_p50: u64,
    /// Device time of a step's moves: 99th percentile.
    pub move_ns_p99: u64,
    /// Device time of all moves.
    pub move_ns: u64,
    /// Time from the first event until all queued work was done.
    pub wall: Duration,
    /// The error that stopped the replay before the end of the trace, or the other allocator's.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_words"))]
    pub failure: Option<Error>,
    /// The results of another allocator with the same trace, if there was one.
    pub versus: Option<Versus>,
}

/// The fraction of blocks that may move, as a number.
#[cfg(feature = "serde")]
fn as_part<S: serde::Serializer>(movable: &Share, to: S) -> std::result::Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&movable.part(), to)
}

/// The error's message.
#[cfg(feature = "serde")]
fn as_words<S: serde::Serializer>(
    failure: &Option<Error>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&failure.as_ref().map(ToString::to_string), to)
}

impl Report {
    /// Peak reserved over the peak of live bytes that was reached; 1 is perfect.
    #[must_use]
    pub fn reserved_ratio(&self) -> f64 {
        ratio(self.peak_reserved_bytes, self.reached_live_bytes)
    }

    /// `ok` or `failed`.
    #[must_use]
    pub fn result(&self) -> &'static str {
        if self.passed() { "ok" } else { "failed" }
    }

    /// The reasons why the replay failed; empty if it passed.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(failure) = &self.failure {
            let played = Grouped(self.events);
            reasons.push(match self.failed_allocs {
                0 => failure.to_string(),
                _ => format!("stopped after {played} events: {failure}"),
            });
        }
        if self.corrupt_bytes > 0 {
            let corrupt = Bytes(self.corrupt_bytes);
            reasons.push(format!(
                "{corrupt} corrupt: memory was handed out while in use"
            ));
        }
        if let Some(versus) = self.versus.as_ref().filter(|it| it.corrupt_bytes > 0) {
            let (corrupt, name) = (Bytes(versus.corrupt_bytes), versus.name);
            reasons.push(format!(
                "{corrupt} corrupt in {name}'s memory, which was handed out while in use"
            ));
        }
        if !self.verified_what_it_owes() {
            let (verified, owed) = (Bytes(self.verified_bytes), Bytes(self.owed_bytes));
            reasons.push(format!(
                "{verified} verified of the {owed} owed: the check is incomplete"
            ));
        }
        let incomplete = |it: &&Versus| it.verified_bytes != it.owed_bytes;
        if let Some(versus) = self.versus.as_ref().filter(incomplete) {
            let (verified, owed) = (Bytes(versus.verified_bytes), Bytes(versus.owed_bytes));
            let name = versus.name;
            reasons.push(format!(
                "{verified} verified of the {owed} owed in {name}'s memory: the check is incomplete"
            ));
        }
        reasons
    }

    /// Whether the whole trace was played, all required bytes were verified and nothing was corrupt, in another
    /// allocator's memory either. A request that only the other one failed counts as played.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failed_allocs == 0 && self.reasons().is_empty()
    }

    /// Whether exactly the required bytes were verified.
    #[must_use]
    pub fn verified_what_it_owes(&self) -> bool {
        self.verified_bytes == self.owed_bytes
    }

    /// One JSON object on one line, without a line end. Times of steps and moves, and the movable fraction,
    /// are included only if blocks could move. The results of another allocator are an object under the key
    /// `versus`, included only if there was one.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn to_json(&self) -> String {
        use serde_json::Value;
        let mut fields: Vec<(&str, Value)> = vec![
            ("trace", self.trace.as_str().into()),
            ("device", self.device.as_str().into()),
            ("result", self.result().into()),
            ("reason", self.reason().map_or(Value::Null, Value::from)),
            ("cap", self.cap.map_or(Value::Null, Value::from)),
            ("verify", self.verify.name().into()),
            ("events", self.events.into()),
            ("streams", self.streams.into()),
            ("peak_live_bytes", self.peak_live_bytes.into()),
            ("reached_live_bytes", self.reached_live_bytes.into()),
            ("peak_reserved_bytes", self.peak_reserved_bytes.into()),
            ("reserved_ratio", rounded(self.reserved_ratio()).into()),
            ("overhead_bytes", self.overhead_bytes.into()),
            ("largest_hole_bytes", self.largest_hole_bytes.into()),
            ("alloc_ns_p50", self.alloc_ns_p50.into()),
            ("alloc_ns_p99", self.alloc_ns_p99.into()),
            ("free_ns_p50", self.free_ns_p50.into()),
            ("free_ns_p99", self.free_ns_p99.into()),
            ("verified_bytes", self.verified_bytes.into()),
            ("corrupt_bytes", self.corrupt_bytes.into()),
            ("failed_allocs", self.failed_allocs.into()),
            ("handles_made", self.handles_made.into()),
            ("handles_remapped", self.handles_remapped.into()),
            ("bytes_moved", self.bytes_moved.into()),
            ("compactions", self.compactions.into()),
            ("wall_s", rounded(self.wall.as_secs_f64()).into()),
        ];
        if self.movable.part() > 0.0 {
            let wall = fields.len() - 1;
            fields.splice(
                wall..wall,
                [
                    ("movable", self.movable.part().into()),
                    ("step_ns_p50", self.step_ns_p50.into()),
                    ("step_ns_p99", self.step_ns_p99.into()),
                    ("move_ns_p50", self.move_ns_p50.into()),
                    ("move_ns_p99", self.move_ns_p99.into()),
                    ("move_ns", self.move_ns.into()),
                ],
            );
        }
        let mut made = object(&fields);
        if let Some(versus) = &self.versus {
            made.pop();
            made.push_str(&format!(", \"versus\": {}}}", versus.to_json()));
        }
        made
    }
}

/// Width of the column of our values if another allocator's values follow.
const BESIDE: usize = 52;

impl fmt::Display for Report {
    /// One line per value: names in the first column, values in the next, and the result last. Another
    /// allocator's values are in a third column.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reserved, hole) = (
            Bytes(self.peak_reserved_bytes),
            Bytes(self.largest_hole_bytes),
        );
        let events = Grouped(self.events);
        let (handles, remapped) = (Grouped(self.handles_made), Grouped(self.handles_remapped));
        let streams = counted(self.streams, "stream");
        let (ratio, wall) = (self.reserved_ratio(), self.wall.as_secs_f64());
        let mut lines = vec![
            ("trace", self.trace.clone()),
            ("device", self.device.clone()),
            ("events", format!("{events} on {streams} in {wall:.2} s")),
            ("peak live", self.peak_live()),
            ("peak reserved", format!("{reserved}, {ratio:.4} x live")),
            (
                "overhead",
                format!("{} beside the pool", Bytes(self.overhead_bytes)),
            ),
            ("largest hole", format!("{hole} at the end")),
            (
                "handles",
                format!("{handles} made, {remapped} mapped elsewhere"),
            ),
            ("alloc", calls(self.alloc_ns_p50, self.alloc_ns_p99)),
            ("free", calls(self.free_ns_p50, self.free_ns_p99)),
            ("moved", self.moved()),
            ("verified", self.verified()),
            ("corrupt", self.corrupt()),
            ("failed", counted(self.failed_allocs, "allocation")),
        ];
        if self.compactions > 0 {
            let at = lines.iter().position(|(name, _)| *name == "moved");
            let at = at.map_or(lines.len(), |at| at + 1);
            let times = [
                ("step", calls(self.step_ns_p50, self.step_ns_p99)),
                ("on the device", calls(self.move_ns_p50, self.move_ns_p99)),
            ];
            lines.splice(at..at, times);
        }
        if let Some(versus) = &self.versus {
            writeln!(f, "{:<14}{:<BESIDE$}{}", "", "warpool", versus.name)?;
        }
        for (name, value) in lines {
            match self.versus.as_ref().map(|versus| versus.beside(name)) {
                Some(theirs) if !theirs.is_empty() => {
                    writeln!(f, "{name:<14}{value:<BESIDE$}{theirs}")?;
                }
                _ => writeln!(f, "{name:<14}{value}")?,
            }
        }
        let result = if self.passed() { "ok" } else { "FAILED" };
        write!(f, "{:<14}{result}", "result")
    }
}

impl Report {
    /// All [`reasons`](Self::reasons) in one text.
    #[cfg(feature = "cli")]
    fn reason(&self) -> Option<String> {
        let reasons = self.reasons();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn peak_live(&self) -> String {
        let peak = Bytes(self.peak_live_bytes);
        match self.reached_live_bytes == self.peak_live_bytes {
            true => peak.to_string(),
            false => format!("{peak}, reached {}", Bytes(self.reached_live_bytes)),
        }
    }

    fn moved(&self) -> String {
        let moved = Bytes(self.bytes_moved);
        let steps = counted(self.compactions, "step");
        match self.movable.part() {
            0.0 => format!("{moved} in {steps}, nothing may be moved"),
            1.0 => format!("{moved} in {steps}, all may be moved"),
            part => format!("{moved} in {steps}, {part} of all may be moved"),
        }
    }

    fn verified(&self) -> String {
        let bytes = Bytes(self.verified_bytes);
        if !self.verified_what_it_owes() {
            return format!("{bytes} of the {} owed", Bytes(self.owed_bytes));
        }
        match self.verify {
            Verify::Full => format!("{bytes}, every byte of each block"),
            Verify::Edges => format!("{bytes}, 4 KiB at both ends of each block"),
            Verify::Off => "nothing: verification is off".to_owned(),
        }
    }

    fn corrupt(&self) -> String {
        match self.first_corrupt {
            None => counted(self.corrupt_bytes, "byte"),
            Some(addr) => format!("{}, one at {addr:#x}", counted(self.corrupt_bytes, "byte")),
        }
    }
}

#[cfg(test)]
mod tests;
