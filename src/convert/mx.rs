//! Small floats in blocks with a common scale: the MX formats of the Open Compute Project, and NVFP4.
//!
//! | format | element | block | scale |
//! |---|---|---|---|
//! | MXFP8 | [`E4m3`], [`E5m2`] | 32 | [`E8m0`] |
//! | MXFP6 | [`E2m3`], [`E3m2`] | 32 | [`E8m0`] |
//! | MXFP4 | [`E2m1`] | 32 | [`E8m0`] |
//! | NVFP4 | [`E2m1`] | 16 | [`E4m3`], and one `f32` for the tensor |
//!
//! MX follows section 6.3 of the OCP Microscaling Formats (MX) Specification, version 1.0. With amax the
//! block's largest magnitude, the scale is the power of two at or below amax, divided by the power of two at
//! or below the element's largest value; at least 2⁻¹²⁷, and 1 if amax is 0. Values are divided by it, which
//! is exact, and rounded to nearest, ties to even, or stochastically. Values beyond the element's largest
//! value become that value.
//!
//! In NVFP4 the caller provides the tensor's scale t, in training usually from the largest magnitude of an
//! earlier tensor: amax / (6 * 448) uses the formats' whole range. A block's scale is amax / (6 * t), with
//! amax of the block, rounded to the nearest E4M3 and at least 2⁻⁹; 1 if amax is 0. Values are multiplied by
//! 1 / (scale * t), and codes are 0 if that is infinite. All in `f32`. The value of a code is code * (scale * t).
//!
//! If a magnitude, or amax / (6 * t), is infinite or NaN, the block's scale is NaN, and its codes are NaN, or 0
//! in formats without NaN. So what is not 0 comes back as NaN if t is 0, infinite or NaN.
//!
//! The last block of a row may be shorter. Codes of 4 bits are packed two per byte, the first in the lower
//! half; codes of 6 bits four in three bytes, the first in the lowest bits. Each row begins at a byte;
//! [`MxElement::codes`] returns the number of `Code`s in a row.
//!
//! The kernels round with instructions that every GPU has. They do not use the special instructions of newer
//! GPUs for these formats.

use bytemuck::{Pod, Zeroable};

use super::codes::{Plan, Side, enough, read, written};
use super::{E4m3, E5m2, Quantize, Rows, RowsMut, View, ViewMut, Wide};
use crate::device::Stream;
use crate::driver::abi;
use crate::error::Result;

mod sealed {
    pub trait Sealed {}
}

/// An element format of MX.
pub trait MxElement: sealed::Sealed {
    /// The type of the elements of a row of codes: the element, or bytes that several elements share.
    type Code: Pod;
    /// Bits of a code.
    const BITS: u32;
    /// The format's number in `kernels/warpool.h`.
    #[doc(hidden)]
    const TYPE: u32;

    /// Number of `Code`s in a row of `cols` elements.
    #[must_use]
    fn codes(cols: usize) -> usize {
        let (whole, rest) = (cols / 8, cols % 8);
        let bits = Self::BITS as usize;
        whole
            .saturating_mul(bits)
            .saturating_add((rest * bits).div_ceil(8))
    }
}

/// A 6-bit float with 2 exponent and 3 significand bits: largest value 7.5. No infinity, no NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct E2m3;

/// A 6-bit float with 3 exponent and 2 significand bits: largest value 28. No infinity, no NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct E3m2;

/// A 4-bit float with 2 exponent bits and 1 significand bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
/// negatives. No infinity, no NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct E2m1;

macro_rules! elements {
    ($($element:ty: $bits:literal bits in $code:ty = $number:expr;)*) => {$(
        impl sealed::Sealed for $element {}
        impl MxElement for $element {
            type Code = $code;
            const BITS: u32 = $bits;
            const TYPE: u32 = $number;
        }
    )*};
}

elements! {
    E4m3: 8 bits in E4m3 = abi::WP_E4M3;
    E5m2: 8 bits in E5m2 = abi::WP_E5M2;
    E2m3: 6 bits in u8 = abi::WP_E2M3;
    E3m2: 6 bits in u8 = abi::WP_E3M2;
    E2m1: 4 bits in u8 = abi::WP_E2M1;
}

/// The scale of an MX block: 2^(code - 127); 0xFF is NaN.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct E8m0(pub u8);

/// The value, exactly; 2⁻¹²⁷ is a subnormal `f32`.
impl From<E8m0> for f32 {
    fn from(scale: E8m0) -> f32 {
        f32::from_bits(match scale.0 {
            0xFF => 0x7FFF_FFFF,
            0 => 0x0040_0000,
            code => (code as u32) << 23,
        })
    }
}

/// The layout of the scales of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockScales {
    /// The scales of a row are adjacent, row after row.
    #[default]
    Rows,
    /// The layout of cuBLASLt (`VEC32_UE8M0`, `VEC16_UE4M3`): tiles of 128 rows by 4 blocks, 512 bytes each,
    /// one row of tiles after the other. In a tile, the scale of row r and block b is at `r % 32 * 16 + r /
    /// 32 * 4 + b`. Rows and blocks are padded to whole tiles with zeros.
    Tiled,
}

impl BlockScales {
    /// Number of scales for `rows` x `cols` elements in blocks of `block`.
    #[must_use]
    pub fn count(self, rows: usize, cols: usize, block: usize) -> usize {
        let rows = match self {
            Self::Rows => rows,
            Self::Tiled => rows.div_ceil(128).saturating_mul(128),
        };
        rows.saturating_mul(self.pitch(cols, block))
    }

    fn pitch(self, cols: usize, block: usize) -> usize {
        let blocks = cols.div_ceil(block.max(1));
        match self {
            Self::Rows => blocks,
            Self::Tiled => blocks.div_ceil(4).saturating_mul(4),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Rows => abi::WP_SCALES_BY_ROW,
            Self::Tiled => abi::WP_SCALES_TILED,
        }
    }
}

/// Elements of an MX block.
pub const MX_BLOCK: usize = 32;
/// Elements of an NVFP4 block.
pub const NVFP4_BLOCK: usize = 16;

fn plan<'a, S: Wide, Q: MxElement>(
    values: Side<'a>,
    codes: Side<'a>,
    (kind, block): (u32, usize),
    layout: BlockScales,
    scales: usize,
) -> Result<Plan<'a>> {
    let mut plan = Plan::new::<S>(values, codes, Q::TYPE, |cols| {
        Q::codes(cols as usize) as u64
    })?;
    plan.args.kind = kind;
    let (rows, cols) = (plan.args.rows as usize, plan.args.cols as usize);
    enough("scales", scales, layout.count(rows, cols, block) as u64)?;
    let pitch = layout.pitch(cols, block) as u64;
    Ok(plan.grained(abi::WP_PER_GROUP, block as u32, layout.number(), pitch))
}

const MX: (u32, usize) = (abi::WP_SCALE_E8M0, MX_BLOCK);
const NVFP4: (u32, usize) = (abi::WP_SCALE_E4M3, NVFP4_BLOCK);

/// The checked plan of quantisation into MX codes.
pub(super) fn forth<'a, Q: MxElement, S: Wide>(
    values: &Rows<'a, S>,
    codes: &RowsMut<'a, Q::Code>,
    scales: &ViewMut<'a, E8m0>,
    layout: BlockScales,
) -> Result<Plan<'a>> {
    let plan = plan::<S, Q>(values.into(), codes.into(), MX, layout, scales.len())?;
    Ok(plan.scales(written(scales)))
}

/// The checked plan of dequantisation.
pub(super) fn back<'a, Q: MxElement, S: Wide>(
    codes: &Rows<'a, Q::Code>,
    scales: View<'a, E8m0>,
    layout: BlockScales,
    values: &RowsMut<'a, S>,
) -> Result<Plan<'a>> {
    let plan = plan::<S, Q>(values.into(), codes.into(), MX, layout, scales.len())?;
    Ok(plan.scales(read(&scales)))
}

/// Queues the quantisation of `values` into MX `codes` of `Q` with `scales`, in one pass over memory.
///
/// `scales` has [`BlockScales::count`] elements for blocks of [`MX_BLOCK`].
///
/// Stream order: the same as for [`quantize`](fn@super::quantize).
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{
///     BlockScales, E2m1, E8m0, MX_BLOCK, MxElement, Quantize, mx_dequantize, mx_quantize,
/// };
///
/// let values = pool.alloc_from(&stream, &[0.5_f32; 64])?;
/// let mut codes = pool.alloc_typed::<u8>(&stream, E2m1::codes(64))?; // two 4-bit codes a byte
/// let layout = BlockScales::Rows;
/// let mut scales = pool.alloc_typed::<E8m0>(&stream, layout.count(1, 64, MX_BLOCK))?;
/// mx_quantize::<E2m1, f32>(
///     &stream, &values, &mut codes, scales.view_mut(), layout, Quantize::default(),
/// )?;
/// let mut back = pool.alloc_typed::<f32>(&stream, 64)?;
/// mx_dequantize::<E2m1, f32>(&stream, &codes, scales.view(), layout, &mut back)?;
/// assert_eq!(back.download()?, [0.5; 64]);
/// // The 6-bit formats go the same way.
/// use warpool::convert::{E2m3, E3m2};
/// assert_eq!((E2m3::BITS, E3m2::BITS), (6, 6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if a row of codes does not have [`MxElement::codes`], there are
/// too few scales, ranges overlap or the rounding is directed; any error of the launch.
pub fn mx_quantize<'a, Q: MxElement, S: Wide>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    codes: impl Into<RowsMut<'a, Q::Code>>,
    scales: ViewMut<'_, E8m0>,
    layout: BlockScales,
    how: Quantize<'_>,
) -> Result<()> {
    let plan = forth::<Q, S>(&values.into(), &codes.into(), &scales, layout)?;
    // SAFETY: the caller that made the views guarantees their ranges until queued work is done; lengths and
    // alignment were checked, and overlaps are checked before the launch.
    unsafe { plan.quantize(stream, how) }
}

/// Queues the dequantisation of MX `codes` of `Q` with `scales` into `values`: exact in `f32`, rounded to
/// nearest in other formats.
///
/// Stream order: the same as for [`quantize`](fn@super::quantize).
///
/// # Errors
/// See [`mx_quantize`].
pub fn mx_dequantize<'a, Q: MxElement, S: Wide>(
    stream: &Stream,
    codes: impl Into<Rows<'a, Q::Code>>,
    scales: View<'_, E8m0>,
    layout: BlockScales,
    values: impl Into<RowsMut<'a, S>>,
) -> Result<()> {
    let plan = back::<Q, S>(&codes.into(), scales, layout, &values.into())?;
    // SAFETY: the same as in `mx_quantize`.
    unsafe { plan.dequantize(stream) }
}

/// Queues the quantisation of `values` into NVFP4 `codes` with `scales`, in one pass over memory.
///
/// `scales` has [`BlockScales::count`] elements for blocks of [`NVFP4_BLOCK`]. The first element of `tensor`
/// is the tensor's scale, read when the launch runs.
///
/// Stream order: the same as for [`quantize`](fn@super::quantize).
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{
///     BlockScales, E2m1, E4m3, MxElement, NVFP4_BLOCK, Quantize, nvfp4_dequantize, nvfp4_quantize,
/// };
///
/// let values = pool.alloc_from(&stream, &[3.0_f32; 64])?;
/// let mut codes = pool.alloc_typed::<u8>(&stream, E2m1::codes(64))?;
/// let layout = BlockScales::Rows;
/// let mut scales = pool.alloc_typed::<E4m3>(&stream, layout.count(1, 64, NVFP4_BLOCK))?;
/// let tensor = pool.alloc_from(&stream, &[0.5_f32])?;
/// nvfp4_quantize(
///     &stream, &values, &mut codes, scales.view_mut(), tensor.view(), layout, Quantize::default(),
/// )?;
/// let mut back = pool.alloc_typed::<f32>(&stream, 64)?;
/// nvfp4_dequantize(&stream, &codes, scales.view(), tensor.view(), layout, &mut back)?;
/// assert_eq!(back.download()?, [3.0; 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`mx_quantize`].
pub fn nvfp4_quantize<'a, S: Wide>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    codes: impl Into<RowsMut<'a, u8>>,
    scales: ViewMut<'_, E4m3>,
    tensor: View<'_, f32>,
    layout: BlockScales,
    how: Quantize<'_>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let sides = ((&values).into(), (&codes).into());
    let plan = plan::<S, E2m1>(sides.0, sides.1, NVFP4, layout, scales.len())?;
    enough("tensor", tensor.len(), 1)?;
    let plan = plan.scales(written(&scales)).tensor(read(&tensor));
    // SAFETY: the same as in `mx_quantize`.
    unsafe { plan.quantize(stream, how) }
}

/// Queues the dequantisation of NVFP4 `codes` with `scales` and the `tensor`'s scale into `values`.
///
/// Stream order: the same as for [`quantize`](fn@super::quantize).
///
/// # Errors
/// See [`mx_quantize`].
pub fn nvfp4_dequantize<'a, S: Wide>(
    stream: &Stream,
    codes: impl Into<Rows<'a, u8>>,
    scales: View<'_, E4m3>,
    tensor: View<'_, f32>,
    layout: BlockScales,
    values: impl Into<RowsMut<'a, S>>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let sides = ((&values).into(), (&codes).into());
    let plan = plan::<S, E2m1>(sides.0, sides.1, NVFP4, layout, scales.len())?;
    enough("tensor", tensor.len(), 1)?;
    let plan = plan.scales(read(&scales)).tensor(read(&tensor));
    // SAFETY: the same as in `mx_quantize`.
    unsafe { plan.dequantize(stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_codes_begins_on_a_byte_and_no_length_overflows() {
        assert_eq!(
            [E2m1::codes(0), E2m1::codes(1), E2m1::codes(33)],
            [0, 1, 17]
        );
        assert_eq!(
            [
                E2m3::codes(1),
                E2m3::codes(3),
                E2m3::codes(4),
                E2m3::codes(32)
            ],
            [1, 3, 3, 24]
        );
        assert_eq!(E3m2::codes(usize::MAX), usize::MAX / 8 * 6 + 6);
        assert_eq!(E4m3::codes(7), 7);
        assert_eq!(BlockScales::Tiled.count(129, 33, 32), 256 * 4);
        assert_eq!(BlockScales::Rows.count(129, 33, 32), 258);
        assert_eq!(
            BlockScales::Tiled.count(usize::MAX, usize::MAX, 32),
            usize::MAX
        );
        assert_eq!(BlockScales::Tiled.count(1, usize::MAX, 1), usize::MAX);
    }
}
