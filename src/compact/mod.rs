//! Compaction: which live blocks to move, and moving them.

mod apart;
mod cut;
mod execute;
mod gather;
mod join;
mod layout;
mod mover;
#[cfg(feature = "sanitize")]
mod notes;
mod plan;
mod plan_handles;
mod plan_order;
mod plan_pack;
mod plan_search;
mod room;
mod table;

pub use cut::Budget;
pub use execute::Moved;
pub(crate) use execute::{Aim, KeptPlan, Owners, Task, layout_of, step};
pub(crate) use join::join;
pub use layout::{Extent, Kind, Layout};
pub(crate) use mover::Mover;
pub use plan::{Batch, CostModel, Goal, Move, Plan, Planner};
pub use table::{MOVE_ALIGN, MoveTable, SlideTable};
