//! Which idle handles stay whole once a pool has outgrown its slack.

use std::sync::mpsc;

use crate::device::Device;
use crate::heap::Id;
use crate::heap::placement::Placement;
use crate::pool::cache::stream_cache::tests::World;
use crate::pool::core::tests::{Made, core};
use crate::pool::mapping::Terms;
use crate::pool::pace::Pace;
use crate::pool::{HandleSize, PoolConfig};

const TERMS: Terms = Terms {
    pending: true,
    refused: None,
};

/// Quarters of a granule.
fn quarters(made: &Made, count: u64) -> u64 {
    count * made.core.arena.granule() / 4
}

/// A core of eight granules, all of which is free but for these ranges in quarters; the peak is what they have.
fn with_blocks(config: PoolConfig, ranges: &[(u64, u64)]) -> (Made, Vec<Id>) {
    let config = config.handles(HandleSize::Granule).slack(0.0);
    let mut made = core(config, 8);
    let block = |&(from, to): &(u64, u64)| {
        let (from, to) = (quarters(&made, from), quarters(&made, to));
        made.block(from, to - from)
    };
    let blocks = ranges.iter().map(block).collect();
    made.core.peak_taken = made.core.live();
    (made, blocks)
}

/// Where a block of so many quarters would be, and the quarters of idle handles that it would break.
fn end(made: &Made, count: u64) -> Option<(u64, u64)> {
    let quarter = quarters(made, 1);
    let spares = made.core.has_outgrown();
    let end = spares.then(|| made.core.sparing_end(made.slot, count * quarter))??;
    Some((end.start / quarter, end.broken / quarter))
}

/// Holes from 8 to 12, a whole handle, and from 16 to 22, of which the upper part is of no idle handle.
const HOLES: [(u64, u64); 3] = [(0, 8), (12, 16), (22, 32)];

#[test]
fn a_block_lies_at_the_end_of_a_hole_that_breaks_the_fewest_idle_handles() {
    let (made, _) = with_blocks(PoolConfig::default(), &HOLES);
    // The best fit would break a handle, the lower end of the other hole too.
    assert_eq!(
        [1, 2].map(|count| end(&made, count)),
        [Some((21, 0)), Some((20, 0))]
    );
    // Each end of each hole breaks one: the best fit. Nothing else fits six.
    assert_eq!(
        [3, 6].map(|count| end(&made, count)),
        [Some((8, 4)), Some((16, 4))]
    );
    assert_eq!(end(&made, 7), None);
    let (made, _) = with_blocks(PoolConfig::default(), &[(0, 8), (12, 18), (24, 32)]);
    assert_eq!(end(&made, 2), Some((18, 0)));
    // The best fit breaks none, or none is idle, or there is no fit: the ladder has nothing to spare.
    let spares = |made: &Made, count| made.core.spares(made.slot, quarters(made, count));
    assert_eq!(
        [1, 4, 7].map(|count| spares(&made, count)),
        [true, true, false]
    );
    let (made, _) = with_blocks(PoolConfig::default(), &[(0, 9), (12, 18), (24, 32)]);
    assert_eq!([1, 4].map(|count| spares(&made, count)), [false, true]);
}

#[test]
fn a_window_up_to_the_end_of_a_hole_breaks_no_handle_that_a_block_behind_it_has() {
    let (made, _) = with_blocks(PoolConfig::default(), &HOLES);
    let [start, end] = [16, 22].map(|at| quarters(&made, at));
    let first = (made.core.extents).seek(made.core.extents.first(), start);
    let window = Placement {
        first,
        start,
        bytes: end - start,
        map_from: start,
        to_map: 0,
        spare: 0,
    };
    assert_eq!(made.core.broken_by(&window), quarters(&made, 4));
}

#[test]
fn a_request_on_the_ladder_takes_the_best_fit_of_a_pool_within_its_slack() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .cache_bytes(0);
    let world = World::new(config.slack(1.0));
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let quarter = pool.device().info().granule / 4;
    let alloc = |quarters: u64| pool.alloc(stream, quarters * quarter).unwrap();
    let base = alloc(32).addr();
    let [_low, hole, _middle, larger, _high] = [8, 4, 4, 6, 10].map(alloc);
    drop((hole, larger));
    // The other hole has room where no handle is idle.
    let found = world.lane(0).climb(quarter, quarter, None).unwrap();
    assert_eq!(found.unwrap().addr() - base, 8 * quarter);
}

#[test]
fn a_pool_within_its_slack_or_of_several_streams_spares_no_handles() {
    let (mut made, _) = with_blocks(PoolConfig::default(), &HOLES);
    let (held, device) = (made.core.held(), Device::host().unwrap());
    assert!(end(&made, 1).is_some());
    // A granule more is no growth beyond the slack, as a handle has no less.
    made.core.peak_taken = held - quarters(&made, 4);
    assert_eq!(end(&made, 1), None);
    made.core.peak_taken -= 1;
    assert!(end(&made, 1).is_some());
    made.core.config.preallocate = held;
    assert_eq!(end(&made, 1), None);
    made.core.config.preallocate = 0;
    made.core.pace = Pace::new(Some(f64::INFINITY), device.info());
    assert_eq!(end(&made, 1), None);
    made.core.pace = Pace::new(Some(0.0), device.info());
    assert!(end(&made, 1).is_some());
    let stream = device.stream().unwrap();
    let _second = made.core.add_stream(&stream.core().timeline, false);
    assert_eq!(end(&made, 1), None);
}

#[test]
fn idle_handles_are_mapped_elsewhere_if_that_breaks_less_than_half() {
    // A hole of two handles, and the last half of a handle before the gap.
    let blocks = [(0, 8), (16, 30)];
    let begin = |made: &mut Made, count: u64, broken: u64| {
        let bytes = quarters(made, count);
        let end = made.core.sparing_end(made.slot, bytes).unwrap();
        assert_eq!(end.broken, quarters(made, broken));
        let job = made.core.begin_sparing(made.slot, bytes, TERMS, end);
        (job, bytes)
    };
    let (mut made, _) = with_blocks(PoolConfig::default(), &blocks);
    let held = made.core.held();
    let (job, bytes) = begin(&mut made, 5, 8);
    let grant = made.run(job).unwrap().unwrap();
    assert_eq!(grant.offset, quarters(&made, 30));
    made.core.active.add(bytes);
    assert_eq!((made.core.held(), made.core.steps.steal), (held, 1));
    made.core.check().unwrap();
    // It would need as many handles as it saves; or none may be mapped elsewhere.
    let (mut made, _) = with_blocks(PoolConfig::default(), &blocks);
    assert!(begin(&mut made, 7, 8).0.is_none());
    // Or two for three.
    let (mut made, _) = with_blocks(PoolConfig::default(), &[(0, 8), (20, 30)]);
    assert!(begin(&mut made, 9, 12).0.is_none());
    let (mut made, _) = with_blocks(PoolConfig::default().remap(false), &blocks);
    assert!(begin(&mut made, 5, 8).0.is_none());
    made.core.check().unwrap();
}

#[test]
fn a_request_to_a_pool_that_has_outgrown_its_slack_leaves_idle_handles_whole() {
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .slack(0.0)
        .cache_bytes(0);
    let world = World::new(config);
    let (pool, stream) = (&world.pool, &world.streams[0]);
    let part = |sixteenths: u64| sixteenths * pool.device().info().granule / 16;
    let alloc = |sixteenths| pool.alloc(stream, part(sixteenths)).unwrap();
    // Holes of less than a handle, which no request below fits: the pool outgrows its slack.
    let mut small: Vec<_> = (0..8).map(|_| Some(alloc(14))).collect();
    for at in [1, 3, 5] {
        small[at] = None;
    }
    let (large, _last) = (alloc(48), alloc(20));
    drop(large);
    let before = pool.stats();
    // In a host call no handle is mapped: the block lies in the hole.
    let (again, on) = (pool.clone(), stream.clone());
    let (tell, told) = mpsc::channel();
    let bytes = part(21);
    let work = move || _ = tell.send(again.alloc(&on, bytes).map(drop));
    let backend = pool.device().backend();
    backend.host_call(stream.raw(), Box::new(work)).unwrap();
    told.recv().unwrap().unwrap();
    assert_eq!(pool.stats().steps.steal, before.steps.steal);
    let _block = alloc(22);
    let after = pool.stats();
    assert_eq!(after.steps.steal, before.steps.steal + 1);
    assert_eq!(after.reserved.current, before.reserved.current);
    pool.check_invariants().unwrap();
}
