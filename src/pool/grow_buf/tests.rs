//! What growing buffers keep, give back and count.

use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;

use super::GrowBuf;
use crate::backend::HandleCounts;
use crate::device::{Device, Stream, lock};
use crate::error::Error;
use crate::host::Contents;
use crate::pool::{HandleSize, Pool, PoolConfig, Relief};
use crate::sync::Mutex;

mod queued;

/// A pool, two streams of its device, and elements of a granule.
struct Ground {
    device: Device,
    pool: Pool,
    streams: [Stream; 2],
    granule: usize,
}

fn small() -> PoolConfig {
    PoolConfig::default()
        .handles(HandleSize::Granule)
        .cache_bytes(0)
        .slabs(false)
}

fn ground_on(device: Device, config: PoolConfig) -> Ground {
    Ground {
        pool: Pool::new(&device, config).unwrap(),
        streams: [device.stream().unwrap(), device.stream().unwrap()],
        granule: device.info().granule as usize,
        device,
    }
}

fn ground(config: PoolConfig) -> Ground {
    ground_on(Device::host().unwrap(), config)
}

/// The same with a limit of this many granules.
fn limited(granules: u64) -> Ground {
    let device = Device::host().unwrap();
    let limit = granules * device.info().granule;
    ground_on(device, small().limit(limit))
}

impl Ground {
    /// A buffer of this many granules, all bytes of which are `byte`.
    fn filled(&self, granules: usize, byte: u8) -> GrowBuf<u8> {
        let mut buffer = self.empty();
        buffer.resize(granules * self.granule).unwrap();
        buffer.view_mut().fill(&self.streams[0], byte).unwrap();
        buffer
    }

    fn empty(&self) -> GrowBuf<u8> {
        let most = 64 * self.granule;
        self.pool.grow_buf(&self.streams[0], most).unwrap()
    }

    fn counts(&self) -> HandleCounts {
        self.device.backend().counts()
    }

    /// Granules of growing buffers. The books are whole, and the device counts what they say.
    fn grown(&self) -> u64 {
        self.pool.check_invariants().unwrap();
        let stats = self.pool.stats();
        assert_eq!(self.counts().bytes, stats.reserved.current + stats.overhead);
        assert_eq!(self.pool.snapshot().grown, stats.grown);
        stats.grown / self.granule as u64
    }

    fn finish(&self) {
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
    }

    /// Holds a stream up until what it returns is dropped.
    fn hold(&self, stream: &Stream) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        let work = Box::new(move || _ = held.recv());
        self.device.backend().host_call(stream.raw(), work).unwrap();
        release
    }
}

/// Drops `hold` after a while, on another thread.
fn release_soon(hold: mpsc::Sender<()>) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(hold);
    });
}

fn bytes_at(buffer: &GrowBuf<u8>, stream: &Stream, at: usize) -> u8 {
    let one = buffer.view().slice(at..=at).unwrap();
    one.download(stream).unwrap()[0]
}

#[derive(Debug, Clone)]
enum Step {
    Resize(usize),
    Extend(usize),
    /// Fills what there is, on the other stream.
    Fill(u8),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3usize << 20).prop_map(Step::Resize),
        (0..200_000usize).prop_map(Step::Extend),
        any::<u8>().prop_map(Step::Fill),
        Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn elements_keep_their_value_and_address_however_a_buffer_grows_and_shrinks(
        steps in steps(),
        adaptive in any::<bool>(),
    ) {
        let config = if adaptive { PoolConfig::default() } else { small() };
        let ground = ground(config);
        let [home, other] = &ground.streams;
        let most = 3 << 20;
        // Elements whose size divides no granule.
        let mut buffer = ground.pool.grow_buf::<[u8; 3]>(home, most).unwrap();
        let (addr, mut model) = (buffer.addr(), Vec::new());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Resize(len) => {
                    let before = buffer.len();
                    buffer.resize(len).unwrap();
                    model.resize(len, [0; 3]);
                    if len > before {
                        let new = buffer.view_mut().slice(before..).unwrap();
                        new.fill(home, [0; 3]).unwrap();
                    }
                }
                Step::Extend(len) => {
                    let data = vec![[number as u8, 1, 2]; len];
                    let fits = model.len() + len <= most;
                    prop_assert_eq!(buffer.extend_from(other, &data).is_ok(), fits);
                    if fits {
                        model.extend(data);
                    }
                }
                Step::Fill(byte) => {
                    buffer.view_mut().fill(other, [byte; 3]).unwrap();
                    model.fill([byte; 3]);
                }
                Step::Trim => _ = ground.pool.trim(0).unwrap(),
            }
            prop_assert_eq!((buffer.addr(), buffer.len()), (addr, model.len()));
            prop_assert!(buffer.capacity() >= buffer.len());
            ground.grown();
        }
        prop_assert!(buffer.view().download(home).unwrap() == model, "the elements differ");
        drop(buffer);
        ground.finish();
        ground.pool.trim(0).unwrap();
        prop_assert_eq!(ground.grown(), 0);
    }
}

#[test]
fn what_comes_back_after_a_shrink_is_written_behind_what_was_queued_for_it_before() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let granule = ground.granule;
    let mut buffer = ground.filled(4, 0);
    ground.finish();
    let hold = ground.hold(home);
    let late = buffer.view_mut().slice(2 * granule..).unwrap();
    late.fill(home, 1).unwrap();
    buffer.resize(granule).unwrap();
    buffer.view_mut().fill(other, 2).unwrap();
    buffer.resize(4 * granule).unwrap();
    let again = buffer.view_mut().slice(3 * granule..).unwrap();
    again.fill(other, 7).unwrap();
    // Long enough for what does not wait.
    std::thread::sleep(Duration::from_millis(50));
    drop(hold);
    ground.finish();
    assert_eq!(bytes_at(&buffer, home, 3 * granule), 7);
}

#[test]
fn a_buffer_maps_no_more_than_its_elements_need_and_gives_back_what_they_no_longer_do() {
    let ground = ground(small());
    let mut buffer = ground.empty();
    let granule = ground.granule;
    assert_eq!((buffer.capacity(), ground.grown()), (0, 0));
    for (len, mapped) in [
        (1, 1),
        (granule, 1),
        (granule + 1, 2),
        (5 * granule, 5),
        (4 * granule + 1, 5),
        (4 * granule, 4),
        (1, 1),
        (0, 0),
    ] {
        buffer.resize(len).unwrap();
        assert_eq!(buffer.capacity(), mapped * granule, "{len} elements");
        assert_eq!(ground.grown(), mapped as u64, "{len} elements");
        assert_eq!(ground.counts().mappings, mapped as u64);
    }
    let flow = ground.pool.stats().reserved;
    let moved = 5 * granule as u64;
    assert_eq!((flow.allocated, flow.freed), (moved, moved));
    assert_eq!(flow.peak, 5 * granule as u64);
}

#[test]
fn buffers_and_blocks_share_one_limit() {
    let ground = limited(8);
    let [home, _] = &ground.streams;
    let granule = ground.granule as u64;
    let block = ground.pool.alloc(home, 3 * granule).unwrap();
    let mut buffer = ground.filled(5, 1);
    assert!(
        buffer
            .resize(6 * ground.granule)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert!(
        ground
            .pool
            .alloc(home, granule)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert_eq!(ground.counts().bytes, 8 * granule);
    drop(block);
    buffer.resize(8 * ground.granule).unwrap();
    assert_eq!((ground.grown(), ground.counts().bytes), (8, 8 * granule));
    let Error::OutOfMemory(figures) = ground.pool.alloc(home, granule).unwrap_err() else {
        panic!("no room");
    };
    assert_eq!((figures.live, figures.reserved), (8 * granule, 8 * granule));
    buffer.resize(0).unwrap();
    ground.finish();
    drop(ground.pool.alloc(home, 8 * granule).unwrap());
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_pool_gives_idle_memory_up_before_a_buffer_has_new_memory_beyond_its_slack() {
    let ground = ground(small());
    let [home, _] = &ground.streams;
    let granule = ground.granule as u64;
    drop(ground.pool.alloc(home, 40 * granule).unwrap());
    ground.finish();
    let _buffer = ground.filled(40, 1);
    let peak = ground.pool.stats().reserved.peak;
    assert!(peak <= 48 * granule, "{} granules", peak / granule);
}

#[test]
fn idle_memory_that_work_still_uses_is_waited_for_where_the_limit_is_short() {
    let ground = limited(4);
    let [home, other] = &ground.streams;
    let block = ground.pool.alloc(other, 4 * ground.granule as u64).unwrap();
    let hold = ground.hold(other);
    drop(block);
    release_soon(hold);
    let _buffer = ground.filled(4, 1);
    assert_eq!(ground.grown(), 4);
    home.synchronize().unwrap();
}

#[test]
fn a_request_has_what_a_buffer_gave_up_behind_its_work() {
    let ground = limited(4);
    let [_, other] = &ground.streams;
    let mut buffer = ground.filled(4, 1);
    let hold = ground.hold(other);
    buffer.view_mut().fill(other, 2).unwrap();
    drop(buffer);
    assert_eq!(ground.grown(), 4, "its work is not done");
    release_soon(hold);
    let _block = ground.pool.alloc(other, 4 * ground.granule as u64).unwrap();
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_request_has_what_a_buffer_gave_up_while_the_application_was_asked() {
    let ground = limited(4);
    let buffer = ground.filled(3, 1);
    let given_up = Mutex::new(Some((buffer, ground.hold(&ground.streams[0]))));
    ground.pool.on_pressure(move |_| {
        if let Some((buffer, hold)) = lock(&given_up).take() {
            drop(buffer);
            release_soon(hold);
        }
        Relief::Exhausted
    });
    let bytes = 3 * ground.granule as u64;
    let block = ground.pool.alloc(&ground.streams[1], bytes).unwrap();
    assert!(ground.pool.alloc(&ground.streams[1], bytes).is_err());
    drop(block);
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_buffer_over_the_soft_limit_makes_the_pool_give_idle_memory_back() {
    let device = Device::host().unwrap();
    let granule = device.info().granule;
    let ground = ground_on(device, small().soft_limit(6 * granule).slack(8.0));
    let [home, _] = &ground.streams;
    let block = ground.pool.alloc(home, 4 * granule).unwrap();
    let _buffer = ground.filled(4, 1);
    ground.finish();
    drop(block);
    let _next = ground.pool.alloc(home, granule).unwrap();
    assert!(ground.pool.stats().reserved.current <= 6 * granule);
    assert_eq!(ground.grown(), 4);
}

fn stays_as_it_was_without_room(ground: &Ground) {
    let [home, _] = &ground.streams;
    let mut buffer = ground.filled(3, 7);
    ground.finish();
    let (before, figures) = (ground.counts(), ground.pool.stats());
    let larger = 10 * ground.granule;
    assert!(buffer.resize(larger).unwrap_err().is_out_of_memory());
    let data = vec![0; larger];
    assert!(
        buffer
            .extend_from(home, &data)
            .unwrap_err()
            .is_out_of_memory()
    );
    assert_eq!(buffer.len(), 3 * ground.granule);
    assert_eq!(buffer.capacity(), 3 * ground.granule);
    assert_eq!(bytes_at(&buffer, home, 3 * ground.granule - 1), 7);
    let (after, now) = (ground.counts(), ground.pool.stats());
    assert_eq!((after.handles, after.bytes), (before.handles, before.bytes));
    assert_eq!(after.mappings, before.mappings);
    assert_eq!(now.grown, figures.grown);
    assert_eq!(now.failures, figures.failures + 2);
    ground.grown();
}

#[test]
fn a_buffer_that_the_limit_has_no_room_for_stays_as_it_was() {
    stays_as_it_was_without_room(&limited(6));
}

#[test]
fn a_buffer_that_the_device_has_no_room_for_stays_as_it_was() {
    for config in [small(), PoolConfig::default()] {
        let granule = Device::host().unwrap().info().granule;
        let six = 6 * granule;
        let device = Device::host_with_capacity(six).unwrap();
        stays_as_it_was_without_room(&ground_on(device, config));
    }
}

#[test]
fn a_full_device_has_its_idle_memory_used_for_a_buffer() {
    let granule = Device::host().unwrap().info().granule;
    let six = 6 * granule;
    let ground = ground_on(Device::host_with_capacity(six).unwrap(), small());
    drop(ground.pool.alloc(&ground.streams[1], 6 * granule).unwrap());
    let _buffer = ground.filled(6, 1);
    assert_eq!(ground.grown(), 6);
}

#[test]
fn what_is_registered_frees_memory_for_a_buffer() {
    let ground = limited(4);
    let granule = ground.granule as u64;
    let block = ground.pool.alloc(&ground.streams[0], 4 * granule);
    let spare = std::sync::Mutex::new(Some(block.unwrap()));
    let (ask, asked) = mpsc::channel();
    ground.pool.on_pressure(move |pressure| {
        ask.send(pressure.requested / granule).unwrap();
        match spare.lock().unwrap().take() {
            Some(_) => crate::pool::Relief::Retry,
            None => crate::pool::Relief::Exhausted,
        }
    });
    let mut buffer = ground.filled(4, 1);
    assert_eq!(ground.pool.stats().retries, 1);
    assert!(buffer.resize(5 * ground.granule).is_err());
    // Not again once it could do no more.
    assert!(asked.try_iter().eq([4, 1]));
}

#[test]
fn a_buffer_for_which_registered_steps_can_do_nothing_as_the_pool_falls_asleep_does_not_wait() {
    let ground = limited(4);
    let shared = std::sync::Arc::clone(ground.pool.shared());
    let exhausted = |_: &crate::pool::Need<'_>| false;
    shared.add_relief(1, std::sync::Arc::new(exhausted));
    let (mut buffer, bytes) = (ground.filled(4, 1), 5 * ground.granule);
    ground.device.suspend(&shared.awake).unwrap();
    let (tell, told) = mpsc::channel();
    let grows = std::thread::spawn(move || tell.send(buffer.resize(bytes)));
    let outcome = told.recv_timeout(Duration::from_secs(5));
    ground.device.resume(&shared.awake);
    grows.join().unwrap().unwrap();
    let failed = outcome.expect("it goes on").unwrap_err();
    assert!(failed.to_string().contains("sleep"), "{failed}");
    assert_eq!(ground.grown(), 0);
}

#[test]
fn buffers_without_elements_or_of_elements_without_bytes_hold_no_memory() {
    let ground = ground(small());
    let [home, other] = &ground.streams;
    let mut none = ground.pool.grow_buf::<u32>(home, 0).unwrap();
    assert!(none.is_empty() && none.addr() != 0 && none.capacity() == 0);
    none.extend_from(other, &[]).unwrap();
    none.view_mut().fill(other, 1).unwrap();
    assert!(none.extend_from(other, &[1]).is_err());
    let mut units = ground.pool.grow_buf::<()>(home, usize::MAX).unwrap();
    units.resize(usize::MAX).unwrap();
    units.extend_from(home, &[]).unwrap();
    assert_eq!((units.len(), units.capacity()), (usize::MAX, usize::MAX));
    units.resize(0).unwrap();
    assert_eq!(ground.grown(), 0);
}

#[test]
fn what_no_buffer_can_be_is_an_error_and_leaves_nothing() {
    let ground = ground(small());
    let [home, _] = &ground.streams;
    let ranges = ground.counts().ranges;
    for most in [usize::MAX, 1 << 62, (1 << 43) + 1] {
        let error = ground.pool.grow_buf::<u64>(home, most).unwrap_err();
        assert!(
            matches!(error, Error::Invalid { what: "most", .. }),
            "{error}"
        );
    }
    let foreign = Device::host().unwrap().stream().unwrap();
    let error = ground.pool.grow_buf::<u64>(&foreign, 1).unwrap_err();
    assert!(
        matches!(error, Error::Invalid { what: "stream", .. }),
        "{error}"
    );
    assert_eq!(ground.counts().ranges, ranges);
    let mut buffer = ground.filled(1, 1);
    assert!(
        foreign
            .kernel("work")
            .writes(buffer.view_mut())
            .launch(|_| ())
            .is_err()
    );
    let len = buffer.len();
    assert!(buffer.resize(64 * ground.granule + 1).is_err());
    assert!(buffer.extend_from(&foreign, &[1; 1 << 22]).is_err());
    assert_eq!((buffer.len(), ground.grown()), (len, 1));
}

#[test]
fn threads_that_grow_buffers_under_one_limit_never_hold_more_than_that() {
    let ground = limited(12);
    let limit = 12 * ground.granule as u64;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let ground = &ground;
            scope.spawn(move || {
                let stream = ground.device.stream().unwrap();
                let mut buffer = ground
                    .pool
                    .grow_buf::<u8>(&stream, 12 * ground.granule)
                    .unwrap();
                for step in 0..60 {
                    let granules = (step * 7 + usize::from(thread) * 3) % 6;
                    match buffer.resize(granules * ground.granule) {
                        Ok(()) => buffer.view_mut().fill(&stream, thread).unwrap(),
                        Err(error) => assert!(error.is_out_of_memory(), "{error}"),
                    }
                    assert!(ground.counts().bytes <= limit);
                    if !buffer.is_empty() {
                        assert_eq!(bytes_at(&buffer, &stream, buffer.len() - 1), thread);
                    }
                }
            });
        }
    });
    ground.pool.trim(0).unwrap();
    assert_eq!(ground.grown(), 0);
}

#[test]
fn a_growth_in_which_a_callback_panics_leaves_all_as_it_was() {
    let ground = limited(2);
    let mut buffer = ground.filled(2, 1);
    let (open, wait) = mpsc::channel::<()>();
    let held = Box::new(move || _ = wait.recv());
    let backend = ground.device.backend();
    backend.host_call(ground.streams[0].raw(), held).unwrap();
    buffer.view_mut().fill(&ground.streams[0], 2).unwrap();
    buffer.resize(0).unwrap();
    ground
        .pool
        .on_pressure(|_| panic!("a callback that panics"));
    let growing = std::panic::AssertUnwindSafe(|| buffer.resize(3 * ground.granule));
    assert!(std::panic::catch_unwind(growing).is_err());
    drop(open);
    ground.streams[0].synchronize().unwrap();
    ground.pool.trim(0).unwrap();
    assert_eq!((buffer.len(), buffer.capacity(), ground.grown()), (0, 0, 0));
}

#[test]
fn an_error_names_growing_memory_among_those_that_hold_most() {
    let granule = Device::host().unwrap().info().granule;
    let Ground { pool, streams, .. } = ground(small().limit(5 * granule));
    let home = &streams[0];
    let mut bufs: Vec<GrowBuf<u8>> = (0..3)
        .map(|_| pool.grow_buf(home, 8 * granule as usize).unwrap())
        .collect();
    bufs[0].resize(2 * granule as usize).unwrap();
    bufs[1].resize(1).unwrap();
    let block = pool.alloc(home, granule).unwrap();
    let holders = |refused: Error, requested| match refused {
        Error::OutOfMemory(why) if why.requested == requested => why.holders,
        other => panic!("{other}"),
    };
    let grown = ("growing memory".to_owned(), 3 * granule, 2);
    let blocks = (format!("stream {}", home.id()), granule, 1);
    let said = [grown.clone(), blocks.clone()];
    assert_eq!(
        holders(pool.alloc(home, 2 * granule).unwrap_err(), 2 * granule),
        said
    );
    let refused = bufs[2].resize(2 * granule as usize).unwrap_err();
    assert_eq!(holders(refused, 2 * granule), said);
    drop(bufs);
    let refused = pool.alloc(home, 5 * granule).unwrap_err();
    assert_eq!(holders(refused, 5 * granule), [blocks]);
    drop(block);
}

#[test]
fn an_error_of_a_pool_that_cannot_wake_counts_its_growing_buffers_as_live() {
    let ground = ground(small().sleeps(true));
    let granule = ground.granule as u64;
    let buffer = ground.filled(3, 1);
    let block = ground.pool.alloc(&ground.streams[0], granule).unwrap();
    ground.pool.sleep(&[], Contents::Discarded).unwrap();
    ground.pool.set_limit(granule);
    let why = match ground.pool.wake(&[]) {
        Err(Error::OutOfMemory(why)) => why,
        other => panic!("{other:?}"),
    };
    let held: u64 = why.holders.iter().map(|(_, bytes, _)| bytes).sum();
    assert_eq!((why.live, held), (4 * granule, 4 * granule));
    drop((buffer, block));
}

#[test]
fn an_error_of_a_buffer_has_its_whole_growth_and_the_figures_of_the_pool_as_it_was() {
    let granule = Device::host().unwrap().info().granule;
    let ground = ground_on(Device::host_with_capacity(8 * granule).unwrap(), small());
    // Another pool's, so that the device refuses handles beyond the first three.
    let other = Pool::new(&ground.device, small()).unwrap();
    let theirs = other.alloc(&ground.streams[1], 4 * granule).unwrap();
    let mut buffer = ground.filled(1, 1);
    let why = match buffer.resize(7 * ground.granule) {
        Err(Error::OutOfMemory(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why.requested, 6 * granule);
    assert_eq!((why.live, why.reserved), (granule, granule));
    assert_eq!(why.device_free, Some(3 * granule));
    let held = ("growing memory".to_owned(), granule, 1);
    assert_eq!(why.holders, [held]);
    drop((theirs, other));
    assert_eq!(ground.grown(), 1);
}
