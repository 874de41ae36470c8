//! The pattern of a well-known out-of-memory report (RMM issue 1245), at any scale: on a card of
//! 80 GB, 53.5 GB are live after churn, and a request of 132.9 MB is refused.

use crate::common::BackendOf;
use warpool::device::sim::Rng;
use warpool::device::{Addr, Launch};
use warpool::driver::abi::{self, wp_pattern, wp_pattern_report};
use warpool::movable::Movable;
use warpool::{Device, Pool, PoolBuf, Stream};

/// The card of the report, its live bytes after churn, and the request.
pub const CARD: u64 = 80_000_000_000;
const LIVE: u64 = 53_500_000_000;
const REQUEST: u64 = 132_900_000;

/// A pool full of movable blocks with patterns of their own.
pub struct Churned {
    pub pool: Pool,
    pub stream: Stream,
    pub cap: u64,
    live: Vec<(u64, Movable<u8>)>,
    report: PoolBuf<u64>,
    next: u64,
    random: Rng,
    /// Blocks are so many powers of two larger.
    coarser: u32,
}

impl Churned {
    /// Fills `pool`, which is limited to `cap`, with blocks of log-uniform sizes and frees at random
    /// until as large a part is live as in the report.
    pub fn new(device: &Device, pool: Pool, cap: u64) -> Self {
        Self::coarser(device, pool, cap, 0)
    }

    /// As [`Churned::new`], of blocks `coarser` powers of two larger, and so many fewer.
    pub fn coarser(device: &Device, pool: Pool, cap: u64, coarser: u32) -> Self {
        let stream = device.stream().unwrap();
        // A block of its own: what is free beside a slot is of use to small blocks alone.
        let words = size_of::<wp_pattern_report>().next_multiple_of(256) / 8;
        let mut report = pool.alloc_typed::<u64>(&stream, words).unwrap();
        report.upload(&vec![0; words]).unwrap();
        let mut churned = Self {
            pool,
            stream,
            cap,
            live: Vec::new(),
            report,
            next: 1,
            random: Rng::new(1245),
            coarser,
        };
        churned.fill();
        churned.thin();
        churned
    }

    /// Allocates until no block of the next size is sure to fit without help.
    pub fn fill(&mut self) {
        loop {
            let bytes = self.size();
            if self.live_bytes() + bytes + self.cap / 64 > self.cap {
                return;
            }
            self.alloc(bytes).unwrap();
        }
    }

    /// Frees at random down to the live part of the report.
    pub fn thin(&mut self) {
        self.thin_by(self.live_bytes().saturating_sub(self.scaled(LIVE)));
        self.stream.synchronize().unwrap();
    }

    /// Frees `bytes` at random, or a little more.
    pub fn thin_by(&mut self, bytes: u64) {
        let left = self.live_bytes().saturating_sub(bytes);
        while self.live_bytes() > left {
            let at = self.random.below(self.live.len() as u64) as usize;
            drop(self.live.swap_remove(at));
        }
    }

    /// 2^-20 to 2^-9 of the card, log-uniform, unless coarser.
    fn size(&mut self) -> u64 {
        let octave = self.random.below(11) + u64::from(self.coarser);
        let least = (self.cap >> (20 - octave)).max(1);
        least + self.random.below(least)
    }

    fn scaled(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.cap) / u128::from(CARD)) as u64
    }

    /// Bytes of the request that the report says was refused.
    pub fn request(&self) -> u64 {
        self.scaled(REQUEST)
    }

    /// Bytes in live blocks.
    pub fn live_bytes(&self) -> u64 {
        self.pool.stats().allocated.current
    }

    pub fn alloc(&mut self, bytes: u64) -> warpool::Result<()> {
        let block = self
            .pool
            .alloc_movable::<u8>(&self.stream, bytes as usize)?;
        let seed = self.next << 40;
        self.next += 1;
        self.pattern(&block, seed, abi::WP_STAMP);
        self.live.push((seed, block));
        Ok(())
    }

    fn pattern(&self, block: &Movable<u8>, seed: u64, op: abi::wp_pattern_op) {
        let pinned = block.hold(&self.stream).unwrap();
        let pattern = wp_pattern {
            addr: pinned.addr() as Addr,
            bytes: pinned.view().len() as u64,
            seed,
            edge: 0,
            report: self.report.addr(),
            op,
            pad: 0,
        };
        let backend = self.stream.device().backend();
        // SAFETY: the block is pinned for the stream, and the report lives for longer.
        unsafe { backend.launch(&Launch::Pattern(pattern), self.stream.raw()) }.unwrap();
    }

    /// Compares every live byte with its pattern; gives how many there are.
    pub fn verify(&self) -> u64 {
        for (seed, block) in &self.live {
            self.pattern(block, *seed, abi::WP_VERIFY);
        }
        let found = self.report.download().unwrap();
        assert_eq!(found[1], 0, "corrupt bytes, one at {:#x}", found[2]);
        assert!(found[0] >= self.live.iter().map(|(_, b)| b.len() as u64).sum());
        found[0]
    }
}
