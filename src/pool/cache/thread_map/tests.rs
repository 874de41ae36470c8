use super::*;
use crate::pool::cache::stream_cache::tests::World;
use crate::pool::{Pool, PoolConfig};
use crate::sync::latch;

#[test]
fn a_stream_notes_the_lane_of_its_first_pool_until_threads_meet_there() {
    let world = World::new(PoolConfig::default());
    let (lane, stream) = (world.lane(0), &world.streams[0]);
    let noted = |pool: &Pool| stream.noted(pool.shared().uid).map(LanePtr::noted);
    assert!(noted(&world.pool).is_none(), "nobody has asked for memory");
    let block = world.pool.alloc(stream, 1000).unwrap();
    // SAFETY: the lane is held.
    let first = noted(&world.pool).map(|it| unsafe { it.get() });
    assert!(first.is_some_and(|it| std::ptr::eq(it, &*lane)));

    let second = Pool::new(world.pool.device(), PoolConfig::default()).unwrap();
    let its = second.alloc(stream, 1000).unwrap();
    let blocks = |pool: &Pool| pool.stats().blocks.current;
    assert_eq!((blocks(&world.pool), blocks(&second)), (1, 1));
    assert!(noted(&second).is_none());

    let held = latch(&lane.state);
    (0..MEETINGS).for_each(|_| _ = world.pool.lane(stream).unwrap());
    drop(held);
    assert!(noted(&world.pool).is_none(), "each thread has its own");
    drop((block, its));
}

#[test]
fn a_thread_parts_each_time_it_found_a_lane_taken_so_often() {
    let met: Vec<bool> = (0..3 * MEETINGS).map(|_| met()).collect();
    let said = (1..=3 * MEETINGS).map(|at| at.is_multiple_of(MEETINGS));
    assert!(met.into_iter().eq(said));
}

#[test]
fn threads_have_numbers_of_their_own() {
    let (mine, again) = (this_thread(), this_thread());
    let others = [(); 3].map(|()| std::thread::spawn(this_thread));
    let mut all: Vec<u64> = others.map(|it| it.join().unwrap()).to_vec();
    all.push(mine);
    all.sort_unstable();
    all.dedup();
    assert_eq!((again, all.len()), (mine, 4));
}
