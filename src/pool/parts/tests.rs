use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::device::{Device, lock};
use crate::host::Contents;
use crate::pool::{Pool, PoolConfig, Relief};
use crate::sync::Mutex;

#[test]
fn where_the_device_has_no_more_memory_a_part_gets_what_is_idle_in_the_others() {
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(8 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
    let inner = parts[0].tagged("inner").unwrap();
    for (from, to) in [
        (&parts[0], &parts[1]),
        (&parts[1], &pool),
        (&pool, &parts[0]),
        (&parts[0], &inner),
        (&inner, &parts[1]),
        (&parts[1], &inner),
        (&pool, &inner),
    ] {
        drop(from.alloc(&stream, 6 * granule).unwrap());
        stream.synchronize().unwrap();
        assert!(from.stats().reserved.current >= 6 * granule);
        drop(to.alloc(&stream, 6 * granule).unwrap());
        assert_eq!(from.stats().reserved.current, 0);
        to.trim(0).unwrap();
    }
}

#[test]
fn a_part_is_found_while_another_waits_for_its_idle_memory() {
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(8 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
    let block = parts[0].alloc(&stream, 6 * granule).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    let held = Box::new(move || {
        // Ends when the sender is gone.
        let _ = gate.recv();
    });
    (device.backend()).host_call(stream.raw(), held).unwrap();
    drop(block);
    let asks = thread::spawn(move || parts[1].alloc(&other, 6 * granule).map(drop));
    thread::sleep(Duration::from_millis(50));
    let ((tell, told), whole) = (mpsc::channel(), pool.clone());
    thread::spawn(move || tell.send(whole.tagged("a").map(drop)));
    let found = told.recv_timeout(Duration::from_secs(5));
    drop(open);
    asks.join().unwrap().unwrap();
    found.expect("it waits").unwrap();
}

#[test]
fn a_request_up_to_a_parts_own_limit_gets_the_others_memory_and_one_beyond_it_leaves_it() {
    let granule = Device::host().unwrap().info().granule;
    for (limit, served) in [(6, true), (5, false)] {
        let device = Device::host_with_capacity(8 * granule).unwrap();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
        drop(parts[0].alloc(&stream, 6 * granule).unwrap());
        stream.synchronize().unwrap();
        parts[1].set_limit(limit * granule);
        assert_eq!(parts[1].alloc(&stream, 6 * granule).is_ok(), served);
        assert_eq!(parts[0].stats().reserved.current == 0, served);
    }
}

#[test]
fn a_part_that_wakes_gets_the_others_idle_memory_and_one_beyond_its_limit_leaves_it() {
    let granule = Device::host().unwrap().info().granule;
    for (limit, wakes) in [(6, true), (5, false)] {
        let device = Device::host_with_capacity(8 * granule).unwrap();
        let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
        let stream = device.stream().unwrap();
        let parts = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
        let block = parts[1].alloc(&stream, 6 * granule).unwrap();
        pool.sleep(&["b"], Contents::Discarded).unwrap();
        drop(parts[0].alloc(&stream, 6 * granule).unwrap());
        stream.synchronize().unwrap();
        parts[1].set_limit(limit * granule);
        assert_eq!(pool.wake(&["b"]).is_ok(), wakes);
        assert_eq!(parts[0].stats().reserved.current == 0, wakes);
        assert_eq!(parts[1].stats().steps.out_of_memory, u64::from(!wakes));
        drop(block);
    }
}

#[test]
fn a_part_gets_what_another_part_frees_while_the_application_is_asked() {
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(8 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let [one, other] = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
    let held = Mutex::new(other.alloc(&stream, 6 * granule).ok());
    one.on_pressure(move |_| {
        drop(lock(&held).take());
        Relief::Exhausted
    });
    let block = one.alloc(&stream, 6 * granule).unwrap();
    assert!(other.alloc(&stream, 6 * granule).is_err(), "it ends");
    drop(block);
}

#[test]
fn a_part_of_a_part_goes_with_it_and_with_the_pool() {
    let pool = Pool::new(&Device::host().unwrap(), PoolConfig::default()).unwrap();
    let outer = pool.tagged("outer").unwrap();
    let inner = outer.tagged("inner").unwrap();
    let other = pool.tagged("other").unwrap();
    let uids = |tags: &[&str]| {
        let parts = pool.parts(tags).unwrap();
        let mut uids: Vec<u64> = parts.iter().map(|part| part.shared().uid).collect();
        uids.sort_unstable();
        uids
    };
    let of = |pools: &[&Pool]| {
        let mut uids: Vec<u64> = pools.iter().map(|pool| pool.shared().uid).collect();
        uids.sort_unstable();
        uids
    };
    assert_eq!(uids(&[]), of(&[&pool, &outer, &inner, &other]));
    assert_eq!(uids(&["outer"]), of(&[&outer, &inner]));
    assert_eq!(uids(&["other"]), of(&[&other]));
    assert!(pool.parts(&["inner"]).is_err());
}

#[test]
fn a_part_keeps_its_settings_if_the_recording_of_another_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let config = PoolConfig::default().record(inside.join("log.csv"));
    let pool = Pool::new(&Device::host().unwrap(), config).unwrap();
    pool.tagged("a").unwrap().set_limit(1 << 20);
    std::fs::remove_dir_all(&inside).unwrap();
    assert!(pool.tagged("b").is_err());
    assert_eq!(pool.tagged("a").unwrap().limit(), Some(1 << 20));
}

#[test]
fn a_pool_whose_parts_went_has_one_step_for_its_next_parts() {
    let pool = Pool::new(&Device::host().unwrap(), PoolConfig::default()).unwrap();
    let steps = || lock(&pool.shared().relief).len();
    for tag in ["a", "b", "c"] {
        drop(pool.tagged(tag).unwrap());
        assert_eq!(steps(), 1);
        drop(pool.take_unused());
        assert!(pool.parts(&[tag]).is_err());
    }
}

#[test]
fn a_part_gets_what_another_thread_has_another_part_release() {
    let granule = Device::host().unwrap().info().granule;
    let device = Device::host_with_capacity(8 * granule).unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let [one, other] = ["a", "b"].map(|tag| pool.tagged(tag).unwrap());
    drop(other.alloc(&stream, 6 * granule).unwrap());
    stream.synchronize().unwrap();
    drop(other.shared().lock_drained());
    let job = other.shared().core.lock().begin_trim(0, true).unwrap();
    thread::scope(|scope| {
        let asks = scope.spawn(|| one.alloc(&stream, 6 * granule).map(drop));
        thread::sleep(Duration::from_millis(200));
        let job = job.run();
        other.shared().core.lock().end(job).unwrap();
        asks.join().unwrap().unwrap();
    });
}
