//! Random programs of safe calls alone: whatever the schedule, every value is what running the steps
//! one after another leaves.
//!
//! Buffers have two parts, each full of one value. `WARPOOL_SIM_CASES` sets the number of seeds.

use crate::common::{BackendOf, leaving_nothing};
use std::collections::HashMap;
use std::sync::Arc;

use half::f16;
use warpool::compact::Goal;
use warpool::convert::{ConvertTable, Rounding, convert};
use warpool::device::sim::{Rng, SimConfig, Strategy};
use warpool::device::{Graph, HandleCounts};
use warpool::{Device, Movable, Pool, PoolBuf, PoolConfig, Stream};

use super::common::hunt::{cases, hunt};
use super::common::sanitized::Sanitized;

const STREAMS: usize = 3;
/// Elements of a part.
const PART: usize = 96;
const VALUES: usize = 5;

/// A step; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Op {
    Single {
        stream: usize,
    },
    Half {
        stream: usize,
    },
    Movable {
        stream: usize,
    },
    /// A part of a single gets a value.
    Set {
        single: usize,
        part: usize,
        value: usize,
        stream: usize,
    },
    Down {
        single: usize,
        half: usize,
        part: usize,
        stream: usize,
    },
    Up {
        half: usize,
        single: usize,
        part: usize,
        stream: usize,
    },
    /// To a movable block, held on one stream and written on another; or from it.
    ToMovable {
        single: usize,
        movable: usize,
        part: usize,
        stream: usize,
        held: usize,
    },
    FromMovable {
        movable: usize,
        single: usize,
        part: usize,
        stream: usize,
        held: usize,
    },
    /// All singles to as many halves, in one table, launched on both streams.
    Table {
        stream: usize,
        other: usize,
    },
    /// A conversion down, captured.
    Capture {
        single: usize,
        half: usize,
        part: usize,
        stream: usize,
    },
    Launch {
        graph: usize,
        stream: usize,
    },
    InPlace {
        single: usize,
    },
    DropSingle {
        single: usize,
    },
    DropHalf {
        half: usize,
    },
    DropMovable {
        movable: usize,
    },
    DropGraph {
        graph: usize,
    },
    Compact,
    Record {
        stream: usize,
    },
    Check {
        half: usize,
    },
}

fn op(rng: &mut Rng) -> Op {
    let mut any = || rng.below(64) as usize;
    let (single, half, movable, graph) = (any(), any(), any(), any());
    let (part, value) = (any() % 2, any() % VALUES);
    let (stream, other) = (any() % STREAMS, any() % STREAMS);
    match rng.below(48) {
        0..4 => Op::Single { stream },
        4..8 => Op::Half { stream },
        8..10 => Op::Movable { stream },
        10..16 => Op::Set {
            single,
            part,
            value,
            stream,
        },
        16..22 => Op::Down {
            single,
            half,
            part,
            stream,
        },
        22..27 => Op::Up {
            half,
            single,
            part,
            stream,
        },
        27..30 => Op::ToMovable {
            single,
            movable,
            part,
            stream,
            held: other,
        },
        30..33 => Op::FromMovable {
            movable,
            single,
            part,
            stream,
            held: other,
        },
        33..35 => Op::Table { stream, other },
        35 => Op::Capture {
            single,
            half,
            part,
            stream,
        },
        36..39 => Op::Launch { graph, stream },
        39 => Op::InPlace { single },
        40 => Op::DropSingle { single },
        41..43 => Op::DropHalf { half },
        43 => Op::DropMovable { movable },
        44 => Op::DropGraph { graph },
        45 => Op::Compact,
        46 => Op::Record { stream },
        _ => Op::Check { half },
    }
}

fn program(rng: &mut Rng) -> Vec<Op> {
    let length = 4 + rng.below(50);
    (0..length).map(|_| op(rng)).collect()
}

/// Buffers by the number of what they hold, which outlives them where a graph has it.
struct World {
    device: Device,
    pool: Pool,
    streams: Vec<Stream>,
    /// Full of the value that is their place here.
    values: Vec<PoolBuf<f16>>,
    singles: Vec<(u64, PoolBuf<f32>)>,
    halves: Vec<(u64, PoolBuf<f16>)>,
    movables: Vec<(u64, Movable<f16>)>,
    /// With what a launch copies: from, to, part.
    graphs: Vec<(Graph, u64, u64, usize)>,
    held: HashMap<u64, [f32; 2]>,
    last: u64,
}

fn words<T>(result: warpool::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn at(part: usize) -> (usize, usize) {
    (part * PART, (part + 1) * PART)
}

impl World {
    fn new(device: Device) -> Result<Self, String> {
        let pool = words(Pool::new(&device, PoolConfig::default()))?;
        let streams: Vec<Stream> = words((0..STREAMS).map(|_| device.stream()).collect())?;
        let mut values = Vec::new();
        for value in 0..VALUES {
            let mut buffer = words(pool.alloc_typed::<f16>(&streams[0], 2 * PART))?;
            words(buffer.upload(&[f16::from_f32(value as f32); 2 * PART]))?;
            values.push(buffer);
        }
        Ok(Self {
            device,
            pool,
            streams,
            values,
            singles: Vec::new(),
            halves: Vec::new(),
            movables: Vec::new(),
            graphs: Vec::new(),
            held: HashMap::new(),
            last: 0,
        })
    }

    /// The number of a new buffer that is full of zeros.
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.held.insert(self.last, [0.0; 2]);
        self.last
    }

    fn copied(&mut self, from: u64, to: u64, part: usize) {
        let value = self.held[&from][part];
        self.held.get_mut(&to).expect("it is held")[part] = value;
    }

    fn make(&mut self, op: &Op) -> Result<(), String> {
        let zeros = self.values[0].view();
        let len = 2 * PART;
        match *op {
            Op::Single { stream } if self.singles.len() < 6 => {
                let on = &self.streams[stream];
                let mut made = words(self.pool.alloc_typed::<f32>(on, len))?;
                let on = &self.streams[(stream + 1) % STREAMS];
                words(convert(on, zeros, made.view_mut(), Rounding::Nearest))?;
                let number = self.number();
                self.singles.push((number, made));
            }
            Op::Half { stream } if self.halves.len() < 6 => {
                let mut made = words(self.pool.alloc_typed::<f16>(&self.streams[stream], len))?;
                words(made.upload(&vec![f16::ZERO; len]))?;
                let number = self.number();
                self.halves.push((number, made));
            }
            Op::Movable { stream } if self.movables.len() < 4 => {
                let on = &self.streams[stream];
                let mut made = words(self.pool.alloc_movable::<f16>(on, len))?;
                words(made.upload(on, &vec![f16::ZERO; len]))?;
                let number = self.number();
                self.movables.push((number, made));
            }
            _ => {}
        }
        Ok(())
    }

    fn single(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.singles.len())
    }

    fn half(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.halves.len())
    }

    fn convert(&mut self, op: &Op) -> Result<Option<()>, String> {
        let nearest = Rounding::Nearest;
        match *op {
            Op::Set {
                single,
                part,
                value,
                stream,
            } => {
                let Some(single) = self.single(single) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let (number, single) = &mut self.singles[single];
                let src = words(self.values[value].view().slice(from..to))?;
                let dst = words(single.view_mut().slice(from..to))?;
                words(convert(&self.streams[stream], src, dst, nearest))?;
                self.held.get_mut(number).expect("it is held")[part] = value as f32;
            }
            Op::Down {
                single,
                half,
                part,
                stream,
            } => {
                let (Some(single), Some(half)) = (self.single(single), self.half(half)) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let ((one, single), (two, half)) = (&self.singles[single], &mut self.halves[half]);
                let src = words(single.view().slice(from..to))?;
                let dst = words(half.view_mut().slice(from..to))?;
                words(convert(&self.streams[stream], src, dst, nearest))?;
                let (one, two) = (*one, *two);
                self.copied(one, two, part);
            }
            Op::Up {
                half,
                single,
                part,
                stream,
            } => {
                let (Some(single), Some(half)) = (self.single(single), self.half(half)) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let ((one, half), (two, single)) = (&self.halves[half], &mut self.singles[single]);
                let src = words(half.view().slice(from..to))?;
                let dst = words(single.view_mut().slice(from..to))?;
                words(convert(&self.streams[stream], src, dst, nearest))?;
                let (one, two) = (*one, *two);
                self.copied(one, two, part);
            }
            Op::ToMovable {
                single,
                movable,
                part,
                stream,
                held,
            } => {
                let movable = movable.checked_rem(self.movables.len());
                let (Some(single), Some(movable)) = (self.single(single), movable) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let ((one, single), (two, movable)) =
                    (&self.singles[single], &mut self.movables[movable]);
                let mut guard = words(movable.hold_mut(&self.streams[held]))?;
                let src = words(single.view().slice(from..to))?;
                let dst = words(guard.view_mut().slice(from..to))?;
                words(convert(&self.streams[stream], src, dst, nearest))?;
                drop(guard);
                let (one, two) = (*one, *two);
                self.copied(one, two, part);
            }
            Op::FromMovable {
                movable,
                single,
                part,
                stream,
                held,
            } => {
                let movable = movable.checked_rem(self.movables.len());
                let (Some(single), Some(movable)) = (self.single(single), movable) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let ((one, movable), (two, single)) =
                    (&self.movables[movable], &mut self.singles[single]);
                let guard = words(movable.hold(&self.streams[held]))?;
                let src = words(guard.view().slice(from..to))?;
                let dst = words(single.view_mut().slice(from..to))?;
                words(convert(&self.streams[stream], src, dst, nearest))?;
                drop(guard);
                let (one, two) = (*one, *two);
                self.copied(one, two, part);
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    fn repeat(&mut self, op: &Op) -> Result<Option<()>, String> {
        match *op {
            Op::Table { stream, other } => {
                let pairs = self.singles.iter().zip(&mut self.halves);
                let (numbers, pairs): (Vec<_>, Vec<_>) = pairs
                    .map(|((one, src), (two, dst))| ((*one, *two), (src.view(), dst.view_mut())))
                    .unzip();
                let made = ConvertTable::new(&self.pool, &self.streams[other], pairs);
                let mut table = words(made)?;
                for on in [stream, other, stream] {
                    words(table.convert(&self.streams[on], Rounding::Nearest))?;
                }
                drop(table);
                for (one, two) in numbers {
                    self.copied(one, two, 0);
                    self.copied(one, two, 1);
                }
            }
            Op::Capture {
                single,
                half,
                part,
                stream,
            } => {
                let (Some(single), Some(half)) = (self.single(single), self.half(half)) else {
                    return Ok(None);
                };
                let (from, to) = at(part);
                let ((one, single), (two, half)) = (&self.singles[single], &mut self.halves[half]);
                let on = &self.streams[stream];
                let capture = words(on.begin_capture())?;
                let src = words(single.view().slice(from..to))?;
                let dst = words(half.view_mut().slice(from..to))?;
                words(convert(on, src, dst, Rounding::Nearest))?;
                let graph = words(capture.end())?;
                self.graphs.push((graph, *one, *two, part));
            }
            Op::Launch { graph, stream } => {
                let Some(graph) = graph.checked_rem(self.graphs.len()) else {
                    return Ok(None);
                };
                let (graph, one, two, part) = &self.graphs[graph];
                words(graph.launch(&self.streams[stream]))?;
                let (one, two, part) = (*one, *two, *part);
                self.copied(one, two, part);
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        self.make(op)?;
        self.convert(op)?;
        self.repeat(op)?;
        match *op {
            Op::InPlace { single } => {
                // A graph that was given the single would go on to read its old format.
                let read = |number| self.graphs.iter().any(|graph| graph.1 == number);
                let single = self.single(single);
                if let Some(at) = single.filter(|&at| !read(self.singles[at].0)) {
                    let (number, single) = self.singles.swap_remove(at);
                    let half = words(single.convert_in_place::<f16>(Rounding::Nearest))?;
                    self.halves.push((number, half));
                }
            }
            Op::DropSingle { single } => {
                let at = self.single(single);
                drop(at.map(|at| self.singles.swap_remove(at)));
            }
            Op::DropHalf { half } => {
                let at = self.half(half);
                drop(at.map(|at| self.halves.swap_remove(at)));
            }
            Op::DropMovable { movable } => {
                let at = movable.checked_rem(self.movables.len());
                drop(at.map(|at| self.movables.swap_remove(at)));
            }
            Op::DropGraph { graph } => {
                let at = graph.checked_rem(self.graphs.len());
                drop(at.map(|at| self.graphs.swap_remove(at)));
            }
            Op::Compact => drop(words(self.pool.compact(&Goal::Full))?),
            Op::Record { stream } => {
                let event = words(self.device.event())?;
                words(event.record(&self.streams[stream]))?;
            }
            Op::Check { half } => {
                if let Some(at) = self.half(half) {
                    let found = words(self.halves[at].1.download())?;
                    self.check(self.halves[at].0, found.iter().map(|x| x.to_f32()))?;
                }
            }
            _ => {}
        }
        self.pool.check_invariants()
    }

    fn check(&self, number: u64, found: impl Iterator<Item = f32>) -> Result<(), String> {
        let expected = self.held[&number];
        for (at, found) in found.enumerate() {
            let part = at / PART;
            if found != expected[part] {
                return Err(format!(
                    "buffer {number} has {found} at {at}, and was to have {}",
                    expected[part]
                ));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), String> {
        for (number, single) in &self.singles {
            self.check(*number, words(single.download())?.into_iter())?;
        }
        for (number, half) in &self.halves {
            let found = words(half.download())?;
            self.check(*number, found.iter().map(|x| x.to_f32()))?;
        }
        for (number, movable) in &self.movables {
            let found = words(movable.download(&self.streams[0]))?;
            self.check(*number, found.iter().map(|x| x.to_f32()))?;
        }
        self.values.clear();
        Ok(())
    }
}

fn run_on(device: &Device, ops: &[Op]) -> Result<(), String> {
    let watched = Sanitized::over(device);
    let mut world = World::new(watched.device.clone())?;
    for op in ops {
        world.step(op)?;
        watched.check()?;
    }
    world.finish()?;
    watched.check()
}

fn run(seed: u64, ops: &[Op]) -> Result<(), String> {
    let strategy = match seed % 3 {
        0 => Strategy::Random,
        changes => Strategy::Pct {
            changes: changes as u32 * 2 - 1,
            steps: 120,
        },
    };
    let sim = SimConfig::default().with_seed(seed).with_strategy(strategy);
    let device = words(Device::sim(&sim.with_capacity(48 << 20)))?;
    let backend = Arc::clone(device.backend());
    run_on(&device, ops)?;
    drop(device);
    match backend.counts() == HandleCounts::default() {
        true => Ok(()),
        false => Err(format!("left behind: {:?}", backend.counts())),
    }
}

#[test]
fn programs_of_safe_calls_do_what_their_steps_do_one_after_another() {
    let ran = hunt("--test typed_order programs", cases(1500), program, run);
    println!("{ran} programs");
}

fn run_some_on(device: &Device) {
    for seed in 0..30 {
        let ops = program(&mut Rng::new(seed));
        if let Err(why) = run_on(device, &ops) {
            panic!("seed {seed}: {why}\n{ops:#?}");
        }
    }
}

#[test]
fn so_they_do_on_the_host_device() {
    leaving_nothing(super::common::host(), run_some_on);
}

#[test]
fn so_they_do_on_the_gpu() {
    if let Some(device) = super::common::cuda() {
        leaving_nothing(device, run_some_on);
    }
}
