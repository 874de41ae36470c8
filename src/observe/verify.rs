//! How much of a replay is verified.

/// Bytes at each end of a block that [`Verify::Edges`] covers.
pub const EDGE_BYTES: u64 = 4096;

/// How much of each block is stamped and verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum Verify {
    /// Every byte.
    Full,
    /// The first and the last [`EDGE_BYTES`] bytes.
    Edges,
    /// Nothing.
    Off,
}

impl Verify {
    /// `full`, `edges` or `off`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Edges => "edges",
            Self::Off => "off",
        }
    }

    /// Number of a block's bytes to verify.
    pub(super) fn owed(self, bytes: u64) -> u64 {
        match self {
            Self::Full => bytes,
            Self::Edges => bytes.min(2 * EDGE_BYTES),
            Self::Off => 0,
        }
    }
}
