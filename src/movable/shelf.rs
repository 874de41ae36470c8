//! Storage for movable memory that leaves the device.

use std::sync::Arc;

use crate::compact::Backlog;
use crate::device::{Addr, Device, Stream, is_running, lock};
use crate::error::Result;
use crate::pool::Spilled;
use crate::sync::Mutex;

/// Storage that contents are copied to.
pub(crate) trait Shelf: Send + Sync {
    /// Room for `bytes` bytes. The caller holds no lock, as the driver may wait for host calls here.
    ///
    /// # Errors
    /// If the storage is full; any error of the driver.
    fn room(&self, bytes: u64) -> Result<Box<dyn Shelved>>;
}

/// Stored contents, or room for them.
pub(crate) trait Shelved: Send {
    /// Queues a copy of as many bytes as there is room for, at `addr`, on `stream`, which is ordered after the
    /// work that writes them.
    fn put(&mut self, addr: Addr, stream: &Stream) -> Result<()>;

    /// Queues a copy of the first `bytes` bytes to `addr` on `stream`.
    fn take(&self, addr: Addr, bytes: u64, stream: &Stream) -> Result<()>;
}

/// A stream of copies, and how much it has to do.
pub(super) struct CopyStream {
    pub(super) stream: Stream,
    backlog: Mutex<Backlog>,
}

impl CopyStream {
    pub(super) fn new(device: &Device) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            stream: device.stream()?,
            backlog: Mutex::new(Backlog::new(device)?),
        }))
    }

    /// Counts a copy that is queued.
    pub(super) fn add(&self) {
        lock(&self.backlog).add_launch();
    }

    /// Waits, without the registry's lock, until the stream has room for more copies.
    pub(super) fn wait_for_room(&self) -> Result<()> {
        let record = lock(&self.backlog).record_to_wait_for(&self.stream);
        let record = record.filter(|_| !is_running());
        record.map_or(Ok(()), |record| record.synchronize())
    }
}

/// The storage and the streams of a pool that spills.
pub(super) struct Spilling {
    /// `None` once spilling has ended.
    pub(super) shelf: Option<Arc<dyn Shelf>>,
    pub(super) down: Arc<CopyStream>,
    pub(super) up: Arc<CopyStream>,
}

impl Spilling {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let (down, up) = (CopyStream::new(device)?, CopyStream::new(device)?);
        let shelf = None;
        Ok(Self { shelf, down, up })
    }

    /// The same streams with another shelf.
    pub(super) fn with(&self, shelf: Option<Arc<dyn Shelf>>) -> Arc<Self> {
        let (down, up) = (Arc::clone(&self.down), Arc::clone(&self.up));
        Arc::new(Self { shelf, down, up })
    }
}

/// A block that is on the host.
pub(super) struct Away {
    pub(super) contents: Box<dyn Shelved>,
    /// Its last device address.
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) spilled: Spilled,
}

impl Away {
    /// Keeps the first `bytes` bytes; false if it has fewer.
    pub(super) fn shrink(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes {
            return false;
        }
        lock(&self.spilled).block_resized(self.bytes, bytes);
        self.bytes = bytes;
        true
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        lock(&self.spilled).sub(self.bytes);
    }
}
