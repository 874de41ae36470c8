//! Synchronous copies between host and device memory.
//!
//! A queued copy may run whatever happens afterwards. If the wait for a copy to the host fails, the
//! crate leaks the memory that it fills, because the device may still write there. The source of a
//! copy to the device belongs to the caller and cannot be leaked. That is safe: either the device
//! has read it when the call returns (a driver stages memory that is not page-locked), or it
//! refuses a copy that nothing can wait for (a host or simulated device, from a host call).

use bytemuck::Pod;

use super::{Addr, StreamCore};
use crate::error::{Error, Result};

impl StreamCore {
    /// Copies `data` to the device and waits for the copy.
    ///
    /// # Safety
    /// Memory for it is mapped at `to` and is used only in the order of this stream.
    pub(crate) unsafe fn write<T: Pod>(&self, to: Addr, data: &[T]) -> Result<()> {
        let _outside = self.outside_capture()?;
        if size_of_val(data) == 0 {
            return Ok(());
        }
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let backend = self.device.backend();
        // SAFETY: the caller guarantees the destination; the source outlives the copy, which is
        // waited for.
        unsafe { backend.copy_in(to, bytes.as_ptr(), bytes.len() as u64, self.raw)? };
        self.synchronize_memory()
    }

    /// Copies `len` elements from the device and waits for the copy.
    ///
    /// # Safety
    /// `len` elements are mapped at `from` and are used only in the order of this stream.
    pub(crate) unsafe fn read<T: Pod>(&self, from: Addr, len: usize) -> Result<Vec<T>> {
        let _outside = self.outside_capture()?;
        let mut data = bytemuck::allocation::try_zeroed_vec::<T>(len).map_err(|()| {
            let why = format!("the host has no memory for {len} elements: copy them in parts");
            Error::invalid("len", why)
        })?;
        if size_of_val(&data[..]) == 0 {
            return Ok(data);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        let backend = self.device.backend();
        // SAFETY: the caller guarantees the source; the destination outlives the copy, which is
        // waited for; if the wait fails, it is leaked.
        unsafe { backend.copy_out(bytes.as_mut_ptr(), from, bytes.len() as u64, self.raw)? };
        match self.synchronize_memory() {
            Ok(()) => Ok(data),
            Err(error) => {
                std::mem::forget(data);
                Err(error)
            }
        }
    }
}
