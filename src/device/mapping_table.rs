//! A backend's live objects: address ranges, physical handles and the mappings between them.
//!
//! Both real backends check every memory call against a mapping table before they make it. So a wrong
//! argument is the same error on both and changes nothing, and the counts are exact. The mapping table
//! makes no system call: a backend calls `check_…`, acts, and then calls `note_…`.
//!
//! Handles are numbered here, not by the driver's value: a driver may reuse the value of a released
//! handle while a mapping of the first still exists.

use std::collections::{BTreeMap, HashMap};

use super::{Addr, HandleCounts, Phys};
use crate::error::{Error, Result};

/// A physical handle, until it is released and unmapped everywhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    /// The backend's name for the memory: a driver handle, or an offset in a file.
    pub(super) token: u64,
    pub(super) bytes: u64,
    mappings: u64,
    released: bool,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    bytes: u64,
    phys: Phys,
}

/// A backend's live objects; see the module documentation.
#[derive(Debug)]
pub(super) struct MappingTable {
    granule: u64,
    ranges: BTreeMap<Addr, u64>,
    handles: HashMap<Phys, Handle>,
    mappings: BTreeMap<Addr, Mapping>,
    next_phys: u64,
    unreleased: u64,
}

impl MappingTable {
    pub(super) fn new(granule: u64) -> Self {
        Self {
            granule,
            ranges: BTreeMap::new(),
            handles: HashMap::new(),
            mappings: BTreeMap::new(),
            next_phys: 1,
            unreleased: 0,
        }
    }

    /// Fills in the counts that the mapping table has.
    pub(super) fn count(&self, counts: &mut HandleCounts) {
        counts.ranges = self.ranges.len() as u64;
        counts.handles = self.unreleased;
        counts.bytes = self.handles.values().map(|handle| handle.bytes).sum();
        counts.mappings = self.mappings.len() as u64;
    }

    /// The ranges not released, for a backend that is being dropped.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (Addr, u64)> + '_ {
        self.ranges.iter().map(|(&addr, &bytes)| (addr, bytes))
    }

    /// The existing mappings, for a backend that is being dropped.
    pub(super) fn mappings(&self) -> impl Iterator<Item = (Addr, u64)> + '_ {
        self.mappings
            .iter()
            .map(|(&addr, mapping)| (addr, mapping.bytes))
    }

    /// Tokens of the handles not released, for a backend that is being dropped.
    pub(super) fn unreleased(&self) -> impl Iterator<Item = u64> + '_ {
        self.handles
            .values()
            .filter(|handle| !handle.released)
            .map(|handle| handle.token)
    }

    /// Checks that a size is a positive multiple of the granule.
    pub(super) fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes == 0 || !bytes.is_multiple_of(self.granule) {
            let why = format!(
                "{bytes} is not a positive multiple of the granule, {} bytes",
                self.granule
            );
            return Err(Error::invalid("bytes", why));
        }
        Ok(())
    }

    pub(super) fn note_range(&mut self, addr: Addr, bytes: u64) {
        self.ranges.insert(addr, bytes);
    }

    pub(super) fn check_unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        match self.ranges.get(&addr) {
            Some(&whole) if whole == bytes => {}
            Some(&whole) => {
                let why = format!(
                    "the range at {addr:#x} has {whole} bytes, not {bytes}: release it whole"
                );
                return Err(Error::invalid("range", why));
            }
            None => {
                return Err(Error::invalid(
                    "range",
                    format!("no range was reserved at {addr:#x}"),
                ));
            }
        }
        if let Some(mapped) = self.mapping_in(addr, bytes) {
            let why =
                format!("memory is mapped at {mapped:#x}: unmap it before releasing the range");
            return Err(Error::invalid("range", why));
        }
        Ok(())
    }

    pub(super) fn note_unreserve(&mut self, addr: Addr) {
        self.ranges.remove(&addr);
    }

    /// Adds a new handle and returns its number.
    pub(super) fn note_create(&mut self, bytes: u64, token: u64) -> Phys {
        let phys = Phys(self.next_phys);
        self.next_phys += 1;
        self.unreleased += 1;
        self.handles.insert(
            phys,
            Handle {
                token,
                bytes,
                mappings: 0,
                released: false,
            },
        );
        phys
    }

    /// The handle, if it was created and not released.
    pub(super) fn live(&self, phys: Phys) -> Result<Handle> {
        match self.handles.get(&phys) {
            Some(handle) if !handle.released => Ok(*handle),
            _ => {
                let why = format!(
                    "{} is not a physical handle of this device, or was released",
                    phys.0
                );
                Err(Error::invalid("phys", why))
            }
        }
    }

    /// Records a release. Returns true if nothing maps the handle, so that its memory is freed.
    pub(super) fn note_release(&mut self, phys: Phys) -> bool {
        let Some(handle) = self.handles.get_mut(&phys) else {
            return false;
        };
        handle.released = true;
        self.unreleased -= 1;
        let gone = handle.mappings == 0;
        if gone {
            self.handles.remove(&phys);
        }
        gone
    }

    /// Whether releasing a live handle now would free its memory.
    pub(super) fn is_unmapped(&self, phys: Phys) -> bool {
        self.handles
            .get(&phys)
            .is_some_and(|handle| handle.mappings == 0)
    }

    /// Checks that the whole of `phys` may be mapped at `addr`.
    pub(super) fn check_map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<Handle> {
        self.check_bytes(bytes)?;
        let handle = self.live(phys)?;
        if handle.bytes != bytes {
            let why = format!(
                "the handle has {} bytes, not {bytes}: map it whole",
                handle.bytes
            );
            return Err(Error::invalid("bytes", why));
        }
        if !addr.is_multiple_of(self.granule) {
            let why = format!(
                "{addr:#x} is not a multiple of the granule, {} bytes",
                self.granule
            );
            return Err(Error::invalid("addr", why));
        }
        let end = addr.checked_add(bytes);
        let inside = self
            .ranges
            .range(..=addr)
            .next_back()
            .is_some_and(|(&start, &whole)| end.is_some_and(|end| end <= start + whole));
        if !inside {
            let why = format!("{bytes} bytes at {addr:#x} are not within one reserved range");
            return Err(Error::invalid("addr", why));
        }
        if let Some(mapped) = self.mapping_in(addr, bytes) {
            let why = format!("memory is already mapped at {mapped:#x}: unmap it first");
            return Err(Error::invalid("addr", why));
        }
        Ok(handle)
    }

    pub(super) fn note_map(&mut self, addr: Addr, bytes: u64, phys: Phys) {
        self.mappings.insert(addr, Mapping { bytes, phys });
        if let Some(handle) = self.handles.get_mut(&phys) {
            handle.mappings += 1;
        }
    }

    pub(super) fn check_unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        match self.mappings.get(&addr) {
            Some(mapping) if mapping.bytes == bytes => Ok(()),
            Some(mapping) => {
                let why = format!(
                    "the mapping at {addr:#x} has {} bytes, not {bytes}: unmap it whole",
                    mapping.bytes
                );
                Err(Error::invalid("bytes", why))
            }
            None => Err(Error::invalid(
                "addr",
                format!("no mapping starts at {addr:#x}"),
            )),
        }
    }

    /// Records that a mapping is gone. Returns the handle if its memory is freed with it.
    pub(super) fn note_unmap(&mut self, addr: Addr) -> Option<Handle> {
        let mapping = self.mappings.remove(&addr)?;
        let handle = self.handles.get_mut(&mapping.phys)?;
        handle.mappings -= 1;
        if handle.released && handle.mappings == 0 {
            return self.handles.remove(&mapping.phys);
        }
        None
    }

    /// Start of a mapping that overlaps the range, if there is one.
    fn mapping_in(&self, addr: Addr, bytes: u64) -> Option<Addr> {
        let (&start, mapping) = self.mappings.range(..addr + bytes).next_back()?;
        (start + mapping.bytes > addr).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 2 << 20;

    fn with_one_range() -> (MappingTable, Phys) {
        let mut table = MappingTable::new(G);
        table.note_range(8 * G, 8 * G);
        let phys = table.note_create(2 * G, 77);
        (table, phys)
    }

    #[test]
    fn a_mapping_must_lie_in_one_range_and_touch_no_other() {
        let (mut table, phys) = with_one_range();
        assert!(table.check_map(7 * G, 2 * G, phys).is_err());
        assert!(table.check_map(15 * G, 2 * G, phys).is_err());
        assert!(table.check_map(u64::MAX - G + 1, 2 * G, phys).is_err());
        assert!(table.check_map(14 * G, 2 * G, phys).is_ok());
        table.note_map(10 * G, 2 * G, phys);
        assert!(table.check_map(9 * G, 2 * G, phys).is_err());
        assert!(table.check_map(11 * G, 2 * G, phys).is_err());
        assert!(table.check_map(12 * G, 2 * G, phys).is_ok());
        assert!(table.check_map(8 * G, 2 * G, phys).is_ok());
    }

    #[test]
    fn a_released_handle_lives_until_its_last_mapping_is_gone() {
        let (mut table, phys) = with_one_range();
        table.note_map(8 * G, 2 * G, phys);
        table.note_map(10 * G, 2 * G, phys);
        assert!(!table.note_release(phys));
        assert!(table.live(phys).is_err());
        assert!(table.note_unmap(8 * G).is_none());
        assert_eq!(
            table.note_unmap(10 * G).map(|handle| handle.token),
            Some(77)
        );
        let mut counts = HandleCounts::default();
        table.count(&mut counts);
        assert_eq!(
            counts,
            HandleCounts {
                ranges: 1,
                ..HandleCounts::default()
            }
        );
    }
}
