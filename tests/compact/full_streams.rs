//! Streams that are full: who queues more is kept until a host call has run, which may ask for movable memory.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{self, BackendOf, Gate, Memory, watched::Watched, write};
use warpool::compact::Goal;
use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::pool::HandleSize;
use warpool::{Pool, PoolConfig, Stream};

/// As many operations as a stream of the host device has room for.
const FULL: usize = 1 << 16;

/// What a busy machine may take for something that waits for nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fills `stream` behind a host call that does `work` once the result is dropped.
fn fill(stream: &Stream, work: impl FnOnce() + Send + 'static) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let backend = stream.device().backend();
    let first = move || {
        begin.send(()).unwrap();
        let _ = opened.recv();
        work();
    };
    backend.host_call(stream.raw(), Box::new(first)).unwrap();
    begun.recv_timeout(PATIENCE).expect("it runs");
    for _ in 0..FULL {
        backend.host_call(stream.raw(), Box::new(|| ())).unwrap();
    }
    open
}

/// Resizes a block of 1 MiB to `bytes` while its stream is full and has to wait for another one, until a host call of it
/// has held a block.
fn is_resized(bytes: usize) {
    let (tell, told) = mpsc::channel();
    // All is the thread's own, so that a failure waits for nothing.
    std::thread::spawn(move || {
        let (device, watched) = Watched::over(&common::host());
        let pool = Pool::new(&device, PoolConfig::default().limit(64 << 20)).unwrap();
        let [home, user, other] = [(); 3].map(|()| device.stream().unwrap());
        let alloc = || pool.alloc_movable::<u8>(&home, 1 << 20).unwrap();
        let (mut block, behind) = (alloc(), alloc());
        let held = pool.alloc_movable::<u8>(&other, 1000).unwrap();
        let at = block.hold(&home).unwrap().addr();
        let gate = Gate::close(&user);
        for used in [&block, &behind] {
            drop(used.hold(&user).unwrap());
        }
        behind.free_on(&user).unwrap();
        let (of, id) = (pool.clone(), held.id());
        let open = fill(&home, move || drop(of.hold_id(id, &other).unwrap()));
        watched.after("before_event_wait", move || drop(open));
        block.resize(&home, bytes).unwrap();
        assert!(watched.was_hooked(), "nothing was waited for");
        gate.open();
        assert_eq!(block.hold(&home).unwrap().addr(), at);
        drop(block);
        tell.send(pool.check_invariants()).unwrap();
    });
    let done = told.recv_timeout(PATIENCE);
    done.expect("it waits for itself").unwrap();
}

#[test]
fn a_block_is_shrunk_while_its_stream_is_full_and_a_host_call_of_it_holds_another() {
    is_resized(1 << 19);
}

#[test]
fn a_block_grows_while_its_stream_is_full_and_a_host_call_of_it_holds_another() {
    is_resized(3 << 19);
}

/// Whether another thread gets the lock of movable memory whenever the device makes an event from now on. A driver makes
/// none while any thread queues on a full stream.
fn is_unlocked_at_new_events(pool: &Pool, watched: &Watched) -> Arc<Mutex<(u64, bool)>> {
    let (of, seen) = (pool.clone(), Arc::new(Mutex::new((0, true))));
    let its = Arc::clone(&seen);
    watched.before(move |call, _| {
        if call == "event_create" && its.lock().unwrap().1 {
            let (of, (tell, told)) = (of.clone(), mpsc::channel());
            std::thread::spawn(move || tell.send(of.take_steps().is_ok()));
            let done = told.recv_timeout(PATIENCE) == Ok(true);
            let mut seen = its.lock().unwrap();
            *seen = (seen.0 + 1, done);
        }
        true
    });
    seen
}

#[test]
fn a_stream_is_recorded_without_the_lock_before_a_block_that_made_room_comes_back_larger() {
    let (device, watched) = Watched::over(&common::host());
    let limit = PoolConfig::default().limit(8 << 20);
    let pool = Pool::new(&device, limit.handles(HandleSize::Granule)).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let stream = device.stream().unwrap();
    let mut block = pool.alloc_movable::<u8>(&stream, 4 << 20).unwrap();
    block.upload(&stream, &[7; 4 << 20]).unwrap();
    let copies = watched.calls("copy_out");
    let seen = is_unlocked_at_new_events(&pool, &watched);
    block.resize(&stream, 6 << 20).unwrap();
    assert!(watched.calls("copy_out") > copies, "it was not spilled");
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events > 0 && unlocked, "{events} events");
    assert_eq!(block.download(&stream).unwrap()[..4 << 20], [7; 4 << 20]);
}

#[test]
fn streams_are_recorded_without_the_lock_before_an_address_is_stored_over_one_that_they_may_read() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let _table = pool.address_table().unwrap();
    drop(pool.alloc(&other, 1 << 20).unwrap());
    let gone = pool.alloc_movable::<u8>(&home, 1 << 20).unwrap();
    drop(gone.hold(&home).unwrap());
    drop(gone);
    let block = pool.alloc_movable::<u8>(&other, 1 << 20).unwrap();
    let seen = is_unlocked_at_new_events(&pool, &watched);
    drop(block.hold(&other).unwrap());
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events > 0 && unlocked, "{events} events");
}

#[test]
fn streams_are_recorded_without_the_lock_before_pointers_that_their_work_uses_are_rewritten() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, user] = [(); 2].map(|()| device.stream().unwrap());
    let memory = Memory::new(&device, 64);
    write(&user, memory.addr, &[0; 64]);
    // SAFETY: the memory outlives the array, and nothing else uses it.
    let array = unsafe { pool.register_pointers(&user, memory.addr, 8) }.unwrap();
    let alloc = || pool.alloc_movable::<u64>(&home, 500_000).unwrap();
    let (low, _high) = (alloc(), alloc());
    drop(low);
    let seen = is_unlocked_at_new_events(&pool, &watched);
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events > 0 && unlocked, "{events} events");
    drop(array);
}

#[test]
fn the_events_around_a_recorded_step_are_made_without_the_lock() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    pool.record_steps(true).unwrap();
    let alloc = || pool.alloc_movable::<u64>(&stream, 500_000).unwrap();
    let (low, _high) = (alloc(), alloc());
    drop(low);
    let seen = is_unlocked_at_new_events(&pool, &watched);
    assert!(pool.compact(&Goal::Full).unwrap().bytes > 0);
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events >= 2 && unlocked, "{events} events");
    let steps = pool.take_steps().unwrap();
    assert!(!steps.is_empty() && steps.iter().all(|step| step.device_ns >= 0.0));
}

#[test]
fn a_stream_that_uses_a_block_as_it_is_about_to_be_spilled_is_recorded_without_the_lock() {
    let (device, watched) = Watched::over(&common::host());
    let limit = PoolConfig::default().limit(8 << 20);
    let pool = Pool::new(&device, limit.handles(HandleSize::Granule)).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    pool.set_spill(Spill::Auto(&host)).unwrap();
    let [home, other] = [(); 2].map(|()| device.stream().unwrap());
    let mut block = pool.alloc_movable::<u8>(&home, 6 << 20).unwrap();
    block.upload(&home, &[7; 6 << 20]).unwrap();
    let copies = watched.calls("copy_out");
    let seen = is_unlocked_at_new_events(&pool, &watched);
    // The blocks to spill are chosen by now.
    let (of, id) = (pool.clone(), block.id());
    let more = [(); 2].map(|()| device.stream().unwrap());
    let (on, [waits, for_it]) = (other.clone(), more.clone());
    watched.after("host_alloc", move || {
        drop(of.hold_id(id, &on).unwrap());
        // No event is left over for the record.
        (0..8).for_each(|_| waits.wait_stream(&for_it).unwrap());
    });
    drop(pool.alloc(&home, 6 << 20).unwrap());
    assert!(watched.was_hooked(), "it was not to be spilled");
    assert!(watched.calls("copy_out") > copies, "it was not spilled");
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events > 0 && unlocked, "{events} events");
    assert_eq!(block.download(&home).unwrap(), [7; 6 << 20]);
    drop((other, more));
}

#[test]
fn the_first_movable_block_of_a_pool_makes_its_events_without_a_lock() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let seen = is_unlocked_at_new_events(&pool, &watched);
    let block = pool.alloc_movable::<u8>(&stream, 1000).unwrap();
    let (events, unlocked) = *seen.lock().unwrap();
    assert!(events > 0 && unlocked, "{events} events");
    drop(block);
}
