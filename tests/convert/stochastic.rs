//! Stochastic rounding: unbiased, never beyond the neighbours, the same on every device and grid.

use crate::common;

use crate::common::BackendOf;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::reference::{BF16, E4M3, E5M2, F16, Format, How, draw, round, round_by};
use warpool::device::Launch;
use warpool::driver::abi;

fn arguments(src: u64, format: &Format, dst: u64, count: usize, seed: u64) -> abi::wp_convert {
    // SAFETY: plain numbers, for which zero is a value.
    let zero: abi::wp_convert = unsafe { std::mem::zeroed() };
    abi::wp_convert {
        src,
        dst,
        count: count as u64,
        rows: 1,
        seed,
        src_type: abi::WP_F32,
        dst_type: format.number,
        rounding: abi::WP_STOCHASTIC,
        ..zero
    }
}

fn on_host(inputs: &[f32], format: &Format, seed: u64) -> Vec<u32> {
    let size = format.bits as usize / 8;
    let mut out = vec![0u8; inputs.len() * size];
    let args = arguments(
        inputs.as_ptr() as u64,
        format,
        out.as_mut_ptr() as u64,
        inputs.len(),
        seed,
    );
    // SAFETY: both slices live through the call, and do not overlap.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
    out.chunks(size)
        .map(|c| {
            c.iter()
                .rev()
                .fold(0, |code, &byte| code << 8 | u32::from(byte))
        })
        .collect()
}

fn how(rounding: abi::wp_rounding) -> How {
    How {
        rounding,
        overflow: abi::WP_TO_INFINITY,
    }
}

/// How often of `draws` the value `x` goes to its upper neighbour, which must be the only other.
fn ups(x: f32, format: &Format, draws: usize, seed: u64) -> f64 {
    let down = round(format, how(abi::WP_TOWARD_ZERO), f64::from(x));
    let away = how(if x < 0.0 { abi::WP_DOWN } else { abi::WP_UP });
    let up = round(format, away, f64::from(x));
    let inputs = vec![x; draws];
    let codes = on_host(&inputs, format, seed);
    for &code in &codes {
        assert!(
            code == up || code == down,
            "{x:e} to {} gives {code:#x}",
            format.name
        );
    }
    if up == down {
        0.0
    } else {
        codes.iter().filter(|&&code| code == up).count() as f64
    }
}

fn whole() -> bool {
    common::variables::is_on("WARPOOL_EXHAUSTIVE")
}

/// The fractions drawn at each exponent: an ordinary one and two near an end.
const FRACTIONS: [f64; 3] = [1.0 + 1.0 / 3.0, 1.017, 1.96];

/// Draws for each fraction. The whole proof draws 10^8 at each exponent.
fn draws() -> usize {
    if whole() {
        100_000_000usize.div_ceil(FRACTIONS.len())
    } else {
        100_000
    }
}

/// Draws for `x`, and checks that the share rounded up is the remainder's, within 5 sigma.
fn check_share(x: f32, format: &Format) {
    const PART: usize = 1 << 20;
    let down = round(format, how(abi::WP_TOWARD_ZERO), f64::from(x)) & (format.sign() - 1);
    let (below, above) = (format.value(down), format.value(down + 1));
    let share = (f64::from(x.abs()) - below) / (above - below);
    let (mut seen, mut left, mut seed) = (0.0, draws(), 0xC0FFEE);
    while left > 0 {
        let now = left.min(PART);
        seen += ups(x, format, now, seed);
        (left, seed) = (left - now, seed + 1);
    }
    let n = draws() as f64;
    let sigma = (n * share * (1.0 - share)).sqrt();
    let off = (seen - n * share).abs();
    // One draw of slack: a share far below 1/n is not normal.
    assert!(
        off <= 5.0 * sigma + 1.0,
        "{x:e} to {}: {seen} of {n}, not {}",
        format.name,
        n * share
    );
}

#[test]
fn the_share_rounded_up_is_the_remainder_within_five_sigma_at_every_exponent() {
    let mut values = Vec::new();
    for format in [F16, BF16, E4M3, E5M2] {
        let lowest = 1 - format.bias - format.significand as i32;
        let step = match format.bias {
            _ if whole() => 1,
            100.. => 32,
            _ => 4,
        };
        for exponent in (lowest - 6..format.bias).step_by(step) {
            let sign = if exponent % 3 == 0 { -1.0 } else { 1.0 };
            let at = |fraction: f64| ((fraction * 2f64.powi(exponent)) as f32 * sign, format);
            // Below the smallest f32 there is nothing to round.
            values.extend(FRACTIONS.map(at).into_iter().filter(|(x, _)| *x != 0.0));
        }
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((x, format)) = values.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check_share(*x, format);
                }
            });
        }
    });
}

#[test]
fn a_value_the_format_holds_is_unchanged() {
    for format in [F16, BF16, E4M3, E5M2] {
        let codes: Vec<u32> = (0..=format.max)
            .flat_map(|code| [code, code | format.sign()])
            .collect();
        let inputs: Vec<f32> = codes
            .iter()
            .map(|&code| format.decode(code).unwrap() as f32)
            .collect();
        for seed in 0..20 {
            assert_eq!(
                on_host(&inputs, &format, seed),
                codes,
                "{} seed {seed}",
                format.name
            );
        }
    }
}

#[test]
fn a_part_converted_on_its_own_draws_the_words_of_its_numbers() {
    let inputs: Vec<f32> = (0..1000).map(|i| 1.0 + i as f32 / 7919.0).collect();
    let whole = on_host(&inputs, &F16, 5);
    for from in [1usize, 2, 3, 4, 501] {
        let mut out = vec![0u16; 1000 - from];
        let tile = abi::wp_tile {
            src: inputs[from..].as_ptr() as u64,
            dst: out.as_mut_ptr() as u64,
            index: from as u64,
            count: out.len() as u32,
            tensor: 0,
        };
        let mut args = arguments(0, &F16, 0, 0, 5);
        args.tiles = &raw const tile as u64;
        // SAFETY: the tile and what it names live through the call.
        assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
        assert!(
            out.iter()
                .map(|&code| u32::from(code))
                .eq(whole[from..].iter().copied())
        );
    }
}

/// What elements numbered from `index` on become, from `from` (`None`: `f32`) to `to`.
fn expected(codes: &[u32], from: Option<Format>, to: &Format, seed: u64, index: u64) -> Vec<u32> {
    let value = |code: u32| match from {
        Some(format) => format.decode(code).unwrap_or(f64::NAN),
        None => f64::from(f32::from_bits(code)),
    };
    (index..)
        .zip(codes)
        .map(|(number, &code)| {
            let drawn = draw(seed, number);
            round_by(to, abi::WP_TO_INFINITY, value(code), drawn)
        })
        .collect()
}

/// The host's results for elements numbered from `index` on.
fn numbered(codes: &[u32], from: Option<Format>, to: &Format, seed: u64, index: u64) -> Vec<u32> {
    let source_size = from.map_or(4, |format| format.bits as usize / 8);
    let size = to.bits as usize / 8;
    let source: Vec<u8> = codes
        .iter()
        .flat_map(|code| code.to_le_bytes()[..source_size].to_vec())
        .collect();
    let mut out = vec![0u8; codes.len() * size];
    let tile = abi::wp_tile {
        src: source.as_ptr() as u64,
        dst: out.as_mut_ptr() as u64,
        index,
        count: codes.len() as u32,
        tensor: 0,
    };
    let mut args = arguments(0, to, 0, 0, seed);
    args.src_type = from.map_or(abi::WP_F32, |format| format.number);
    args.tiles = &raw const tile as u64;
    // SAFETY: the tile and what it names live through the call.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
    let code = |c: &[u8]| {
        c.iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u32::from(byte))
    };
    out.chunks(size).map(code).collect()
}

#[test]
fn every_element_draws_by_its_own_number_whatever_the_formats_and_the_length() {
    let mixed = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 29) as u32;
    let pairs = [
        (None, F16),
        (None, BF16),
        (None, E4M3),
        (None, E5M2),
        (Some(F16), BF16),
        (Some(F16), E4M3),
        (Some(F16), E5M2),
        (Some(BF16), F16),
    ];
    for (from, to) in pairs {
        // Numbers beyond 2^32 count too, and beyond 2^35, where the generator's counter has more bits.
        for (len, index) in [
            (5003, 0),
            (1, 7),
            (1025, 1023),
            (70, (1 << 32) - 30),
            (70, (1 << 35) - 30),
        ] {
            let all = from.map_or(u32::MAX, |_| 0xFFFF);
            let codes: Vec<u32> = (0..len).map(|i| mixed(i) & all).collect();
            let got = numbered(&codes, from, &to, 0x1234_5678_9ABC_DEF0, index);
            let want = expected(&codes, from, &to, 0x1234_5678_9ABC_DEF0, index);
            if let Some(at) = got.iter().zip(&want).position(|(got, want)| got != want) {
                panic!(
                    "{} to {}, element {at} of {len} from {index} on: {:#x} gives {:#x}, not {:#x}",
                    from.map_or("f32", |format| format.name),
                    to.name,
                    codes[at],
                    got[at],
                    want[at]
                );
            }
        }
    }
}

#[test]
fn the_gpu_draws_what_the_host_draws_at_any_offset() {
    let Some(device) = common::cuda() else { return };
    let stream = device.stream().unwrap();
    let count = 100_003;
    let inputs: Vec<f32> = (0..count).map(|i| 1.0 + i as f32 / 7919.0).collect();
    let src = common::Memory::new(&device, 4 * count as u64 + 64);
    let dst = common::Memory::new(&device, 2 * count as u64 + 64);
    for format in [F16, BF16, E4M3, E5M2] {
        let size = format.bits as usize / 8;
        for offset in 0..9u64 {
            common::write(
                &stream,
                src.addr + 4 * offset,
                bytemuck::cast_slice(&inputs),
            );
            let target = dst.addr + (8 - offset) * size as u64;
            let args = arguments(src.addr + 4 * offset, &format, target, count, 9);
            // SAFETY: both ranges are mapped, and live until the read below has waited.
            unsafe {
                device
                    .backend()
                    .launch(&Launch::Convert(args), stream.raw())
            }
            .unwrap();
            let got = common::read(&stream, target, count * size);
            let codes: Vec<u32> = got
                .chunks(size)
                .map(|c| {
                    c.iter()
                        .rev()
                        .fold(0, |code, &byte| code << 8 | u32::from(byte))
                })
                .collect();
            assert!(
                codes == on_host(&inputs, &format, 9),
                "{} at offset {offset}",
                format.name
            );
        }
    }
}
