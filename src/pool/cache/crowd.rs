//! What a lane does while other threads have the pool's lock: it makes do with what it has.
//!
//! Threads that miss their caches all want the one heap, whose lock and memory go from core to core with each
//! of them. A lane that finds the lock taken is *crowded*, for so many misses from then on. Its cache keeps
//! more than else, a part of what is live on it, and serves a miss by the nearest larger block. Such a block
//! stays of its size: it is counted, freed and kept as what it is. So few requests are left for the heap,
//! and those find its lock free.
//!
//! What a crowded lane wastes is bounded by what it keeps and by how much larger the nearest block may be: see
//! `tuning`. Its requests have the pool grow, up to the slack over a peak that counts what is kept, where others
//! empty the caches first: those that are emptied for each other's requests serve none. A crowded lane that is full
//! gives up the block it frees, and not all it has.

use super::free_lists::Cached;
use crate::heap::UNIT;
use crate::heap::size_class::is_slot;
use crate::pool::structure::{Lane, LaneState};
use crate::pool::tuning::{CROWDED_MISSES, CROWDED_PART, NEAR_LEAST, NEAR_MOST, NEAR_PART};
use crate::seeded::seeded;
use crate::sync::latch;

impl Lane {
    /// Has the lane be crowded if someone has the pool's lock now, unless it is to keep nothing.
    pub(super) fn look_for_others(&self, state: &mut LaneState) {
        if self.shared.cache_bytes > 0 && self.shared.core.is_taken() {
            let live = state.counters.live_bytes(&self.others.elsewhere);
            state.crowded = CROWDED_MISSES;
            let room = self.shared.cache_bytes.saturating_add(live / CROWDED_PART);
            state.room = state.room.max(room);
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        latch(&self.state).crowded > 0
    }

    /// Of a crowded lane, the block nearest to the `bytes` that its cache missed, for that request.
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
        let part = 1 + u64::from(seeded!("nearest-block-may-be-smaller"));
        let least = bytes.div_ceil(part).next_multiple_of(UNIT);
        let near = (!is_slot(bytes)).then(|| state.cache.pop_near(least, most));
        let Some(mut near) = near.flatten() else {
            self.look_for_others(&mut state);
            return None;
        };
        if seeded!("nearest-block-has-the-size-asked-for") {
            near.bytes = bytes;
        }
        (state.counters).allocate(near.bytes, requested, &self.others.elsewhere);
        Some(near)
    }
}

#[cfg(test)]
mod tests;
