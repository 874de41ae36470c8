//! The checker against an oracle that follows every edge: it reports a program exactly if two of
//! its uses are unordered.
//!
//! `WARPOOL_SIM_CASES` sets the number of programs; 1000000 is the long form.

use crate::common;

use crate::common::BackendOf;
use common::hunt::{cases, hunt};
use warpool::device::sim::{Rng, SimConfig};
use warpool::device::{Access, AccessKind, Backend, Note, Phys, RawEvent, RawStream};
use warpool::sanitize::Sanitizer;
use warpool::{Device, Result};

const STREAMS: u64 = 3;
const EVENTS: u64 = 3;

#[derive(Debug, Clone)]
enum Op {
    Use {
        stream: usize,
        kind: AccessKind,
        from: u64,
        to: u64,
    },
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        event: usize,
        stream: usize,
    },
    SyncStream {
        stream: usize,
    },
    SyncEvent {
        event: usize,
    },
    Query {
        event: usize,
    },
}

fn op(rng: &mut Rng) -> Op {
    let (stream, event) = (rng.below(STREAMS) as usize, rng.below(EVENTS) as usize);
    match rng.below(16) {
        0..7 => {
            let kinds = [AccessKind::Read, AccessKind::Write, AccessKind::Atomic];
            let from = rng.below(24);
            Op::Use {
                stream,
                kind: kinds[[0, 0, 1, 1, 2][rng.below(5) as usize]],
                from,
                to: from + 1 + rng.below(8),
            }
        }
        7..10 => Op::Record { event, stream },
        10..13 => Op::Wait { event, stream },
        13 => Op::SyncStream { stream },
        14 => Op::SyncEvent { event },
        _ => Op::Query { event },
    }
}

fn program(rng: &mut Rng) -> Vec<Op> {
    let length = 4 + rng.below(24);
    (0..length).map(|_| op(rng)).collect()
}

/// A set of uses, by number.
type Set = u64;

struct Used {
    kind: AccessKind,
    from: u64,
    to: u64,
}

/// Follows every edge by itself: sets of uses, no clocks.
#[derive(Default)]
struct Oracle {
    used: Vec<Used>,
    /// What runs before the next operation of each stream.
    streams: [Set; STREAMS as usize],
    events: [Set; EVENTS as usize],
    host: Set,
}

impl Oracle {
    /// Whether a use would race; it is taken in if not, or if `keep`.
    fn uses(
        &mut self,
        stream: usize,
        kind: AccessKind,
        (from, to): (u64, u64),
        keep: bool,
    ) -> bool {
        let after = self.streams[stream] | self.host;
        let races = self.used.iter().enumerate().any(|(at, used)| {
            let both_plain = used.kind == kind && kind != AccessKind::Write;
            after >> at & 1 == 0 && !both_plain && used.from < to && from < used.to
        });
        if keep || !races {
            self.streams[stream] = after | 1 << self.used.len();
            self.used.push(Used { kind, from, to });
        }
        races
    }
}

/// The watched device, without bytes, and one mapping on it.
struct World {
    backend: std::sync::Arc<dyn Backend>,
    sanitizer: Sanitizer,
    streams: Vec<RawStream>,
    events: Vec<RawEvent>,
    addr: u64,
    phys: Phys,
}

impl World {
    fn new(seed: u64) -> Result<Self> {
        let config = SimConfig::default().without_bytes().with_seed(seed);
        let (device, sanitizer) = Sanitizer::over(&Device::sim(&config)?);
        let backend = std::sync::Arc::clone(device.backend());
        let granule = device.info().granule;
        let (addr, phys) = (backend.reserve(granule)?, backend.create(granule)?);
        backend.map(addr, granule, phys)?;
        Ok(Self {
            sanitizer,
            streams: (0..STREAMS)
                .map(|_| backend.stream_create())
                .collect::<Result<_>>()?,
            events: (0..EVENTS)
                .map(|_| backend.event_create(false))
                .collect::<Result<_>>()?,
            backend,
            addr,
            phys,
        })
    }

    /// Does one step on the device and in the oracle; whether the oracle sees a race.
    fn step(&self, oracle: &mut Oracle, op: &Op, keep: bool) -> Result<bool> {
        match *op {
            Op::Use {
                stream,
                kind,
                from,
                to,
            } => {
                let races = oracle.uses(stream, kind, (from, to), keep);
                if keep || !races {
                    let range = self.addr + from..self.addr + to;
                    self.backend.observe(&Note::Uses {
                        what: "use",
                        stream: self.streams[stream],
                        accesses: &[Access { kind, range }],
                    });
                }
                return Ok(races);
            }
            Op::Record { event, stream } => {
                self.backend
                    .event_record(self.events[event], self.streams[stream])?;
                // What the host knew when the stream was last given work is in the stream; what it
                // knows now is in whatever is queued after it, not in the record.
                oracle.events[event] = oracle.streams[stream];
            }
            Op::Wait { event, stream } => {
                self.backend
                    .event_wait(self.streams[stream], self.events[event])?;
                oracle.streams[stream] |= oracle.events[event];
            }
            Op::SyncStream { stream } => {
                self.backend.stream_sync(self.streams[stream])?;
                oracle.host |= oracle.streams[stream];
            }
            Op::SyncEvent { event } => {
                self.backend.event_sync(self.events[event])?;
                oracle.host |= oracle.events[event];
            }
            Op::Query { event } => {
                if self.backend.event_query(self.events[event])? {
                    oracle.host |= oracle.events[event];
                }
            }
        }
        Ok(false)
    }

    fn end(&self) -> Result<()> {
        for &stream in &self.streams {
            self.backend.stream_sync(stream)?;
        }
        let granule = self.backend.info().granule;
        self.backend.unmap(self.addr, granule)?;
        self.backend.release(self.phys)
    }
}

/// Runs a program: as it is, or without the uses that would race.
fn run(seed: u64, ops: &[Op], keep: bool) -> std::result::Result<(), String> {
    let world = World::new(seed).map_err(|error| error.to_string())?;
    let mut oracle = Oracle::default();
    let mut races = false;
    for op in ops {
        races |= world
            .step(&mut oracle, op, keep)
            .map_err(|error| error.to_string())?
            && keep;
        let report = world.sanitizer.check().err();
        if report.is_some() != races {
            let said = report.map_or(String::from("nothing"), |report| report.to_string());
            return Err(format!(
                "the oracle sees a race: {races}; the checker says {said}"
            ));
        }
    }
    world.end().map_err(|error| error.to_string())?;
    if !races {
        world
            .sanitizer
            .check()
            .map_err(|report| report.to_string())?;
    }
    Ok(())
}

#[test]
fn a_race_is_reported_when_it_is_queued_and_nothing_else_is() {
    let ran = hunt(
        "--test device checker_oracle",
        cases(20_000),
        program,
        |seed, ops| run(seed, ops, true),
    );
    println!("{ran} programs");
}

#[test]
fn programs_without_a_race_are_never_reported() {
    let ran = hunt(
        "--test device checker_oracle",
        cases(20_000),
        program,
        |seed, ops| run(seed, ops, false),
    );
    println!("{ran} clean programs, 0 reports");
}

#[test]
fn the_programs_are_not_all_of_one_kind() {
    let mut racy = 0;
    for seed in 0..1000 {
        let world = World::new(seed).unwrap();
        let mut oracle = Oracle::default();
        let ops = program(&mut Rng::new(seed));
        racy += u32::from(
            ops.iter()
                .any(|op| world.step(&mut oracle, op, true).unwrap()),
        );
    }
    assert!((200..900).contains(&racy), "{racy} of 1000 have a race");
}
