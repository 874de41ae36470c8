//! How rank 0 passes data to the other ranks: over TCP, or through a file that all of them see.
//!
//! Rank 0 sends it once all ranks are there, or sends an error that names the missing ones. So a rank that
//! does not come is an error on every other rank within the given time, and no rank waits for it in NCCL.

#![cfg_attr(not(feature = "nccl"), allow(dead_code, reason = "for NCCL"))]

mod answer;
mod file;
mod tcp;

use std::path::Path;
use std::time::Duration;

use super::{Ranks, end_of};
use crate::error::{Error, Result};

/// Returns the bytes that rank 0 `makes` on every rank; waits at most `patience`.
pub(super) fn meet(
    ranks: &Ranks,
    patience: Duration,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    ranks.check()?;
    let deadline = end_of(patience);
    if let Some(path) = ranks.meet.strip_prefix("file://") {
        let path = Path::new(path);
        return match ranks.rank {
            0 => file::leave(ranks, path, deadline, make),
            _ => file::find(ranks, path, deadline),
        };
    }
    let Some(address) = ranks.meet.strip_prefix("tcp://") else {
        let why = format!(
            "{:?} is neither tcp://host:port nor file:///path",
            ranks.meet
        );
        return Err(Error::invalid("meet", why));
    };
    match ranks.rank {
        0 => tcp::listen(ranks, address, deadline, make),
        _ => tcp::call(ranks, address, deadline),
    }
}

#[cfg(test)]
mod tests;
