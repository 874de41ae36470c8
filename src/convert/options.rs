//! How a conversion rounds and what it does with overflow.

use crate::driver::abi;

/// How a value between two neighbours of the destination format is rounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rounding {
    /// To the nearer neighbour, ties to the one whose last bit is 0.
    #[default]
    Nearest,
    /// To the neighbour nearer to zero.
    TowardZero,
    /// To the greater neighbour.
    Up,
    /// To the lesser neighbour.
    Down,
    /// To either neighbour, with a probability proportional to the nearness of the value, so that
    /// the mean of many roundings is the value. Values the format holds are unchanged.
    ///
    /// Each element draws 16 bits, so the probability is in steps of 2^-16. The generator is
    /// Philox4x32-7 keyed by `seed`, its counter the element's number in the call: the same call
    /// gives the same bits on every device.
    Stochastic {
        /// The generator's key. Use another for every call whose roundings must not repeat.
        seed: u64,
    },
}

/// What becomes of a magnitude that rounds to more than the largest finite one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// Infinity with the value's sign, in [`E4m3`](super::E4m3) NaN with the value's sign. Under
    /// directed rounding as in IEEE 754: the largest finite magnitude where the mode points back to
    /// it, but infinity stays infinity.
    #[default]
    ToInfinity,
    /// The largest finite magnitude, with the value's sign; infinities too. NaN stays NaN.
    Saturate,
}

/// How to convert. The default rounds to nearest and overflows to infinity.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// use warpool::convert::{Conversion, Overflow, Rounding};
///
/// let how = Conversion::new().rounding(Rounding::TowardZero).overflow(Overflow::Saturate);
/// # let _ = how;
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
    /// Nearest, overflow to infinity.
    pub fn new() -> Self {
        Self::default()
    }

    /// With another rounding; exact conversions ignore it.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// With another treatment of overflow; exact conversions ignore it.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// The rounding as `kernels/warpool.h` numbers it, and the generator's key.
    pub(super) fn rounding_and_seed(&self) -> (u32, u64) {
        match self.rounding {
            Rounding::Nearest => (abi::WP_NEAREST, 0),
            Rounding::TowardZero => (abi::WP_TOWARD_ZERO, 0),
            Rounding::Up => (abi::WP_UP, 0),
            Rounding::Down => (abi::WP_DOWN, 0),
            Rounding::Stochastic { seed } => (abi::WP_STOCHASTIC, seed),
        }
    }

    /// The treatment of overflow as `kernels/warpool.h` numbers it.
    pub(super) fn overflow_number(&self) -> u32 {
        match self.overflow {
            Overflow::ToInfinity => abi::WP_TO_INFINITY,
            Overflow::Saturate => abi::WP_SATURATE,
        }
    }
}

impl From<Rounding> for Conversion {
    fn from(rounding: Rounding) -> Self {
        Self::new().rounding(rounding)
    }
}

impl From<Overflow> for Conversion {
    fn from(overflow: Overflow) -> Self {
        Self::new().overflow(overflow)
    }
}
