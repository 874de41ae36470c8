//! What the order of typed memory costs the host: conversions of views of buffers beside the same of
//! views of addresses, which nothing orders, on a device that takes launches and runs none.
//!
//! `cargo bench --bench order`

#[path = "../tests/common/watched.rs"]
#[allow(dead_code, reason = "a bench uses its own part")]
mod watched;

use std::time::Instant;

use half::f16;
use warpool::convert::{ConvertTable, Rounding, convert};
use warpool::{Device, Pool, PoolBuf, PoolConfig, Stream};
use warpool::{View, ViewMut};
use watched::Watched;

/// Conversions in one timing, and timings; the least is taken.
const CALLS: u32 = 20_000;
const ROUNDS: u32 = 100;

/// The least nanoseconds that one of `work` took, of each of two taken by turns.
fn least(mut one: impl FnMut(), mut two: impl FnMut()) -> (f64, f64) {
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        best.0 = best.0.min(time(&mut one));
        best.1 = best.1.min(time(&mut two));
    }
    best
}

fn line(what: &str, (ordered, bare): (f64, f64)) {
    println!(
        "{what:56} {ordered:8.1} ns  without order {bare:8.1} ns  order {:6.1} ns",
        ordered - bare
    );
}

/// A conversion of the buffers, and one of their addresses, repeated on `stream`.
fn repeated(stream: &Stream, src: &PoolBuf<f32>, dst: &mut PoolBuf<f16>) -> (f64, f64) {
    let (from, to, len) = (src.addr(), dst.addr(), src.len());
    let ordered = || convert(stream, src.view(), dst.view_mut(), Rounding::Nearest).unwrap();
    let bare = || {
        // SAFETY: the device runs nothing.
        let (src, dst) = unsafe {
            (
                View::<f32>::from_raw(from, len).unwrap(),
                ViewMut::<f16>::from_raw(to, len).unwrap(),
            )
        };
        convert(stream, src, dst, Rounding::Nearest).unwrap();
    };
    least(ordered, bare)
}

fn main() -> warpool::Result<()> {
    let (device, _) = Watched::hollow_over(&Device::host()?);
    let pool = Pool::new(&device, PoolConfig::default())?;
    let (home, other) = (device.stream()?, device.stream()?);
    let src = pool.alloc_typed::<f32>(&home, 1024)?;
    let mut dst = pool.alloc_typed::<f16>(&home, 1024)?;
    line(
        "the home stream again and again",
        repeated(&home, &src, &mut dst),
    );
    line(
        "another stream again and again",
        repeated(&other, &src, &mut dst),
    );
    line(
        "the home stream, other readers before",
        repeated(&home, &src, &mut dst),
    );

    let half = |at: usize| {
        let src = src.view();
        let from = src.slice(512 * at..512 * (at + 1));
        from.unwrap()
    };
    let to = dst.addr();
    device.event()?.record(&home)?;
    let ordered = || {
        let into = dst.view_mut().slice(512..1024).unwrap();
        convert(&home, half(1), into, Rounding::Nearest).unwrap();
    };
    let bare = || {
        // SAFETY: the device runs nothing.
        let (src, dst) = unsafe {
            (
                View::<f32>::from_raw(src.addr(), 1024).unwrap(),
                ViewMut::<f16>::from_raw(to, 1024).unwrap(),
            )
        };
        let (src, dst) = (src.slice(512..1024).unwrap(), dst.slice(512..1024).unwrap());
        convert(&home, src, dst, Rounding::Nearest).unwrap();
    };
    line("half of each buffer", least(ordered, bare));

    let buffers: warpool::Result<Vec<_>> = (0..1000)
        .map(|_| {
            Ok((
                pool.alloc_typed::<f32>(&home, 64)?,
                pool.alloc_typed::<f16>(&home, 64)?,
            ))
        })
        .collect();
    let mut buffers = buffers?;
    let pairs = buffers
        .iter_mut()
        .map(|(src, dst)| (src.view(), dst.view_mut()));
    let mut table = ConvertTable::new(&pool, &home, pairs.collect())?;
    // SAFETY: the device runs nothing.
    let pairs = unsafe { vec![(View::from_raw(4096, 64)?, ViewMut::from_raw(8192, 64)?)] };
    let mut bare: ConvertTable<'_, f32, f16> = ConvertTable::new(&pool, &home, pairs)?;
    let times = least(
        || table.convert(&home, Rounding::Nearest).unwrap(),
        || bare.convert(&home, Rounding::Nearest).unwrap(),
    );
    line("a table of 1000 tensors, beside one of addresses", times);

    let (allocated, block) = least(
        || drop(pool.alloc_typed::<f32>(&home, 1024).unwrap()),
        || drop(pool.alloc(&home, 4096).unwrap()),
    );
    line(
        "allocation and drop of a buffer, beside a block",
        (allocated, block),
    );
    Ok(())
}
