//! How slabs find memory, and when it goes back: the steps of a request for a slot.

use super::cache::Cached;
use super::core::{Core, is_done};
use super::stats::Told;
use crate::error::Result;
use crate::heap::size_class::{batch, class_of, is_slot};
use crate::heap::{Epoch, FRESH, Grant, Id, NONE, State, StreamIndex};
use crate::seeded::seeded;

/// Slabs looked at for a slot that is ready, of each stream.
const LOOKS: usize = 16;

impl Core {
    /// A block or slot of `bytes`, whichever that size is, that is ready for `stream`.
    pub(crate) fn take_ready_of(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        if is_slot(bytes) {
            self.take_slot_ready(stream, bytes)
        } else {
            self.take_ready(stream, bytes)
        }
    }

    /// As [`Core::take_ready_of`], in new memory, as [`Core::take_overlapping`].
    pub(crate) fn take_overlapping_of(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        if is_slot(bytes) {
            self.take_slot_overlapping(stream, bytes)
        } else {
            self.take_overlapping(stream, bytes)
        }
    }

    /// A slot of `bytes` that is ready for `stream`, of a slab there is or of a new one in a hole that
    /// is ready.
    pub(crate) fn take_slot_ready(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        if let Some(grant) = self.find_slot(stream, bytes, false)? {
            return Ok(Some(grant));
        }
        let (wanted, least) = (self.slabs.wanted(bytes), batch(bytes));
        for slots in [wanted, least] {
            if let Some(grant) = self.take_ready(stream, slots * bytes)? {
                return self.make_slab(stream, grant, bytes, slots);
            }
        }
        Ok(None)
    }

    /// As [`Core::take_slot_ready`], behind a wait for whose it is, or in memory that is mapped for
    /// it.
    pub(crate) fn take_slot_any(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        if let Some(grant) = self.take_slot_ready(stream, bytes)? {
            return Ok(Some(grant));
        }
        if self.config.reuse.device_wait
            && let Some(grant) = self.find_slot(stream, bytes, true)?
        {
            return Ok(Some(grant));
        }
        let (wanted, least) = (self.slabs.wanted(bytes), batch(bytes));
        for slots in [wanted, least] {
            let mut grant = self.take_waiting(stream, slots * bytes)?;
            if grant.is_none() {
                grant = self.take_mapping(stream, slots * bytes)?;
            }
            if let Some(grant) = grant {
                return self.make_slab(stream, grant, bytes, slots);
            }
        }
        // Where device waits are switched off, pending memory is taken only instead of failing.
        self.find_slot(stream, bytes, true)
    }

    /// A slot of a slab in new memory, as [`Core::take_overlapping`].
    pub(crate) fn take_slot_overlapping(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        let slots = self.slabs.wanted(bytes);
        match self.take_overlapping(stream, slots * bytes)? {
            Some(grant) => self.make_slab(stream, grant, bytes, slots),
            None => Ok(None),
        }
    }

    /// A free slot, its own stream's slabs first, then the others'; behind a wait if `pending`.
    fn find_slot(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Result<Option<Grant>> {
        let others = (1..self.extents.slots()).filter(|&other| other != stream);
        let looks = if pending { usize::MAX } else { LOOKS };
        let class = class_of(bytes);
        for owner in std::iter::once(stream).chain(others) {
            let slabs = (owner, class, 0, 0)..(owner, class + 1, 0, 0);
            let mut found = None;
            for key in self.slabs.partial.range(slabs).take(looks) {
                let slab = &self.slabs.table[key.3 as usize];
                let mut free = slab.free_slots();
                let usable = |&slot: &usize| {
                    pending
                        || seeded!("any-free-slot-will-do")
                        || self.is_behind(stream, slab.history(slot))
                };
                if let Some(slot) = free.find(usable) {
                    found = Some((key.3, slot, slab.history(slot)));
                    break;
                }
            }
            if let Some((id, slot, history)) = found {
                if pending {
                    self.wait_for(stream, history)?;
                }
                self.count_slot(stream, bytes, history, pending);
                return Ok(Some(self.slabs.take(id, slot, stream)));
            }
        }
        Ok(None)
    }

    fn count_slot(&mut self, stream: StreamIndex, bytes: u64, history: Epoch, pending: bool) {
        let (steps, told) = (&mut self.steps, &mut self.told);
        if pending {
            steps.stream_wait += 1;
            told.note(Told::StreamWait(bytes));
        } else if history.is_own(stream) {
            steps.own_stream += 1;
            told.note(Told::OwnStream(bytes));
        } else {
            steps.ready_elsewhere += 1;
            told.note(Told::ReadyElsewhere(bytes));
        }
    }

    /// Cuts the block granted into slots and takes the first. What would reach into a second granule
    /// goes back; `None` if that leaves nothing.
    fn make_slab(
        &mut self,
        stream: StreamIndex,
        grant: Grant,
        bytes: u64,
        slots: u64,
    ) -> Result<Option<Grant>> {
        let tick = self.open_tick(stream);
        let part = batch(bytes) * bytes;
        let (mut id, mut start) = (grant.id, grant.offset);
        let end = start + slots * bytes;
        let bound = (start + 1).next_multiple_of(self.arena.granule());
        let mut keep = slots * bytes;
        if end > bound {
            keep = (bound - start) / part * part;
            if keep == 0 && end - bound >= part {
                let upper = self.extents.split_taken(id, end - bound);
                self.give(id, stream, tick);
                (id, start) = (upper, bound);
                keep = (end - bound) / part * part;
            }
            if keep == 0 {
                self.give(id, stream, tick);
                return Ok(None);
            }
            // A slab is whole parts, so that what lies beside a bound is never all of one side.
            let rest = self.extents.split_taken(id, end - start - keep);
            self.give(rest, stream, tick);
        }
        let slab = self
            .slabs
            .add((id, start), bytes, keep / bytes, stream, tick);
        // Of this slab, whatever others there are: it would stay behind without a slot out.
        Ok(Some(self.slabs.take(slab, 0, stream)))
    }

    /// Up to `most` more slots for `stream` from the slab of `grant`, into `taken`.
    pub(crate) fn take_slots(
        &mut self,
        grant: Grant,
        stream: StreamIndex,
        most: u64,
        taken: &mut Vec<Cached>,
    ) {
        let slab = &self.slabs.table[grant.id as usize];
        let bytes = slab.bytes;
        for slot in slab.free_slots().take(most as usize) {
            let slab = &self.slabs.table[grant.id as usize];
            if self.is_behind(stream, slab.history(slot)) {
                let Grant { id, offset } = self.slabs.take(grant.id, slot, stream);
                let addr = self.arena.base() + offset;
                taken.push(Cached {
                    addr,
                    bytes,
                    tick: 0,
                    id,
                });
            }
        }
    }

    /// Takes a free slot back, with the history (`stream`, `tick`).
    pub(crate) fn give_slot(&mut self, block: &Cached, stream: StreamIndex, tick: u64) {
        let offset = block.addr - self.arena.base();
        if self.slabs.give(block.id, offset, stream, tick) {
            self.release_slab(block.id);
        }
    }

    /// Gives a slab without a slot out back, if one stream's history covers it.
    fn release_slab(&mut self, id: Id) {
        let slab = &self.slabs.table[id as usize];
        let mut pending: Option<Epoch> = None;
        for slot in slab.free_slots() {
            let history = slab.history(slot);
            match pending.map(|epoch| epoch.joined(history)) {
                Some(joined @ Some(_)) => pending = joined,
                _ if is_done(&self.streams, history) => {}
                Some(None) => {
                    if !seeded!("slab-forgets-one-stream") {
                        self.slabs.mixed.insert(id);
                        return;
                    }
                }
                None => pending = Some(history),
            }
        }
        let Epoch { stream, tick } = pending.unwrap_or(Epoch::PAST);
        let extent = self.slabs.remove(id);
        self.give(extent, stream, tick);
    }

    /// Gives slabs back that several streams use, now that `stream` waits for all of them.
    pub(crate) fn release_mixed(&mut self, stream: StreamIndex) -> Result<()> {
        while let Some(&id) = self.slabs.mixed.first() {
            let slab = &self.slabs.table[id as usize];
            let histories: Vec<Epoch> = slab.free_slots().map(|s| slab.history(s)).collect();
            for history in histories {
                self.wait_for(stream, history)?;
            }
            let tick = self.open_tick(stream);
            let extent = self.slabs.remove(id);
            self.give(extent, stream, tick);
        }
        Ok(())
    }

    /// The same once the host has waited for them.
    pub(crate) fn release_mixed_on_host(&mut self) -> Result<()> {
        while let Some(&id) = self.slabs.mixed.first() {
            let slab = &self.slabs.table[id as usize];
            for slot in slab.free_slots() {
                if let Some(state) = &self.streams[slab.streams[slot] as usize] {
                    state.timeline.sync_to(slab.ticks[slot])?;
                }
            }
            let extent = self.slabs.remove(id);
            self.give(extent, FRESH, 0);
        }
        Ok(())
    }

    /// Whether slabs that several streams use are idle.
    pub(crate) fn has_mixed(&self) -> bool {
        !self.slabs.mixed.is_empty()
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

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
