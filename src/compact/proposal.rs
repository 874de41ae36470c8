//! Plans made beside the pool's lock.
//!
//! A search for a hole takes longer than a request may wait for the pool. So the layout is taken
//! under the lock ([`survey`]), searched without it, and what was found is looked at again under the
//! lock: it holds as it is where no hole was made or taken meanwhile, and else as far as its moves can
//! still be played on what is there now. Where nothing of it can, a small part of the search is done
//! under the lock, so that a step makes progress however busy the pool is.

use super::execute::{Aim, KeptPlan, Owners, Task, extent};
use super::layout::{Extent, Kind, Layout};
use super::plan::{Batch, Goal, Move, Plan, Planner};
use super::room;
use crate::pool::Core;
use crate::seeded::seeded;

/// The budget of a search under the lock, after one without it came to nothing.
const LOCKED_BUDGET: usize = 16;

/// What a plan is searched in: the pool's memory as it was.
pub(crate) struct Survey {
    changes: u64,
    extents: Vec<Extent>,
    planner: Planner,
}

/// What was found in a [`Survey`]; `None` where nothing reaches the aim.
pub(crate) struct Proposal {
    changes: u64,
    bytes: u64,
    plan: Option<Plan>,
}

/// What a search for the task would have to look at; `None` for an aim without a search, and where
/// what is `kept` of an earlier plan serves.
pub(crate) fn survey(
    core: &Core,
    owners: &dyn Owners,
    task: &Task<'_>,
    kept: Option<&KeptPlan>,
) -> Option<Survey> {
    let searches = matches!(task.aim, Aim::Goal(Goal::Hole(_)) | Aim::Room { .. });
    if !searches || kept.is_some_and(|kept| kept.batches(core, owners, task).is_some()) {
        return None;
    }
    Some(Survey {
        changes: core.extents.changes(),
        extents: core
            .mapped_extents()
            .map(|mapped| extent(core, owners, mapped))
            .collect(),
        planner: task.planner.clone(),
    })
}

impl Survey {
    /// Searches; no lock is needed.
    pub(crate) fn propose(self, aim: Aim<'_>) -> Proposal {
        let bytes = match aim {
            Aim::Goal(Goal::Hole(bytes)) => *bytes,
            Aim::Room { bytes, .. } => bytes,
            Aim::Goal(_) | Aim::Gather { .. } => 0,
        };
        let plan = match aim {
            Aim::Goal(goal) => Layout::from_extents(self.extents)
                .and_then(|layout| self.planner.plan(&layout, goal)),
            Aim::Room { bytes, most_ns } => room::plan(&self.planner, self.extents, bytes, most_ns),
            Aim::Gather { .. } => None,
        };
        Proposal {
            changes: self.changes,
            bytes,
            plan,
        }
    }
}

impl Proposal {
    /// What of the plan holds now, and whether it was made for the layout as it is now. `Err` where
    /// nothing of it does.
    pub(super) fn check(
        self,
        core: &Core,
        owners: &dyn Owners,
    ) -> Result<(Option<Plan>, bool), ()> {
        let same = self.changes == core.extents.changes();
        let Some(plan) = self.plan else {
            return if same { Ok((None, true)) } else { Err(()) };
        };
        let mut moves = plan.batches.iter().flat_map(Batch::moves);
        if same && moves.all(|m| owners.may_move(m.src)) {
            return Ok((Some(plan), true));
        }
        if core.extents.largest_hole() >= self.bytes {
            // Made by others: nothing has to move any more.
            return Err(());
        }
        let whole = plan.batches.len();
        let hold = match seeded!("stale-plan-made-unchecked") {
            true => whole,
            false => playable(&mut touched(core, owners, &plan.batches), &plan.batches),
        };
        match hold {
            0 => Err(()),
            _ => Ok((Some(first_batches(plan, hold)), false)),
        }
    }
}

/// A planner for a search under the lock.
pub(super) fn in_short(planner: &Planner) -> Planner {
    planner.limited(LOCKED_BUDGET)
}

/// The first `count` batches of `plan`.
fn first_batches(mut plan: Plan, count: usize) -> Plan {
    plan.batches.truncate(count);
    plan.bytes = plan.batches.iter().map(Batch::bytes).sum();
    plan.moves = plan.batches.iter().map(|b| b.moves().len()).sum();
    plan
}

/// The extents that `batches` move, or move something to.
fn touched(core: &Core, owners: &dyn Owners, batches: &[Batch]) -> Layout {
    let moves = batches.iter().flat_map(Batch::moves);
    let ends = moves.flat_map(|m| [(m.src, m.src + m.bytes), (m.dst, m.dst + m.bytes)]);
    let mut ranges: Vec<(u64, u64)> = ends.collect();
    ranges.sort_unstable();
    ranges.dedup_by(|upper, lower| {
        let joins = upper.0 <= lower.1;
        lower.1 = lower.1.max(upper.1 * u64::from(joins));
        joins
    });
    let mut ranges = ranges.into_iter().peekable();
    let near = core.mapped_extents().filter(|&(begin, bytes, _)| {
        while ranges.next_if(|&(_, end)| end <= begin).is_some() {}
        ranges
            .peek()
            .is_some_and(|&(first, _)| first < begin + bytes)
    });
    Layout::from_extents(near.map(|mapped| extent(core, owners, mapped))).unwrap_or_default()
}

/// Plays `batches` on `layout`; gives how many of them it can be played, from the first on. A circle
/// cannot: what its pieces pass by way of is not looked at.
fn playable(layout: &mut Layout, batches: &[Batch]) -> usize {
    let plays = |batch: &&Batch| match batch {
        Batch::Circle { .. } => false,
        Batch::Disjoint(moves) | Batch::Slide { moves, .. } => play(layout, moves),
    };
    batches.iter().take_while(plays).count()
}

/// Makes moves that are made together, if each finds its block, free to move, and a hole.
fn play(layout: &mut Layout, moves: &[Move]) -> bool {
    let stands = |layout: &Layout, m: &Move| {
        let movable = |e: Extent| e.kind == Kind::Movable && e.bytes == m.bytes;
        layout.get(m.src).is_some_and(movable)
    };
    moves
        .iter()
        .all(|m| stands(layout, m) && layout.free(m.src))
        && moves
            .iter()
            .all(|m| layout.place(m.dst, m.bytes, Kind::Movable))
}
