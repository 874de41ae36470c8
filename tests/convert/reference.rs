//! What a conversion must give, from the definitions of the formats alone: IEEE 754-2019 for
//! binary16/32/64, the OCP 8-bit Floating Point Specification for E4M3 and E5M2, the upper half of
//! binary32 for bfloat16. Nothing here is shared with the kernels.
//!
//! Rounding is monotone, so the inputs that give one code are one interval. The reference says where
//! each interval begins: at a value of the format, or half-way between two, both exact in `f64`.
#![allow(dead_code, reason = "each test file uses its own part")]

use warpool::driver::abi;

/// A format as its definition gives it.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    pub name: &'static str,
    pub number: u32,
    pub bits: u32,
    pub significand: u32,
    pub bias: i32,
    /// Codes of magnitudes are finite up to this one.
    pub max: u32,
    /// The code of overflow: infinity, or the NaN of E4M3.
    pub overflow: u32,
    pub nan: u32,
}

pub const F16: Format = Format {
    name: "f16",
    number: abi::WP_F16,
    bits: 16,
    significand: 10,
    bias: 15,
    max: 0x7BFF,
    overflow: 0x7C00,
    nan: 0x7FFF,
};
pub const BF16: Format = Format {
    name: "bf16",
    number: abi::WP_BF16,
    bits: 16,
    significand: 7,
    bias: 127,
    max: 0x7F7F,
    overflow: 0x7F80,
    nan: 0x7FFF,
};
pub const E4M3: Format = Format {
    name: "e4m3",
    number: abi::WP_E4M3,
    bits: 8,
    significand: 3,
    bias: 7,
    max: 0x7E,
    overflow: 0x7F,
    nan: 0x7F,
};
pub const E5M2: Format = Format {
    name: "e5m2",
    number: abi::WP_E5M2,
    bits: 8,
    significand: 2,
    bias: 15,
    max: 0x7B,
    overflow: 0x7C,
    nan: 0x7F,
};

/// The formats `f32` is narrowed to.
pub const NARROW: [Format; 4] = [F16, BF16, E4M3, E5M2];

impl Format {
    /// The value of a magnitude's code, continued past `max` as if the exponent had no end.
    pub fn value(&self, code: u32) -> f64 {
        let field = (code >> self.significand) as i32;
        let fraction = f64::from(code & ((1 << self.significand) - 1));
        let unit = 2f64.powi(-(self.significand as i32));
        if field == 0 {
            fraction * unit * 2f64.powi(1 - self.bias)
        } else {
            (1.0 + fraction * unit) * 2f64.powi(field - self.bias)
        }
    }

    pub fn sign(&self) -> u32 {
        1 << (self.bits - 1)
    }

    /// The value of a whole code; `None` for NaN.
    pub fn decode(&self, code: u32) -> Option<f64> {
        let magnitude = code & (self.sign() - 1);
        let sign = if code & self.sign() == 0 { 1.0 } else { -1.0 };
        if magnitude <= self.max {
            Some(sign * self.value(magnitude))
        } else if magnitude == self.overflow && self.overflow != self.nan {
            Some(sign * f64::INFINITY)
        } else {
            None
        }
    }
}

/// A deterministic rounding and a treatment of overflow, as the ABI numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    pub rounding: u32,
    pub overflow: u32,
}

/// Every deterministic rounding with both treatments of overflow.
pub fn every_how() -> Vec<How> {
    let roundings = [
        abi::WP_NEAREST,
        abi::WP_TOWARD_ZERO,
        abi::WP_UP,
        abi::WP_DOWN,
    ];
    let overflows = [abi::WP_TO_INFINITY, abi::WP_SATURATE];
    let pair = |r| {
        overflows.map(|o| How {
            rounding: r,
            overflow: o,
        })
    };
    roundings.into_iter().flat_map(pair).collect()
}

/// What a rounding does to magnitudes of one sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toward {
    Nearest,
    Zero,
    Away,
}

fn toward(rounding: u32, negative: bool) -> Toward {
    match rounding {
        abi::WP_NEAREST => Toward::Nearest,
        abi::WP_UP if !negative => Toward::Away,
        abi::WP_DOWN if negative => Toward::Away,
        _ => Toward::Zero,
    }
}

/// Whether a value of magnitude `x` rounds to the code `code` or a higher one.
fn reaches(format: &Format, toward: Toward, code: u32, x: f64) -> bool {
    let (below, here) = (format.value(code - 1), format.value(code));
    match toward {
        Toward::Zero => x >= here,
        Toward::Away => x > below,
        // The tie goes to the even code; half-way is exact in f64 for every format here.
        Toward::Nearest if code.is_multiple_of(2) => x >= (below + here) / 2.0,
        Toward::Nearest => x > (below + here) / 2.0,
    }
}

/// Bits of the smallest `f64` magnitude that rounds to the code `code` or a higher one, and the codes
/// that magnitudes just below and from there on give.
pub fn boundary(format: &Format, how: How, code: u32, negative: bool) -> (u64, [u32; 2]) {
    let (below, here) = (format.value(code - 1), format.value(code));
    // Bits of positive numbers are in the order of the numbers.
    let bits = match toward(how.rounding, negative) {
        Toward::Zero => here.to_bits(),
        Toward::Away => below.to_bits() + 1,
        Toward::Nearest => {
            let tie = (below + here) / 2.0;
            tie.to_bits() + u64::from(!code.is_multiple_of(2))
        }
    };
    let sign = if negative { -1.0 } else { 1.0 };
    let of = |bits| round(format, how, sign * f64::from_bits(bits));
    (bits, [of(bits - 1), of(bits)])
}

/// The code of a finite or infinite value or NaN, by search among the format's codes.
pub fn round(format: &Format, how: How, x: f64) -> u32 {
    if x.is_nan() {
        return format.nan;
    }
    let negative = x.is_sign_negative();
    let sign = if negative { format.sign() } else { 0 };
    let saturated = how.overflow == abi::WP_SATURATE;
    if x.is_infinite() {
        return sign
            | if saturated {
                format.max
            } else {
                format.overflow
            };
    }
    let toward = toward(how.rounding, negative);
    let (mut low, mut high) = (0, format.max + 2);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if reaches(format, toward, middle, x.abs()) {
            low = middle
        } else {
            high = middle
        }
    }
    if low <= format.max {
        sign | low
    } else {
        sign | if saturated || toward == Toward::Zero {
            format.max
        } else {
            format.overflow
        }
    }
}

/// The intervals of `f32` magnitudes of one sign: (first bits, code), in ascending order, up to NaN.
pub fn intervals(format: &Format, how: How, negative: bool) -> Vec<(u32, u32)> {
    let sign = if negative { format.sign() } else { 0 };
    let toward = toward(how.rounding, negative);
    let mut all: Vec<(u32, u32)> = vec![(0, sign)];
    let infinity = f32::INFINITY.to_bits();
    for code in 1..=format.max + 1 {
        let (mut low, mut high) = (all[all.len() - 1].0, infinity);
        // Invariant: `low` does not reach the code (or is where the last one begins), `high` does.
        while low < high {
            let middle = low + (high - low) / 2;
            let x = f64::from(f32::from_bits(middle));
            if reaches(format, toward, code, x) {
                high = middle
            } else {
                low = middle + 1
            }
        }
        if low < infinity {
            all.push((
                low,
                round(
                    format,
                    how,
                    if negative { -1.0 } else { 1.0 } * f64::from(f32::from_bits(low)),
                ),
            ));
        }
    }
    let infinite = if negative {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    };
    all.push((infinity, round(format, how, infinite)));
    all.push((infinity + 1, format.nan));
    all.push((0x8000_0000, format.nan));
    all
}

/// The 16 bits that element `index` draws: Philox4x32 of seven rounds, after its paper; its counter
/// is the number of the eight neighbours that share a call, its key the seed.
pub fn draw(seed: u64, index: u64) -> u32 {
    let counter = index / 8;
    let mut x = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..7 {
        let product = |factor: u64, word: u32| factor * u64::from(word);
        let (low, high) = (product(0xD251_1F53, x[0]), product(0xCD9E_8D57, x[2]));
        x = [
            (high >> 32) as u32 ^ x[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ x[3] ^ key[1],
            low as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    x[(index % 8 / 2) as usize] >> (16 * (index % 2)) & 0xFFFF
}

/// The code that `x` gives under stochastic rounding, when its element draws `draw`: up by the share
/// of the remainder, in steps of 2^-16 of the way to the next code.
pub fn round_by(format: &Format, overflow: u32, x: f64, draw: u32) -> u32 {
    let how = How {
        rounding: abi::WP_TOWARD_ZERO,
        overflow,
    };
    let code = round(format, how, x);
    let magnitude = code & (format.sign() - 1);
    if !x.is_finite() || magnitude > format.max {
        return code;
    }
    let (below, above) = (format.value(magnitude), format.value(magnitude + 1));
    let share = ((x.abs() - below) / (above - below) * 65536.0).min(65536.0) as u32;
    if share + draw < 1 << 16 {
        code
    } else if magnitude < format.max {
        code + 1
    } else if overflow == abi::WP_SATURATE {
        code
    } else {
        code & format.sign() | format.overflow
    }
}
