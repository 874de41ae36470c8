//! The pool's figures put together from its stream caches and its heap.
//!
//! The ledger knows every stream cache there is, from its making to its end. Reading takes each
//! cache's latch for a copy of its counters, and then the heap's lock for a copy of its gauges.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::{Gauge, Gauges, Sums, class, raise};
use super::{BlockStats, ClassStats, Counter, PoolStats, StreamStats};
use crate::device::lock;
use crate::heap::Extent;
use crate::pool::core::Core;
use crate::pool::structure::{Books, Lane, Ledger, Served, Shared, Totals};
use crate::seeded::seeded;
use crate::sync::try_lock;

fn add(sums: &mut [Sums; 2], more: [Sums; 2]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = *sum + more;
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        add(&mut self.allocated, other.allocated);
        add(&mut self.freed, other.freed);
    }

    fn add_allocated(&mut self, lane: &Lane) {
        add(&mut self.allocated, lane.count(|it, _| it.allocated));
    }

    fn add_freed(&mut self, lane: &Lane) {
        add(&mut self.freed, lane.count(|it, _| it.freed));
        add(&mut self.freed, lane.others.elsewhere.sums());
    }

    fn live(&self) -> [Sums; 3] {
        let none = Sums::default();
        let [small, large] =
            [0, 1].map(|class| (self.allocated[class] - self.freed[class]).most(none));
        [small, large, small + large]
    }

    fn stats(&self, peaks: [Sums; 3]) -> [BlockStats; 3] {
        let all = |of: [Sums; 2]| [of[0], of[1], of[0] + of[1]];
        let (allocated, freed) = (all(self.allocated), all(self.freed));
        [0, 1, 2].map(|of| {
            let (allocated, freed, peak) = (allocated[of], freed[of], peaks[of]);
            BlockStats {
                blocks: counter(allocated.blocks, freed.blocks, peak.blocks),
                allocated: counter(allocated.bytes, freed.bytes, peak.bytes),
                requested: counter(allocated.requested, freed.requested, peak.requested),
            }
        })
    }
}

fn peaks_of(lane: &Lane) -> [Sums; 3] {
    lane.count(|counters, _| counters.peaks())
}

impl Served {
    /// A gate's blocks hold what others allocate, which is counted there.
    fn is_counted(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.hold.gate)
    }

    fn stats(&self, stream_name: Option<String>) -> StreamStats {
        let [small, large, all] = self.now.stats(self.peaks);
        StreamStats {
            stream: self.uid,
            stream_name,
            blocks: all.blocks,
            allocated: all.allocated,
            requested: all.requested,
            small,
            large,
            cached_bytes: self.lanes.iter().map(|lane| lane.cached_bytes()).sum(),
        }
    }
}

impl Books {
    /// All counts now; notes the joint peaks.
    ///
    /// Everything freed is read after everything allocated, so that what was handed over meanwhile
    /// makes live blocks look fewer than they were, never more: no peak is noted that was none.
    fn read(&mut self) -> Totals {
        for entry in &mut self.streams {
            entry.now = entry.past;
            let each = entry.lanes.iter();
            each.for_each(|lane| entry.now.add_allocated(lane));
        }
        let mut totals = self.past;
        for entry in &mut self.streams {
            for lane in &entry.lanes {
                entry.now.add_freed(lane);
                raise(&mut entry.peaks, peaks_of(lane));
            }
            raise(&mut entry.peaks, entry.now.live());
            if entry.is_counted() {
                raise(&mut self.peaks, entry.peaks);
                totals.add(&entry.now);
            }
        }
        raise(&mut self.peaks, totals.live());
        totals
    }
}

impl Ledger {
    /// Counts a stream cache too, and keeps it until its end.
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        let (lane, uid) = (Arc::clone(lane), lane.stream.timeline.uid);
        let mut books = lock(&self.0);
        match books.streams.iter_mut().find(|entry| entry.uid == uid) {
            Some(entry) => entry.lanes.push(lane),
            None => books.streams.push(Served {
                uid,
                lanes: vec![lane],
                past: Totals::default(),
                now: Totals::default(),
                peaks: Default::default(),
            }),
        }
    }

    /// Counts on without a stream cache whose last block is gone; gives it.
    pub(crate) fn end(&self, lane: &Lane) -> Option<Arc<Lane>> {
        let mut books = lock(&self.0);
        let Books {
            streams,
            past,
            peaks,
        } = &mut *books;
        let uid = lane.stream.timeline.uid;
        let at = streams.iter().position(|entry| entry.uid == uid)?;
        let entry = &mut streams[at];
        entry.past.add_allocated(lane);
        entry.past.add_freed(lane);
        raise(&mut entry.peaks, peaks_of(lane));
        let counted = entry.is_counted();
        let mut lanes = entry.lanes.iter();
        let found = lanes.position(|it| std::ptr::eq(&raw const **it, lane))?;
        let lane = entry.lanes.swap_remove(found);
        if entry.lanes.is_empty() {
            let entry = streams.swap_remove(at);
            if counted {
                past.add(&entry.past);
                if !seeded!("peaks-go-with-their-stream") {
                    raise(peaks, entry.peaks);
                }
            }
        }
        Some(lane)
    }

    /// Notes joint peaks where they matter: when the pool is about to change its size. Who has the
    /// ledger now notes them too.
    pub(crate) fn note_peak(&self) {
        if let Some(mut books) = try_lock(&self.0) {
            books.read();
        }
    }

    fn reset_peaks(&self) {
        let mut books = lock(&self.0);
        books.peaks = Default::default();
        for entry in &mut books.streams {
            entry.peaks = Default::default();
            for lane in &entry.lanes {
                lane.count(|counters, elsewhere| counters.reset_peaks(elsewhere));
            }
        }
        books.read();
    }
}

fn counter(allocated: u64, freed: u64, peak: u64) -> Counter {
    let current = allocated.saturating_sub(freed);
    Counter {
        current,
        peak: peak.max(current),
        allocated,
        freed,
    }
}

impl Gauge {
    fn counter(self) -> Counter {
        let freed = self.added.saturating_sub(self.current);
        counter(self.added, freed, self.peak)
    }
}

impl Gauges {
    fn counter(&self) -> Counter {
        let [small, large] = self.classes.map(Gauge::counter);
        let (allocated, freed) = (small.allocated + large.allocated, small.freed + large.freed);
        counter(allocated, freed, self.peak)
    }
}

impl Shared {
    pub(crate) fn stats(&self) -> PoolStats {
        let names = self.device.stream_names();
        let (blocks, streams) = {
            let mut books = lock(&self.counts.0);
            let totals = books.read();
            let counted = books.streams.iter().filter(|entry| entry.is_counted());
            let stats = |it: &Served| it.stats(names.get(&it.uid).map(ToString::to_string));
            (totals.stats(books.peaks), counted.map(stats).collect())
        };
        // The driver may be at work under the lock of a buffer's pages.
        let growing_asleep = self.pages_asleep();
        let mut core = self.core.lock();
        core.sample();
        let classes = [0, 1].map(|of| ClassStats {
            blocks: blocks[of].blocks,
            allocated: blocks[of].allocated,
            requested: blocks[of].requested,
            active: core.active.classes[of].counter(),
            reserved: core.reserved.classes[of].counter(),
            inactive_split: core.inactive_split.classes[of].counter(),
        });
        let (free, largest) = (core.extents.hole_bytes(), core.extents.largest_hole());
        let (created, released) = core.flow();
        let (own, ready) = self.transfer.steps();
        let mut steps = core.steps;
        steps.own_stream += own;
        steps.ready_elsewhere += ready;
        PoolStats {
            blocks: blocks[2].blocks,
            allocated: blocks[2].allocated,
            requested: blocks[2].requested,
            active: core.active.counter(),
            reserved: counter(created, released, core.peak_reserved),
            inactive_split: core.inactive_split.counter(),
            small: classes[0],
            large: classes[1],
            largest_hole: largest,
            holes: core.extents.holes(),
            fragmentation: (free - largest) as f64 / free.max(1) as f64,
            bytes_moved: core.bytes_moved,
            compactions: core.compactions,
            graphs: self.graph_bytes.load(Ordering::Relaxed),
            grown: core.grown.bytes,
            sleeping: core.arena.asleep() + growing_asleep,
            spilled: self.spilled.counter(),
            overhead: self.overhead.bytes(),
            retries: self.retries.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            steps,
            calls: core.arena.calls(),
            streams,
        }
    }

    pub(crate) fn reset_peaks(&self) {
        self.counts.reset_peaks();
        self.spilled.reset_peak();
        let mut core = self.core.lock();
        core.sample();
        core.peak_reserved = core.reserved();
        core.active.reset_peaks();
        core.reserved.reset_peaks();
        core.inactive_split.reset_peaks();
    }
}

impl Core {
    /// Brings the gauges up to date that are taken when somebody asks.
    fn sample(&mut self) {
        let small_free = self.extents.small_hole_bytes() + self.slabs.free_bytes();
        let small = self.active.classes[0].current + small_free;
        // Blocks of a pool that sleeps have no memory.
        let small = small.min(self.reserved());
        self.reserved.set([small, self.reserved() - small]);
        self.inactive_split.set(self.split_bytes());
    }

    /// Free bytes in handles that also hold blocks: in small holes and slots, in large holes. Looks at
    /// the holes that may cover a handle, which are the larger ones.
    fn split_bytes(&self) -> [u64; 2] {
        let small = self.extents.small_hole_bytes();
        let mut split = [
            small + self.slabs.free_bytes(),
            self.extents.hole_bytes() - small,
        ];
        for id in self.large_holes() {
            let hole = self.extents.get(id);
            split[class(hole.bytes)] -= self.covered_bytes(hole);
        }
        split
    }

    /// Bytes of the hole in handles that it covers: all but its parts of the first and the last.
    fn covered_bytes(&self, hole: &Extent) -> u64 {
        let handle = |at| {
            let (_, frame) = self.arena.frame_at(at)?;
            let (start, bytes) = self.arena.extent_of(&frame);
            Some((start, start + bytes))
        };
        let first = handle(hole.start).filter(|&(start, _)| start < hole.start);
        let last = handle(hole.end() - 1).filter(|&(_, end)| end > hole.end());
        let from = first.map_or(hole.start, |(_, end)| end);
        let to = last.map_or(hole.end(), |(start, _)| start);
        to.saturating_sub(from)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
