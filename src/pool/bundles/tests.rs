//! What is bundled, and what not.

use super::*;
use crate::pool::lane::tests::World;
use crate::pool::{Block, HandleSize, PoolConfig};

const BYTES: u64 = 32 << 10;

/// Blocks that a cache of these tests has room for.
const CACHED: u64 = 16;

fn world(config: PoolConfig) -> World {
    World::new(config.cache_bytes(CACHED * BYTES))
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

    /// Blocks of each bundle, oldest first.
    fn bundles(&self) -> Vec<usize> {
        let core = self.pool.shared().core.lock();
        let blocks = core.bundles.kept.iter().map(|bundle| bundle.blocks.len());
        blocks.collect()
    }
}

#[test]
fn blocks_that_a_consumers_cache_has_no_room_for_leave_it_together() {
    let world = world(PoolConfig::default().handles(HandleSize::Granule));
    let granule = world.pool.device().info().granule;
    let count = granule / BYTES;
    let blocks = world.made(BYTES, count);
    world.freed(blocks);
    let bundles = count / CACHED - 1;
    assert_eq!(world.bundles(), vec![CACHED as usize; bundles as usize]);
    // They are the producer's behind one wait, and in its own cache up to the last.
    let before = world.pool.stats().steps;
    world.pool.set_limit(Some(granule));
    let blocks = world.made(BYTES, bundles * CACHED);
    let steps = world.pool.stats().steps;
    assert_eq!(steps.waits - before.waits, 1);
    assert_eq!(steps.stream_wait - before.stream_wait, 1);
    let ready = steps.ready_elsewhere - before.ready_elsewhere;
    assert_eq!(ready, bundles - 1);
    assert!(world.bundles().is_empty());
    drop(blocks);
    world.pool.check_invariants().unwrap();
}

#[test]
fn bundles_that_are_done_are_taken_where_waits_are_switched_off() {
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let world = world(config.reuse(true, false));
    let granule = world.pool.device().info().granule;
    world.freed(world.made(BYTES, granule / BYTES));
    let bundles = world.bundles().len() as u64;
    assert!(bundles > 1);
    world.streams[1].synchronize().unwrap();
    let before = world.pool.stats().steps;
    world.pool.set_limit(Some(granule));
    let blocks = world.made(BYTES, bundles * CACHED);
    let steps = world.pool.stats().steps;
    assert_eq!((steps.waits, steps.drain), (before.waits, before.drain));
    assert_eq!(steps.ready_elsewhere - before.ready_elsewhere, bundles);
    assert!(world.bundles().is_empty());
    drop(blocks);
}

#[test]
fn only_a_size_that_is_missed_again_and_again_is_bundled() {
    let world = world(PoolConfig::default());
    // Sizes in turn: none is missed twice in a row.
    let (mut blocks, mut others) = (Vec::new(), Vec::new());
    for _ in 0..3 * CACHED {
        blocks.extend(world.made(BYTES, 1));
        others.extend(world.made(2 * BYTES, 1));
    }
    world.freed(blocks);
    assert!(world.bundles().is_empty());
    let blocks = world.made(BYTES, 3 * CACHED);
    world.freed(blocks);
    assert!(!world.bundles().is_empty());
}

#[test]
fn the_sizes_asked_for_last_are_known_and_earlier_ones_forgotten() {
    let mut bundles = Bundles::default();
    (1..=ASKED as u64).for_each(|size| bundles.ask(size));
    bundles.ask(1);
    assert!((1..=ASKED as u64).all(|size| bundles.is_asked(size)));
    bundles.ask(9);
    let known: Vec<u64> = (1..=9).filter(|&size| bundles.is_asked(size)).collect();
    assert_eq!(known, [2, 3, 4, 9]);
}

#[test]
fn fewer_blocks_than_a_bundle_has_at_least_go_into_the_arena() {
    for (count, said) in [(LEAST, 1), (LEAST - 1, 0)] {
        let world = world(PoolConfig::default());
        let bytes = CACHED * BYTES / count as u64 / 256 * 256;
        let blocks = world.made(bytes, count as u64 + 8);
        world.freed(blocks);
        assert_eq!(world.bundles().len(), said, "{count} a cache");
    }
}

#[test]
fn what_a_stream_frees_of_its_own_is_not_bundled() {
    let world = world(PoolConfig::default());
    drop(world.made(BYTES, 3 * CACHED));
    drop(world.made(BYTES, 3 * CACHED));
    assert!(world.bundles().is_empty());
}

#[test]
fn of_more_bundles_than_are_kept_the_oldest_goes_into_the_arena() {
    let world = world(PoolConfig::default());
    let count = (KEPT as u64 + 3) * CACHED;
    let blocks = world.made(BYTES, count);
    let addrs: Vec<u64> = blocks.iter().map(Block::addr).collect();
    world.freed(blocks);
    assert_eq!(world.bundles(), [CACHED as usize; KEPT]);
    let core = world.pool.shared().core.lock();
    let kept: Vec<u64> = core.bundles.blocks().map(|block| block.addr).collect();
    // The first two caches full went, the last is still one.
    let gone = &addrs[..2 * CACHED as usize];
    assert!(gone.iter().all(|addr| !kept.contains(addr)));
    assert_eq!(kept.len(), KEPT * CACHED as usize);
}

#[test]
fn nothing_is_bundled_over_the_soft_limit() {
    for (limit, said) in [(1 << 20, false), (1 << 30, true)] {
        let world = world(PoolConfig::default().soft_limit(limit));
        let blocks = world.made(BYTES, 4 * CACHED);
        world.freed(blocks);
        assert_eq!(!world.bundles().is_empty(), said, "{limit}");
    }
}
