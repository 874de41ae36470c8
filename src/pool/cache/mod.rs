//! What stands before the heap: a request asks here first, and a free goes here first.
//!
//! `stream_cache` serves requests from a stream's own free blocks, which `free_lists` keeps by exact
//! size, and takes freed blocks in. `thread_map` says which cache serves a thread, `lifetime` how
//! long it lives, `crowd` what it does while others have the pool's lock. `transfer` moves blocks from
//! one cache to another; `used` keeps those that streams still use which did not free them.

mod crowd;
mod free_lists;
mod lifetime;
pub(crate) mod stream_cache;
pub(crate) mod thread_map;
mod transfer;
mod used;

pub(crate) use free_lists::{Cache, Cached, MOST_BLOCKS};
pub(crate) use stream_cache::MISSED;
pub(super) use used::wait_for;
