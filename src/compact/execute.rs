//! Moving live blocks: one step of a compaction, from plan to booked outcome.
//!
//! # A step
//!
//! Under the pool's lock, so that what was planned is what is there: take the layout, plan, cut the
//! plan at the budget, make the moving stream wait for everything that used the memory involved,
//! and then launch by launch: queue the moves, and book where the blocks are now. A source is then a
//! hole whose history is the moving stream; a block is ready behind the same tick. Nothing waits on
//! the host, and after any step, or between any two, every block is valid.
//!
//! A launch that fails ends the step. What was launched before is booked, what was not has not
//! happened: a block is moved whole by one launch.
//!
//! The next step plans anew from what it finds: blocks freed, pinned or allocated meanwhile are
//! simply part of its layout.

use std::sync::Arc;

use super::cut::{Budget, Ways, cut};
use super::layout::{Extent, Kind, Layout};
use super::mover::Mover;
#[cfg(feature = "sanitize")]
use super::notes::Notes;
use super::plan::{Batch, Goal, Move, Planner};
use crate::device::{Event, Timeline};
use crate::error::{Error, Result};
use crate::pool::{Core, Shared};
use crate::seeded::seeded;

/// What a step, or all steps of a compaction, did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Moved {
    /// Bytes moved.
    pub bytes: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// Steps made.
    pub steps: u64,
    /// Nanoseconds the planner expects the moves to take on the device.
    pub predicted_ns: f64,
    /// Whether the goal is reached, or no plan reaches it any more: nothing is left to do.
    pub finished: bool,
    /// Whether the goal is reached.
    pub reached: bool,
}

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

/// What a step is to do, and how much of it.
pub(crate) struct Task<'a> {
    pub(crate) planner: &'a Planner,
    pub(crate) goal: &'a Goal,
    pub(crate) budget: &'a Budget,
    /// Most blocks to move.
    pub(crate) most_moves: usize,
    /// Recorded around the moves.
    pub(crate) timing: Option<&'a (Event, Event)>,
}

/// The layout as a planner sees it, offsets for addresses.
pub(crate) fn layout_of(core: &Core, owners: &dyn Owners) -> Layout {
    let extents = core.mapped_extents().map(|(addr, bytes, taken)| Extent {
        addr,
        bytes,
        kind: match taken {
            true if owners.may_move(addr) && !core.has_edge(addr, bytes) => Kind::Movable,
            true => Kind::Fixed,
            false => Kind::Hole,
        },
    });
    Layout::from_extents(extents).unwrap_or_default()
}

/// A step under way: what it needs of the pool, and what it has done.
struct Step<'a> {
    shared: &'a Arc<Shared>,
    slot: u32,
    timeline: &'a Timeline,
    core: &'a mut Core,
    mover: &'a mut Mover,
    owners: &'a mut dyn Owners,
    ways: Ways,
    bytes: u64,
    moves: usize,
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

    /// Queues and books one batch.
    fn batch(&mut self, batch: &Batch, task: &Task<'_>) -> Result<()> {
        let slide = match batch {
            Batch::Disjoint(_) => None,
            Batch::Slide { upward, .. } => Some(*upward),
        };
        for part in self.mover.parts(batch) {
            self.part(part, slide, task)?;
        }
        Ok(())
    }

    fn part(&mut self, part: &[Move], slide: Option<bool>, task: &Task<'_>) -> Result<()> {
        let base = self.shared.base;
        #[cfg(feature = "sanitize")]
        let notes = Notes::before(&self.mover.stream, part, base);
        let begin = task.timing.filter(|_| self.moves == 0).map(|span| &span.0);
        let blocks = task.budget.thread_blocks;
        let launched = self.mover.launch(part, slide, base, blocks, begin);
        #[cfg(feature = "sanitize")]
        notes.after(&self.mover.stream, launched.is_ok());
        launched?;
        let early = u64::from(seeded!("moved-block-ready-a-record-early"));
        let tick = self.timeline.open_tick() - early;
        let mut ascending: Vec<Move> = part.to_vec();
        ascending.sort_unstable_by_key(|m| m.dst);
        let ways: Vec<_> = ascending.iter().map(|m| (m.src, m.dst, m.bytes)).collect();
        let ids = self.core.book_moves(&ways, self.slot, tick);
        self.owners.moved(&ascending, &ids, tick);
        self.ways.add(part);
        self.bytes += part.iter().map(|m| m.bytes).sum::<u64>();
        self.moves += part.len();
        Ok(())
    }
}

/// What one step towards a goal came to.
pub(crate) struct Outcome {
    pub(crate) moved: Moved,
    pub(crate) ways: Ways,
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
            error: None,
        }
    }
}

/// Makes one step.
pub(crate) fn step(
    shared: &Arc<Shared>,
    mover: &mut Mover,
    owners: &mut dyn Owners,
    task: &Task<'_>,
) -> Result<Outcome> {
    let lane = shared.open_lane(&mover.stream)?;
    shared.drain_all();
    let mut core = shared.core.lock();
    let layout = layout_of(&core, owners);
    let Some(plan) = task.planner.plan(&layout, task.goal) else {
        return Ok(Outcome::nothing(false));
    };
    let batches = cut(&plan, task.budget, task.most_moves);
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
    };
    step.wait(&batches)?;
    let error = step.run(&batches, task).err();
    let Step {
        ways, bytes, moves, ..
    } = step;
    if bytes > 0 {
        core.count_moves(bytes);
    }
    let whole = error.is_none() && moves == plan.moves;
    let moved = Moved {
        bytes,
        blocks: ways.blocks() as u64,
        steps: 1,
        predicted_ns: predicted(&batches, task.planner),
        finished: whole,
        reached: whole,
    };
    Ok(Outcome { moved, ways, error })
}

impl Step<'_> {
    /// Queues and books all batches, between the marks that time them.
    fn run(&mut self, batches: &[Batch], task: &Task<'_>) -> Result<()> {
        for batch in batches {
            self.batch(batch, task)?;
        }
        if let Some((_, end)) = task.timing {
            end.record(&self.mover.stream)?;
        }
        Ok(())
    }
}

/// Nanoseconds the planner's model expects `batches` to take.
fn predicted(batches: &[Batch], planner: &Planner) -> f64 {
    let model = planner.model();
    let bytes: u64 = batches.iter().map(Batch::bytes).sum();
    batches.len() as f64 * model.launch_ns + bytes as f64 / model.bytes_per_ns
}
