//! Buffers of page-locked host memory, and views of them.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;

use super::Inner;
use super::chunks::Chunk;
use super::uses::{Span, Uses};
use crate::error::Result;
use crate::pool::bounds;

/// A buffer of `len` elements of `T` in page-locked host memory. See [`HostPool`](super::HostPool).
///
/// The host reads it with [`HostBuf::get`] and writes it with [`HostBuf::get_mut`], which wait for
/// conflicting copies. Dropping it keeps its memory until all copies are done; leaking it leaks the
/// memory. Safe to send to and use from any thread.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::host::{HostBuf, HostPool, HostPoolConfig, HostStats, HostView, HostViewMut};
///
/// let host = HostPool::new(&device, HostPoolConfig::default());
/// let mut source: HostBuf<f32> = host.alloc(4)?;
/// source.get_mut()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
/// let mut target = pool.alloc_typed::<f32>(&stream, 2)?;
/// let part: HostView<f32> = source.slice(1..3)?;
/// target.view_mut().upload_from(&stream, part)?; // returns at once
/// let mut back: HostBuf<f32> = host.alloc(2)?;
/// let whole: HostViewMut<f32> = back.slice_mut(..)?; // or `&mut back`
/// target.view().download_into(&stream, whole)?;
/// assert_eq!(back.get()?, [2.0, 3.0]); // waits for its own copy
/// let stats: HostStats = host.stats();
/// assert!(stats.reserved.current >= stats.allocated.current);
/// # Ok(())
/// # }
/// ```
pub struct HostBuf<T> {
    pub(super) pool: Arc<Inner>,
    /// `None` for a buffer without bytes.
    pub(super) chunk: Option<Chunk>,
    pub(super) len: usize,
    pub(super) uses: Uses,
    pub(super) element: PhantomData<T>,
}

impl<T: Pod> HostBuf<T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    pub(super) fn addr(&self) -> u64 {
        // With no elements, the address is only aligned and never dereferenced.
        self.chunk
            .map_or(align_of::<T>() as u64, |chunk| chunk.addr)
    }

    fn whole(&self, writes: bool) -> Span {
        Span {
            from: 0,
            to: self.bytes(),
            writes,
        }
    }

    /// The elements. Waits on the host for copies that write them.
    ///
    /// # Errors
    /// Any error of the driver from the wait.
    pub fn get(&self) -> Result<&[T]> {
        self.uses.conflicts(self.whole(false)).wait()?;
        // SAFETY: the chunk has the elements, initialised by the operating system or by an earlier
        // owner, and no copy that writes them is under way. A new one needs `&mut self`, so none begins
        // while this borrow lives.
        Ok(unsafe { std::slice::from_raw_parts(self.addr() as *const T, self.len) })
    }

    /// The elements, for writing. Waits on the host for all copies that use them.
    ///
    /// # Errors
    /// Any error of the driver from the wait.
    pub fn get_mut(&mut self) -> Result<&mut [T]> {
        self.uses.conflicts(self.whole(true)).wait()?;
        // SAFETY: the chunk has the elements, initialised as in `get`, and no copy uses them. A new
        // one borrows the buffer, so none begins while this borrow lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.addr() as *mut T, self.len) })
    }

    /// Whether [`HostBuf::get_mut`] would return without waiting.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn is_idle(&self) -> Result<bool> {
        self.uses
            .conflicts(self.whole(true))
            .are_done(&mut HashMap::new())
    }

    /// Part of the elements, for a copy to read.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<HostView<'_, T>> {
        let (from, to) = bounds(&range, self.len)?;
        Ok(HostView {
            buf: self,
            from,
            len: to - from,
        })
    }

    /// Part of the elements, for a copy to write.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the range is not within the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<HostViewMut<'_, T>> {
        let (from, to) = bounds(&range, self.len)?;
        Ok(HostViewMut {
            buf: self,
            from,
            len: to - from,
        })
    }
}

impl<T> Drop for HostBuf<T> {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk {
            self.pool.give(chunk, self.uses.all());
        }
    }
}

impl<T> fmt::Debug for HostBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "HostBuf<{element}>({} elements)", self.len)
    }
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $buf:ty, $writes:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T> {
            buf: $buf,
            from: usize,
            len: usize,
        }

        impl<T: Pod> $name<'_, T> {
            pub(super) fn len(&self) -> usize {
                self.len
            }

            pub(super) fn addr(&self) -> u64 {
                self.buf.addr() + (self.from * size_of::<T>()) as u64
            }

            pub(super) fn uses(&self) -> &Uses {
                &self.buf.uses
            }

            pub(super) fn span(&self) -> Span {
                let size = size_of::<T>();
                let (from, to) = (self.from * size, (self.from + self.len) * size);
                Span { from: from as u64, to: to as u64, writes: $writes }
            }

            pub(super) fn device(&self) -> &crate::device::Device {
                &self.buf.pool.device
            }
        }
    };
}

view! {
    /// Elements of a [`HostBuf`], for a queued copy to read.
    HostView, &'a HostBuf<T>, false
}

view! {
    /// Elements of a [`HostBuf`], for a queued copy to write.
    HostViewMut, &'a mut HostBuf<T>, true
}

impl<'a, T: Pod> From<&'a HostBuf<T>> for HostView<'a, T> {
    fn from(buf: &'a HostBuf<T>) -> Self {
        Self {
            from: 0,
            len: buf.len,
            buf,
        }
    }
}

impl<'a, T: Pod> From<&'a mut HostBuf<T>> for HostViewMut<'a, T> {
    fn from(buf: &'a mut HostBuf<T>) -> Self {
        Self {
            from: 0,
            len: buf.len,
            buf,
        }
    }
}
