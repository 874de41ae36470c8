//! The purpose of a step, and whether it is worth its time.

use super::*;
use crate::device::Device;
use crate::pool::{HandleSize, PoolConfig};

/// Owners of blocks that may all move and have no uses.
struct Unused;

impl Owners for Unused {
    fn may_move(&self, _: u64) -> bool {
        true
    }

    fn uses(&self, _: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn moved(&mut self, _: &[Move], _: &[u32], _: u64) {}
}

/// Two handles, each half full, in a pool that cannot grow.
fn halves() -> (Core, u64) {
    let device = Device::host().expect("the host device");
    let granule = device.info().granule;
    let config = PoolConfig::default().handles(HandleSize::Granule);
    let mut core = Core::new(&device, config.limit(2 * granule)).expect("a core");
    core.create_frames(0, 2 * granule).expect("memory");
    for start in [0, granule] {
        core.take_at(start, granule / 2, 0);
    }
    (core, granule)
}

#[test]
fn moves_for_a_request_take_the_device_no_longer_than_they_may() {
    let (core, bytes) = halves();
    let aims: [fn(u64, f64) -> Aim<'static>; 2] = [
        |bytes, most_ns| Aim::Room { bytes, most_ns },
        |bytes, most_ns| Aim::Gather { bytes, most_ns },
    ];
    for aim in aims {
        let plan = |most_ns| aim(bytes, most_ns).plan(&Planner::new(), &core, &Unused);
        let free = plan(f64::INFINITY).expect("a plan");
        assert_eq!(free.bytes, bytes / 2);
        let ns = free.predicted_ns;
        assert!(ns > 0.0);
        assert_eq!(plan(ns).map(|plan| plan.bytes), Some(bytes / 2));
        assert!(plan(0.99 * ns).is_none());
    }
}
