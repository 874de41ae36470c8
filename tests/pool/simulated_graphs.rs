//! Graphs on the simulated device: random captures and launches under adversarial schedules.
//!
//! Captured work stamps and verifies the graph's memory, and so does other work its own, while
//! graphs are launched on any stream and dropped at any time. A byte that two hold at once shows as
//! a corrupt one. `WARPOOL_SIM_CASES` sets the number of seeds.

use crate::common;

use crate::common::BackendOf;
use std::sync::Arc;

use common::hunt::{cases, hunt};
use common::stamps::Stamps;
use warpool::device::HandleCounts;
use warpool::device::sim::{Rng, SimConfig, Strategy};
use warpool::pool::HandleSize;
use warpool::{Block, Capture, Device, Graph, Pool, PoolConfig, Stream};

const MIB: u64 = 1 << 20;
const STREAMS: usize = 3;

/// A step; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Alloc { stream: usize, bytes: u64 },
    Free { block: usize },
    Begin { stream: usize },
    Join { stream: usize },
    End,
    Launch { graph: usize, stream: usize },
    DropGraph { graph: usize },
    Trim,
}

fn op(rng: &mut Rng) -> Op {
    let mut below = |n: u64| rng.below(n) as usize;
    let (stream, at) = (below(STREAMS as u64), below(16));
    match below(32) {
        0..10 => Op::Alloc {
            stream,
            bytes: 1 + rng.below([4096, MIB, 6 * MIB][at % 3]),
        },
        10..18 => Op::Free { block: at },
        18..21 => Op::Begin { stream },
        21 | 22 => Op::Join { stream },
        23..25 => Op::End,
        25..29 => Op::Launch { graph: at, stream },
        29 | 30 => Op::DropGraph { graph: at },
        _ => Op::Trim,
    }
}

fn program(rng: &mut Rng) -> Vec<Op> {
    let length = 2 + rng.below(60);
    (0..length).map(|_| op(rng)).collect()
}

struct Live {
    block: Block,
    seed: u64,
    stream: usize,
    /// Allocated under the capture that goes on.
    captured: bool,
}

struct World {
    device: Device,
    pool: Pool,
    stamps: Stamps,
    streams: Vec<Stream>,
    live: Vec<Live>,
    /// The capture that goes on, and the streams under it, the first first.
    capture: Option<(Capture, Vec<usize>)>,
    /// Graphs, the bytes a launch verifies, and where each was launched last.
    graphs: Vec<(Graph, u64, usize)>,
    stamped: u64,
    verified: u64,
    /// Bytes that the capture's work verifies.
    recorded: u64,
}

fn words<T>(result: warpool::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl World {
    fn is_captured(&self, stream: usize) -> bool {
        let capture = self.capture.as_ref();
        capture.is_some_and(|(_, streams)| streams.contains(&stream))
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Alloc { stream, bytes } => self.alloc(stream, bytes)?,
            Op::Free { block } if !self.live.is_empty() => self.free(block % self.live.len()),
            Op::Begin { stream } if self.capture.is_none() => {
                let capture = words(self.streams[stream].begin_capture())?;
                self.capture = Some((capture, vec![stream]));
                self.recorded = 0;
            }
            Op::Join { stream } if self.capture.is_some() && !self.is_captured(stream) => {
                if let Some((_, streams)) = &mut self.capture {
                    words(self.streams[stream].wait_stream(&self.streams[streams[0]]))?;
                    streams.push(stream);
                }
            }
            Op::End => self.end()?,
            Op::Launch { graph, stream } if !self.graphs.is_empty() => {
                let at = graph % self.graphs.len();
                let last = self.graphs[at].2;
                if !self.is_captured(stream) && !self.is_captured(last) {
                    // Runs of one graph do not overlap: the application's part.
                    words(self.streams[stream].wait_stream(&self.streams[last]))?;
                    words(self.graphs[at].0.launch(&self.streams[stream]))?;
                    self.graphs[at].2 = stream;
                    self.verified += self.graphs[at].1;
                }
            }
            Op::DropGraph { graph } if !self.graphs.is_empty() => {
                drop(self.graphs.swap_remove(graph % self.graphs.len()));
            }
            Op::Trim if self.capture.is_none() => drop(words(self.pool.trim(0))?),
            _ => {}
        }
        self.pool.check_invariants()
    }

    fn alloc(&mut self, stream: usize, bytes: u64) -> Result<(), String> {
        let captured = self.is_captured(stream);
        match self.pool.alloc(&self.streams[stream], bytes) {
            Ok(block) => {
                self.stamped += 1;
                let seed = self.stamped << 20;
                self.stamps.stamp(&self.streams[stream], &block, seed);
                self.live.push(Live {
                    block,
                    seed,
                    stream,
                    captured,
                });
                Ok(())
            }
            Err(error) if error.is_out_of_memory() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn free(&mut self, at: usize) {
        let live = self.live.swap_remove(at);
        let stream = &self.streams[live.stream];
        let bytes = live.block.bytes();
        match (live.captured, self.is_captured(live.stream)) {
            (false, false) => self.verified += bytes,
            // Stamped before the capture: its memory keeps the pattern for every launch.
            (_, true) => self.recorded += bytes,
            (true, false) => unreachable!("they are freed before the capture ends"),
        }
        self.stamps.verify(stream, &live.block, live.seed);
    }

    fn end(&mut self) -> Result<(), String> {
        while let Some(at) = self.live.iter().position(|live| live.captured) {
            self.free(at);
        }
        let Some((capture, streams)) = self.capture.take() else {
            return Ok(());
        };
        let first = &self.streams[streams[0]];
        for &other in &streams[1..] {
            words(first.wait_stream(&self.streams[other]))?;
        }
        self.graphs
            .push((words(capture.end())?, self.recorded, streams[0]));
        Ok(())
    }

    fn finish(mut self) -> Result<(), String> {
        self.end()?;
        while !self.live.is_empty() {
            self.free(0);
        }
        for stream in &self.streams {
            words(stream.synchronize())?;
        }
        self.graphs.clear();
        self.pool.check_invariants()?;
        let all = self.pool.alloc(&self.streams[0], 40 * MIB);
        drop(words(all)?);
        let bytes = self.pool.stats().graphs;
        if bytes != 0 {
            return Err(format!("{bytes} bytes of graphs that are gone"));
        }
        self.stamps.assert_clean(&self.device, self.verified);
        Ok(())
    }
}

fn run(seed: u64, ops: &[Op]) -> Result<(), String> {
    let strategy = match seed % 2 {
        0 => Strategy::Random,
        _ => Strategy::Pct {
            changes: 3,
            steps: 200,
        },
    };
    let sim = SimConfig::default()
        .with_seed(seed)
        .with_strategy(strategy)
        .with_capacity(64 * MIB);
    let device = words(Device::sim(&sim))?;
    let backend = Arc::clone(device.backend());
    let config = PoolConfig::default()
        .limit(40 * MIB)
        .handles(HandleSize::Granule);
    let world = World {
        pool: words(Pool::new(&device, config))?,
        stamps: Stamps::new(&device),
        streams: words((0..STREAMS).map(|_| device.stream()).collect())?,
        device,
        live: Vec::new(),
        capture: None,
        graphs: Vec::new(),
        stamped: 0,
        verified: 0,
        recorded: 0,
    };
    let mut world = world;
    for op in ops {
        world.step(op)?;
    }
    world.finish()?;
    if backend.counts() != HandleCounts::default() {
        return Err(format!("left behind: {:?}", backend.counts()));
    }
    Ok(())
}

#[test]
fn a_graphs_memory_is_its_own_under_every_schedule_tried() {
    let ran = hunt("--test pool simulated_graphs", cases(400), program, run);
    println!("{ran} programs");
}
