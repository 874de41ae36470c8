//! What a pool counts, at a price that every allocation can pay.
//!
//! Each counter is a plain number under a lock that its writer holds anyway: the [`Counters`] of a
//! stream cache under its latch, the [`Gauges`] of the heap under the heap's lock. Only what other
//! streams free of a cache's blocks is atomic, [`Elsewhere`], so that they need not take its latch.
//!
//! # Peaks
//!
//! What other streams free of a cache's blocks lies on a cache line that they write. So the cache works
//! with what it saw of that line last, which makes live blocks look more than they are, never fewer:
//! while that is no new peak there is none, and only what looks like one has the cache look again.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Counter, SMALL_BYTES};
use crate::device::lock;
use crate::sync::{AtomicU64, Mutex};

/// 0 for a small block, 1 for a large one.
#[inline]
pub(super) fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

/// What is counted of blocks: how many, their bytes as the pool rounds them, and as asked for.
/// Differences may be below 0: they are numbers modulo 2^64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums(pub(super) [u64; 3]);

impl Sums {
    #[inline]
    pub(crate) fn block(bytes: u64, requested: u64) -> Self {
        Self([1, bytes, requested])
    }

    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        self.0[1]
    }

    #[inline]
    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self([0, 1, 2].map(|at| each(self.0[at], other.0[at])))
    }

    /// The larger of each, signed.
    fn most(self, other: Self) -> Self {
        self.with(other, |a, b| (a as i64).max(b as i64) as u64)
    }

    /// Whether any number is above that of `bar`. One branch for the three.
    #[inline]
    fn exceeds(self, bar: Self) -> bool {
        let [blocks, bytes, requested] = (bar - self).0;
        ((blocks | bytes | requested) as i64) < 0
    }
}

impl Add for Sums {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        self.with(other, u64::wrapping_add)
    }
}

impl Sub for Sums {
    type Output = Self;

    #[inline]
    fn sub(self, other: Self) -> Self {
        self.with(other, u64::wrapping_sub)
    }
}

/// Blocks of a stream cache that were freed on others, by class. Whoever frees one adds to it before
/// it gives up its reference to the cache.
#[derive(Debug)]
pub(crate) struct Elsewhere([[AtomicU64; 3]; 2]);

impl Elsewhere {
    pub(crate) fn new() -> Self {
        Self([0, 1].map(|_| [0; 3].map(AtomicU64::new)))
    }

    #[inline]
    pub(crate) fn add(&self, bytes: u64, requested: u64) {
        for (sum, amount) in self.0[class(bytes)].iter().zip([1, bytes, requested]) {
            sum.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn sums(&self) -> [Sums; 2] {
        let load = |class: &[AtomicU64; 3]| class.each_ref().map(|it| it.load(Ordering::Relaxed));
        self.0.each_ref().map(|class| Sums(load(class)))
    }
}

/// What was allocated and freed, by class, and the most that was live.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) allocated: [Sums; 2],
    pub(crate) freed: [Sums; 2],
    /// Of small blocks, large ones, all.
    pub(crate) peaks: [Sums; 3],
}

impl Totals {
    /// What was allocated and not freed.
    #[inline]
    fn left(&self) -> [Sums; 2] {
        [0, 1].map(|class| self.allocated[class] - self.freed[class])
    }

    /// What is live: small blocks, large ones, all. None is below 0, as one may look that is freed while
    /// others are read.
    pub(super) fn live(&self) -> [Sums; 3] {
        let [small, large] = self.left().map(|left| left.most(Sums::default()));
        [small, large, small + large]
    }

    pub(super) fn note_peak(&mut self) {
        self.raise(self.live());
    }

    fn raise(&mut self, to: [Sums; 3]) {
        for (peak, to) in self.peaks.iter_mut().zip(to) {
            *peak = peak.most(to);
        }
    }

    /// Counts what `other` does too; together they had at least the peaks that it had alone.
    pub(super) fn add(&mut self, other: &Self) {
        for class in [0, 1] {
            self.allocated[class] = self.allocated[class] + other.allocated[class];
            self.freed[class] = self.freed[class] + other.freed[class];
        }
        self.raise(other.peaks);
    }
}

/// What one stream cache counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// What was freed elsewhere is in it as far as it was seen.
    totals: Totals,
    /// What of that was freed elsewhere.
    gone: [Sums; 2],
}

impl Counters {
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: u64, requested: u64, elsewhere: &Elsewhere) {
        self.add(Sums::block(bytes, requested), bytes, elsewhere);
    }

    #[inline]
    pub(crate) fn free(&mut self, bytes: u64, requested: u64) {
        self.sub(Sums::block(bytes, requested), bytes);
    }

    /// Counts a live block of the size `before` as one of the size `after`: by the difference, or,
    /// from class to class, as a block freed and one allocated.
    pub(crate) fn resize(&mut self, before: Sums, after: Sums, elsewhere: &Elsewhere) {
        let (from, to) = (before.bytes(), after.bytes());
        if class(from) != class(to) {
            self.sub(before, from);
            self.add(after, to, elsewhere);
        } else if before.exceeds(after) {
            self.sub(before - after, from);
        } else {
            self.add(after - before, to, elsewhere);
        }
    }

    /// Counts what a block of `bytes` has less.
    #[inline]
    fn sub(&mut self, sums: Sums, bytes: u64) {
        let freed = &mut self.totals.freed[class(bytes)];
        *freed = *freed + sums;
    }

    #[inline]
    fn add(&mut self, sums: Sums, bytes: u64, elsewhere: &Elsewhere) {
        let class = class(bytes);
        self.totals.allocated[class] = self.totals.allocated[class] + sums;
        let (live, peaks) = (self.totals.left(), &self.totals.peaks);
        if live[class].exceeds(peaks[class]) | (live[0] + live[1]).exceeds(peaks[2]) {
            self.look_again(elsewhere);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_again(&mut self, elsewhere: &Elsewhere) {
        self.totals(elsewhere).note_peak();
    }

    /// All that is counted, with what was freed elsewhere until now.
    pub(super) fn totals(&mut self, elsewhere: &Elsewhere) -> &mut Totals {
        let gone = elsewhere.sums();
        for class in [0, 1] {
            let seen = gone[class] - self.gone[class];
            self.totals.freed[class] = self.totals.freed[class] + seen;
        }
        self.gone = gone;
        &mut self.totals
    }

    pub(super) fn reset_peaks(&mut self, elsewhere: &Elsewhere) {
        let totals = self.totals(elsewhere);
        totals.peaks = totals.live();
    }

    /// Bytes of live blocks, as rounded.
    pub(crate) fn live_bytes(&mut self, elsewhere: &Elsewhere) -> u64 {
        self.totals(elsewhere).live()[2].bytes()
    }

    /// Blocks allocated less those freed here.
    pub(crate) fn blocks(&self) -> i64 {
        let [small, large] = self.totals.left();
        (small + large + self.gone[0] + self.gone[1]).0[0] as i64
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

    #[inline]
    fn add(&mut self, amount: u64) {
        *self = Self::new(self.allocated + amount, self.freed, self.peak);
    }

    #[inline]
    fn sub(&mut self, amount: u64) {
        *self = Self::new(self.allocated, self.freed + amount, self.peak);
    }

    /// Adds or takes away what there is more or less than before.
    fn set(&mut self, value: u64) {
        self.add(value.saturating_sub(self.current));
        self.sub(self.current - value);
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// Bytes of one kind in small and in large blocks or holes, and the most of both.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(super) classes: [Counter; 2],
    peak: u64,
}

impl Gauges {
    /// A block of `bytes` was taken from a hole.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.classes[class(bytes)].add(bytes);
        self.note_peak();
    }

    /// A block of `bytes` is free.
    #[inline]
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.classes[class(bytes)].sub(bytes);
    }

    /// A block of `before` bytes has `after`: counted by the difference, or from class to class.
    pub(crate) fn resize(&mut self, before: u64, after: u64) {
        let (from, to) = (class(before), class(after));
        if from == to {
            let current = self.classes[from].current;
            self.classes[from].set(current + after - before);
            self.note_peak();
        } else {
            self.sub(before);
            self.add(after);
        }
    }

    pub(super) fn set(&mut self, bytes: [u64; 2]) {
        for (class, bytes) in self.classes.iter_mut().zip(bytes) {
            class.set(bytes);
        }
        self.note_peak();
    }

    #[inline]
    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.bytes());
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        let [small, large] = &self.classes;
        small.current + large.current
    }

    /// Of small ones, large ones, all.
    pub(super) fn counters(&self) -> [Counter; 3] {
        let [small, large] = self.classes;
        let (allocated, freed) = (small.allocated + large.allocated, small.freed + large.freed);
        [small, large, Counter::new(allocated, freed, self.peak)]
    }

    pub(super) fn reset_peaks(&mut self) {
        self.classes.iter_mut().for_each(Counter::reset_peak);
        self.peak = self.bytes();
    }
}

/// Bytes of movable memory on the host. Shared by the pool and the blocks that are away.
#[derive(Clone, Default)]
pub(crate) struct Spilled(Arc<Mutex<Counter>>);

impl Spilled {
    /// Counts bytes that went to the host, or are there no more.
    pub(crate) fn count(&self, bytes: u64, went: bool) {
        let mut counter = lock(&self.0);
        match went {
            true => counter.add(bytes),
            false => counter.sub(bytes),
        }
    }

    pub(super) fn counter(&self) -> Counter {
        *lock(&self.0)
    }

    pub(super) fn reset_peak(&self) {
        lock(&self.0).reset_peak();
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
