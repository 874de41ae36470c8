//! Scales and codes from their definitions, apart from the kernels: what `docs/formats.md` says.

use half::{bf16, f16};
use warpool::convert::{Element, Wide};
use warpool::driver::abi;

use crate::convert_reference::{BF16, F16, Format, How, round};

pub const SATURATE: How = How {
    rounding: abi::WP_NEAREST,
    overflow: abi::WP_SATURATE,
};
const NEAREST: How = How {
    rounding: abi::WP_NEAREST,
    overflow: abi::WP_TO_INFINITY,
};

/// A wide format as a test sees it.
pub trait Value: Wide + Element + Copy {
    fn of_bits(bits: u32) -> Self;
    fn wide(self) -> f32;
    /// Bits of an `f32` rounded to the format, NaN as the crate's.
    fn bits_of(x: f32) -> u32;
    fn bits(self) -> u32;
}

impl Value for f32 {
    fn of_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }
    fn wide(self) -> f32 {
        self
    }
    fn bits_of(x: f32) -> u32 {
        if x.is_nan() { 0x7FFF_FFFF } else { x.to_bits() }
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Value for f16 {
    fn of_bits(bits: u32) -> Self {
        // The upper half, as a number near that of the f32.
        f16::from_f32(f32::from_bits(bits))
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn bits_of(x: f32) -> u32 {
        round(&F16, NEAREST, f64::from(x))
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Value for bf16 {
    fn of_bits(bits: u32) -> Self {
        bf16::from_bits((bits >> 16) as u16)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn bits_of(x: f32) -> u32 {
        round(&BF16, NEAREST, f64::from(x))
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

/// A scale, and what values are multiplied by.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub scale: f32,
    pub inverse: f32,
}

impl Scale {
    /// That of values whose code's largest value is `top`.
    pub fn of(values: &[f32], top: f32) -> Self {
        let amax = values.iter().fold(0f32, |most, x| most.max(x.abs()));
        let bad = values.iter().any(|x| !x.is_finite());
        let scale = match amax {
            _ if bad => f32::NAN,
            0.0 => 1.0,
            amax => (amax / top).max(f32::MIN_POSITIVE),
        };
        Self::given(scale)
    }

    pub fn given(scale: f32) -> Self {
        let inverse = 1.0 / scale;
        let inverse = if inverse.is_finite() {
            inverse
        } else {
            f32::NAN
        };
        Self { scale, inverse }
    }
}

/// The code of a value to nearest.
pub fn code(format: &Format, scale: Scale, x: f32) -> u32 {
    round(format, SATURATE, f64::from(x * scale.inverse))
}

/// Same bits, or both NaN.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}
