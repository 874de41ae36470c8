//! Compaction for one request: before handles are mapped elsewhere, and at the end of the out-of-memory
//! ladder.

use super::callback::{Calls, tell};
use super::registry::Registry;
use crate::compact::{Aim, Budget, Goal, Moved};
use crate::device::lock;
use crate::error::Result;
use crate::pool::Need;

/// Nanoseconds of device time within which a hole for a request should be made. Plans that take longer are
/// used only if nothing else serves the request.
const SOON_NS: f64 = 1_000_000.0;

impl Registry {
    /// Moves blocks to make a hole of `bytes`, if that takes less device time than remapping `handles`
    /// handles takes host time. Remapping counts twice: now, and when the gaps that it leaves are closed.
    /// Returns whether it moved anything.
    pub(super) fn make_room(&self, bytes: u64, handles: u64) -> bool {
        let most_ns = {
            let mut state = lock(&self.state);
            state.planner.note_request(bytes);
            2.0 * handles as f64 * state.planner.model().handle_ns
        };
        self.moves_to(Aim::Room { bytes, most_ns })
    }

    /// Joins the pool's runs of memory and grows the pool by the bytes that a request of `bytes` lacks.
    /// Returns false if there was nothing to do.
    fn join(&self, bytes: u64) -> Result<bool> {
        let shared = self.shared()?;
        self.record_ahead(&shared);
        let mut calls = Calls::new();
        let mut state = self.settled(|| Ok(lock(&self.state)))?;
        let outcome = state.join(&shared, bytes, &mut calls);
        drop(state);
        tell(calls);
        outcome
    }

    /// Whether anything was moved for `aim`, also by a step that failed then.
    fn moves_to(&self, aim: Aim) -> bool {
        let mut moved = Moved::default();
        let _ = self.step_to(aim, &Budget::default(), &mut moved);
        moved.bytes > 0
    }

    /// Moves blocks to make a hole of `bytes`, or to empty handles for one, within `most_ns` of device time.
    /// Returns whether it moved anything.
    fn move_for(&self, bytes: u64, most_ns: f64) -> bool {
        self.moves_to(Aim::Room { bytes, most_ns }) || self.moves_to(Aim::Gather { bytes, most_ns })
    }

    /// Nanoseconds of device time for moving every block once, and the bytes that a request of `bytes` then lacks; `None`
    /// if the pool may not make them.
    fn moving_all(&self, bytes: u64) -> Option<(f64, u64)> {
        let model = lock(&self.state).planner.model();
        let shared = self.shared().ok()?;
        let core = shared.core.lock();
        let lacking = core.lacks(bytes)?;
        let all_ns = model.launch_ns + core.live() as f64 / model.bytes_per_ns;
        Some((all_ns, lacking))
    }

    /// Compaction as a step of the out-of-memory ladder. First it makes a hole for the one request. If that
    /// would cost more than moving every block, it joins memory from separate address ranges, then compacts
    /// everything, which leaves idle handles. Last comes a search without a time limit.
    pub(super) fn relieve(&self, need: &Need<'_>) -> bool {
        let bytes = need.requested;
        lock(&self.state).planner.note_request(bytes);
        let Some((all_ns, lacking)) = self.moving_all(bytes) else {
            return false;
        };
        let step = |goal: Goal| {
            let mut moved = Moved::default();
            let _ = self.step(&goal, &Budget::default(), &mut moved);
            moved
        };
        // A growing buffer needs whole handles, not a hole, and no new ones in the pool.
        if need.grows {
            let most_ns = SOON_NS;
            let joins = || self.join(bytes.saturating_sub(lacking)).unwrap_or(false);
            return self.moves_to(Aim::Gather { bytes, most_ns })
                || step(Goal::Full).bytes > 0
                || joins();
        }
        if self.move_for(bytes, SOON_NS) || (all_ns > SOON_NS && self.move_for(bytes, all_ns)) {
            return true;
        }
        let joined = match self.join(bytes) {
            // No move can bring what the device refuses.
            Err(error) if error.is_device_exhausted() => return false,
            joined => joined.unwrap_or(false),
        };
        // Joining or growing may have made the hole already.
        if joined && step(Goal::Hole(bytes)).reached {
            return true;
        }
        step(Goal::Full).bytes > 0 || joined || self.move_for(bytes, f64::INFINITY)
    }
}
