//! Whether a pool's books are whole; for checks.

use super::core::Core;
use crate::heap::{FRESH, Id, NONE, State};

impl Core {
    /// Whether the pool's books are whole. See [`Pool::check_invariants`](super::Pool::check_invariants).
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.extents.check(self.arena.granule())?;
        self.arena.check()?;
        self.check_slabs()?;
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

    /// Whether the slabs' books are whole; for checks.
    pub(super) fn check_slabs(&self) -> std::result::Result<(), String> {
        let slabs = &self.slabs;
        let (mut free, mut of_stream) = (0, vec![0; slabs.of_stream.len()]);
        for (id, slab) in slabs.table.iter().enumerate() {
            if slab.extent == NONE {
                continue;
            }
            let extent = self.extents.get(slab.extent);
            let bytes = u64::from(slab.slots) * slab.bytes;
            if (extent.start, extent.bytes) != (slab.start, bytes)
                || extent.state != State::Allocated
            {
                return Err(format!("slab {id} is not its extent {extent:?}"));
            }
            let is_partial = slabs.partial.contains(&slab.key(id as Id));
            if slab.free & !slab.all() != 0 || is_partial != (slab.free != 0) {
                return Err(format!("slab {id}: {:#x} are free", slab.free));
            }
            if (slab.free == slab.all()) != slabs.mixed.contains(&(id as Id)) {
                return Err(format!("slab {id} has no slot out and is kept"));
            }
            free += u64::from(slab.free.count_ones()) * slab.bytes;
            for slot in slab.free_slots() {
                of_stream[slab.streams[slot] as usize] += 1;
                if slab.ticks[slot] > self.open_tick(slab.streams[slot])
                    && slab.streams[slot] != FRESH
                {
                    return Err(format!("slot {slot} of slab {id} waits for no record"));
                }
            }
        }
        if free != slabs.free_bytes || of_stream != slabs.of_stream {
            let counted = slabs.free_bytes;
            return Err(format!("slots have {free} bytes free, counted {counted}"));
        }
        Ok(())
    }
}
