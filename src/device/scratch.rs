//! A small allocation of device memory outside any pool: measuring a pool does not change the pool,
//! and tables of moves need no memory of a full pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Addr, Device, Phys};
use crate::error::Result;

/// Bytes of device memory that belong to a pool but are not in it, for its statistics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overhead(Arc<AtomicU64>);

impl Overhead {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Mapped device memory, initially zero. All queued work that uses it must be done before it is
/// dropped.
pub(crate) struct Scratch {
    device: Device,
    addr: Addr,
    bytes: u64,
    phys: Option<Phys>,
    mapped: bool,
    overhead: Overhead,
}

impl Scratch {
    /// Allocates at least `bytes` of zeros, usable on every stream.
    pub(crate) fn zeroed(device: &Device, bytes: u64) -> Result<Self> {
        Self::counted(device, bytes, &Overhead::default())
    }

    /// The same as [`Scratch::zeroed`], counted in `overhead` for as long as it lives.
    pub(crate) fn counted(device: &Device, bytes: u64, overhead: &Overhead) -> Result<Self> {
        let granule = device.info().granule.max(1);
        let bytes = bytes.max(1).next_multiple_of(granule);
        let backend = device.backend();
        let addr = backend.reserve(bytes)?;
        // If a call below fails, the drop releases what was made before it.
        let mut scratch = Self {
            device: device.clone(),
            addr,
            bytes,
            phys: None,
            mapped: false,
            overhead: overhead.clone(),
        };
        let phys = backend.create(bytes)?;
        scratch.phys = Some(phys);
        scratch.overhead.add(bytes);
        backend.map(addr, bytes, phys)?;
        scratch.mapped = true;
        let stream = device.stream()?;
        // SAFETY: the range was just mapped, and the fill is waited for before it can be unmapped.
        unsafe { backend.fill(addr, 0, bytes, stream.raw())? };
        stream.core().synchronize_memory()?;
        Ok(scratch)
    }

    /// Moves the memory out and leaves nothing here.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self {
            device: self.device.clone(),
            addr: 0,
            bytes: 0,
            phys: None,
            mapped: false,
            overhead: Overhead::default(),
        };
        std::mem::replace(self, empty)
    }

    /// Address of the memory.
    pub(crate) fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes of the memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first `bytes`, after all work queued so far on any stream; the caller has waited for
    /// that work.
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
        // A failure here leaks one granule. Nothing can be done about it, and a drop cannot report
        // it.
        if self.mapped {
            let _ = backend.unmap(self.addr, self.bytes);
        }
        if let Some(phys) = self.phys {
            let _ = backend.release(phys);
            self.overhead.sub(self.bytes);
        }
        if self.bytes > 0 {
            let _ = backend.unreserve(self.addr, self.bytes);
        }
    }
}
