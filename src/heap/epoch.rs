//! Epochs: up to where of which stream's work something may still be in use.

/// Number of a stream in a pool; [`FRESH`] for memory that no stream has used.
pub(crate) type StreamIndex = u32;

/// The index of memory that is ready for every stream: nothing queued uses it.
pub(crate) const FRESH: StreamIndex = 0;

/// Work queued on a stream up to a tick of its timeline: once it is done nothing uses the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) stream: StreamIndex,
    pub(crate) tick: u64,
}

impl Epoch {
    /// Of memory that nothing queued uses.
    pub(crate) const PAST: Self = Self::new(FRESH, 0);

    pub(crate) const fn new(stream: StreamIndex, tick: u64) -> Self {
        Self { stream, tick }
    }

    /// Whether work of `stream` needs no wait for it: it is the stream's own, or nobody's.
    pub(crate) fn is_own(self, stream: StreamIndex) -> bool {
        self.stream == stream || self.stream == FRESH
    }

    /// The later of two epochs of one stream; of two streams neither covers the other.
    pub(crate) fn joined(self, other: Self) -> Option<Self> {
        (self.stream == other.stream).then(|| Self::new(self.stream, self.tick.max(other.tick)))
    }
}

#[cfg(test)]
mod tests;
