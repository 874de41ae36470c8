//! The pool: one suite on every device, a naive model, random programs on the simulated device, and what
//! the hot path leaves out.

#[path = "../common/mod.rs"]
mod common;
mod conformance;
#[path = "../common/heap_calls.rs"]
mod heap_calls;
mod hot_path;
mod known_order;
mod leaks;
mod model;
mod regressions;
mod simulated;
mod simulated_graphs;
mod sleeping;
mod soft_limit;
mod stream_names;
mod unlocked;
#[cfg(all(feature = "serde", feature = "cli"))]
mod values;
