//! Batches are uploaded while earlier ones are processed; compares the time with doing one after the other.
//!
//! `cargo run --release --example loader`
//!
//! The host generates the data, in place of decoding. The work consists of conversions that take about as
//! long as generating and copying a batch's data. On a machine without a GPU the device is the host; then
//! both share its processors.

use std::time::{Duration, Instant};

use warpool::convert::{Rounding, convert};
use warpool::half::f16;
use warpool::host::{HostPool, HostPoolConfig, Loader};
use warpool::{Device, Pool, PoolBuf, PoolConfig, Result, Stream};

const BATCHES: u32 = 24;
const ELEMENTS: usize = 4 << 20;

/// Generates a batch's data, which takes the host a while.
fn decoded(batch: u32) -> Vec<f32> {
    let value = |at: u32| {
        let noise = (at ^ batch).wrapping_mul(2_654_435_761).rotate_left(13);
        (noise as f32 * 1e-9).sqrt()
    };
    (0..ELEMENTS as u32).map(value).collect()
}

/// The work on a batch: queues `times` conversions.
fn work(pool: &Pool, stream: &Stream, batch: &PoolBuf<f32>, times: u32) -> Result<PoolBuf<f16>> {
    let mut result = pool.alloc_typed(stream, batch.len())?;
    for _ in 0..times {
        convert(stream, batch.view(), result.view_mut(), Rounding::Nearest)?;
    }
    Ok(result)
}

/// Number of wrong values in a result.
fn wrong(batch: u32, result: &PoolBuf<f16>) -> Result<usize> {
    let data = decoded(batch).into_iter().map(f16::from_f32);
    let pairs = data.zip(result.download()?);
    Ok(pairs.filter(|(wanted, got)| wanted != got).count())
}

fn timed(what: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    what()?;
    Ok(begun.elapsed())
}

fn main() -> Result<()> {
    let device = Device::any()?;
    println!("device: {}", device.info().name);
    let pool = Pool::new(&device, PoolConfig::default())?;
    let host = HostPool::new(&device, HostPoolConfig::default());
    let stream = device.stream()?;

    let up = |data: Vec<f32>| -> Result<PoolBuf<f32>> {
        let mut batch = pool.alloc_typed(&stream, data.len())?;
        host.stage_in(&stream, batch.view_mut(), &data)?;
        stream.synchronize()?;
        Ok(batch)
    };
    // The first run allocates memory and loads kernels; the second is measured.
    let mut batch = up(decoded(0))?;
    work(&pool, &stream, &batch, 1)?.download()?;
    let data_takes = timed(|| {
        batch = up(decoded(0))?;
        Ok(())
    })?;
    let work_takes = timed(|| {
        let _result = work(&pool, &stream, &batch, 8)?;
        stream.synchronize()
    })? / 8;
    let times = (data_takes.as_secs_f64() / work_takes.as_secs_f64()).ceil() as u32;
    drop(batch);
    println!(
        "{BATCHES} batches of {ELEMENTS} f32: data {data_takes:.2?}, work {times} conversions of {work_takes:.2?}"
    );

    let mut results = Vec::new();
    let apart = timed(|| {
        for number in 0..BATCHES {
            let batch = up(decoded(number))?;
            results.push(work(&pool, &stream, &batch, times)?);
            stream.synchronize()?;
        }
        Ok(())
    })?;
    let mut wrongs = 0;
    for (number, result) in (0..).zip(results.drain(..)) {
        wrongs += wrong(number, &result)?;
    }

    let beside = timed(|| {
        for batch in Loader::new(&pool, &host, 2, (0..BATCHES).map(decoded))? {
            results.push(work(&pool, &stream, &batch?, times)?);
        }
        stream.synchronize()
    })?;
    for (number, result) in (0..).zip(results.drain(..)) {
        wrongs += wrong(number, &result)?;
    }

    let part = beside.as_secs_f64() / apart.as_secs_f64();
    println!(
        "one after the other {apart:.2?}, with a loader {beside:.2?}: {:.0} % of the time",
        100.0 * part
    );
    println!(
        "page-locked memory at its peak: {} bytes",
        host.stats().reserved.peak
    );
    println!(
        "checked: {} values, {wrongs} wrong",
        2 * BATCHES as usize * ELEMENTS
    );
    assert_eq!(wrongs, 0);
    Ok(())
}
