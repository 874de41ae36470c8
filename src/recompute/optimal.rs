//! The recurrence for the least time and the least memory of every stretch of stages.
//!
//! A *stretch* is the stages from `first` to `last`, given the input of `first` and the gradient of
//! `last`'s output. The loss makes that of the chain's last output just before its backward. A stretch's
//! memory includes everything but that input. It begins in one of two ways:
//!
//! - **save**: `first` runs a saving forward; the stretch after it follows; then the backward of
//!   `first`;
//! - **repeat from `next`**: the stages before `next` run forward and only `next`'s input is kept; the
//!   stretch from `next` follows; then the stretch before it.

use super::{Action, MOST_STAGES, Stage};

/// Most records of the table.
const RECORDS: usize = 1 << 21;

/// Most units of a budget.
const MOST_UNITS: usize = 4096;

/// Fewest units of a budget.
const FEWEST_UNITS: usize = 64;

// The table has 16 bits for a stage.
const _: () = assert!(MOST_STAGES <= u16::MAX as usize);

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

    /// The gradient that is there while a stretch up to `last` runs its forwards: none in the chain's last one.
    fn gradient(&self, last: usize) -> u64 {
        match last + 1 == self.stages.len() {
            true => 0,
            false => self.output(last),
        }
    }

    /// Memory while `first` of a stretch up to `last` runs its saving forward, and while its backward
    /// runs.
    fn to_save(&self, first: usize, last: usize) -> u64 {
        let facts = &self.stages[first];
        let forward = self.gradient(last) + self.units(facts.forward_scratch);
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
        self.gradient(last)
            + input
            + self.output(stage)
            + self.units(self.stages[stage].forward_scratch)
    }
}

/// Index of a stretch in the table: no stretch ends before it begins.
fn stretch(first: usize, last: usize) -> usize {
    last * (last + 1) / 2 + first
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
        let mut table = vec![(0, 0); stretch(0, count)];
        for (first, last) in stretches(count) {
            let rest = match first < last {
                true => chain.saved(first) + table[stretch(first + 1, last)].0,
                false => 0,
            };
            let mut best = (chain.to_save(first, last).max(rest), first);
            let mut running = 0;
            for next in first + 1..=last {
                running = running.max(chain.to_run(next - 1, first, last));
                let behind = chain.input_of(next) + table[stretch(next, last)].0;
                let before = table[stretch(first, next - 1)].0;
                best = best.min((running.max(behind).max(before), next));
            }
            table[stretch(first, last)] = best;
        }
        Self { chain, table }
    }

    /// Its bytes, including the chain's input.
    pub(super) fn budget(&self) -> u64 {
        self.chain.input + self.table[stretch(0, self.chain.stages.len() - 1)].0
    }

    pub(super) fn actions(&self) -> Vec<Action> {
        let count = self.chain.stages.len();
        let mut actions = Vec::new();
        let choice = |first, last, _| self.table[stretch(first, last)].1;
        add(&mut actions, (0, count - 1), 0, &self.chain, &choice);
        actions
    }
}

/// The actions with the least time within `budget` bytes; `None` if none fit, counted in units.
pub(super) fn actions(stages: &[Stage], input_bytes: u64, budget: u64) -> Option<Vec<Action>> {
    let count = stages.len();
    let most = (RECORDS / stretch(0, count)).clamp(FEWEST_UNITS, MOST_UNITS) as u64;
    let memory = budget.checked_sub(input_bytes)?;
    let unit = memory.div_ceil(most).max(1);
    let chain = Chain {
        stages,
        input: input_bytes,
        unit,
    };
    let units = memory / unit;
    let (times, begins) = fill(&chain, units);
    let width = units as usize + 1;
    let at = |first, last, memory: u64| stretch(first, last) * width + memory as usize;
    if times[at(0, count - 1, units)] == NEVER {
        return None;
    }
    let choice = |first, last, memory| usize::from(begins[at(first, last, memory)]);
    let mut actions = Vec::new();
    add(&mut actions, (0, count - 1), units, &chain, &choice);
    Some(actions)
}

/// For each stretch and each memory up to `units`: the least time, and how the stretch begins. In two tables: of pairs,
/// a third would be padding.
fn fill(chain: &Chain<'_>, units: u64) -> (Vec<u64>, Vec<u16>) {
    let count = chain.stages.len();
    let width = units as usize + 1;
    let mut times = vec![NEVER; stretch(0, count) * width];
    let mut begins = vec![0_u16; times.len()];
    let at = |first, last, memory: u64| stretch(first, last) * width + memory as usize;
    for (first, last) in stretches(count) {
        let facts = &chain.stages[first];
        for memory in chain.to_save(first, last)..=units {
            let rest = match first < last {
                true => memory
                    .checked_sub(chain.saved(first))
                    .map_or(NEVER, |left| times[at(first + 1, last, left)]),
                false => 0,
            };
            let own = facts.forward_time + facts.backward_time;
            let here = at(first, last, memory);
            (times[here], begins[here]) = (rest.saturating_add(own), first as u16);
        }
        let (mut running, mut time) = (0, 0_u64);
        for next in first + 1..=last {
            running = running.max(chain.to_run(next - 1, first, last));
            time += chain.stages[next - 1].forward_time;
            for memory in running.max(chain.input_of(next))..=units {
                let behind = times[at(next, last, memory - chain.input_of(next))];
                let before = times[at(first, next - 1, memory)];
                let all = behind.saturating_add(before).saturating_add(time);
                let here = at(first, last, memory);
                if all < times[here] {
                    (times[here], begins[here]) = (all, next as u16);
                }
            }
        }
    }
    (times, begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_place_for_each_stretch_and_no_other() {
        let mut places: Vec<usize> = stretches(30).map(|(a, b)| stretch(a, b)).collect();
        places.sort_unstable();
        assert_eq!(places, (0..stretch(0, 30)).collect::<Vec<_>>());
    }
}
