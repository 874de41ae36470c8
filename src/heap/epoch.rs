//! Epochs: the work of a stream after which memory is free.

/// Number of a stream in a pool.
pub(crate) type StreamIndex = u32;

/// In place of a stream, for memory that no queued work uses: every stream may take it.
pub(crate) const FRESH: StreamIndex = 0;

/// The work of a stream up to a tick of its timeline. Once that is done, nothing uses the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) stream: StreamIndex,
    pub(crate) tick: u64,
}

impl Epoch {
    pub(crate) const PAST: Self = Self::new(FRESH, 0);

    pub(crate) const fn new(stream: StreamIndex, tick: u64) -> Self {
        Self { stream, tick }
    }
}
