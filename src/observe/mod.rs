//! Allocation traces, their replay, and reports for people and programs.
//!
//! A [`Trace`] is the list of allocations and frees of a real program, as
//! [`PoolConfig::record`](crate::PoolConfig::record) writes it. The command `warpool replay` plays it through
//! a [`Pool`](crate::pool::Pool) on a device, stamps and verifies every block there, and reports the results.

mod checker;
mod figures;
mod latency;
mod mixed;
mod progress;
mod replay;
mod report;
mod subject;
mod trace;
mod verify;
mod versus;

#[doc(hidden)]
pub use crate::error::Bytes;
#[doc(hidden)]
pub use figures::Grouped;
#[doc(hidden)]
pub use latency::Latencies;
#[doc(hidden)]
pub use mixed::Share;
#[doc(hidden)]
pub use replay::{Peer, ReplayOptions, device_name, replay};
#[doc(hidden)]
pub use report::Report;
pub use trace::Trace;
#[doc(hidden)]
pub use trace::{Event, EventKind, TraceWriter};
#[doc(hidden)]
pub use verify::{EDGE_BYTES, Verify};
#[doc(hidden)]
pub use versus::Versus;
