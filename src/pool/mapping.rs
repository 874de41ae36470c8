//! Plans where to map a request that no hole holds, and which idle handles to map there.
//!
//! A placement names gap bytes to map. An idle handle lies wholly inside a hole. Idle handles are mapped there a
//! second time, in stream order; new handles cover the rest. An old mapping goes once its work is done.

use super::core::Core;
use crate::arena::{Frame, FrameId};
use crate::heap::placement::{Placement, cheapest, windows};
use crate::heap::{Extent, Id, StreamIndex};

/// A frame that lies wholly inside a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleFrame {
    /// The hole, or the part of it that a job holds.
    pub(super) hole: Id,
    pub(super) id: FrameId,
    pub(super) frame: Frame,
}

/// What memory a request accepts: more before it fails.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Terms {
    /// Memory that other streams still use, behind a wait for them.
    pub(super) pending: bool,
    /// Bytes that the pool had given back to the device when that last refused new memory.
    pub(super) refused: Option<u64>,
}

pub(super) struct Plan {
    pub(super) placement: Placement,
    pub(super) idle: Vec<IdleFrame>,
    /// Bytes that neither idle nor new handles cover.
    pub(super) lacking: u64,
    /// Number of idle handles to map elsewhere; if they do not suffice, the number that would.
    pub(super) steals: u64,
}

impl Core {
    /// Whether the device would refuse memory again, as the pool has given none back since. Without this, requests
    /// wait for each other's failing attempts without end.
    pub(super) fn is_refused(&self, terms: Terms) -> bool {
        terms.refused == Some(self.arena.flow().1)
    }

    /// Plans the mapping of a request; `None` if no gap fits, or nothing needs to be mapped.
    pub(super) fn plan(&self, stream: StreamIndex, bytes: u64, terms: Terms) -> Option<Plan> {
        let usable = |hole: &Extent| {
            terms.pending && self.may_wait(hole.epoch) || self.is_behind(stream, hole.epoch)
        };
        let find = || windows(&self.extents, bytes, self.arena.granule(), usable);
        let mut placement = cheapest(find())?;
        let refused = self.is_refused(terms);
        let room = if refused { 0 } else { self.room() };
        let remap = self.config.remap;
        let new = room.min(if remap { self.slack(bytes) } else { u64::MAX });
        let lacks = new < placement.to_map;
        let all = if lacks { self.idle(usable) } else { Vec::new() };
        let suffices = |at: &Placement| total(&beside(at, &all)).saturating_add(room) >= at.to_map;
        if !suffices(&placement) {
            // It may lean on the very handles that it lacks.
            placement = cheapest(find().filter(suffices)).unwrap_or(placement);
        }
        let most = if remap { placement.to_map } else { 0 };
        let idle = first(beside(&placement, &all), most);
        let lacking = placement.to_map.saturating_sub(total(&idle));
        let lacking = lacking.saturating_sub(room);
        let steals = match lacking {
            0 => idle.len() as u64,
            _ => placement.to_map / self.arena.granule(),
        };
        Some(Plan {
            placement,
            idle,
            lacking,
            steals,
        })
    }

    /// Frames of `usable` holes that can be waited for; those of one hole ascend.
    ///
    /// Holes that consist of whole frames come first: other holes leave parts of frames, which fit few requests.
    /// Then small holes come before large ones, which large requests need.
    pub(super) fn idle(&self, usable: impl Fn(&Extent) -> bool) -> Vec<IdleFrame> {
        if self.asleep {
            return Vec::new();
        }
        let holes = self.extents.holes_from(self.arena.granule());
        let goes = |it: &Extent| usable(it) && self.may_wait(it.epoch);
        let mut holes: Vec<Id> = holes.filter(|&id| goes(self.extents.get(id))).collect();
        holes.sort_by_cached_key(|&id| {
            let (bytes, frames) = (self.extents.get(id).bytes, self.idle_in(id));
            (frames.map(|it| it.frame.bytes).sum::<u64>() < bytes, bytes)
        });
        holes.into_iter().flat_map(|id| self.idle_in(id)).collect()
    }

    /// The idle frames of one hole, in address order.
    pub(super) fn idle_in(&self, hole: Id) -> impl Iterator<Item = IdleFrame> {
        let extent = self.extents.get(hole);
        let whole = self.whole_in(extent.start, extent.end());
        whole.map(move |(id, frame)| IdleFrame { hole, id, frame })
    }

    /// The frames that lie wholly in [`from`, `to`), all of which is mapped, in address order.
    pub(crate) fn whole_in(&self, from: u64, to: u64) -> impl Iterator<Item = (FrameId, Frame)> {
        let frames = self.frames_in(from, to);
        frames.filter(move |(_, frame)| frame.start >= from && frame.end() <= to)
    }

    /// The frames that overlap [`from`, `to`), in address order, up to the first address without one.
    pub(super) fn frames_in(&self, from: u64, to: u64) -> impl Iterator<Item = (FrameId, Frame)> {
        let at = move |start: u64| self.arena.frame_at(start).filter(|_| start < to);
        std::iter::successors(at(from), move |(_, frame)| at(frame.end()))
    }

    /// Holds idle frames; those of one hole ascend.
    pub(super) fn hold_frames(&mut self, idle: &[IdleFrame]) -> Vec<IdleFrame> {
        let mut held = idle.to_vec();
        // From the last on: the rest of the hole, below, keeps its id.
        for it in held.iter_mut().rev() {
            it.hole = self.extents.hold(it.hole, it.frame.start, it.frame.bytes);
        }
        held
    }
}

/// Those of `idle` outside the window; the part of a hole outside it counts too.
pub(super) fn beside(window: &Placement, idle: &[IdleFrame]) -> Vec<IdleFrame> {
    let touches = |it: &&IdleFrame| window.touches(it.frame.start, it.frame.end());
    idle.iter().filter(|it| !touches(it)).copied().collect()
}

/// As many of `idle`, in their order, as fit into `left` bytes.
pub(super) fn first(mut idle: Vec<IdleFrame>, mut left: u64) -> Vec<IdleFrame> {
    idle.retain(|it| {
        let fits = it.frame.bytes <= left;
        left -= it.frame.bytes * u64::from(fits);
        fits
    });
    idle
}

pub(super) fn total(frames: &[IdleFrame]) -> u64 {
    frames.iter().map(|it| it.frame.bytes).sum()
}

#[cfg(test)]
pub(super) mod tests;
