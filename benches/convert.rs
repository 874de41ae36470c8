//! Conversions, each beside a device-to-device copy in the same run.
//!
//! Times are of the device, between two events around a burst of launches, so the host's share is
//! left out; bytes are those read plus those written. On a machine without a GPU the host device runs
//! the same at small sizes. After criterion's figures a table gives each conversion's rate and its
//! ratio to the largest copy. Where `scripts/bench-peers.sh` has built it, CUB's transform converts the
//! same elements in the same run, in lines that begin with `cub`. Two last lines are of the processor: the host kernel beside the `half`
//! crate's conversion of the same slice on the same core.

#[path = "convert/empty.rs"]
mod empty;
#[path = "convert/half_crate.rs"]
mod half_crate;
#[expect(dead_code, reason = "the bench of moves takes the rest")]
#[path = "common/peers.rs"]
mod peers;

use std::cell::RefCell;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use half::{bf16, f16};
use warpool::convert::{
    Conversion, ConvertTable, ConvertTo, E4m3, E5m2, Element, Fused, GradScaler, Gradients,
    Rounding, Rows, RowsMut, ScalerConfig, convert, convert_fused, convert_rows,
};
use warpool::device::{DeviceKind, Launch};
use warpool::driver::abi;
use warpool::{Block, Device, Event, Pool, PoolConfig, Stream};
use warpool::{View, ViewMut};

/// One line of the closing table.
struct Line {
    name: String,
    bytes: f64,
    ns: f64,
    /// What the ratio is to, in bytes a nanosecond, if not to the copy.
    beside: Option<f64>,
}

/// The device, memory for every bench, and what was measured.
struct Ground {
    stream: Stream,
    pool: Pool,
    from: Block,
    to: Block,
    start: Event,
    end: Event,
    bytes: u64,
    on_gpu: bool,
    lines: RefCell<Vec<Line>>,
    /// Dropped last: everything above is in its context.
    empty: Option<empty::Kernel>,
}

impl Ground {
    fn new() -> Self {
        let empty = empty::Kernel::load();
        let (device, stream) = match &empty {
            Some(empty) => empty.device_and_stream(),
            None => {
                let device = Device::any().expect("the host device is always there");
                let stream = device.stream().expect("a stream");
                (device, stream)
            }
        };
        let on_gpu = device.info().kind == DeviceKind::Cuda;
        // Of the wider side of each conversion.
        let bytes: u64 = if on_gpu { 1 << 30 } else { 1 << 22 };
        let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
        let from = pool.alloc(&stream, bytes + 4096).expect("the source");
        let to = pool.alloc(&stream, bytes + 4096).expect("the destination");
        let words: Vec<u32> = (0..(bytes / 4 + 1024) as u32).map(noise).collect();
        // SAFETY: it is given copies between blocks below alone.
        let backend = unsafe { device.raw_backend() };
        for block in [&from, &to] {
            // SAFETY: the block has the bytes, and the words outlive the copy, which is waited for.
            unsafe {
                backend.copy_in(
                    block.addr(),
                    words.as_ptr().cast(),
                    bytes + 4096,
                    stream.raw(),
                )
            }
            .expect("upload");
            stream.synchronize().expect("upload");
        }
        let event = || device.timing_event().expect("an event");
        let (start, end) = (event(), event());
        Self {
            stream,
            pool,
            from,
            to,
            start,
            end,
            bytes,
            on_gpu,
            lines: RefCell::default(),
            empty,
        }
    }

    /// Device time of `times` calls of `work`.
    fn timed(&self, times: u64, work: &mut dyn FnMut()) -> Duration {
        self.start.record(&self.stream).expect("an event");
        for _ in 0..times {
            work();
        }
        self.end.record(&self.stream).expect("an event");
        self.end.synchronize().expect("the work");
        Duration::from_nanos(self.end.elapsed_ns(&self.start).expect("a time") as u64)
    }

    /// Measures `work`, which moves `bytes`, for criterion and for the table.
    fn measure(&self, criterion: &mut Criterion, name: &str, bytes: u64, mut work: impl FnMut()) {
        let mut group = criterion.benchmark_group("convert");
        group.throughput(Throughput::Bytes(bytes));
        let best = RefCell::new(f64::INFINITY);
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                let took = self.timed(times, &mut work);
                let each = took.as_nanos() as f64 / times as f64;
                best.replace_with(|best| best.min(each));
                took
            });
        });
        group.finish();
        let ns = best.into_inner();
        if ns.is_finite() {
            self.lines.borrow_mut().push(Line {
                name: name.into(),
                bytes: bytes as f64,
                ns,
                beside: None,
            });
        }
    }

    /// `total` on a GPU, less on the host.
    fn list(&self, total: u64) -> u64 {
        if self.on_gpu { total } else { total / 128 }
    }

    fn source<T: Element>(&self, offset: u64, len: u64) -> View<'_, T> {
        // SAFETY: the block lives as long as the ground, and every bench stays within it.
        unsafe {
            View::from_raw(
                self.from.addr() + offset * size_of::<T>() as u64,
                len as usize,
            )
        }
        .expect("aligned")
    }

    fn target<T: Element>(&self, offset: u64, len: u64) -> ViewMut<'_, T> {
        // SAFETY: as for `source`; all work is on one stream.
        unsafe {
            ViewMut::from_raw(
                self.to.addr() + offset * size_of::<T>() as u64,
                len as usize,
            )
        }
        .expect("aligned")
    }
}

/// Random bits.
fn noise(i: u32) -> u32 {
    let x = i.wrapping_mul(0x9E37_79B9) ^ (i >> 7);
    (x ^ (x >> 15)).wrapping_mul(0x85EB_CA6B)
}

fn name_of<T>() -> &'static str {
    std::any::type_name::<T>()
        .rsplit("::")
        .next()
        .unwrap_or("?")
}

fn pair<S: ConvertTo<D>, D: Element>(
    ground: &Ground,
    criterion: &mut Criterion,
    how: impl Into<Conversion>,
    note: &str,
) {
    offset_pair::<S, D>(ground, criterion, how, note, 0, 0);
}

fn offset_pair<S: ConvertTo<D>, D: Element>(
    ground: &Ground,
    criterion: &mut Criterion,
    how: impl Into<Conversion>,
    note: &str,
    from: u64,
    to: u64,
) {
    let how = how.into();
    let len = ground.bytes / size_of::<S>().max(size_of::<D>()) as u64;
    let bytes = len * (size_of::<S>() + size_of::<D>()) as u64;
    let name = format!("{}_to_{}{note}", name_of::<S>(), name_of::<D>()).to_lowercase();
    ground.measure(criterion, &name, bytes, || {
        convert(
            &ground.stream,
            ground.source::<S>(from, len),
            ground.target::<D>(to, len),
            how,
        )
        .expect("a launch");
    });
}

fn copies(ground: &Ground, criterion: &mut Criterion) {
    // SAFETY: it is given copies between blocks below alone.
    let backend = unsafe { ground.stream.device().raw_backend() };
    // The first size is what the ratios are to; the others move as many bytes as the lists below.
    for (name, bytes) in [
        ("1GiB", ground.bytes),
        ("404MB", ground.list(404_000_000 / 2)),
        ("61MB", ground.list(61_440_000 / 2)),
    ] {
        ground.measure(criterion, &format!("copy_{name}"), 2 * bytes, || {
            // SAFETY: both blocks have the bytes and live as long as the ground.
            unsafe {
                backend.copy_within(
                    ground.to.addr(),
                    ground.from.addr(),
                    bytes,
                    ground.stream.raw(),
                )
            }
            .expect("a copy");
        });
    }
}

fn plain(ground: &Ground, c: &mut Criterion) {
    let nearest = Rounding::Nearest;
    pair::<f32, f16>(ground, c, nearest, "");
    pair::<f32, bf16>(ground, c, nearest, "");
    pair::<f32, E4m3>(ground, c, nearest, "");
    pair::<f32, E5m2>(ground, c, nearest, "");
    pair::<f16, bf16>(ground, c, nearest, "");
    pair::<f16, E4m3>(ground, c, nearest, "");
    pair::<f16, E5m2>(ground, c, nearest, "");
    pair::<bf16, f16>(ground, c, nearest, "");
    pair::<bf16, E4m3>(ground, c, nearest, "");
    pair::<bf16, E5m2>(ground, c, nearest, "");
    pair::<E4m3, bf16>(ground, c, nearest, "");
    pair::<E5m2, bf16>(ground, c, nearest, "");
    pair::<E4m3, E5m2>(ground, c, nearest, "");
    pair::<E5m2, E4m3>(ground, c, nearest, "");
    pair::<f64, f32>(ground, c, nearest, "");
    pair::<f64, f16>(ground, c, nearest, "");
    pair::<f64, bf16>(ground, c, nearest, "");
    pair::<f16, f32>(ground, c, nearest, "");
    pair::<bf16, f32>(ground, c, nearest, "");
    pair::<E4m3, f32>(ground, c, nearest, "");
    pair::<E5m2, f32>(ground, c, nearest, "");
    pair::<E4m3, f16>(ground, c, nearest, "");
    pair::<E5m2, f16>(ground, c, nearest, "");
    pair::<f32, f64>(ground, c, nearest, "");
    pair::<f32, f16>(ground, c, Rounding::TowardZero, "_toward_zero");
    pair::<f32, f16>(ground, c, Rounding::Up, "_up");
    pair::<f32, f16>(ground, c, Rounding::Stochastic { seed: 1 }, "_stochastic");
    pair::<f32, bf16>(ground, c, Rounding::Stochastic { seed: 1 }, "_stochastic");
    offset_pair::<f32, f16>(ground, c, nearest, "_source_off_1", 1, 0);
    offset_pair::<f32, f16>(ground, c, nearest, "_target_off_1", 0, 1);
    offset_pair::<f32, f16>(ground, c, nearest, "_off_3_5", 3, 5);
    offset_pair::<f16, f32>(ground, c, nearest, "_off_3_1", 3, 1);
    offset_pair::<f16, bf16>(ground, c, nearest, "_off_1_3", 1, 3);
    offset_pair::<f16, E4m3>(ground, c, nearest, "_off_1_3", 1, 3);
    offset_pair::<E4m3, f16>(ground, c, nearest, "_off_1_3", 1, 3);
    offset_pair::<E4m3, f32>(ground, c, nearest, "_off_1_3", 1, 3);
}

/// CUB's transform, which is what a CUDA C++ program would call.
fn cub(ground: &Ground, criterion: &mut Criterion) {
    let Some(peers) = ground.on_gpu.then(peers::Peers::open).flatten() else {
        return;
    };
    for (pair, (name, read, written)) in peers::TRANSFORMS.into_iter().enumerate() {
        let len = ground.bytes / read.max(written);
        let (from, to) = (ground.from.addr(), ground.to.addr());
        ground.measure(
            criterion,
            &format!("cub_{name}"),
            len * (read + written),
            || {
                peers.transform(pair, from, to, len, &ground.stream);
            },
        );
    }
}

fn shaped(ground: &Ground, criterion: &mut Criterion) {
    for row in [256u64, 1024, 4096] {
        let pitch = row + 64;
        let rows = ground.bytes / 4 / pitch;
        let all = rows * pitch;
        let shape = (rows as usize, row as usize, pitch as usize);
        ground.measure(
            criterion,
            &format!("f32_to_f16_rows_of_{row}"),
            rows * row * 6,
            || {
                let (from, to) = (ground.source::<f32>(0, all), ground.target::<f16>(0, all));
                let from = Rows::new(from, shape.0, shape.1, shape.2).expect("rows");
                let to = RowsMut::new(to, shape.0, shape.1, shape.2).expect("rows");
                convert_rows(&ground.stream, from, to, Rounding::Nearest).expect("a launch");
            },
        );
    }
    let len = ground.bytes / 4;
    let mut found = ground
        .pool
        .alloc_typed::<u32>(&ground.stream, 1)
        .expect("a flag");
    let mut amax = ground
        .pool
        .alloc_typed::<f32>(&ground.stream, 1)
        .expect("a maximum");
    let mut blocks = ground
        .pool
        .alloc_typed::<f32>(&ground.stream, len.div_ceil(32) as usize)
        .expect("maxima");
    ground.measure(criterion, "f32_to_f16_scale_check_amax", len * 6, || {
        let fused = Fused::default()
            .scale(0.5)
            .bias(1.0)
            .flag(found.view_mut())
            .amax(amax.view_mut());
        let (from, to) = (ground.source::<f32>(0, len), ground.target::<f16>(0, len));
        convert_fused(&ground.stream, from, to, Rounding::Nearest, fused).expect("a launch");
    });
    ground.measure(
        criterion,
        "f32_to_e4m3_block_amax",
        len * 5 + len / 8,
        || {
            let fused = Fused::default().block_amax(blocks.view_mut());
            let (from, to) = (ground.source::<f32>(0, len), ground.target::<E4m3>(0, len));
            convert_fused(&ground.stream, from, to, Rounding::Nearest, fused).expect("a launch");
        },
    );
}

/// Lengths of `count` tensors with `total` elements in all, of many sizes.
fn lengths(count: u64, total: u64) -> Vec<u64> {
    let raw: Vec<u64> = (0..count)
        .map(|i| 1 + u64::from(noise(i as u32) >> 20).pow(2))
        .collect();
    let sum: u64 = raw.iter().sum();
    raw.iter().map(|n| (n * total / sum).max(1)).collect()
}

fn lists(ground: &Ground, criterion: &mut Criterion) {
    // 404 MB of f32 read and f16 written by 1,000 tensors; 10,000 of 4 KiB mean, which the L2 cache
    // holds for the most part, and 100,000, which it does not.
    for (name, count, total) in [
        ("1000", 1000, 404_000_000 / 6),
        ("10000", 10_000, 10_000 * 1024),
        ("100000", 100_000, 100_000 * 1024),
    ] {
        let lengths = lengths(ground.list(count), ground.list(total));
        let (mut tensors, mut gradients, mut at) = (vec![], vec![], 0);
        for &n in &lengths {
            tensors.push((ground.source::<f32>(at, n), ground.target::<f16>(at, n)));
            gradients.push(ground.target::<f32>(at, n));
            at += n.next_multiple_of(64);
            assert!(at * 4 <= ground.bytes, "the tensors are in the blocks");
        }
        let moved: u64 = lengths.iter().sum();
        let mut table = ConvertTable::new(&ground.pool, &ground.stream, tensors).expect("a table");
        ground.measure(
            criterion,
            &format!("f32_to_f16_{name}_tensors"),
            moved * 6,
            || {
                table
                    .convert(&ground.stream, Rounding::Nearest)
                    .expect("a launch");
            },
        );
        let mut gradients =
            Gradients::new(&ground.pool, &ground.stream, gradients).expect("a table");
        let mut scaler = GradScaler::new(&ground.pool, &ground.stream, ScalerConfig::default())
            .expect("a scaler");
        ground.measure(
            criterion,
            &format!("unscale_f32_{name}_tensors"),
            moved * 8,
            || {
                scaler
                    .unscale(&ground.stream, &mut gradients)
                    .expect("a launch");
            },
        );
    }
}

fn in_place(ground: &Ground, criterion: &mut Criterion) {
    let len = ground.bytes / 4;
    let tiles = len.div_ceil(u64::from(abi::WP_INPLACE_TILE));
    let scratch = ground
        .pool
        .alloc(&ground.stream, 64 + 4 * tiles)
        .expect("scratch");
    for (name, from, to) in [
        ("narrow", abi::WP_F32, abi::WP_F16),
        ("widen", abi::WP_F16, abi::WP_F32),
    ] {
        let args = abi::wp_inplace {
            addr: ground.to.addr(),
            count: len,
            seed: 0,
            scratch: scratch.addr(),
            src_type: from,
            dst_type: to,
            rounding: abi::WP_NEAREST,
            overflow: abi::WP_TO_INFINITY,
        };
        ground.measure(
            criterion,
            &format!("f32_f16_in_place_{name}"),
            len * 6,
            || {
                // SAFETY: it is given the launch below alone.
                let backend = unsafe { ground.stream.device().raw_backend() };
                // SAFETY: block and scratch have the bytes and live as long as this function.
                unsafe { backend.launch(&Launch::Inplace(args), ground.stream.raw()) }
                    .expect("a launch");
            },
        );
    }
}

fn small(ground: &Ground, criterion: &mut Criterion) {
    if let Some(empty) = &ground.empty {
        ground.measure(criterion, "empty_kernel", 0, || empty.launch());
    }
    for log in [10u32, 12, 14, 16, 18] {
        let len = 1u64 << log;
        ground.measure(criterion, &format!("f32_to_f16_2^{log}"), len * 6, || {
            let (from, to) = (ground.source::<f32>(0, len), ground.target::<f16>(0, len));
            convert(&ground.stream, from, to, Rounding::Nearest).expect("a launch");
        });
    }
}

/// The lines as JSON, one a line, into the file that `WARPOOL_BENCH_JSON` names.
fn keep(lines: &[Line], copy: Option<f64>) -> std::io::Result<()> {
    use std::io::Write;
    let Some(path) = std::env::var_os("WARPOOL_BENCH_JSON") else {
        return Ok(());
    };
    let mut file = std::fs::File::create(path)?;
    for line in lines {
        let rate = line.bytes / line.ns;
        let ratio = line.beside.or(copy).map_or(0.0, |other| rate / other);
        writeln!(
            file,
            r#"{{"conversion":"{}","us":{:.2},"gb_per_s":{rate:.1},"of_copy":{ratio:.3}}}"#,
            line.name,
            line.ns / 1000.0
        )?;
    }
    Ok(())
}

/// Rates, and ratios to the largest copy.
fn table(ground: &Ground) {
    let lines = ground.lines.borrow();
    let rate = |line: &Line| line.bytes / line.ns;
    let copy = lines
        .iter()
        .find(|line| line.name.starts_with("copy"))
        .map(&rate);
    keep(&lines, copy).expect("the file for the figures");
    println!("\n{:<34} {:>12} {:>10} {:>8}", "", "us", "GB/s", "of copy");
    for line in lines.iter() {
        let other = line.beside.or(copy);
        let ratio = other.map_or_else(|| "-".into(), |other| format!("{:.3}", rate(line) / other));
        println!(
            "{:<34} {:>12.2} {:>10.1} {:>8}",
            line.name,
            line.ns / 1000.0,
            rate(line),
            ratio
        );
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let ground = Ground::new();
    println!("on {}", ground.stream.device().info().name);
    copies(&ground, &mut criterion);
    plain(&ground, &mut criterion);
    cub(&ground, &mut criterion);
    shaped(&ground, &mut criterion);
    lists(&ground, &mut criterion);
    in_place(&ground, &mut criterion);
    small(&ground, &mut criterion);
    criterion.final_summary();
    ground.lines.borrow_mut().extend(half_crate::lines());
    table(&ground);
}
