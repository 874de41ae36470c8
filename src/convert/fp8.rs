//! Values of the 8-bit formats on the host.

use super::{E4m3, E5m2};

/// Explicit significand bits and exponent bias of a format below `f32`.
#[derive(Clone, Copy)]
struct Shape {
    significand: u32,
    bias: u32,
}

/// The code of an `f32` magnitude rounded to nearest, ties to even, as if the exponent range were
/// unlimited.
const fn nearest(magnitude: u32, shape: Shape) -> u32 {
    let drop = 23 - shape.significand;
    // The exponent field of `f32` at the format's smallest normal number.
    let smallest = 128 - shape.bias;
    let field = magnitude >> 23;
    if field >= smallest {
        let rebased = magnitude - ((smallest - 1) << 23);
        let odd = (rebased >> drop) & 1;
        return (rebased + (1 << (drop - 1)) - 1 + odd) >> drop;
    }
    let shift = drop + smallest - field;
    if shift > 24 {
        return 0;
    }
    let significand = (magnitude & 0x007F_FFFF) | 0x0080_0000;
    let (quotient, rest) = (significand >> shift, significand & ((1 << shift) - 1));
    let half = 1 << (shift - 1);
    quotient + (rest > half || (rest == half && quotient & 1 == 1)) as u32
}

/// The value of a finite code without its sign.
const fn magnitude(code: u8, shape: Shape) -> f32 {
    let code = code as u32;
    if code >> shape.significand == 0 {
        // Units of the smallest subnormal, 2^(1 - bias - significand).
        let unit = f32::from_bits((128 - shape.bias - shape.significand) << 23);
        return code as f32 * unit;
    }
    f32::from_bits((code << (23 - shape.significand)) + ((127 - shape.bias) << 23))
}

/// The NaN that every conversion of this crate returns.
const NAN: f32 = f32::from_bits(0x7FFF_FFFF);

macro_rules! values {
    ($name:ident, $shape:expr, max $max:literal, $largest:literal, overflow $overflow:literal, becomes $becomes:literal) => {
        impl $name {
            const SHAPE: Shape = $shape;

            /// `x` rounded to nearest, ties to even.
            #[doc = concat!("A magnitude that rounds to more than ", $largest, " becomes ", $becomes, ":")]
            #[doc = concat!("`x.clamp(-", $largest, ", ", $largest, ")` saturates.")]
            /// Any NaN becomes 0x7F. Returns the same bits as [`convert`](super::convert) by
            /// default.
            #[must_use]
            pub const fn from_f32(x: f32) -> Self {
                let bits = x.to_bits();
                let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7FFF_FFFF);
                if magnitude > 0x7F80_0000 {
                    return Self(0x7F);
                }
                let code = nearest(magnitude, Self::SHAPE);
                Self(sign | if code > $max { $overflow } else { code as u8 })
            }

            /// The value, exactly. NaN is the `f32` with the bits 0x7FFFFFFF.
            #[must_use]
            pub const fn to_f32(self) -> f32 {
                let code = self.0 & 0x7F;
                let value = if code <= $max {
                    magnitude(code, Self::SHAPE)
                } else if code == $overflow && $overflow != 0x7F {
                    f32::INFINITY
                } else {
                    return NAN;
                };
                if self.0 & 0x80 == 0 { value } else { -value }
            }
        }

        impl From<$name> for f32 {
            fn from(x: $name) -> f32 {
                x.to_f32()
            }
        }
    };
}

values! {
    E4m3, Shape { significand: 3, bias: 7 },
    max 0x7E, "448.0", overflow 0x7F, becomes "NaN with the sign of `x`, as the format has no infinity"
}
values! {
    E5m2, Shape { significand: 2, bias: 15 },
    max 0x7B, "57344.0", overflow 0x7C, becomes "infinity with the sign of `x`"
}
