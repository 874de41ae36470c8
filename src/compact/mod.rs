//! Compaction: which live blocks to move, and moving them.

mod execute;
mod layout;
mod plan;
mod plan_handles;
mod plan_order;
mod plan_pack;
mod plan_search;
mod table;

pub use execute::{Budget, Moved};
pub(crate) use execute::{Mover, Owners, layout_of, step};
pub use layout::{Extent, Kind, Layout};
pub use plan::{Batch, CostModel, Goal, Move, Plan, Planner};
pub use table::{MOVE_ALIGN, MoveTable, SlideTable};
