//! How many handles a stretch is mapped with.

use super::{Core, HANDLES_A_STRETCH, HANDLES_AIMED_AT, HandleSize, LARGEST_HANDLE};
use crate::pool::PoolConfig;
use crate::pool::core::tests::core;

/// The largest power of two of granules within `most` bytes, one at least.
fn power(most: u64, granule: u64) -> u64 {
    let powers = (0..40).map(|at| granule << at);
    powers
        .take_while(|&bytes| bytes <= most)
        .last()
        .unwrap_or(granule)
}

fn of(core: &Core, granules: u64, stretch: u64) -> u64 {
    let granule = core.arena.granule();
    core.frame_bytes(granules * granule, stretch * granule)
}

#[test]
fn a_new_handle_is_the_largest_power_of_two_that_its_rule_allows() {
    for granules in [0, 3, 40] {
        let reserved = |core: &Core| core.arena.reserved();
        for left in [1, 2, 3, 7, 8, 31, 100, 5000, 70_000] {
            let one = core(PoolConfig::default().handles(HandleSize::Granule), 0).core;
            let granule = one.arena.granule();
            assert_eq!(of(&one, left, left), granule);
            for most in [1, granule, 3 * granule, 64 * granule] {
                let config = PoolConfig::default().handles(HandleSize::UpTo(most));
                let core = core(config, 0).core;
                let said = power(most.min(left * granule), granule);
                assert_eq!(of(&core, left, left), said, "{left} up to {most}");
            }
            let core = core(PoolConfig::default(), granules).core;
            assert_eq!(reserved(&core), granules * granule);
            for stretch in [left, 2 * left, 300 * left] {
                let part = (granules + left) * granule / HANDLES_AIMED_AT;
                let most = part
                    .min(LARGEST_HANDLE)
                    .min(stretch * granule / HANDLES_A_STRETCH);
                let said = power(most.min(left * granule), granule);
                assert_eq!(of(&core, left, stretch), said, "{left} of {stretch}");
            }
        }
    }
}
