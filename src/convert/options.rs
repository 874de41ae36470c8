//! Rounding and overflow of conversions.

use crate::driver::abi;

/// The rounding of a value between two adjacent values of the destination format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearest value, ties to the one whose last bit is 0.
    #[default]
    Nearest,
    /// To the value nearer to zero.
    TowardZero,
    /// To the greater value.
    Up,
    /// To the lesser value.
    Down,
    /// To either value, with a probability proportional to its nearness, so that the mean of many roundings
    /// is the original value. Values that the format can represent are unchanged.
    ///
    /// Each element uses 16 random bits, so the probability has steps of 2^-16. The generator is Philox4x32-7
    /// with the key `seed` and the element's number in the call as its counter: the same call returns the
    /// same bits on every device.
    Stochastic {
        /// The generator's key. Use a different one for each call whose random numbers must not repeat.
        seed: u64,
    },
}

/// The result for a magnitude that rounds to more than the largest finite one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// Infinity with the value's sign; in [`E4m3`](super::E4m3) NaN with the value's sign. Directed rounding
    /// follows IEEE 754: the largest finite magnitude if the direction points back to it, but infinity stays
    /// infinity.
    #[default]
    ToInfinity,
    /// The largest finite magnitude, with the value's sign, also for infinities. NaN stays NaN.
    Saturate,
}

/// The options of a conversion, from a [`Rounding`], an [`Overflow`] or both; exact conversions ignore them.
/// The default rounds to nearest and overflows to infinity.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{Conversion, Overflow, Rounding, convert};
/// use warpool::half::f16;
///
/// let x = pool.alloc_from(&stream, &[1e6f32])?;
/// let mut y = pool.alloc_typed::<f16>(&stream, 1)?;
/// let how = Conversion::from((Rounding::TowardZero, Overflow::Saturate)); // or the pair itself
/// convert(&stream, &x, &mut y, how)?;
/// assert_eq!(y.download()?, [f16::MAX]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Conversion {
    pub(super) rounding: Rounding,
    pub(super) overflow: Overflow,
}

impl Conversion {
    /// The rounding's number in `kernels/warpool.h`, and the generator's key.
    pub(super) fn rounding_and_seed(&self) -> (u32, u64) {
        match self.rounding {
            Rounding::Nearest => (abi::WP_NEAREST, 0),
            Rounding::TowardZero => (abi::WP_TOWARD_ZERO, 0),
            Rounding::Up => (abi::WP_UP, 0),
            Rounding::Down => (abi::WP_DOWN, 0),
            Rounding::Stochastic { seed } => (abi::WP_STOCHASTIC, seed),
        }
    }

    /// The overflow's number in `kernels/warpool.h`.
    pub(super) fn overflow_number(&self) -> u32 {
        match self.overflow {
            Overflow::ToInfinity => abi::WP_TO_INFINITY,
            Overflow::Saturate => abi::WP_SATURATE,
        }
    }
}

impl From<Rounding> for Conversion {
    fn from(rounding: Rounding) -> Self {
        (rounding, Overflow::default()).into()
    }
}

impl From<Overflow> for Conversion {
    fn from(overflow: Overflow) -> Self {
        (Rounding::default(), overflow).into()
    }
}

impl From<(Rounding, Overflow)> for Conversion {
    fn from((rounding, overflow): (Rounding, Overflow)) -> Self {
        Self { rounding, overflow }
    }
}
