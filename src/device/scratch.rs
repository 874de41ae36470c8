//! A small allocation of device memory outside any pool: measuring a pool does not change the pool,
//! and tables of moves need no memory of a full pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Addr, Device, Phys, Stream, beside, host_call, lock, without_host_calls};
use crate::error::Result;
use crate::sync::Mutex;

/// Device memory that belongs to a pool but is not in it.
#[derive(Clone, Default)]
pub(crate) struct Overhead(Arc<Beside>);

#[derive(Default)]
struct Beside {
    /// Bytes, for the pool's statistics.
    bytes: AtomicU64,
    /// Memory that the driver refused to release. The release is retried, at the latest when this
    /// is dropped.
    kept: Mutex<Vec<Scratch>>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        let kept = std::mem::take(crate::sync::get_mut(&mut self.kept));
        if !kept.is_empty() {
            beside(move || drop(kept));
        }
    }
}

impl Overhead {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    fn offer_again(&self) {
        let mut kept = std::mem::take(&mut *lock(&self.0.kept));
        for scratch in &mut kept {
            scratch.overhead = Some(self.clone());
        }
    }
}

/// Mapped device memory. All queued work that uses it must be done before it is
/// dropped.
pub(crate) struct Scratch {
    device: Device,
    addr: Addr,
    bytes: u64,
    /// Bytes of address space to release.
    span: u64,
    phys: Option<Phys>,
    mapped: bool,
    /// The overhead that counts this memory, and that keeps it if the driver refuses to release it.
    /// `None` for the last attempt.
    overhead: Option<Overhead>,
}

impl Scratch {
    /// Allocates at least `bytes` of zeros, usable on every stream.
    pub(crate) fn zeroed(device: &Device, bytes: u64) -> Result<Self> {
        Self::counted(device, bytes, &Overhead::default())
    }

    /// The same as [`Scratch::zeroed`], counted in `overhead` for as long as it lives.
    pub(crate) fn counted(device: &Device, bytes: u64, overhead: &Overhead) -> Result<Self> {
        // Without a wait, the fill might run when the memory is unmapped.
        host_call::may_wait()?;
        let stream = device.stream()?;
        let scratch = Self::zeroed_on(&stream, bytes, overhead)?;
        // The caller may hold a lock that a host call asks for. Nothing else is on the stream.
        without_host_calls(|| stream.core().synchronize_memory())?;
        Ok(scratch)
    }

    /// The same for work that is queued on `stream` from now on; waits for nothing. The stream has to be done with it
    /// before it is dropped.
    pub(crate) fn zeroed_on(stream: &Stream, bytes: u64, overhead: &Overhead) -> Result<Self> {
        let scratch = Self::of_any_value(stream.device(), bytes, overhead)?;
        let backend = stream.device().backend();
        // SAFETY: the range was just mapped, and stays so until the fill is done.
        unsafe { backend.fill(scratch.addr, 0, scratch.bytes, stream.raw())? };
        Ok(scratch)
    }

    /// The same with any contents: a host device has no memory of the machine for it until it is written.
    pub(crate) fn of_any_value(device: &Device, bytes: u64, overhead: &Overhead) -> Result<Self> {
        let granule = device.info().granule.max(1);
        let bytes = bytes.max(1).next_multiple_of(granule);
        Self::reserved(device, bytes, overhead)?.map(bytes)
    }

    /// Addresses without memory.
    pub(crate) fn reserved(device: &Device, span: u64, overhead: &Overhead) -> Result<Self> {
        let addr = device.backend().reserve(span)?;
        Ok(Self::at(device, addr, span, Some(overhead.clone())))
    }

    /// No memory yet, in a range of `span` bytes at `addr` that this value owns.
    pub(crate) fn at(device: &Device, addr: Addr, span: u64, overhead: Option<Overhead>) -> Self {
        Self {
            device: device.clone(),
            addr,
            span,
            bytes: 0,
            phys: None,
            mapped: false,
            overhead,
        }
    }

    /// Maps `bytes` of memory. If a call fails, the drop releases what was made before it.
    pub(crate) fn map(mut self, bytes: u64) -> Result<Self> {
        let overhead = self.overhead.clone().unwrap_or_default();
        overhead.offer_again();
        let phys = self.device.backend().create(bytes)?;
        (self.bytes, self.phys) = (bytes, Some(phys));
        overhead.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.device.backend().map(self.addr, bytes, phys)?;
        self.mapped = true;
        Ok(self)
    }

    /// Moves the memory out and leaves nothing here.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self::at(&self.device, 0, 0, None);
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

    fn has_memory(&self) -> bool {
        self.mapped || self.phys.is_some()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let had_memory = self.has_memory();
        let backend = self.device.backend();
        self.mapped = self.mapped && backend.unmap(self.addr, self.bytes).is_err();
        self.phys = self.phys.filter(|&phys| backend.release(phys).is_err());
        if self.span > 0 && backend.unreserve(self.addr, self.span).is_ok() {
            self.span = 0;
        }
        let Some(overhead) = self.overhead.take() else {
            return;
        };
        if had_memory && !self.has_memory() {
            overhead.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        if self.has_memory() || self.span > 0 {
            lock(&overhead.0.kept).push(self.take());
        }
    }
}
