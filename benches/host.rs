//! Copies between page-locked host memory and the device: `cargo bench --bench host`.
//!
//! - `up`, `down`: copies of a size from and to buffers of a [`HostPool`], beside the same copies as the
//!   driver makes them, asked for by address;
//! - `both`: one each way at once, on a stream each; the bytes of both count;
//! - `file_up`: a file that the system has in memory, by way of the ring, beside the reads alone, into one
//!   page-locked buffer: a disk that is slower bounds both (with `--features files`);
//! - `staged_up`: from memory of any kind by way of the pool's ring, beside the driver's own copy of it;
//! - `sleep`, `wake`: a pool that sleeps with its contents, beside the copies alone, and `take_down`,
//!   `make_again`: without its contents, which is the driver's time for the handles, beside nothing.
//!
//! A hundred of the smaller copies are queued before they are waited for. `WARPOOL_BENCH_DEVICE` and
//! `WARPOOL_BENCH_JSON` are read as by the other benches.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::record::About;
use common::{BackendOf, Figure, Lab, Random};
use warpool::host::{Contents, HostBuf, HostPool, HostPoolConfig};
use warpool::{Pool, PoolBuf, PoolConfig, Stream};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZES: [(&str, u64); 5] = [
    ("16 KiB", 16 * KIB),
    ("256 KiB", 256 * KIB),
    ("4 MiB", 4 * MIB),
    ("64 MiB", 64 * MIB),
    ("1 GiB", 1024 * MIB),
];

/// A buffer on each side, and a stream for their copies.
struct Side {
    host: HostBuf<u64>,
    device: PoolBuf<u64>,
    stream: Stream,
}

/// What makes the copies.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Warpool,
    Driver,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Warpool => "warpool",
            Self::Driver => "driver",
        }
    }
}

impl Side {
    fn new(lab: &Lab, (pool, host): (&Pool, &HostPool), bytes: u64) -> Self {
        let stream = lab.device.stream().expect("a stream");
        let count = (bytes / 8) as usize;
        let mut from = host.alloc::<u64>(count).expect("host memory");
        let mut random = Random(bytes);
        (from.get_mut().expect("idle")).fill_with(|| random.next());
        let device = pool.alloc_zeroed::<u64>(&stream, count).expect("a buffer");
        stream.synchronize().expect("done");
        Self {
            host: from,
            device,
            stream,
        }
    }

    fn up(&mut self, by: By) {
        if by == By::Warpool {
            let to = self.device.view_mut();
            return (to.upload_from(&self.stream, &self.host)).expect("queued");
        }
        let (to, bytes) = (self.device.addr(), 8 * self.device.len() as u64);
        let from = self.host.get().expect("host memory").as_ptr().cast::<u8>();
        let backend = self.stream.device().backend();
        // SAFETY: both are as long, and are dropped behind the stream's end.
        unsafe { backend.copy_in(to, from, bytes, self.stream.raw()) }.expect("queued");
    }

    fn down(&mut self, by: By) {
        if by == By::Warpool {
            let to = &mut self.host;
            return (self.device.view().download_into(&self.stream, to)).expect("queued");
        }
        let (from, bytes) = (self.device.addr(), 8 * self.device.len() as u64);
        let to = (self.host.get_mut().expect("host memory")).as_mut_ptr();
        let backend = self.stream.device().backend();
        // SAFETY: as above.
        unsafe { backend.copy_out(to.cast(), from, bytes, self.stream.raw()) }.expect("queued");
    }
}

/// Queues `iters` copies, so many of them at once as keep the bus busy, and waits for all.
fn copies(iters: u64, sides: &mut [&mut Side], queue: impl Fn(usize, &mut Side)) -> Duration {
    let start = Instant::now();
    let mut left = iters;
    while left > 0 {
        let now = left.min(100);
        for _ in 0..now {
            for (at, side) in sides.iter_mut().enumerate() {
                queue(at, side);
            }
        }
        for side in sides.iter() {
            side.stream.synchronize().expect("done");
        }
        left -= now;
    }
    start.elapsed()
}

fn copies_of_buffers(lab: &mut Lab, pools: (&Pool, &HostPool), (case, bytes): (&str, u64)) {
    let mut first = Side::new(lab, pools, bytes);
    let mut second = Side::new(lab, pools, bytes);
    for by in [By::Warpool, By::Driver] {
        let one_way = Figure::GbPerS { bytes };
        lab.measure(("up", case, by.name()), one_way, |iters| {
            copies(iters, &mut [&mut first], |_, side| side.up(by))
        });
        lab.measure(("down", case, by.name()), one_way, |iters| {
            copies(iters, &mut [&mut first], |_, side| side.down(by))
        });
        let both = Figure::GbPerS { bytes: 2 * bytes };
        lab.measure(("both", case, by.name()), both, |iters| {
            copies(iters, &mut [&mut first, &mut second], |at, side| match at {
                0 => side.up(by),
                _ => side.down(by),
            })
        });
    }
    let sent = first.host.get().expect("done").to_vec();
    first.up(By::Warpool);
    assert_eq!(first.device.download().expect("copied"), sent, "{case}");
}

fn staged(lab: &mut Lab, (pool, host): (&Pool, &HostPool), (case, bytes): (&str, u64)) {
    let stream = lab.device.stream().expect("a stream");
    let mut random = Random(1);
    let data: Vec<u64> = (0..bytes / 8).map(|_| random.next()).collect();
    let mut to = pool
        .alloc_zeroed::<u64>(&stream, data.len())
        .expect("a buffer");
    let figure = Figure::GbPerS { bytes };
    lab.measure(("staged_up", case, "warpool"), figure, |iters| {
        let start = Instant::now();
        for _ in 0..iters {
            host.stage_in(&stream, to.view_mut(), &data)
                .expect("copied");
        }
        stream.synchronize().expect("done");
        start.elapsed()
    });
    if lab.wants("staged_up") {
        assert_eq!(to.download().expect("copied"), data, "{case}");
    }
    lab.measure(("staged_up", case, "driver"), figure, |iters| {
        let start = Instant::now();
        for _ in 0..iters {
            let (addr, from) = (to.addr(), data.as_ptr().cast::<u8>());
            // SAFETY: both are as long; the driver has read pageable memory when it returns, or the
            // stream is waited for before it goes.
            unsafe { lab_backend(&stream).copy_in(addr, from, bytes, stream.raw()) }
                .expect("queued");
        }
        stream.synchronize().expect("done");
        start.elapsed()
    });
}

#[cfg(feature = "files")]
fn file(lab: &mut Lab, (pool, host): (&Pool, &HostPool), (case, bytes): (&str, u64)) {
    use std::fs::{File, write};
    use std::io::Read;
    use warpool::host::TensorFile;
    let stream = lab.device.stream().expect("a stream");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("values");
    let mut random = Random(2);
    let data: Vec<u64> = (0..bytes / 8).map(|_| random.next()).collect();
    write(&path, bytemuck::cast_slice(&data)).expect("written");
    let values = TensorFile::open_raw::<u64>(&path, 0, &[data.len()]).expect("a file");
    let figure = Figure::GbPerS { bytes };
    lab.measure(("file_up", case, "warpool"), figure, |iters| {
        let start = Instant::now();
        for _ in 0..iters {
            let loaded = values.load::<u64>(pool, host, &stream, "", ..);
            drop(loaded.expect("loaded"));
        }
        stream.synchronize().expect("done");
        start.elapsed()
    });
    let loaded = values.load::<u64>(pool, host, &stream, "", ..);
    assert_eq!(loaded.and_then(|it| it.download()).expect("loaded"), data);
    let mut buf = host.alloc::<u64>(data.len()).expect("host memory");
    lab.measure(("file_up", case, "reads alone"), figure, |iters| {
        let start = Instant::now();
        for _ in 0..iters {
            let into = bytemuck::cast_slice_mut(buf.get_mut().expect("idle"));
            (File::open(&path).and_then(|mut file| file.read_exact(into))).expect("read");
        }
        start.elapsed()
    });
}

/// A pool that sleeps and wakes, whose blocks have 32 MiB each.
fn slept(lab: &mut Lab, host: &HostPool, (case, bytes): (&str, u64)) {
    let stream = lab.device.stream().expect("a stream");
    let pool = Pool::new(&lab.device, PoolConfig::default().sleeps(true)).expect("a pool");
    let mut blocks: Vec<PoolBuf<u64>> = (0..bytes / (32 * MIB))
        .map(|number| pool.alloc_filled(&stream, (4 * MIB) as usize, number))
        .collect::<Result<_, _>>()
        .expect("blocks");
    let figure = Figure::GbPerS { bytes };
    for (down, up, contents) in [
        ("sleep", "wake", Contents::Saved(host)),
        ("take_down", "make_again", Contents::Discarded),
    ] {
        let sleep = || _ = pool.sleep(&[], contents).expect("asleep");
        let wake = || _ = pool.wake(&[]).expect("awake");
        lab.measure((down, case, "warpool"), figure, |iters| {
            (0..iters).map(|_| timed(sleep, wake).0).sum()
        });
        lab.measure((up, case, "warpool"), figure, |iters| {
            (0..iters).map(|_| timed(sleep, wake).1).sum()
        });
        if matches!(contents, Contents::Saved(_)) {
            let right = |(number, block): (u64, &PoolBuf<u64>)| {
                (block.download().expect("copied").iter()).all(|&it| it == number)
            };
            assert!((0..).zip(&blocks).all(right), "{case}");
        }
    }
    let mut saved: Vec<HostBuf<u64>> = (blocks.iter())
        .map(|block| host.alloc(block.len()))
        .collect::<Result<_, _>>()
        .expect("host memory");
    for name in ["sleep", "wake"] {
        lab.measure((name, case, "driver"), figure, |iters| {
            let start = Instant::now();
            for _ in 0..iters {
                for (block, saved) in blocks.iter_mut().zip(&mut saved) {
                    let queued = match name {
                        "sleep" => block.view().download_into(&stream, saved),
                        _ => block.view_mut().upload_from(&stream, &*saved),
                    };
                    queued.expect("queued");
                }
                stream.synchronize().expect("done");
            }
            start.elapsed()
        });
    }
}

/// How long the one takes, and then the other.
fn timed(first: impl Fn(), second: impl Fn()) -> (Duration, Duration) {
    let start = Instant::now();
    first();
    let middle = Instant::now();
    second();
    (middle - start, middle.elapsed())
}

fn lab_backend(stream: &Stream) -> &dyn warpool::device::Backend {
    &**stream.device().backend()
}

fn main() {
    let mut lab = Lab::new("host");
    let pool = Pool::new(&lab.device, PoolConfig::default()).expect("a pool");
    let host = HostPool::new(&lab.device, HostPoolConfig::default());
    for size in SIZES {
        copies_of_buffers(&mut lab, (&pool, &host), size);
    }
    for size in [("4 MiB", 4 * MIB), ("256 MiB", 256 * MIB)] {
        staged(&mut lab, (&pool, &host), size);
    }
    #[cfg(feature = "files")]
    for size in [("4 MiB", 4 * MIB), ("512 MiB", 512 * MIB)] {
        file(&mut lab, (&pool, &host), size);
    }
    drop(pool);
    for size in [("1 GiB", 1024 * MIB), ("8 GiB", 8192 * MIB)] {
        slept(&mut lab, &host, size);
    }
    lab.criterion.final_summary();
    lab.record.print();
    if let Some(path) = std::env::var_os("WARPOOL_BENCH_JSON") {
        let about = About {
            title: "Copies between the host and the device",
            command: "cargo bench --bench host".to_owned(),
        };
        lab.record.write(&PathBuf::from(path), &lab.device, &about);
    }
}
