//! Plans that are searched without holding the pool's lock.
//!
//! A search for a hole takes longer than a request may wait for the pool. So [`survey`] copies the layout
//! under the lock, the search runs without it, and the result is checked under the lock again. If no hole was
//! made or taken meanwhile, the plan applies as it is; otherwise as many of its first batches as are still
//! possible in the present layout. If none is, a short search runs under the lock, so that a step makes
//! progress however busy the pool is.

use super::plan::layout::{Extent, Kind, Layout};
use super::plan::ranges::difference;
use super::plan::{Batch, Move, Plan, Planner};
use super::task::{Aim, KeptPlan, Owners, Task, extent, extents_of};
use crate::pool::Core;

/// The budget of the search under the lock, after a plan made without it no longer applies.
const LOCKED_BUDGET: usize = 16;

/// The input of a search: the pool's layout when it was copied.
pub(crate) struct Survey {
    changes: u64,
    extents: Vec<Extent>,
    planner: Planner,
}

/// The result of a search in a [`Survey`]. Its plan is `None` if no moves reach the aim.
pub(crate) struct SpeculativePlan {
    changes: u64,
    bytes: u64,
    plan: Option<Plan>,
}

/// Copies what a search for `task` needs; `None` if the `kept` rest of an earlier plan still applies.
pub(crate) fn survey(
    core: &Core,
    owners: &dyn Owners,
    task: &Task<'_>,
    kept: Option<&KeptPlan>,
) -> Option<Survey> {
    if kept.is_some_and(|kept| kept.batches(core, owners, task).is_some()) {
        return None;
    }
    Some(Survey {
        changes: core.extents.changes(),
        extents: extents_of(core, owners).collect(),
        planner: task.planner.clone(),
    })
}

impl Survey {
    /// Searches for a hole of `bytes`; needs no lock.
    pub(crate) fn propose(self, aim: Aim<'_>, bytes: u64) -> SpeculativePlan {
        SpeculativePlan {
            changes: self.changes,
            bytes,
            plan: aim.plan_for(&self.planner, self.extents),
        }
    }
}

impl SpeculativePlan {
    /// The part of the plan that still applies, and whether it fits the present layout exactly. `Err` if no
    /// part applies.
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
            // Another thread made a large enough hole: nothing has to move any more.
            return Err(());
        }
        match playable(&mut touched(core, owners, &plan.batches), &plan.batches) {
            0 => Err(()),
            hold => Ok((Some(first_batches(plan, hold)), false)),
        }
    }
}

/// A planner with the budget of a search under the lock.
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

/// The extents that `batches` read or write.
fn touched(core: &Core, owners: &dyn Owners, batches: &[Batch]) -> Layout {
    let mut touches = touches(batches);
    let near = core
        .mapped_extents()
        .filter(|&(begin, bytes, _)| touches(begin, bytes));
    Layout::from_extents(near.map(|mapped| extent(owners, mapped))).unwrap_or_default()
}

/// Returns a function that says whether `batches` read or write any of `bytes` bytes at an offset. Successive
/// calls must have ascending offsets.
fn touches(batches: &[Batch]) -> impl FnMut(u64, u64) -> bool {
    let moves = batches.iter().flat_map(Batch::moves);
    let ends = moves.flat_map(|m| [(m.src, m.src + m.bytes), (m.dst, m.dst + m.bytes)]);
    let mut ranges = difference(ends.collect(), Vec::new())
        .into_iter()
        .peekable();
    move |begin, bytes| {
        while ranges.next_if(|&(_, end)| end <= begin).is_some() {}
        ranges.peek().is_some_and(|&(at, _)| at < begin + bytes)
    }
}

/// Applies `batches` to `layout` in order and returns the number of those that can be applied. Stops at a
/// cycle: the free ranges that its pieces pass through are not checked.
fn playable(layout: &mut Layout, batches: &[Batch]) -> usize {
    let plays = |batch: &&Batch| match batch {
        Batch::Circle { .. } => false,
        Batch::Disjoint(moves) | Batch::Slide { moves, .. } => play(layout, moves),
    };
    batches.iter().take_while(plays).count()
}

/// Applies moves of one batch. Each must find its block, free to move, and a hole at its destination.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::plan::layout::extents_from;
    use crate::device::sim::Rng;

    fn layout(kinds: &str, bytes: &[u64]) -> Layout {
        Layout::from_extents(extents_from(0, kinds, bytes)).expect("ascends")
    }

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn moves_are_played_where_their_blocks_stand_and_their_places_are_free() {
        let plays = |moves: &[Move]| play(&mut layout("m.mf.", &[10, 5, 20, 5, 20]), moves);
        assert!(plays(&[mv(15, 40, 20)]));
        assert!(plays(&[mv(15, 10, 20)]), "over itself");
        assert!(plays(&[mv(0, 40, 10), mv(15, 0, 20)]), "where another was");
        assert!(!plays(&[mv(15, 0, 20)]), "a block stands there");
        assert!(!plays(&[mv(15, 41, 20)]), "beyond what is mapped");
        assert!(!plays(&[mv(15, 40, 19)]), "the block is larger");
        assert!(!plays(&[mv(16, 40, 19)]), "no block begins there");
        assert!(!plays(&[mv(35, 40, 5)]), "the block is fixed");
        assert!(!plays(&[mv(10, 40, 5)]), "a hole is no block");
        assert!(!plays(&[mv(0, 40, 10), mv(15, 45, 20)]), "one of two");
    }

    #[test]
    fn a_plan_is_played_as_far_as_its_first_batch_that_cannot_be() {
        let disjoint = |src, dst| Batch::Disjoint(vec![mv(src, dst, 10)]);
        let slide = Batch::Slide {
            upward: false,
            moves: vec![mv(10, 5, 10)],
        };
        let circle = Batch::Circle {
            moves: Vec::new(),
            pieces: Vec::new(),
        };
        let played = |batches: &[Batch]| playable(&mut layout(".m.m", &[10, 10, 15, 10]), batches);
        let (there, back) = (disjoint(10, 20), disjoint(20, 10));
        assert_eq!(played(&[there.clone(), back.clone(), slide.clone()]), 3);
        assert_eq!(played(&[there.clone(), there.clone(), back.clone()]), 1);
        assert_eq!(played(&[back, there.clone()]), 0);
        assert_eq!(played(&[slide, circle, there]), 1);
    }

    #[test]
    fn the_first_batches_of_a_plan_are_a_plan_of_their_moves_and_bytes() {
        let batches = vec![
            Batch::Disjoint(vec![mv(0, 50, 10), mv(10, 60, 5)]),
            Batch::Disjoint(vec![mv(30, 0, 7)]),
        ];
        let plan = Plan {
            bytes: 22,
            moves: 3,
            hole: Some(30),
            batches,
            ..Plan::default()
        };
        assert_eq!(first_batches(plan.clone(), 2), plan);
        let first = first_batches(plan, 1);
        assert_eq!((first.batches.len(), first.bytes, first.moves), (1, 15, 2));
    }

    #[test]
    fn a_search_under_the_lock_is_no_longer_than_one_beside_it() {
        let few = in_short(&Planner::new().with_budget(2));
        let long = in_short(&Planner::new());
        let same = |a: &Planner, budget: usize| {
            format!("{a:?}") == format!("{:?}", Planner::new().with_budget(budget))
        };
        assert!(same(&few, 2) && same(&long, LOCKED_BUDGET));
    }

    #[test]
    fn what_moves_touch_is_told_from_what_they_do_not() {
        let mut random = Rng::new(3);
        for _ in 0..500 {
            let mut at = 0;
            let mapped: Vec<(u64, u64)> = (0..20)
                .map(|_| {
                    let begin = at + 4 * random.below(2);
                    at = begin + 1 + random.below(9);
                    (begin, at - begin)
                })
                .collect();
            let mut drawn = || mv(random.below(120), random.below(120), 1 + random.below(6));
            let batches = [Batch::Disjoint(vec![drawn(), drawn()])];
            let overlaps = |begin: u64, end: u64, at: u64, bytes| begin < at + bytes && at < end;
            let expected = mapped.iter().filter(|&&(at, bytes)| {
                let mut moves = batches[0].moves().iter();
                moves.any(|m| {
                    overlaps(m.src, m.src + m.bytes, at, bytes)
                        || overlaps(m.dst, m.dst + m.bytes, at, bytes)
                })
            });
            let mut touches = touches(&batches);
            let found = mapped.iter().filter(|&&(at, bytes)| touches(at, bytes));
            assert!(found.eq(expected), "{batches:?} in {mapped:?}");
        }
    }
}
