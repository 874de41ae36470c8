//! Typed buffers of a pool: empty, zeroed, filled, or from a slice.

use bytemuck::Pod;

use super::{Block, Pool, PoolBuf, UNIT};
use crate::device::Stream;
use crate::error::{Error, Result};

/// Bytes of `len` elements of `T`; one where they have none, since a block has at least that.
pub(crate) fn bytes_of<T>(len: usize) -> Result<u64> {
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    let bytes = bytes.map(|bytes| bytes.max(1));
    bytes.ok_or_else(|| Error::invalid("len", format!("{len} elements overflow the address space")))
}

impl Pool {
    /// A block for `len` elements of `T` that is no slot of a slab, and so may be moved and resized.
    pub(crate) fn alloc_apart<T: Pod>(&self, stream: &Stream, len: usize) -> Result<Block> {
        self.lane(stream)?.alloc_block(bytes_of::<T>(len)?)
    }

    /// Allocates a buffer of `len` elements of `T` on `stream`, aligned for `T` up to 256 bytes. The
    /// elements have any value. A buffer of no elements takes a block of the smallest size.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; [`Error::Invalid`] for a length whose bytes overflow.
    pub fn alloc_typed<T: Pod>(&self, stream: &Stream, len: usize) -> Result<PoolBuf<T>> {
        Ok(PoolBuf::new(self.alloc(stream, bytes_of::<T>(len)?)?, len))
    }

    /// Allocates a buffer on `stream` with the elements of `data`, and waits for the copy.
    ///
    /// # Errors
    /// As [`Pool::alloc_typed`] and [`PoolBuf::upload`].
    pub fn alloc_from<T: Pod>(&self, stream: &Stream, data: &[T]) -> Result<PoolBuf<T>> {
        let mut buffer = self.alloc_typed(stream, data.len())?;
        buffer.upload(data)?;
        Ok(buffer)
    }

    /// Allocates a buffer of `len` elements on `stream`, all of whose bits are 0 in stream order.
    ///
    /// # Errors
    /// As [`Pool::alloc_typed`]; what the driver said of the fill.
    pub fn alloc_zeroed<T: Pod>(&self, stream: &Stream, len: usize) -> Result<PoolBuf<T>> {
        self.alloc_filled(stream, len, T::zeroed())
    }

    /// Allocates a buffer of `len` elements on `stream` and [fills](super::ViewMut::fill) it with `value`.
    ///
    /// # Errors
    /// As [`Pool::alloc_typed`] and [`ViewMut::fill`](super::ViewMut::fill).
    pub fn alloc_filled<T: Pod>(
        &self,
        stream: &Stream,
        len: usize,
        value: T,
    ) -> Result<PoolBuf<T>> {
        let mut buffer = self.alloc_typed(stream, len)?;
        buffer.view_mut().fill(stream, value)?;
        Ok(buffer)
    }

    /// Allocates a buffer of `len` elements of `T` on `stream` with room for at least `room` bytes,
    /// so that it can be converted to a wider type in place.
    ///
    /// ```
    /// # #[cfg(feature = "convert")] {
    /// use warpool::convert::Rounding;
    /// use warpool::half::f16;
    ///
    /// # let pool = warpool::Pool::new(&warpool::Device::host()?, warpool::PoolConfig::default())?;
    /// # let stream = pool.device().stream()?;
    /// let mut halves = pool.alloc_typed_with_room::<f16>(&stream, 2, 2 * 4)?;
    /// halves.upload(&[f16::ONE, f16::NEG_ONE])?;
    /// let singles = halves.convert_in_place::<f32>(Rounding::Nearest)?;
    /// assert_eq!(singles.download()?, [1.0, -1.0]);
    /// # }
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::alloc_typed`]; [`Error::Invalid`] for room that does not hold the elements.
    pub fn alloc_typed_with_room<T: Pod>(
        &self,
        stream: &Stream,
        len: usize,
        room: u64,
    ) -> Result<PoolBuf<T>> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        if room < bytes {
            let few = format!("{room} bytes do not hold {len} elements of {bytes} bytes");
            return Err(Error::invalid("room", few + ": ask for more"));
        }
        // A block is aligned as its size is.
        let align = (align_of::<T>() as u64).min(UNIT);
        let room = room.max(1).checked_next_multiple_of(align).unwrap_or(room);
        Ok(PoolBuf::new(self.alloc(stream, room)?, len))
    }
}
