//! Typed buffers: memory that keeps a log of its uses, so that any stream may be given it.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;

use super::block::Block;
use super::view::{View, ViewMut};
use crate::device::{AccessLog, Addr, Place, Stream, StreamCore, ordered_to_its_end};
use crate::error::{Error, Result};
use crate::seeded::seeded;

/// A buffer of `len` elements of `T` in device memory.
///
/// **Order.** Operations that take the buffer's views may run on any stream of its device: each waits
/// on the device for the work before it that it must not overtake, and the drop, which frees the memory
/// in the order of the buffer's own stream, waits for all of them. Reads do not wait for reads, nor parts
/// of the buffer for each other ([`ViewMut::split_at`]). Where there is nothing to wait for, no call of
/// the driver is made. Kernels of the application's own are queued by [`Stream::kernel`], which does the
/// same; [`PoolBuf::addr`] alone orders nothing.
///
/// While a graph has captured work on the buffer, its memory lasts as long as the graph.
///
/// The address does not change while the buffer lives. Safe to send to and use from any thread.
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
        Self {
            block,
            log,
            len,
            element: PhantomData,
        }
    }

    /// Address of the first element. Work that is given it is ordered by the caller.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.block.addr()
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements. A buffer always has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block behind the buffer.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// As [`Block::record_use`], for work that was given the address.
    ///
    /// # Errors
    /// As [`Block::record_use`].
    #[doc(alias = "record_stream")]
    pub fn record_use(&mut self, stream: &Stream) -> Result<()> {
        self.block.record_use(stream)
    }

    /// The stream the buffer was allocated on.
    pub(crate) fn home(&self) -> &StreamCore {
        &self.block.lane().stream
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            log: &self.log,
            home: self.home(),
            from: 0,
        }
    }

    /// The elements, to be read by queued work.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View::new(self.addr(), self.len as u64, self.place())
    }

    /// The elements, to be written by queued work.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(self.addr(), self.len as u64, self.place())
    }

    /// All bytes of the block, elements or not, to be written.
    pub(crate) fn whole_view_mut(&mut self) -> ViewMut<'_, u8> {
        ViewMut::new(self.addr(), self.block.capacity(), self.place())
    }

    /// Gives up the type. The free still runs behind all uses of the views.
    #[must_use]
    pub fn into_block(mut self) -> Block {
        self.carry_uses();
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, as the buffer is not dropped. The log it leaves has nothing to free.
        unsafe { std::ptr::read(&raw const this.block) }
    }

    /// The same memory as `len` elements of another type, with its uses, and with `bytes` of it: what
    /// it has beyond those goes back to the pool.
    pub(crate) fn retyped<D: Pod>(mut self, bytes: u64) -> Result<PoolBuf<D>> {
        // A graph that uses the memory goes on to use all of it.
        let kept = self.log.is_in_a_graph() && !seeded!("retyped-buffer-shrinks-under-its-graph");
        if bytes < self.block.bytes() && !kept {
            match self.block.shrink(bytes) {
                // Captured work uses all of it: what is too much stays room.
                Ok(()) | Err(Error::Invalid { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.log.resized(bytes);
        let this = ManuallyDrop::new(self);
        // SAFETY: each is read once, as the buffer is not dropped.
        let (block, log) = unsafe {
            (
                std::ptr::read(&raw const this.block),
                std::ptr::read(&raw const this.log),
            )
        };
        Ok(PoolBuf {
            block,
            log,
            len: this.len,
            element: PhantomData,
        })
    }

    /// Copies `data` into the buffer on its stream and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `data` has as many elements as the buffer, and on a stream under capture;
    /// what the driver said.
    pub fn upload(&mut self, data: &[T]) -> Result<()> {
        self.check_len(data.len())?;
        let (addr, home) = (self.addr(), self.home());
        home.refuse_under_capture()?;
        let used = self.place().used(size_of_val(data) as u64, true);
        // SAFETY: the block has the bytes.
        ordered_to_its_end(home, &[Some(used)], || unsafe { home.write(addr, data) })
    }

    /// Copies the buffer to the host on its stream and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] on a stream under capture; what the driver said.
    pub fn download(&self) -> Result<Vec<T>> {
        let home = self.home();
        home.refuse_under_capture()?;
        // SAFETY: the block has the bytes.
        ordered_to_its_end(home, &[self.view().used()], || unsafe {
            home.read(self.addr(), self.len)
        })
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::invalid(
            "data",
            format!(
                "it has {len} elements, the buffer {}: give as many",
                self.len
            ),
        ))
    }
}

impl<T> PoolBuf<T> {
    /// Lets the block's free run behind the uses of other streams.
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
        write!(
            f,
            "PoolBuf<{}>({} elements, {:?})",
            std::any::type_name::<T>(),
            self.len,
            self.block
        )
    }
}
