//! A pool of which a replay makes a fraction of the blocks movable.

use std::cell::Cell;

use super::subject::Subject;
use crate::device::{Addr, Stream};
use crate::error::Result;
use crate::movable::Movable;
use crate::pool::{Block, Pool};

/// The fraction of a replay's blocks that may be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share(u32);

impl Share {
    /// No block.
    pub const NONE: Self = Self(0);
    /// Every block.
    pub const ALL: Self = Self(Self::WHOLE);
    const WHOLE: u32 = 1_000_000;

    /// A fraction between 0 and 1, rounded to a millionth; `None` for anything else.
    #[must_use]
    pub fn of(part: f64) -> Option<Self> {
        let inside = (0.0..=1.0).contains(&part);
        inside.then(|| Self((part * f64::from(Self::WHOLE)).round() as u32))
    }

    /// As a number between 0 and 1.
    #[must_use]
    pub fn part(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }
}

/// A pool, and the random generator that chooses which blocks may be moved.
pub(super) struct Mixed {
    pool: Pool,
    share: Share,
    /// State of the generator: the same seed chooses the same blocks on every device.
    random: Cell<u64>,
}

impl Mixed {
    pub(super) fn new(pool: Pool, share: Share, seed: u64) -> Self {
        Self {
            pool,
            share,
            random: Cell::new(seed),
        }
    }

    /// Whether the next block may be moved (splitmix64).
    fn draw(&self) -> bool {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        word % u64::from(Share::WHOLE) < u64::from(self.share.0)
    }
}

/// A block with a fixed address, or one that may be moved.
pub(super) enum MixedBlock {
    Fixed(Block),
    Movable(Movable<u8>),
}

impl Subject for Mixed {
    type Block = MixedBlock;

    #[inline]
    fn alloc(&self, stream: &Stream, bytes: u64) -> Result<MixedBlock> {
        if self.draw() {
            let block = self.pool.alloc_movable(stream, bytes as usize);
            return block.map(MixedBlock::Movable);
        }
        self.pool.alloc(stream, bytes).map(MixedBlock::Fixed)
    }

    fn with_addr(
        block: &MixedBlock,
        stream: &Stream,
        work: impl FnOnce(Addr) -> Result<()>,
    ) -> Result<()> {
        match block {
            MixedBlock::Fixed(block) => work(block.addr()),
            MixedBlock::Movable(block) => work(block.hold(stream)?.addr()),
        }
    }

    #[inline]
    fn free(&self, block: MixedBlock, _: &Stream) -> Result<()> {
        drop(block);
        Ok(())
    }

    #[inline]
    fn free_on(&self, block: MixedBlock, stream: &Stream) -> Result<()> {
        match block {
            MixedBlock::Fixed(block) => block.free_on(stream),
            MixedBlock::Movable(block) => block.free_on(stream),
        }
    }

    fn peak_reserved_bytes(&self) -> Result<u64> {
        self.pool.peak_reserved_bytes()
    }

    fn largest_hole_bytes(&self) -> u64 {
        self.pool.largest_hole_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::pool::PoolConfig;

    fn drawn(share: Share, seed: u64) -> Vec<bool> {
        let device = Device::host().expect("host");
        let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
        let mixed = Mixed::new(pool, share, seed);
        (0..10_000).map(|_| mixed.draw()).collect()
    }

    #[test]
    fn a_share_of_blocks_is_drawn_and_the_same_for_the_same_seed() {
        let count = |share, seed| drawn(share, seed).iter().filter(|&&one| one).count();
        assert_eq!(count(Share::NONE, 1), 0);
        assert_eq!(count(Share::ALL, 1), 10_000);
        let half = Share::of(0.5).expect("a part");
        assert!((4_800..5_200).contains(&count(half, 1)));
        assert_eq!(drawn(half, 7), drawn(half, 7));
        assert_ne!(drawn(half, 7), drawn(half, 8));
    }

    #[test]
    fn a_share_is_a_part_of_one() {
        assert_eq!(Share::of(0.25).map(Share::part), Some(0.25));
        assert_eq!(
            (Share::of(0.0), Share::of(1.0)),
            (Some(Share::NONE), Some(Share::ALL))
        );
        assert_eq!(
            [Share::of(-0.1), Share::of(1.1), Share::of(f64::NAN)],
            [None; 3]
        );
    }
}
