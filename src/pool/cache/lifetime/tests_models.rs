//! Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::pool::stats::counters::Sums;
use crate::pool::structure::Others;

/// What frees elsewhere write of a lane, and how often it ended.
#[derive(Default)]
struct Lane {
    others: Others,
    ended: AtomicU64,
}

impl Lane {
    /// The lane ends, with its last block, and all that was counted of them is seen.
    fn end(&self) {
        assert_eq!(
            self.others.elsewhere.sums()[0],
            Sums::block(300, 200) + Sums::block(0, 0)
        );
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    fn free(&self, (bytes, requested): (u64, u64)) {
        if self.others.elsewhere.add(bytes, requested) && self.others.leave() {
            self.end();
        }
    }
}

/// Two blocks are freed elsewhere while the lane is retired by a third thread.
#[test]
fn a_lane_ends_once_and_whoever_ends_it_sees_what_was_counted_of_all_its_blocks() {
    loom::model(|| {
        let lane = Arc::new(Lane::default());
        let frees: Vec<_> = [(100, 50), (200, 150)]
            .map(|sizes| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || lane.free(sizes))
            })
            .into();
        let out = 3 - lane.others.elsewhere.retire() as i64;
        lane.others.outstanding.fetch_add(out, Ordering::AcqRel);
        if lane.others.leave() {
            lane.end();
        }
        frees.into_iter().for_each(|free| free.join().unwrap());
        assert_eq!(lane.ended.load(Ordering::Acquire), 1);
    });
}
