//! Finds the lane for a thread and a stream without a shared lock.
//!
//! A stream has one lane until threads meet at it: a thread that often finds the latch taken gets a new one, until
//! there are as many as processors. Threads that know no lane of the stream are spread over them.
//!
//! A thread remembers the lanes it used last, by the numbers of pool and stream handle. No number is used twice.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use crate::device::Stream;
use crate::error::Result;
use crate::pool::structure::{Lane, LanePtr, Shared};
use crate::sync::thread_local;

/// Lanes a thread remembers; a power of two.
const REMEMBERED: usize = 16;

/// How often a thread finds lanes taken before it gets a new one.
const MEETINGS: u32 = if cfg!(shuttle) { 1 } else { 32 };

static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The numbers of the pool and of the stream's handle, and the lane.
    static LANES: [Cell<(u64, u64, LanePtr)>; REMEMBERED] =
        const { [const { Cell::new((0, 0, LanePtr::NONE)) }; REMEMBERED] };
    static MET: Cell<u32> = const { Cell::new(0) };
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// A number for the calling thread; a thread that is ending may share one.
pub(crate) fn this_thread() -> u64 {
    NUMBER.try_with(|&number| number).unwrap_or(0)
}

/// The calling thread's lane of a pool and a stream's handle. It is alive while the caller holds the stream, and the
/// pool or a block of it: see `lifetime`. Without the pool it may be retired.
#[inline]
pub(crate) fn remembered(pool: u64, handle: u64) -> Option<LanePtr> {
    let (of, by, lane) = LANES.with(|lanes| lanes[handle as usize % REMEMBERED].get());
    ((of, by) == (pool, handle)).then_some(lane)
}

pub(crate) fn remember(pool: u64, handle: u64, lane: &Lane) -> LanePtr {
    let lane = LanePtr::of(lane);
    LANES.with(|lanes| lanes[handle as usize % REMEMBERED].set((pool, handle, lane)));
    lane
}

/// Counts that the calling thread found a lane taken; true if it is to get its own.
pub(crate) fn met() -> bool {
    MET.with(|count| {
        count.set((count.get() + 1) % MEETINGS);
        count.get() == 0
    })
}

/// The lane for a free on `stream`; the caller holds it and a block of the pool. `None` if a closed pool has none.
pub(crate) fn nearby(shared: &Arc<Shared>, stream: &Stream) -> Result<Option<LanePtr>> {
    let (pool, handle) = (shared.uid, stream.handle_id());
    if let Some(lane) = remembered(pool, handle) {
        return Ok(Some(lane));
    }
    let found = shared.lane(stream)?;
    Ok(found.map(|lane| remember(pool, handle, &lane)))
}

/// Most lanes of a stream.
pub(crate) static MOST_LANES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |most| most.get().min(64)));

#[cfg(test)]
mod tests;
