//! Every pair of formats: every code of the small ones, runs of every length, and runs of more than
//! 2^32 elements.
//!
//! Of the pairs that start from `f32`, `every_input` has every input; of those with `f64`,
//! `from_f64`.

use crate::common;

use crate::common::BackendOf;
use crate::reference::{BF16, E4M3, E5M2, F16, Format, How, NARROW, every_how, round};
use warpool::Stream;
use warpool::device::Launch;
use warpool::driver::abi;

/// `None` is `f32`.
type Pair = [Option<Format>; 2];

/// Every way there is of rounding and of treating overflow.
fn every_way() -> Vec<How> {
    let overflows = [abi::WP_TO_INFINITY, abi::WP_SATURATE];
    let stochastic = overflows.map(|overflow| How {
        rounding: abi::WP_STOCHASTIC,
        overflow,
    });
    every_how().into_iter().chain(stochastic).collect()
}

/// Arguments for a run of `count` elements.
fn arguments([from, to]: Pair, src: u64, dst: u64, count: u64, how: How) -> abi::wp_convert {
    // SAFETY: plain numbers, for which zero is a value.
    let zero: abi::wp_convert = unsafe { std::mem::zeroed() };
    abi::wp_convert {
        src,
        dst,
        count,
        rows: 1,
        seed: SEED,
        src_type: number(from),
        dst_type: number(to),
        rounding: how.rounding,
        overflow: how.overflow,
        ..zero
    }
}

const SEED: u64 = 77;

/// Converts on the host device's kernel, elements numbered from `index` on.
fn on_host(pair: Pair, source: &[u8], how: How, index: u64) -> Vec<u8> {
    let count = source.len() / size(pair[0]);
    let mut out = vec![0u8; count * size(pair[1])];
    let tile = abi::wp_tile {
        src: source.as_ptr() as u64,
        dst: out.as_mut_ptr() as u64,
        index,
        count: count as u32,
        tensor: 0,
    };
    let mut args = arguments(pair, 0, 0, 0, how);
    args.tiles = &raw const tile as u64;
    // SAFETY: the tile and the vectors it names live through the call.
    assert_eq!(unsafe { abi::wp_host_convert(&args) }, abi::WP_OK as i32);
    out
}

fn name(format: Option<Format>) -> &'static str {
    format.map_or("f32", |format| format.name)
}

/// What `code` of `from` (`None`: `f32`) becomes in `to`.
fn expected(from: Option<Format>, code: u32, to: Option<Format>, how: How) -> u32 {
    let value = match from {
        Some(format) => format.decode(code).unwrap_or(f64::NAN),
        None => f64::from(f32::from_bits(code)),
    };
    match (from, to) {
        // Exact, whatever is asked of overflow; a NaN of bf16 keeps its bits.
        (Some(from), None) if from.name == "bf16" => code << 16,
        (_, None) if value.is_nan() => 0x7FFF_FFFF,
        (_, None) => (value as f32).to_bits(),
        (Some(from), Some(to)) if from.bits < to.bits => round(&to, every_how()[0], value),
        (_, Some(to)) => round(&to, how, value),
    }
}

/// Bytes of an element; `None` is `f32`.
fn size(format: Option<Format>) -> usize {
    format.map_or(4, |format| format.bits as usize / 8)
}

fn number(format: Option<Format>) -> u32 {
    format.map_or(abi::WP_F32, |format| format.number)
}

/// The codes as bytes, `size` each, and back.
fn packed(codes: &[u32], size: usize) -> Vec<u8> {
    let bytes = |code: &u32| code.to_le_bytes().into_iter().take(size);
    codes.iter().flat_map(bytes).collect()
}

fn unpacked(bytes: &[u8], size: usize) -> Vec<u32> {
    let code = |c: &[u8]| {
        c.iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u32::from(byte))
    };
    bytes.chunks(size).map(code).collect()
}

/// Every pair of formats but those of `f64`; `None` is `f32`.
fn every_pair() -> Vec<Pair> {
    let mut all: Vec<_> = NARROW.into_iter().map(|to| [None, Some(to)]).collect();
    all.extend(SMALL_PAIRS);
    all
}

fn every_code(format: Option<Format>) -> Vec<u32> {
    (0..1u32 << format.expect("a small format").bits).collect()
}

/// The pairs that start from a format with few codes.
const SMALL_PAIRS: [Pair; 16] = [
    [Some(F16), None],
    [Some(BF16), None],
    [Some(E4M3), None],
    [Some(E5M2), None],
    [Some(F16), Some(BF16)],
    [Some(F16), Some(E4M3)],
    [Some(F16), Some(E5M2)],
    [Some(BF16), Some(F16)],
    [Some(E4M3), Some(F16)],
    [Some(E5M2), Some(F16)],
    [Some(BF16), Some(E4M3)],
    [Some(BF16), Some(E5M2)],
    [Some(E4M3), Some(BF16)],
    [Some(E5M2), Some(BF16)],
    [Some(E4M3), Some(E5M2)],
    [Some(E5M2), Some(E4M3)],
];

/// A vectorised loop converts eight or more elements at a time, and what is left another way.
#[test]
fn a_run_of_any_length_gives_each_element_its_own_result_in_every_way() {
    let special: [u32; 8] = [
        0x7F7F_FFFF,
        0xFF7F_FFFF,
        0x7F80_0000,
        0x7FC0_0001,
        0x4780_0000,
        0xC3E8_0000,
        1,
        0x3380_0001,
    ];
    for [from, to] in every_pair() {
        let code = |i: usize| match from {
            None if i.is_multiple_of(2) => special[i / 2 % 8],
            None => (i as u32).wrapping_mul(0x9E37_79B9),
            // Among the largest codes of either sign are the infinities and NaN.
            Some(format) if i.is_multiple_of(2) => {
                let top = format.sign() - 1 - ((i as u32 / 2 * 0x53) & (format.max >> 1));
                top | (format.sign() * (i as u32 / 2 % 2))
            }
            Some(format) => (i as u32).wrapping_mul(0x9E37_79B9) >> (32 - format.bits),
        };
        for how in every_how() {
            for len in (1..40).chain([1023, 1025, 2047]) {
                let codes: Vec<u32> = (0..len).map(|i| code(i + len)).collect();
                let out = on_host([from, to], &packed(&codes, size(from)), how, 0);
                for (at, (&code, got)) in codes.iter().zip(unpacked(&out, size(to))).enumerate() {
                    assert_eq!(
                        got,
                        expected(from, code, to, how),
                        "{code:#x}, element {at} of {len}, {} to {}, {how:?}",
                        name(from),
                        name(to)
                    );
                }
            }
        }
    }
}

#[test]
fn every_code_of_a_small_format_converts_as_the_definitions_say() {
    for [from, to] in SMALL_PAIRS {
        let codes = every_code(from);
        for how in every_how() {
            let out = on_host([from, to], &packed(&codes, size(from)), how, 0);
            for (&code, got) in codes.iter().zip(unpacked(&out, size(to))) {
                assert_eq!(
                    got,
                    expected(from, code, to, how),
                    "{} {code:#x} to {} {how:?}",
                    name(from),
                    name(to)
                );
            }
        }
    }
}

/// Queues a run on the GPU.
fn launch(stream: &Stream, args: abi::wp_convert) {
    let backend = stream.device().backend();
    // SAFETY: tests name memory they have mapped, and wait before it goes.
    unsafe { backend.launch(&Launch::Convert(args), stream.raw()) }.unwrap();
}

/// What the GPU has at `dst` is what the host makes of the same source.
#[track_caller]
fn same(pair: Pair, source: &[u8], how: How, index: u64, got: &[u8], place: &str) {
    let want = on_host(pair, source, how, index);
    let wide = size(pair[1]);
    if let Some(byte) = got.iter().zip(&want).position(|(g, w)| g != w) {
        let at = byte / wide;
        panic!(
            "{} to {}, {how:?}, {place}, element {at}: {:x?} gives {:x?}, not {:x?}",
            name(pair[0]),
            name(pair[1]),
            unpacked(source, size(pair[0]))[at],
            unpacked(got, wide)[at],
            unpacked(&want, wide)[at]
        );
    }
}

/// 65,536 codes each, or 256: aligned, and so that the ends are done element by element.
#[test]
fn the_gpu_gives_the_bits_of_the_host_for_every_code_of_a_small_format() {
    let Some(device) = common::cuda() else { return };
    let stream = device.stream().unwrap();
    let memory = [2, 4].map(|size| common::Memory::new(&device, size * ((1 << 16) + 16)));
    for pair @ [from, to] in SMALL_PAIRS {
        let codes = every_code(from);
        let source = packed(&codes, size(from));
        for how in every_way() {
            for [before, after] in [[0, 0], [0, 3], [5, 0], [3, 3]] {
                let src = memory[0].addr + before * size(from) as u64;
                let dst = memory[1].addr + after * size(to) as u64;
                common::write(&stream, src, &source);
                launch(&stream, arguments(pair, src, dst, codes.len() as u64, how));
                let got = common::read(&stream, dst, codes.len() * size(to));
                let place = format!("{before} and {after} elements off");
                same(pair, &source, how, 0, &got, &place);
            }
        }
    }
}

/// Elements of a run that neither 31 nor 32 bits count.
const MANY: u64 = (1 << 32) + 12_345;
/// Elements that are looked at, at each of the places.
const WINDOW: u64 = 4096;

/// Where a run of `many` is looked at: at both ends, around each power of two that a number of
/// elements, bytes or groups may overflow at, and between.
fn places(many: u64) -> Vec<u64> {
    let around = |power: u32| (1u64 << power) - WINDOW / 2;
    let mut all = vec![0, many - WINDOW];
    all.extend((13..=32).map(around));
    all.extend((1..8).map(|part| many / 8 * part + part));
    all.retain(|place| place + WINDOW <= many);
    all
}

/// Other codes in every window.
fn window(from: Option<Format>, place: u64) -> Vec<u8> {
    let mixed = |i: u64| (place + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 31;
    let codes: Vec<u32> = (0..WINDOW).map(|i| mixed(i) as u32).collect();
    packed(&codes, size(from))
}

/// The windows of a buffer, elements of `size` bytes.
fn windows(stream: &Stream, addr: u64, many: u64, size: usize) -> Vec<Vec<u8>> {
    let read = |place| common::read(stream, addr + place * size as u64, WINDOW as usize * size);
    places(many).into_iter().map(read).collect()
}

/// Fills the windows of a buffer and gives what is in them then: neighbours may meet.
fn filled(stream: &Stream, addr: u64, many: u64, from: Option<Format>) -> Vec<Vec<u8>> {
    for place in places(many) {
        let at = addr + place * size(from) as u64;
        common::write(stream, at, &window(from, place));
    }
    windows(stream, addr, many, size(from))
}

/// Every window of a result is what the host makes of its source on its own.
fn check_windows(pair: Pair, how: How, many: u64, sources: &[Vec<u8>], results: &[Vec<u8>]) {
    for ((place, source), got) in places(many).into_iter().zip(sources).zip(results) {
        same(
            pair,
            source,
            how,
            place,
            got,
            &format!("from element {place} on"),
        );
    }
}

/// Converts runs of `many` elements, aligned and not.
fn long_runs(device: &warpool::Device, many: u64) {
    let stream = device.stream().unwrap();
    let wide = common::Memory::new(device, 2 * many + 64);
    let small = common::Memory::new(device, many + 64);
    let cases = [
        ([Some(F16), Some(E4M3)], abi::WP_STOCHASTIC, [0, 0]),
        ([Some(F16), Some(E4M3)], abi::WP_STOCHASTIC, [1, 3]),
        ([Some(F16), Some(E5M2)], abi::WP_UP, [3, 0]),
        ([Some(E4M3), Some(F16)], abi::WP_NEAREST, [0, 0]),
        ([Some(E5M2), Some(F16)], abi::WP_NEAREST, [5, 1]),
    ];
    for (pair @ [from, to], rounding, [before, after]) in cases {
        let how = How {
            rounding,
            overflow: abi::WP_SATURATE,
        };
        let (src, dst) = if size(from) > size(to) {
            (&wide, &small)
        } else {
            (&small, &wide)
        };
        let src = src.addr + before * size(from) as u64;
        let dst = dst.addr + after * size(to) as u64;
        let sources = filled(&stream, src, many, from);
        launch(&stream, arguments(pair, src, dst, many, how));
        let results = windows(&stream, dst, many, size(to));
        check_windows(pair, how, many, &sources, &results);
    }
}

/// Converts `many` elements inside one buffer.
fn long_in_place(device: &warpool::Device, many: u64) {
    let stream = device.stream().unwrap();
    let buffer = common::Memory::new(device, 2 * many + 64);
    let tiles = many.div_ceil(u64::from(abi::WP_INPLACE_TILE));
    let scratch = common::Memory::new(device, 64 + 4 * tiles);
    for pair @ [from, to] in [[Some(F16), Some(E4M3)], [Some(E4M3), Some(F16)]] {
        let how = How {
            rounding: abi::WP_STOCHASTIC,
            overflow: abi::WP_SATURATE,
        };
        let sources = filled(&stream, buffer.addr, many, from);
        let args = abi::wp_inplace {
            addr: buffer.addr,
            count: many,
            seed: SEED,
            scratch: scratch.addr,
            src_type: number(from),
            dst_type: number(to),
            rounding: how.rounding,
            overflow: how.overflow,
        };
        // SAFETY: both ranges are mapped, and live until the reads below have waited.
        unsafe {
            device
                .backend()
                .launch(&Launch::Inplace(args), stream.raw())
        }
        .unwrap();
        let results = windows(&stream, buffer.addr, many, size(to));
        check_windows(pair, how, many, &sources, &results);
    }
}

/// The GPU, with `bytes` of memory free, for a test that takes as long as 2^32 elements take.
fn roomy_gpu(bytes: u64) -> Option<warpool::Device> {
    if common::under_sanitizer() {
        println!("skipped: 2^32 elements take too long under a sanitizer");
        return None;
    }
    let device = common::cuda()?;
    if device.backend().free_bytes().unwrap() < bytes {
        println!("skipped: {bytes} bytes of device memory are not free");
        return None;
    }
    Some(device)
}

#[test]
fn runs_convert_to_their_last_element_on_the_host() {
    long_runs(&common::host(), 100_003);
    long_in_place(&common::host(), 100_003);
}

#[test]
fn runs_of_more_than_2_to_the_32_elements_convert_to_their_last_on_the_gpu() {
    if let Some(device) = roomy_gpu(4 * MANY) {
        long_runs(&device, MANY);
    }
}

#[test]
fn more_than_2_to_the_32_elements_convert_inside_their_buffer_on_the_gpu() {
    if let Some(device) = roomy_gpu(4 * MANY) {
        long_in_place(&device, MANY);
    }
}
