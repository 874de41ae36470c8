//! The recurrence for the least time and the least memory of every stretch of stages.
//!
//! A *stretch* is the stages from `first` to `last`, given the input of `first` and the gradient of
//! `last`'s output. Its memory includes everything but that input. It begins in one of two ways:
//!
//! - **save**: `first` runs a saving forward; the stretch after it follows; then the backward of
//!   `first`;
//! - **repeat from `next`**: the stages before `next` run forward and only `next`'s input is kept; the
//!   stretch from `next` follows; then the stretch before it.

use super::{Action, Stage};

/// Most records of the table.
const RECORDS: usize = 1 << 21;

/// Most units of a budget.
const MOST_UNITS: usize = 4096;

/// Fewest units of a budget.
const FEWEST_UNITS: usize = 64;

/// The time if there is no plan.
const NEVER: u64 = u64::MAX;

/// The sizes of a chain, in units.
struct Chain<'a> {
    stages: &'a [Stage],
    input: u64,
    unit: u64,
}

impl Chain<'_> {
    fn units(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit)
    }

    fn output(&self, stage: usize) -> u64 {
        self.units(self.stages[stage].output_bytes)
    }

    fn saved(&self, stage: usize) -> u64 {
        self.units(self.stages[stage].saved_bytes)
    }

    fn input_of(&self, stage: usize) -> u64 {
        match stage {
            0 => self.units(self.input),
            _ => self.output(stage - 1),
        }
    }

    /// Memory while `first` of a stretch up to `last` runs its saving forward, and while its backward
    /// runs.
    fn to_save(&self, first: usize, last: usize) -> u64 {
        let facts = &self.stages[first];
        let forward = self.output(last) + self.units(facts.forward_scratch);
        let backward =
            self.output(first) + self.input_of(first) + self.units(facts.backward_scratch);
        self.saved(first) + forward.max(backward)
    }

    /// Memory while `stage` runs a plain forward, in a stretch from `first` to `last`.
    fn to_run(&self, stage: usize, first: usize, last: usize) -> u64 {
        let input = if stage == first {
            0
        } else {
            self.input_of(stage)
        };
        self.output(last)
            + input
            + self.output(stage)
            + self.units(self.stages[stage].forward_scratch)
    }
}

/// Index of a stretch in the table.
fn stretch(count: usize, first: usize, last: usize) -> usize {
    first * count + last
}

/// All stretches, shorter ones first.
fn stretches(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |length| (0..count - length).map(move |first| (first, first + length)))
}

/// Adds the actions of a stretch. `choice` returns how a stretch begins: its own first stage to save,
/// otherwise the stage to repeat from.
fn add(
    actions: &mut Vec<Action>,
    (first, last): (usize, usize),
    memory: u64,
    chain: &Chain<'_>,
    choice: &impl Fn(usize, usize, u64) -> usize,
) {
    let next = choice(first, last, memory);
    if next == first {
        actions.push(Action::ForwardSaving { stage: first });
        if first < last {
            let left = memory.saturating_sub(chain.saved(first));
            add(actions, (first + 1, last), left, chain, choice);
        }
        actions.push(Action::Backward { stage: first });
        return;
    }
    for stage in first..next {
        let keep_input = stage == first;
        actions.push(Action::Forward { stage, keep_input });
    }
    let left = memory.saturating_sub(chain.input_of(next));
    add(actions, (next, last), left, chain, choice);
    add(actions, (first, next - 1), memory, chain, choice);
}

/// The plan with the least memory, regardless of its time.
pub(super) struct Least<'a> {
    chain: Chain<'a>,
    /// For each stretch: its bytes, and how it begins.
    table: Vec<(u64, usize)>,
}

impl<'a> Least<'a> {
    pub(super) fn of(stages: &'a [Stage], input_bytes: u64) -> Self {
        let count = stages.len();
        let chain = Chain {
            stages,
            input: input_bytes,
            unit: 1,
        };
        let mut table = vec![(0, 0); count * count];
        for (first, last) in stretches(count) {
            let rest = match first < last {
                true => chain.saved(first) + table[stretch(count, first + 1, last)].0,
                false => 0,
            };
            let mut best = (chain.to_save(first, last).max(rest), first);
            let mut running = 0;
            for next in first + 1..=last {
                running = running.max(chain.to_run(next - 1, first, last));
                let behind = chain.input_of(next) + table[stretch(count, next, last)].0;
                let before = table[stretch(count, first, next - 1)].0;
                best = best.min((running.max(behind).max(before), next));
            }
            table[stretch(count, first, last)] = best;
        }
        Self { chain, table }
    }

    /// Its bytes, including the chain's input.
    pub(super) fn budget(&self) -> u64 {
        self.chain.input + self.table[self.chain.stages.len() - 1].0
    }

    pub(super) fn actions(&self) -> Vec<Action> {
        let count = self.chain.stages.len();
        let mut actions = Vec::new();
        let choice = |first, last, _| self.table[stretch(count, first, last)].1;
        add(&mut actions, (0, count - 1), 0, &self.chain, &choice);
        actions
    }
}

/// The actions with the least time within `budget` bytes; `None` if none fit, counted in units.
pub(super) fn actions(stages: &[Stage], input_bytes: u64, budget: u64) -> Option<Vec<Action>> {
    let count = stages.len();
    let most = (RECORDS / (count * (count + 1) / 2)).clamp(FEWEST_UNITS, MOST_UNITS) as u64;
    let memory = budget.checked_sub(input_bytes)?;
    let unit = memory.div_ceil(most).max(1);
    let chain = Chain {
        stages,
        input: input_bytes,
        unit,
    };
    let units = memory / unit;
    let table = fill(&chain, units);
    let width = units as usize + 1;
    let choice = |first, last, memory: u64| {
        let record = table[stretch(count, first, last) * width..][memory as usize];
        record.1 as usize
    };
    if table[(count - 1) * width + units as usize].0 == NEVER {
        return None;
    }
    let mut actions = Vec::new();
    add(&mut actions, (0, count - 1), units, &chain, &choice);
    Some(actions)
}

/// For each stretch and each memory up to `units`: the least time, and how the stretch begins.
fn fill(chain: &Chain<'_>, units: u64) -> Vec<(u64, u32)> {
    let count = chain.stages.len();
    let width = units as usize + 1;
    let mut table = vec![(NEVER, 0_u32); count * count * width];
    let at = |first, last, memory: u64| stretch(count, first, last) * width + memory as usize;
    for (first, last) in stretches(count) {
        let facts = &chain.stages[first];
        for memory in chain.to_save(first, last)..=units {
            let rest = match first < last {
                true => memory
                    .checked_sub(chain.saved(first))
                    .map_or(NEVER, |left| table[at(first + 1, last, left)].0),
                false => 0,
            };
            let own = facts.forward_time + facts.backward_time;
            table[at(first, last, memory)] = (rest.saturating_add(own), first as u32);
        }
        let (mut running, mut time) = (0, 0_u64);
        for next in first + 1..=last {
            running = running.max(chain.to_run(next - 1, first, last));
            time += chain.stages[next - 1].forward_time;
            for memory in running.max(chain.input_of(next))..=units {
                let behind = table[at(next, last, memory - chain.input_of(next))].0;
                let before = table[at(first, next - 1, memory)].0;
                let all = behind.saturating_add(before).saturating_add(time);
                let best = &mut table[at(first, last, memory)];
                if all < best.0 {
                    *best = (all, next as u32);
                }
            }
        }
    }
    table
}
