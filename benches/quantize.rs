//! Formats with scales, and conversion with transposition, each beside a device-to-device copy in the
//! same run.
//!
//! Times are of the device, between two events around a burst of launches; bytes are those read plus
//! those written, scales among them. On a machine without a GPU the host device runs the same at
//! small sizes. `WARPOOL_BENCH_JSON` names a file for the figures, a line each.

use std::time::Duration;

use half::bf16;
use warpool::convert::{
    BlockScales, E2m1, E2m3, E3m2, E4m3, E5m2, E8m0, Element, Grouping, I4, Integer, MX_BLOCK,
    MxElement, NVFP4_BLOCK, Narrow, Quantize, QuantizeTable, Rounding, Rows, RowsMut, Scales,
    ScalesMut, Transpose, Wide, block_scales, cast_transpose, dequantize, dequantize_integers,
    mx_dequantize, mx_quantize, nvfp4_dequantize, nvfp4_quantize, quantize, quantize_integers,
    square_scales,
};
use warpool::device::DeviceKind;
use warpool::{Block, Device, Event, Pool, PoolConfig, Stream};
use warpool::{View, ViewMut};

/// Elements of a row.
const COLS: u64 = 8192;

/// One line of the table.
struct Line {
    name: String,
    bytes: f64,
    ns: f64,
}

/// The device and memory for every form.
struct Ground {
    stream: Stream,
    pool: Pool,
    values: Block,
    codes: Block,
    turned: Block,
    scales: Block,
    zeros: Block,
    one: Block,
    amax: Block,
    start: Event,
    end: Event,
    bytes: u64,
    times: u64,
    rounds: usize,
    lines: Vec<Line>,
}

impl Ground {
    fn new() -> Self {
        let device = Device::any().expect("the host device is always there");
        let stream = device.stream().expect("a stream");
        let on_gpu = device.info().kind == DeviceKind::Cuda;
        let bytes: u64 = if on_gpu { 1 << 30 } else { 1 << 22 };
        let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
        let block = |bytes: u64| pool.alloc(&stream, bytes).expect("memory");
        let event = || device.timing_event().expect("an event");
        let ground = Self {
            values: block(bytes),
            codes: block(bytes),
            turned: block(bytes),
            scales: block(bytes / 4),
            zeros: block(bytes / 16),
            one: block(256),
            amax: block(256),
            pool: pool.clone(),
            start: event(),
            end: event(),
            stream: stream.clone(),
            bytes,
            times: if on_gpu { 10 } else { 1 },
            rounds: if on_gpu { 8 } else { 1 },
            lines: Vec::new(),
        };
        // Ordinary numbers in f32 and, both halves, in bf16.
        let number = |i: u64| {
            let x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            0x3E00_3E00 | (x as u32 & 0x81FF_81FF)
        };
        let words: Vec<u32> = (0..bytes / 4).map(number).collect();
        ground.fill(&ground.values, &words);
        ground.fill(&ground.one, &[1f32.to_bits()]);
        ground.fill(&ground.amax, &[0]);
        ground
    }

    fn fill(&self, block: &Block, words: &[u32]) {
        let bytes = 4 * words.len() as u64;
        // SAFETY: it is given one copy below alone.
        let backend = unsafe { self.stream.device().raw_backend() };
        // SAFETY: the block has the bytes, and the words outlive the copy, which is waited for.
        unsafe {
            backend.copy_in(
                block.addr(),
                words.as_ptr().cast(),
                bytes,
                self.stream.raw(),
            )
        }
        .expect("upload");
        self.stream.synchronize().expect("upload");
    }

    /// The shortest time of `work`, which moves `bytes`.
    fn measure(&mut self, name: &str, bytes: u64, mut work: impl FnMut(&Self)) {
        let mut best = Duration::MAX;
        work(self);
        for _ in 0..self.rounds {
            self.start.record(&self.stream).expect("an event");
            for _ in 0..self.times {
                work(self);
            }
            self.end.record(&self.stream).expect("an event");
            self.end.synchronize().expect("the work");
            let ns = self.end.elapsed_ns(&self.start).expect("a time");
            best = best.min(Duration::from_nanos(ns as u64));
        }
        self.lines.push(Line {
            name: name.into(),
            bytes: bytes as f64,
            ns: best.as_nanos() as f64 / self.times as f64,
        });
    }

    fn rows<S: Element>(&self) -> u64 {
        self.bytes / size_of::<S>() as u64 / COLS
    }

    fn from<S: Element>(&self) -> Rows<'_, S> {
        let rows = self.rows::<S>();
        shaped(seen(&self.values, rows * COLS), rows, COLS)
    }

    fn back<S: Element>(&self) -> RowsMut<'_, S> {
        let rows = self.rows::<S>();
        shaped_mut(seen_mut(&self.turned, rows * COLS), rows, COLS)
    }

    fn coded<C: bytemuck::Pod>(&self, rows: u64, cols: u64) -> Rows<'_, C> {
        shaped(seen(&self.codes, rows * cols), rows, cols)
    }

    fn into<C: bytemuck::Pod>(&self, rows: u64, cols: u64) -> RowsMut<'_, C> {
        shaped_mut(seen_mut(&self.codes, rows * cols), rows, cols)
    }
}

fn shaped<T: bytemuck::Pod>(view: View<'_, T>, rows: u64, cols: u64) -> Rows<'_, T> {
    let (rows, cols) = (rows as usize, cols as usize);
    Rows::new(view, rows, cols, cols).expect("rows")
}

fn shaped_mut<T: bytemuck::Pod>(view: ViewMut<'_, T>, rows: u64, cols: u64) -> RowsMut<'_, T> {
    let (rows, cols) = (rows as usize, cols as usize);
    RowsMut::new(view, rows, cols, cols).expect("rows")
}

fn seen<T: bytemuck::Pod>(block: &Block, len: u64) -> View<'_, T> {
    // SAFETY: every form stays within the blocks, which live as long as the ground.
    unsafe { View::from_raw(block.addr(), len as usize) }.expect("aligned")
}

fn seen_mut<T: bytemuck::Pod>(block: &Block, len: u64) -> ViewMut<'_, T> {
    // SAFETY: as for `seen`; all work is on one stream.
    unsafe { ViewMut::from_raw(block.addr(), len as usize) }.expect("aligned")
}

fn name_of<T>() -> &'static str {
    std::any::type_name::<T>()
        .rsplit("::")
        .next()
        .unwrap_or("?")
}

fn title<S, Q>(form: &str, note: &str) -> String {
    format!("{}_to_{}_{form}{note}", name_of::<S>(), name_of::<Q>()).to_lowercase()
}

fn how(rounding: Rounding) -> Quantize<'static> {
    Quantize::default().rounding(rounding)
}

fn copies(ground: &mut Ground) {
    ground.measure("copy", 2 * ground.bytes, |g| {
        // SAFETY: it is given one copy below alone.
        let (backend, raw) = (unsafe { g.stream.device().raw_backend() }, g.stream.raw());
        // SAFETY: both blocks have the bytes and live as long as the ground.
        unsafe { backend.copy_within(g.codes.addr(), g.values.addr(), g.bytes, raw) }
            .expect("a copy");
    });
}

fn scaled<S: Wide>(ground: &mut Ground, rounding: Rounding, note: &str) {
    let rows = ground.rows::<S>();
    let all = rows * COLS;
    let bytes = ground.bytes + all;
    let shape = (rows as usize, COLS as usize);
    let blocks = block_scales(shape.0, shape.1) as u64;
    let squares = square_scales(shape.0, shape.1) as u64;
    ground.measure(&title::<S, E4m3>("tensor", note), bytes, |g| {
        let how = how(rounding).amax(seen_mut(&g.amax, 1));
        let scales = ScalesMut::Tensor(seen(&g.one, 1));
        quantize(
            &g.stream,
            g.from::<S>(),
            g.into::<E4m3>(rows, COLS),
            scales,
            how,
        )
        .expect("a launch");
    });
    for (form, kind, count) in [
        ("rows", 0, rows),
        ("1x128", 1, blocks),
        ("128x128", 2, squares),
    ] {
        ground.measure(&title::<S, E4m3>(form, note), bytes + 4 * count, |g| {
            let scales = seen_mut(&g.scales, count);
            let scales = [ScalesMut::Rows, ScalesMut::Blocks, ScalesMut::Squares][kind](scales);
            let into = g.into::<E4m3>(rows, COLS);
            quantize(&g.stream, g.from::<S>(), into, scales, how(rounding)).expect("a launch");
        });
        if rounding == Rounding::Nearest {
            ground.measure(&title::<E4m3, S>(form, note), bytes + 4 * count, |g| {
                let scales = seen(&g.scales, count);
                let scales = [Scales::Rows, Scales::Blocks, Scales::Squares][kind](scales);
                let codes = g.coded::<E4m3>(rows, COLS);
                dequantize(&g.stream, codes, scales, g.back::<S>()).expect("a launch");
            });
        }
    }
}

fn mx<S: Wide, Q: MxElement>(
    ground: &mut Ground,
    layout: BlockScales,
    rounding: Rounding,
    note: &str,
) {
    let (rows, line) = (ground.rows::<S>(), Q::codes(COLS as usize) as u64);
    let count = layout.count(rows as usize, COLS as usize, MX_BLOCK) as u64;
    let bytes = ground.bytes + rows * line * size_of::<Q::Code>() as u64 + count;
    ground.measure(&title::<S, Q>("mx", note), bytes, |g| {
        let (into, scales) = (
            g.into::<Q::Code>(rows, line),
            seen_mut::<E8m0>(&g.scales, count),
        );
        mx_quantize::<Q, S>(
            &g.stream,
            g.from::<S>(),
            into,
            scales,
            layout,
            how(rounding),
        )
        .expect("a launch");
    });
    if rounding == Rounding::Nearest {
        ground.measure(&title::<Q, S>("mx", note), bytes, |g| {
            let (codes, scales) = (
                g.coded::<Q::Code>(rows, line),
                seen::<E8m0>(&g.scales, count),
            );
            mx_dequantize::<Q, S>(&g.stream, codes, scales, layout, g.back::<S>())
                .expect("a launch");
        });
    }
}

fn nvfp4<S: Wide>(ground: &mut Ground, layout: BlockScales, note: &str) {
    let (rows, line) = (ground.rows::<S>(), COLS / 2);
    let count = layout.count(rows as usize, COLS as usize, NVFP4_BLOCK) as u64;
    let bytes = ground.bytes + rows * line + count;
    ground.measure(&title::<S, E2m1>("nvfp4", note), bytes, |g| {
        let (into, scales) = (g.into::<u8>(rows, line), seen_mut::<E4m3>(&g.scales, count));
        let (one, how) = (seen(&g.one, 1), how(Rounding::Nearest));
        nvfp4_quantize(&g.stream, g.from::<S>(), into, scales, one, layout, how).expect("a launch");
    });
    ground.measure(&title::<E2m1, S>("nvfp4", note), bytes, |g| {
        let (codes, scales) = (g.coded::<u8>(rows, line), seen::<E4m3>(&g.scales, count));
        let one = seen(&g.one, 1);
        nvfp4_dequantize(&g.stream, codes, scales, one, layout, g.back::<S>()).expect("a launch");
    });
}

fn integers<S: Wide, Q: Integer>(ground: &mut Ground, grouping: Grouping, zeros: bool, form: &str) {
    let (rows, line) = (ground.rows::<S>(), Q::codes(COLS as usize) as u64);
    let count = grouping.count(rows as usize, COLS as usize) as u64;
    let bytes = ground.bytes + rows * line + count * if zeros { 5 } else { 4 };
    ground.measure(&title::<S, Q>(form, ""), bytes, |g| {
        let (into, scales) = (g.into::<Q::Code>(rows, line), seen_mut(&g.scales, count));
        let zeros = zeros.then(|| seen_mut(&g.zeros, count));
        let how = how(Rounding::Nearest);
        quantize_integers::<Q, S>(&g.stream, g.from::<S>(), into, grouping, scales, zeros, how)
            .expect("a launch");
    });
    ground.measure(&title::<Q, S>(form, ""), bytes, |g| {
        let (codes, scales) = (g.coded::<Q::Code>(rows, line), seen(&g.scales, count));
        let zeros = zeros.then(|| seen(&g.zeros, count));
        dequantize_integers::<Q, S>(&g.stream, codes, grouping, scales, zeros, g.back::<S>())
            .expect("a launch");
    });
}

fn transposed<S: Wide, D: Narrow>(ground: &mut Ground) {
    let rows = ground
        .rows::<S>()
        .min(ground.bytes / size_of::<D>() as u64 / COLS);
    let size = size_of::<S>() as u64 + 2 * size_of::<D>() as u64;
    ground.measure(&title::<S, D>("and_turned", ""), rows * COLS * size, |g| {
        let from = shaped(seen::<S>(&g.values, rows * COLS), rows, COLS);
        let turned = shaped_mut(seen_mut::<D>(&g.turned, rows * COLS), COLS, rows);
        let plain = Some(g.into::<D>(rows, COLS));
        let how = Transpose::default()
            .scale(seen(&g.one, 1))
            .amax(seen_mut(&g.amax, 1));
        cast_transpose(&g.stream, from, plain, turned, how).expect("a launch");
    });
}

/// So many tensors, cut from the values by rows, with a scale a row: in one launch, and one by one.
fn many<S: Wide>(ground: &mut Ground, tensors: u64) {
    let tensors = tensors.min(ground.rows::<S>());
    let rows = ground.rows::<S>() / tensors;
    let (all, each) = (tensors * rows, rows * COLS);
    let bytes = all * (COLS * (size_of::<S>() as u64 + 1) + 4);
    let (from, into, found) = (
        ground.values.addr(),
        ground.codes.addr(),
        ground.scales.addr(),
    );
    // SAFETY: as for `seen` and `seen_mut`: the blocks outlive the table.
    let tensor = |at: u64| unsafe {
        let (from, into) = (from + at * each * size_of::<S>() as u64, into + at * each);
        let values = View::<'_, S>::from_raw(from, each as usize).expect("aligned");
        let codes = ViewMut::<'_, E4m3>::from_raw(into, each as usize).expect("aligned");
        let scales = ViewMut::from_raw(found + 4 * at * rows, rows as usize).expect("aligned");
        let (rows, cols) = (rows as usize, COLS as usize);
        (
            Rows::new(values, rows, cols, cols).expect("rows"),
            RowsMut::new(codes, rows, cols, cols).expect("rows"),
            ScalesMut::Rows(scales),
        )
    };
    let (pool, stream) = (&ground.pool, &ground.stream);
    let mut table =
        QuantizeTable::<'static, S, E4m3>::new(pool, stream, (0..tensors).map(tensor).collect())
            .expect("a table");
    ground.measure(&title::<S, E4m3>("rows_in_a_table", ""), bytes, |g| {
        table
            .quantize(&g.stream, Quantize::default())
            .expect("a launch");
    });
    ground.measure(&title::<S, E4m3>("rows_one_by_one", ""), bytes, |g| {
        for at in 0..tensors {
            let (values, codes, scales) = tensor(at);
            quantize(&g.stream, values, codes, scales, Quantize::default()).expect("a launch");
        }
    });
}

fn every_form<S: Wide>(ground: &mut Ground) {
    let (nearest, chance) = (Rounding::Nearest, Rounding::Stochastic { seed: 1 });
    let (in_rows, tiled) = (BlockScales::Rows, BlockScales::Tiled);
    scaled::<S>(ground, nearest, "");
    scaled::<S>(ground, chance, "_stochastic");
    many::<S>(ground, 1000);
    mx::<S, E4m3>(ground, in_rows, nearest, "");
    mx::<S, E4m3>(ground, tiled, nearest, "_tiled");
    mx::<S, E5m2>(ground, in_rows, nearest, "");
    mx::<S, E2m3>(ground, in_rows, nearest, "");
    mx::<S, E3m2>(ground, in_rows, nearest, "");
    mx::<S, E2m1>(ground, in_rows, nearest, "");
    mx::<S, E2m1>(ground, in_rows, chance, "_stochastic");
    nvfp4::<S>(ground, in_rows, "");
    nvfp4::<S>(ground, tiled, "_tiled");
    integers::<S, i8>(ground, Grouping::Rows, false, "rows");
    integers::<S, i8>(ground, Grouping::Rows, true, "rows_zeros");
    integers::<S, i8>(ground, Grouping::Groups(128), false, "128");
    integers::<S, I4>(ground, Grouping::Groups(32), false, "32");
    integers::<S, I4>(ground, Grouping::Groups(32), true, "32_zeros");
    transposed::<S, E4m3>(ground);
    transposed::<S, bf16>(ground);
}

/// The lines as JSON, one a line, into the file that `WARPOOL_BENCH_JSON` names.
fn keep(ground: &Ground, copy: f64) -> std::io::Result<()> {
    use std::io::Write;
    let Some(path) = std::env::var_os("WARPOOL_BENCH_JSON") else {
        return Ok(());
    };
    let mut file = std::fs::File::create(path)?;
    for line in &ground.lines {
        let (rate, us) = (line.bytes / line.ns, line.ns / 1000.0);
        writeln!(
            file,
            r#"{{"conversion":"{}","us":{us:.2},"gb_per_s":{rate:.1},"of_copy":{:.3}}}"#,
            line.name,
            rate / copy
        )?;
    }
    Ok(())
}

fn main() {
    let mut ground = Ground::new();
    println!("on {}", ground.stream.device().info().name);
    copies(&mut ground);
    every_form::<f32>(&mut ground);
    every_form::<bf16>(&mut ground);
    let copy = ground.lines[0].bytes / ground.lines[0].ns;
    keep(&ground, copy).expect("the file for the figures");
    println!("{:<34} {:>12} {:>10} {:>8}", "", "us", "GB/s", "of copy");
    for line in &ground.lines {
        let (us, rate) = (line.ns / 1000.0, line.bytes / line.ns);
        println!(
            "{:<34} {us:>12.2} {rate:>10.1} {:>8.3}",
            line.name,
            rate / copy
        );
    }
}
