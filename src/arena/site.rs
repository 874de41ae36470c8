//! The driver's calls on an arena's addresses. No books: what came of a call is told the arena.

use crate::device::{Addr, Device, Phys};
use crate::error::{Error, Result};
use crate::seeded::seeded;

/// Where an arena's addresses begin, and on which device. Needs no lock: who calls has the addresses to
/// themselves.
#[derive(Clone)]
pub(crate) struct Site {
    device: Device,
    base: Addr,
}

/// A handle that was made, and mapped unless the driver would not. Nobody knows of it until an arena
/// adopts it.
#[must_use = "the handle is lost unless an arena adopts it"]
pub(crate) struct Made {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(super) phys: Phys,
    /// Why it is not mapped, and whether the device took it back.
    pub(super) unmapped: Option<(Error, bool)>,
}

impl Made {
    /// Whether the driver mapped it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.unmapped.is_none()
    }
}

impl Site {
    pub(super) fn new(device: &Device, base: Addr) -> Self {
        let device = device.clone();
        Self { device, base }
    }

    pub(super) fn base(&self) -> Addr {
        self.base
    }

    /// The smallest handle, bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.device.info().granule.max(1)
    }

    /// The device address of an offset, which may be below the base.
    pub(crate) fn addr(&self, offset: u64) -> Addr {
        self.base.wrapping_add(offset)
    }

    /// The offset of a device address.
    pub(crate) fn offset(&self, addr: Addr) -> u64 {
        addr.wrapping_sub(self.base)
    }

    /// Creates a handle of `bytes` and maps it at `offset`, where nothing is mapped.
    ///
    /// # Errors
    /// What the driver said where there is no handle.
    pub(crate) fn make(&self, offset: u64, bytes: u64) -> Result<Made> {
        let phys = self.device.backend().create(bytes)?;
        let unmapped = self.map(offset, bytes, phys).err().map(|error| {
            // The first error is the one to report.
            let lost = seeded!("handle-lost-when-its-map-fails");
            (error, lost || self.release(phys).is_ok())
        });
        Ok(Made {
            offset,
            bytes,
            phys,
            unmapped,
        })
    }

    /// Maps a handle of `bytes` at `offset`, where nothing is mapped.
    pub(crate) fn map(&self, offset: u64, bytes: u64, phys: Phys) -> Result<()> {
        self.device.backend().map(self.addr(offset), bytes, phys)
    }

    /// Takes down the mapping at `offset`, which no queued work uses.
    pub(crate) fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        self.device.backend().unmap(self.addr(offset), bytes)
    }

    /// Gives a handle back to the device.
    pub(crate) fn release(&self, phys: Phys) -> Result<()> {
        self.device.backend().release(phys)
    }

    /// Gives the addresses back, `span` bytes in all.
    pub(super) fn unreserve(&self, span: u64) -> Result<()> {
        self.device.backend().unreserve(self.base, span)
    }
}
