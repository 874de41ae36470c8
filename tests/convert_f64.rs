//! `f64` to `f32`, `f16` and `bf16`: one rounding, checked at the values that two roundings get wrong.

mod common;
mod convert_reference;

use convert_reference::{BF16, F16, Format, How, every_how, round};
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
fn adversarial(format: &Format, count: usize) -> Vec<u64> {
    let mut bits = Bits(u64::from(format.number) + 1);
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

fn convert(inputs: &[u64], format: &Format, how: convert_reference::How) -> Vec<u8> {
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

fn arguments(
    src: u64,
    format: &Format,
    dst: u64,
    count: usize,
    how: convert_reference::How,
) -> abi::wp_convert {
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
        let inputs = adversarial(&format, 60_000);
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

#[test]
fn the_gpu_gives_the_bits_of_the_host_for_adversarial_f64() {
    let Some(device) = common::cuda() else { return };
    let stream = device.stream().unwrap();
    let count = 1 << 24;
    let src = common::Memory::new(&device, 8 * count as u64);
    let dst = common::Memory::new(&device, 4 * count as u64);
    for format in [F16, BF16, F32] {
        let inputs = adversarial(&format, count);
        common::write(&stream, src.addr, bytemuck::cast_slice(&inputs));
        for how in every_how() {
            let args = arguments(src.addr, &format, dst.addr, count, how);
            // SAFETY: both ranges are mapped, and live until the read below has waited.
            unsafe {
                device
                    .backend()
                    .launch(&Launch::Convert(args), stream.raw())
            }
            .unwrap();
            let got = common::read(&stream, dst.addr, count * format.bits as usize / 8);
            assert!(
                got == convert(&inputs, &format, how),
                "{} {how:?}",
                format.name
            );
        }
    }
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
