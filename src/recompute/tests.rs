use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use proptest::prelude::*;

use super::walk::walk;
use super::*;

/// The state between two actions: one bit per stage for its output, and one for what it saved; the
/// gradient; and the checkpoints that must be kept until they are used.
type Position = (u32, u32, usize, u32);

/// The least time of any order of actions within the budget, found by trying all of them.
///
/// Checkpoints are kept until they are used, like those of a plan. Independent of the recurrence: it
/// knows only what each action needs and leaves.
fn least_time(stages: &[Stage], input: u64, budget: u64) -> Option<u64> {
    let count = stages.len();
    let input_of = |stage: usize| {
        if stage == 0 {
            input
        } else {
            stages[stage - 1].output_bytes
        }
    };
    let kept = |(outputs, saved, gradient, _): Position| {
        let parts = (0..count).map(|at| {
            u64::from(outputs >> at & 1) * stages[at].output_bytes
                + u64::from(saved >> at & 1) * stages[at].saved_bytes
        });
        // The loss's gradient is made for the last stage's backward.
        let gradient = if gradient == count {
            0
        } else {
            input_of(gradient)
        };
        input + parts.sum::<u64>() + gradient
    };
    let mut queue = BinaryHeap::from([Reverse((0_u64, (0, 0, count, 0)))]);
    let mut known: HashMap<Position, u64> = HashMap::new();
    while let Some(Reverse((time, position))) = queue.pop() {
        let (outputs, saved, gradient, held) = position;
        if gradient == 0 {
            return Some(time);
        }
        if *known.entry(position).or_insert(time) < time || kept(position) > budget {
            continue;
        }
        let has = |stage: usize| stage == 0 || (outputs | saved) >> (stage - 1) & 1 == 1;
        let mut go = |during: u64, next: Position, costs: u64| {
            let then = time + costs;
            if during <= budget && known.get(&next).is_none_or(|&best| then < best) {
                known.insert(next, then);
                queue.push(Reverse((then, next)));
            }
        };
        for stage in (0..gradient).filter(|&stage| has(stage)) {
            let facts = stages[stage];
            let bit = 1 << stage;
            let before = if stage == 0 { 0 } else { 1 << (stage - 1) };
            if outputs & bit == 0 {
                let made = (outputs | bit, saved, gradient, held | before & outputs);
                let during = kept(made) + facts.forward_scratch;
                go(during, made, facts.forward_time);
                if before & outputs & !held != 0 {
                    let moved = ((outputs | bit) & !before, saved, gradient, held);
                    go(during, moved, facts.forward_time);
                }
            }
            if saved & bit == 0 {
                let made = (outputs, saved | bit, gradient, held | before & outputs);
                go(kept(made) + facts.forward_scratch, made, facts.forward_time);
            }
            if stage + 1 == gradient && saved & bit != 0 {
                let gone = !(bit | before);
                let next = (outputs & gone, saved & !bit, stage, held & gone);
                let own = if gradient == count {
                    facts.output_bytes
                } else {
                    0
                };
                let during = kept(position) + own + input_of(stage) + facts.backward_scratch;
                go(during, next, facts.backward_time);
            }
        }
    }
    None
}

/// The most bytes at once of an application that executes `actions`: it allocates each value as it is made, and frees
/// it as the action says. Independent of the walk: it knows values by name, and adds them all up.
fn played(stages: &[Stage], input: u64, actions: &[Action]) -> u64 {
    #[derive(PartialEq, Eq, Hash)]
    enum Value {
        Output(usize),
        Saved(usize),
        GradientOfInput(usize),
        Scratch,
    }
    use Value::{GradientOfInput, Output, Saved, Scratch};
    let (last, mut peak) = (stages.len() - 1, input);
    let mut there: HashMap<Value, u64> = HashMap::new();
    let mut allocate = |there: &mut HashMap<_, _>, value, bytes| {
        assert!(there.insert(value, bytes).is_none(), "made twice");
        peak = peak.max(input + there.values().sum::<u64>());
    };
    for &action in actions {
        match action {
            Action::Forward { stage, keep_input } => {
                allocate(&mut there, Scratch, stages[stage].forward_scratch);
                allocate(&mut there, Output(stage), stages[stage].output_bytes);
                if stage > 0 && !keep_input {
                    there.remove(&Output(stage - 1));
                }
            }
            Action::ForwardSaving { stage } => {
                allocate(&mut there, Scratch, stages[stage].forward_scratch);
                allocate(&mut there, Saved(stage), stages[stage].saved_bytes);
            }
            Action::Backward { stage } => {
                if stage == last {
                    // Of the loss, which needs the last output.
                    let bytes = stages[last].output_bytes;
                    allocate(&mut there, GradientOfInput(last + 1), bytes);
                }
                let bytes = stage
                    .checked_sub(1)
                    .map_or(input, |it| stages[it].output_bytes);
                allocate(&mut there, Scratch, stages[stage].backward_scratch);
                allocate(&mut there, GradientOfInput(stage), bytes);
                let gone = [Saved(stage), Output(stage), GradientOfInput(stage + 1)];
                gone.iter().for_each(|it| _ = there.remove(it));
                if stage > 0 {
                    there.remove(&Output(stage - 1));
                }
            }
        }
        there.remove(&Scratch);
    }
    peak
}

prop_compose! {
    fn any_stage()(output in 0_u64..5, more in 0_u64..4, forward in 1_u64..6, backward in 1_u64..6,
                   scratch in (0_u64..3, 0_u64..3)) -> Stage {
        Stage {
            forward_time: forward,
            backward_time: backward,
            output_bytes: output,
            saved_bytes: output + more,
            forward_scratch: scratch.0,
            backward_scratch: scratch.1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_takes_the_least_time_of_all_orders_within_its_budget(
        stages in prop::collection::vec(any_stage(), 1..5), input in 0_u64..4, budget in 0_u64..40
    ) {
        let best = least_time(&stages, input, budget);
        match plan(&stages, input, budget) {
            Ok(plan) => {
                prop_assert!(plan.peak_bytes <= budget);
                prop_assert_eq!(Some(plan.time), best);
            }
            Err(_) => prop_assert_eq!(best, None),
        }
    }

    #[test]
    fn the_peak_of_a_plan_is_that_of_an_application_that_executes_it(
        stages in prop::collection::vec(any_stage(), 1..9), input in 0_u64..4,
        more in 0_u64..20, stride in 1_usize..9
    ) {
        let budget = least_budget(&stages, input).unwrap() + more;
        for plan in [plan(&stages, input, budget), keep_every(&stages, input, stride)] {
            let plan = plan.unwrap();
            prop_assert_eq!(plan.peak_bytes, played(&stages, input, &plan.actions));
        }
    }

    #[test]
    fn the_least_budget_has_a_plan_and_one_byte_less_has_none(
        stages in prop::collection::vec(any_stage(), 1..9), input in 0_u64..4
    ) {
        let least = least_budget(&stages, input).unwrap();
        prop_assert!(plan(&stages, input, least).unwrap().peak_bytes <= least);
        if least > 0 {
            prop_assert!(plan(&stages, input, least - 1).is_err());
        }
    }

    #[test]
    fn large_sizes_are_rounded_so_that_the_budget_holds(
        stages in prop::collection::vec(any_stage(), 2..20), part in 0_u64..=100
    ) {
        let scale = (1 << 30) + 12_347;
        let large: Vec<Stage> = stages.iter().map(|stage| Stage {
            output_bytes: stage.output_bytes * scale,
            saved_bytes: stage.saved_bytes * scale,
            forward_scratch: stage.forward_scratch * scale,
            backward_scratch: stage.backward_scratch * scale,
            ..*stage
        }).collect();
        let (least, most) = (least_budget(&large, scale).unwrap(), keep_every(&large, scale, 1).unwrap());
        let budget = least + (most.peak_bytes.saturating_sub(least)) / 100 * part;
        let plan = plan(&large, scale, budget).unwrap();
        prop_assert!(plan.peak_bytes <= budget);
        prop_assert!(plan.time >= most.time);
    }

    #[test]
    fn every_stride_does_each_backward_once(
        stages in prop::collection::vec(any_stage(), 1..12), stride in 1_usize..14
    ) {
        let plan = keep_every(&stages, 3, stride).unwrap();
        let backward = |action: &&Action| matches!(action, Action::Backward { .. });
        prop_assert_eq!(plan.actions.iter().filter(backward).count(), stages.len());
        let again = plan.forwards() as usize - stages.len();
        let kept = stages.len() - (stages.len() - 1) / stride * stride;
        prop_assert_eq!(again, if stride == 1 { 0 } else { stages.len() - kept });
    }
}

#[test]
fn the_optimal_plan_is_no_slower_than_every_stride_of_its_peak() {
    let stages: Vec<Stage> = (0..24)
        .map(|at| Stage {
            saved_bytes: (30 + at % 3 * 40).max(8 + at % 5 * 7),
            forward_time: 5 + at % 4,
            ..Stage::new(8 + at % 5 * 7)
        })
        .collect();
    let mut faster = 0;
    for stride in 1..24 {
        let plain = keep_every(&stages, 10, stride).unwrap();
        let best = plan(&stages, 10, plain.peak_bytes).unwrap();
        assert!(best.time <= plain.time && best.peak_bytes <= plain.peak_bytes);
        faster += usize::from(best.time < plain.time);
    }
    assert!(
        faster > 10,
        "only {faster} strides were worse than the optimum"
    );
}

#[test]
fn memory_below_the_least_is_refused_with_the_least() {
    let stages = [Stage::new(4); 6];
    let least = least_budget(&stages, 4).unwrap();
    let text = plan(&stages, 4, least - 1).unwrap_err().to_string();
    assert!(text.contains(&format!("{least} are enough")), "{text}");
    assert_eq!(plan(&stages, 4, u64::MAX).unwrap().forwards(), 6);
}

#[test]
fn what_is_no_chain_is_refused() {
    let odd = Stage {
        saved_bytes: 1,
        ..Stage::new(2)
    };
    let large = Stage::new(1 << 61);
    for stages in [
        &[][..],
        &[odd],
        &[large; 4],
        &[Stage {
            forward_time: u64::MAX,
            ..Stage::new(1)
        }],
    ] {
        assert!(plan(stages, 1, 100).is_err() && least_budget(stages, 1).is_err());
        assert!(keep_every(stages, 1, 2).is_err());
    }
    assert!(keep_every(&[Stage::new(1)], 1, 0).is_err());
}

#[test]
fn a_chain_that_no_memory_has_the_tables_of_is_refused_and_may_be_kept_by_stride() {
    let stages = vec![Stage::new(8); 100_000];
    for stages in [&stages[..], &stages[..MOST_STAGES + 1]] {
        let words = plan(stages, 8, 1 << 40).unwrap_err().to_string();
        assert!(words.contains("are more than 1000"), "{words}");
        assert!(least_budget(stages, 8).is_err());
    }
    assert!(keep_every(&stages[..MOST_STAGES + 1], 8, 100).is_ok());
}

#[test]
fn actions_that_need_what_is_not_there_are_refused() {
    let stages = [Stage::new(1); 2];
    let refused = |actions: &[Action]| walk(&stages, 1, actions).is_err();
    assert!(refused(&[]));
    assert!(refused(&[Action::Forward {
        stage: 1,
        keep_input: true
    }]));
    assert!(refused(&[
        Action::ForwardSaving { stage: 0 },
        Action::Backward { stage: 0 }
    ]));
    assert!(refused(&[Action::ForwardSaving { stage: 2 }]));
    let saved = Action::ForwardSaving { stage: 0 };
    assert!(refused(&[saved, saved]));
}

#[test]
fn a_chain_of_very_many_stages_is_planned_by_the_plain_rule_soon() {
    let begun = std::time::Instant::now();
    let stages = vec![Stage::new(1 << 10); 100_000];
    for stride in [1, 300, 100_000] {
        let plan = keep_every(&stages, 1 << 10, stride).expect("a plan");
        assert!(plan.peak_bytes > 0);
    }
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}
