//! One suite for pools on every device. Each sentence is run on each device; afterwards the device
//! must have back everything it handed out.

mod bundles;
mod callbacks;
mod capture;
mod capture_parts;
mod captures_together;
mod dry_run;
mod figures;
mod growth;
mod ladder;
mod lifetimes;
mod limits;
mod moments;
mod refused_calls;
mod reuse;
mod slabs;
mod sleep;
mod snapshot;
mod statistics;
mod threads;

use crate::common;
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
