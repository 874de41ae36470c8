//! Conversion and transposition on every device: both results are those of the plain conversion.

use half::{bf16, f16};
use warpool::convert::{
    Conversion, E4m3, E5m2, Narrow, Overflow, Rounding, Rows, RowsMut, Transpose, cast_transpose,
};
use warpool::driver::abi;

use crate::convert_reference::{BF16, E4M3, E5M2, F16, Format, How, round};
use crate::fp8::values;
use crate::ground::{Ground, every_ground, is_guard};
use crate::reference::{Scale, Value};

/// Rows, columns; elements between rows of values, plain results, turned results; offsets of these.
const SHAPES: [([usize; 2], [usize; 3], [usize; 3]); 9] = [
    ([1, 1], [0; 3], [0; 3]),
    ([128, 128], [0; 3], [0; 3]),
    ([256, 64], [64, 16, 128], [0; 3]),
    ([129, 257], [7, 0, 15], [0; 3]),
    ([127, 130], [0, 3, 1], [1, 0, 3]),
    ([1, 1000], [0; 3], [0, 1, 0]),
    ([777, 3], [5, 5, 0], [4, 8, 16]),
    ([64, 192], [0; 3], [0; 3]),
    ([300, 200], [8, 8, 20], [8, 16, 4]),
];

/// A format that is cast to, and how a test sees it.
struct Target<D> {
    format: Format,
    code: fn(&D) -> u32,
}

fn check<S: Value, D: Narrow>(
    ground: &Ground,
    target: &Target<D>,
    shape: ([usize; 2], [usize; 3], [usize; 3]),
    how: Conversion,
    (rounding, overflow): (u32, u32),
    given: Option<f32>,
) -> Vec<u32> {
    let ([rows, cols], gaps, offsets) = shape;
    let [wide, flat, tall] = [cols + gaps[0], cols + gaps[1], rows + gaps[2]];
    let data: Vec<S> = values(offsets[0] + rows * wide);
    let source = ground.holding(&data);
    let mut plain = ground.guarded::<D>(offsets[1] + rows * flat + 2);
    let mut turned = ground.guarded::<D>(offsets[2] + cols * tall + 2);
    let mut amax = ground.holding(&[0f32]);
    let scale = ground.holding(&[given.unwrap_or(1.0)]);
    let from = source.view().slice(offsets[0]..data.len()).unwrap();
    let from = Rows::new(from, rows, cols, wide).unwrap();
    let end = offsets[1] + rows * flat;
    let into = plain.view_mut().slice(offsets[1]..end).unwrap();
    let into = RowsMut::new(into, rows, cols, flat).unwrap();
    let end = offsets[2] + cols * tall;
    let onto = turned.view_mut().slice(offsets[2]..end).unwrap();
    let onto = RowsMut::new(onto, cols, rows, tall).unwrap();
    let mut wanted = Transpose::default().how(how).amax(amax.view_mut());
    if given.is_some() {
        wanted = wanted.scale(scale.view());
    }
    cast_transpose(&ground.stream, from, Some(into), onto, wanted).unwrap();
    ground.stream.synchronize().unwrap();

    let what = format!("{} {shape:?} {how:?} {given:?}", target.format.name);
    let (plain, turned) = (plain.download().unwrap(), turned.download().unwrap());
    assert!(is_guard(&plain[..offsets[1]]) && is_guard(&turned[..offsets[2]]));
    assert!(is_guard(&plain[offsets[1] + rows * flat..]));
    assert!(is_guard(&turned[offsets[2] + cols * tall..]));
    let inverse = given.map_or(1.0, |scale| Scale::given(scale).inverse);
    let (mut codes, mut most) = (Vec::new(), 0);
    for row in 0..rows {
        let line = &plain[offsets[1] + row * flat..][..flat];
        assert!(is_guard(&line[cols..]), "{what}: behind row {row}");
        for (col, got) in line[..cols].iter().enumerate() {
            let x = data[offsets[0] + row * wide + col].wide();
            most = most.max(if x.is_nan() {
                0x7FFF_FFFF
            } else {
                x.abs().to_bits()
            });
            let got = (target.code)(got);
            let y = f64::from(x * inverse);
            let by = |rounding| round(&target.format, How { rounding, overflow }, y);
            let fits = match rounding {
                abi::WP_STOCHASTIC => [abi::WP_DOWN, abi::WP_UP].map(by).contains(&got),
                rounding => by(rounding) == got,
            };
            assert!(fits, "{what}: {x:e} at {row}, {col} is {got:#x}");
            let other = (target.code)(&turned[offsets[2] + col * tall + row]);
            assert_eq!(other, got, "{what}: turned {row}, {col}");
            codes.push(got);
        }
    }
    for col in 0..cols {
        let line = &turned[offsets[2] + col * tall..][..tall];
        assert!(is_guard(&line[rows..]), "{what}: behind column {col}");
    }
    assert_eq!(amax.download().unwrap()[0].to_bits(), most, "{what}: amax");
    codes
}

fn every_way<S: Value, D: Narrow>(ground: &Ground, target: &Target<D>) {
    let saturate = abi::WP_SATURATE;
    for shape in SHAPES {
        let plain = Conversion::default();
        let nearest = (abi::WP_NEAREST, abi::WP_TO_INFINITY);
        check::<S, D>(ground, target, shape, plain, nearest, None);
        let up = Conversion::from((Rounding::Up, Overflow::Saturate));
        check::<S, D>(
            ground,
            target,
            shape,
            up,
            (abi::WP_UP, saturate),
            Some(0.037),
        );
        // Saturated: without that, directed rounding overflows in ways that chance does not.
        let chance = Rounding::Stochastic { seed: 6 };
        let chance = Conversion::from((chance, Overflow::Saturate));
        check::<S, D>(
            ground,
            target,
            shape,
            chance,
            (abi::WP_STOCHASTIC, saturate),
            Some(3.0),
        );
    }
}

fn every_target<S: Value>(ground: &Ground) {
    let of_e4m3 = |format, code| Target::<E4m3> { format, code };
    every_way::<S, E4m3>(ground, &of_e4m3(E4M3, |q| q.0.into()));
    let of_e5m2 = |format, code| Target::<E5m2> { format, code };
    every_way::<S, E5m2>(ground, &of_e5m2(E5M2, |q| q.0.into()));
    let of_f16 = |format, code| Target::<f16> { format, code };
    every_way::<S, f16>(ground, &of_f16(F16, |q| q.to_bits().into()));
    let of_bf16 = |format, code| Target::<bf16> { format, code };
    every_way::<S, bf16>(ground, &of_bf16(BF16, |q| q.to_bits().into()));
}

#[test]
fn f32_is_cast_and_turned_into_every_format() {
    every_ground().iter().for_each(every_target::<f32>);
}

#[test]
fn f16_is_cast_and_turned_into_every_format() {
    every_ground().iter().for_each(every_target::<f16>);
}

#[test]
fn bf16_is_cast_and_turned_into_every_format() {
    every_ground().iter().for_each(every_target::<bf16>);
}

#[test]
fn stochastic_results_are_the_same_on_every_device() {
    let target = Target::<E4m3> {
        format: E4M3,
        code: |q| q.0.into(),
    };
    let how = Conversion::from((Rounding::Stochastic { seed: 2 }, Overflow::Saturate));
    let numbers = (abi::WP_STOCHASTIC, abi::WP_SATURATE);
    let every: Vec<Vec<u32>> = every_ground()
        .iter()
        .map(|ground| check::<f32, E4m3>(ground, &target, SHAPES[3], how, numbers, Some(0.2)))
        .collect();
    assert!(every.iter().all(|codes| *codes == every[0]));
}

#[test]
fn the_turned_result_alone_is_written_too_and_a_wrong_shape_is_an_error() {
    for ground in every_ground() {
        let data: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let (source, mut target) = (ground.holding(&data), ground.guarded::<f16>(6));
        let stream = &ground.stream;
        let mut run = |rows, cols| {
            let from = Rows::new(source.view(), 2, 3, 3).unwrap();
            let onto = RowsMut::new(target.view_mut(), rows, cols, cols).unwrap();
            cast_transpose(stream, from, None, onto, Transpose::default())
        };
        let error = run(2, 3).unwrap_err().to_string();
        assert!(
            error.contains("2 x 3 elements, and 3 x 2 are written"),
            "{error}"
        );
        run(3, 2).unwrap();
        stream.synchronize().unwrap();
        let got: Vec<f32> = target
            .download()
            .unwrap()
            .iter()
            .map(|x| x.to_f32())
            .collect();
        assert_eq!(got, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }
}

#[test]
fn a_wrong_shape_beside_and_a_scale_or_maximum_without_elements_are_errors_and_nothing_is_written()
{
    for ground in every_ground() {
        let source = ground.holding(&[1f32; 6]);
        let (mut plain, mut target) = (ground.guarded::<f16>(6), ground.guarded::<f16>(6));
        let mut floats = ground.guarded::<f32>(1);
        let mut run = |rows, cols, how: Transpose<'_>| {
            let from = Rows::new(source.view(), 2, 3, 3).unwrap();
            let beside = RowsMut::new(plain.view_mut(), rows, cols, cols).unwrap();
            let onto = RowsMut::new(target.view_mut(), 3, 2, 2).unwrap();
            let done = cast_transpose(&ground.stream, from, Some(beside), onto, how);
            done.unwrap_err().to_string()
        };
        for (rows, cols) in [(3, 2), (1, 3), (2, 2)] {
            let error = run(rows, cols, Transpose::default());
            assert!(error.contains("and 2 x 3 are written"), "{error}");
        }
        let none = Transpose::default().scale(floats.view().slice(..0).unwrap());
        let error = run(2, 3, none);
        assert!(error.contains("scale: it has 0 elements"), "{error}");
        let none = Transpose::default().amax(floats.view_mut().slice(..0).unwrap());
        let error = run(2, 3, none);
        assert!(error.contains("amax: it has 0 elements"), "{error}");
        assert!(is_guard(&plain.download().unwrap()) && is_guard(&target.download().unwrap()));
    }
}
