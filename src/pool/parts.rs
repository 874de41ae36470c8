//! What a block with edges is put together from: see `edges`.

use super::core::Core;
use super::extents::{Extent, Id, NONE};
use super::scatter::{DUST_PART, MIDDLE_WEIGHT, weight};
use crate::arena::FrameId;

/// What a second mapping weighs against fragments: a driver call or two.
const MAPPING_WEIGHT: f64 = 0.02;

/// The free part of a handle in use that reaches the handle's end, for a lower edge, or begins where
/// it begins, for an upper one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fragment {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) hole: Id,
    pub(super) frame: FrameId,
    pub(super) frame_start: u64,
    pub(super) frame_bytes: u64,
}

/// No edge: the block begins, or ends, with a whole handle.
pub(super) const NO_FRAGMENT: Fragment = Fragment {
    start: 0,
    bytes: 0,
    hole: NONE,
    frame: 0,
    frame_start: 0,
    frame_bytes: 0,
};

/// How a request is put together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub(super) lower: Fragment,
    /// Bytes between the edges, in whole granules.
    pub(super) whole: u64,
    pub(super) upper: Fragment,
    /// Bytes at the begin of the whole granules that are left, where there is no lower edge.
    pub(super) skipped: u64,
}

impl Parts {
    /// Bytes that they have beyond `bytes`.
    fn left(&self, bytes: u64) -> u64 {
        (self.lower.bytes + self.whole + self.upper.bytes).saturating_sub(bytes)
    }

    /// The parts with what is left over taken from the larger edge.
    pub(super) fn trimmed(mut self, bytes: u64) -> Self {
        let left = self.left(bytes);
        if self.skipped > 0 || self.lower.bytes.max(self.upper.bytes) <= left {
            return self;
        }
        if self.lower.bytes >= self.upper.bytes {
            self.lower.start += left;
            self.lower.bytes -= left;
        } else {
            self.upper.bytes -= left;
        }
        self
    }

    /// What the fragments weigh that are left, less those used; `None` for parts of which one is
    /// not needed.
    fn cost(&self, bytes: u64, granule: u64) -> Option<f64> {
        let (lower, upper) = (self.lower.bytes, self.upper.bytes);
        let left = self.left(bytes);
        let both = lower.min(upper) > 0;
        let cut = left < lower.max(upper);
        if both && (!cut || self.lower.frame == self.upper.frame) {
            return None;
        }
        let rest = weight(left, granule) * if cut { MIDDLE_WEIGHT } else { 1.0 };
        let mapped = f64::from(u8::from(lower > 0) + u8::from(upper > 0));
        Some(rest - weight(lower, granule) - weight(upper, granule) + mapped * MAPPING_WEIGHT)
    }
}

impl Core {
    /// The parts that need the fewest whole granules for `bytes`, where each lower edge goes with the
    /// smallest upper one that suffices, and of those the ones that use and leave the best fragments.
    ///
    /// Where that upper edge lies in the lower one's handle, the next larger is not tried: over made
    /// programs it saved no handles, and small ones reserved up to 0.006 more.
    pub(super) fn parts(&self, bytes: u64, usable: impl Fn(&Extent) -> bool) -> Option<Parts> {
        let granule = self.arena.granule();
        let (lower, upper) = self.fragments(usable);
        let largest = upper.last()?.bytes;
        let mut best: Option<((u64, f64), Parts)> = None;
        for &low in &lower {
            let least = bytes.saturating_sub(low.bytes + largest).div_ceil(granule);
            let most = bytes.saturating_sub(low.bytes).div_ceil(granule);
            for whole in (least..=most).map(|count| count * granule) {
                if best.is_some_and(|((fewest, _), _)| whole > fewest) {
                    break;
                }
                let lacking = bytes.saturating_sub(low.bytes + whole);
                let at = upper.partition_point(|fragment| fragment.bytes < lacking);
                // A fragment may grow by what is left of the whole granules, which the largest does not
                // replace: fewer of them would do then.
                let grown = upper.last().filter(|_| lacking == 0 && low.bytes == 0);
                for &up in upper.get(at).into_iter().chain(grown) {
                    let parts = Parts {
                        lower: low,
                        whole,
                        upper: up,
                        skipped: 0,
                    };
                    let Some(cost) = parts.cost(bytes, granule) else {
                        continue;
                    };
                    if best.is_none_or(|(than, _)| (whole, cost) < than) {
                        best = Some(((whole, cost), parts));
                    }
                }
            }
        }
        let (_, mut parts) = best?;
        let left = parts.left(bytes);
        // What is left of whole granules becomes the free begin of a handle beside an upper edge, else
        // the free end of one.
        if parts.lower.bytes == 0 && parts.upper.bytes > 0 && left >= parts.upper.bytes {
            parts.skipped = left;
        }
        Some(parts)
    }

    /// The fragments for lower and for upper edges, each by size, [`NO_FRAGMENT`] first.
    pub(super) fn fragments(
        &self,
        usable: impl Fn(&Extent) -> bool,
    ) -> (Vec<Fragment>, Vec<Fragment>) {
        let (mut lower, mut upper) = (vec![NO_FRAGMENT], vec![NO_FRAGMENT]);
        let dust = self.arena.granule() / DUST_PART;
        let slots = 0..self.extents.slots();
        for hole in slots.flat_map(|slot| self.extents.holes_of(slot, dust)) {
            let extent = self.extents.get(hole);
            if !usable(extent) {
                continue;
            }
            let (start, end) = (extent.start, extent.end());
            let fragment = |within: u64| {
                let (frame, mapped) = self.arena.frame_at(within)?;
                let (frame_start, frame_bytes) = self.arena.extent_of(&mapped);
                let from = start.max(frame_start);
                Some(Fragment {
                    start: from,
                    bytes: end.min(frame_start + frame_bytes) - from,
                    hole,
                    frame,
                    frame_start,
                    frame_bytes,
                })
            };
            let ends = |it: &Fragment| it.start + it.bytes == it.frame_start + it.frame_bytes;
            lower.extend(fragment(start).filter(|it| it.start > it.frame_start && ends(it)));
            upper.extend(fragment(end - 1).filter(|it| it.start == it.frame_start && !ends(it)));
        }
        lower.sort_by_key(|fragment| (fragment.bytes, fragment.start));
        upper.sort_by_key(|fragment| (fragment.bytes, fragment.start));
        (lower, upper)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
