//! One step of compaction, from the search to the callbacks.

use std::sync::Arc;
use std::time::Instant;

use super::block_table::Moving;
use super::callback::{Calls, tell};
use super::registry::{Registry, State, in_units};
use super::step_log::Span;
use crate::compact::{self, Ahead, Aim, Budget, Goal, Moved, SpeculativePlan, Survey, Task};
use crate::device::{Queueing, lock};
use crate::error::Result;
use crate::pool::Shared;

impl Registry {
    /// Says in `moved` what it did, also before an error.
    pub(crate) fn step(&self, goal: &Goal, budget: &Budget, moved: &mut Moved) -> Result<()> {
        self.step_to(Aim::Goal(&in_units(goal)), budget, moved)
    }

    pub(super) fn step_to(&self, aim: Aim<'_>, budget: &Budget, moved: &mut Moved) -> Result<()> {
        let started = Instant::now();
        let speculative = self.propose(aim, budget)?;
        self.make(aim, budget, (speculative, started), moved)
    }

    /// Searches for a plan without a lock, if the aim needs a search.
    pub(super) fn propose(&self, aim: Aim<'_>, budget: &Budget) -> Result<Option<SpeculativePlan>> {
        let Some(bytes) = aim.searched() else {
            return Ok(None);
        };
        let shared = self.shared()?;
        let survey = lock(&self.state).survey(&shared, aim, budget);
        Ok(survey.map(|survey| survey.propose(aim, bytes)))
    }

    /// Executes what still applies of a plan, or plans again.
    pub(super) fn make(
        &self,
        aim: Aim<'_>,
        budget: &Budget,
        (speculative, started): (Option<SpeculativePlan>, Instant),
        moved: &mut Moved,
    ) -> Result<()> {
        let shared = self.shared()?;
        self.record_ahead(&shared);
        // Dropped without the lock too, if the step does not use it.
        let mut span = self.span();
        let mut calls = Calls::new();
        let locked = || Ok(lock(&self.state));
        let mut state = self.settled(locked)?;
        let begun = (speculative, started, &mut span);
        let outcome = state.step(&shared, aim, budget, begun, (moved, &mut calls));
        drop(state);
        // The arrays for which the moving stream had no room.
        let outcome = outcome.and_then(|()| self.settled(locked).map(drop));
        tell(calls);
        shared.tell();
        outcome
    }
}

impl State {
    /// The input of a search; `None` if there is nothing to search.
    fn survey(&mut self, shared: &Arc<Shared>, aim: Aim<'_>, budget: &Budget) -> Option<Survey> {
        if self.arrays.any_held(&mut self.table) {
            return None;
        }
        let task = Task {
            planner: &self.planner,
            aim,
            budget,
            most_moves: self.mover.most_ranges(),
            timing: None,
        };
        let owners = Moving {
            table: &mut self.table,
            mover: &self.mover.stream.core().timeline,
        };
        drop(shared.lock_drained());
        compact::survey(&shared.core.lock(), &owners, &task, self.kept.as_ref())
    }

    fn step(
        &mut self,
        shared: &Arc<Shared>,
        aim: Aim<'_>,
        budget: &Budget,
        (speculative, started, span): (Option<SpeculativePlan>, Instant, &mut Option<Span>),
        (moved, calls): (&mut Moved, &mut Calls),
    ) -> Result<()> {
        let timeline = Arc::clone(&self.mover.stream.core().timeline);
        let _queueing = Queueing::begin(&timeline);
        shared.awake.check()?;
        self.settle()?;
        if self.arrays.any_held(&mut self.table) {
            moved.finished = true;
            return Ok(());
        }
        let task = Task {
            planner: &self.planner,
            aim,
            budget,
            most_moves: self.mover.most_ranges(),
            timing: span.as_ref(),
        };
        let mut moving = Moving {
            table: &mut self.table,
            mover: &timeline,
        };
        let kept = self.kept.take();
        let ahead = Ahead { kept, speculative };
        let outcome = compact::step(shared, &mut self.mover, &mut moving, &task, ahead)?;
        self.kept = outcome.kept;
        *moved = outcome.moved;
        if outcome.moved.bytes > 0 {
            self.moved(&outcome.ways.by_origin(), calls);
        }
        let error = outcome.error.or(self.settle().err());
        if let Some(log) = &mut self.log {
            if outcome.moved.bytes > 0 && error.is_none() {
                log.add(&outcome.moved, started.elapsed(), span.take());
            } else {
                log.unused(span.take());
            }
        }
        error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
