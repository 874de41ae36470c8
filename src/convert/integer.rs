//! Integers with scales: 8 and 4 bits, per channel and per group, symmetric and asymmetric.
//!
//! A channel is a row. Symmetric codes are -127 to 127 (4 bits: -7 to 7). The value of a code is code *
//! scale, with
//!
//! - scale = amax / 127 (7), amax the largest magnitude that shares the scale;
//! - code = the integer nearest to value * (1 / scale), ties to even, or stochastically rounded.
//!
//! With zero points, codes are -128 to 127 (-8 to 7). The value of a code is (code - zero) * scale. Here high
//! and low are the largest and the smallest of 0 and the values that share the scale; 0 is included so that
//! it is exact:
//!
//! - scale = high / 255 - low / 255 (15);
//! - zero = the integer nearest to -low * (1 / scale), less 128 (8), at most 127 (7);
//! - code = the integer nearest to value * (1 / scale), plus zero.
//!
//! All in `f32`. A scale is at least 2⁻¹²⁶; if all its values are 0, it is 1, with the zero point 0. Values
//! outside the range of codes become the nearest code. If a value is infinite or NaN, its scale is NaN, and
//! the codes and the zero point of that scale are 0. A row without elements has no scale: its place stays as
//! it was.
//!
//! Codes of 4 bits are packed two per byte, the first in the lower half; each row begins at a byte.

use bytemuck::Pod;

use super::codes::{Plan, Side, enough, read, written};
use super::{Quantize, Rows, RowsMut, View, ViewMut, Wide};
use crate::device::Stream;
use crate::driver::abi;
use crate::error::{Error, Result};

mod sealed {
    pub trait Sealed {}
}

/// An integer format: `i8`, [`I4`].
pub trait Integer: sealed::Sealed {
    /// The type of the elements of a row of codes.
    type Code: Pod;
    /// The format's number in `kernels/warpool.h`.
    #[doc(hidden)]
    const TYPE: u32;

    /// Number of `Code`s in a row of `cols` elements.
    #[must_use]
    fn codes(cols: usize) -> usize;
}

/// Integers of 4 bits, two per byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct I4;

impl sealed::Sealed for i8 {}
impl Integer for i8 {
    type Code = i8;
    const TYPE: u32 = abi::WP_I8;

    fn codes(cols: usize) -> usize {
        cols
    }
}

impl sealed::Sealed for I4 {}
impl Integer for I4 {
    type Code = u8;
    const TYPE: u32 = abi::WP_I4;

    fn codes(cols: usize) -> usize {
        cols.div_ceil(2)
    }
}

/// The elements that share a scale, and a zero point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Grouping {
    /// The elements of a row: one scale per row.
    Rows,
    /// This many adjacent elements of a row: 16, 32, 64 or 128. The scales of a row are adjacent.
    Groups(u32),
}

impl Grouping {
    /// Number of scales for `rows` x `cols` elements.
    #[must_use]
    pub fn count(self, rows: usize, cols: usize) -> usize {
        rows.saturating_mul(self.pitch(cols))
    }

    fn pitch(self, cols: usize) -> usize {
        match self {
            Self::Rows => 1,
            Self::Groups(group) => cols.div_ceil(group.max(1) as usize),
        }
    }
}

fn plan<'a, S: Wide, Q: Integer>(
    values: Side<'a>,
    codes: Side<'a>,
    grouping: Grouping,
    (scales, zeros): (usize, Option<usize>),
) -> Result<Plan<'a>> {
    let plan = Plan::new::<S>(values, codes, Q::TYPE, |cols| {
        Q::codes(cols as usize) as u64
    })?;
    let (granularity, group) = match grouping {
        Grouping::Rows => (abi::WP_PER_ROW, 0),
        Grouping::Groups(group @ (16 | 32 | 64 | 128)) => (abi::WP_PER_GROUP, group),
        Grouping::Groups(group) => {
            let why = format!("groups of {group}, not of 16, 32, 64 or 128");
            return Err(Error::invalid("grouping", why));
        }
    };
    let (rows, cols) = (plan.args.rows as usize, plan.args.cols as usize);
    let needed = grouping.count(rows, cols);
    enough("scales", scales, needed as u64)?;
    enough("zeros", zeros.unwrap_or(needed), needed as u64)?;
    let pitch = grouping.pitch(cols) as u64;
    Ok(plan.grained(granularity, group, abi::WP_SCALES_BY_ROW, pitch))
}

/// Queues the quantisation of `values` into integer `codes` with `scales`, in one pass over memory. Symmetric
/// without `zeros`.
///
/// `scales` and `zeros` have [`Grouping::count`] elements, and a row of codes has [`Integer::codes`].
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
///     Grouping, I4, Integer, Quantize, dequantize_integers, quantize_integers,
/// };
///
/// let values = pool.alloc_from(&stream, &[7.0_f32; 64])?;
/// let mut codes = pool.alloc_typed::<u8>(&stream, I4::codes(64))?; // two codes a byte
/// let grouping = Grouping::Groups(32);
/// let mut scales = pool.alloc_typed::<f32>(&stream, grouping.count(1, 64))?;
/// quantize_integers::<I4, f32>(
///     &stream, &values, &mut codes, grouping, scales.view_mut(), None, Quantize::default(),
/// )?;
/// let mut back = pool.alloc_typed::<f32>(&stream, 64)?;
/// dequantize_integers::<I4, f32>(&stream, &codes, grouping, scales.view(), None, &mut back)?;
/// assert_eq!(back.download()?, [7.0; 64]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) if a shape does not match or a group size is not supported,
/// there are too few scales or zero points, ranges overlap or the rounding is directed; any error of the
/// launch.
pub fn quantize_integers<'a, Q: Integer, S: Wide>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    codes: impl Into<RowsMut<'a, Q::Code>>,
    grouping: Grouping,
    scales: ViewMut<'_, f32>,
    zeros: Option<ViewMut<'_, i8>>,
    how: Quantize<'_>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let lengths = (scales.len(), zeros.as_ref().map(ViewMut::len));
    let plan = plan::<S, Q>((&values).into(), (&codes).into(), grouping, lengths)?;
    let plan = plan
        .scales(written(&scales))
        .zeros(zeros.as_ref().map(written));
    // SAFETY: the caller that made the views guarantees their ranges until queued work is done; lengths and
    // alignment were checked, and overlaps are checked before the launch.
    unsafe { plan.quantize(stream, how) }
}

/// Queues the dequantisation of integer `codes` with `scales`, and `zeros` if there are any, into `values`.
///
/// Stream order: the same as for [`quantize`](fn@super::quantize).
///
/// # Errors
/// See [`quantize_integers`].
pub fn dequantize_integers<'a, Q: Integer, S: Wide>(
    stream: &Stream,
    codes: impl Into<Rows<'a, Q::Code>>,
    grouping: Grouping,
    scales: View<'_, f32>,
    zeros: Option<View<'_, i8>>,
    values: impl Into<RowsMut<'a, S>>,
) -> Result<()> {
    let (values, codes) = (values.into(), codes.into());
    let lengths = (scales.len(), zeros.as_ref().map(View::len));
    let plan = plan::<S, Q>((&values).into(), (&codes).into(), grouping, lengths)?;
    let plan = plan.scales(read(&scales)).zeros(zeros.as_ref().map(read));
    // SAFETY: the same as in `quantize_integers`.
    unsafe { plan.dequantize(stream) }
}
