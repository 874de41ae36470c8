//! Where in the arena a block with edges goes: see `edges`.
//!
//! Its middle is whole handles, and each that is mapped there already saves a driver call. So the parts
//! go around a hole that is nothing but whole handles, no more of them than the block has, if nothing is
//! mapped where the edges and the rest must be: what an earlier block of the kind left is such a hole.

use super::core::Core;
use super::edges::Place;
use super::extents::{End, Extent, Id, NONE};
use super::parts::Parts;

impl Core {
    /// Addresses for the parts of a request of `bytes`: those that lack the fewest mappings, else some
    /// in the smallest gap that is large enough.
    pub(super) fn place(
        &self,
        parts: &Parts,
        bytes: u64,
        usable: impl Fn(&Extent) -> bool,
    ) -> Option<Place> {
        let granule = self.arena.granule();
        let slots = 0..self.extents.slots();
        let holes = slots
            .flat_map(|slot| self.extents.holes_of(slot, granule))
            .filter(|&id| usable(self.extents.get(id)));
        let edges = [parts.lower, parts.upper].into_iter();
        let edges = edges.filter(|it| it.bytes > 0).map(|it| it.hole);
        let lacks = |place: &Place| place.lacks.1 - place.lacks.0 + place.edges() * granule;
        holes
            .chain(edges)
            .filter_map(|id| self.place_around(parts, id))
            .min_by_key(|place| (lacks(place), place.base))
            .or_else(|| self.place_apart(parts, bytes))
    }

    /// Addresses for the parts around the hole `id`, which has an edge, whole handles, or both.
    fn place_around(&self, parts: &Parts, id: Id) -> Option<Place> {
        let Parts {
            lower,
            whole,
            upper,
            ..
        } = *parts;
        let hole = self.extents.get(id);
        let (has_lower, has_upper) = (lower.hole == id, upper.hole == id);
        let from = match has_lower {
            true => lower.start + lower.bytes,
            false => hole.start,
        };
        let to = if has_upper { upper.start } else { hole.end() };
        let kept = to.checked_sub(from).filter(|&kept| kept <= whole)?;
        if !(self.is_bound(from) && self.is_bound(to)) {
            return None;
        }
        let (map_lower, map_upper) = (lower.bytes > 0 && !has_lower, upper.bytes > 0 && !has_upper);
        let below = u64::from(map_lower) * lower.frame_bytes;
        let above = u64::from(map_upper) * upper.frame_bytes;
        let room_below = if has_lower { 0 } else { self.gap_below(from) };
        let room_above = if has_upper { 0 } else { self.gap_above(to) };
        let lacks = whole - kept;
        let (base, lacks) = if below <= room_below && lacks + above <= room_above {
            (from, (to, to + lacks))
        } else if below + lacks <= room_below && above <= room_above {
            (from - lacks, (from - lacks, from))
        } else {
            return None;
        };
        Some(Place {
            base,
            map_lower,
            map_upper,
            lacks,
            core: id,
        })
    }

    /// Whether a handle ends at `offset`, or one begins there.
    fn is_bound(&self, offset: u64) -> bool {
        let frame = |at: u64| {
            let (_, frame) = self.arena.frame_at(at)?;
            Some(self.arena.extent_of(&frame))
        };
        let ends = offset.checked_sub(1).and_then(frame);
        frame(offset).is_some_and(|(start, _)| start == offset)
            || ends.is_some_and(|(start, bytes)| start + bytes == offset)
    }

    /// Bytes of the gap behind the hole that ends at `offset`, in the same end of the arena.
    fn gap_above(&self, offset: u64) -> u64 {
        let gap = self.extents.gap_at(offset).map(|id| self.extents.get(id));
        gap.filter(|_| self.is_in_one_end(offset))
            .map_or(0, |gap| gap.bytes)
    }

    /// Bytes of the gap before the hole that begins at `offset`, in the same end of the arena.
    fn gap_below(&self, offset: u64) -> u64 {
        let below = offset.checked_sub(1);
        let gap = below.and_then(|below| self.extents.gap_at(below));
        gap.filter(|_| self.is_in_one_end(offset))
            .map_or(0, |id| self.extents.get(id).bytes)
    }

    /// Whether what is before and what is behind `offset` lie in the same end of the arena.
    fn is_in_one_end(&self, offset: u64) -> bool {
        let end = |at: u64| self.extents.end_of(at);
        end(offset.saturating_sub(1)) == end(offset)
    }

    /// Addresses for the parts in the smallest gap that is large enough.
    fn place_apart(&self, parts: &Parts, bytes: u64) -> Option<Place> {
        let Parts {
            lower,
            whole,
            upper,
            ..
        } = parts;
        let needed = lower.frame_bytes + whole + upper.frame_bytes;
        let smallest = |end: End| {
            let gaps = self.extents.gaps().map(|gap| self.extents.get(gap));
            gaps.filter(|gap| gap.bytes >= needed && self.extents.end_of(gap.start) == end)
                .min_by_key(|gap| (gap.bytes, gap.start))
        };
        let gap = smallest(self.end_for(bytes)).or_else(|| smallest(End::Low))?;
        let base = gap.start + lower.frame_bytes;
        Some(Place {
            base,
            map_lower: lower.bytes > 0,
            map_upper: upper.bytes > 0,
            lacks: (base, base + whole),
            core: NONE,
        })
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
