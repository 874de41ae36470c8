//! Moves, what is made of them together, and how long they take.

/// Bytes between two moves of a slide beyond which they are two launches: what a slide keeps books of
/// counts what lies between its moves too.
pub(in crate::compact) const VOID: u64 = 16 << 30;

/// One block's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where the block stands.
    pub src: u64,
    /// Where it goes.
    pub dst: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Moves made together. Batches are made one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// No destination overlaps any source: any order, all at once.
    Disjoint(Vec<Move>),
    /// Moves in ascending order that may overlap, all downwards or all upwards.
    Slide {
        /// Whether destinations lie above their sources.
        upward: bool,
        /// The moves by ascending source, which is ascending destination too.
        moves: Vec<Move>,
    },
    /// Blocks each of which stands where another goes, with no order among them: they are moved in
    /// pieces, some of them by way of free bytes elsewhere. In between no block is whole anywhere,
    /// so they are all moved or none.
    Circle {
        /// From where to where each block goes, by ascending source.
        moves: Vec<Move>,
        /// The launches that bring them there, one after the other; of the other two kinds.
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

    /// Bytes the batch copies: of a circle, those of its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Disjoint(moves) | Self::Slide { moves, .. } => {
                moves.iter().map(|m| m.bytes).sum()
            }
            Self::Circle { pieces, .. } => pieces.iter().map(Self::bytes).sum(),
        }
    }

    /// Launches that make it, if their tables have room for it.
    #[must_use]
    pub fn launches(&self) -> usize {
        match self {
            Self::Disjoint(_) | Self::Slide { .. } => 1,
            Self::Circle { pieces, .. } => pieces.len(),
        }
    }

    /// Bytes the batch passes over: of a slide those between its sources, but for voids, at which it is
    /// cut into launches.
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

/// How long moves take: a line through what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Bytes moved in a nanosecond; a copy reads and writes each once.
    pub bytes_per_ns: f64,
    /// Nanoseconds of each launch, its table's upload included.
    pub launch_ns: f64,
    /// Bytes that a slide passes over in a nanosecond: holes between its first and last source.
    pub passed_bytes_per_ns: f64,
    /// Nanoseconds of the host for each physical handle that is mapped elsewhere: what moving costs
    /// where memory is mapped again and not copied.
    pub handle_ns: f64,
}

impl Default for CostModel {
    /// An H200: 4.1 TB/s read and written together, 10 µs a launch, a seventh of a microsecond for each
    /// MiB that a slide passes over, and 52 µs a handle, of which the access to the new mapping takes
    /// 31 and the end of the old one 21.
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
    /// Nanoseconds of the device for `batches`, made one after the other.
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
