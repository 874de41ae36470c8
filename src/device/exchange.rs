//! Copies between memory of the host and of the device that the caller waits for.
//!
//! A copy that was queued may run whatever happens afterwards. So memory of the crate's own that it
//! fills is given up where the copy cannot be waited for: the device may still write there. What it
//! reads is the caller's and cannot be given up; a device has either read it when the call returns
//! (a driver stages memory that is not page-locked), or refuses the copy where nothing can wait for
//! it (a host device, from a host call).

use bytemuck::Pod;

use super::{Addr, StreamCore};
use crate::error::Result;

impl StreamCore {
    /// Copies `data` to the device and waits for the copy.
    ///
    /// # Safety
    /// Memory for it is mapped at `to` and is used only in the order of this stream.
    pub(crate) unsafe fn write<T: Pod>(&self, to: Addr, data: &[T]) -> Result<()> {
        self.refuse_under_capture()?;
        if size_of_val(data) == 0 {
            return Ok(());
        }
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let backend = self.device.backend();
        // SAFETY: the caller vouches for the destination; the source outlives the copy, which is
        // waited for.
        unsafe { backend.copy_in(to, bytes.as_ptr(), bytes.len() as u64, self.raw)? };
        self.synchronize_memory()
    }

    /// Copies `len` elements from the device and waits for the copy.
    ///
    /// # Safety
    /// As many are mapped at `from` and are used only in the order of this stream.
    pub(crate) unsafe fn read<T: Pod>(&self, from: Addr, len: usize) -> Result<Vec<T>> {
        self.refuse_under_capture()?;
        let mut data = vec![T::zeroed(); len];
        if size_of_val(&data[..]) == 0 {
            return Ok(data);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        let backend = self.device.backend();
        // SAFETY: the caller vouches for the source; the destination outlives the copy, which is
        // waited for, or else is given up.
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
