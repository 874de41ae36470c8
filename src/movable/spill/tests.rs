use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::{Registry, Shelf, Shelved, Stretch, chosen};
use crate::device::{Addr, Device, Stream, lock};
use crate::error::{Error, Result};
use crate::host::{Contents, HostPool, HostPoolConfig};
use crate::pool::{MOST_TURNS, Need, Pool, PoolConfig};
use crate::sync::try_lock;

/// Room that takes nothing, and counts how often it goes, and how often under the registry's lock.
#[derive(Clone)]
struct Refusing {
    registry: Weak<Registry>,
    gone: Arc<[AtomicU64; 2]>,
}

impl Shelf for Refusing {
    fn room(&self, _: u64) -> Result<Box<dyn Shelved>> {
        Ok(Box::new(Room(self.clone())))
    }
}

struct Room(Refusing);

impl Shelved for Room {
    fn put(&mut self, _: Addr, _: &Stream) -> Result<()> {
        Err(Error::invalid("room", "it takes nothing"))
    }

    fn take(&self, _: Addr, _: u64, _: &Stream) -> Result<()> {
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let registry = self.0.registry.upgrade().unwrap();
        let locked = try_lock(&registry.state).is_none();
        self.0.gone[0].fetch_add(1, Ordering::Relaxed);
        self.0.gone[1].fetch_add(locked.into(), Ordering::Relaxed);
    }
}

#[test]
fn room_that_takes_no_block_goes_without_the_registrys_lock() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20)).unwrap();
    let stream = device.stream().unwrap();
    let refusing = Refusing {
        registry: Arc::downgrade(&Registry::of(&pool).unwrap()),
        gone: Arc::default(),
    };
    pool.spill_to(Some(Arc::new(refusing.clone()))).unwrap();
    let _block = pool.alloc_movable::<u8>(&stream, 6 << 20).unwrap();
    assert!(pool.alloc(&stream, 6 << 20).is_err());
    let gone = refusing
        .gone
        .each_ref()
        .map(|it| it.load(Ordering::Relaxed));
    assert!(gone[0] > 0 && gone[1] == 0, "{gone:?}");
}

fn stretches(all: &[(u64, Option<f64>)]) -> Vec<Stretch> {
    let mut end = 0;
    let mut stretch = |&(bytes, cost): &(u64, Option<f64>)| {
        let at = end;
        end += bytes;
        Stretch { at, bytes, cost }
    };
    all.iter().map(&mut stretch).collect()
}

#[test]
fn neighbours_that_are_one_hole_go_rather_than_cheaper_blocks_apart() {
    let all = [
        (10, Some(1.0)),
        (10, None),
        (10, Some(4.0)),
        (5, Some(0.0)),
        (10, Some(4.0)),
        (10, Some(9.0)),
        (10, None),
        (10, Some(1.0)),
    ];
    let all = stretches(&all);
    assert_eq!(chosen(&all, 25), [20, 35]);
    assert_eq!(chosen(&all, 15), [20], "with the hole beside it");
    assert_eq!(chosen(&all, 10), [0], "the cheapest");
    assert_eq!(chosen(&all, 35), [20, 35, 45]);
    assert_eq!(chosen(&all, 5), [0], "what is in the hole did not help");
    let most = chosen(&all, 45);
    assert_eq!(
        most,
        [0, 65, 20, 35, 45],
        "no row has so much: the cheapest of all"
    );
}

#[test]
fn stretches_with_a_gap_between_them_are_no_row() {
    let mut all = stretches(&[
        (10, Some(3.0)),
        (10, Some(3.0)),
        (10, Some(1.0)),
        (10, Some(9.0)),
    ]);
    all[2].at += 5;
    all[3].at += 5;
    assert_eq!(chosen(&all, 20), [0, 10]);
}

/// Room whose copy is queued, and fails all the same.
struct Late(Device, Arc<Mutex<Option<Receiver<()>>>>);

impl Shelf for Late {
    fn room(&self, _: u64) -> Result<Box<dyn Shelved>> {
        Ok(Box::new(Self(self.0.clone(), Arc::clone(&self.1))))
    }
}

impl Shelved for Late {
    fn put(&mut self, _: Addr, stream: &Stream) -> Result<()> {
        let gate = self.1.lock().unwrap().take();
        let copy = move || _ = gate.map(|gate| gate.recv_timeout(Duration::from_secs(60)));
        self.0.backend().host_call(stream.raw(), Box::new(copy))?;
        Err(Error::invalid("room", "it takes nothing"))
    }

    fn take(&self, _: Addr, _: u64, _: &Stream) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_block_whose_copy_to_the_host_failed_once_queued_is_free_behind_it() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20)).unwrap();
    let stream = device.stream().unwrap();
    let (open, gate) = channel();
    let late = Late(device.clone(), Arc::new(Mutex::new(Some(gate))));
    pool.spill_to(Some(Arc::new(late))).unwrap();
    let block = pool.alloc_movable::<u8>(&stream, 6 << 20).unwrap();
    assert!(pool.alloc(&stream, 6 << 20).is_err());
    stream.synchronize().unwrap();
    drop(block);
    assert!(!device.backend().stream_query(stream.raw()).unwrap());
    open.send(()).unwrap();
}

/// Room on the host, before which something happens once.
struct After(HostPool, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Shelf for After {
    fn room(&self, bytes: u64) -> Result<Box<dyn Shelved>> {
        let first = self.1.lock().unwrap().take();
        first.into_iter().for_each(|first| first());
        self.0.room(bytes)
    }
}

#[test]
fn a_request_whose_chosen_block_another_thread_spills_first_spills_the_next_one() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20)).unwrap();
    let stream = device.stream().unwrap();
    let taken = Arc::new(Mutex::new(None));
    let (theirs, kept) = (pool.clone(), Arc::clone(&taken));
    let other = move || {
        let stream = theirs.device().stream().unwrap();
        *kept.lock().unwrap() = Some(theirs.alloc(&stream, 4 << 20).unwrap());
    };
    let overtake = move || std::thread::spawn(other).join().unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    let shelf = After(host, Mutex::new(Some(Box::new(overtake))));
    pool.spill_to(Some(Arc::new(shelf))).unwrap();
    let _movable = [(); 2].map(|()| pool.alloc_movable::<u8>(&stream, 4 << 20).unwrap());
    let block = pool.alloc(&stream, 4 << 20);
    assert!(
        taken.lock().unwrap().is_some() && block.is_ok(),
        "{block:?}"
    );
}

#[test]
fn a_request_that_finds_the_pool_asleep_as_it_spills_looks_again_also_if_it_is_awake_by_then() {
    let device = Device::host().unwrap();
    let config = PoolConfig::default().limit(8 << 20).sleeps(true);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let theirs = pool.clone();
    let sleep = move || _ = theirs.sleep(&[], Contents::Discarded).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    let shelf = After(host, Mutex::new(Some(Box::new(sleep))));
    pool.spill_to(Some(Arc::new(shelf))).unwrap();
    let woken = wakes(&pool, 199);
    let _movable = pool.alloc_movable::<u8>(&stream, 6 << 20).unwrap();
    let block = pool.alloc(&stream, 6 << 20);
    woken.lock().unwrap().take();
    let asleep = |error: &Error| error.to_string().contains("sleep");
    assert!(block.as_ref().err().is_none_or(asleep), "{block:?}");
    pool.wake(&[]).unwrap();
    pool.alloc(&stream, 6 << 20).unwrap();
}

/// Has a step of this rank wake the pool, which is let go of by what is returned.
fn wakes(pool: &Pool, rank: u8) -> Arc<Mutex<Option<Pool>>> {
    let pool_of = Arc::new(Mutex::new(Some(pool.clone())));
    let its = Arc::clone(&pool_of);
    let wake = move |_: &Need<'_>| {
        let pool = its.lock().unwrap().clone();
        pool.map(|pool| pool.wake(&[]).unwrap());
        false
    };
    pool.shared().add_relief(rank, Arc::new(wake));
    pool_of
}

#[test]
fn a_request_for_which_a_pool_that_sleeps_moves_nothing_looks_again() {
    let device = Device::host().unwrap();
    let config = PoolConfig::default().limit(4 << 20).sleeps(true);
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let mut blocks = [(); 4].map(|()| Some(pool.alloc_movable::<u8>(&stream, 1 << 20).unwrap()));
    (blocks[0], blocks[2]) = (None, None);
    // Another thread does, just before and just after.
    let theirs = Mutex::new(Some(pool.clone()));
    let sleep = move |_: &Need<'_>| {
        let pool = theirs.lock().unwrap().take();
        pool.map(|pool| pool.sleep(&[], Contents::Discarded).unwrap());
        false
    };
    pool.shared().add_relief(1, Arc::new(sleep));
    let woken = wakes(&pool, 199);
    assert!(
        pool.shared()
            .relieve(stream.id(), 2 << 20, (false, false), &mut { MOST_TURNS })
    );
    woken.lock().unwrap().take();
    pool.wake(&[]).unwrap();
    pool.alloc(&stream, 2 << 20).unwrap();
}

#[test]
fn a_request_spills_another_block_than_one_that_a_stream_used_as_its_capture_began() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20)).unwrap();
    let [stream, other] = [(); 2].map(|()| device.stream().unwrap());
    let host = HostPool::new(&device, HostPoolConfig::default());
    let shelf = After(host, Mutex::new(None));
    pool.spill_to(Some(Arc::new(shelf))).unwrap();
    let blocks = [(); 2].map(|()| pool.alloc_movable::<u8>(&stream, 4 << 20).unwrap());
    let capture = other.begin_capture().unwrap();
    let registry = Registry::of(&pool).unwrap();
    let note = |at: usize| {
        let theirs = &other.core().timeline;
        let mut state = lock(&registry.state);
        let entry = state.table.entry(blocks[at].id()).unwrap();
        entry.uses.note(theirs, theirs.open_tick());
    };
    note(0);
    let block = pool.alloc(&stream, 4 << 20).unwrap();
    drop(block);
    blocks[1].prefetch().unwrap();
    note(1);
    let failed = pool.alloc(&stream, 4 << 20).unwrap_err();
    assert!(failed.is_out_of_memory(), "{failed}");
    drop(capture);
    pool.alloc(&stream, 4 << 20).unwrap();
}
