//! Random programs with parts that sleep and wake, under random schedules of the simulated device: every byte
//! is compared with a model, the books after every step, and the checker sees every access.

use std::sync::{Arc, Mutex};

use crate::common;

use common::hunt::{cases, hunt};
use common::sanitized::Sanitized;
use common::watched::Watched;
use warpool::compact::Goal;
use warpool::device::sim::{Rng, SimConfig};
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::movable::Movable;
use warpool::pool::HandleSize;
use warpool::{Device, GrowBuf, Pool, PoolBuf, PoolConfig, Stream};

const TAGS: [&str; 2] = ["weights", "cache"];

/// Elements of a growing buffer.
const MOST: u64 = 9_000_000;

/// A step; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
enum Op {
    Alloc {
        part: usize,
        stream: usize,
        len: usize,
        kind: usize,
    },
    Resize {
        buf: usize,
        len: usize,
    },
    Fill {
        buf: usize,
        stream: usize,
        value: u8,
    },
    Read {
        buf: usize,
    },
    Drop {
        buf: usize,
    },
    Sleep {
        part: usize,
        saved: bool,
    },
    Wake {
        part: usize,
    },
    Trim {
        part: usize,
    },
    Compact {
        part: usize,
    },
}

fn op(rng: &mut Rng) -> Op {
    let mut below = |most: u64| rng.below(most) as usize;
    let (part, stream, buf) = (below(2), below(3), below(1 << 20));
    match below(18) {
        0..4 => Op::Alloc {
            part,
            stream,
            len: [below(4000), below(200_000), below(5_000_000)][below(3)] + 1,
            kind: below(4),
        },
        4..8 => Op::Fill {
            buf,
            stream,
            value: below(256) as u8,
        },
        8 => Op::Read { buf },
        9..11 => Op::Drop { buf },
        11..13 => Op::Sleep {
            part,
            saved: below(4) > 0,
        },
        13 => Op::Wake { part },
        14 => Op::Trim { part },
        15 => Op::Compact { part },
        _ => Op::Resize {
            buf,
            len: [below(200_000), below(MOST)][below(2)],
        },
    }
}

enum Memory {
    Fixed(Box<PoolBuf<u8>>),
    Movable(Movable<u8>),
    Growing(Box<GrowBuf<u8>>),
}

struct Buf {
    part: usize,
    memory: Memory,
    /// What all bytes are; `None` of contents that were discarded.
    value: Option<u8>,
}

impl Buf {
    fn fill(&mut self, stream: &Stream, value: u8) -> warpool::Result<()> {
        match &mut self.memory {
            Memory::Fixed(buf) => buf.view_mut().fill(stream, value),
            Memory::Movable(buf) => buf.hold_mut(stream)?.view_mut().fill(stream, value),
            Memory::Growing(buf) => buf.view_mut().fill(stream, value),
        }
    }

    fn bytes(&self, stream: &Stream) -> warpool::Result<Vec<u8>> {
        match &self.memory {
            Memory::Fixed(buf) => buf.view().download(stream),
            Memory::Movable(buf) => buf.download(stream),
            Memory::Growing(buf) => buf.view().download(stream),
        }
    }
}

struct World {
    parts: Vec<Pool>,
    root: Pool,
    asleep: [bool; 2],
    bufs: Vec<Buf>,
    streams: Vec<Stream>,
    host: HostPool,
}

fn agree<T>(outcome: warpool::Result<T>, works: bool, what: &str) -> Result<Option<T>, String> {
    match (outcome, works) {
        (Ok(value), true) => Ok(Some(value)),
        (Err(_), false) => Ok(None),
        (Ok(_), false) => Err(format!("{what} on memory that sleeps")),
        (Err(error), true) => Err(format!("{what}: {error}")),
    }
}

impl World {
    fn new(device: &Device) -> Self {
        let root = Pool::new(device, PoolConfig::default().sleeps(true)).unwrap();
        Self {
            parts: TAGS.map(|tag| root.tagged(tag).unwrap()).into(),
            root,
            asleep: [false; 2],
            bufs: Vec::new(),
            streams: (0..3).map(|_| device.stream().unwrap()).collect(),
            host: HostPool::new(device, HostPoolConfig::default()),
        }
    }

    fn step(&mut self, op: Op) -> Result<(), String> {
        let text = |error: warpool::Error| error.to_string();
        let count = self.bufs.len();
        match op {
            Op::Alloc {
                part,
                stream,
                len,
                kind,
            } => {
                let (pool, stream) = (&self.parts[part], &self.streams[stream]);
                let made = match kind {
                    0 => pool.alloc_movable(stream, len).map(Memory::Movable),
                    1 => pool.grow_buf(stream, MOST as usize).and_then(|mut buf| {
                        buf.resize(len)?;
                        Ok(Memory::Growing(Box::new(buf)))
                    }),
                    _ => pool
                        .alloc_typed(stream, len)
                        .map(|buf| Memory::Fixed(Box::new(buf))),
                };
                if let Some(memory) = agree(made, !self.asleep[part], "alloc")? {
                    self.bufs.push(Buf {
                        part,
                        memory,
                        value: None,
                    });
                }
            }
            Op::Fill { buf, stream, value } if count > 0 => {
                let buf = &mut self.bufs[buf % count];
                let filled = buf.fill(&self.streams[stream], value);
                if agree(filled, !self.asleep[buf.part], "fill")?.is_some() {
                    buf.value = Some(value);
                }
            }
            Op::Resize { buf, len } if count > 0 => self.resize(buf % count, len)?,
            Op::Read { buf } if count > 0 => self.verify(buf % count)?,
            Op::Drop { buf } if count > 0 => drop(self.bufs.swap_remove(buf % count)),
            Op::Sleep { part, saved } => {
                let contents = match saved {
                    true => Contents::Saved(&self.host),
                    false => Contents::Discarded,
                };
                self.root.sleep(&[TAGS[part]], contents).map_err(text)?;
                if !saved && !self.asleep[part] {
                    let lost = self.bufs.iter_mut().filter(|buf| buf.part == part);
                    lost.for_each(|buf| buf.value = None);
                }
                self.asleep[part] = true;
            }
            Op::Wake { part } => {
                self.root.wake(&[TAGS[part]]).map_err(text)?;
                self.asleep[part] = false;
            }
            Op::Trim { part } => _ = self.parts[part].trim(0).map_err(text)?,
            // Without movable memory there is nothing to refuse.
            Op::Compact { part } => {
                let outcome = self.parts[part].compact(&Goal::Full);
                if !self.asleep[part] {
                    outcome.map_err(text)?;
                }
            }
            _ => {}
        }
        for (part, asleep) in self.parts.iter().zip(self.asleep) {
            part.check_invariants()?;
            let stats = part.stats();
            if asleep && stats.reserved.current > 0 || !asleep && stats.sleeping > 0 {
                return Err(format!("asleep: {asleep}\n{stats}"));
            }
        }
        Ok(())
    }

    fn resize(&mut self, at: usize, len: usize) -> Result<(), String> {
        let buf = &mut self.bufs[at];
        let Memory::Growing(growing) = &mut buf.memory else {
            return Ok(());
        };
        let (before, had) = (growing.len(), growing.capacity());
        let works = len <= had || !self.asleep[buf.part];
        if agree(growing.resize(len), works, "resize")?.is_some() && len > before {
            // What is new has any value.
            buf.value = None;
        }
        Ok(())
    }

    fn verify(&self, at: usize) -> Result<(), String> {
        let buf = &self.bufs[at];
        let bytes = buf.bytes(&self.streams[at % 3]);
        let bytes = agree(bytes, !self.asleep[buf.part], "read")?;
        let (Some(bytes), Some(value)) = (bytes, buf.value) else {
            return Ok(());
        };
        match bytes.iter().position(|&byte| byte != value) {
            None => Ok(()),
            Some(wrong) => Err(format!("byte {wrong} is {}, not {value}", bytes[wrong])),
        }
    }
}

fn run(seed: u64, program: &[Op]) -> Result<(), String> {
    let device = Device::sim(&SimConfig::default().with_seed(seed)).map_err(|it| it.to_string())?;
    let watched = Sanitized::over(&device);
    let mut world = World::new(&watched.device);
    for &op in program {
        world.step(op)?;
        watched.check()?;
    }
    for part in 0..2 {
        world.step(Op::Wake { part })?;
    }
    (0..world.bufs.len()).try_for_each(|at| world.verify(at))?;
    drop(world);
    watched.check()
}

#[test]
fn random_programs_find_every_byte_where_it_was_when_it_wakes() {
    let test = "--test pool sleeping::random_programs";
    let program = |rng: &mut Rng| (0..60).map(|_| op(rng)).collect();
    let ran = hunt(test, cases(150), program, run);
    println!("{ran} programs");
}

#[test]
fn memory_is_taken_down_and_made_while_the_bus_copies() {
    let (device, watched) = Watched::over(&common::host());
    let config = PoolConfig::default()
        .handles(HandleSize::Granule)
        .sleeps(true);
    let pool = Pool::new(&device, config).unwrap();
    let host = HostPool::new(&device, HostPoolConfig::default());
    let stream = device.stream().unwrap();
    let bufs = [1u8, 2, 3].map(|it| pool.alloc_filled(&stream, 20 << 20, it).unwrap());
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let log = Arc::clone(&calls);
    watched.before(move |call, _| {
        log.lock().unwrap().push(call);
        true
    });
    pool.sleep(&[], Contents::Saved(&host)).unwrap();
    let down = std::mem::take(&mut *calls.lock().unwrap());
    pool.wake(&[]).unwrap();
    let up = std::mem::take(&mut *calls.lock().unwrap());
    for (buf, it) in bufs.iter().zip([1, 2, 3]) {
        assert!(buf.download().unwrap().iter().all(|&byte| byte == it));
    }
    let count = |calls: &[&str], call: &str| calls.iter().filter(|it| **it == call).count();
    // The next part is queued whenever one is waited for, and then taken down.
    let began = down.iter().position(|call| *call == "copy_out").unwrap();
    let down = &down[began..];
    let parts = count(down, "event_sync");
    assert!(parts >= 8, "{down:?}");
    let (mut recorded, mut waited) = (0, 0);
    for call in down {
        match *call {
            "event_record" => recorded += 1,
            "event_sync" => {
                waited += 1;
                assert_eq!(recorded, (waited + 1).min(parts), "{down:?}");
            }
            "unmap" => assert!(waited > 0, "{down:?}"),
            _ => {}
        }
    }
    // Nothing is waited for until all is made.
    let made = up.iter().rposition(|call| *call == "create").unwrap();
    assert!(count(&up[..made], "copy_in") >= 8, "{up:?}");
    let waits = count(&up[..made], "stream_sync") + count(&up[..made], "event_sync");
    assert_eq!(waits, 0, "{up:?}");
}

#[test]
fn a_pool_that_falls_asleep_waits_once_for_each_stream_and_not_for_what_they_are_given_meanwhile() {
    let (device, watched) = Watched::over(&common::host());
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let mut kept = Vec::new();
    for stream in &streams {
        kept.push(pool.alloc_filled(stream, 1 << 20, 1u8).unwrap());
        drop(pool.alloc_filled(stream, 3 << 20, 2u8).unwrap());
    }
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let log = Arc::clone(&calls);
    watched.before(move |call, _| {
        log.lock().unwrap().push(call);
        true
    });
    pool.sleep(&[], Contents::Discarded).unwrap();
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    // Then the pool's own copies begin, on a stream of their own.
    let waits = calls.iter().take_while(|call| **call != "stream_create");
    let waits = waits.filter(|call| call.ends_with("_record") || call.ends_with("_sync"));
    // What is given to a stream behind its record is not waited for, and all are made first.
    let (records, syncs) = (["event_record"; 3], ["event_sync"; 3]);
    assert!(waits.eq(records.iter().chain(&syncs)), "{calls:?}");
    pool.wake(&[]).unwrap();
    assert!(kept.iter().all(|it| it.download().is_ok()));
}

#[test]
fn handles_whose_blocks_of_several_streams_were_dropped_asleep_are_not_made_again() {
    for device in [common::host(), Device::sim(&SimConfig::default()).unwrap()] {
        let pool = Pool::new(&device, PoolConfig::default().sleeps(true)).unwrap();
        let streams = [(); 3].map(|()| device.stream().unwrap());
        // Several to a handle; the small ones are slots, and some are used by another stream too.
        let block = |at: usize| {
            let bytes = [256 << 10, 1000][at / 3 % 2];
            let mut block = pool.alloc(&streams[at % 3], bytes).unwrap();
            if at.is_multiple_of(4) {
                block.record_use(&streams[(at + 1) % 3]).unwrap();
            }
            block
        };
        let blocks: Vec<_> = (0..200).map(block).collect();
        pool.sleep(&[], Contents::Discarded).unwrap();
        drop(blocks);
        assert_eq!(pool.wake(&[]).unwrap(), 0);
        assert_eq!(pool.stats().reserved.current, 0);
        pool.check_invariants().unwrap();
    }
}
