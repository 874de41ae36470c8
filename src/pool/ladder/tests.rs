//! What a step asks for, and under which lock.

use super::*;
use crate::pool::PoolConfig;
use crate::pool::cache::stream_cache::tests::World;

const BYTES: u64 = 4096;

#[test]
fn what_another_streams_cache_holds_is_waited_for_without_the_lock_but_not_for_ever() {
    let world = World::new(PoolConfig::default().reuse(false, true));
    let shared = world.pool.shared();
    drop(world.pool.alloc(&world.streams[0], BYTES).unwrap());
    let lane = world.lane(1);
    let mut climb = Climb::new(shared, &lane, (BYTES, BYTES), false);
    let all = shared.all_lanes();
    let mut core = shared.core.lock();
    climb.restart(&core);
    climb.lanes = Some(all);
    for _ in 0..WAITS_WITHOUT_THE_LOCK {
        // Each time somebody else has what was waited for: the wait is not made here.
        let turn = steps::caches(&mut climb, &mut core).unwrap();
        assert!(matches!(turn, Turn::Work(_, Then::Again)));
    }
    assert_eq!(core.steps.waits, 0);
    let turn = steps::caches(&mut climb, &mut core).unwrap();
    assert_eq!(core.steps.waits, 1);
    let Turn::Served(grant) = turn else {
        panic!("it has waited, and is not served");
    };
    core.give(grant.id, lane.slot, lane.open_tick());
}
