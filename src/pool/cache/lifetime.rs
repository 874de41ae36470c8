//! How long a lane lives: until its stream or its pool has no handle, and its last block is freed.
//!
//! Every block points to its lane, so a lane must outlive its blocks. A reference count would cost two locked
//! instructions a pair. Instead the pool's books hold each lane. While a lane is in use, only its statistics count
//! its blocks. When the stream or the pool has no handle any more, the lane is *retired*: it sets *outstanding* to
//! the number of its live blocks, and marks the counter of frees on other lanes. From then on each free takes one
//! from outstanding. The free that takes the last one ends the lane, in a call of its own: see
//! [`Ending`](crate::sync::Ending).
//!
//! A request under way is not counted: its caller holds the pool and the stream, or a block of the lane. A request
//! without these, for a movable block that comes back, is an error if the lane has ended meanwhile.
//!
//! The lanes of a closed pool end together, with its last block: a thread may free a block in the order of any stream
//! that it holds, and finds that stream's lane without a reference count too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::free_lists::ALL_BINS;
use crate::device::lock;
use crate::pool::core::Core;
use crate::pool::structure::{Lane, Others, Used};
use crate::sync::latch;

impl Others {
    /// Takes a block away; true if that ends the lane.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // Before `retire` adds the live blocks, the count is not above zero: this cannot see one.
        self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Lane {
    /// Retires the lane after [`Lane::wait_for_used`]: frees go straight to the heap, and the last one ends the lane. It
    /// counts as a block of its own until the caller has it leave, without the core's lock: streams may end with it.
    pub(crate) fn retire(&self, core: &mut Core) {
        let state = latch(&self.state);
        // From here on, frees elsewhere leave.
        let here = 1 + state.counters.blocks();
        let out = here - self.others.elsewhere.retire() as i64;
        self.others.outstanding.fetch_add(out, Ordering::AcqRel);
        drop(state);
        self.drain(ALL_BINS, core);
        // Its stream has waited for the other uses of its blocks, or neither device nor host could.
        let is_its = |used: &&mut Used| used.stream == self.slot;
        for used in (latch(&self.shared.transfer.state).used.iter_mut()).filter(is_its) {
            used.marks.clear();
            used.block.tick = self.open_tick();
        }
        self.shared.drain(Some(self.slot), core);
        // Listed until its cache is empty, for requests that look for free memory meanwhile.
        Arc::make_mut(&mut latch(&self.shared.listed))
            .retain(|lane| !std::ptr::eq(Arc::as_ptr(lane), self));
    }

    /// Takes away a block or holder of a retired lane, which may be gone afterwards.
    pub(crate) fn leave(&self) {
        if self.others.leave() {
            let held = lock(&self.shared.books).end(self);
            // Without the books' lock: the pool may end with its last lane.
            drop(held);
        }
    }
}

#[cfg(all(test, loom))]
mod tests_models;
