//! A compaction that the application runs step by step.

use std::sync::Arc;

use super::registry::Registry;
use crate::compact::{Budget, Goal, Moved};
use crate::error::Result;

/// A compaction in progress: begin, steps with a budget, end.
///
/// Between steps, and after the pass is dropped at any point, every block is valid. Other threads
/// may allocate, free, hold and read meanwhile; the next step plans from the layout that it finds.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::compact::{Budget, Goal, Moved};
/// use warpool::movable::Pass;
///
/// let mut blocks = Vec::new();
/// for _ in 0..8 {
///     blocks.push(pool.alloc_movable::<u8>(&stream, 3 << 20)?);
/// }
/// let mut at = 0;
/// blocks.retain(|_| {
///     at += 1;
///     at % 2 == 0
/// });
/// let mut pass: Pass = pool.begin_compaction(Goal::Full, Budget::bytes(4 << 20))?;
/// while !pass.step()?.finished {} // the application's own work goes between the steps
/// let moved: Moved = pass.end();
/// assert!(moved.blocks > 0);
/// # Ok(())
/// # }
/// ```
pub struct Pass {
    registry: Arc<Registry>,
    goal: Goal,
    budget: Budget,
    sum: Moved,
}

impl Pass {
    pub(super) fn new(registry: Arc<Registry>, goal: Goal, budget: Budget) -> Self {
        Self {
            registry,
            goal,
            budget,
            sum: Moved::default(),
        }
    }

    /// Executes one step; [`Moved::finished`] says whether nothing is left to do.
    ///
    /// # Errors
    /// Any error of the driver; every block is valid at its address, and the pass may continue.
    pub fn step(&mut self) -> Result<Moved> {
        let mut moved = Moved::default();
        let outcome = (self.registry).step(&self.goal, &self.budget, &mut moved);
        self.sum.bytes += moved.bytes;
        self.sum.blocks += moved.blocks;
        self.sum.steps += moved.steps;
        self.sum.launches += moved.launches;
        self.sum.predicted_ns += moved.predicted_ns;
        self.sum.finished = moved.finished;
        self.sum.reached = moved.reached;
        outcome.map(|()| moved)
    }

    /// Ends the pass and returns the sum of its steps, with what failed ones moved.
    #[must_use]
    pub fn end(self) -> Moved {
        self.sum
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Pass({:?}, {:?}, {:?})",
            self.goal, self.budget, self.sum
        )
    }
}
