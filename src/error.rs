//! The crate's error type.
//!
//! Every fallible call returns [`Result`]. An error says what was requested, what was found and
//! what to do next. After an error the object it came from is unchanged, unless its documentation
//! says otherwise.

use std::fmt;
use std::ops::{Bound, RangeBounds};

/// The result of every fallible call of the crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason that a call failed.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::Error;
///
/// match pool.alloc(&stream, 0) {
///     Err(Error::Invalid { what, why }) => println!("{what}: {why}"),
///     Err(Error::OutOfMemory(figures)) => println!("{} bytes live", figures.live),
///     other => drop(other?),
/// }
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No step of the out-of-memory ladder could serve the request.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),

    /// A device is not usable here; `missing` names the missing part, and `hint` says what to do.
    #[error("no CUDA device: {missing}; {hint}")]
    Unavailable {
        /// The part that is missing: the driver, a GPU, or the compiled kernels.
        missing: String,
        /// What to do about it.
        hint: String,
    },

    /// A driver call failed.
    #[error("{call} failed with code {code}: {words}")]
    Driver {
        /// Name of the driver call.
        call: &'static str,
        /// The driver's result code, unchanged.
        code: i32,
        /// The driver's name and description of the code.
        words: String,
    },

    /// A kernel of this crate could not be launched.
    #[error("launch of kernel {kernel} failed with code {code}: {words}")]
    Launch {
        /// Name of the entry point in `kernels/warpool.h`.
        kernel: &'static str,
        /// The code it returned.
        code: i32,
        /// The meaning of the code.
        words: String,
    },

    /// A call on the host failed: one of the operating system, or work queued by `host_call`.
    #[error("{call} failed: {words}")]
    Os {
        /// Name of the system call, or `host call`.
        call: &'static str,
        /// The system's description of the error, or the message of the panic.
        words: String,
    },

    /// An argument is invalid; nothing was done.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// What is wrong with it: its value, and what would be valid.
        why: String,
    },

    /// A file does not have the expected contents.
    #[error("{file}{}: {why}", at_line(*line))]
    Malformed {
        /// The file as the caller named it.
        file: String,
        /// Line number from 1; 0 for the whole file.
        line: u64,
        /// What is wrong there.
        why: String,
    },
}

/// `:line`, or nothing for the whole file.
fn at_line(line: u64) -> String {
    if line == 0 {
        return String::new();
    }
    format!(":{line}")
}

/// Returns [`Error::Invalid`] about an argument from the function if that is `bad`.
macro_rules! refuse {
    ($bad:expr => $what:expr, $($why:tt)+) => {
        if $bad {
            return Err(Error::invalid($what, format!($($why)+)));
        }
    };
}
pub(crate) use refuse;

/// A range as a program writes it: `5..11`, `..=10`.
pub(crate) fn written(range: &impl RangeBounds<usize>) -> String {
    let from = match range.start_bound() {
        Bound::Included(at) => at.to_string(),
        // No program writes this one. Wider, as `usize::MAX` has a next one too.
        Bound::Excluded(&at) => (at as u128 + 1).to_string(),
        Bound::Unbounded => String::new(),
    };
    let to = match range.end_bound() {
        Bound::Included(at) => format!("={at}"),
        Bound::Excluded(at) => at.to_string(),
        Bound::Unbounded => String::new(),
    };
    format!("{from}..{to}")
}

impl Error {
    /// An [`Error::Invalid`] about `what`.
    #[must_use]
    #[doc(hidden)]
    pub fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid {
            what,
            why: why.into(),
        }
    }

    /// Whether this is [`Error::OutOfMemory`]. A driver that has no addresses left for a pool or a growing buffer
    /// is an [`Error::Driver`]: to free blocks does not help.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }

    /// Whether a device call failed because the device has no memory left.
    ///
    /// The host device returns the driver's own code, so this works for both.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// use warpool::{Device, Pool, PoolConfig};
    ///
    /// let device = Device::host_with_capacity(4 << 20)?;
    /// let pool = Pool::new(&device, PoolConfig::default())?;
    /// let refused = pool.alloc(&device.stream()?, 64 << 20).err();
    /// assert!(refused.is_some_and(|why| why.is_out_of_memory() && !why.is_device_exhausted()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[doc(hidden)]
    pub fn is_device_exhausted(&self) -> bool {
        const CUDA_ERROR_OUT_OF_MEMORY: i32 = 2;
        matches!(
            self,
            Self::Driver {
                code: CUDA_ERROR_OUT_OF_MEMORY,
                ..
            }
        )
    }
}

/// The details of [`Error::OutOfMemory`].
#[non_exhaustive]
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OutOfMemory {
    /// Bytes of the request that failed, after rounding.
    pub requested: u64,
    /// Bytes in live blocks.
    pub live: u64,
    /// Physical bytes that the pool holds.
    pub reserved: u64,
    /// The pool's hard limit in bytes; `u64::MAX` if it has none.
    pub limit: u64,
    /// Free physical bytes on the device outside the pool, if known.
    pub device_free: Option<u64>,
    /// Bytes of the largest free extent that a request could have been served from.
    pub largest_hole: u64,
    /// Bytes of the largest free extent if all movable blocks were moved together.
    pub after_compaction: u64,
    /// The largest live blocks by tag: (tag, bytes, blocks), most bytes first. Growing buffers are "growing memory". A
    /// host pool has one holder, "page-locked host memory".
    pub holders: Vec<(String, u64, u64)>,
    /// Bytes of the smallest handle; 0 of memory that comes in none.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) granule: u64,
}

/// A number of bytes, printed with a binary unit: `3.00 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(
    /// Number of bytes.
    pub u64,
);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.2} {}", UNITS[unit])
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} ({} bytes) requested, {} live, {} reserved",
            Bytes(self.requested),
            self.requested,
            Bytes(self.live),
            Bytes(self.reserved),
        )?;
        if self.limit != u64::MAX {
            write!(f, " of a limit of {}", Bytes(self.limit))?;
        }
        if let Some(free) = self.device_free {
            write!(f, ", {} free on the device", Bytes(free))?;
        }
        write!(f, "; largest hole {}", Bytes(self.largest_hole))?;
        if self.after_compaction > self.largest_hole {
            write!(f, ", {} after compaction", Bytes(self.after_compaction))?;
        }
        for (tag, bytes, blocks) in self.holders.iter().take(3) {
            let ending = if *blocks == 1 { "" } else { "s" };
            write!(
                f,
                "; {tag} holds {} in {blocks} block{ending}",
                Bytes(*bytes)
            )?;
        }
        write!(f, "; {}", self.advice())
    }
}

impl OutOfMemory {
    /// What the caller can do, derived from the details.
    fn advice(&self) -> &'static str {
        let granule = self.granule.max(1);
        let free = self.device_free.unwrap_or(u64::MAX);
        // The pool's memory without a block, and what new handles may add to it.
        let spare = self.reserved.saturating_sub(self.live);
        let new = (self.limit.saturating_sub(self.reserved) / granule * granule).min(free);
        // Page-locked memory of the host, which has no handles, does not move.
        let has_handles = self.granule > 0;
        let in_pieces = has_handles && self.requested > new && self.requested - new <= spare;
        if self.requested > self.limit {
            "the request alone exceeds the limit: raise it or ask for less"
        } else if self.requested.div_ceil(granule) > self.limit / granule {
            "memory comes in whole handles, and those of the request exceed the limit: raise it"
        } else if in_pieces || self.after_compaction >= self.requested {
            "make blocks movable, or compact"
        } else if spare.saturating_add(free) < self.requested {
            // What the pool would have without a block.
            if self.requested <= self.reserved.saturating_add(free) {
                "the device is full: free blocks, or ask for less"
            } else {
                "other users hold the device's memory, or it has less: free some of theirs, or ask for less"
            }
        } else if self.limit == u64::MAX {
            "free blocks, or ask for less"
        } else {
            "free blocks, raise the limit, or ask for less"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_names_the_request_the_limit_and_the_next_step() {
        let text = Error::OutOfMemory(Box::new(OutOfMemory {
            requested: 3 << 30,
            live: 1 << 30,
            reserved: 2 << 30,
            limit: 2 << 30,
            ..OutOfMemory::default()
        }))
        .to_string();
        assert!(
            text.contains("3.00 GiB (3221225472 bytes) requested"),
            "{text}"
        );
        assert!(text.contains("of a limit of 2.00 GiB"), "{text}");
        assert!(text.contains("raise it or ask for less"), "{text}");
    }

    /// The advice on a request of that many MiB to a pool with these live, reserved, limit and device's free MiB.
    fn advice(requested: u64, live: u64, reserved: u64, limit: u64, free: u64) -> String {
        let figures = OutOfMemory {
            requested: requested << 20,
            live: live << 20,
            reserved: reserved << 20,
            limit: limit.saturating_mul(1 << 20),
            device_free: Some(free << 20),
            granule: 2 << 20,
            ..OutOfMemory::default()
        };
        let text = figures.to_string();
        text.rsplit("; ").next().unwrap_or_default().to_owned()
    }

    const NO_LIMIT: u64 = u64::MAX;

    #[test]
    fn the_advice_on_a_full_device_blames_other_users_only_for_what_the_pool_does_not_hold() {
        let (own, others) = (
            "the device is full: free blocks, or ask for less",
            "other users hold the device's memory, or it has less: free some of theirs, or ask for less",
        );
        assert_eq!(advice(1, 60, 60, NO_LIMIT, 0), own);
        assert_eq!(advice(20, 16, 16, NO_LIMIT, 4), own);
        assert_eq!(advice(20, 16, 16, NO_LIMIT, 0), others);
        assert_eq!(advice(1 << 26, 10, 10, NO_LIMIT, 54), others);
        // A higher limit lets no more in.
        assert_eq!(advice(4, 8, 8, 8, 0), own);
    }

    #[test]
    fn the_advice_on_free_memory_in_pieces_is_to_make_blocks_movable() {
        let movable = "make blocks movable, or compact";
        assert_eq!(advice(4, 8, 16, 16, 48), movable);
        assert_eq!(advice(4, 32, 64, NO_LIMIT, 0), movable);
        assert_eq!(advice(10, 8, 14, 19, 48), movable);
        let more = "free blocks, raise the limit, or ask for less";
        assert_eq!(advice(12, 8, 14, 19, 48), more);
        // A host pool, whose memory does not move.
        let host = OutOfMemory {
            requested: 2 << 20,
            live: 1 << 20,
            reserved: 4 << 20,
            limit: 4 << 20,
            ..OutOfMemory::default()
        };
        assert!(host.to_string().ends_with(more), "{host}");
    }

    #[test]
    fn the_advice_raises_a_limit_that_no_freed_block_makes_room_under() {
        let handles =
            "memory comes in whole handles, and those of the request exceed the limit: raise it";
        assert_eq!(advice(1, 0, 0, 1, 64), handles);
        assert_eq!(advice(3, 0, 0, 3, 64), handles);
        assert_eq!(advice(3, 1, 2, 3, 64), handles);
        let alone = "the request alone exceeds the limit: raise it or ask for less";
        assert_eq!(advice(4, 0, 0, 3, 64), alone);
    }

    #[test]
    fn the_advice_names_no_limit_where_there_is_none() {
        // The device said that it has memory, and made no handle.
        assert_eq!(advice(4, 8, 8, NO_LIMIT, 9), "free blocks, or ask for less");
    }
}
