//! Moves, batches of moves, and the time they take.

/// A slide is split into two launches where more than this many bytes lie between two moves: its bookkeeping
/// on the device also covers the bytes between its moves.
pub(in crate::compact) const VOID: u64 = 16 << 30;

/// The move of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The block's address.
    pub src: u64,
    /// Its new address.
    pub dst: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Moves that are executed together. Batches are executed one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// No destination overlaps any source: any order, or all at once.
    Disjoint(Vec<Move>),
    /// Moves in ascending order that may overlap, all downwards or all upwards.
    Slide {
        /// Whether destinations lie above their sources.
        upward: bool,
        /// The moves by ascending source, which is ascending destination too.
        moves: Vec<Move>,
    },
    /// A cycle: each block lies where another one goes, so no order moves them whole. They are moved in
    /// pieces, some of them through free bytes elsewhere. In between no block is whole anywhere, so either
    /// all are moved or none.
    Circle {
        /// The move of each block, by ascending source.
        moves: Vec<Move>,
        /// The launches that together do the moves, in this order; none of them is a cycle.
        pieces: Vec<Batch>,
    },
}

impl Batch {
    /// The moves of the batch.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        match self {
            Self::Disjoint(moves) | Self::Slide { moves, .. } | Self::Circle { moves, .. } => moves,
        }
    }

    /// Bytes that the batch copies; for a cycle, the bytes of its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Disjoint(moves) | Self::Slide { moves, .. } => {
                moves.iter().map(|m| m.bytes).sum()
            }
            Self::Circle { pieces, .. } => pieces.iter().map(Self::bytes).sum(),
        }
    }

    /// Launches that the batch takes if their tables are large enough.
    #[must_use]
    pub fn launches(&self) -> usize {
        match self {
            Self::Disjoint(_) | Self::Slide { .. } => 1,
            Self::Circle { pieces, .. } => pieces.len(),
        }
    }

    /// Bytes that a slide passes over: those between its sources, except gaps longer than [`VOID`], where it
    /// is split into launches. 0 for other batches.
    fn passed(&self) -> u64 {
        let Self::Slide { moves, .. } = self else {
            return 0;
        };
        let between = moves
            .windows(2)
            .map(|two| two[1].src - two[0].src - two[0].bytes);
        between.filter(|&bytes| bytes <= VOID).sum()
    }
}

/// The time that moves take: a linear model fitted to measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Bytes moved per nanosecond; a copy reads and writes each byte once.
    pub bytes_per_ns: f64,
    /// Nanoseconds per launch, including the upload of its table.
    pub launch_ns: f64,
    /// Bytes of holes per nanosecond that a slide passes over between its first and last source.
    pub passed_bytes_per_ns: f64,
    /// Nanoseconds of host time per remapped physical handle: the cost of a move that remaps memory instead of
    /// copying it.
    pub handle_ns: f64,
}

impl Default for CostModel {
    /// An H200: 4.1 TB/s read and written together, 10 µs per launch, 1/7 µs per MiB that a slide passes
    /// over, and 52 µs per handle, of which access to the new mapping takes 31 µs and unmapping the old one
    /// 21 µs.
    fn default() -> Self {
        Self {
            bytes_per_ns: 2050.0,
            launch_ns: 10_000.0,
            passed_bytes_per_ns: 7000.0,
            handle_ns: 52_000.0,
        }
    }
}

impl CostModel {
    /// Nanoseconds of device time for `batches`, executed one after the other.
    #[must_use]
    pub fn nanos(&self, batches: &[Batch]) -> f64 {
        let each = batches.iter().map(|batch| {
            batch.launches() as f64 * self.launch_ns
                + batch.bytes() as f64 / self.bytes_per_ns
                + batch.passed() as f64 / self.passed_bytes_per_ns
        });
        each.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mv(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn a_batch_takes_the_time_of_its_launches_its_bytes_and_what_it_passes_over() {
        let row = vec![mv(100, 0, 30), mv(200, 40, 50), mv(VOID + 250, 90, 7)];
        let far = vec![mv(100, 0, 30), mv(VOID + 131, 30, 7)];
        let slide = |moves: &[Move]| Batch::Slide {
            upward: false,
            moves: moves.to_vec(),
        };
        let pieces = vec![Batch::Disjoint(row.clone()), slide(&row), slide(&far)];
        let circle = Batch::Circle {
            moves: far.clone(),
            pieces: pieces.clone(),
        };
        let figures = |batch: &Batch| (batch.launches(), batch.bytes(), batch.passed());
        let of_all = pieces.iter().map(figures).collect::<Vec<_>>();
        assert_eq!(of_all, [(1, 87, 0), (1, 87, 70 + VOID), (1, 37, 0)]);
        assert_eq!(figures(&circle), (3, 211, 0));
        let model = CostModel {
            launch_ns: 1000.0,
            bytes_per_ns: 0.5,
            passed_bytes_per_ns: 0.25,
            ..CostModel::default()
        };
        assert_eq!(model.nanos(&pieces[..1]), 1000.0 + 174.0);
        assert_eq!(model.nanos(&[slide(&row[..2])]), 1000.0 + 160.0 + 280.0);
        assert_eq!(model.nanos(&[pieces[0].clone(), circle]), 1174.0 + 3422.0);
        assert_eq!(model.nanos(&[]), 0.0);
    }
}
