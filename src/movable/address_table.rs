//! A table of block addresses in device memory, for kernels that take handles.

use std::sync::Arc;

use super::id::MovableId;
use super::registry::Registry;
use super::words::ENTRY_BYTES;
use crate::device::Addr;

/// A table in device memory in which a kernel looks up addresses.
/// [`Pool::address_table`](crate::Pool::address_table) makes it.
///
/// # Layout
/// 8-byte entries without padding, little-endian. Entry `i`, at [`addr`](Self::addr)` + 8 * i`, is
/// the address of the block whose [`MovableId::index`] is `i`; if no such block is live, it is 0 or
/// any other value. The table keeps its address as long as a handle to it, to the pool or to any of
/// the pool's movable blocks lives.
///
/// # Stream order
/// The stream that moves blocks also stores the entries: after the last use of the block at its old
/// address, before the first at its new one. Queue work that reads an entry while a guard holds
/// that block, like work that uses the block itself.
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

    /// Device address of the table.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Device address of the entry of `id`.
    #[must_use]
    pub fn entry(&self, id: MovableId) -> Addr {
        self.addr + u64::from(id.index) * ENTRY_BYTES
    }

    /// Number of entries that handles have used so far; later ones are not mapped.
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
