//! The id of a movable block.

/// A movable block as a plain value: its index in the pool's table, and a generation that counts
/// the uses of that index. Each pool counts from a different number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MovableId {
    /// Index in the table.
    pub index: u32,
    /// Distinguishes successive blocks with the same index, and blocks of different pools, so that
    /// a stale or foreign id is detected.
    pub generation: u32,
}
