//! What a step of a compaction is to do, and what it may move.

use std::collections::HashSet;

use super::cut::{Budget, cut};
use super::gather::{self, Handles};
use super::plan::layout::{Extent, Kind, Layout};
use super::plan::{Batch, Goal, Move, Plan, Planner};
use super::room;
use crate::device::{Event, Timeline};
use crate::error::Result;
use crate::pool::Core;
use crate::seeded::seeded;

/// Who owns the blocks that may move.
pub(crate) trait Owners {
    /// Whether the block at offset `at` may move now.
    fn may_move(&self, at: u64) -> bool;
    /// Gives each use of the block at offset `at` that a move has to wait for.
    fn uses(&self, at: u64, each: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()>;
    /// The blocks named were moved together, behind `tick` of the moving stream; `ids` are their
    /// extents.
    fn moved(&mut self, moves: &[Move], ids: &[u32], tick: u64);
}

/// What a step is for.
#[derive(Clone, Copy)]
pub(crate) enum Aim<'a> {
    /// What the application asked for.
    Goal(&'a Goal),
    /// A hole for one request, by moves that take the device no longer than this.
    Room { bytes: u64, most_ns: f64 },
    /// Idle handles that make up one request, likewise.
    Gather { bytes: u64, most_ns: f64 },
}

impl Aim<'_> {
    /// Whether a plan for it takes a search.
    pub(crate) fn searches(self) -> bool {
        matches!(self, Self::Goal(Goal::Hole(_)) | Self::Room { .. })
    }

    pub(super) fn plan(self, planner: &Planner, core: &Core, owners: &dyn Owners) -> Option<Plan> {
        match self {
            Self::Goal(goal) => planner.plan(&layout_of(core, owners), goal),
            Self::Room { bytes, most_ns } => {
                let extents = extents_of(core, owners).collect();
                room::plan(planner, extents, bytes, most_ns)
            }
            Self::Gather { bytes, most_ns } => {
                let extents: Vec<Extent> = extents_of(core, owners).collect();
                let handles = Handles {
                    granule: core.granule(),
                    room: core.room(),
                    whole: &|from, to| core.whole_frames(from, to),
                    gap: &|end| core.gap_behind(end),
                };
                gather::plan(&planner.model(), &extents, &handles, bytes)
                    .filter(|plan| plan.predicted_ns <= most_ns)
            }
        }
    }
}

/// What earlier steps left of a plan, which holds while the layout is what they left too.
pub(crate) struct KeptPlan {
    pub(super) goal: Goal,
    pub(super) changes: u64,
    pub(super) plan: Plan,
}

impl KeptPlan {
    /// What the next step makes of it; `None` once it does not hold.
    pub(super) fn batches(
        &self,
        core: &Core,
        owners: &dyn Owners,
        task: &Task<'_>,
    ) -> Option<Vec<Batch>> {
        let same_goal = matches!(task.aim, Aim::Goal(goal) if *goal == self.goal);
        let changed = self.changes != core.changes();
        if !same_goal || (changed && !seeded!("kept-plan-outlives-changes")) {
            return None;
        }
        let batches = cut(&self.plan, task.budget, task.most_moves);
        let mut moves = batches.iter().flat_map(Batch::moves);
        let may_move =
            |m: &Move| owners.may_move(m.src) || seeded!("kept-plan-moves-pinned-blocks");
        moves.all(may_move).then_some(batches)
    }
}

/// What a step is to do, and how much of it.
pub(crate) struct Task<'a> {
    pub(crate) planner: &'a Planner,
    pub(crate) aim: Aim<'a>,
    pub(crate) budget: &'a Budget,
    /// Most blocks to move.
    pub(crate) most_moves: usize,
    /// Recorded around the moves.
    pub(crate) timing: Option<&'a (Event, Event)>,
}

/// The layout as a planner sees it, offsets for addresses.
pub(crate) fn layout_of(core: &Core, owners: &dyn Owners) -> Layout {
    Layout::from_extents(extents_of(core, owners)).unwrap_or_default()
}

/// As [`layout_of`], with blocks at the offsets `cached` as free as they are in caches.
pub(crate) fn layout_with(core: &Core, owners: &dyn Owners, cached: &HashSet<u64>) -> Layout {
    let extents = core
        .mapped_extents()
        .map(|(at, bytes, taken)| extent(owners, (at, bytes, taken && !cached.contains(&at))));
    Layout::from_extents(extents).unwrap_or_default()
}

fn extents_of<'a>(core: &'a Core, owners: &'a dyn Owners) -> impl Iterator<Item = Extent> + 'a {
    let each = core.mapped_extents();
    each.map(|mapped| extent(owners, mapped))
}

/// What stands at the offset, in so many bytes that are taken or not.
pub(super) fn extent(owners: &dyn Owners, (addr, bytes, taken): (u64, u64, bool)) -> Extent {
    Extent {
        addr,
        bytes,
        kind: match taken {
            true if owners.may_move(addr) => Kind::Movable,
            true => Kind::Fixed,
            false => Kind::Hole,
        },
    }
}

#[cfg(test)]
mod tests;
