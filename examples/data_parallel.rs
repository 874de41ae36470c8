//! A network trained by several ranks, each with its share of the batch, compared with one rank that has all
//! of it.
//!
//! `cargo run --release --example data_parallel`: all GPUs of the machine, through NCCL; with fewer than two
//! GPUs, four ranks on the host device. `torchrun --nproc-per-node 4 --no-python
//! target/release/examples/data_parallel`, or `mpirun -n 4 ...`: one process per GPU.
//!
//! The network has two hidden layers and learns a wave. It is computed on the host; its gradients are in the
//! ranks' device memory and are averaged there, as f32, and as f16 and e4m3 with feedback. The loss equals
//! that of one rank with the whole batch: up to rounding, within 1 % and within 2 %.
//!
//! `cargo run --release --features cudarc --example data_parallel -- --large [OPTION...]`: a network with 404
//! MB of gradients on each GPU, with products by cuBLAS. It prints the samples per second of one GPU and of
//! all GPUs with gradients in each format, the time of the parts of a step, the time that the sums add to a
//! step, and the loss compared with one GPU with the whole batch. Options; lists separated by commas are
//! tried in every combination:
//!
//! - `batch=16384`: samples per GPU and step. The fewer samples, the larger the sums' share of the step.
//! - `only=f32,f16,f16+feedback,bf16,e4m3+feedback`: formats.
//! - `overlap=true`: the sums overlap with the backward pass; with `false` they run after it.
//! - `buckets=32`: MiB of `ReducerConfig::bucket_bytes`.

// Without `cudarc`, only the tests use the large network.
#[path = "data_parallel/large.rs"]
#[allow(
    dead_code,
    reason = "a build without `cudarc` has the host's part alone"
)]
pub(crate) mod large;

use std::thread;
use std::time::Duration;

use warpool::collective::{Comm, Op, Ranks, Reducer, ReducerConfig, Wire};
use warpool::{Device, Pool, PoolConfig, Result};

/// Units of the two hidden layers, samples of the whole batch, and the learning rate.
const UNITS: usize = 24;
const BATCH: usize = 240;
const RATE: f32 = 0.05;
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of the first bucket: so few that these gradients are several buckets, as those of a large network are.
pub const BUCKET: u64 = 512;

/// Weights and biases, in the order in which the backward pass computes their gradients.
const LENS: [usize; 6] = [UNITS, 1, UNITS * UNITS, UNITS, 2 * UNITS, UNITS];

/// A pseudo-random number from -1 to 1.
fn drawn(seed: usize) -> f32 {
    let x = (seed as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn first_weights() -> Vec<Vec<f32>> {
    let scales = [0.2, 0.0, 0.2, 0.1, 0.7, 0.3];
    let layer = |at: usize| {
        (0..LENS[at])
            .map(|i| scales[at] * drawn(at << 16 | i))
            .collect()
    };
    (0..LENS.len()).map(layer).collect()
}

/// Adds the gradients of one sample, and returns its loss.
fn learn(weights: &[Vec<f32>], gradients: &mut [Vec<f32>], (x, y): (f32, f32)) -> f32 {
    let [out, bias, middle, middle_bias, first, first_bias] = weights else {
        return 0.0;
    };
    let one: Vec<f32> = (0..UNITS)
        .map(|i| (first[2 * i] * x + first[2 * i + 1] * y + first_bias[i]).tanh())
        .collect();
    let sum = |row: usize| -> f32 { (0..UNITS).map(|i| middle[row * UNITS + i] * one[i]).sum() };
    let two: Vec<f32> = (0..UNITS)
        .map(|row| (sum(row) + middle_bias[row]).tanh())
        .collect();
    let found: f32 = (0..UNITS).map(|i| out[i] * two[i]).sum::<f32>() + bias[0];
    let error = found - (2.0 * x).sin() * (1.5 * y).cos();
    gradients[1][0] += error;
    let mut back = [0.0; UNITS];
    for row in 0..UNITS {
        gradients[0][row] += error * two[row];
        let slope = error * out[row] * (1.0 - two[row] * two[row]);
        gradients[3][row] += slope;
        for i in 0..UNITS {
            gradients[2][row * UNITS + i] += slope * one[i];
            back[i] += slope * middle[row * UNITS + i];
        }
    }
    for i in 0..UNITS {
        let slope = back[i] * (1.0 - one[i] * one[i]);
        gradients[4][2 * i] += slope * x;
        gradients[4][2 * i + 1] += slope * y;
        gradients[5][i] += slope;
    }
    error * error / 2.0
}

/// Trains as one rank; returns the loss of the whole batch before each step.
pub fn train(
    comm: &Comm,
    peers: &[&Device],
    config: ReducerConfig,
    steps: usize,
) -> Result<Vec<f32>> {
    let pool = Pool::new(comm.device(), PoolConfig::default().peers(peers))?;
    let stream = comm.device().stream()?;
    let mut reducer = Reducer::new(&pool, &stream, comm, &LENS, config)?;
    let mut total = pool.alloc_zeroed::<f32>(&stream, 1)?;
    let (mut weights, mut losses) = (first_weights(), Vec::new());
    let (rank, ranks) = (comm.rank() as usize, comm.size() as usize);
    for step in 0..steps {
        let mut gradients: Vec<Vec<f32>> = LENS.iter().map(|&len| vec![0.0; len]).collect();
        let mut loss = 0.0;
        for sample in (rank..BATCH).step_by(ranks) {
            let at = 2 * (step * BATCH + sample);
            loss += learn(&weights, &mut gradients, (drawn(at), drawn(at + 1)));
        }
        let share = (BATCH / ranks) as f32;
        for (tensor, gradient) in gradients.iter_mut().enumerate() {
            gradient.iter_mut().for_each(|x| *x /= share);
            reducer
                .gradients()
                .swap_remove(tensor)
                .upload(&stream, gradient)?;
            reducer.ready(tensor)?;
        }
        reducer.finish()?;
        total.upload(&[loss / BATCH as f32])?;
        comm.on(&stream).all_reduce(&mut total, Op::Sum).run()?;
        losses.push(total.download()?[0]);
        if !reducer.largest().download(&stream)?[0].is_finite() {
            continue; // an overflow: the scale is lower now
        }
        for (weights, averages) in weights.iter_mut().zip(reducer.gradients()) {
            let averages = averages.as_view().download(&stream)?;
            weights
                .iter_mut()
                .zip(averages)
                .for_each(|(w, g)| *w -= RATE * g);
        }
    }
    comm.check().map(|()| losses)
}

/// Trains on all ends of this process, one thread each; returns the losses of rank 0.
pub fn train_all(ends: &[Comm], config: ReducerConfig, steps: usize) -> Result<Vec<f32>> {
    let devices: Vec<&Device> = ends.iter().map(Comm::device).collect();
    thread::scope(|scope| {
        let run = |end| {
            let devices = &devices;
            scope.spawn(move || train(end, devices, config, steps))
        };
        let threads: Vec<_> = ends.iter().map(run).collect();
        let mut outcomes: Vec<_> = threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect();
        outcomes.swap_remove(0)
    })
}

/// The largest difference of two curves, relative to the loss.
pub fn apart(one: &[f32], other: &[f32]) -> f32 {
    let parts = one.iter().zip(other).map(|(a, b)| (a - b).abs() / a.abs());
    parts.fold(0.0, f32::max)
}

/// This process's ends, and a description of them.
fn ends() -> Result<(Vec<Comm>, String)> {
    if let Some(ranks) = Ranks::from_env()? {
        let end = Comm::nccl(&Device::cuda(ranks.local_rank)?, &ranks, PATIENCE)?;
        return Ok((
            vec![end],
            format!("rank {} of {} by NCCL", ranks.rank, ranks.size),
        ));
    }
    let count = Device::cuda_count().unwrap_or(0);
    if count > 1 {
        let devices: Result<Vec<_>> = (0..count).map(Device::cuda).collect();
        return Ok((
            Comm::nccl_all(&devices?, PATIENCE)?,
            format!("{count} GPUs by NCCL"),
        ));
    }
    let devices: Result<Vec<_>> = (0..4).map(|_| Device::host()).collect();
    let ends = Comm::simulated(&devices?, PATIENCE)?;
    Ok((ends, String::from("4 ranks on the host device")))
}

/// Trains the large network on all GPUs; returns why not if it cannot.
#[allow(dead_code, reason = "tests have `train` alone")]
fn large(options: &large::options::Options) -> large::math::Outcome<()> {
    let count = Device::cuda_count().unwrap_or(0);
    if count == 0 {
        println!("skipped: no CUDA device");
        return Ok(());
    }
    #[cfg(feature = "cudarc")]
    {
        let devices: Result<Vec<_>> = (0..count).map(Device::cuda).collect();
        let ends = Comm::nccl_all(&devices?, PATIENCE)?;
        large::compare(&ends, options, large::gpu::OnGpu::open)
    }
    #[cfg(not(feature = "cudarc"))]
    {
        let _ = options;
        Err("the large network needs the feature `cudarc`, for its products".into())
    }
}

#[allow(dead_code, reason = "tests have `train` alone")]
fn main() -> large::math::Outcome<()> {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("--large") {
        return large(&large::options::Options::of(words)?);
    }
    small().map_err(Into::into)
}

#[allow(dead_code, reason = "tests have `train` alone")]
fn small() -> Result<()> {
    const STEPS: usize = 300;
    let alone = Comm::simulated(&[Device::host()?], PATIENCE)?;
    let plain = ReducerConfig::default().wire(Wire::F32);
    let wanted = train_all(&alone, plain, STEPS)?;
    let (ends, who) = ends()?;
    println!(
        "{who}; loss {:.4} at first, {:.4} in the end",
        wanted[0],
        wanted[STEPS - 1]
    );
    let plain = plain.bucket_bytes(BUCKET);
    let halves = plain.wire(Wire::F16).feedback(true);
    let bytes = halves.wire(Wire::E4m3);
    for (name, config, bound) in [
        ("f32", plain, 1e-3),
        ("f16 with feedback", halves, 1e-2),
        ("e4m3 with feedback", bytes, 2e-2),
    ] {
        let part = apart(&wanted, &train_all(&ends, config, STEPS)?);
        println!(
            "{name}: the loss is within {:.4} % of one rank's",
            100.0 * part
        );
        assert!(part < bound);
    }
    Ok(())
}
