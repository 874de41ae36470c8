//! 8-bit floats with scales: per tensor, per row, per 1 x 128 and per 128 x 128 block.
//!
//! A code's value is code * scale. The scales are those that a matrix product multiplies its result
//! by, and lie where cuBLASLt looks for them:
//!
//! | scales | cuBLASLt's scaling mode | layout |
//! |---|---|---|
//! | [`Scales::Tensor`] | `SCALAR_32F` | one |
//! | [`Scales::Rows`] | `OUTER_VEC_32F` | one a row |
//! | [`Scales::Blocks`] | `VEC128_32F` | ⌈cols / 128⌉ columns of one a row, a column after the other |
//! | [`Scales::Squares`] | `BLK128x128_32F` | ⌈rows / 128⌉ rows of ⌈cols / 128⌉, each row in a multiple of 4 |
//!
//! A scale that is worked out is amax / the format's largest value, in `f32`, where amax is the
//! largest magnitude that shares the scale; at least 2⁻¹²⁶, and 1 where amax is 0. A value is
//! multiplied by 1 / scale in `f32`, and the product is rounded; what is beyond the largest value
//! becomes that. Where a magnitude is infinite or NaN, the scale that it shares is NaN and so are its
//! codes, so that nothing is lost unseen. A given scale saturates infinities; a given scale of 0 or
//! NaN makes every code NaN.
//!
//! Dequantising multiplies code and scale in `f32` and rounds that to the wanted format. Every device
//! gives the same bits.

use super::codes::{Plan, Side, enough, read, written};
use super::{E4m3, E5m2, Element, Rounding, Rows, RowsMut, View, ViewMut};
use crate::device::Stream;
use crate::driver::abi;
use crate::error::Result;

/// A format that is quantised: `f32`, [`half::f16`], [`half::bf16`].
pub trait Wide: Element {}
impl Wide for f32 {}
impl Wide for half::f16 {}
impl Wide for half::bf16 {}

/// An 8-bit float: [`E4m3`], [`E5m2`].
pub trait Float8: Element {}
impl Float8 for E4m3 {}
impl Float8 for E5m2 {}

/// Elements of a side of a block.
const SIDE: usize = 128;

/// Scales to be read.
#[derive(Debug, Clone, Copy)]
pub enum Scales<'a> {
    /// The first element is that of the tensor.
    Tensor(View<'a, f32>),
    /// One a row.
    Rows(View<'a, f32>),
    /// One a block of 128 neighbours of a row, [`block_scales`] in all.
    Blocks(View<'a, f32>),
    /// One a square of 128 rows and columns, [`square_scales`] in all.
    Squares(View<'a, f32>),
}

/// Scales to be written, but for a tensor's, which is given: found in time from the maxima of earlier
/// tensors ([`Quantize::amax`]).
#[derive(Debug)]
pub enum ScalesMut<'a> {
    /// The first element is that of the tensor, and is read when the launch runs.
    Tensor(View<'a, f32>),
    /// One a row.
    Rows(ViewMut<'a, f32>),
    /// One a block of 128 neighbours of a row, [`block_scales`] in all.
    Blocks(ViewMut<'a, f32>),
    /// One a square of 128 rows and columns, [`square_scales`] in all.
    Squares(ViewMut<'a, f32>),
}

/// Elements that [`Scales::Blocks`] needs for `rows` x `cols` values.
#[must_use]
pub fn block_scales(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols.div_ceil(SIDE))
}

/// Elements that [`Scales::Squares`] needs for `rows` x `cols` values.
#[must_use]
pub fn square_scales(rows: usize, cols: usize) -> usize {
    rows.div_ceil(SIDE).saturating_mul(squares_pitch(cols))
}

fn squares_pitch(cols: usize) -> usize {
    cols.div_ceil(SIDE).next_multiple_of(4)
}

/// How to quantise, and what is wanted to be known. The default rounds to nearest.
#[derive(Debug, Default)]
#[must_use]
pub struct Quantize<'a> {
    pub(super) rounding: Rounding,
    pub(super) amax: Option<ViewMut<'a, f32>>,
}

impl<'a> Quantize<'a> {
    /// To nearest, ties to even.
    pub fn new() -> Self {
        Self::default()
    }

    /// With another rounding: [`Rounding::Nearest`] or [`Rounding::Stochastic`]. Element `c` of row
    /// `r` has the number `r * cols + c`.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Raises the first element of `amax` to the largest magnitude of the values before scaling,
    /// where that is larger; set it to 0 first. NaN counts as larger than infinity, so that it is
    /// seen.
    pub fn amax(mut self, amax: ViewMut<'a, f32>) -> Self {
        self.amax = Some(amax);
        self
    }
}

/// The granularity, group, layout and pitch of scales for `rows` x `cols` values, and how many.
fn places(kind: u32, rows: u64, cols: u64) -> (u32, u32, u32, u64, u64) {
    let (all, wide) = (rows as usize, cols as usize);
    let (by_row, by_column) = (abi::WP_SCALES_BY_ROW, abi::WP_SCALES_BY_COLUMN);
    match kind {
        abi::WP_PER_TENSOR => (kind, 0, by_row, 1, 1),
        abi::WP_PER_ROW => (kind, 0, by_row, 1, rows),
        abi::WP_PER_GROUP => (
            kind,
            SIDE as u32,
            by_column,
            rows,
            block_scales(all, wide) as u64,
        ),
        _ => (
            kind,
            0,
            by_row,
            squares_pitch(wide) as u64,
            square_scales(all, wide) as u64,
        ),
    }
}

fn plan<'a, S: Wide, Q: Float8>(
    values: Side<'a>,
    codes: Side<'a>,
    kind: u32,
) -> Result<(Plan<'a>, u64)> {
    let plan = Plan::new::<S>(values, codes, Q::TYPE, |cols| cols)?;
    let (granularity, group, layout, pitch, needed) = places(kind, plan.args.rows, plan.args.cols);
    Ok((plan.grained(granularity, group, layout, pitch), needed))
}

/// Queues `values` to become `codes` with `scales`, in one pass over memory.
///
/// Values and codes have the same shape; both may start at any element and have any pitch. What the
/// scales are and what becomes of special values: see [`formats`](super::formats).
///
/// Stream order: everything is read and written by work queued on `stream`; the call returns at once.
/// Nothing is allocated.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if the shapes differ, scales are missing, ranges
/// overlap or the rounding is directed; what the launch said.
pub fn quantize<'a, S: Wide, Q: Float8>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    codes: impl Into<RowsMut<'a, Q>>,
    scales: ScalesMut<'_>,
    how: Quantize<'_>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let kind = match &scales {
        ScalesMut::Tensor(_) => abi::WP_PER_TENSOR,
        ScalesMut::Rows(_) => abi::WP_PER_ROW,
        ScalesMut::Blocks(_) => abi::WP_PER_GROUP,
        ScalesMut::Squares(_) => abi::WP_PER_SQUARE,
    };
    let (plan, needed) = plan::<S, Q>((&values).into(), (&codes).into(), kind)?;
    let (len, part) = match &scales {
        ScalesMut::Tensor(given) => (given.len(), read(given)),
        ScalesMut::Rows(found) | ScalesMut::Blocks(found) | ScalesMut::Squares(found) => {
            (found.len(), written(found))
        }
    };
    enough("scales", len, needed)?;
    let plan = plan.scales(part);
    // SAFETY: whoever made the views vouched for their ranges until queued work is done; lengths and
    // alignment were checked, and disjointness is before the launch.
    unsafe { plan.quantize(stream, how) }
}

/// Queues `codes` with `scales` to become `values`; the inverse of [`quantize`] but for rounding.
///
/// Stream order: as [`quantize`].
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if the shapes differ, scales are missing or ranges
/// overlap; what the launch said.
pub fn dequantize<'a, Q: Float8, S: Wide>(
    stream: &Stream,
    codes: impl Into<Rows<'a, Q>>,
    scales: Scales<'_>,
    values: impl Into<RowsMut<'a, S>>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let (kind, given) = match scales {
        Scales::Tensor(given) => (abi::WP_PER_TENSOR, given),
        Scales::Rows(given) => (abi::WP_PER_ROW, given),
        Scales::Blocks(given) => (abi::WP_PER_GROUP, given),
        Scales::Squares(given) => (abi::WP_PER_SQUARE, given),
    };
    let (plan, needed) = plan::<S, Q>((&values).into(), (&codes).into(), kind)?;
    enough("scales", given.len(), needed)?;
    let plan = plan.scales(read(&given));
    // SAFETY: as in `quantize`.
    unsafe { plan.dequantize(stream) }
}
