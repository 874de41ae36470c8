//! Counts with one writer at a time, and what is counted of blocks.

use std::ops::{Add, Sub};
use std::sync::atomic::Ordering;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use super::stats::SMALL_BYTES;

/// A count that one thread at a time writes and any thread reads. Below 0 it is the number modulo
/// 2^64, as which it adds up.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Adds, as the only writer, wrapping around; a plain load and store, no locked instruction.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    #[inline]
    pub(crate) fn sub(&self, amount: u64) {
        self.set(self.get().wrapping_sub(amount));
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether `value`, which may be below 0, is more.
    #[inline]
    pub(crate) fn is_below(&self, value: u64) -> bool {
        (self.get() as i64) < value as i64
    }

    #[inline]
    pub(crate) fn raise_to(&self, value: u64) {
        if self.is_below(value) {
            self.set(value);
        }
    }
}

/// 0 for a small block, 1 for a large one.
#[inline]
pub(crate) fn class(bytes: u64) -> usize {
    usize::from(bytes > SMALL_BYTES)
}

/// What is counted of blocks. Differences may be below 0, as those of a [`Tally`].
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

    /// Without what is below 0: read while others count, differences may be.
    pub(crate) fn seen(self) -> Self {
        let seen = |sum: u64| (sum as i64).max(0) as u64;
        Self {
            blocks: seen(self.blocks),
            bytes: seen(self.bytes),
            requested: seen(self.requested),
        }
    }

    /// The lower of each, signed.
    pub(crate) fn least(self, other: Self) -> Self {
        let least = |a: u64, b: u64| (a as i64).min(b as i64) as u64;
        Self {
            blocks: least(self.blocks, other.blocks),
            bytes: least(self.bytes, other.bytes),
            requested: least(self.requested, other.requested),
        }
    }

    /// The larger of each.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.max(other.blocks),
            bytes: self.bytes.max(other.bytes),
            requested: self.requested.max(other.requested),
        }
    }
}

impl Add for Sums {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.wrapping_add(other.blocks),
            bytes: self.bytes.wrapping_add(other.bytes),
            requested: self.requested.wrapping_add(other.requested),
        }
    }
}

impl Sub for Sums {
    type Output = Self;

    #[inline]
    fn sub(self, other: Self) -> Self {
        Self {
            blocks: self.blocks.wrapping_sub(other.blocks),
            bytes: self.bytes.wrapping_sub(other.bytes),
            requested: self.requested.wrapping_sub(other.requested),
        }
    }
}

/// [`Sums`] that one thread at a time writes.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) blocks: Tally,
    pub(crate) bytes: Tally,
    pub(crate) requested: Tally,
}

impl Tallies {
    /// Adds and gives the sum.
    #[inline]
    pub(crate) fn add(&self, sums: Sums) -> Sums {
        let sums = self.get() + sums;
        self.set(sums);
        sums
    }

    #[inline]
    pub(crate) fn get(&self) -> Sums {
        Sums {
            blocks: self.blocks.get(),
            bytes: self.bytes.get(),
            requested: self.requested.get(),
        }
    }

    #[inline]
    pub(crate) fn set(&self, sums: Sums) {
        self.blocks.set(sums.blocks);
        self.bytes.set(sums.bytes);
        self.requested.set(sums.requested);
    }

    /// Whether any of `sums` is more. Without a branch for each.
    #[inline]
    pub(crate) fn is_below(&self, sums: Sums) -> bool {
        self.blocks.is_below(sums.blocks)
            | self.bytes.is_below(sums.bytes)
            | self.requested.is_below(sums.requested)
    }

    pub(crate) fn raise_to(&self, sums: Sums) {
        self.blocks.raise_to(sums.blocks);
        self.bytes.raise_to(sums.bytes);
        self.requested.raise_to(sums.requested);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
