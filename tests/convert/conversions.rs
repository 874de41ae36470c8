//! Conversions through the public interface, on every device there is.

use crate::common;

use crate::reference::{E4M3, F16, How, round};
use bytemuck::Pod;
use common::watched::Watched;
use half::f16;
use proptest::prelude::*;
use warpool::convert::{
    Conversion, ConvertTable, E4m3, Fused, MX_BLOCK, Overflow, Rounding, Rows, RowsMut, convert,
    convert_fused, convert_rows,
};
use warpool::driver::abi;
use warpool::{Device, Pool, PoolBuf, PoolConfig, Stream};
use warpool::{View, ViewMut};

const GUARD: u8 = 0xC3;
const NEAREST: How = How {
    rounding: abi::WP_NEAREST,
    overflow: abi::WP_TO_INFINITY,
};

/// A device, a stream and a pool on it.
pub struct Bench {
    pub stream: Stream,
    pool: Pool,
}

impl Bench {
    fn new(device: &Device) -> Self {
        let pool = Pool::new(device, PoolConfig::default()).unwrap();
        Self {
            stream: device.stream().unwrap(),
            pool,
        }
    }

    pub fn holding<T: Pod>(&self, data: &[T]) -> PoolBuf<T> {
        let mut buffer = self
            .pool
            .alloc_typed::<T>(&self.stream, data.len().max(1))
            .unwrap();
        if !data.is_empty() {
            buffer.upload(data).unwrap();
        }
        buffer
    }

    /// A buffer of guard bytes.
    pub fn guarded<T: Pod>(&self, len: usize) -> PoolBuf<T> {
        let guard: T = bytemuck::pod_read_unaligned(&vec![GUARD; size_of::<T>()]);
        self.holding(&vec![guard; len.max(1)])
    }
}

pub fn every_bench() -> Vec<Bench> {
    common::devices().iter().map(Bench::new).collect()
}

/// Bits that meet every case: zeros, subnormals, ties, overflow, infinities, NaN, ordinary values.
fn value(at: u64) -> f32 {
    let mixed = at
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(17)
        .wrapping_mul(0xD1B5_4A32_D192_ED03)
        >> 16;
    match mixed % 8 {
        0 => f32::from_bits((mixed >> 8) as u32),
        1 => [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            65520.0,
            1e-7,
            -464.0,
        ][(mixed >> 8) as usize % 8],
        _ => ((mixed >> 8) as i32 % 100_000) as f32 / 64.0,
    }
}

pub fn values(count: usize) -> Vec<f32> {
    (0..count as u64).map(value).collect()
}

fn to_f16(x: f32) -> u16 {
    round(&F16, NEAREST, f64::from(x)) as u16
}

fn to_e4m3(x: f32) -> u8 {
    round(&E4M3, NEAREST, f64::from(x)) as u8
}

pub fn is_guard<T: Pod>(elements: &[T]) -> bool {
    bytemuck::cast_slice::<T, u8>(elements)
        .iter()
        .all(|&byte| byte == GUARD)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_length_at_any_offset_converts_and_touches_nothing_else(
        len in prop_oneof![0usize..40, 0usize..5000, 4000usize..20_000],
        from in 0usize..20, to in 0usize..20,
    ) {
        for bench in every_bench() {
            let data = values(from + len + 3);
            let wide = bench.holding(&data);
            let mut half = bench.guarded::<f16>(to + len + 5);
            let mut small = bench.guarded::<E4m3>(to + len + 5);
            let (f, t, n) = (from, to, len);
            let source = wide.view().slice(f..f + n).unwrap();
            convert(&bench.stream, source, half.view_mut().slice(t..t + n).unwrap(), Rounding::Nearest).unwrap();
            convert(&bench.stream, source, small.view_mut().slice(t..t + n).unwrap(), Rounding::Nearest).unwrap();
            // And back: a source at any offset of a narrower format.
            let mut back = bench.guarded::<f32>(from + len + 5);
            let source = half.view().slice(t..t + n).unwrap();
            convert(&bench.stream, source, back.view_mut().slice(f..f + n).unwrap(), Rounding::Nearest).unwrap();
            bench.stream.synchronize().unwrap();
            let (half, small, back) = (half.download().unwrap(), small.download().unwrap(), back.download().unwrap());
            for i in 0..len {
                let x = data[from + i];
                prop_assert_eq!(half[to + i].to_bits(), to_f16(x), "f16 of {:e} at {}", x, i);
                prop_assert_eq!(small[to + i].0, to_e4m3(x), "e4m3 of {:e} at {}", x, i);
                let again = F16.decode(u32::from(to_f16(x))).map_or(0x7FFF_FFFF, |v| (v as f32).to_bits());
                prop_assert_eq!(back[from + i].to_bits(), again, "f32 again at {}", i);
            }
            prop_assert!(is_guard(&half[..to]) && is_guard(&half[to + len..]));
            prop_assert!(is_guard(&small[..to]) && is_guard(&small[to + len..]));
            prop_assert!(is_guard(&back[..from]) && is_guard(&back[from + len..]));
        }
    }

    #[test]
    fn rows_at_any_pitch_convert_and_the_gaps_stay(
        rows in 0usize..12, cols in 0usize..700, gap_from in 0usize..9, gap_to in 0usize..9,
        from in 0usize..5, to in 0usize..9,
    ) {
        for bench in every_bench() {
            let (pitch_from, pitch_to) = (cols + gap_from, cols + gap_to);
            let data = values(from + rows * pitch_from + 1);
            let wide = bench.holding(&data);
            let mut half = bench.guarded::<f16>(to + rows * pitch_to + 1);
            let source = wide.view().slice(from..data.len()).unwrap();
            let source = Rows::new(source, rows, cols, pitch_from).unwrap();
            let target = half.view_mut().slice(to..to + rows * pitch_to).unwrap();
            let target = RowsMut::new(target, rows, cols, pitch_to).unwrap();
            convert_rows(&bench.stream, source, target, Rounding::Nearest).unwrap();
            bench.stream.synchronize().unwrap();
            let half = half.download().unwrap();
            prop_assert!(is_guard(&half[..to]));
            let half = &half[to..];
            for row in 0..rows {
                for col in 0..cols {
                    let x = data[from + row * pitch_from + col];
                    prop_assert_eq!(half[row * pitch_to + col].to_bits(), to_f16(x), "row {} col {}", row, col);
                }
                prop_assert!(is_guard(&half[row * pitch_to + cols..(row + 1) * pitch_to]));
            }
        }
    }

    #[test]
    fn a_table_converts_every_tensor_of_any_size_and_offset(
        lengths in prop::collection::vec(prop_oneof![0usize..3, 1usize..200, 1000usize..6000], 1..60),
        offset in 0usize..8,
    ) {
        for bench in every_bench() {
            let total: usize = lengths.iter().sum();
            let data = values(total + offset);
            let wide = bench.holding(&data);
            let half = bench.guarded::<f16>(total + 2 * lengths.len() + 1);
            let mut amax = bench.holding(&vec![0f32; lengths.len()]);
            let (mut tensors, mut starts, mut from, mut to) = (vec![], vec![], offset, 1);
            for &n in &lengths {
                // SAFETY: the pieces of the buffer are apart, and it lives until the download below.
                let target = unsafe { ViewMut::<f16>::from_raw(half.addr() + 2 * to as u64, n) }.unwrap();
                tensors.push((wide.view().slice(from..from + n).unwrap(), target));
                starts.push((from, to));
                (from, to) = (from + n, to + n + 2);
            }
            let mut table = ConvertTable::new(&bench.pool, &bench.stream, tensors).unwrap();
            table.convert(&bench.stream, Rounding::Nearest).unwrap();
            let fused = Fused::default().amax(amax.view_mut());
            table.convert_fused(&bench.stream, Rounding::Nearest, fused).unwrap();
            bench.stream.synchronize().unwrap();
            drop(table);
            let (half, amax) = (half.download().unwrap(), amax.download().unwrap());
            for (tensor, (&len, &(from, to))) in lengths.iter().zip(&starts).enumerate() {
                let part = &data[from..from + len];
                for (i, &x) in part.iter().enumerate() {
                    prop_assert_eq!(half[to + i].to_bits(), to_f16(x), "tensor {} at {}", tensor, i);
                }
                prop_assert!(is_guard(&half[to + len..to + len + 2]), "after tensor {}", tensor);
                prop_assert_eq!(amax[tensor].to_bits(), largest(part), "amax of tensor {}", tensor);
            }
        }
    }

    #[test]
    fn converting_in_place_gives_what_converting_into_another_buffer_gives(
        len in prop_oneof![1usize..100, 257usize..1025, 2000usize..2100, 1usize..30_000],
    ) {
        for bench in every_bench() {
            let data = values(len);
            let half: Vec<u16> = data.iter().map(|&x| to_f16(x)).collect();
            let wide = bench.holding(&data);
            let before = wide.block().capacity();
            let narrowed = wide.convert_in_place::<f16>(Rounding::Nearest).unwrap();
            let got: Vec<u16> = narrowed.download().unwrap().iter().map(|x| x.to_bits()).collect();
            prop_assert!(got == half);
            // The half that narrowing freed is the pool's again, but for that of a block in a slab,
            // whose room is no multiple of 256.
            let (after, slot) = (narrowed.block().capacity(), before % 256 != 0);
            prop_assert_eq!(after, if slot { before } else { (2 * len as u64).next_multiple_of(256) });
            // Widening needs room of its own.
            let widened = narrowed.convert_in_place::<f32>(Rounding::Nearest);
            prop_assert_eq!(widened.is_err(), 4 * len as u64 > after);
            let room = 4 * len as u64;
            let mut narrow = bench.pool.alloc_typed_with_room::<f16>(&bench.stream, len, room).unwrap();
            let codes: Vec<f16> = half.iter().map(|&code| f16::from_bits(code)).collect();
            narrow.upload(&codes).unwrap();
            let widened = narrow.convert_in_place::<f32>(Rounding::Nearest).unwrap();
            let got: Vec<u32> = widened.download().unwrap().iter().map(|x| x.to_bits()).collect();
            let want = |&code: &u16| F16.decode(code.into()).map_or(0x7FFF_FFFF, |v| (v as f32).to_bits());
            prop_assert!(got == half.iter().map(want).collect::<Vec<_>>());
        }
    }

    #[test]
    fn fused_conversions_scale_add_check_and_find_the_largest(
        len in 1usize..5000, scale in -4f32..4.0, bias in -2f32..2.0, from in 0usize..4, to in 0usize..4,
    ) {
        for bench in every_bench() {
            // Finite at first, then with one NaN.
            let mut data: Vec<f32> = (0..from + len).map(|i| (i as f32).sin() * 300.0).collect();
            for bad in [false, true] {
                if bad {
                    data[from + len / 2] = f32::NAN;
                }
                let wide = bench.holding(&data);
                let mut half = bench.guarded::<f16>(to + len);
                let (mut flag, mut amax) = (bench.holding(&[0u32]), bench.holding(&[0f32]));
                let mut blocks = bench.holding(&vec![-1f32; len.div_ceil(MX_BLOCK)]);
                let device_scale = bench.holding(&[0.5f32]);
                let fused = Fused::default().scale(scale).bias(bias).scale_at(device_scale.view()).flag(flag.view_mut());
                let fused = fused.amax(amax.view_mut()).block_amax(blocks.view_mut());
                let source = wide.view().slice(from..from + len).unwrap();
                let target = half.view_mut().slice(to..to + len).unwrap();
                convert_fused(&bench.stream, source, target, Overflow::Saturate, fused).unwrap();
                bench.stream.synchronize().unwrap();
                let want: Vec<f32> = data[from..].iter().map(|x| x.mul_add(scale * 0.5, bias)).collect();
                let half = half.download().unwrap();
                for (i, &y) in want.iter().enumerate() {
                    prop_assert_eq!(half[to + i].to_bits(), to_f16(y), "{} at {}", y, i);
                }
                prop_assert!(is_guard(&half[..to]));
                prop_assert_eq!(flag.download().unwrap()[0], u32::from(bad));
                prop_assert_eq!(amax.download().unwrap()[0].to_bits(), largest(&want));
                for (block, got) in want.chunks(MX_BLOCK).zip(blocks.download().unwrap()) {
                    prop_assert_eq!(got.to_bits(), largest(block));
                }
            }
        }
    }
}

/// Bits of the largest magnitude; NaN, all ones, above all.
fn largest(values: &[f32]) -> u32 {
    let magnitude = |x: &f32| {
        if x.is_nan() {
            0x7FFF_FFFF
        } else {
            x.abs().to_bits()
        }
    };
    values.iter().map(magnitude).max().unwrap_or(0)
}

/// Lengths of many tensors: mostly short ones, some that fill several tiles.
fn many_lengths() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![24 => 1usize..9, 5 => 1usize..200, 1 => 500usize..6000];
    prop::collection::vec(length, 10_000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    #[test]
    fn ten_thousand_tensors_of_one_element_and_more_convert_in_one_launch_between_guards(
        lengths in many_lengths(), gap in 1usize..4,
    ) {
        for bench in every_bench() {
            let total: usize = lengths.iter().sum();
            let data = values(total);
            let wide = bench.holding(&data);
            let half = bench.guarded::<f16>(total + (lengths.len() + 1) * gap);
            let (mut tensors, mut from, mut to) = (vec![], 0, gap);
            for &n in &lengths {
                // SAFETY: the pieces of the buffer are apart, and it lives until the download below.
                let target = unsafe { ViewMut::<f16>::from_raw(half.addr() + 2 * to as u64, n) }.unwrap();
                tensors.push((wide.view().slice(from..from + n).unwrap(), target));
                (from, to) = (from + n, to + n + gap);
            }
            let mut table = ConvertTable::new(&bench.pool, &bench.stream, tensors).unwrap();
            table.convert(&bench.stream, Conversion::default()).unwrap();
            bench.stream.synchronize().unwrap();
            let half = half.download().unwrap();
            // The crate's conversion is right where it is no NaN, and quicker than the search.
            let of = |x: &f32| if x.is_nan() { 0x7FFF } else { f16::from_f32(*x).to_bits() };
            let want: Vec<u16> = data.iter().map(of).collect();
            let (mut from, mut to) = (0, gap);
            prop_assert!(is_guard(&half[..to]));
            for &n in &lengths {
                let got = half[to..to + n].iter().map(|x| x.to_bits());
                prop_assert!(got.eq(want[from..from + n].iter().copied()), "elements from {}", from);
                prop_assert!(is_guard(&half[to + n..to + n + gap]));
                (from, to) = (from + n, to + n + gap);
            }
        }
    }
}

#[test]
fn a_conversion_is_one_launch_with_no_allocation_and_no_wait() {
    for device in common::devices() {
        let (device, watched) = Watched::over(&device);
        let bench = Bench::new(&device);
        for log in 10..=18 {
            let wide = bench.holding(&values(1 << log));
            let mut half = bench.guarded::<f16>(1 << log);
            bench.stream.synchronize().unwrap();
            let (launches, calls) = (watched.calls("launch"), watched.all_calls());
            let stats = bench.pool.stats().allocated.current;
            convert(
                &bench.stream,
                wide.view(),
                half.view_mut(),
                Rounding::Nearest,
            )
            .unwrap();
            // One call to the device in all: a copy, an allocation or a wait would be another.
            assert_eq!(watched.calls("launch"), launches + 1, "2^{log} elements");
            assert_eq!(watched.all_calls(), calls + 1, "2^{log} elements");
            assert_eq!(bench.pool.stats().allocated.current, stats);
            bench.stream.synchronize().unwrap();
        }
    }
}

#[test]
fn overlapping_ranges_and_differing_lengths_are_errors_and_nothing_is_written() {
    for bench in every_bench() {
        let buffer = bench.guarded::<f32>(64);
        // SAFETY: the conversions are refused before anything is queued.
        let (source, target) = unsafe {
            (
                View::<f32>::from_raw(buffer.addr(), 32).unwrap(),
                ViewMut::<f16>::from_raw(buffer.addr() + 64, 32).unwrap(),
            )
        };
        let error = convert(&bench.stream, source, target, Rounding::Nearest)
            .unwrap_err()
            .to_string();
        assert!(error.contains("overlaps the source"), "{error}");
        let mut other = bench.guarded::<f16>(31);
        let pairs = vec![(source, other.view_mut())];
        let error = ConvertTable::new(&bench.pool, &bench.stream, pairs).unwrap_err();
        let words = "pair 0 has 32 elements to convert into 31";
        assert!(error.to_string().contains(words), "{error}");
        let error = convert(&bench.stream, source, other.view_mut(), Rounding::Nearest)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("1 x 31 elements, but the source has 1 x 32"),
            "{error}"
        );
        assert!(is_guard(&buffer.download().unwrap()));
    }
}

#[test]
fn a_stream_of_another_device_is_refused_by_conversions_and_tables_and_nothing_is_written() {
    fn refused<T>(outcome: warpool::Result<T>) {
        let words = outcome.err().expect("it was taken").to_string();
        assert!(words.contains("another device"), "{words}");
    }
    let elsewhere = Device::host().unwrap();
    let theirs = elsewhere.stream().unwrap();
    let pool = Pool::new(&elsewhere, PoolConfig::default()).unwrap();
    let foreign = pool.alloc_filled(&theirs, 8, 1.0f32).unwrap();
    for bench in every_bench() {
        let source = bench.holding(&values(8));
        let mut target = bench.guarded::<f16>(8);
        let how = Rounding::Nearest;
        refused(convert(&theirs, source.view(), target.view_mut(), how));
        refused(convert(
            &bench.stream,
            foreign.view(),
            target.view_mut(),
            how,
        ));
        let pairs = vec![(foreign.view(), target.view_mut())];
        refused(ConvertTable::new(&bench.pool, &bench.stream, pairs));
        let pairs = vec![(source.view(), target.view_mut())];
        let mut table = ConvertTable::new(&bench.pool, &bench.stream, pairs).unwrap();
        refused(table.convert(&theirs, how));
        drop(table);
        assert!(is_guard(&target.download().unwrap()));
    }
}

#[test]
fn what_a_fused_conversion_reads_or_writes_beside_is_an_error_if_it_is_too_short() {
    for bench in every_bench() {
        let source = bench.holding(&values(33));
        let mut target = bench.guarded::<f16>(33);
        let (mut floats, mut flag) = (bench.guarded::<f32>(2), bench.guarded::<u32>(1));
        let mut refused = |what: &str, fused: Fused<'_>| {
            let to = target.view_mut();
            let outcome = convert_fused(&bench.stream, source.view(), to, Rounding::Nearest, fused);
            let words = outcome.unwrap_err().to_string();
            assert!(words.contains(&format!("{what}: it has")), "{words}");
        };
        let none = || Fused::default().scale(2.0);
        refused(
            "scale_at",
            none().scale_at(floats.view().slice(..0).unwrap()),
        );
        refused("flag", none().flag(flag.view_mut().slice(..0).unwrap()));
        refused("amax", none().amax(floats.view_mut().slice(..0).unwrap()));
        let blocks = floats.view_mut().slice(..1).unwrap();
        refused("block_amax", none().block_amax(blocks));
        let rows = |view| Rows::new(view, 2, 16, 16).unwrap();
        let to = RowsMut::new(target.view_mut(), 2, 16, 16).unwrap();
        let blocks = none().block_amax(floats.view_mut());
        let outcome = convert_fused(
            &bench.stream,
            rows(source.view()),
            to,
            Rounding::Nearest,
            blocks,
        );
        let words = outcome.unwrap_err().to_string();
        assert!(words.contains("one contiguous conversion"), "{words}");
        let (low, high) = target.view_mut().split_at(16).unwrap();
        let pairs = [(0..16, low), (16..33, high)];
        let pairs = pairs.map(|(from, to)| (source.slice(from).unwrap(), to));
        let mut table = ConvertTable::new(&bench.pool, &bench.stream, pairs.into()).unwrap();
        let one = none().amax(floats.view_mut().slice(..1).unwrap());
        let refused = table.convert_fused(&bench.stream, Rounding::Nearest, one);
        let words = refused.unwrap_err().to_string();
        assert!(
            words.contains("amax: it has 1 elements, and needs 2"),
            "{words}"
        );
        drop(table);
        assert!(is_guard(&target.download().unwrap()));
        assert!(is_guard(&floats.download().unwrap()) && is_guard(&flag.download().unwrap()));
    }
}

#[test]
fn a_result_too_wide_for_its_block_is_an_error_that_says_how_much_it_needs() {
    for bench in every_bench() {
        let buffer = bench.guarded::<f16>(4096);
        let error = buffer
            .convert_in_place::<f32>(Rounding::Nearest)
            .unwrap_err()
            .to_string();
        assert!(error.contains("needs 16384 bytes"), "{error}");
    }
}

/// Slices of GPUs: multiprocessors, threads on each, bytes of L2.
const SLICES: [(i32, i32, i32); 4] = [
    (16, 2048, 6 << 20),
    (7, 1536, 4 << 20),
    (1, 1024, 1 << 20),
    (3, 1536, 4096),
];

#[test]
fn a_slice_of_a_gpu_gives_the_bits_of_all_of_it() {
    let Some(device) = common::cuda() else { return };
    let bench = Bench::new(&device);
    // Long enough that a launch asks what the device has.
    const LEN: usize = (1 << 22) + 77;
    let bits = |at: usize| (at as u32).wrapping_mul(2_654_435_761);
    let halves: Vec<u16> = (0..LEN).map(|at| (bits(at) >> 16) as u16).collect();
    let halves = bench.holding(
        &halves
            .iter()
            .map(|&x| f16::from_bits(x))
            .collect::<Vec<_>>(),
    );
    let run = || {
        let mut wide = bench.guarded::<f32>(LEN);
        convert(&bench.stream, &halves, &mut wide, Rounding::Nearest).unwrap();
        let (mut back, mut tensors) = (bench.guarded::<f16>(LEN), Vec::new());
        let mut rest = back.view_mut();
        for from in (0..LEN).step_by(3000) {
            let len = 3000.min(LEN - from);
            let (part, more) = rest.split_at(len).unwrap();
            tensors.push((wide.view().slice(from..from + len).unwrap(), part));
            rest = more;
        }
        let mut table = ConvertTable::new(&bench.pool, &bench.stream, tensors).unwrap();
        table.convert(&bench.stream, Conversion::default()).unwrap();
        drop(table);
        let wide: Vec<u32> = wide
            .download()
            .unwrap()
            .into_iter()
            .map(f32::to_bits)
            .collect();
        let back: Vec<u16> = back
            .download()
            .unwrap()
            .into_iter()
            .map(f16::to_bits)
            .collect();
        (wide, back)
    };
    let all = run();
    for (processors, threads, cache) in SLICES {
        abi::limit_launches(processors, threads, cache);
        let slice = run();
        abi::limit_launches(0, 0, 0);
        assert!(
            slice == all,
            "{processors} multiprocessors, {threads} threads, {cache} bytes of L2"
        );
    }
}
