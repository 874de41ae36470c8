//! Compaction: chooses which live blocks to move, and moves them.

mod circle;
mod cut;
mod execute;
mod gather;
mod join;
mod mover;
#[cfg(feature = "sanitize")]
mod notes;
mod plan;
mod proposal;
mod room;
mod table;
mod task;

pub use cut::Budget;
pub use execute::Moved;
pub(crate) use execute::{Ahead, step};
pub(crate) use join::join;
pub(crate) use mover::Mover;
pub use plan::Goal;
#[doc(hidden)]
pub use plan::layout::{Extent, Kind, Layout};
#[doc(hidden)]
pub use plan::{Batch, CostModel, Move, Plan, Planner};
pub(crate) use proposal::{Proposal, Survey, survey};
#[doc(hidden)]
pub use table::{MOVE_ALIGN, MoveTable, SlideTable};
pub(crate) use task::{Aim, KeptPlan, Owners, Task, layout_with};
