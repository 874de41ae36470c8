//! Where a request goes when no hole is large enough: the place that needs the fewest new bytes.

use std::cmp::Reverse;

use super::{Extent, Extents, Id, NONE, State, Zone};

/// A place for a request: consecutive holes and gaps, and what of the gaps must be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The extent in which the window starts.
    pub(crate) first: Id,
    /// Offset of its first byte.
    pub(crate) start: u64,
    /// Bytes of the request.
    pub(crate) bytes: u64,
    /// Offset of the gap bytes to map.
    pub(crate) map_from: u64,
    /// Gap bytes to map, whole granules; 0 if there is no gap in the window.
    pub(crate) to_map: u64,
    /// Gap bytes beyond those, which may be mapped as well.
    pub(crate) spare: u64,
    /// Whether those lie below the window, not above.
    pub(crate) spare_below: bool,
}

impl Placement {
    /// A window of `bytes`, whole granules, in a gap.
    pub(crate) fn of_gap(start: u64, bytes: u64) -> Self {
        Self {
            first: NONE,
            start,
            bytes,
            map_from: start,
            to_map: bytes,
            spare: 0,
            spare_below: false,
        }
    }

    /// `bytes` of free extents, the first of which is `first`: nothing to map.
    pub(crate) fn of_free(first: Id, start: u64, bytes: u64) -> Self {
        Self {
            first,
            start,
            bytes,
            map_from: start,
            to_map: 0,
            spare: 0,
            spare_below: false,
        }
    }

    /// The window with `extra` bytes of the gap more to map, no more than it has to spare.
    pub(crate) fn widened(mut self, extra: u64) -> Self {
        self.to_map += extra;
        self.spare -= extra;
        if self.spare_below {
            self.map_from -= extra;
        }
        self
    }

    /// Bytes of the window in holes.
    fn leans(&self) -> u64 {
        let end = (self.start + self.bytes).min(self.map_from + self.to_map);
        self.bytes - end.saturating_sub(self.start.max(self.map_from))
    }

    /// Whether the window and [`start`, `end`) share a byte.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        start < self.start + self.bytes && end > self.start
    }
}

/// The run of consecutive holes that `usable` accepts with the fewest bytes that holds `bytes`.
///
/// Holes of different streams are not merged while work is outstanding; this finds where merging
/// them would help.
pub(crate) fn smallest_run(
    extents: &Extents,
    bytes: u64,
    usable: impl Fn(&Extent) -> bool,
) -> Option<Placement> {
    let joins = |extent: &Extent| extent.state == State::Free && usable(extent);
    let mut best: Option<(u64, Placement)> = None;
    let mut run: Option<(Id, u64)> = None;
    for (id, extent) in extents.iter() {
        if !joins(extent) {
            run = None;
            continue;
        }
        let (first, start) = *run.get_or_insert((id, extent.start));
        let length = extent.end() - start;
        let last = extent.next == NONE || !joins(extents.get(extent.next));
        if last && length >= bytes && best.is_none_or(|(shortest, _)| length < shortest) {
            best = Some((length, Placement::of_free(first, start, bytes)));
        }
    }
    best.map(|(_, window)| window)
}

/// Consecutive holes below `gap` that `usable` accepts: the lowest, and their bytes.
fn holes_below(
    extents: &Extents,
    gap: Id,
    enough: u64,
    usable: &impl Fn(&Extent) -> bool,
) -> (Id, u64) {
    let (mut first, mut bytes) = (gap, 0);
    while bytes < enough {
        let prev = extents.get(first).prev;
        if prev == NONE || extents.get(prev).state != State::Free || !usable(extents.get(prev)) {
            break;
        }
        bytes += extents.get(prev).bytes;
        first = prev;
    }
    (first, bytes)
}

/// Bytes of consecutive holes above `gap` that `usable` accepts.
fn holes_above(extents: &Extents, gap: Id, enough: u64, usable: &impl Fn(&Extent) -> bool) -> u64 {
    let (mut at, mut bytes) = (extents.get(gap).next, 0);
    let joins = |extent: &Extent| extent.state == State::Free && usable(extent);
    while bytes < enough && at != NONE && joins(extents.get(at)) {
        bytes += extents.get(at).bytes;
        at = extents.get(at).next;
    }
    bytes
}

/// The windows around one gap, up to three: leaning on the holes below, on those above, on both.
fn around(
    extents: &Extents,
    gap: Id,
    bytes: u64,
    granule: u64,
    usable: &impl Fn(&Extent) -> bool,
) -> [Option<Placement>; 3] {
    let extent = *extents.get(gap);
    let (first, below) = holes_below(extents, gap, bytes, usable);
    let above = holes_above(extents, gap, bytes, usable);
    let rounded = |need: u64| need.div_ceil(granule) * granule;
    let from_below = bytes.saturating_sub(below);
    let from_above = bytes.saturating_sub(above);
    let lean_below = (from_below > 0 && rounded(from_below) <= extent.bytes).then(|| Placement {
        first,
        start: extent.start - below,
        bytes,
        map_from: extent.start,
        to_map: rounded(from_below),
        spare: extent.bytes - rounded(from_below),
        spare_below: false,
    });
    let lean_above =
        (above > 0 && from_above > 0 && rounded(from_above) <= extent.bytes).then(|| Placement {
            first: gap,
            start: extent.end() - from_above,
            bytes,
            map_from: extent.end() - rounded(from_above),
            to_map: rounded(from_above),
            spare: extent.bytes - rounded(from_above),
            spare_below: true,
        });
    // What suffices by itself needs no gap.
    let leans = below > 0 && above > 0 && from_below > 0 && from_above > 0;
    let both = (leans && below + extent.bytes + above >= bytes).then(|| Placement {
        first,
        start: extent.start - below,
        bytes,
        map_from: extent.start,
        to_map: extent.bytes,
        spare: 0,
        spare_below: false,
    });
    [lean_below, lean_above, both]
}

/// The window in one `end` of the arena that needs the fewest bytes mapped and leans only on holes
/// that `usable` accepts; of equal ones the one that leans most, so that what is left over of the last
/// granule lies in one piece, then the lowest.
///
/// With `fill_gaps`, windows that fill a whole gap between holes count too. They may end inside a
/// frame, which then cannot be moved into the gap; without them, idle memory that suffices in all
/// suffices for the window.
pub(crate) fn cheapest(
    extents: &Extents,
    bytes: u64,
    granule: u64,
    usable: impl Fn(&Extent) -> bool,
    fill_gaps: bool,
    end: Zone,
) -> Option<Placement> {
    let gaps = extents
        .gaps()
        .filter(|&gap| extents.zone_of(extents.get(gap).start) == end)
        .map(|gap| around(extents, gap, bytes, granule, &usable));
    gaps.flat_map(|[below, above, both]| [below, above, both.filter(|_| fill_gaps)])
        .flatten()
        .min_by_key(|window| (window.to_map, Reverse(window.leans()), window.start))
}

#[cfg(test)]
mod tests;
