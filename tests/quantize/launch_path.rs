//! What a launch's path leaves out: calls of the heap. Kernels are taken and not run, since a work queue may
//! allocate.

use bytemuck::Pod;
use half::f16;
use warpool::convert::{
    BlockScales, ConvertTable, DequantizeTable, E2m1, E4m3, E8m0, Fused, GradScaler, Gradients,
    Grouping, Quantize, QuantizeTable, Rounding, Rows, RowsMut, ScalerConfig, Scales, ScalesMut,
    Transpose, cast_transpose, convert, convert_fused, convert_rows, dequantize,
    dequantize_integers, mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize, quantize,
    quantize_integers,
};
use warpool::{PoolBuf, Stream};

use crate::common::{self, watched::Watched};
use crate::ground::Ground;
use crate::heap_calls::heap_calls;

const ROWS: usize = 128;
const COLS: usize = 256;
const ALL: usize = ROWS * COLS;

/// A ground whose launches are counted and not run.
struct Hollow {
    ground: Ground,
    watched: std::sync::Arc<Watched>,
}

impl Hollow {
    fn buffer<T: Pod>(&self) -> PoolBuf<T> {
        self.ground
            .pool
            .alloc_typed(&self.ground.stream, ALL)
            .unwrap()
    }

    /// Launches a few times to warm up, and then counts.
    fn check(&self, what: &str, mut launch: impl FnMut(&Stream)) {
        let mut ten = || (0..10).for_each(|_| launch(&self.ground.stream));
        ten();
        let before = (self.watched.calls("launch"), heap_calls());
        ten();
        // The heap first: asking the watch uses it.
        let heap = heap_calls() - before.1;
        let made = self.watched.calls("launch") - before.0;
        assert_eq!((made, heap), (10, 0), "{what}: launches, heap calls");
    }
}

fn rows<T: Pod>(buffer: &PoolBuf<T>) -> Rows<'_, T> {
    Rows::new(buffer.view(), ROWS, COLS, COLS).unwrap()
}

fn rows_mut<T: Pod>(buffer: &mut PoolBuf<T>) -> RowsMut<'_, T> {
    RowsMut::new(buffer.view_mut(), ROWS, COLS, COLS).unwrap()
}

fn packed(buffer: &mut PoolBuf<u8>) -> RowsMut<'_, u8> {
    RowsMut::new(buffer.view_mut(), ROWS, COLS / 2, COLS / 2).unwrap()
}

fn plain_conversions(hollow: &Hollow) {
    let (src, mut dst) = (hollow.buffer::<f32>(), hollow.buffer::<f16>());
    let (scale, mut found, mut amax) = (
        hollow.buffer::<f32>(),
        hollow.buffer::<u32>(),
        hollow.buffer::<f32>(),
    );
    hollow.check("convert", |stream| {
        convert(stream, src.view(), dst.view_mut(), Rounding::Nearest).unwrap();
    });
    hollow.check("convert_rows", |stream| {
        convert_rows(stream, rows(&src), rows_mut(&mut dst), Rounding::Up).unwrap();
    });
    hollow.check("convert_fused", |stream| {
        let fused = Fused::default()
            .scale_at(scale.view())
            .flag(found.view_mut())
            .amax(amax.view_mut());
        convert_fused(
            stream,
            rows(&src),
            rows_mut(&mut dst),
            Rounding::Nearest,
            fused,
        )
        .unwrap();
    });
    let (mut plain, mut turned) = (hollow.buffer::<E4m3>(), hollow.buffer::<E4m3>());
    hollow.check("cast_transpose", |stream| {
        let turned = RowsMut::new(turned.view_mut(), COLS, ROWS, ROWS).unwrap();
        let how = Transpose::default()
            .scale(scale.view())
            .amax(amax.view_mut());
        cast_transpose(stream, rows(&src), Some(rows_mut(&mut plain)), turned, how).unwrap();
    });
}

fn tables(hollow: &Hollow) {
    let (src, mut dst) = (hollow.buffer::<f32>(), hollow.buffer::<f16>());
    let Ground { pool, stream } = &hollow.ground;
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(pool, stream, pairs).unwrap();
    hollow.check("ConvertTable", |stream| {
        table.convert(stream, Rounding::Nearest).unwrap();
    });
    let (mut codes, mut scales) = (hollow.buffer::<E4m3>(), hollow.buffer::<f32>());
    let (mut amax, mut values) = (hollow.buffer::<f32>(), hollow.buffer::<f32>());
    let scaled = ScalesMut::Rows(scales.view_mut());
    let tensors = vec![(rows(&src), rows_mut(&mut codes), scaled)];
    let mut table = QuantizeTable::new(pool, stream, tensors).unwrap();
    hollow.check("QuantizeTable", |stream| {
        let how = Quantize::default().amax(amax.view_mut());
        table.quantize(stream, how).unwrap();
    });
    drop(table);
    let scaled = Scales::Rows(scales.view());
    let tensors = vec![(rows(&codes), scaled, rows_mut(&mut values))];
    let mut table = DequantizeTable::new(pool, stream, tensors).unwrap();
    hollow.check("DequantizeTable", |stream| {
        table.dequantize(stream).unwrap()
    });
    let mut gradient = hollow.buffer::<f16>();
    let mut gradients = Gradients::new(pool, stream, vec![gradient.view_mut()]).unwrap();
    let mut scaler = GradScaler::new(pool, stream, ScalerConfig::default()).unwrap();
    hollow.check("unscale", |stream| {
        scaler.unscale(stream, &mut gradients).unwrap();
    });
    hollow.check("update", |stream| scaler.update(stream).unwrap());
}

fn bytes_with_scales(hollow: &Hollow) {
    let (mut values, mut codes) = (hollow.buffer::<f32>(), hollow.buffer::<E4m3>());
    let (mut scales, mut amax) = (hollow.buffer::<f32>(), hollow.buffer::<f32>());
    for kind in 0..4 {
        hollow.check("quantize", |stream| {
            let scales = match kind {
                0 => ScalesMut::Tensor(scales.view()),
                1 => ScalesMut::Rows(scales.view_mut()),
                2 => ScalesMut::Blocks(scales.view_mut()),
                _ => ScalesMut::Squares(scales.view_mut()),
            };
            let how = Quantize::default().amax(amax.view_mut());
            quantize(stream, rows(&values), rows_mut(&mut codes), scales, how).unwrap();
        });
    }
    hollow.check("dequantize", |stream| {
        let scales = Scales::Rows(scales.view());
        dequantize(stream, rows(&codes), scales, rows_mut(&mut values)).unwrap();
    });
}

fn integers_and_blocks(hollow: &Hollow) {
    let (mut values, mut codes) = (hollow.buffer::<f32>(), hollow.buffer::<i8>());
    let (mut scales, mut zeros) = (hollow.buffer::<f32>(), hollow.buffer::<i8>());
    let mut amax = hollow.buffer::<f32>();
    let grouping = Grouping::Groups(32);
    hollow.check("quantize_integers", |stream| {
        let (scales, zeros) = (scales.view_mut(), Some(zeros.view_mut()));
        let how = Quantize::default().amax(amax.view_mut());
        let codes = rows_mut(&mut codes);
        quantize_integers::<i8, _>(stream, rows(&values), codes, grouping, scales, zeros, how)
            .unwrap();
    });
    hollow.check("dequantize_integers", |stream| {
        let (scales, zeros) = (scales.view(), Some(zeros.view()));
        let values = rows_mut(&mut values);
        dequantize_integers::<i8, _>(stream, rows(&codes), grouping, scales, zeros, values)
            .unwrap();
    });
    let (mut codes, layout) = (hollow.buffer::<u8>(), BlockScales::Tiled);
    let mut powers = hollow.buffer::<E8m0>();
    hollow.check("mx_quantize", |stream| {
        let how = Quantize::default().amax(amax.view_mut());
        let (codes, powers) = (packed(&mut codes), powers.view_mut());
        mx_quantize::<E2m1, _>(stream, rows(&values), codes, powers, layout, how).unwrap();
    });
    hollow.check("mx_dequantize", |stream| {
        let codes = Rows::new(codes.view(), ROWS, COLS / 2, COLS / 2).unwrap();
        let values = rows_mut(&mut values);
        mx_dequantize::<E2m1, _>(stream, codes, powers.view(), layout, values).unwrap();
    });
    let mut small = hollow.buffer::<E4m3>();
    hollow.check("nvfp4_quantize", |stream| {
        let how = Quantize::default().amax(amax.view_mut());
        let (codes, small) = (packed(&mut codes), small.view_mut());
        nvfp4_quantize(
            stream,
            rows(&values),
            codes,
            small,
            scales.view(),
            layout,
            how,
        )
        .unwrap();
    });
    hollow.check("nvfp4_dequantize", |stream| {
        let codes = Rows::new(codes.view(), ROWS, COLS / 2, COLS / 2).unwrap();
        let values = rows_mut(&mut values);
        nvfp4_dequantize(stream, codes, small.view(), scales.view(), layout, values).unwrap();
    });
}

#[test]
fn no_launch_calls_the_heap() {
    for device in common::devices() {
        let (device, watched) = Watched::hollow_over(&device);
        let hollow = Hollow {
            ground: Ground::new(&device),
            watched,
        };
        plain_conversions(&hollow);
        tables(&hollow);
        bytes_with_scales(&hollow);
        integers_and_blocks(&hollow);
    }
}
