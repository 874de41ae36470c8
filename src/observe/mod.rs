//! What happened: allocation traces, their replay, and reports a person or a program reads.
//!
//! A [`Trace`] is the list of allocations and frees of a real program. `replay` plays it.

mod latency;
mod trace;

pub use latency::Latencies;
pub use trace::{Event, EventKind, Trace, TraceWriter};
