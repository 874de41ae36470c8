//! Rank 0's answer to the other ranks, and the errors of a meeting.

use std::io;
use std::time::Duration;

use crate::collective::ranks::Ranks;
use crate::error::{Error, Result};

/// The time between two polls.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// Most bytes that are read of an answer, which may be anything.
pub(super) const MOST: u64 = 1 << 16;
/// Most missing ranks that an error names: a job may have any number.
const NAMED: usize = 32;

pub(super) fn failure(words: impl Into<String>) -> Error {
    Error::Os {
        call: "meeting of ranks",
        words: words.into(),
    }
}

pub(super) fn io(place: &str) -> impl Fn(io::Error) -> Error {
    move |error| failure(format!("{place}: {error}"))
}

/// Whether all ranks came; the error for those that did names the first of those that did not.
pub(super) fn all_there(ranks: &Ranks, is_there: impl Fn(u32) -> bool) -> Result<()> {
    // The missing ranks are listed once, because a rank may come between two lists.
    let mut missing = (1..ranks.size).filter(|&rank| !is_there(rank));
    let named: Vec<u32> = missing.by_ref().take(NAMED).collect();
    if named.is_empty() {
        return Ok(());
    }
    let more = missing.next().map_or("", |_| " and more");
    Err(failure(format!(
        "ranks {named:?}{more} of {} did not come to {} in time",
        ranks.size, ranks.meet
    )))
}

/// An answer: 1 for success or 0, its length, and the bytes.
pub(super) fn answer(outcome: &Result<Vec<u8>>) -> Vec<u8> {
    let (good, bytes) = match outcome {
        Ok(bytes) => (1u8, bytes.clone()),
        Err(error) => (0, error.to_string().into_bytes()),
    };
    [&[good][..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat()
}

/// The bytes or the error in an answer.
pub(super) fn understood(good: u8, bytes: Vec<u8>) -> Result<Vec<u8>> {
    match good {
        1 => Ok(bytes),
        _ => Err(failure(String::from_utf8_lossy(&bytes).into_owned())),
    }
}
