//! What of the pool's memory is in use, by size of block, as the core sees it.
//!
//! A block is *active* while it is live or in a stream's cache: its memory is not free to all. The
//! core knows of each at the moment it goes in or out, so peaks are of all streams together. Memory
//! that is not active is free, and a hole goes to the class of blocks that it can serve: one of up
//! to [`SMALL_BYTES`](super::SMALL_BYTES) holds small blocks only.

use super::tally::class;

/// A sum of the core's with its history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gauge {
    pub(super) current: u64,
    pub(super) peak: u64,
    /// Everything ever added.
    pub(super) added: u64,
}

impl Gauge {
    #[inline]
    pub(super) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(super) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// Adds or takes away what there is more or less than before.
    #[inline]
    pub(super) fn set(&mut self, value: u64) {
        self.add(value.saturating_sub(self.current));
        self.current = value;
    }

    pub(super) fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// Bytes in active blocks: small, large, and the most of both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Active {
    pub(super) classes: [Gauge; 2],
    pub(super) peak: u64,
}

impl Active {
    /// A block of `bytes` was taken from a hole, or from the cache of another stream.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.classes[class(bytes)].add(bytes);
        self.peak = self.peak.max(self.bytes());
    }

    /// A block of `bytes` is free, or goes to another stream.
    #[inline]
    pub(super) fn sub(&mut self, bytes: u64) {
        self.classes[class(bytes)].sub(bytes);
    }

    /// The same for bytes in small and in large blocks.
    pub(super) fn sub_all(&mut self, bytes: [u64; 2]) {
        for (class, bytes) in self.classes.iter_mut().zip(bytes) {
            class.sub(bytes);
        }
    }

    /// A block of `before` bytes has `after`: counted by the difference, or from class to class.
    pub(super) fn resize(&mut self, before: u64, after: u64) {
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

    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        let [small, large] = &self.classes;
        small.current + large.current
    }

    /// The peaks' sum, which is another one once any is, until they are reset.
    #[inline]
    pub(super) fn peaks(&self) -> u64 {
        let [small, large] = &self.classes;
        small.peak + large.peak + self.peak
    }

    pub(super) fn reset_peaks(&mut self) {
        self.classes.iter_mut().for_each(Gauge::reset_peak);
        self.peak = self.bytes();
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
