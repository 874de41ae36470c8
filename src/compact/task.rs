//! What one step of a compaction has to do, and which blocks it may move.

use std::collections::HashSet;

use super::budget::{Budget, cut, most};
use super::gather::{self, Handles};
use super::make_room;
use super::plan::layout::{Extent, Kind, Layout};
use super::plan::{Batch, Goal, Move, Plan, Planner};
use crate::device::{Event, Timeline};
use crate::error::Result;
use crate::pool::Core;

/// The owners of the blocks that may move.
pub(crate) trait Owners {
    /// Whether the block at offset `at` may move now.
    fn may_move(&self, at: u64) -> bool;
    /// Calls `each` for every use of the block at offset `at` that a move has to wait for.
    fn uses(&self, at: u64, each: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()>;
    /// Reports that the blocks of `moves` were moved together, ready after `tick` of the moving
    /// stream; `ids` are their extents.
    fn moved(&mut self, moves: &[Move], ids: &[u32], tick: u64);
}

/// The purpose of a step.
#[derive(Clone, Copy)]
pub(crate) enum Aim<'a> {
    /// A goal that the application set.
    Goal(&'a Goal),
    /// A hole for one request, by moves of at most `most_ns` of device time.
    Room { bytes: u64, most_ns: f64 },
    /// Idle handles that make up one request, by moves of at most `most_ns` of device time.
    Gather { bytes: u64, most_ns: f64 },
}

impl Aim<'_> {
    /// The bytes of the hole that a plan for it is searched for; `None` if it needs no search.
    pub(crate) fn searched(self) -> Option<u64> {
        match self {
            Self::Goal(Goal::Hole(bytes)) => Some(*bytes),
            Self::Room { bytes, .. } => Some(bytes),
            Self::Goal(_) | Self::Gather { .. } => None,
        }
    }

    pub(super) fn plan(self, planner: &Planner, core: &Core, owners: &dyn Owners) -> Option<Plan> {
        let extents: Vec<Extent> = extents_of(core, owners).collect();
        let Self::Gather { bytes, most_ns } = self else {
            return self.plan_for(planner, extents);
        };
        let handles = Handles {
            granule: core.arena.granule(),
            room: core.room(),
            whole: &|from, to| core.whole_in(from, to).map(|(_, it)| it.bytes).sum(),
            gap: &|end| core.gap_behind(end),
        };
        gather::plan(&planner.model(), &extents, &handles, bytes)
            .filter(|plan| plan.predicted_ns <= most_ns)
    }

    /// A plan by the extents alone, which do not say what there is to gather.
    pub(super) fn plan_for(self, planner: &Planner, extents: Vec<Extent>) -> Option<Plan> {
        match self {
            Self::Goal(goal) => planner.plan(&Layout::from_extents(extents)?, goal),
            Self::Room { bytes, most_ns } => make_room::plan(planner, extents, bytes, most_ns),
            Self::Gather { .. } => None,
        }
    }
}

/// The rest of a plan after earlier steps. It applies as long as `changes`, the heap's change
/// count, is the same.
pub(crate) struct KeptPlan {
    pub(super) goal: Goal,
    pub(super) changes: u64,
    pub(super) plan: Plan,
}

impl KeptPlan {
    /// The batches of the next step; `None` once the plan no longer applies.
    pub(super) fn batches(
        &self,
        core: &Core,
        owners: &dyn Owners,
        task: &Task<'_>,
    ) -> Option<Vec<Batch>> {
        let same_goal = matches!(task.aim, Aim::Goal(goal) if *goal == self.goal);
        let changed = self.changes != core.extents.changes();
        if !same_goal || changed {
            return None;
        }
        let batches = cut(&self.plan, task.budget, task.most_moves);
        let mut moves = batches.iter().flat_map(Batch::moves);
        let may_move = |m: &Move| owners.may_move(m.src);
        moves.all(may_move).then_some(batches)
    }
}

/// The work of one step, and its limits.
pub(crate) struct Task<'a> {
    pub(crate) planner: &'a Planner,
    pub(crate) aim: Aim<'a>,
    pub(crate) budget: &'a Budget,
    /// Most blocks that the step moves.
    pub(crate) most_moves: usize,
    /// Events to record before and after the moves.
    pub(crate) timing: Option<&'a (Event, Event)>,
}

/// A plan for [`Goal::Full`] has the moves of about so many steps: any change of the layout makes the rest void.
const STEPS_AHEAD: usize = 4;

impl Task<'_> {
    /// The plan of a step, which is its last if it can make all the moves: a plan that ends early has more.
    pub(super) fn plan(&self, planner: &Planner, core: &Core, owners: &dyn Owners) -> Option<Plan> {
        if !matches!(self.aim, Aim::Goal(Goal::Full)) {
            return self.aim.plan(planner, core, owners);
        }
        let (bytes, moves) = most(self.budget, self.most_moves);
        let most = (
            bytes.saturating_mul(STEPS_AHEAD as u64),
            moves.saturating_mul(STEPS_AHEAD),
        );
        let mut last: Option<Extent> = None;
        let extents = core.mapped_extents().map(|(addr, bytes, taken)| {
            let gives_way = |below: Extent| below.end() == addr && below.kind != Kind::Fixed;
            // A block with no hole below it stays, whether or not it may move.
            let it = match !taken || last.is_some_and(gives_way) {
                true => extent(owners, (addr, bytes, taken)),
                false => Extent {
                    addr,
                    bytes,
                    kind: Kind::Fixed,
                },
            };
            last = Some(it);
            it
        });
        planner.plan_full(extents, most)
    }
}

/// The layout for a planner, with offsets as addresses, and the blocks `cached` (offset, bytes) as holes: they
/// are free, but in a cache.
pub(crate) fn layout_with(
    core: &Core,
    owners: &dyn Owners,
    cached: &HashSet<(u64, u64)>,
) -> Layout {
    let extents = core.mapped_extents().map(|(at, bytes, taken)| {
        extent(owners, (at, bytes, taken && !cached.contains(&(at, bytes))))
    });
    Layout::from_extents(extents).unwrap_or_default()
}

pub(super) fn extents_of<'a>(
    core: &'a Core,
    owners: &'a dyn Owners,
) -> impl Iterator<Item = Extent> + 'a {
    let each = core.mapped_extents();
    each.map(|mapped| extent(owners, mapped))
}

/// The extent of `bytes` bytes at offset `addr`, which is allocated or not (`taken`).
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
