//! Compaction: chooses which live blocks to move, and moves them.

mod backlog;
mod budget;
mod cycle;
mod execute;
mod gather;
mod join;
mod make_room;
mod move_table;
mod mover;
mod plan;
#[cfg(feature = "sanitize")]
mod sanitizer_hooks;
mod speculative_plan;
mod task;

pub(crate) use backlog::{BETWEEN, Backlog};
pub use budget::Budget;
pub use execute::Moved;
pub(crate) use execute::{Ahead, step};
pub(crate) use join::join;
#[doc(hidden)]
pub use move_table::{MOVE_ALIGN, MoveTable, SlideTable};
pub(crate) use mover::Mover;
pub use plan::Goal;
#[doc(hidden)]
pub use plan::layout::{Extent, Kind, Layout};
#[doc(hidden)]
pub use plan::{Batch, CostModel, Move, Plan, Planner};
pub(crate) use speculative_plan::{SpeculativePlan, Survey, survey};
pub(crate) use task::{Aim, KeptPlan, Owners, Task, layout_with};
