//! Guards that hold a block where it is.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use super::registry::Registry;
use super::{Movable, MovableId};
use crate::device::{Addr, Stream};
use crate::error::Result;

/// Holds a [`Movable`] where it is; its drop notes the use on its stream.
///
/// The block does not move while the guard lives. Work queued on the guard's stream before the drop
/// is waited for by the next move.
#[must_use = "the address holds only while the guard lives"]
pub struct Pinned<'a, T> {
    pub(super) movable: &'a Movable<T>,
    pub(super) stream: &'a Stream,
    pub(super) addr: Addr,
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

/// Holds a movable block where it is, and alive, by its id: made by
/// [`Pool::pin_id`](crate::Pool::pin_id). Its drop notes the use on its stream.
#[must_use = "the address holds only while the guard lives"]
pub struct PinnedId<'a> {
    registry: Arc<Registry>,
    id: MovableId,
    stream: &'a Stream,
    addr: Addr,
    bytes: u64,
}

impl<'a> PinnedId<'a> {
    pub(super) fn new(registry: Arc<Registry>, id: MovableId, stream: &'a Stream) -> Result<Self> {
        let (addr, bytes) = registry.pin(id, stream)?;
        Ok(Self {
            registry,
            id,
            stream,
            addr,
            bytes,
        })
    }

    /// Address of the first byte; valid while the guard lives, for work queued on its stream.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes of the block as they were asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block's id.
    #[must_use]
    pub fn id(&self) -> MovableId {
        self.id
    }
}

impl Drop for PinnedId<'_> {
    fn drop(&mut self) {
        self.registry.unpin(self.id, self.stream);
    }
}

impl fmt::Debug for PinnedId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedId({:#x}, {:?})", self.addr, self.id)
    }
}
