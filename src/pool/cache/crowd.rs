//! Crowded lanes, which serve requests from their own blocks while other threads have the pool's lock.
//!
//! Threads that miss their caches all need the heap, whose lock and memory move from core to core. A lane that finds
//! the lock taken is *crowded* for a number of misses. Its cache keeps more, in proportion to its live bytes, and
//! serves a miss with the next larger block, which keeps its size. So few requests need the heap and its lock.
//!
//! `tuning` bounds what a crowded lane keeps, and how much larger a block may be. Its requests grow the pool before they
//! empty caches, up to the slack over a peak that counts what lanes keep: caches that threads empty for each other
//! serve no request. A full crowded lane gives up only the block that it frees.

use super::free_lists::Cached;
use crate::heap::UNIT;
use crate::heap::size_class::is_slot;
use crate::pool::structure::{Lane, LaneState};
use crate::pool::tuning::{CROWDED_MISSES, CROWDED_PART, NEAR_LEAST, NEAR_MOST, NEAR_PART};
use crate::sync::{is_latched, latch};

impl Lane {
    /// Makes the lane crowded if a thread has the pool's lock now, unless the pool's caches keep nothing.
    pub(super) fn look_for_others(&self, state: &mut LaneState) {
        if self.shared.cache_bytes > 0 && is_latched(&self.shared.core) {
            let live = state.counters.live_bytes(&self.others.elsewhere);
            state.crowded = CROWDED_MISSES;
            let room = self.shared.cache_bytes.saturating_add(live / CROWDED_PART);
            state.room = state.room.max(room);
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        latch(&self.state).crowded > 0
    }

    /// Serves a request that a crowded lane's cache missed with the nearest larger block there.
    pub(super) fn take_near(&self, bytes: u64, requested: u64) -> Option<Cached> {
        let mut state = latch(&self.state);
        if state.crowded == 0 {
            self.look_for_others(&mut state);
        }
        if state.crowded == 0 || state.aside {
            return None;
        }
        state.crowded -= 1;
        if state.crowded == 0 {
            state.room = self.shared.cache_bytes;
        }
        let more = (bytes / NEAR_PART).max(bytes.min(NEAR_LEAST));
        let most = bytes + more.min(NEAR_MOST);
        let least = bytes.next_multiple_of(UNIT);
        let near = (!is_slot(bytes)).then(|| state.cache.pop_near(least, most));
        let Some(near) = near.flatten() else {
            self.look_for_others(&mut state);
            return None;
        };
        (state.counters).allocate(near.bytes, requested, &self.others.elsewhere);
        Some(near)
    }
}

#[cfg(test)]
mod tests;
