//! Pools on several devices of one process.

use crate::common::watched::Watched;
use crate::common::{self, BackendOf};

use std::sync::mpsc;
use std::time::Duration;

use warpool::device::sim::SimConfig;
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::{Device, Error, Pool, PoolConfig, Stream};

const MIB: u64 = 1 << 20;

/// The second GPU where there are two.
fn second_gpu() -> Option<Device> {
    let second = Device::cuda(1);
    if second.is_err() {
        println!("skipped: no second CUDA device");
    }
    second.ok()
}

fn live(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats();
    (stats.allocated.current, stats.blocks.current)
}

fn is_refused<T>(outcome: warpool::Result<T>) {
    match outcome {
        Err(Error::Invalid { what, why }) => {
            assert!(why.contains("another device"), "{what}: {why}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a stream of another device was taken"),
    }
}

/// The sentence, on two devices.
fn devices_are_apart(one: &Device, other: &Device) {
    let config = || PoolConfig::default().limit(64 * MIB);
    let pools = [one, other].map(|device| Pool::new(device, config()).unwrap());
    let streams = [one, other].map(|device| device.stream().unwrap());
    let mut first = pools[0].alloc(&streams[0], 3 * MIB).unwrap();
    let second = pools[1].alloc(&streams[1], 5 * MIB).unwrap();

    let before = pools.each_ref().map(live);
    assert_eq!(before, [(3 * MIB, 1), (5 * MIB, 1)], "each counts its own");
    is_refused(pools[0].alloc(&streams[1], 4096));
    is_refused(pools[1].alloc(&streams[0], 4096));
    is_refused(first.record_use(&streams[1]));
    assert_eq!(pools.each_ref().map(live), before, "and nothing changed");
    let (addr, bytes) = (first.addr(), first.bytes());
    first.record_use(&streams[0]).unwrap();
    assert_eq!((first.addr(), first.bytes()), (addr, bytes));

    let seen = pools.each_ref().map(|pool| pool.stats().streams.len());
    assert_eq!(seen, [1, 1], "a refused stream is none of the pool's");
    drop(first);
    assert_eq!(pools.each_ref().map(live), [(0, 0), (5 * MIB, 1)]);
    pools[0].trim(0).unwrap();
    assert_eq!(pools[0].stats().reserved.current, 0);
    assert!(pools[1].stats().reserved.current >= 5 * MIB);
    drop(second);
    for pool in &pools {
        pool.check_invariants().unwrap();
    }
}

/// A block freed on a stream of another device goes back in its own stream's order.
fn a_wrong_free_loses_nothing(one: &Device, other: &Device) {
    let pool = Pool::new(one, PoolConfig::default()).unwrap();
    let (home, foreign) = (one.stream().unwrap(), other.stream().unwrap());
    let block = pool.alloc(&home, 2 * MIB).unwrap();
    is_refused(block.free_on(&foreign));
    assert_eq!(live(&pool), (0, 0));
    pool.check_invariants().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved.current, 0);
}

fn on_two(test: fn(&Device, &Device)) {
    let [one, other] = [(); 2].map(|()| Device::host().unwrap());
    common::leaving_nothing(one, |one| {
        common::leaving_nothing(other, |other| test(one, other));
    });
}

#[test]
fn a_stream_of_another_device_is_refused_and_figures_are_apart() {
    on_two(devices_are_apart);
}

#[test]
fn a_block_freed_on_a_stream_of_another_device_is_an_error_that_loses_nothing() {
    on_two(a_wrong_free_loses_nothing);
}

#[test]
fn a_stream_of_a_gpu_is_refused_by_the_host_and_figures_are_apart() {
    if let Some(gpu) = common::cuda() {
        devices_are_apart(&common::host(), &gpu);
        a_wrong_free_loses_nothing(&common::host(), &gpu);
    }
}

#[test]
fn a_stream_of_another_gpu_is_refused_and_figures_are_apart() {
    if let (Some(first), Some(second)) = (common::cuda(), second_gpu()) {
        devices_are_apart(&first, &second);
        a_wrong_free_loses_nothing(&first, &second);
    }
}

/// What a copy between devices must not overtake, and what must not overtake it.
fn copies_are_in_order(one: &Device, other: &Device, hold: bool) {
    const LEN: usize = 1 << 18;
    let pools = [(one, other), (other, one)]
        .map(|(own, peer)| Pool::new(own, PoolConfig::default().peers(&[peer])).unwrap());
    let (here, there) = (one.stream().unwrap(), other.stream().unwrap());
    let mut source = pools[0].alloc_filled(&here, LEN, 1u32).unwrap();
    let mut copy = pools[1].alloc_filled(&there, LEN, 0u32).unwrap();
    let gates = [&here, &there].map(|stream| hold.then(|| Gate::hold(stream)));
    let [first, second] = gates;
    source.view_mut().fill(&here, 0x0202_0202).unwrap();
    copy.view_mut().copy_from(&there, &source).unwrap();
    // On a stream that knows nothing of the copy.
    let later = one.stream().unwrap();
    source.view_mut().fill(&later, 0x0303_0303).unwrap();
    drop(source); // behind the copy too
    let mut again = pools[0].alloc_typed::<u32>(&later, LEN).unwrap();
    again.view_mut().fill(&later, 0x0404_0404).unwrap();
    if let Some(second) = second {
        second.open();
        std::thread::sleep(Duration::from_millis(20));
    }
    if let Some(first) = first {
        first.open();
    }
    assert!(copy.download().unwrap().iter().all(|&x| x == 0x0202_0202));
    assert!(again.download().unwrap().iter().all(|&x| x == 0x0404_0404));
    for pool in &pools {
        pool.check_invariants().unwrap();
    }
}

/// A stream that is held by a host call.
struct Gate(mpsc::Sender<()>);

impl Gate {
    fn hold(stream: &Stream) -> Self {
        let (open, opened) = mpsc::channel::<()>();
        let wait = move || {
            let _ = opened.recv_timeout(Duration::from_secs(10));
        };
        let backend = stream.device().backend();
        backend.host_call(stream.raw(), Box::new(wait)).unwrap();
        Self(open)
    }

    fn open(self) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_copy_between_devices_runs_behind_what_wrote_its_source_and_ahead_of_what_writes_it_next() {
    on_two(|one, other| copies_are_in_order(one, other, true));
}

#[cfg(feature = "sanitize")]
#[test]
fn a_copy_between_watched_devices_is_made_in_the_same_order_and_not_reported() {
    on_two(|one, other| {
        let watched = [one, other].map(warpool::sanitize::Sanitizer::over);
        copies_are_in_order(&watched[0].0, &watched[1].0, true);
        for (_, sanitizer) in watched {
            sanitizer.check().unwrap();
        }
    });
}

#[test]
fn a_copy_between_gpus_runs_behind_what_wrote_its_source_and_ahead_of_what_writes_it_next() {
    if let (Some(first), Some(second)) = (common::cuda(), second_gpu()) {
        let pool = PoolConfig::default().peers(&[&second]);
        match Pool::new(&first, pool) {
            Ok(_) => copies_are_in_order(&first, &second, false),
            Err(why) => println!("skipped: {why}"),
        }
    }
}

#[test]
fn a_copy_between_devices_makes_neither_wait_for_the_others_other_work() {
    on_two(|one, other| {
        let pools = [one, other].map(|own| Pool::new(own, PoolConfig::default()).unwrap());
        let streams = [one, other].map(|device| device.stream().unwrap());
        let busy = [one, other].map(|device| device.stream().unwrap());
        let source = pools[0].alloc_filled(&streams[0], 1000, 7u32).unwrap();
        let mut copy = pools[1].alloc_zeroed::<u32>(&streams[1], 1000).unwrap();
        let gates = busy.each_ref().map(Gate::hold);
        copy.view_mut().copy_from(&streams[1], &source).unwrap();
        assert_eq!(copy.download().unwrap(), [7; 1000]);
        streams[0].synchronize().unwrap();
        let _: [(); 2] = gates.map(Gate::open);
    });
}

#[test]
fn a_copy_from_a_device_that_grants_no_access_is_an_error_that_names_the_setting() {
    let host = common::host();
    let sim = Device::sim(&SimConfig::default()).unwrap();
    let pools = [&host, &sim].map(|own| Pool::new(own, PoolConfig::default()).unwrap());
    let streams = [&host, &sim].map(|device| device.stream().unwrap());
    let source = pools[0].alloc_filled(&streams[0], 10, 7u32).unwrap();
    let mut copy = pools[1].alloc_zeroed::<u32>(&streams[1], 10).unwrap();
    let refused = copy.view_mut().copy_from(&streams[1], &source);
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("PoolConfig::peers"), "{words}");
    assert_eq!(copy.download().unwrap(), [0; 10]);
}

#[test]
fn a_copy_between_devices_is_refused_in_a_host_call_which_could_not_wait_for_it() {
    let (there, watched) = Watched::over(&common::host());
    let pools = [&common::host(), &there].map(|own| Pool::new(own, PoolConfig::default()).unwrap());
    let [here, on, other] = [pools[0].device(), &there, &there].map(|own| own.stream().unwrap());
    let source = pools[0].alloc_filled(&here, 1000, 7u32).unwrap();
    let mut copy = pools[1].alloc_zeroed::<u32>(&on, 1000).unwrap();
    let gate = Gate::hold(&on);
    let (tell, told) = mpsc::channel();
    watched.fail("event_record", 1, false);
    let work = move || {
        let refused = copy.view_mut().copy_from(&on, &source).is_err();
        tell.send((refused, source, copy)).unwrap();
    };
    let backend = there.backend();
    backend.host_call(other.raw(), Box::new(work)).unwrap();
    let (refused, source, copy) = told.recv_timeout(Duration::from_secs(60)).unwrap();
    watched.heal();
    assert!(refused, "nothing waits for the copy");
    drop(source);
    let again = pools[0].alloc_filled(&here, 1000, 4u32).unwrap();
    gate.open();
    assert!(copy.download().unwrap() == [0; 1000]);
    drop(again);
}

#[test]
fn a_copy_between_devices_that_neither_can_wait_for_at_once_is_waited_for_by_its_event() {
    let (there, watched) = Watched::over(&common::host());
    let pools = [&common::host(), &there].map(|own| Pool::new(own, PoolConfig::default()).unwrap());
    let [here, on] = [pools[0].device(), &there].map(|own| own.stream().unwrap());
    let source = pools[0].alloc_filled(&here, 1000, 7u32).unwrap();
    let mut copy = pools[1].alloc_zeroed::<u32>(&on, 1000).unwrap();
    let gate = Gate::hold(&on);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        gate.open();
    });
    // The source's device cannot wait for the copy, and then the host's wait fails.
    watched.fail("event_record", 1, false);
    let its = std::sync::Arc::clone(&watched);
    watched.after("before_stream_sync", move || {
        its.fail("stream_sync", 1, false)
    });
    assert!(copy.view_mut().copy_from(&on, &source).is_err());
    assert_eq!((watched.was_hooked(), watched.failures()), (true, 2));
    drop(source);
    let again = pools[0].alloc_filled(&here, 1000, 4u32).unwrap();
    here.synchronize().unwrap();
    opener.join().unwrap();
    assert!(
        copy.download().unwrap() == [7; 1000],
        "it read what came next"
    );
    drop(again);
}

#[test]
fn a_pool_does_not_fall_asleep_between_the_order_of_a_copy_from_it_and_the_copy() {
    let here = common::host();
    let (there, watched) = Watched::over(&common::host());
    let config = PoolConfig::default().sleeps(true).peers(&[&there]);
    let source = Pool::new(&here, config).unwrap();
    let (stream, other) = (here.stream().unwrap(), there.stream().unwrap());
    let data = source.alloc_filled(&stream, 1 << 20, 7u8).unwrap();
    let pool = Pool::new(&there, PoolConfig::default()).unwrap();
    let mut copy = pool.alloc_zeroed::<u8>(&other, 1 << 20).unwrap();
    let (tell, told) = mpsc::channel();
    let (sleeper, mut once) = (source.clone(), Some(tell));
    let (early, is_early) = mpsc::channel();
    watched.before(move |call, _| {
        if call == "copy_within"
            && let Some(tell) = once.take()
        {
            let (sleeper, done) = (sleeper.clone(), mpsc::channel());
            std::thread::spawn(move || {
                let host = HostPool::new(sleeper.device(), HostPoolConfig::default());
                let slept = sleeper.sleep(&[], Contents::Saved(&host));
                let _ = done.0.send(());
                tell.send(slept).unwrap();
            });
            let waited = done.1.recv_timeout(Duration::from_millis(200));
            early.send(waited.is_ok()).unwrap();
        }
        true
    });
    copy.view_mut().copy_from(&other, &data).unwrap();
    assert!(!is_early.recv().unwrap(), "it sleeps, and is copied from");
    assert!(told.recv().unwrap().unwrap() > 0);
    assert_eq!(copy.download().unwrap(), vec![7; 1 << 20]);
    assert!(copy.view_mut().copy_from(&other, &data).is_err());
    source.wake(&[]).unwrap();
    assert_eq!(data.download().unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_child_of_fork_waits_for_no_thread_of_its_parent_and_leaves_its_memory_alone() {
    let device = common::host();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let mut ones = pool.alloc_from(&stream, &[1u8; 5 << 20]).unwrap();
    // SAFETY: the child takes no lock that another thread may have had, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call ends a child that waits.
        unsafe { libc::alarm(20) };
        let waits = [ones.view_mut().fill(&stream, 2), stream.synchronize()];
        let makes = pool.alloc(&stream, 64 << 20).map(std::mem::forget);
        drop((ones, stream));
        drop(pool);
        let failed = waits[1].is_err() && makes.is_err();
        // SAFETY: the child ends.
        unsafe { libc::_exit(if failed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the call writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(ones.download().unwrap().iter().all(|&byte| byte == 1));
    assert_eq!(status, 0, "the child waited, or was served");
}
