//! What happened: allocation traces, their replay, and reports a person or a program reads.
//!
//! A [`Trace`] is the list of allocations and frees of a real program. [`replay`] plays it
//! through a [`Pool`](crate::pool::Pool) on a device, stamps and verifies every block there, and
//! gives a [`Report`].

mod checker;
mod latency;
mod mixed;
mod progress;
mod replay;
mod report;
mod subject;
mod trace;
mod versus;

pub use crate::error::Bytes;
pub use checker::EDGE_BYTES;
pub use latency::Latencies;
pub use mixed::Share;
pub use replay::{Peer, ReplayOptions, Verify, device_name, replay};
pub use report::{Grouped, Report};
pub use trace::{Event, EventKind, Trace, TraceWriter};
pub use versus::Versus;
