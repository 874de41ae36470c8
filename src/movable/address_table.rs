//! The device's own table of where blocks are, for kernels that take handles.
//!
//! Its address never changes: addresses for a great many entries are reserved at once, and memory
//! is mapped as handles come.

use std::sync::Arc;

use super::registry::Registry;
use super::table::MovableId;
use crate::device::{Addr, Device, Overhead, Phys, Stream};
use crate::error::{Error, Result};

/// Entries that there are addresses for.
const ENTRIES: u64 = 1 << 28;

/// Bytes of an entry.
const ENTRY_BYTES: u64 = 8;

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

    /// Where the entry of place `index` is.
    pub(super) fn word(&self, index: u32) -> Addr {
        self.base + u64::from(index) * ENTRY_BYTES
    }

    /// Maps memory for `entries`, zero behind what `stream` was given so far.
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
                // Where the driver does not take it back, it has lost it.
                let _ = backend.release(phys);
                return Err(error);
            }
            self.mapped.push(phys);
            self.overhead.add(granule);
            // SAFETY: the range was just mapped, and stays until the table is dropped, which is
            // after the stream's work.
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
            // A failure here loses a granule and cannot be mended.
            let _ = backend.unmap(at, granule);
            let _ = backend.release(*phys);
            self.overhead.sub(granule);
        }
        let _ = backend.unreserve(self.base, self.span);
    }
}

/// A table in device memory that a kernel looks addresses up in: made by
/// [`Pool::address_table`](crate::Pool::address_table).
///
/// # Layout
/// 8-byte entries without padding, little-endian: entry `i`, at [`addr`](Self::addr)` + 8 * i`, is
/// the address of the block whose [`MovableId::index`] is `i`, and 0 or anything where no such
/// block is live. The table stays at its address for as long as a handle to it, to the pool or to
/// any of the pool's movable blocks lives.
///
/// # Stream order
/// An entry is stored in the order of the stream that moves: behind the last use of the block at
/// its old address, ahead of the first at its new one. Work that reads an entry is queued under a
/// hold of that block, like work that uses the block itself.
#[derive(Clone)]
pub struct AddressTable {
    registry: Arc<Registry>,
    addr: Addr,
}

impl AddressTable {
    pub(super) fn new(registry: Arc<Registry>, addr: Addr) -> Self {
        Self { registry, addr }
    }

    /// Where the table is in device memory.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Where the entry of `id` is in device memory.
    #[must_use]
    pub fn entry(&self, id: MovableId) -> Addr {
        self.addr + u64::from(id.index) * ENTRY_BYTES
    }

    /// Entries that handles have used so far; those from here on are not mapped.
    #[must_use]
    #[doc(hidden)]
    pub fn entries(&self) -> u64 {
        self.registry.handles()
    }
}

impl std::fmt::Debug for AddressTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "AddressTable({:#x}, {} entries)",
            self.addr,
            self.entries()
        )
    }
}
