//! Integers with scales and zero points on every device, against the definition, and round trips.

use half::{bf16, f16};
use warpool::convert::{
    Grouping, I4, Integer, Quantize, Rounding, Rows, RowsMut, dequantize_integers,
    quantize_integers,
};
use warpool::{View, ViewMut};

use crate::fp8::values;
use crate::ground::{Ground, every_ground, is_guard};
use crate::reference::{Value, same};

/// Rows, columns, elements between rows, offset of the values, of the codes.
const SHAPES: [[usize; 5]; 8] = [
    [1, 1, 0, 0, 0],
    [4, 128, 0, 0, 0],
    [3, 47, 2, 1, 1],
    [130, 96, 0, 0, 4],
    [5, 321, 15, 0, 0],
    [2, 4100, 0, 8, 3],
    [2, 20_011, 1, 0, 0],
    [33, 160, 32, 4, 8],
];
const GROUPINGS: [Grouping; 5] = [
    Grouping::Rows,
    Grouping::Groups(16),
    Grouping::Groups(32),
    Grouping::Groups(64),
    Grouping::Groups(128),
];

/// Scale, what values are multiplied by, and zero point.
struct Affine {
    scale: f32,
    inverse: f32,
    zero: i32,
}

fn affine(block: &[f32], highest: i32, zeros: bool) -> Affine {
    if block.iter().any(|x| !x.is_finite()) {
        return Affine {
            scale: f32::NAN,
            inverse: f32::NAN,
            zero: 0,
        };
    }
    let high = block.iter().fold(0f32, |a, &x| a.max(x));
    let low = block.iter().fold(0f32, |a, &x| a.min(x));
    let steps = (2 * highest + 1) as f32;
    let scale = match (high, low) {
        (0.0, 0.0) => 1.0,
        _ if zeros => (high / steps - low / steps).max(f32::MIN_POSITIVE),
        _ => (high.max(-low) / highest as f32).max(f32::MIN_POSITIVE),
    };
    let inverse = 1.0 / scale;
    let nothing = (high, low) == (0.0, 0.0);
    let zero = if zeros && !nothing {
        ((-low * inverse).round_ties_even() as i32 - highest - 1).min(highest)
    } else {
        0
    };
    Affine {
        scale,
        inverse,
        zero,
    }
}

/// Code `col` of a row, with its sign.
fn code(row: &[u8], bits: u32, col: usize) -> i32 {
    match bits {
        8 => i32::from(row[col] as i8),
        _ => i32::from((row[col / 2] >> (col % 2 * 4) << 4) as i8 >> 4),
    }
}

fn check<S: Value, Q: Integer>(
    ground: &Ground,
    [rows, cols, gap, from, to]: [usize; 5],
    grouping: Grouping,
    with_zeros: bool,
    rounding: Rounding,
) -> Vec<u8> {
    let (bits, highest) = if Q::codes(2) == 2 { (8, 127) } else { (4, 7) };
    let (pitch, row_bytes) = (cols + gap, (cols * bits as usize).div_ceil(8));
    let code_pitch = row_bytes + gap;
    let data: Vec<S> = values(from + rows * pitch);
    let source = ground.holding(&data);
    let target = ground.guarded::<u8>(to + rows * code_pitch + 2);
    let count = grouping.count(rows, cols);
    let mut scales = ground.guarded::<f32>(count + 2);
    let mut zeros = ground.guarded::<i8>(count + 2);
    let mut again = ground.guarded::<S>(from + rows * pitch + 2);
    let mut amax = ground.holding(&[0f32]);
    let wide = source.view().slice(from..data.len()).unwrap();
    let wide = Rows::new(wide, rows, cols, pitch).unwrap();
    let (place, len) = (target.addr() + to as u64, rows * code_pitch);
    // SAFETY: the buffer lives until the work has been waited for, all on one stream.
    let (coded, into) = unsafe {
        let coded = View::<Q::Code>::from_raw(place, len).unwrap();
        (coded, ViewMut::<Q::Code>::from_raw(place, len).unwrap())
    };
    let into = RowsMut::new(into, rows, row_bytes, code_pitch).unwrap();
    let how = Quantize::default().rounding(rounding).amax(amax.view_mut());
    let zero_points = with_zeros.then(|| zeros.view_mut());
    let stream = &ground.stream;
    quantize_integers::<Q, S>(
        stream,
        wide,
        into,
        grouping,
        scales.view_mut(),
        zero_points,
        how,
    )
    .unwrap();
    let coded = Rows::new(coded, rows, row_bytes, code_pitch).unwrap();
    let end = from + rows * pitch;
    let onto = again.view_mut().slice(from..end).unwrap();
    let onto = RowsMut::new(onto, rows, cols, pitch).unwrap();
    let zero_points = with_zeros.then(|| zeros.view());
    dequantize_integers::<Q, S>(stream, coded, grouping, scales.view(), zero_points, onto).unwrap();
    stream.synchronize().unwrap();

    let (codes, again) = (target.download().unwrap(), again.download().unwrap());
    let (scales, zeros) = (scales.download().unwrap(), zeros.download().unwrap());
    assert!(is_guard(&codes[..to]) && is_guard(&scales[count..]));
    assert!(is_guard(if with_zeros {
        &zeros[count..]
    } else {
        &zeros[..]
    }));
    let side = if let Grouping::Groups(group) = grouping {
        group as usize
    } else {
        cols
    };
    let what = format!("{bits} bits {grouping:?} {with_zeros} {rows} x {cols}");
    let mut most = 0;
    for row in 0..rows {
        let line = &codes[to + row * code_pitch..][..code_pitch];
        assert!(is_guard(&line[row_bytes..]));
        let rest = if bits == 4 && cols % 2 == 1 {
            line[row_bytes - 1] >> 4
        } else {
            0
        };
        assert_eq!(rest, 0, "{what}: the rest of the last byte");
        let values: Vec<f32> = data[from + row * pitch..][..cols]
            .iter()
            .map(|x| x.wide())
            .collect();
        for (group, block) in values.chunks(side).enumerate() {
            let want = affine(block, highest, with_zeros);
            let at = row * cols.div_ceil(side) + group;
            assert!(
                same(scales[at], want.scale),
                "{what}: {:e} {:e}",
                scales[at],
                want.scale
            );
            let zero = if with_zeros { i32::from(zeros[at]) } else { 0 };
            assert_eq!(zero, want.zero, "{what}: zero point of {block:?}");
            for (i, &x) in block.iter().enumerate() {
                let col = group * side + i;
                let got = code(line, bits, col);
                let y = x * want.inverse;
                let lowest = if with_zeros { -highest - 1 } else { -highest };
                let clamped = |q: f32| {
                    let q = if q.is_nan() { 0 } else { q as i32 };
                    (q + zero).clamp(lowest, highest)
                };
                let fits = match rounding {
                    Rounding::Nearest => got == clamped(y.round_ties_even()),
                    _ => got == clamped(y.floor()) || got == clamped(y.ceil()),
                };
                assert!(fits, "{what}: {x:e} at {row}, {col} is {got}");
                let value = (got - zero) as f32 * scales[at];
                let back = again[from + row * pitch + col];
                assert_eq!(
                    back.bits(),
                    S::bits_of(value),
                    "{what}: back at {row}, {col}"
                );
                // Half a step, or a whole one where the zero point was rounded or chance chose; and
                // what the arithmetic itself rounds.
                let exact = !with_zeros && rounding == Rounding::Nearest;
                let bound = f64::from(scales[at]) * if exact { 0.5001 } else { 1.0001 };
                let off = (f64::from(value) - f64::from(x)).abs();
                assert!(
                    off.is_nan() || off <= bound,
                    "{what}: {x:e} came back as {value:e}"
                );
                most = most.max(if x.is_nan() {
                    0x7FFF_FFFF
                } else {
                    x.abs().to_bits()
                });
            }
        }
    }
    assert_eq!(amax.download().unwrap()[0].to_bits(), most, "{what}: amax");
    codes
}

fn every_case<S: Value>(ground: &Ground) {
    for shape in SHAPES {
        for grouping in GROUPINGS {
            for zeros in [false, true] {
                for rounding in [Rounding::Nearest, Rounding::Stochastic { seed: 8 }] {
                    check::<S, i8>(ground, shape, grouping, zeros, rounding);
                    check::<S, I4>(ground, shape, grouping, zeros, rounding);
                }
            }
        }
    }
}

#[test]
fn f32_becomes_integers_as_defined_and_comes_back_within_a_step() {
    every_ground().iter().for_each(every_case::<f32>);
}

#[test]
fn f16_becomes_integers_as_defined_and_comes_back_within_a_step() {
    every_ground().iter().for_each(every_case::<f16>);
}

#[test]
fn bf16_becomes_integers_as_defined_and_comes_back_within_a_step() {
    every_ground().iter().for_each(every_case::<bf16>);
}

#[test]
fn stochastic_integers_are_the_same_on_every_device() {
    let rounding = Rounding::Stochastic { seed: 4 };
    let every: Vec<Vec<u8>> = every_ground()
        .iter()
        .map(|g| check::<f32, I4>(g, [7, 333, 0, 0, 0], Grouping::Groups(32), true, rounding))
        .collect();
    assert!(every.iter().all(|codes| *codes == every[0]));
}

#[test]
fn what_cannot_be_integers_is_an_error_and_nothing_is_written() {
    for ground in every_ground() {
        let source = ground.holding(&[1f32; 64]);
        let mut codes = ground.guarded::<u8>(32);
        let mut scales = ground.guarded::<f32>(2);
        let mut zeros = ground.guarded::<i8>(1);
        let mut run = |bytes: usize, grouping| {
            let into = codes.view_mut().slice(..bytes).unwrap();
            let zeros = Some(zeros.view_mut());
            let (scales, how) = (scales.view_mut(), Quantize::default());
            let stream = &ground.stream;
            let done = quantize_integers::<I4, f32>(
                stream,
                source.view(),
                into,
                grouping,
                scales,
                zeros,
                how,
            );
            done.unwrap_err().to_string()
        };
        let error = run(31, Grouping::Rows);
        assert!(error.contains("1 x 64 values take 1 x 32"), "{error}");
        let error = run(32, Grouping::Groups(48));
        assert!(error.contains("groups of 48"), "{error}");
        let error = run(32, Grouping::Groups(32));
        assert!(
            error.contains("zeros") && error.contains("needs 2"),
            "{error}"
        );
        let error = run(32, Grouping::Groups(16));
        assert!(
            error.contains("scales") && error.contains("needs 4"),
            "{error}"
        );
        assert!(is_guard(&codes.download().unwrap()) && is_guard(&scales.download().unwrap()));
    }
}
