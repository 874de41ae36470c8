//! Typed buffers: memory with a log of its uses, so that any stream may use it. A pool makes them uninitialized,
//! zeroed, filled, or from a slice.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;

use super::view::{View, ViewMut, is_even};
use super::{Block, Pool, UNIT};
use crate::device::{AccessLog, Addr, Place, Stream, StreamCore};
use crate::error::{Error, Result, refuse};

/// The place and views of a typed buffer, from its length and log, and where it has its address, stream and pool.
macro_rules! elements {
    ($buffer:ident, [$($addr:tt)+], [$($home:tt)+], [$($pool:tt)+]) => {
        impl<T: Pod> $buffer<T> {
            /// Address of the first element, which never changes. The caller orders work that uses it.
            #[must_use]
            pub fn addr(&self) -> Addr {
                self.$($addr)+
            }

            super::view::length!();

            /// The elements, to be read by queued work.
            #[must_use]
            pub fn view(&self) -> View<'_, T> {
                View::new(self.addr(), self.len, self.place())
            }

            /// The elements, to be written by queued work.
            #[must_use]
            pub fn view_mut(&mut self) -> ViewMut<'_, T> {
                ViewMut::new(self.addr(), self.len, self.place())
            }

            pub(crate) fn home(&self) -> &StreamCore {
                &self.$($home)+
            }

            pub(crate) fn place(&self) -> Place<'_> {
                Place {
                    log: &self.log,
                    home: self.home(),
                    from: 0,
                    awake: Some(&self.$($pool)+.awake),
                }
            }
        }

        impl<'a, T: Pod> From<&'a $buffer<T>> for View<'a, T> {
            fn from(buffer: &'a $buffer<T>) -> Self {
                buffer.view()
            }
        }

        impl<'a, T: Pod> From<&'a mut $buffer<T>> for ViewMut<'a, T> {
            fn from(buffer: &'a mut $buffer<T>) -> Self {
                buffer.view_mut()
            }
        }
    };
}
pub(super) use elements;

elements! { PoolBuf, [block.addr()], [block.lane().stream], [block.lane().shared] }

/// A buffer of `len` elements of `T` in device memory.
///
/// **Order.** Operations on the buffer's views may run on any stream of its device. Each waits on the device for
/// the earlier work that it must not overtake. The drop frees the memory in the order of the buffer's own stream,
/// behind all of them. Reads do not wait for reads, nor parts of the buffer for each other ([`ViewMut::split_at`]).
/// [`Stream::kernel`] queues kernels of the application in the same order; [`PoolBuf::addr`] alone orders nothing.
///
/// If a graph has captured work on the memory, it lasts as long as the graph. The address does not change while the
/// buffer lives. Safe to send to and use from any thread.
///
/// ```
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// let mut halves = pool.alloc_zeroed::<f32>(&stream, 1000)?;
/// let other = device.stream()?;
/// halves.view_mut().fill(&other, 0.5)?; // on another stream: nothing to declare
/// assert_eq!(halves.download()?[999], 0.5);
/// # Ok::<(), warpool::Error>(())
/// ```
pub struct PoolBuf<T> {
    block: Block,
    log: AccessLog,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> PoolBuf<T> {
    pub(crate) fn new(block: Block, len: usize) -> Self {
        let bytes = (len * size_of::<T>()) as u64;
        let log = AccessLog::new(&block.lane().stream.timeline, bytes);
        block.note_launches(&log);
        Self {
            block,
            log,
            len,
            element: PhantomData,
        }
    }

    /// The block behind the buffer.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The elements of `range`, to be read by queued work.
    ///
    /// # Errors
    /// As [`View::slice`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<View<'_, T>> {
        self.view().slice(range)
    }

    /// The elements of `range`, to be written by queued work.
    ///
    /// # Errors
    /// As [`View::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ViewMut<'_, T>> {
        self.view_mut().slice(range)
    }

    /// The first `bytes` of the memory as elements of another type, with its log of uses. Frees the rest.
    pub(crate) fn retyped<D: Pod>(mut self, bytes: u64) -> Result<PoolBuf<D>> {
        // A graph that uses the memory uses all of it.
        if bytes < self.block.bytes() && !self.log.is_in_a_graph() {
            // A graph that is gone may have been launched since the last use.
            let (home, mut uses) = (&self.home().timeline, self.log.uses().into_iter());
            let waited = uses.try_for_each(|(on, tick)| home.wait_for(&on, tick).map(drop));
            match waited.and_then(|()| self.block.shrink(bytes)) {
                // Captured work uses all of it: the rest stays room.
                Ok(()) | Err(Error::Invalid { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.log.resized(bytes);
        let (len, (block, log)) = (self.len, self.into_parts());
        Ok(PoolBuf {
            block,
            log,
            len,
            element: PhantomData,
        })
    }

    /// Copies `data` into the buffer on its own stream; [`ViewMut::upload`] takes any stream.
    ///
    /// # Errors
    /// As [`ViewMut::upload`].
    pub fn upload(&mut self, data: &[T]) -> Result<()> {
        let to = ViewMut::new(self.addr(), self.len, self.place());
        to.upload_on(self.home(), data)
    }

    /// Copies the buffer to the host on its own stream; [`View::download`] takes any stream.
    ///
    /// # Errors
    /// As [`View::download`].
    pub fn download(&self) -> Result<Vec<T>> {
        self.view().download_on(self.home())
    }
}

/// Drops the type. The free still runs behind all uses of the views, on any stream.
impl<T: Pod> From<PoolBuf<T>> for Block {
    fn from(mut buf: PoolBuf<T>) -> Self {
        let last = buf.log.last_at_home();
        buf.carry_uses();
        let mut block = buf.into_parts().0;
        let home = Arc::clone(&block.lane().stream.timeline);
        let left = &mut block.uses.get_or_insert_default().left;
        left.marks.push((home, last));
        block
    }
}

impl<T> PoolBuf<T> {
    fn into_parts(self) -> (Block, AccessLog) {
        let this = ManuallyDrop::new(self);
        // SAFETY: each is read once, as the buffer is not dropped.
        unsafe {
            let block = std::ptr::read(&raw const this.block);
            (block, std::ptr::read(&raw const this.log))
        }
    }

    /// Makes the block's free run behind the uses of other streams.
    #[inline]
    fn carry_uses(&mut self) {
        if let Some(left) = self.log.leave() {
            self.block.outlast(left);
        }
    }
}

impl<T> Drop for PoolBuf<T> {
    #[inline]
    fn drop(&mut self) {
        // The block goes after this.
        self.carry_uses();
    }
}

impl<T: Pod> fmt::Debug for PoolBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, len, block) = (std::any::type_name::<T>(), self.len, &self.block);
        write!(f, "PoolBuf<{of}>({len} elements, {block:?})")
    }
}

/// Bytes of `len` elements of `T`; at least those that a block has to have to be aligned for one.
pub(crate) fn bytes_of<T>(len: usize) -> Result<u64> {
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    let bytes = bytes.map(|bytes| bytes.max(align_of::<T>() as u64));
    bytes.ok_or_else(|| Error::invalid("len", format!("{len} elements overflow the address space")))
}

impl Pool {
    /// A block for `len` elements of `T` that is no slot, so that it can be moved and resized.
    pub(crate) fn alloc_apart<T: Pod>(&self, stream: &Stream, len: usize) -> Result<Block> {
        self.lane(stream)?.alloc(bytes_of::<T>(len)?, false)
    }

    /// Allocates a buffer of `len` elements of `T` on `stream`, aligned for `T` up to 256 bytes. The
    /// elements have any value. A buffer of no elements takes the smallest block with that alignment.
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
        // Until the copy is made, so that no graph has the memory.
        let _outside = stream.core().outside_capture()?;
        let mut buffer = self.alloc_typed(stream, data.len())?;
        buffer.upload(data)?;
        Ok(buffer)
    }

    /// Allocates a buffer of `len` elements on `stream` and sets all bits to 0 in stream order.
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
        let uploads = len > 0 && !is_even(&value);
        let _outside = uploads.then(|| stream.core().outside_capture());
        let _outside = _outside.transpose()?;
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
        refuse!(room < bytes => "room",
            "{room} bytes do not hold {len} elements of {bytes} bytes: ask for more");
        // A block has the alignment of its size.
        let align = (align_of::<T>() as u64).min(UNIT);
        let room = room.max(1).checked_next_multiple_of(align).unwrap_or(room);
        Ok(PoolBuf::new(self.alloc(stream, room)?, len))
    }
}
