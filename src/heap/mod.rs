//! The heap: which bytes of the arena are free, since when, and where a request goes.
//!
//! Integers only. Nothing here knows a device, a clock, a lock or another thread: whoever holds the heap
//! asks it, acts on the answer, and tells it what became of that.
//!
//! - [`extent`]: a stretch of addresses, [`extents`]: all of them in address order, merged and cut;
//! - [`epoch`]: up to where of which stream's work memory may still be in use;
//! - [`bins`]: the free extents of one stream by size, and the best of them for a request;
//! - [`bitmap`]: which bins are not empty;
//! - [`placement`]: where a request goes that no free extent holds, and what must be mapped for it;
//! - [`size_class`] and [`slab`]: small requests, many to a block.

pub(crate) mod bins;
pub(crate) mod bitmap;
pub(crate) mod epoch;
pub(crate) mod extent;
pub(crate) mod extents;
pub(crate) mod placement;
pub(crate) mod size_class;
pub(crate) mod slab;

pub(crate) use bins::UNIT;
pub(crate) use epoch::{Epoch, FRESH, StreamIndex};
pub(crate) use extent::{Extent, Id, NONE, State};
pub(crate) use extents::Extents;

/// A block given out: its extent, or slab, and its offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) id: Id,
    pub(crate) offset: u64,
}

/// For checks of books: an error, in words, unless it is `so`.
pub(crate) fn ensure(so: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(why()) }
}
