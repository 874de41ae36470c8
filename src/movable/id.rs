//! What names a movable block.

/// A movable block as a plain value: its place in the pool's table and how often that place was used,
/// counted from a number that each pool has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MovableId {
    /// Place in the table.
    pub index: u32,
    /// Tells one use of the place from the next, and one pool's from another's: a stale or foreign
    /// handle is caught by it.
    pub generation: u32,
}
