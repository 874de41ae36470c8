//! Memory whose address may change, so that fragmentation can be undone.
//!
//! A [`Movable`] is a handle. [`Movable::hold`] returns a guard: the block keeps its address while the guard
//! lives, and dropping the guard records the use on its stream. Without a guard, a compaction
//! ([`Pool::compact`]) may move the block. It runs in stream order: it waits on the device for the recorded
//! uses, and the next hold makes its stream wait for the move. The host waits for nothing, unless hundreds of moves or
//! updates of pointers are queued that are not done: a driver would keep it then, under locks of the pool.
//!
//! Once a pool has a movable block, its out-of-memory ladder has one more step: for a request that nothing
//! else serves, it moves only as many blocks as the request needs. Memory in separate address ranges is first
//! joined by remapping its handles, which copies nothing.
//!
//! # How users learn a block's address
//!
//! - The holder of a guard, from [`Resident::addr`], or from [`ResidentId::addr`] if it keeps ids.
//! - Kernels that take handles, from the [`AddressTable`] in device memory.
//! - Pointers in device memory are rewritten if they are in a [`PointerArray`].
//! - The application on the host, from [`Movable::on_move`].
//!
//! The table and the pointers change in the order of the stream that moves, after the move. If a launch that
//! changes them fails, the change stays pending. It is made before the next hold that needs it, and until it
//! succeeds that hold returns an error. So no caller ever gets a stale address, directly or through a
//! pointer.
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

mod address_table;
mod attachment;
mod block_table;
mod callback;
mod hold;
mod id;
mod pass;
mod pointer_array;
mod pointers;
mod registry;
mod relief;
mod resident;
mod resize;
mod shelf;
mod spill;
mod step;
mod step_log;
mod words;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use bytemuck::Pod;

pub use address_table::AddressTable;
use attachment::{Attachment, with_room};
pub use callback::Relocation;
pub use id::MovableId;
pub use pass::Pass;
pub use pointer_array::{PointerArray, ResidentPointers};
use registry::Registry;
pub use resident::{Resident, ResidentId, ResidentMut};
pub(crate) use shelf::{Shelf, Shelved};
#[doc(hidden)]
pub use step_log::StepRecord;

use crate::compact::{Goal, Layout, Moved, Plan, Planner};
use crate::device::{
    AccessLog, Addr, Place, Queueing, Stream, Use, beside, is_running, wait_before,
};
use crate::error::{Error, Result};
use crate::pool::{Pool, same_len};

/// A buffer of `len` elements of `T` in device memory that a compaction may move.
///
/// Dropping it frees the memory in stream order, after every recorded use. It can be sent to and used from
/// any thread.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # let device = warpool::Device::host()?;
/// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
/// # let stream = device.stream()?;
/// let mut weights = pool.alloc_movable::<f32>(&stream, 1000)?;
/// weights.upload(&stream, &[0.5; 1000])?;
/// let held = weights.hold(&stream)?; // stays where it is
/// let first = held.view().slice(..10)?.download(&stream)?;
/// drop(held); // may move again
/// assert_eq!(first, [0.5; 10]);
/// # Ok(())
/// # }
/// ```
pub struct Movable<T> {
    registry: Arc<Registry>,
    id: MovableId,
    log: Arc<AccessLog>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Movable<T> {
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

    /// The handle as a plain value, for tables and foreign code.
    #[must_use]
    pub fn id(&self) -> MovableId {
        self.id
    }

    /// Holds the block at its address, for work on `stream` that reads it. For work that writes it, call
    /// [`Movable::hold_mut`].
    ///
    /// `stream` waits on the device for the block's allocation, its last move and the writes under earlier
    /// guards, unless it is already ordered after them. If work writes to the address under this guard, the
    /// caller has to order that work.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let weights = pool.alloc_movable::<f32>(&stream, 1000)?;
    /// let held = weights.hold(&stream)?;
    /// assert_ne!(held.addr(), 0); // for kernels on `stream`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; any error of the driver from the wait.
    pub fn hold<'a>(&'a self, stream: &'a Stream) -> Result<Resident<'a, T>> {
        self.held(stream, false)
    }

    /// Holds the block for work that writes it: `stream` waits on the device for all work of other streams
    /// under earlier guards. Otherwise the same as [`Movable::hold`].
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let mut weights = pool.alloc_movable::<f32>(&stream, 1000)?;
    /// weights.hold_mut(&stream)?.view_mut().fill(&stream, 1.0)?;
    /// assert_eq!(weights.download(&stream)?[0], 1.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Movable::hold`].
    pub fn hold_mut<'a>(&'a mut self, stream: &'a Stream) -> Result<ResidentMut<'a, T>> {
        self.held(stream, true).map(ResidentMut)
    }

    fn held<'a>(&'a self, stream: &'a Stream, writes: bool) -> Result<Resident<'a, T>> {
        let captures = stream.core().timeline.captures();
        let (addr, _) = self.registry.hold(self.id, stream)?;
        let held = wait_before(stream.core(), self.used(stream, writes));
        // After an error no work has the address, captured or not.
        let let_go = |_: &Error| self.registry.let_go(self.id, stream, &[]);
        Ok(Resident {
            movable: self,
            stream,
            addr,
            writes,
            done: false,
            captures,
            _held: held.inspect_err(let_go)?,
        })
    }

    /// Sets the `callback` that is called whenever the block has moved. It replaces the one before.
    ///
    /// It runs on the thread that moved the block, after the move is queued. No lock of the crate is held, so
    /// it may hold blocks, allocate and queue work. As always, work on the device finds the contents at the
    /// new address if it is queued under a guard.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let weights = pool.alloc_movable::<f32>(&stream, 1000)?;
    /// weights.on_move(|relocation| println!("{relocation:?}"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_move(&self, callback: impl Fn(&Relocation) + Send + Sync + 'static) {
        self.registry.on_move(self.id, Arc::new(callback));
    }

    /// Frees the block in the order of `stream` instead of the stream it was allocated on, after every
    /// recorded use.
    ///
    /// # Errors
    /// See [`Block::free_on`](crate::Block::free_on).
    pub fn free_on(self, stream: &Stream) -> Result<()> {
        self.registry.check_stream(stream)?;
        if !is_running() {
            // The drop that follows finds the handle already freed.
            return self.registry.free(self.id, Some(stream));
        }
        let (this, stream) = (ManuallyDrop::new(self), stream.clone());
        // SAFETY: both are read once, and `this` is not dropped.
        let (registry, _log) = unsafe { (ptr::read(&this.registry), ptr::read(&this.log)) };
        let id = this.id;
        beside(move || _ = registry.free(id, Some(&stream)));
        Ok(())
    }

    /// Copies `data` into the buffer on `stream` and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `data` has as many elements as the buffer, or if the stream is under capture; see
    /// also [`Movable::hold`].
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<()> {
        // Before the hold, which would bring the block back, and which a graph would take over.
        same_len("data", data.len(), self.len)?;
        stream.core().refuse_under_capture()?;
        let _queueing = Queueing::begin(&stream.core().timeline);
        let mut held = self.hold_mut(stream)?;
        let copied = held.view_mut().upload(stream, data);
        held.0.done = copied.is_ok();
        copied
    }

    /// Copies the buffer to the host on `stream` and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is under capture; see also [`Movable::hold`].
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>> {
        stream.core().refuse_under_capture()?;
        let _queueing = Queueing::begin(&stream.core().timeline);
        let mut held = self.hold(stream)?;
        let copied = held.view().download(stream);
        held.done = copied.is_ok();
        copied
    }
}

impl<T> Movable<T> {
    fn place<'a>(&'a self, stream: &'a Stream) -> Place<'a> {
        Place {
            log: &self.log,
            home: stream.core(),
            from: 0,
            awake: Some(&self.registry.awake),
        }
    }

    /// The use by the caller's own work under a guard.
    fn used<'a>(&'a self, stream: &'a Stream, writes: bool) -> Use<'a> {
        let bytes = (self.len * size_of::<T>()) as u64;
        self.place(stream).used(bytes, writes)
    }
}

impl<T> Drop for Movable<T> {
    fn drop(&mut self) {
        let (registry, id) = (Arc::clone(&self.registry), self.id);
        // Freeing fails only for a stream that the caller passes; there is none here.
        beside(move || _ = registry.free(id, None));
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

impl Movable<u64> {
    /// Registers the block's `len` words as an array of pointers: each one that points into a movable block
    /// of the pool is updated when that block moves. The array moves with this block; a guard of the block or
    /// of the array holds both.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its words are registered already.
    pub fn register_pointers(&self) -> Result<PointerArray> {
        let slots = self.len as u64;
        let mut state = self.registry.all_here()?;
        let place = pointers::Place::Block(self.id);
        let key = state.arrays.add(place, slots, None)?;
        drop(state);
        Ok(PointerArray::new(Arc::clone(&self.registry), key, slots))
    }
}

impl Pool {
    /// Allocates a buffer of `len` elements of `T` on `stream` that a compaction may move.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let weights = pool.alloc_movable::<f32>(&stream, 1000)?;
    /// assert_eq!(weights.len(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Pool::alloc_typed`].
    pub fn alloc_movable<T: Pod>(&self, stream: &Stream, len: usize) -> Result<Movable<T>> {
        let registry = Registry::of(self)?;
        let mut block = Some(self.alloc_apart::<T>(stream, len)?);
        let (id, log) = with_room(self, true, || registry.add(&mut block))?;
        Ok(Movable {
            registry,
            id,
            log,
            len,
            element: PhantomData,
        })
    }

    /// Holds a movable block by its id, for callers that keep ids in their own tables. If its [`Movable`] is
    /// dropped meanwhile, the memory lives until the last guard is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the block was freed, even if its index is in use again; see also
    /// [`Movable::hold`].
    pub fn hold_id<'a>(&self, id: MovableId, stream: &'a Stream) -> Result<ResidentId<'a>> {
        ResidentId::new(Registry::of(self)?, id, stream)
    }

    /// The table of movable blocks' addresses in device memory, for kernels that take handles. The first call
    /// makes it. From then on it is kept up to date, with one store for each block that is moved, and for
    /// each new block by its first guard.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no memory can be released for it; any error of the driver.
    pub fn address_table(&self) -> Result<AddressTable> {
        let registry = Registry::of(self)?;
        // Blocks spilled to make room would come back: the table brings all blocks back. So no
        // blocks are spilled for it.
        let addr = with_room(self, false, || registry.address_table())?;
        Ok(AddressTable::new(registry, addr))
    }

    /// Registers `slots` pointers in device memory at `addr`, valid after the work queued on `stream` so far:
    /// each one that points into a movable block is updated when that block moves. For memory at a fixed
    /// address; for an array in a movable block see [`Movable::register_pointers`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the address is not a multiple of 8, a slot is registered already, or the stream
    /// is of another device.
    ///
    /// # Safety
    /// - `slots` words of 8 bytes at `addr` are memory of the pool's device until the array is dropped or, in
    ///   stream order, unregistered; if it is dropped in a host call, until the moves before that are done.
    /// - Work that reads or writes them is queued under a guard of the array, and is part of no graph, whose launches
    ///   would not wait for a move.
    pub unsafe fn register_pointers(
        &self,
        stream: &Stream,
        addr: Addr,
        slots: usize,
    ) -> Result<PointerArray> {
        let registry = Registry::of(self)?;
        registry.check_stream(stream)?;
        if !addr.is_multiple_of(8) {
            let why = format!("{addr:#x} is not a multiple of 8: pointers are words");
            return Err(Error::invalid("addr", why));
        }
        let (place, slots) = (pointers::Place::Fixed(addr), slots as u64);
        let mut state = registry.all_here()?;
        let key = state.arrays.add(place, slots, Some(stream))?;
        drop(state);
        Ok(PointerArray::new(registry, key, slots))
    }

    /// Sets whether to record every step of compaction, for [`Pool::take_steps`]. Costs two events per step,
    /// and memory until the records are taken.
    ///
    /// # Errors
    /// Any error of the driver.
    #[doc(hidden)]
    pub fn record_steps(&self, on: bool) -> Result<()> {
        Attachment::of(self)?.record_steps(on);
        Ok(())
    }

    /// Returns the steps since the last call, if [`Pool::record_steps`] is on. Waits on the host for steps
    /// whose moves are not done.
    ///
    /// # Errors
    /// Any error of the driver.
    #[doc(hidden)]
    pub fn take_steps(&self) -> Result<Vec<StepRecord>> {
        Attachment::of(self)?.take_steps()
    }

    /// Replaces the planner of compactions, for another cost model or another search budget.
    ///
    /// # Errors
    /// Any error of the driver.
    #[doc(hidden)]
    pub fn set_planner(&self, planner: Planner) -> Result<()> {
        Attachment::of(self)?.set_planner(planner);
        Ok(())
    }

    /// The pool's present memory: blocks that may move, blocks that may not, and holes. Addresses count from
    /// the start of the pool's range. Memory in the caches of streams counts as free. Changes nothing.
    ///
    /// # Errors
    /// Any error of the driver.
    #[doc(hidden)]
    pub fn layout(&self) -> Result<Layout> {
        Ok(Attachment::of(self)?.layout(self))
    }

    /// The moves that would reach `goal` from the present layout; `None` if no moves reach it. Changes
    /// nothing. Addresses in the plan count from the start of the pool's range.
    ///
    /// # Errors
    /// Any error of the driver.
    #[doc(hidden)]
    pub fn plan_compaction(&self, goal: &Goal) -> Result<Option<Plan>> {
        Ok(Attachment::of(self)?.plan(self, goal))
    }

    /// Moves blocks until `goal` is reached or no plan reaches it. Queues the moves and returns. Blocks stay
    /// usable throughout; work queued later runs after the moves.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// use warpool::compact::Goal;
    ///
    /// let moved = pool.compact(&Goal::Full)?;
    /// assert!(moved.reached);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any error of the driver; every block is then valid at its address.
    pub fn compact(&self, goal: &Goal) -> Result<Moved> {
        let mut pass = self.begin_compaction(goal.clone(), crate::compact::Budget::default())?;
        while !pass.step()?.finished {}
        Ok(pass.end())
    }

    /// Begins a compaction in steps of at most `budget`; see [`Pass`].
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// use warpool::compact::{Budget, Goal};
    ///
    /// let mut pass = pool.begin_compaction(Goal::Full, Budget::default())?;
    /// while !pass.step()?.finished {
    ///     // a part of the program's own work
    /// }
    /// pass.end();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn begin_compaction(&self, goal: Goal, budget: crate::compact::Budget) -> Result<Pass> {
        Ok(Pass::new(Registry::of(self)?, goal, budget))
    }
}
