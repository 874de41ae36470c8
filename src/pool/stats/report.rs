//! Sums up the figures of a pool's lanes, each under its latch, and of its heap. Prints them as a table or JSON.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::{Totals, class};
use super::{BlockStats, ClassStats, Counter, PoolStats, SMALL_BYTES, StreamStats};
use crate::device::{lock, stream_words};
use crate::error::Bytes;
use crate::heap::UNIT;
use crate::pool::Pool;
use crate::pool::core::Core;
use crate::pool::structure::{Books, Lane, Served, Shared};
use crate::pool::tuning::READ_PART;
use crate::sync::{latch, try_lock};

fn totals(lane: &Lane) -> Totals<3> {
    lane.count(|counters, elsewhere| *counters.totals(elsewhere))
}

impl Served {
    /// A gate's blocks do not count: the graph's blocks that lie in them do.
    fn is_counted(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.stream.gate)
    }

    /// The counts of all its lanes, also of those that ended.
    fn sum(&self) -> Totals<3> {
        let mut all = self.past;
        self.lanes.iter().for_each(|lane| all.merge(&totals(lane)));
        all
    }

    fn stats(&self, stream: u64, stream_name: Option<String>) -> StreamStats {
        let [small, large, all] = self.now.counters();
        StreamStats {
            stream,
            stream_name,
            small: BlockStats::of(small),
            large: BlockStats::of(large),
            cached_bytes: self.lanes.iter().map(|lane| lane.cached_bytes()).sum(),
            ..StreamStats::of(all)
        }
    }
}

impl Books {
    /// Reads all counts and notes the joint peaks.
    ///
    /// It reads all frees again after all allocations: blocks handed over meanwhile make live bytes too low, never
    /// too high.
    fn read(&mut self) -> Totals<3> {
        (self.streams.values_mut()).for_each(|entry| entry.now = entry.sum());
        let mut all = self.past;
        for entry in self.streams.values_mut() {
            entry.now.freed = entry.sum().freed;
            entry.now.note_peak();
            entry.past.peaks = entry.now.peaks;
            if entry.is_counted() {
                all.merge(&entry.now);
            }
        }
        all.note_peak();
        self.past.peaks = all.peaks;
        all
    }

    /// Removes a lane whose last block is gone; its counts stay. Returns the lanes that no thread can find any more.
    pub(crate) fn end(&mut self, lane: &Lane) -> Option<Vec<Arc<Lane>>> {
        let uid = lane.stream.timeline.uid;
        let entry = self.streams.get_mut(&uid)?;
        entry.past.merge(&totals(lane));
        let is_it = |it: &mut Arc<Lane>| std::ptr::eq(Arc::as_ptr(it), lane);
        self.gone.extend(entry.lanes.extract_if(.., is_it));
        if entry.lanes.is_empty()
            && let Some(Served { past, .. }) = self.streams.remove(&uid)
            && !lane.stream.gate
        {
            self.past.merge(&past);
        }
        // A thread with a block of a closed pool may have remembered any of its lanes.
        let unknown = !self.closed || self.streams.is_empty();
        unknown.then(|| std::mem::take(&mut self.gone))
    }
}

impl Shared {
    /// Notes the joint peaks of all lanes if more may be live than at the last peak: with all caches `emptied`, if
    /// blocks have more bytes than were live then; else if blocks have a thousandth more than then. Does nothing
    /// while another thread has the books, as that notes the peaks too. With many streams it skips some requests.
    #[inline]
    pub(crate) fn note_peak(&self, core: &mut Core, emptied: bool) {
        core.unread = core.unread.saturating_sub(u64::from(!emptied));
        let (live, taken) = core.seen;
        let seen = if emptied { live } else { taken + taken / 1024 };
        if core.live() > seen
            && core.unread == 0
            && let Some(mut books) = try_lock(&self.books)
        {
            let live = books.read().peaks[2].bytes();
            core.seen = (live, core.live().max(core.seen.1));
            core.unread = core.streams.len() as u64 / READ_PART;
        }
    }
}

impl Pool {
    /// All figures, by size class and by stream. Takes some microseconds; meanwhile allocations wait for it no longer
    /// than for each other.
    #[doc(alias("memory_stats", "memory_summary", "get_memory_info"))]
    #[doc(alias("memory_allocated", "max_memory_allocated"))]
    #[doc(alias("memory_reserved", "max_memory_reserved"))]
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let shared = self.shared();
        let mut books = lock(&shared.books);
        let blocks = books.read().counters();
        let (mut streams, mut graphs) = (Vec::new(), 0);
        for (uid, it) in &books.streams {
            match it.is_counted() {
                true => streams.push(it.stats(*uid, shared.device.stream_name(*uid))),
                // A gate's blocks are segments.
                false => graphs += it.now.live()[2].bytes(),
            }
        }
        drop(books);
        let transfer = latch(&shared.transfer.state);
        let batches = transfer.batches.iter();
        let batches = batches.map(|it| (&it.timeline, it.bytes * it.blocks.len() as u64));
        let used = (transfer.used.iter()).map(|it| (&it.timeline, it.block.bytes));
        for (timeline, bytes) in batches.chain(used) {
            let of = streams.iter_mut().find(|of| of.stream == timeline.uid);
            of.into_iter().for_each(|of| of.cached_bytes += bytes);
        }
        let batches = transfer.steps;
        drop(transfer);
        let mut core = shared.core.lock();
        core.sample();
        let gauges = [&core.active, &core.reserved, &core.inactive_split];
        let figures = gauges.map(|gauge| gauge.counters().map(|[bytes]| bytes));
        let [active, mut reserved, inactive_split] = figures;
        let (created, released) = core.arena.flow();
        reserved[2] = Counter::new(created, released, core.peak_reserved);
        let [small, large] = [0, 1].map(|of| ClassStats {
            active: active[of],
            reserved: reserved[of],
            inactive_split: inactive_split[of],
            ..ClassStats::of(blocks[of])
        });
        let (free, largest) = (core.extents.hole_bytes(), core.extents.largest_hole());
        let mut steps = core.steps;
        steps.own_stream += batches.own_stream;
        steps.ready_elsewhere += batches.ready_elsewhere;
        steps.stream_wait += batches.stream_wait;
        steps.driver_ns += shared.transfer.driver_ns.load(Ordering::Relaxed);
        PoolStats {
            active: active[2],
            reserved: reserved[2],
            inactive_split: inactive_split[2],
            small,
            large,
            largest_hole: largest,
            holes: core.extents.holes(),
            fragmentation: (free - largest) as f64 / free.max(1) as f64,
            bytes_moved: core.bytes_moved,
            compactions: core.compactions,
            graphs,
            grown: core.arena.beside(),
            sleeping: core.arena.asleep(),
            spilled: lock(&shared.spilled).counters()[2][0],
            overhead: shared.overhead.bytes(),
            retries: shared.retries.load(Ordering::Relaxed),
            failures: steps.out_of_memory,
            steps,
            calls: core.arena.calls(),
            streams,
            ..PoolStats::of(blocks[2])
        }
    }

    /// Sets all peaks to the current values: those of the pool, its classes and its streams.
    #[doc(alias("reset_peak_memory_stats", "reset_memory_stats"))]
    pub fn reset_peaks(&self) {
        let shared = self.shared();
        let mut books = lock(&shared.books);
        books.past.peaks = Default::default();
        for entry in books.streams.values_mut() {
            entry.past.peaks = Default::default();
            for lane in &entry.lanes {
                lane.count(|counters, elsewhere| counters.totals(elsewhere).reset_peaks());
            }
        }
        books.read();
        drop(books);
        lock(&shared.spilled).reset_peaks();
        let mut core = shared.core.lock();
        core.sample();
        core.seen = (0, 0);
        core.peak_reserved = core.arena.reserved();
        core.active.reset_peaks();
        core.reserved.reset_peaks();
        core.inactive_split.reset_peaks();
    }
}

impl Core {
    /// Updates the gauges that are only taken at reads.
    fn sample(&mut self) {
        let (mut large, mut idle) = (0, [0; 2]);
        for id in (self.extents).holes_from(self.arena.granule().min(SMALL_BYTES + UNIT)) {
            let bytes = self.extents.get(id).bytes;
            large += bytes * class(bytes) as u64;
            idle[class(bytes)] += self.idle_in(id).map(|it| it.frame.bytes).sum::<u64>();
        }
        let free = self.extents.hole_bytes() - large + self.slabs.free_bytes();
        // Blocks of a sleeping pool have no memory.
        let small = (self.active.bytes()[0] + free).min(self.arena.reserved());
        self.reserved.set([small, self.arena.reserved() - small]);
        self.inactive_split.set([free - idle[0], large - idle[1]]);
    }
}

/// A figure's name, and its counters for all, small and large blocks: in bytes, except "blocks".
type Row = (&'static str, [Counter; 3]);

macro_rules! rows {
    ($of:expr; $($field:ident),+) => {
        [$((stringify!($field), [$of.$field, $of.small.$field, $of.large.$field])),+]
    };
}

impl PoolStats {
    fn rows(&self) -> [Row; 6] {
        rows!(self; blocks, allocated, requested, active, reserved, inactive_split)
    }

    /// Plain numbers, each with its name in the table and its key in JSON, which ends in "bytes" if it is in bytes.
    fn lines(&self) -> [(&'static str, &'static str, u64); 11] {
        [
            ("largest hole", "largest_hole_bytes", self.largest_hole),
            ("holes", "holes", self.holes),
            ("bytes moved", "moved_bytes", self.bytes_moved),
            ("compactions", "compactions", self.compactions),
            ("graphs", "graphs_bytes", self.graphs),
            ("growing buffers", "grown_bytes", self.grown),
            ("sleeping", "sleeping_bytes", self.sleeping),
            ("spilled", "spilled_bytes", self.spilled.current),
            ("overhead", "overhead_bytes", self.overhead),
            ("retries", "retries", self.retries),
            ("failures", "failures", self.failures),
        ]
    }
}

impl StreamStats {
    fn rows(&self) -> [Row; 3] {
        rows!(self; blocks, allocated, requested)
    }
}

fn text(value: u64, is_bytes: bool) -> String {
    match is_bytes {
        true => Bytes(value).to_string(),
        false => value.to_string(),
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Row]) -> fmt::Result {
    let [now, peak, allocated, freed] = ["current", "peak", "allocated", "freed"];
    write!(f, "{title:24}{now:>13}{peak:>13}{allocated:>13}{freed:>13}")?;
    for (name, classes) in rows {
        for (class, it) in ["", ", small", ", large"].into_iter().zip(classes) {
            write!(f, "\n  {:22}", name.replace('_', " ") + class)?;
            for value in [it.current, it.peak, it.allocated, it.freed] {
                write!(f, "{:>13}", text(value, *name != "blocks"))?;
            }
        }
    }
    Ok(())
}

impl fmt::Display for PoolStats {
    /// A table of the counters, a line for each other figure, and a table for each stream.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rows(f, "pool", &self.rows())?;
        for (name, key, value) in self.lines() {
            let value = text(value, key.ends_with("bytes"));
            write!(f, "\n  {name:22}{value:>13}")?;
        }
        write!(f, "\n  {:22}{:>13.4}", "fragmentation", self.fragmentation)?;
        (self.streams.iter()).try_for_each(|stream| write!(f, "\n{stream}"))
    }
}

impl fmt::Display for StreamStats {
    /// A table of the counters, and the bytes in the stream's cache.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = stream_words(self.stream, self.stream_name.as_deref());
        write_rows(f, &title, &self.rows())?;
        write!(f, "\n  cached{:>29}", text(self.cached_bytes, true))
    }
}

#[cfg(feature = "cli")]
mod json {
    use serde_json::{Value, json};

    use super::{Counter, PoolStats, Row, StreamStats};

    macro_rules! fields {
        ($of:ident: $($field:ident),+) => { json!({ $(stringify!($field): $of.$field),+ }) };
    }

    fn counter(counter: Counter) -> Value {
        fields!(counter: current, peak, allocated, freed)
    }

    fn rows(rows: &[Row]) -> Value {
        let figures = rows.iter().map(|(name, classes)| {
            let [all, small, large] = classes.map(counter);
            let classes = json!({ "all": all, "small": small, "large": large });
            let unit = if *name == "blocks" { "" } else { "_bytes" };
            (name.to_string() + unit, classes)
        });
        figures.collect()
    }

    fn stream(stream: &StreamStats) -> Value {
        let mut value = rows(&stream.rows());
        value["stream"] = stream.stream.into();
        value["stream_name"] = stream.stream_name.clone().into();
        value["cached_bytes"] = stream.cached_bytes.into();
        value
    }

    impl PoolStats {
        /// The statistics as JSON, all figures as numbers: `{"allocated_bytes": {"all": {"current": .., "peak": ..,
        /// "allocated": .., "freed": ..}, "small": .., "large": ..}, .., "streams": [..]}`.
        #[must_use]
        pub fn to_json(&self) -> String {
            let mut value = rows(&self.rows());
            for (_, key, figure) in self.lines() {
                value[key] = figure.into();
            }
            value["spilled_bytes"] = counter(self.spilled);
            value["fragmentation"] = self.fragmentation.into();
            let (steps, calls) = (self.steps, self.calls);
            value["steps"] = fields!(steps: own_stream, ready_elsewhere, drain, stream_wait, waits,
                steal, grow, driver_ns, relieved, out_of_memory);
            value["calls"] = fields!(calls: created, mapped, remapped, unmapped, released);
            value["streams"] = self.streams.iter().map(stream).collect();
            value.to_string()
        }
    }
}

#[cfg(test)]
mod tests;
