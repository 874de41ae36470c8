//! Movable memory that is moved to the host when the device is full.

use std::sync::Arc;

use super::{HostBuf, HostPool};
use crate::device::{Addr, Stream};
use crate::error::{Error, Result};
use crate::movable::{Shelf, Shelved};
use crate::pool::{Pool, View, ViewMut};

/// Whether a pool's movable blocks are spilled to the host before a request fails: see
/// [`Pool::set_spill`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Spill<'h> {
    /// No block is spilled. Blocks on the host come back when they are held.
    Never,
    /// The blocks with the least cost are spilled to page-locked memory of this pool.
    Auto(&'h HostPool),
}

impl Shelf for HostPool {
    fn room(&self, bytes: u64) -> Result<Box<dyn Shelved>> {
        Ok(Box::new(self.alloc::<u8>(bytes as usize)?))
    }
}

impl Shelved for HostBuf<u8> {
    fn put(&mut self, addr: Addr, stream: &Stream) -> Result<()> {
        // SAFETY: the bytes belong to a block that is not held. The stream runs after its uses, and its
        // memory is freed after this copy.
        let view = unsafe { View::<u8>::from_raw(addr, self.len()) }?;
        view.download_into(stream, self)
    }

    fn take(&self, addr: Addr, bytes: u64, stream: &Stream) -> Result<()> {
        let part = self.slice(..bytes as usize)?;
        // SAFETY: the bytes belong to a block that was allocated on the stream and is not used anywhere
        // else yet.
        let view = unsafe { ViewMut::<u8>::from_raw(addr, bytes as usize) }?;
        view.upload_from(stream, part)
    }
}

impl Pool {
    /// Lets [movable](Pool::alloc_movable) blocks that are not held be spilled to the host when a request,
    /// for movable memory or not, would fail. They come back when they are held;
    /// [`prefetch`](crate::Movable::prefetch) starts that in advance. So a program may have more movable
    /// memory than the device, as long as what it holds at once fits.
    ///
    /// The cost of a block depends on its bytes and on how long ago it was held. Adjacent blocks are
    /// preferred, so that one hole becomes free. Copies run on separate streams, after the blocks' uses; the
    /// host waits only while page-locked memory is allocated. While the pool has an address table or
    /// registered pointers, nothing is spilled. A block comes back at another address, and its callback is
    /// called. Blocks on the host come back as long as the pool has a handle.
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
    ///     let mut matrix = pool.alloc_movable::<u32>(&stream, 1 << 20)?; // 16 MiB together
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
    /// [`Error::Invalid`] if the host pool is of another device; any error of the driver.
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
