//! The part of a plan that one step executes, within its budget.

use super::plan::{Batch, CostModel, Move, Plan};

/// The fraction of a time budget that the predicted time of a step may take.
const CAUTION: f64 = 0.85;

/// Launches from which on a step takes no further batch: see [`Backlog`](super::backlog::Backlog).
const MANY_LAUNCHES: usize = 128;

/// Most bytes and moves of a step, unless its first move or cycle has more: so its tables have at most 1 MiB of the 4
/// that a stream has room for.
const MOST_BYTES: u64 = 16 << 30;
const MOST_MOVES: usize = 20_000;

/// How much one step may move; no step moves more than 16 GiB or 20,000 blocks, unless one block or cycle has more.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Budget {
    /// Bytes to move. A block is moved whole, so a step moves at least one block or one cycle of blocks.
    pub(crate) bytes: u64,
    /// Bytes that count as moved for each launch beyond the first.
    pub(crate) launch_bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            launch_bytes: 0,
        }
    }
}

impl Budget {
    /// At most `bytes` per step, but at least one block or one cycle of blocks.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// As many moves per step as should take at most `micros` microseconds of device time, by the times
    /// measured on an H200. Plans for 85 % of that, because some steps take longer than predicted.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// use warpool::compact::{Budget, Goal};
    ///
    /// let _weights = pool.alloc_movable::<f32>(&stream, 1000)?;
    /// let mut pass = pool.begin_compaction(Goal::Full, Budget::micros(200.0))?;
    /// while !pass.step()?.finished {} // between steps of training
    /// println!("{} bytes moved", pass.end().bytes);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn micros(micros: f64) -> Self {
        Self::micros_by(micros, &CostModel::default())
    }

    fn micros_by(micros: f64, model: &CostModel) -> Self {
        // A cast takes what is below 0 or no number for 0.
        let bytes = |ns: f64| (ns * CAUTION * model.bytes_per_ns) as u64;
        Self {
            bytes: bytes(micros * 1e3 - model.launch_ns),
            launch_bytes: bytes(model.launch_ns),
        }
    }
}

/// What is left of a step's budget while its moves are chosen.
struct Left {
    bytes: u64,
    moves: usize,
    /// Whether nothing is chosen yet: the first move is taken whatever it costs.
    first: bool,
}

impl Left {
    /// Takes moves in order while they fit.
    fn take<'a>(&mut self, moves: impl Iterator<Item = &'a Move>) -> Vec<Move> {
        let mut taken = Vec::new();
        for &m in moves {
            if !self.first && (m.bytes > self.bytes || self.moves == 0) {
                break;
            }
            self.first = false;
            self.bytes = self.bytes.saturating_sub(m.bytes);
            self.moves = self.moves.saturating_sub(1);
            taken.push(m);
        }
        taken
    }

    /// Takes `moves` moves of `bytes` bytes together, or none of them.
    fn take_all(&mut self, bytes: u64, moves: usize) -> bool {
        let fits = self.first || (bytes <= self.bytes && moves <= self.moves);
        if fits {
            self.first = false;
            self.bytes = self.bytes.saturating_sub(bytes);
            self.moves = self.moves.saturating_sub(moves);
        }
        fits
    }
}

/// The bytes and moves of a step that moves at most `most_moves` blocks, unless its first move or cycle has more.
pub(super) fn most(budget: &Budget, most_moves: usize) -> (u64, usize) {
    (budget.bytes.min(MOST_BYTES), most_moves.min(MOST_MOVES))
}

/// The moves of `plan` that one step executes: whole moves in the plan's order, as far as the budget allows
/// and at most `most_moves`. A cycle is executed in one step, whatever it costs.
pub(super) fn cut(plan: &Plan, budget: &Budget, most_moves: usize) -> Vec<Batch> {
    let (bytes, moves) = most(budget, most_moves);
    let mut left = Left {
        bytes,
        moves,
        first: true,
    };
    let (mut batches, mut launches) = (Vec::new(), 0);
    for (batch, moves) in ahead(plan) {
        if launches >= MANY_LAUNCHES {
            break;
        }
        launches += batch.launches();
        if !left.first {
            let Some(bytes) = left.bytes.checked_sub(budget.launch_bytes) else {
                break;
            };
            left.bytes = bytes;
        }
        let part = match batch {
            Batch::Circle { moves, .. } => {
                let launches = batch.launches().saturating_sub(1) as u64;
                let bytes = batch.bytes() + launches * budget.launch_bytes;
                if !left.take_all(bytes, moves.len()) {
                    break;
                }
                batch.clone()
            }
            Batch::Disjoint(_) => Batch::Disjoint(left.take(moves.iter())),
            Batch::Slide { upward, .. } => {
                // An upward slide starts with its highest move: no other move reads its destination.
                let mut moves = match *upward {
                    true => left.take(moves.iter().rev()),
                    false => left.take(moves.iter()),
                };
                moves.sort_unstable_by_key(|m| m.src);
                Batch::Slide {
                    upward: *upward,
                    moves,
                }
            }
        };
        let whole = part.moves().len() == moves.len();
        if !part.moves().is_empty() {
            batches.push(part);
        }
        if !whole {
            break;
        }
    }
    batches
}

/// The batches that are not executed yet, each with its moves that are not.
fn ahead(plan: &Plan) -> impl Iterator<Item = (&Batch, &[Move])> {
    let (batches, mut done) = plan.done;
    plan.batches[batches..].iter().map(move |batch| {
        let (moves, done) = (batch.moves(), std::mem::take(&mut done));
        match batch {
            Batch::Slide { upward: true, .. } => (batch, &moves[..moves.len() - done]),
            _ => (batch, &moves[done..]),
        }
    })
}

/// What is left of `plan` after the batches `parts`, which [`cut`] returned, are executed.
pub(super) fn rest(mut plan: Plan, parts: &[Batch]) -> Plan {
    let whole =
        |((_, moves), part): &((&Batch, &[Move]), &Batch)| moves.len() == part.moves().len();
    let whole = ahead(&plan).zip(parts).take_while(whole).count();
    let before = if whole == 0 { plan.done.1 } else { 0 };
    let taken = parts.get(whole).map_or(0, |part| part.moves().len());
    // Counted and not removed: a step may execute few moves of very many.
    plan.done = (plan.done.0 + whole, before + taken);
    let made = |sum: fn(&Batch) -> u64| parts.iter().map(sum).sum::<u64>();
    plan.moves -= made(|batch| batch.moves().len() as u64) as usize;
    plan.bytes -= made(Batch::bytes);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    fn plan(batches: Vec<Batch>) -> Plan {
        Plan {
            moves: batches.iter().map(|b| b.moves().len()).sum(),
            bytes: batches.iter().map(Batch::bytes).sum(),
            batches,
            ..Plan::default()
        }
    }

    fn slide(upward: bool) -> Plan {
        let shift = |i: u64| if upward { i * 100 + 50 } else { i * 100 };
        let moves = (1..=4)
            .map(|i| at(i * 100 + if upward { 0 } else { 50 }, shift(i), 40))
            .collect();
        plan(vec![Batch::Slide { upward, moves }])
    }

    #[test]
    fn a_budget_of_time_is_most_of_what_the_model_moves_in_it() {
        let model = CostModel {
            bytes_per_ns: 100.0,
            launch_ns: 4_000.0,
            ..CostModel::default()
        };
        let budget = Budget::micros_by(14.0, &model);
        assert_eq!((budget.bytes, budget.launch_bytes), (850_000, 340_000));
        assert_eq!(
            Budget::micros_by(3.0, &model).bytes,
            0,
            "less than a launch"
        );
        for odd in [0.0, -14.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(Budget::micros(odd).bytes, 0, "{odd}");
        }
        assert_eq!(Budget::micros(f64::INFINITY).bytes, u64::MAX);
        let ordinary = Budget::micros_by(200.0, &CostModel::default());
        assert!(ordinary.bytes > 0 && Budget::micros(200.0) == ordinary);
    }

    #[test]
    fn a_step_moves_at_least_one_block_and_then_what_the_budget_holds() {
        let count = |bytes| {
            cut(&slide(false), &Budget::bytes(bytes), usize::MAX)[0]
                .moves()
                .len()
        };
        assert_eq!([0, 39, 40, 79, 80, 1000].map(count), [1, 1, 1, 1, 2, 4]);
        assert_eq!(
            cut(&slide(false), &Budget::default(), 3)[0].moves().len(),
            3
        );
    }

    #[test]
    fn a_slide_upwards_begins_with_its_highest_block() {
        let part = cut(&slide(true), &Budget::bytes(80), usize::MAX);
        assert_eq!(part[0].moves(), &slide(true).batches[0].moves()[2..]);
    }

    #[test]
    fn a_second_launch_costs_what_the_budget_says() {
        let two = plan(vec![
            Batch::Disjoint(vec![at(0, 1000, 100)]),
            Batch::Disjoint(vec![at(100, 2000, 100)]),
        ]);
        let budget = Budget {
            launch_bytes: 50,
            ..Budget::bytes(249)
        };
        assert_eq!(cut(&two, &budget, usize::MAX).len(), 1);
        let budget = Budget {
            bytes: 250,
            ..budget
        };
        assert_eq!(cut(&two, &budget, usize::MAX).len(), 2);
    }

    #[test]
    fn a_step_takes_as_many_batches_as_a_stream_has_room_for() {
        let batch = |i: u64| Batch::Disjoint(vec![at(2 * i, 2 * i + 1, 1)]);
        let many = plan((0..1000).map(batch).collect());
        let part = cut(&many, &Budget::default(), usize::MAX);
        assert_eq!(part.len(), MANY_LAUNCHES);
        assert_eq!(rest(many, &part).moves, 1000 - MANY_LAUNCHES);
    }

    #[test]
    fn a_step_moves_no_more_than_its_tables_have_room_for() {
        let of = |count: u64, bytes: u64| {
            let moves = (0..count).map(|i| at(2 * i * bytes, (2 * i + 1) * bytes, bytes));
            let part = cut(
                &plan(vec![Batch::Disjoint(moves.collect())]),
                &Budget::default(),
                usize::MAX,
            );
            part.iter().flat_map(Batch::moves).count()
        };
        assert_eq!([of(40, 1 << 30), of(2, 100 << 30)], [16, 1]);
        assert_eq!(of(30_000, 256), MOST_MOVES);
    }

    #[test]
    fn a_first_launch_costs_nothing_beside_its_moves() {
        let one = plan(vec![Batch::Disjoint(vec![
            at(0, 1000, 100),
            at(100, 2000, 150),
        ])]);
        let budget = Budget {
            launch_bytes: 50,
            ..Budget::bytes(250)
        };
        assert_eq!(cut(&one, &budget, usize::MAX), one.batches);
    }

    #[test]
    fn steps_and_what_they_leave_make_up_the_plan() {
        for (upward, budget) in [false, true].into_iter().flat_map(|upward| {
            // In units of blocks of 40: one block per step, two, three, and the whole slide at
            // once.
            [1, 110, 120, 200].map(|budget| (upward, budget))
        }) {
            let disjoint = Batch::Disjoint(vec![at(5000, 7000, 100), at(6000, 8000, 100)]);
            let mut left = plan([slide(upward).batches, vec![disjoint]].concat());
            let mut made = Vec::new();
            let all: Vec<Move> = left
                .batches
                .iter()
                .flat_map(Batch::moves)
                .copied()
                .collect();
            while left.moves > 0 {
                let parts = cut(&left, &Budget::bytes(budget), usize::MAX);
                assert!(!parts.is_empty());
                made.extend(parts.iter().flat_map(Batch::moves).copied());
                left = rest(left, &parts);
                let moves: Vec<_> = ahead(&left).flat_map(|(_, moves)| moves).collect();
                let bytes: u64 = moves.iter().map(|it| it.bytes).sum();
                assert_eq!((moves.len(), bytes), (left.moves, left.bytes), "{budget}");
            }
            assert_eq!((ahead(&left).count(), left.bytes), (0, 0));
            made.sort_unstable_by_key(|m| m.src);
            assert_eq!(made, all);
        }
    }

    #[test]
    fn a_plan_of_very_many_moves_is_cut_without_a_walk_over_them_or_a_copy() {
        let count = 2_000;
        let moves: Vec<Move> = (1..=count as u64)
            .map(|i| at(i * 100 + 50, i * 100, 40))
            .collect();
        for fit in [1, 2, 7] {
            let mut left = Left {
                bytes: 40 * fit as u64,
                moves: usize::MAX,
                first: true,
            };
            let mut looked = 0;
            let taken = left.take(moves.iter().inspect(|_| looked += 1));
            assert_eq!((taken.len(), looked), (fit, fit + 1));
        }
        let upward = false;
        let slide = Batch::Slide {
            upward,
            moves: moves.clone(),
        };
        for batch in [slide, Batch::Disjoint(moves)] {
            let mut left = plan(vec![batch]);
            let place = left.batches[0].moves().as_ptr();
            while left.moves > 0 {
                let parts = cut(&left, &Budget::bytes(40), usize::MAX);
                let [Batch::Slide { moves, .. } | Batch::Disjoint(moves)] = &parts[..] else {
                    panic!("{parts:?}");
                };
                assert!(moves.len() == 1 && moves.capacity() < 10, "all were copied");
                left = rest(left, &parts);
                let all = left.batches[0].moves();
                assert_eq!((all.as_ptr(), all.len()), (place, count));
            }
        }
    }

    #[test]
    fn a_circle_is_made_in_one_step_or_left_to_the_next() {
        let before = Batch::Disjoint(vec![at(5000, 6000, 100)]);
        let swap = Batch::Circle {
            moves: vec![at(0, 100, 100), at(100, 0, 100)],
            pieces: vec![
                Batch::Disjoint(vec![at(0, 900, 100)]),
                Batch::Disjoint(vec![at(100, 0, 100)]),
                Batch::Disjoint(vec![at(900, 100, 100)]),
            ],
        };
        assert_eq!(swap.bytes(), 300);
        let alone = plan(vec![swap.clone()]);
        assert_eq!(
            cut(&alone, &Budget::bytes(1), usize::MAX),
            std::slice::from_ref(&swap)
        );
        let both = plan(vec![before, swap]);
        let made = |bytes| cut(&both, &Budget::bytes(bytes), usize::MAX).len();
        assert_eq!([100, 399, 400].map(made), [1, 1, 2]);
    }
}
