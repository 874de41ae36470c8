//! `f64` to `f32`, `f16` and `bf16`: one rounding, checked at the values that two roundings get wrong.
//!
//! `WARPOOL_EXHAUSTIVE=1` takes 4096 neighbours on either side of every boundary between two results
//! of `f16` and `bf16`, 10^9 inputs of each; without it 8.

use crate::common;

use crate::common::BackendOf;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::reference::{BF16, F16, Format, How, boundary, every_how, round};
use warpool::Stream;
use warpool::device::Launch;
use warpool::driver::abi;

const F32: Format = Format {
    name: "f32",
    number: abi::WP_F32,
    bits: 32,
    significand: 23,
    bias: 127,
    max: 0x7F7F_FFFF,
    overflow: 0x7F80_0000,
    nan: 0x7FFF_FFFF,
};

/// A deterministic stream of bits.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ (self.0 >> 29)
    }
}

/// Values of the format, the ties between them, and the `f64` neighbours of both; then random bits.
fn adversarial(format: &Format, count: usize, seed: u64) -> Vec<u64> {
    let start = u64::from(format.number) + 1;
    let mut bits = Bits(start.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let mut inputs: Vec<u64> = Vec::with_capacity(count);
    while inputs.len() < count {
        let code = (bits.next() >> 7) as u32 % (format.max + 2);
        let value = format.value(code);
        let tie = (value + format.value(code + 1)) / 2.0;
        let sign = bits.next() & (1 << 63);
        for near in [value, tie] {
            for step in [-2i64, -1, 0, 1, 2] {
                inputs.push(near.to_bits().saturating_add_signed(step) | sign);
            }
            // A bit far below the last one that an intermediate f32 would keep.
            inputs.push(near.to_bits() ^ (1 << (bits.next() % 29)) | sign);
        }
        inputs.push(bits.next());
        inputs.push(f64::from(f32::from_bits(bits.next() as u32)).to_bits());
    }
    inputs.truncate(count);
    inputs
}

fn convert(inputs: &[u64], format: &Format, how: How) -> Vec<u8> {
    let mut out = vec![0u8; inputs.len() * format.bits as usize / 8];
    let args = arguments(
        inputs.as_ptr() as u64,
        format,
        out.as_mut_ptr() as u64,
        inputs.len(),
        how,
    );
    // SAFETY: both slices live through the call, and do not overlap.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
    out
}

fn arguments(src: u64, format: &Format, dst: u64, count: usize, how: How) -> abi::wp_convert {
    // SAFETY: plain numbers, for which zero is a value.
    let zero: abi::wp_convert = unsafe { std::mem::zeroed() };
    abi::wp_convert {
        src,
        dst,
        count: count as u64,
        rows: 1,
        src_type: abi::WP_F64,
        dst_type: format.number,
        rounding: how.rounding,
        overflow: how.overflow,
        ..zero
    }
}

fn code(out: &[u8], format: &Format, at: usize) -> u32 {
    let size = format.bits as usize / 8;
    let mut word = [0u8; 4];
    word[..size].copy_from_slice(&out[at * size..(at + 1) * size]);
    u32::from_le_bytes(word)
}

#[test]
fn an_f64_rounds_once_at_ties_their_neighbours_and_the_subnormal_edge() {
    for format in [F16, BF16, F32] {
        let inputs = adversarial(&format, 60_000, 0);
        for how in every_how() {
            let out = convert(&inputs, &format, how);
            for (at, &input) in inputs.iter().enumerate() {
                let want = round(&format, how, f64::from_bits(input));
                assert_eq!(
                    code(&out, &format, at),
                    want,
                    "f64 {input:#018x} to {} {how:?}",
                    format.name
                );
            }
        }
    }
}

#[test]
fn every_kind_of_f32_widens_to_the_f64_of_its_value() {
    let mut bits = Bits(3);
    let inputs: Vec<u32> = (0..100_000)
        .map(|i| if i < 1000 { i } else { bits.next() as u32 })
        .collect();
    let mut out = vec![0u64; inputs.len()];
    let nearest = every_how()[0];
    let mut args = arguments(
        inputs.as_ptr() as u64,
        &F32,
        out.as_mut_ptr() as u64,
        inputs.len(),
        nearest,
    );
    (args.src_type, args.dst_type) = (abi::WP_F32, abi::WP_F64);
    // SAFETY: both slices live through the call, and do not overlap.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
    for (&input, got) in inputs.iter().zip(out) {
        let value = f32::from_bits(input);
        let want = if value.is_nan() {
            0x7FFF_FFFF_FFFF_FFFF
        } else {
            f64::from(value).to_bits()
        };
        assert_eq!(got, want, "f32 {input:#010x}");
    }
}

fn whole() -> bool {
    common::variables::is_on("WARPOOL_EXHAUSTIVE")
}

/// Boundaries whose neighbours are converted at once.
const AT_ONCE: usize = 32;

/// The neighbours of some boundaries between two results of one sign, and what they must give.
struct Neighbours {
    inputs: Vec<u64>,
    /// How many inputs in a row give a code.
    expected: Vec<(usize, u32)>,
}

impl Neighbours {
    fn new(format: &Format, how: How, codes: std::ops::Range<u32>, negative: bool) -> Self {
        let reach = if whole() { 4096 } else { 8 };
        let sign = u64::from(negative) << 63;
        let (mut inputs, mut expected) = (Vec::new(), Vec::new());
        for code in codes {
            let (bits, [below, from]) = boundary(format, how, code, negative);
            let first = bits.saturating_sub(reach);
            inputs.extend((first..bits + reach).map(|bits| bits | sign));
            expected.push(((bits - first) as usize, below));
            expected.push((reach as usize, from));
        }
        Self { inputs, expected }
    }

    fn check(&self, out: &[u8], format: &Format, how: How) {
        let mut at = 0;
        for &(count, want) in &self.expected {
            let size = format.bits as usize / 8;
            let part = &out[at * size..(at + count) * size];
            // Equal to its own shift by one element: every element is the first one.
            let one = part[size..] == part[..part.len() - size] && code(part, format, 0) == want;
            if !one {
                let wrong = (0..count).find(|&i| code(part, format, i) != want).unwrap();
                panic!(
                    "f64 {:#018x} to {} {how:?} gives {:#x}, not {want:#x}",
                    self.inputs[at + wrong],
                    format.name,
                    code(part, format, wrong)
                );
            }
            at += count;
        }
    }
}

/// Hands every group of neighbours, for every way of rounding, to threads that `converter` makes.
fn every_neighbour<C: FnMut(&[u64], &Format, How) -> Vec<u8>>(converter: impl Fn() -> C + Sync) {
    let mut jobs = Vec::new();
    for format in [F16, BF16] {
        for how in every_how() {
            for negative in [false, true] {
                for first in (1..=format.max + 1).step_by(AT_ONCE) {
                    jobs.push((format, how, negative, first));
                }
            }
        }
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut convert = converter();
                while let Some(&(format, how, negative, first)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let codes = first..(first + AT_ONCE as u32).min(format.max + 2);
                    let group = Neighbours::new(&format, how, codes, negative);
                    group.check(&convert(&group.inputs, &format, how), &format, how);
                }
            });
        }
    });
}

#[test]
fn the_neighbours_of_every_boundary_between_two_results_are_on_their_sides_of_it() {
    every_neighbour(|| convert);
}

/// What a stream needs to convert on a GPU.
struct OnGpu {
    stream: Stream,
    src: common::Memory,
    dst: common::Memory,
}

impl OnGpu {
    fn new(device: &warpool::Device, most: usize) -> Self {
        Self {
            stream: device.stream().unwrap(),
            src: common::Memory::new(device, 8 * most as u64),
            dst: common::Memory::new(device, 4 * most as u64),
        }
    }

    fn convert(&self, inputs: &[u64], format: &Format, how: How) -> Vec<u8> {
        common::write(&self.stream, self.src.addr, bytemuck::cast_slice(inputs));
        let args = arguments(self.src.addr, format, self.dst.addr, inputs.len(), how);
        // SAFETY: both ranges are mapped, and live until the read below has waited.
        unsafe {
            let backend = self.stream.device().backend();
            backend.launch(&Launch::Convert(args), self.stream.raw())
        }
        .unwrap();
        let bytes = inputs.len() * format.bits as usize / 8;
        common::read(&self.stream, self.dst.addr, bytes)
    }
}

#[test]
fn the_neighbours_of_every_boundary_are_on_their_sides_of_it_on_the_gpu() {
    let Some(device) = common::cuda() else { return };
    every_neighbour(|| {
        let gpu = OnGpu::new(&device, AT_ONCE * 2 * 4096);
        move |inputs: &[u64], format: &Format, how| gpu.convert(inputs, format, how)
    });
}

#[test]
fn the_gpu_gives_the_bits_of_the_host_for_adversarial_f64() {
    let Some(device) = common::cuda() else { return };
    let count = 1 << 22;
    let gpu = OnGpu::new(&device, count);
    for format in [F16, BF16, F32] {
        let inputs = adversarial(&format, count, 1);
        for how in every_how() {
            let got = gpu.convert(&inputs, &format, how);
            let want = convert(&inputs, &format, how);
            assert!(got == want, "{} {how:?}", format.name);
        }
    }
}

/// `x` as an `f32` in a directed or nearest way, from the language's own conversion to nearest.
fn to_f32(x: f64, how: How) -> f32 {
    let nearest = x as f32;
    let moved = match how.rounding {
        abi::WP_TOWARD_ZERO if f64::from(nearest).abs() > x.abs() && x < 0.0 => nearest.next_up(),
        abi::WP_TOWARD_ZERO if f64::from(nearest).abs() > x.abs() => nearest.next_down(),
        abi::WP_UP if f64::from(nearest) < x => nearest.next_up(),
        abi::WP_DOWN if f64::from(nearest) > x => nearest.next_down(),
        _ => nearest,
    };
    if how.overflow == abi::WP_SATURATE && moved.is_infinite() {
        f32::MAX.copysign(moved)
    } else {
        moved
    }
}

#[test]
fn an_f64_becomes_the_f32_that_the_language_gives() {
    const PART: usize = 1 << 16;
    let parts: u64 = if whole() { 1 << 12 } else { 8 };
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if part >= parts {
                        return;
                    }
                    let inputs = adversarial(&F32, PART, part);
                    for how in every_how() {
                        let out = convert(&inputs, &F32, how);
                        for (at, &input) in inputs.iter().enumerate() {
                            let x = f64::from_bits(input);
                            let (got, want) = (code(&out, &F32, at), to_f32(x, how));
                            let right = got == want.to_bits() || (x.is_nan() && got == F32.nan);
                            assert!(
                                right,
                                "f64 {input:#018x} {how:?} gives {got:#x}, not {want:e}"
                            );
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn an_f64_far_below_the_format_never_draws_its_smallest_number() {
    let inputs = vec![1e-300f64.to_bits(); 100_000];
    let how = How {
        rounding: abi::WP_STOCHASTIC,
        overflow: abi::WP_TO_INFINITY,
    };
    for format in [F16, BF16, F32] {
        let out = convert(&inputs, &format, how);
        assert!(
            (0..inputs.len()).all(|at| code(&out, &format, at) == 0),
            "{}",
            format.name
        );
    }
}
