//! How large handles are, how far a pool grows, and growths under way.

use super::{Core, HANDLES_A_STRETCH, HANDLES_AIMED_AT, HandleSize, LARGEST_HANDLE};
use std::time::Duration;

use crate::device::sim::Rng;
use crate::device::{Device, DeviceInfo, DeviceKind};
#[cfg(feature = "convert")]
use crate::driver::fake::Machine;
use crate::heap::placement::Placement;
use crate::heap::{Epoch, State};
use crate::pool::core::tests::{Made, core, core_of};
use crate::pool::job::{Job, piece};
use crate::pool::mapping::Terms;
use crate::pool::mapping::tests::two_apart;
use crate::pool::pace::Pace;
use crate::pool::release::tests::trim;
use crate::pool::tuning::{DEVICE_PART, SPARE_HANDLES};
use crate::pool::{Block, Pool, PoolConfig};

const TERMS: Terms = Terms {
    pending: true,
    refused: None,
};

fn begin(made: &mut Made, bytes: u64) -> Option<Job> {
    let grows = (made.core.plan(made.slot, bytes, TERMS)?).idle.is_empty();
    grows.then(|| begin_plan(made, bytes))?
}

/// The largest power of two of granules within `most` bytes, one at least.
fn power(most: u64, granule: u64) -> u64 {
    let powers = (0..40).map(|at| granule << at);
    powers
        .take_while(|&bytes| bytes <= most)
        .last()
        .unwrap_or(granule)
}

fn of(core: &Core, granules: u64) -> u64 {
    let granule = core.arena.granule();
    let bytes = granules * granule;
    piece(bytes, core.handle_sizes(bytes).1, granule)
}

#[test]
fn a_new_handle_is_the_largest_power_of_two_that_its_rule_allows() {
    for granules in [0, 3, 40] {
        let reserved = |core: &Core| core.arena.reserved();
        for left in [1, 2, 3, 7, 8, 31, 100, 5000, 70_000, 1 << 20] {
            let one = core(PoolConfig::default().handles(HandleSize::Granule), 0).core;
            let granule = one.arena.granule();
            assert_eq!(of(&one, left), granule);
            for most in [1, granule, 3 * granule, 64 * granule] {
                let config = PoolConfig::default().handles(HandleSize::UpTo(most));
                let core = core(config, 0).core;
                let said = power(most.min(left * granule), granule);
                assert_eq!(of(&core, left), said, "{left} up to {most}");
            }
            let core = core(PoolConfig::default(), granules).core;
            assert_eq!(reserved(&core), granules * granule);
            let of_pool = (granules + left) * granule / HANDLES_AIMED_AT;
            let of_block = left * granule / HANDLES_A_STRETCH;
            let most = of_pool.max(of_block).min(LARGEST_HANDLE);
            let said = power(most.min(left * granule), granule);
            assert_eq!(of(&core, left), said, "{left}");
        }
    }
}

/// What a GPU of this many bytes lets a pool grow by, in place of what a host device does.
fn on_gpu(bytes: u64) -> Pace {
    let device = DeviceInfo::new(DeviceKind::Cuda, 0, String::new(), bytes, 1);
    Pace::new(None, &device)
}

#[test]
fn a_pool_of_a_gpu_has_larger_handles_from_the_start_and_smaller_ones_the_less_it_may_hold() {
    let mut core = core(PoolConfig::default(), 0).core;
    let granule = core.arena.granule();
    let bytes = DEVICE_PART * SPARE_HANDLES * 16 * granule;
    let handle = |core: &Core, left| of(core, left) / granule;
    assert_eq!(handle(&core, 30), 1);
    core.pace = on_gpu(bytes);
    core.config.limit = None;
    assert_eq!([3, 30, 6000].map(|left| handle(&core, left)), [2, 16, 64]);
    let small = core.handle_sizes(granule).1;
    assert_eq!(small, 16 * granule);
    core.config.handles = HandleSize::UpTo(2 * granule);
    assert_eq!(handle(&core, 30), 2);
    core.config.handles = HandleSize::Adaptive;
    core.config.limit = Some(bytes / 2);
    assert_eq!(handle(&core, 30), 8);
    assert_eq!(core.handle_sizes(64 * 64 * granule).0, 8 * granule);
    core.config.soft_limit = Some(bytes / 8);
    assert_eq!(handle(&core, 30), 2);
}

/// What a request for this many granules has made, in granules: all of it, and its largest handle.
fn made_for(made: &mut Made, bytes: u64) -> (u64, u64) {
    let granule = made.core.arena.granule();
    let before = made.core.arena.reserved();
    let job = begin(made, bytes);
    let grant = made.run(job).unwrap().unwrap();
    let (_, frame) = made.core.arena.frame_at(grant.offset).unwrap();
    made.granted(grant);
    (
        (made.core.arena.reserved() - before) / granule,
        frame.bytes / granule,
    )
}

#[test]
fn a_gpu_gives_whole_handles_as_far_as_a_limit_allows() {
    let granule = Device::host().unwrap().info().granule;
    let device = DEVICE_PART * SPARE_HANDLES * 16 * granule;
    let gpu = |config: PoolConfig| {
        let mut made = core_of(&Device::host_with_capacity(device).unwrap(), config, 0);
        made.core.pace = on_gpu(device);
        made.core.config.limit = None;
        made
    };
    let mut made = gpu(PoolConfig::default());
    assert_eq!(made_for(&mut made, 3 * granule), (16, 16));
    assert_eq!(made_for(&mut made, 20 * granule), (16, 16), "13 lay idle");
    assert_eq!(made_for(&mut made, 12 * granule), (16, 16), "9 did");
    // As if others were making all of what the pool may hold but a few granules.
    made.core.config.soft_limit = Some(device);
    for (left, granules, said) in [(15, 16, 3), (16, 1, 16)] {
        let others = device - made.core.arena.reserved() - left * granule;
        made.core.under_way.to_create = others;
        let (bytes, _) = made_for(&mut made, granules * granule);
        assert_eq!(bytes, said, "{left} left");
    }
    let mut made = gpu(PoolConfig::default());
    assert_eq!(made_for(&mut made, 4096), (16, 16), "a small block too");
    let mut made = gpu(PoolConfig::default().handles(HandleSize::Granule));
    assert_eq!(made_for(&mut made, 3 * granule), (3, 1));
}

#[test]
fn the_less_a_gpu_has_free_the_smaller_are_the_handles_that_a_pool_without_a_limit_makes_next() {
    let granule = Device::host().unwrap().info().granule;
    let whole = DEVICE_PART * SPARE_HANDLES * 16 * granule;
    let device = Device::host_with_capacity(whole).unwrap();
    let mut made = core_of(&device, PoolConfig::default(), 0);
    made.core.config.limit = None;
    made.core.pace = on_gpu(whole);
    // A granule more than is free.
    let mut more = || {
        let bytes = made.core.extents.hole_bytes() + granule;
        made_for(&mut made, bytes).0
    };
    let backend = device.backend();
    let mut others = Vec::new();
    for (free, said) in [(whole, 16), (whole / 4, 4), (whole / 16, 1)] {
        while backend.free_bytes().unwrap() > free {
            let excess = backend.free_bytes().unwrap() - free;
            others.push(backend.create(excess.min(whole / 16)).unwrap());
        }
        // The pool learns what is free when it grows.
        assert_eq!([more(), more()][1], said, "{free} free");
    }
    others
        .into_iter()
        .for_each(|phys| backend.release(phys).unwrap());
    assert_eq!([more(), more()], [1, 16], "all free again");
}

#[cfg(feature = "convert")]
#[test]
fn a_pool_of_a_gpu_knows_what_is_free_before_it_grows() {
    let machine = Machine::with_gpu(64 << 30).unwrap();
    let device = crate::device::gpu_of(&machine);
    let stream = device.stream().unwrap();
    let held = [0, 60 << 30].map(|taken| {
        let others = (taken > 0).then(|| device.backend().create(taken).unwrap());
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let _block = pool.alloc(&stream, 4096).unwrap();
        others.inspect(|it| device.backend().release(*it).unwrap());
        pool.stats().reserved.current
    });
    assert_eq!(held, [16 << 20, 2 << 20]);
}

#[test]
fn a_pool_that_maps_elsewhere_asks_what_is_free_only_where_the_device_limits_it() {
    for known in [0, u64::MAX] {
        let (mut made, _held) = two_apart();
        let granule = made.core.arena.granule();
        made.core.pace = on_gpu(141 << 30);
        made.core.pace.most = known;
        let plan = made.core.plan(made.slot, 2 * granule, TERMS).unwrap();
        assert!(!plan.idle.is_empty());
        let job = (made.core).begin_mapping(made.slot, plan.placement, &plan.idle);
        let grant = made.run(job).unwrap().unwrap();
        made.granted(grant);
        let core = &made.core;
        let all = core.held() + core.arena.site().free_bytes();
        assert_eq!(core.pace.most, if known == 0 { all } else { known });
    }
}

#[test]
fn a_placement_of_all_that_can_be_counted_is_made_no_larger() {
    let mut made = core(PoolConfig::default(), 1);
    let granule = made.core.arena.granule();
    made.core.pace = on_gpu(141 << 30);
    for bytes in [u64::MAX / granule * granule, 1 << 63] {
        let placement = Placement::of_gap(0, bytes);
        assert_eq!(made.core.in_whole_handles(placement, 0), placement);
    }
}

#[test]
fn a_placement_is_widened_by_what_its_new_memory_lacks_to_whole_handles() {
    let mut made = core(PoolConfig::default(), 1);
    let granule = made.core.arena.granule();
    made.core.pace = on_gpu(141 << 30);
    let handle = piece(u64::MAX, made.core.handle_sizes(granule).0, granule);
    let placement = Placement {
        spare: handle,
        ..Placement::of_gap(0, 5 * granule)
    };
    for idle in 0..5 {
        let wide = made.core.in_whole_handles(placement, idle * granule);
        assert_eq!(wide.to_map, handle + idle * granule, "{idle} idle");
    }
}

#[test]
fn a_gpu_that_has_no_more_gives_all_it_has_to_requests_of_any_size() {
    let granule = Device::host().unwrap().info().granule;
    let all = 11 * granule;
    for seed in 0..400 {
        let remap = seed & 1 > 0;
        let device = Device::host_with_capacity(all).unwrap();
        let pool = Pool::new(&device, PoolConfig::default().remap(remap)).unwrap();
        let core = || pool.shared().core.lock();
        core().pace = on_gpu(DEVICE_PART * SPARE_HANDLES * 4 * granule);
        let stream = device.stream().unwrap();
        let mut rng = Rng::new(seed);
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..30 {
            let bytes = (1 + rng.below(16)) * granule / 4;
            let taken = pool.alloc(&stream, bytes);
            assert!(taken.is_ok() || !blocks.is_empty());
            blocks.extend(taken);
            if rng.chance(1, 3) && !blocks.is_empty() {
                blocks.remove(rng.below(blocks.len() as u64) as usize);
            }
            core().check().unwrap();
            assert!(core().arena.reserved() <= all);
        }
        blocks.clear();
        pool.alloc(&stream, all).unwrap();
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
fn what_a_mapping_takes_counts_as_time_in_the_driver_be_it_of_new_handles_or_of_idle_ones() {
    for is_new in [false, true] {
        let (mut made, _held) = two_apart();
        let granule = made.core.arena.granule();
        if is_new {
            made.core.config.limit = None;
            made.core.peak_taken = 100 * granule;
        }
        let plan = made.core.plan(made.slot, 2 * granule, TERMS).unwrap();
        assert_eq!(plan.idle.is_empty(), is_new);
        let mapping = made
            .core
            .begin_mapping(made.slot, plan.placement, &plan.idle);
        let mut ran = mapping.unwrap().run();
        assert!(!ran.spent.is_zero());
        ran.spent = Duration::from_secs(1);
        let before_ns = made.core.steps.driver_ns;
        let grant = made.core.end(ran).unwrap();
        assert_eq!(made.core.steps.driver_ns, before_ns + 1_000_000_000);
        made.granted(grant.unwrap());
    }
}

#[test]
fn a_large_block_has_few_handles_in_a_small_pool_too_and_its_end_small_ones() {
    let mut made = core(PoolConfig::default(), 0);
    let core = &mut made.core;
    let granule = core.arena.granule();
    for (granules, handles) in [(55, 55), (112, 56), (117, 58 + 1), (224, 56), (231, 57 + 2)] {
        let from = 1000 * granules * granule;
        let before = core.arena.calls().created;
        core.create_frames(from, from + granules * granule).unwrap();
        let made = core.arena.calls().created - before;
        assert_eq!(made, handles, "{granules}");
        let hole = core
            .extents
            .get(core.extents.seek(core.extents.first(), from));
        assert_eq!((hole.start, hole.bytes), (from, granules * granule));
    }
    core.check().unwrap();
}

#[test]
fn growths_under_way_stay_within_the_limit_together_and_end_in_any_order() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    for first_ends_first in [true, false] {
        let mut made = core(config.clone(), 0);
        let granule = made.core.arena.granule();
        made.core.config.limit = Some(5 * granule);
        let one = begin(&mut made, 3 * granule).unwrap();
        made.core.check().unwrap();
        assert!(begin(&mut made, 3 * granule).is_none());
        let other = begin(&mut made, 2 * granule).unwrap();
        made.core.check().unwrap();
        assert_eq!((made.core.room(), made.core.arena.reserved()), (0, 0));
        let mut ends = [(one.run(), 3), (other.run(), 2)];
        if !first_ends_first {
            ends.reverse();
        }
        for (outcome, granules) in ends {
            let grant = made.core.end(outcome).unwrap().unwrap();
            assert_eq!(made.core.extents.get(grant.id).bytes, granules * granule);
            made.granted(grant);
        }
        let reserved = made.core.arena.reserved();
        assert_eq!((made.core.room(), reserved), (0, 5 * granule));
    }
}

#[test]
fn a_growth_takes_the_free_memory_it_leans_on_and_nobody_else_gets_it_meanwhile() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(1.0);
    let mut made = core(config, 3);
    let granule = made.core.arena.granule();
    made.block(0, 2 * granule);
    let growth = begin(&mut made, 3 * granule).unwrap();
    made.core.check().unwrap();
    let free = made.core.extents.hole_bytes();
    assert_eq!(free, 0, "the third handle is held");
    assert_eq!(made.core.live(), 2 * granule, "what is held is no block");
    let grant = made.run(Some(growth)).unwrap().unwrap();
    assert_eq!(made.granted(grant), 2 * granule);
    assert_eq!(made.core.arena.reserved(), 5 * granule);
}

#[test]
fn of_a_growth_that_the_device_cannot_make_what_there_was_is_free_memory() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(4 * granule).unwrap();
    let mut made = core_of(&device, config, 3);
    trim(&mut made, 0);
    // Somebody else's.
    let _other = device.backend().create(granule).unwrap();
    let growth = begin(&mut made, 4 * granule);
    assert!(made.run(growth).unwrap().is_none());
    made.core.check().unwrap();
    let free: Vec<u64> = (made.core.extents.iter())
        .filter(|(_, extent)| extent.state == State::Free)
        .map(|(_, extent)| extent.bytes)
        .collect();
    assert_eq!(free, [3 * granule]);
    assert_eq!(made.core.under_way.to_create, 0);
}

/// Six handles of which every other one is free, and no more may be made.
fn every_other(limit: u64) -> (Made, u64) {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0);
    let mut made = core(config, 6);
    let granule = made.core.arena.granule();
    made.core.config.limit = Some(limit * granule);
    for at in [0, 2, 4] {
        made.block(at * granule, granule);
    }
    (made, granule)
}

/// Begins to map idle handles, and new ones, for a request.
fn begin_plan(made: &mut Made, bytes: u64) -> Option<Job> {
    let plan = made.core.plan(made.slot, bytes, TERMS)?;
    if plan.lacking > 0 {
        return None;
    }
    (made.core).begin_mapping(made.slot, plan.placement, &plan.idle)
}

fn books(made: &Made) -> (u64, u64, u64, usize) {
    let core = &made.core;
    let hole_bytes = core.extents.hole_bytes();
    (
        hole_bytes,
        core.live(),
        core.arena.reserved(),
        core.retiring.len(),
    )
}

#[test]
fn idle_handles_under_way_are_nobody_elses_and_two_mappings_end_in_any_order() {
    for first_ends_first in [true, false] {
        let (mut made, granule) = every_other(7);
        // The last free handle lies before the gap: one of the others is mapped behind it.
        let one = begin_plan(&mut made, 2 * granule).unwrap();
        made.core.check().unwrap();
        assert_eq!(books(&made), (granule, 3 * granule, 6 * granule, 0));
        // The other and a new one.
        let other = begin_plan(&mut made, 2 * granule).unwrap();
        made.core.check().unwrap();
        assert_eq!(books(&made), (0, 3 * granule, 6 * granule, 0));
        assert_eq!(made.core.room(), 0, "what is promised counts");
        assert!(begin_plan(&mut made, granule).is_none());
        let mut ends = [one.run(), other.run()];
        if !first_ends_first {
            ends.reverse();
        }
        for outcome in ends {
            let grant = made.core.end(outcome).unwrap().unwrap();
            assert_eq!(made.core.extents.get(grant.id).bytes, 2 * granule);
            made.granted(grant);
        }
        assert_eq!(books(&made), (0, 7 * granule, 7 * granule, 2));
        assert_eq!(made.core.peak_taken, 7 * granule);
        assert_eq!(made.core.steps.steal, 2);
    }
}

#[test]
fn what_a_mapping_could_not_map_is_as_it_was_and_what_it_mapped_is_free() {
    // Where the first, second and third handle would go there is one already. The third is the new one.
    for refused in 0..3 {
        let (mut made, granule) = every_other(8);
        let (free, live, reserved, old) = books(&made);
        let job = begin_plan(&mut made, 4 * granule).unwrap();
        made.unknown_at((6 + refused) * granule);
        let failed = made.run(Some(job));
        assert!(failed.is_err(), "{refused}");
        made.core.check().unwrap();
        let (new, moved) = [(1, 0), (1, 1), (0, 0)][refused as usize];
        let after = (free + new * granule, live, reserved + new * granule);
        assert_eq!(books(&made), (after.0, after.1, after.2, old + moved));
        let left = &made.core.under_way;
        assert_eq!((left.jobs, left.to_create, left.wanted), (0, 0, 0));
        assert_eq!(made.core.room(), (2 - new) * granule);
        for at in (0..moved as u64).chain((2..3).take(new as usize)) {
            assert_eq!(made.at((6 + at) * granule).state, State::Free, "{refused}");
        }
        assert_eq!(made.at((6 + refused) * granule).state, State::Unmapped);
    }
}

#[test]
fn idle_handles_stay_where_they_are_if_the_device_has_no_new_ones_to_go_with_them() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0);
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(7 * granule).unwrap();
    let mut made = core_of(&device, config, 6);
    for at in [0, 2, 4] {
        made.block(at * granule, granule);
    }
    // Somebody else's.
    let _other = device.backend().create(granule).unwrap();
    let before = books(&made);
    let job = begin_plan(&mut made, 4 * granule).unwrap();
    assert!(made.run(Some(job)).unwrap().is_none());
    made.core.check().unwrap();
    assert_eq!(books(&made), before);
    assert_eq!(made.core.steps.steal, 0);
}

#[test]
fn a_trim_and_a_mapping_under_way_at_once_have_each_their_own() {
    for trim_ends_first in [true, false] {
        let (mut made, granule) = every_other(6);
        let mapping = begin_plan(&mut made, 2 * granule).unwrap();
        let trim = made.core.begin_trim(0, true).unwrap();
        made.core.check().unwrap();
        assert_eq!(books(&made).0, 0, "all that was free is held");
        assert!(made.core.begin_trim(0, true).is_none());
        let mut ends = [trim.run(), mapping.run()];
        if !trim_ends_first {
            ends.reverse();
        }
        for outcome in ends {
            if let Some(grant) = made.core.end(outcome).unwrap() {
                made.granted(grant);
            }
            made.core.check().unwrap();
        }
        let (free, live, reserved, _) = books(&made);
        assert_eq!((free, live, reserved), (0, 5 * granule, 5 * granule));
        assert_eq!(made.core.room(), granule);
    }
}

#[test]
fn the_number_of_a_stream_whose_memory_is_held_is_given_to_no_other() {
    let (mut made, granule) = every_other(6);
    let (gone, held) = made.stream();
    let id = made.block(granule, granule);
    made.core.active.sub(granule);
    let tick = made.core.open_tick(gone);
    made.core
        .extents
        .give(id, Epoch::new(gone, tick), |_| false);
    let job = made.core.begin_trim(0, true).unwrap();
    drop(held);
    let (next, _held) = made.stream();
    assert_ne!(next, gone);
    made.run(Some(job)).unwrap();
    let (again, _held) = made.stream();
    assert_eq!(again, gone);
}
