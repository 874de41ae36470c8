//! What is asked for help before a request fails: registered steps, by rank.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::OutOfMemory;
use crate::seeded::seeded;

/// What a step of the out-of-memory ladder did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relief {
    /// It freed or moved something: the request is tried again, and the step asked again if it
    /// still fails.
    Retry,
    /// It can do no more.
    Exhausted,
}

/// A request that the pool's own steps could not serve, as a registered step sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pressure {
    /// Bytes needed, rounded.
    pub requested: u64,
    /// The [`id`](crate::device::Stream::id) of the requesting stream; 0 for tables beside the pool.
    pub stream: u64,
    /// The pool's figures now.
    pub figures: OutOfMemory,
    /// For a growing buffer, to which only handles are of use that hold nothing.
    pub(crate) grows: bool,
}

/// A step above the core: frees or moves memory, and says whether it may have helped.
pub(crate) type ReliefStep = Arc<dyn Fn(&Pressure) -> Relief + Send + Sync>;

/// Makes room for a request of so many bytes where that is cheaper than mapping so many handles elsewhere.
pub(crate) type MovesFirst = Arc<dyn Fn(u64, u64) -> bool + Send + Sync>;

crate::sync::thread_local! {
    /// Steps under way on this thread: the pool's number and the step's rank.
    static UNDER_WAY: RefCell<Vec<(u64, u8)>> = const { RefCell::new(Vec::new()) };
}

/// A step under way on this thread, whose own requests are helped only by steps of lower rank: without end by none.
pub(super) struct Asked(());

impl Asked {
    /// `None` where a step of this pool, of this rank or a lower one, is under way, or the thread ends.
    pub(super) fn of(pool: u64, rank: u8) -> Option<Self> {
        let asked = UNDER_WAY.try_with(|steps| {
            let mut steps = steps.borrow_mut();
            let again = steps.iter().any(|&(uid, of)| uid == pool && of <= rank);
            if again && !seeded!("pressure-asks-again-and-again") {
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
