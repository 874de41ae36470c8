//! 8-bit floats with scales: per tensor, per row, per 1 x 128 and per 128 x 128 block.
//!
//! A code's value is code * scale. A matrix product multiplies its result by these scales; they have the
//! layouts that cuBLASLt expects:
//!
//! | scales | cuBLASLt's scaling mode | layout |
//! |---|---|---|
//! | [`Scales::Tensor`] | `SCALAR_32F` | one |
//! | [`Scales::Rows`] | `OUTER_VEC_32F` | one per row |
//! | [`Scales::Blocks`] | `VEC128_32F` | ⌈cols / 128⌉ columns with one per row, column after column |
//! | [`Scales::Squares`] | `BLK128x128_32F` | ⌈rows / 128⌉ rows of ⌈cols / 128⌉, each row in a multiple of 4 |
//!
//! A computed scale is amax / the format's largest value, in `f32`, where amax is the largest magnitude of
//! the values that share the scale; at least 2⁻¹²⁶, and 1 if amax is 0. A row without elements has no scale:
//! its place stays as it was. A value is multiplied by 1 / scale in `f32`, and the product is rounded;
//! results beyond the largest value become that value. If a magnitude is infinite or NaN, its scale and all
//! codes of that scale are NaN, so that no error goes unnoticed. With a scale provided by the caller,
//! infinities saturate; a scale that is 0 or NaN, or has an infinite inverse, makes every code NaN.
//!
//! Dequantisation multiplies code and scale in `f32` and rounds the product to the destination format. Every
//! device returns the same bits.

use super::codes::{Plan, Quantize, Side, Wide, enough, read, written};
use super::launch::Part;
use super::{E4m3, E5m2, Element, Rows, RowsMut, View, ViewMut};
use crate::device::Stream;
use crate::driver::abi;
use crate::error::Result;

/// An 8-bit float: [`E4m3`], [`E5m2`].
pub trait Float8: Element {}
impl Float8 for E4m3 {}
impl Float8 for E5m2 {}

/// Elements along one side of a square block.
const SIDE: usize = 128;

/// Scales that are read.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'a> {
    /// The first element is the scale of the tensor.
    Tensor(View<'a, f32>),
    /// One per row.
    Rows(View<'a, f32>),
    /// One per block of 128 adjacent elements of a row, [`block_scales`] in total.
    Blocks(View<'a, f32>),
    /// One per square of 128 rows and columns, [`square_scales`] in total.
    Squares(View<'a, f32>),
}

/// Scales that are written; but a tensor's scale is provided by the caller, usually from the maxima of
/// earlier tensors ([`Quantize::amax`]).
#[derive(Debug)]
pub enum ScalesMut<'a> {
    /// The first element is the scale of the tensor, read when the launch runs.
    Tensor(View<'a, f32>),
    /// One per row.
    Rows(ViewMut<'a, f32>),
    /// One per block of 128 adjacent elements of a row, [`block_scales`] in total.
    Blocks(ViewMut<'a, f32>),
    /// One per square of 128 rows and columns, [`square_scales`] in total.
    Squares(ViewMut<'a, f32>),
}

/// Number of elements that [`Scales::Blocks`] needs for `rows` x `cols` values.
#[must_use]
pub fn block_scales(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols.div_ceil(SIDE))
}

/// Number of elements that [`Scales::Squares`] needs for `rows` x `cols` values.
#[must_use]
pub fn square_scales(rows: usize, cols: usize) -> usize {
    rows.div_ceil(SIDE).saturating_mul(squares_pitch(cols))
}

fn squares_pitch(cols: usize) -> usize {
    cols.div_ceil(SIDE).next_multiple_of(4)
}

/// A plan with scales of a `kind`, of which there are `len`.
fn plan<'a, S: Wide, Q: Float8>(
    values: Side<'a>,
    codes: Side<'a>,
    (kind, len, scales): (u32, usize, Part<'a>),
) -> Result<Plan<'a>> {
    let plan = Plan::new::<S>(values, codes, Q::TYPE, |cols| cols)?;
    let (rows, cols) = (plan.args.rows as usize, plan.args.cols as usize);
    let (by_row, by_column) = (abi::WP_SCALES_BY_ROW, abi::WP_SCALES_BY_COLUMN);
    let (group, layout, pitch, needed) = match kind {
        abi::WP_PER_TENSOR => (0, by_row, 1, 1),
        abi::WP_PER_ROW => (0, by_row, 1, rows),
        abi::WP_PER_GROUP => (SIDE as u32, by_column, rows, block_scales(rows, cols)),
        _ => (0, by_row, squares_pitch(cols), square_scales(rows, cols)),
    };
    enough("scales", len, needed as u64)?;
    Ok((plan.grained(kind, group, layout, pitch as u64)).scales(scales))
}

/// The checked plan of quantisation.
pub(super) fn forth<'a, S: Wide, Q: Float8>(
    values: &Rows<'a, S>,
    codes: &RowsMut<'a, Q>,
    scales: &ScalesMut<'a>,
) -> Result<Plan<'a>> {
    let scales = match scales {
        ScalesMut::Tensor(given) => (abi::WP_PER_TENSOR, given.len(), read(given)),
        ScalesMut::Rows(found) => (abi::WP_PER_ROW, found.len(), written(found)),
        ScalesMut::Blocks(found) => (abi::WP_PER_GROUP, found.len(), written(found)),
        ScalesMut::Squares(found) => (abi::WP_PER_SQUARE, found.len(), written(found)),
    };
    plan::<S, Q>(values.into(), codes.into(), scales)
}

/// The checked plan of dequantisation.
pub(super) fn back<'a, Q: Float8, S: Wide>(
    codes: &Rows<'a, Q>,
    scales: Scales<'a>,
    values: &RowsMut<'a, S>,
) -> Result<Plan<'a>> {
    let (kind, given) = match scales {
        Scales::Tensor(given) => (abi::WP_PER_TENSOR, given),
        Scales::Rows(given) => (abi::WP_PER_ROW, given),
        Scales::Blocks(given) => (abi::WP_PER_GROUP, given),
        Scales::Squares(given) => (abi::WP_PER_SQUARE, given),
    };
    let scales = (kind, given.len(), read(&given));
    plan::<S, Q>(values.into(), codes.into(), scales)
}

/// Queues the quantisation of `values` into `codes` with `scales`, in one pass over memory.
///
/// Values and codes have the same shape; both may start at any element and have any pitch. For the scales and
/// for special values see [formats](super#formats).
///
/// Stream order: work queued on `stream` reads and writes everything; the call returns at once. Nothing is
/// allocated.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{
///     E4m3, Quantize, Rounding, Scales, ScalesMut, block_scales, dequantize, quantize, square_scales,
/// };
///
/// let values = pool.alloc_from(&stream, &[1.5_f32; 256])?;
/// let mut codes = pool.alloc_typed::<E4m3>(&stream, 256)?;
/// let mut scales = pool.alloc_typed::<f32>(&stream, block_scales(1, 256))?; // one for 128 neighbours
/// let blocks = ScalesMut::Blocks(scales.view_mut());
/// let how = Quantize::default().rounding(Rounding::Nearest); // or `Stochastic { seed }`
/// quantize(&stream, &values, &mut codes, blocks, how)?;
///
/// let mut back = pool.alloc_typed::<f32>(&stream, 256)?;
/// dequantize(&stream, &codes, Scales::Blocks(scales.view()), &mut back)?;
/// assert_eq!(back.download()?, [1.5; 256]);
/// assert_eq!(square_scales(256, 256), 2 * 4); // rows of squares begin at multiples of four
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if the shapes differ, there are too few scales, ranges overlap
/// or the rounding is directed; any error of the launch.
pub fn quantize<'a, S: Wide, Q: Float8>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    codes: impl Into<RowsMut<'a, Q>>,
    scales: ScalesMut<'_>,
    how: Quantize<'_>,
) -> Result<()> {
    let plan = forth(&values.into(), &codes.into(), &scales)?;
    // SAFETY: the caller that made the views guarantees their ranges until queued work is done; lengths and
    // alignment were checked, and overlaps are checked before the launch.
    unsafe { plan.quantize(stream, how) }
}

/// Queues the dequantisation of `codes` with `scales` into `values`: the inverse of [`quantize`] except for
/// rounding.
///
/// Stream order: the same as for [`quantize`].
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if the shapes differ, there are too few scales or ranges
/// overlap; any error of the launch.
pub fn dequantize<'a, Q: Float8, S: Wide>(
    stream: &Stream,
    codes: impl Into<Rows<'a, Q>>,
    scales: Scales<'_>,
    values: impl Into<RowsMut<'a, S>>,
) -> Result<()> {
    let plan = back(&codes.into(), scales, &values.into())?;
    // SAFETY: the same as in `quantize`.
    unsafe { plan.dequantize(stream) }
}
