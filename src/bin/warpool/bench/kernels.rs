//! The kernels that `warpool bench` measures.

use warpool::bytemuck::{Pod, pod_read_unaligned};
use warpool::convert::{
    BlockScales, ConvertTo, E2m1, E4m3, E8m0, Element, Fused, FusedTo, Grouping, Integer, MX_BLOCK,
    MxElement, Quantize, Rounding, Rows, RowsMut, Scales, ScalesMut, Transpose, Wide, block_scales,
    cast_transpose, convert, convert_fused, dequantize, dequantize_integers, mx_dequantize,
    mx_quantize, quantize, quantize_integers, square_scales,
};
use warpool::device::DeviceKind;
use warpool::half::{bf16, f16};
use warpool::{Device, Event, Pool, PoolBuf, PoolConfig, Result, Stream};

use super::Line;

/// Number of elements in a row.
const COLS: usize = 4096;
/// The required fractions of a copy's speed: for one pass over contiguous memory, and for tiles.
const ONE_PASS: f64 = 0.95;
const TILES: f64 = 0.85;

/// Measures all kernels; the first line is the copy.
pub fn measured(device: &Device, quick: bool) -> Result<Vec<Line>> {
    let mut ground = Ground::new(device, quick)?;
    all(&mut ground)?;
    Ok(ground.lines)
}

/// A device, and the measurements there.
struct Ground {
    stream: Stream,
    pool: Pool,
    start: Event,
    end: Event,
    bytes: usize,
    rounds: usize,
    times: usize,
    lines: Vec<Line>,
}

impl Ground {
    fn new(device: &Device, quick: bool) -> Result<Self> {
        let on_gpu = device.info().kind == DeviceKind::Cuda;
        let (most, rounds, times) = match (on_gpu, quick) {
            (true, false) => (1 << 30, 8, 10),
            (true, true) => (256 << 20, 3, 5),
            (false, _) => (1 << 20, 1, 1),
        };
        // Rows of COLS values of 4 bytes, in 1/8 of the free memory.
        let fits = usize::try_from(device.free_bytes()? / 8).unwrap_or(usize::MAX);
        let bytes = most.min(fits).max(8 * COLS) / (4 * COLS) * (4 * COLS);
        Ok(Self {
            stream: device.stream()?,
            pool: Pool::new(device, PoolConfig::default())?,
            start: device.timing_event()?,
            end: device.timing_event()?,
            bytes,
            rounds,
            times,
            lines: Vec::new(),
        })
    }

    /// Memory for `len` elements, each byte of which is a small number in every format.
    fn buffer<T: Pod>(&self, len: usize) -> Result<PoolBuf<T>> {
        let value = pod_read_unaligned(&[0x3C; 16][..size_of::<T>()]);
        self.pool.alloc_filled(&self.stream, len, value)
    }

    fn rows<S>(&self) -> usize {
        self.bytes / size_of::<S>() / COLS
    }

    /// The shortest time of `work`, which reads and writes `bytes`.
    fn measure(
        &mut self,
        name: String,
        bytes: usize,
        wanted: f64,
        mut work: impl FnMut(&Stream) -> Result<()>,
    ) -> Result<()> {
        work(&self.stream)?;
        let mut ns = f64::INFINITY;
        for _ in 0..self.rounds {
            self.start.record(&self.stream)?;
            for _ in 0..self.times {
                work(&self.stream)?;
            }
            self.end.record(&self.stream)?;
            self.end.synchronize()?;
            ns = ns.min(self.end.elapsed_ns(&self.start)? / self.times as f64);
        }
        let bytes = bytes as f64;
        self.lines.push(Line {
            name,
            bytes,
            ns,
            wanted,
        });
        Ok(())
    }
}

fn name_of<T>() -> String {
    let name = std::any::type_name::<T>();
    name.rsplit("::").next().unwrap_or(name).to_lowercase()
}

fn all(ground: &mut Ground) -> Result<()> {
    copy(ground)?;
    plain::<f32, f16>(ground)?;
    plain::<f32, bf16>(ground)?;
    plain::<f32, E4m3>(ground)?;
    plain::<bf16, E4m3>(ground)?;
    plain::<f16, f32>(ground)?;
    plain::<bf16, f32>(ground)?;
    plain::<E4m3, bf16>(ground)?;
    fused::<f32, f16>(ground)?;
    scaled::<f32>(ground)?;
    scaled::<bf16>(ground)?;
    blocks::<f32>(ground)?;
    blocks::<bf16>(ground)?;
    integers::<f32>(ground)?;
    integers::<bf16>(ground)?;
    turned::<f32>(ground)?;
    turned::<bf16>(ground)
}

fn copy(ground: &mut Ground) -> Result<()> {
    let len = ground.bytes;
    let (from, mut to) = (ground.buffer::<u8>(len)?, ground.buffer::<u8>(len)?);
    ground.measure("copy".into(), 2 * len, 0.0, |stream| {
        to.view_mut().copy_from(stream, &from)
    })
}

fn plain<S: ConvertTo<D>, D: Element>(ground: &mut Ground) -> Result<()> {
    let len = ground.bytes / size_of::<S>().max(size_of::<D>());
    let (from, mut to) = (ground.buffer::<S>(len)?, ground.buffer::<D>(len)?);
    let bytes = len * (size_of::<S>() + size_of::<D>());
    let name = format!("{} to {}", name_of::<S>(), name_of::<D>());
    ground.measure(name, bytes, ONE_PASS, |stream| {
        convert(stream, &from, &mut to, Rounding::Nearest)
    })
}

fn fused<S: FusedTo<D>, D: Element>(ground: &mut Ground) -> Result<()> {
    let len = ground.bytes / size_of::<S>();
    let (from, mut to) = (ground.buffer::<S>(len)?, ground.buffer::<D>(len)?);
    let (mut flag, mut amax) = (ground.buffer::<u32>(1)?, ground.buffer::<f32>(1)?);
    let name = format!(
        "{} to {}, scaled and checked",
        name_of::<S>(),
        name_of::<D>()
    );
    ground.measure(
        name,
        len * (size_of::<S>() + size_of::<D>()),
        ONE_PASS,
        |stream| {
            let fused = Fused::default()
                .scale(0.5)
                .flag(flag.view_mut())
                .amax(amax.view_mut());
            convert_fused(stream, &from, &mut to, Rounding::Nearest, fused)
        },
    )
}

fn name_to<S, D>(what: &str) -> [String; 2] {
    let (wide, narrow) = (name_of::<S>(), name_of::<D>());
    [
        format!("{wide} to {narrow}, {what}"),
        format!("{narrow} to {wide}, {what}"),
    ]
}

/// A layout of scales: its number of scales, and the arguments of quantisation and dequantisation.
type Kind = (
    &'static str,
    f64,
    fn(usize) -> usize,
    for<'a> fn(warpool::ViewMut<'a, f32>) -> ScalesMut<'a>,
    for<'a> fn(warpool::View<'a, f32>) -> Scales<'a>,
);

const KINDS: [Kind; 3] = [
    (
        "a scale a row",
        ONE_PASS,
        |rows| rows,
        |scales| ScalesMut::Rows(scales),
        |scales| Scales::Rows(scales),
    ),
    (
        "a scale for 1 x 128",
        ONE_PASS,
        |rows| block_scales(rows, COLS),
        |scales| ScalesMut::Blocks(scales),
        |scales| Scales::Blocks(scales),
    ),
    (
        "for 128 x 128",
        TILES,
        |rows| square_scales(rows, COLS),
        |scales| ScalesMut::Squares(scales),
        |scales| Scales::Squares(scales),
    ),
];

fn scaled<S: Wide>(ground: &mut Ground) -> Result<()> {
    let rows = ground.rows::<S>();
    let mut values = ground.buffer::<S>(rows * COLS)?;
    let mut codes = ground.buffer::<E4m3>(rows * COLS)?;
    for (what, wanted, count, found, given) in KINDS {
        let mut scales = ground.buffer::<f32>(count(rows))?;
        let bytes = rows * COLS * (size_of::<S>() + 1) + 4 * count(rows);
        let [forth, back] = name_to::<S, E4m3>(what);
        ground.measure(forth, bytes, wanted, |stream| {
            let from = Rows::new(&values, rows, COLS, COLS)?;
            let to = RowsMut::new(&mut codes, rows, COLS, COLS)?;
            quantize(
                stream,
                from,
                to,
                found(scales.view_mut()),
                Quantize::default(),
            )
        })?;
        ground.measure(back, bytes, wanted, |stream| {
            let from = Rows::new(&codes, rows, COLS, COLS)?;
            let to = RowsMut::new(&mut values, rows, COLS, COLS)?;
            dequantize(stream, from, given(scales.view()), to)
        })?;
    }
    Ok(())
}

fn blocks<S: Wide>(ground: &mut Ground) -> Result<()> {
    let (rows, line, layout) = (ground.rows::<S>(), E2m1::codes(COLS), BlockScales::Rows);
    let count = layout.count(rows, COLS, MX_BLOCK);
    let mut values = ground.buffer::<S>(rows * COLS)?;
    let mut codes = ground.buffer::<u8>(rows * line)?;
    let mut scales = ground.buffer::<E8m0>(count)?;
    let bytes = rows * (COLS * size_of::<S>() + line) + count;
    let [forth, back] = name_to::<S, E2m1>("MX");
    ground.measure(forth, bytes, ONE_PASS, |stream| {
        let from = Rows::new(&values, rows, COLS, COLS)?;
        let to = RowsMut::new(&mut codes, rows, line, line)?;
        mx_quantize::<E2m1, S>(
            stream,
            from,
            to,
            scales.view_mut(),
            layout,
            Quantize::default(),
        )
    })?;
    ground.measure(back, bytes, ONE_PASS, |stream| {
        let from = Rows::new(&codes, rows, line, line)?;
        let to = RowsMut::new(&mut values, rows, COLS, COLS)?;
        mx_dequantize::<E2m1, S>(stream, from, scales.view(), layout, to)
    })
}

fn integers<S: Wide>(ground: &mut Ground) -> Result<()> {
    let (rows, line) = (ground.rows::<S>(), i8::codes(COLS));
    let mut values = ground.buffer::<S>(rows * COLS)?;
    let mut codes = ground.buffer::<i8>(rows * line)?;
    let mut scales = ground.buffer::<f32>(rows)?;
    let bytes = rows * (COLS * size_of::<S>() + line + 4);
    let [forth, back] = name_to::<S, i8>("a scale a row");
    ground.measure(forth, bytes, ONE_PASS, |stream| {
        let from = Rows::new(&values, rows, COLS, COLS)?;
        let to = RowsMut::new(&mut codes, rows, line, line)?;
        let (by, scales) = (Grouping::Rows, scales.view_mut());
        quantize_integers::<i8, S>(stream, from, to, by, scales, None, Quantize::default())
    })?;
    ground.measure(back, bytes, ONE_PASS, |stream| {
        let from = Rows::new(&codes, rows, line, line)?;
        let to = RowsMut::new(&mut values, rows, COLS, COLS)?;
        dequantize_integers::<i8, S>(stream, from, Grouping::Rows, scales.view(), None, to)
    })
}

fn turned<S: Wide>(ground: &mut Ground) -> Result<()> {
    let rows = ground.rows::<S>();
    let values = ground.buffer::<S>(rows * COLS)?;
    let mut plain = ground.buffer::<E4m3>(rows * COLS)?;
    let mut turned = ground.buffer::<E4m3>(rows * COLS)?;
    let [name, _] = name_to::<S, E4m3>("and turned");
    ground.measure(name, rows * COLS * (size_of::<S>() + 2), TILES, |stream| {
        let from = Rows::new(&values, rows, COLS, COLS)?;
        let plain = RowsMut::new(&mut plain, rows, COLS, COLS)?;
        let turned = RowsMut::new(&mut turned, COLS, rows, rows)?;
        cast_transpose(stream, from, Some(plain), turned, Transpose::default())
    })
}
