//! Where blocks went that were moved several times.

use std::collections::BTreeMap;

use super::batch::Move;

/// The origin and the present place of each block that was moved, once or several times.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Keyed by the block's present address: its first address, and its bytes.
    origin: BTreeMap<u64, (u64, u64)>,
}

impl Ways {
    /// Adds moves of one batch.
    pub(in crate::compact) fn add(&mut self, moves: &[Move]) {
        let hops: Vec<_> = moves
            .iter()
            .map(|m| {
                let hop = self.origin.remove(&m.src);
                hop.map_or(m.src, |(from, _)| from)
            })
            .collect();
        let hops = hops.into_iter().zip(moves);
        self.origin
            .extend(hops.map(|(from, m)| (m.dst, (from, m.bytes))));
    }

    /// One move per block, from its first to its present address, ascending by the first.
    pub(crate) fn by_origin(&self) -> Vec<Move> {
        let mut ways: Vec<Move> = self
            .origin
            .iter()
            .map(|(&dst, &(src, bytes))| Move { src, dst, bytes })
            .collect();
        ways.sort_unstable_by_key(|way| way.src);
        ways
    }

    /// Blocks moved.
    pub(crate) fn blocks(&self) -> usize {
        self.origin.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(src: u64, dst: u64, bytes: u64) -> Move {
        Move { src, dst, bytes }
    }

    #[test]
    fn a_block_that_is_moved_twice_has_one_way() {
        let mut ways = Ways::default();
        ways.add(&[at(100, 900, 10), at(200, 100, 10)]);
        ways.add(&[at(900, 300, 10)]);
        assert_eq!(ways.by_origin(), [at(100, 300, 10), at(200, 100, 10)]);
    }
}
