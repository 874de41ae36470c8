//! Device memory of random content to move things in, with a host copy to check against.

use std::time::Duration;

use warpool::compact::Move;
use warpool::device::{DeviceKind, Launch, Phys};
use warpool::{Device, Event, Stream};

use super::Random;

/// What a destination holds before it is written.
const POISON: u8 = 0x5A;

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
    image: Vec<u64>,
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
        let backend = self.stream.device().backend();
        // SAFETY: the range is mapped, and the copy is done before `image` goes.
        unsafe { backend.copy_in(addr, image.as_ptr(), image.len() as u64, self.stream.raw()) }
            .expect("copied");
        self.stream.synchronize().expect("done");
        addr
    }

    /// The `count` words at `addr`.
    pub fn download(&self, addr: u64, count: u64) -> Vec<u64> {
        let mut words = vec![0u64; count as usize];
        let backend = self.stream.device().backend();
        // SAFETY: the range is mapped, and the copy is done before `words` is read.
        unsafe {
            let to = words.as_mut_ptr().cast();
            backend.copy_out(to, addr, 8 * count, self.stream.raw())
        }
        .expect("copied");
        self.stream.synchronize().expect("done");
        words
    }

    /// Random content in the first area, poison in the second.
    pub fn restore(&self) {
        self.upload(self.base, bytemuck::cast_slice(&self.image));
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
    /// before anything is written, and nothing else changed.
    pub fn check(&self, what: &str, moves: &[Move], work: impl FnOnce()) {
        self.restore();
        work();
        let at = |addr: u64| ((addr - self.base) / 8) as usize;
        let poison = u64::from_ne_bytes([POISON; 8]);
        let mut expected = self.image.clone();
        expected.resize(2 * self.image.len(), poison);
        for m in moves {
            let from = &self.image[at(m.src)..at(m.src + m.bytes)];
            expected[at(m.dst)..at(m.dst + m.bytes)].copy_from_slice(from);
        }
        let found = self.download(self.base, 2 * self.area / 8);
        if let Some(first) = found.iter().zip(&expected).position(|(a, b)| a != b) {
            eprintln!("{what}: wrong from byte {:#x} of the field on", 8 * first);
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
