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

/// A block whose tag is `tag`.
fn tagged(
    pool: &warpool::Pool,
    stream: &warpool::Stream,
    bytes: u64,
    tag: &'static str,
) -> warpool::Result<warpool::Block> {
    let _tag = warpool::pool::tag_scope(tag);
    pool.alloc(stream, bytes)
}
