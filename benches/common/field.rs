//! Device memory of random content to move things in, with a host copy to check against.

use crate::common::BackendOf;
use std::cell::{Cell, RefCell};
use std::time::Duration;

use warpool::compact::Move;
use warpool::device::{DeviceKind, Launch, Phys};
use warpool::{Device, Event, Stream};

use super::Random;

/// What a destination holds before it is written.
const POISON: u8 = 0x5A;
const POISONED: u64 = u64::from_ne_bytes([POISON; 8]);

/// Two areas of `area` bytes each, the first of random content, and room for tables behind them.
pub struct Field {
    pub stream: Stream,
    start: Event,
    end: Event,
    /// Bytes that the benches move; the areas are half as large again.
    pub bytes: u64,
    pub area: u64,
    pub base: u64,
    mapped: u64,
    phys: Phys,
    /// What the first area holds at first, and again before a check.
    image: Vec<u64>,
    /// Whether the first area holds something else now.
    dirty: Cell<bool>,
    /// Room for what is read back.
    found: RefCell<Vec<u64>>,
}

impl Field {
    /// A gibibyte to move on a GPU, several times what its caches hold; less on the host.
    pub fn new(device: &Device) -> Self {
        let cuda = device.info().kind == DeviceKind::Cuda;
        let bytes: u64 = if cuda { 1 << 30 } else { 16 << 20 };
        let (area, backend) = (bytes + bytes / 2, device.backend());
        let mapped = (2 * area + bytes / 2 + (64 << 20)).next_multiple_of(device.info().granule);
        let base = backend.reserve(mapped).expect("addresses");
        let phys = backend.create(mapped).expect("memory");
        backend.map(base, mapped, phys).expect("mapped");
        let mut random = Random(1);
        let field = Self {
            stream: device.stream().expect("a stream"),
            start: device.timing_event().expect("an event"),
            end: device.timing_event().expect("an event"),
            bytes,
            area,
            base,
            mapped,
            phys,
            image: (0..area / 8).map(|_| random.next()).collect(),
            dirty: Cell::new(true),
            found: RefCell::new(vec![0; (area / 8) as usize]),
        };
        field.restore();
        field
    }

    /// The start of the second area.
    pub fn second(&self) -> u64 {
        self.base + self.area
    }

    /// The start of the room for tables.
    pub fn tables(&self) -> u64 {
        self.base + 2 * self.area
    }

    /// Copies `image` to `addr`.
    pub fn upload(&self, addr: u64, image: &[u8]) -> u64 {
        assert!(addr + image.len() as u64 <= self.base + self.mapped);
        self.dirty.set(self.dirty.get() || addr < self.second());
        let backend = self.stream.device().backend();
        // SAFETY: the range is mapped, and the copy is done before `image` goes.
        unsafe { backend.copy_in(addr, image.as_ptr(), image.len() as u64, self.stream.raw()) }
            .expect("copied");
        self.stream.synchronize().expect("done");
        addr
    }

    /// The `count` words at `addr`.
    pub fn download(&self, addr: u64, count: u64) -> Vec<u64> {
        let mut words = vec![0; count as usize];
        self.read(addr, &mut words);
        words
    }

    fn read(&self, addr: u64, words: &mut [u64]) {
        let (bytes, to) = (8 * words.len() as u64, words.as_mut_ptr().cast());
        let (backend, raw) = (self.stream.device().backend(), self.stream.raw());
        // SAFETY: the range is mapped, and the copy is done before `words` is read.
        unsafe { backend.copy_out(to, addr, bytes, raw) }.expect("copied");
        self.stream.synchronize().expect("done");
    }

    /// Random content in the first area, poison in the second.
    pub fn restore(&self) {
        if self.dirty.get() {
            self.upload(self.base, bytemuck::cast_slice(&self.image));
            self.dirty.set(false);
        }
        let backend = self.stream.device().backend();
        // SAFETY: the area is mapped and nothing else uses it.
        unsafe { backend.fill(self.second(), POISON, self.area, self.stream.raw()) }
            .expect("filled");
    }

    pub fn launch(&self, launch: &Launch) {
        self.launch_on(launch, &self.stream);
    }

    pub fn launch_on(&self, launch: &Launch, stream: &Stream) {
        // SAFETY: every launch of these benches names ranges of the mapped memory alone.
        unsafe { stream.device().backend().launch(launch, stream.raw()) }.expect("launched");
    }

    /// Queues the device's own copy of `bytes` from the first area to the second.
    pub fn copy(&self, bytes: u64) {
        let backend = self.stream.device().backend();
        // SAFETY: both areas are mapped.
        unsafe { backend.copy_within(self.second(), self.base, bytes, self.stream.raw()) }
            .expect("copied");
    }

    /// Device time of `times` runs of `work`, which queues on the field's stream.
    pub fn time(&self, times: u64, work: impl FnMut()) -> Duration {
        self.time_on(&self.stream, times, work)
    }

    /// Device time of `times` runs of `work`, which queues on `stream`.
    pub fn time_on(&self, stream: &Stream, times: u64, mut work: impl FnMut()) -> Duration {
        self.start.record(stream).expect("recorded");
        for _ in 0..times {
            work();
        }
        self.end.record(stream).expect("recorded");
        stream.synchronize().expect("done");
        let ns = self.end.elapsed_ns(&self.start).expect("timed");
        Duration::from_nanos(ns as u64)
    }

    /// Runs `work` on fresh content and ends the bench unless `moves` were made: everything read
    /// before anything is written, and nothing else of the area changed that they write to.
    pub fn check(&self, what: &str, moves: &[Move], work: impl FnOnce()) {
        let second = moves.iter().all(|m| m.dst >= self.second());
        self.restore();
        work();
        let area = if second { self.second() } else { self.base };
        self.dirty.set(!second);
        let mut found = self.found.borrow_mut();
        self.read(area, &mut found);
        let mut order: Vec<&Move> = moves.iter().collect();
        order.sort_by_key(|m| m.dst);
        let at = |addr: u64, start: u64| ((addr - start) / 8) as usize;
        let unmoved = |from: usize, to: usize| match second {
            true => found[from..to].iter().all(|&word| word == POISONED),
            false => found[from..to] == self.image[from..to],
        };
        let mut end = 0;
        let mut right = true;
        for m in order {
            let (dst, src, words) = (at(m.dst, area), at(m.src, self.base), m.bytes as usize / 8);
            right &= unmoved(end, dst);
            end = dst + words;
            right &= found[dst..end] == self.image[src..src + words];
        }
        right &= unmoved(end, found.len());
        if !right {
            eprintln!("{what}: the bytes are not where the moves put them");
            std::process::exit(1);
        }
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let backend = self.stream.device().backend();
        let _ = self.stream.synchronize();
        let _ = backend.unmap(self.base, self.mapped);
        let _ = backend.release(self.phys);
        let _ = backend.unreserve(self.base, self.mapped);
    }
}
