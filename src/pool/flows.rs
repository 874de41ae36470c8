//! What the lanes of a pool count, at a price that every allocation can pay.
//!
//! # One writer each
//!
//! A lane has two *flows* of blocks, what its cache serves and takes in and what passes the cache by.
//! Each has one writer at a time, under the lane's latch or under the core's lock, so that counting
//! is a plain load and store; any thread reads at any time.
//!
//! # Freed elsewhere
//!
//! A block belongs to the stream it was allocated on, and counts there when it is freed, wherever
//! that is. Who frees blocks of another lane counts them on a tally of the two, an [`Away`], which
//! it alone writes: the two lanes' threads share no line that both write.
//!
//! # Peaks
//!
//! What a lane has live is what it served less what it took back less what went away, and the last
//! is on lines that others write. So a lane works with what it saw of them last, which makes live
//! blocks look more than they are, never fewer: while that is no new peak there is none. Only what
//! looks like one has the lane look again.

use std::ops::Add;
use std::sync::{Arc, Weak};

use super::tally::{Sums, Tallies, Tally, class};
use crate::sync::{Mutex, lock};

/// The most there was: small blocks, large ones, all.
#[derive(Debug, Default)]
struct PeakTallies {
    live: [Tallies; 3],
    active: [Tally; 3],
}

/// Up to where there is no new peak of a class or of all, for one writer: what it allocated itself
/// less what was freed hot. That holds while the other writer allocates nothing, nor this one in the
/// other class; what else is freed only lowers what is live.
#[derive(Debug, Default)]
struct Bar {
    at: Tallies,
    /// What the other writer had allocated; [`UNSET`] where the bar does not hold.
    other: Tally,
}

const UNSET: u64 = u64::MAX;

/// One flow of a lane. Cache lines that no other lane writes, nor the line beside them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flow {
    /// Small blocks, large ones.
    allocated: [Tallies; 2],
    freed: [Tallies; 2],
    /// Most of what both flows of the lane have, as this flow's writer saw it.
    peaks: PeakTallies,
    bars: [Bar; 2],
    /// Bytes that came into the lane's cache other than by its own frees.
    came: [Tally; 2],
}

impl Flow {
    /// Blocks allocated.
    #[inline]
    fn allocations(&self) -> u64 {
        let [small, large] = &self.allocated;
        small.blocks.get().wrapping_add(large.blocks.get())
    }
}

/// The flow that passes the cache by, and sums that a hot allocation would otherwise make of it.
#[derive(Debug, Default)]
struct Cold {
    flow: Flow,
    /// Bytes allocated less freed, and that came into the lane's cache less those that left it.
    active: [Tally; 2],
    /// Times that anything was allocated.
    allocations: Tally,
    /// Bytes that went from the lane's cache into the arena or into another cache.
    left: [Tally; 2],
}

/// Blocks of one lane that another freed: small ones, large ones. Written under the latch of the
/// lane that frees.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Away {
    freed: [Tallies; 2],
}

impl Away {
    /// Counts a block.
    #[inline]
    pub(crate) fn add(&self, bytes: u64, requested: u64) {
        self.freed[class(bytes)].add(Sums::block(bytes, requested));
    }

    pub(crate) fn sums(&self) -> [Sums; 2] {
        [0, 1].map(|class| self.freed[class].get())
    }
}

/// What a lane counts of the blocks of others, each lane's by itself. Under the lane's latch.
#[derive(Debug, Default)]
pub(crate) struct Aways {
    /// The lane whose blocks were freed last comes first. A weak count keeps the address from
    /// being another's.
    of: Vec<(Weak<Flows>, Arc<Away>)>,
}

impl Aways {
    /// The count of the lane that counts in `home`, made known by `add` if it is new.
    #[inline]
    pub(crate) fn of(&mut self, home: &Arc<Flows>, add: impl FnOnce(&Arc<Away>)) -> &Away {
        let known = Arc::as_ptr(home);
        let is_first = (self.of.first()).is_some_and(|(flows, _)| flows.as_ptr() == known);
        if !is_first {
            self.put_first(home, add);
        }
        &self.of[0].1
    }

    #[cold]
    #[inline(never)]
    fn put_first(&mut self, home: &Arc<Flows>, add: impl FnOnce(&Arc<Away>)) {
        let known = Arc::as_ptr(home);
        let mut aways = self.of.iter();
        if let Some(at) = aways.position(|(flows, _)| flows.as_ptr() == known) {
            self.of.swap(0, at);
            return;
        }
        // Of lanes that are gone.
        self.of.retain(|(flows, _)| flows.strong_count() > 1);
        let away = Arc::default();
        add(&away);
        self.of.insert(0, (Arc::downgrade(home), away));
    }
}

/// Where a lane's blocks are freed beside the lane itself.
#[derive(Debug, Default)]
struct Elsewhere {
    aways: Vec<Arc<Away>>,
    /// Of lanes that are gone.
    past: [Sums; 2],
}

/// What one lane counts. See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// What the lane's cache served and took in; written under the lane's latch.
    hot: Flow,
    /// What passed the cache by; written under the core's lock.
    cold: Cold,
    /// What went away, as it was seen last; written under the lock of what follows.
    away: [Tallies; 2],
    elsewhere: Mutex<Elsewhere>,
}

impl Flows {
    /// Counts a block that the cache served.
    #[inline]
    pub(crate) fn served_by_cache(&self, bytes: u64, requested: u64) {
        let (hot, class) = (&self.hot, class(bytes));
        let allocated = hot.allocated[class].add(Sums::block(bytes, requested));
        let rose = allocated - hot.freed[class].get();
        let [bar, other] = [&hot.bars[class], &hot.bars[1 - class]];
        other.other.set(UNSET);
        if bar.at.is_below(rose) | (bar.other.get() != self.cold.allocations.get()) {
            self.note_peak(hot, class, rose, self.cold.allocations.get());
        }
    }

    /// Counts a freed block that the cache took in.
    #[inline]
    pub(crate) fn kept_in_cache(&self, bytes: u64, requested: u64) {
        self.hot.freed[class(bytes)].add(Sums::block(bytes, requested));
    }

    /// Counts a block that the core served.
    pub(crate) fn served_by_core(&self, bytes: u64, requested: u64) {
        self.cold_allocated(class(bytes), Sums::block(bytes, requested));
    }

    /// Counts a freed block that passed the cache by.
    pub(crate) fn given_to_core(&self, bytes: u64, requested: u64) {
        self.cold_freed(class(bytes), Sums::block(bytes, requested));
    }

    /// Counts a live block of the size `before` as one of the size `after`: by the difference, or,
    /// from class to class, as a block freed and one allocated.
    pub(crate) fn resized(&self, before: Sums, after: Sums) {
        let (from, to) = (class(before.bytes), class(after.bytes));
        if from != to {
            self.cold_freed(from, before);
            self.cold_allocated(to, after);
        } else if after.bytes < before.bytes || after.requested < before.requested {
            self.cold_freed(from, before - after);
        } else {
            self.cold_allocated(from, after - before);
        }
    }

    #[inline]
    fn cold_allocated(&self, class: usize, sums: Sums) {
        let (hot, cold) = (&self.hot, &self.cold);
        cold.allocations.add(1);
        let allocated = cold.flow.allocated[class].add(sums);
        cold.active[class].add(sums.bytes);
        let rose = allocated - cold.flow.freed[class].get() - hot.freed[class].get();
        let [bar, other] = [&cold.flow.bars[class], &cold.flow.bars[1 - class]];
        other.other.set(UNSET);
        let allocations = hot.allocations();
        if bar.at.is_below(rose) | (bar.other.get() != allocations) {
            self.note_peak(&cold.flow, class, rose, allocations);
        }
        self.note_active(&cold.flow, class);
    }

    fn cold_freed(&self, class: usize, sums: Sums) {
        self.cold.flow.freed[class].add(sums);
        self.cold.active[class].sub(sums.bytes);
    }

    /// Notes that bytes in small and in large blocks left the cache for the arena or for another.
    pub(crate) fn left_cache(&self, bytes: [u64; 2]) {
        let Cold { left, active, .. } = &self.cold;
        for ((left, active), bytes) in left.iter().zip(active).zip(bytes) {
            left.add(bytes);
            active.sub(bytes);
        }
    }

    /// Notes that a block of `bytes` came into the cache from another or from the arena. Under the
    /// core's lock.
    pub(crate) fn came_to_cache(&self, bytes: u64) {
        self.cold.active[class(bytes)].add(bytes);
        self.came(&self.cold.flow, bytes);
    }

    /// Notes that a block of `bytes` of another lane was freed into the cache. Under the latch.
    #[inline]
    pub(crate) fn took_foreign(&self, bytes: u64) {
        self.came(&self.hot, bytes);
    }

    #[inline]
    fn came(&self, flow: &Flow, bytes: u64) {
        let class = class(bytes);
        flow.came[class].add(bytes);
        self.note_active(flow, class);
    }

    /// What is live of a class, or more, by what was seen last of what went away.
    #[inline]
    fn live(&self, class: usize) -> Sums {
        let of = |flow: &Flow| flow.allocated[class].get() - flow.freed[class].get();
        of(&self.hot) + of(&self.cold.flow) - self.away[class].get()
    }

    /// Bytes of a class in live blocks and in the cache, or more, as [`Flows::live`].
    #[inline]
    fn active(&self, class: usize) -> u64 {
        (self.cold.active[class].get())
            .wrapping_add(self.hot.came[class].get())
            .wrapping_sub(self.away[class].bytes.get())
    }

    /// Raises the peaks of `flow` to what is live, of which blocks of `class` have become more, and
    /// sets its bar, where `rose` is what the writer compares with it.
    #[cold]
    #[inline(never)]
    fn note_peak(&self, flow: &Flow, class: usize, rose: Sums, other: u64) {
        let peaks = &flow.peaks.live;
        let now = || {
            let of_class = self.live(class);
            (of_class, of_class + self.live(1 - class))
        };
        let (mut of_class, mut all) = now();
        if peaks[class].is_below(of_class) || peaks[2].is_below(all) {
            self.look_elsewhere();
            (of_class, all) = now();
            peaks[class].raise_to(of_class);
            peaks[2].raise_to(all);
        }
        let room = (peaks[class].get() - of_class).least(peaks[2].get() - all);
        let bar = &flow.bars[class];
        bar.at.set(rose + room);
        bar.other.set(other);
    }

    /// As [`Flows::note_peak`], for active bytes.
    #[inline]
    fn note_active(&self, flow: &Flow, class: usize) {
        let peaks = &flow.peaks.active;
        let of_class = self.active(class);
        let all = of_class.wrapping_add(self.active(1 - class));
        if peaks[class].is_below(of_class) | peaks[2].is_below(all) {
            self.raise_active(flow, class);
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_active(&self, flow: &Flow, class: usize) {
        self.look_elsewhere();
        let of_class = self.active(class);
        let all = of_class.wrapping_add(self.active(1 - class));
        flow.peaks.active[class].raise_to(of_class);
        flow.peaks.active[2].raise_to(all);
    }

    /// Sees what went away until now.
    fn look_elsewhere(&self) {
        let elsewhere = lock(&self.elsewhere);
        for (class, seen) in self.away.iter().enumerate() {
            let aways = elsewhere.aways.iter();
            let gone = aways.map(|away| away.freed[class].get());
            seen.set(gone.fold(elsewhere.past[class], Add::add));
        }
    }

    /// Has the lane look at `away` too, where another counts blocks of this lane that it frees.
    pub(crate) fn add_away(&self, away: &Arc<Away>) {
        let mut elsewhere = lock(&self.elsewhere);
        let Elsewhere { aways, past } = &mut *elsewhere;
        aways.retain(|away| {
            // Held here and where figures are read: its lane is gone and counts no more.
            let gone = Arc::strong_count(away) <= 2;
            if gone {
                for (past, sums) in past.iter_mut().zip(away.sums()) {
                    *past = *past + sums;
                }
            }
            !gone
        });
        aways.push(Arc::clone(away));
    }

    /// Blocks that the cache served less those that it took in. Exact for who holds the latch.
    pub(crate) fn served_less_kept(&self) -> i64 {
        let [small, large] = &self.hot.freed;
        let freed = small.blocks.get().wrapping_add(large.blocks.get());
        self.hot.allocations().wrapping_sub(freed) as i64
    }

    /// Bytes in small and in large blocks in the cache. Exact for who holds the latch and the
    /// core's lock.
    pub(crate) fn cached(&self) -> [u64; 2] {
        [0, 1].map(|class| {
            let bytes = (self.hot.freed[class].bytes.get())
                .wrapping_add(self.hot.came[class].get())
                .wrapping_add(self.cold.flow.came[class].get())
                .wrapping_sub(self.hot.allocated[class].bytes.get())
                .wrapping_sub(self.cold.left[class].get());
            // Read while others count, it may be off by what they do meanwhile.
            (bytes as i64).max(0) as u64
        })
    }

    /// Blocks allocated, by class.
    pub(crate) fn allocated(&self) -> [Sums; 2] {
        [0, 1].map(|c| self.hot.allocated[c].get() + self.cold.flow.allocated[c].get())
    }

    /// Blocks freed on the lane itself, by class.
    pub(crate) fn freed(&self) -> [Sums; 2] {
        [0, 1].map(|c| self.hot.freed[c].get() + self.cold.flow.freed[c].get())
    }

    /// Bytes that became active, and bytes that are no longer but for what went away, by class.
    pub(crate) fn active_flows(&self) -> [(u64, u64); 2] {
        let Cold { flow, left, .. } = &self.cold;
        [0, 1].map(|class| {
            let came = self.hot.came[class].get() + flow.came[class].get();
            let added = flow.allocated[class].bytes.get() + came;
            let removed = flow.freed[class].bytes.get() + left[class].get();
            (added, removed)
        })
    }

    /// The most there was live, and active: small blocks, large ones, all.
    pub(crate) fn peaks(&self) -> [(Sums, u64); 3] {
        let [hot, cold] = [&self.hot.peaks, &self.cold.flow.peaks];
        [0, 1, 2].map(|at| {
            let live = hot.live[at].get().most(cold.live[at].get());
            (live, hot.active[at].get().max(cold.active[at].get()))
        })
    }

    /// Sets the peaks to what they count now. A count made meanwhile may be missed by one block.
    pub(crate) fn reset_peaks(&self) {
        self.look_elsewhere();
        for bar in self.hot.bars.iter().chain(&self.cold.flow.bars) {
            bar.other.set(UNSET);
        }
        let live = [0, 1].map(|class| self.live(class).seen());
        let active = [0, 1].map(|class| (self.active(class) as i64).max(0) as u64);
        for peaks in [&self.hot.peaks, &self.cold.flow.peaks] {
            let all = live[0] + live[1];
            for (peak, now) in peaks.live.iter().zip([live[0], live[1], all]) {
                peak.set(now);
            }
            let all = active[0] + active[1];
            for (peak, now) in peaks.active.iter().zip([active[0], active[1], all]) {
                peak.set(now);
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
