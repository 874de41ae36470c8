//! Every input of every narrowing, not a sample.
//!
//! `WARPOOL_EXHAUSTIVE=1` sweeps all 2^32 `f32` inputs through every target, deterministic rounding
//! and treatment of overflow, on the host and on the GPU. Without it the sweeps take every 64th strip
//! of 2^16 inputs, and a second test takes the inputs around every boundary between two results.

use crate::common;

use crate::common::BackendOf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::reference::{BF16, F16, Format, How, NARROW, every_how, intervals, round};
use warpool::Stream;
use warpool::device::Launch;
use warpool::driver::abi;

const STRIP: usize = 1 << 16;

fn whole() -> bool {
    common::variables::is_on("WARPOOL_EXHAUSTIVE")
}

/// Arguments for `count` elements.
fn arguments(
    src: u64,
    types: (u32, u32),
    dst: u64,
    count: usize,
    how: How,
    seed: u64,
) -> abi::wp_convert {
    // SAFETY: plain numbers, for which zero is a value.
    let zero: abi::wp_convert = unsafe { std::mem::zeroed() };
    abi::wp_convert {
        src,
        dst,
        count: count as u64,
        rows: 1,
        seed,
        src_type: types.0,
        dst_type: types.1,
        rounding: how.rounding,
        overflow: how.overflow,
        ..zero
    }
}

/// Converts on the host device's kernel; slices stand in for device memory.
fn on_host<S, D>(src: &[S], src_type: u32, dst: &mut [D], dst_type: u32, how: How, seed: u64) {
    assert_eq!(src.len(), dst.len());
    let args = arguments(
        src.as_ptr() as u64,
        (src_type, dst_type),
        dst.as_mut_ptr() as u64,
        src.len(),
        how,
        seed,
    );
    // SAFETY: both slices live through the call, and do not overlap.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
}

/// Converts `f32` bits and gives codes as `u32`.
fn codes(format: &Format, how: How, inputs: &[u32]) -> Vec<u32> {
    if format.bits == 16 {
        let mut out = vec![0u16; inputs.len()];
        on_host(inputs, abi::WP_F32, &mut out, format.number, how, 0);
        out.into_iter().map(u32::from).collect()
    } else {
        let mut out = vec![0u8; inputs.len()];
        on_host(inputs, abi::WP_F32, &mut out, format.number, how, 0);
        out.into_iter().map(u32::from).collect()
    }
}

/// What the reference says of one format and choice, for both signs.
struct Expected {
    format: Format,
    how: How,
    by_sign: [Vec<(u32, u32)>; 2],
}

fn every_expectation() -> Vec<Expected> {
    let both =
        |format: Format, how| [false, true].map(|negative| intervals(&format, how, negative));
    let of = |format: Format| {
        every_how().into_iter().map(move |how| Expected {
            format,
            how,
            by_sign: both(format, how),
        })
    };
    NARROW.into_iter().flat_map(of).collect()
}

/// Checks one strip's results: within an interval all are equal, and equal to its code.
fn check_strip<C: Copy + Into<u32> + PartialEq>(expected: &Expected, first: u32, out: &[C]) {
    let intervals = &expected.by_sign[(first >> 31) as usize];
    let magnitude = first & 0x7FFF_FFFF;
    let end = magnitude + out.len() as u32;
    let mut at = intervals.partition_point(|interval| interval.0 <= magnitude) - 1;
    while intervals[at].0 < end {
        let Some(next) = intervals.get(at + 1) else {
            break;
        };
        let from = intervals[at].0.max(magnitude) - magnitude;
        let to = next.0.min(end) - magnitude;
        let part = &out[from as usize..to as usize];
        // Equal to its own shift by one: every element is the first one.
        let one = part.is_empty()
            || (part[0].into() == intervals[at].1 && part[1..] == part[..part.len() - 1]);
        if !one {
            let wrong = part
                .iter()
                .position(|&code| code.into() != intervals[at].1)
                .unwrap();
            panic!(
                "f32 {:#010x} to {} {:?} gives {:#x}, not {:#x}",
                first + from + wrong as u32,
                expected.format.name,
                expected.how,
                part[wrong].into(),
                intervals[at].1
            );
        }
        at += 1;
    }
}

/// Which strips of inputs a sweep takes.
struct Strips {
    step: usize,
}

impl Strips {
    fn new() -> Self {
        Self {
            step: if whole() { 1 } else { 64 },
        }
    }

    fn count(&self) -> usize {
        (1 << 32) / STRIP / self.step
    }

    /// The inputs of a strip; another one of each group of `step`, so that no bit pattern is left out.
    fn inputs(&self, strip: usize) -> std::ops::RangeInclusive<u32> {
        let pick = strip * self.step + strip.wrapping_mul(0x9E37_79B9) % self.step;
        let first = (pick * STRIP) as u32;
        first..=first + (STRIP - 1) as u32
    }
}

fn sweep_strip(expectations: &[Expected], inputs: &[u32], wide: &mut [u16], small: &mut [u8]) {
    for expected in expectations {
        let Expected { format, how, .. } = expected;
        if format.bits == 16 {
            on_host(inputs, abi::WP_F32, wide, format.number, *how, 0);
            check_strip(expected, inputs[0], wide);
        } else {
            on_host(inputs, abi::WP_F32, small, format.number, *how, 0);
            check_strip(expected, inputs[0], small);
        }
    }
}

#[test]
fn every_f32_narrows_as_the_definitions_say_on_the_host() {
    let expectations = every_expectation();
    let strips = Strips::new();
    let next = AtomicU32::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut inputs = Vec::with_capacity(STRIP);
                let (mut wide, mut small) = (vec![0; STRIP], vec![0; STRIP]);
                loop {
                    let strip = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if strip >= strips.count() {
                        return;
                    }
                    inputs.clear();
                    inputs.extend(strips.inputs(strip));
                    sweep_strip(&expectations, &inputs, &mut wide, &mut small);
                }
            });
        }
    });
}

#[test]
fn every_boundary_between_two_results_is_where_the_definitions_put_it() {
    for expected in every_expectation() {
        for negative in [false, true] {
            let sign = u32::from(negative) << 31;
            let around = |&(start, _): &(u32, u32)| {
                start.saturating_sub(3)..=start.saturating_add(3).min(0x7FFF_FFFF)
            };
            let inputs: Vec<u32> = expected.by_sign[usize::from(negative)]
                .iter()
                .flat_map(around)
                .map(|bits| bits | sign)
                .collect();
            let found = codes(&expected.format, expected.how, &inputs);
            for (&input, code) in inputs.iter().zip(found) {
                let want = round(
                    &expected.format,
                    expected.how,
                    f64::from(f32::from_bits(input)),
                );
                assert_eq!(
                    code, want,
                    "f32 {input:#010x} to {} {:?}",
                    expected.format.name, expected.how
                );
            }
        }
    }
}

fn widened<S>(codes: &[S], format: &Format) -> Vec<u32> {
    let mut out = vec![0u32; codes.len()];
    let nearest = every_how()[0];
    on_host(codes, format.number, &mut out, abi::WP_F32, nearest, 0);
    out
}

#[test]
fn every_code_widens_to_its_value() {
    for format in NARROW {
        let all: Vec<u32> = (0..1u32 << format.bits).collect();
        let out = if format.bits == 16 {
            widened(&all.iter().map(|&c| c as u16).collect::<Vec<_>>(), &format)
        } else {
            widened(&all.iter().map(|&c| c as u8).collect::<Vec<_>>(), &format)
        };
        for (&code, bits) in all.iter().zip(out) {
            match format.decode(code) {
                Some(value) => {
                    assert_eq!(bits, (value as f32).to_bits(), "{} {code:#x}", format.name)
                }
                None if format.name == "bf16" => assert_eq!(bits, code << 16, "bf16 NaN {code:#x}"),
                None => assert_eq!(bits, 0x7FFF_FFFF, "{} NaN {code:#x}", format.name),
            }
        }
    }
}

#[test]
fn nearest_agrees_with_the_half_crate_on_every_value_that_is_not_nan() {
    let step = if whole() { 1 } else { 509 };
    let nearest = every_how()[0];
    let mut inputs: Vec<u32> = Vec::with_capacity(STRIP);
    let mut next = 0u64;
    while next <= u64::from(u32::MAX) {
        inputs.clear();
        inputs.extend(
            (next..=u64::from(u32::MAX))
                .step_by(step)
                .take(STRIP)
                .map(|bits| bits as u32),
        );
        next += (STRIP * step) as u64;
        let (mut halves, mut brains) = (vec![0u16; inputs.len()], vec![0u16; inputs.len()]);
        on_host(&inputs, abi::WP_F32, &mut halves, F16.number, nearest, 0);
        on_host(&inputs, abi::WP_F32, &mut brains, BF16.number, nearest, 0);
        for ((&input, &half), &brain) in inputs.iter().zip(&halves).zip(&brains) {
            let x = f32::from_bits(input);
            if !x.is_nan() {
                assert_eq!(
                    half,
                    half::f16::from_f32(x).to_bits(),
                    "f16 of {input:#010x}"
                );
                assert_eq!(
                    brain,
                    half::bf16::from_f32(x).to_bits(),
                    "bf16 of {input:#010x}"
                );
            }
        }
    }
}

/// Strips of one launch on a GPU.
const GPU_STRIPS: usize = 64;

/// Every deterministic way, and the stochastic one.
fn every_way() -> Vec<How> {
    let mut ways = every_how();
    ways.push(How {
        rounding: abi::WP_STOCHASTIC,
        overflow: abi::WP_TO_INFINITY,
    });
    ways
}

/// Runs one launch's inputs through every format and way on the GPU and on the host.
fn check_on_gpu(stream: &Stream, memory: &[common::Memory; 2], inputs: &[u32]) {
    let [src, dst] = memory;
    common::write(stream, src.addr, bytemuck::cast_slice(inputs));
    for format in NARROW {
        let size = format.bits as usize / 8;
        let mut want = vec![0u8; inputs.len() * size];
        for how in every_way() {
            let types = (abi::WP_F32, format.number);
            let args = arguments(src.addr, types, dst.addr, inputs.len(), how, 77);
            // SAFETY: both ranges are mapped, and live until the read below has waited.
            unsafe {
                let backend = stream.device().backend();
                backend.launch(&Launch::Convert(args), stream.raw())
            }
            .unwrap();
            let (from, to) = (inputs.as_ptr() as u64, want.as_mut_ptr() as u64);
            let args = arguments(from, types, to, inputs.len(), how, 77);
            // SAFETY: both slices live through the call, and do not overlap.
            assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
            let got = common::read(stream, dst.addr, want.len());
            if got != want {
                let at = got.iter().zip(&want).position(|(g, w)| g != w).unwrap() / size;
                panic!(
                    "f32 {:#010x} to {} {how:?}: the GPU gives {:x?}, the host {:x?}",
                    inputs[at],
                    format.name,
                    &got[at * size..(at + 1) * size],
                    &want[at * size..(at + 1) * size]
                );
            }
        }
    }
}

#[test]
fn the_gpu_gives_the_bits_of_the_host_for_every_f32() {
    let Some(device) = common::cuda() else { return };
    let len = GPU_STRIPS * STRIP;
    let strips = Strips::new();
    let next = AtomicU32::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let stream = device.stream().unwrap();
                let memory = [4, 2].map(|size| common::Memory::new(&device, size * len as u64));
                let mut inputs = Vec::with_capacity(len);
                loop {
                    let launch = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if launch >= strips.count() / GPU_STRIPS {
                        return;
                    }
                    inputs.clear();
                    for strip in launch * GPU_STRIPS..(launch + 1) * GPU_STRIPS {
                        inputs.extend(strips.inputs(strip));
                    }
                    check_on_gpu(&stream, &memory, &inputs);
                }
            });
        }
    });
}
