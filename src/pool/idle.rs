//! Which handles are idle: those that lie wholly inside a hole.

use super::core::{Core, Held};
use crate::arena::{Frame, FrameId};
use crate::heap::placement::Placement;
use crate::heap::{Extent, Id, StreamIndex};
use crate::seeded::seeded;

/// A frame that lies wholly inside a hole.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleFrame {
    pub(super) hole: Id,
    pub(super) id: FrameId,
    pub(super) frame: Frame,
}

impl Core {
    /// Frames of `usable` holes outside `placement`, as many as fit into `left` bytes; those of one hole ascend.
    ///
    /// First those of holes that are whole frames: elsewhere parts of frames stay behind, which fit few requests.
    /// Then those of the smallest holes, as large ones are for large requests.
    pub(super) fn idle(
        &self,
        placement: Option<&Placement>,
        mut left: u64,
        usable: impl Fn(&Extent) -> bool,
    ) -> Vec<IdleFrame> {
        if self.asleep || left == 0 {
            return Vec::new();
        }
        let mut holes = self.large_holes();
        holes.retain(|&id| usable(self.extents.get(id)));
        holes.sort_by_cached_key(|&id| {
            let (bytes, frames) = (self.extents.get(id).bytes, self.idle_in(id));
            (frames.map(|it| it.frame.bytes).sum::<u64>() < bytes, bytes)
        });
        let mut frames = Vec::new();
        for id in holes {
            if left == 0 {
                break;
            }
            // A hole that the placement takes a part of may give the rest.
            for idle in self.idle_in(id) {
                let Frame { start, bytes, .. } = idle.frame;
                let inside = placement.is_some_and(|it| it.touches(start, start + bytes));
                if !inside && bytes <= left {
                    left -= bytes;
                    frames.push(idle);
                }
            }
        }
        frames
    }

    pub(super) fn large_holes(&self) -> Vec<Id> {
        self.holes_from(self.arena.granule())
    }

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
        let whole = frames.filter(|(_, frame)| {
            let within = frame.end() <= extent.end() || seeded!("frame-partly-in-use-is-idle");
            frame.start >= extent.start && within
        });
        whole.map(move |(id, frame)| IdleFrame { hole, id, frame })
    }

    /// The frames that have a byte of [`from`, `to`), in address order: up to the first granule without one.
    pub(super) fn frames_in(
        &self,
        mut from: u64,
        to: u64,
    ) -> impl Iterator<Item = (FrameId, Frame)> + '_ {
        std::iter::from_fn(move || {
            let found = self.arena.frame_at(from).filter(|_| from < to)?;
            from = found.1.end();
            Some(found)
        })
    }

    pub(super) fn hold(&mut self, hole: Id, start: u64, bytes: u64, stream: StreamIndex) -> Held {
        let epoch = self.extents.get(hole).epoch();
        let id = self.extents.take_window(hole, start, bytes, stream);
        self.under_way.held += bytes;
        Held { id, epoch, bytes }
    }

    /// Holds idle frames for a job of `stream`; those of one hole ascend.
    pub(super) fn hold_frames(
        &mut self,
        idle: &[IdleFrame],
        stream: StreamIndex,
    ) -> Vec<(Held, IdleFrame)> {
        // From the last on: what is left of a hole below keeps its number.
        let each = idle.iter().rev().map(|&it| {
            let Frame { start, bytes, .. } = it.frame;
            (self.hold(it.hole, start, bytes, stream), it)
        });
        let mut held: Vec<_> = each.collect();
        held.reverse();
        held
    }
}

pub(super) fn total(frames: &[IdleFrame]) -> u64 {
    frames.iter().map(|it| it.frame.bytes).sum()
}
