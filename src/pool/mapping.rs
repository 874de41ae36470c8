//! Where a request is mapped that no free memory holds, and which idle handles go there.
//!
//! A placement names gap bytes to map. Idle handles, those that lie wholly inside a hole, are mapped
//! there a second time in stream order; their old mapping goes when the work that may still use it is
//! done. What they do not cover, new ones do. Nobody waits on the host.

use super::core::Core;
use super::grow::Mapping;
use super::idle::{IdleFrame, total};
use crate::heap::placement::{self, Placement};
use crate::heap::{Extent, StreamIndex};

/// What a request accepts: less at first, more before it fails.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Terms {
    /// Memory that other streams still use counts, behind a wait for them.
    pub(super) pending: bool,
    /// The device has no more memory to give.
    pub(super) refused: bool,
}

pub(super) struct Plan {
    pub(super) placement: Placement,
    pub(super) idle: Vec<IdleFrame>,
    /// Bytes that neither idle handles nor new ones make up.
    pub(super) lacking: u64,
}

impl Plan {
    /// Handles that it maps elsewhere; where idle ones do not suffice, as many as would.
    pub(super) fn steals(&self, granule: u64) -> u64 {
        match self.lacking {
            0 => self.idle.len() as u64,
            _ => self.placement.to_map / granule,
        }
    }

    /// Begins to map it for a request of `stream`, if nothing is lacking.
    pub(super) fn begin(self, core: &mut Core, stream: StreamIndex) -> Option<Mapping> {
        match self.lacking {
            0 => core.begin_mapping(stream, self.placement, &self.idle),
            _ => None,
        }
    }
}

impl Core {
    /// Begins to map new memory for `bytes`, before any stream waits or caches are emptied: while the pool is small
    /// and several streams use it, for a `crowded` lane within the slack over the peak, which counts what such lanes
    /// keep, and beside free blocks that are still `used` within the slack over what was live.
    pub(super) fn begin_overlapping(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        (crowded, used): (bool, bool),
    ) -> Option<Mapping> {
        let held = self.reserved() + self.promised();
        let several = used || !self.only_stream();
        let small = self.config.overlap_bytes.saturating_sub(held) * u64::from(several);
        let slack = if crowded { self.slack(bytes) } else { 0 };
        let (live, _) = self.seen;
        let beside = live.saturating_add(self.pace.slack(live, self.most()));
        let beside = (beside * u64::from(used)).saturating_sub(held);
        let most = small.max(slack).max(beside).min(self.room());
        let placement = (bytes <= most).then(|| self.place(stream, bytes, false))?;
        let placement = placement.filter(|it| it.to_map <= most)?;
        self.begin_mapping(stream, placement, &[])
    }

    /// Whether a hole is ready for `stream`, or would be behind a wait if `pending`.
    pub(super) fn usable(&self, stream: StreamIndex, pending: bool) -> impl Fn(&Extent) -> bool {
        move |extent| pending || self.is_behind(stream, extent.epoch())
    }

    /// How a request would be mapped; `None` where there is no gap for it, or nothing to map.
    pub(super) fn plan(&self, stream: StreamIndex, bytes: u64, terms: Terms) -> Option<Plan> {
        let placement = self.place(stream, bytes, terms.pending)?;
        let room = if terms.refused { 0 } else { self.room() };
        let remaps = self.config.remap && self.slack(bytes).min(room) < placement.to_map;
        let (placement, idle) = match remaps {
            true => self.idle_for(placement, self.usable(stream, terms.pending)),
            false => (placement, Vec::new()),
        };
        let lacking = placement.to_map.saturating_sub(total(&idle));
        let lacking = lacking.saturating_sub(room);
        Some(Plan {
            placement,
            idle,
            lacking,
        })
    }

    fn place(&self, stream: StreamIndex, bytes: u64, pending: bool) -> Option<Placement> {
        let usable = self.usable(stream, pending);
        placement::cheapest(&self.extents, bytes, self.arena.granule(), usable)
    }

    /// Idle frames for `placement`, which grows where only a frame larger than what it lacks is left.
    fn idle_for(
        &self,
        placement: Placement,
        usable: impl Fn(&Extent) -> bool,
    ) -> (Placement, Vec<IdleFrame>) {
        let mut frames = self.idle(Some(&placement), placement.to_map, &usable);
        let lacking = placement.to_map - total(&frames);
        if lacking == 0 || placement.spare == 0 {
            return (placement, frames);
        }
        let most = lacking + placement.spare;
        let all = self.idle(Some(&placement), u64::MAX, &usable);
        let fits = |it: &IdleFrame| {
            (lacking..=most).contains(&it.frame.bytes)
                && frames.iter().all(|taken| taken.id != it.id)
        };
        let Some(large) = (all.into_iter().filter(fits)).min_by_key(|it| it.frame.bytes) else {
            return (placement, frames);
        };
        frames.push(large);
        frames.sort_by_key(|it| (it.hole, it.frame.start));
        (placement.widened(large.frame.bytes - lacking), frames)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
pub(super) mod tests;
