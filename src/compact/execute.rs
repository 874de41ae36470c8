//! Moving live blocks: one step of a compaction, from plan to booked outcome.
//!
//! # A step
//!
//! Under the pool's lock, so that what was planned is what is there: plan, or see what still holds of
//! a plan that was searched [beside the lock](super::proposal), cut the plan at the budget, make the
//! moving stream wait for everything that used the memory involved, and then launch by launch: queue
//! the moves, and book where the blocks are now. A source is then a hole whose history is the moving
//! stream; a block is ready behind the same tick. Nothing waits on the host, and after any step, or
//! between any two, every block is valid.
//!
//! A launch that fails ends the step. What was launched before is booked, what was not has not
//! happened: a block is moved whole by one launch. Only a circle of blocks takes several; if one of
//! them fails, those before it are taken back.
//!
//! The next step goes on with what is left of the plan if no hole was made or taken meanwhile and
//! no block that it moves was held. Else it plans anew from what it finds: blocks freed, held or
//! allocated meanwhile are simply part of its layout. So does the last step, which may find blocks
//! that are held no longer.

use std::sync::Arc;

use super::cut::{Ways, cut, rest};
use super::mover::{Mover, Part};
#[cfg(feature = "sanitize")]
use super::notes::Notes;
use super::plan::{Batch, Move, Plan};
use super::proposal::{Proposal, in_short};
use super::task::{Aim, KeptPlan, Owners, Task};
use crate::device::Timeline;
use crate::error::{Error, Result};
use crate::pool::{Core, Shared};
use crate::seeded::seeded;

/// What a step, or all steps of a compaction, did.
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
    /// Whether the goal is reached, or no plan reaches it any more: nothing is left to do.
    pub finished: bool,
    /// Whether the goal is reached.
    pub reached: bool,
}

/// A step under way: what it needs of the pool, and what it has done.
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
    /// Whether the mark before the first launch is recorded.
    begun: bool,
}

impl Step<'_> {
    /// Makes the moving stream wait for whatever used the memory that `batches` touch.
    fn wait(&mut self, batches: &[Batch]) -> Result<()> {
        if !seeded!("moves-do-not-wait-for-holes") {
            self.core.wait_for_holes(self.slot)?;
        }
        let timeline = self.timeline;
        if seeded!("moves-do-not-wait-for-uses") {
            return Ok(());
        }
        for m in batches.iter().flat_map(Batch::moves) {
            self.owners.uses(m.src, &mut |theirs, tick| {
                timeline.wait_for(theirs, tick).map(|_| ())
            })?;
        }
        Ok(())
    }

    /// Queues `batches`, none of them a circle, and books what was queued.
    fn straight(&mut self, batches: &[Batch], task: &Task<'_>) -> Result<()> {
        let reserved = self.core.reserved();
        let mut parts = Vec::new();
        for batch in batches {
            parts.extend(self.mover.parts(batch, reserved));
        }
        let before = self.before();
        let mut queued = 0;
        let outcome = self.queue(&parts, task, &mut queued);
        for part in &parts[..queued] {
            let bytes = part.moves.iter().map(|m| m.bytes).sum();
            self.made(part.moves, bytes, before);
        }
        outcome
    }

    /// Queues `parts` one right behind the other and counts them: their tables are in place by then,
    /// as far as one place holds them, so that the device need not wait for the host in between.
    fn queue(&mut self, parts: &[Part<'_>], task: &Task<'_>, queued: &mut usize) -> Result<()> {
        let base = self.shared.base;
        while *queued < parts.len() {
            let launches = self.mover.prepare(&parts[*queued..], base)?;
            self.begin(task)?;
            for launch in &launches {
                #[cfg(feature = "sanitize")]
                let notes = Notes::before(&self.mover.stream, parts[*queued].moves, base);
                let launched = self.mover.launch(launch);
                #[cfg(feature = "sanitize")]
                notes.after(&self.mover.stream, launched.is_ok());
                launched?;
                *queued += 1;
                self.launches += 1;
            }
        }
        Ok(())
    }

    /// Queues one part by itself.
    pub(super) fn launch(&mut self, part: Part<'_>, task: &Task<'_>) -> Result<()> {
        let launches = self.mover.prepare(&[part], self.shared.base)?;
        self.begin(task)?;
        for launch in &launches {
            self.mover.launch(launch)?;
            self.launches += 1;
        }
        Ok(())
    }

    /// Records the mark before the first launch.
    fn begin(&mut self, task: &Task<'_>) -> Result<()> {
        if let Some((begin, _)) = task.timing.filter(|_| !self.begun) {
            begin.record(&self.mover.stream)?;
        }
        self.begun = true;
        Ok(())
    }

    /// Books moves that are queued and that copied so many bytes; `before` is from before them.
    pub(super) fn made(&mut self, moves: &[Move], bytes: u64, before: u64) {
        self.book(moves, before);
        self.ways.add(moves);
        self.bytes += bytes;
        self.moves += moves.len();
    }

    /// Books that blocks are where `moves` bring them once what is queued is done.
    pub(super) fn book(&mut self, moves: &[Move], before: u64) {
        let tick = self.tick(before);
        let mut ascending: Vec<Move> = moves.to_vec();
        ascending.sort_unstable_by_key(|m| m.dst);
        let ways: Vec<_> = ascending.iter().map(|m| (m.src, m.dst, m.bytes)).collect();
        let ids = self.core.book_moves(&ways, self.slot, tick);
        self.owners.moved(&ascending, &ids, tick);
    }

    /// The last record before what is queued next.
    pub(super) fn before(&self) -> u64 {
        self.timeline.open_tick() - 1
    }

    /// What is behind all that is queued.
    pub(super) fn tick(&self, before: u64) -> u64 {
        match seeded!("moved-block-ready-a-record-early") {
            true => before,
            false => self.timeline.open_tick(),
        }
    }
}

/// What one step towards a goal came to.
pub(crate) struct Outcome {
    pub(crate) moved: Moved,
    pub(crate) ways: Ways,
    /// What the next step may go on with.
    pub(crate) kept: Option<KeptPlan>,
    /// What stopped it; the rest says what was done before.
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
            ways: Ways::default(),
            kept: None,
            error: None,
        }
    }
}

/// A plan to follow: where from, and what was made of it before.
#[derive(Default)]
pub(crate) struct Ahead {
    /// What an earlier step left.
    pub(crate) kept: Option<KeptPlan>,
    /// What was found beside the lock.
    pub(crate) proposal: Option<Proposal>,
}

/// The plan of a step, the part of it that the step makes, and whether it was made for the layout
/// as it is now: what is left of an earlier one may have missed blocks that were held then.
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
    let (plan, fresh) = match ahead.proposal.map(|found| found.check(core, owners)) {
        Some(Ok(holds)) => holds,
        Some(Err(())) => {
            let short = in_short(task.planner);
            (task.aim.plan(&short, core, owners), true)
        }
        None => (task.aim.plan(task.planner, core, owners), true),
    };
    let plan = plan?;
    let batches = cut(&plan, task.budget, task.most_moves);
    Some((plan, batches, fresh))
}

/// Makes one step, by what was planned `ahead` where that still holds.
pub(crate) fn step(
    shared: &Arc<Shared>,
    mover: &mut Mover,
    owners: &mut dyn Owners,
    task: &Task<'_>,
    ahead: Ahead,
) -> Result<Outcome> {
    let lane = shared.open_lane(&mover.stream)?;
    shared.drain_all();
    let mut core = shared.core.lock();
    let Some((plan, batches, fresh)) = planned(&core, owners, task, ahead) else {
        return Ok(Outcome::nothing(false));
    };
    if seeded!("free-during-plan") {
        drop(core);
        std::thread::sleep(std::time::Duration::from_micros(200));
        core = shared.core.lock();
    }
    if batches.is_empty() {
        return Ok(Outcome::nothing(true));
    }
    let mut step = Step {
        shared,
        slot: lane.slot,
        timeline: &lane.stream.timeline,
        core: &mut core,
        mover,
        owners,
        ways: Ways::default(),
        bytes: 0,
        moves: 0,
        launches: 0,
        begun: false,
    };
    step.wait(&batches)?;
    let error = step.run(&batches, task).err();
    let Step {
        ways,
        bytes,
        moves,
        launches,
        ..
    } = step;
    if bytes > 0 {
        core.count_moves(bytes);
    }
    let all = error.is_none() && moves == plan.moves;
    let whole = all && fresh;
    let kept = match task.aim {
        Aim::Goal(goal) if error.is_none() && !all => Some(KeptPlan {
            goal: goal.clone(),
            changes: core.changes(),
            plan: rest(plan, &batches),
        }),
        _ => None,
    };
    let moved = Moved {
        bytes,
        blocks: ways.blocks() as u64,
        steps: 1,
        launches,
        predicted_ns: task.planner.model().nanos(&batches),
        finished: whole,
        reached: whole,
    };
    Ok(Outcome {
        moved,
        ways,
        kept,
        error,
    })
}

impl Step<'_> {
    /// Queues all batches between the marks that time them, and books what was queued.
    fn run(&mut self, batches: &[Batch], task: &Task<'_>) -> Result<()> {
        let is_circle = |batch: &Batch| matches!(batch, Batch::Circle { .. });
        for run in batches.chunk_by(|a, b| !is_circle(a) && !is_circle(b)) {
            match run {
                [Batch::Circle { moves, pieces }] => self.circle(moves, pieces, task)?,
                straight => self.straight(straight, task)?,
            }
        }
        if let Some((_, end)) = task.timing {
            end.record(&self.mover.stream)?;
        }
        Ok(())
    }
}
