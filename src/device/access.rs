//! What work reads and writes: for tools that watch a device.

use std::ops::Range;

use super::launch::Launch;
use super::{Addr, RawStream};
use crate::driver::abi;

/// What an operation does to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes, or reads and writes.
    Write,
    /// It adds atomically: several may do so at once, but no one may read or write meanwhile.
    Atomic,
}

/// A range of device memory that an operation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// What it does there.
    pub kind: AccessKind,
    /// The bytes, by address.
    pub range: Range<Addr>,
}

/// Something a device cannot see for itself, told to [`Backend::observe`](super::Backend::observe).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Note<'a> {
    /// A pool gives these bytes out in the order of the stream.
    Alloc {
        /// First byte.
        addr: Addr,
        /// How many.
        bytes: u64,
        /// Whose work may use them from here on.
        stream: RawStream,
    },
    /// A pool takes these bytes back in the order of the stream.
    Free {
        /// First byte.
        addr: Addr,
        /// How many.
        bytes: u64,
        /// Behind whose work queued so far they are free.
        stream: RawStream,
    },
    /// Work that does not go through the backend, a kernel of the application's own, uses these
    /// ranges.
    Uses {
        /// What it is called.
        what: &'a str,
        /// Where it is queued.
        stream: RawStream,
        /// What it uses.
        accesses: &'a [Access],
    },
    /// What a person calls the stream.
    Name {
        /// The stream.
        stream: RawStream,
        /// Its name.
        name: &'a str,
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

/// Elements that share an entry of `wp_convert.block_amax`.
const AMAX_BLOCK: u64 = 32;

/// Bytes of a table of `count` entries of `T`.
fn table<T>(count: u64) -> u64 {
    count.saturating_mul(size_of::<T>() as u64)
}

/// The bytes that a pattern kernel touches.
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

/// Bytes of an element of a `wp_type`; 0 for one there is not.
fn element(of: u32) -> u64 {
    match of {
        abi::WP_F64 => 8,
        abi::WP_F32 => 4,
        abi::WP_F16 | abi::WP_BF16 => 2,
        abi::WP_E4M3 | abi::WP_E5M2 => 1,
        _ => 0,
    }
}

/// The rows of one side of a conversion; one range where they lie without gaps.
fn rows(kind: AccessKind, addr: Addr, row: u64, pitch: u64, rows: u64) -> Vec<Access> {
    if pitch == row || rows <= 1 {
        return vec![Access::new(kind, addr, row.saturating_mul(rows))];
    }
    (0..rows)
        .map(|at| Access::new(kind, addr + at * pitch, row))
        .collect()
}

fn convert(args: &abi::wp_convert) -> Vec<Access> {
    let mut accesses = optional(args);
    if args.tiles != 0 {
        accesses.push(Access::read(args.tiles, table::<abi::wp_tile>(args.rows)));
        return accesses;
    }
    let row = |of: u32| args.count.saturating_mul(element(of));
    let (from, to) = (row(args.src_type), row(args.dst_type));
    accesses.extend(rows(
        AccessKind::Read,
        args.src,
        from,
        args.src_pitch,
        args.rows,
    ));
    accesses.extend(rows(
        AccessKind::Write,
        args.dst,
        to,
        args.dst_pitch,
        args.rows,
    ));
    accesses
}

/// What a fused conversion uses beside its elements.
fn optional(args: &abi::wp_convert) -> Vec<Access> {
    let blocks = args.count.div_ceil(AMAX_BLOCK);
    // With tiles, how many tensors there are is for the table to say.
    let tensors = u64::from(args.tiles == 0);
    let named = [
        (args.flag, Access::atomic(args.flag, 4)),
        (args.amax, Access::atomic(args.amax, 4 * tensors)),
        (args.block_amax, Access::write(args.block_amax, 4 * blocks)),
        (args.scale_at, Access::read(args.scale_at, 4)),
    ];
    let given = named
        .into_iter()
        .filter(|(addr, access)| *addr != 0 && !access.range.is_empty());
    given.map(|(_, access)| access).collect()
}

fn inplace(args: &abi::wp_inplace) -> Vec<Access> {
    let widest = element(args.src_type).max(element(args.dst_type));
    let scratch = 64 + 4 * args.count.div_ceil(u64::from(abi::WP_INPLACE_TILE));
    vec![
        Access::write(args.addr, args.count.saturating_mul(widest)),
        Access::write(args.scratch, scratch),
    ]
}

/// Bits of a code of a `wp_type`.
fn code_bits(of: u32) -> u64 {
    match of {
        abi::WP_E2M3 | abi::WP_E3M2 => 6,
        abi::WP_E2M1 | abi::WP_I4 => 4,
        _ => 8,
    }
}

/// The entries of `size` bytes that belong to the scales, from `addr` on.
fn scales(args: &abi::wp_quantize, kind: AccessKind, addr: Addr, size: u64) -> Vec<Access> {
    let (down, across) = match args.granularity {
        abi::WP_PER_TENSOR => (1, 1),
        abi::WP_PER_ROW => (args.rows, 1),
        abi::WP_PER_GROUP => (args.rows, args.cols.div_ceil(u64::from(args.group.max(1)))),
        _ => (args.rows.div_ceil(128), args.cols.div_ceil(128)),
    };
    let pitch = args.scales_pitch.saturating_mul(size);
    match args.layout {
        abi::WP_SCALES_BY_COLUMN => rows(kind, addr, down * size, pitch, across),
        abi::WP_SCALES_TILED => {
            let all = down.next_multiple_of(128).saturating_mul(pitch);
            vec![Access::new(kind, addr, all)]
        }
        _ => rows(kind, addr, across * size, pitch, down),
    }
}

/// Quantising reads values and writes codes and scales; the inverse reads those and writes values.
fn quantize(args: &abi::wp_quantize, forth: bool) -> Vec<Access> {
    if args.jobs != 0 {
        let mut accesses = vec![
            Access::read(args.jobs, table::<abi::wp_quantize_job>(args.rows)),
            Access::read(args.places, table::<abi::wp_quantize_place>(args.cols)),
        ];
        if forth && args.amax != 0 {
            accesses.push(Access::atomic(args.amax, args.rows.saturating_mul(4)));
        }
        return accesses;
    }
    let (read, write) = (AccessKind::Read, AccessKind::Write);
    let (values, codes) = if forth { (read, write) } else { (write, read) };
    let given = !forth || args.granularity == abi::WP_PER_TENSOR;
    let of_scales = if given { read } else { write };
    let row = args.cols.saturating_mul(element(args.type_));
    let mut accesses = rows(values, args.values, row, args.values_pitch, args.rows);
    let row = args.cols.saturating_mul(code_bits(args.format)).div_ceil(8);
    accesses.extend(rows(codes, args.codes, row, args.codes_pitch, args.rows));
    let size = if args.kind == abi::WP_SCALE_F32 { 4 } else { 1 };
    accesses.extend(scales(args, of_scales, args.scales, size));
    if args.zeros != 0 {
        accesses.extend(scales(args, of_scales, args.zeros, 1));
    }
    if args.tensor_scale != 0 {
        accesses.push(Access::read(args.tensor_scale, 4));
    }
    if forth && args.amax != 0 {
        accesses.push(Access::atomic(args.amax, 4));
    }
    accesses
}

fn transpose(args: &abi::wp_transpose) -> Vec<Access> {
    let (from, to) = (element(args.src_type), element(args.dst_type));
    let row = |count: u64, size: u64| count.saturating_mul(size);
    let (read, write) = (AccessKind::Read, AccessKind::Write);
    let mut accesses = rows(
        read,
        args.src,
        row(args.cols, from),
        args.src_pitch,
        args.rows,
    );
    if args.plain != 0 {
        let plain = row(args.cols, to);
        accesses.extend(rows(write, args.plain, plain, args.plain_pitch, args.rows));
    }
    let turned = row(args.rows, to);
    accesses.extend(rows(
        write,
        args.transposed,
        turned,
        args.transposed_pitch,
        args.cols,
    ));
    if args.scale != 0 {
        accesses.push(Access::read(args.scale, 4));
    }
    if args.amax != 0 {
        accesses.push(Access::atomic(args.amax, 4));
    }
    accesses
}

/// A check of gradients reads the factor and may raise `found`; the rest of the scaler is left.
fn unscale(args: &abi::wp_unscale) -> Vec<Access> {
    let found = std::mem::offset_of!(abi::wp_scaler, found) as u64;
    vec![
        Access::read(args.tiles, table::<abi::wp_tile>(args.count)),
        Access::read(args.scaler, found),
        Access::atomic(args.scaler + found, 4),
    ]
}

/// What the tiles of a conversion name.
fn tiles(args: &abi::wp_convert, tiles: impl Iterator<Item = abi::wp_tile>) -> Vec<Access> {
    let (from, to) = (element(args.src_type), element(args.dst_type));
    let mut accesses = Vec::new();
    for tile in tiles {
        let count = u64::from(tile.count);
        accesses.push(Access::read(tile.src, count * from));
        accesses.push(Access::write(tile.dst, count * to));
        if args.amax != 0 {
            accesses.push(Access::atomic(args.amax + 4 * u64::from(tile.tensor), 4));
        }
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
    // SAFETY: the caller vouches for the table; nothing is assumed of its alignment.
    (0..count as usize).map(move |at| unsafe { first.add(at).read_unaligned() })
}

impl Launch {
    /// What the launch uses, as far as its arguments say: tables are read, and what a table names
    /// is given by [`Launch::table_accesses`].
    #[must_use]
    #[doc(hidden)]
    pub fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Pattern(args) => pattern(args),
            Self::Convert(args) => convert(args),
            Self::Inplace(args) => inplace(args),
            Self::Quantize(args) => quantize(args, true),
            Self::Dequantize(args) => quantize(args, false),
            Self::Transpose(args) => transpose(args),
            Self::Unscale(args) => unscale(args),
            Self::ScalerUpdate(args) => {
                let bytes = size_of::<abi::wp_scaler>() as u64;
                vec![Access::write(args.scaler, bytes)]
            }
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
        }
    }

    /// Whether a table in device memory names more of what the launch uses.
    #[must_use]
    #[doc(hidden)]
    pub fn has_table(&self) -> bool {
        match self {
            Self::Relocate(_) | Self::Slide(_) | Self::Scatter(_) | Self::Unscale(_) => true,
            Self::Convert(args) => args.tiles != 0,
            Self::Quantize(args) | Self::Dequantize(args) => args.jobs != 0,
            Self::Pattern(_)
            | Self::Inplace(_)
            | Self::Transpose(_)
            | Self::ScalerUpdate(_)
            | Self::Patch(_) => false,
        }
    }

    /// What the launch's table names, read from it now.
    ///
    /// # Safety
    /// The host can read the table ([`DeviceInfo::host_readable`](super::DeviceInfo)), and the work
    /// that writes it is done.
    #[must_use]
    #[doc(hidden)]
    pub unsafe fn table_accesses(&self) -> Vec<Access> {
        let moved = |(src, dst, bytes)| [Access::read(src, bytes), Access::write(dst, bytes)];
        // SAFETY: the caller vouches for the tables that the arguments name.
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
                Self::Convert(args) if args.tiles != 0 => {
                    tiles(args, entries::<abi::wp_tile>(args.tiles, args.rows))
                }
                Self::Unscale(args) => entries::<abi::wp_tile>(args.tiles, args.count)
                    .map(|tile| {
                        Access::write(tile.src, u64::from(tile.count) * element(args.type_))
                    })
                    .collect(),
                Self::Quantize(args) | Self::Dequantize(args) if args.jobs != 0 => {
                    let forth = matches!(self, Self::Quantize(_));
                    entries::<abi::wp_quantize_job>(args.jobs, args.rows)
                        .flat_map(|job| quantize(&job.tensor, forth))
                        .collect()
                }
                Self::Pattern(_)
                | Self::Convert(_)
                | Self::Inplace(_)
                | Self::Quantize(_)
                | Self::Dequantize(_)
                | Self::Transpose(_)
                | Self::ScalerUpdate(_)
                | Self::Patch(_) => Vec::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(accesses: &[Access], kind: AccessKind) -> Vec<(Addr, Addr)> {
        let of = accesses.iter().filter(|access| access.kind == kind);
        of.map(|access| (access.range.start, access.range.end))
            .collect()
    }

    #[test]
    fn a_quantisation_writes_its_codes_and_scales_and_the_inverse_reads_them() {
        // SAFETY: plain numbers, for which zero is a value.
        let zero: abi::wp_quantize = unsafe { std::mem::zeroed() };
        let args = abi::wp_quantize {
            values: 0x1000,
            codes: 0x9000,
            scales: 0xA000,
            zeros: 0xB000,
            amax: 0xC000,
            rows: 3,
            cols: 33,
            values_pitch: 33 * 4,
            codes_pitch: 20,
            scales_pitch: 2,
            type_: abi::WP_F32,
            format: abi::WP_I4,
            granularity: abi::WP_PER_GROUP,
            group: 32,
            ..zero
        };
        let values = vec![(0x1000, 0x1000 + 3 * 33 * 4)];
        let codes = [0x9000, 0x9014, 0x9028].map(|at| (at, at + 17));
        let mut others = codes.to_vec();
        others.extend([(0xA000, 0xA000 + 24), (0xB000, 0xB000 + 6)]);
        let forth = Launch::Quantize(args).accesses();
        assert_eq!(ranges(&forth, AccessKind::Read), values);
        assert_eq!(ranges(&forth, AccessKind::Write), others);
        assert_eq!(ranges(&forth, AccessKind::Atomic), [(0xC000, 0xC004)]);
        let back = Launch::Dequantize(args).accesses();
        assert_eq!(ranges(&back, AccessKind::Read), others);
        assert_eq!(ranges(&back, AccessKind::Write), values);
        let squares = abi::wp_quantize {
            format: abi::WP_E4M3,
            granularity: abi::WP_PER_SQUARE,
            zeros: 0,
            rows: 129,
            cols: 129,
            scales_pitch: 4,
            ..args
        };
        let forth = Launch::Quantize(squares).accesses();
        let written = ranges(&forth, AccessKind::Write);
        // Two rows of two scales, and the gap between them is nobody's.
        assert_eq!(
            written[written.len() - 2..],
            [(0xA000, 0xA008), (0xA010, 0xA018)]
        );
        let tiled = abi::wp_quantize {
            kind: abi::WP_SCALE_E8M0,
            format: abi::WP_E2M1,
            layout: abi::WP_SCALES_TILED,
            zeros: 0,
            scales_pitch: 4,
            ..args
        };
        let forth = Launch::Quantize(tiled).accesses();
        assert_eq!(ranges(&forth, AccessKind::Write)[3], (0xA000, 0xA000 + 512));
    }

    #[test]
    fn a_transposition_writes_rows_of_its_turned_result() {
        // SAFETY: plain numbers, for which zero is a value.
        let zero: abi::wp_transpose = unsafe { std::mem::zeroed() };
        let args = abi::wp_transpose {
            src: 0x1000,
            transposed: 0x8000,
            scale: 0x9000,
            rows: 5,
            cols: 2,
            src_pitch: 8,
            transposed_pitch: 16,
            src_type: abi::WP_F32,
            dst_type: abi::WP_F16,
            ..zero
        };
        let accesses = Launch::Transpose(args).accesses();
        assert_eq!(
            ranges(&accesses, AccessKind::Read),
            [(0x1000, 0x1028), (0x9000, 0x9004)]
        );
        assert_eq!(
            ranges(&accesses, AccessKind::Write),
            [(0x8000, 0x800A), (0x8010, 0x801A)]
        );
    }
}
