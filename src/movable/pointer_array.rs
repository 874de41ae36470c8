//! Arrays of pointers in device memory, updated when the blocks they point to move.

use std::sync::Arc;

use super::pointers::Place;
use super::registry::Registry;
use super::resident::ResidentId;
use crate::device::{Addr, Stream, is_running};
use crate::error::Result;

/// An array of pointers in device memory that moves update, as long as this value lives.
///
/// Each slot is 8 bytes. A slot with the address of any byte of a movable block points to the same byte of
/// that block after every move. Null and all other addresses stay unchanged. The update is queued after the
/// move on the same stream.
///
/// A kernel that reads or writes the array is queued under a guard of the array, and of each block that it
/// reaches through a pointer. **While an array is held, no block of the pool moves**, so hold it only while
/// work is being queued.
///
/// Each step of a compaction reads all slots of all arrays once.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::movable::{PointerArray, ResidentPointers};
///
/// let block = pool.alloc_movable::<f32>(&stream, 256)?;
/// let mut list = pool.alloc_movable::<u64>(&stream, 1)?;
/// let addr = block.hold(&stream)?.addr();
/// list.upload(&stream, &[addr])?;
/// let pointers: PointerArray = list.register_pointers()?; // rewritten when `block` moves
/// let held: ResidentPointers = pointers.hold(&stream)?;
/// assert_eq!(held.addr(), list.hold(&stream)?.addr());
/// drop(held);
/// pointers.unregister(&stream)?; // or drop it, which waits on the host
/// # Ok(())
/// # }
/// ```
pub struct PointerArray {
    registry: Arc<Registry>,
    key: u64,
    slots: u64,
}

impl PointerArray {
    pub(super) fn new(registry: Arc<Registry>, key: u64, slots: u64) -> Self {
        Self {
            registry,
            key,
            slots,
        }
    }

    /// Number of slots.
    #[must_use]
    #[doc(hidden)]
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Holds the array's contents and address, for work on `stream`, which waits on the device for the last
    /// update.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the stream is of another device or under capture, or if
    /// the array was in a movable block that is freed; any error of the driver.
    pub fn hold<'a>(&'a self, stream: &'a Stream) -> Result<ResidentPointers<'a>> {
        let (addr, block) = match self.registry.hold_pointers(self.key, stream)? {
            Place::Fixed(addr) => (addr, None),
            Place::Block(id) => {
                let block = ResidentId::new(Arc::clone(&self.registry), id, stream)?;
                (block.addr(), Some(block))
            }
        };
        Ok(ResidentPointers {
            array: self,
            stream,
            addr,
            block,
        })
    }

    /// Ends the registration in the order of `stream`, which waits on the device for the last update.
    /// Dropping the array instead waits on the host; in a host call, which may not, it waits for nothing. The last
    /// update may then run still.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the stream is of another device or under capture; any error of the
    /// driver. If a wait failed, the host has waited instead. If an update that failed before failed again, the array still holds
    /// the addresses from before the move.
    pub fn unregister(self, stream: &Stream) -> Result<()> {
        let checked = self.registry.check_stream(stream);
        // Under capture only the graph's launches would wait.
        let outside = checked.and_then(|()| stream.core().outside_capture());
        let (ready, settled) = self.registry.unregister(self.key);
        let waited = outside.and_then(|_outside| ready.wait_on(&stream.core().timeline));
        settled.and(waited.inspect_err(|_| ready.wait_here()))
    }
}

impl Drop for PointerArray {
    fn drop(&mut self) {
        // A failed update is reported only by `unregister`.
        let (ready, _) = self.registry.unregister(self.key);
        // Memory at a fixed address is the application's, so it cannot be kept until another thread has waited.
        if !is_running() {
            ready.wait_here();
        }
    }
}

impl std::fmt::Debug for PointerArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PointerArray({} slots)", self.slots)
    }
}

/// Holds a [`PointerArray`]. Dropping it records the use on its stream.
#[must_use = "the array is held only while this lives"]
pub struct ResidentPointers<'a> {
    array: &'a PointerArray,
    stream: &'a Stream,
    addr: Addr,
    /// The hold of the block that the array lies in, which may be freed, and its array removed, before this ends.
    block: Option<ResidentId<'a>>,
}

impl ResidentPointers<'_> {
    /// Address of the first slot. Valid while the guard lives, for work queued on its stream.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }
}

impl Drop for ResidentPointers<'_> {
    fn drop(&mut self) {
        if self.block.is_none() {
            let PointerArray { registry, key, .. } = self.array;
            registry.let_go_of_pointers(*key, self.stream);
        }
    }
}

impl std::fmt::Debug for ResidentPointers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResidentPointers({:#x}, {:?})", self.addr, self.array)
    }
}
