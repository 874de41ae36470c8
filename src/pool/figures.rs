//! The pool's figures put together from its lanes and its core.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::extents::{Id, State};
use super::shared::Shared;
use super::stats::{Counter, Flows, PoolStats, StreamStats, Totals};
use crate::device::lock;

/// The counts of all streams a pool has served: those of today and the sum of those gone.
#[derive(Default)]
pub(crate) struct Ledger {
    /// (stream uid, counts) of lanes that are alive.
    flows: Vec<(u64, Arc<Flows>)>,
    /// Sum over lanes that are gone.
    past: Totals,
    /// Most live bytes and requested bytes seen at once, all streams together.
    peak: (u64, u64),
    /// More than one stream has been served, so peaks are those of the moments looked at.
    several: bool,
}

impl Ledger {
    pub(crate) fn add(&mut self, uid: u64, flow: &Arc<Flows>) {
        let Self { flows, past, .. } = self;
        flows.retain(|(_, flow)| {
            let alive = Arc::strong_count(flow) > 1;
            if !alive {
                past.add(flow);
            }
            alive
        });
        self.several |= !self.flows.is_empty() || self.past.allocs() > 0;
        self.flows.push((uid, Arc::clone(flow)));
    }

    /// All counts now; notes the joint peak.
    fn totals(&mut self) -> Totals {
        let mut totals = self.past;
        for (_, flow) in &self.flows {
            totals.add(flow);
        }
        self.peak.0 = self.peak.0.max(totals.live_bytes());
        self.peak.1 = self.peak.1.max(totals.live_requested());
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

    /// Notes the joint peak where it matters: when the pool is about to change its size.
    pub(crate) fn note_peak(&mut self) {
        if self.several {
            self.totals();
        }
    }

    fn reset_peaks(&mut self) {
        self.peak = (0, 0);
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
        let (totals, peak, streams) = {
            let mut ledger = lock(&self.ledger);
            let totals = ledger.totals();
            (totals, ledger.peak, ledger.by_stream())
        };
        let [small, large] = totals.by_class();
        let mut stats = PoolStats {
            allocated: counter(small.0 + large.0, small.1 + large.1, peak.0),
            requested: counter(totals.requested(), totals.returned(), peak.1),
            blocks: counter(totals.allocs(), totals.frees(), 0),
            small: counter(small.0, small.1, 0),
            large: counter(large.0, large.1, 0),
            graphs: self.graph_bytes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            streams,
            ..PoolStats::default()
        };
        lock(&self.core).figures(&mut stats);
        stats
    }

    /// See [`Pool::reset_peaks`](super::Pool::reset_peaks).
    pub(crate) fn reset_peaks(&self) {
        lock(&self.ledger).reset_peaks();
        let mut core = lock(&self.core);
        core.peak_reserved = core.arena.reserved();
        core.peak_active = core.extents.taken().0;
    }
}

impl Core {
    /// Fills in what the core knows.
    fn figures(&self, stats: &mut PoolStats) {
        let (created, released) = self.arena.flow();
        stats.reserved = counter(created, released, self.peak_reserved);
        let taken = self.extents.taken().0;
        stats.active = Counter {
            current: taken,
            peak: self.peak_active,
            ..Counter::default()
        };
        let free = self.extents.hole_bytes();
        stats.largest_hole = self.extents.largest_hole();
        stats.holes = self.extents.holes();
        stats.fragmentation = if free == 0 {
            0.0
        } else {
            1.0 - stats.largest_hole as f64 / free as f64
        };
        stats.after_compaction = self.after_compaction();
        stats.inactive_split = self.inactive_split();
        stats.steps = self.steps;
        stats.bytes_moved = self.bytes_moved;
        stats.compactions = self.compactions;
        stats.calls = self.arena.calls();
    }

    /// Free bytes in frames that also hold blocks.
    fn inactive_split(&self) -> u64 {
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
