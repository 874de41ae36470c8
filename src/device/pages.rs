//! Host memory in whole pages, for devices that need no page-locked memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

const PAGE: usize = 4096;

/// Bytes allocated at present.
#[derive(Debug, Default)]
pub(super) struct Pages(AtomicU64);

fn layout(bytes: u64) -> Result<Layout> {
    let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0);
    bytes
        .and_then(|bytes| Layout::from_size_align(bytes, PAGE).ok())
        .ok_or_else(|| Error::invalid("bytes", "allocate at least 1 byte of host memory"))
}

impl Pages {
    /// Allocates `bytes` zeroed bytes.
    pub(super) fn alloc(&self, bytes: u64) -> Result<u64> {
        let layout = layout(bytes)?;
        // SAFETY: the layout is of one byte or more.
        let addr = unsafe { alloc_zeroed(layout) };
        if addr.is_null() {
            return Err(Error::Driver {
                call: "host_alloc",
                code: 2,
                words: String::from("the machine has no more memory"),
            });
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(addr as u64)
    }

    /// Frees them; nothing uses them any more.
    pub(super) fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let layout = layout(bytes)?;
        self.0.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: allocated above with this layout, as the caller of the backend guarantees.
        unsafe { dealloc(addr as *mut u8, layout) };
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
