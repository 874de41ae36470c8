//! The registered steps, called by rank before a request fails.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::OutOfMemory;

/// What a step of the out-of-memory ladder did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relief {
    /// It freed or moved memory: the pool tries the request again, and calls the step again if that fails.
    Retry,
    /// It can do no more.
    Exhausted,
}

/// A request that the pool's own steps could not serve.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pressure {
    /// Bytes needed, rounded.
    pub requested: u64,
    /// The [`id`](crate::device::Stream::id) of the requesting stream; 0 for tables beside the pool.
    pub stream: u64,
    /// The pool's figures now.
    pub figures: OutOfMemory,
}

/// The same without figures, which take a walk over all blocks.
pub(crate) struct Need<'a> {
    pub(crate) requested: u64,
    /// The request is a growing buffer's, which needs empty handles.
    pub(crate) grows: bool,
    pub(super) told: &'a dyn Fn() -> Pressure,
}

/// Returns true if it freed or moved memory.
pub(crate) type ReliefStep = Arc<dyn Fn(&Need<'_>) -> bool + Send + Sync>;

crate::sync::thread_local! {
    /// The steps that this thread is in: the pool's number and the step's rank.
    static UNDER_WAY: RefCell<Vec<(u64, u8)>> = const { RefCell::new(Vec::new()) };
}

/// A step under way on this thread. Its own requests call only steps of lower rank, so that no recursion is endless.
pub(super) struct Asked(());

impl Asked {
    /// `None` if this thread is in a step of this pool of this rank or a lower one, or ends.
    pub(super) fn of(pool: u64, rank: u8) -> Option<Self> {
        let asked = UNDER_WAY.try_with(|steps| {
            let mut steps = steps.borrow_mut();
            let again = steps.iter().any(|&(uid, of)| uid == pool && of <= rank);
            if again {
                return None;
            }
            steps.push((pool, rank));
            Some(Self(()))
        });
        asked.ok().flatten()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = UNDER_WAY.try_with(|steps| _ = steps.borrow_mut().pop());
    }
}
