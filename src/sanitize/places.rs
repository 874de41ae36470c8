//! The map from addresses to physical memory, and to the blocks that own it.
//!
//! Order is checked by physical byte, because one handle can be mapped at two addresses. Ownership
//! is checked by address, because a block is a range of addresses.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::order::Op;
use crate::device::{Addr, Phys};

#[derive(Debug)]
struct Handle {
    bytes: u64,
    /// Its mappings, and one until it is released.
    holders: u64,
}

#[derive(Debug)]
pub(super) struct Mapping {
    end: Addr,
    /// Number of the physical byte at its first address, where its handle begins.
    base: u64,
    /// The last use through this mapping, one per stream.
    uses: Vec<Arc<Op>>,
}

/// The last change of ownership of a range of addresses.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    end: Addr,
    /// Whether it was allocated; `false`: freed.
    pub(super) live: bool,
    pub(super) op: Arc<Op>,
}

#[derive(Debug)]
struct Reserved {
    end: Addr,
    /// Whether blocks were allocated in it, so that memory outside blocks has no owner.
    managed: bool,
    /// Whether it is that of a pool that sleeps.
    asleep: bool,
}

/// A part of a range, and the memory behind it.
#[derive(Debug)]
pub(super) enum Part {
    /// Physical bytes.
    Mapped(Range<u64>),
    /// Reserved addresses without memory.
    Bare(Range<Addr>),
}

/// All mappings and owners; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By the number of their first byte among all physical bytes ever created. A driver may reuse the name
    /// of a handle that was released and is still mapped.
    handles: HashMap<u64, Handle>,
    by_name: HashMap<Phys, u64>,
    next_base: u64,
    reserved: BTreeMap<Addr, Reserved>,
    mappings: BTreeMap<Addr, Mapping>,
    owners: BTreeMap<Addr, Owner>,
}

impl Places {
    pub(super) fn reserve(&mut self, addr: Addr, bytes: u64) {
        let end = addr + bytes;
        self.reserved.insert(
            addr,
            Reserved {
                end,
                managed: false,
                asleep: false,
            },
        );
    }

    pub(super) fn unreserve(&mut self, addr: Addr) {
        if let Some(range) = self.reserved.remove(&addr) {
            self.own(addr..range.end, None);
        }
    }

    /// Records that the pool whose addresses begin here falls asleep or wakes; returns its memory.
    pub(super) fn sleep(&mut self, addr: Addr, asleep: bool) -> Vec<Part> {
        let Some(range) = self.reserved.get_mut(&addr) else {
            return Vec::new();
        };
        range.asleep = asleep;
        let end = range.end;
        self.parts(addr..end, None)
    }

    pub(super) fn is_asleep(&self, addr: Addr) -> bool {
        self.around(addr).is_some_and(|range| range.asleep)
    }

    pub(super) fn create(&mut self, phys: Phys, bytes: u64) {
        let base = self.next_base;
        self.next_base += bytes;
        self.by_name.insert(phys, base);
        self.handles.insert(base, Handle { bytes, holders: 1 });
    }

    pub(super) fn map(&mut self, addr: Addr, bytes: u64, phys: Phys) {
        let Some(&base) = self.by_name.get(&phys) else {
            return;
        };
        if let Some(handle) = self.handles.get_mut(&base) {
            handle.holders += 1;
            let mapping = Mapping {
                end: addr + bytes,
                base,
                uses: Vec::new(),
            };
            self.mappings.insert(addr, mapping);
        }
    }

    /// The last uses through the mapping at `addr`.
    pub(super) fn uses(&self, addr: Addr) -> &[Arc<Op>] {
        self.mappings
            .get(&addr)
            .map_or(&[], |mapping| &mapping.uses)
    }

    /// Takes out a mapping that is about to go; [`Places::unmapped`] says what became of it.
    pub(super) fn unmap(&mut self, addr: Addr) -> Option<Mapping> {
        self.mappings.remove(&addr)
    }

    /// Puts a mapping back that the device did not remove, or else returns the physical bytes that are freed
    /// with it.
    pub(super) fn unmapped(&mut self, addr: Addr, it: Mapping, gone: bool) -> Option<Range<u64>> {
        let base = it.base;
        match gone {
            true => return self.let_go(base),
            false => self.mappings.insert(addr, it),
        };
        None
    }

    /// Takes out the name of a handle that is about to be released; [`Places::released`] says what became of it.
    pub(super) fn release(&mut self, phys: Phys) -> Option<u64> {
        self.by_name.remove(&phys)
    }

    /// The same as [`Places::unmapped`], for the handle that begins at `base`.
    pub(super) fn released(&mut self, phys: Phys, base: u64, gone: bool) -> Option<Range<u64>> {
        match gone {
            true => return self.let_go(base),
            false => self.by_name.insert(phys, base),
        };
        None
    }

    fn let_go(&mut self, base: u64) -> Option<Range<u64>> {
        let handle = self.handles.get_mut(&base)?;
        handle.holders -= 1;
        if handle.holders > 0 {
            return None;
        }
        let gone = self.handles.remove(&base)?;
        Some(base..base + gone.bytes)
    }

    /// The reserved range around an address: its end, and whether blocks are allocated in it.
    /// `None` for memory that was not reserved through the device.
    fn around(&self, addr: Addr) -> Option<&Reserved> {
        let (_, range) = self.reserved.range(..=addr).next_back()?;
        (addr < range.end).then_some(range)
    }

    /// The memory behind a range, in order; empty for memory that is not watched. With `by`,
    /// records that operation as a user of the mappings.
    pub(super) fn parts(&mut self, range: Range<Addr>, by: Option<&Arc<Op>>) -> Vec<Part> {
        let mut parts = Vec::new();
        let Some(end) = self.around(range.start).map(|around| around.end) else {
            return parts;
        };
        let (mut at, end) = (range.start, range.end.min(end));
        let first = self.mappings.range(..=at).next_back();
        let from = first.map_or(at, |(&start, _)| start);
        for (&start, mapping) in self.mappings.range_mut(from..end) {
            if mapping.end <= at {
                continue;
            }
            if start > at {
                parts.push(Part::Bare(at..start));
                at = start;
            }
            let stop = end.min(mapping.end);
            parts.push(Part::Mapped(
                mapping.base + (at - start)..mapping.base + (stop - start),
            ));
            at = stop;
            if let Some(op) = by {
                let uses = &mut mapping.uses;
                match uses.iter_mut().find(|known| known.stream == op.stream) {
                    // A late report.
                    Some(known) if op.is_before(known) => {}
                    Some(known) => *known = Arc::clone(op),
                    None => uses.push(Arc::clone(op)),
                }
            }
        }
        if at < end {
            parts.push(Part::Bare(at..end));
        }
        parts
    }

    fn split_owner(&mut self, at: Addr) {
        if let Some((_, owner)) = self.owners.range_mut(..at).next_back()
            && owner.end > at
        {
            let upper = owner.clone();
            owner.end = at;
            self.owners.insert(at, upper);
        }
    }

    /// Records a change of ownership; `None` removes the range's owner.
    pub(super) fn own(&mut self, range: Range<Addr>, owner: Option<(bool, &Arc<Op>)>) {
        self.split_owner(range.start);
        self.split_owner(range.end);
        while let Some((&at, _)) = self.owners.range(range.clone()).next() {
            self.owners.remove(&at);
        }
        let Some((live, op)) = owner else {
            return;
        };
        let op = Arc::clone(op);
        let end = range.end;
        self.owners.insert(range.start, Owner { end, live, op });
        let around = self.reserved.range_mut(..=range.start).next_back();
        if let Some((_, around)) = around.filter(|(_, around)| range.start < around.end) {
            around.managed = true;
        }
    }

    /// The owners of a range, and whether some part of it lies in a pool's addresses and has no
    /// owner.
    pub(super) fn owners(&self, range: Range<Addr>) -> (Vec<(Range<Addr>, &Owner)>, bool) {
        let managed = self
            .around(range.start)
            .is_some_and(|around| around.managed);
        let first = self.owners.range(..=range.start).next_back();
        let from = first.map_or(range.start, |(&start, _)| start);
        let mut at = range.start;
        let (mut owners, mut nobody) = (Vec::new(), false);
        for (&start, owner) in self.owners.range(from..range.end) {
            if owner.end <= range.start {
                continue;
            }
            nobody |= start > at;
            owners.push((start.max(range.start)..owner.end.min(range.end), owner));
            at = owner.end;
        }
        (owners, managed && (nobody || at < range.end))
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::*;
    use crate::device::RawStream;

    #[test]
    fn a_handle_that_is_given_anew_is_not_the_one_before_that_is_still_mapped() {
        let (mut places, phys) = (Places::default(), Phys(7));
        places.reserve(0, 100);
        places.create(phys, 10);
        places.map(0, 10, phys);
        let release = |places: &mut Places| {
            let base = places.release(phys).expect("a handle");
            places.released(phys, base, true)
        };
        let unmap = |places: &mut Places, addr| {
            let mapping = places.unmap(addr).expect("a mapping");
            places.unmapped(addr, mapping, true)
        };
        assert_eq!(release(&mut places), None, "it is mapped");
        places.create(phys, 10);
        assert_eq!(unmap(&mut places, 0), Some(0..10));
        places.map(50, 10, phys);
        assert_eq!(release(&mut places), None, "it is mapped");
        assert_eq!(unmap(&mut places, 50), Some(10..20));
    }

    #[test]
    fn a_use_told_late_hides_no_later_one_from_the_unmap() {
        let (mut order, mut places) = (Order::default(), Places::default());
        order.add(RawStream(1));
        let [early, late] = [0, 1].map(|_| order.queue(0, RawStream(1), "work".into()));
        places.reserve(0, 10);
        places.create(Phys(1), 10);
        places.map(0, 10, Phys(1));
        places.parts(0..10, Some(&late));
        places.parts(0..10, Some(&early));
        let uses: Vec<u64> = places.uses(0).iter().map(|op| op.number).collect();
        assert_eq!(uses, [late.number]);
    }
}
