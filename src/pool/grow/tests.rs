//! How large handles are, how far a pool grows, and growths under way.

use super::{Core, HANDLES_A_STRETCH, HANDLES_AIMED_AT, HandleSize, LARGEST_HANDLE};
use crate::heap::State;
use crate::pool::PoolConfig;
use crate::pool::core::tests::{Made, all_of_a_device, core};

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
                let of_pool = (granules + left) * granule / HANDLES_AIMED_AT;
                let of_block = stretch * granule / HANDLES_A_STRETCH;
                let most = of_pool.max(of_block).min(LARGEST_HANDLE);
                let said = power(most.min(left * granule), granule);
                assert_eq!(of(&core, left, stretch), said, "{left} of {stretch}");
            }
        }
    }
}

#[test]
fn as_much_is_made_without_a_look_for_idle_memory_as_the_peak_and_its_slack_allow() {
    let config = PoolConfig::default().slack(0.25);
    let mut made = core(config, 8);
    let granule = made.core.arena.granule();
    made.block(0, 3 * granule);
    let slack = |made: &Made, granules: u64| made.core.slack(granules * granule) / granule;
    // The peak becomes 12 and 16 granules, of which there are 8.
    assert_eq!([9, 13].map(|granules| slack(&made, granules)), [7, 12]);
    assert_eq!(slack(&made, 1), 0, "no more than there is");
    made.core.peak_taken = 20 * granule;
    assert_eq!([1, 17].map(|granules| slack(&made, granules)), [17, 17]);
    made.core.config.soft_limit = Some(12 * granule);
    assert_eq!(
        [1, 4, 5].map(|granules| slack(&made, granules)),
        [17, 17, 0]
    );
    assert_eq!(made.core.slack(4 * granule + 1), 0);
}

#[test]
fn a_large_block_has_few_handles_in_a_small_pool_too_and_its_end_small_ones() {
    let mut made = core(PoolConfig::default(), 0);
    let core = &mut made.core;
    let granule = core.arena.granule();
    for (granules, handles) in [(31, 31), (64, 32), (67, 33 + 1), (128, 32), (135, 33 + 2)] {
        let from = 1000 * granules * granule;
        let before = core.arena.calls().created;
        let first = core.create_frames(from, from + granules * granule).unwrap();
        let made = core.arena.calls().created - before;
        assert_eq!(made, handles, "{granules}");
        let hole = core.extents.get(first.unwrap());
        assert_eq!((hole.start, hole.bytes), (from, granules * granule));
    }
    core.check().unwrap();
}

#[test]
fn growths_under_way_stay_within_the_limit_together_and_end_in_any_order() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    for first_ends_first in [true, false] {
        let mut made = core(config.clone(), 0);
        let (slot, device) = (made.slot, made.device());
        let core = &mut made.core;
        let granule = core.arena.granule();
        core.config.limit = Some(5 * granule);
        let one = core.begin_growth(slot, 3 * granule).unwrap().unwrap();
        core.check().unwrap();
        assert!(core.begin_growth(slot, 3 * granule).unwrap().is_none());
        let other = core.begin_growth(slot, 2 * granule).unwrap().unwrap();
        core.check().unwrap();
        assert_eq!((core.room(), core.arena.reserved()), (0, 0));
        let (made_one, made_other) = (one.make(&device), other.make(&device));
        let mut ends = [(one, made_one, 3), (other, made_other, 2)];
        if !first_ends_first {
            ends.reverse();
        }
        for (growth, grown, granules) in ends {
            let grant = core.end_growth(growth, grown).unwrap().unwrap();
            assert_eq!(core.extents.get(grant.id).bytes, granules * granule);
            core.active.add(granules * granule);
            core.check().unwrap();
        }
        assert_eq!((core.room(), core.arena.reserved()), (0, 5 * granule));
    }
}

#[test]
fn a_growth_takes_the_free_memory_it_leans_on_and_nobody_else_gets_it_meanwhile() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(1.0);
    let mut made = core(config, 3);
    let (slot, device) = (made.slot, made.device());
    let granule = made.core.arena.granule();
    let block = made.block(0, 2 * granule);
    let core = &mut made.core;
    let growth = core.begin_growth(slot, 3 * granule).unwrap().unwrap();
    core.check().unwrap();
    assert_eq!(core.extents.hole_bytes(), 0, "the third handle is held");
    assert_eq!(core.under_way.held, granule);
    let grown = growth.make(&device);
    let grant = core.end_growth(growth, grown).unwrap().unwrap();
    assert_eq!(grant.offset, 2 * granule);
    core.active.add(3 * granule);
    core.check().unwrap();
    assert_eq!(core.arena.reserved(), 5 * granule);
    assert_eq!(core.under_way.held, 0);
    let _ = block;
}

#[test]
fn of_a_growth_that_the_device_cannot_make_what_there_was_is_free_memory() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut made = all_of_a_device(config, 3);
    let (slot, device) = (made.slot, made.device());
    let core = &mut made.core;
    let granule = core.arena.granule();
    core.trim(0).unwrap();
    let growth = core.begin_growth(slot, 4 * granule).unwrap().unwrap();
    let grown = growth.make(&device);
    assert!(core.end_growth(growth, grown).unwrap().is_none());
    core.check().unwrap();
    let free: Vec<u64> = (core.extents.iter())
        .filter(|(_, extent)| extent.state == State::Free)
        .map(|(_, extent)| extent.bytes)
        .collect();
    assert_eq!(free, [3 * granule]);
    assert_eq!(core.under_way.to_map, 0);
}
