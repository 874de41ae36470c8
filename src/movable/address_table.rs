//! The device's own table of where blocks are, for kernels that take handles.

use std::sync::Arc;

use super::id::MovableId;
use super::registry::Registry;
use super::words::ENTRY_BYTES;
use crate::device::Addr;

/// A table in device memory that a kernel looks addresses up in: made by
/// [`Pool::address_table`](crate::Pool::address_table).
///
/// # Layout
/// 8-byte entries without padding, little-endian: entry `i`, at [`addr`](Self::addr)` + 8 * i`, is
/// the address of the block whose [`MovableId::index`] is `i`, and 0 or anything where no such
/// block is live. The table stays at its address for as long as a handle to it, to the pool or to
/// any of the pool's movable blocks lives.
///
/// # Stream order
/// An entry is stored in the order of the stream that moves: behind the last use of the block at
/// its old address, ahead of the first at its new one. Work that reads an entry is queued under a
/// hold of that block, like work that uses the block itself.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::movable::{AddressTable, MovableId, ResidentId};
///
/// let weights = pool.alloc_movable::<f32>(&stream, 1024)?;
/// let table: AddressTable = pool.address_table()?;
/// let id: MovableId = weights.id();
/// assert!(table.entry(id) >= table.addr()); // a kernel reads the block's address here
/// let held: ResidentId = pool.hold_id(id, &stream)?; // and nothing moves it while this lives
/// assert_eq!(held.addr(), weights.hold(&stream)?.addr());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AddressTable {
    registry: Arc<Registry>,
    addr: Addr,
}

impl AddressTable {
    pub(super) fn new(registry: Arc<Registry>, addr: Addr) -> Self {
        Self { registry, addr }
    }

    /// Where the table is in device memory.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Where the entry of `id` is in device memory.
    #[must_use]
    pub fn entry(&self, id: MovableId) -> Addr {
        self.addr + u64::from(id.index) * ENTRY_BYTES
    }

    /// Entries that handles have used so far; those from here on are not mapped.
    #[must_use]
    #[doc(hidden)]
    pub fn entries(&self) -> u64 {
        self.registry.handles()
    }
}

impl std::fmt::Debug for AddressTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "AddressTable({:#x}, {} entries)",
            self.addr,
            self.entries()
        )
    }
}
