//! What the threads share, what each has, and who watches them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::BackendOf;
use warpool::device::sim::Rng;
use warpool::device::{Event, Graph, Phys};
use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::movable::{Movable, MovableId};
use warpool::pool::{HandleSize, Relief};
use warpool::{Device, Error, GrowBuf, Pool, PoolBuf, PoolConfig, Result, Stream};

pub const THREADS: usize = 6;
pub const TAGS: [&str; 2] = ["a", "b"];

/// Events and graphs that all threads use.
pub const SHARED: usize = 3;

const LIMIT: u64 = 20 << 20;
pub const GRANULE: u64 = 2 << 20;

/// Granules of the host device.
pub const GRANULES: usize = 48;

/// An operation that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Its name, how often it is done, and what it does.
pub type Operation = (&'static str, u64, fn(&mut Worker) -> Result<()>);

/// What closures and callbacks of this test panic with.
pub struct Ours;

pub fn panic_as_ours() -> ! {
    // Without the message of a panic.
    resume_unwind(Box::new(Ours))
}

pub enum Memory {
    Typed(PoolBuf<u8>),
    Movable(Movable<u8>),
    Growing(GrowBuf<u8>),
}

/// A buffer and the value of all its bytes.
pub struct Held {
    pub memory: Memory,
    pub value: u8,
}

impl Held {
    pub fn fill(&mut self, stream: &Stream, value: u8) -> Result<()> {
        match &mut self.memory {
            Memory::Typed(buffer) => buffer.view_mut().fill(stream, value)?,
            Memory::Movable(buffer) => buffer.hold_mut(stream)?.view_mut().fill(stream, value)?,
            Memory::Growing(buffer) => buffer.view_mut().fill(stream, value)?,
        }
        self.value = value;
        Ok(())
    }

    pub fn read(&self, stream: &Stream) -> Result<Vec<u8>> {
        match &self.memory {
            Memory::Typed(buffer) => buffer.view().download(stream),
            Memory::Movable(buffer) => buffer.download(stream),
            Memory::Growing(buffer) => buffer.view().download(stream),
        }
    }
}

/// What each thread does, and since when.
pub struct Watch {
    pub over: AtomicBool,
    pub doing: Vec<Mutex<(&'static str, Instant)>>,
}

impl Watch {
    pub fn begin(&self, thread: usize, operation: &'static str) {
        *self.doing[thread].lock().unwrap() = (operation, Instant::now());
    }

    /// Waits for threads. Those that work are told at `end` to finish.
    pub fn join(&self, threads: Vec<JoinHandle<()>>, end: Instant) {
        while !threads.iter().all(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(10));
            self.over.fetch_or(Instant::now() >= end, Relaxed);
            let doing = self.doing.iter().zip(&threads);
            let running = doing.filter(|(_, thread)| !thread.is_finished());
            let doing: Vec<_> = running.map(|(it, _)| *it.lock().unwrap()).collect();
            if doing.iter().any(|(_, since)| since.elapsed() > PATIENCE) {
                let doing: Vec<_> = doing.iter().map(|it| (it.0, it.1.elapsed())).collect();
                panic!("an operation hangs: {doing:?}");
            }
        }
        for thread in threads {
            thread.join().unwrap_or_else(|why| resume_unwind(why));
        }
    }
}

/// What all threads share.
pub struct Shared {
    pub root: Pool,
    pub parts: Vec<Pool>,
    pub host: HostPool,
    pub streams: Vec<Stream>,
    /// Shared streams are captured: bytes are then what a launch made them.
    pub captures: bool,
    pub watch: Arc<Watch>,
    pub numbers: Mutex<Vec<(usize, MovableId)>>,
    /// Handles that others have, a granule each.
    others: Mutex<Vec<Phys>>,
    pub events: [Mutex<Arc<Event>>; SHARED],
    pub graphs: [Mutex<Option<Arc<Graph>>>; SHARED],
    pub errors: Mutex<BTreeMap<String, u64>>,
    pub operations: AtomicU64,
    pub panics: AtomicU64,
    pub verified: AtomicU64,
}

impl Shared {
    pub fn new(device: &Device, captures: bool, watch: Arc<Watch>) -> Self {
        let config = PoolConfig::default().limit(LIMIT).sleeps(true);
        let root = Pool::new(device, config.handles(HandleSize::Granule)).unwrap();
        let parts = TAGS.map(|tag| root.tagged(tag).unwrap()).to_vec();
        let host = HostPool::new(device, HostPoolConfig::default());
        for part in &parts {
            part.set_spill(Spill::Auto(&host)).unwrap();
            let asked = AtomicU64::new(0);
            part.on_pressure(move |_| match asked.fetch_add(1, Relaxed) % 50 {
                0 => Relief::Retry,
                _ => Relief::Exhausted,
            });
        }
        Self {
            root,
            parts,
            host,
            streams: (0..THREADS).map(|_| device.stream().unwrap()).collect(),
            captures,
            watch,
            numbers: Mutex::default(),
            others: Mutex::default(),
            events: [(); SHARED].map(|()| Mutex::new(Arc::new(device.event().unwrap()))),
            graphs: Default::default(),
            errors: Mutex::default(),
            operations: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            verified: AtomicU64::new(0),
        }
    }

    /// As many as the device has, if that is fewer.
    pub fn others_have(&self, granules: usize) -> Result<()> {
        let backend = self.root.device().backend();
        let mut others = self.others.lock().unwrap();
        let keep = granules.min(others.len());
        (others.drain(keep..)).try_for_each(|phys| backend.release(phys))?;
        let taken = (keep..granules).map_while(|_| backend.create(GRANULE).ok());
        others.extend(taken);
        Ok(())
    }

    pub fn count_error<T>(&self, result: Result<T>) {
        let kind = match result {
            Ok(_) => return,
            Err(Error::OutOfMemory(_)) => "out of memory".to_owned(),
            Err(Error::Invalid { what, .. }) => what.to_owned(),
            Err(Error::Driver { call, code, .. }) => format!("{call} {code}"),
            Err(other) => other.to_string(),
        };
        *self.errors.lock().unwrap().entry(kind).or_default() += 1;
    }

    /// What a movable buffer of `part` has called when it moves.
    pub fn on_move(&self, part: usize, stream: &Stream, what: u64) {
        match what {
            0..4 => self.count_error(self.parts[part].alloc(stream, 5000)),
            4..8 => self.count_error(self.parts[1 - part].trim(0)),
            8..11 => self.count_error(self.parts[part].alloc_movable::<u8>(stream, 5000)),
            _ => panic_as_ours(),
        }
    }

    /// One line.
    pub fn told(&self) -> String {
        format!(
            "{} operations, {} bytes verified, {} panics; errors: {:?}",
            self.operations.load(Relaxed),
            self.verified.load(Relaxed),
            self.panics.load(Relaxed),
            self.errors.lock().unwrap(),
        )
    }
}

/// One thread's part.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub random: Rng,
    pub own: Stream,
    pub private: Stream,
    pub held: Vec<Held>,
    pub graphs: Vec<Graph>,
}

impl Worker {
    pub fn run(&mut self, thread: usize, operations: &[Operation]) {
        let watch = Arc::clone(&self.shared.watch);
        while !watch.over.load(Relaxed) {
            let (name, _, operation) = self.draw(operations);
            watch.begin(thread, name);
            match catch_unwind(AssertUnwindSafe(|| operation(self))) {
                Ok(result) => self.shared.count_error(result),
                Err(why) if why.is::<Ours>() => _ = self.shared.panics.fetch_add(1, Relaxed),
                Err(why) => {
                    eprintln!("failed: {name}");
                    watch.over.store(true, Relaxed);
                    resume_unwind(why);
                }
            }
            self.shared.operations.fetch_add(1, Relaxed);
        }
        watch.begin(thread, "drop everything");
        self.held.clear();
        self.graphs.clear();
    }

    fn draw(&mut self, operations: &[Operation]) -> Operation {
        let mut left = self.random.below(operations.iter().map(|it| it.1).sum());
        let drawn = operations.iter().find(|it| match left.checked_sub(it.1) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        *drawn.expect("the sum is of all of them")
    }

    pub fn up_to(&mut self, most: usize) -> usize {
        self.random.below(most as u64) as usize
    }

    pub fn value(&mut self) -> u8 {
        self.random.below(256) as u8
    }

    pub fn pause(&mut self) {
        thread::sleep(Duration::from_micros(self.random.below(300)));
    }

    pub fn part(&mut self) -> Pool {
        let part = self.up_to(TAGS.len());
        self.shared.parts[part].clone()
    }

    /// The thread's own stream as often as all others.
    pub fn stream(&mut self) -> Stream {
        match self.random.chance(1, 2) {
            true => self.own.clone(),
            false => self.any_stream(),
        }
    }

    pub fn any_stream(&mut self) -> Stream {
        let at = self.up_to(THREADS);
        self.shared.streams[at].clone()
    }

    /// One of the buffers held.
    pub fn any(&mut self) -> Option<&mut Held> {
        let held = self.held.len().max(1);
        let at = self.up_to(held);
        self.held.get_mut(at)
    }

    /// One of the buffers, which is held no more: it goes if what is done with it fails or panics.
    pub fn take(&mut self) -> Option<Held> {
        let held = self.held.len().max(1);
        let at = self.up_to(held);
        (at < self.held.len()).then(|| self.held.swap_remove(at))
    }
}
