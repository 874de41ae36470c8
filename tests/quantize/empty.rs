//! Matrices without rows or without columns in every format with scales: nothing is read and nothing written.

use std::time::{Duration, Instant};

use warpool::convert::{
    BlockScales, E2m3, E4m3, E8m0, Grouping, I4, Quantize, Rows, RowsMut, Scales, ScalesMut,
    Transpose, cast_transpose, dequantize, dequantize_integers, mx_dequantize, mx_quantize,
    nvfp4_dequantize, nvfp4_quantize, quantize, quantize_integers,
};

use crate::ground::{every_ground, is_guard};

/// Rows and columns. The last has as many rows as there may be without elements.
const SHAPES: [(usize, usize); 4] = [(0, 0), (0, 200), (5, 0), (u32::MAX as usize, 0)];
/// Scales of rows that are there.
const SCALES: usize = 5;

#[test]
fn a_matrix_without_elements_leaves_codes_scales_and_maxima_as_they_are() {
    for ground in every_ground() {
        let stream = &ground.stream;
        let wide = ground.guarded::<f32>(1);
        let (mut values, mut amax) = (ground.guarded::<f32>(1), ground.guarded::<f32>(1));
        let (mut codes, mut bytes) = (ground.guarded::<E4m3>(1), ground.guarded::<u8>(1));
        let (mut scales, mut zeros) = (ground.guarded::<f32>(SCALES), ground.guarded::<i8>(SCALES));
        let (mut shared, mut small) = (ground.guarded::<E8m0>(1), ground.guarded::<E4m3>(1));
        for (rows, cols) in SHAPES {
            macro_rules! of {
                ($buffer:ident) => {
                    Rows::new($buffer.view(), rows, cols, cols).unwrap()
                };
                (mut $buffer:ident) => {
                    of!(mut $buffer, rows, cols)
                };
                (mut $buffer:ident, $rows:expr, $cols:expr) => {
                    RowsMut::new($buffer.view_mut(), $rows, $cols, $cols).unwrap()
                };
            }
            let packed = cols / 2;
            for kind in 0..4 {
                let into = match kind {
                    0 => ScalesMut::Tensor(scales.view()),
                    1 if rows > SCALES => continue,
                    1 => ScalesMut::Rows(scales.view_mut()),
                    2 => ScalesMut::Blocks(scales.view_mut()),
                    _ => ScalesMut::Squares(scales.view_mut()),
                };
                let how = Quantize::default().amax(amax.view_mut());
                quantize(stream, of!(wide), of!(mut codes), into, how).unwrap();
                let from = match kind {
                    0 => Scales::Tensor(scales.view()),
                    1 => Scales::Rows(scales.view()),
                    2 => Scales::Blocks(scales.view()),
                    _ => Scales::Squares(scales.view()),
                };
                dequantize(stream, of!(codes), from, of!(mut values)).unwrap();
            }
            for layout in [BlockScales::Rows, BlockScales::Tiled] {
                let how = || Quantize::default();
                let into = RowsMut::new(bytes.view_mut(), rows, cols / 4 * 3, cols).unwrap();
                mx_quantize::<E2m3, f32>(stream, of!(wide), into, shared.view_mut(), layout, how())
                    .unwrap();
                let from = Rows::new(bytes.view(), rows, cols / 4 * 3, cols).unwrap();
                mx_dequantize::<E2m3, f32>(stream, from, shared.view(), layout, of!(mut values))
                    .unwrap();
                let into = of!(mut bytes, rows, packed);
                let given = wide.view();
                nvfp4_quantize(
                    stream,
                    of!(wide),
                    into,
                    small.view_mut(),
                    given,
                    layout,
                    how(),
                )
                .unwrap();
                let from = Rows::new(bytes.view(), rows, packed, packed).unwrap();
                nvfp4_dequantize(stream, from, small.view(), given, layout, of!(mut values))
                    .unwrap();
            }
            for grouping in [Grouping::Rows, Grouping::Groups(16)] {
                if grouping.count(rows, cols) > SCALES {
                    continue;
                }
                let (into, zeros_into) = (of!(mut bytes, rows, packed), Some(zeros.view_mut()));
                let (found, how) = (scales.view_mut(), Quantize::default());
                quantize_integers::<I4, f32>(
                    stream,
                    of!(wide),
                    into,
                    grouping,
                    found,
                    zeros_into,
                    how,
                )
                .unwrap();
                let from = Rows::new(bytes.view(), rows, packed, packed).unwrap();
                let (given, zeros) = (scales.view(), Some(zeros.view()));
                let onto = of!(mut values);
                dequantize_integers::<I4, f32>(stream, from, grouping, given, zeros, onto).unwrap();
            }
            let onto = of!(mut small, cols, rows);
            let how = Transpose::default().amax(amax.view_mut());
            cast_transpose(stream, of!(wide), Some(of!(mut codes)), onto, how).unwrap();
        }
        let began = Instant::now();
        stream.synchronize().unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "rows without elements are walked through"
        );
        assert!(is_guard(&values.download().unwrap()) && is_guard(&amax.download().unwrap()));
        assert!(is_guard(&codes.download().unwrap()) && is_guard(&bytes.download().unwrap()));
        assert!(is_guard(&scales.download().unwrap()) && is_guard(&zeros.download().unwrap()));
        assert!(is_guard(&shared.download().unwrap()) && is_guard(&small.download().unwrap()));
    }
}
