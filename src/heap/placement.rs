//! Where a request is mapped when no hole is large enough: where the fewest new bytes are needed.

use std::cmp::Reverse;

use super::{Extent, Extents, Id, State};

/// A window for a request over a gap and holes beside it, and the part of the gap to map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The extent that the window starts in.
    pub(crate) first: Id,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Offset of the gap bytes to map.
    pub(crate) map_from: u64,
    /// Gap bytes to map, whole granules.
    pub(crate) to_map: u64,
    /// Other bytes of the gap, which may be mapped as well.
    pub(crate) spare: u64,
}

impl Placement {
    /// Maps `extra` bytes more of the gap, of those to spare.
    pub(crate) fn widened(mut self, extra: u64) -> Self {
        // Below a window that goes on in holes above the gap, else above it.
        if self.end() > self.map_to() {
            self.map_from -= extra;
        }
        self.to_map += extra;
        self.spare -= extra;
        self
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    pub(crate) fn map_to(&self) -> u64 {
        self.map_from + self.to_map
    }

    /// Start and end of the window's part in the gap.
    pub(crate) fn mapped(&self) -> (u64, u64) {
        (self.start.max(self.map_from), self.end().min(self.map_to()))
    }

    /// Bytes of the window in holes.
    pub(crate) fn leans(&self) -> u64 {
        let (start, end) = self.mapped();
        self.bytes - end.saturating_sub(start)
    }

    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        start < self.end() && end > self.start
    }
}

/// The last of the `usable` holes beside `gap`, on the side of `next`, that have `enough` bytes; and their bytes.
fn holes_beside(
    extents: &Extents,
    gap: Id,
    enough: u64,
    next: impl Fn(&Extent) -> Id,
    usable: &impl Fn(&Extent) -> bool,
) -> (Id, u64) {
    let joins = |extent: &Extent| extent.state == State::Free && usable(extent);
    let (mut last, mut bytes) = (gap, 0);
    while bytes < enough {
        let at = next(extents.get(last));
        if !joins(extents.get(at)) {
            break;
        }
        bytes += extents.get(at).bytes;
        last = at;
    }
    (last, bytes)
}

/// Up to three windows around one gap: with the holes below, with the holes above, with both.
fn around(
    extents: &Extents,
    gap: Id,
    bytes: u64,
    granule: u64,
    usable: &impl Fn(&Extent) -> bool,
) -> [Option<Placement>; 3] {
    let extent = *extents.get(gap);
    let (first, below) = holes_beside(extents, gap, bytes, |it| it.prev, usable);
    let (_, above) = holes_beside(extents, gap, bytes, |it| it.next, usable);
    // Holes that suffice by themselves need no gap.
    if below.max(above) >= bytes {
        return [None; 3];
    }
    let place = |first, start, map_from, to_map| Placement {
        first,
        start,
        bytes,
        map_from,
        to_map,
        spare: extent.bytes - to_map,
    };
    let on_below = |to_map| place(first, extent.start - below, extent.start, to_map);
    let end = extent.end();
    let on_above = |to_map| place(gap, end + above - bytes, end - to_map, to_map);
    let lacking = |beside: u64| (bytes - beside).div_ceil(granule) * granule;
    let fits = |to_map: &u64| *to_map <= extent.bytes;
    [
        Some(lacking(below)).filter(fits).map(on_below),
        Some(lacking(above)).filter(fits).map(on_above),
        (below + extent.bytes + above >= bytes).then(|| on_below(extent.bytes)),
    ]
}

/// The windows for a request of `bytes` over every gap and the `usable` holes beside it.
pub(crate) fn windows<'a>(
    extents: &'a Extents,
    bytes: u64,
    granule: u64,
    usable: impl Fn(&Extent) -> bool + 'a,
) -> impl Iterator<Item = Placement> + 'a {
    let around = move |gap| around(extents, gap, bytes, granule, &usable);
    extents.gaps().flat_map(around).flatten()
}

/// The window that maps the fewest bytes. Among equals, the one with the most hole bytes, so that the rest of the
/// last granule is one piece; then the lowest.
pub(crate) fn cheapest(windows: impl Iterator<Item = Placement>) -> Option<Placement> {
    windows.min_by_key(|window| (window.to_map, Reverse(window.leans()), window.start))
}

#[cfg(test)]
mod tests;
