//! A GPU's memory, through the driver's virtual memory calls.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

use crate::device::mapping_table::MappingTable;
use crate::device::{Addr, HandleCounts, Phys};
use crate::driver::Driver;
use crate::driver::calls::{CuDevice, CuMemAccessDesc, CuMemAllocationProp, CuMemLocation};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: c_int = 0;

/// Properties of ordinary memory on one GPU.
fn prop(device: CuDevice) -> CuMemAllocationProp {
    CuMemAllocationProp {
        kind: PINNED,
        requested_handle_types: 0,
        location: CuMemLocation {
            kind: ON_DEVICE,
            id: device,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

/// Smallest size of a handle and alignment of a mapping on `device`, in bytes.
pub(super) fn granule(driver: &'static Driver, device: CuDevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: the call writes one size and reads one property.
    unsafe { driver.cuMemGetAllocationGranularity(&raw mut bytes, &prop(device), MINIMUM) }
        .ok(driver)?;
    Ok(bytes as u64)
}

/// The memory of one GPU that this device object holds.
pub(super) struct Memory {
    driver: &'static Driver,
    device: CuDevice,
    granule: u64,
    /// Locked during the driver's calls, so that it always matches the driver's state.
    books: Mutex<Books>,
}

/// A GPU by its index, and by the driver's handle.
type Peer = (u32, CuDevice);

struct Books {
    table: MappingTable,
    /// Mappings, by address and bytes, whose access could not be set and that could not be unmapped
    /// afterwards, and their handles. The driver has them and the mapping table does not.
    stuck: Vec<((Addr, u64), Phys)>,
    /// Ranges whose mappings other GPUs may use, by address: their bytes, and those GPUs.
    shared: BTreeMap<Addr, (u64, Vec<Peer>)>,
}

impl Books {
    /// The other GPUs that may use the memory mapped at `addr`.
    fn peers_at(&self, addr: Addr) -> &[Peer] {
        match self.shared.range(..=addr).next_back() {
            Some((start, (bytes, peers))) if addr - start < *bytes => peers,
            _ => &[],
        }
    }
}

/// The permission for `device` to read and write.
fn access_of(device: CuDevice) -> CuMemAccessDesc {
    CuMemAccessDesc {
        location: CuMemLocation {
            kind: ON_DEVICE,
            id: device,
        },
        flags: READ_WRITE,
    }
}

/// Whether two ranges (address, bytes) have a byte in common.
fn touch(one: (Addr, u64), other: (Addr, u64)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}

impl Memory {
    pub(super) fn new(driver: &'static Driver, device: CuDevice, granule: u64) -> Self {
        Self {
            driver,
            device,
            granule,
            books: Mutex::new(Books {
                table: MappingTable::new(granule),
                stuck: Vec::new(),
                shared: BTreeMap::new(),
            }),
        }
    }

    pub(super) fn count(&self, counts: &mut HandleCounts) {
        lock(&self.books).table.count(counts);
    }

    /// Tries again to unmap the stuck mappings, and keeps those that the driver still refuses.
    /// Returns an error if one of these is `in_the_way`.
    fn unstick(
        &self,
        books: &mut Books,
        in_the_way: impl Fn((Addr, u64), Phys) -> bool,
    ) -> Result<()> {
        let mut outcome = Ok(());
        books.stuck.retain(|&(mapping, phys)| {
            // SAFETY: mapped here and never handed out.
            let code = unsafe { self.driver.cuMemUnmap(mapping.0, mapping.1 as usize) };
            if code.code != 0 && in_the_way(mapping, phys) {
                outcome = code.ok(self.driver);
            }
            code.code != 0
        });
        outcome
    }

    /// Returns an error if a stuck mapping overlaps the range, which then cannot be used.
    fn unstick_in(&self, books: &mut Books, addr: Addr, bytes: u64) -> Result<()> {
        self.unstick(books, |mapping, _| touch(mapping, (addr, bytes)))
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<Addr> {
        let mut books = lock(&self.books);
        let table = &mut books.table;
        table.check_bytes(bytes)?;
        let mut addr = 0;
        // SAFETY: the call writes one address; the driver chooses it.
        unsafe {
            self.driver.cuMemAddressReserve(
                &raw mut addr,
                bytes as usize,
                self.granule as usize,
                0,
                0,
            )
        }
        .ok(self.driver)?;
        table.note_range(addr, bytes);
        Ok(addr)
    }

    pub(super) fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut books = lock(&self.books);
        books.table.check_unreserve(addr, bytes)?;
        self.unstick_in(&mut books, addr, bytes)?;
        // SAFETY: the mapping table says that this is a whole range of ours with nothing mapped in it, and
        // nothing is stuck there.
        unsafe { self.driver.cuMemAddressFree(addr, bytes as usize) }.ok(self.driver)?;
        books.table.note_unreserve(addr);
        books.shared.remove(&addr);
        Ok(())
    }

    /// Lets other GPUs use the future mappings in a range of ours.
    pub(super) fn share(&self, addr: Addr, bytes: u64, peers: &[u32]) -> Result<()> {
        let mut devices: Vec<Peer> = Vec::new();
        for &ordinal in peers {
            let mut peer: CuDevice = 0;
            // SAFETY: the call writes one integer.
            unsafe { self.driver.cuDeviceGet(&raw mut peer, ordinal as c_int) }.ok(self.driver)?;
            if peer == self.device || devices.contains(&(ordinal, peer)) {
                continue;
            }
            let mut can = 0;
            // SAFETY: the call writes one integer; both devices are the driver's.
            unsafe {
                self.driver
                    .cuDeviceCanAccessPeer(&raw mut can, peer, self.device)
            }
            .ok(self.driver)?;
            if can == 0 {
                let why = format!(
                    "GPU {ordinal} cannot reach the memory of GPU {}: leave it out, and copy through the host",
                    self.device
                );
                return Err(Error::invalid("peers", why));
            }
            devices.push((ordinal, peer));
        }
        lock(&self.books).shared.insert(addr, (bytes, devices));
        Ok(())
    }

    /// Whether the GPU with this index may use the memory mapped at `addr`.
    pub(super) fn is_shared(&self, addr: Addr, ordinal: u32) -> bool {
        let books = lock(&self.books);
        books.peers_at(addr).iter().any(|peer| peer.0 == ordinal)
    }

    pub(super) fn create(&self, bytes: u64) -> Result<Phys> {
        // Unlocked during the driver's call, which touches none of our state.
        lock(&self.books).table.check_bytes(bytes)?;
        let mut handle = 0;
        // SAFETY: the call writes one handle and reads one property.
        unsafe {
            self.driver
                .cuMemCreate(&raw mut handle, bytes as usize, &prop(self.device), 0)
        }
        .ok(self.driver)?;
        Ok(lock(&self.books).table.note_create(bytes, handle))
    }

    pub(super) fn release(&self, phys: Phys) -> Result<()> {
        let mut books = lock(&self.books);
        let handle = books.table.live(phys)?;
        // The driver would keep the memory, which nothing would count.
        self.unstick(&mut books, |_, stuck| stuck == phys)?;
        // SAFETY: the mapping table says that the handle is ours and not released.
        unsafe { self.driver.cuMemRelease(handle.token) }.ok(self.driver)?;
        books.table.note_release(phys);
        Ok(())
    }

    pub(super) fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        let mut books = lock(&self.books);
        let handle = books.table.check_map(addr, bytes, phys)?;
        self.unstick_in(&mut books, addr, bytes)?;
        // SAFETY: the mapping table says that the place is in a range of ours with nothing mapped there,
        // and nothing is stuck there.
        unsafe {
            self.driver
                .cuMemMap(addr, bytes as usize, 0, handle.token, 0)
        }
        .ok(self.driver)?;
        let peers = books.peers_at(addr).iter().map(|peer| &peer.1);
        let access: Vec<_> = std::iter::once(&self.device)
            .chain(peers)
            .map(|&device| access_of(device))
            .collect();
        // SAFETY: the range was mapped just above; the call reads `access.len()` descriptors.
        let allowed = unsafe {
            self.driver
                .cuMemSetAccess(addr, bytes as usize, access.as_ptr(), access.len())
        };
        if let Err(error) = allowed.ok(self.driver) {
            books.stuck.push(((addr, bytes), phys));
            // If the mapping stays, the next caller that wants the place or the memory back gets the error.
            let _ = self.unstick_in(&mut books, addr, bytes);
            return Err(error);
        }
        books.table.note_map(addr, bytes, phys);
        Ok(())
    }

    pub(super) fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut books = lock(&self.books);
        let table = &mut books.table;
        table.check_unmap(addr, bytes)?;
        // SAFETY: the mapping table says that this is one whole mapping of ours; the caller guarantees
        // that no queued work uses it.
        unsafe { self.driver.cuMemUnmap(addr, bytes as usize) }.ok(self.driver)?;
        // The driver's own count frees a released handle's memory with its last mapping.
        table.note_unmap(addr);
        Ok(())
    }

    /// Releases everything that is left. The context is current.
    pub(super) fn clear(&self) {
        let mut books = lock(&self.books);
        // Mappings that stay stuck are handled below.
        let _ = self.unstick_in(&mut books, 0, 0);
        let Books { table, stuck, .. } = &*books;
        // SAFETY: no arguments. Queued work may use the memory that is about to be unmapped; if it
        // cannot be waited for, everything stays until the process ends.
        if table.mappings().next().is_some() && unsafe { self.driver.cuCtxSynchronize() }.code != 0
        {
            return;
        }
        let mut left: Vec<_> = stuck.iter().map(|(mapping, _)| *mapping).collect();
        // After a failure below, the driver keeps the resource until the process ends.
        for (addr, bytes) in table.mappings() {
            // SAFETY: a mapping of ours that nothing uses any more.
            if unsafe { self.driver.cuMemUnmap(addr, bytes as usize) }.code != 0 {
                left.push((addr, bytes));
            }
        }
        for handle in table.unreleased() {
            // SAFETY: a handle of ours, not released.
            let _ = unsafe { self.driver.cuMemRelease(handle) };
        }
        for range in table.ranges() {
            if left.iter().any(|&mapping| touch(mapping, range)) {
                continue;
            }
            // SAFETY: a range of ours with nothing mapped in it any more.
            let _ = unsafe { self.driver.cuMemAddressFree(range.0, range.1 as usize) };
        }
    }
}
