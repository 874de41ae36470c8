//! Recomputation: which activations of a layered computation to keep, and which to compute again.
//!
//! A training step runs its *stages* forward, and then backward in reverse order. Backward needs
//! results of forward. If they exceed the memory, some are dropped and computed again from an earlier
//! activation. [`plan`] finds the order of work that fits a budget of bytes and takes the least time;
//! [`keep_every`] is the simple rule, for comparison. Both return a [`Plan`]: a list of [`Action`]s
//! that the application executes one by one. This module uses no device.
//!
//! # Example
//! ```
//! use warpool::recompute::{Action, Stage, plan};
//!
//! // twelve equal layers of 64 MiB each, and memory for five of them
//! let layer = Stage { forward_time: 10, backward_time: 20, ..Stage::new(64 << 20) };
//! let stages = vec![layer; 12];
//! let plan = plan(&stages, 64 << 20, 5 * (64 << 20))?;
//! assert!(plan.peak_bytes <= 5 * (64 << 20));
//! for action in plan.actions {
//!     match action {
//!         Action::Forward { stage: _, keep_input: _ } => { /* run it; keep only its output */ }
//!         Action::ForwardSaving { stage: _ } => { /* run it; keep everything that its backward needs */ }
//!         Action::Backward { stage: _ } => { /* run it; drop everything that it needed */ }
//!         _ => {}
//!     }
//! }
//! # Ok::<(), warpool::Error>(())
//! ```
//!
//! # Source
//! O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, *Optimal checkpointing for
//! heterogeneous chains: how to train deep neural networks with limited memory* (2019): the recurrence,
//! which is exact among plans that keep a checkpoint until it is used.

mod optimal;
mod walk;

#[cfg(test)]
mod tests;

use crate::error::{Error, Result};

/// One stage of a chain: its times and its bytes.
///
/// [`Stage::new`] makes one; then set its fields, for example `Stage { forward_time: 10, ..Stage::new(64)
/// }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Time of its forward, in any unit.
    pub forward_time: u64,
    /// Time of its backward, in the same unit.
    pub backward_time: u64,
    /// Bytes of its output, and of its output's gradient.
    pub output_bytes: u64,
    /// Bytes that a saving forward keeps for the backward, including the output and not the input; at
    /// least `output_bytes`.
    pub saved_bytes: u64,
    /// Bytes that its forward needs only while it runs.
    pub forward_scratch: u64,
    /// Bytes that its backward needs only while it runs.
    pub backward_scratch: u64,
}

impl Stage {
    /// A stage with an output of `output_bytes` that saves nothing else. Its forward takes time 1,
    /// its backward 2.
    #[must_use]
    pub fn new(output_bytes: u64) -> Self {
        Self {
            forward_time: 1,
            backward_time: 2,
            output_bytes,
            saved_bytes: output_bytes,
            forward_scratch: 0,
            backward_scratch: 0,
        }
    }
}

/// One step of a [`Plan`]. Stages are counted from 0; the input of stage 0 is the chain's input and
/// is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Run the stage's forward and keep only its output. Drop its input, unless it is kept as a
    /// checkpoint.
    Forward {
        /// The stage.
        stage: usize,
        /// Whether its input is kept.
        keep_input: bool,
    },
    /// Run the stage's forward and keep everything that its backward needs: its input, and what it
    /// saves.
    ForwardSaving {
        /// The stage.
        stage: usize,
    },
    /// Run the stage's backward: it turns the gradient of its output into that of its input. Then
    /// drop what it needed.
    Backward {
        /// The stage.
        stage: usize,
    },
}

/// An order of work. See [`plan`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// The time of all actions, in the stages' unit.
    pub time: u64,
    /// Most bytes kept at once: the chain's input, activations, saved values, gradients and scratch
    /// memory. The gradient of the last output is the loss's: it counts from the last stage's backward on.
    pub peak_bytes: u64,
    forwards: u64,
}

impl Plan {
    fn of(stages: &[Stage], input_bytes: u64, actions: Vec<Action>) -> Result<Self> {
        let walked = walk::walk(stages, input_bytes, &actions)?;
        Ok(Self {
            actions,
            time: walked.time,
            peak_bytes: walked.peak_bytes,
            forwards: walked.forwards,
        })
    }

    /// Number of forwards, including repeated ones.
    #[cfg(test)]
    pub(crate) fn forwards(&self) -> u64 {
        self.forwards
    }
}

fn check(stages: &[Stage], input_bytes: u64) -> Result<()> {
    if stages.is_empty() {
        return Err(Error::invalid("stages", "there is none: give at least one"));
    }
    let too_much = || Error::invalid("stages", "their bytes or times add up to more than 2^62");
    let (mut bytes, mut time) = (input_bytes, 0_u64);
    let repeats = stages.len() as u64;
    for stage in stages {
        if stage.saved_bytes < stage.output_bytes {
            return Err(Error::invalid(
                "stages",
                "one saves fewer bytes than its output has: the output is counted among them",
            ));
        }
        for part in [
            stage.output_bytes,
            stage.output_bytes,
            stage.saved_bytes,
            stage.forward_scratch,
            stage.backward_scratch,
        ] {
            bytes = bytes.checked_add(part).ok_or_else(too_much)?;
        }
        // No forward is run more often than there are stages.
        let times = stage.forward_time.checked_mul(repeats);
        time = times
            .and_then(|forward| forward.checked_add(stage.backward_time))
            .and_then(|both| time.checked_add(both))
            .ok_or_else(too_much)?;
    }
    if bytes.max(time) > 1 << 62 {
        return Err(too_much());
    }
    Ok(())
}

/// Most stages of a chain: larger tables would fill the host's memory.
const MOST_STAGES: usize = 1000;

/// The plans with the least memory for a chain, if it is valid and not too long.
fn least(stages: &[Stage], input_bytes: u64) -> Result<optimal::Least<'_>> {
    check(stages, input_bytes)?;
    if stages.len() > MOST_STAGES {
        let many = format!("{} are more than {MOST_STAGES}", stages.len());
        return Err(Error::invalid("stages", many + ": make one of several"));
    }
    Ok(optimal::Least::of(stages, input_bytes))
}

/// The plan with the least time among those whose [`peak_bytes`](Plan::peak_bytes) are at most
/// `budget_bytes`, for a chain whose input has `input_bytes`.
///
/// Checkpoints are kept until they are used. Bytes are counted in units of 1/64 to 1/4,096 of the
/// budget, the finer the fewer the stages, and each size is rounded up; if the budget has fewer bytes
/// than units, the plan is exact. The time grows with the cube of the number of stages: some
/// milliseconds for 30, a second for 100.
///
/// # Errors
/// [`Error::Invalid`] if there is no stage or more than 1,000, a stage saves less than its output, sums exceed
/// 2^62, or no plan fits; the error then names a budget that is enough.
pub fn plan(stages: &[Stage], input_bytes: u64, budget_bytes: u64) -> Result<Plan> {
    let least = least(stages, input_bytes)?;
    if budget_bytes < least.budget() {
        return Err(Error::invalid(
            "budget_bytes",
            format!(
                "{budget_bytes} bytes are too few for any plan: {} are enough",
                least.budget()
            ),
        ));
    }
    // Sizes are rounded up to units, so a budget that is just enough in bytes may be too small in
    // units.
    let actions = optimal::actions(stages, input_bytes, budget_bytes);
    Plan::of(
        stages,
        input_bytes,
        actions.unwrap_or_else(|| least.actions()),
    )
}

/// The plan that keeps the input of every `stride`-th stage in the forward pass. Before their
/// backward, the stages between two of them run again and save. With a stride of 1 nothing runs
/// again.
///
/// ```
/// use warpool::recompute::{Plan, Stage, keep_every, least_budget};
///
/// let stages = [Stage::new(1 << 20); 9];
/// let third: Plan = keep_every(&stages, 1 << 20, 3)?;
/// let all: Plan = keep_every(&stages, 1 << 20, 1)?;
/// assert!(third.peak_bytes < all.peak_bytes && third.time > all.time);
/// assert!(least_budget(&stages, 1 << 20)? <= third.peak_bytes);
/// # Ok::<(), warpool::Error>(())
///
/// ```
///
/// # Errors
/// [`Error::Invalid`] if the stride is 0; also see [`plan`], except for the budget and the number
/// of stages.
pub fn keep_every(stages: &[Stage], input_bytes: u64, stride: usize) -> Result<Plan> {
    check(stages, input_bytes)?;
    if stride == 0 {
        return Err(Error::invalid("stride", "0 stages: give at least 1"));
    }
    let count = stages.len();
    let last = (count - 1) / stride * stride;
    let mut actions = Vec::new();
    for stage in 0..last {
        actions.push(match stride {
            1 => Action::ForwardSaving { stage },
            _ => Action::Forward {
                stage,
                keep_input: stage % stride == 0,
            },
        });
    }
    let mut end = count;
    for first in (0..=last).rev().step_by(stride) {
        if stride > 1 || first == last {
            actions.extend((first..end).map(|stage| Action::ForwardSaving { stage }));
        }
        actions.extend((first..end).rev().map(|stage| Action::Backward { stage }));
        end = first;
    }
    Plan::of(stages, input_bytes, actions)
}

/// The smallest budget that [`plan`] finds a plan for.
///
/// # Errors
/// See [`plan`], except for the budget.
pub fn least_budget(stages: &[Stage], input_bytes: u64) -> Result<u64> {
    Ok(least(stages, input_bytes)?.budget())
}
