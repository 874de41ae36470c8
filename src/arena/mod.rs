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
//! On an H200 a frame mapped elsewhere takes some 54 us of the driver: 31 for access to the new
//! mapping, 21 to take down the old one, the same for frames of 2 and of 32 MiB. The driver makes such
//! calls one after another: 2, 4 and 8 threads at once needed 44 to 66 us a frame, and a thread that
//! maps before another that unmaps 66. One call of each kind for 64 frames of 8 MiB or more takes 42.
//! Nor would old mappings be of use to who comes back to them: of the 14,516 and 17,764 frames that two
//! made programs map elsewhere, 59 and none go where they were before.
//!
//! The arena makes driver calls and keeps the books of mappings; which addresses are free is the
//! pool's business. After a failed call the books say what is mapped, exactly.

mod frames;

use std::collections::BTreeMap;

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
    /// Mappings taken down.
    pub unmapped: u64,
    /// Physical handles given back to the device.
    pub released: u64,
}

/// See the module documentation. Offsets count bytes from the start of the range.
pub(crate) struct Arena {
    device: Device,
    base: Addr,
    span: u64,
    granule: u64,
    frames: Frames,
    /// Old mappings still standing: offset to bytes.
    stale: BTreeMap<u64, u64>,
    /// Handles that are mapped nowhere and that the device would not take back: offered again.
    refused: Vec<Phys>,
    reserved: u64,
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
            refused: Vec::new(),
            reserved: 0,
            released: 0,
            calls: ArenaCalls::default(),
        })
    }

    /// Device address of offset 0.
    pub(crate) fn base(&self) -> Addr {
        self.base
    }

    /// Smallest frame, bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// Physical bytes held.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes created and bytes released so far.
    pub(crate) fn flow(&self) -> (u64, u64) {
        (self.reserved + self.released, self.released)
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
        let backend = self.device.backend();
        let phys = backend.create(bytes)?;
        self.calls.created += 1;
        if let Err(error) = backend.map(self.base + offset, bytes, phys) {
            // The first error is the one to report; a handle that stays is offered again.
            if !seeded!("handle-lost-when-its-map-fails") {
                let _ = self.give_back(phys);
            }
            return Err(error);
        }
        self.calls.mapped += 1;
        self.frames.add(
            phys,
            (offset / self.granule) as u32,
            (bytes / self.granule) as u32,
        );
        self.reserved += bytes;
        Ok(())
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
        self.frames.rehome(id, (offset / self.granule) as u32);
        self.stale.insert(old, bytes);
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
        self.stale.insert(offset, bytes);
        Ok(())
    }

    /// Makes the mapping of the frame at `offset` its place, and the other the one that stands until
    /// [`Arena::unmap_stale`].
    pub(crate) fn settle(&mut self, id: FrameId, offset: u64) {
        let (old, bytes) = self.extent_of(&self.frames.get(id));
        self.stale.remove(&offset);
        self.frames.rehome(id, (offset / self.granule) as u32);
        self.stale.insert(old, bytes);
    }

    /// Takes down the old mapping at `offset`, which no queued work uses.
    pub(crate) fn unmap_stale(&mut self, offset: u64) -> Result<()> {
        let Some(&bytes) = self.stale.get(&offset) else {
            return Err(Error::invalid(
                "offset",
                format!("no stale mapping at {offset:#x}"),
            ));
        };
        self.device.backend().unmap(self.base + offset, bytes)?;
        self.calls.unmapped += 1;
        self.stale.remove(&offset);
        Ok(())
    }

    /// Unmaps the frame and gives it back to the device; no queued work uses it.
    pub(crate) fn release(&mut self, id: FrameId) -> Result<()> {
        let frame = self.frames.get(id);
        let (offset, bytes) = self.extent_of(&frame);
        let backend = self.device.backend();
        backend.unmap(self.base + offset, bytes)?;
        self.calls.unmapped += 1;
        self.frames.remove(id);
        self.reserved -= bytes;
        self.released += bytes;
        if seeded!("handle-lost-on-release") {
            return Ok(());
        }
        self.give_back(frame.phys)
    }

    /// Releases a handle that is mapped nowhere, and those refused before.
    fn give_back(&mut self, phys: Phys) -> Result<()> {
        self.refused.push(phys);
        while let Some(&phys) = self.refused.last() {
            self.device.backend().release(phys)?;
            self.calls.released += 1;
            self.refused.pop();
        }
        Ok(())
    }

    /// Whether the books agree with themselves; for checks.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let granules = self.frames.check()?;
        if granules * self.granule != self.reserved {
            return Err(format!(
                "frames hold {granules} granules, {} bytes counted",
                self.reserved
            ));
        }
        Ok(())
    }
}

impl Drop for Arena {
    /// Gives everything back. The pool has waited for the work that used it.
    fn drop(&mut self) {
        let backend = self.device.backend();
        for (&offset, &bytes) in &self.stale {
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
