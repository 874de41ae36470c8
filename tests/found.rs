//! What the tests of this folder found, each as small as it became.

mod common;

use warpool::{Pool, PoolConfig};

const MIB: u64 = 1 << 20;

/// Found by `state_machine`: a hole of another stream that suffices by itself was overlooked where
/// only failing is worse than waiting.
#[test]
fn pending_memory_is_taken_rather_than_fail_where_waits_are_switched_off() {
    let device = common::host();
    let config = PoolConfig::default()
        .limit(6 * MIB)
        .handles(warpool::pool::HandleSize::Granule)
        .reuse(false, false)
        .cache_bytes(0);
    let pool = Pool::new(&device, config).unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let first = pool.alloc(&streams[0], 4 * MIB).unwrap();
    let mut second = pool.alloc(&streams[2], 2049).unwrap();
    second.shrink(1).unwrap();
    let gate = common::Gate::close(&streams[0]);
    drop(first);
    let third = pool.alloc(&streams[1], 1).unwrap();
    gate.open();
    pool.check_invariants().unwrap();
    drop((second, third));
}
