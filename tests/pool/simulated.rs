//! The pool on the simulated device: random programs under adversarial schedules.
//!
//! Every block is stamped when it is allocated, checked whenever it is used and when it is freed,
//! by kernels in stream order; after every step the pool's books are checked, and at the end
//! nothing may be left. `WARPOOL_SIM_CASES` sets the number of seeds.

use crate::common;

use crate::common::BackendOf;
use std::sync::Arc;

use common::hunt::{cases, hunt};
use common::sanitized::Sanitized;
use warpool::device::sim::{Rng, SimConfig, Strategy};
use warpool::device::{HandleCounts, Launch};
use warpool::driver::abi;
use warpool::pool::HandleSize;
use warpool::{Block, Device, Event, Pool, PoolConfig, Stream};

const MIB: u64 = 1 << 20;

/// A step; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Alloc {
        stream: usize,
        bytes: u64,
    },
    Free {
        block: usize,
    },
    /// Hands a block to a stream, which frees it.
    FreeOn {
        block: usize,
        stream: usize,
    },
    /// Reads a block on another stream and declares it.
    Use {
        block: usize,
        stream: usize,
    },
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        event: usize,
        stream: usize,
    },
    WaitStream {
        stream: usize,
        other: usize,
    },
    Sync {
        stream: usize,
    },
    SyncEvent {
        event: usize,
    },
    Query {
        stream: usize,
    },
    Trim {
        keep: u64,
    },
    /// Lets go of a stream and makes another.
    Renew {
        stream: usize,
    },
}

const STREAMS: usize = 3;
const EVENTS: usize = 2;

fn bytes(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 | 1 => 1 + rng.below(4096),
        2 | 3 => 1 + rng.below(MIB),
        4 | 5 => 1 + rng.below(3 * MIB),
        6 => (1 + rng.below(4)) * 2 * MIB,
        _ => 1 + rng.below(9 * MIB),
    }
}

fn op(rng: &mut Rng) -> Op {
    let (block, stream) = (rng.below(64) as usize, rng.below(STREAMS as u64) as usize);
    let (event, other) = (
        rng.below(EVENTS as u64) as usize,
        rng.below(STREAMS as u64) as usize,
    );
    match rng.below(40) {
        0..14 => Op::Alloc {
            stream,
            bytes: bytes(rng),
        },
        14..22 => Op::Free { block },
        22..25 => Op::FreeOn { block, stream },
        25..28 => Op::Use { block, stream },
        28 | 29 => Op::Record { event, stream },
        30 | 31 => Op::Wait { event, stream },
        32 => Op::WaitStream { stream, other },
        33 => Op::Sync { stream },
        34 => Op::SyncEvent { event },
        35 | 36 => Op::Query { stream },
        37 => Op::Trim { keep: 0 },
        38 => Op::Trim { keep: 4 * MIB },
        _ => Op::Renew { stream },
    }
}

fn program(rng: &mut Rng) -> Vec<Op> {
    // A pool outgrows its slack in longer ones alone.
    let most = [60, 60, 60, 400][rng.below(4) as usize];
    let length = 2 + rng.below(most);
    (0..length).map(|_| op(rng)).collect()
}

/// What a pool is made with: every seed another mixture.
fn config(seed: u64) -> PoolConfig {
    let mut rng = Rng::new(seed ^ 0xC0_4F16);
    let handles = [
        HandleSize::Granule,
        HandleSize::UpTo(8 * MIB),
        HandleSize::Adaptive,
    ];
    let mut config = PoolConfig::default()
        .handles(handles[rng.below(3) as usize])
        .slack([0.0, 0.004, 1.0][rng.below(3) as usize])
        .cache_bytes([0, 64 * 1024, 64 * MIB][rng.below(3) as usize])
        .reuse(rng.chance(3, 4), rng.chance(3, 4))
        .preallocate([0, 0, 6 * MIB][rng.below(3) as usize]);
    if rng.chance(3, 4) {
        config = config.limit((4 + 2 * rng.below(12)) * MIB);
    }
    config
}

fn strategy(seed: u64) -> Strategy {
    match seed % 3 {
        0 => Strategy::Random,
        changes => Strategy::Pct {
            changes: changes as u32 * 2 - 1,
            steps: 120,
        },
    }
}

struct World {
    device: Device,
    pool: Pool,
    streams: Vec<Stream>,
    /// All of these are one stream.
    lone: bool,
    events: Vec<Event>,
    blocks: Vec<(Block, u64, usize)>,
    /// A `wp_pattern_report` in memory of its own, and its stream order's beginning.
    report: common::Memory,
    stamps: u64,
}

fn words<T>(result: warpool::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl World {
    fn new(device: Device, config: PoolConfig, lone: bool) -> Result<Self, String> {
        let report = common::Memory::new(&device, 4096);
        let mut streams = vec![words(device.stream())?];
        while streams.len() < STREAMS {
            streams.push(match lone {
                true => streams[0].clone(),
                false => words(device.stream())?,
            });
        }
        common::fill(&streams[0], report.addr, 0, 64);
        words(streams[0].synchronize())?;
        Ok(Self {
            pool: words(Pool::new(&device, config))?,
            events: words((0..EVENTS).map(|_| device.event()).collect())?,
            device,
            streams,
            lone,
            blocks: Vec::new(),
            report,
            stamps: 0,
        })
    }

    fn pattern(&self, op: abi::wp_pattern_op, at: usize, stream: &Stream) -> Result<(), String> {
        let (block, seed, _) = &self.blocks[at];
        let launch = Launch::Pattern(abi::wp_pattern {
            addr: block.addr(),
            bytes: block.bytes(),
            seed: *seed,
            edge: 256,
            report: self.report.addr,
            op,
            pad: 0,
        });
        // SAFETY: the block is live, and freed in stream order behind this.
        words(unsafe { self.device.backend().launch(&launch, stream.raw()) })
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        let live = self.blocks.len();
        match *op {
            Op::Alloc { stream, bytes } => match self.pool.alloc(&self.streams[stream], bytes) {
                Ok(block) => {
                    self.stamps += 1;
                    self.blocks.push((block, self.stamps << 20, stream));
                    self.pattern(abi::WP_STAMP, live, &self.streams[stream].clone())?;
                }
                Err(error) if error.is_out_of_memory() => {}
                Err(error) => return Err(error.to_string()),
            },
            Op::Free { block } if live > 0 => {
                let at = block % live;
                let stream = self.streams[self.blocks[at].2].clone();
                self.pattern(abi::WP_VERIFY, at, &stream)?;
                self.blocks.swap_remove(at);
            }
            Op::FreeOn { block, stream } if live > 0 => {
                let at = block % live;
                let (from, to) = (
                    &self.streams[self.blocks[at].2],
                    self.streams[stream].clone(),
                );
                words(to.wait_stream(from))?;
                self.pattern(abi::WP_VERIFY, at, &to)?;
                words(self.blocks.swap_remove(at).0.free_on(&to))?;
            }
            Op::Use { block, stream } if live > 0 => {
                let at = block % live;
                let (from, to) = (
                    &self.streams[self.blocks[at].2],
                    self.streams[stream].clone(),
                );
                words(to.wait_stream(from))?;
                self.pattern(abi::WP_VERIFY, at, &to)?;
                words(self.blocks[at].0.record_use(&to))?;
            }
            Op::Record { event, stream } => {
                words(self.events[event].record(&self.streams[stream]))?
            }
            Op::Wait { event, stream } => words(self.streams[stream].wait(&self.events[event]))?,
            Op::WaitStream { stream, other } => {
                words(self.streams[stream].wait_stream(&self.streams[other]))?;
            }
            Op::Sync { stream } => words(self.streams[stream].synchronize())?,
            Op::SyncEvent { event } => words(self.events[event].synchronize())?,
            Op::Query { stream } => drop(words(self.streams[stream].is_idle())?),
            Op::Trim { keep } => drop(words(self.pool.trim(keep))?),
            Op::Renew { stream } if !self.lone => self.renew(stream)?,
            _ => {}
        }
        self.pool.check_invariants()
    }

    /// Blocks of the stream live on; what uses them comes after the new stream's wait.
    fn renew(&mut self, at: usize) -> Result<(), String> {
        let new = words(self.device.stream())?;
        words(new.wait_stream(&self.streams[at]))?;
        for index in 0..self.blocks.len() {
            if self.blocks[index].2 == at {
                words(self.blocks[index].0.record_use(&new))?;
            }
        }
        self.streams[at] = new;
        Ok(())
    }

    /// Frees everything and reads the report.
    fn finish(mut self) -> Result<(), String> {
        while !self.blocks.is_empty() {
            self.step(&Op::Free { block: 0 })?;
        }
        for stream in &self.streams {
            words(stream.synchronize())?;
        }
        let report = common::read(&self.streams[0], self.report.addr, 24);
        let word =
            |at: usize| u64::from_le_bytes(report[at..at + 8].try_into().unwrap_or_default());
        if word(8) != 0 {
            return Err(format!(
                "{} corrupt bytes, the first at {:#x}",
                word(8),
                word(16)
            ));
        }
        Ok(())
    }
}

fn run(seed: u64, ops: &[Op]) -> Result<(), String> {
    let sim = SimConfig::default()
        .with_seed(seed)
        .with_strategy(strategy(seed));
    let device = words(Device::sim(&sim.with_capacity(48 * MIB)))?;
    let backend = Arc::clone(device.backend());
    let watched = Sanitized::over(&device);
    drop(device);
    let lone = seed.is_multiple_of(4);
    let mut world = World::new(watched.device.clone(), config(seed), lone)?;
    for op in ops {
        world.step(op)?;
        watched.check()?;
    }
    world.finish()?;
    watched.check()?;
    drop(watched);
    if backend.counts() != HandleCounts::default() {
        return Err(format!("left behind: {:?}", backend.counts()));
    }
    Ok(())
}

#[test]
fn every_block_keeps_its_bytes_under_every_schedule_tried() {
    let ran = hunt("--test pool simulated", cases(2000), program, run);
    println!("{ran} programs");
}
