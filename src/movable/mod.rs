//! Memory whose address may change, so that fragmentation can be undone.
//!
//! A [`Movable`] is a handle. [`Movable::pin`] gives the address for as long as the guard lives;
//! dropping the guard notes the use on its stream. Without a guard the block may be moved by a
//! compaction ([`Pool::compact`]), which runs in stream order: it waits on the device for the uses
//! noted, and the next pin makes its stream wait for the move. No one waits on the host.
//!
//! Once a pool has a movable block, its out-of-memory ladder has one more step: a request that
//! nothing else serves moves blocks together, and only as many as it needs.
//!
//! ```
//! # fn main() -> warpool::Result<()> {
//! use warpool::compact::Goal;
//! use warpool::{Device, Pool, PoolConfig};
//!
//! let device = Device::host()?;
//! let pool = Pool::new(&device, PoolConfig::default())?;
//! let stream = device.stream()?;
//! let mut weights = pool.alloc_movable::<f32>(&stream, 1024)?;
//! weights.upload(&stream, &[1.5; 1024])?;
//! pool.compact(&Goal::Full)?;
//! assert_eq!(weights.download(&stream)?, [1.5; 1024]);
//! # Ok(())
//! # }
//! ```

mod pass;
mod registry;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

pub use pass::Pass;
pub use registry::MovableId;
use registry::Registry;

use crate::compact::{Goal, Moved, Plan};
use crate::device::{Addr, Stream};
use crate::error::{Error, Result};
use crate::pool::Pool;

/// A buffer of `len` elements of `T` in device memory that a compaction may move.
///
/// Dropping it frees the memory in stream order, behind every use noted. Safe to send to and use
/// from any thread.
pub struct Movable<T> {
    registry: Arc<Registry>,
    id: MovableId,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Movable<T> {
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

    /// The handle as a plain value, for tables and foreign code.
    #[must_use]
    pub fn id(&self) -> MovableId {
        self.id
    }

    /// Holds the block where it is and gives its address, for work on `stream`.
    ///
    /// `stream` is made to wait on the device for the block's allocation and last move, where it
    /// does not run behind them already. Order between users of the block's contents on several
    /// streams is the caller's.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; what the driver said of the wait.
    pub fn pin<'a>(&'a self, stream: &'a Stream) -> Result<Pinned<'a, T>> {
        let addr = self.registry.pin(self.id, stream)?;
        Ok(Pinned {
            movable: self,
            stream,
            addr,
        })
    }

    /// Copies `data` into the buffer on `stream` and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `data` has as many elements as the buffer; as [`Movable::pin`].
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<()> {
        if data.len() != self.len {
            let why = format!(
                "it has {} elements, the buffer {}: give as many",
                data.len(),
                self.len
            );
            return Err(Error::invalid("data", why));
        }
        let pinned = self.pin(stream)?;
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let backend = stream.device().backend();
        // SAFETY: the block has the bytes, stays where it is while pinned, and both sides outlive
        // the copy, which is waited for.
        unsafe {
            backend.copy_in(
                pinned.addr(),
                bytes.as_ptr(),
                bytes.len() as u64,
                stream.raw(),
            )?
        };
        stream.core().synchronize_memory()
    }

    /// Copies the buffer to the host on `stream` and waits for the copy.
    ///
    /// # Errors
    /// As [`Movable::pin`].
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>> {
        let pinned = self.pin(stream)?;
        let mut data = vec![T::zeroed(); self.len];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        let backend = stream.device().backend();
        // SAFETY: as for `upload`.
        unsafe {
            backend.copy_out(
                bytes.as_mut_ptr(),
                pinned.addr(),
                bytes.len() as u64,
                stream.raw(),
            )?
        };
        stream.core().synchronize_memory()?;
        Ok(data)
    }
}

impl<T> Drop for Movable<T> {
    fn drop(&mut self) {
        self.registry.free(self.id);
    }
}

impl<T> fmt::Debug for Movable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(
            f,
            "Movable<{element}>({} elements, {:?})",
            self.len, self.id
        )
    }
}

/// A movable buffer held where it is, for work on one stream. See [`Movable::pin`].
pub struct Pinned<'a, T> {
    movable: &'a Movable<T>,
    stream: &'a Stream,
    addr: Addr,
}

impl<T: Pod> Pinned<'_, T> {
    /// Address of the first element; valid while the guard lives, for work queued on its stream.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.movable.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.movable.len == 0
    }
}

impl<T> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        self.movable.registry.unpin(self.movable.id, self.stream);
    }
}

impl<T: Pod> fmt::Debug for Pinned<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:#x}, {:?})", self.addr, self.movable)
    }
}

impl Pool {
    /// Allocates a buffer of `len` elements of `T` on `stream` that a compaction may move.
    ///
    /// # Errors
    /// As [`Pool::alloc_typed`].
    pub fn alloc_movable<T: Pod>(&self, stream: &Stream, len: usize) -> Result<Movable<T>> {
        let registry = Registry::of(self)?;
        let block = self.alloc_typed::<T>(stream, len)?.into_block();
        let id = registry.add(block);
        Ok(Movable {
            registry,
            id,
            len,
            element: PhantomData,
        })
    }

    /// What reaching `goal` would move, with the layout as it is now; `None` if no moves reach it.
    /// Moves nothing. Addresses in the plan count from the start of the pool's range.
    ///
    /// # Errors
    /// What the driver said.
    pub fn plan_compaction(&self, goal: &Goal) -> Result<Option<Plan>> {
        Registry::of(self)?.plan(goal)
    }

    /// Moves blocks until `goal` is reached or no plan reaches it. Queues the moves and returns;
    /// blocks stay usable throughout, behind the moves in stream order.
    ///
    /// # Errors
    /// What the driver said; every block is then valid where it is.
    pub fn compact(&self, goal: &Goal) -> Result<Moved> {
        let mut pass = self.begin_compaction(goal.clone(), crate::compact::Budget::default())?;
        while !pass.step()?.finished {}
        Ok(pass.end())
    }

    /// Begins a compaction in steps of at most `budget`; see [`Pass`].
    ///
    /// # Errors
    /// What the driver said.
    pub fn begin_compaction(&self, goal: Goal, budget: crate::compact::Budget) -> Result<Pass> {
        Ok(Pass::new(Registry::of(self)?, goal, budget))
    }
}
