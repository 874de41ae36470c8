//! The memory that conversions read and write.

use super::{Access, AccessKind, Addr, Launch, entries, table};
use crate::driver::abi;

/// Elements that share an entry of `wp_convert.block_amax`.
const AMAX_BLOCK: u64 = 32;

/// Bytes of an element of a `wp_type`; 0 for an unknown type.
fn element(of: u32) -> u64 {
    match of {
        abi::WP_F64 => 8,
        abi::WP_F32 => 4,
        abi::WP_F16 | abi::WP_BF16 => 2,
        abi::WP_E4M3 | abi::WP_E5M2 => 1,
        _ => 0,
    }
}

/// The rows of one side of a conversion, as one range if there are no gaps between them. A source's rows may
/// overlap, or be the same one.
fn rows(kind: AccessKind, addr: Addr, row: u64, pitch: u64, rows: u64) -> Vec<Access> {
    if pitch <= row || rows <= 1 {
        let before = rows.saturating_sub(1).saturating_mul(pitch);
        let last = row * u64::from(rows > 0);
        return vec![Access::new(kind, addr, before.saturating_add(last))];
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

/// The ranges that a fused conversion uses in addition to its elements.
fn optional(args: &abi::wp_convert) -> Vec<Access> {
    let blocks = args.count.div_ceil(AMAX_BLOCK);
    // With tiles, the number of tensors is in the table.
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

/// Quantising reads values and writes codes and scales; dequantising reads these and writes values.
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

/// A gradient check reads the factor and may set `found`; it does not touch the rest of the scaler.
fn unscale(args: &abi::wp_unscale) -> Vec<Access> {
    let found = std::mem::offset_of!(abi::wp_scaler, found) as u64;
    vec![
        Access::read(args.tiles, table::<abi::wp_tile>(args.count)),
        Access::read(args.scaler, found),
        Access::atomic(args.scaler + found, 4),
    ]
}

fn feedback(args: &abi::wp_feedback) -> Vec<Access> {
    let bytes = |of: u32| args.count.saturating_mul(element(of));
    vec![
        Access::read(args.src, bytes(abi::WP_F32)),
        Access::write(args.residual, bytes(abi::WP_F32)),
        Access::write(args.dst, bytes(args.type_)),
        Access::read(args.scale, 4),
        Access::read(args.inverse, 4),
    ]
}

/// The ranges in the tiles of a conversion.
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

/// [`Launch::accesses`] of a conversion.
pub(super) fn accesses(launch: &Launch) -> Vec<Access> {
    match launch {
        Launch::Convert(args) => convert(args),
        Launch::Inplace(args) => inplace(args),
        Launch::Quantize(args) => quantize(args, true),
        Launch::Dequantize(args) => quantize(args, false),
        Launch::Transpose(args) => transpose(args),
        Launch::Unscale(args) => unscale(args),
        Launch::Feedback(args) => feedback(args),
        Launch::ScalerUpdate(args) => {
            let bytes = size_of::<abi::wp_scaler>() as u64;
            let pairs = [args.most, args.largest].into_iter();
            let pairs = pairs.filter(|&addr| addr != 0);
            [Access::write(args.scaler, bytes)]
                .into_iter()
                .chain(pairs.map(|addr| Access::write(addr, 8)))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// [`Launch::has_table`] of a conversion.
pub(super) fn has_table(launch: &Launch) -> bool {
    match launch {
        Launch::Unscale(_) => true,
        Launch::Convert(args) => args.tiles != 0,
        Launch::Quantize(args) | Launch::Dequantize(args) => args.jobs != 0,
        _ => false,
    }
}

/// [`Launch::table_accesses`] of a conversion.
///
/// # Safety
/// The same as [`Launch::table_accesses`].
pub(super) unsafe fn table_accesses(launch: &Launch) -> Vec<Access> {
    // SAFETY: the caller guarantees the tables in the arguments.
    unsafe {
        match launch {
            Launch::Convert(args) if args.tiles != 0 => {
                tiles(args, entries::<abi::wp_tile>(args.tiles, args.rows))
            }
            Launch::Quantize(args) | Launch::Dequantize(args) if args.jobs != 0 => {
                let forth = matches!(launch, Launch::Quantize(_));
                entries::<abi::wp_quantize_job>(args.jobs, args.rows)
                    .flat_map(|job| quantize(&job.tensor, forth))
                    .collect()
            }
            Launch::Unscale(args) => entries::<abi::wp_tile>(args.tiles, args.count)
                .map(|tile| Access::write(tile.src, u64::from(tile.count) * element(args.type_)))
                .collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, AccessKind, Addr, Launch};
    use crate::driver::abi;

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

    #[test]
    fn rows_that_meet_or_repeat_are_one_range_however_many_they_are() {
        let one = |row, pitch, count| {
            let rows = super::rows(AccessKind::Read, 4096, row, pitch, count);
            assert_eq!(rows.len(), 1, "{row} bytes {pitch} apart");
            rows[0].range.end - 4096
        };
        assert_eq!((one(4, 9, 1), one(4, 0, 0), one(4, 4, 0)), (4, 0, 0));
        assert_eq!(one(4, 4, 1 << 20), 1 << 22);
        assert_eq!(one(4, 0, 1 << 20), 4);
        assert_eq!(one(8, 4, 1 << 20), (1 << 22) + 4);
        assert_eq!(super::rows(AccessKind::Read, 4096, 4, 5, 3).len(), 3);
    }
}
