//! Whether a pool's books are whole; for checks.

use super::core::Core;
use crate::heap::State;

impl Core {
    /// Whether the pool's books are whole. See [`Pool::check_invariants`](super::Pool::check_invariants).
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.extents.check(self.arena.granule())?;
        self.arena.check()?;
        self.slabs
            .check(&self.extents, |stream| self.open_tick(stream))?;
        let mut mapped = 0;
        for (id, extent) in self.extents.iter() {
            let needs = matches!(extent.state, State::Free | State::Allocated);
            let ends = [extent.start, extent.end() - 1];
            if ends
                .iter()
                .any(|&at| self.arena.frame_at(at).is_some() != needs)
            {
                return Err(format!(
                    "extent {id} {extent:?} does not agree with the mappings"
                ));
            }
            if needs {
                mapped += extent.bytes;
            }
            let Some(state) = self.streams[extent.slot as usize].as_ref() else {
                continue;
            };
            if extent.state == State::Free && extent.tick > state.timeline.open_tick() {
                return Err(format!(
                    "hole {id} {extent:?} waits for a tick that no record will make"
                ));
            }
        }
        let (taken, _) = self.extents.taken();
        let counted = self.active.bytes() + self.slabs.free_bytes() + self.under_way.held();
        if counted != taken {
            return Err(format!("blocks have {taken} bytes, counted {counted}"));
        }
        let frames = self.arena.mapped() + self.arena.asleep();
        if mapped != frames {
            return Err(format!("extents cover {mapped} mapped bytes of {frames}"));
        }
        Ok(())
    }
}
