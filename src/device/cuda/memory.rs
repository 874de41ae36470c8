//! Memory of a GPU through the driver's virtual memory calls.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

use crate::device::ledger::Ledger;
use crate::device::{Addr, HandleCounts, Phys};
use crate::driver::Driver;
use crate::driver::table::{CuDevice, CuMemAccessDesc, CuMemAllocationProp, CuMemLocation};
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

/// Plain memory of one GPU.
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

/// Smallest handle and alignment of a mapping on `device`, in bytes.
pub(super) fn granule(driver: &'static Driver, device: CuDevice) -> Result<u64> {
    let mut bytes = 0;
    // SAFETY: the call writes one size and reads one property.
    unsafe { driver.cuMemGetAllocationGranularity(&raw mut bytes, &prop(device), MINIMUM) }
        .ok(driver)?;
    Ok(bytes as u64)
}

/// The memory of one GPU that this device object has taken.
pub(super) struct Memory {
    driver: &'static Driver,
    device: CuDevice,
    granule: u64,
    /// Held across the driver's calls, so that what it says is what the driver did.
    books: Mutex<Books>,
}

/// A GPU by its number, and as the driver names it.
type Peer = (u32, CuDevice);

struct Books {
    ledger: Ledger,
    /// Mappings that could not be used and then not be taken down: address and bytes. The driver
    /// has them and the ledger does not, until the device goes.
    stuck: Vec<(Addr, u64)>,
    /// Ranges whose mappings other GPUs may use, by address, with their bytes and those GPUs.
    shared: BTreeMap<Addr, (u64, Vec<Peer>)>,
}

impl Books {
    /// The GPUs beside its own that may use what is mapped at `addr`.
    fn peers_at(&self, addr: Addr) -> &[Peer] {
        match self.shared.range(..=addr).next_back() {
            Some((start, (bytes, peers))) if addr - start < *bytes => peers,
            _ => &[],
        }
    }
}

/// Leave for `device` to read and write.
fn access_of(device: CuDevice) -> CuMemAccessDesc {
    CuMemAccessDesc {
        location: CuMemLocation {
            kind: ON_DEVICE,
            id: device,
        },
        flags: READ_WRITE,
    }
}

/// Whether two places, each an address and bytes, have a byte in common.
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
                ledger: Ledger::new(granule),
                stuck: Vec::new(),
                shared: BTreeMap::new(),
            }),
        }
    }

    pub(super) fn count(&self, counts: &mut HandleCounts) {
        lock(&self.books).ledger.count(counts);
    }

    /// Takes down the mappings that are stuck; those that the driver still keeps stay noted. An error
    /// if one of them touches the range: nothing else can be done there.
    fn unstick(&self, books: &mut Books, addr: Addr, bytes: u64) -> Result<()> {
        let mut outcome = Ok(());
        books.stuck.retain(|&mapping| {
            // SAFETY: mapped here and never handed out.
            let code = unsafe { self.driver.cuMemUnmap(mapping.0, mapping.1 as usize) };
            if code.code != 0 && touch(mapping, (addr, bytes)) {
                outcome = code.ok(self.driver);
            }
            code.code != 0
        });
        outcome
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<Addr> {
        let mut books = lock(&self.books);
        let ledger = &mut books.ledger;
        ledger.check_bytes(bytes)?;
        let mut addr = 0;
        // SAFETY: the call writes one address; the driver picks the place.
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
        ledger.note_range(addr, bytes);
        Ok(addr)
    }

    pub(super) fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut books = lock(&self.books);
        books.ledger.check_unreserve(addr, bytes)?;
        self.unstick(&mut books, addr, bytes)?;
        // SAFETY: the ledger says that this is a whole range of ours with nothing mapped in it, and
        // nothing is stuck there.
        unsafe { self.driver.cuMemAddressFree(addr, bytes as usize) }.ok(self.driver)?;
        books.ledger.note_unreserve(addr);
        books.shared.remove(&addr);
        Ok(())
    }

    /// Lets other GPUs use what comes to be mapped in a range of ours.
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

    /// Whether the GPU of this number may use what is mapped at `addr`.
    pub(super) fn is_shared(&self, addr: Addr, ordinal: u32) -> bool {
        let books = lock(&self.books);
        books.peers_at(addr).iter().any(|peer| peer.0 == ordinal)
    }

    pub(super) fn create(&self, bytes: u64) -> Result<Phys> {
        // Not under the lock until the driver has answered: creating touches nothing of ours.
        lock(&self.books).ledger.check_bytes(bytes)?;
        let mut handle = 0;
        // SAFETY: the call writes one handle and reads one property.
        unsafe {
            self.driver
                .cuMemCreate(&raw mut handle, bytes as usize, &prop(self.device), 0)
        }
        .ok(self.driver)?;
        Ok(lock(&self.books).ledger.note_create(bytes, handle))
    }

    pub(super) fn release(&self, phys: Phys) -> Result<()> {
        let mut books = lock(&self.books);
        let ledger = &mut books.ledger;
        let handle = ledger.live(phys)?;
        // SAFETY: the ledger says that the handle is ours and not released.
        unsafe { self.driver.cuMemRelease(handle.token) }.ok(self.driver)?;
        ledger.note_release(phys);
        Ok(())
    }

    pub(super) fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        let mut books = lock(&self.books);
        let handle = books.ledger.check_map(addr, bytes, phys)?;
        self.unstick(&mut books, addr, bytes)?;
        // SAFETY: the ledger says that the place is in a range of ours with nothing mapped there, and
        // nothing is stuck there.
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
        // SAFETY: the range was mapped just above; as many descriptors are read as there are.
        let allowed = unsafe {
            self.driver
                .cuMemSetAccess(addr, bytes as usize, access.as_ptr(), access.len())
        };
        if let Err(error) = allowed.ok(self.driver) {
            books.stuck.push((addr, bytes));
            // Where it stays, who asks for the place next is told.
            let _ = self.unstick(&mut books, addr, bytes);
            return Err(error);
        }
        books.ledger.note_map(addr, bytes, phys);
        Ok(())
    }

    pub(super) fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut books = lock(&self.books);
        let ledger = &mut books.ledger;
        ledger.check_unmap(addr, bytes)?;
        // SAFETY: the ledger says that this is one whole mapping of ours; the caller, that no
        // queued work uses it.
        unsafe { self.driver.cuMemUnmap(addr, bytes as usize) }.ok(self.driver)?;
        // Memory of a released handle goes with its last mapping, by the driver's own count.
        ledger.note_unmap(addr);
        Ok(())
    }

    /// Gives back whatever was not. The context is current.
    pub(super) fn clear(&self) {
        let mut books = lock(&self.books);
        // What stays is kept apart below.
        let _ = self.unstick(&mut books, 0, 0);
        let Books { ledger, stuck, .. } = &mut *books;
        // SAFETY: no arguments. Queued work may use what is about to be unmapped; where it cannot be
        // waited for, everything stays until the process ends.
        if ledger.mappings().next().is_some() && unsafe { self.driver.cuCtxSynchronize() }.code != 0
        {
            return;
        }
        // Failures below leave the driver holding what the process's end will give back.
        for (addr, bytes) in ledger.mappings() {
            // SAFETY: a mapping of ours that nothing uses any more.
            if unsafe { self.driver.cuMemUnmap(addr, bytes as usize) }.code != 0 {
                stuck.push((addr, bytes));
            }
        }
        for handle in ledger.unreleased() {
            // SAFETY: a handle of ours, not released.
            let _ = unsafe { self.driver.cuMemRelease(handle) };
        }
        for range in ledger.ranges() {
            if stuck.iter().any(|&mapping| touch(mapping, range)) {
                continue;
            }
            // SAFETY: a range of ours with nothing mapped in it any more.
            let _ = unsafe { self.driver.cuMemAddressFree(range.0, range.1 as usize) };
        }
    }
}
