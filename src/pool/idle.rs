//! Which handles are idle: those that lie wholly inside a hole.

use super::core::Core;
use super::under_way::Held;
use crate::arena::FrameId;
use crate::device::Phys;
use crate::heap::placement::Placement;
use crate::heap::{Extent, Id, StreamIndex};
use crate::seeded::seeded;

/// A frame that lies wholly inside a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleFrame {
    pub(super) hole: Id,
    pub(super) frame: FrameId,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// An idle frame that a job holds.
pub(super) struct HeldFrame {
    pub(super) held: Held,
    pub(super) at: IdleFrame,
    pub(super) phys: Phys,
}

impl Core {
    /// Frames that lie in holes outside `placement` that `usable` accepts, as many as fit into `left` bytes;
    /// those of one hole in address order.
    ///
    /// First those of holes that are whole frames, as nothing is left of such a hole: elsewhere parts of
    /// frames stay behind, which fit few requests. Then those of the smallest holes, as large ones are for
    /// large requests.
    pub(super) fn idle(
        &self,
        placement: Option<&Placement>,
        mut left: u64,
        usable: impl Fn(&Extent) -> bool,
    ) -> Vec<IdleFrame> {
        if self.asleep {
            return Vec::new();
        }
        let mut holes = self.large_holes();
        holes.retain(|&id| usable(self.extents.get(id)));
        holes.sort_by_cached_key(|&id| {
            let (bytes, frames) = (self.extents.get(id).bytes, self.idle_in(id));
            (frames.map(|frame| frame.bytes).sum::<u64>() < bytes, bytes)
        });
        let mut frames = Vec::new();
        for id in holes {
            if left == 0 {
                break;
            }
            // A hole that the placement takes a part of may give the rest.
            for frame in self.idle_in(id) {
                let end = frame.start + frame.bytes;
                let inside = placement.is_some_and(|it| it.touches(frame.start, end));
                if !inside && frame.bytes <= left {
                    left -= frame.bytes;
                    frames.push(frame);
                }
            }
        }
        frames
    }

    /// The holes that may cover a handle.
    pub(super) fn large_holes(&self) -> Vec<Id> {
        self.holes_from(self.arena.granule())
    }

    /// The holes of at least `bytes`, in no order.
    pub(super) fn holes_from(&self, bytes: u64) -> Vec<Id> {
        let mut holes = Vec::with_capacity(self.extents.holes() as usize);
        for slot in 0..self.extents.slots() {
            holes.extend(self.extents.holes_of(slot, bytes));
        }
        holes
    }

    /// The idle frames of one hole, in address order.
    pub(super) fn idle_in(&self, hole: Id) -> impl Iterator<Item = IdleFrame> + '_ {
        let extent = self.extents.get(hole);
        let frames = self.frames_in(extent.start, extent.end());
        let whole = frames.filter(|&(_, start, bytes)| {
            let within = start + bytes <= extent.end() || seeded!("frame-partly-in-use-is-idle");
            start >= extent.start && within
        });
        whole.map(move |(frame, start, bytes)| IdleFrame {
            hole,
            frame,
            start,
            bytes,
        })
    }

    /// The frames that have a byte of [`from`, `to`), where they begin and their bytes, in address order:
    /// up to the first granule without one.
    pub(super) fn frames_in(
        &self,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (FrameId, u64, u64)> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let (id, frame) = self.arena.frame_at(at).filter(|_| at < to)?;
            let (start, bytes) = self.arena.extent_of(&frame);
            at = start + bytes;
            Some((id, start, bytes))
        })
    }

    /// Holds idle frames for a job of `stream`; those of one hole ascend.
    pub(super) fn hold_frames(
        &mut self,
        idle: &[IdleFrame],
        stream: StreamIndex,
    ) -> Vec<HeldFrame> {
        // From the last on: what is left of a hole below keeps its number.
        let each = idle.iter().rev().map(|&at| HeldFrame {
            held: (self.under_way).hold(&mut self.extents, (at.hole, at.start, at.bytes), stream),
            at,
            phys: self.arena.frame(at.frame).phys,
        });
        let mut frames: Vec<HeldFrame> = each.collect();
        frames.reverse();
        frames
    }
}

/// The first of the frames that have `bytes` together; all, if they have not so many.
pub(super) fn first_of(mut frames: Vec<IdleFrame>, mut bytes: u64) -> Vec<IdleFrame> {
    frames.retain(|frame| {
        let goes = bytes > 0;
        bytes = bytes.saturating_sub(frame.bytes);
        goes
    });
    frames
}

pub(super) fn total(frames: &[IdleFrame]) -> u64 {
    frames.iter().map(|frame| frame.bytes).sum()
}
