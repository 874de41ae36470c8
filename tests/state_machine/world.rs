//! The same on a device: every block stamped, every use verified, every step compared.

use crate::common::BackendOf;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpool::compact::{Budget, Goal};
use warpool::device::{Backend, HandleCounts, Phys};
use warpool::driver::abi;
use warpool::movable::{Movable, Pass, Resident};
use warpool::pool::HandleSize;
use warpool::{Block, Device, Event, Pool, PoolConfig, Result, Stream};

use crate::CAPACITY;
use crate::common::sanitized::Sanitized;
use crate::common::stamps::Stamps;
use crate::common::watched::Watched;
use crate::model::{EVENTS, Id, Kind, Program, STREAMS, Setup, Step};

const GRANULE: u64 = 2 << 20;

/// Steps of a pass after which it must have ended.
const MOST_STEPS: usize = 500;

/// Granules of the device that the report and the tables of compaction take.
const APART: u64 = 8;

/// Driver calls after which a step must have ended.
const MOST_CALLS: u64 = 100_000;

/// A pin, and what it borrows.
struct Pin {
    pinned: Resident<'static, u8>,
    _stream: Box<Stream>,
}

enum Memory {
    Raw(Block),
    Movable {
        // Dropped before what it borrows.
        pins: Vec<Pin>,
        block: Box<Movable<u8>>,
    },
}

struct Held {
    memory: Memory,
    /// Of the pattern it holds.
    seed: u64,
    bytes: u64,
    /// The stream behind which all its uses are ordered.
    last: usize,
}

pub struct World {
    held: BTreeMap<Id, Held>,
    pass: Option<Pass>,
    pool: Pool,
    streams: Vec<Stream>,
    events: Vec<Event>,
    stamps: Stamps,
    seeds: u64,
    verified: u64,
    /// Whether every request that fits must be served.
    tight: bool,
    /// What the pool held at the last check.
    reserved: Cell<u64>,
    /// Physical bytes that the device had given when the pool was made.
    before: u64,
    /// What others have taken since, a granule each.
    others: Vec<Phys>,
    /// Driver calls of the step.
    calls: Arc<AtomicU64>,
    backend: Arc<dyn Backend>,
    device: Sanitized,
}

/// `None` where memory was short.
fn unless_short<T>(outcome: Result<T>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if error.is_out_of_memory() => None,
        Err(error) => panic!("{error}"),
    }
}

fn config(setup: &Setup, program: &Program) -> PoolConfig {
    let config = PoolConfig::default()
        .handles(setup.handles)
        .slack(setup.slack)
        .cache_bytes(setup.cache)
        .reuse(setup.opportunistic, setup.device_wait)
        .preallocate(setup.preallocate)
        .overlap_bytes(setup.overlap)
        .slabs(program.seed % 2 == 1);
    let config = (program.limit).map_or(config.clone(), |bytes| config.limit(bytes));
    (setup.soft_limit).map_or(config.clone(), |bytes| config.soft_limit(bytes))
}

/// Whether all streams of a program are one: of one in four.
fn is_lone(program: &Program) -> bool {
    program.seed % 8 < 2
}

fn goal(hole: Option<u64>) -> Goal {
    hole.map_or(Goal::Full, Goal::Hole)
}

impl World {
    pub fn new(device: &Device, program: &Program) -> Self {
        let (device, watched) = Watched::over(device);
        let calls = Arc::new(AtomicU64::new(0));
        let made = Arc::clone(&calls);
        watched.before(move |_, _| {
            let step = made.fetch_add(1, Ordering::Relaxed);
            assert!(step < MOST_CALLS, "a step does not end");
            true
        });
        let device = Sanitized::over(&device);
        let stamps = Stamps::new(&device.device);
        let setup = &program.setup;
        let made = if is_lone(program) { 1 } else { STREAMS };
        let made: Vec<_> = (0..made).map(|_| device.device.stream().unwrap()).collect();
        let streams = (0..STREAMS).map(|at| made[at % made.len()].clone());
        let streams = streams.collect();
        Self {
            before: device.device.backend().counts().bytes,
            others: Vec::new(),
            calls,
            held: BTreeMap::new(),
            pass: None,
            pool: Pool::new(&device.device, config(setup, program)).unwrap(),
            streams,
            events: (0..EVENTS)
                .map(|_| device.device.event().unwrap())
                .collect(),
            stamps,
            seeds: 0,
            verified: 0,
            tight: setup.handles == HandleSize::Granule,
            reserved: Cell::new(u64::MAX),
            backend: Arc::clone(device.device.backend()),
            device,
        }
    }

    pub fn step(&mut self, program: &Program, step: &Step) {
        self.calls.store(0, Ordering::Relaxed);
        match *step {
            Step::Alloc(kind, stream, bytes) => self.alloc(program, kind, stream, bytes),
            Step::Free(id) => self.free(id),
            Step::FreeOn(id, stream) => self.free_on(id, stream),
            Step::Read(id, stream) => self.verify(id, stream),
            Step::Write(id, stream) => self.rewrite(id, stream),
            Step::Shrink(id, bytes) => self.shrink(id, bytes),
            Step::Pin(id, stream) => self.hold(id, stream),
            Step::Unpin(id) => {
                if let Some(Memory::Movable { pins, .. }) =
                    self.held.get_mut(&id).map(|held| &mut held.memory)
                {
                    pins.pop();
                }
            }
            Step::Record(event, stream) => {
                self.events[event].record(&self.streams[stream]).unwrap()
            }
            Step::Wait(event, stream) => self.streams[stream].wait(&self.events[event]).unwrap(),
            Step::WaitStream(a, b) => self.streams[a].wait_stream(&self.streams[b]).unwrap(),
            Step::Sync(stream) => self.streams[stream].synchronize().unwrap(),
            Step::SyncEvent(event) => self.events[event].synchronize().unwrap(),
            Step::Query(stream) => drop(self.streams[stream].is_idle().unwrap()),
            Step::Renew(_) if is_lone(program) => {}
            Step::Renew(stream) => self.renew(stream),
            Step::Trim(keep) => drop(self.pool.trim(keep).unwrap()),
            Step::Limit(limit) => self.pool.set_limit(limit),
            Step::Others(granules) => self.others_have(granules),
            Step::Compact(hole, budget) => self.compact(hole, budget),
            Step::Begin(hole, budget) => {
                let pass = self
                    .pool
                    .begin_compaction(goal(hole), Budget::bytes(budget));
                self.pass = unless_short(pass);
            }
            Step::Advance => {
                if let Some(pass) = &mut self.pass {
                    pass.step().unwrap();
                    self.pins_hold();
                }
            }
        }
    }

    fn others_have(&mut self, granules: usize) {
        for phys in self.others.drain(granules.min(self.others.len())..) {
            self.backend.release(phys).unwrap();
        }
        let (lacking, backend) = (granules - self.others.len(), &self.backend);
        let taken = (0..lacking).map_while(|_| backend.create(GRANULE).ok());
        self.others.extend(taken);
    }

    fn alloc(&mut self, program: &Program, kind: Kind, stream: usize, bytes: u64) {
        let on = &self.streams[stream];
        let memory =
            match kind {
                Kind::Raw => unless_short(self.pool.alloc(on, bytes)).map(Memory::Raw),
                Kind::Movable => unless_short(self.pool.alloc_movable::<u8>(on, bytes as usize))
                    .map(|block| Memory::Movable {
                        pins: Vec::new(),
                        block: Box::new(block),
                    }),
            };
        let Some(memory) = memory else {
            assert!(!self.fits(program, bytes), "{bytes} bytes fit");
            return;
        };
        let held = Held {
            memory,
            seed: 0,
            bytes,
            last: stream,
        };
        self.held.insert(program.newest(), held);
        self.rewrite(program.newest(), stream);
    }

    /// Whether `bytes` fit into granules that hold nothing live, under the limit.
    fn fits(&self, program: &Program, bytes: u64) -> bool {
        if !self.tight {
            return false;
        }
        let mut touched = BTreeSet::new();
        for held in self.held.values() {
            let (addr, bytes) = match &held.memory {
                Memory::Raw(block) => (block.addr(), block.capacity()),
                Memory::Movable { block, .. } => {
                    let at = block.hold(&self.streams[held.last]).unwrap().addr();
                    (at, held.bytes.next_multiple_of(256))
                }
            };
            touched.extend(addr / GRANULE..=(addr + bytes - 1) / GRANULE);
        }
        let most = program.limit.unwrap_or(u64::MAX) / GRANULE;
        let most = most.min((CAPACITY / GRANULE - APART).saturating_sub(self.others.len() as u64));
        bytes.div_ceil(GRANULE) + touched.len() as u64 <= most
    }

    /// Queues a stamp or a comparison of a block on `stream`, behind all its uses, and declares it.
    fn launch(&mut self, id: Id, stream: usize, op: abi::wp_pattern_op) {
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        let on = &self.streams[stream];
        on.wait_stream(&self.streams[held.last]).unwrap();
        held.last = stream;
        match &mut held.memory {
            Memory::Raw(block) => {
                self.stamps
                    .launch(on, (block.addr(), held.bytes), held.seed, op);
                block.record_use(on).unwrap();
            }
            Memory::Movable { block, .. } => {
                let pinned = block.hold(on).unwrap();
                self.stamps
                    .launch(on, (pinned.addr(), held.bytes), held.seed, op);
            }
        }
        if op == abi::WP_VERIFY {
            self.verified += held.bytes;
        }
    }

    fn verify(&mut self, id: Id, stream: usize) {
        self.launch(id, stream, abi::WP_VERIFY);
    }

    fn rewrite(&mut self, id: Id, stream: usize) {
        self.seeds += 1;
        if let Some(held) = self.held.get_mut(&id) {
            held.seed = self.seeds << 32;
        }
        self.launch(id, stream, abi::WP_STAMP);
    }

    fn free(&mut self, id: Id) {
        if let Some(last) = self.held.get(&id).map(|held| held.last) {
            self.verify(id, last);
            self.held.remove(&id);
        }
    }

    fn free_on(&mut self, id: Id, stream: usize) {
        self.verify(id, stream);
        if let Some(held) = self.held.remove(&id)
            && let Memory::Raw(block) = held.memory
        {
            block.free_on(&self.streams[stream]).unwrap();
        }
    }

    fn shrink(&mut self, id: Id, to: u64) {
        // Every use is declared, so the tail is free behind all.
        if let Some(held) = self.held.get_mut(&id)
            && let Memory::Raw(block) = &mut held.memory
        {
            block.shrink(to.min(held.bytes)).unwrap();
            held.bytes = block.bytes();
        }
    }

    fn hold(&mut self, id: Id, stream: usize) {
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        let Memory::Movable { pins, block } = &mut held.memory else {
            return;
        };
        let stream = Box::new(self.streams[stream].clone());
        // SAFETY: both are boxed and dropped after the pin that borrows them.
        let (of, on) = unsafe {
            (
                &*std::ptr::from_ref::<Movable<u8>>(block),
                &*std::ptr::from_ref::<Stream>(stream.as_ref()),
            )
        };
        let pinned = of.hold(on).unwrap();
        pins.push(Pin {
            pinned,
            _stream: stream,
        });
    }

    /// Every pinned block is where its pins say.
    fn pins_hold(&self) {
        for held in self.held.values() {
            if let Memory::Movable { pins, block } = &held.memory
                && let Some(first) = pins.first()
            {
                let now = block.hold(&self.streams[held.last]).unwrap().addr();
                for pin in pins {
                    assert_eq!(pin.pinned.addr(), now, "a pinned block moved");
                }
                assert_eq!(first.pinned.addr(), now);
            }
        }
    }

    fn compact(&mut self, hole: Option<u64>, budget: u64) {
        let pass = self
            .pool
            .begin_compaction(goal(hole), Budget::bytes(budget));
        let Some(mut pass) = unless_short(pass) else {
            return;
        };
        let ended = (0..MOST_STEPS).any(|_| {
            let moved = pass.step().unwrap();
            self.pool.check_invariants().unwrap();
            moved.finished
        });
        assert!(ended, "a compaction does not end");
        self.pins_hold();
    }

    /// Blocks of the stream live on; what uses them comes behind the new stream's wait.
    fn renew(&mut self, at: usize) {
        let new = self.device.device.stream().unwrap();
        new.wait_stream(&self.streams[at]).unwrap();
        self.streams[at] = new;
    }

    pub fn check(&self, program: &Program) {
        self.pool.check_invariants().unwrap();
        self.device.check().unwrap();
        let stats = self.pool.stats();
        for (id, held) in &self.held {
            assert!(held.bytes <= program.live[id].bytes, "bytes of block {id}");
        }
        let sum = |of: &dyn Fn(&Held) -> u64| self.held.values().map(of).sum::<u64>();
        assert_eq!(stats.blocks.current, self.held.len() as u64);
        assert_eq!(stats.requested.current, sum(&|held| held.bytes));
        let rounded = |held: &Held| match &held.memory {
            Memory::Raw(block) => block.capacity(),
            Memory::Movable { .. } => held.bytes.next_multiple_of(256),
        };
        assert_eq!(stats.allocated.current, sum(&rounded));
        let most = program.limit.unwrap_or(u64::MAX).max(self.reserved.get());
        let reserved = stats.reserved.current;
        let others = self.before + self.others.len() as u64 * GRANULE;
        let given = self.backend.counts().bytes - others;
        assert_eq!(given, reserved + stats.overhead, "bytes of the device");
        // At the first check memory may have been taken already when the pool was made.
        assert!(
            reserved <= most || self.reserved.get() == u64::MAX,
            "{reserved} bytes held, {most} allowed"
        );
        self.reserved.set(reserved);
    }

    /// Frees everything, and looks whether anything was corrupt or is left.
    pub fn finish(mut self) {
        self.calls.store(0, Ordering::Relaxed);
        self.pass = None;
        self.others_have(0);
        for held in self.held.values_mut() {
            if let Memory::Movable { pins, .. } = &mut held.memory {
                pins.clear();
            }
        }
        let ids: Vec<Id> = self.held.keys().copied().collect();
        for id in ids {
            self.free(id);
        }
        for stream in &self.streams {
            stream.synchronize().unwrap();
        }
        self.stamps.assert_clean(&self.device.device, self.verified);
        self.pool.check_invariants().unwrap();
        let Self {
            pool,
            streams,
            events,
            stamps,
            device,
            backend,
            ..
        } = self;
        drop((pool, streams, events, stamps));
        device.check().unwrap();
        drop(device);
        assert_eq!(
            backend.counts(),
            HandleCounts::default(),
            "something leaked"
        );
    }
}
