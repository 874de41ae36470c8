//! Conversion and transposition in one pass, for 8-bit matrix products, which need both operands as rows
//! along the inner dimension.

use super::codes::{enough, read, written};
use super::launch::{pitch_bytes, queue_with};
use super::{Conversion, E4m3, E5m2, Element, Rows, RowsMut, View, ViewMut, Wide};
use crate::device::{Launch, Stream};
use crate::driver::abi;
use crate::error::{Error, Result};

/// A destination format: [`half::f16`], [`half::bf16`], [`E4m3`], [`E5m2`].
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{E5m2, Narrow, RowsMut, Transpose, cast_transpose};
/// use warpool::{PoolBuf, Result, Stream};
///
/// fn column<D: Narrow>(stream: &Stream, row: &PoolBuf<f32>, column: &mut PoolBuf<D>) -> Result<()> {
///     let turned = RowsMut::new(column, row.len(), 1, 1)?;
///     cast_transpose(stream, row, None, turned, Transpose::default())
/// }
/// # let row = pool.alloc_from(&stream, &[2.0_f32, 4.0])?;
/// # let mut codes = pool.alloc_typed::<E5m2>(&stream, 2)?;
/// column(&stream, &row, &mut codes)?;
/// assert_eq!(codes.download()?, [2.0, 4.0].map(E5m2::from_f32));
/// # Ok(())
/// # }
/// ```
pub trait Narrow: Element {}
impl Narrow for half::f16 {}
impl Narrow for half::bf16 {}
impl Narrow for E4m3 {}
impl Narrow for E5m2 {}

/// The options of the cast. The default rounds to nearest, overflows to infinity and does not scale.
#[derive(Debug, Default)]
#[must_use]
pub struct Transpose<'a> {
    how: Conversion,
    scale: Option<View<'a, f32>>,
    amax: Option<ViewMut<'a, f32>>,
}

impl<'a> Transpose<'a> {
    /// Sets another rounding or treatment of overflow. Element `c` of row `r` has the number `r * cols + c`.
    pub fn how(mut self, how: impl Into<Conversion>) -> Self {
        self.how = how.into();
        self
    }

    /// Multiplies by 1 / `scale` in `f32` before rounding. The first element of `scale` is read when the
    /// launch runs; a result multiplied by it is the value, as with
    /// [`Scales::Tensor`](super::Scales::Tensor). A scale of 0 or NaN, or with an infinite inverse, makes
    /// every result NaN.
    pub fn scale(mut self, scale: View<'a, f32>) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Raises `amax` to the largest magnitude before scaling; see [`Quantize::amax`](super::Quantize::amax).
    pub fn amax(mut self, amax: ViewMut<'a, f32>) -> Self {
        self.amax = Some(amax);
        self
    }
}

/// Queues the conversion of `values` into `transposed`, which has `cols` rows of `rows` elements, and, if
/// there is one, into `plain` without transposition; in one pass over memory.
///
/// All may start at any element and have any pitch. NaN, overflow, subnormals: see the [module](super); a NaN
/// becomes that of the destination, even if both formats are the same.
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
/// use warpool::convert::{Rounding, Rows, RowsMut, Transpose, cast_transpose};
/// use warpool::half::f16;
///
/// let values = pool.alloc_from(&stream, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// let mut turned = pool.alloc_typed::<f16>(&stream, 6)?;
/// let from = Rows::new(&values, 2, 3, 3)?;
/// let to = RowsMut::new(&mut turned, 3, 2, 2)?;
/// cast_transpose(&stream, from, None, to, Transpose::default().how(Rounding::TowardZero))?;
/// let expected = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0].map(f16::from_f32);
/// assert_eq!(turned.download()?, expected);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if `plain` has another shape than `values`, `transposed` not the transposed shape, or
/// ranges overlap; any error of the launch.
pub fn cast_transpose<'a, S: Wide, D: Narrow>(
    stream: &Stream,
    values: impl Into<Rows<'a, S>>,
    plain: Option<RowsMut<'_, D>>,
    transposed: RowsMut<'_, D>,
    how: Transpose<'_>,
) -> Result<()> {
    let values = values.into();
    shaped("transposed", &transposed, (values.cols, values.rows))?;
    let (rounding, seed) = how.how.rounding_and_seed();
    let mut args = abi::wp_transpose {
        src: values.view.addr(),
        plain: 0,
        transposed: transposed.view.addr(),
        scale: 0,
        amax: 0,
        rows: values.rows,
        cols: values.cols,
        src_pitch: pitch_bytes::<S>(values.rows, values.cols, values.pitch),
        plain_pitch: 0,
        transposed_pitch: pitch_bytes::<D>(transposed.rows, transposed.cols, transposed.pitch),
        seed,
        src_type: S::TYPE,
        dst_type: D::TYPE,
        rounding,
        overflow: how.how.overflow_number(),
    };
    if let Some(plain) = &plain {
        shaped("plain", plain, (values.rows, values.cols))?;
        args.plain = plain.view.addr();
        args.plain_pitch = pitch_bytes::<D>(plain.rows, plain.cols, plain.pitch);
    }
    if let Some(scale) = &how.scale {
        enough("scale", scale.len(), 1)?;
        args.scale = scale.addr();
    }
    if let Some(amax) = &how.amax {
        enough("amax", amax.len(), 1)?;
        args.amax = amax.addr();
    }
    let ranges = [
        Some(read(&values.view)),
        how.scale.as_ref().map(read),
        Some(written(&transposed.view)),
        plain.as_ref().map(|plain| written(&plain.view)),
        how.amax.as_ref().map(written),
    ];
    // SAFETY: the caller that made the views guarantees their ranges until queued work is done; lengths and
    // alignment were checked, and overlaps are checked before the launch.
    unsafe { queue_with(stream, ranges, &Launch::Transpose(args)) }
}

fn shaped<D: Narrow>(what: &'static str, rows: &RowsMut<'_, D>, wanted: (u64, u64)) -> Result<()> {
    if (rows.rows, rows.cols) != wanted {
        let why = format!(
            "{} x {} elements, and {} x {} are written",
            rows.rows, rows.cols, wanted.0, wanted.1
        );
        return Err(Error::invalid(what, why));
    }
    Ok(())
}
