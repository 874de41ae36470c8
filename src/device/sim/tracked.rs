//! Memory that is only tracked: it has no bytes.
//!
//! A schedule that checks order and not contents needs no memory, and creating and mapping real
//! memory would take longer than the schedule itself. Addresses start beyond those of any machine,
//! so that an accidental use faults at once.

use std::sync::Mutex;

use crate::device::host::{GRANULE, exhausted};
use crate::device::mapping_table::MappingTable;
use crate::device::{Addr, HandleCounts, Phys};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// Not a canonical address on x86-64 or aarch64.
const FIRST_ADDR: Addr = 1 << 56;

/// End of the addresses in use.
const LAST_ADDR: Addr = 1 << 62;

#[derive(Debug)]
struct State {
    table: MappingTable,
    next: Addr,
    used: u64,
}

/// The tracked memory; see the module documentation.
#[derive(Debug)]
pub(super) struct Tracked {
    capacity: u64,
    state: Mutex<State>,
}

impl Tracked {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            state: Mutex::new(State {
                table: MappingTable::new(GRANULE),
                next: FIRST_ADDR,
                used: 0,
            }),
        }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity - lock(&self.state).used
    }

    pub(super) fn count(&self, counts: &mut HandleCounts) {
        lock(&self.state).table.count(counts);
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<Addr> {
        let mut state = lock(&self.state);
        state.table.check_bytes(bytes)?;
        let addr = state.next;
        // Leaves a granule between two ranges, so that an overrun of one is detected.
        let next = addr
            .checked_add(bytes)
            .and_then(|end| end.checked_add(GRANULE));
        state.next = next.filter(|&next| next <= LAST_ADDR).ok_or_else(|| {
            Error::invalid("bytes", format!("{bytes} is more than there are addresses"))
        })?;
        state.table.note_range(addr, bytes);
        Ok(addr)
    }

    pub(super) fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut state = lock(&self.state);
        state.table.check_unreserve(addr, bytes)?;
        state.table.note_unreserve(addr);
        Ok(())
    }

    pub(super) fn create(&self, bytes: u64) -> Result<Phys> {
        let mut state = lock(&self.state);
        state.table.check_bytes(bytes)?;
        let free = self.capacity - state.used;
        if bytes > free {
            return Err(exhausted(bytes, free, self.capacity));
        }
        state.used += bytes;
        Ok(state.table.note_create(bytes, 0))
    }

    pub(super) fn release(&self, phys: Phys) -> Result<()> {
        let mut state = lock(&self.state);
        let handle = state.table.live(phys)?;
        if state.table.note_release(phys) {
            state.used -= handle.bytes;
        }
        Ok(())
    }

    pub(super) fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        let mut state = lock(&self.state);
        state.table.check_map(addr, bytes, phys)?;
        state.table.note_map(addr, bytes, phys);
        Ok(())
    }

    pub(super) fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut state = lock(&self.state);
        state.table.check_unmap(addr, bytes)?;
        if let Some(gone) = state.table.note_unmap(addr) {
            state.used -= gone.bytes;
        }
        Ok(())
    }
}
