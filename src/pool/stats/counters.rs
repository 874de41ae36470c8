//! What a pool counts, at a price that every allocation can pay.
//!
//! Each counter is a plain number under a lock that its writer holds anyway: the [`Counters`] of a
//! stream cache under its latch, the [`Gauge`]s of the heap under the heap's lock. Only what other
//! streams free of a cache's blocks is atomic, [`Elsewhere`], so that they need not take its latch.
//!
//! # Peaks
//!
//! What a stream cache has live is what it allocated, less what it freed, less what was freed
//! elsewhere. The last lies on a cache line that other threads write. So the cache works with what it
//! saw of that line last, which makes live blocks look more than they are, never fewer: while that is
//! no new peak there is none, and only what looks like one has the cache look again.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Counter, SMALL_BYTES};
use crate::device::lock;
use crate::sync::{AtomicU64, Mutex};

/// 0 for a small block, 1 for a large one.
#[inline]
pub(crate) fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

/// What is counted of blocks. Differences may be below 0: they are numbers modulo 2^64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) blocks: u64,
    /// As the pool rounds them.
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
}

impl Sums {
    #[inline]
    pub(crate) fn block(bytes: u64, requested: u64) -> Self {
        let blocks = 1;
        Self {
            blocks,
            bytes,
            requested,
        }
    }

    #[inline]
    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            blocks: each(self.blocks, other.blocks),
            bytes: each(self.bytes, other.bytes),
            requested: each(self.requested, other.requested),
        }
    }

    fn least(self, other: Self) -> Self {
        self.with(other, |a, b| (a as i64).min(b as i64) as u64)
    }

    /// The larger of each, signed.
    pub(crate) fn most(self, other: Self) -> Self {
        self.with(other, |a, b| (a as i64).max(b as i64) as u64)
    }

    /// Whether any number is above that of `bar`. One branch for the three.
    #[inline]
    fn exceeds(self, bar: Self) -> bool {
        let room = bar - self;
        ((room.blocks | room.bytes | room.requested) as i64) < 0
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
        [0, 1].map(|class| {
            let [blocks, bytes, requested] =
                [0, 1, 2].map(|at| self.0[class][at].load(Ordering::Relaxed));
            Sums {
                blocks,
                bytes,
                requested,
            }
        })
    }
}

/// Up to where there is no new peak of a class or of all, as what was allocated here less what was
/// freed here. That holds while nothing is allocated in the other class; frees only lower what is live.
#[derive(Debug, Default)]
struct Bar {
    at: Sums,
    /// What had been allocated in the other class.
    other: u64,
}

/// What one stream cache counts, by class.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocated: [Sums; 2],
    pub(crate) freed: [Sums; 2],
    bars: [Bar; 2],
    /// The most there was live: small blocks, large ones, all.
    peaks: [Sums; 3],
    /// What was freed elsewhere, as it was seen last.
    gone: [Sums; 2],
}

impl Counters {
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: u64, requested: u64, elsewhere: &Elsewhere) {
        self.add(class(bytes), Sums::block(bytes, requested), elsewhere);
    }

    #[inline]
    pub(crate) fn free(&mut self, bytes: u64, requested: u64) {
        let class = class(bytes);
        self.freed[class] = self.freed[class] + Sums::block(bytes, requested);
    }

    /// Counts a live block of the size `before` as one of the size `after`: by the difference, or,
    /// from class to class, as a block freed and one allocated.
    pub(crate) fn resize(&mut self, before: Sums, after: Sums, elsewhere: &Elsewhere) {
        let (from, to) = (class(before.bytes), class(after.bytes));
        if from != to {
            self.freed[from] = self.freed[from] + before;
            self.add(to, after, elsewhere);
        } else if after.bytes < before.bytes || after.requested < before.requested {
            self.freed[from] = self.freed[from] + (before - after);
        } else {
            self.add(from, after - before, elsewhere);
        }
    }

    #[inline]
    fn add(&mut self, class: usize, sums: Sums, elsewhere: &Elsewhere) {
        self.allocated[class] = self.allocated[class] + sums;
        let rose = self.allocated[class] - self.freed[class];
        let bar = &self.bars[class];
        if rose.exceeds(bar.at) | (bar.other != self.total(1 - class)) {
            self.note_peak(class, elsewhere);
        }
    }

    /// A number that is another one once anything was allocated in the class.
    #[inline]
    fn total(&self, class: usize) -> u64 {
        let all = self.allocated[class];
        all.bytes.wrapping_add(all.requested)
    }

    fn live(&self) -> [Sums; 3] {
        let [small, large] =
            [0, 1].map(|class| self.allocated[class] - self.freed[class] - self.gone[class]);
        [small, large, small + large]
    }

    /// Raises the peaks to what is live, of which blocks of `class` have become more, and sets the bar.
    #[cold]
    #[inline(never)]
    fn note_peak(&mut self, class: usize, elsewhere: &Elsewhere) {
        let mut live = self.live();
        if (0..3).any(|at| live[at].exceeds(self.peaks[at])) {
            self.gone = elsewhere.sums();
            live = self.live();
            raise(&mut self.peaks, live);
        }
        let room = (self.peaks[class] - live[class]).least(self.peaks[2] - live[2]);
        self.bars[class] = Bar {
            at: self.allocated[class] - self.freed[class] + room,
            other: self.total(1 - class),
        };
    }

    /// The most there was live: small blocks, large ones, all.
    pub(crate) fn peaks(&self) -> [Sums; 3] {
        self.peaks
    }

    pub(crate) fn reset_peaks(&mut self, elsewhere: &Elsewhere) {
        self.gone = elsewhere.sums();
        self.peaks = self.live();
        self.bars = Default::default();
    }

    /// Blocks allocated less those freed here.
    pub(crate) fn blocks(&self) -> i64 {
        let of = |sums: [Sums; 2]| sums[0].blocks.wrapping_add(sums[1].blocks);
        of(self.allocated).wrapping_sub(of(self.freed)) as i64
    }
}

pub(crate) fn raise(peaks: &mut [Sums; 3], now: [Sums; 3]) {
    for (peak, now) in peaks.iter_mut().zip(now) {
        *peak = peak.most(now);
    }
}

/// A sum of the heap's with its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gauge {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    pub(crate) added: u64,
}

impl Gauge {
    #[inline]
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added += amount;
        self.peak = self.peak.max(self.current);
    }

    /// Adds or takes away what there is more or less than before.
    pub(crate) fn set(&mut self, value: u64) {
        self.add(value.saturating_sub(self.current));
        self.current = value;
    }
}

/// Bytes of one kind in small and in large blocks or holes, and the most of both.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) classes: [Gauge; 2],
    pub(crate) peak: u64,
}

impl Gauges {
    /// A block of `bytes` was taken from a hole.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.classes[class(bytes)].add(bytes);
        self.peak = self.peak.max(self.bytes());
    }

    /// A block of `bytes` is free.
    #[inline]
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.classes[class(bytes)].current -= bytes;
    }

    /// A block of `before` bytes has `after`: counted by the difference, or from class to class.
    pub(crate) fn resize(&mut self, before: u64, after: u64) {
        let (from, to) = (class(before), class(after));
        if from == to {
            let current = self.classes[from].current;
            self.classes[from].set(current + after - before);
            self.peak = self.peak.max(self.bytes());
        } else {
            self.sub(before);
            self.add(after);
        }
    }

    pub(crate) fn set(&mut self, bytes: [u64; 2]) {
        for (class, bytes) in self.classes.iter_mut().zip(bytes) {
            class.set(bytes);
        }
        self.peak = self.peak.max(self.bytes());
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        let [small, large] = &self.classes;
        small.current + large.current
    }

    pub(crate) fn reset_peaks(&mut self) {
        for class in &mut self.classes {
            class.peak = class.current;
        }
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
            true => counter.allocated += bytes,
            false => counter.freed += bytes,
        }
        counter.current = counter.allocated - counter.freed;
        counter.peak = counter.peak.max(counter.current);
    }

    pub(super) fn counter(&self) -> Counter {
        *lock(&self.0)
    }

    pub(super) fn reset_peak(&self) {
        let mut counter = lock(&self.0);
        counter.peak = counter.current;
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
