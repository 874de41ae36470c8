//! What a crowded lane serves and keeps, and when it ends. The tests take the pool's lock themselves, or
//! have a lane be crowded without.

use proptest::prelude::*;

use super::super::stream_cache::tests::World;
use super::*;
use crate::pool::config::HandleSize;
use crate::pool::structure::IdAndSlack;
use crate::pool::{Block, PoolConfig};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Makes the lane crowded, with this many bytes of room.
fn crowd(lane: &Lane, room: u64) {
    let mut state = latch(&lane.state);
    (state.crowded, state.room) = (CROWDED_MISSES, room);
}

/// Whether the lane has a near block for `bytes`, which goes back.
fn has_near(lane: &Lane, bytes: u64) -> bool {
    let near = lane.take_near(bytes, bytes);
    if let Some(near) = near {
        lane.free(near.addr, IdAndSlack::of(near.id, near.bytes, bytes), bytes);
    }
    near.is_some()
}

#[test]
fn while_others_have_the_pools_lock_a_lane_keeps_a_part_of_what_is_live_and_serves_from_it() {
    let world = World::new(PoolConfig::default().cache_bytes(MIB));
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let half = |_| pool.alloc(stream, MIB / 2).unwrap();
    let mut held: Vec<Block> = (0..64).map(half).collect();
    let core = pool.shared().core.lock();
    // Whatever needs the lock now waits for ever: 1 MiB may be kept, and of 31 live ones an eighth.
    held.truncate(64 - 2 - 7);
    assert_eq!(world.lane(0).cached_bytes(), 9 * MIB / 2);
    let near: Vec<Block> = (0..9)
        .map(|at| pool.alloc(stream, MIB / 2 - at * 4 * KIB).unwrap())
        .collect();
    for (at, block) in near.iter().enumerate() {
        assert_eq!(block.capacity(), MIB / 2);
        assert_eq!(block.bytes(), MIB / 2 - at as u64 * 4 * KIB);
    }
    drop(near);
    drop(core);
    pool.check_invariants().unwrap();
    drop(held);
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.requested.current), (0, 0));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

#[test]
fn a_lane_that_finds_the_pools_lock_taken_may_keep_an_eighth_of_what_is_live_beside_the_rest() {
    let world = World::new(PoolConfig::default().cache_bytes(MIB));
    let (pool, lane) = (&world.pool, world.lane(0));
    let _live = pool.alloc(&world.streams[0], 64 * MIB).unwrap();
    let core = pool.shared().core.lock();
    lane.look_for_others(&mut latch(&lane.state));
    assert_eq!(latch(&lane.state).room, MIB + 8 * MIB);
    drop(core);
}

#[test]
fn a_crowded_lane_that_is_full_keeps_what_it_has_and_another_gives_it_up() {
    for is_crowded in [true, false] {
        let world = World::new(PoolConfig::default().cache_bytes(MIB));
        let (pool, stream, lane) = (&world.pool, &world.streams[0], world.lane(0));
        let sizes = (1..=5).map(|n| n * 128 * KIB);
        let held: Vec<Block> = sizes.map(|it| pool.alloc(stream, it).unwrap()).collect();
        latch(&lane.state).crowded = if is_crowded { CROWDED_MISSES } else { 0 };
        // Three are kept, and each of the other two is too much beside them.
        drop(held);
        let kept = if is_crowded { 768 * KIB } else { 640 * KIB };
        assert_eq!(lane.cached_bytes(), kept);
        pool.check_invariants().unwrap();
    }
}

#[test]
fn a_request_of_a_crowded_lane_has_the_pool_grow_and_leaves_what_others_keep() {
    for is_crowded in [true, false] {
        let config = PoolConfig::default().handles(HandleSize::Granule);
        let world = World::new(config.overlap_bytes(0).slack(1.0));
        let (pool, [stream, other]) = (&world.pool, &world.streams);
        let granule = pool.device().info().granule;
        // All memory is live or in the other's cache.
        let all = pool.alloc(stream, 4 * granule).unwrap();
        drop(pool.alloc(other, granule).unwrap());
        let (held, cached) = (pool.stats().reserved.current, world.lane(1).cached_bytes());
        assert_eq!((held, cached), (5 * granule, granule));
        latch(&world.lane(0).state).crowded = if is_crowded { CROWDED_MISSES } else { 0 };
        let new = pool.alloc(stream, granule / 2).unwrap();
        let grown = pool.stats().reserved.current > held;
        assert_eq!(
            (grown, pool.stats().steps.drain),
            (is_crowded, u64::from(!is_crowded))
        );
        assert_eq!(world.lane(1).cached_bytes() == cached, is_crowded);
        drop((all, new));
    }
}

#[test]
fn a_miss_of_a_crowded_lane_is_served_from_its_cache_and_of_another_from_a_hole() {
    for is_crowded in [true, false] {
        let world = World::new(PoolConfig::default());
        let (pool, stream, lane) = (&world.pool, &world.streams[0], world.lane(0));
        let [hole, near, between] = [(); 3].map(|()| pool.alloc(stream, 512 * KIB).unwrap());
        drop(hole);
        drop(lane.shared.lock_drained());
        drop(near);
        if is_crowded {
            crowd(&lane, 64 * MIB);
        }
        let block = pool.alloc(stream, 508 * KIB).unwrap();
        let capacity = if is_crowded { 512 * KIB } else { 508 * KIB };
        assert_eq!(block.capacity(), capacity);
        drop((block, between));
    }
}

#[test]
fn a_crowded_lane_leaves_its_large_blocks_in_its_cache_where_it_looks_for_a_hole() {
    for is_crowded in [true, false] {
        let world = World::new(PoolConfig::default());
        let lane = world.lane(0);
        drop(world.pool.alloc(&world.streams[0], MIB).unwrap());
        assert_eq!(lane.cached_bytes(), MIB);
        latch(&lane.state).crowded = if is_crowded { CROWDED_MISSES } else { 0 };
        let _ = lane.take_ready(2 * MIB, &mut world.pool.shared().core.lock());
        assert_eq!(lane.cached_bytes() > 0, is_crowded);
    }
}

#[test]
fn a_near_block_is_larger_by_an_eighth_at_most_by_no_more_than_a_mib_and_no_slot() {
    let world = World::new(PoolConfig::default().cache_bytes(64 * MIB));
    let lane = world.lane(0);
    for (cached, least) in [
        (7 * KIB, 14 * UNIT),
        (20 * KIB, 16 * KIB),
        (512 * KIB, 1821 * UNIT),
        (16 * MIB, 15 * MIB),
        // The near one is large and the request is not.
        (BINS_END + UNIT, 3585 * UNIT),
    ] {
        drop(world.pool.alloc(&world.streams[0], cached).unwrap());
        crowd(&lane, 64 * MIB);
        assert!(has_near(&lane, cached) && has_near(&lane, least), "{least}");
        assert!(!has_near(&lane, least - UNIT), "{least}");
        assert!(!has_near(&lane, cached + UNIT), "{cached}");
        drop(lane.shared.lock_drained());
    }
    drop(world.pool.alloc(&world.streams[0], 4 * KIB).unwrap());
    crowd(&lane, 64 * MIB);
    assert!(has_near(&lane, 4 * KIB - UNIT) && !has_near(&lane, 4 * KIB - 64));
}

/// Bytes up to which sizes have bins of their own.
const BINS_END: u64 = super::super::free_lists::BINS as u64 * UNIT;

#[test]
fn a_lane_alone_is_crowded_no_more_after_so_many_misses_and_a_cache_of_nothing_never_is() {
    let world = World::new(PoolConfig::default());
    let lane = world.lane(0);
    drop(world.pool.alloc(&world.streams[0], MIB).unwrap());
    crowd(&lane, 64 * MIB);
    for _ in 0..CROWDED_MISSES {
        assert!(has_near(&lane, MIB - UNIT));
    }
    assert!(!has_near(&lane, MIB - UNIT));
    assert_eq!(latch(&lane.state).room, lane.shared.cache_bytes);

    let world = World::new(PoolConfig::default().cache_bytes(0));
    let lane = world.lane(0);
    let core = world.pool.shared().core.lock();
    assert!(!has_near(&lane, MIB));
    drop(core);
    assert_eq!(latch(&lane.state).crowded, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// As if threads met at the lock now and then.
    #[test]
    fn blocks_of_a_crowded_lane_lie_apart_and_add_up_to_nothing_in_the_end(
        steps in proptest::collection::vec((1..300 * KIB, 0usize..64, 0u8..8), 1..400),
    ) {
        let world = World::new(PoolConfig::default().cache_bytes(MIB));
        let (pool, lane) = (&world.pool, world.lane(0));
        let mut held: Vec<Block> = Vec::new();
        for (bytes, at, kind) in steps {
            match kind {
                0 => crowd(&lane, 4 * MIB),
                1..4 if at < held.len() => drop(held.swap_remove(at)),
                // On another stream, in whose cache it stays.
                4 if at < held.len() => held.swap_remove(at).free_on(&world.streams[1]).unwrap(),
                _ => held.push(pool.alloc(&world.streams[0], bytes).unwrap()),
            }
            let mut all: Vec<_> = held.iter().map(|it| (it.addr(), it.capacity())).collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            let most = |it: &Block| match it.bytes().next_multiple_of(UNIT) {
                least @ ..4096 => 2 * least,
                least => least + (least / 8).max(4096),
            };
            prop_assert!(held.iter().all(|it| (it.bytes()..=most(it)).contains(&it.capacity())));
            prop_assert_eq!(pool.check_invariants(), Ok(()));
            let sums = pool.stats();
            prop_assert_eq!(sums.requested.current, held.iter().map(Block::bytes).sum::<u64>());
            prop_assert_eq!(sums.allocated.current, held.iter().map(Block::capacity).sum::<u64>());
        }
        drop(held);
        let stats = pool.stats();
        prop_assert_eq!((stats.blocks.current, stats.allocated.current), (0, 0));
        pool.trim(0).unwrap();
        let stats = pool.stats();
        prop_assert_eq!((stats.reserved.current, stats.active.current), (0, 0));
    }
}
