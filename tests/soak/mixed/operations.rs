//! The operations, each on what one draw finds.

use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::world::{GRANULES, Held, Memory, Operation, SHARED, TAGS, Worker, panic_as_ours};
use half::f16;
use warpool::compact::{Budget, Goal};
use warpool::convert::{Rounding, convert};
use warpool::host::Contents;
use warpool::movable::Movable;
use warpool::{Block, Pool, PoolBuf, PoolConfig, Result, Stream};

/// Buffers and graphs that a thread holds at most.
const MOST_HELD: usize = 16;
const MOST_GRAPHS: usize = 4;

/// What a thread does, and how often.
pub const OPERATIONS: [Operation; 25] = [
    ("make a buffer", 5, Worker::make),
    ("drop a buffer", 3, Worker::drop_one),
    ("fill", 3, Worker::fill),
    ("read", 2, Worker::read),
    ("resize", 1, Worker::resize),
    ("free on a stream", 2, Worker::free_on),
    ("hold by number", 1, Worker::hold_by_number),
    ("prefetch", 1, Worker::prefetch),
    ("launch a kernel that may panic", 1, Worker::kernel),
    ("wait", 1, Worker::wait),
    ("capture on a private stream", 1, Worker::capture),
    ("launch a graph and drop it", 1, Worker::launch_graph),
    ("capture on a shared stream", 1, Worker::capture_shared),
    ("verify a graph", 2, Worker::verify_graph),
    ("wait for an event", 1, Worker::wait_for_event),
    ("use a shared event", 2, Worker::use_shared_event),
    ("use a shared graph", 1, Worker::use_shared_graph),
    ("use a stream that goes", 1, Worker::use_stream_that_goes),
    ("convert", 1, Worker::convert),
    ("compact", 1, Worker::compact),
    ("trim or check", 1, Worker::trim_or_check),
    ("sleep and wake", 1, Worker::sleep_and_wake),
    ("use another part", 1, Worker::another_part),
    ("use another pool", 1, Worker::another_pool),
    ("have others fill the device", 1, Worker::others),
];

impl Worker {
    fn make(&mut self) -> Result<()> {
        if self.held.len() == MOST_HELD {
            return Ok(());
        }
        let most = [5000, 300_000, 3_000_000][self.up_to(3)];
        let (stream, len) = (self.stream(), 1 + self.up_to(most));
        let memory = match self.up_to(6) {
            0 | 1 => Memory::Typed(self.part().alloc_typed(&stream, len)?),
            2 => {
                let mut buffer = self.part().grow_buf(&stream, 8 << 20)?;
                buffer.resize(len)?;
                Memory::Growing(buffer)
            }
            _ => Memory::Movable(self.make_movable(&stream, len)?),
        };
        // The graph of another thread's capture may have the memory, and not the work.
        let stream = self.stream();
        self.hold(memory, &stream)
    }

    fn hold(&mut self, memory: Memory, stream: &Stream) -> Result<()> {
        let mut held = Held { memory, value: 0 };
        held.fill(stream, self.value())?;
        self.held.push(held);
        Ok(())
    }

    fn make_movable(&mut self, stream: &Stream, len: usize) -> Result<Movable<u8>> {
        let part = self.up_to(TAGS.len());
        let buffer = self.shared.parts[part].alloc_movable(stream, len)?;
        let mut numbers = self.shared.numbers.lock().unwrap();
        // Numbers of buffers that are gone are used too.
        if numbers.len() == 60 {
            numbers.drain(..30);
        }
        numbers.push((part, buffer.id()));
        drop(numbers);
        if self.random.chance(1, 3) {
            let (shared, stream) = (Arc::downgrade(&self.shared), stream.clone());
            let what = self.random.below(12);
            buffer.on_move(move |_| {
                if let Some(shared) = shared.upgrade() {
                    shared.on_move(part, &stream, what);
                }
            });
        }
        Ok(buffer)
    }

    fn drop_one(&mut self) -> Result<()> {
        drop(self.take());
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let (stream, value) = (self.stream(), self.value());
        self.any().map_or(Ok(()), |held| held.fill(&stream, value))
    }

    fn read(&mut self) -> Result<()> {
        let (stream, verifies) = (self.stream(), !self.shared.captures);
        let Some(held) = self.any() else {
            return Ok(());
        };
        let (bytes, value) = (held.read(&stream)?, held.value);
        if verifies {
            self.check(&bytes, value);
        }
        Ok(())
    }

    fn check(&self, bytes: &[u8], value: u8) {
        if let Some(at) = bytes.iter().position(|byte| *byte != value) {
            panic!("byte {at} of {} is {}, not {value}", bytes.len(), bytes[at]);
        }
        self.shared.verified.fetch_add(bytes.len() as u64, Relaxed);
    }

    fn resize(&mut self) -> Result<()> {
        let (stream, len) = (self.stream(), 1 + self.up_to(2_000_000));
        let Some(mut held) = self.take() else {
            return Ok(());
        };
        let resized = match &mut held.memory {
            // Typed memory keeps its length.
            Memory::Typed(_) => Ok(()),
            Memory::Movable(buffer) => buffer.resize(&stream, len),
            Memory::Growing(buffer) => buffer.resize(len),
        };
        match resized {
            Ok(()) => self.hold(held.memory, &stream),
            // It is as it was.
            Err(error) => {
                self.held.push(held);
                Err(error)
            }
        }
    }

    fn free_on(&mut self) -> Result<()> {
        let stream = self.stream();
        match self.take().map(|held| held.memory) {
            Some(Memory::Movable(buffer)) => buffer.free_on(&stream),
            Some(Memory::Typed(buffer)) => self.give_up(buffer, &stream),
            _ => Ok(()),
        }
    }

    /// The block of a buffer is freed on another stream, which has the memory next.
    fn give_up(&mut self, mut buffer: PoolBuf<u8>, stream: &Stream) -> Result<()> {
        let home = self.stream();
        // For what the block's own stream was given before.
        for other in &self.shared.streams {
            stream.wait_stream(other)?;
        }
        stream.wait_stream(&self.private)?;
        for value in 0..4 {
            buffer.view_mut().fill(&home, value)?;
        }
        let len = buffer.len();
        Block::from(buffer).free_on(stream)?;
        let next = self.part().alloc_typed(stream, len)?;
        self.hold(Memory::Typed(next), stream)
    }

    fn hold_by_number(&mut self) -> Result<()> {
        let (stream, draw) = (self.stream(), self.up_to(60));
        let number = self.shared.numbers.lock().unwrap().get(draw).copied();
        let Some((part, number)) = number else {
            return Ok(());
        };
        let part = self.shared.parts[part].clone();
        let _held = part.hold_id(number, &stream)?;
        if self.random.chance(1, 3) {
            self.pause();
        }
        Ok(())
    }

    fn prefetch(&mut self) -> Result<()> {
        match self.any().map(|held| &held.memory) {
            Some(Memory::Movable(buffer)) => buffer.prefetch(),
            _ => Ok(()),
        }
    }

    fn kernel(&mut self) -> Result<()> {
        let (stream, part) = (self.stream(), self.part());
        let panics = self.random.chance(1, 3);
        let launch = |stream: &Stream| match panics {
            true => panic_as_ours(),
            false => part.alloc(stream, 3000).map(drop),
        };
        match self.any().map(|held| &held.memory) {
            Some(Memory::Typed(buffer)) => stream.kernel("reads").reads(buffer).launch(launch)?,
            Some(Memory::Growing(buffer)) => {
                let kernel = stream.kernel("reads").reads(buffer.view());
                kernel.launch(launch)?
            }
            _ => Ok(()),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let other = self.any_stream();
        match self.random.chance(1, 4) {
            true => self.own.wait_stream(&other),
            false => self.own.synchronize(),
        }
    }

    /// Of a fill that leaves the bytes as they are.
    fn capture(&mut self) -> Result<()> {
        if self.graphs.len() == MOST_GRAPHS {
            return Ok(());
        }
        let (part, private) = (self.part(), self.private.clone());
        let capture = private.begin_capture()?;
        if let Some(held) = self.any() {
            held.fill(&private, held.value)?;
            drop(part.alloc_typed::<u8>(&private, 100_000)?);
        }
        self.graphs.push(capture.end()?);
        Ok(())
    }

    /// A launch may fill with an older value: the buffers go with it.
    fn launch_graph(&mut self) -> Result<()> {
        let (stream, launches) = (self.stream(), self.random.chance(1, 3));
        let Some(graph) = self.graphs.pop() else {
            return Ok(());
        };
        if launches {
            let launched = graph.launch(&stream);
            self.held.clear();
            return launched;
        }
        Ok(())
    }

    /// Other threads go on with the stream.
    fn capture_shared(&mut self) -> Result<()> {
        if !self.shared.captures {
            return Ok(());
        }
        let (stream, other) = (self.stream(), self.any_stream());
        let capture = stream.begin_capture()?;
        self.pause();
        if self.random.chance(1, 3) {
            return Ok(());
        }
        let graph = capture.end()?;
        for _ in 0..self.up_to(3) {
            graph.launch(&other)?;
        }
        if self.random.chance(1, 2) && self.graphs.len() < MOST_GRAPHS {
            self.graphs.push(graph);
        }
        Ok(())
    }

    /// What a graph reads goes through memory of its own, whatever other threads do on the stream meanwhile.
    fn verify_graph(&mut self) -> Result<()> {
        if !self.shared.captures {
            return Ok(());
        }
        let (part, private, stream) = (self.part(), self.private.clone(), self.stream());
        let len = 1 + self.up_to(100_000);
        let mut src = part.alloc_typed::<u8>(&private, len)?;
        let mut dst = part.alloc_typed::<u8>(&private, len)?;
        let capture = stream.begin_capture()?;
        let mut own = part.alloc_typed(&stream, len)?;
        own.view_mut().copy_from(&stream, &src)?;
        dst.view_mut().copy_from(&stream, &own)?;
        drop(own);
        self.pause();
        let graph = capture.end()?;
        for _ in 0..3 {
            let (value, on) = (self.value(), self.any_stream());
            src.view_mut().fill(&private, value)?;
            graph.launch(&on)?;
            self.check(&dst.view().download(&private)?, value);
        }
        Ok(())
    }

    fn wait_for_event(&mut self) -> Result<()> {
        let (stream, other) = (self.stream(), self.any_stream());
        let event = stream.device().event()?;
        event.record(&stream)?;
        other.wait(&event)?;
        if self.random.chance(1, 3) {
            stream.is_idle()?;
        }
        Ok(())
    }

    /// Other threads record it, wait for it and drop it.
    fn use_shared_event(&mut self) -> Result<()> {
        let (stream, place) = (self.stream(), self.up_to(SHARED));
        let place = &Arc::clone(&self.shared).events[place];
        let event = Arc::clone(&place.lock().unwrap());
        match self.up_to(6) {
            0 | 1 => event.record(&stream),
            2 | 3 => stream.wait(&event),
            4 => event.is_done().map(drop),
            _ => {
                let another = Arc::new(stream.device().event()?);
                let before = replace(&mut *place.lock().unwrap(), another);
                drop((event, before));
                Ok(())
            }
        }
    }

    /// Other threads launch it and drop it.
    fn use_shared_graph(&mut self) -> Result<()> {
        let (stream, place) = (self.stream(), self.up_to(SHARED));
        let place = &Arc::clone(&self.shared).graphs[place];
        let graph = place.lock().unwrap().clone();
        if let Some(graph) = graph.filter(|_| self.random.chance(3, 4)) {
            return graph.launch(&stream);
        }
        let (part, private, value) = (self.part(), self.private.clone(), self.value());
        let capture = private.begin_capture()?;
        let mut scratch = part.alloc_typed::<u8>(&private, 100_000)?;
        scratch.view_mut().fill(&private, value)?;
        let graph = Arc::new(capture.end()?);
        let before = place.lock().unwrap().replace(graph);
        drop(before);
        Ok(())
    }

    fn use_stream_that_goes(&mut self) -> Result<()> {
        let stream = self.own.device().stream()?;
        let buffer = self.part().alloc_typed(&stream, 50_000)?;
        self.hold(Memory::Typed(buffer), &stream)?;
        self.any_stream().wait_stream(&stream)
    }

    fn convert(&mut self) -> Result<()> {
        let (stream, other, part) = (self.stream(), self.stream(), self.part());
        // Of four equal bytes.
        let value = f32::from_bits(0x3F3F_3F3F);
        let len = 1 + self.up_to(50_000);
        let mut wide = part.alloc_typed::<f32>(&stream, len)?;
        wide.view_mut().fill(&stream, value)?;
        let mut narrow = part.alloc_typed::<f16>(&other, len)?;
        convert(&other, wide.view(), narrow.view_mut(), Rounding::Nearest)?;
        drop(wide);
        let halves = narrow.view().download(&stream)?;
        if !self.shared.captures {
            assert_eq!(halves, vec![f16::from_f32(value); len]);
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<()> {
        let goal = match self.random.chance(1, 2) {
            true => Goal::Full,
            false => Goal::Hole(self.random.below(4 << 20)),
        };
        let budget = Budget::bytes(self.random.below(4 << 20));
        let mut pass = self.part().begin_compaction(goal, budget)?;
        for _ in 0..3 {
            if pass.step()?.finished {
                break;
            }
        }
        Ok(())
    }

    fn trim_or_check(&mut self) -> Result<()> {
        let part = self.part();
        match self.up_to(16) {
            0 | 1 => part.trim(0).map(drop),
            2 => {
                part.check_invariants().unwrap();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn sleep_and_wake(&mut self) -> Result<()> {
        if self.random.chance(5, 6) {
            return Ok(());
        }
        let tags = [TAGS[self.up_to(TAGS.len())]];
        let shared = Arc::clone(&self.shared);
        let asleep = shared.root.sleep(&tags, Contents::Saved(&shared.host));
        self.pause();
        shared.root.wake(&tags)?;
        asleep.map(drop)
    }

    fn another_part(&mut self) -> Result<()> {
        if self.random.chance(9, 10) {
            return Ok(());
        }
        let (name, stream) = (format!("part {}", self.up_to(3)), self.stream());
        let part = self.part().tagged(&name)?;
        part.alloc_filled::<u8>(&stream, 200_000, 7)?
            .download()
            .map(drop)
    }

    /// It goes while others work, before its memory does.
    fn another_pool(&mut self) -> Result<()> {
        if self.random.chance(19, 20) {
            return Ok(());
        }
        let stream = self.stream();
        let pool = Pool::new(stream.device(), PoolConfig::default().sleeps(true))?;
        let typed = pool.alloc_filled::<u8>(&stream, 100_000, 9);
        let _movable = pool.alloc_movable::<u64>(&stream, 10_000);
        drop(pool);
        typed?.download().map(drop)
    }

    /// Others hold more or fewer of the device's handles than before: now and then all.
    fn others(&mut self) -> Result<()> {
        let granules = match self.random.chance(1, 4) {
            true => GRANULES,
            false => self.up_to(GRANULES * 3 / 4),
        };
        self.shared.others_have(granules)
    }
}
