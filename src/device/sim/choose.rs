//! The scheduler's strategies for choosing the next stream to run.
//!
//! - **random**: any stream that can run, with equal probability.
//! - **PCT**: every stream has a priority, and of those that can run the highest does. At d steps
//!   drawn in advance, the stream that would run gets a priority below all others. An ordering bug
//!   that needs d + 1 particular orderings shows with a probability of at least 1 / (n * k^d) per
//!   schedule, for n streams and k steps: Burckhardt, Kothari, Musuvathi, Nagarakatti, "A
//!   randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010.
//! - **a path**: the first choices are given; each later one takes the first possibility. All
//!   choices are recorded. [`explore`](super::explore) uses it to walk every path.

use std::sync::{Arc, Mutex};

use super::rng::Rng;
use crate::sync::plain::lock;

/// How the order of operations is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Any stream that can run, with equal probability.
    Random,
    /// By priorities that change at a few steps, drawn in advance.
    Pct {
        /// Number of changes.
        changes: u32,
        /// The steps among which they are drawn: about the number of operations in the program.
        steps: u32,
    },
}

/// One choice: the index taken, and the number of possibilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) taken: u32,
    pub(super) of: u32,
}

/// The choices of one run: a prefix to follow, then those that were taken.
#[derive(Debug, Default)]
pub(super) struct Path {
    pub(super) choices: Vec<Choice>,
    /// The index of the next choice.
    pub(super) at: usize,
}

impl Path {
    fn take(&mut self, of: u32) -> u32 {
        let at = self.at;
        self.at += 1;
        match self.choices.get_mut(at) {
            Some(choice) => {
                choice.of = of;
                choice.taken.min(of - 1)
            }
            None => {
                self.choices.push(Choice { taken: 0, of });
                0
            }
        }
    }
}

#[derive(Debug)]
struct Priorities {
    /// By queue; the highest runs first. Initial values are at or above `changes.len()`.
    of: Vec<u64>,
    /// Steps at which the stream that would run gets a lower priority, in any order.
    changes: Vec<u64>,
}

#[derive(Debug)]
enum Kind {
    Random,
    Pct(Priorities),
    Path(Arc<Mutex<Path>>),
}

/// Chooses the next stream by one of the strategies; see the module documentation.
#[derive(Debug)]
pub(super) struct Chooser {
    rng: Rng,
    kind: Kind,
    /// Of 8 queries whether work is done, the number that let another step run first.
    eagerness: u64,
    steps: u64,
}

impl Chooser {
    pub(super) fn new(strategy: Strategy, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // With eagerness 0 no query runs a step, so that work stays queued for long.
        let eagerness = [0, 2, 4, 7][rng.below(4) as usize];
        let kind = match strategy {
            Strategy::Random => Kind::Random,
            Strategy::Pct { changes, steps } => Kind::Pct(Priorities {
                of: Vec::new(),
                changes: (0..changes)
                    .map(|_| rng.below(u64::from(steps.max(1))))
                    .collect(),
            }),
        };
        Self {
            rng,
            kind,
            eagerness,
            steps: 0,
        }
    }

    pub(super) fn along(path: Arc<Mutex<Path>>) -> Self {
        Self {
            rng: Rng::new(0),
            kind: Kind::Path(path),
            eagerness: 0,
            steps: 0,
        }
    }

    /// Chooses the queue whose next operation runs, from `runnable`, which is not empty.
    pub(super) fn pick(&mut self, runnable: &[usize]) -> usize {
        let step = self.steps;
        self.steps += 1;
        match &mut self.kind {
            Kind::Random | Kind::Path(_) if runnable.len() == 1 => runnable[0],
            Kind::Random => runnable[self.rng.below(runnable.len() as u64) as usize],
            Kind::Path(path) => runnable[lock(path).take(runnable.len() as u32) as usize],
            Kind::Pct(priorities) => {
                let rng = &mut self.rng;
                priorities.pick(runnable, step, rng)
            }
        }
    }

    /// Whether a step runs before a query is answered.
    pub(super) fn goes_on(&mut self) -> bool {
        match &self.kind {
            Kind::Path(path) => lock(path).take(2) == 1,
            _ => self.rng.below(8) < self.eagerness,
        }
    }
}

impl Priorities {
    fn pick(&mut self, runnable: &[usize], step: u64, rng: &mut Rng) -> usize {
        let floor = self.changes.len() as u64;
        let known = runnable.iter().max().map_or(0, |&last| last + 1);
        while self.of.len() < known {
            self.of.push(floor + (rng.next_u64() >> 1));
        }
        for at in 0..self.changes.len() {
            if self.changes[at] == step {
                let falls = self.highest(runnable);
                self.of[falls] = at as u64;
            }
        }
        self.highest(runnable)
    }

    fn highest(&self, runnable: &[usize]) -> usize {
        let best = runnable.iter().copied().max_by_key(|&queue| self.of[queue]);
        best.unwrap_or(0)
    }
}
