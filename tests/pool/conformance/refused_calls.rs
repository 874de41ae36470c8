//! Requests while the device refuses a call: out of memory sends them down the ladder, and anything
//! else is what they answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::common::watched::{MADE_TO_FAIL, OUT_OF_MEMORY, Watched};
use super::common::{BackendOf, Gate, fill, on_every_device, read};
use super::{MIB, limited, small_handles, whole};
use warpool::pool::Relief;
use warpool::{Block, Device, Error, Pool, Stream};

on_every_device! {
    a_device_without_memory_for_a_call_sends_the_request_to_the_application,
    any_other_failure_of_a_call_is_what_the_request_answers,
    a_free_whose_wait_is_refused_waits_on_the_host,
    what_the_drop_of_a_block_with_declared_uses_asks_counts_as_time_in_the_driver,
    a_request_that_may_not_wait_for_a_declared_use_is_an_error_and_the_memory_stays,
    a_request_that_may_not_wait_for_free_memory_counts_as_no_allocation,
    a_block_whose_shrink_may_not_wait_for_a_declared_use_stays_as_it_was,
    a_block_freed_elsewhere_tells_of_a_refused_wait_and_is_free_behind_its_use,
    a_growing_buffer_whose_upload_is_refused_has_its_old_elements,
    a_trim_that_the_device_ends_keeps_what_it_released,
    a_trim_behind_a_capture_that_goes_on_releases_what_is_ready_and_is_an_error,
    a_buffer_grows_by_what_is_ready_behind_a_capture_that_goes_on,
    a_large_request_that_fails_under_capture_asks_the_device_as_often_as_another,
}

/// What there is for a request of the pool.
#[derive(Clone, Copy, PartialEq)]
enum Free {
    /// Nothing, but more may be made.
    Nothing,
    /// Handles that are idle, but apart.
    Handles,
}

/// A pool that lacks a call of the device for the request that follows.
struct Lacking {
    watched: Arc<Watched>,
    pool: Pool,
    stream: Stream,
    asked: Arc<AtomicU64>,
    /// On another stream, where there are two.
    _others: Vec<Block>,
    wanted: u64,
}

impl Lacking {
    /// With so much free; the stream alone on the pool, or not.
    fn new(device: &Device, free: Free, alone: bool) -> Self {
        let (device, watched) = Watched::over(device);
        let granule = device.info().granule;
        let pool = limited(&device, 5 + u64::from(!alone));
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut others = Vec::new();
        if !alone {
            others.push(pool.alloc(&other, granule).unwrap());
        }
        let blocks = [(); 6].map(|()| pool.alloc(&stream, granule / 2).unwrap());
        for (at, block) in blocks.into_iter().enumerate() {
            let goes = match free {
                Free::Nothing => false,
                Free::Handles => at / 2 != 1,
            };
            if !goes {
                others.push(block);
            }
        }
        let asked = Arc::<AtomicU64>::default();
        let counts = Arc::clone(&asked);
        pool.on_pressure(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            Relief::Exhausted
        });
        Self {
            watched,
            pool,
            stream,
            asked,
            _others: others,
            wanted: 2 * granule,
        }
    }

    /// What a request answers whose uses of `call` fail with `code`, once they do; and how often the
    /// application was asked.
    fn answer(&self, call: &'static str, code: i32) -> Option<(Error, u64)> {
        self.watched.fail_with(call, 1, true, code);
        let answer = self.pool.alloc(&self.stream, self.wanted);
        let failed = self.watched.failures() > 0;
        self.watched.heal();
        whole(&self.pool);
        let error = answer.err().filter(|_| failed)?;
        Some((error, self.asked.load(Ordering::Relaxed)))
    }
}

/// Each pool and call of which one lacks the other.
fn each(device: &Device, code: i32, see: impl Fn(Error, u64)) {
    let mut seen = 0;
    for free in [Free::Nothing, Free::Handles] {
        for (alone, call) in [
            (true, "create"),
            (true, "map"),
            (false, "create"),
            (false, "map"),
        ] {
            let lacking = Lacking::new(device, free, alone);
            if let Some((error, asked)) = lacking.answer(call, code) {
                see(error, asked);
                seen += 1;
            }
            // The device has it again.
            drop(lacking.pool.alloc(&lacking.stream, lacking.wanted).unwrap());
        }
    }
    assert!(seen >= 6, "{seen} were refused");
}

fn a_device_without_memory_for_a_call_sends_the_request_to_the_application(device: &Device) {
    each(device, OUT_OF_MEMORY, |error, asked| {
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(asked, 1);
    });
}

fn any_other_failure_of_a_call_is_what_the_request_answers(device: &Device) {
    each(device, MADE_TO_FAIL, |error, asked| {
        let ours = matches!(
            error,
            Error::Driver {
                code: MADE_TO_FAIL,
                ..
            }
        );
        assert!(ours, "{error}");
        assert_eq!(asked, 0);
    });
}

fn a_free_whose_wait_is_refused_waits_on_the_host(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    // Where it may not be kept until it is done.
    let config = small_handles().limit(granule).reuse(false, true);
    let pool = Pool::new(&device, config).unwrap();
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc(&home, granule).unwrap();
    block.record_use(&other).unwrap();
    let gate = Gate::close(&other);
    fill(&other, block.addr(), 3, granule);
    watched.fail("event_wait", 1, true);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            gate.open();
        });
        drop(block);
        let refused = watched.failures();
        watched.heal();
        let next = pool.alloc(&home, granule).unwrap();
        fill(&home, next.addr(), 9, granule);
        home.synchronize().unwrap();
        other.synchronize().unwrap();
        let found = read(&home, next.addr(), granule as usize);
        assert!(found.iter().all(|&byte| byte == 9), "freed under its use");
        assert!(refused > 0, "nothing was refused");
    });
    whole(&pool);
}

fn what_the_drop_of_a_block_with_declared_uses_asks_counts_as_time_in_the_driver(device: &Device) {
    const LONG: Duration = Duration::from_millis(30);
    let uses: [fn(Block, &Stream); 2] = [
        |block, _| drop(block),
        |block, on| block.free_on(on).unwrap(),
    ];
    for (reuse, free) in [(true, uses[0]), (false, uses[0]), (true, uses[1])] {
        let (device, watched) = Watched::over(device);
        let pool = Pool::new(&device, small_handles().reuse(reuse, true)).unwrap();
        let streams = [(); 3].map(|()| device.stream().unwrap());
        let mut block = pool.alloc(&streams[0], MIB).unwrap();
        block.record_use(&streams[1]).unwrap();
        fill(&streams[1], block.addr(), 3, MIB);
        let before = pool.stats().steps.driver_ns;
        watched.after("event_record", || std::thread::sleep(LONG));
        free(block, &streams[2]);
        let spent = pool.stats().steps.driver_ns - before;
        assert!(u128::from(spent) >= LONG.as_nanos(), "{spent} ns");
    }
}

fn a_request_that_may_not_wait_for_a_declared_use_is_an_error_and_the_memory_stays(
    device: &Device,
) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 1);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc(&home, granule).unwrap();
    block.record_use(&other).unwrap();
    let gate = Gate::close(&other);
    fill(&other, block.addr(), 3, granule);
    drop(block);
    watched.fail("event_wait", 1, true);
    for _ in 0..2 {
        let refused = pool.alloc(&home, granule).unwrap_err();
        assert!(matches!(refused, Error::Driver { .. }), "{refused}");
        let stats = pool.stats();
        assert_eq!((stats.active.current, stats.blocks.current), (granule, 0));
        whole(&pool);
    }
    watched.heal();
    let next = pool.alloc(&home, granule).unwrap();
    fill(&home, next.addr(), 9, granule);
    assert!(!home.is_idle().unwrap(), "the home stream runs ahead");
    gate.open();
    home.synchronize().unwrap();
    let found = read(&home, next.addr(), granule as usize);
    assert!(found.iter().all(|&byte| byte == 9), "freed under its use");
    whole(&pool);
}

fn a_request_that_may_not_wait_for_free_memory_counts_as_no_allocation(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 1);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let halves = [(); 2].map(|()| pool.alloc(&other, granule / 2).unwrap());
    let gate = Gate::close(&other);
    drop(halves);
    let before = pool.stats().active.allocated;
    watched.fail("event_wait", 1, true);
    let refused = pool.alloc(&home, granule).unwrap_err();
    assert!(matches!(refused, Error::Driver { .. }), "{refused}");
    let stats = pool.stats();
    assert_eq!(
        (stats.active.allocated, stats.steps.stream_wait),
        (before, 0)
    );
    whole(&pool);
    watched.heal();
    pool.alloc(&home, granule).unwrap();
    assert_eq!(pool.stats().steps.stream_wait, 1);
    gate.open();
}

fn a_block_whose_shrink_may_not_wait_for_a_declared_use_stays_as_it_was(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 2);
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut block = pool.alloc(&home, 2 * granule).unwrap();
    block.record_use(&other).unwrap();
    fill(&other, block.addr(), 3, 2 * granule);
    let figures = || {
        let stats = pool.stats();
        [stats.requested, stats.allocated, stats.active].map(|of| of.current)
    };
    let before = (block.bytes(), block.capacity(), figures());
    watched.fail("event_wait", 1, true);
    let refused = block.shrink(granule).unwrap_err();
    assert!(matches!(refused, Error::Driver { .. }), "{refused}");
    watched.heal();
    assert_eq!((block.bytes(), block.capacity(), figures()), before);
    whole(&pool);
    block.shrink(granule).unwrap();
    assert_eq!(block.capacity(), granule);
    drop(pool.alloc(&home, granule).unwrap());
    whole(&pool);
}

fn a_block_freed_elsewhere_tells_of_a_refused_wait_and_is_free_behind_its_use(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 1);
    let [home, other, third] = [(); 3].map(|()| device.stream().unwrap());
    let mut block = pool.alloc(&home, granule).unwrap();
    block.record_use(&other).unwrap();
    fill(&other, block.addr(), 3, granule);
    watched.fail("event_wait", 1, true);
    let refused = block.free_on(&third).unwrap_err();
    assert!(matches!(refused, Error::Driver { .. }), "{refused}");
    watched.heal();
    assert!(other.is_idle().unwrap(), "nobody has waited for its use");
    drop(pool.alloc(&third, granule).unwrap());
    whole(&pool);
}

fn a_growing_buffer_whose_upload_is_refused_has_its_old_elements(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule as usize;
    let pool = limited(&device, 4);
    let stream = device.stream().unwrap();
    let mut buffer = pool.grow_buf::<u8>(&stream, 4 * granule).unwrap();
    buffer.extend_from(&stream, &vec![7; granule]).unwrap();
    watched.fail("copy_in", 1, true);
    let refused = buffer.extend_from(&stream, &vec![8; 2 * granule]);
    assert!(matches!(refused, Err(Error::Driver { .. })), "{refused:?}");
    watched.heal();
    assert_eq!((buffer.len(), buffer.capacity()), (granule, granule));
    let elements = buffer.view().download(&stream).unwrap();
    assert!(elements.iter().all(|&it| it == 7), "they have changed");
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().grown, granule as u64);
    whole(&pool);
}

fn a_trim_that_the_device_ends_keeps_what_it_released(device: &Device) {
    for call in ["unmap", "release"] {
        let (device, watched) = Watched::over(device);
        let granule = device.info().granule;
        let pool = limited(&device, 6);
        let stream = device.stream().unwrap();
        let blocks = [(); 6].map(|()| pool.alloc(&stream, granule).unwrap());
        // Apart from each other.
        let mut kept = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 > 0 {
                kept.push(block);
            }
        }
        watched.fail(call, 2, true);
        let ended = pool.trim(0);
        watched.heal();
        assert!(
            matches!(ended, Err(Error::Driver { .. })),
            "{call}: {ended:?}"
        );
        let held = pool.stats().reserved.current;
        assert!(held < 6 * granule, "{call}: nothing was released");
        whole(&pool);
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().reserved.current, 3 * granule, "{call}");
        drop(kept);
        pool.trim(0).unwrap();
        assert_eq!(device.backend().counts().handles, 0, "{call}");
    }
}

/// A stream whose capture the driver does not end, until the watch over it is healed.
fn stuck(device: &Device, watched: &Watched, stream: &Stream) -> impl FnOnce() {
    let capture = stream.begin_capture().unwrap();
    watched.fail("capture_end", 1, true);
    drop(capture);
    assert!(stream.is_capturing().unwrap(), "it has ended");
    let (device, raw) = (device.clone(), stream.raw());
    move || {
        let graph = device.backend().capture_end(raw).unwrap();
        device.backend().graph_destroy(graph).unwrap();
    }
}

fn a_trim_behind_a_capture_that_goes_on_releases_what_is_ready_and_is_an_error(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 8);
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let [a, b, c] = &streams;
    // The capture goes on for the stream in the middle, so that streams before and after it are asked.
    let blocks = [a, a, c, b, b, c, c, c].map(|it| pool.alloc(it, granule).unwrap());
    let mut blocks = Vec::from(blocks);
    let between = [blocks.remove(5), blocks.remove(2)];
    blocks[5].record_use(a).unwrap();
    let end = stuck(&device, &watched, b);
    drop(blocks);
    for _ in 0..2 {
        let refused = pool.trim(0);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        assert_eq!(pool.stats().reserved.current, 4 * granule);
        whole(&pool);
    }
    drop(pool.alloc(a, 4 * granule).unwrap());
    watched.heal();
    end();
    drop(between);
    pool.trim(0).unwrap();
    assert_eq!(device.backend().counts().handles, 0);
    whole(&pool);
}

fn a_buffer_grows_by_what_is_ready_behind_a_capture_that_goes_on(device: &Device) {
    let (device, watched) = Watched::over(device);
    let granule = device.info().granule;
    let pool = limited(&device, 4);
    let (first, home) = (device.stream().unwrap(), device.stream().unwrap());
    let blocks = [&first, &first, &home, &home].map(|it| pool.alloc(it, granule).unwrap());
    let end = stuck(&device, &watched, &first);
    drop(blocks);
    let mut buffer = pool.grow_buf::<u8>(&home, 4 * granule as usize).unwrap();
    buffer.resize(2 * granule as usize).unwrap();
    let refused = buffer.resize(3 * granule as usize);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(pool.stats().reserved.current, 4 * granule);
    whole(&pool);
    watched.heal();
    end();
    buffer.resize(4 * granule as usize).unwrap();
    whole(&pool);
}

fn a_large_request_that_fails_under_capture_asks_the_device_as_often_as_another(device: &Device) {
    let (device, watched) = Watched::over(device);
    let pool = Pool::new(&device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    watched.fail_with("create", 1, true, OUT_OF_MEMORY);
    let asked = || {
        let before = watched.calls("create");
        let refused = pool.alloc(&stream, 8 * MIB).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        watched.calls("create") - before
    };
    let plain = asked();
    let capture = stream.begin_capture().unwrap();
    assert_eq!(asked(), plain);
    watched.heal();
    drop(pool.alloc(&stream, 8 * MIB).unwrap());
    drop(capture);
    whole(&pool);
}
