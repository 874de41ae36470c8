//! Compaction: which live blocks to move, and moving them.

mod apart;
mod circle;
mod cut;
mod execute;
mod gather;
mod join;
mod layout;
mod mover;
#[cfg(feature = "sanitize")]
mod notes;
mod plan;
mod plan_circle;
mod plan_foresight;
mod plan_handles;
mod plan_order;
mod plan_pack;
mod plan_search;
mod plan_stretches;
mod proposal;
mod room;
mod table;

pub use cut::Budget;
pub use execute::Moved;
pub(crate) use execute::{Ahead, Aim, KeptPlan, Owners, Task, layout_with, step};
pub(crate) use join::join;
#[doc(hidden)]
pub use layout::{Extent, Kind, Layout};
pub(crate) use mover::Mover;
pub use plan::Goal;
#[doc(hidden)]
pub use plan::{Batch, CostModel, Move, Plan, Planner};
pub(crate) use proposal::{Proposal, Survey, survey};
#[doc(hidden)]
pub use table::{MOVE_ALIGN, MoveTable, SlideTable};
