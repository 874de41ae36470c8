//! Device time of the kernels that move live data, beside the device's own copy.
//!
//! On a machine without a GPU the host device runs, on less memory: that shows the bench works and
//! says nothing about a GPU.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use warpool::compact::{Move, MoveTable, SlideTable};
use warpool::device::{DeviceKind, Launch};
use warpool::driver::abi;
use warpool::{Device, Error, Event, Stream};

const SLIDE_SHIFTS: [u64; 6] = [16, 4 << 10, 64 << 10, 1 << 20, 64 << 20, 100 << 20];

/// Two areas of `bytes` each with room for tables behind them, on one stream.
struct Field {
    stream: Stream,
    start: Event,
    end: Event,
    base: u64,
    bytes: u64,
    mapped: u64,
    phys: warpool::device::Phys,
}

impl Field {
    fn new() -> Result<Self, Error> {
        let (device, no_gpu) = Device::any()?;
        if let Some(why) = no_gpu {
            eprintln!("on the host device: {why}");
        }
        let bytes: u64 = if device.info().kind == DeviceKind::Cuda {
            1 << 30
        } else {
            16 << 20
        };
        let backend = device.backend();
        let mapped = (2 * bytes + bytes / 2 + (64 << 20)).next_multiple_of(device.info().granule);
        let base = backend.reserve(mapped)?;
        let phys = backend.create(mapped)?;
        backend.map(base, mapped, phys)?;
        let field = Self {
            stream: device.stream()?,
            start: device.timing_event()?,
            end: device.timing_event()?,
            base,
            bytes,
            mapped,
            phys,
        };
        // SAFETY: the area is mapped and nothing else uses it.
        unsafe { backend.fill(base, 0x5A, mapped, field.stream.raw()) }?;
        Ok(field)
    }

    fn tables(&self) -> u64 {
        self.base + 2 * self.bytes
    }

    fn upload(&self, offset: u64, image: &[u8]) -> Result<u64, Error> {
        let at = self.tables() + offset;
        // SAFETY: the tables' area is mapped, and the copy is done before `image` goes.
        unsafe {
            let backend = self.stream.device().backend();
            backend.copy_in(at, image.as_ptr(), image.len() as u64, self.stream.raw())?;
        }
        self.stream.synchronize()?;
        Ok(at)
    }

    fn launch(&self, launch: &Launch) -> Result<(), Error> {
        // SAFETY: every launch of this bench names ranges of the mapped area alone.
        unsafe {
            self.stream
                .device()
                .backend()
                .launch(launch, self.stream.raw())
        }
    }

    /// Device time of `times` runs of `work`.
    fn time(&self, times: u64, work: impl Fn() -> Result<(), Error>) -> Duration {
        let run = || {
            self.start.record(&self.stream)?;
            for _ in 0..times {
                work()?;
            }
            self.end.record(&self.stream)?;
            self.stream.synchronize()?;
            self.end.elapsed_ns(&self.start)
        };
        run().map_or_else(
            |why: Error| unusable(&why),
            |ns| Duration::from_nanos(ns as u64),
        )
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

fn unusable(why: &Error) -> Duration {
    eprintln!("the device failed: {why}");
    std::process::exit(1)
}

fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for i in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

/// Blocks of the first area sent to the second in shuffled order. `sizes` cover the area.
fn scattered(field: &Field, sizes: &[u64]) -> Vec<Move> {
    let mut starts = Vec::with_capacity(sizes.len());
    let mut at = field.base;
    for size in sizes {
        starts.push(at);
        at += size;
    }
    let mut dst = field.base + field.bytes;
    let mut moves = Vec::with_capacity(sizes.len());
    for i in shuffled(sizes.len() as u64) {
        let (src, bytes) = (starts[i as usize], sizes[i as usize]);
        moves.push(Move { src, dst, bytes });
        dst += bytes;
    }
    moves
}

fn mixed(total: u64) -> Vec<u64> {
    let (mut sizes, mut left, mut state) = (Vec::new(), total, 0x1234_5678_9ABC_DEF1u64);
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let octave = 256u64 << (state % 17);
        let size = (octave + (state >> 20) % octave) / 256 * 256;
        sizes.push(size.min(left));
        left -= size.min(left);
    }
    sizes
}

fn batch(
    group: &mut BenchmarkGroup<'_, WallTime>,
    field: &Field,
    name: &str,
    sizes: &[u64],
) -> Result<(), Error> {
    let moves = scattered(field, sizes);
    let table = MoveTable::new(&moves)?;
    let launch = Launch::Relocate(table.args(field.upload(0, &table.image())?, 0));
    group.throughput(Throughput::Bytes(2 * sizes.iter().sum::<u64>()));
    group.bench_function(BenchmarkId::new("batched", name), |bencher| {
        bencher.iter_custom(|times| field.time(times, || field.launch(&launch)));
    });
    Ok(())
}

fn slide(
    group: &mut BenchmarkGroup<'_, WallTime>,
    field: &Field,
    name: &str,
    moves: &[Move],
) -> Result<(), Error> {
    let table = SlideTable::new(moves, false)?;
    let at = field.upload(0, table.image())?;
    let scratch = (at + table.image().len() as u64).next_multiple_of(256);
    let launch = Launch::Slide(table.args(at, scratch, 0)?);
    group.throughput(Throughput::Bytes(
        2 * moves.iter().map(|m| m.bytes).sum::<u64>(),
    ));
    group.bench_function(BenchmarkId::new("slide", name), |bencher| {
        bencher.iter_custom(|times| field.time(times, || field.launch(&launch)));
    });
    Ok(())
}

fn patch(group: &mut BenchmarkGroup<'_, WallTime>, field: &Field) -> Result<(), Error> {
    let ranges = 100_000u64;
    let slots = field.bytes / 8;
    // Each range is sent to itself, so that every run finds the slots as the one before did.
    let table: Vec<u64> = (0..ranges)
        .flat_map(|i| [(1 << 40) + i * 8192, (1 << 40) + i * 8192, 4096])
        .collect();
    let image: Vec<u64> = (0..slots)
        .map(|i| (1 << 40) + i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (ranges * 8192))
        .collect();
    let at = field.upload(0, bytemuck::cast_slice(&table))?;
    // SAFETY: the first area is mapped for all slots, and the copy is done before `image` goes.
    unsafe {
        let backend = field.stream.device().backend();
        backend.copy_in(
            field.base,
            image.as_ptr().cast(),
            8 * slots,
            field.stream.raw(),
        )?;
    }
    field.stream.synchronize()?;
    let launch = Launch::Patch(abi::wp_patch {
        slots: field.base,
        slot_count: slots,
        ranges: at,
        range_count: ranges as u32,
        max_blocks: 0,
    });
    group.throughput(Throughput::Elements(slots));
    group.bench_function(BenchmarkId::new("patch", ranges), |bencher| {
        bencher.iter_custom(|times| field.time(times, || field.launch(&launch)));
    });
    Ok(())
}

fn all(criterion: &mut Criterion) -> Result<(), Error> {
    let field = Field::new()?;
    let mut group = criterion.benchmark_group("relocate");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(2 * field.bytes));
    group.bench_function("copy_within", |bencher| {
        // SAFETY: both areas are mapped.
        let copy = || unsafe {
            let (dst, backend) = (field.base + field.bytes, field.stream.device().backend());
            backend.copy_within(dst, field.base, field.bytes, field.stream.raw())
        };
        bencher.iter_custom(|times| field.time(times, copy));
    });
    for size in [256u64, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        batch(
            &mut group,
            &field,
            &size.to_string(),
            &vec![size; (field.bytes / size) as usize],
        )?;
    }
    batch(&mut group, &field, "mixed", &mixed(field.bytes))?;
    let small = (field.bytes / 8192).min(100_000);
    let mut skewed = vec![4096; small as usize];
    skewed.push(field.bytes - small * 4096);
    batch(&mut group, &field, "skewed", &skewed)?;
    for shift in SLIDE_SHIFTS
        .into_iter()
        .filter(|shift| shift < &field.bytes)
    {
        let one = Move {
            src: field.base + shift,
            dst: field.base,
            bytes: field.bytes,
        };
        slide(&mut group, &field, &shift.to_string(), &[one])?;
    }
    let pitch = field.bytes / 10_000 / 512 * 512;
    let row: Vec<Move> = (0..10_000)
        .map(|i| Move {
            src: field.base + (i + 1) * pitch,
            dst: field.base + i * (pitch - 256),
            bytes: pitch - 256,
        })
        .collect();
    slide(&mut group, &field, "neighbours", &row)?;
    patch(&mut group, &field)?;
    group.finish();
    Ok(())
}

fn relocate(criterion: &mut Criterion) {
    if let Err(why) = all(criterion) {
        unusable(&why);
    }
}

criterion_group!(benches, relocate);
criterion_main!(benches);
