//! Additional work on values during a conversion.

use super::codes::{enough, read, written};
use super::launch::Part;
use super::{E4m3, E5m2, Element, MX_BLOCK, View, ViewMut};
use crate::driver::abi;
use crate::error::{Error, Result};

/// A pair of formats whose conversion can include such work: those of [`ConvertTo`](super::ConvertTo) without
/// `f64`, and each format with itself, which scales and rounds again.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Element, Fused, FusedTo, Rounding, convert_fused};
/// use warpool::half::f16;
/// use warpool::{PoolBuf, Result, Stream};
///
/// fn halved<S: FusedTo<D>, D: Element>(
///     stream: &Stream, src: &PoolBuf<S>, dst: &mut PoolBuf<D>,
/// ) -> Result<()> {
///     convert_fused(stream, src, dst, Rounding::Nearest, Fused::default().scale(0.5))
/// }
/// # let src = pool.alloc_from(&stream, &[1.0_f32, 2.0])?;
/// # let mut dst = pool.alloc_typed::<f16>(&stream, 2)?;
/// halved(&stream, &src, &mut dst)?;
/// assert_eq!(dst.download()?, [0.5, 1.0].map(f16::from_f32));
/// # Ok(())
/// # }
/// ```
pub trait FusedTo<D: Element>: Element {}

macro_rules! pairs {
    ($($from:ty => $($to:ty),*;)*) => {$($(impl FusedTo<$to> for $from {})*)*};
}

pairs! {
    f32 => f32, half::f16, half::bf16, E4m3, E5m2;
    half::f16 => f32, half::f16, half::bf16, E4m3, E5m2;
    half::bf16 => f32, half::f16, half::bf16, E4m3, E5m2;
    E4m3 => f32, half::f16, half::bf16, E4m3, E5m2;
    E5m2 => f32, half::f16, half::bf16, E4m3, E5m2;
}

/// The work on each value during a conversion: `y = x * scale + bias` by one fused multiply-add in `f32`, and
/// checks and maxima of `y`. The destination gets `y`, rounded.
///
/// Any NaN becomes the positive all-ones NaN of `f32` before it is rounded.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Fused, Rounding, convert_fused};
/// use warpool::half::f16;
///
/// let values = pool.alloc_from(&stream, &[1.0f32, -3.0])?;
/// let mut halves = pool.alloc_typed::<f16>(&stream, 2)?;
/// let mut most = pool.alloc_zeroed::<f32>(&stream, 1)?;
/// let fused = Fused::default().scale(2.0).amax(most.view_mut());
/// convert_fused(&stream, &values, &mut halves, Rounding::Nearest, fused)?;
/// assert_eq!(most.download()?, [6.0]);
///
/// let times = pool.alloc_from(&stream, &[0.5f32])?; // a factor that a kernel worked out
/// let mut found = pool.alloc_zeroed::<u32>(&stream, 1)?;
/// let mut maxima = pool.alloc_zeroed::<f32>(&stream, 1)?; // one for each block of 32 elements
/// let fused = Fused::default().scale_at(times.view()).bias(1.0);
/// let fused = fused.flag(found.view_mut()).block_amax(maxima.view_mut());
/// convert_fused(&stream, &values, &mut halves, Rounding::Nearest, fused)?;
/// assert_eq!((found.download()?[0], maxima.download()?[0]), (0, 1.5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Fused<'a> {
    scale: Option<f32>,
    bias: Option<f32>,
    scale_at: Option<View<'a, f32>>,
    flag: Option<ViewMut<'a, u32>>,
    amax: Option<ViewMut<'a, f32>>,
    block_amax: Option<ViewMut<'a, f32>>,
}

impl<'a> Fused<'a> {
    /// Multiplies by `scale`.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Also multiplies by the first element of `scale`, read from device memory when the launch runs. The
    /// product of both scales is rounded once.
    pub fn scale_at(mut self, scale: View<'a, f32>) -> Self {
        self.scale_at = Some(scale);
        self
    }

    /// Adds `bias` after the multiplication.
    pub fn bias(mut self, bias: f32) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Sets the first element of `flag` to 1 if any `y` or any result is infinite or NaN. Never clears it.
    pub fn flag(mut self, flag: ViewMut<'a, u32>) -> Self {
        self.flag = Some(flag);
        self
    }

    /// Raises `amax` to the largest magnitude of `y` if that is larger: one element, or one per tensor for a
    /// [`ConvertTable`](super::ConvertTable). Set it to 0 first. NaN counts as larger than infinity, so that
    /// it is not lost.
    pub fn amax(mut self, amax: ViewMut<'a, f32>) -> Self {
        self.amax = Some(amax);
        self
    }

    /// Writes the largest magnitude of `y` for each block of [`MX_BLOCK`] elements; the last block may be
    /// shorter. Only for one contiguous conversion. Fast if the destination is aligned to 16 bytes.
    pub fn block_amax(mut self, block_amax: ViewMut<'a, f32>) -> Self {
        self.block_amax = Some(block_amax);
        self
    }

    /// Checks the lengths for `tensors` tensors, or for one range of `elements`, and fills in `args`. Returns
    /// the parts in addition to those of the elements.
    pub(super) fn apply(
        self,
        args: &mut abi::wp_convert,
        tensors: u64,
        elements: Option<u64>,
    ) -> Result<[Option<Part<'a>>; 4]> {
        let blocks = match (&self.block_amax, elements) {
            (Some(_), None) => {
                return Err(Error::invalid(
                    "block_amax",
                    "it is for one contiguous conversion: leave it out, or convert row by row",
                ));
            }
            (_, elements) => elements.unwrap_or(0).div_ceil(MX_BLOCK as u64),
        };
        args.fused = 1;
        args.scale = self.scale.unwrap_or(1.0);
        // Adding -0.0 changes no value, not even a zero of either sign.
        args.bias = self.bias.unwrap_or(-0.0);
        let parts = [
            self.scale_at.as_ref().map(read),
            self.flag.as_ref().map(written),
            self.amax.as_ref().map(written),
            self.block_amax.as_ref().map(written),
        ];
        let names = ["scale_at", "flag", "amax", "block_amax"];
        for ((what, needed), part) in names.into_iter().zip([1, 1, tensors, blocks]).zip(&parts) {
            // All have elements of 4 bytes.
            let len = part.map_or(usize::MAX, |part| part.bytes as usize / 4);
            enough(what, len, needed)?;
        }
        [args.scale_at, args.flag, args.amax, args.block_amax] =
            parts.map(|part| part.map_or(0, |part| part.addr));
        Ok(parts)
    }
}
