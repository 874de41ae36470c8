//! The purpose of a step, and whether it is worth its time.

use std::cell::RefCell;

use super::*;
use crate::compact::plan::rows::{slide_down, stretches};
use crate::device::Device;
use crate::device::sim::Rng;
use crate::pool::{HandleSize, PoolConfig};

/// Owners of blocks that may all move and have no uses.
struct Unused;

impl Owners for Unused {
    fn may_move(&self, _: u64) -> bool {
        true
    }

    fn uses(&self, _: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

/// Two handles, each half full, in a pool that cannot grow.
fn halves() -> (Core, u64) {
    let device = Device::host().expect("the host device");
    let granule = device.info().granule;
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut core = Core::new(&device, config.limit(2 * granule)).expect("a core");
    core.create_frames(0, 2 * granule).expect("memory");
    for start in [0, granule] {
        core.take_at(start, granule / 2, 0);
    }
    (core, granule)
}

#[test]
fn moves_for_a_request_take_the_device_no_longer_than_they_may() {
    let (core, bytes) = halves();
    let aims: [fn(u64, f64) -> Aim<'static>; 2] = [
        |bytes, most_ns| Aim::Room { bytes, most_ns },
        |bytes, most_ns| Aim::Gather { bytes, most_ns },
    ];
    for aim in aims {
        let plan = |most_ns| aim(bytes, most_ns).plan(&Planner::new(), &core, &Unused);
        let free = plan(f64::INFINITY).expect("a plan");
        assert_eq!(free.bytes, bytes / 2);
        let ns = free.predicted_ns;
        assert!(ns > 0.0);
        assert_eq!(plan(ns).map(|plan| plan.bytes), Some(bytes / 2));
        assert!(plan(0.99 * ns).is_none());
    }
}

/// Owners of blocks of which one in four may not move; notes which blocks it was asked about.
#[derive(Default)]
struct Asked(RefCell<Vec<u64>>);

impl Owners for Asked {
    fn may_move(&self, at: u64) -> bool {
        self.0.borrow_mut().push(at);
        !at.is_multiple_of(2048)
    }

    fn uses(&self, _: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

#[test]
fn a_full_plan_is_the_first_moves_of_all_and_asks_only_about_blocks_that_it_could_move() {
    let mut random = Rng::new(23);
    let mut seen = [0; 2];
    for _ in 0..300 {
        let (mut core, granule) = halves();
        for _ in 0..random.below(60) {
            let at = random.below(2 * granule / 512 - 2) * 512;
            let is_free = |at| {
                core.mapped_extents().any(|(from, bytes, taken)| {
                    !taken && (from..from + bytes).contains(&at) && from + bytes > at + 1024
                })
            };
            if is_free(at) {
                core.take_at(at, 512 + random.below(2) * 512, 0);
            }
        }
        let owners = Asked::default();
        let extents: Vec<Extent> = extents_of(&core, &owners).collect();
        let all: Vec<Move> = stretches(&extents).flat_map(slide_down).collect();
        owners.0.borrow_mut().clear();
        let (bytes, most_moves) = (random.below(4000), random.below(8) as usize);
        let task = Task {
            planner: &Planner::new(),
            aim: Aim::Goal(&Goal::Full),
            budget: &Budget::bytes(bytes),
            most_moves,
            timing: None,
        };
        let plan = task.plan(task.planner, &core, &owners).expect("always");
        let mut moves: Vec<Move> = plan
            .batches
            .iter()
            .flat_map(Batch::moves)
            .copied()
            .collect();
        moves.sort_unstable_by_key(|m| m.src);
        assert_eq!(moves, all[..moves.len()]);
        let is_whole = moves.len() == all.len();
        // More than one step makes, whatever its first move has.
        let step = cut(&plan, task.budget, most_moves);
        let made: usize = step.iter().map(|batch| batch.moves().len()).sum();
        assert!(is_whole || made < moves.len(), "{made} of {moves:?}");
        assert!(moves.len() <= 4 * most_moves + 2);
        let end = if is_whole {
            u64::MAX
        } else {
            moves[moves.len() - 1].src
        };
        let asked = owners.0.into_inner();
        let (mut to, mut has_room) = (0, false);
        for it in &extents {
            has_room &= it.addr == to;
            let may_ask = has_room && it.addr <= end;
            assert!(
                may_ask || !asked.contains(&it.addr),
                "{it:?} of {extents:?}"
            );
            has_room = it.kind == Kind::Hole || has_room && it.kind == Kind::Movable;
            to = it.end();
        }
        seen[usize::from(is_whole)] += 1;
    }
    assert!(seen.iter().all(|&count| count > 30), "{seen:?}");
}
