use super::*;

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
