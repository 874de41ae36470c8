//! What goes between stream caches, and what not.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pool::cache::stream_cache::tests::World;
use crate::pool::{Block, HandleSize, PoolConfig};

const BYTES: u64 = 32 << 10;

/// Blocks that a cache of these tests has room for.
const CACHED: u64 = 16;

fn world(config: PoolConfig) -> World {
    World::new(config.cache_bytes(CACHED * BYTES))
}

/// A pool at its limit, whose memory the second stream freed and is done with.
fn full_of_done_batches(config: PoolConfig) -> World {
    let world = world(config.handles(HandleSize::Granule));
    let granule = world.pool.device().info().granule;
    world.freed(world.made(BYTES, granule / BYTES));
    assert!(world.batches().len() > 1);
    world.streams[1].synchronize().unwrap();
    world.pool.set_limit(Some(granule));
    world
}

impl World {
    fn made(&self, bytes: u64, count: u64) -> Vec<Block> {
        let one = |_| self.pool.alloc(&self.streams[0], bytes).unwrap();
        (0..count).map(one).collect()
    }

    /// Frees blocks on the second stream.
    fn freed(&self, blocks: Vec<Block>) {
        for block in blocks {
            block.free_on(&self.streams[1]).unwrap();
        }
        self.pool.check_invariants().unwrap();
    }

    /// Blocks of each batch, oldest first.
    fn batches(&self) -> Vec<usize> {
        let state = latch(&self.pool.shared().transfer.state);
        state.batches.iter().map(|it| it.blocks.len()).collect()
    }

    /// Addresses of all blocks in caches and between them: each is in one place.
    fn free(&self) -> BTreeSet<u64> {
        let shared = self.pool.shared();
        shared.look(|_, cached| cached.iter().map(|(at, _)| shared.base + at).collect())
    }
}

#[test]
fn blocks_that_a_consumers_cache_has_no_room_for_leave_it_together() {
    let world = world(PoolConfig::default().handles(HandleSize::Granule));
    let granule = world.pool.device().info().granule;
    let count = granule / BYTES;
    let blocks = world.made(BYTES, count);
    world.freed(blocks);
    let batches = count / CACHED - 1;
    assert_eq!(world.batches(), vec![CACHED as usize; batches as usize]);
    // They are the producer's behind one wait, and in its own cache up to the last.
    let before = world.pool.stats().steps;
    world.pool.set_limit(Some(granule));
    let blocks = world.made(BYTES, batches * CACHED);
    let steps = world.pool.stats().steps;
    assert_eq!(steps.waits - before.waits, 1);
    assert_eq!(steps.stream_wait - before.stream_wait, 1);
    let ready = steps.ready_elsewhere - before.ready_elsewhere;
    assert_eq!(ready, batches - 1);
    assert!(world.batches().is_empty());
    drop(blocks);
    world.pool.check_invariants().unwrap();
}

#[test]
fn batches_that_are_done_are_taken_where_waits_are_switched_off() {
    let world = full_of_done_batches(PoolConfig::default().reuse(true, false));
    let batches = world.batches().len() as u64;
    let before = world.pool.stats().steps;
    let blocks = world.made(BYTES, batches * CACHED);
    let steps = world.pool.stats().steps;
    assert_eq!((steps.waits, steps.drain), (before.waits, before.drain));
    assert_eq!(steps.ready_elsewhere - before.ready_elsewhere, batches);
    assert!(world.batches().is_empty());
    drop(blocks);
}

#[test]
fn where_only_waits_count_a_batch_that_is_done_is_not_ready_but_behind_one() {
    let world = world(PoolConfig::default().reuse(false, true));
    world.freed(world.made(BYTES, 4 * CACHED));
    world.streams[1].synchronize().unwrap();
    let lanes = [0, 1].map(|of| world.lane(of));
    assert!(lanes[0].take_batch(BYTES, false).is_none());
    world.streams[0].wait_stream(&world.streams[1]).unwrap();
    let (block, step) = lanes[0].take_batch(BYTES, false).unwrap();
    assert_eq!((step, block.bytes), (Told::ReadyElsewhere(BYTES), BYTES));
    let (_, step) = lanes[1].take_batch(BYTES, false).unwrap();
    let own = Told::OwnStream(BYTES);
    assert_eq!(step, own, "nothing of one's own is waited for");
}

#[test]
fn where_only_waits_count_a_batch_that_is_done_serves_a_request_and_no_cache_is_emptied() {
    let world = full_of_done_batches(PoolConfig::default().reuse(false, true));
    let batches = world.batches().len();
    let before = world.pool.stats().steps;
    let blocks = world.made(BYTES, CACHED);
    let steps = world.pool.stats().steps;
    assert_eq!((steps.waits, steps.drain), (before.waits, before.drain));
    assert_eq!(world.batches().len(), batches - 1);
    drop(blocks);
    world.pool.check_invariants().unwrap();
}

#[test]
fn a_batch_that_a_stream_runs_behind_is_found_among_older_ones_that_it_does_not() {
    let world = world(PoolConfig::default());
    let third = world.pool.device().stream().unwrap();
    let blocks = world.made(BYTES, 3 * CACHED);
    world.freed(world.made(BYTES, 4 * CACHED));
    let addrs: BTreeSet<u64> = blocks.iter().map(Block::addr).collect();
    for block in blocks {
        block.free_on(&third).unwrap();
    }
    assert_eq!(world.batches().len(), 5);
    let (lane, before) = (world.lane(0), world.batches());
    assert!(lane.take_batch(BYTES, false).is_none());
    assert_eq!(world.batches(), before);
    world.streams[0].wait_stream(&third).unwrap();
    for _ in 0..2 {
        let (block, step) = lane.take_batch(BYTES, false).unwrap();
        assert_eq!(step, Told::ReadyElsewhere(BYTES));
        assert!(addrs.contains(&block.addr), "of the third stream");
        lane.drain(ALL_BINS, &mut world.pool.shared().core.lock());
    }
    assert!(lane.take_batch(BYTES, false).is_none());
}

#[test]
fn fewer_blocks_than_a_batch_has_at_least_go_into_the_heap() {
    for (count, said) in [(LEAST, 1), (LEAST - 1, 0)] {
        let world = world(PoolConfig::default());
        let bytes = CACHED * BYTES / count as u64 / 256 * 256;
        let blocks = world.made(bytes, count as u64 + 8);
        world.freed(blocks);
        assert_eq!(world.batches().len(), said, "{count} a cache");
    }
}

#[test]
fn blocks_too_few_for_a_batch_stay_in_their_cache_behind_the_same_work() {
    let world = world(PoolConfig::default());
    world.freed(world.made(BYTES, LEAST as u64 - 1));
    let lane = world.lane(1);
    let cached = || {
        let mut all = Vec::new();
        latch(&lane.state)
            .cache
            .each(|it| all.push((it.addr, it.bytes, it.tick, it.id)));
        all
    };
    let before = cached();
    assert_eq!(before.len(), LEAST - 1);
    assert!(
        before
            .iter()
            .all(|&(_, _, tick, _)| tick == lane.open_tick())
    );
    assert!(!lane.hand_over(BYTES, &mut world.pool.shared().core.lock()));
    assert_eq!(cached(), before);
}

#[test]
fn what_a_stream_frees_of_its_own_goes_into_the_heap() {
    let world = world(PoolConfig::default());
    drop(world.made(BYTES, 3 * CACHED));
    drop(world.made(BYTES, 3 * CACHED));
    assert!(world.batches().is_empty());
}

#[test]
fn of_more_batches_than_are_kept_the_oldest_goes_into_the_heap() {
    let world = world(PoolConfig::default());
    let count = (KEPT as u64 + 3) * CACHED;
    let blocks = world.made(BYTES, count);
    let addrs: Vec<u64> = blocks.iter().map(Block::addr).collect();
    world.freed(blocks);
    assert_eq!(world.batches(), [CACHED as usize; KEPT]);
    // The first two caches full went.
    let (gone, free) = (&addrs[..2 * CACHED as usize], world.free());
    assert!(gone.iter().all(|addr| !free.contains(addr)));
    assert!(free.len() > KEPT * CACHED as usize);
}

#[test]
fn nothing_is_kept_together_over_the_soft_limit() {
    for (limit, said) in [(1 << 20, false), (1 << 30, true)] {
        let world = world(PoolConfig::default().soft_limit(limit));
        let blocks = world.made(BYTES, 4 * CACHED);
        world.freed(blocks);
        assert_eq!(!world.batches().is_empty(), said, "{limit}");
    }
}

#[test]
fn what_a_cache_has_no_room_for_stays_in_its_batch() {
    let world = world(PoolConfig::default());
    world.freed(world.made(BYTES, 3 * CACHED));
    let held = world.batches();
    let lane = world.lane(0);
    world.streams[0].wait_stream(&world.streams[1]).unwrap();
    drop(world.pool.alloc(&world.streams[0], 12 * BYTES).unwrap());
    let free = world.free();
    let (block, _) = lane.take_batch(BYTES, false).unwrap();
    let mut left = held.clone();
    left[0] -= 5;
    assert_eq!(world.batches(), left, "one taken and room for four");
    let now = world.free();
    assert_eq!(now.len() + 1, free.len());
    assert!(free.contains(&block.addr) && !now.contains(&block.addr));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Two sizes, two streams: every block is live, or free in one place, whatever is taken and given.
    #[test]
    fn no_block_is_lost_or_had_twice_on_its_way(
        steps in vec((0u8..20, 0usize..2, 1usize..40), 1..60),
    ) {
        let world = world(PoolConfig::default());
        let mut live: Vec<Block> = Vec::new();
        for (kind, stream, many) in steps {
            let bytes = BYTES << (kind % 2);
            match kind {
                0..=7 => live.extend(
                    (0..many).map(|_| world.pool.alloc(&world.streams[stream], bytes).unwrap()),
                ),
                8..=17 => {
                    for block in live.drain(live.len().saturating_sub(many)..) {
                        block.free_on(&world.streams[stream]).unwrap();
                    }
                }
                18 => world.streams[stream].wait_stream(&world.streams[1 - stream]).unwrap(),
                _ => drop(world.pool.shared().lock_drained()),
            }
            world.pool.check_invariants().unwrap();
            let free = world.free();
            let addrs: BTreeSet<u64> = live.iter().map(Block::addr).collect();
            prop_assert_eq!(addrs.len(), live.len());
            prop_assert!(addrs.is_disjoint(&free));
            let stats = world.pool.stats();
            let cached = world.pool.snapshot().bytes(crate::pool::PieceState::Cached);
            prop_assert_eq!(stats.allocated.current + cached, stats.active.current);
        }
    }
}
