//! A stream's count of records, and the highest of them known to be done: two atomics, no lock.
//!
//! A free reads the open tick after the last use was queued on its stream. A record counts its tick
//! before it calls the driver. So the record that closes a tick covers every use before any free
//! that read the tick.

use std::sync::atomic::Ordering;

use crate::sync::AtomicU64;

/// A stream's counts; see the module documentation.
pub(super) struct Ticks {
    records: AtomicU64,
    done: AtomicU64,
}

impl Ticks {
    pub(super) fn new() -> Self {
        Self {
            records: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// Records counted so far.
    pub(super) fn counted(&self) -> u64 {
        self.records.load(Ordering::Acquire)
    }

    /// Counts a record that is about to be made, and returns its tick.
    pub(super) fn count(&self) -> u64 {
        self.records.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Raises the count to `tick` if it is lower.
    pub(super) fn count_to(&self, tick: u64) {
        let higher = |records| (tick > records).then_some(tick);
        let _ = (self.records).fetch_update(Ordering::AcqRel, Ordering::Acquire, higher);
    }

    /// The highest tick known to be done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Records that everything up to `tick` is done.
    pub(super) fn reached(&self, tick: u64) {
        // Not by `fetch_max`, which the thread sanitizer does not follow.
        let higher = |done| (tick > done).then_some(tick);
        let _ = (self.done).fetch_update(Ordering::AcqRel, Ordering::Acquire, higher);
    }
}

/// Every interleaving, and every order that the memory model allows: `scripts/interleavings.sh`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::Ticks;

    /// A driver's queue: what was queued, and for each record how much of it the record covers.
    #[derive(Default)]
    struct Queue {
        work: u64,
        records: Vec<(u64, u64)>,
    }

    #[test]
    fn a_record_covers_all_work_behind_the_frees_that_carry_its_tick() {
        loom::model(|| {
            let ticks = Arc::new(Ticks::new());
            let queue = Arc::new(Mutex::new(Queue::default()));
            let frees: Vec<_> = (0..2)
                .map(|_| {
                    let (ticks, queue) = (Arc::clone(&ticks), Arc::clone(&queue));
                    thread::spawn(move || {
                        let mine = {
                            let mut queue = queue.lock().unwrap();
                            queue.work += 1;
                            queue.work
                        };
                        (mine, ticks.counted() + 1)
                    })
                })
                .collect();
            let tick = ticks.count();
            {
                let mut queue = queue.lock().unwrap();
                let covered = queue.work;
                queue.records.push((tick, covered));
            }
            for free in frees {
                let (work, carried) = free.join().unwrap();
                for (tick, covered) in &queue.lock().unwrap().records {
                    assert!(carried > *tick || work <= *covered);
                }
            }
        });
    }

    #[test]
    fn what_is_known_to_be_done_never_goes_back() {
        loom::model(|| {
            let ticks = Arc::new(Ticks::new());
            let threads: Vec<_> = [3, 5]
                .into_iter()
                .map(|tick| {
                    let ticks = Arc::clone(&ticks);
                    thread::spawn(move || ticks.reached(tick))
                })
                .collect();
            let first = ticks.done();
            let second = ticks.done();
            assert!(first <= second && [0, 3, 5].contains(&second));
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(ticks.done(), 5);
        });
    }
}
