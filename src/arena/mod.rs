//! One reserved range of device addresses with physical memory mapped into it.
//!
//! An arena reserves address space once, several times the device's memory, and maps physical handles
//! (*frames*) where the pool wants memory. A frame is mapped whole, at a multiple of the device's granule. It
//! can be mapped at another place before its old mapping is removed, so memory can change its address in stream
//! order. When the work that used the old mapping is done, its addresses are free, but the mapping stays
//! until something else is mapped there. Programs repeat themselves: of the handles that the rl trace
//! remaps, half go back to their old place.
//!
//! # Cost
//!
//! The driver's time is per frame, not per byte. On an H200 remapping a frame takes about 50 µs: 28
//! for access to the new mapping and 19 to unmap the old one, the same for frames of 2 and of 128 MiB. A new
//! frame takes 13 µs plus its access. The driver serialises such calls: with 2, 4 and 8 threads at once they
//! took 44 to 66 µs per frame.
//!
//! A growing buffer has its own address range outside the arena's. Its handles are frames like the others: an
//! offset may be any address, relative to the start of the arena's range.
//!
//! A [`Site`] makes the driver's calls and needs no lock. The arena records their results. The pool decides
//! which addresses are free. After a failed call the arena's records still match the driver's state exactly.

mod frames;
mod site;
mod sleep;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::device::{Addr, Device, Phys};
use crate::error::{Error, Result};

use frames::Frames;
pub(crate) use frames::{Frame, FrameId, HandleId};
pub(crate) use site::{Made, Site};

/// Driver calls that an arena has made, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ArenaCalls {
    /// Physical handles created.
    pub created: u64,
    /// Mappings made, first mappings and remaps together.
    pub mapped: u64,
    /// Mappings of handles that had been mapped before, at any address.
    pub remapped: u64,
    /// Mappings removed.
    pub unmapped: u64,
    /// Physical handles released.
    pub released: u64,
}

/// An old mapping.
#[derive(Debug, Clone, Copy)]
struct Stale {
    bytes: u64,
    handle: HandleId,
    /// The number of the keep, if it is kept: see [`Arena::keep`].
    kept: Option<u64>,
}

/// An old mapping that is kept for its handle to return, at an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    handle: HandleId,
}

impl Kept {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Whether it maps `frame` at `offset`.
    pub(crate) fn is_of(&self, frame: &Frame, offset: u64) -> bool {
        self.start == offset && self.handle == frame.handle
    }
}

/// A handle given up: its memory is freed once it is released and has no old mapping.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    bytes: u64,
    released: bool,
}

/// The records of an arena; see the module documentation. Offsets count bytes from the start of the range,
/// and wrap around below it.
pub(crate) struct Arena {
    site: Site,
    span: u64,
    granule: u64,
    frames: Frames,
    /// Old mappings that still exist, by offset.
    stale: BTreeMap<u64, Stale>,
    /// Number of old mappings per handle.
    stale_of: HashMap<HandleId, u32>,
    /// The offsets of kept mappings, by the number of the keep.
    kept: BTreeMap<u64, u64>,
    keeps: u64,
    /// Handles given up whose memory the device has not got back yet.
    leaving: HashMap<HandleId, Leaving>,
    /// Those of them that the device refused to release, to be offered again.
    refused: Vec<(HandleId, Phys)>,
    /// Number of handles so far.
    handles: HandleId,
    /// Bytes of all frames that do not sleep.
    mapped: u64,
    /// Part of `mapped`: bytes of frames outside the range.
    beside: u64,
    /// Bytes of frames that sleep.
    asleep: u64,
    /// Bytes of the handles in `leaving`.
    left_over: u64,
    released: u64,
    calls: ArenaCalls,
}

impl Arena {
    /// Reserves `span` bytes of address space, a multiple of the granule; maps nothing. Later mappings are
    /// accessible to `peers` too.
    pub(crate) fn new(device: &Device, span: u64, peers: &[u32]) -> Result<Self> {
        let granule = device.info().granule;
        if granule == 0 || span == 0 || !span.is_multiple_of(granule) {
            return Err(Error::invalid(
                "span",
                format!("{span} is not a multiple of the granule {granule}"),
            ));
        }
        let site = Site::reserve(device, span, peers)?;
        Ok(Self::empty(site, span, granule))
    }

    fn empty(site: Site, span: u64, granule: u64) -> Self {
        Self {
            site,
            span,
            granule,
            frames: Frames::new(span, granule),
            stale: BTreeMap::new(),
            stale_of: HashMap::new(),
            kept: BTreeMap::new(),
            keeps: 0,
            leaving: HashMap::new(),
            refused: Vec::new(),
            handles: 0,
            mapped: 0,
            beside: 0,
            asleep: 0,
            left_over: 0,
            released: 0,
            calls: ArenaCalls::default(),
        }
    }

    /// Moves everything into the returned arena and leaves an empty one here.
    pub(crate) fn take(&mut self) -> Self {
        let mut empty = Self::empty(self.site.clone(), 0, self.granule);
        empty.calls = self.calls;
        std::mem::replace(self, empty)
    }

    /// The caller of the driver for the arena's addresses.
    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// Device address of offset 0.
    pub(crate) fn base(&self) -> Addr {
        self.site.base()
    }

    /// Bytes of the smallest frame.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// Physical bytes in use, as the device counts them.
    pub(crate) fn reserved(&self) -> u64 {
        self.mapped + self.left_over
    }

    /// Part of [`Arena::reserved`]: bytes in frames.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Part of [`Arena::mapped`]: bytes of frames outside the arena's range, which belong to growing buffers.
    pub(crate) fn beside(&self) -> u64 {
        self.beside
    }

    /// The rest of [`Arena::reserved`]: bytes of handles given up that an old mapping keeps or that the
    /// device refused to release.
    pub(crate) fn left_over(&self) -> u64 {
        self.left_over
    }

    /// Bytes created and bytes released so far.
    pub(crate) fn flow(&self) -> (u64, u64) {
        (self.reserved() + self.released, self.released)
    }

    /// Driver calls made so far.
    pub(crate) fn calls(&self) -> ArenaCalls {
        self.calls
    }

    /// The frame within the arena's range that is mapped at `offset`, if there is one.
    pub(crate) fn frame_at(&self, offset: u64) -> Option<(FrameId, Frame)> {
        self.frames.at(offset)
    }

    /// A frame by its number.
    pub(crate) fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id)
    }

    /// Records a handle that was made as a frame.
    ///
    /// # Errors
    /// Any error of the driver if the handle could not be mapped; it is then released, or offered again
    /// later.
    pub(crate) fn adopt(&mut self, made: Made) -> Result<FrameId> {
        let (offset, bytes) = (made.offset, made.bytes);
        let handle = self.enter(made)?;
        Ok(self.frames.add(handle, offset, bytes))
    }

    /// Records a handle that was made, if it was mapped.
    fn enter(&mut self, made: Made) -> Result<(HandleId, Phys)> {
        let bytes = made.bytes;
        self.calls.created += 1;
        self.handles += 1;
        let handle = self.handles;
        if let Some((error, given_back)) = made.unmapped {
            // A handle that the device released at once does not count as left over: the device has as
            // much free memory as when it refused the mapping.
            if given_back {
                self.calls.released += 1;
            } else {
                self.give_up(handle, bytes);
                self.refused.push((handle, made.phys));
            }
            return Err(error);
        }
        self.calls.mapped += 1;
        self.mapped += bytes;
        self.beside += self.part_beside(made.offset, bytes);
        Ok((handle, made.phys))
    }

    fn part_beside(&self, offset: u64, bytes: u64) -> u64 {
        if offset < self.span { 0 } else { bytes }
    }

    fn note_stale(&mut self, offset: u64, bytes: u64, handle: HandleId) {
        let kept = None;
        let stale = Stale {
            bytes,
            handle,
            kept,
        };
        self.stale.insert(offset, stale);
        *self.stale_of.entry(handle).or_default() += 1;
    }

    /// Keeps the old mapping at `offset`, whose work is done. Its addresses are free, and its handle can
    /// return to them without a driver call. Returns `false` if it must be unmapped instead, because its
    /// handle was given up.
    pub(crate) fn keep(&mut self, offset: u64) -> bool {
        let Some(stale) = self.stale.get_mut(&offset) else {
            return false;
        };
        if self.leaving.contains_key(&stale.handle) {
            return false;
        }
        stale.kept = Some(self.keeps);
        self.kept.insert(self.keeps, offset);
        self.keeps += 1;
        true
    }

    /// Stops keeping the old mapping at `offset`: the caller unmaps it, or makes it the frame's place.
    pub(crate) fn unkeep(&mut self, offset: u64) {
        let stale = self.stale.get_mut(&offset);
        if let Some(kept) = stale.and_then(|stale| stale.kept.take()) {
            self.kept.remove(&kept);
        }
    }

    /// The kept mappings that overlap [`from`, `to`), the highest first.
    pub(crate) fn kept_in(&self, from: u64, to: u64) -> impl Iterator<Item = Kept> + '_ {
        let below = self.stale.range(..to).rev().map(kept);
        below
            .take_while(move |it| it.end() > from)
            .filter(|it| self.stale[&it.start].kept.is_some())
    }

    /// The kept mappings of `handles`.
    pub(crate) fn kept_of(&self, handles: &HashSet<HandleId>) -> Vec<Kept> {
        let each = self.stale.iter().map(kept);
        each.filter(|it| handles.contains(&it.handle) && self.stale[&it.start].kept.is_some())
            .collect()
    }

    /// If there are more than `most` kept mappings, the oldest of them beyond that number.
    pub(crate) fn kept_beyond(&self, most: usize) -> Vec<Kept> {
        let excess = self.kept.len().saturating_sub(most);
        let each = self.kept.values().take(excess);
        each.filter_map(|offset| self.stale.get_key_value(offset).map(kept))
            .collect()
    }

    /// Removes the record of the old mapping at `offset`; returns its handle.
    fn forget_stale(&mut self, offset: u64) -> Option<HandleId> {
        self.unkeep(offset);
        let handle = self.stale.remove(&offset)?.handle;
        if let Entry::Occupied(mut count) = self.stale_of.entry(handle) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(handle)
    }

    /// Records that the frame was mapped at `offset` too, which is its place from now on. Its old mapping
    /// exists until it is [unmapped](Arena::stale_unmapped).
    pub(crate) fn remapped(&mut self, id: FrameId, offset: u64) {
        let frame = self.frames.get(id);
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.frames.rehome(id, offset);
        self.note_stale(frame.start, frame.bytes, frame.handle);
    }

    /// Maps the frame at `offset` too; its place stays the same. The second mapping exists until it is
    /// [unmapped](Arena::stale_unmapped), or becomes the frame's place through [`Arena::settle`].
    pub(crate) fn map_again(&mut self, id: FrameId, offset: u64) -> Result<()> {
        let frame = self.frames.get(id);
        self.site.map(offset, frame.bytes, frame.phys)?;
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.note_stale(offset, frame.bytes, frame.handle);
        Ok(())
    }

    /// Makes the frame's mapping at `offset` its place. The other mapping becomes the old one, until it is
    /// [unmapped](Arena::stale_unmapped) or [kept](Arena::keep).
    pub(crate) fn settle(&mut self, id: FrameId, offset: u64) {
        let frame = self.frames.get(id);
        self.forget_stale(offset);
        self.frames.rehome(id, offset);
        self.note_stale(frame.start, frame.bytes, frame.handle);
    }

    /// Records that the old mapping at `offset` was unmapped.
    pub(crate) fn stale_unmapped(&mut self, offset: u64) {
        self.calls.unmapped += 1;
        if let Some(handle) = self.forget_stale(offset) {
            self.forget_if_gone(handle);
        }
    }

    /// Records that the frame was unmapped and its handle offered to the device, which released it or
    /// refused. While an old mapping of it exists, the device keeps its memory, which counts as held until
    /// then.
    pub(crate) fn frame_gone(&mut self, id: FrameId, released: bool) {
        let frame = self.frames.get(id);
        self.frames.remove(id);
        self.leave(frame, released);
    }

    /// Records that a handle was unmapped and offered to the device.
    fn leave(&mut self, frame: Frame, released: bool) {
        self.calls.unmapped += 1;
        self.mapped -= frame.bytes;
        self.beside -= self.part_beside(frame.start, frame.bytes);
        self.give_up(frame.handle, frame.bytes);
        self.offered(frame.handle, frame.phys, released);
    }

    fn give_up(&mut self, handle: HandleId, bytes: u64) {
        let released = false;
        self.leaving.insert(handle, Leaving { bytes, released });
        self.left_over += bytes;
    }

    /// Takes the handles that the device refused, to be offered again: see [`Arena::offered`].
    pub(crate) fn take_refused(&mut self) -> Vec<(HandleId, Phys)> {
        std::mem::take(&mut self.refused)
    }

    /// Records that a handle given up was offered to the device, which released it or refused.
    pub(crate) fn offered(&mut self, handle: HandleId, phys: Phys, released: bool) {
        if !released {
            self.refused.push((handle, phys));
            return;
        }
        self.calls.released += 1;
        if let Some(leaving) = self.leaving.get_mut(&handle) {
            leaving.released = true;
        }
        self.forget_if_gone(handle);
    }

    /// Removes the record of a handle given up if its memory is freed.
    fn forget_if_gone(&mut self, handle: HandleId) {
        let stands = self.stale_of.contains_key(&handle);
        if let Entry::Occupied(leaving) = self.leaving.entry(handle)
            && leaving.get().released
            && !stands
        {
            let Leaving { bytes, .. } = leaving.remove();
            self.left_over -= bytes;
            self.released += bytes;
        }
    }

    /// Bytes of the frames within the arena's range, if the records are consistent; for checks.
    pub(crate) fn check(&self) -> std::result::Result<u64, String> {
        let (all, within) = self.frames.check()?;
        if all != self.mapped + self.asleep {
            return Err(format!(
                "frames hold {all} bytes, {} bytes counted, {} asleep",
                self.mapped, self.asleep
            ));
        }
        let left: u64 = self.leaving.values().map(|leaving| leaving.bytes).sum();
        if left != self.left_over {
            return Err(format!(
                "handles given up hold {left} bytes, {} counted",
                self.left_over
            ));
        }
        Ok(within)
    }
}

fn kept((&start, stale): (&u64, &Stale)) -> Kept {
    Kept {
        start,
        bytes: stale.bytes,
        handle: stale.handle,
    }
}

impl Drop for Arena {
    /// Releases everything. The pool has waited for the work that used it.
    fn drop(&mut self) {
        if self.span == 0 {
            return;
        }
        for (&offset, &Stale { bytes, .. }) in &self.stale {
            // A mapping that the driver refuses to unmap keeps its addresses; no memory of ours is lost.
            let _ = self.site.unmap(offset, bytes);
        }
        for (_, frame) in self.frames.iter().filter(|(_, frame)| frame.awake) {
            let _ = self.site.unmap(frame.start, frame.bytes);
            let _ = self.site.release(frame.phys);
        }
        for &(_, phys) in &self.refused {
            let _ = self.site.release(phys);
        }
        let _ = self.site.unreserve(self.span);
    }
}
