//! Slabs: blocks cut into slots of one size, for small requests.
//!
//! A slab is a live block of the pool: it is not moved, and its handle is not mapped elsewhere. Stream caches hold
//! free slots like free blocks. A slot that a cache gives up comes back here with its own epoch, like a hole.
//!
//! # Where slots come from
//!
//! A request takes a ready slot of the slab at the lowest address; slabs made for its stream come first. So live
//! slots gather at low addresses and other slabs empty. An empty slab is freed at once. If several streams still use
//! it, it is freed once they are done, or when a request needs the memory and waits for them: a hole has one epoch.
//!
//! A slab has as few slots as fill whole units. It has more if many of its class are allocated: a quarter of them, up
//! to [`MOST_SLOTS`], and up to [`SLAB_BYTES`] or [`CHEAP_SLOTS`], whichever is more.

use std::collections::{BTreeSet, HashMap};

use super::size_class::{batch, class_of};
use super::{Epoch, Extent, Extents, Grant, Id, NONE, State, StreamIndex, ensure};

/// Most slots of a slab: the bits of a word.
pub(crate) const MOST_SLOTS: u64 = 64;

/// Most bytes of a slab, unless [`CHEAP_SLOTS`] are more.
pub(crate) const SLAB_BYTES: u64 = 16 << 10;

/// Enough slots that a slab's host memory is small for each.
pub(crate) const CHEAP_SLOTS: u64 = 16;

/// At most 64 bytes of host memory a slot: the record, the extent and two keys in a tree.
const _: () = {
    let record = size_of::<Slab>() + size_of::<Extent>() + 2 * size_of::<Key>();
    assert!(record as u64 / CHEAP_SLOTS <= 64);
};

pub(crate) struct Slab {
    /// `NONE` for a spare record.
    extent: Id,
    start: u64,
    bytes: u64,
    slots: u32,
    owner: StreamIndex,
    /// Free slots by bit.
    free: u64,
    /// For a free slot, the stream that its tick counts for; else the stream that allocated it.
    streams: [StreamIndex; MOST_SLOTS as usize],
    ticks: [u64; MOST_SLOTS as usize],
}

impl Slab {
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.slots)
    }

    /// The work after which nothing uses a free slot.
    pub(crate) fn history(&self, slot: usize) -> Epoch {
        Epoch::new(self.streams[slot], self.ticks[slot])
    }

    fn key(&self, id: Id) -> Key {
        (self.owner, class_of(self.bytes), self.start, id)
    }

    fn addr(&self, slot: usize) -> u64 {
        self.start + slot as u64 * self.bytes
    }

    pub(crate) fn free_slots(&self) -> impl Iterator<Item = usize> + use<> {
        let above = |&free: &u64| Some(free & (free - 1)).filter(|&rest| rest != 0);
        let first = Some(self.free).filter(|&free| free != 0);
        std::iter::successors(first, above).map(|free| free.trailing_zeros() as usize)
    }

    pub(crate) fn epochs(&self) -> impl Iterator<Item = Epoch> {
        self.free_slots().map(|slot| self.history(slot))
    }

    /// For each slot in address order: offset, bytes, stream, whether it is free.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, u64, StreamIndex, bool)> {
        (0..self.slots as usize).map(|slot| {
            let free = self.free >> slot & 1 == 1;
            (self.addr(slot), self.bytes, self.streams[slot], free)
        })
    }
}

/// Owner, class, start and record of a slab: requests look at slabs in this order.
type Key = (StreamIndex, usize, u64, Id);

/// A free slot: its slab, its number there, and its history.
pub(crate) type Found = (Id, usize, Epoch);

#[derive(Default)]
pub(crate) struct Slabs {
    table: Vec<Slab>,
    spare: Vec<Id>,
    partial: BTreeSet<Key>,
    /// Allocated slots by class.
    out: Vec<u64>,
    free_bytes: u64,
    /// Free slots by the stream of their epoch.
    of_stream: Vec<u64>,
}

fn count(counts: &mut Vec<u64>, at: usize) -> &mut u64 {
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    &mut counts[at]
}

impl Slabs {
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Whether no free slot waits for work of `stream`.
    pub(crate) fn has_none(&self, stream: StreamIndex) -> bool {
        self.of_stream.get(stream as usize).is_none_or(|&n| n == 0)
    }

    /// The slabs that are empty, but that several streams still use.
    pub(crate) fn mixed(&self) -> Vec<Id> {
        let ids = self.partial.iter().map(|key| key.3);
        let is_empty = |&id: &Id| self.get(id).free == self.get(id).all();
        ids.filter(is_empty).collect()
    }

    pub(crate) fn get(&self, id: Id) -> &Slab {
        &self.table[id as usize]
    }

    /// The first free slot of `bytes` with a `usable` epoch. Looks at up to `looks` slabs of each owner in turn.
    pub(crate) fn find(
        &self,
        bytes: u64,
        owners: impl IntoIterator<Item = StreamIndex>,
        looks: usize,
        usable: impl Fn(Epoch) -> bool,
    ) -> Option<Found> {
        let class = class_of(bytes);
        owners.into_iter().find_map(|owner| {
            let slabs = (owner, class, 0, 0)..(owner, class + 1, 0, 0);
            self.partial.range(slabs).take(looks).find_map(|key| {
                let slab = self.get(key.3);
                let slot = slab.free_slots().find(|&it| usable(slab.history(it)))?;
                Some((key.3, slot, slab.history(slot)))
            })
        })
    }

    pub(crate) fn by_extent(&self) -> HashMap<Id, Id> {
        let slabs = (0..).zip(&self.table);
        let used = slabs.filter(|(_, slab)| slab.extent != NONE);
        used.map(|(id, slab)| (slab.extent, id)).collect()
    }

    /// How many slots of `bytes` the next slab has.
    pub(crate) fn wanted(&self, bytes: u64) -> u64 {
        let least = batch(bytes);
        let most = (SLAB_BYTES / bytes).clamp(CHEAP_SLOTS, MOST_SLOTS) / least * least;
        let out = self.out.get(class_of(bytes)).map_or(0, |&out| out);
        let part = out / 4 / least * least;
        part.clamp(least, most.max(least))
    }

    /// Makes a slab of a block that was free behind `epoch`, for the stream of that.
    pub(crate) fn add(&mut self, block: Grant, bytes: u64, slots: u64, epoch: Epoch) -> Id {
        let owner = epoch.stream;
        let slab = Slab {
            extent: block.id,
            start: block.offset,
            bytes,
            slots: slots as u32,
            owner,
            free: u64::MAX >> (64 - slots),
            streams: [owner; MOST_SLOTS as usize],
            ticks: [epoch.tick; MOST_SLOTS as usize],
        };
        let id = self.spare.pop().unwrap_or(self.table.len() as Id);
        self.free_bytes += slots * bytes;
        *count(&mut self.of_stream, owner as usize) += slots;
        self.partial.insert(slab.key(id));
        match self.table.get_mut(id as usize) {
            Some(spare) => *spare = slab,
            None => self.table.push(slab),
        }
        id
    }

    pub(crate) fn take(&mut self, id: Id, slot: usize, stream: StreamIndex) -> Grant {
        let slab = &mut self.table[id as usize];
        slab.free &= !(1 << slot);
        let before = std::mem::replace(&mut slab.streams[slot], stream);
        if slab.free == 0 {
            self.partial.remove(&slab.key(id));
        }
        *count(&mut self.of_stream, before as usize) -= 1;
        *count(&mut self.out, class_of(slab.bytes)) += 1;
        self.free_bytes -= slab.bytes;
        let offset = slab.addr(slot);
        Grant { id, offset }
    }

    /// Frees the slot at `offset`; true if the slab is empty now.
    pub(crate) fn give(&mut self, id: Id, offset: u64, epoch: Epoch) -> bool {
        let Epoch { stream, tick } = epoch;
        let slab = &mut self.table[id as usize];
        let slot = ((offset - slab.start) / slab.bytes) as usize;
        if slab.free == 0 {
            self.partial.insert(slab.key(id));
        }
        slab.free |= 1 << slot;
        slab.streams[slot] = stream;
        slab.ticks[slot] = tick;
        *count(&mut self.of_stream, stream as usize) += 1;
        *count(&mut self.out, class_of(slab.bytes)) -= 1;
        self.free_bytes += slab.bytes;
        slab.free == slab.all()
    }

    /// Removes an empty slab; returns its extent.
    pub(crate) fn remove(&mut self, id: Id) -> Id {
        let slab = &mut self.table[id as usize];
        self.partial.remove(&slab.key(id));
        self.spare.push(id);
        self.free_bytes -= u64::from(slab.slots) * slab.bytes;
        for &stream in &slab.streams[..slab.slots as usize] {
            *count(&mut self.of_stream, stream as usize) -= 1;
        }
        std::mem::replace(&mut slab.extent, NONE)
    }

    pub(crate) fn check(&self, extents: &Extents) -> Result<(), String> {
        let (mut free, mut of_stream) = (0, vec![0; self.of_stream.len()]);
        let slabs = (0..).zip(&self.table);
        for (id, slab) in slabs.filter(|(_, slab)| slab.extent != NONE) {
            let extent = extents.get(slab.extent);
            let bytes = u64::from(slab.slots) * slab.bytes;
            let is_its = (extent.start, extent.bytes) == (slab.start, bytes);
            ensure!(is_its && extent.state == State::Allocated =>
                "slab {id} is not its extent {extent:?}");
            let is_partial = self.partial.contains(&slab.key(id));
            let agrees = slab.free & !slab.all() == 0 && is_partial == (slab.free != 0);
            ensure!(agrees => "slab {id}: {:#x} are free", slab.free);
            free += u64::from(slab.free.count_ones()) * slab.bytes;
            let epochs = slab.epochs();
            epochs.for_each(|it| of_stream[it.stream as usize] += 1);
        }
        let counted = self.free_bytes;
        ensure!(free == counted && of_stream == self.of_stream =>
            "slots have {free} bytes free, counted {counted}");
        Ok(())
    }
}

#[cfg(test)]
mod tests;
