//! What happened: allocation traces, their replay, and reports a person or a program reads.
//!
//! A [`Trace`] is the list of allocations and frees of a real program, as
//! [`PoolConfig::record`](crate::PoolConfig::record) writes it. The command line, `warpool replay`, plays it
//! through a [`Pool`](crate::pool::Pool) on a device, stamps and verifies every block there, and reports
//! what it found.

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
#[doc(hidden)]
pub use trace::TraceWriter;
pub use trace::{Event, EventKind, Trace};
#[doc(hidden)]
pub use verify::{EDGE_BYTES, Verify};
#[doc(hidden)]
pub use versus::Versus;
