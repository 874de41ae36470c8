//! MX and NVFP4 on every device, against the specification: every code, every rounding, every shape.

use half::{bf16, f16};
use warpool::convert::{
    BlockScales, E2m1, E2m3, E3m2, E4m3, E5m2, E8m0, MX_BLOCK, MxElement, NVFP4_BLOCK, Quantize,
    Rounding, Rows, RowsMut, mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize,
};
use warpool::{View, ViewMut};

use crate::fp8::values;
use crate::ground::{Ground, every_ground, is_guard};
use crate::reference::{Value, same};

/// An element format as the specification's tables give it.
struct Spec {
    name: &'static str,
    bits: u32,
    significand: u32,
    bias: i32,
    /// Codes of magnitudes are numbers up to this one.
    max: u32,
    nan: Option<u32>,
}

const fn spec(name: &'static str, bits: u32, significand: u32, bias: i32, max: u32) -> Spec {
    Spec {
        name,
        bits,
        significand,
        bias,
        max,
        nan: None,
    }
}

const E2M1: Spec = spec("e2m1", 4, 1, 1, 7);
const E2M3: Spec = spec("e2m3", 6, 3, 1, 31);
const E3M2: Spec = spec("e3m2", 6, 2, 3, 31);
const E4M3: Spec = Spec {
    nan: Some(0x7F),
    ..spec("e4m3", 8, 3, 7, 0x7E)
};
const E5M2: Spec = Spec {
    nan: Some(0x7F),
    ..spec("e5m2", 8, 2, 15, 0x7B)
};

impl Spec {
    /// (-1)^s * 2^(e - bias) * (1 + m / 2^k), or with e = 0 the subnormal (-1)^s * 2^(1 - bias) * m / 2^k.
    fn value(&self, code: u32) -> f64 {
        let sign = if code >> (self.bits - 1) == 1 {
            -1.0
        } else {
            1.0
        };
        let magnitude = code & ((1 << (self.bits - 1)) - 1);
        let (e, m) = (
            magnitude >> self.significand,
            magnitude & ((1 << self.significand) - 1),
        );
        let m = f64::from(m) / f64::from(1 << self.significand);
        sign * match e {
            0 => 2f64.powi(1 - self.bias) * m,
            e => 2f64.powi(e as i32 - self.bias) * (1.0 + m),
        }
    }

    fn decode(&self, code: u32) -> f64 {
        let magnitude = code & ((1 << (self.bits - 1)) - 1);
        if magnitude > self.max {
            return if self.name == "e5m2" && magnitude == 0x7C {
                f64::INFINITY.copysign(-f64::from(code >> 7) + 0.5)
            } else {
                f64::NAN
            };
        }
        self.value(code)
    }

    /// The power of two at or below the largest value.
    fn top_power(&self) -> i32 {
        self.value(self.max).log2().floor() as i32
    }

    fn sign(&self, y: f64) -> u32 {
        u32::from(y.is_sign_negative()) << (self.bits - 1)
    }

    /// The nearest code; of two as near the even one. By looking at them all.
    fn nearest(&self, y: f64) -> u32 {
        if y.is_nan() {
            return self.nan.unwrap_or(0);
        }
        let away = |code: &u32| (self.value(*code) - y.abs()).abs();
        let better = |a: u32, b: u32| match away(&a).total_cmp(&away(&b)) {
            std::cmp::Ordering::Less => a,
            std::cmp::Ordering::Greater => b,
            std::cmp::Ordering::Equal => a + a % 2 * (b - a),
        };
        // Infinity is as far from all: it is clamped, as every value is.
        let clamped = y.abs().min(self.value(self.max));
        let code = if clamped < y.abs() {
            self.max
        } else {
            (1..=self.max).fold(0, better)
        };
        self.sign(y) | code
    }

    /// The codes at or below and at or above.
    fn neighbours(&self, y: f64) -> [u32; 2] {
        if y.is_nan() {
            return [self.nan.unwrap_or(0); 2];
        }
        let size = y.abs();
        let below = (0..=self.max).rev().find(|&c| self.value(c) <= size);
        let above = (0..=self.max).find(|&c| self.value(c) >= size);
        [below, above.or(Some(self.max))].map(|code| self.sign(y) | code.unwrap())
    }
}

fn amax(block: &[f32]) -> f32 {
    let larger = |a: f32, x: &f32| {
        if x.is_nan() || x.abs() > a {
            x.abs()
        } else {
            a
        }
    };
    let all = block.iter().fold(0.0, larger);
    if block.iter().all(|x| x.is_finite()) {
        all
    } else {
        f32::NAN
    }
}

/// The shared exponent of section 6.3, as a code of E8M0.
fn shared(spec: &Spec, block: &[f32]) -> u8 {
    let amax = f64::from(amax(block));
    if amax.is_nan() {
        return 0xFF;
    }
    if amax == 0.0 {
        return 127;
    }
    let exponent = amax.log2().floor() as i32 - spec.top_power();
    (exponent.clamp(-127, 127) + 127) as u8
}

fn e8m0(code: u8) -> f64 {
    match code {
        0xFF => f64::NAN,
        code => 2f64.powi(i32::from(code) - 127),
    }
}

/// The code of element `col` of a row of packed codes.
fn unpacked(row: &[u8], bits: u32, col: usize) -> u32 {
    let of = |bit: usize| u32::from(row[bit / 8] >> (bit % 8) & 1);
    (0..bits as usize).fold(0, |code, i| code | of(col * bits as usize + i) << i)
}

/// Where the scale of a block lies.
fn scale_place(layout: BlockScales, blocks: usize, row: usize, block: usize) -> usize {
    match layout {
        BlockScales::Tiled => {
            let tile = row / 128 * blocks.div_ceil(4) + block / 4;
            tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
        }
        _ => row * blocks + block,
    }
}

/// A shape: rows, columns, elements between rows, offset of the values, of the codes.
type Shape = (usize, usize, usize, usize, usize);
const SHAPES: [Shape; 8] = [
    (1, 1, 0, 0, 0),
    (1, 32, 0, 0, 0),
    (4, 128, 0, 0, 0),
    (3, 47, 2, 1, 1),
    (130, 96, 0, 0, 4),
    (5, 321, 15, 0, 0),
    (2, 4100, 0, 8, 3),
    (33, 160, 32, 4, 8),
];

/// A tensor on a device and what became of it.
struct Run<S> {
    shape: Shape,
    layout: BlockScales,
    block: u64,
    bits: u32,
    data: Vec<S>,
    /// Bytes of each row of codes.
    codes: Vec<Vec<u8>>,
    scales: Vec<u8>,
    /// The values that the codes stand for.
    back: Vec<Vec<u32>>,
}

/// A view of a buffer of bytes as one of another type of bytes.
fn seen<'a, T: bytemuck::Pod>(addr: u64, len: usize) -> View<'a, T> {
    // SAFETY: the buffers of a run live until it has waited.
    unsafe { View::from_raw(addr, len) }.unwrap()
}

fn seen_mut<'a, T: bytemuck::Pod>(addr: u64, len: usize) -> ViewMut<'a, T> {
    // SAFETY: as for `seen`; the work is on one stream.
    unsafe { ViewMut::from_raw(addr, len) }.unwrap()
}

impl<S: Value> Run<S> {
    /// Forth and back; both get values, codes and the address of the scales.
    fn new<C: bytemuck::Pod>(
        ground: &Ground,
        (shape, layout): (Shape, BlockScales),
        (block, bits): (usize, u32),
        data: Vec<S>,
        forth: impl Fn(Rows<'_, S>, RowsMut<'_, C>, u64, usize),
        back: impl Fn(Rows<'_, C>, u64, usize, RowsMut<'_, S>),
    ) -> Self {
        let (rows, cols, gap, from, to) = shape;
        let pitch = cols + gap;
        let row_bytes = (cols * bits as usize).div_ceil(8);
        let code_pitch = row_bytes + gap;
        let source = ground.holding(&data);
        let codes = ground.guarded::<u8>(to + rows * code_pitch + 2);
        let count = layout.count(rows, cols, block);
        let scales = ground.guarded::<u8>(count + 3);
        let again = ground.guarded::<S>(from + rows * pitch + 2);
        let values = source.view().slice(from..data.len()).unwrap();
        let len = rows * code_pitch;
        let wide = || Rows::new(values, rows, cols, pitch).unwrap();
        let into = seen_mut::<C>(codes.addr() + to as u64, len);
        let into = RowsMut::new(into, rows, row_bytes, code_pitch).unwrap();
        forth(wide(), into, scales.addr(), count);
        let coded = seen::<C>(codes.addr() + to as u64, len);
        let coded = Rows::new(coded, rows, row_bytes, code_pitch).unwrap();
        let place = again.addr() + (from * size_of::<S>()) as u64;
        let onto = seen_mut::<S>(place, rows * pitch);
        let onto = RowsMut::new(onto, rows, cols, pitch).unwrap();
        back(coded, scales.addr(), count, onto);
        ground.stream.synchronize().unwrap();
        let (codes, scales) = (codes.download().unwrap(), scales.download().unwrap());
        let again = again.download().unwrap();
        assert!(is_guard(&codes[..to]) && is_guard(&scales[count..]));
        assert!(is_guard(&again[..from]) && is_guard(&again[from + rows * pitch..]));
        let split = |row: usize| {
            let line = &codes[to + row * code_pitch..][..code_pitch];
            assert!(is_guard(&line[row_bytes..]), "behind row {row}");
            line[..row_bytes].to_vec()
        };
        let bits_of = |row: usize| {
            let line = &again[from + row * pitch..][..pitch];
            assert!(is_guard(&line[cols..]), "behind row {row}");
            line[..cols].iter().map(|x| x.bits()).collect()
        };
        Self {
            codes: (0..rows).map(split).collect(),
            back: (0..rows).map(bits_of).collect(),
            scales: scales[..count].to_vec(),
            shape,
            layout,
            block: block as u64,
            bits,
            data,
        }
    }

    fn wide(&self, row: usize) -> Vec<f32> {
        let (_, cols, gap, from, _) = self.shape;
        let line = &self.data[from + row * (cols + gap)..][..cols];
        line.iter().map(|x| x.wide()).collect()
    }

    /// Checks scales and codes against what `of` says of a block (its scale's code, and each of its
    /// values divided by the scale) and values against what `value` says of a code and a scale.
    fn check(
        &self,
        spec: &Spec,
        stochastic: bool,
        of: impl Fn(&[f32]) -> (u8, Vec<f64>),
        value: impl Fn(f64, u8) -> f32,
    ) {
        let (rows, cols, ..) = self.shape;
        let what = format!("{} {:?} {:?}", spec.name, self.shape, self.layout);
        let blocks = cols.div_ceil(self.block as usize);
        let mut of_nobody = vec![true; self.scales.len()];
        for row in 0..rows {
            let wide = self.wide(row);
            for (block, part) in wide.chunks(self.block as usize).enumerate() {
                let (scale, scaled) = of(part);
                let place = scale_place(self.layout, blocks, row, block);
                of_nobody[place] = false;
                assert_eq!(
                    self.scales[place], scale,
                    "{what}: scale {row}, {block} of {part:?}"
                );
                for (i, &y) in scaled.iter().enumerate() {
                    let col = block * self.block as usize + i;
                    let got = unpacked(&self.codes[row], self.bits, col);
                    let fits = if stochastic {
                        spec.neighbours(y).contains(&got)
                    } else {
                        spec.nearest(y) == got
                    };
                    assert!(fits, "{what}: {y:e} at {row}, {col} is {got:#x}");
                    let want = S::bits_of(value(spec.decode(got), scale));
                    assert_eq!(self.back[row][col], want, "{what}: back at {row}, {col}");
                }
            }
            let last = cols * self.bits as usize;
            let rest =
                (last..self.codes[row].len() * 8).map(|b| self.codes[row][b / 8] >> (b % 8) & 1);
            assert_eq!(
                rest.max().unwrap_or(0),
                0,
                "{what}: the rest of the last byte"
            );
        }
        let padding = self
            .scales
            .iter()
            .zip(of_nobody)
            .filter(|(_, nobody)| *nobody);
        assert!(padding.into_iter().all(|(s, _)| *s == 0), "{what}: padding");
    }
}

fn mx_run<S: Value, Q: MxElement>(
    ground: &Ground,
    how: (Shape, BlockScales),
    data: Vec<S>,
    rounding: Rounding,
) -> Run<S> {
    let stream = &ground.stream;
    Run::new::<Q::Code>(
        ground,
        how,
        (MX_BLOCK, Q::BITS),
        data,
        |values, codes, scales, count| {
            let scales = seen_mut::<E8m0>(scales, count);
            let quantize = Quantize::default().rounding(rounding);
            mx_quantize::<Q, S>(stream, values, codes, scales, how.1, quantize).unwrap();
        },
        |codes, scales, count, values| {
            let scales = seen::<E8m0>(scales, count);
            mx_dequantize::<Q, S>(stream, codes, scales, how.1, values).unwrap();
        },
    )
}

fn mx_check<S: Value>(run: &Run<S>, spec: &Spec, stochastic: bool) {
    let of = |block: &[f32]| {
        let scale = shared(spec, block);
        (
            scale,
            block.iter().map(|&x| f64::from(x) / e8m0(scale)).collect(),
        )
    };
    run.check(spec, stochastic, of, |v, scale| (v * e8m0(scale)) as f32);
}

const STOCHASTIC: Rounding = Rounding::Stochastic { seed: 21 };

fn every_mx<S: Value, Q: MxElement>(ground: &Ground, spec: &Spec) {
    for shape in SHAPES {
        for layout in [BlockScales::Rows, BlockScales::Tiled] {
            let data = || values::<S>(shape.3 + shape.0 * (shape.1 + shape.2));
            let run = mx_run::<S, Q>(ground, (shape, layout), data(), Rounding::Nearest);
            mx_check(&run, spec, false);
            let run = mx_run::<S, Q>(ground, (shape, layout), data(), STOCHASTIC);
            mx_check(&run, spec, true);
        }
    }
}

fn every_format<S: Value>(ground: &Ground) {
    every_mx::<S, E4m3>(ground, &E4M3);
    every_mx::<S, E5m2>(ground, &E5M2);
    every_mx::<S, E2m3>(ground, &E2M3);
    every_mx::<S, E3m2>(ground, &E3M2);
    every_mx::<S, E2m1>(ground, &E2M1);
}

#[test]
fn f32_becomes_every_mx_format_and_back_as_the_specification_says() {
    every_ground().iter().for_each(every_format::<f32>);
}

#[test]
fn f16_becomes_every_mx_format_and_back_as_the_specification_says() {
    every_ground().iter().for_each(every_format::<f16>);
}

#[test]
fn bf16_becomes_every_mx_format_and_back_as_the_specification_says() {
    every_ground().iter().for_each(every_format::<bf16>);
}

/// Each boundary between two codes, with what lies next to it on both sides, in blocks whose first
/// value gives the scale.
fn around_every_boundary<Q: MxElement>(ground: &Ground, spec: &Spec) {
    let mut probes = vec![0.0f64];
    for code in 0..spec.max {
        let (low, high) = (spec.value(code), spec.value(code + 1));
        for at in [low, (low + high) / 2.0, high] {
            let next = |step: i32| {
                f64::from(f32::from_bits(
                    (at as f32).to_bits().wrapping_add_signed(step),
                ))
            };
            probes.extend([at, next(1)]);
            probes.extend((at > 0.0).then(|| next(-1)));
        }
    }
    // Beyond the largest, as far as the scale lets a value be.
    let top = 2f64.powi(spec.top_power());
    probes.extend([1.75, 1.9375, 1.999_999_9].map(|x| x * top));
    for power in [-126, -60, -1, 0, 1, 77, 110] {
        let mut data: Vec<f32> = Vec::new();
        for (at, part) in probes.chunks(15).enumerate() {
            let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
            let scaled = |x: f64| (x * 2f64.powi(power)) as f32;
            data.push(scaled(top));
            data.extend(part.iter().map(|&x| scaled(sign * x)));
            data.extend(part.iter().map(|&x| scaled(-sign * x)));
            data.resize((at + 1) * 32, 0.0);
        }
        let shape = (1, data.len(), 0, 0, 0);
        let run = mx_run::<f32, Q>(ground, (shape, BlockScales::Rows), data, Rounding::Nearest);
        mx_check(&run, spec, false);
    }
}

#[test]
fn every_boundary_between_two_codes_is_where_the_specification_puts_it() {
    for ground in every_ground() {
        around_every_boundary::<E4m3>(&ground, &E4M3);
        around_every_boundary::<E5m2>(&ground, &E5M2);
        around_every_boundary::<E2m3>(&ground, &E2M3);
        around_every_boundary::<E3m2>(&ground, &E3M2);
        around_every_boundary::<E2m1>(&ground, &E2M1);
    }
}

/// Packs codes of `bits` each.
fn packed(codes: &[u32], bits: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; (codes.len() * bits as usize).div_ceil(8)];
    for (at, code) in codes.iter().enumerate() {
        for i in 0..bits as usize {
            let bit = at * bits as usize + i;
            bytes[bit / 8] |= ((code >> i & 1) as u8) << (bit % 8);
        }
    }
    bytes
}

fn every_code<Q: MxElement>(ground: &Ground, spec: &Spec) {
    // Every code in a row for every scale.
    let count = (1usize << spec.bits).max(32);
    let line: Vec<u32> = (0..count as u32).map(|c| c % (1 << spec.bits)).collect();
    let line = packed(&line, spec.bits);
    let bytes: Vec<u8> = (0..256).flat_map(|_| line.clone()).collect();
    let blocks = count / 32;
    let scales: Vec<E8m0> = (0..=255).flat_map(|s| vec![E8m0(s); blocks]).collect();
    let (codes, scales) = (ground.holding(&bytes), ground.holding(&scales));
    let mut values = ground.guarded::<f32>(256 * count);
    let row = line.len();
    let coded = Rows::new(seen::<Q::Code>(codes.addr(), 256 * row), 256, row, row).unwrap();
    let into = RowsMut::new(values.view_mut(), 256, count, count).unwrap();
    let layout = BlockScales::Rows;
    mx_dequantize::<Q, f32>(&ground.stream, coded, scales.view(), layout, into).unwrap();
    ground.stream.synchronize().unwrap();
    for (at, got) in values.download().unwrap().into_iter().enumerate() {
        let (scale, code) = (at / count, at % count % (1 << spec.bits));
        let want = spec.decode(code as u32) * e8m0(scale as u8);
        assert!(
            same(got, want as f32),
            "{} {code:#x} by {scale}: {got:e}",
            spec.name
        );
        assert!(same(f32::from(E8m0(scale as u8)), e8m0(scale as u8) as f32));
    }
}

#[test]
fn every_code_with_every_scale_has_the_value_of_the_specification() {
    for ground in every_ground() {
        every_code::<E4m3>(&ground, &E4M3);
        every_code::<E5m2>(&ground, &E5M2);
        every_code::<E2m3>(&ground, &E2M3);
        every_code::<E3m2>(&ground, &E3M2);
        every_code::<E2m1>(&ground, &E2M1);
    }
}

#[test]
fn stochastic_codes_are_right_in_the_mean_and_the_same_on_every_device() {
    let data: Vec<f32> = (0..32 * 400)
        .map(|i| (i as f32 * 0.61).sin() * 5.9)
        .collect();
    let shape = (1, data.len(), 0, 0, 0);
    let mut first = None;
    for ground in every_ground() {
        let how = (shape, BlockScales::Rows);
        let run = mx_run::<f32, E2m1>(&ground, how, data.clone(), STOCHASTIC);
        let of = |(x, bits): (&f32, &u32)| f64::from(f32::from_bits(*bits) - x);
        // Beyond 6 * scale a value is clamped; sin * 5.9 with scale 1 is not.
        let drift: f64 = data.iter().zip(&run.back[0]).map(of).sum();
        assert!((drift / data.len() as f64).abs() < 0.01, "{drift}");
        let codes = run.codes[0].clone();
        assert!(*first.get_or_insert(codes.clone()) == codes);
    }
}

fn nvfp4_run<S: Value>(
    ground: &Ground,
    how: (Shape, BlockScales),
    data: Vec<S>,
    tensor: f32,
    rounding: Rounding,
) -> Run<S> {
    let stream = &ground.stream;
    let given = ground.holding(&[tensor]);
    Run::new::<u8>(
        ground,
        how,
        (NVFP4_BLOCK, 4),
        data,
        |values, codes, scales, count| {
            let scales = seen_mut::<E4m3>(scales, count);
            let quantize = Quantize::default().rounding(rounding);
            nvfp4_quantize(stream, values, codes, scales, given.view(), how.1, quantize).unwrap();
        },
        |codes, scales, count, values| {
            let scales = seen::<E4m3>(scales, count);
            nvfp4_dequantize(stream, codes, scales, given.view(), how.1, values).unwrap();
        },
    )
}

fn every_nvfp4<S: Value>(ground: &Ground) {
    for (shape, tensor) in SHAPES
        .into_iter()
        .zip([0.37f32, 1.0, 1e-3, 0.02].into_iter().cycle())
    {
        for layout in [BlockScales::Rows, BlockScales::Tiled] {
            for rounding in [Rounding::Nearest, STOCHASTIC] {
                let data = values::<S>(shape.3 + shape.0 * (shape.1 + shape.2));
                let run = nvfp4_run::<S>(ground, (shape, layout), data, tensor, rounding);
                let of = |block: &[f32]| {
                    let amax = amax(block);
                    let scale = if amax.is_nan() {
                        0x7F
                    } else if amax == 0.0 {
                        0x38
                    } else {
                        let wanted = amax / (6.0 * tensor);
                        (E4M3.nearest(f64::from(wanted)) as u8).max(1)
                    };
                    let inverse = 1.0 / (E4M3.decode(u32::from(scale)) as f32 * tensor);
                    (
                        scale,
                        block.iter().map(|&x| f64::from(x * inverse)).collect(),
                    )
                };
                run.check(&E2M1, rounding == STOCHASTIC, of, |v, scale| {
                    v as f32 * (E4M3.decode(u32::from(scale)) as f32 * tensor)
                });
            }
        }
    }
}

#[test]
fn nvfp4_quantises_and_comes_back_as_defined() {
    for ground in every_ground() {
        every_nvfp4::<f32>(&ground);
        every_nvfp4::<f16>(&ground);
        every_nvfp4::<bf16>(&ground);
    }
}

#[test]
fn an_nvfp4_block_that_no_scale_fits_is_nan_and_zeros_have_the_scale_one() {
    let shape = (1, 3 * NVFP4_BLOCK, 0, 0, 0);
    let data: Vec<f32> = (0..shape.1 as i32)
        .map(|at| match at / NVFP4_BLOCK as i32 {
            0 => 0.0,
            1 => at as f32 - 20.5,
            _ => 1e-4,
        })
        .collect();
    for ground in every_ground() {
        for rounding in [Rounding::Nearest, STOCHASTIC] {
            let run = |tensor| {
                let how = (shape, BlockScales::Rows);
                nvfp4_run::<f32>(&ground, how, data.clone(), tensor, rounding)
            };
            // 1e-45 is the least number: what it divides overflows.
            for tensor in [0.0, -0.0, f32::NAN, 1e-45] {
                let got = run(tensor);
                assert_eq!(got.scales, [0x38, 0x7F, 0x7F], "{tensor}");
                assert!(got.codes[0].iter().all(|codes| codes & 0x77 == 0));
                let (zeros, others) = got.back[0].split_at(NVFP4_BLOCK);
                let zero = if tensor.is_nan() { 0x7FFF_FFFF } else { 0 };
                assert!(zeros.iter().all(|x| x & 0x7FFF_FFFF == zero), "{tensor}");
                assert!(others.iter().all(|&x| x == 0x7FFF_FFFF), "{tensor}");
            }
            // All scales are lost in this one: 0 times infinity is NaN.
            let got = run(f32::INFINITY);
            assert_eq!(got.scales, [0x38, 1, 1]);
            assert!(got.back[0].iter().all(|&x| x == 0x7FFF_FFFF));
        }
    }
}

#[test]
fn every_nvfp4_code_has_the_value_of_the_definition_whatever_the_two_scales() {
    let layout = BlockScales::Rows;
    let codes: Vec<u8> = (0..256 * 8)
        .map(|at| (at % 8 * 0x22 + 0x10) as u8)
        .collect();
    let scales: Vec<E4m3> = (0..=255).map(E4m3).collect();
    for ground in every_ground() {
        let (given, of_blocks) = (ground.holding(&codes), ground.holding(&scales));
        for tensor in [0.0, -0.5, 1e-45, 1e38, f32::INFINITY, f32::NAN] {
            let of_all = ground.holding(&[tensor]);
            let mut values = ground.guarded::<f32>(256 * NVFP4_BLOCK);
            let (from, all) = (of_blocks.view(), of_all.view());
            nvfp4_dequantize(&ground.stream, &given, from, all, layout, &mut values).unwrap();
            for (at, x) in values.download().unwrap().into_iter().enumerate() {
                let scale = E4M3.decode((at / NVFP4_BLOCK) as u32) as f32;
                let code = E2M1.decode(unpacked(&codes, 4, at)) as f32;
                let want = code * (scale * tensor);
                assert!(
                    same(x, want),
                    "{code} * ({scale} * {tensor}) is {x}, not {want}"
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_an_mx_tensor_is_an_error_and_nothing_is_written() {
    for ground in every_ground() {
        let source = ground.holding(&[1f32; 64]);
        let mut codes = ground.guarded::<u8>(64);
        let mut scales = ground.guarded::<E8m0>(512);
        let mut run = |bytes: usize, count: usize, layout, how: Quantize<'_>| {
            let into = codes.view_mut().slice(..bytes).unwrap();
            let scales = scales.view_mut().slice(..count).unwrap();
            let done =
                mx_quantize::<E2m3, f32>(&ground.stream, source.view(), into, scales, layout, how);
            done.unwrap_err().to_string()
        };
        let error = run(47, 2, BlockScales::Rows, Quantize::default());
        assert!(error.contains("1 x 64 values take 1 x 48"), "{error}");
        let error = run(48, 1, BlockScales::Rows, Quantize::default());
        assert!(error.contains("needs 2"), "{error}");
        let error = run(48, 511, BlockScales::Tiled, Quantize::default());
        assert!(error.contains("needs 512"), "{error}");
        let down = Quantize::default().rounding(Rounding::Down);
        let error = run(48, 2, BlockScales::Rows, down);
        assert!(error.contains("Down"), "{error}");
        let (mut fours, mut blocks) = (ground.guarded::<u8>(32), ground.guarded::<E4m3>(4));
        let one = ground.holding(&[1f32]);
        let none = || one.view().slice(..0).unwrap();
        let (layout, stream) = (BlockScales::Rows, &ground.stream);
        let (how, to) = (Quantize::default(), blocks.view_mut());
        let done = nvfp4_quantize(stream, source.view(), &mut fours, to, none(), layout, how);
        let error = done.unwrap_err().to_string();
        assert!(error.contains("tensor: it has 0 elements"), "{error}");
        let mut back = ground.guarded::<f32>(64);
        let done = nvfp4_dequantize(stream, &fours, blocks.view(), none(), layout, &mut back);
        let error = done.unwrap_err().to_string();
        assert!(error.contains("tensor: it has 0 elements"), "{error}");
        assert!(is_guard(&fours.download().unwrap()) && is_guard(&blocks.download().unwrap()));
        assert!(is_guard(&back.download().unwrap()));
        assert!(is_guard(&codes.download().unwrap()) && is_guard(&scales.download().unwrap()));
    }
}
