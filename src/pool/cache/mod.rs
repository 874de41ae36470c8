//! The caches before the heap.
//!
//! A `stream_cache` serves requests from a stream's own free blocks, which `free_lists` keeps by exact size.
//! `thread_map` finds the cache for a thread, `lifetime` says how long it lives, `crowd` what it does while other
//! threads have the pool's lock. `transfer` moves blocks between caches; `used` keeps those that other streams use.

mod crowd;
mod free_lists;
mod lifetime;
pub(crate) mod stream_cache;
pub(crate) mod thread_map;
mod transfer;
mod used;

pub(crate) use free_lists::{Cache, Cached, MOST_BLOCKS};
