//! Slabs: blocks cut into slots of one size, for small requests.
//!
//! A slab is a block of the core's like any other, which to everyone else is live: it is not moved
//! and its handle not mapped elsewhere. Its slots are given out to lanes, whose caches hold free ones
//! as they hold free blocks. What a cache gives up comes back here, each slot with a history of its
//! own, the stream it was freed on and the tick; taking it follows the rules of holes.
//!
//! # Where slots come from
//!
//! From the slab at the lowest address that has one ready, first of those made for the requesting
//! stream. So what is live gathers at low addresses and the others empty. A slab without a slot out
//! goes back to the core at once, unless several streams still use it: a hole has one history. Then
//! it goes when those are done, or when a request needs the memory and waits for them.
//!
//! A slab has as few slots as fill whole units, and more the more of its class are out: a quarter, up
//! to [`MOST_SLOTS`] and to [`SLAB_BYTES`] or [`CHEAP_SLOTS`], whichever is more. It lies in one
//! granule, so that a slot that lives holds no granule but its own.

use std::collections::{BTreeSet, HashMap};

use super::cache::Cached;
use super::core::{Core, Grant, is_done};
use super::extents::{Extent, FRESH, Id, NONE, Slot};
use super::size_class::{CLASSES, batch, class_of, is_slot};
use super::told::Told;
use crate::error::Result;
use crate::seeded::seeded;

/// Slots of a slab at most: bits of a word.
const MOST_SLOTS: u64 = 64;

/// Bytes of a slab at most, unless [`CHEAP_SLOTS`] are more.
const SLAB_BYTES: u64 = 16 << 10;

/// Slots among which the host's memory for a slab is small.
const CHEAP_SLOTS: u64 = 16;

/// A slot costs no more of the host than that: its part of the record, of the extent and of two places
/// in a tree of keys.
const _: () = {
    let record = size_of::<Slab>() + size_of::<Extent>() + 2 * size_of::<Key>();
    assert!(record as u64 / CHEAP_SLOTS <= 64);
};

/// Slabs looked at for a slot that is ready, of each stream.
const LOOKS: usize = 16;

/// One slab. The record and its extent come to 15 bytes a slot where there are many.
struct Slab {
    /// The extent; `NONE` for a record that is spare.
    extent: Id,
    start: u64,
    /// Bytes of a slot.
    bytes: u64,
    slots: u32,
    /// The stream it was made for.
    owner: Slot,
    /// Free slots by bit.
    free: u64,
    /// Of a free slot: whose work its tick counts. Else who has it.
    streams: [Slot; MOST_SLOTS as usize],
    ticks: [u64; MOST_SLOTS as usize],
}

impl Slab {
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.slots)
    }

    fn history(&self, slot: usize) -> Extent {
        Extent {
            slot: self.streams[slot],
            tick: self.ticks[slot],
            ..Extent::BLANK
        }
    }

    fn key(&self, id: Id) -> Key {
        (self.owner, class_of(self.bytes), self.start, id)
    }

    fn addr(&self, slot: usize) -> u64 {
        self.start + slot as u64 * self.bytes
    }

    fn free_slots(&self) -> impl Iterator<Item = usize> + use<> {
        let mut free = self.free;
        std::iter::from_fn(move || {
            let slot = free.trailing_zeros() as usize;
            (free != 0).then(|| {
                free &= free - 1;
                slot
            })
        })
    }
}

/// Owner, class, start: slabs are taken from in this order.
type Key = (Slot, usize, u64, Id);

/// What a slot is, to who walks over everything.
pub(super) struct SlotSeen {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) stream: Slot,
    pub(super) free: bool,
}

/// All slabs of a pool.
pub(crate) struct Slabs {
    table: Vec<Slab>,
    spare: Vec<Id>,
    /// Slabs with a free slot.
    partial: BTreeSet<Key>,
    /// Slabs without a slot out that several streams still use.
    mixed: BTreeSet<Id>,
    /// Slots out, by class.
    out: [u64; CLASSES],
    free_bytes: u64,
    /// Free slots by the stream of their history.
    of_stream: Vec<u64>,
}

impl Default for Slabs {
    fn default() -> Self {
        Self {
            table: Vec::new(),
            spare: Vec::new(),
            partial: BTreeSet::new(),
            mixed: BTreeSet::new(),
            out: [0; CLASSES],
            free_bytes: 0,
            of_stream: Vec::new(),
        }
    }
}

impl Slabs {
    /// Bytes in slots that are free to all.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Whether no free slot waits for `stream`.
    pub(crate) fn has_none(&self, stream: Slot) -> bool {
        self.of_stream.get(stream as usize).is_none_or(|&n| n == 0)
    }

    /// The last tick of each stream that free slots wait for.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        let slabs = self.partial.iter().map(|key| &self.table[key.3 as usize]);
        slabs.flat_map(|slab| {
            slab.free_slots()
                .map(|slot| (slab.streams[slot], slab.ticks[slot]))
        })
    }

    /// The slots of a slab, in address order.
    pub(super) fn slots_of(&self, id: Id) -> impl Iterator<Item = SlotSeen> + '_ {
        let slab = &self.table[id as usize];
        (0..slab.slots as usize).map(|slot| SlotSeen {
            offset: slab.addr(slot),
            bytes: slab.bytes,
            stream: slab.streams[slot],
            free: slab.free >> slot & 1 == 1,
        })
    }

    /// Slabs by their extents.
    pub(super) fn by_extent(&self) -> HashMap<Id, Id> {
        let slabs = (0..).zip(&self.table);
        let used = slabs.filter(|(_, slab)| slab.extent != NONE);
        used.map(|(id, slab)| (slab.extent, id)).collect()
    }

    fn count(&mut self, stream: Slot, free: bool) {
        let at = stream as usize;
        if self.of_stream.len() <= at {
            self.of_stream.resize(at + 1, 0);
        }
        let count = &mut self.of_stream[at];
        *count = if free { *count + 1 } else { *count - 1 };
    }

    /// Slots of the next slab of slots of `bytes`.
    fn wanted(&self, bytes: u64) -> u64 {
        let least = batch(bytes);
        let most = (SLAB_BYTES / bytes).clamp(CHEAP_SLOTS, MOST_SLOTS) / least * least;
        let part = self.out[class_of(bytes)] / 4 / least * least;
        part.clamp(least, most.max(least))
    }

    fn add(
        &mut self,
        (extent, start): (Id, u64),
        bytes: u64,
        slots: u64,
        owner: Slot,
        tick: u64,
    ) -> Id {
        let slab = Slab {
            extent,
            start,
            bytes,
            slots: slots as u32,
            owner,
            free: u64::MAX >> (64 - slots),
            streams: [owner; MOST_SLOTS as usize],
            ticks: [tick; MOST_SLOTS as usize],
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self.table[id as usize] = slab;
                id
            }
            None => {
                self.table.push(slab);
                (self.table.len() - 1) as Id
            }
        };
        self.free_bytes += slots * bytes;
        (0..slots).for_each(|_| self.count(owner, true));
        self.partial.insert(self.table[id as usize].key(id));
        id
    }

    /// Gives the free slot out to `stream`.
    fn take(&mut self, id: Id, slot: usize, stream: Slot) -> Grant {
        let slab = &mut self.table[id as usize];
        let (before, bytes) = (slab.streams[slot], slab.bytes);
        self.mixed.remove(&id);
        slab.free &= !(1 << slot);
        slab.streams[slot] = stream;
        let short = u64::from(seeded!("slot-begins-a-step-early") && slot > 0) * 16;
        let offset = slab.addr(slot) - short;
        let (is_full, key) = (slab.free == 0, slab.key(id));
        if is_full {
            self.partial.remove(&key);
        }
        self.count(before, false);
        self.free_bytes -= bytes;
        self.out[class_of(bytes)] += 1;
        Grant { id, offset }
    }

    /// Takes the slot at `offset` back; gives whether none of the slab is out now.
    fn give(&mut self, id: Id, offset: u64, stream: Slot, tick: u64) -> bool {
        let slab = &mut self.table[id as usize];
        let slot = ((offset - slab.start) / slab.bytes) as usize;
        let (was_full, bytes) = (slab.free == 0, slab.bytes);
        slab.free |= 1 << slot;
        slab.streams[slot] = stream;
        slab.ticks[slot] = match seeded!("slot-forgets-its-history") {
            true => 0,
            false => tick,
        };
        let (is_empty, key) = (slab.free == slab.all(), slab.key(id));
        if was_full {
            self.partial.insert(key);
        }
        self.count(stream, true);
        self.free_bytes += bytes;
        self.out[class_of(bytes)] -= 1;
        is_empty
    }

    /// Takes a slab without a slot out from the books; gives its extent.
    fn remove(&mut self, id: Id) -> Id {
        let slab = &mut self.table[id as usize];
        let key = slab.key(id);
        let extent = std::mem::replace(&mut slab.extent, NONE);
        let streams = slab.streams;
        let slots = slab.slots as usize;
        self.free_bytes -= slots as u64 * slab.bytes;
        streams[..slots].iter().for_each(|&s| self.count(s, false));
        self.partial.remove(&key);
        self.mixed.remove(&id);
        self.spare.push(id);
        extent
    }
}

impl Core {
    /// A block or slot of `bytes`, whichever that size is, that is ready for `stream`.
    pub(crate) fn take_ready_of(&mut self, stream: Slot, bytes: u64) -> Result<Option<Grant>> {
        if is_slot(bytes) {
            self.take_slot_ready(stream, bytes)
        } else {
            self.take_ready(stream, bytes)
        }
    }

    /// As [`Core::take_ready_of`], in new memory, as [`Core::take_overlapping`].
    pub(crate) fn take_overlapping_of(
        &mut self,
        stream: Slot,
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
    pub(crate) fn take_slot_ready(&mut self, stream: Slot, bytes: u64) -> Result<Option<Grant>> {
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
    pub(crate) fn take_slot_any(&mut self, stream: Slot, bytes: u64) -> Result<Option<Grant>> {
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
        stream: Slot,
        bytes: u64,
    ) -> Result<Option<Grant>> {
        let slots = self.slabs.wanted(bytes);
        match self.take_overlapping(stream, slots * bytes)? {
            Some(grant) => self.make_slab(stream, grant, bytes, slots),
            None => Ok(None),
        }
    }

    /// A free slot, its own stream's slabs first, then the others'; behind a wait if `pending`.
    fn find_slot(&mut self, stream: Slot, bytes: u64, pending: bool) -> Result<Option<Grant>> {
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
                        || self.is_behind(stream, &slab.history(slot))
                };
                if let Some(slot) = free.find(usable) {
                    found = Some((key.3, slot, slab.history(slot)));
                    break;
                }
            }
            if let Some((id, slot, history)) = found {
                if pending {
                    self.wait_for(stream, &history)?;
                }
                self.count_slot(stream, bytes, &history, pending);
                return Ok(Some(self.slabs.take(id, slot, stream)));
            }
        }
        Ok(None)
    }

    fn count_slot(&mut self, stream: Slot, bytes: u64, history: &Extent, pending: bool) {
        let (steps, told) = (&mut self.steps, &mut self.told);
        if pending {
            steps.stream_wait += 1;
            told.note(Told::StreamWait(bytes));
        } else if matches!(history.slot, s if s == stream || s == FRESH) {
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
        stream: Slot,
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
        stream: Slot,
        most: u64,
        taken: &mut Vec<Cached>,
    ) {
        let slab = &self.slabs.table[grant.id as usize];
        let bytes = slab.bytes;
        for slot in slab.free_slots().take(most as usize) {
            let slab = &self.slabs.table[grant.id as usize];
            if self.is_behind(stream, &slab.history(slot)) {
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
    pub(crate) fn give_slot(&mut self, block: &Cached, stream: Slot, tick: u64) {
        let offset = block.addr - self.arena.base();
        if self.slabs.give(block.id, offset, stream, tick) {
            self.release_slab(block.id);
        }
    }

    /// Gives a slab without a slot out back, if one stream's history covers it.
    fn release_slab(&mut self, id: Id) {
        let slab = &self.slabs.table[id as usize];
        let mut pending: Option<(Slot, u64)> = None;
        for slot in slab.free_slots() {
            let history = slab.history(slot);
            match &mut pending {
                Some((stream, tick)) if *stream == history.slot => *tick = history.tick.max(*tick),
                _ if is_done(&self.streams, &history) => {}
                Some(_) => {
                    if !seeded!("slab-forgets-one-stream") {
                        self.slabs.mixed.insert(id);
                        return;
                    }
                }
                None => pending = Some((history.slot, history.tick)),
            }
        }
        let (stream, tick) = pending.unwrap_or((FRESH, 0));
        let extent = self.slabs.remove(id);
        self.give(extent, stream, tick);
    }

    /// Gives slabs back that several streams use, now that `stream` waits for all of them.
    pub(crate) fn release_mixed(&mut self, stream: Slot) -> Result<()> {
        while let Some(&id) = self.slabs.mixed.first() {
            let slab = &self.slabs.table[id as usize];
            let histories: Vec<Extent> = slab.free_slots().map(|s| slab.history(s)).collect();
            for history in &histories {
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
                || extent.state != super::extents::State::Taken
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
