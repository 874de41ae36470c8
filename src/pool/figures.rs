//! The pool's figures put together from its lanes and its core.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::core::Core;
use super::extents::{Id, State};
use super::posted::Posted;
use super::shared::Shared;
use super::stats::{Counter, Flows, PoolStats, StreamStats, Totals};
use crate::device::lock;
use crate::sync::{Mutex, try_lock};

/// The counts of all streams a pool has served. Who allocates never waits for who reads them: new
/// lanes are announced through a channel, and the ledger's own lock is only tried for.
pub(super) struct Counts {
    announce: Sender<(u64, Arc<Flows>)>,
    ledger: Mutex<Ledger>,
}

impl Counts {
    pub(super) fn new() -> Self {
        let (announce, announced) = channel();
        let ledger = Mutex::new(Ledger::new(announced));
        Self { announce, ledger }
    }

    /// Counts a lane of the stream `uid` too.
    pub(super) fn add(&self, uid: u64, flow: &Arc<Flows>) {
        // The ledger has the other end for as long as there is this one.
        let _ = self.announce.send((uid, Arc::clone(flow)));
        // Who has the ledger now takes the lane in, or the next one does.
        if let Some(mut ledger) = try_lock(&self.ledger) {
            ledger.take_in();
        }
    }

    /// Notes the joint peak where it matters: when the pool is about to change its size. Who has
    /// the ledger now notes it too.
    pub(super) fn note_peak(&self) {
        if let Some(mut ledger) = try_lock(&self.ledger) {
            ledger.note_peak();
        }
    }
}

/// The counts of lanes of today and the sum of those gone.
struct Ledger {
    announced: Receiver<(u64, Arc<Flows>)>,
    /// (stream uid, counts) of lanes that are alive.
    flows: Vec<(u64, Arc<Flows>)>,
    /// Sum over lanes that are gone.
    past: Totals,
    /// Most live bytes and requested bytes seen at once, all streams together.
    peak: (u64, u64),
    /// Most blocks, and most bytes in small and in large ones, of the moments looked at.
    peak_blocks: u64,
    peak_classes: [u64; 2],
}

impl Ledger {
    fn new(announced: Receiver<(u64, Arc<Flows>)>) -> Self {
        Self {
            announced,
            flows: Vec::new(),
            past: Totals::default(),
            peak: (0, 0),
            peak_blocks: 0,
            peak_classes: [0; 2],
        }
    }

    /// Takes announced lanes in and leaves out those that are gone.
    fn take_in(&mut self) {
        while let Ok((uid, flow)) = self.announced.try_recv() {
            self.drop_gone();
            self.flows.push((uid, flow));
        }
    }

    fn drop_gone(&mut self) {
        let Self {
            flows, past, peak, ..
        } = self;
        flows.retain(|(_, flow)| {
            let alive = Arc::strong_count(flow) > 1;
            if !alive {
                past.add(flow);
                peak.0 = peak.0.max(flow.peak_bytes());
                peak.1 = peak.1.max(flow.peak_requested());
            }
            alive
        });
    }

    /// All counts now; notes the joint peak.
    fn totals(&mut self) -> Totals {
        self.take_in();
        let mut totals = self.past;
        for (_, flow) in &self.flows {
            totals.add(flow);
        }
        self.peak.0 = self.peak.0.max(totals.live_bytes());
        self.peak.1 = self.peak.1.max(totals.live_requested());
        let blocks = totals.allocs().saturating_sub(totals.frees());
        self.peak_blocks = self.peak_blocks.max(blocks);
        for (peak, (allocated, freed)) in self.peak_classes.iter_mut().zip(totals.by_class()) {
            *peak = (*peak).max(allocated.saturating_sub(freed));
        }
        for (_, flow) in &self.flows {
            self.peak.0 = self.peak.0.max(flow.peak_bytes());
            self.peak.1 = self.peak.1.max(flow.peak_requested());
        }
        totals
    }

    /// Figures by stream: a stream under capture has the flows of its graphs beside its own, one
    /// that threads share those of each.
    fn by_stream(&self) -> Vec<StreamStats> {
        let mut streams: Vec<StreamStats> = Vec::new();
        let mut places: HashMap<u64, usize> = HashMap::new();
        for (uid, flow) in &self.flows {
            let figures = flow.of_stream(*uid);
            match places.entry(*uid) {
                Entry::Occupied(place) => streams[*place.get()].add(&figures),
                Entry::Vacant(place) => {
                    place.insert(streams.len());
                    streams.push(figures);
                }
            }
        }
        streams
    }

    fn note_peak(&mut self) {
        self.totals();
    }

    fn reset_peaks(&mut self) {
        self.take_in();
        self.peak = (0, 0);
        self.peak_blocks = 0;
        self.peak_classes = [0; 2];
        for (_, flow) in &self.flows {
            flow.reset_peaks();
        }
        self.totals();
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

impl Shared {
    /// See [`Pool::stats`](super::Pool::stats).
    pub(crate) fn stats(&self) -> PoolStats {
        let (totals, peak, blocks, [small_peak, large_peak], streams) = {
            let mut ledger = lock(&self.counts.ledger);
            let totals = ledger.totals();
            (
                totals,
                ledger.peak,
                ledger.peak_blocks,
                ledger.peak_classes,
                ledger.by_stream(),
            )
        };
        let [small, large] = totals.by_class();
        let mut stats = PoolStats {
            allocated: counter(small.0 + large.0, small.1 + large.1, peak.0),
            requested: counter(totals.requested(), totals.returned(), peak.1),
            blocks: counter(totals.allocs(), totals.frees(), blocks),
            small: counter(small.0, small.1, small_peak),
            large: counter(large.0, large.1, large_peak),
            graphs: self.graph_bytes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            streams,
            ..PoolStats::default()
        };
        self.core.figures().fill(&mut stats);
        stats
    }

    /// See [`Pool::reset_peaks`](super::Pool::reset_peaks).
    pub(crate) fn reset_peaks(&self) {
        lock(&self.counts.ledger).reset_peaks();
        let mut core = self.core.lock();
        core.peak_reserved = core.arena.reserved();
        core.peak_active = core.extents.taken().0;
    }
}

impl Posted {
    /// Fills in what the core knows.
    fn fill(&self, stats: &mut PoolStats) {
        stats.reserved = counter(self.created, self.released, self.peak_reserved);
        stats.active = Counter {
            current: self.taken,
            peak: self.peak_active,
            ..Counter::default()
        };
        stats.largest_hole = self.largest_hole;
        stats.holes = self.holes;
        stats.fragmentation = match self.hole_bytes {
            0 => 0.0,
            free => (1.0 - self.largest_hole as f64 / free as f64).max(0.0),
        };
        stats.after_compaction = self.after_compaction;
        stats.inactive_split = self.inactive_split;
        stats.steps = self.steps;
        stats.bytes_moved = self.bytes_moved;
        stats.compactions = self.compactions;
        stats.calls = self.calls;
    }
}

impl Core {
    /// Free bytes in frames that also hold blocks.
    pub(super) fn inactive_split(&self) -> u64 {
        let holes = self
            .extents
            .iter()
            .filter(|(_, extent)| extent.state == State::Hole);
        holes
            .map(|(id, extent)| extent.bytes - self.idle_bytes(id))
            .sum()
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
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::device::lock;
    use crate::{Device, Pool, PoolConfig};

    /// Far above what anything here takes that waits for nobody.
    const LONG: Duration = Duration::from_secs(20);

    fn host() -> Device {
        Device::host().unwrap()
    }

    #[test]
    fn reading_statistics_while_the_core_is_locked_does_not_wait() {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
        let stream = device.stream().unwrap();
        let block = pool.alloc(&stream, 4096).unwrap();
        let (done, told) = channel();
        let before = pool.stats();
        let core = pool.shared().core.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(pool.stats()));
            let read = told.recv_timeout(LONG);
            drop(core);
            let stats = read.expect("it waits for the core");
            assert_eq!(stats.allocated.current, 4096);
            assert_eq!(stats.largest_hole, before.largest_hole);
            assert_eq!(stats.steps, before.steps);
        });
        drop(block);
    }

    #[test]
    fn an_allocation_does_not_wait_for_who_reads_statistics() {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let block = pool.alloc(&first, 4096).unwrap();
        let (done, told) = channel();
        let reading = lock(&pool.shared().counts.ledger);
        std::thread::scope(|scope| {
            // A lane that is new, and memory that is.
            scope.spawn(|| done.send(pool.alloc(&second, 64 << 20).map(drop)));
            let allocated = told.recv_timeout(LONG);
            drop(reading);
            allocated.expect("it waits for the reader").unwrap();
        });
        let stats = pool.stats();
        assert_eq!(stats.streams.len(), 2, "the lane made meanwhile counts");
        assert_eq!(stats.allocated.allocated, 4096 + (64 << 20));
        drop(block);
    }

    #[test]
    fn figures_posted_are_those_a_walk_finds() {
        let device = host();
        let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
        let stream = device.stream().unwrap();
        let mut blocks: Vec<_> = (1..200)
            .map(|at| pool.alloc(&stream, at * 4096).unwrap())
            .collect();
        for step in 0..150 {
            drop(blocks.swap_remove(step * 7 % blocks.len()));
            pool.check_invariants().unwrap();
            let stats = pool.stats();
            let core = pool.shared().core.lock();
            assert_eq!(stats.largest_hole, core.extents.largest_hole());
            assert_eq!(stats.holes, core.extents.holes());
            assert_eq!(stats.active.current, core.extents.taken().0);
            assert_eq!(stats.after_compaction, core.after_compaction());
            assert_eq!(stats.inactive_split, core.inactive_split());
        }
    }
}
