//! Whether a pool's books are whole; for checks.

use super::core::Core;
use crate::heap::{State, ensure};

impl Core {
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.extents.check(self.arena.granule())?;
        let frames = self.arena.check()?;
        let open = |stream| self.open_tick(stream);
        self.slabs.check(&self.extents, open)?;
        let mut mapped = 0;
        for (id, extent) in self.extents.iter() {
            let needs = matches!(extent.state, State::Free | State::Allocated);
            let is_mapped = |at| self.arena.frame_at(at).is_some();
            let agrees = [extent.start, extent.end() - 1].map(is_mapped) == [needs; 2];
            ensure(agrees, || {
                format!("extent {id} {extent:?} does not agree with the mappings")
            })?;
            mapped += if needs { extent.bytes } else { 0 };
            let stream = self.streams[extent.slot as usize].as_ref();
            let may_come = stream.is_none_or(|it| extent.tick <= it.timeline.open_tick());
            ensure(extent.state != State::Free || may_come, || {
                format!("hole {id} {extent:?} waits for a tick that no record will make")
            })?;
        }
        let taken = self.extents.taken();
        let counted = self.active.bytes()[2] + self.slabs.free_bytes() + self.under_way.held;
        ensure(counted == taken, || {
            format!("blocks have {taken} bytes, counted {counted}")
        })?;
        ensure(mapped == frames, || {
            format!("extents cover {mapped} mapped bytes of {frames}")
        })
    }
}
