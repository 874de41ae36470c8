//! What compaction does for one request: before handles are mapped elsewhere, and at the end of the
//! out-of-memory ladder.

use super::callback::{Calls, tell};
use super::registry::Registry;
use crate::compact::{Aim, Budget, Goal};
use crate::device::lock;
use crate::error::Result;
use crate::pool::{Pressure, Relief};

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

    /// Moves what makes room for `bytes` within `most_ns` of the device, or empties handles for them;
    /// says whether it did.
    fn move_for(&self, bytes: u64, most_ns: f64) -> bool {
        let aims = [Aim::Room { bytes, most_ns }, Aim::Gather { bytes, most_ns }];
        aims.into_iter().any(|aim| {
            let moved = self.step_to(aim, &Budget::default());
            moved.is_ok_and(|moved| moved.bytes > 0)
        })
    }

    /// Nanoseconds of the device for moving every block once; `None` where a request of `bytes` lacks
    /// nothing, or the pool is gone.
    fn moving_all(&self, bytes: u64) -> Option<f64> {
        let model = lock(&self.state).planner.model();
        let shared = self.shared().ok()?;
        let core = shared.core.lock();
        core.lacks(bytes)?;
        Some(model.launch_ns + core.taken_bytes() as f64 / model.bytes_per_ns)
    }

    /// The ladder's step: moves what one request needs. Where nothing does that is cheaper than moving
    /// everything, memory that lies apart is brought together first, and then everything is moved
    /// together, so that idle handles come free; a long search is what is left when that is done.
    pub(super) fn relieve(&self, pressure: &Pressure) -> Relief {
        let bytes = pressure.requested;
        lock(&self.state).planner.note_request(bytes);
        let Some(all_ns) = self.moving_all(bytes) else {
            return Relief::Exhausted;
        };
        if self.move_for(bytes, SOON_NS) || (all_ns > SOON_NS && self.move_for(bytes, all_ns)) {
            return Relief::Retry;
        }
        let step = |goal: Goal| self.step(&goal, &Budget::default()).unwrap_or_default();
        let joined = self.join(bytes).unwrap_or(false);
        // What was joined or grown may be the hole already.
        if joined && step(Goal::Hole(bytes)).reached {
            return Relief::Retry;
        }
        if step(Goal::Full).bytes > 0 || joined || self.move_for(bytes, f64::INFINITY) {
            return Relief::Retry;
        }
        Relief::Exhausted
    }
}
