//! When a block that others still use is free, and with which tick.

use super::*;
use crate::device::Stream;
use crate::pool::cache::stream_cache::tests::World;
use crate::pool::{Pool, PoolConfig};

fn of(stream: &Stream) -> &Arc<Timeline> {
    &stream.core().timeline
}

/// A block of the first stream that nothing is known to be done with.
fn used(world: &World) -> Used {
    let [home, other] = &world.streams;
    let marks = vec![(Arc::clone(of(other)), of(other).open_tick())];
    Used {
        block: Cached::new(1, 0, 256, of(home).open_tick()),
        stream: 1,
        timeline: Arc::clone(of(home)),
        marks,
    }
}

#[test]
fn it_is_free_with_the_tick_of_its_drop_when_others_are_done_and_with_a_later_one_behind_a_wait() {
    for waits in [false, true] {
        let world = World::new(PoolConfig::default());
        let [home, other] = &world.streams;
        let used = used(&world);
        assert_eq!(used.tick(), None);
        // What closes the tick of the drop comes before the wait.
        let (event, drop) = (world.pool.device().event().unwrap(), used.block.tick);
        event.record(home).unwrap();
        assert_eq!((used.tick(), of(home).open_tick()), (None, drop + 1));
        match waits {
            true => home.wait_stream(other).unwrap(),
            false => other.synchronize().unwrap(),
        }
        assert_eq!(used.tick(), Some(drop + u64::from(waits)));
    }
}

#[test]
fn one_that_waits_for_two_streams_is_free_when_both_are_done() {
    let world = World::new(PoolConfig::default());
    let third = world.pool.device().stream().unwrap();
    let mut used = used(&world);
    used.marks.push((Arc::clone(of(&third)), 1));
    third.synchronize().unwrap();
    assert_eq!(used.tick(), None);
    world.streams[1].synchronize().unwrap();
    assert_eq!(used.tick(), Some(used.block.tick));
}

/// Blocks of these bytes are free and used, oldest first.
fn filled(sizes: &[u64]) -> World {
    let world = World::new(PoolConfig::default());
    for &bytes in sizes {
        let mut block = world.pool.alloc(&world.streams[0], bytes).unwrap();
        block.record_use(&world.streams[1]).unwrap();
        let block = std::mem::ManuallyDrop::new(block);
        let mark = (Arc::clone(of(&world.streams[1])), u64::MAX - bytes);
        assert!(world.lane(0).free_used(&block, vec![mark]));
    }
    world
}

fn asked(pool: &Pool, questions: impl Fn(&Transfer) -> Questions) -> Vec<u64> {
    let bytes = |ask: Ask| match ask {
        Ask::Progress(tick, most) if tick == most => u64::MAX - tick,
        Ask::Behind(_, tick) | Ask::Done(tick) | Ask::Reached(tick) => u64::MAX - tick,
        _ => 0,
    };
    let questions = questions(&pool.shared().transfer).into_iter();
    questions.map(|(_, ask)| bytes(ask)).collect()
}

#[test]
fn a_request_asks_of_the_oldest_that_is_of_its_size_or_large_enough_and_else_waits_for_all() {
    let world = filled(&[1024, 4096, 1024, 8192]);
    for (bytes, size, oldest) in [
        (1024, 2048, vec![1024]),
        (512, 2048, vec![4096]),
        (4352, 4352, vec![8192]),
    ] {
        let how_far = asked(&world.pool, |it| it.how_far_is_used(bytes, size));
        let waits = asked(&world.pool, |it| it.waits_for_used(bytes, size));
        assert_eq!((&how_far, &waits), (&oldest, &oldest), "{bytes}");
    }
    let all = vec![1024, 4096, 1024, 8192];
    assert!(asked(&world.pool, |it| it.how_far_is_used(16384, 16384)).is_empty());
    for (bytes, size) in [(16384, 16384), (u64::MAX, u64::MAX)] {
        assert_eq!(asked(&world.pool, |it| it.waits_for_used(bytes, size)), all);
    }
    for ask in [Ask::Reached, Ask::Done] {
        let ask = |it: &Transfer| it.ask_of_used(usize::MAX, |_| true, |_, tick| ask(tick));
        assert_eq!(asked(&world.pool, ask), all);
    }
    let capture = world.streams[0].begin_capture().unwrap();
    assert!(asked(&world.pool, |it| it.waits_for_used(u64::MAX, u64::MAX)).is_empty());
    drop(capture);
    of(&world.streams[1]).reached(u64::MAX);
    assert!(!world.pool.shared().transfer.has_used() || world.pool.trim(0).is_ok());
    world.pool.check_invariants().unwrap();
}

#[test]
fn a_lane_under_capture_or_of_a_pool_that_is_recorded_keeps_none() {
    let world = World::new(PoolConfig::default());
    let block = world.pool.alloc(&world.streams[0], 4096).unwrap();
    let capture = world.streams[0].begin_capture().unwrap();
    assert!(!world.lane(0).free_used(&block, Vec::new()));
    drop(capture);
    assert!(world.lane(0).keeps_used());
    for config in [
        PoolConfig::default().reuse(false, true),
        PoolConfig::default().track(true),
    ] {
        assert!(!World::new(config).lane(0).keeps_used());
    }
}

#[test]
fn a_lane_that_has_waited_for_all_uses_keeps_no_more_blocks_whatever_ends_meanwhile() {
    let world = World::new(PoolConfig::default());
    let lane = world.lane(0);
    let keeps = || {
        let block = world.pool.alloc(&world.streams[0], 4096).unwrap();
        let block = std::mem::ManuallyDrop::new(block);
        let kept = lane.free_used(&block, Vec::new());
        if !kept {
            drop(std::mem::ManuallyDrop::into_inner(block));
        }
        kept
    };
    assert!(keeps());
    lane.wait_for_used();
    // Else what the pool's lock is held for, the end of these blocks, would be another wait.
    for end in [
        |lane: &Lane| lane.change(|state| state.asleep = false),
        |lane: &Lane| lane.route(None),
    ] {
        end(&lane);
        assert!(!keeps());
    }
    drop(world.streams);
    world.pool.check_invariants().unwrap();
}

#[test]
fn a_stream_that_is_gone_has_waited_for_all_that_uses_what_it_freed() {
    let world = World::new(PoolConfig::default());
    let World { pool, streams } = world;
    let [home, other] = streams;
    let third = pool.device().stream().unwrap();
    let lane = pool.shared().lane(&home).unwrap().unwrap();
    for (user, bytes) in [(&other, 4096), (&third, 8192)] {
        let block = std::mem::ManuallyDrop::new(pool.alloc(&home, bytes).unwrap());
        let mark = (Arc::clone(of(user)), of(user).open_tick());
        assert!(lane.free_used(&block, vec![mark]));
    }
    let timeline = Arc::clone(of(&home));
    assert_eq!([&other, &third].map(|it| timeline.waited(it.id())), [0, 0]);
    drop(home);
    assert_eq!([&other, &third].map(|it| timeline.waited(it.id())), [1, 1]);
    assert!(!pool.shared().transfer.has_used());
    let core = pool.shared().core.lock();
    let ticks = core.last_epochs().into_iter().map(|it| it.tick).max();
    assert_eq!(
        (core.extents.taken(), ticks),
        (0, Some(timeline.open_tick()))
    );
}

#[test]
fn a_block_whose_uses_cannot_be_waited_for_is_free_once_its_stream_is_gone() {
    let World { pool, streams } = filled(&[1024]);
    let [home, _other] = streams;
    drop(home);
    assert!(!pool.shared().transfer.has_used());
    assert_eq!(pool.shared().core.lock().extents.taken(), 0);
    pool.check_invariants().unwrap();
}

fn kept(pool: &Pool) -> usize {
    latch(&pool.shared().transfer.state).used.len()
}

#[test]
fn one_block_too_many_is_not_kept() {
    let world = filled(&[1024; MOST_USED - 1]);
    let World { pool, streams } = &world;
    let [home, other] = streams;
    let keeps = |bytes: u64| {
        let block = std::mem::ManuallyDrop::new(pool.alloc(home, bytes).unwrap());
        let mark = (Arc::clone(of(other)), u64::MAX - bytes);
        (
            world.lane(0).free_used(&block, vec![mark]),
            kept(pool),
            block,
        )
    };
    let (first, at_first, _) = keeps(2048);
    let (one_more, then, refused) = keeps(4096);
    assert_eq!((first, at_first), (true, MOST_USED));
    assert_eq!((one_more, then), (false, MOST_USED));
    drop(std::mem::ManuallyDrop::into_inner(refused));
    of(other).reached(u64::MAX);
    pool.check_invariants().unwrap();
}

#[test]
fn what_is_given_is_told_and_nothing_where_all_are_still_in_use() {
    let world = filled(&[1024, 4096]);
    let shared = world.pool.shared();
    assert!(!shared.give_used(&mut shared.core.lock()));
    // The larger block has the older mark here.
    of(&world.streams[1]).reached(u64::MAX - 4096);
    assert!(shared.give_used(&mut shared.core.lock()));
    assert_eq!(kept(&world.pool), 1);
    assert!(!shared.give_used(&mut shared.core.lock()));
    of(&world.streams[1]).reached(u64::MAX);
    assert!(shared.give_used(&mut shared.core.lock()));
    assert!(!shared.give_used(&mut shared.core.lock()));
    assert_eq!(kept(&world.pool), 0);
}

#[test]
fn of_four_drops_one_asks_the_driver_which_tells_of_the_others_too() {
    let World { pool, streams } = &World::new(PoolConfig::default());
    let [home, other] = streams;
    let blocks: Vec<_> = (0..8)
        .map(|_| {
            let mut block = pool.alloc(home, 4096).unwrap();
            block.record_use(other).unwrap();
            block
        })
        .collect();
    let begin = of(other).open_tick();
    let seen = blocks.into_iter().map(|block| {
        drop(block);
        (of(other).open_tick() - begin, kept(pool))
    });
    // The other stream has nothing to do: what is asked of is free at once.
    let asked = [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 3),
        (2, 4),
        (2, 5),
        (2, 6),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), asked);
    assert!(pool.shared().give_used(&mut pool.shared().core.lock()));
    assert_eq!(kept(pool), 3);
}

#[test]
fn a_stream_does_not_wait_for_one_more_use_where_others_are_done() {
    let World { pool, streams } = &filled(&[1024; MOST_USED]);
    let [home, other] = streams;
    let third = pool.device().stream().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || _ = held.recv());
    (pool.device().backend().host_call(third.raw(), work)).unwrap();
    let mut block = pool.alloc(home, 4096).unwrap();
    block.record_use(&third).unwrap();
    of(other).reached(u64::MAX);
    drop(block);
    assert_eq!((of(home).waited(third.id()), kept(pool)), (0, 1));
    drop(release);
}

#[test]
fn what_a_stream_was_given_before_its_capture_is_waited_for_if_that_begins_at_the_drop() {
    let World { pool, streams } = &World::new(PoolConfig::default());
    let [home, other] = streams;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let work = Box::new(move || _ = held.recv());
    (pool.device().backend().host_call(other.raw(), work)).unwrap();
    let given = of(other).open_tick();
    let uses = Uses {
        streams: vec![other.clone()],
        ..Uses::default()
    };
    // After the drop looked for captures.
    let capture = other.begin_capture().unwrap();
    let marks = uses.marks(&pool.shared().lane(home).unwrap().unwrap());
    let marks = marks.unwrap().into_iter().map(|(_, tick)| tick);
    assert_eq!(marks.collect::<Vec<_>>(), [given]);
    // Or even after it saw how far that stream was.
    let open = of(other).open_tick();
    assert!(of(home).wait_surely(of(other), open).is_ok());
    assert!(of(home).waited(other.id()) >= given);
    drop((capture, release));
}
