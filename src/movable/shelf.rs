//! Where movable memory that leaves the device is kept.

use std::sync::Arc;

use crate::device::{Addr, Stream};
use crate::error::{Error, Result};
use crate::pool::Spilled;

/// Where contents go to.
pub(crate) trait Shelf: Send + Sync {
    /// Queues a copy of the `bytes` at `addr` on `stream`, which runs behind what writes them.
    ///
    /// # Errors
    /// Where there is no room; what the driver said.
    fn put(&self, addr: Addr, bytes: u64, stream: &Stream) -> Result<Box<dyn Shelved>>;
}

/// Contents that were put away.
pub(crate) trait Shelved: Send {
    /// Queues a copy to `addr` on `stream`.
    fn take(&self, addr: Addr, stream: &Stream) -> Result<()>;
}

/// Of a pool that spills.
pub(super) struct Spilling {
    pub(super) shelf: Arc<dyn Shelf>,
    pub(super) down: Stream,
    pub(super) up: Stream,
}

impl Spilling {
    /// The same by way of another shelf.
    pub(super) fn with(&self, shelf: Arc<dyn Shelf>) -> Arc<Self> {
        let (down, up) = (self.down.clone(), self.up.clone());
        Arc::new(Self { shelf, down, up })
    }
}

/// A block that is on the host.
pub(super) struct Away {
    pub(super) contents: Box<dyn Shelved>,
    /// Where it was.
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) spilled: Spilled,
}

impl Drop for Away {
    fn drop(&mut self) {
        self.spilled.count(self.bytes, false);
    }
}

/// A shelf without room.
pub(super) struct Full;

impl Shelf for Full {
    fn put(&self, _: Addr, _: u64, _: &Stream) -> Result<Box<dyn Shelved>> {
        Err(Error::invalid("spill", "it is switched off"))
    }
}
