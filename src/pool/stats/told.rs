//! What the pool's slow steps tell the application's `tracing` subscriber.
//!
//! Steps are taken under the pool's lock, and a subscriber may do anything, allocate among others.
//! So a step leaves a note, and whoever took the steps tells what was noted once the lock is let go.
//! Without the feature `tracing` nothing is noted.

/// A slow step of the pool, with the bytes that were asked for, mapped, made, moved or given back. What
/// they serve is as [`Steps`](super::Steps) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    OwnStream(u64),
    ReadyElsewhere(u64),
    Drain(u64),
    StreamWait(u64),
    Steal(u64),
    Grow(u64),
    Relieved(u64),
    OutOfMemory(u64),
    /// By a step of compaction.
    Moved(u64),
    Trimmed(u64),
}

/// The steps not told yet.
#[derive(Default)]
pub(crate) struct Notes {
    #[cfg(feature = "tracing")]
    pub(in crate::pool) notes: Vec<Told>,
}

impl Notes {
    /// Notes a step, to be told by `Shared::tell`.
    #[inline]
    pub(crate) fn note(&mut self, step: Told) {
        #[cfg(feature = "tracing")]
        self.notes.push(step);
        #[cfg(not(feature = "tracing"))]
        let _ = step;
    }
}

#[cfg(feature = "tracing")]
impl Told {
    pub(in crate::pool) fn tell(self, pool: u64) {
        macro_rules! event {
            ($level:ident, $bytes:expr, $words:literal) => {
                tracing::event!(target: "warpool", tracing::Level::$level, pool, bytes = $bytes, $words)
            };
        }
        match self {
            Self::OwnStream(bytes) => event!(TRACE, bytes, "own stream"),
            Self::ReadyElsewhere(bytes) => event!(TRACE, bytes, "ready elsewhere"),
            Self::Drain(bytes) => event!(DEBUG, bytes, "caches emptied"),
            Self::StreamWait(bytes) => event!(DEBUG, bytes, "stream wait"),
            Self::Steal(bytes) => event!(DEBUG, bytes, "idle handle remapped"),
            Self::Grow(bytes) => event!(DEBUG, bytes, "handle created"),
            Self::Relieved(bytes) => event!(INFO, bytes, "relieved"),
            Self::OutOfMemory(bytes) => event!(WARN, bytes, "out of memory"),
            Self::Moved(bytes) => event!(DEBUG, bytes, "blocks moved"),
            Self::Trimmed(bytes) => event!(DEBUG, bytes, "trimmed"),
        }
    }
}
