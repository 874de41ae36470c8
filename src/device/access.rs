//! The memory that work reads and writes, for tools that watch a device.

#[cfg(feature = "convert")]
#[path = "access_conversions.rs"]
mod conversions;

use std::ops::Range;

use super::launch::Launch;
use super::raw::{Addr, RawStream};
use crate::driver::abi;

/// The effect of an operation on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes, or reads and writes.
    Write,
    /// It adds atomically: several operations may do so at once, but nothing may read or write
    /// meanwhile.
    Atomic,
}

/// A range of device memory that an operation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The effect there.
    pub kind: AccessKind,
    /// The bytes, by address.
    pub range: Range<Addr>,
}

/// An event that a device cannot observe itself, reported to
/// [`Backend::observe`](super::Backend::observe).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Note<'a> {
    /// A pool allocates these bytes in the order of the stream.
    Alloc {
        /// First byte.
        addr: Addr,
        /// Number of bytes.
        bytes: u64,
        /// The stream whose work may use them from here on.
        stream: RawStream,
    },
    /// A pool frees these bytes in the order of the stream.
    Free {
        /// First byte.
        addr: Addr,
        /// Number of bytes.
        bytes: u64,
        /// The stream whose work queued so far must be done before they are free.
        stream: RawStream,
    },
    /// Work outside the backend, such as a kernel of the application's own, uses these ranges.
    Uses {
        /// The name of the work.
        what: &'a str,
        /// The stream it is queued on.
        stream: RawStream,
        /// The ranges it uses.
        accesses: &'a [Access],
    },
    /// The application names the stream.
    Name {
        /// The stream.
        stream: RawStream,
        /// Its name.
        name: &'a str,
    },
    /// A pool falls asleep or wakes. Of its memory, the host has waited for all work before, and for the copies of its
    /// contents since.
    Sleep {
        /// First byte of the pool's addresses.
        addr: Addr,
        /// Whether it sleeps from here on.
        asleep: bool,
    },
}

impl Access {
    /// A range that is read.
    #[must_use]
    #[doc(hidden)]
    pub fn read(addr: Addr, bytes: u64) -> Self {
        Self::new(AccessKind::Read, addr, bytes)
    }

    /// A range that is written.
    #[must_use]
    #[doc(hidden)]
    pub fn write(addr: Addr, bytes: u64) -> Self {
        Self::new(AccessKind::Write, addr, bytes)
    }

    /// A range that is added to atomically.
    #[must_use]
    #[doc(hidden)]
    pub fn atomic(addr: Addr, bytes: u64) -> Self {
        Self::new(AccessKind::Atomic, addr, bytes)
    }

    fn new(kind: AccessKind, addr: Addr, bytes: u64) -> Self {
        Self {
            kind,
            range: addr..addr.saturating_add(bytes),
        }
    }
}

/// Bytes of a table of `count` entries of `T`.
fn table<T>(count: u64) -> u64 {
    count.saturating_mul(size_of::<T>() as u64)
}

/// The ranges that a pattern kernel reads or writes.
fn pattern(args: &abi::wp_pattern) -> Vec<Access> {
    let kind = if args.op == abi::WP_VERIFY {
        AccessKind::Read
    } else {
        AccessKind::Write
    };
    let all = args.edge == 0 || args.edge.saturating_mul(2) >= args.bytes;
    let mut accesses = if all {
        vec![Access::new(kind, args.addr, args.bytes)]
    } else {
        let last = args.addr + args.bytes - args.edge;
        vec![
            Access::new(kind, args.addr, args.edge),
            Access::new(kind, last, args.edge),
        ]
    };
    if args.op == abi::WP_VERIFY {
        let report = size_of::<abi::wp_pattern_report>() as u64;
        accesses.push(Access::atomic(args.report, report));
    }
    accesses
}

/// A packed move: source, destination, bytes. `kernels/warpool.h` has the format.
fn unpacked(packed: &abi::wp_packed_move) -> (Addr, Addr, u64) {
    const PLACE: u64 = (1 << 44) - 1;
    let units = (packed.from >> 44) | (packed.to >> 44) << 20;
    (
        (packed.from & PLACE) * 16,
        (packed.to & PLACE) * 16,
        units * 16,
    )
}

/// The entries of a table in memory the host can read.
///
/// # Safety
/// `count` entries lie at `addr`.
unsafe fn entries<T: Copy>(addr: Addr, count: u64) -> impl Iterator<Item = T> {
    let first = addr as *const T;
    // SAFETY: the caller guarantees the table; the reads need no alignment.
    (0..count as usize).map(move |at| unsafe { first.add(at).read_unaligned() })
}

impl Launch {
    /// The ranges in the launch's arguments, tables included. [`Launch::table_accesses`] returns
    /// the ranges that the entries of a table contain.
    #[must_use]
    #[doc(hidden)]
    pub fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Pattern(args) => pattern(args),
            Self::Relocate(args) => {
                let moves = args.small + args.large;
                let groups = u64::from(args.tiles.div_ceil(abi::WP_TILE_GROUP));
                vec![
                    Access::read(args.moves, table::<abi::wp_packed_move>(moves)),
                    Access::read(args.first_tile, table::<u32>(args.large)),
                    Access::read(args.group_move, table::<u32>(groups)),
                ]
            }
            Self::Slide(args) => {
                let tile = u64::from(abi::WP_SLIDE_TILE);
                let tiles = args.hi.saturating_sub(args.lo).div_ceil(tile);
                let scratch = if args.scratch == 0 { 0 } else { 64 + 4 * tiles };
                vec![
                    Access::read(args.moves, table::<abi::wp_move>(u64::from(args.count))),
                    Access::write(args.scratch, scratch),
                ]
            }
            Self::Patch(args) => vec![
                Access::read(
                    args.ranges,
                    table::<abi::wp_move>(u64::from(args.range_count)),
                ),
                Access::write(args.slots, table::<u64>(args.slot_count)),
            ],
            Self::Scatter(args) => {
                vec![Access::read(args.words, table::<abi::wp_word>(args.count))]
            }
            #[cfg(feature = "convert")]
            other => conversions::accesses(other),
        }
    }

    /// Whether a table in device memory contains further ranges that the launch uses.
    #[must_use]
    #[doc(hidden)]
    pub fn has_table(&self) -> bool {
        match self {
            Self::Relocate(_) | Self::Slide(_) | Self::Scatter(_) => true,
            Self::Pattern(_) | Self::Patch(_) => false,
            #[cfg(feature = "convert")]
            other => conversions::has_table(other),
        }
    }

    /// The ranges in the launch's table, read from it now.
    ///
    /// # Safety
    /// The host can read the table ([`DeviceInfo::host_readable`](super::DeviceInfo)), and the work
    /// that writes it is done.
    #[must_use]
    #[doc(hidden)]
    pub unsafe fn table_accesses(&self) -> Vec<Access> {
        let moved = |(src, dst, bytes)| [Access::read(src, bytes), Access::write(dst, bytes)];
        // SAFETY: the caller guarantees the tables in the arguments.
        unsafe {
            match self {
                Self::Relocate(args) => {
                    let moves = args.small + args.large;
                    entries::<abi::wp_packed_move>(args.moves, moves)
                        .flat_map(|packed| moved(unpacked(&packed)))
                        .collect()
                }
                Self::Slide(args) => entries::<abi::wp_move>(args.moves, u64::from(args.count))
                    .flat_map(|its| moved((its.src, its.dst, its.bytes)))
                    .collect(),
                Self::Scatter(args) => entries::<abi::wp_word>(args.words, args.count)
                    .map(|word| Access::write(word.addr, 8))
                    .collect(),
                Self::Pattern(_) | Self::Patch(_) => Vec::new(),
                #[cfg(feature = "convert")]
                other => conversions::table_accesses(other),
            }
        }
    }
}
