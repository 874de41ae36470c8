//! A little device memory of its own, apart from any pool: measuring a pool does not change it, and
//! tables of moves take nothing from it when it is full.

use super::{Addr, Device, Phys};
use crate::error::Result;

/// Mapped device memory, filled with zeros. Dropping it needs all queued work that uses it done.
pub(crate) struct Scratch {
    device: Device,
    addr: Addr,
    bytes: u64,
    phys: Option<Phys>,
    mapped: bool,
}

impl Scratch {
    /// At least `bytes` of zeros, usable on every stream.
    pub(crate) fn zeroed(device: &Device, bytes: u64) -> Result<Self> {
        let granule = device.info().granule.max(1);
        let bytes = bytes.max(1).next_multiple_of(granule);
        let backend = device.backend();
        let addr = backend.reserve(bytes)?;
        // From here on a failure drops the part that was made.
        let mut scratch = Self {
            device: device.clone(),
            addr,
            bytes,
            phys: None,
            mapped: false,
        };
        let phys = backend.create(bytes)?;
        scratch.phys = Some(phys);
        backend.map(addr, bytes, phys)?;
        scratch.mapped = true;
        let stream = device.stream()?;
        // SAFETY: the range was just mapped, and the fill is waited for before it can be unmapped.
        unsafe { backend.fill(addr, 0, bytes, stream.raw())? };
        stream.core().synchronize_memory()?;
        Ok(scratch)
    }

    /// Where the memory starts.
    pub(crate) fn addr(&self) -> Addr {
        self.addr
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first `bytes` as they are once all work queued on any stream so far is done; the caller
    /// has waited for that.
    pub(crate) fn read(&self, bytes: usize) -> Result<Vec<u8>> {
        let stream = self.device.stream()?;
        // SAFETY: the memory is mapped, and other work that uses it is done.
        unsafe {
            stream
                .core()
                .read(self.addr, bytes.min(self.bytes as usize))
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let backend = self.device.backend();
        // A failure here loses one granule and cannot be mended; nothing is told to a caller who
        // is dropping.
        if self.mapped {
            let _ = backend.unmap(self.addr, self.bytes);
        }
        if let Some(phys) = self.phys {
            let _ = backend.release(phys);
        }
        let _ = backend.unreserve(self.addr, self.bytes);
    }
}
