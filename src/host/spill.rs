//! Movable memory that goes to the host where the device has no room.

use std::sync::Arc;

use super::{HostBuf, HostPool};
use crate::device::{Addr, Stream};
use crate::error::{Error, Result};
use crate::movable::{Shelf, Shelved};
use crate::pool::{Pool, View, ViewMut};

/// Whether a pool's movable blocks go to the host before a request fails: see [`Pool::set_spill`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Spill<'h> {
    /// They stay. What is on the host comes back when it is held.
    Never,
    /// Those that cost least go to page-locked memory of this pool.
    Auto(&'h HostPool),
}

impl Shelf for HostPool {
    fn put(&self, addr: Addr, bytes: u64, stream: &Stream) -> Result<Box<dyn Shelved>> {
        let mut buf = self.alloc::<u8>(bytes as usize)?;
        // SAFETY: the bytes are of a block that nobody holds; the stream runs behind its uses, and its memory
        // is free behind this copy.
        let view = unsafe { View::<u8>::from_raw(addr, buf.len()) }?;
        view.download_into(stream, &mut buf)?;
        Ok(Box::new(buf))
    }
}

impl Shelved for HostBuf<u8> {
    fn take(&self, addr: Addr, bytes: u64, stream: &Stream) -> Result<()> {
        let part = self.slice(..bytes as usize)?;
        // SAFETY: the bytes are of a block that was allocated on the stream, which nobody else has yet.
        let view = unsafe { ViewMut::<u8>::from_raw(addr, bytes as usize) }?;
        view.upload_from(stream, part)
    }
}

impl Pool {
    /// Has [movable](Pool::alloc_movable) blocks that are not held go to the host where a request, of movable
    /// memory or not, would fail. They come back when they are held; [`prefetch`](crate::Movable::prefetch)
    /// begins that ahead of time. So a program may have more movable memory than the device has, as long as
    /// what is held at once fits.
    ///
    /// Those go that cost least, by their bytes and by how long ago they were held, and neighbours, so that
    /// what is freed is one hole. Copies run on streams of their own, behind the blocks' uses; nobody waits on
    /// the host but for page-locked memory to be made. While the pool has an address table or registered
    /// pointers nothing goes. A block has another address when it comes back, and its callback is called.
    /// What is on the host comes back while the pool has a handle.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let stream = device.stream()?;
    /// use warpool::host::{HostPool, HostPoolConfig, Spill};
    /// use warpool::{Pool, PoolConfig};
    ///
    /// let pool = Pool::new(&device, PoolConfig::default().limit(8 << 20))?;
    /// let host = HostPool::new(&device, HostPoolConfig::default());
    /// pool.set_spill(Spill::Auto(&host))?;
    /// let mut matrices = Vec::new();
    /// for number in 0..4 {
    ///     let mut matrix = pool.alloc_movable::<u32>(&stream, 1 << 20)?; // 16 MiB in all
    ///     matrix.hold_mut(&stream)?.view_mut().fill(&stream, number)?;
    ///     matrices.push(matrix);
    /// }
    /// assert_eq!(pool.stats().spilled.current, 8 << 20);
    /// for (number, matrix) in (0..).zip(&matrices) {
    ///     assert_eq!(matrix.download(&stream)?[1000], number);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a host pool of another device; what the driver said.
    pub fn set_spill(&self, spill: Spill<'_>) -> Result<()> {
        match spill {
            Spill::Never => self.spill_to(None),
            Spill::Auto(host) if host.inner.device.same(self.device()) => {
                self.spill_to(Some(Arc::new(host.clone())))
            }
            Spill::Auto(_) => {
                let why = "it is of another device than the pool";
                Err(Error::invalid("host", why))
            }
        }
    }
}
