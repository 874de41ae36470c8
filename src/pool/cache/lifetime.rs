//! How long a stream cache lives: until its stream or its pool is gone, and its last block.
//!
//! Every block points to its lane, and a lane must outlive its blocks; a shared count of references
//! would cost two locked instructions a pair. Instead the pool's ledger holds a lane until it is
//! *retired* (its stream or its pool has no handle any more) and its last block is freed. While a lane
//! is in use, frees on other lanes take from the count of outstanding blocks at once, so it is not above
//! zero. Retiring adds what the lane's own counts say is still out; from then on whoever brings it to
//! zero, once, ends the lane.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::free_lists::ALL_WORDS;
use super::stream_cache::Lane;
use crate::device::Addr;
use crate::heap::Id;
use crate::pool::Block;
use crate::pool::core::Core;
use crate::seeded::seeded;
use crate::sync::{AtomicI64, latch};

/// Blocks that keep a lane alive: one atomic, so that a free elsewhere takes no lock.
pub(crate) struct Outstanding(AtomicI64);

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// One block more, of a lane that is retired.
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One block less; true if that ends the lane.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // Before the lane is retired the count is not above zero, so it cannot pass one.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The lane is retired with `out` blocks that were not freed on it; true if that ends it.
    #[must_use]
    pub(crate) fn retire(&self, out: i64) -> bool {
        self.0.fetch_add(out, Ordering::AcqRel) + out == 0
    }
}

/// Held by every lane of a slot, which another stream may have once all are gone.
pub(crate) struct SlotHold {
    /// The slot's stream is a gate, whose blocks are segments of a graph's memory.
    pub(crate) gate: bool,
}

/// A pointer to a lane that is alive for as long as the pointer is used: the holder is a block of
/// the lane, or holds a handle of its pool and of its stream.
#[derive(Clone, Copy)]
pub(crate) struct LanePtr(NonNull<Lane>);

// SAFETY: a lane may be used from any thread; the pointer is only a way to it.
unsafe impl Send for LanePtr {}
// SAFETY: as above.
unsafe impl Sync for LanePtr {}

impl LanePtr {
    /// No lane; never followed.
    pub(crate) const NONE: Self = Self(NonNull::dangling());

    #[inline]
    pub(crate) fn of(lane: &Lane) -> Self {
        Self(NonNull::from(lane))
    }

    /// The lane.
    ///
    /// # Safety
    /// One of the holders that the type names exists for as long as the reference is used.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a Lane {
        // SAFETY: the caller vouches that the lane is alive.
        unsafe { self.0.as_ref() }
    }
}

/// A request that its lane waits for. Without a block in the end, also where the application's
/// callback panics, it does no more.
pub(crate) struct Counted<'a>(pub(crate) &'a Lane);

impl Counted<'_> {
    pub(crate) fn block(self, id: Id, addr: Addr, bytes: u64, requested: u64) -> Block {
        let lane = self.0;
        std::mem::forget(self);
        Block::new(lane, id, addr, bytes, requested)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !(seeded!("panicked-request-holds-its-lane") && std::thread::panicking()) {
            self.0.count_out();
        }
    }
}

impl Lane {
    /// Counts one block more that ends the lane when it leaves. Of a lane that is retired.
    pub(crate) fn enter(&self) {
        self.others.outstanding.enter();
    }

    /// Takes back the count of a block that there is not. The lane may be gone afterwards.
    fn count_out(&self) {
        let mut state = latch(&self.own.state);
        if state.retired {
            drop(state);
            self.leave();
        } else {
            state.pending -= u64::from(!seeded!("failed-request-holds-its-lane"));
        }
    }

    /// Ends the lane's use: from now on frees go straight to the core, and the last one ends it.
    pub(crate) fn retire(&self, core: &mut Core) {
        let mut state = latch(&self.own.state);
        state.aside = true;
        if std::mem::replace(&mut state.retired, true) {
            return;
        }
        let out = state.counters.blocks() + state.pending as i64;
        // Counts that others make from here on go to `outstanding`.
        drop(state);
        self.drain(ALL_WORDS, core);
        self.drain_batches(core);
        if self.others.outstanding.retire(out) {
            self.end();
        }
    }

    /// One block of this lane is gone, freed elsewhere or after the lane was retired. The lane may
    /// be gone afterwards.
    pub(crate) fn leave(&self) {
        if self.others.outstanding.leave() {
            self.end();
        }
    }

    /// Has the pool hold the lane no longer.
    fn end(&self) {
        let held = self.shared.counts.end(self);
        // Behind the ledger's lock: the pool may go with its last lane.
        drop(held);
    }
}

/// Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::Outstanding;
    use crate::pool::stats::counters::{Elsewhere, Sums};

    /// Two blocks are freed elsewhere while the lane is retired by a third thread.
    #[test]
    fn a_lane_ends_once_and_after_its_last_block() {
        loom::model(|| {
            let lane = Arc::new(Outstanding::new());
            let (freed, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let end = |ended: &AtomicU64, freed: &AtomicU64, last: bool| {
                if last {
                    assert_eq!(freed.load(Ordering::Acquire), 2, "a block is left");
                    ended.fetch_add(1, Ordering::AcqRel);
                }
            };
            let frees: Vec<_> = (0..2)
                .map(|_| {
                    let (lane, freed, ended) =
                        (Arc::clone(&lane), Arc::clone(&freed), Arc::clone(&ended));
                    thread::spawn(move || {
                        freed.fetch_add(1, Ordering::AcqRel);
                        end(&ended, &freed, lane.leave());
                    })
                })
                .collect();
            end(&ended, &freed, lane.retire(2));
            frees.into_iter().for_each(|free| free.join().unwrap());
            assert_eq!(ended.load(Ordering::Acquire), 1);
        });
    }

    /// Two blocks are freed elsewhere, each counted before it is let go.
    #[test]
    fn whoever_ends_a_lane_sees_what_was_counted_of_all_its_blocks() {
        loom::model(|| {
            let lane = Arc::new((Outstanding::new(), Elsewhere::new()));
            let end = |lane: &(Outstanding, Elsewhere), last: bool| {
                if last {
                    assert_eq!(lane.1.sums()[0], Sums::block(300, 200) + Sums::block(0, 0));
                }
            };
            let frees: Vec<_> = [(100, 50), (200, 150)]
                .map(|(bytes, requested)| {
                    let lane = Arc::clone(&lane);
                    thread::spawn(move || {
                        lane.1.add(bytes, requested);
                        end(&lane, lane.0.leave());
                    })
                })
                .into();
            end(&lane, lane.0.retire(2));
            frees.into_iter().for_each(|free| free.join().unwrap());
        });
    }
}
