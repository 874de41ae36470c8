//! The pattern kernels on the host: stamping, verifying, poisoning.

use proptest::prelude::*;
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
