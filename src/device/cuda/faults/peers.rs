//! Access of other GPUs to the memory that the CUDA device maps.

use super::Rig;
use super::paths::LIMIT;
use crate::driver::fake::Machine;
use crate::pool::{Pool, PoolConfig};

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
