//! What a step asks for, and under which lock.

use std::sync::Arc;

use super::*;
use crate::device::{Capture, Device, Stream, lock};
use crate::pool::cache::stream_cache::tests::World;
use crate::pool::tuning::{LOOKS_AGAIN, SMALL_PART};
use crate::pool::{Attached, Block, HandleSize, Pool, PoolConfig, Relief};
use crate::sync::Mutex;

const BYTES: u64 = 4096;

const MIB: u64 = 1 << 20;

#[test]
fn what_another_streams_cache_holds_is_waited_for_but_not_for_ever() {
    let world = World::new(PoolConfig::default().reuse(false, true));
    let shared = world.pool.shared();
    drop(world.pool.alloc(&world.streams[0], BYTES).unwrap());
    let lane = world.lane(1);
    let mut climb = Climb::new(&lane, BYTES, BYTES, None);
    let mut core = shared.core.lock();
    climb.restart(&core);
    for _ in 0..MOST_WAITS {
        // Each time somebody else has what was waited for.
        let turn = steps::caches(&mut climb, &mut core);
        assert!(matches!(turn, Some(Turn::Work(_, true))));
    }
    let turn = steps::caches(&mut climb, &mut core);
    assert!(turn.is_none());
    assert_eq!(core.steps.waits, 0, "a wait under the lock");
    let turn = steps::waiting(&mut climb, &mut core);
    let Some(Turn::Work(waits, false)) = turn else {
        panic!("it is a hole now");
    };
    drop(core);
    let ran = waits.run();
    let mut core = shared.core.lock();
    let found = core.end(ran).unwrap().unwrap();
    let grant = climb.served(core, found).unwrap().unwrap();
    let addr = shared.base + grant.offset;
    drop(Block::new(&lane, grant.id, addr, BYTES, BYTES));
    assert_eq!(world.pool.stats().steps.waits, 1);
    world.pool.check_invariants().unwrap();
}

#[test]
fn what_a_step_of_the_crate_frees_and_others_take_is_looked_for_but_not_for_ever() {
    let world = World::new(PoolConfig::default().limit(MIB));
    let mut buffer = (world.pool)
        .grow_buf::<u8>(&world.streams[0], 2 << 20)
        .unwrap();
    let calls = Arc::new(Mutex::new(0));
    let told = Arc::clone(&calls);
    let step = move |_: &Need<'_>| {
        *lock(&told) += 1;
        assert!(*lock(&told) < 1000, "it is asked without an end");
        true
    };
    world.pool.shared().add_relief(1, Arc::new(step));
    let failed = world.pool.alloc(&world.streams[0], 2 * MIB).unwrap_err();
    assert!(failed.is_out_of_memory(), "{failed}");
    let of_block = std::mem::take(&mut *lock(&calls));
    assert!(buffer.resize(2 << 20).unwrap_err().is_out_of_memory());
    let most = MOST_TURNS / TURNS_A_STEP + LOOKS_AGAIN;
    assert!((2..=most).contains(&of_block) && (2..=most).contains(&*lock(&calls)));
}

#[test]
fn a_request_that_finds_full_caches_at_last_begins_anew_but_not_for_ever() {
    let world = World::new(PoolConfig::default());
    let (pool, shared) = (&world.pool, world.pool.shared());
    let lane = world.lane(1);
    let mut climb = Climb::new(&lane, BYTES, BYTES, None);
    for fills in [true; LOOKS_AGAIN as usize]
        .into_iter()
        .chain([false, true])
    {
        if fills {
            drop(pool.alloc(&world.streams[0], BYTES).unwrap());
        }
        let again = fills && climb.caches_looked_at < LOOKS_AGAIN;
        let turn = steps::others(&mut climb, &mut shared.core.lock());
        assert_eq!(matches!(turn, Some(Turn::Restart)), again);
    }
    assert_eq!(climb.caches_looked_at, LOOKS_AGAIN);
}

#[test]
fn neighbouring_holes_of_several_streams_are_made_one_for_large_requests_only() {
    let world = World::new(PoolConfig::default().reuse(false, true));
    let shared = world.pool.shared();
    let granule = shared.core.lock().arena.granule();
    let other = world.pool.device().stream().unwrap();
    let halves = [&world.streams[0], &other].map(|it| world.pool.alloc(it, granule / 2).unwrap());
    drop(halves);
    let lane = world.lane(1);
    let large = granule / SMALL_PART;
    for (bytes, is_large) in [(large, false), (large + 256, true)] {
        let mut climb = Climb::new(&lane, bytes, bytes, None);
        let mut core = shared.lock_drained();
        climb.restart(&core);
        let turn = steps::merged(&mut climb, &mut core);
        let Some(Turn::Work(waits, true)) = turn else {
            assert!(!is_large && turn.is_none());
            continue;
        };
        assert!(is_large);
        drop(core);
        let ran = waits.run();
        core = shared.core.lock();
        core.end(ran).unwrap();
        let before = core.steps.stream_wait;
        let turn = steps::merged(&mut climb, &mut core);
        let Some(Turn::Served(grant)) = turn else {
            panic!("they are one hole now");
        };
        assert_eq!(core.steps.stream_wait, before + 1);
        let epoch = Epoch::new(lane.slot, lane.open_tick());
        core.give_granted(grant, bytes, epoch);
    }
}

#[test]
fn old_mappings_are_waited_for_on_the_host_only_where_they_are_in_the_way() {
    let world = World::new(PoolConfig::default());
    let shared = world.pool.shared();
    let lane = world.lane(0);
    let mut core = shared.core.lock();
    let granule = core.arena.granule();
    for (is_old, bytes, waits) in [
        (false, granule, false),
        (false, 1 << 60, false),
        (true, granule, false),
        (true, 1 << 60, true),
    ] {
        drop(core);
        let mut climb = Climb::new(&lane, bytes, bytes, None);
        core = shared.core.lock();
        climb.restart(&core);
        climb.terms.refused = Some(core.arena.flow().1);
        if is_old {
            let old = core.stale_at(1 << 30, granule);
            core.retiring.extend(old);
        }
        assert_eq!(
            core.plan(lane.slot, bytes, climb.terms).is_some(),
            bytes == granule
        );
        let turn = steps::left_over(&mut climb, &mut core);
        assert_eq!(
            matches!(turn, Some(Turn::Work(..))),
            waits,
            "{is_old} {bytes}"
        );
        if let Some(old) = core.retiring.pop_back() {
            core.extents.retired(old);
        }
    }
}

#[test]
fn room_is_made_with_no_more_handles_than_are_needed() {
    // The last block is free: the request leans on it. Or it is not: it needs the bytes of two handles.
    for (free, needed) in [([1, 3, 5], 1), ([0, 2, 4], 2)] {
        let config = PoolConfig::default()
            .handles(HandleSize::UpTo(8 * MIB))
            .limit(48 * MIB);
        let world = World::new(config.cache_bytes(0));
        let alloc = |bytes| world.pool.alloc(&world.streams[0], bytes).unwrap();
        let mut blocks: Vec<_> = (0..6).map(|_| Some(alloc(8 * MIB))).collect();
        free.iter().for_each(|&at| blocks[at] = None);
        let _block = alloc(10 * MIB);
        assert_eq!(world.pool.stats().calls.released, needed);
    }
}

#[test]
fn neighbouring_holes_are_made_one_where_all_waits_without_the_lock_were_made() {
    let world = World::new(PoolConfig::default().cache_bytes(0).slabs(false));
    let shared = world.pool.shared();
    let other = world.pool.device().stream().unwrap();
    let halves = [&world.streams[0], &other].map(|it| world.pool.alloc(it, 2 * BYTES).unwrap());
    assert_eq!(halves[0].addr() + 2 * BYTES, halves[1].addr());
    drop(halves);
    let lane = world.lane(1);
    let mut core = shared.lock_drained();
    let rest = core.extents.hole_bytes() - 4 * BYTES;
    core.take_at(4 * BYTES, rest, lane.slot);
    drop(core);
    let bytes = 4 * BYTES;
    let mut climb = Climb::new(&lane, bytes, bytes, None);
    climb.waits_left = 0;
    let mut core = shared.lock_drained();
    climb.restart(&core);
    let turn = steps::unify(&mut climb, &mut core);
    let Some(Turn::Work(job, true)) = turn else {
        panic!("no wait of its own");
    };
    drop(core);
    let ran = job.run();
    let mut core = shared.core.lock();
    core.end(ran).unwrap();
    let turn = steps::unify(&mut climb, &mut core);
    assert!(matches!(turn, Some(Turn::Served(_))), "both are free");
}

/// Notes what it is asked for, and moves nothing.
#[derive(Default)]
struct Layer(Mutex<Vec<(&'static str, u64, u64)>>);

impl Attached for Layer {
    fn pool_closed(&self) {}

    fn make_room(&self, bytes: u64, handles: u64) -> bool {
        lock(&self.0).push(("moves", bytes, handles));
        false
    }
}

#[test]
fn who_moves_memory_is_asked_before_handles_are_mapped_elsewhere_and_nobody_else_is() {
    let config = PoolConfig::default().slabs(false).slack(0.0).cache_bytes(0);
    let world = World::new(config.handles(HandleSize::Granule));
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let granule = pool.shared().core.lock().arena.granule();
    let asked = pool.shared().attached(Arc::<Layer>::default).unwrap();
    let its = Arc::clone(&asked);
    pool.on_pressure(move |pressure| {
        lock(&its.0).push(("pressure", pressure.requested, 0));
        Relief::Exhausted
    });
    let mut blocks = [(); 4].map(|()| Some(pool.alloc(stream, granule).unwrap()));
    (blocks[0], blocks[2]) = (None, None);
    let large = pool.alloc(stream, 2 * granule).unwrap();
    assert_eq!(*lock(&asked.0), [("moves", 2 * granule, 2)]);
    assert_eq!(pool.stats().steps.steal, 2);
    drop((large, blocks));
}

/// A pool whose block of 12 MiB of 16 another thread frees while the application is asked.
fn freed_while_asked() -> World {
    let world = World::new(PoolConfig::default().limit(16 << 20));
    let held = world.pool.alloc(&world.streams[1], 12 << 20).unwrap();
    let held = Mutex::new(Some(held));
    world.pool.on_pressure(move |_| {
        let freed = lock(&held).take();
        std::thread::spawn(move || drop(freed)).join().unwrap();
        Relief::Exhausted
    });
    world
}

#[test]
fn what_others_free_while_the_application_is_asked_serves_the_request() {
    let world = freed_while_asked();
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let block = pool.alloc(stream, 12 << 20).unwrap();
    assert_eq!(pool.stats().steps.out_of_memory, 0);
    assert!(pool.alloc(stream, 12 << 20).is_err(), "it ends");
    drop(block);
    pool.check_invariants().unwrap();
}

#[test]
fn what_others_free_while_the_application_is_asked_serves_a_growing_buffer() {
    let world = freed_while_asked();
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let mut grown = pool.grow_buf::<u8>(stream, 64 << 20).unwrap();
    grown.resize(12 << 20).unwrap();
    assert!(grown.resize(24 << 20).is_err(), "it ends");
    drop(grown);
    pool.check_invariants().unwrap();
}

#[test]
fn a_request_that_waits_for_jobs_of_others_looks_again_once_one_has_ended() {
    let world = World::new(PoolConfig::default());
    let shared = world.pool.shared();
    shared.core.lock().under_way.jobs = 2;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let core = shared.core.lock();
            tell.send("waits").unwrap();
            drop(shared.wait_for_others(core));
            tell.send("looks").unwrap();
        });
        assert_eq!(told.recv(), Ok("waits"));
        // It has seen both jobs before it lets go of the lock.
        shared.core.lock().under_way.end_one();
        let looks = told.recv_timeout(std::time::Duration::from_secs(10));
        shared.core.lock().under_way.jobs = 0;
        assert_eq!(looks, Ok("looks"));
    });
}

/// A pool, and a capture of its first stream. Of 12 MiB that are free that stream freed `last` as the capture began: they
/// wait for a record that the capture forbids. A third stream freed the others.
fn freed_as_a_capture_begins(config: PoolConfig, last: u64) -> (World, Stream, Capture) {
    let config = config.slabs(false).cache_bytes(0).overlap_bytes(0);
    let world = World::new(config.reuse(false, true));
    let (pool, home) = (&world.pool, &world.streams[0]);
    let third = pool.device().stream().unwrap();
    let freed = [(home, last), (&third, 12 * MIB - last)];
    let freed = freed.map(|(of, bytes)| (bytes > 0).then(|| pool.alloc(of, bytes).unwrap()));
    drop(freed);
    let (lane, capture) = (world.lane(0), home.begin_capture().unwrap());
    let mut core = pool.shared().lock_drained();
    let id = core.extents.best(lane.slot, last).unwrap();
    let open = Epoch::new(lane.slot, lane.open_tick());
    core.extents.set_epoch(id, open);
    drop(core);
    (world, third, capture)
}

#[test]
fn a_request_takes_new_memory_in_place_of_what_a_stream_freed_as_its_capture_began() {
    let unlimited = PoolConfig::default();
    for config in [unlimited.clone(), unlimited.limit(24 * MIB)] {
        let (world, _third, capture) = freed_as_a_capture_begins(config, 12 * MIB);
        let (pool, stream) = (&world.pool, &world.streams[1]);
        let block = pool.alloc(stream, 12 * MIB).unwrap();
        assert_eq!(pool.stats().reserved.current, 24 * MIB);
        drop((block, capture));
        pool.check_invariants().unwrap();
    }
}

#[test]
fn a_request_is_out_of_memory_while_only_what_a_stream_freed_as_its_capture_began_is_left() {
    let config = PoolConfig::default().limit(12 * MIB);
    let (world, _third, capture) = freed_as_a_capture_begins(config, 12 * MIB);
    let (pool, stream) = (&world.pool, &world.streams[1]);
    let failed = pool.alloc(stream, 12 * MIB).unwrap_err();
    assert!(failed.is_out_of_memory(), "{failed}");
    let mut grown = pool.grow_buf::<u8>(stream, 64 << 20).unwrap();
    let failed = grown.resize(12 << 20).unwrap_err();
    assert!(failed.is_out_of_memory(), "{failed}");
    pool.check_invariants().unwrap();
    drop(capture);
    drop(pool.alloc(stream, 12 * MIB).unwrap());
    grown.resize(12 << 20).unwrap();
    pool.check_invariants().unwrap();
}

#[test]
fn a_request_takes_the_memory_of_others_beside_what_a_stream_freed_as_its_capture_began() {
    for last in [2 * MIB, 4 * MIB] {
        let config = PoolConfig::default().limit(12 * MIB);
        let (world, _third, _capture) = freed_as_a_capture_begins(config, last);
        let (pool, stream) = (&world.pool, &world.streams[1]);
        // What was freed as the capture began is the smaller hole.
        let block = pool.alloc(stream, last).unwrap();
        let most = pool.alloc(stream, 12 * MIB - 2 * last).unwrap();
        assert!(pool.alloc(stream, last).unwrap_err().is_out_of_memory());
        drop((block, most));
        pool.check_invariants().unwrap();
        assert_eq!(pool.trim(0).unwrap(), 12 * MIB - last);
        pool.check_invariants().unwrap();
    }
}

#[test]
fn a_request_that_failed_is_served_once_the_errors_advice_is_followed() {
    let world = World::new(PoolConfig::default().limit(MIB));
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let advice = |bytes| {
        let said = pool.alloc(stream, bytes).unwrap_err().to_string();
        said.rsplit("; ").next().unwrap_or_default().to_owned()
    };
    let handles =
        "memory comes in whole handles, and those of the request exceed the limit: raise it";
    assert_eq!(advice(512), handles);
    pool.set_limit(3 * MIB);
    let small = pool.alloc(stream, 512).unwrap();
    assert_eq!(advice(5 * MIB / 2), handles);
    pool.set_limit(4 * MIB);
    drop(pool.alloc(stream, 5 * MIB / 2).unwrap());
    drop(small);
    pool.trim(0).unwrap();
    // Two of three blocks go: the rest is in pieces, whether or not it may move.
    pool.set_limit(12 * MIB);
    let every_third = |at: usize| at.is_multiple_of(3);
    let mut fixed: Vec<_> = (0..24)
        .map(|_| pool.alloc(stream, MIB / 2).unwrap())
        .collect();
    let mut at = 0..;
    fixed.retain(|_| at.next().is_some_and(every_third));
    assert_eq!(advice(7 * MIB), "make blocks movable, or compact");
    assert_eq!(
        advice(9 * MIB),
        "free blocks, raise the limit, or ask for less"
    );
    drop(fixed);
    pool.trim(0).unwrap();
    let movable = |_| pool.alloc_movable::<u8>(stream, 1 << 19).unwrap();
    let mut blocks: Vec<_> = (0..24).map(movable).collect();
    let mut at = 0..;
    blocks.retain(|_| at.next().is_some_and(every_third));
    drop(pool.alloc(stream, 7 * MIB).unwrap());
}

/// A pool without a free hole, and what the others hold.
fn filled(config: PoolConfig) -> (World, Block) {
    let world = World::new(config.overlap_bytes(0).slack(0.0));
    let (pool, stream) = (&world.pool, &world.streams[1]);
    drop(pool.alloc(stream, BYTES).unwrap());
    let rest = pool.shared().lock_drained().extents.largest_hole();
    let rest = pool.alloc(stream, rest).unwrap();
    (world, rest)
}

#[test]
fn a_request_goes_past_a_batch_of_a_stream_whose_capture_began_meanwhile() {
    let (world, rest) = filled(PoolConfig::default().slabs(false));
    let (pool, [home, stream]) = (&world.pool, &world.streams);
    let lane = world.lane(0);
    drop([(); 512].map(|()| pool.alloc(home, BYTES).unwrap()));
    lane.hand_over(BYTES, &mut pool.shared().core.lock());
    let _capture = home.begin_capture().unwrap();
    let mut state = crate::sync::latch(&pool.shared().transfer.state);
    assert!(!state.batches.is_empty());
    (state.batches.iter_mut()).for_each(|it| it.tick = lane.open_tick());
    drop(state);
    drop((pool.alloc(stream, BYTES).unwrap(), rest));
}

#[test]
fn a_request_goes_past_a_block_that_a_stream_used_as_its_capture_began() {
    let (world, rest) = filled(PoolConfig::default().slabs(false));
    let (pool, [home, stream]) = (&world.pool, &world.streams);
    let third = pool.device().stream().unwrap();
    let its = pool.shared().lane(&third).unwrap().unwrap();
    let used = std::mem::ManuallyDrop::new(pool.alloc(&third, 2 * MIB).unwrap());
    let _capture = home.begin_capture().unwrap();
    let lane = world.lane(0);
    assert!(its.free_used(&used, vec![(Arc::clone(&lane.timeline), lane.open_tick())]));
    drop((pool.alloc(stream, 2 * MIB).unwrap(), rest));
}

#[test]
fn a_request_goes_past_a_slot_that_a_stream_freed_as_its_capture_began() {
    let (world, rest) = filled(PoolConfig::default().cache_bytes(0));
    let (pool, [home, stream]) = (&world.pool, &world.streams);
    let (shared, lane) = (pool.shared(), world.lane(0));
    let freed = std::mem::ManuallyDrop::new(pool.alloc(home, 256).unwrap());
    let capture = home.begin_capture().unwrap();
    let (id, offset) = (freed.id(), freed.addr() - shared.base);
    let open = Epoch::new(lane.slot, lane.open_tick());
    (shared.core.lock()).give_granted(Grant { id, offset }, 256, open);
    let others = [(); 512].map(|()| pool.alloc(stream, 256).unwrap());
    assert!(others.iter().all(|it| it.addr() != freed.addr()));
    drop((capture, others, rest));
}

#[test]
fn a_stream_that_another_thread_drops_is_not_made_to_wait_for_what_a_request_found_it_to_lack() {
    let (world, rest) = filled(PoolConfig::default().slabs(false));
    let (pool, [home, _]) = (&world.pool, &world.streams);
    let (shared, third) = (pool.shared(), pool.device().stream().unwrap());
    let its = shared.lane(&third).unwrap().unwrap();
    let used = std::mem::ManuallyDrop::new(pool.alloc(&third, 2 * MIB).unwrap());
    let capture = home.begin_capture().unwrap();
    let theirs = Arc::clone(&home.core().timeline);
    let open = theirs.open_tick();
    assert!(its.free_used(&used, vec![(theirs, open)]));
    let (lane, timeline) = (world.lane(1), Arc::clone(&its.timeline));
    let mut climb = Climb::new(&lane, 2 * MIB, 2 * MIB, None);
    climb.terms.pending = true;
    let turn = steps::used(&mut climb, &mut shared.core.lock());
    let Some(Turn::Work(job, false)) = turn else {
        panic!("it fits");
    };
    drop((its, third));
    drop(capture);
    assert!(timeline.raw().is_none(), "the stream is gone");
    let ran = job.run();
    shared.core.lock().end(ran).unwrap();
    drop(rest);
}

#[test]
fn memory_that_another_pool_gave_back_while_the_application_is_asked_serves_the_request() {
    let device = Device::host_with_capacity(8 << 20).unwrap();
    let stream = device.stream().unwrap();
    let [pool, other] = [(); 2].map(|()| Pool::new(&device, PoolConfig::default()).unwrap());
    let held = Mutex::new(Some(other.alloc(&stream, 8 << 20).unwrap()));
    pool.on_pressure(move |_| {
        drop(lock(&held).take());
        other.trim(0).unwrap();
        Relief::Exhausted
    });
    let block = pool.alloc(&stream, 8 << 20).unwrap();
    assert!(pool.alloc(&stream, 8 << 20).is_err(), "it ends");
    drop(block);
    pool.check_invariants().unwrap();
}
