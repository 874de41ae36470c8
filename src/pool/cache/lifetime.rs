//! How long a stream cache lives: until its stream or its pool is gone, and its last block.
//!
//! Every block points to its lane, and a lane must outlive its blocks; a shared count of references
//! would cost two locked instructions a pair. Instead the pool's books hold a lane until it is
//! *retired* (its stream or its pool has no handle any more) and its last block is freed. While a lane
//! is in use, nothing counts what keeps it but the numbers that are counted of its blocks anyway. Retiring
//! says so where frees on other lanes count, and has *outstanding* be what is out by all those numbers;
//! from then on every free takes one from that, and whoever brings it to zero, once, ends the lane.
//!
//! A request under way counts nothing: whoever makes it holds the pool and the stream, or a block of the lane. One that
//! holds neither, as of a movable block that comes back, is an error where the lane has ended meanwhile.
//!
//! Lanes of a pool without a handle end together, with its last block: a thread may free a block in the
//! order of any stream that it holds, and finds that stream's lane without a count of references too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::free_lists::ALL_BINS;
use crate::device::lock;
use crate::pool::core::Core;
use crate::pool::structure::{Lane, Outstanding};
use crate::sync::latch;

impl Outstanding {
    /// So many blocks more, of a lane that is retired.
    pub(crate) fn enter(&self, blocks: i64) {
        self.0.fetch_add(blocks, Ordering::AcqRel);
    }

    /// One block more, unless the lane has ended; whether it has not. Of a lane that is retired.
    pub(crate) fn enter_again(&self) -> bool {
        let more = |blocks| (blocks > 0).then_some(blocks + 1);
        let entered = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        entered.is_ok()
    }

    /// One block less; true if that ends the lane.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // Until what is out enters, the count is not above zero, so it cannot pass one.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Lane {
    /// Counts one block more that ends the lane when it leaves. Of a lane that is retired.
    pub(crate) fn enter(&self) {
        self.others.outstanding.enter(1);
    }

    /// Ends the lane's use: from now on frees go straight to the core, and the last one ends it.
    pub(crate) fn retire(&self, core: &mut Core) {
        let mut state = latch(&self.state);
        state.aside = true;
        if std::mem::replace(&mut state.retired, true) {
            return;
        }
        // One for the lane itself, until its caches are empty. Those freed elsewhere from here on leave; a request that
        // is served from here on enters.
        let here = 1 + state.counters.blocks();
        let out = here - self.others.elsewhere.retire() as i64;
        self.others.outstanding.enter(out);
        drop(state);
        self.drain(ALL_BINS, core);
        self.end_used();
        self.shared.drain(Some(self.slot), core);
        // Listed until its cache is empty: a request that looks meanwhile must find it.
        Arc::make_mut(&mut latch(&self.shared.listed))
            .retain(|lane| !std::ptr::eq(Arc::as_ptr(lane), self));
        self.leave();
    }

    /// One block is gone, freed elsewhere or after the lane was retired. The lane may be gone afterwards.
    pub(crate) fn leave(&self) {
        if self.others.outstanding.leave() {
            self.end();
        }
    }

    fn end(&self) {
        let held = lock(&self.shared.books).end(self);
        // Behind the books' lock: the pool may go with its last lane.
        drop(held);
    }
}

#[cfg(all(test, loom))]
mod tests_models;
