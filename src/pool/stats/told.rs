//! The pool's slow steps: which figure counts each, and what the application's `tracing` subscriber is told.
//!
//! A subscriber may allocate. So a step, which is taken under the pool's lock, leaves a note, and whoever took
//! it tells what was noted once the lock is let go. Without the feature `tracing` nothing is noted.

use super::Steps;

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident $(counts $figure:ident)?, $level:ident $words:literal;)+) => {
        /// A slow step of the pool, as [`Steps`] says, with the bytes asked for, mapped, made, moved or given back.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Told {
            $($(#[$doc])* $step(u64)),+
        }

        impl Told {
            #[inline(always)]
            pub(in crate::pool) fn count(self, steps: &mut Steps) {
                match self {
                    $(Self::$step(_) => { $(steps.$figure += 1;)? })+
                }
            }

            /// Tells the subscriber, without a lock of the pool.
            #[inline]
            pub(in crate::pool) fn tell(self, pool: u64) {
                #[cfg(feature = "tracing")]
                match self {
                    $(Self::$step(bytes) => tracing::event!(
                        target: "warpool", tracing::Level::$level, pool, bytes, $words
                    ),)+
                }
                #[cfg(not(feature = "tracing"))]
                let _ = pool;
            }
        }
    };
}

steps! {
    OwnStream counts own_stream, TRACE "own stream";
    ReadyElsewhere counts ready_elsewhere, TRACE "ready elsewhere";
    Drain counts drain, DEBUG "caches emptied";
    StreamWait counts stream_wait, DEBUG "stream wait";
    Steal counts steal, DEBUG "idle handle remapped";
    Grow counts grow, DEBUG "handle created";
    Relieved counts relieved, INFO "relieved";
    OutOfMemory counts out_of_memory, WARN "out of memory";
    /// By a step of compaction.
    Moved, DEBUG "blocks moved";
    Trimmed, DEBUG "trimmed";
}
