//! Moving live blocks: one step of a compaction, from its plan to the updated heap.
//!
//! # A step
//!
//! A step runs under the pool's lock, so the layout cannot change under its plan:
//!
//! 1. Make a plan, or check which part still applies of a plan that was searched [without the
//!    lock](super::speculative_plan).
//! 2. Cut the plan at the budget.
//! 3. Make the moving stream wait for everything that used the memory involved.
//! 4. Launch by launch: queue the moves, and record the new places of the blocks in the heap. The
//!    sources become holes whose last use is on the moving stream; the blocks are ready after the
//!    same tick.
//!
//! The host waits for nothing. Every block is valid after any step and between any two.
//!
//! A launch that fails ends the step. The launches before it are recorded; those after it were never
//! queued. One launch moves a block whole. Only a cycle of blocks takes several; if one of them
//! fails, those before it are undone.
//!
//! A plan for `Goal::Full` has the moves of a few steps.
//!
//! The next step continues with the rest of the plan, provided that no hole was made or taken since
//! and that no block to move was pinned. Otherwise it plans again, with the blocks freed, pinned or
//! allocated since as part of its layout. The last step plans again too: blocks may have been
//! unpinned by then.

use std::sync::Arc;

use super::budget::{cut, rest};
use super::mover::{Mover, Part};
use super::plan::ways::Ways;
use super::plan::{Batch, Move, Plan};
#[cfg(feature = "sanitize")]
use super::sanitizer_hooks::SanitizerHooks;
use super::speculative_plan::{SpeculativePlan, in_short};
use super::task::{Aim, KeptPlan, Owners, Task};
use crate::device::{Timeline, is_under_capture};
use crate::error::{Error, Result};
use crate::pool::{Core, Epoch, Shared};

/// The work of one step, or of all steps of a compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Moved {
    /// Bytes moved.
    pub bytes: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// Steps made.
    pub steps: u64,
    /// Launches that moved them.
    pub launches: u64,
    /// Nanoseconds the planner expects the moves to take on the device.
    pub predicted_ns: f64,
    /// Whether nothing is left to do: the goal is reached, or no plan reaches it any more.
    pub finished: bool,
    /// Whether the goal is reached.
    pub reached: bool,
}

/// A running step: what it needs from the pool, and its results so far.
pub(super) struct Step<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) slot: u32,
    pub(super) timeline: &'a Timeline,
    pub(super) core: &'a mut Core,
    pub(super) mover: &'a mut Mover,
    owners: &'a mut dyn Owners,
    ways: Ways,
    bytes: u64,
    moves: usize,
    launches: u64,
    /// Whether the event before the first launch is recorded.
    begun: bool,
}

impl Step<'_> {
    /// Makes the moving stream wait for every use of the memory that `batches` touch.
    fn wait(&mut self, batches: &[Batch]) -> Result<()> {
        self.core.wait_for_holes(self.slot)?;
        let timeline = self.timeline;
        for m in batches.iter().flat_map(Batch::moves) {
            self.owners.uses(m.src, &mut |theirs, tick| {
                timeline.wait_for(theirs, tick).map(|_| ())
            })?;
        }
        Ok(())
    }

    /// Queues `batches`, none of them a cycle, and records in the heap what was queued.
    fn straight(&mut self, batches: &[Batch], task: &Task<'_>) -> Result<()> {
        let reserved = self.core.arena.reserved();
        let mut parts = Vec::new();
        for batch in batches {
            parts.extend(self.mover.parts(batch, reserved));
        }
        let mut queued = 0;
        let outcome = self.queue(&parts, task, &mut queued);
        for part in &parts[..queued] {
            let bytes = part.moves.iter().map(|m| m.bytes).sum();
            self.made(part.moves, bytes);
        }
        outcome
    }

    /// Queues `parts` one directly after the other and counts them. As many tables as fit into one
    /// place are uploaded before the first of their launches, so the device need not wait for the
    /// host in between.
    fn queue(&mut self, parts: &[Part<'_>], task: &Task<'_>, queued: &mut usize) -> Result<()> {
        let base = self.shared.base;
        while *queued < parts.len() {
            let launches = self.mover.prepare(&parts[*queued..], base)?;
            self.begin(task)?;
            for launch in &launches {
                #[cfg(feature = "sanitize")]
                let hooks = SanitizerHooks::before(&self.mover.stream, parts[*queued].moves, base);
                let launched = self.mover.launch(launch);
                #[cfg(feature = "sanitize")]
                hooks.after(&self.mover.stream, launched.is_ok());
                launched?;
                *queued += 1;
                self.launches += 1;
            }
        }
        Ok(())
    }

    /// Queues a single part.
    pub(super) fn launch(&mut self, part: Part<'_>, task: &Task<'_>) -> Result<()> {
        let launches = self.mover.prepare(&[part], self.shared.base)?;
        self.begin(task)?;
        for launch in &launches {
            self.mover.launch(launch)?;
            self.launches += 1;
        }
        Ok(())
    }

    /// Records the event before the first launch.
    fn begin(&mut self, task: &Task<'_>) -> Result<()> {
        if let Some((begin, _)) = task.timing.filter(|_| !self.begun) {
            begin.record(&self.mover.stream)?;
        }
        self.begun = true;
        Ok(())
    }

    /// Records queued moves that copy `bytes` bytes.
    pub(super) fn made(&mut self, moves: &[Move], bytes: u64) {
        self.book(moves);
        self.ways.add(moves);
        self.bytes += bytes;
        self.moves += moves.len();
    }

    /// Records in the heap that the blocks are at the destinations of `moves`, once the queued work
    /// is done.
    pub(super) fn book(&mut self, moves: &[Move]) {
        let tick = self.tick();
        let mut ascending: Vec<Move> = moves.to_vec();
        ascending.sort_unstable_by_key(|m| m.dst);
        let ways: Vec<_> = ascending.iter().map(|m| (m.src, m.dst, m.bytes)).collect();
        let ids = self.core.book_moves(&ways, Epoch::new(self.slot, tick));
        self.owners.moved(&ascending, &ids, tick);
    }

    /// The tick after everything queued so far.
    pub(super) fn tick(&self) -> u64 {
        self.timeline.open_tick()
    }
}

/// The result of one step towards a goal.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) moved: Moved,
    pub(crate) ways: Ways,
    /// The rest of the plan, for the next step.
    pub(crate) kept: Option<KeptPlan>,
    /// The error that ended the step; the other fields say what was done before it.
    pub(crate) error: Option<Error>,
}

impl Outcome {
    fn nothing(reached: bool) -> Self {
        Self {
            moved: Moved {
                finished: true,
                reached,
                ..Moved::default()
            },
            ..Self::default()
        }
    }
}

/// A plan made before the step, if there is one.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The rest of an earlier step's plan.
    pub(crate) kept: Option<KeptPlan>,
    /// A plan that was searched without the lock.
    pub(crate) speculative: Option<SpeculativePlan>,
}

/// The plan of a step, the part of it that this step executes, and whether the plan fits the
/// present layout. The rest of an earlier plan may not: blocks that were pinned then may be free to
/// move now.
fn planned(
    core: &Core,
    owners: &dyn Owners,
    task: &Task<'_>,
    ahead: Ahead,
) -> Option<(Plan, Vec<Batch>, bool)> {
    if let Some(kept) = ahead.kept
        && let Some(batches) = kept.batches(core, owners, task)
    {
        return Some((kept.plan, batches, false));
    }
    let (plan, fresh) = match ahead.speculative.map(|found| found.check(core, owners)) {
        Some(Ok(holds)) => holds,
        Some(Err(())) => {
            let short = in_short(task.planner);
            (task.plan(&short, core, owners), true)
        }
        None => (task.plan(task.planner, core, owners), true),
    };
    let plan = plan?;
    let batches = cut(&plan, task.budget, task.most_moves);
    Some((plan, batches, fresh))
}

/// Executes one step, by a plan made `ahead` if one still applies.
pub(crate) fn step(
    shared: &Arc<Shared>,
    mover: &mut Mover,
    owners: &mut dyn Owners,
    task: &Task<'_>,
    ahead: Ahead,
) -> Result<Outcome> {
    let lane = shared.open_lane(&mover.stream)?;
    let mut guard = shared.lock_for_moves();
    let core = &mut *guard.0;
    let Some((plan, batches, fresh)) = planned(core, owners, task, ahead) else {
        return Ok(Outcome::nothing(false));
    };
    if batches.is_empty() {
        return Ok(Outcome::nothing(true));
    }
    let mut step = Step {
        shared,
        slot: lane.slot,
        timeline: &lane.stream.timeline,
        core,
        mover,
        owners,
        ways: Ways::default(),
        bytes: 0,
        moves: 0,
        launches: 0,
        begun: false,
    };
    match step.wait(&batches) {
        // A capture began meanwhile: the next step plans without what its stream used.
        Err(error) if is_under_capture(&error) => return Ok(Outcome::default()),
        waited => waited?,
    }
    let error = step.run(&batches, task).err();
    Ok(step.end(plan, &batches, task, fresh, error))
}

impl Step<'_> {
    /// Queues all batches between the two timing events, and records in the heap what was queued.
    fn run(&mut self, batches: &[Batch], task: &Task<'_>) -> Result<()> {
        let is_circle = |batch: &Batch| matches!(batch, Batch::Circle { .. });
        for run in batches.chunk_by(|a, b| !is_circle(a) && !is_circle(b)) {
            match run {
                [Batch::Circle { moves, pieces }] => self.cycle(moves, pieces, task)?,
                straight => self.straight(straight, task)?,
            }
        }
        if let Some((_, end)) = task.timing {
            end.record(&self.mover.stream)?;
        }
        Ok(())
    }

    /// Counts what was moved; keeps the rest of a `plan` that was not carried out whole, unless there was an `error`.
    fn end(
        self,
        plan: Plan,
        batches: &[Batch],
        task: &Task<'_>,
        fresh: bool,
        error: Option<Error>,
    ) -> Outcome {
        if self.bytes > 0 {
            self.core.count_moves(self.bytes);
        }
        let all = error.is_none() && self.moves == plan.moves;
        let whole = all && fresh;
        let kept = match task.aim {
            Aim::Goal(goal) if error.is_none() && !all => Some(KeptPlan {
                goal: goal.clone(),
                changes: self.core.extents.changes(),
                plan: rest(plan, batches),
            }),
            _ => None,
        };
        let moved = Moved {
            bytes: self.bytes,
            blocks: self.ways.blocks() as u64,
            steps: 1,
            launches: self.launches,
            predicted_ns: task.planner.model().nanos(batches),
            finished: whole,
            reached: whole,
        };
        Outcome {
            moved,
            ways: self.ways,
            kept,
            error,
        }
    }
}
