//! One reserved range of device addresses with physical memory mapped into it.
//!
//! An arena reserves several times the device's memory in addresses, once, and maps physical
//! handles (*frames*) where the pool wants memory. A frame is mapped whole, at a multiple of the
//! device's granule, and can be mapped again elsewhere before its old mapping is taken down: so
//! memory can change its address in stream order. When the work that used the old mapping is done, its
//! addresses are free, but the mapping is kept until something else is mapped there: programs repeat
//! themselves, and half of the handles that the rl trace maps elsewhere go back to where they were.
//!
//! # What it costs
//!
//! The driver is paid by the frame, not by the byte. On an H200 a frame mapped elsewhere takes some 50
//! us: 28 for access to the new mapping, 19 to take down the old one, the same for frames of 2 and of
//! 128 MiB; a new frame takes 13 and its access. The driver makes such calls one after another: 2, 4
//! and 8 threads at once needed 44 to 66 us a frame.
//!
//! A growing buffer has a range of its own beside the arena's. Its handles are frames like the others: an
//! offset may be any address, seen from the start of the arena's range.
//!
//! The driver's calls are made by a [`Site`], which needs no lock; the arena keeps the books of what came of
//! them, and which addresses are free is the pool's business. After a failed call the books say what is
//! mapped, exactly.

mod frames;
mod site;
mod sleep;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::device::{Addr, Device, Phys};
use crate::error::{Error, Result};
use crate::seeded::seeded;

use frames::Frames;
pub(crate) use frames::{Frame, FrameId, HandleId};
pub(crate) use site::{Made, Site};

/// Driver calls an arena has made, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ArenaCalls {
    /// Physical handles created.
    pub created: u64,
    /// Mappings made, first mappings and remaps together.
    pub mapped: u64,
    /// Mappings made of handles that had been mapped before, wherever that was.
    pub remapped: u64,
    /// Mappings taken down.
    pub unmapped: u64,
    /// Physical handles given back to the device.
    pub released: u64,
}

/// An old mapping.
#[derive(Debug, Clone, Copy)]
struct Stale {
    bytes: u64,
    handle: HandleId,
    /// When it was kept: see [`Arena::keep`].
    kept: Option<u64>,
}

/// An old mapping that is kept, at an offset.
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
        let same = self.handle == frame.handle || seeded!("kept-mapping-of-another-handle");
        self.start == offset && same
    }
}

/// A handle given up: its memory is gone once it is released and no old mapping of it stands.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    bytes: u64,
    released: bool,
}

/// See the module documentation. Offsets count bytes from the start of the range, and wrap below it.
pub(crate) struct Arena {
    site: Site,
    span: u64,
    granule: u64,
    frames: Frames,
    /// Old mappings still standing, by offset.
    stale: BTreeMap<u64, Stale>,
    /// How many of them each handle has.
    stale_of: HashMap<HandleId, u32>,
    /// Those that are kept, by when they were.
    kept: BTreeMap<u64, u64>,
    keeps: u64,
    /// Handles given up whose memory the device has not back yet.
    leaving: HashMap<HandleId, Leaving>,
    /// Of them, those to be released: the device would not take them back.
    refused: Vec<(HandleId, Phys)>,
    /// Handles so far.
    handles: HandleId,
    /// Bytes of all frames, but for those that sleep.
    mapped: u64,
    /// Of these, bytes of frames beside the range.
    beside: u64,
    /// Bytes of frames that sleep.
    asleep: u64,
    /// Bytes of the handles given up.
    left_over: u64,
    released: u64,
    calls: ArenaCalls,
}

impl Arena {
    /// Reserves `span` bytes of addresses, a multiple of the granule; maps nothing. What is mapped later is
    /// for `peers` too.
    pub(crate) fn new(device: &Device, span: u64, peers: &[u32]) -> Result<Self> {
        let granule = device.info().granule;
        if granule == 0 || span == 0 || !span.is_multiple_of(granule) {
            return Err(Error::invalid(
                "span",
                format!("{span} is no multiple of the granule {granule}"),
            ));
        }
        let base = device.backend().reserve(span)?;
        let arena = Self::empty(Site::new(device, base), span, granule);
        if !peers.is_empty() {
            device.backend().share(base, span, peers)?;
        }
        Ok(arena)
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

    /// All of it as another, with nothing left here.
    pub(crate) fn take(&mut self) -> Self {
        let mut empty = Self::empty(self.site.clone(), 0, self.granule);
        empty.calls = self.calls;
        std::mem::replace(self, empty)
    }

    /// Who makes the driver's calls on the arena's addresses.
    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// Device address of offset 0.
    pub(crate) fn base(&self) -> Addr {
        self.site.base()
    }

    /// Smallest frame, bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// Physical bytes held, as the device counts them.
    pub(crate) fn reserved(&self) -> u64 {
        self.mapped + self.left_over
    }

    /// Of these, bytes in frames.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Of these, bytes of frames beside the arena's range, which are growing buffers'.
    pub(crate) fn beside(&self) -> u64 {
        self.beside
    }

    /// The rest of what is held: bytes of handles given up, which an old mapping keeps or the device would not take
    /// back.
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

    /// The frame of the arena's range that is mapped at `offset`, if one is.
    pub(crate) fn frame_at(&self, offset: u64) -> Option<(FrameId, Frame)> {
        self.frames.at(offset)
    }

    /// A frame by its number.
    pub(crate) fn frame(&self, id: FrameId) -> Frame {
        self.frames.get(id)
    }

    /// The frame's offset and length in bytes.
    pub(crate) fn extent_of(&self, frame: &Frame) -> (u64, u64) {
        (frame.start, frame.bytes)
    }

    /// Books a handle that was made as a frame.
    ///
    /// # Errors
    /// What the driver said where the handle could not be mapped; it is given back then, or offered again.
    pub(crate) fn adopt(&mut self, made: Made) -> Result<FrameId> {
        let (offset, bytes) = (made.offset, made.bytes);
        let handle = self.enter(made)?;
        Ok(self.frames.add(handle, offset, bytes))
    }

    /// Books a handle that was made, if it was mapped.
    fn enter(&mut self, made: Made) -> Result<(HandleId, Phys)> {
        let bytes = made.bytes;
        self.calls.created += 1;
        self.handles += 1;
        let handle = self.handles;
        if let Some((error, given_back)) = made.unmapped {
            self.give_up(handle, bytes);
            self.offered(handle, made.phys, given_back);
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

    /// Keeps the old mapping at `offset`, whose work is done: its addresses are free, and its handle may
    /// come back to them without a call of the driver's. `false` where it is to be taken down instead,
    /// as its handle was given up.
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

    /// Keeps the old mapping at `offset` no more: the caller takes it down, or makes it the frame's place.
    pub(crate) fn unkeep(&mut self, offset: u64) {
        let stale = self.stale.get_mut(&offset);
        if let Some(kept) = stale.and_then(|stale| stale.kept.take()) {
            self.kept.remove(&kept);
        }
    }

    /// The kept mappings that share a byte with [`from`, `to`), the highest first.
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

    /// Those kept longest, of more than `most`.
    pub(crate) fn kept_beyond(&self, most: usize) -> Vec<Kept> {
        let excess = self.kept.len().saturating_sub(most);
        let each = self.kept.values().take(excess);
        each.filter_map(|offset| self.stale.get_key_value(offset).map(kept))
            .collect()
    }

    /// Takes the old mapping at `offset` off the books; gives its handle.
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

    /// Books that the frame was mapped at `offset` too, which is its place from now on. Its old mapping
    /// stands until it is [taken down](Arena::stale_unmapped).
    pub(crate) fn remapped(&mut self, id: FrameId, offset: u64) {
        let frame = self.frames.get(id);
        let (old, bytes) = self.extent_of(&frame);
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.frames.rehome(id, offset);
        self.note_stale(old, bytes, frame.handle);
    }

    /// Maps the frame at `offset` too; its place stays what it is. The second mapping stands until it is
    /// [taken down](Arena::stale_unmapped), or becomes the frame's place by [`Arena::settle`].
    pub(crate) fn map_again(&mut self, id: FrameId, offset: u64) -> Result<()> {
        let frame = self.frames.get(id);
        let (_, bytes) = self.extent_of(&frame);
        self.site.map(offset, bytes, frame.phys)?;
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.note_stale(offset, bytes, frame.handle);
        Ok(())
    }

    /// Makes the mapping of the frame at `offset` its place, and the other the one that stands until it
    /// is [taken down](Arena::stale_unmapped) or [kept](Arena::keep).
    pub(crate) fn settle(&mut self, id: FrameId, offset: u64) {
        let frame = self.frames.get(id);
        let (old, bytes) = self.extent_of(&frame);
        self.forget_stale(offset);
        self.frames.rehome(id, offset);
        self.note_stale(old, bytes, frame.handle);
    }

    /// Books that the old mapping at `offset` was taken down.
    pub(crate) fn stale_unmapped(&mut self, offset: u64) {
        self.calls.unmapped += 1;
        if let Some(handle) = self.forget_stale(offset) {
            self.forget_if_gone(handle);
        }
    }

    /// Books that the frame was unmapped and its handle offered to the device, which took it back or did
    /// not. While an old mapping of it stands the device keeps its memory, which is held until then.
    pub(crate) fn frame_gone(&mut self, id: FrameId, released: bool) {
        let frame = self.frames.get(id);
        self.frames.remove(id);
        self.leave(frame, released);
    }

    /// Books that a handle was unmapped and offered to the device.
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

    /// Takes out what the device would not take back, to be offered again: see [`Arena::offered`].
    pub(crate) fn take_refused(&mut self) -> Vec<(HandleId, Phys)> {
        std::mem::take(&mut self.refused)
    }

    /// Books that a handle given up was offered to the device, which took it back or did not.
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

    /// Takes a handle given up off the books if its memory is gone.
    fn forget_if_gone(&mut self, handle: HandleId) {
        let stands = self.stale_of.contains_key(&handle) && !seeded!("stale-mappings-hold-nothing");
        if let Entry::Occupied(leaving) = self.leaving.entry(handle)
            && leaving.get().released
            && !stands
        {
            let Leaving { bytes, .. } = leaving.remove();
            self.left_over -= bytes;
            self.released += bytes;
        }
    }

    /// Bytes of the frames within the arena's range, if the books agree with themselves; for checks.
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
    /// Gives everything back. The pool has waited for the work that used it.
    fn drop(&mut self) {
        if self.span == 0 {
            return;
        }
        for (&offset, &Stale { bytes, .. }) in &self.stale {
            // A mapping the driver will not take down keeps its addresses; nothing of ours is lost.
            let _ = self.site.unmap(offset, bytes);
        }
        for (_, frame) in self.frames.iter().filter(|(_, frame)| frame.awake) {
            let (offset, bytes) = self.extent_of(&frame);
            let _ = self.site.unmap(offset, bytes);
            let _ = self.site.release(frame.phys);
        }
        for &(_, phys) in &self.refused {
            let _ = self.site.release(phys);
        }
        let _ = self.site.unreserve(self.span);
    }
}
