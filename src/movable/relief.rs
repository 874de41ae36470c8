//! What compaction does for one request: before handles are mapped elsewhere, and at the end of the
//! out-of-memory ladder.

use std::sync::Arc;

use super::callback::{Calls, tell};
use super::registry::Registry;
use crate::compact::{Aim, Budget, Goal};
use crate::device::lock;
use crate::error::Result;
use crate::pool::{Pressure, Relief, Shared};

/// Nanoseconds of the device within which a request's room should be made: what takes longer is done
/// only where nothing else serves.
const SOON_NS: f64 = 1_000_000.0;

impl Registry {
    /// Moves what makes room for `bytes`, if that takes the device less time than mapping `handles`
    /// elsewhere takes the host, now and once more when the gaps that this leaves are closed; says
    /// whether it did.
    pub(super) fn make_room(&self, bytes: u64, handles: u64) -> bool {
        let most_ns = {
            let mut state = lock(&self.state);
            state.planner.note_request(bytes);
            2.0 * handles as f64 * state.planner.model().handle_ns
        };
        let moved = self.step_to(Aim::Room { bytes, most_ns }, &Budget::default());
        moved.is_ok_and(|moved| moved.bytes > 0)
    }

    /// Brings the pool's runs of memory together and grows it by what a request of `bytes` lacks;
    /// false if there was nothing to do.
    fn join(&self, bytes: u64) -> Result<bool> {
        let shared = self.shared()?;
        let mut calls = Calls::new();
        let outcome = lock(&self.state).join(&shared, bytes, &mut calls);
        tell(calls);
        outcome
    }

    /// The ladder's step: moves what one request needs. Where nothing does, memory that lies apart
    /// is brought together first, and at last everything is moved together, so that idle handles
    /// come free.
    pub(super) fn relieve(&self, pressure: &Pressure) -> Relief {
        let bytes = pressure.requested;
        lock(&self.state).planner.note_request(bytes);
        let lacks = |shared: Arc<Shared>| shared.core.lock().lacks(bytes);
        if self.shared().ok().and_then(lacks).is_none() {
            return Relief::Exhausted;
        }
        let step = |goal: Goal| self.step(&goal, &Budget::default()).unwrap_or_default();
        for most_ns in [SOON_NS, f64::INFINITY] {
            let aims = [Aim::Room { bytes, most_ns }, Aim::Gather { bytes, most_ns }];
            for aim in aims {
                let moved = self.step_to(aim, &Budget::default());
                if moved.is_ok_and(|moved| moved.bytes > 0) {
                    return Relief::Retry;
                }
            }
        }
        let joined = self.join(bytes).unwrap_or(false);
        // What was joined or grown may be the hole already.
        if joined && step(Goal::Hole(bytes)).reached {
            return Relief::Retry;
        }
        if step(Goal::Full).bytes > 0 || joined {
            return Relief::Retry;
        }
        Relief::Exhausted
    }
}
