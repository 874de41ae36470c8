//! The memory of a simulated device: with real bytes, or without.

use super::tracked::Tracked;
use crate::device::host::Memory;
use crate::device::{Addr, HandleCounts, Phys};
use crate::error::Result;

/// The memory of a simulated device; see the module documentation.
#[derive(Debug)]
pub(super) enum Store {
    Bytes(Memory),
    Tracked(Tracked),
}

/// Makes the same call on either kind of memory.
macro_rules! on {
    ($store:expr, $memory:ident => $call:expr) => {
        match $store {
            Store::Bytes($memory) => $call,
            Store::Tracked($memory) => $call,
        }
    };
}

impl Store {
    pub(super) fn new(capacity: u64, bytes: bool) -> Result<Self> {
        Ok(if bytes {
            Self::Bytes(Memory::new(capacity)?)
        } else {
            Self::Tracked(Tracked::new(capacity))
        })
    }

    pub(super) fn has_bytes(&self) -> bool {
        matches!(self, Self::Bytes(_))
    }

    pub(super) fn free_bytes(&self) -> u64 {
        on!(self, memory => memory.free_bytes())
    }

    pub(super) fn count(&self, counts: &mut HandleCounts) {
        on!(self, memory => memory.count(counts));
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<Addr> {
        on!(self, memory => memory.reserve(bytes))
    }

    pub(super) fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        on!(self, memory => memory.unreserve(addr, bytes))
    }

    pub(super) fn create(&self, bytes: u64) -> Result<Phys> {
        on!(self, memory => memory.create(bytes))
    }

    pub(super) fn release(&self, phys: Phys) -> Result<()> {
        on!(self, memory => memory.release(phys))
    }

    pub(super) fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        on!(self, memory => memory.map(addr, bytes, phys))
    }

    pub(super) fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        on!(self, memory => memory.unmap(addr, bytes))
    }
}
