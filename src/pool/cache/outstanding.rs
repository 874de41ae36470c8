//! What keeps a stream cache alive once it is retired: see `lifetime`.

use std::sync::atomic::Ordering;

use crate::sync::AtomicI64;

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
