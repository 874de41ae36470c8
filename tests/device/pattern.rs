//! The pattern kernels on the host: stamping, verifying, poisoning.

use crate::common;

use crate::common::BackendOf;
use proptest::prelude::*;
use warpool::device::Launch;
use warpool::driver::abi;

/// The pattern by its definition in `kernels/warpool.h`.
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn pattern_byte(seed: u64, offset: u64) -> u8 {
    splitmix64(seed.wrapping_add(offset / 8)).to_le_bytes()[(offset % 8) as usize]
}

fn run(op: abi::wp_pattern_op, block: &mut [u8], seed: u64, edge: u64) -> abi::wp_pattern_report {
    let mut report = abi::wp_pattern_report {
        verified_bytes: 0,
        corrupt_bytes: 0,
        first_corrupt: 0,
    };
    let args = abi::wp_pattern {
        addr: block.as_mut_ptr() as u64,
        bytes: block.len() as u64,
        seed,
        edge,
        report: &raw mut report as u64,
        op,
        pad: 0,
    };
    // SAFETY: the block and the report live through the call.
    assert_eq!(unsafe { abi::wp_host_pattern(&args) }, abi::WP_OK as i32);
    report
}

fn touched(bytes: u64, edge: u64, offset: u64) -> bool {
    edge == 0 || offset < edge || offset >= bytes.saturating_sub(edge)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_stamp_writes_the_pattern_where_asked_and_nowhere_else(
        bytes in 0usize..3000, shift in 0usize..16, seed: u64, edge in prop_oneof![Just(0u64), 1u64..2000],
    ) {
        let mut memory = vec![0x11u8; bytes + 48];
        run(abi::WP_STAMP, &mut memory[16 + shift..16 + shift + bytes], seed, edge);
        for (at, &byte) in memory.iter().enumerate() {
            let offset = at.wrapping_sub(16 + shift);
            let inside = offset < bytes && touched(bytes as u64, edge, offset as u64);
            let want = if inside { pattern_byte(seed, offset as u64) } else { 0x11 };
            prop_assert_eq!(byte, want, "at {}", at);
        }
    }

    #[test]
    fn a_verify_counts_every_wrong_byte_it_was_asked_about_and_names_the_first(
        bytes in 1usize..6000, seed: u64, edge in prop_oneof![Just(0u64), 1u64..4000],
        wrong in prop::collection::btree_set(0usize..6000, 0..5),
    ) {
        let mut block = vec![0u8; bytes];
        run(abi::WP_STAMP, &mut block, seed, 0);
        let clean = run(abi::WP_VERIFY, &mut block, seed, edge);
        let asked = (0..bytes as u64).filter(|&o| touched(bytes as u64, edge, o)).count() as u64;
        prop_assert_eq!((clean.verified_bytes, clean.corrupt_bytes, clean.first_corrupt), (asked, 0, 0));
        let hit: Vec<usize> = wrong.into_iter().filter(|&o| o < bytes).collect();
        for &offset in &hit {
            block[offset] ^= 0x40;
        }
        let found = run(abi::WP_VERIFY, &mut block, seed, edge);
        let seen: Vec<usize> = hit.into_iter().filter(|&o| touched(bytes as u64, edge, o as u64)).collect();
        prop_assert_eq!(found.corrupt_bytes, seen.len() as u64);
        let first = seen.first().map_or(0, |&offset| block.as_ptr() as u64 + offset as u64);
        prop_assert_eq!(found.first_corrupt, first);
    }
}

#[test]
fn poison_is_a5_xor_the_seed() {
    let mut block = vec![0u8; 100];
    run(abi::WP_POISON, &mut block, 0x1203, 0);
    assert!(block.iter().all(|&byte| byte == 0xA5 ^ 0x03));
}

#[test]
fn an_unknown_operation_is_refused_and_nothing_is_written() {
    let mut block = [7u8; 32];
    let args = abi::wp_pattern {
        addr: block.as_mut_ptr() as u64,
        bytes: 32,
        seed: 0,
        edge: 0,
        report: 0,
        op: 3,
        pad: 0,
    };
    // SAFETY: the block lives through the call.
    let status = unsafe { abi::wp_host_pattern(&args) };
    assert_eq!(status, abi::WP_INVALID as i32);
    assert_eq!(block, [7u8; 32]);
}

/// Runs an operation on device memory and gives the report, which lies behind the block.
fn on_device(stream: &warpool::Stream, args: abi::wp_pattern) -> [u64; 3] {
    common::write(stream, args.report, &[0u8; 24]);
    // SAFETY: block and report are mapped, and live until the read below has waited.
    unsafe {
        stream
            .device()
            .backend()
            .launch(&Launch::Pattern(args), stream.raw())
    }
    .unwrap();
    let report = common::read(stream, args.report, 24);
    [0, 8, 16].map(|at| u64::from_le_bytes(report[at..at + 8].try_into().unwrap()))
}

#[test]
fn every_device_stamps_the_pattern_and_finds_the_byte_that_is_wrong() {
    for device in common::devices() {
        let stream = device.stream().unwrap();
        let memory = common::Memory::new(&device, 1 << 20);
        let cases = [
            (1, 0, 0),
            (100, 3, 0),
            (8192, 0, 16),
            (70_001, 8, 4096),
            (400_000, 5, 0),
            (9000, 0, 4095),
        ];
        for (seed, (bytes, shift, edge)) in cases.into_iter().enumerate() {
            let mut args = abi::wp_pattern {
                addr: memory.addr + 64 + shift,
                bytes,
                seed: seed as u64,
                edge,
                report: memory.addr + (1 << 19),
                op: abi::WP_STAMP,
                pad: 0,
            };
            common::fill(&stream, memory.addr, 0x11, 1 << 19);
            on_device(&stream, args);
            let held = common::read(&stream, memory.addr, (bytes + shift + 128) as usize);
            for (at, &byte) in held.iter().enumerate() {
                let offset = (at as u64).wrapping_sub(64 + shift);
                let inside = offset < bytes && touched(bytes, edge, offset);
                let want = if inside {
                    pattern_byte(seed as u64, offset)
                } else {
                    0x11
                };
                assert_eq!(byte, want, "case {seed} at {at}");
            }
            args.op = abi::WP_VERIFY;
            let asked = if edge == 0 || 2 * edge >= bytes {
                bytes
            } else {
                2 * edge
            };
            assert_eq!(on_device(&stream, args), [asked, 0, 0], "case {seed}");
            for wrong in [bytes - 1, 0] {
                common::fill(
                    &stream,
                    args.addr + wrong,
                    0x5A ^ pattern_byte(seed as u64, wrong),
                    1,
                );
            }
            let distinct = bytes.min(2);
            assert_eq!(
                on_device(&stream, args),
                [asked, distinct, args.addr],
                "case {seed}"
            );
        }
    }
}
