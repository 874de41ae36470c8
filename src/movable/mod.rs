//! Memory whose address may change, so that fragmentation can be undone.
//!
//! A [`Movable`] is a handle. [`Movable::hold`] gives the address for as long as the guard lives;
//! dropping the guard notes the use on its stream. Without a guard the block may be moved by a
//! compaction ([`Pool::compact`]), which runs in stream order: it waits on the device for the uses
//! noted, and the next hold makes its stream wait for the move. No one waits on the host.
//!
//! Once a pool has a movable block, its out-of-memory ladder has one more step: a request that
//! nothing else serves moves blocks together, and only as many as it needs. Memory that lies apart
//! is first brought together by mapping it again, which copies nothing.
//!
//! # Who knows where a block is
//!
//! - The holder of a guard, by [`Resident::addr`], or by [`ResidentId::addr`] for callers that keep ids.
//! - Kernels that take handles, by the [`AddressTable`] in device memory.
//! - Pointers in device memory, which a [`PointerArray`] has rewritten.
//! - The application on the host, by [`Movable::on_move`].
//!
//! The two on the device change in the order of the stream that moves, behind the move. If a launch
//! that changes them fails, the change is owed: it is made before the next hold that needs it, and
//! that hold is an error while it cannot be made. So nobody is given an address, or a way to one, that
//! is not right.
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
mod callback;
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
mod table;
mod words;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

pub use address_table::AddressTable;
pub use callback::Relocation;
pub use id::MovableId;
pub use pass::Pass;
pub use pointer_array::{PointerArray, ResidentPointers};
use registry::{Attachment, Registry};
pub use resident::{Resident, ResidentId, ResidentMut};
pub(crate) use shelf::{Shelf, Shelved};
#[doc(hidden)]
pub use step_log::StepRecord;

use crate::compact::{Goal, Layout, Moved, Plan, Planner};
use crate::device::{AccessLog, Addr, Giving, Stream, wait_before};
use crate::error::{Error, Result};
use crate::pool::{Pool, same_len};

/// A buffer of `len` elements of `T` in device memory that a compaction may move.
///
/// Dropping it frees the memory in stream order, behind every use noted. Safe to send to and use
/// from any thread.
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

    /// Holds the block where it is and gives its address, for work on `stream` that reads it; for work
    /// that writes it there is [`Movable::hold_mut`].
    ///
    /// `stream` is made to wait on the device for the block's allocation, its last move, and what
    /// earlier guards let be written, where it does not run behind that already. What work writes at the
    /// address under this guard is ordered by the caller.
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
    /// [`Error::Invalid`] if the stream is of another device; what the driver said of the wait.
    pub fn hold<'a>(&'a self, stream: &'a Stream) -> Result<Resident<'a, T>> {
        self.held(stream, false)
    }

    /// As [`Movable::hold`], for work that writes: `stream` is made to wait for all that other streams
    /// do under earlier guards.
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
    /// As [`Movable::hold`].
    pub fn hold_mut<'a>(&'a mut self, stream: &'a Stream) -> Result<ResidentMut<'a, T>> {
        self.held(stream, true).map(ResidentMut)
    }

    fn held<'a>(&'a self, stream: &'a Stream, writes: bool) -> Result<Resident<'a, T>> {
        let (addr, _) = self.registry.hold(self.id, stream)?;
        // From here on the guard's drop lets go.
        let guard = Resident {
            movable: self,
            stream,
            addr,
            writes,
            done: false,
        };
        wait_before(stream.core(), guard.used())?;
        Ok(guard)
    }

    /// Has `callback` called whenever the block has moved, in place of the one given before.
    ///
    /// It is called on the thread that moved the block, once the move is queued and no lock of the
    /// crate is held, so it may hold, allocate and queue work. Work on the device sees the contents
    /// at the new address under a guard, as always.
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

    /// Frees the block in the order of `stream` instead of that it was allocated on, behind every
    /// use noted.
    ///
    /// # Errors
    /// As [`Block::free_on`](crate::Block::free_on).
    pub fn free_on(self, stream: &Stream) -> Result<()> {
        // The drop that follows finds the handle freed.
        self.registry.free(self.id, Some(stream))
    }

    /// Copies `data` into the buffer on `stream` and waits for the copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `data` has as many elements as the buffer; as [`Movable::hold`].
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<()> {
        same_len("data", data.len(), self.len)?;
        let _giving = Giving::begin(&stream.core().timeline);
        let mut held = self.hold_mut(stream)?;
        // SAFETY: the block has the bytes and stays where it is while held.
        let copied = unsafe { stream.core().write(held.addr(), data) };
        held.0.done = copied.is_ok();
        copied
    }

    /// Copies the buffer to the host on `stream` and waits for the copy.
    ///
    /// # Errors
    /// As [`Movable::hold`].
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>> {
        let _giving = Giving::begin(&stream.core().timeline);
        let mut held = self.hold(stream)?;
        // SAFETY: as for `upload`.
        let copied = unsafe { stream.core().read(held.addr(), self.len) };
        held.done = copied.is_ok();
        copied
    }
}

impl<T> Drop for Movable<T> {
    fn drop(&mut self) {
        // Without a stream of the caller's to check there is nothing to say.
        let _ = self.registry.free(self.id, None);
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
    /// Registers the block's `len` words as an array of pointers: each that points into a movable
    /// block of the pool follows it when it moves. Wherever the block itself is moved, the array
    /// goes with it; a guard of either is one of both.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the block was freed by its id.
    pub fn register_pointers(&self) -> Result<PointerArray> {
        let slots = self.len as u64;
        let mut state = self.registry.all_here()?;
        state.table.entry(self.id)?;
        let place = pointers::Place::Block(self.id);
        let key = state.arrays.add(place, slots, None);
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
    /// As [`Pool::alloc_typed`].
    pub fn alloc_movable<T: Pod>(&self, stream: &Stream, len: usize) -> Result<Movable<T>> {
        let registry = Registry::of(self)?;
        let (id, log) = registry.add(self.alloc_apart::<T>(stream, len)?);
        Ok(Movable {
            registry,
            id,
            log,
            len,
            element: PhantomData,
        })
    }

    /// Holds a movable block by its id, for callers that keep ids in tables of their own. If its
    /// [`Movable`] is dropped meanwhile, the memory lives until the last guard is gone.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the block was freed, also where its place in the table has a new user;
    /// as [`Movable::hold`].
    pub fn hold_id<'a>(&self, id: MovableId, stream: &'a Stream) -> Result<ResidentId<'a>> {
        ResidentId::new(Registry::of(self)?, id, stream)
    }

    /// The device's table of where movable blocks are, for kernels that take handles. It is made
    /// when first asked for, and kept up to date from then on: a store for each block moved, and
    /// for each made by the first guard of it.
    ///
    /// # Errors
    /// What the driver said.
    pub fn address_table(&self) -> Result<AddressTable> {
        let registry = Registry::of(self)?;
        let addr = registry.address_table()?;
        Ok(AddressTable::new(registry, addr))
    }

    /// Registers `slots` pointers in device memory at `addr`, as they are behind what `stream` was
    /// given so far: each that points into a movable block follows it when it moves. For memory
    /// that stays where it is; for an array in a movable block see [`Movable::register_pointers`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is not a multiple of 8, or a stream of another device.
    ///
    /// # Safety
    /// - `slots` words of 8 bytes at `addr` are device memory of the pool's device until the array
    ///   is dropped, or, in stream order, unregistered.
    /// - Work that reads or writes them is queued under a guard of the array.
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
        let key = state.arrays.add(place, slots, Some(stream));
        drop(state);
        Ok(PointerArray::new(registry, key, slots))
    }

    /// Whether to keep what each step of compaction takes, for [`Pool::take_steps`]. Costs two
    /// events a step, and memory until it is taken.
    ///
    /// # Errors
    /// What the driver said.
    #[doc(hidden)]
    pub fn record_steps(&self, on: bool) -> Result<()> {
        Attachment::of(self)?.record_steps(on);
        Ok(())
    }

    /// The steps since this was last called, if [`Pool::record_steps`] is on. Waits on the host for
    /// those whose moves are not done.
    ///
    /// # Errors
    /// What the driver said.
    #[doc(hidden)]
    pub fn take_steps(&self) -> Result<Vec<StepRecord>> {
        Attachment::of(self)?.take_steps()
    }

    /// Changes who plans compactions: another model of time, or another budget for the search.
    ///
    /// # Errors
    /// What the driver said.
    #[doc(hidden)]
    pub fn set_planner(&self, planner: Planner) -> Result<()> {
        Attachment::of(self)?.set_planner(planner);
        Ok(())
    }

    /// The pool's memory as it is now: blocks that may move, blocks that may not, and holes.
    /// Addresses count from the start of the pool's range. What is in streams' caches counts as free.
    /// Changes nothing.
    ///
    /// # Errors
    /// What the driver said.
    #[doc(hidden)]
    pub fn layout(&self) -> Result<Layout> {
        Ok(Attachment::of(self)?.layout(self))
    }

    /// What reaching `goal` would move, with the layout as it is now; `None` if no moves reach it.
    /// Changes nothing. Addresses in the plan count from the start of the pool's range.
    ///
    /// # Errors
    /// What the driver said.
    #[doc(hidden)]
    pub fn plan_compaction(&self, goal: &Goal) -> Result<Option<Plan>> {
        Ok(Attachment::of(self)?.plan(self, goal))
    }

    /// Moves blocks until `goal` is reached or no plan reaches it. Queues the moves and returns;
    /// blocks stay usable throughout, behind the moves in stream order.
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
    /// What the driver said; every block is then valid where it is.
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
    /// What the driver said.
    pub fn begin_compaction(&self, goal: Goal, budget: crate::compact::Budget) -> Result<Pass> {
        Ok(Pass::new(Registry::of(self)?, goal, budget))
    }
}
