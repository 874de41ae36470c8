//! The planner's input: the arena's extents in address order, and its holes by size.
//!
//! Updated block by block, in logarithmic time each, so that a plan over a million blocks starts
//! from an index and needs no walk over all of them.

use std::collections::{BTreeMap, BTreeSet};

/// The use of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A live block that may move.
    Movable,
    /// A live block that may not move: under a guard, held by a graph, with a raw pointer to it, or
    /// not ready yet.
    Fixed,
    /// Mapped memory that is not allocated.
    Hole,
}

/// A range of the arena: `bytes` at `addr`. Addresses that no extent covers are not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub addr: u64,
    /// Length in bytes, never 0.
    pub bytes: u64,
    /// Its use.
    pub kind: Kind,
}

impl Extent {
    /// The first byte after the extent.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr + self.bytes
    }
}

/// Extents in address order, adjacent holes joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    extents: BTreeMap<u64, (u64, Kind)>,
    holes: BTreeSet<(u64, u64)>,
    free: u64,
    movable: usize,
}

impl Layout {
    /// A layout of `extents`, in any order; `None` if two overlap, or if one is empty or exceeds
    /// the address space.
    #[must_use]
    pub fn from_extents(extents: impl IntoIterator<Item = Extent>) -> Option<Self> {
        let mut sorted: Vec<Extent> = extents.into_iter().collect();
        if !sorted.is_sorted_by_key(|e| e.addr) {
            sorted.sort_unstable_by_key(|e| e.addr);
        }
        let mut joined: Vec<Extent> = Vec::with_capacity(sorted.len());
        let mut end = 0;
        for extent in sorted {
            if extent.addr < end
                || extent.bytes == 0
                || extent.addr.checked_add(extent.bytes).is_none()
            {
                return None;
            }
            end = extent.end();
            let joins = |last: &&mut Extent| {
                (last.kind, extent.kind) == (Kind::Hole, Kind::Hole) && last.end() == extent.addr
            };
            match joined.last_mut().filter(joins) {
                Some(last) => last.bytes += extent.bytes,
                None => joined.push(extent),
            }
        }
        Some(Self::from_joined(&joined))
    }

    /// Builds the indexes from sorted extents at once: 1/10 of the time of inserting them one by
    /// one.
    fn from_joined(extents: &[Extent]) -> Self {
        let holes = || extents.iter().filter(|e| e.kind == Kind::Hole);
        Self {
            extents: extents
                .iter()
                .map(|e| (e.addr, (e.bytes, e.kind)))
                .collect(),
            holes: holes().map(|e| (e.bytes, e.addr)).collect(),
            free: holes().map(|e| e.bytes).sum(),
            movable: extents.iter().filter(|e| e.kind == Kind::Movable).count(),
        }
    }

    /// Bytes in holes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Bytes in live blocks: a walk over all extents.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let blocks = self.extents().filter(|e| e.kind != Kind::Hole);
        blocks.map(|e| e.bytes).sum()
    }

    /// Live blocks that may move.
    #[must_use]
    pub fn movable_blocks(&self) -> usize {
        self.movable
    }

    /// Bytes of the largest hole, 0 if there is none.
    #[must_use]
    pub fn largest_hole(&self) -> u64 {
        self.holes.last().map_or(0, |&(bytes, _)| bytes)
    }

    /// All extents in address order.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + '_ {
        self.extents.iter().map(as_extent)
    }

    /// Extents from the one at `addr` on, ascending.
    pub fn from(&self, addr: u64) -> impl Iterator<Item = Extent> + '_ {
        self.extents.range(addr..).map(as_extent)
    }

    /// Extents below `addr`, descending.
    pub fn below(&self, addr: u64) -> impl Iterator<Item = Extent> + '_ {
        self.extents.range(..addr).rev().map(as_extent)
    }

    /// Holes, the largest first.
    pub fn largest_holes(&self) -> impl Iterator<Item = Extent> + '_ {
        self.holes.iter().rev().map(as_hole)
    }

    /// Holes of at least `bytes`: the smallest first, and among equal ones the lowest address
    /// first.
    pub fn holes_of(&self, bytes: u64) -> impl Iterator<Item = Extent> + '_ {
        self.holes.range((bytes, 0)..).map(as_hole)
    }

    /// The extent that begins at `addr`.
    #[must_use]
    pub fn get(&self, addr: u64) -> Option<Extent> {
        self.extents.get_key_value(&addr).map(as_extent)
    }

    /// Places a live block in the hole around it. Returns false, and changes nothing, if no single
    /// hole covers the block, or if it is empty.
    pub fn place(&mut self, addr: u64, bytes: u64, kind: Kind) -> bool {
        let Some((&hole, &(hole_bytes, Kind::Hole))) = self.extents.range(..=addr).next_back()
        else {
            return false;
        };
        let Some(end) = addr
            .checked_add(bytes)
            .filter(|&end| bytes > 0 && end <= hole + hole_bytes)
        else {
            return false;
        };
        self.take(hole);
        if hole < addr {
            self.put(Extent {
                addr: hole,
                bytes: addr - hole,
                kind: Kind::Hole,
            });
        }
        if end < hole + hole_bytes {
            self.put(Extent {
                addr: end,
                bytes: hole + hole_bytes - end,
                kind: Kind::Hole,
            });
        }
        self.put(Extent { addr, bytes, kind });
        true
    }

    /// Turns the live block at `addr` into a hole. Returns false, and changes nothing, if there is
    /// none.
    pub fn free(&mut self, addr: u64) -> bool {
        match self.extents.get(&addr) {
            Some(&(bytes, kind)) if kind != Kind::Hole => {
                self.take(addr);
                self.put(Extent {
                    addr,
                    bytes,
                    kind: Kind::Hole,
                });
                true
            }
            _ => false,
        }
    }

    fn take(&mut self, addr: u64) {
        if let Some((bytes, kind)) = self.extents.remove(&addr) {
            if kind == Kind::Hole {
                self.holes.remove(&(bytes, addr));
                self.free -= bytes;
            }
            self.movable -= usize::from(kind == Kind::Movable);
        }
    }

    fn put(&mut self, mut extent: Extent) {
        if extent.kind == Kind::Hole {
            let before = self.below(extent.addr).next();
            if let Some(before) = before.filter(|e| e.kind == Kind::Hole && e.end() == extent.addr)
            {
                self.take(before.addr);
                extent = Extent {
                    addr: before.addr,
                    bytes: before.bytes + extent.bytes,
                    ..extent
                };
            }
            if let Some(after) = self.get(extent.end()).filter(|e| e.kind == Kind::Hole) {
                self.take(after.addr);
                extent.bytes += after.bytes;
            }
            self.holes.insert((extent.bytes, extent.addr));
            self.free += extent.bytes;
        }
        self.movable += usize::from(extent.kind == Kind::Movable);
        self.extents
            .insert(extent.addr, (extent.bytes, extent.kind));
    }
}

fn as_extent((&addr, &(bytes, kind)): (&u64, &(u64, Kind))) -> Extent {
    Extent { addr, bytes, kind }
}

fn as_hole(&(bytes, addr): &(u64, u64)) -> Extent {
    Extent {
        addr,
        bytes,
        kind: Kind::Hole,
    }
}

/// Extents side by side from `addr` on: movable blocks, holes and fixed blocks by letter.
#[cfg(test)]
pub(in crate::compact) fn extents_from(mut addr: u64, kinds: &str, bytes: &[u64]) -> Vec<Extent> {
    let each = kinds.chars().zip(bytes);
    each.map(|(kind, &bytes)| {
        let kind = match kind {
            'm' => Kind::Movable,
            'f' => Kind::Fixed,
            _ => Kind::Hole,
        };
        addr += bytes;
        let addr = addr - bytes;
        Extent { addr, bytes, kind }
    })
    .collect()
}

#[cfg(test)]
mod tests;
