//! Single conversions: contiguous, or rows at a fixed pitch.

use super::codes::{read, written};
use super::fused::{Fused, FusedTo};
use super::launch::{arguments, pitch_bytes, queue_with};
use super::{Conversion, ConvertTo, Element, Rows, RowsMut, View, ViewMut};
use crate::device::{Launch, Stream};
use crate::driver::abi;
use crate::error::{Error, Result};

/// Queues the conversion of every element of `src` into `dst`, in one launch.
///
/// Both may start at any element. For [`Rounding::Stochastic`] element `i` has the number `i`.
/// NaN, overflow, subnormals: see the [module](super).
///
/// Stream order: work queued on `stream`, which may be any stream of the device, reads the source and writes
/// the destination, after the work of other streams on the buffers. The call returns at once. Nothing is
/// allocated on the device.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Rounding, convert};
/// use warpool::half::f16;
///
/// let values = pool.alloc_from(&stream, &[1.0f32, 2.5])?;
/// let mut halves = pool.alloc_typed::<f16>(&stream, 2)?;
/// convert(&stream, &values, &mut halves, Rounding::Nearest)?;
/// assert_eq!(halves.download()?[1], f16::from_f32(2.5));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if the lengths differ, the ranges overlap or the stream is of another device; any error
/// of the driver.
///
/// [`Rounding::Stochastic`]: super::Rounding::Stochastic
pub fn convert<'a, S: ConvertTo<D>, D: Element>(
    stream: &Stream,
    src: impl Into<View<'a, S>>,
    dst: impl Into<ViewMut<'a, D>>,
    how: impl Into<Conversion>,
) -> Result<()> {
    let (src, dst) = (src.into(), dst.into());
    convert_rows(stream, Rows::from(src), RowsMut::from(dst), how)
}

/// Queues the conversion of every row of `src` into the same row of `dst`, in one launch.
///
/// The same as [`convert`] otherwise; element `c` of row `r` has the number `r * cols + c`.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Rounding, Rows, RowsMut, convert_rows};
/// use warpool::half::bf16;
///
/// let padded = pool.alloc_from(&stream, &[1.0_f32, 2.0, 0.0, 3.0, 4.0, 0.0])?;
/// let mut dense = pool.alloc_typed::<bf16>(&stream, 4)?;
/// let from = Rows::new(&padded, 2, 2, 3)?; // two of each three elements
/// let to = RowsMut::new(&mut dense, 2, 2, 2)?;
/// convert_rows(&stream, from, to, Rounding::Nearest)?;
/// assert_eq!(dense.download()?, [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Invalid`] if the shapes differ or the ranges overlap; any error of the launch.
pub fn convert_rows<S: ConvertTo<D>, D: Element>(
    stream: &Stream,
    src: Rows<'_, S>,
    dst: RowsMut<'_, D>,
    how: impl Into<Conversion>,
) -> Result<()> {
    let args = shaped::<S, D>(&src, &dst, how.into())?;
    let parts = [Some(read(&src.view)), Some(written(&dst.view))];
    // SAFETY: buffers keep their memory until the work is done, and the caller that made views from addresses
    // guarantees it; lengths and alignment were checked, and overlaps are checked before the launch.
    unsafe { queue_with(stream, parts, &Launch::Convert(args)) }
}

/// The same as [`convert_rows`], with the additional work of [`Fused`]: a multiply-add, a check for finite
/// values, and maxima. Rounds as `how` says, even if the plain conversion is exact.
///
/// # Errors
/// See [`convert_rows`]; [`Error::Invalid`] if block maxima are requested with several rows, or their
/// destination is too short.
pub fn convert_fused<'a, S: FusedTo<D>, D: Element>(
    stream: &Stream,
    src: impl Into<Rows<'a, S>>,
    dst: impl Into<RowsMut<'a, D>>,
    how: impl Into<Conversion>,
    fused: Fused<'_>,
) -> Result<()> {
    let (src, dst) = (src.into(), dst.into());
    let mut args = shaped::<S, D>(&src, &dst, how.into())?;
    let [scale, flag, amax, blocks] =
        fused.apply(&mut args, 1, (src.rows == 1).then_some(src.cols))?;
    let (src, dst) = (Some(read(&src.view)), Some(written(&dst.view)));
    let parts = [src, dst, scale, flag, amax, blocks];
    // SAFETY: the same as in `convert_rows`, also for the views of `fused`.
    unsafe { queue_with(stream, parts, &Launch::Convert(args)) }
}

/// Checked arguments for rows.
fn shaped<S: Element, D: Element>(
    src: &Rows<'_, S>,
    dst: &RowsMut<'_, D>,
    how: Conversion,
) -> Result<abi::wp_convert> {
    if (src.rows, src.cols) != (dst.rows, dst.cols) {
        let why = format!(
            "{} x {} elements, but the source has {} x {}",
            dst.rows, dst.cols, src.rows, src.cols
        );
        return Err(Error::invalid("dst", why));
    }
    let mut args = arguments::<S, D>(how);
    args.src = src.view.addr();
    args.dst = dst.view.addr();
    args.count = src.cols;
    // If rows have no elements, none is visited.
    args.rows = match src.cols {
        0 => src.rows.min(1),
        _ => src.rows,
    };
    args.src_pitch = pitch_bytes::<S>(src.rows, src.cols, src.pitch);
    args.dst_pitch = pitch_bytes::<D>(dst.rows, dst.cols, dst.pitch);
    Ok(args)
}
