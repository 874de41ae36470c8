//! Which runs are remapped, and after which other run.

use std::cell::RefCell;

use super::*;
use crate::device::{Device, Overhead, Timeline};
use crate::pool::{Core, Pool, PoolConfig};

/// Owners that record which blocks they are asked about.
struct Asked(RefCell<Vec<u64>>);

impl Owners for Asked {
    fn may_move(&self, _: u64) -> bool {
        true
    }

    fn uses(&self, at: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        self.0.borrow_mut().push(at);
        Ok(())
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

/// Owners whose block at this offset may move, and no other.
struct Of(u64);

impl Owners for Of {
    fn may_move(&self, at: u64) -> bool {
        at == self.0
    }

    fn uses(&self, _: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

/// Owners that fail for the uses of the block at this offset.
struct Failing(u64);

impl Owners for Failing {
    fn may_move(&self, _: u64) -> bool {
        true
    }

    fn uses(&self, at: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        match at == self.0 {
            true => Err(Error::invalid("stream", "a wait that the driver refuses")),
            false => Ok(()),
        }
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

#[test]
fn the_ways_ascend_after_a_wait_that_failed_too() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let shared = pool.shared();
    let mover = Mover::new(&device, &Overhead::default()).expect("a mover");
    let stream = device.stream().expect("a stream");
    let mut core = shared.core.lock();
    let hold = core.add_stream(&stream.core().timeline, false);
    let slot = *hold;
    let granule = core.arena.granule();
    // Runs of four granules; `taken` counts half granules. The emptiest run is remapped first.
    for (start, taken) in [(0, 6), (64, 4), (128, 2), (192, 7)] {
        let start = start * granule;
        (core.create_frames(start, start + 4 * granule)).expect("memory");
        core.take_at(start, taken * granule / 2, slot);
    }
    drop(core);
    let mut owners = Failing(192 * granule);
    let joined = join(shared, &mover, &mut owners, 13 * granule / 2).expect("a lane");
    assert!(joined.error.is_some());
    assert!(joined.ways.len() > 1, "{:?}", joined.ways);
    assert!(joined.ways.is_sorted_by_key(|way| way.src));
}

#[test]
fn the_uses_of_every_block_of_a_run_are_waited_for_and_of_no_other() {
    let device = Device::host().expect("the host device");
    let stream = device.stream().expect("a stream");
    let timeline = &stream.core().timeline;
    let mut core = Core::new(&device, PoolConfig::default()).expect("a core");
    let hold = core.add_stream(timeline, false);
    let slot = *hold;
    core.create_frames(0, 8 * core.arena.granule())
        .expect("memory");
    for start in [0, 1024, 2048, 4096, 5120] {
        core.take_at(start, 1024, slot);
    }
    let asked = Asked(RefCell::default());
    let run = run(1024, 4096, 0, true, 0);
    wait_for_uses(&asked, &run, &core, timeline).expect("no wait fails");
    assert_eq!(asked.0.into_inner(), [1024, 2048, 4096]);
}

#[test]
fn what_all_free_memory_lacks_is_mapped_behind_it_and_nothing_where_it_suffices() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let (shared, mover) = (
        pool.shared(),
        Mover::new(&device, &Overhead::default()).expect("a mover"),
    );
    let mut owners = Asked(RefCell::default());
    let granule = {
        let mut core = shared.core.lock();
        let granule = core.arena.granule();
        core.create_frames(0, 4 * granule).expect("memory");
        granule
    };
    let mut joined = |bytes| {
        let joined = join(shared, &mover, &mut owners, bytes).expect("a lane");
        assert!(joined.error.is_none() && joined.ways.is_empty());
        let core = shared.core.lock();
        core.check().expect("whole books");
        let last = core.mapped_extents().last();
        let end = last.map_or(0, |(at, bytes, _)| at + bytes);
        assert_eq!(end, core.arena.reserved(), "one stretch");
        (joined.changed, end / granule)
    };
    assert_eq!(joined(4 * granule), (false, 4));
    assert_eq!(joined(6 * granule), (true, 6));
    assert_eq!(joined(6 * granule + 1), (true, 7));
    assert_eq!(joined(6 * granule + 1), (false, 7));
}

#[test]
fn no_run_is_mapped_again_if_the_device_has_no_memory_for_what_is_lacking() {
    let granule = Device::host().expect("the host device").info().granule;
    let device = Device::host_with_capacity(16 * granule).expect("a host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let (shared, mover) = (pool.shared(), Mover::new(&device, &Overhead::default()));
    let mover = mover.expect("a mover");
    let stream = device.stream().expect("a stream");
    let mut core = shared.core.lock();
    core.config.limit = Some(16 * granule);
    let hold = core.add_stream(&stream.core().timeline, false);
    for start in [0, 6 * granule] {
        core.create_frames(start, start + 4 * granule)
            .expect("memory");
        core.take_at(start, granule, *hold);
    }
    // The rest of the device is somebody else's.
    let _rest: Vec<_> = std::iter::from_fn(|| device.backend().create(granule).ok()).collect();
    let before: Vec<_> = core.mapped_extents().collect();
    drop(core);
    let mut owners = Asked(RefCell::default());
    let mut joined = |bytes| join(shared, &mover, &mut owners, bytes);
    assert!(joined(7 * granule).is_err_and(|error| error.is_device_exhausted()));
    assert!(shared.core.lock().mapped_extents().eq(before));
    let fits = joined(6 * granule).expect("nothing is lacking");
    assert_eq!((fits.changed, fits.ways.len()), (true, 1));
}

#[test]
fn what_is_mapped_elsewhere_waits_for_the_uses_of_its_blocks() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let (shared, mover) = (pool.shared(), Mover::new(&device, &Overhead::default()));
    let mover = mover.expect("a mover");
    let stream = device.stream().expect("a stream");
    let hold = {
        let mut core = shared.core.lock();
        core.add_stream(&stream.core().timeline, false)
    };
    let slot = *hold;
    let (granule, far) = {
        let mut core = shared.core.lock();
        let granule = core.arena.granule();
        let far = 64 * granule;
        for start in [0, far] {
            core.create_frames(start, start + 4 * granule)
                .expect("memory");
            core.take_at(start, granule, slot);
        }
        (granule, far)
    };
    let mut owners = Asked(RefCell::default());
    let joined = join(shared, &mover, &mut owners, 5 * granule).expect("a lane");
    assert!(joined.error.is_none() && joined.changed);
    let carried: Vec<u64> = joined.ways.iter().map(|way| way.src).collect();
    assert!(carried == [0] || carried == [far], "{carried:?}");
    assert_eq!(owners.0.into_inner(), carried);
}

#[test]
fn what_a_stream_used_as_its_capture_began_stays_as_others_are_mapped_elsewhere() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let mover = Mover::new(&device, &Overhead::default()).expect("a mover");
    let (shared, stream) = (pool.shared(), device.stream().expect("a stream"));
    let lane = shared.open_lane(&stream).expect("a lane");
    let _capture = stream.begin_capture().expect("a capture");
    let mut core = shared.core.lock();
    let (granule, open) = (core.arena.granule(), stream.core().timeline.open_tick());
    let [first, captured, far] = [0, 64, 128].map(|at| at * granule);
    for start in [first, captured, far] {
        core.create_frames(start, start + 4 * granule)
            .expect("memory");
    }
    core.take_at(first, granule, lane.slot);
    core.take_at(far, granule, lane.slot);
    let hole = core.extents.seek(core.extents.first(), captured);
    core.extents.set_epoch(hole, Epoch::new(lane.slot, open));
    drop(core);
    let joined = join(shared, &mover, &mut Of(first), 5 * granule).expect("a plan");
    assert!(joined.error.is_none(), "{:?}", joined.error);
    let sources: Vec<u64> = joined.ways.iter().map(|way| way.src).collect();
    assert_eq!(sources, [first]);
    let core = shared.core.lock();
    let hole = core
        .extents
        .get(core.extents.seek(core.extents.first(), captured));
    assert_eq!((hole.start, hole.bytes), (captured, 4 * granule));
    core.extents.check(granule).expect("whole books");
}

#[test]
fn runs_are_mapped_one_behind_the_other_and_what_is_lacking_behind_the_last() {
    let device = Device::host().expect("the host device");
    let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
    let (shared, mover) = (pool.shared(), Mover::new(&device, &Overhead::default()));
    let mover = mover.expect("a mover");
    let stream = device.stream().expect("a stream");
    let (granule, _hold) = {
        let mut core = shared.core.lock();
        let hold = core.add_stream(&stream.core().timeline, false);
        let slot = *hold;
        let granule = core.arena.granule();
        for start in [0, 64, 128].map(|at| at * granule) {
            let end = start + 4 * granule;
            core.create_frames(start, end).expect("memory");
            core.take_at(start, granule, slot);
        }
        (granule, hold)
    };
    let mut owners = Asked(RefCell::default());
    let joined = join(shared, &mover, &mut owners, 10 * granule).expect("a lane");
    assert!(joined.error.is_none() && joined.ways.len() == 2);
    let core = shared.core.lock();
    let mut mapped = core.mapped_extents().map(|(at, bytes, _)| (at, at + bytes));
    let (first, mut end) = mapped.next().expect("memory");
    for (start, its) in mapped {
        assert_eq!(start, end, "a gap");
        end = its;
    }
    assert_eq!(end - first, 13 * granule);
}

fn run(start: u64, bytes: u64, free: u64, movable: bool, gap: u64) -> Run {
    Run {
        start,
        end: start + bytes,
        movable,
        free,
        gap,
    }
}

#[test]
fn the_fewest_bytes_that_suffice_are_mapped_again() {
    let runs = [
        run(0, 1000, 30, true, 10),
        run(2000, 100, 20, true, 0),
        run(3000, 50, 20, true, 0),
        run(4000, 500, 40, true, 9000),
    ];
    let made = Gathering::least(&runs, 60, 0).expect("a gathering");
    assert_eq!(made.home.start, 4000);
    assert_eq!(made.carried, [&runs[2]]);
    let made = Gathering::least(&runs, 75, 0).expect("a gathering");
    assert_eq!(made.carried, [&runs[2], &runs[1]]);
    assert!(Gathering::least(&runs, 111, 0).is_none());
}

#[test]
fn of_runs_by_the_ten_thousand_some_are_chosen_soon() {
    let begun = std::time::Instant::now();
    for movable in [true, false] {
        // Any run may stay, and half of the others have to be remapped.
        let runs: Vec<Run> = (0..40_000)
            .map(|at| run(1 << 40 | at << 24, 100, 10, movable || at % 2 == 0, 1 << 23))
            .collect();
        let made = Gathering::least(&runs, 150_000, 0).expect("a gathering");
        assert!(made.price() >= 1_499_900, "{}", made.price());
        assert!(Gathering::least(&runs, 500_000, 0).is_none());
    }
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}

#[test]
fn runs_that_do_not_all_fit_behind_one_are_not_brought_there() {
    let behind = |gap| {
        let runs = [
            run(0, 1000, 30, true, gap),
            run(2000, 100, 20, true, 0),
            run(4000, 100, 20, true, 0),
        ];
        Gathering::least(&runs, 60, 0).map(|made| made.carried.len())
    };
    assert_eq!([99, 199, 200].map(behind), [None, None, Some(2)]);
}

#[test]
fn where_not_all_runs_fit_behind_one_those_that_do_are_brought_there() {
    let runs = [
        run(0, 1000, 30, true, 50),
        run(2000, 200, 20, true, 450),
        run(3000, 300, 20, false, 0),
        run(4000, 260, 20, true, 0),
        run(5000, 180, 20, true, 0),
        run(6000, 20, 20, true, 0),
        run(7000, 160, 20, true, 0),
    ];
    // The first run has 1000 bytes, one run may not move, and no space is left for the last.
    let made = Gathering::all(&runs).expect("a gathering");
    assert_eq!(made.home, &runs[1]);
    assert_eq!(made.carried, [&runs[3], &runs[4]]);
    assert_eq!((made.price(), made.room_left()), (440, 10));
    assert_eq!(Gathering::all(&runs[..1]).expect("itself").price(), 0);
    assert!(Gathering::all(&[]).is_none());
}

#[test]
fn runs_by_the_hundred_thousand_are_brought_behind_one_in_one_pass() {
    let runs: Vec<Run> = (0..100_000)
        .map(|at| run(100 * at, 10, 1, true, 90))
        .collect();
    let began = std::time::Instant::now();
    assert_eq!(Gathering::all(&runs).expect("a gathering").carried.len(), 9);
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
}

#[test]
fn runs_with_too_little_room_behind_them_are_passed_over_at_once() {
    let mut runs: Vec<Run> = (0..100_000)
        .map(|at| run(100 * at, 50, 10, true, 50))
        .collect();
    let began = std::time::Instant::now();
    assert!(Gathering::least(&runs, 70, 0).is_none());
    runs[70_000].gap = 300;
    let made = Gathering::least(&runs, 70, 0).expect("a gathering");
    assert_eq!((made.home.start, made.carried.len()), (7_000_000, 6));
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
}

#[test]
fn a_run_with_nothing_free_is_not_brought_along() {
    let runs = [
        run(0, 1000, 30, true, 1000),
        run(2000, 100, 0, true, 0),
        run(3000, 100, 20, true, 0),
        run(4000, 100, 20, false, 0),
    ];
    let made = Gathering::least(&runs, 50, 0).expect("a gathering");
    assert_eq!(made.carried, [&runs[2]]);
    assert!(Gathering::least(&runs, 51, 0).is_none());
}

#[test]
fn holes_of_a_run_that_stays_put_count_only_if_its_blocks_may_move() {
    let runs = [run(0, 100, 60, false, 1000), run(2000, 100, 50, true, 0)];
    assert!(Gathering::least(&runs, 60, 0).is_none());
    assert_eq!(
        Gathering::all(&runs).expect("a gathering").carried,
        [&runs[1]]
    );
}

#[test]
fn a_run_with_no_more_room_behind_it_than_is_lacking_takes_no_other() {
    let runs = [run(0, 1000, 60, true, 100)];
    assert!(Gathering::least(&runs, 60, 99).is_some());
    assert!(Gathering::least(&runs, 60, 100).is_none());
}

#[test]
fn the_largest_run_with_room_behind_it_stays_where_it_is() {
    let runs = [run(0, 1000, 30, true, 200), run(2000, 100, 20, true, 9000)];
    assert_eq!(Gathering::all(&runs).expect("a gathering").home, &runs[0]);
    assert_eq!(
        Gathering::least(&runs, 50, 100).expect("one").home,
        &runs[0]
    );
    assert_eq!(
        Gathering::least(&runs, 50, 101).expect("one").home,
        &runs[1]
    );
}
