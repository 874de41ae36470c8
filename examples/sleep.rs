//! Weights and a cache release their memory to the device and take it back; compares the time with that of
//! the bus alone.
//!
//! `cargo run --release --example sleep -- [MiB]`
//!
//! A server does this between requests, so that other programs can use the GPU: the weights are saved, the
//! cache is not. Everything is verified. On a machine without a GPU the device is the host, and the bus its
//! memory.

use std::time::{Duration, Instant};

use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::{Device, Pool, PoolBuf, PoolConfig, Result, Stream};

/// Size of the weights' blocks, in bytes.
const BLOCK: usize = 32 << 20;

/// Number of rounds, of which the best is printed: the first allocates page-locked memory.
const ROUNDS: usize = 4;

fn timed<T>(what: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    let outcome = what()?;
    Ok((outcome, begun.elapsed()))
}

/// The time of the copies alone, to the host and back.
fn bus(host: &HostPool, stream: &Stream, weights: &mut [PoolBuf<u32>]) -> Result<[Duration; 2]> {
    let mut staging = Vec::new();
    for weight in weights.iter() {
        staging.push(host.alloc::<u32>(weight.len())?);
    }
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        let (_, down) = timed(|| {
            for (weight, staging) in weights.iter().zip(&mut staging) {
                weight.view().download_into(stream, staging)?;
            }
            stream.synchronize()
        })?;
        let (_, up) = timed(|| {
            for (weight, staging) in weights.iter_mut().zip(&staging) {
                weight.view_mut().upload_from(stream, staging)?;
            }
            stream.synchronize()
        })?;
        best = [best[0].min(down), best[1].min(up)];
    }
    Ok(best)
}

fn main() -> Result<()> {
    let device = Device::any()?;
    let mib = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let bytes = mib.unwrap_or(512usize) << 20;
    let pool = Pool::new(&device, PoolConfig::default().sleeps(true))?;
    let host = HostPool::new(&device, HostPoolConfig::default());
    let stream = device.stream()?;

    let mut weights = Vec::new();
    for number in 0..bytes.div_ceil(BLOCK) as u32 {
        let mut weight = pool
            .tagged("weights")?
            .alloc_typed::<u32>(&stream, BLOCK / 4)?;
        weight.view_mut().fill(&stream, number ^ 0xA5A5_0000)?;
        weights.push(weight);
    }
    let cache = pool
        .tagged("cache")?
        .alloc_typed::<u32>(&stream, bytes / 4)?;
    let addrs: Vec<u64> = weights.iter().map(PoolBuf::addr).collect();
    let [down, up] = bus(&host, &stream, &mut weights)?;

    let mut best = [Duration::MAX; 2];
    let mut freed = 0;
    for _ in 0..ROUNDS {
        let before = device.free_bytes()?;
        let (_, sleeps) = timed(|| pool.sleep(&["weights"], Contents::Saved(&host)))?;
        pool.sleep(&["cache"], Contents::Discarded)?;
        freed = device.free_bytes()?.saturating_sub(before);
        let (_, wakes) = timed(|| pool.wake(&["weights"]))?;
        pool.wake(&["cache"])?;
        best = [best[0].min(sleeps), best[1].min(wakes)];
    }

    let mut corrupt = 0;
    for (number, weight) in weights.iter().enumerate() {
        let value = number as u32 ^ 0xA5A5_0000;
        corrupt += weight.download()?.iter().filter(|&&it| it != value).count();
    }
    let moved: usize = addrs
        .iter()
        .zip(&weights)
        .filter(|(addr, it)| **addr != it.addr())
        .count();
    let gigabytes = (weights.len() * BLOCK) as f64 / 1e9;
    println!(
        "device: {}, {gigabytes:.2} GB of weights, a cache of as much",
        device.info().name
    );
    for (what, took, bus) in [("sleep", best[0], down), ("wake", best[1], up)] {
        let (rate, most) = (
            gigabytes / took.as_secs_f64(),
            gigabytes / bus.as_secs_f64(),
        );
        println!(
            "{what}: {took:.2?}, {rate:.1} GB/s; the bus alone {most:.1} GB/s; {:.2} of it",
            rate / most
        );
    }
    println!("the device had {:.2} GB more meanwhile", freed as f64 / 1e9);
    println!("{corrupt} corrupt, {moved} at another address");
    drop(cache);
    Ok(())
}
