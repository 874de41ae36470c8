//! One suite for pools on every device. Each sentence is run on each device; afterwards the device
//! must have back everything it handed out.

mod bundles;
mod capture;
mod capture_parts;
#[path = "../common/mod.rs"]
mod common;
mod figures;
mod ladder;
mod limits;
mod lives;
mod refused;
mod reuse;
mod slabs;
mod snapshot;
mod statistics;
mod threads;

use warpool::pool::HandleSize;
use warpool::{Device, Pool, PoolConfig};

const MIB: u64 = 1 << 20;

/// The smallest handles, so that layouts are the same on every device.
fn small_handles() -> PoolConfig {
    PoolConfig::default().handles(HandleSize::Granule)
}

/// A pool that may hold `granules` granules.
fn limited(device: &Device, granules: u64) -> Pool {
    let limit = granules * device.info().granule;
    Pool::new(device, small_handles().limit(limit)).unwrap()
}

fn whole(pool: &Pool) {
    if let Err(why) = pool.check_invariants() {
        panic!("{why}");
    }
}
