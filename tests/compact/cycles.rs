//! Blocks that change places in pieces: contents and books are right, whatever the device refuses
//! on the way.

use crate::common;

use common::watched::{MADE_TO_FAIL, Watched};
use common::{devices, leaving_nothing};
use warpool::compact::{Batch, Goal, Kind, Move};
use warpool::movable::Movable;
use warpool::{Block, Device, Error, Pool, PoolConfig, Stream};

/// Bytes that the sizes here are multiples of; sixteen are a pool.
const UNIT: u64 = 128 << 10;

/// What is asked for, which is all that is free.
const WANTED: u64 = 4 * UNIT;

fn words(units: u64) -> usize {
    (units * UNIT / 8) as usize
}

fn contents(seed: u64, units: u64) -> Vec<u64> {
    (0..words(units) as u64)
        .map(|word| seed << 32 | word)
        .collect()
}

/// Three free units, four that may move, one that may not, seven that may, and one free: four in a
/// row need those that may move to change sides.
const SWAP: [(Kind, u64); 5] = [
    (Kind::Hole, 3),
    (Kind::Movable, 4),
    (Kind::Fixed, 1),
    (Kind::Movable, 7),
    (Kind::Hole, 1),
];

/// Two in a row need the first two that may move to change sides by a unit at a time, and the third
/// to go down by one, which is less than it has.
const SHIFT: [(Kind, u64); 7] = [
    (Kind::Hole, 1),
    (Kind::Movable, 4),
    (Kind::Fixed, 3),
    (Kind::Movable, 5),
    (Kind::Movable, 4),
    (Kind::Hole, 1),
    (Kind::Fixed, 14),
];

/// As [`SHIFT`], where two blocks go down, one behind the other.
const SHIFT_OF_TWO: [(Kind, u64); 8] = [
    (Kind::Hole, 1),
    (Kind::Movable, 4),
    (Kind::Fixed, 3),
    (Kind::Movable, 5),
    (Kind::Movable, 2),
    (Kind::Movable, 2),
    (Kind::Hole, 1),
    (Kind::Fixed, 14),
];

struct World {
    blocks: Vec<(u64, u64, Movable<u64>)>,
    _fixed: Vec<Block>,
    stream: Stream,
    pool: Pool,
}

impl World {
    fn new(device: &Device, pieces: &[(Kind, u64)]) -> Self {
        let units: u64 = pieces.iter().map(|piece| piece.1).sum();
        let pool = Pool::new(device, PoolConfig::default().limit(units * UNIT)).unwrap();
        let stream = device.stream().unwrap();
        let (mut blocks, mut fixed, mut holes) = (Vec::new(), Vec::new(), Vec::new());
        for &(kind, units) in pieces {
            match kind {
                Kind::Movable => {
                    let seed = blocks.len() as u64 + 1;
                    blocks.push((seed, units, Self::block(&pool, &stream, seed, units)));
                }
                Kind::Fixed => fixed.push(pool.alloc(&stream, units * UNIT).unwrap()),
                Kind::Hole => holes.push(pool.alloc(&stream, units * UNIT).unwrap()),
            }
        }
        drop(holes);
        stream.synchronize().unwrap();
        let world = Self {
            blocks,
            _fixed: fixed,
            stream,
            pool,
        };
        assert_eq!(world.kinds(), pieces);
        world
    }

    fn block(pool: &Pool, stream: &Stream, seed: u64, units: u64) -> Movable<u64> {
        let mut block = pool.alloc_movable::<u64>(stream, words(units)).unwrap();
        block.upload(stream, &contents(seed, units)).unwrap();
        block
    }

    fn kinds(&self) -> Vec<(Kind, u64)> {
        let layout = self.pool.layout().unwrap();
        layout.extents().map(|e| (e.kind, e.bytes / UNIT)).collect()
    }

    fn check(&self) {
        self.pool.check_invariants().unwrap();
        for (seed, units, block) in &self.blocks {
            let words = block.download(&self.stream).unwrap();
            assert!(words == contents(*seed, *units), "block {seed}");
        }
    }
}

#[test]
fn blocks_that_change_places_keep_their_contents() {
    for device in devices() {
        leaving_nothing(device, |device| {
            let world = World::new(device, &SWAP);
            let goal = Goal::Hole(WANTED);
            let plan = world.pool.plan_compaction(&goal).unwrap().unwrap();
            assert!(
                matches!(plan.batches[..], [Batch::Circle { .. }]),
                "{plan:?}"
            );
            let moved = world.pool.compact(&goal).unwrap();
            assert!(moved.reached);
            assert_eq!((moved.bytes, moved.blocks), (plan.bytes, 2));
            let launches: usize = plan.batches.iter().map(Batch::launches).sum();
            assert_eq!(moved.launches, launches as u64);
            world.check();
            let all = world.pool.alloc(&world.stream, WANTED).unwrap();
            world.check();
            drop(all);
        });
    }
}

/// What its pieces write on their way is the moving stream's meanwhile.
#[cfg(feature = "sanitize")]
#[test]
fn the_checker_of_stream_order_has_nothing_to_say_of_a_circle() {
    use warpool::sanitize::Sanitizer;
    for pieces in [&SWAP[..], &SHIFT] {
        let (device, sanitizer) = Sanitizer::over(&Device::host().unwrap());
        let world = World::new(&device, pieces);
        let free = pieces.iter().filter(|piece| piece.0 == Kind::Hole);
        let wanted = free.map(|piece| piece.1).sum::<u64>() * UNIT;
        assert!(world.pool.compact(&Goal::Hole(wanted)).unwrap().reached);
        world.check();
        let all = world.pool.alloc(&world.stream, wanted).unwrap();
        common::fill(&world.stream, all.addr(), 0xEE, wanted);
        world.check();
        world.stream.synchronize().unwrap();
        sanitizer.check().unwrap();
    }
}

#[test]
fn what_is_free_after_a_circle_is_free_behind_it() {
    for device in devices() {
        leaving_nothing(device, |device| {
            let world = World::new(device, &SWAP);
            let other = device.stream().unwrap();
            assert!(world.pool.compact(&Goal::Hole(WANTED)).unwrap().reached);
            // Without a wait: what was parked may be on its way yet.
            let all = world.pool.alloc(&other, WANTED).unwrap();
            common::fill(&other, all.addr(), 0xEE, WANTED);
            world.check();
            let bytes = common::read(&other, all.addr(), WANTED as usize);
            assert!(bytes.iter().all(|&byte| byte == 0xEE));
            drop(all);
        });
    }
}

/// What goes down by less than it has goes back up over itself, and the highest of several first.
#[test]
fn a_circle_with_a_piece_that_overlaps_its_way_keeps_its_contents_or_is_taken_back() {
    for device in devices() {
        leaving_nothing(device, |device| {
            for (layout, moves) in [(&SHIFT[..], 1), (&SHIFT_OF_TWO[..], 2)] {
                let plan = World::new(device, layout)
                    .pool
                    .plan_compaction(&Goal::Hole(2 * UNIT))
                    .unwrap();
                let plan = plan.unwrap();
                let [Batch::Circle { pieces, .. }] = &plan.batches[..] else {
                    panic!("{plan:?}");
                };
                let overlaps = |m: &Move| m.dst < m.src && m.src - m.dst < m.bytes;
                let slides = |piece: &Batch| {
                    let all = piece.moves();
                    all.len() == moves && all.iter().all(overlaps)
                };
                let at = pieces.iter().position(slides);
                let behind = at.expect("a slide") as u64 + 2;
                assert!(behind <= pieces.len() as u64, "{plan:?}");
                for use_number in [behind, behind + 1] {
                    for for_ever in [false, true] {
                        let world = (layout, 2 * UNIT);
                        assert!(refuse(device, world, "launch", use_number, for_ever));
                    }
                }
            }
        });
    }
}

#[test]
fn a_circle_that_the_device_refuses_midway_is_taken_back() {
    for device in devices() {
        leaving_nothing(device, |device| {
            for call in ["launch", "copy_in", "event_record", "event_wait"] {
                let mut refused = 0;
                for for_ever in [false, true] {
                    for use_number in [1, 2, 3, 4, 6] {
                        let world = (&SWAP[..], WANTED);
                        refused += u64::from(refuse(device, world, call, use_number, for_ever));
                    }
                }
                assert!(refused >= 3, "{call} was refused {refused} times");
            }
        });
    }
}

/// Whether the `use_number`-th use of `call` was refused.
fn refuse(
    device: &Device,
    (pieces, wanted): (&[(Kind, u64)], u64),
    call: &'static str,
    use_number: u64,
    for_ever: bool,
) -> bool {
    let (device, watched) = Watched::over(device);
    let world = World::new(&device, pieces);
    let goal = Goal::Hole(wanted);
    // What moves blocks is made by the first that is done with it.
    world.pool.plan_compaction(&goal).unwrap();
    watched.fail(call, use_number, for_ever);
    let outcome = world.pool.compact(&goal);
    let refused = watched.failures() > 0;
    watched.heal();
    if let Err(error) = outcome {
        let ours = matches!(
            error,
            Error::Driver {
                code: MADE_TO_FAIL,
                ..
            }
        );
        assert!(refused && ours, "{error}");
    }
    world.check();
    assert!(world.pool.compact(&goal).unwrap().reached);
    world.check();
    let all = world.pool.alloc(&world.stream, wanted).unwrap();
    world.check();
    drop(all);
    refused
}
