//! What stands before the heap: a request asks here first, and a free goes here first.
//!
//! `stream_cache` keeps a stream's own free blocks, in `free_lists` by exact size; `thread_map` says
//! which of them serves a thread, `lifetime` how long it lives; `transfer` takes blocks from one to
//! another.

mod free_lists;
mod lifetime;
pub(crate) mod stream_cache;
pub(crate) mod thread_map;
mod transfer;

pub(crate) use free_lists::{Cached, MOST_BLOCKS};
pub(crate) use lifetime::{LanePtr, SlotHold};
pub(crate) use stream_cache::{Lane, MISSED};
pub(crate) use transfer::Transfer;
