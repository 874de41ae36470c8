//! `E4m3` and `E5m2` on the host, against the definitions of the formats.

use warpool::convert::{E4m3, E5m2};
use warpool::driver::abi;

use crate::common;
use crate::convert_reference::{E4M3, E5M2, Format, How, intervals, round};

const OVERFLOW: How = How {
    rounding: abi::WP_NEAREST,
    overflow: abi::WP_TO_INFINITY,
};
const SATURATE: How = How {
    rounding: abi::WP_NEAREST,
    overflow: abi::WP_SATURATE,
};

/// A format, a treatment of overflow, and the crate's function for both.
type Narrow = (Format, How, fn(f32) -> u8);

fn every_narrowing() -> [Narrow; 4] {
    [
        (E4M3, OVERFLOW, |x| E4m3::from_f32(x).0),
        (E4M3, SATURATE, |x| E4m3::from_f32(x.clamp(-448.0, 448.0)).0),
        (E5M2, OVERFLOW, |x| E5m2::from_f32(x).0),
        (E5M2, SATURATE, |x| {
            E5m2::from_f32(x.clamp(-57344.0, 57344.0)).0
        }),
    ]
}

#[test]
fn every_code_has_the_value_of_its_definition() {
    for code in 0..=255u8 {
        for (format, value) in [(E4M3, f32::from(E4m3(code))), (E5M2, f32::from(E5m2(code)))] {
            let want = match format.decode(u32::from(code)) {
                Some(value) => (value as f32).to_bits(),
                None => 0x7FFF_FFFF,
            };
            assert_eq!(value.to_bits(), want, "{} {code:#x}", format.name);
        }
    }
}

#[test]
fn every_f32_rounds_to_the_code_of_the_definition() {
    let whole = common::variables::is_on("WARPOOL_EXHAUSTIVE");
    let step = if whole { 1 } else { 257 };
    for (format, how, narrow) in every_narrowing() {
        for negative in [false, true] {
            let sign = u32::from(negative) << 31;
            let intervals = intervals(&format, how, negative);
            for (at, &(first, code)) in intervals.iter().enumerate() {
                let end = intervals.get(at + 1).map_or(0x8000_0000, |next| next.0);
                let edges = [first, end.saturating_sub(1).max(first)];
                let all = (first..end).step_by(step).chain(edges);
                for bits in all.filter(|&bits| bits < 0x8000_0000) {
                    let got = u32::from(narrow(f32::from_bits(bits | sign)));
                    assert_eq!(
                        got,
                        code,
                        "{:#010x} to {} {how:?}",
                        bits | sign,
                        format.name
                    );
                }
            }
        }
    }
}

#[test]
fn overflow_is_infinity_or_nan_and_saturation_is_the_largest() {
    assert_eq!(E4m3::from_f32(464.0), E4m3::from_f32(448.0));
    assert_eq!(E4m3::from_f32(464.1).0, 0x7F);
    assert_eq!(E4m3::from_f32(-1e9).0, 0xFF);
    assert_eq!(f32::from(E4m3::from_f32(448.0)), 448.0);
    assert_eq!(f32::from(E5m2::from_f32(61440.0)), f32::INFINITY);
    assert_eq!(f32::from(E5m2::from_f32(57344.0)), 57344.0);
    assert_eq!(
        u32::from(E5m2::from_f32(1e9).0),
        round(&E5M2, OVERFLOW, 1e9)
    );
    const HALF: E4m3 = E4m3::from_f32(0.5);
    assert_eq!(f32::from(HALF), 0.5);
}
