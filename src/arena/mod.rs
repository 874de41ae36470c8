//! One reserved range of device addresses with physical memory mapped into it.
//!
//! An arena reserves several times the device's memory in addresses, once, and maps physical
//! handles (*frames*) where the pool wants memory. A frame is mapped whole, at a multiple of the
//! device's granule, and can be mapped again elsewhere before its old mapping is taken down: so
//! memory can change its address in stream order, and the old mapping goes when the work that
//! used it is done.
//!
//! # What it costs
//!
//! The driver is paid by the frame, not by the byte. On an H200 a frame mapped elsewhere takes some 50
//! us: 28 for access to the new mapping, 19 to take down the old one, the same for frames of 2 and of
//! 128 MiB; a new frame takes 13 and its access. The driver makes such calls one after another: 2, 4
//! and 8 threads at once needed 44 to 66 us a frame.
//!
//! The arena makes driver calls and keeps the books of mappings; which addresses are free is the
//! pool's business. After a failed call the books say what is mapped, exactly.

mod frames;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::device::{Addr, Device, Phys};
use crate::error::{Error, Result};
use crate::seeded::seeded;

use frames::Frames;
pub(crate) use frames::{Frame, FrameId};

/// Driver calls an arena has made, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    phys: Phys,
}

/// A handle given up: its memory is gone once it is released and no old mapping of it stands.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    bytes: u64,
    released: bool,
}

/// A handle that was made, and mapped unless the driver would not. Nobody knows of it until an arena
/// adopts it.
#[must_use = "the handle is lost unless an arena adopts it"]
pub(crate) struct Made {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    phys: Phys,
    unmapped: Option<Error>,
}

impl Made {
    /// Creates a handle of `bytes` and maps it at `base + offset`, addresses of an arena where nothing
    /// is mapped and that nobody else maps meanwhile. Needs no lock of the arena.
    pub(crate) fn at(device: &Device, base: Addr, offset: u64, bytes: u64) -> Result<Self> {
        let backend = device.backend();
        let phys = backend.create(bytes)?;
        let unmapped = backend.map(base + offset, bytes, phys).err();
        Ok(Self {
            offset,
            bytes,
            phys,
            unmapped,
        })
    }

    /// Whether the driver mapped it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.unmapped.is_none()
    }
}

/// See the module documentation. Offsets count bytes from the start of the range.
pub(crate) struct Arena {
    device: Device,
    base: Addr,
    span: u64,
    granule: u64,
    frames: Frames,
    /// Old mappings still standing, by offset.
    stale: BTreeMap<u64, Stale>,
    /// How many of them each handle has.
    stale_of: HashMap<Phys, u32>,
    /// Handles given up whose memory the device has not back yet.
    leaving: HashMap<Phys, Leaving>,
    /// Of them, those to be released: the device would not take them back.
    refused: Vec<Phys>,
    /// Bytes of all frames.
    mapped: u64,
    /// Bytes of the handles given up.
    left_over: u64,
    released: u64,
    calls: ArenaCalls,
}

impl Arena {
    /// Reserves `span` bytes of addresses, a multiple of the granule; maps nothing.
    pub(crate) fn new(device: &Device, span: u64) -> Result<Self> {
        let granule = device.info().granule;
        if granule == 0 || span == 0 || !span.is_multiple_of(granule) {
            return Err(Error::invalid(
                "span",
                format!("{span} is no multiple of the granule {granule}"),
            ));
        }
        let base = device.backend().reserve(span)?;
        Ok(Self {
            device: device.clone(),
            base,
            span,
            granule,
            frames: Frames::new((span / granule) as usize),
            stale: BTreeMap::new(),
            stale_of: HashMap::new(),
            leaving: HashMap::new(),
            refused: Vec::new(),
            mapped: 0,
            left_over: 0,
            released: 0,
            calls: ArenaCalls::default(),
        })
    }

    /// All of it as another, with nothing left here.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self {
            device: self.device.clone(),
            base: 0,
            span: 0,
            granule: self.granule,
            frames: Frames::new(0),
            stale: BTreeMap::new(),
            stale_of: HashMap::new(),
            leaving: HashMap::new(),
            refused: Vec::new(),
            mapped: 0,
            left_over: 0,
            released: 0,
            calls: self.calls,
        };
        std::mem::replace(self, empty)
    }

    /// Device address of offset 0.
    pub(crate) fn base(&self) -> Addr {
        self.base
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

    /// The rest: bytes of handles given up, which an old mapping keeps or the device would not take
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

    /// The frame mapped at `offset`, if one is.
    pub(crate) fn frame_at(&self, offset: u64) -> Option<(FrameId, Frame)> {
        self.frames.at((offset / self.granule) as usize)
    }

    /// The frame's offset and length in bytes.
    pub(crate) fn extent_of(&self, frame: &Frame) -> (u64, u64) {
        (
            u64::from(frame.home) * self.granule,
            u64::from(frame.granules) * self.granule,
        )
    }

    /// Creates a frame of `bytes` and maps it at `offset`, where nothing is mapped.
    pub(crate) fn create_at(&mut self, offset: u64, bytes: u64) -> Result<()> {
        let made = Made::at(&self.device, self.base, offset, bytes)?;
        self.adopt(made)
    }

    /// Books a handle that was made as a frame.
    ///
    /// # Errors
    /// What the driver said where the handle could not be mapped; it is given back then.
    pub(crate) fn adopt(&mut self, made: Made) -> Result<()> {
        let Made {
            offset,
            bytes,
            phys,
            unmapped,
        } = made;
        self.calls.created += 1;
        if let Some(error) = unmapped {
            // The first error is the one to report; a handle that stays is offered again.
            if !seeded!("handle-lost-when-its-map-fails") {
                let _ = self.give_back(phys, bytes);
            }
            return Err(error);
        }
        self.calls.mapped += 1;
        self.frames.add(
            phys,
            (offset / self.granule) as u32,
            (bytes / self.granule) as u32,
        );
        self.mapped += bytes;
        Ok(())
    }

    fn note_stale(&mut self, offset: u64, bytes: u64, phys: Phys) {
        self.stale.insert(offset, Stale { bytes, phys });
        *self.stale_of.entry(phys).or_default() += 1;
    }

    /// Takes the old mapping at `offset` off the books; gives its handle.
    fn forget_stale(&mut self, offset: u64) -> Option<Phys> {
        let phys = self.stale.remove(&offset)?.phys;
        if let Entry::Occupied(mut count) = self.stale_of.entry(phys) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(phys)
    }

    /// Maps the frame at `offset` too and makes that its place. Its old mapping stands until
    /// [`Arena::unmap_stale`].
    pub(crate) fn remap(&mut self, id: FrameId, offset: u64) -> Result<()> {
        let frame = self.frames.get(id);
        let (old, bytes) = self.extent_of(&frame);
        self.device
            .backend()
            .map(self.base + offset, bytes, frame.phys)?;
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.frames.rehome(id, (offset / self.granule) as u32);
        self.note_stale(old, bytes, frame.phys);
        Ok(())
    }

    /// Maps the frame at `offset` too; its place stays what it is. The second mapping stands until
    /// [`Arena::unmap_stale`], or becomes the frame's place by [`Arena::settle`].
    pub(crate) fn map_again(&mut self, id: FrameId, offset: u64) -> Result<()> {
        let frame = self.frames.get(id);
        let (_, bytes) = self.extent_of(&frame);
        self.device
            .backend()
            .map(self.base + offset, bytes, frame.phys)?;
        self.calls.mapped += 1;
        self.calls.remapped += 1;
        self.note_stale(offset, bytes, frame.phys);
        Ok(())
    }

    /// Makes the mapping of the frame at `offset` its place, and the other the one that stands until
    /// [`Arena::unmap_stale`].
    pub(crate) fn settle(&mut self, id: FrameId, offset: u64) {
        let frame = self.frames.get(id);
        let (old, bytes) = self.extent_of(&frame);
        self.forget_stale(offset);
        self.frames.rehome(id, (offset / self.granule) as u32);
        self.note_stale(old, bytes, frame.phys);
    }

    /// Takes down the old mapping at `offset`, which no queued work uses.
    pub(crate) fn unmap_stale(&mut self, offset: u64) -> Result<()> {
        let Some(&Stale { bytes, .. }) = self.stale.get(&offset) else {
            return Err(Error::invalid(
                "offset",
                format!("no stale mapping at {offset:#x}"),
            ));
        };
        self.device.backend().unmap(self.base + offset, bytes)?;
        self.calls.unmapped += 1;
        if let Some(phys) = self.forget_stale(offset) {
            self.forget_if_gone(phys);
        }
        Ok(())
    }

    /// Unmaps the frame and gives it back to the device; no queued work uses it. While an old mapping
    /// of it stands the device keeps its memory, which is held until then.
    pub(crate) fn release(&mut self, id: FrameId) -> Result<()> {
        let frame = self.frames.get(id);
        let (offset, bytes) = self.extent_of(&frame);
        let backend = self.device.backend();
        backend.unmap(self.base + offset, bytes)?;
        self.calls.unmapped += 1;
        self.frames.remove(id);
        self.mapped -= bytes;
        if seeded!("handle-lost-on-release") {
            self.released += bytes;
            return Ok(());
        }
        self.give_back(frame.phys, bytes)
    }

    /// Releases a handle of no frame, and those refused before.
    fn give_back(&mut self, phys: Phys, bytes: u64) -> Result<()> {
        let released = false;
        self.leaving.insert(phys, Leaving { bytes, released });
        self.left_over += bytes;
        self.refused.push(phys);
        self.offer_refused()
    }

    /// Offers the device what it would not take back.
    pub(crate) fn offer_refused(&mut self) -> Result<()> {
        while let Some(&phys) = self.refused.last() {
            self.device.backend().release(phys)?;
            self.calls.released += 1;
            self.refused.pop();
            if let Some(leaving) = self.leaving.get_mut(&phys) {
                leaving.released = true;
            }
            self.forget_if_gone(phys);
        }
        Ok(())
    }

    /// Takes a handle given up off the books if its memory is gone.
    fn forget_if_gone(&mut self, phys: Phys) {
        let stands = self.stale_of.contains_key(&phys) && !seeded!("stale-mappings-hold-nothing");
        if let Entry::Occupied(leaving) = self.leaving.entry(phys)
            && leaving.get().released
            && !stands
        {
            let Leaving { bytes, .. } = leaving.remove();
            self.left_over -= bytes;
            self.released += bytes;
        }
    }

    /// Whether the books agree with themselves; for checks.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let granules = self.frames.check()?;
        if granules * self.granule != self.mapped {
            return Err(format!(
                "frames hold {granules} granules, {} bytes counted",
                self.mapped
            ));
        }
        let left: u64 = self.leaving.values().map(|leaving| leaving.bytes).sum();
        if left != self.left_over {
            return Err(format!(
                "handles given up hold {left} bytes, {} counted",
                self.left_over
            ));
        }
        Ok(())
    }
}

impl Drop for Arena {
    /// Gives everything back. The pool has waited for the work that used it.
    fn drop(&mut self) {
        if self.span == 0 {
            return;
        }
        let backend = self.device.backend();
        for (&offset, &Stale { bytes, .. }) in &self.stale {
            // A mapping the driver will not take down keeps its addresses; nothing of ours is lost.
            let _ = backend.unmap(self.base + offset, bytes);
        }
        for (_, frame) in self.frames.iter() {
            let (offset, bytes) = self.extent_of(&frame);
            let _ = backend.unmap(self.base + offset, bytes);
            let _ = backend.release(frame.phys);
        }
        for &phys in &self.refused {
            let _ = backend.release(phys);
        }
        let _ = backend.unreserve(self.base, self.span);
    }
}
