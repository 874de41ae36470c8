//! The pool's counters.
//!
//! Most are plain numbers under a lock that the writer holds anyway: a lane's [`Counters`] under its latch, the
//! heap's [`Gauges`] under the heap's lock. Only [`Elsewhere`] is atomic: other lanes count there what they free.
//!
//! For peaks a lane uses the frees elsewhere that it saw last, so it counts too many live blocks, never too few. It
//! looks again only when a peak seems new.

use std::array::from_fn;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Counter, SMALL_BYTES};
use crate::sync::{AtomicU64, Mutex};

/// 0 for a small block, 1 for a large one.
#[inline]
pub(super) fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

/// Numbers counted together, modulo 2^64: differences may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums<const N: usize>(pub(super) [u64; N]);

/// Number of blocks, their bytes as the pool rounds them, and their bytes as asked for.
pub(crate) type Blocks = Sums<3>;

impl Blocks {
    #[inline]
    pub(crate) fn block(bytes: u64, requested: u64) -> Self {
        Self([1, bytes, requested])
    }

    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        self.0[1]
    }
}

impl<const N: usize> Sums<N> {
    #[inline]
    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self(from_fn(|at| each(self.0[at], other.0[at])))
    }

    /// The larger of each, signed.
    fn most(self, other: Self) -> Self {
        self.with(other, |a, b| (a as i64).max(b as i64) as u64)
    }

    /// Whether any number is above that of `bar`, with one branch.
    #[inline]
    fn exceeds(self, bar: Self) -> bool {
        let Self(room) = bar - self;
        (room.into_iter().fold(0, |signs, room| signs | room) as i64) < 0
    }
}

impl<const N: usize> Default for Sums<N> {
    #[inline]
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Add for Sums<N> {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        self.with(other, u64::wrapping_add)
    }
}

impl<const N: usize> Sub for Sums<N> {
    type Output = Self;

    #[inline]
    fn sub(self, other: Self) -> Self {
        self.with(other, u64::wrapping_sub)
    }
}

/// A lane's blocks that were freed on other lanes, by class: how many, their bytes, and bytes beyond those asked for.
/// The lane may be gone once a block is counted: see `cache::lifetime`.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere([[AtomicU64; 3]; 2]);

/// A bit in the number of blocks: the lane is retired.
const RETIRED: u64 = 1 << 63;

impl Elsewhere {
    /// Counts a block; true if the lane is retired, and then still there. Otherwise it may be gone.
    #[inline]
    pub(crate) fn add(&self, bytes: u64, requested: u64) -> bool {
        let [count, all, beyond] = &self.0[class(bytes)];
        all.fetch_add(bytes, Ordering::Relaxed);
        if bytes > requested {
            beyond.fetch_add(bytes - requested, Ordering::Release);
        }
        count.fetch_add(1, Ordering::AcqRel) & RETIRED != 0
    }

    /// Marks the lane as retired; returns how many blocks were counted before.
    pub(crate) fn retire(&self) -> u64 {
        let counts = (self.0.iter()).map(|[count, ..]| count.fetch_or(RETIRED, Ordering::AcqRel));
        counts.map(|count| count & !RETIRED).sum()
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.0[0][0].load(Ordering::Acquire) & RETIRED != 0
    }

    pub(crate) fn sums(&self) -> [Blocks; 2] {
        self.0.each_ref().map(|[count, bytes, beyond]| {
            // First: of a block counted meanwhile, too many bytes are freed, so that no peak is too high.
            let beyond = beyond.load(Ordering::Acquire);
            let [count, bytes] = [count, bytes].map(|it| it.load(Ordering::Relaxed));
            Sums([count & !RETIRED, bytes, bytes.wrapping_sub(beyond)])
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Totals<const N: usize> {
    /// For small blocks, large blocks, all.
    pub(super) peaks: [Sums<N>; 3],
    pub(super) allocated: [Sums<N>; 2],
    /// Last, next to the lane's cache: a free writes these two only.
    pub(super) freed: [Sums<N>; 2],
}

impl<const N: usize> Totals<N> {
    /// Live small blocks, large blocks, all. Never negative, whatever is freed during the read.
    pub(super) fn live(&self) -> [Sums<N>; 3] {
        let [small, large] =
            [0, 1].map(|of| (self.allocated[of] - self.freed[of]).most(Sums::default()));
        [small, large, small + large]
    }

    #[cold]
    pub(super) fn note_peak(&mut self) {
        self.raise(self.live());
    }

    fn raise(&mut self, to: [Sums<N>; 3]) {
        self.peaks = [0, 1, 2].map(|of| self.peaks[of].most(to[of]));
    }

    pub(super) fn reset_peaks(&mut self) {
        self.peaks = self.live();
    }

    /// Counts an allocation; true if more is live than the peaks.
    ///
    /// Inlined: a call loads what was just stored in parts. A hot pair takes 18 ns, and 25 ns with a call.
    #[inline(always)]
    fn allocate(&mut self, class: usize, sums: Sums<N>) -> bool {
        let allocated = self.allocated[class] + sums;
        self.allocated[class] = allocated;
        let live = allocated - self.freed[class];
        let all = live + self.allocated[1 - class] - self.freed[1 - class];
        live.exceeds(self.peaks[class]) | all.exceeds(self.peaks[2])
    }

    #[inline]
    fn free(&mut self, class: usize, sums: Sums<N>) {
        self.freed[class] = self.freed[class] + sums;
    }

    /// Counts the difference, or in two classes a free in the first and an allocation in the second.
    fn resize(&mut self, [(from, before), (to, after)]: [(usize, Sums<N>); 2]) {
        if from != to {
            self.free(from, before);
            self.allocate(to, after);
        } else if before.exceeds(after) {
            self.free(from, before - after);
        } else {
            self.allocate(to, after - before);
        }
    }

    /// Adds `other`. The peaks become at least its peaks.
    pub(super) fn merge(&mut self, other: &Self) {
        for class in [0, 1] {
            self.allocate(class, other.allocated[class]);
            self.free(class, other.freed[class]);
        }
        self.raise(other.peaks);
    }

    /// The figures of small blocks, large blocks, all.
    pub(super) fn counters(&self) -> [[Counter; N]; 3] {
        let all = |of: [Sums<N>; 2]| [of[0], of[1], of[0] + of[1]];
        let (allocated, freed) = (all(self.allocated), all(self.freed));
        [0, 1, 2].map(|of| {
            let [allocated, freed, peak] = [allocated[of], freed[of], self.peaks[of]];
            from_fn(|at| Counter::new(allocated.0[at], freed.0[at], peak.0[at]))
        })
    }
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    /// Blocks freed elsewhere, when last seen; `totals` counts them too.
    gone: [Blocks; 2],
    totals: Totals<3>,
}

impl Counters {
    #[inline(always)]
    pub(crate) fn allocate(&mut self, bytes: u64, requested: u64, elsewhere: &Elsewhere) {
        if (self.totals).allocate(class(bytes), Sums::block(bytes, requested)) {
            self.totals(elsewhere).note_peak();
        }
    }

    #[inline]
    pub(crate) fn free(&mut self, bytes: u64, requested: u64) {
        (self.totals).free(class(bytes), Sums::block(bytes, requested));
    }

    /// Counts that a live block of the first size now has the second: bytes as rounded, and as asked for.
    pub(crate) fn resize(&mut self, sizes: [(u64, u64); 2], elsewhere: &Elsewhere) {
        (self.totals).resize(sizes.map(|(bytes, it)| (class(bytes), Sums::block(bytes, it))));
        self.totals(elsewhere).note_peak();
    }

    /// The totals, with all frees elsewhere until now.
    #[cold]
    pub(super) fn totals(&mut self, elsewhere: &Elsewhere) -> &mut Totals<3> {
        let gone = elsewhere.sums();
        for class in [0, 1] {
            self.totals.free(class, gone[class] - self.gone[class]);
        }
        self.gone = gone;
        &mut self.totals
    }

    pub(crate) fn live_bytes(&mut self, elsewhere: &Elsewhere) -> u64 {
        self.totals(elsewhere).live()[2].bytes()
    }

    /// Blocks allocated, less those freed on this lane.
    pub(crate) fn blocks(&self) -> i64 {
        let left = |of: usize| self.totals.allocated[of] - self.totals.freed[of] + self.gone[of];
        (left(0) + left(1)).0[0] as i64
    }
}

/// Bytes of one kind in small and in large blocks or holes.
pub(crate) type Gauges = Totals<1>;

impl Gauges {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        if self.allocate(class(bytes), Sums([bytes])) {
            self.note_peak();
        }
    }

    #[inline]
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.free(class(bytes), Sums([bytes]));
    }

    pub(crate) fn block_resized(&mut self, before: u64, after: u64) {
        self.resize([before, after].map(|bytes| (class(bytes), Sums([bytes]))));
        self.note_peak();
    }

    /// Counts the difference to `bytes`.
    pub(super) fn set(&mut self, bytes: [u64; 2]) {
        let live = self.live();
        for class in [0, 1] {
            self.resize([(class, live[class]), (class, Sums([bytes[class]]))]);
        }
        self.note_peak();
    }

    /// Bytes in small ones, in large ones, in all.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        self.live().map(|Sums([bytes])| bytes)
    }
}

impl Counter {
    pub(super) fn new(allocated: u64, freed: u64, peak: u64) -> Self {
        let current = allocated.saturating_sub(freed);
        Self {
            current,
            peak: peak.max(current),
            allocated,
            freed,
        }
    }
}

/// Bytes of movable blocks that are on the host, shared by the pool and these blocks.
pub(crate) type Spilled = Arc<Mutex<Gauges>>;

#[cfg(test)]
mod tests;
