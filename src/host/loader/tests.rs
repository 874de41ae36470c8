use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::device::Device;
use crate::host::HostPoolConfig;
use crate::pool::PoolConfig;

/// Long enough to see that a thread continues.
const A_WHILE: Duration = Duration::from_millis(60);

struct Ground {
    device: Device,
    pool: Pool,
    host: HostPool,
}

fn on(config: PoolConfig) -> Ground {
    let device = Device::host().unwrap();
    Ground {
        pool: Pool::new(&device, config).unwrap(),
        host: HostPool::new(&device, HostPoolConfig::default()),
        device,
    }
}

fn ground() -> Ground {
    on(PoolConfig::default())
}

/// Waits for a condition, at most 20 s.
fn comes(what: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !what() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

impl Ground {
    fn load(
        &self,
        depth: usize,
        data: impl Iterator<Item = Vec<u32>> + Send + 'static,
    ) -> Loader<u32> {
        Loader::new(&self.pool, &self.host, depth, data).unwrap()
    }

    /// Checks that soon no block is live and all host memory can be released.
    fn is_clean(&self) {
        assert!(comes(|| self.pool.stats().allocated.current == 0));
        assert!(comes(|| {
            self.host.trim().unwrap();
            let stats = self.host.stats();
            (
                stats.reserved.current,
                stats.allocated.current,
                stats.pending,
            ) == (0, 0, 0)
        }));
        self.pool.trim(0).unwrap();
        assert_eq!(self.pool.stats().reserved.current, 0);
        self.pool.check_invariants().unwrap();
    }
}

fn numbers(of: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|at| of.wrapping_mul(1_000_003) ^ at)
        .collect()
}

/// An iterator over what its channel receives. Counts the calls.
struct Counted(mpsc::Receiver<()>, Arc<AtomicUsize>);

impl Iterator for Counted {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.recv().ok().map(|()| vec![1; 100])
    }
}

#[test]
fn every_batch_comes_once_in_order_and_whole_whatever_its_length() {
    let ground = ground();
    let len = |of: u32| [5, 0, 1000, (2 << 20) / 4, (5 << 20) / 4 + 3, 1][of as usize % 6];
    for depth in [1, 2, 7] {
        let data = (0..30).map(move |of| numbers(of, len(of)));
        let mut seen = 0;
        for batch in ground.load(depth, data) {
            assert!(
                batch.unwrap().download().unwrap() == numbers(seen, len(seen)),
                "{seen}"
            );
            seen += 1;
        }
        assert_eq!(seen, 30);
    }
    assert!(ground.host.stats().reserved.peak <= 12 << 20);
    ground.is_clean();
}

#[test]
fn no_data_gives_no_batch_and_after_the_end_there_is_none() {
    let ground = ground();
    let mut loader = ground.load(3, std::iter::empty());
    assert!(loader.next().is_none() && loader.next().is_none());
    let mut loader = ground.load(3, std::iter::once(vec![1]));
    assert!(loader.next().is_some() && loader.next().is_none() && loader.next().is_none());
    drop(loader);
    ground.is_clean();
}

#[test]
fn an_error_of_the_iterator_comes_in_its_place_and_last() {
    let ground = ground();
    for at in [0, 1, 5] {
        let data = (0..10).map(move |of| match of == at {
            true => Err(Error::invalid("data", "there is none")),
            false => Ok(numbers(of, 10)),
        });
        let mut loader = Loader::<u32>::try_new(&ground.pool, &ground.host, 3, data).unwrap();
        for of in 0..at {
            assert_eq!(
                loader.next().unwrap().unwrap().download().unwrap(),
                numbers(of, 10)
            );
        }
        let error = loader.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "data: there is none");
        assert!(loader.next().is_none());
    }
    ground.is_clean();
}

#[test]
fn a_panic_of_the_iterator_is_an_error_in_its_place_and_last() {
    let ground = ground();
    for at in [0, 1, 5] {
        let data = (0..10).map(move |of| {
            assert!(of != at, "no batch {of}");
            numbers(of, 10)
        });
        let mut loader = ground.load(3, data);
        for of in 0..at {
            assert_eq!(
                loader.next().unwrap().unwrap().download().unwrap(),
                numbers(of, 10)
            );
        }
        let error = loader.next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("iterator") && error.contains(&format!("no batch {at}")),
            "{error}"
        );
        assert!(loader.next().is_none());
    }
    ground.is_clean();
}

#[test]
fn no_more_than_depth_batches_are_made_that_nobody_took() {
    let ground = ground();
    for depth in [1, 2, 5] {
        let made = Arc::new(AtomicUsize::new(0));
        let its = Arc::clone(&made);
        let data = (0..20).map(move |of| {
            its.fetch_add(1, Ordering::SeqCst);
            numbers(of, 1 << 20)
        });
        ground.pool.reset_peaks();
        let mut loader = ground.load(depth, data);
        for taken in 0..20 {
            let ahead = 20.min(taken + depth);
            assert!(
                comes(|| made.load(Ordering::SeqCst) >= ahead),
                "{depth} at {taken}"
            );
            std::thread::sleep(A_WHILE / 10);
            assert_eq!(made.load(Ordering::SeqCst), ahead, "{depth} at {taken}");
            drop(loader.next().unwrap().unwrap());
        }
        drop(loader);
        let most = (depth as u64 + 1) << 22;
        let peak = ground.pool.stats().allocated.peak;
        assert!(peak <= most + (most >> 3), "{depth}: {peak}");
    }
    ground.is_clean();
}

#[test]
fn page_locked_memory_is_bounded_while_the_device_is_far_behind() {
    // With no bytes for overlap, the pool waits for memory in use, on the device, instead of
    // mapping more.
    let ground = on(PoolConfig::default().overlap_bytes(0));
    let compute = ground.device.stream().unwrap();
    let (release, held) = mpsc::channel::<()>();
    let work = Box::new(move || _ = held.recv());
    let mut loader = ground.load(2, (0..40).map(|of| numbers(of, 1 << 16)));
    let first = loader.next().unwrap().unwrap();
    ground
        .device
        .backend()
        .host_call(compute.raw(), work)
        .unwrap();
    let mut copies = Vec::new();
    let mut copy = |batch: PoolBuf<u32>| {
        let mut copy = ground
            .pool
            .alloc_typed::<u32>(&compute, batch.len())
            .unwrap();
        copy.view_mut().copy_from(&compute, &batch).unwrap();
        copies.push(copy);
    };
    // Dropped with its last use blocked, so that all copies to reused memory are blocked too.
    copy(first);
    let done = std::thread::scope(|scope| {
        let rest = scope.spawn(|| loader.by_ref().map(|batch| copy(batch.unwrap())).count());
        std::thread::sleep(A_WHILE);
        assert!(ground.host.stats().reserved.peak <= 4 << 20);
        assert!(!rest.is_finished());
        drop(release);
        rest.join().unwrap()
    });
    assert_eq!((done, copies.len()), (39, 40));
    for (of, copy) in copies.into_iter().enumerate() {
        assert!(
            copy.download().unwrap() == numbers(of as u32, 1 << 16),
            "{of}"
        );
    }
    assert!(ground.host.stats().reserved.peak <= 4 << 20);
    drop(loader);
    ground.is_clean();
}

#[test]
fn work_on_another_stream_runs_behind_the_copy_of_its_batch() {
    let ground = ground();
    let compute = ground.device.stream().unwrap();
    // Allocated first: in memory that batches used before, the copies out of them would wait for the
    // loader's stream anyway.
    let result = |_| ground.pool.alloc_zeroed::<u32>(&compute, 5000).unwrap();
    let mut results: Vec<_> = (0..12).map(result).collect();
    let (sender, data) = mpsc::channel();
    let mut loader = ground.load(2, data.into_iter());
    let side = {
        sender.send(numbers(99, 64)).unwrap();
        let first = loader.next().unwrap().unwrap();
        first.home().raw
    };
    for (of, result) in (0..).zip(&mut results) {
        // Delays the loader's stream before every batch.
        let late = Box::new(|| std::thread::sleep(Duration::from_millis(10)));
        ground.device.backend().host_call(side, late).unwrap();
        sender.send(numbers(of, 5000)).unwrap();
        let batch = loader.next().unwrap().unwrap();
        result.view_mut().copy_from(&compute, &batch).unwrap();
    }
    for (of, result) in results.into_iter().enumerate() {
        assert!(
            result.download().unwrap() == numbers(of as u32, 5000),
            "{of}"
        );
    }
    drop((loader, sender));
    ground.is_clean();
}

#[test]
fn dropped_while_it_waits_for_room_the_loader_leaves_nothing_behind() {
    let ground = ground();
    let alive = Arc::new(());
    for taken in [0, 1, 3] {
        let its = Arc::clone(&alive);
        let data = (0..10).map(move |of| {
            let _held = &its;
            numbers(of, 1000)
        });
        let mut loader = ground.load(2, data);
        for _ in 0..taken {
            loader.next().unwrap().unwrap();
        }
        // In this order: while it makes the last batch that there is room for, there are as many and it is busy.
        assert!(comes(|| ground.pool.stats().blocks.current == 2));
        assert!(comes(|| !lock(&loader.turn).busy));
        drop(loader);
        // Immediately, without waiting.
        assert_eq!(
            (
                Arc::strong_count(&alive),
                ground.pool.stats().allocated.current
            ),
            (1, 0)
        );
    }
    ground.is_clean();
}

#[test]
fn dropped_while_the_iterator_waits_for_ever_the_loader_does_not_wait() {
    let ground = ground();
    let (sender, data) = mpsc::channel();
    let alive = Arc::new(AtomicUsize::new(0));
    let loader = ground.load(2, Counted(data, Arc::clone(&alive)));
    sender.send(()).unwrap();
    // It asks for the second item once the first is a batch.
    assert!(comes(|| alive.load(Ordering::SeqCst) == 2));
    drop(loader);
    assert_eq!(Arc::strong_count(&alive), 2);
    // The next item makes no batch, and the thread ends.
    sender.send(()).unwrap();
    assert!(comes(|| Arc::strong_count(&alive) == 1));
    ground.is_clean();
}

/// Panics when it is dropped, and reports that.
struct Bomb(mpsc::Sender<()>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
        panic!("dropped");
    }
}

#[test]
fn what_the_iterator_panicked_with_may_panic_and_the_process_goes_on() {
    let ground = ground();
    for taken in [false, true] {
        let ((tell, told), (go, begin)) = (mpsc::channel(), mpsc::channel::<()>());
        let data = std::iter::from_fn(move || -> Option<Vec<u32>> {
            begin.recv().unwrap();
            std::panic::panic_any(Bomb(tell.clone()))
        });
        let mut loader = ground.load(2, data);
        assert!(comes(|| lock(&loader.turn).busy));
        if taken {
            go.send(()).unwrap();
            assert!(loader.next().unwrap().is_err() && loader.next().is_none());
        }
        drop(loader);
        // Where it was taken, nobody receives any more.
        let _ = go.send(());
        told.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    ground.is_clean();
}

/// Ends with an error. Owns its loader, and reports whether the loader's drop panicked.
struct Owner {
    loader: Arc<Mutex<Option<Loader<u32>>>>,
    begin: mpsc::Receiver<()>,
    panicked: mpsc::Sender<bool>,
}

impl Iterator for Owner {
    type Item = Result<Vec<u32>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.begin.recv().unwrap();
        Some(Err(Error::invalid("data", "there is none")))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let loader = lock(&self.loader).take();
        let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(loader)));
        self.panicked.send(dropped.is_err()).unwrap();
    }
}

#[test]
fn a_loader_that_its_own_iterator_owns_goes_with_it() {
    let ground = ground();
    let loader = Arc::default();
    let ((go, begin), (panicked, told)) = (mpsc::channel(), mpsc::channel());
    let owner = Owner {
        loader: Arc::clone(&loader),
        begin,
        panicked,
    };
    let made = Loader::try_new(&ground.pool, &ground.host, 2, owner).unwrap();
    *lock(&loader) = Some(made);
    go.send(()).unwrap();
    let panicked = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(!panicked, "a thread waited for itself");
    ground.is_clean();
}

#[test]
fn device_memory_that_is_short_is_an_error_after_the_batches_before() {
    let ground = on(PoolConfig::default().limit(8 << 20));
    let mut loader = ground.load(8, (0..10).map(|of| numbers(of, 1 << 19)));
    let mut kept = Vec::new();
    let error = loop {
        match loader.next().unwrap() {
            Ok(batch) => kept.push(batch),
            Err(error) => break error,
        }
    };
    assert!(
        error.is_out_of_memory() && (1..=4).contains(&kept.len()),
        "{error}"
    );
    assert!(loader.next().is_none());
    for (of, batch) in kept.drain(..).enumerate() {
        assert!(batch.download().unwrap() == numbers(of as u32, 1 << 19));
    }
    drop(loader);
    ground.is_clean();
}

#[test]
fn a_depth_out_of_range_and_pools_of_two_devices_are_refused() {
    let (ground, other) = (ground(), ground());
    for depth in [0, DEEPEST + 1, usize::MAX] {
        let made = Loader::<u8>::new(
            &ground.pool,
            &ground.host,
            depth,
            std::iter::empty::<Vec<u8>>(),
        );
        assert!(matches!(made, Err(Error::Invalid { what: "depth", .. })));
    }
    let made = Loader::<u8>::new(&ground.pool, &other.host, 1, std::iter::empty::<Vec<u8>>());
    assert!(matches!(made, Err(Error::Invalid { what: "host", .. })));
}

#[test]
fn batches_of_elements_of_no_bytes_come_at_once_however_many_they_are() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let ground = ground();
        let data = std::iter::once([(); usize::MAX]);
        let mut loader = Loader::<()>::new(&ground.pool, &ground.host, 1, data).unwrap();
        tell.send(loader.next().unwrap().unwrap().len()).unwrap();
    });
    let len = told.recv_timeout(Duration::from_secs(20));
    assert_eq!(len, Ok(usize::MAX));
}
