//! The heap: which bytes of the arena are free, which work they wait for, and where a request goes.
//!
//! Integers only: nothing here knows a device, a clock, a lock or a thread. The pool asks the heap, does what it
//! answers, and books the outcome.
//!
//! - [`extent`]: a range of addresses; [`extents`]: all of them in address order;
//! - [`epoch`]: the work of a stream after which memory is free;
//! - [`bins`]: the free extents of one stream by size, and the best fit among them;
//! - [`bitmap`]: which bins are not empty;
//! - [`placement`]: where to map a request that no free extent holds;
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
pub(crate) use extent::{Extent, Id, NIL, NONE, State};
pub(crate) use extents::Extents;

/// An allocated block: its extent, or its slab, and its offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) id: Id,
    pub(crate) offset: u64,
}

/// Returns an error with these words from a check unless it is `so`.
macro_rules! ensure {
    ($so:expr => $($why:tt)+) => {
        if !($so) {
            return Err(format!($($why)+));
        }
    };
}
pub(crate) use ensure;
