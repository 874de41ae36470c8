//! What keeps a stream cache alive once it is retired: see `lifetime`.

use std::sync::atomic::Ordering;

use crate::sync::AtomicI64;

/// Blocks that keep a lane alive: one atomic, so that a free elsewhere takes no lock.
#[derive(Default)]
pub(crate) struct Outstanding(AtomicI64);

impl Outstanding {
    /// One block more, of a lane that is retired.
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One block less; true if that ends the lane.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // Until `retire` is called the count is not above zero, so it cannot pass one.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The lane is retired with `out` blocks that are not freed; true if that ends it.
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

    /// What frees elsewhere write of a lane, and how often it ended.
    #[derive(Default)]
    struct Others {
        outstanding: Outstanding,
        elsewhere: Elsewhere,
        ended: AtomicU64,
    }

    impl Others {
        /// The lane ends, with its last block, and all that was counted of them is seen.
        fn end(&self) {
            assert_eq!(
                self.elsewhere.sums()[0],
                Sums::block(300, 200) + Sums::block(0, 0)
            );
            self.ended.fetch_add(1, Ordering::AcqRel);
        }

        fn free(&self, (bytes, requested): (u64, u64)) {
            if self.elsewhere.add(bytes, requested) && self.outstanding.leave() {
                self.end();
            }
        }
    }

    /// Two blocks are freed elsewhere while the lane is retired by a third thread.
    #[test]
    fn a_lane_ends_once_and_whoever_ends_it_sees_what_was_counted_of_all_its_blocks() {
        loom::model(|| {
            let lane = Arc::new(Others::default());
            let frees: Vec<_> = [(100, 50), (200, 150)]
                .map(|sizes| {
                    let lane = Arc::clone(&lane);
                    thread::spawn(move || lane.free(sizes))
                })
                .into();
            let out = 2 - lane.elsewhere.retire() as i64;
            if lane.outstanding.retire(out) {
                lane.end();
            }
            frees.into_iter().for_each(|free| free.join().unwrap());
            assert_eq!(lane.ended.load(Ordering::Acquire), 1);
        });
    }
}
