//! Executes a list of actions on paper: checks each step, and computes the time and the peak.

use super::{Action, Stage};
use crate::error::{Error, Result};

/// Totals of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Walked {
    pub(super) time: u64,
    pub(super) peak_bytes: u64,
    pub(super) forwards: u64,
}

/// The state between two actions.
struct Kept<'a> {
    stages: &'a [Stage],
    input_bytes: u64,
    /// For each stage: whether its output is kept separately.
    outputs: Vec<bool>,
    /// For each stage: whether everything that its backward needs is kept, except its input.
    saved: Vec<bool>,
    /// Bytes of `outputs` and `saved`.
    held: u64,
    /// The stage whose input's gradient is kept; behind the last one, none is.
    gradient: usize,
}

impl Kept<'_> {
    /// Bytes of a stage's input alone.
    fn input_of(&self, stage: usize) -> u64 {
        match stage {
            0 => self.input_bytes,
            _ => self.stages[stage - 1].output_bytes,
        }
    }

    fn has_input(&self, stage: usize) -> bool {
        stage == 0 || self.outputs[stage - 1] || self.saved[stage - 1]
    }

    /// Sets whether a stage's output is kept separately.
    fn set_output(&mut self, stage: usize, there: bool) {
        let bytes = self.stages[stage].output_bytes;
        set(&mut self.outputs[stage], there, &mut self.held, bytes);
    }

    /// Sets whether a stage is saved.
    fn set_saved(&mut self, stage: usize, there: bool) {
        let bytes = self.stages[stage].saved_bytes;
        set(&mut self.saved[stage], there, &mut self.held, bytes);
    }

    fn bytes(&self) -> u64 {
        let gradient = match self.gradient == self.stages.len() {
            true => 0,
            false => self.input_of(self.gradient),
        };
        self.input_bytes + self.held + gradient
    }
}

/// Sets a flag, and counts its `bytes` in `held`.
fn set(is_there: &mut bool, there: bool, held: &mut u64, bytes: u64) {
    match (std::mem::replace(is_there, there), there) {
        (false, true) => *held += bytes,
        (true, false) => *held -= bytes,
        _ => {}
    }
}

fn refused(action: Action, why: &str) -> Error {
    Error::invalid("actions", format!("{action:?}: {why}"))
}

/// Walks through `actions`.
///
/// # Errors
/// If an action needs something that is not kept, or if work is left at the end.
pub(super) fn walk(stages: &[Stage], input_bytes: u64, actions: &[Action]) -> Result<Walked> {
    let count = stages.len();
    let mut kept = Kept {
        stages,
        input_bytes,
        outputs: vec![false; count],
        saved: vec![false; count],
        held: 0,
        gradient: count,
    };
    let mut walked = Walked::default();
    for &action in actions {
        let during = step(&mut kept, action, &mut walked)?;
        walked.peak_bytes = walked.peak_bytes.max(during).max(kept.bytes());
    }
    if kept.gradient > 0 {
        return Err(Error::invalid(
            "actions",
            "they end before the first stage's backward",
        ));
    }
    Ok(walked)
}

/// Executes one action; returns the bytes kept while it ran.
fn step(kept: &mut Kept<'_>, action: Action, walked: &mut Walked) -> Result<u64> {
    let (Action::Forward { stage, .. }
    | Action::ForwardSaving { stage }
    | Action::Backward { stage }) = action;
    let Some(&facts) = kept.stages.get(stage) else {
        return Err(refused(action, "there is no such stage"));
    };
    if !kept.has_input(stage) {
        return Err(refused(action, "its input is not there"));
    }
    match action {
        Action::Forward { keep_input, .. } => {
            if kept.outputs[stage] {
                return Err(refused(action, "its output is there already"));
            }
            kept.set_output(stage, true);
            let during = kept.bytes() + facts.forward_scratch;
            if !keep_input && stage > 0 {
                kept.set_output(stage - 1, false);
            }
            (walked.time, walked.forwards) =
                (walked.time + facts.forward_time, walked.forwards + 1);
            Ok(during)
        }
        Action::ForwardSaving { .. } => {
            if kept.saved[stage] {
                return Err(refused(action, "it is saved already"));
            }
            kept.set_saved(stage, true);
            (walked.time, walked.forwards) =
                (walked.time + facts.forward_time, walked.forwards + 1);
            Ok(kept.bytes() + facts.forward_scratch)
        }
        Action::Backward { .. } => {
            if kept.gradient != stage + 1 || !kept.saved[stage] {
                return Err(refused(action, "what it needs is not there"));
            }
            // The gradient of the input is written while that of the output is read; the loss makes the last one now.
            let all = kept.input_bytes + kept.held + facts.output_bytes;
            let during = all + kept.input_of(stage) + facts.backward_scratch;
            kept.set_saved(stage, false);
            // The backward of the stage before needs what that stage saved, not its output by
            // itself.
            for gone in [Some(stage), stage.checked_sub(1)].into_iter().flatten() {
                kept.set_output(gone, false);
            }
            kept.gradient = stage;
            walked.time += facts.backward_time;
            Ok(during)
        }
    }
}
