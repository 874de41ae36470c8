//! The pool's figures put together from its lanes and its core.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::active::Gauge;
use super::core::Core;
use super::flows::{Away, Flows};
use super::posted::Posted;
use super::shared::Shared;
use super::stats::{BlockStats, ClassStats, Counter, PoolStats, StreamStats};
use super::tally::{Sums, class};
use crate::device::lock;
use crate::heap::Id;
use crate::seeded::seeded;
use crate::sync::{Mutex, try_lock};

/// Who counts from now on, for a stream.
enum Announced {
    Lane(Arc<Flows>),
    /// Blocks of the stream that a lane of another frees.
    Away(Arc<Away>),
}

/// The counts of all streams a pool has served. Who allocates never waits for who reads them: who
/// counts is announced through a channel, and the ledger's own lock is only tried for.
pub(super) struct Counts {
    announce: Sender<(u64, Announced)>,
    ledger: Mutex<Ledger>,
}

impl Counts {
    pub(super) fn new() -> Self {
        let (announce, announced) = channel();
        let ledger = Mutex::new(Ledger::new(announced));
        Self { announce, ledger }
    }

    /// Counts a lane of the stream `uid` too.
    pub(super) fn add(&self, uid: u64, flows: &Arc<Flows>) {
        self.announce(uid, Announced::Lane(Arc::clone(flows)));
    }

    /// Counts blocks of the stream `uid` that a lane of another frees.
    pub(super) fn add_away(&self, uid: u64, away: &Arc<Away>) {
        self.announce(uid, Announced::Away(Arc::clone(away)));
    }

    fn announce(&self, uid: u64, who: Announced) {
        // The ledger has the other end for as long as there is this one.
        let _ = self.announce.send((uid, who));
        // Who has the ledger now takes it in, or the next one does.
        if let Some(mut ledger) = try_lock(&self.ledger) {
            ledger.take_in();
        }
    }

    /// Notes joint peaks where they matter: when the pool is about to change its size. Who has the
    /// ledger now notes them too.
    pub(super) fn note_peak(&self) {
        if let Some(mut ledger) = try_lock(&self.ledger) {
            ledger.read();
        }
    }
}

/// What lanes have counted.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// By class.
    allocated: [Sums; 2],
    freed: [Sums; 2],
    /// Bytes that became active, and that are no longer.
    active: [(u64, u64); 2],
}

impl Totals {
    fn allocated(&mut self, flows: &Flows) {
        add(&mut self.allocated, flows.allocated());
    }

    fn rest(&mut self, flows: &Flows) {
        add(&mut self.freed, flows.freed());
        for (sum, (added, removed)) in self.active.iter_mut().zip(flows.active_flows()) {
            *sum = (sum.0 + added, sum.1 + removed);
        }
    }

    fn away(&mut self, away: &Away) {
        let sums = away.sums();
        add(&mut self.freed, sums);
        for (active, sums) in self.active.iter_mut().zip(sums) {
            active.1 += sums.bytes;
        }
    }

    fn add(&mut self, other: &Self) {
        add(&mut self.allocated, other.allocated);
        add(&mut self.freed, other.freed);
        for (sum, other) in self.active.iter_mut().zip(other.active) {
            *sum = (sum.0 + other.0, sum.1 + other.1);
        }
    }

    /// What is live, and active: small blocks, large ones, all.
    fn now(&self) -> Most {
        let live = [0, 1].map(|class| (self.allocated[class] - self.freed[class]).seen());
        let active = self.active.map(|(added, gone)| added.saturating_sub(gone));
        let all = (live[0] + live[1], active[0] + active[1]);
        [(live[0], active[0]), (live[1], active[1]), all]
    }
}

fn add(sums: &mut [Sums; 2], others: [Sums; 2]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum = *sum + other;
    }
}

/// Live blocks and active bytes: small, large, all.
type Most = [(Sums, u64); 3];

fn raise(peaks: &mut Most, others: &Most) {
    for (peak, other) in peaks.iter_mut().zip(others) {
        *peak = (peak.0.most(other.0), peak.1.max(other.1));
    }
}

/// What is known of a stream.
struct Entry {
    uid: u64,
    lanes: Vec<Arc<Flows>>,
    aways: Vec<Arc<Away>>,
    /// Of lanes that are gone.
    past: Totals,
    /// As they were read last.
    now: Totals,
    peaks: Most,
}

impl Entry {
    fn new(uid: u64) -> Self {
        Self {
            uid,
            lanes: Vec::new(),
            aways: Vec::new(),
            past: Totals::default(),
            now: Totals::default(),
            peaks: Most::default(),
        }
    }

    /// Adds what nobody counts on any more to the past.
    fn drop_gone(&mut self) {
        let Self {
            lanes,
            aways,
            past,
            peaks,
            ..
        } = self;
        lanes.retain(|flows| {
            let alive = is_counting(flows);
            if !alive {
                past.allocated(flows);
                past.rest(flows);
                raise(peaks, &flows.peaks());
            }
            alive
        });
        aways.retain(|away| {
            let alive = is_counting(away);
            if !alive {
                past.away(away);
            }
            alive
        });
    }

    fn stats(&self) -> StreamStats {
        let Totals {
            allocated,
            freed,
            active,
        } = self.now;
        let of = |class: usize| {
            let live = (allocated[class], freed[class]);
            blocks(live, active[class], self.peaks[class])
        };
        let live = (allocated[0] + allocated[1], freed[0] + freed[1]);
        let sum = (active[0].0 + active[1].0, active[0].1 + active[1].1);
        let all = blocks(live, sum, self.peaks[2]);
        let cached = self.lanes.iter().flat_map(|flows| flows.cached());
        StreamStats {
            stream: self.uid,
            blocks: all.blocks,
            allocated: all.allocated,
            requested: all.requested,
            active: all.active,
            small: of(0),
            large: of(1),
            cached_bytes: cached.sum(),
        }
    }
}

/// Whether anybody has it but who asks.
fn is_counting<T>(counts: &Arc<T>) -> bool {
    let alone = Arc::strong_count(counts) == 1;
    if alone {
        // What was counted before it was let go is seen.
        fence(Ordering::Acquire);
    }
    !alone
}

/// The counts of today and the sum of those gone.
struct Ledger {
    announced: Receiver<(u64, Announced)>,
    /// Streams that anybody counts for.
    streams: Vec<Entry>,
    /// Of streams that are gone.
    past: Totals,
    /// The most seen at once, all streams together.
    peaks: Most,
}

impl Ledger {
    fn new(announced: Receiver<(u64, Announced)>) -> Self {
        Self {
            announced,
            streams: Vec::new(),
            past: Totals::default(),
            peaks: Most::default(),
        }
    }

    /// Takes in who was announced, and leaves out who is gone.
    fn take_in(&mut self) {
        let mut is_new = false;
        while let Ok((uid, who)) = self.announced.try_recv() {
            is_new = true;
            let known = self.streams.iter_mut().find(|entry| entry.uid == uid);
            match (who, known) {
                (Announced::Lane(flows), Some(entry)) => entry.lanes.push(flows),
                (Announced::Away(away), Some(entry)) => entry.aways.push(away),
                (Announced::Lane(flows), None) => {
                    let lanes = vec![flows];
                    self.streams.push(Entry {
                        lanes,
                        ..Entry::new(uid)
                    });
                }
                // The stream is gone, so the last of its blocks is counted.
                (Announced::Away(away), None) => self.past.away(&away),
            }
        }
        if is_new {
            self.drop_gone();
        }
    }

    fn drop_gone(&mut self) {
        let Self {
            streams,
            past,
            peaks,
            ..
        } = self;
        streams.retain_mut(|entry| {
            entry.drop_gone();
            let alive = !entry.lanes.is_empty();
            if !alive {
                if !seeded!("peaks-go-with-their-stream") {
                    raise(peaks, &entry.peaks);
                }
                past.add(&entry.past);
                entry.aways.iter().for_each(|away| past.away(away));
            }
            alive
        });
    }

    /// All counts now; notes the joint peaks.
    ///
    /// Everything freed is read after everything allocated, so that what was handed over meanwhile
    /// makes live blocks look fewer than they were, never more: no peak is noted that was none.
    fn read(&mut self) -> Totals {
        self.take_in();
        for entry in &mut self.streams {
            entry.now = entry.past;
            let Entry { lanes, now, .. } = entry;
            lanes.iter().for_each(|flows| now.allocated(flows));
        }
        fence(Ordering::Acquire);
        let mut totals = self.past;
        for entry in &mut self.streams {
            let Entry {
                lanes,
                aways,
                now,
                peaks,
                ..
            } = entry;
            lanes.iter().for_each(|flows| now.rest(flows));
            aways.iter().for_each(|away| now.away(away));
            raise(peaks, &now.now());
            lanes.iter().for_each(|flows| raise(peaks, &flows.peaks()));
            raise(&mut self.peaks, peaks);
            totals.add(now);
        }
        raise(&mut self.peaks, &totals.now());
        totals
    }

    fn reset_peaks(&mut self) {
        self.take_in();
        self.peaks = Most::default();
        for entry in &mut self.streams {
            entry.peaks = Most::default();
            entry.lanes.iter().for_each(|flows| flows.reset_peaks());
        }
        self.read();
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

fn blocks(
    (allocated, freed): (Sums, Sums),
    active: (u64, u64),
    (peak, active_peak): (Sums, u64),
) -> BlockStats {
    BlockStats {
        blocks: counter(allocated.blocks, freed.blocks, peak.blocks),
        allocated: counter(allocated.bytes, freed.bytes, peak.bytes),
        requested: counter(allocated.requested, freed.requested, peak.requested),
        active: counter(active.0, active.1, active_peak),
    }
}

fn gauge(gauge: Gauge) -> Counter {
    counter(
        gauge.added,
        gauge.added.saturating_sub(gauge.current),
        gauge.peak,
    )
}

/// The sum of two, but for the peak.
fn both(small: Counter, large: Counter, peak: u64) -> Counter {
    let (allocated, freed) = (small.allocated + large.allocated, small.freed + large.freed);
    counter(allocated, freed, peak)
}

impl Shared {
    /// See [`Pool::stats`](super::Pool::stats).
    pub(crate) fn stats(&self) -> PoolStats {
        let (totals, peaks, streams) = {
            let mut ledger = lock(&self.counts.ledger);
            let totals = ledger.read();
            let streams = ledger.streams.iter().map(Entry::stats).collect();
            (totals, ledger.peaks, streams)
        };
        let posted = self.core.figures();
        let [small, large] = [0, 1].map(|class| {
            let live = (totals.allocated[class], totals.freed[class]);
            posted.of_class(class, blocks(live, (0, 0), peaks[class]))
        });
        let (peak, _) = peaks[2];
        let mut stats = PoolStats {
            blocks: both(small.blocks, large.blocks, peak.blocks),
            allocated: both(small.allocated, large.allocated, peak.bytes),
            requested: both(small.requested, large.requested, peak.requested),
            small,
            large,
            graphs: self.graph_bytes.load(Ordering::Relaxed),
            overhead: self.overhead.bytes(),
            failures: self.failures.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            streams,
            ..PoolStats::default()
        };
        posted.fill(&mut stats);
        stats
    }

    /// See [`Pool::reset_peaks`](super::Pool::reset_peaks).
    pub(crate) fn reset_peaks(&self) {
        lock(&self.counts.ledger).reset_peaks();
        self.core.lock().reset_peaks();
    }
}

impl Posted {
    /// The figures of one class, whose live blocks are `live`.
    fn of_class(&self, class: usize, live: BlockStats) -> ClassStats {
        ClassStats {
            blocks: live.blocks,
            allocated: live.allocated,
            requested: live.requested,
            active: gauge(self.active.classes[class]),
            reserved: gauge(self.reserved[class]),
            inactive_split: gauge(self.inactive_split[class]),
        }
    }

    /// Fills in what the core knows.
    fn fill(&self, stats: &mut PoolStats) {
        let (small, large) = (&stats.small, &stats.large);
        stats.active = both(small.active, large.active, self.active.peak);
        let inactive = (small.inactive_split, large.inactive_split);
        stats.inactive_split = both(inactive.0, inactive.1, self.inactive_split_peak);
        stats.reserved = counter(self.created, self.released, self.peak_reserved);
        stats.largest_hole = self.largest_hole;
        stats.holes = self.holes;
        stats.fragmentation = match self.hole_bytes {
            0 => 0.0,
            free => (1.0 - self.largest_hole as f64 / free as f64).max(0.0),
        };
        // Of before, where nobody walked: not beyond what there is.
        stats.after_compaction =
            (self.after_compaction.min(self.hole_bytes)).max(self.largest_hole);
        stats.steps = self.steps;
        stats.bytes_moved = self.bytes_moved;
        stats.compactions = self.compactions;
        stats.calls = self.calls;
    }
}

impl Core {
    /// Free bytes in frames that also hold blocks: in small holes and slots, in large holes.
    pub(super) fn inactive_split(&self) -> [u64; 2] {
        let mut split = [self.slabs.free_bytes(), 0];
        for (id, extent) in self.extents.each_hole() {
            split[class(extent.bytes)] += extent.bytes - self.idle_bytes(id);
        }
        split
    }

    /// Bytes of the hole in frames that lie wholly inside it.
    fn idle_bytes(&self, hole: Id) -> u64 {
        let mut frames = Vec::new();
        let mut left = u64::MAX;
        self.idle_in(hole, &mut left, &mut frames);
        u64::MAX - left
    }
}

#[cfg(test)]
mod tests;
