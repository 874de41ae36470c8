//! A device of books only: it runs nothing and checks the order of everything.
//!
//! Each stream carries a vector clock, which records copy and waits join, as CUDA orders work.
//! A fill is a use of the bytes it names, a move of those it reads and writes and of its table, found
//! through the mappings, so that memory mapped at two addresses is one memory. A use that is not ordered behind an earlier use of the same bytes on
//! another stream, memory unmapped under a use that the host has not seen done, or a use of memory
//! that is not mapped, ends the test with a panic that says which.
//!
//! Nothing queued is ever done by itself: a query answers as `choose` says, and only an answer or a
//! wait on the host makes work done.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::captures::Captures;

use warpool::device::{
    Addr, Backend, DeviceInfo, DeviceKind, HandleCounts, Launch, Phys, RawEvent, RawGraph,
    RawStream,
};
use warpool::{Device, Error, Result};

/// Uses by stream: the last one that is covered.
#[derive(Debug, Clone, Default)]
struct Clock(HashMap<u64, u64>);

impl Clock {
    fn join(&mut self, other: &Self) {
        for (&stream, &tick) in &other.0 {
            let mine = self.0.entry(stream).or_default();
            *mine = tick.max(*mine);
        }
    }

    fn covers(&self, stream: u64, tick: u64) -> bool {
        self.0.get(&stream).is_some_and(|&mine| mine >= tick)
    }

    fn covers_all(&self, other: &Self) -> bool {
        other
            .0
            .iter()
            .all(|(&stream, &tick)| self.covers(stream, tick))
    }
}

/// A use of physical bytes.
#[derive(Debug, Clone, Copy)]
struct Use {
    addr: Addr,
    phys: u64,
    from: u64,
    to: u64,
    stream: u64,
    tick: u64,
}

#[derive(Default)]
struct State {
    last_number: u64,
    used: u64,
    top: Addr,
    ranges: HashMap<Addr, u64>,
    handles: HashMap<u64, u64>,
    /// Given back while a mapping stood, which keeps the memory.
    released: HashMap<u64, u64>,
    mapped: BTreeMap<Addr, (u64, u64)>,
    streams: HashMap<u64, Clock>,
    events: HashMap<u64, Clock>,
    done: Clock,
    uses: Vec<Use>,
    /// What was copied in last, by where it stands: tables of moves are read there.
    copied: BTreeMap<Addr, Vec<u8>>,
    captures: Captures,
}

/// See the module documentation.
pub struct Ordered {
    info: DeviceInfo,
    state: Mutex<State>,
    /// Called before every call, where an explorer may let another thread go first.
    pause: fn(),
    /// Whether work that need not be done yet is done now.
    choose: fn() -> bool,
}

fn unknown(what: &'static str) -> Error {
    Error::invalid(what, "it is not one of this device")
}

impl Ordered {
    /// A device with `total` bytes in granules of `granule`.
    pub fn device(total: u64, granule: u64, pause: fn(), choose: fn() -> bool) -> Device {
        let name = String::from("books only");
        Device::from_backend(Arc::new(Self {
            info: DeviceInfo::new(DeviceKind::Sim, 0, name, total, granule),
            state: Mutex::new(State {
                top: 1 << 32,
                ..State::default()
            }),
            pause,
            choose,
        }))
    }

    fn enter(&self) -> MutexGuard<'_, State> {
        (self.pause)();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same in a call that queues work on `stream`, which other threads may come into.
    fn queueing(&self, stream: RawStream) -> MutexGuard<'_, State> {
        self.enter().captures.enter(stream);
        let mut state = self.enter();
        state.captures.leave(stream);
        state
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn clock(&mut self, stream: RawStream) -> Result<&mut Clock> {
        self.streams
            .get_mut(&stream.0)
            .ok_or_else(|| unknown("stream"))
    }

    /// Counts the memory of `phys` as free if it is given back and not mapped.
    fn forget(&mut self, phys: u64) {
        // The walk over all mappings is for handles given back only.
        if !self.released.contains_key(&phys)
            || self.mapped.values().any(|&(_, mapped)| mapped == phys)
        {
            return;
        }
        if let Some(bytes) = self.released.remove(&phys) {
            self.used -= bytes;
            self.uses.retain(|earlier| earlier.phys != phys);
        }
    }

    /// Notes that one piece of work queued on `stream` uses all of these ranges (address, bytes).
    fn use_all(&mut self, stream: RawStream, ranges: &[(Addr, u64)]) -> Result<()> {
        let own = self.clock(stream)?.0.entry(stream.0).or_default();
        *own += 1;
        let tick = *own;
        for &(addr, bytes) in ranges {
            let mut at = addr;
            while at < addr + bytes {
                at = self.use_mapping(at, addr + bytes, stream.0, tick);
            }
        }
        Ok(())
    }

    /// The words of a table that was copied in whole, by itself or with others.
    fn words(&self, table: Addr, count: u64) -> Vec<u64> {
        let found = self.copied.range(..=table).next_back();
        let (start, copied) = found.expect("a table was copied in");
        let bytes = &copied[(table - start) as usize..][..count as usize * 8];
        let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        bytes.chunks_exact(8).map(word).collect()
    }

    /// The ranges that a launch of moves uses, as kernels/warpool.h has them.
    fn ranges(&self, launch: &Launch) -> Option<Vec<(Addr, u64)>> {
        let mut ranges = Vec::new();
        match launch {
            Launch::Relocate(args) => {
                let count = args.small + args.large;
                ranges.push((args.moves, 16 * count));
                for packed in self.words(args.moves, 2 * count).chunks_exact(2) {
                    let [from, to] = [packed[0], packed[1]].map(|word| word & ((1 << 44) - 1));
                    let units = packed[0] >> 44 | packed[1] >> 44 << 20;
                    ranges.extend([(from * 16, units * 16), (to * 16, units * 16)]);
                }
            }
            Launch::Slide(args) => {
                let count = u64::from(args.count);
                ranges.extend([(args.moves, 24 * count), (args.scratch, 64)]);
                for one in self.words(args.moves, 3 * count).chunks_exact(3) {
                    ranges.extend([(one[0], one[2]), (one[1], one[2])]);
                }
            }
            _ => return None,
        }
        Some(ranges)
    }

    /// Notes a use of the part of one mapping that lies in [`addr`, `end`); gives its end.
    fn use_mapping(&mut self, addr: Addr, end: Addr, stream: u64, tick: u64) -> Addr {
        let found = self.mapped.range(..=addr).next_back();
        let Some((&start, &(bytes, phys))) = found.filter(|(start, at)| addr < *start + at.0)
        else {
            panic!("stream {stream} uses {addr:#x}, where nothing is mapped");
        };
        let to = end.min(start + bytes);
        let now = Use {
            addr,
            phys,
            from: addr - start,
            to: to - start,
            stream,
            tick,
        };
        let clock = &self.streams[&stream];
        let done = &self.done;
        self.uses.retain(|earlier| {
            if earlier.phys != phys || earlier.from >= now.to || earlier.to <= now.from {
                return true;
            }
            let ordered = earlier.stream == stream
                || clock.covers(earlier.stream, earlier.tick)
                || done.covers(earlier.stream, earlier.tick);
            assert!(ordered, "{now:?} is not ordered behind {earlier:?}");
            !(now.from <= earlier.from && earlier.to <= now.to)
        });
        self.uses.push(now);
        to
    }
}

// SAFETY: it has no memory, and runs nothing.
unsafe impl Backend for Ordered {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn is_watched(&self) -> bool {
        false
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.info.total_bytes - self.enter().used)
    }

    fn counts(&self) -> HandleCounts {
        let state = self.enter();
        HandleCounts {
            ranges: state.ranges.len() as u64,
            handles: state.handles.len() as u64,
            mappings: state.mapped.len() as u64,
            streams: state.streams.len() as u64,
            events: state.events.len() as u64,
            graphs: 0,
            host_bytes: 0,
            bytes: state.used,
        }
    }

    fn reserve(&self, bytes: u64) -> Result<Addr> {
        let mut state = self.enter();
        let addr = state.top;
        state.top += bytes;
        state.ranges.insert(addr, bytes);
        Ok(addr)
    }

    fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut state = self.enter();
        let standing = state.mapped.range(addr..addr + bytes).next().is_some();
        assert!(!standing, "{addr:#x} is given back with mappings in it");
        state
            .ranges
            .remove(&addr)
            .map(|_| ())
            .ok_or_else(|| unknown("addr"))
    }

    fn create(&self, bytes: u64) -> Result<Phys> {
        let mut state = self.enter();
        if state.used + bytes > self.info.total_bytes {
            return Err(Error::Driver {
                call: "create",
                code: 2,
                words: String::from("out of memory"),
            });
        }
        state.used += bytes;
        let phys = state.number();
        state.handles.insert(phys, bytes);
        Ok(Phys(phys))
    }

    fn release(&self, phys: Phys) -> Result<()> {
        let mut state = self.enter();
        let bytes = state.handles.remove(&phys.0);
        let bytes = bytes.ok_or_else(|| unknown("phys"))?;
        state.released.insert(phys.0, bytes);
        state.forget(phys.0);
        Ok(())
    }

    fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        let mut state = self.enter();
        assert_eq!(
            state.handles.get(&phys.0),
            Some(&bytes),
            "{phys:?} is mapped in part"
        );
        let below = state.mapped.range(..addr + bytes).next_back();
        let clear = below.is_none_or(|(&start, &(length, _))| start + length <= addr);
        assert!(clear, "{addr:#x} is mapped already");
        state.mapped.insert(addr, (bytes, phys.0));
        Ok(())
    }

    fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut state = self.enter();
        let removed = state.mapped.remove(&addr);
        assert_eq!(
            removed.map(|mapping| mapping.0),
            Some(bytes),
            "unmapped at {addr:#x}"
        );
        let done = &state.done;
        let pending = state.uses.iter().find(|earlier| {
            (addr..addr + bytes).contains(&earlier.addr)
                && !done.covers(earlier.stream, earlier.tick)
        });
        assert!(pending.is_none(), "{addr:#x} is unmapped under {pending:?}");
        if let Some((_, phys)) = removed {
            state.forget(phys);
        }
        Ok(())
    }

    fn host_alloc(&self, _: u64) -> Result<u64> {
        Err(Error::invalid("host_alloc", "this device holds no bytes"))
    }

    fn host_free(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::invalid("host_free", "this device holds no bytes"))
    }

    fn stream_create(&self) -> Result<RawStream> {
        let mut state = self.enter();
        let stream = state.number();
        state
            .streams
            .insert(stream, Clock(HashMap::from([(stream, 0)])));
        Ok(RawStream(stream))
    }

    fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        let removed = self.enter().streams.remove(&stream.0);
        removed.map(|_| ()).ok_or_else(|| unknown("stream"))
    }

    fn stream_id(&self, stream: RawStream) -> Result<u64> {
        Ok(stream.0)
    }

    fn stream_sync(&self, stream: RawStream) -> Result<()> {
        let mut state = self.enter();
        let clock = state.clock(stream)?.clone();
        state.done.join(&clock);
        Ok(())
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let mut state = self.enter();
        let clock = state.clock(stream)?.clone();
        if state.done.covers_all(&clock) {
            return Ok(true);
        }
        let done = (self.choose)();
        if done {
            state.done.join(&clock);
        }
        Ok(done)
    }

    fn stream_capturing(&self, stream: RawStream) -> Result<bool> {
        Ok(self.enter().captures.has(stream))
    }

    fn event_create(&self, _: bool) -> Result<RawEvent> {
        let mut state = self.enter();
        let event = state.number();
        state.events.insert(event, Clock::default());
        Ok(RawEvent(event))
    }

    fn event_destroy(&self, event: RawEvent) -> Result<()> {
        let mut state = self.enter();
        state.captures.forget(event);
        let removed = state.events.remove(&event.0);
        removed.map(|_| ()).ok_or_else(|| unknown("event"))
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let mut state = self.queueing(stream);
        let clock = match state.captures.record(event, stream) {
            true => Clock::default(),
            false => state.clock(stream)?.clone(),
        };
        state.events.insert(event.0, clock);
        Ok(())
    }

    fn event_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let mut state = self.queueing(stream);
        let marked = state.events.get(&event.0).cloned();
        let marked = marked.ok_or_else(|| unknown("event"))?;
        if !state.captures.wait(stream, event)? {
            state.clock(stream)?.join(&marked);
        }
        Ok(())
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        let mut state = self.enter();
        let marked = state.events.get(&event.0).cloned();
        let marked = marked.ok_or_else(|| unknown("event"))?;
        if state.done.covers_all(&marked) {
            return Ok(true);
        }
        let done = (self.choose)();
        if done {
            state.done.join(&marked);
        }
        Ok(done)
    }

    fn event_sync(&self, event: RawEvent) -> Result<()> {
        let mut state = self.enter();
        let marked = state.events.get(&event.0).cloned();
        state.done.join(&marked.ok_or_else(|| unknown("event"))?);
        Ok(())
    }

    fn event_elapsed_ns(&self, _: RawEvent, _: RawEvent) -> Result<f64> {
        Err(Error::invalid("event", "this device keeps no time"))
    }

    unsafe fn copy_in(
        &self,
        addr: Addr,
        from: *const u8,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()> {
        // SAFETY: the caller gives so many bytes.
        let copied = unsafe { std::slice::from_raw_parts(from, bytes as usize) }.to_vec();
        let mut state = self.enter();
        state
            .copied
            .retain(|&at, _| !(addr..addr + bytes).contains(&at));
        state.copied.insert(addr, copied);
        state.use_all(stream, &[(addr, bytes)])
    }

    unsafe fn copy_out(&self, _: *mut u8, _: Addr, _: u64, _: RawStream) -> Result<()> {
        Err(Error::invalid("copy", "this device holds no bytes"))
    }

    unsafe fn copy_within(&self, _: Addr, _: Addr, _: u64, _: RawStream) -> Result<()> {
        Err(Error::invalid("copy", "this device holds no bytes"))
    }

    unsafe fn fill(&self, addr: Addr, _: u8, bytes: u64, stream: RawStream) -> Result<()> {
        let mut state = self.queueing(stream);
        match state.captures.has(stream) {
            true => Ok(()),
            false => state.use_all(stream, &[(addr, bytes)]),
        }
    }

    unsafe fn launch(&self, launch: &Launch, stream: RawStream) -> Result<()> {
        let mut state = self.enter();
        let Some(ranges) = state.ranges(launch) else {
            let why = format!("this device has no {}", launch.name());
            return Err(Error::invalid("launch", why));
        };
        state.use_all(stream, &ranges)
    }

    /// What is copied is taken at once, so that a call that lets go of it may come at once too.
    fn host_call(&self, _: RawStream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        call();
        Ok(())
    }

    fn capture_begin(&self, stream: RawStream) -> Result<()> {
        self.queueing(stream).captures.begin(stream)
    }

    fn capture_end(&self, stream: RawStream) -> Result<RawGraph> {
        self.queueing(stream).captures.end(stream).map(RawGraph)
    }

    unsafe fn graph_launch(&self, _: RawGraph, _: RawStream) -> Result<()> {
        Err(Error::invalid("graph", "this device keeps no work"))
    }

    fn graph_destroy(&self, _: RawGraph) -> Result<()> {
        Ok(())
    }
}
