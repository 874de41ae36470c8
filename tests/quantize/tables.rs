//! Many tensors in one launch, against the same one by one: every code, scale, maximum and value, to the bit.

use half::{bf16, f16};
use warpool::convert::{
    BlockScales, DequantizeTable, E2m1, E2m3, E3m2, E4m3, E5m2, E8m0, Float8, MX_BLOCK, MxElement,
    Quantize, QuantizeTable, Rounding, Rows, RowsMut, Scales, ScalesMut, block_scales, dequantize,
    mx_dequantize, mx_quantize, quantize, square_scales,
};
use warpool::{Device, PoolBuf, Result};
use warpool::{View, ViewMut};

use crate::fp8::values;
use crate::ground::{Ground, every_ground, is_guard};
use crate::reference::Value;

/// Rows, columns, offset of the values: aligned and not, long, short and empty.
const SHAPES: [[usize; 3]; 9] = [
    [3, 128, 0],
    [1, 1, 1],
    [0, 64, 0],
    [130, 96, 4],
    [5, 321, 3],
    [64, 1024, 0],
    [2, 9000, 0],
    [7, 0, 0],
    [1, 20_011, 0],
];
const ROUNDINGS: [Rounding; 2] = [Rounding::Nearest, Rounding::Stochastic { seed: 77 }];

/// One tensor: its values and what is made of them.
struct Tensor<S, C, X> {
    shape: [usize; 3],
    /// Codes of a row.
    wide: usize,
    values: PoolBuf<S>,
    codes: PoolBuf<C>,
    scales: PoolBuf<X>,
    back: PoolBuf<S>,
}

impl<S: Value, C: bytemuck::Pod, X: bytemuck::Pod> Tensor<S, C, X> {
    /// All of [`SHAPES`], with codes and scales as they are told of.
    fn all(
        ground: &Ground,
        wide: impl Fn(usize) -> usize,
        scales: impl Fn(usize, usize) -> usize,
    ) -> Vec<Self> {
        let make = |shape: [usize; 3]| {
            let [rows, cols, offset] = shape;
            let wide = wide(shape[1]);
            Self {
                shape,
                wide,
                values: ground.holding(&values::<S>(offset + rows * cols)),
                codes: ground.guarded(rows * wide),
                scales: ground.guarded(scales(shape[0], shape[1])),
                back: ground.guarded(offset + rows * cols),
            }
        };
        SHAPES.into_iter().map(make).collect()
    }

    /// The codes, scales and values as bytes.
    fn bytes(&self) -> [Vec<u8>; 3] {
        let all = |bytes: &[u8]| bytes.to_vec();
        [
            all(bytemuck::cast_slice(&self.codes.download().unwrap())),
            all(bytemuck::cast_slice(&self.scales.download().unwrap())),
            all(bytemuck::cast_slice(&self.back.download().unwrap())),
        ]
    }
}

fn rows_of<S: Value>(values: &PoolBuf<S>, [rows, cols, offset]: [usize; 3]) -> Rows<'_, S> {
    let view = values.view();
    let view = view.slice(offset.min(view.len())..).unwrap();
    Rows::new(view, rows, cols, cols).unwrap()
}

fn coded<C: bytemuck::Pod>(codes: &PoolBuf<C>, rows: usize, wide: usize) -> Rows<'_, C> {
    Rows::new(codes.view(), rows, wide, wide).unwrap()
}

fn into<C: bytemuck::Pod>(codes: &mut PoolBuf<C>, rows: usize, wide: usize) -> RowsMut<'_, C> {
    RowsMut::new(codes.view_mut(), rows, wide, wide).unwrap()
}

fn back_of<S: Value>(back: &mut PoolBuf<S>, [rows, cols, offset]: [usize; 3]) -> RowsMut<'_, S> {
    let view = back.view_mut();
    let end = view.len();
    RowsMut::new(view.slice(offset.min(end)..).unwrap(), rows, cols, cols).unwrap()
}

fn seeded(rounding: Rounding, tensor: usize) -> Quantize<'static> {
    Quantize::default().rounding(match rounding {
        Rounding::Stochastic { seed } => Rounding::Stochastic {
            seed: seed + tensor as u64,
        },
        other => other,
    })
}

/// What differs between two lists of tensors.
fn compare<S: Value, C: bytemuck::Pod, X: bytemuck::Pod>(
    what: &str,
    many: &[Tensor<S, C, X>],
    alone: &[Tensor<S, C, X>],
) {
    for (many, alone) in many.iter().zip(alone) {
        let (got, want) = (many.bytes(), alone.bytes());
        for (part, name) in ["codes", "scales", "values"].iter().enumerate() {
            assert!(
                got[part] == want[part],
                "{what}: {name} of {:?}",
                many.shape
            );
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Grain {
    Tensor,
    Rows,
    Blocks,
}

fn scales_of(grain: Grain, scales: &mut PoolBuf<f32>) -> ScalesMut<'_> {
    match grain {
        Grain::Tensor => ScalesMut::Tensor(scales.view()),
        Grain::Rows => ScalesMut::Rows(scales.view_mut()),
        Grain::Blocks => ScalesMut::Blocks(scales.view_mut()),
    }
}

fn given(grain: Grain, scales: &PoolBuf<f32>) -> Scales<'_> {
    match grain {
        Grain::Tensor => Scales::Tensor(scales.view()),
        Grain::Rows => Scales::Rows(scales.view()),
        Grain::Blocks => Scales::Blocks(scales.view()),
    }
}

fn bytes_with_scales<S: Value, Q: Float8>(ground: &Ground, grain: Grain, rounding: Rounding) {
    let Ground { pool, stream } = ground;
    let count = |rows: usize, cols: usize| match grain {
        Grain::Tensor => 1,
        Grain::Rows => rows,
        Grain::Blocks => block_scales(rows, cols),
    };
    let new = || {
        let mut all = Tensor::<S, Q, f32>::all(ground, |cols| cols, count);
        if let Grain::Tensor = grain {
            all.iter_mut()
                .for_each(|t| t.scales.upload(&[0.037]).unwrap());
        }
        all
    };
    let (mut many, mut alone) = (new(), new());
    let mut amax = ground.holding(&[0f32; SHAPES.len()]);
    let mut its = ground.holding(&[0f32; SHAPES.len()]);
    for (at, t) in alone.iter_mut().enumerate() {
        let from = rows_of(&t.values, t.shape);
        let one = its.view_mut().slice(at..at + 1).unwrap();
        let codes = into(&mut t.codes, t.shape[0], t.wide);
        let how = seeded(rounding, at).amax(one);
        quantize(stream, from, codes, scales_of(grain, &mut t.scales), how).unwrap();
        let codes = coded(&t.codes, t.shape[0], t.wide);
        let back = back_of(&mut t.back, t.shape);
        dequantize(stream, codes, given(grain, &t.scales), back).unwrap();
    }
    let each = many.iter_mut().map(|t| {
        let from = rows_of(&t.values, t.shape);
        let codes = into(&mut t.codes, t.shape[0], t.wide);
        (from, codes, scales_of(grain, &mut t.scales))
    });
    let mut table = QuantizeTable::new(pool, stream, each.collect()).unwrap();
    assert_eq!(table.tensors(), SHAPES.len() as u64);
    let how = Quantize::default().rounding(rounding).amax(amax.view_mut());
    table.quantize(stream, how).unwrap();
    drop(table);
    let each = many.iter_mut().map(|t| {
        let codes = coded(&t.codes, t.shape[0], t.wide);
        (
            codes,
            given(grain, &t.scales),
            back_of(&mut t.back, t.shape),
        )
    });
    let mut table = DequantizeTable::new(pool, stream, each.collect()).unwrap();
    table.dequantize(stream).unwrap();
    drop(table);
    compare(&format!("{grain:?} {rounding:?}"), &many, &alone);
    let bits = |of: &PoolBuf<f32>| -> Vec<u32> {
        of.download().unwrap().iter().map(|x| x.to_bits()).collect()
    };
    assert_eq!(bits(&amax), bits(&its), "{grain:?}: maxima");
}

fn mx<S: Value, Q: MxElement>(ground: &Ground, layout: BlockScales, rounding: Rounding) {
    let Ground { pool, stream } = ground;
    let count = |rows, cols| layout.count(rows, cols, MX_BLOCK);
    let new = || Tensor::<S, Q::Code, E8m0>::all(ground, Q::codes, count);
    let (mut many, mut alone) = (new(), new());
    for (at, t) in alone.iter_mut().enumerate() {
        let from = rows_of(&t.values, t.shape);
        let codes = into(&mut t.codes, t.shape[0], t.wide);
        let how = seeded(rounding, at);
        mx_quantize::<Q, S>(stream, from, codes, t.scales.view_mut(), layout, how).unwrap();
        let codes = coded(&t.codes, t.shape[0], t.wide);
        let back = back_of(&mut t.back, t.shape);
        mx_dequantize::<Q, S>(stream, codes, t.scales.view(), layout, back).unwrap();
    }
    let each = many.iter_mut().map(|t| {
        let from = rows_of(&t.values, t.shape);
        let codes = into(&mut t.codes, t.shape[0], t.wide);
        (from, codes, t.scales.view_mut())
    });
    let mut table = QuantizeTable::<S, Q>::mx(pool, stream, layout, each.collect()).unwrap();
    table
        .quantize(stream, Quantize::default().rounding(rounding))
        .unwrap();
    drop(table);
    let each = many.iter_mut().map(|t| {
        let codes = coded(&t.codes, t.shape[0], t.wide);
        (codes, t.scales.view(), back_of(&mut t.back, t.shape))
    });
    let mut table = DequantizeTable::<Q, S>::mx(pool, stream, layout, each.collect()).unwrap();
    table.dequantize(stream).unwrap();
    drop(table);
    compare(
        &format!("{} bits {layout:?} {rounding:?}", Q::BITS),
        &many,
        &alone,
    );
}

fn every_format<S: Value>(ground: &Ground) {
    for rounding in ROUNDINGS {
        for grain in [Grain::Tensor, Grain::Rows, Grain::Blocks] {
            bytes_with_scales::<S, E4m3>(ground, grain, rounding);
            bytes_with_scales::<S, E5m2>(ground, grain, rounding);
        }
        for layout in [BlockScales::Rows, BlockScales::Tiled] {
            mx::<S, E4m3>(ground, layout, rounding);
            mx::<S, E5m2>(ground, layout, rounding);
            mx::<S, E2m3>(ground, layout, rounding);
            mx::<S, E3m2>(ground, layout, rounding);
            mx::<S, E2m1>(ground, layout, rounding);
        }
    }
}

#[test]
fn a_table_of_f32_gives_what_its_tensors_give_one_by_one() {
    every_ground().iter().for_each(every_format::<f32>);
}

#[test]
fn a_table_of_f16_gives_what_its_tensors_give_one_by_one() {
    every_ground().iter().for_each(every_format::<f16>);
}

#[test]
fn a_table_of_bf16_gives_what_its_tensors_give_one_by_one() {
    every_ground().iter().for_each(every_format::<bf16>);
}

/// Two tensors of 2 x 300 in one buffer of each kind.
struct Pair {
    values: PoolBuf<f32>,
    codes: PoolBuf<E4m3>,
    scales: PoolBuf<f32>,
}

impl Pair {
    fn new(ground: &Ground) -> Self {
        Self {
            values: ground.holding(&[1f32; 1200]),
            codes: ground.guarded(1200),
            scales: ground.guarded(64),
        }
    }
}

fn rows(view: View<'_, f32>) -> Rows<'_, f32> {
    Rows::new(view, 2, 300, 300).unwrap()
}

fn codes(view: ViewMut<'_, E4m3>) -> RowsMut<'_, E4m3> {
    RowsMut::new(view, 2, 300, 300).unwrap()
}

fn said(made: Result<QuantizeTable<'_, f32, E4m3>>) -> String {
    made.expect_err("it cannot be a table").to_string()
}

#[test]
fn what_cannot_be_a_table_is_an_error_and_nothing_is_written() {
    for ground in every_ground() {
        let Ground { pool, stream } = &ground;
        let mut pair = Pair::new(&ground);
        // SAFETY: refused before anything is queued.
        let overlapping =
            unsafe { ViewMut::<E4m3>::from_raw(pair.codes.addr() + 599, 600).unwrap() };
        let (low, high) = pair.values.view().split_at(600).unwrap();
        let (first, second) = pair.codes.view_mut().split_at(600).unwrap();
        let (one, two) = pair.scales.view_mut().split_at(32).unwrap();
        let error = said(QuantizeTable::new(
            pool,
            stream,
            vec![
                (rows(low), codes(first), ScalesMut::Rows(one)),
                (rows(high), codes(second), ScalesMut::Blocks(two)),
            ],
        ));
        assert!(error.contains("tensor 1 has other scales"), "{error}");
        let (first, _) = pair.codes.view_mut().split_at(600).unwrap();
        let (one, two) = pair.scales.view_mut().split_at(32).unwrap();
        let error = said(QuantizeTable::new(
            pool,
            stream,
            vec![
                (rows(low), codes(first), ScalesMut::Rows(one)),
                (rows(high), codes(overlapping), ScalesMut::Rows(two)),
            ],
        ));
        assert!(error.contains("overlaps"), "{error}");
        let (first, _) = pair.codes.view_mut().split_at(600).unwrap();
        let squares = ScalesMut::Squares(pair.scales.view_mut());
        assert!(square_scales(2, 300) <= 64);
        let error = said(QuantizeTable::new(
            pool,
            stream,
            vec![(rows(low), codes(first), squares)],
        ));
        assert!(error.contains("of squares"), "{error}");
        let few = ScalesMut::Rows(pair.scales.view_mut().slice(..1).unwrap());
        let (first, _) = pair.codes.view_mut().split_at(600).unwrap();
        let error = said(QuantizeTable::new(
            pool,
            stream,
            vec![(rows(low), codes(first), few)],
        ));
        assert!(error.contains("it has 1 elements, and needs 2"), "{error}");
        a_launch_that_is_refused(&ground, &mut pair);
        assert!(is_guard(&pair.codes.download().unwrap()));
        assert!(is_guard(&pair.scales.download().unwrap()));
    }
}

fn a_launch_that_is_refused(ground: &Ground, pair: &mut Pair) {
    let Ground { pool, stream } = ground;
    let from = Rows::new(pair.values.view(), 4, 300, 300).unwrap();
    let codes = RowsMut::new(pair.codes.view_mut(), 4, 300, 300).unwrap();
    let scales = ScalesMut::Rows(pair.scales.view_mut());
    let mut table = QuantizeTable::new(pool, stream, vec![(from, codes, scales)]).unwrap();
    let up = Quantize::default().rounding(Rounding::Up);
    assert!(table.quantize(stream, up).is_err());
    let mut none = ground.holding(&[0f32]);
    let none = none.view_mut().slice(0..0).unwrap();
    assert!(
        table
            .quantize(stream, Quantize::default().amax(none))
            .is_err()
    );
    let other = Device::host().unwrap().stream().unwrap();
    assert!(table.quantize(&other, Quantize::default()).is_err());
}

#[test]
fn a_table_of_no_tensor_launches_nothing() {
    for ground in every_ground() {
        let Ground { pool, stream } = &ground;
        let mut table = QuantizeTable::<f32, E4m3>::new(pool, stream, vec![]).unwrap();
        table.quantize(stream, Quantize::default()).unwrap();
        let mut table = DequantizeTable::<E2m1, f32>::mx(pool, stream, BlockScales::Rows, vec![]);
        table.as_mut().unwrap().dequantize(stream).unwrap();
        stream.synchronize().unwrap();
    }
}
