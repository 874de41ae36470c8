//! Access of other GPUs to the memory that the CUDA device maps.

use super::paths::LIMIT;
use super::{MADE_TO_FAIL, Rig};
use crate::driver::fake::Machine;
use crate::driver::faults::Failure;
use crate::pool::{HandleSize, Pool, PoolConfig};

#[test]
fn every_mapping_is_for_the_peers_too_after_remaps_and_where_old_ones_are_kept() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let mut config = PoolConfig::default().limit(LIMIT);
    config.peers = vec![1];
    let pool = Pool::new(&device, config).unwrap();
    let stream = device.stream().unwrap();
    let piece = LIMIT / 6;
    let mut blocks: Vec<_> = (0..6)
        .map(|_| pool.alloc(&stream, piece).unwrap())
        .collect();
    // A large block remaps the memory of the holes between live blocks.
    for at in [4, 2, 0] {
        drop(blocks.remove(at));
    }
    let large = pool.alloc(&stream, 3 * piece).unwrap();
    let remapped = pool.stats().calls.remapped;
    drop(large);
    let _again = pool.alloc(&stream, piece).unwrap();
    let access = machine.access();
    assert!(!access.is_empty() && access.iter().all(|gpus| gpus == &[0, 1]));
    assert!(remapped > 0, "nothing was mapped elsewhere");
}

#[test]
fn memory_of_growing_buffers_is_for_the_peers_too() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let pool = shared_pool(Rig::of(&machine));
    let stream = pool.device().stream().unwrap();
    let mut buffer = pool.grow_buf::<u64>(&stream, 1 << 20).unwrap();
    buffer.resize(1 << 19).unwrap();
    let access = machine.access();
    assert!(access.len() > 1 && access.iter().all(|gpus| gpus == &[0, 1]));
    drop(buffer);
    pool.trim(0).unwrap();
    assert_eq!(machine.left().counts.ranges, 1);
}

#[test]
fn a_pool_without_peers_is_its_own_gpus_alone() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let rig = Rig::of(&machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let pool = Pool::new(&device, PoolConfig::default().limit(LIMIT)).unwrap();
    let _block = pool.alloc(&device.stream().unwrap(), 1 << 20).unwrap();
    let access = machine.access();
    assert!(!access.is_empty() && access.iter().all(|gpus| gpus == &[0]));
}

/// A pool on the machine's GPU whose memory a second one may use.
fn shared_pool(rig: Rig) -> Pool {
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    let mut config = PoolConfig::default().limit(LIMIT);
    config.peers = vec![1];
    Pool::new(&device, config.handles(HandleSize::Granule)).unwrap()
}

/// Makes access to new mappings fail, and the calls that undo these.
fn fail_twice(rig: Rig, for_ever: bool) {
    let both = ["cuMemSetAccess", "cuMemUnmap"].map(|call| Failure {
        call,
        number: 1,
        for_ever,
        code: MADE_TO_FAIL,
    });
    rig.driver.faults.plan(&both);
}

#[test]
fn memory_whose_mapping_for_a_peer_cannot_be_undone_counts_until_it_is_back() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let rig = Rig::of(&machine);
    let pool = shared_pool(rig);
    let stream = pool.device().stream().unwrap();
    for _ in 0..2 {
        fail_twice(rig, true);
        assert!(pool.alloc(&stream, 4 << 20).is_err());
        let held = machine.left().counts.bytes;
        assert!(held > 0, "the driver keeps what is mapped");
        assert_eq!(pool.device().counts().bytes, held);
        assert_eq!(pool.stats().reserved.current, held);
        rig.driver.faults.heal();
        pool.check_invariants().unwrap();
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().reserved.current, 0);
        assert_eq!(machine.left().counts.bytes, 0);
    }
    drop(pool.alloc(&stream, LIMIT).unwrap());
}

#[test]
fn memory_whose_remap_for_a_peer_cannot_be_undone_goes_back_to_the_device_all_the_same() {
    let machine = Machine::with_gpu(1 << 30).unwrap();
    let rig = Rig::of(&machine);
    let pool = shared_pool(rig);
    let stream = pool.device().stream().unwrap();
    let mut blocks = [(); 6].map(|()| Some(pool.alloc(&stream, LIMIT / 6).unwrap()));
    for at in [4, 2, 0] {
        blocks[at] = None;
    }
    let figures = || {
        (
            pool.stats().reserved.current,
            pool.stats().allocated.current,
        )
    };
    let before = figures();
    fail_twice(rig, false);
    assert!(pool.alloc(&stream, LIMIT / 2).is_err());
    assert_eq!(figures(), before);
    rig.driver.faults.heal();
    pool.trim(0).unwrap();
    let held = machine.left().counts.bytes;
    assert_eq!((figures().0, pool.device().counts().bytes), (held, held));
    assert!(held < before.0, "nothing went back");
    drop(pool.alloc(&stream, LIMIT / 2).unwrap());
    drop(blocks);
    pool.trim(0).unwrap();
    assert_eq!(machine.left().counts.bytes, 0);
    pool.check_invariants().unwrap();
}
