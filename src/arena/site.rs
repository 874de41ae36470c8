//! The driver's calls on an arena's addresses. Keeps no records: the caller tells the arena the results.

use crate::device::{Addr, Device, Phys};
use crate::error::{Error, Result};

/// The start of an arena's addresses, and their device. Needs no lock: a caller has exclusive use of the
/// addresses that it passes.
#[derive(Clone)]
pub(crate) struct Site {
    device: Device,
    base: Addr,
}

/// A handle that was created, and mapped unless the driver refused. It is recorded nowhere until an arena
/// adopts it.
#[must_use = "the handle is lost unless an arena adopts it"]
pub(crate) struct Made {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(super) phys: Phys,
    /// If it is not mapped: the error, and whether the device released the handle.
    pub(super) unmapped: Option<(Error, bool)>,
}

impl Made {
    /// Whether the driver mapped it.
    pub(crate) fn is_mapped(&self) -> bool {
        self.unmapped.is_none()
    }
}

impl Site {
    /// Reserves `span` bytes of addresses. What is mapped there later is accessible to `peers` too.
    pub(crate) fn reserve(device: &Device, span: u64, peers: &[u32]) -> Result<Self> {
        let (backend, device) = (device.backend(), device.clone());
        let base = backend.reserve(span)?;
        let site = Self { device, base };
        if !peers.is_empty() {
            let shared = backend.share(base, span, peers);
            shared.inspect_err(|_| _ = site.unreserve(span))?;
        }
        Ok(site)
    }

    /// Device address of offset 0.
    pub(crate) fn base(&self) -> Addr {
        self.base
    }

    /// Bytes of the smallest handle.
    pub(crate) fn granule(&self) -> u64 {
        self.device.info().granule.max(1)
    }

    /// All bytes of the device.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device.info().total_bytes
    }

    /// Free bytes of the device now; as good as without end if it does not say.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.device.backend().free_bytes().unwrap_or(u64::MAX)
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
    /// Any error of the driver if the handle could not be created.
    pub(crate) fn make(&self, offset: u64, bytes: u64) -> Result<Made> {
        let phys = self.device.backend().create(bytes)?;
        let unmapped = self.map(offset, bytes, phys).err();
        // The first error is the one to report.
        let unmapped = unmapped.map(|error| (error, self.release(phys).is_ok()));
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

    /// Unmaps the mapping at `offset`, which no queued work uses.
    pub(crate) fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        self.device.backend().unmap(self.addr(offset), bytes)
    }

    /// Releases a handle.
    pub(crate) fn release(&self, phys: Phys) -> Result<()> {
        self.device.backend().release(phys)
    }

    /// Releases the reserved addresses, `span` bytes.
    pub(crate) fn unreserve(&self, span: u64) -> Result<()> {
        self.device.backend().unreserve(self.base, span)
    }
}
