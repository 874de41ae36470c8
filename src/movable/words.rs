//! The memory of the address table.
//!
//! Its address never changes: address space for 2^28 entries is reserved at once, and memory is
//! mapped as handles are added.

use crate::device::{Addr, Device, Overhead, Phys, Stream};
use crate::error::{Error, Result};

/// Entries that address space is reserved for.
const ENTRIES: u64 = 1 << 28;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 8;

/// The memory of the table.
pub(super) struct Words {
    device: Device,
    base: Addr,
    span: u64,
    mapped: Vec<Phys>,
    overhead: Overhead,
}

impl Words {
    pub(super) fn new(device: &Device, overhead: &Overhead) -> Result<Self> {
        let span = (ENTRIES * ENTRY_BYTES).next_multiple_of(device.info().granule);
        Ok(Self {
            device: device.clone(),
            base: device.backend().reserve(span)?,
            span,
            mapped: Vec::new(),
            overhead: overhead.clone(),
        })
    }

    pub(super) fn base(&self) -> Addr {
        self.base
    }

    /// Device address of the entry of `index`.
    pub(super) fn word(&self, index: u32) -> Addr {
        self.base + u64::from(index) * ENTRY_BYTES
    }

    /// Maps memory for `entries` entries, zero after the work queued on `stream` so far.
    pub(super) fn ensure(&mut self, entries: u64, stream: &Stream) -> Result<()> {
        let granule = self.device.info().granule;
        if entries > ENTRIES {
            let why = format!("{entries} are more than the address table's {ENTRIES}: drop some");
            return Err(Error::invalid("handles", why));
        }
        while (self.mapped.len() as u64 * granule) < entries * ENTRY_BYTES {
            let backend = self.device.backend();
            let at = self.base + self.mapped.len() as u64 * granule;
            let phys = backend.create(granule)?;
            if let Err(error) = backend.map(at, granule, phys) {
                // If the driver does not release the handle, it is lost.
                let _ = backend.release(phys);
                return Err(error);
            }
            self.mapped.push(phys);
            self.overhead.add(granule);
            // SAFETY: the range was just mapped, and stays mapped until the table is dropped, which
            // is after the stream's work.
            unsafe { backend.fill(at, 0, granule, stream.raw())? };
        }
        Ok(())
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let backend = self.device.backend();
        let granule = self.device.info().granule;
        for (phys, at) in self
            .mapped
            .iter()
            .zip((self.base..).step_by(granule as usize))
        {
            // A failure here loses one granule; nothing can be done about it.
            let _ = backend.unmap(at, granule);
            let _ = backend.release(*phys);
            self.overhead.sub(granule);
        }
        let _ = backend.unreserve(self.base, self.span);
    }
}
