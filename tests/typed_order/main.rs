//! Typed memory orders itself: whatever streams safe code uses a buffer on, and whenever it drops it,
//! every operation finds what those before it left.
//!
//! Work is held up by a host call until a test has done what must not overtake it, so that a missing
//! wait gives a wrong result every time.

#[path = "../common/mod.rs"]
mod common;

mod between;
mod devices;
mod free;
mod graphs;
mod kernels;
mod movables;
mod parts;
mod programs;
mod recording;
mod tables;
mod transfers;

use std::time::{Duration, Instant};

use half::f16;
use warpool::convert::{Rounding, convert};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Pool, PoolBuf, PoolConfig, Stream};
use warpool::{View, ViewMut};

/// Elements of a test's buffers.
const LEN: usize = 40_000;

/// A device with a pool and three streams.
struct World {
    pool: Pool,
    home: Stream,
    other: Stream,
    third: Stream,
}

impl World {
    fn new(device: &Device) -> Self {
        // Memory that is still used is waited for, on the device, rather than other memory mapped.
        let config = PoolConfig::default().handles(HandleSize::Granule);
        let config = config.overlap_bytes(0).slack(0.0);
        Self {
            pool: Pool::new(device, config).unwrap(),
            home: device.stream().unwrap(),
            other: device.stream().unwrap(),
            third: device.stream().unwrap(),
        }
    }

    /// A buffer of the home stream, full of `value`.
    fn full(&self, value: f32) -> PoolBuf<f32> {
        let mut buffer = self.pool.alloc_typed::<f32>(&self.home, LEN).unwrap();
        buffer.upload(&vec![value; LEN]).unwrap();
        buffer
    }

    /// As [`World::full`], by work that is queued.
    fn full_later(&self, value: f32) -> PoolBuf<f32> {
        let mut halves = self.pool.alloc_typed::<f16>(&self.third, LEN).unwrap();
        halves.upload(&vec![f16::from_f32(value); LEN]).unwrap();
        let mut buffer = self.pool.alloc_typed::<f32>(&self.home, LEN).unwrap();
        to_single(&self.home, halves.view(), buffer.view_mut());
        buffer
    }

    fn halves(&self) -> PoolBuf<f16> {
        let mut buffer = self.pool.alloc_typed::<f16>(&self.home, LEN).unwrap();
        buffer.upload(&vec![f16::ZERO; LEN]).unwrap();
        buffer
    }

    /// Blocks of the home stream that take whatever small block was freed, filled with zeros by queued
    /// work.
    fn small_blocks(&self) -> Vec<Block> {
        let sizes = (1..=128).flat_map(|n| [16 * n; 4]);
        let blocks = sizes.map(|bytes| self.pool.alloc(&self.home, bytes).unwrap());
        let blocks: Vec<Block> = blocks.collect();
        for block in &blocks {
            common::fill(&self.home, block.addr(), 0, block.bytes());
        }
        blocks
    }

    /// The next owner of the bytes at `addr` on the home stream, filled with 0x5A by queued work.
    fn next_owner(&self, bytes: u64, addr: u64) -> Block {
        let mut others = Vec::new();
        while others.len() < 1000 {
            let block = self.pool.alloc(&self.home, bytes).unwrap();
            if block.addr() == addr {
                common::fill(&self.home, addr, 0x5A, bytes);
                return block;
            }
            others.push(block);
        }
        panic!("other memory than what was freed");
    }
}

/// Lets `stream` do what it can do: ends when it is idle, or after a while if it is held up.
fn settle(stream: &Stream) {
    let until = Instant::now() + Duration::from_millis(40);
    while Instant::now() < until && !stream.is_idle().unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether `stream` gets done with what it was given although others are held up.
fn gets_done(stream: &Stream) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if stream.is_idle().unwrap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn assert_all(found: &[f16], value: f32, what: &str) {
    let wrong = found.iter().filter(|x| x.to_f32() != value).count();
    assert_eq!(wrong, 0, "{what}: {wrong} of {} are wrong", found.len());
}

fn assert_singles(buffer: &PoolBuf<f32>, value: f32) {
    let found = buffer.download().unwrap();
    let wrong = found.iter().filter(|&&x| x != value).count();
    assert_eq!(wrong, 0, "{wrong} of {} are not {value}", found.len());
}

fn assert_untouched(stream: &Stream, block: &Block) {
    let found = common::read(stream, block.addr(), block.bytes() as usize);
    let wrong = found.iter().filter(|&&byte| byte != 0x5A).count();
    assert_eq!(wrong, 0, "{wrong} bytes of the next owner are overwritten");
}

fn to_half(stream: &Stream, src: View<'_, f32>, dst: ViewMut<'_, f16>) {
    convert(stream, src, dst, Rounding::Nearest).unwrap();
}

fn to_single(stream: &Stream, src: View<'_, f16>, dst: ViewMut<'_, f32>) {
    convert(stream, src, dst, Rounding::Nearest).unwrap();
}
