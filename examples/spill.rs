//! Matrices used in turn, twice as many as fit into memory: the unused ones are kept on the host.
//!
//! `cargo run --release --example spill -- [MiB of device memory to use]`
//!
//! Prints the time, and the time that the bus alone needs for the same bytes, measured in the same
//! run. Everything is verified. On a machine without a GPU the device is the host, and the bus its
//! memory.

use std::time::{Duration, Instant};

use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::movable::Movable;
use warpool::{Device, Pool, PoolConfig, Result};

/// Number of matrices that fit into memory, with a little memory left over.
const FIT: usize = 8;

/// Total number of matrices.
const MATRICES: usize = 2 * FIT;

/// Number of matrices that are brought back ahead of their use.
const AHEAD: usize = 2;

/// Number of elements checked at each use of a matrix.
const SEEN: usize = 64;

/// The results.
pub struct Outcome {
    /// Number of wrong elements.
    pub corrupt: usize,
    /// Bytes copied to the host in the measured time, and bytes copied back.
    pub moved: (u64, u64),
    /// The measured time.
    pub took: Duration,
    /// The time of copies of the same bytes alone, in both directions at once.
    pub bus: Duration,
}

fn value(round: usize, matrix: usize) -> u32 {
    (round * MATRICES + matrix) as u32 ^ 0x5A5A_0000
}

/// The time of copies of `down` and `up` bytes, in pieces of a matrix, in both directions at once.
fn bus(pool: &Pool, host: &HostPool, len: usize, (down, up): (u64, u64)) -> Result<Duration> {
    let streams = [pool.device().stream()?, pool.device().stream()?];
    let from = pool.alloc_typed::<u32>(&streams[0], len)?;
    let mut to = pool.alloc_typed::<u32>(&streams[1], len)?;
    let mut buf = host.alloc::<u32>(len)?;
    let data = host.alloc::<u32>(len)?;
    let pieces = |bytes: u64| bytes.div_ceil(4 * len as u64);
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        for piece in 0..pieces(down).max(pieces(up)) {
            if piece < pieces(down) {
                from.view().download_into(&streams[0], &mut buf)?;
            }
            if piece < pieces(up) {
                to.view_mut().upload_from(&streams[1], &data)?;
            }
        }
        streams.iter().try_for_each(|stream| stream.synchronize())?;
        best = best.min(begun.elapsed());
    }
    Ok(best)
}

/// Uses each of the matrices in turn, `rounds` times, in `bytes` of device memory.
pub fn in_turns(device: &Device, bytes: u64, rounds: usize) -> Result<Outcome> {
    let pool = Pool::new(device, PoolConfig::default().limit(bytes))?;
    let host = HostPool::new(device, HostPoolConfig::default());
    let stream = device.stream()?;
    pool.set_spill(Spill::Auto(&host))?;

    // 1/9 of the memory is for the log and the unused ends of handles.
    let len = bytes as usize / (FIT + 1) / 4 / 512 * 512;
    let (mut matrices, mut log) = (
        Vec::new(),
        pool.alloc_zeroed::<u32>(&stream, rounds * MATRICES * SEEN)?,
    );
    for matrix in 0..MATRICES {
        let mut made = pool.alloc_movable::<u32>(&stream, len)?;
        made.hold_mut(&stream)?
            .view_mut()
            .fill(&stream, value(0, matrix))?;
        matrices.push(made);
    }

    let mut step = |round: usize, matrices: &mut [Movable<u32>]| -> Result<()> {
        for matrix in 0..MATRICES {
            for ahead in 1..=AHEAD {
                matrices[(matrix + ahead) % MATRICES].prefetch()?;
            }
            let mut held = matrices[matrix].hold_mut(&stream)?;
            // The old value becomes the upper half, the new one the lower.
            let (low, high) = held.view_mut().split_at(len / 2)?;
            high.copy_from(&stream, low.as_view())?;
            low.fill(&stream, value(round, matrix))?;
            let seen = held.view().slice(len / 2..len / 2 + SEEN)?;
            let at = ((round - 1) * MATRICES + matrix) * SEEN;
            log.slice_mut(at..at + SEEN)?.copy_from(&stream, seen)?;
        }
        Ok(())
    };
    // Once before, to allocate page-locked memory.
    step(1, &mut matrices)?;
    stream.synchronize()?;
    let before = pool.stats().spilled;
    let begun = Instant::now();
    for round in 2..=rounds {
        step(round, &mut matrices)?;
    }
    stream.synchronize()?;
    let took = begun.elapsed();
    let after = pool.stats().spilled;
    let moved = (
        after.allocated - before.allocated,
        after.freed - before.freed,
    );

    let mut corrupt = 0;
    for (at, seen) in log.download()?.chunks(SEEN).enumerate() {
        let wanted = value(at / MATRICES, at % MATRICES);
        corrupt += seen.iter().filter(|&&it| it != wanted).count();
    }
    for (number, matrix) in matrices.iter().enumerate() {
        let data = matrix.download(&stream)?;
        let (low, high) = data.split_at(len / 2);
        corrupt += low
            .iter()
            .filter(|&&it| it != value(rounds, number))
            .count();
        corrupt += high
            .iter()
            .filter(|&&it| it != value(rounds - 1, number))
            .count();
    }
    drop((matrices, log));
    let bus = bus(&pool, &host, len, moved)?;
    Ok(Outcome {
        corrupt,
        moved,
        took,
        bus,
    })
}

#[allow(dead_code, reason = "a test has this as a module")]
fn main() -> Result<()> {
    let device = Device::any()?;
    let mib = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let bytes = mib.unwrap_or(144u64) << 20;
    let outcome = in_turns(&device, bytes, 6)?;
    let (down, up) = outcome.moved;
    println!(
        "device: {}, {MATRICES} matrices where {FIT} fit into {} MiB",
        device.info().name,
        bytes >> 20
    );
    println!(
        "{:.2} GB went to the host, {:.2} GB came back",
        down as f64 / 1e9,
        up as f64 / 1e9
    );
    let (took, bus) = (outcome.took, outcome.bus);
    println!(
        "{took:.2?}; the bus alone {bus:.2?}: {:.2} times that",
        took.as_secs_f64() / bus.as_secs_f64()
    );
    println!("{} corrupt", outcome.corrupt);
    Ok(())
}
