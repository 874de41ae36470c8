//! 8-bit floats with scales of every granularity, on every device, against the definitions.

use half::{bf16, f16};
use warpool::convert::{
    E4m3, E5m2, Float8, Quantize, Rounding, Rows, RowsMut, Scales, ScalesMut, block_scales,
    dequantize, quantize, square_scales,
};
use warpool::driver::abi;
use warpool::{View, ViewMut};

use crate::convert_reference::{E4M3, E5M2, Format, How, round};
use crate::ground::{Ground, every_ground, is_guard, noise};
use crate::reference::{Scale, Value, code, same};

/// A shape, the elements between rows, and the first element's number in its buffer.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
    gaps: (usize, usize),
    offsets: (usize, usize),
}

const fn shape(rows: usize, cols: usize, gaps: (usize, usize), offsets: (usize, usize)) -> Shape {
    Shape {
        rows,
        cols,
        gaps,
        offsets,
    }
}

/// Aligned, misaligned, pitched; shorter and longer than blocks, squares and what threads hold.
const SHAPES: [Shape; 11] = [
    shape(1, 1, (0, 0), (0, 0)),
    shape(3, 128, (0, 0), (0, 0)),
    shape(2, 256, (64, 128), (0, 0)),
    shape(5, 130, (0, 0), (0, 0)),
    shape(4, 127, (3, 2), (1, 3)),
    shape(129, 257, (7, 0), (0, 0)),
    shape(130, 384, (0, 0), (0, 0)),
    shape(300, 40, (8, 8), (8, 16)),
    shape(2, 9000, (0, 0), (4, 16)),
    shape(1, 20_011, (0, 0), (0, 1)),
    shape(9, 2048, (0, 0), (0, 0)),
];

/// Values of many sizes; some blocks of zeros, some tiny, some with an infinity or a NaN.
pub fn values<S: Value>(count: usize) -> Vec<S> {
    let of = |at: usize| {
        let mixed = noise(at as u64);
        let part = noise(at as u64 / 97) % 16;
        let sign = (mixed as u32 & 1) << 31;
        match part {
            0 => S::of_bits(sign),
            1 => S::of_bits(sign | ((mixed >> 8) as u32 & 0x007F_FFFF)),
            2 if mixed.is_multiple_of(97) => {
                S::of_bits([0x7F80_0000, 0xFF80_0000, 0x7FC0_0000][at % 3])
            }
            3 => S::of_bits(sign | (0x4700_0000 + ((mixed >> 8) as u32 & 0x007F_FFFF))),
            4 => S::of_bits(sign | (0x3800_0000 + ((mixed >> 8) as u32 & 0x03FF_FFFF))),
            _ => S::of_bits(sign | (0x3E00_0000 + ((mixed >> 8) as u32 & 0x01FF_FFFF))),
        }
    };
    (0..count).map(of).collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Grain {
    Tensor,
    Rows,
    Blocks,
    Squares,
}

/// Which scale an element has: its place, and the part of the tensor that shares it.
fn place(grain: Grain, s: &Shape, row: usize, col: usize) -> (usize, [usize; 4]) {
    let end = |from: usize, side: usize, all: usize| (from + side).min(all);
    match grain {
        Grain::Tensor => (0, [0, s.rows, 0, s.cols]),
        Grain::Rows => (row, [row, row + 1, 0, s.cols]),
        Grain::Blocks => {
            let from = col / 128 * 128;
            // A column of scales after the other.
            let at = col / 128 * s.rows + row;
            (at, [row, row + 1, from, end(from, 128, s.cols)])
        }
        Grain::Squares => {
            let (r, c) = (row / 128 * 128, col / 128 * 128);
            let pitch = s.cols.div_ceil(128).div_ceil(4) * 4;
            let at = row / 128 * pitch + col / 128;
            (at, [r, end(r, 128, s.rows), c, end(c, 128, s.cols)])
        }
    }
}

struct Case<'a> {
    ground: &'a Ground,
    shape: Shape,
    format: Format,
    top: f32,
    given: f32,
}

fn check<S: Value, Q: Float8>(case: &Case<'_>, grain: Grain, of: fn(&Q) -> u8) {
    let Case {
        ground, shape: s, ..
    } = case;
    let (wide, tight) = (s.cols + s.gaps.0, s.cols + s.gaps.1);
    let data: Vec<S> = values(s.offsets.0 + s.rows * wide);
    let at = |row: usize, col: usize| data[s.offsets.0 + row * wide + col].wide();
    let source = ground.holding(&data);
    let mut target = ground.guarded::<Q>(s.offsets.1 + s.rows * tight + 3);
    let (r, c) = (s.rows, s.cols);
    let needed = match grain {
        Grain::Tensor => 1,
        Grain::Rows => r,
        Grain::Blocks => block_scales(r, c),
        Grain::Squares => square_scales(r, c),
    };
    let mut scales = if grain == Grain::Tensor {
        ground.holding(&[case.given])
    } else {
        ground.guarded::<f32>(needed + 2)
    };
    let mut amax = ground.holding(&[0f32]);
    let from = source.view().slice(s.offsets.0..data.len());
    let from = Rows::new(from.unwrap(), r, c, wide).unwrap();
    let end = s.offsets.1 + s.rows * tight;
    let into = target.view_mut().slice(s.offsets.1..end).unwrap();
    let into = RowsMut::new(into, r, c, tight).unwrap();
    let how = Quantize::default().amax(amax.view_mut());
    let found = match grain {
        Grain::Tensor => ScalesMut::Tensor(scales.view()),
        Grain::Rows => ScalesMut::Rows(scales.view_mut()),
        Grain::Blocks => ScalesMut::Blocks(scales.view_mut()),
        Grain::Squares => ScalesMut::Squares(scales.view_mut()),
    };
    quantize(&ground.stream, from, into, found, how).unwrap();
    ground.stream.synchronize().unwrap();

    let (codes, stored) = (target.download().unwrap(), scales.download().unwrap());
    assert!(is_guard(&codes[..s.offsets.1]));
    let what = format!("{grain:?} of {} {s:?}", case.format.name);
    let mut known: Vec<Option<Scale>> = vec![None; stored.len()];
    for row in 0..s.rows {
        let line = &codes[s.offsets.1 + row * tight..][..tight];
        assert!(is_guard(&line[s.cols..]), "{what}: behind row {row}");
        for (col, got) in line[..s.cols].iter().enumerate() {
            let (place, [r0, r1, c0, c1]) = place(grain, s, row, col);
            let scale = *known[place].get_or_insert_with(|| {
                if grain == Grain::Tensor {
                    return Scale::given(case.given);
                }
                let part: Vec<f32> = (r0..r1)
                    .flat_map(|r| (c0..c1).map(move |c| (r, c)))
                    .map(|(r, c)| at(r, c))
                    .collect();
                Scale::of(&part, case.top)
            });
            assert!(
                same(stored[place], scale.scale),
                "{what}: the scale of {row}, {col} is {:e}, not {:e}",
                stored[place],
                scale.scale
            );
            let want = code(&case.format, scale, at(row, col));
            assert_eq!(
                u32::from(of(got)),
                want,
                "{what}: {:e} at {row}, {col} by {scale:?}",
                at(row, col)
            );
        }
    }
    if grain != Grain::Tensor {
        assert!(is_guard(&stored[needed as usize..]), "{what}");
        let unused = known.iter().zip(&stored).filter(|(k, _)| k.is_none());
        assert!(unused.into_iter().all(|(_, s)| is_guard(&[*s])), "{what}");
    }
    let all = (0..s.rows).flat_map(|r| (0..s.cols).map(move |c| (r, c)));
    let most = all.fold(0, |most, (r, c)| {
        let x = at(r, c);
        most.max(if x.is_nan() {
            0x7FFF_FFFF
        } else {
            x.abs().to_bits()
        })
    });
    assert_eq!(amax.download().unwrap()[0].to_bits(), most, "{what}: amax");

    // And back.
    let mut again = ground.guarded::<S>(s.offsets.0 + s.rows * wide + 3);
    let codes_of = target.view().slice(s.offsets.1..end).unwrap();
    let codes_of = Rows::new(codes_of, r, c, tight).unwrap();
    let end = s.offsets.0 + s.rows * wide;
    let into = again.view_mut().slice(s.offsets.0..end).unwrap();
    let into = RowsMut::new(into, r, c, wide).unwrap();
    let given = match grain {
        Grain::Tensor => Scales::Tensor(scales.view()),
        Grain::Rows => Scales::Rows(scales.view()),
        Grain::Blocks => Scales::Blocks(scales.view()),
        Grain::Squares => Scales::Squares(scales.view()),
    };
    dequantize::<Q, S>(&ground.stream, codes_of, given, into).unwrap();
    ground.stream.synchronize().unwrap();
    let again = again.download().unwrap();
    for row in 0..s.rows {
        let line = &again[s.offsets.0 + row * wide..][..wide];
        assert!(is_guard(&line[s.cols..]), "{what}: behind row {row} back");
        for (col, got) in line[..s.cols].iter().enumerate() {
            let code = of(&codes[s.offsets.1 + row * tight + col]);
            let (place, _) = place(grain, s, row, col);
            let value = case.format.decode(u32::from(code)).unwrap_or(f64::NAN) as f32;
            let want = S::bits_of(value * stored[place]);
            assert_eq!(got.bits(), want, "{what}: {code:#x} at {row}, {col} back");
        }
    }
}

fn every_shape<S: Value>(ground: &Ground) {
    for shape in SHAPES {
        for grain in [Grain::Tensor, Grain::Rows, Grain::Blocks, Grain::Squares] {
            let case = |format, top| Case {
                ground,
                shape,
                format,
                top,
                given: 0.0371,
            };
            check::<S, E4m3>(&case(E4M3, 448.0), grain, |q| q.0);
            if shape.cols < 1000 {
                check::<S, E5m2>(&case(E5M2, 57344.0), grain, |q| q.0);
            }
        }
    }
}

#[test]
fn f32_quantises_with_every_granularity_and_back_as_defined() {
    every_ground().iter().for_each(every_shape::<f32>);
}

#[test]
fn f16_quantises_with_every_granularity_and_back_as_defined() {
    every_ground().iter().for_each(every_shape::<f16>);
}

#[test]
fn bf16_quantises_with_every_granularity_and_back_as_defined() {
    every_ground().iter().for_each(every_shape::<bf16>);
}

/// Codes of `values` in rows of `cols`, and their scales.
fn codes<Q: Float8>(
    ground: &Ground,
    values: &[f32],
    cols: usize,
    rounding: Rounding,
) -> (Vec<Q>, Vec<f32>) {
    let source = ground.holding(values);
    let mut target = ground.guarded::<Q>(values.len());
    let rows = values.len() / cols;
    let mut scales = ground.guarded::<f32>(block_scales(rows, cols));
    quantize(
        &ground.stream,
        Rows::new(source.view(), rows, cols, cols).unwrap(),
        RowsMut::new(target.view_mut(), rows, cols, cols).unwrap(),
        ScalesMut::Blocks(scales.view_mut()),
        Quantize::default().rounding(rounding),
    )
    .unwrap();
    ground.stream.synchronize().unwrap();
    (target.download().unwrap(), scales.download().unwrap())
}

#[test]
fn stochastic_codes_are_neighbours_the_same_on_every_device_and_right_in_the_mean() {
    let values: Vec<f32> = (0..40 * 301).map(|i| (i as f32 * 0.37).sin()).collect();
    let rounding = Rounding::Stochastic { seed: 5 };
    let mut first: Option<Vec<E4m3>> = None;
    for ground in every_ground() {
        let (got, scales) = codes::<E4m3>(&ground, &values, 301, rounding);
        let mut drift = 0.0;
        for (at, (x, q)) in values.iter().zip(&got).enumerate() {
            let scale = Scale::given(scales[at % 301 / 128 * 40 + at / 301]);
            let y = f64::from(x * scale.inverse);
            let by = |rounding| {
                let how = How {
                    rounding,
                    overflow: abi::WP_SATURATE,
                };
                round(&E4M3, how, y)
            };
            let (down, up) = (by(abi::WP_DOWN), by(abi::WP_UP));
            assert!([down, up].contains(&u32::from(q.0)), "{x} by {scale:?}");
            drift += (f64::from(f32::from(*q)) - y) / y.abs().max(1.0);
        }
        assert!((drift / values.len() as f64).abs() < 1e-3, "{drift}");
        let first = first.get_or_insert_with(|| got.clone());
        assert!(*first == got);
    }
}

#[test]
fn a_given_scale_that_is_no_number_makes_every_code_nan_and_infinity_saturates() {
    for ground in every_ground() {
        let source = ground.holding(&[1.0f32, f32::INFINITY, -f32::INFINITY, f32::NAN]);
        for (scale, want) in [
            (1.0f32, [0x38, 0x7E, 0xFE, 0x7F]),
            (0.0, [0x7F; 4]),
            (2e-39, [0x7F; 4]),
            (f32::NAN, [0x7F; 4]),
        ] {
            let (given, mut target) = (ground.holding(&[scale]), ground.guarded::<E4m3>(4));
            let scales = ScalesMut::Tensor(given.view());
            let how = Quantize::default();
            quantize(
                &ground.stream,
                source.view(),
                target.view_mut(),
                scales,
                how,
            )
            .unwrap();
            ground.stream.synchronize().unwrap();
            assert_eq!(target.download().unwrap(), want.map(E4m3), "{scale}");
        }
    }
}

#[test]
fn what_cannot_be_quantised_is_an_error_and_nothing_is_written() {
    for ground in every_ground() {
        let source = ground.holding(&[1f32; 600]);
        let mut target = ground.guarded::<E4m3>(600);
        let mut scales = ground.guarded::<f32>(8);
        let mut run = |codes: (usize, usize), scales: ScalesMut<'_>, how: Quantize<'_>| {
            let from = Rows::new(source.view(), 2, 300, 300).unwrap();
            let into = RowsMut::new(target.view_mut(), codes.0, codes.1, codes.1).unwrap();
            let error = quantize(&ground.stream, from, into, scales, how);
            error.unwrap_err().to_string()
        };
        let error = run(
            (2, 299),
            ScalesMut::Rows(scales.view_mut()),
            Quantize::default(),
        );
        assert!(error.contains("2 x 300 values take 2 x 300"), "{error}");
        let few = scales.view_mut().slice(..5).unwrap();
        let error = run((2, 300), ScalesMut::Blocks(few), Quantize::default());
        assert!(error.contains("it has 5 elements, and needs 6"), "{error}");
        let few = scales.view_mut().slice(..3).unwrap();
        let error = run((2, 300), ScalesMut::Squares(few), Quantize::default());
        assert!(error.contains("it has 3 elements, and needs 4"), "{error}");
        let up = Quantize::default().rounding(Rounding::Up);
        let error = run((2, 300), ScalesMut::Rows(scales.view_mut()), up);
        assert!(error.contains("Up"), "{error}");
        let (low, high) = scales.view_mut().split_at(8).unwrap();
        let error = run(
            (2, 300),
            ScalesMut::Rows(low),
            Quantize::default().amax(high),
        );
        assert!(error.contains("amax: it has 0 elements"), "{error}");
        // SAFETY: refused before anything is queued.
        let (given, own) = unsafe {
            let given = View::from_raw(source.addr(), 1).unwrap();
            (given, ViewMut::<f32>::from_raw(source.addr(), 8).unwrap())
        };
        let error = run((2, 300), ScalesMut::Rows(own), Quantize::default());
        assert!(error.contains("overlaps"), "{error}");
        assert!(is_guard(&target.download().unwrap()) && is_guard(&scales.download().unwrap()));
        // Nothing at all is fine.
        let none = source.view().slice(..0).unwrap();
        let into = target.view_mut().slice(..0).unwrap();
        let scales = ScalesMut::Tensor(given);
        quantize(&ground.stream, none, into, scales, Quantize::default()).unwrap();
    }
}
