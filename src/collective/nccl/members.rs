//! The devices of this process in each communicator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::device::DeviceInfo;
use crate::sync::plain::lock;

type Devices = Mutex<Vec<DeviceInfo>>;

/// Devices of this process in one communicator. Each of its ends holds it.
pub(super) type Members = Arc<Devices>;

/// All of them, by the identifier of their communicator.
type ById = HashMap<[u8; 128], Weak<Devices>>;
static MEMBERS: Mutex<Option<ById>> = Mutex::new(None);

/// Enters a device into a communicator that is about to be made: all devices are entered before it exists.
/// Forgets communicators that have no end any more.
pub(super) fn enter(id: [u8; 128], info: &DeviceInfo) -> Members {
    let mut all = lock(&MEMBERS);
    let all = all.get_or_insert_with(HashMap::new);
    all.retain(|_, members| members.strong_count() > 0);
    let members = all.get(&id).and_then(Weak::upgrade).unwrap_or_default();
    lock(&members).push(info.clone());
    all.insert(id, Arc::downgrade(&members));
    members
}

/// The devices beside the one with this ordinal.
pub(super) fn peers(members: &Members, ordinal: u32) -> Vec<DeviceInfo> {
    let all = lock(members);
    let others = all.iter().filter(|its| its.ordinal != ordinal);
    others.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn ends_of_one_communicator_see_each_other_and_it_is_forgotten_with_the_last() {
        let device = Device::host().unwrap();
        let info = |ordinal| DeviceInfo {
            ordinal,
            ..device.info().clone()
        };
        let known = |id| {
            lock(&MEMBERS)
                .as_ref()
                .is_some_and(|all| all.contains_key(&id))
        };
        let (one, other) = ([201; 128], [202; 128]);
        let first = enter(one, &info(0));
        let second = enter(one, &info(1));
        assert!(peers(&enter(other, &info(0)), 0).is_empty());
        assert_eq!(peers(&first, 0)[0].ordinal, 1);
        assert_eq!(peers(&second, 1)[0].ordinal, 0);
        drop(first);
        let third = enter(one, &info(2));
        assert!(known(one) && !known(other));
        assert_eq!(peers(&third, 2).len(), 2);
        drop((second, third));
        let _last = enter(other, &info(0));
        assert!(!known(one), "it has no end");
    }
}
