//! The element types, and the pairs that can be converted.

use bytemuck::{Pod, Zeroable};

use crate::driver::abi;

mod sealed {
    pub trait Sealed {}
}

/// A floating-point format that device memory can hold.
///
/// Implemented only for `f64`, `f32`, [`half::f16`], [`half::bf16`], [`E4m3`] and [`E5m2`].
pub trait Element: Pod + sealed::Sealed {
    /// The format's number in `kernels/warpool.h`.
    #[doc(hidden)]
    const TYPE: u32;
}

/// An 8-bit float with 4 exponent and 3 significand bits: E4M3 of the OCP 8-bit Floating Point
/// Specification.
///
/// Largest finite magnitude 448, smallest 2⁻⁹. No infinity; 0x7F and 0xFF are NaN. Equality
/// compares bits.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct E4m3(pub u8);

/// An 8-bit float with 5 exponent and 2 significand bits: E5M2 of the OCP 8-bit Floating Point
/// Specification.
///
/// Largest finite magnitude 57344, smallest 2⁻¹⁶. Infinities and NaN as in IEEE 754. Equality
/// compares bits.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct E5m2(pub u8);

macro_rules! elements {
    ($($element:ty = $number:ident;)*) => {$(
        impl sealed::Sealed for $element {}
        impl Element for $element {
            const TYPE: u32 = abi::$number;
        }
    )*};
}

elements! {
    f32 = WP_F32;
    half::f16 = WP_F16;
    half::bf16 = WP_BF16;
    E4m3 = WP_E4M3;
    E5m2 = WP_E5M2;
    f64 = WP_F64;
}

/// A pair of formats that can be converted: from `Self` to `D`.
///
/// Exact: `f16`, `bf16`, [`E4m3`], [`E5m2`] to `f32`; [`E4m3`], [`E5m2`] to `f16` and `bf16`; `f32`
/// to `f64`. Rounded: `f32` to `f16`, `bf16`, [`E4m3`], [`E5m2`]; `f16` to `bf16`, [`E4m3`],
/// [`E5m2`]; `bf16` to `f16`, [`E4m3`], [`E5m2`]; [`E4m3`] to [`E5m2`] and back; `f64` to `f32`,
/// `f16`, `bf16`.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{ConvertTo, Element, Rounding, convert};
/// use warpool::{PoolBuf, Result, Stream};
///
/// fn converted<S: ConvertTo<D>, D: Element>(
///     pool: &Pool, stream: &Stream, src: &PoolBuf<S>,
/// ) -> Result<PoolBuf<D>> {
///     let mut dst = pool.alloc_typed(stream, src.len())?;
///     convert(stream, src, &mut dst, Rounding::Nearest)?;
///     Ok(dst)
/// }
/// # let src = pool.alloc_from(&stream, &[1.0_f32, 2.0])?;
/// let wide: PoolBuf<f64> = converted(&pool, &stream, &src)?;
/// assert_eq!(wide.download()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub trait ConvertTo<D: Element>: Element {}

macro_rules! pairs {
    ($($from:ty => $($to:ty),*;)*) => {$($(impl ConvertTo<$to> for $from {})*)*};
}

pairs! {
    f32 => half::f16, half::bf16, E4m3, E5m2, f64;
    half::f16 => f32, half::bf16, E4m3, E5m2;
    half::bf16 => f32, half::f16, E4m3, E5m2;
    E4m3 => f32, half::f16, half::bf16, E5m2;
    E5m2 => f32, half::f16, half::bf16, E4m3;
    f64 => f32, half::f16, half::bf16;
}
