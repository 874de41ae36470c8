//! What lanes take from each other, and as what it counts.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::device::{Device, Stream};
use crate::heap::Epoch;
use crate::pool::ask;
use crate::pool::stats::Steps;
use crate::pool::{Pool, PoolConfig};
use crate::sync::is_latched;

const BYTES: u64 = 4096;

pub(crate) struct World {
    pub(crate) pool: Pool,
    pub(crate) streams: [Stream; 2],
}

impl World {
    pub(crate) fn new(config: PoolConfig) -> Self {
        let device = Device::host().unwrap();
        let pool = Pool::new(&device, config).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        Self { pool, streams }
    }

    pub(crate) fn lane(&self, of: usize) -> Arc<Lane> {
        let lane = self.pool.shared().lane(&self.streams[of]);
        lane.unwrap().unwrap()
    }

    /// Fills the first stream's cache with this many blocks.
    fn cached(&self, count: usize) {
        let stream = &self.streams[0];
        let one = |_| self.pool.alloc(stream, BYTES).unwrap();
        drop((0..count).map(one).collect::<Vec<_>>());
        assert!(in_cache(&self.lane(0)) >= count);
    }

    /// What `lane` takes over from the first stream's lane, which is given back: the steps counted.
    fn takes_over(&self, lane: &Lane) -> Option<Steps> {
        let any = lane.slot != self.lane(0).slot;
        let before = self.pool.stats().steps;
        let mut core = self.pool.shared().core.lock();
        let mut take_over = |waited| lane.take_over(BYTES, any, waited, &mut core);
        let grant = match (take_over(false), lane.wait_for_batch(BYTES)) {
            (None, waits) if !waits.is_empty() => {
                ask::put(&waits, &mut core.steps.waits).unwrap();
                lane.take_over(BYTES, false, true, &mut core)
            }
            (grant, _) => grant,
        }?;
        core.give(grant.id, Epoch::new(lane.slot, lane.open_tick()));
        drop(core);
        let steps = self.pool.stats().steps;
        self.pool.check_invariants().unwrap();
        Some(Steps {
            own_stream: steps.own_stream - before.own_stream,
            ready_elsewhere: steps.ready_elsewhere - before.ready_elsewhere,
            stream_wait: steps.stream_wait - before.stream_wait,
            waits: steps.waits - before.waits,
            ..Steps::default()
        })
    }
}

fn in_cache(lane: &Lane) -> usize {
    let mut count = 0;
    latch(&lane.state).cache.each(|_| count += 1);
    count
}

#[test]
fn blocks_of_another_stream_come_along_behind_one_wait_and_of_its_own_without_one() {
    let world = World::new(PoolConfig::default());
    let (first, other) = (world.lane(0), world.lane(1));
    let [stream_wait, ready_elsewhere, own_stream] = [0, 1, 2].map(|kind| {
        let one = |of| u64::from(kind == of);
        Steps {
            stream_wait: one(0),
            waits: one(0),
            ready_elsewhere: one(1),
            own_stream: one(2),
            ..Steps::default()
        }
    });
    // A machine of one core has one lane a stream. Which of two is this thread's depends on its number.
    let part = world.pool.shared().part(&world.streams[0], &first);
    let home = world.lane(0);
    let part = match Arc::ptr_eq(&home, &first) {
        true => part,
        false => Some(first),
    };
    for round in 0..3 {
        drop(world.pool.shared().lock_drained());
        world.cached(5);
        let had = in_cache(&home);
        let before = in_cache(&other);
        assert_eq!(world.takes_over(&other), Some(stream_wait), "{round}");
        assert_eq!((in_cache(&home), in_cache(&other)), (0, before + had - 1));
        assert_eq!(world.takes_over(&other), None, "there are no more");
        // What the other stream has waited for already costs no wait.
        world.cached(1);
        world.streams[1].wait_stream(&world.streams[0]).unwrap();
        assert_eq!(world.takes_over(&other), Some(ready_elsewhere));
        world.cached(3);
        if let Some(part) = &part {
            assert_eq!(world.takes_over(part), Some(own_stream));
        }
        drop(world.pool.shared().lock_drained());
        world.cached(3);
        assert_eq!(world.takes_over(&home), None, "nothing from itself");
    }
}

#[test]
fn a_stream_has_as_many_lanes_as_the_machine_runs_threads_and_one_to_begin_with() {
    let world = World::new(PoolConfig::default());
    let shared = world.pool.shared();
    let first = world.lane(0);
    assert_eq!(shared.listed().len(), 1);
    let most = std::thread::available_parallelism().map_or(1, |most| most.get().min(64));
    for lanes in 2..=most {
        let part = shared.part(&world.streams[0], &first).unwrap();
        assert_eq!((part.slot, shared.listed().len()), (first.slot, lanes));
        assert!(!Arc::ptr_eq(&part, &first));
    }
    // There are enough: a thread gets one of these.
    assert!(shared.part(&world.streams[0], &first).is_none());
    let (one, all) = (world.lane(0), shared.listed());
    assert_eq!(all.len(), most);
    assert!(all.iter().any(|lane| Arc::ptr_eq(lane, &one)));
}

#[test]
fn a_request_empties_the_caches_of_all_streams_in_one_step() {
    let world = World::new(PoolConfig::default().limit(64 << 20));
    for both in [false, true] {
        let lanes = [0, 1].map(|of| world.lane(of));
        world.cached(3);
        if both {
            drop(world.pool.alloc(&world.streams[1], BYTES).unwrap());
        }
        let cached = lanes.each_ref().map(|lane| in_cache(lane) > 0);
        assert_eq!(cached, [true, both]);
        let before = world.pool.stats().steps.drain;
        world
            .pool
            .alloc(&world.streams[0], 65 << 20)
            .expect_err("beyond the limit");
        assert_eq!(lanes.map(|lane| in_cache(&lane)), [0, 0]);
        assert_eq!(world.pool.stats().steps.drain, before + 1, "{both}");
    }
}

#[test]
fn a_request_that_observers_are_told_of_is_served_by_the_cache_too() {
    let world = World::new(PoolConfig::default().track(true));
    world.cached(1);
    let had = in_cache(&world.lane(0));
    let before = world.pool.stats().steps;
    let block = world.pool.alloc(&world.streams[0], BYTES).unwrap();
    assert_eq!(in_cache(&world.lane(0)), had - 1);
    assert_eq!(world.pool.stats().steps, before);
    drop(block);
}

#[test]
fn a_shrink_to_what_a_block_has_leaves_it_as_it_is() {
    let world = World::new(PoolConfig::default());
    for bytes in [100, BYTES, 3 << 20, (3 << 20) + 1] {
        let mut block = world.pool.alloc(&world.streams[0], bytes).unwrap();
        let before = (block.addr(), block.capacity());
        block.shrink(bytes).unwrap();
        assert_eq!((block.addr(), block.capacity()), before);
        assert_eq!(block.bytes(), bytes);
        assert!(block.shrink(bytes + 1).is_err() && block.shrink(0).is_err());
        assert_eq!(block.bytes(), bytes);
    }
}

#[test]
fn a_block_that_shrinks_has_the_bytes_asked_for_also_where_none_are_freed() {
    let world = World::new(PoolConfig::default());
    for bytes in [100, BYTES, 3 << 20] {
        let mut block = world.pool.alloc(&world.streams[0], bytes).unwrap();
        let capacity = block.capacity();
        block.shrink(bytes - 1).unwrap();
        assert_eq!((block.bytes(), block.capacity()), (bytes - 1, capacity));
        assert_eq!(world.pool.stats().requested.current, bytes - 1);
        drop(block);
        assert_eq!(world.pool.stats().requested.current, 0);
    }
}

#[test]
fn a_block_with_a_declared_use_is_freed_on_the_stream_that_was_asked_for() {
    let world = World::new(PoolConfig::default());
    let [home, other] = [0, 1].map(|of| world.lane(of));
    let third = world.pool.device().stream().unwrap();
    let mut block = world.pool.alloc(&world.streams[0], BYTES).unwrap();
    block.record_use(&third).unwrap();
    block.free_on(&world.streams[1]).unwrap();
    assert_eq!((in_cache(&home), in_cache(&other)), (0, 1));
}

impl World {
    /// Two slots of one slab in the core, each freed on a stream whose work is not known to be done.
    fn slab_of_two_streams(&self) {
        let slots = [(); 2].map(|()| self.pool.alloc(&self.streams[0], 64).unwrap());
        let [mine, theirs] = slots;
        drop(mine);
        theirs.free_on(&self.streams[1]).unwrap();
        drop(self.pool.shared().lock_drained());
        assert!(!self.pool.shared().core.lock().slabs.mixed().is_empty());
    }
}

#[test]
fn a_lane_ends_that_a_block_came_back_to_before_it_was_told_of_its_captures_end() {
    let world = World::new(PoolConfig::default());
    let lane = world.lane(0);
    let block = world.pool.alloc(&world.streams[0], 3 << 20).unwrap();
    let capture = world.streams[0].begin_capture().unwrap();
    let captured = latch(&lane.state).captured.clone();
    assert!(captured.is_some());
    drop(capture.end().unwrap());
    lane.change(|state| state.captured.clone_from(&captured));
    drop(block);
    assert_eq!(in_cache(&lane), 0);
    world.pool.check_invariants().unwrap();
    lane.change(|state| state.captured = None);
    drop(captured);
    let lane = {
        let weak = Arc::downgrade(&lane);
        drop(lane);
        weak
    };
    drop(world);
    assert!(lane.upgrade().is_none());
}

/// A thread finds a stream's lane by no count of references, also once it has ended.
#[test]
fn lanes_of_a_closed_pool_are_there_until_its_last_block_is_freed() {
    let world = World::new(PoolConfig::default());
    let [home, other] = &world.streams;
    let alloc = || world.pool.alloc(home, 3 << 20).unwrap();
    let (first, second, last) = (alloc(), alloc(), alloc());
    first.free_on(other).unwrap();
    assert_eq!(in_cache(&world.lane(1)), 1);
    let lanes = [0, 1].map(|of| Arc::downgrade(&world.lane(of)));
    let are_there = || lanes.each_ref().map(|lane| lane.strong_count() > 0);
    let shared = Arc::downgrade(world.pool.shared());
    drop(world.pool);
    second.free_on(other).unwrap();
    assert_eq!(are_there(), [true, true]);
    let Some(pool) = shared.upgrade() else {
        panic!("the pool is gone before its last block");
    };
    assert_eq!(pool.core.lock().extents.taken(), 3 << 20);
    drop(pool);
    last.free_on(other).unwrap();
    assert_eq!((are_there(), shared.strong_count()), ([false, false], 0));
}

#[test]
fn a_pool_that_is_dropped_while_threads_free_its_blocks_ends_with_the_last_of_them() {
    let World { pool, streams } = World::new(PoolConfig::default());
    let [home, other] = &streams;
    let blocks = [(); 4].map(|()| pool.alloc(home, 3 << 20).unwrap());
    let shared = Arc::downgrade(pool.shared());
    std::thread::scope(|scope| {
        for (at, block) in blocks.into_iter().enumerate() {
            scope.spawn(move || match at % 2 {
                0 => block.free_on(other).unwrap(),
                _ => drop(block),
            });
        }
        drop(pool);
    });
    assert_eq!(shared.strong_count(), 0);
}

/// What an adopted stream keeps alive: the application's.
struct Owner(Weak<Shared>, Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        let shared = self.0.upgrade().expect("it closes");
        self.1.store(!is_latched(&shared.core), Ordering::Relaxed);
    }
}

#[test]
fn what_a_stream_keeps_that_ends_while_its_pool_closes_is_dropped_without_the_pools_lock() {
    let World { pool, streams } = World::new(PoolConfig::default());
    let [gone, other] = streams;
    let (shared, free) = (Arc::downgrade(pool.shared()), Arc::<AtomicBool>::default());
    let owner = Arc::new(Owner(shared, Arc::clone(&free)));
    assert!(gone.core().owner.set(owner).is_ok());
    let block = pool.alloc(&gone, 3 << 20).unwrap();
    drop(pool.alloc(&other, BYTES).unwrap());
    drop(gone);
    // As another thread may find it that frees the block during the close.
    lock(&pool.shared().books).closed = true;
    drop(block);
    drop(pool);
    assert!(free.load(Ordering::Relaxed));
}

#[test]
fn a_lane_of_an_open_pool_is_gone_with_its_stream_and_its_last_block() {
    let world = World::new(PoolConfig::default());
    let alloc = |of: usize| world.pool.alloc(&world.streams[of], 3 << 20).unwrap();
    let (kept, block) = (alloc(0), alloc(1));
    let lane = Arc::downgrade(&world.lane(1));
    let World { pool, streams } = world;
    let [home, other] = streams;
    drop(other);
    assert_eq!(lane.strong_count(), 1);
    block.free_on(&home).unwrap();
    assert_eq!(lane.strong_count(), 0);
    drop((kept, pool));
}

#[test]
fn a_trim_gives_slabs_back_that_several_streams_used() {
    let world = World::new(PoolConfig::default());
    world.slab_of_two_streams();
    let reserved = world.pool.stats().reserved.current;
    assert_eq!(world.pool.trim(0).unwrap(), reserved);
    assert!(world.pool.shared().core.lock().slabs.mixed().is_empty());
    assert_eq!(world.pool.stats().reserved.current, 0);
    world.pool.check_invariants().unwrap();
}

#[test]
fn without_device_waits_a_slab_of_several_streams_is_no_reason_for_one() {
    let config = PoolConfig::default().overlap_bytes(0).reuse(true, false);
    let world = World::new(config);
    let shared = world.pool.shared();
    world.slab_of_two_streams();
    let reserved = world.pool.stats().reserved.current;
    let block = world.pool.alloc(&world.streams[0], 2 * reserved).unwrap();
    assert_eq!(world.pool.stats().steps.waits, 0);
    assert!(!shared.core.lock().slabs.mixed().is_empty());
    drop(block);
}

#[test]
fn no_more_come_along_than_one_wait_is_for_nor_than_the_cache_may_hold() {
    let world = World::new(PoolConfig::default().cache_bytes(1 << 20));
    world.cached(64 + 9);
    let had = in_cache(&world.lane(0));
    assert!(world.takes_over(&world.lane(1)).is_some());
    let (left, came) = (in_cache(&world.lane(0)), in_cache(&world.lane(1)));
    assert_eq!((left, came), (had - 64, 64 - 1));
    let world = World::new(PoolConfig::default().cache_bytes(4 * BYTES));
    world.cached(4);
    world
        .pool
        .alloc(&world.streams[1], 3 * BYTES)
        .map(drop)
        .unwrap();
    let held = in_cache(&world.lane(1));
    assert!(world.takes_over(&world.lane(1)).is_some());
    assert_eq!(
        in_cache(&world.lane(1)) - held,
        1,
        "three of four were held"
    );
}

#[test]
fn caches_keep_a_twentieth_of_the_slack_together_and_each_some_at_least() {
    const MIB: u64 = 1 << 20;
    const LEAST: u64 = MIB / 4;
    let kept = |config: PoolConfig, slack: f64, bytes: u64| {
        let world = World::new(config.slack(slack));
        let block = |bytes| world.pool.alloc(&world.streams[0], bytes).unwrap();
        drop(block(bytes));
        // A full cache sees how much it may keep by now.
        drop([block(5 * MIB), block(MIB)]);
        drop([block(2 * MIB), block(3 * MIB), block(4 * MIB)]);
        let lane = world.lane(0);
        let of = |streams: usize| {
            (0..streams).for_each(|of| _ = world.lane(of));
            world.pool.shared().core.lock().cache_room() / LEAST
        };
        let rooms = [of(1), of(2)];
        world.pool.check_invariants().unwrap();
        (rooms, lane.cached_bytes() / MIB)
    };
    let config = PoolConfig::default;
    assert_eq!(kept(config(), 16.0, 20 * MIB), ([64, 32], 9));
    assert_eq!(kept(config(), 16.0, 10 * MIB).0, [32, 16]);
    assert_eq!(kept(config(), 16.0, MIB), ([28, 16], 4));
    assert_eq!(kept(config(), 0.1, MIB), ([1, 16], 4));
    let fixed = config().cache_bytes(3 * MIB);
    assert_eq!(kept(fixed, 16.0, 20 * MIB), ([12, 12], 4));
}

#[test]
fn a_lane_does_not_end_under_a_request_that_began_while_it_was_retired() {
    let world = World::new(PoolConfig::default());
    let lane = world.lane(0);
    let World { pool, streams } = world;
    let [stream, other] = streams;
    let [asks, freed] = [(); 2].map(|()| pool.alloc(&stream, BYTES).unwrap());
    drop(pool.alloc(&other, BYTES).unwrap());
    let (shared, uid) = (pool.shared(), stream.id());
    let until = |so: &dyn Fn() -> bool| (0..).take_while(|_| !so()).for_each(crate::sync::pause);
    // The lane comes to no end while this is held.
    let held = latch(&shared.transfer.state);
    let (is_kept, block) = std::thread::scope(|scope| {
        scope.spawn(move || drop(stream));
        until(&|| lane.others.elsewhere.is_retired());
        let asked = scope.spawn(|| asks.lane().alloc(BYTES, true).unwrap());
        freed.free_on(&other).unwrap();
        let is_kept = lock(&shared.books).streams.contains_key(&uid);
        drop(held);
        (is_kept, asked.join().unwrap())
    });
    assert!(is_kept);
    drop((asks, block));
    assert!(!lock(&shared.books).streams.contains_key(&uid));
    pool.check_invariants().unwrap();
}

#[test]
fn a_lane_that_has_ended_serves_no_request() {
    let world = World::new(PoolConfig::default());
    let (lane, shared) = (world.lane(0), Arc::clone(world.pool.shared()));
    drop(world.pool);
    for bytes in [BYTES, 16] {
        assert!(lane.alloc(bytes, true).is_err());
        assert!(lane.climb(bytes, bytes, None).is_err());
    }
    let core = shared.core.lock();
    core.check().unwrap();
    assert_eq!(core.extents.taken(), 0);
}

#[test]
fn a_request_on_a_lane_that_has_ended_counts_nothing() {
    let world = World::new(PoolConfig::default());
    let lane = world.lane(0);
    drop(world.pool.alloc(&world.streams[0], 20 * BYTES).unwrap());
    let World { pool, streams } = world;
    drop(streams);
    let counted = || {
        let stats = pool.stats();
        (stats.blocks, stats.allocated, stats.requested, stats.active)
    };
    let before = counted();
    for bytes in [BYTES, 16] {
        assert!(lane.alloc(bytes, true).is_err());
        assert!(lane.climb(bytes, bytes, None).is_err());
        assert_eq!(counted(), before, "{bytes}");
    }
    pool.check_invariants().unwrap();
}
