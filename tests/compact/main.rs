//! Movable memory and compaction: plans, the kernels that move, owners of addresses, threads, and calls
//! that fail on the way.

mod at_the_limit;
#[path = "../common/mod.rs"]
mod common;
mod cycles;
mod failing_calls;
mod full_streams;
mod kernels;
mod movable;
#[cfg(feature = "sanitize")]
mod order;
mod owners;
mod planner;
mod pointers;
mod spill;
mod threads;
