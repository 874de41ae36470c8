//! Guards that keep a block at its address.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytemuck::Pod;

use super::registry::Registry;
use super::{Movable, MovableId};
use crate::device::{Addr, Held, Stream, note_behind};
use crate::error::Result;
use crate::pool::{View, ViewMut};

/// Keeps a [`Movable`] at its address, for reading. Dropping it records the use on its stream.
///
/// The block does not move while the guard lives. Its views may be used on any stream of the device; they are
/// ordered like those of a [`PoolBuf`](crate::PoolBuf), and the next move and the free run after their work.
/// A guard that is leaked holds the block for ever.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::{Resident, ResidentMut, View, ViewMut};
///
/// let mut sums = pool.alloc_movable::<f32>(&stream, 4)?;
/// let mut written: ResidentMut<f32> = sums.hold_mut(&stream)?;
/// let sums_now: ViewMut<f32> = written.view_mut();
/// sums_now.fill(&stream, 2.0)?;
/// drop(written);
/// let read: Resident<f32> = sums.hold(&stream)?; // does not move while this lives
/// let first: View<f32> = read.view().slice(..1)?;
/// assert_eq!(first.download(&stream)?, [2.0]);
/// # Ok(())
/// # }
/// ```
#[must_use = "the address holds only while the guard lives"]
pub struct Resident<'a, T> {
    pub(super) movable: &'a Movable<T>,
    pub(super) stream: &'a Stream,
    pub(super) addr: Addr,
    pub(super) writes: bool,
    /// Whether the host has seen all work under the guard done.
    pub(super) done: bool,
    /// How often captures of the stream had begun and ended when the guard was made: its work may be captured
    /// although no capture is under way when it goes.
    pub(super) captures: u64,
    /// Dropped after the use is noted.
    pub(super) _held: Held,
}

impl<T: Pod> Resident<'_, T> {
    /// Address of the first element. Valid while the guard lives, for work queued on its stream.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The elements, for queued work that reads them.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View::new(self.addr, self.movable.len, self.movable.place(self.stream))
    }
}

impl<T> Drop for Resident<'_, T> {
    fn drop(&mut self) {
        let Self {
            movable, stream, ..
        } = self;
        let used = movable.used(stream, self.writes);
        note_behind(stream.core(), used, self.done, self.captures);
        // The log has the captures.
        movable.registry.let_go(movable.id, stream, &[]);
    }
}

impl<T: Pod> fmt::Debug for Resident<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident({:#x}, {:?})", self.addr, self.movable)
    }
}

/// A [`Resident`] that may also be written; [`Movable::hold_mut`] makes it.
#[must_use = "the address holds only while the guard lives"]
pub struct ResidentMut<'a, T>(pub(super) Resident<'a, T>);

impl<T: Pod> ResidentMut<'_, T> {
    /// The elements, for queued work that writes them.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        let Resident {
            movable, stream, ..
        } = self.0;
        ViewMut::new(self.0.addr, movable.len, movable.place(stream))
    }
}

impl<'a, T> Deref for ResidentMut<'a, T> {
    type Target = Resident<'a, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T: Pod> fmt::Debug for ResidentMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResidentMut({:#x}, {:?})", self.0.addr, self.0.movable)
    }
}

impl<'a, T: Pod> From<&'a Resident<'_, T>> for View<'a, T> {
    fn from(guard: &'a Resident<'_, T>) -> Self {
        guard.view()
    }
}

impl<'a, T: Pod> From<&'a mut ResidentMut<'_, T>> for ViewMut<'a, T> {
    fn from(guard: &'a mut ResidentMut<'_, T>) -> Self {
        guard.view_mut()
    }
}

/// Keeps a movable block alive and at its address, by its id; [`Pool::hold_id`](crate::Pool::hold_id) makes
/// it. Dropping it records the use on its stream.
#[must_use = "the address holds only while the guard lives"]
pub struct ResidentId<'a> {
    registry: Arc<Registry>,
    id: MovableId,
    stream: &'a Stream,
    addr: Addr,
    bytes: u64,
    /// How often captures of the stream had begun and ended when it was made.
    captures: u64,
    /// Dropped after the use is noted.
    _held: Held,
}

impl<'a> ResidentId<'a> {
    pub(super) fn new(registry: Arc<Registry>, id: MovableId, stream: &'a Stream) -> Result<Self> {
        let timeline = &stream.core().timeline;
        let captures = timeline.captures();
        // The work may come too late for the capture that is under way.
        let graphs = timeline.recorder().map(|it| Arc::clone(it.record()));
        let held = Held::new(graphs.as_slice(), timeline);
        let (addr, bytes) = registry.hold(id, stream)?;
        Ok(Self {
            registry,
            id,
            stream,
            addr,
            bytes,
            captures,
            _held: held,
        })
    }

    /// Address of the first byte. Valid while the guard lives, for work queued on its stream.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes of the block as requested.
    #[must_use]
    #[doc(hidden)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block's id.
    #[must_use]
    #[doc(hidden)]
    pub fn id(&self) -> MovableId {
        self.id
    }
}

impl Drop for ResidentId<'_> {
    fn drop(&mut self) {
        let timeline = &self.stream.core().timeline;
        let graphs = timeline.graphs_since(self.captures);
        self.registry.let_go(self.id, self.stream, &graphs);
    }
}

impl fmt::Debug for ResidentId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResidentId({:#x}, {:?})", self.addr, self.id)
    }
}
