//! An application with its own kernels trains a network in f16, with f32 masters and a loss scale,
//! and compares it with the same training in f32. All device memory comes from one pool.
//!
//! `cargo run --release --example mixed_precision`
//!
//! A step consists of several micro-batches, whose gradients are summed in f32:
//!
//! 1. own kernels: forward and backward pass in f16, the loss multiplied by [`GradScaler::scale`];
//!    the f16 gradient is added to its f32 sum;
//! 2. [`GradScaler::unscale`]: divides the sums by the scale and checks them, in one launch;
//! 3. own kernel: momentum and step of the f32 masters, skipped if [`GradScaler::found`] is set;
//! 4. [`ConvertTable::convert`]: converts all masters to f16 weights, in one launch;
//! 5. [`GradScaler::update`].
//!
//! The host reads nothing until the end. On a GPU the application's kernels are PTX, queued through
//! rustacuda; on the host device they are Rust functions, queued on the stream's thread. On a
//! machine with a GPU both run. The example fails unless the f16 loss falls like the f32 loss.

use std::error::Error;

use half::f16;
use rustacuda::context::{Context, ContextFlags};
use rustacuda::stream::StreamFlags;
use warpool::convert::{
    ConvertTable, GradScaler, Gradients, Rounding, ScalerConfig, ScalerState, convert,
};
use warpool::{Block, Device, Pool, PoolBuf, PoolConfig, interop};

#[path = "mixed_precision/calls.rs"]
mod calls;
#[path = "mixed_precision/gpu.rs"]
mod gpu;
#[path = "mixed_precision/host.rs"]
mod host;

use calls::{Call, Machine, Pass, Precision, Update};

type Outcome<T> = Result<T, Box<dyn Error>>;

const INPUTS: usize = 3; // two and a constant 1
const HIDDEN: usize = 32;
const SAMPLES: usize = 128; // of a micro-batch
const MICRO_BATCHES: usize = 4;
const STEPS: usize = 400;
const RATE: f32 = 0.05;
const DECAY: f32 = 0.9;

fn main() -> Outcome<()> {
    let stream = Device::host()?.stream()?;
    compare(&host::OnHost(stream))?;
    match Device::cuda_count() {
        Ok(_) => on_gpu(),
        Err(reason) => {
            println!("{reason}");
            Ok(())
        }
    }
}

/// The same in a context and on a stream of rustacuda.
fn on_gpu() -> Outcome<()> {
    rustacuda::init(rustacuda::CudaFlags::empty())?;
    let gpu = rustacuda::device::Device::get_device(0)?;
    let _context = Context::create_and_push(ContextFlags::SCHED_AUTO, gpu)?;
    let theirs = rustacuda::stream::Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let device = match Device::cuda_current() {
        Ok(device) => device,
        Err(reason) => {
            println!("{reason}");
            return Ok(());
        }
    };
    // SAFETY: the stream is of the device's context, and `OnGpu` keeps it as long as the stream
    // made from it.
    let stream = unsafe { interop::rustacuda::adopt(&device, &theirs)? };
    compare(&gpu::OnGpu::new(theirs, stream)?)
}

/// Trains in both precisions and checks that the losses agree.
fn compare(machine: &dyn Machine) -> Outcome<()> {
    println!("device: {}", machine.stream().device().info().name);
    let pool = Pool::new(machine.stream().device(), PoolConfig::default())?;
    let single = train(machine, &pool, Precision::F32)?;
    let half = train(machine, &pool, Precision::F16)?;
    println!("{:>6} {:>10} {:>10}", "step", "f32 loss", "f16 loss");
    for step in (0..STEPS).step_by(STEPS / 8).chain([STEPS - 1]) {
        println!(
            "{step:>6} {:>10.6} {:>10.6}",
            single.losses[step], half.losses[step]
        );
    }
    println!(
        "loss scale: {} after {} steps, {} of them left out",
        half.scaler.scale, half.scaler.updates, half.scaler.skipped
    );
    println!(
        "pool: {} bytes allocated at the peak, {} now",
        pool.stats().allocated.peak,
        pool.stats().allocated.current
    );
    let (first, last) = (single.mean_of_first(), single.mean_of_last());
    let (half_first, half_last) = (half.mean_of_first(), half.mean_of_last());
    let falls = last < 0.05 * first && half_last < 0.05 * half_first;
    // Either may be ahead because of the order of roundings.
    let agrees = half_last < 1.5 * last && last < 1.5 * half_last;
    println!("last losses: f32 {last:.6}, f16 {half_last:.6}; both fall: {falls}, agree: {agrees}");
    if falls && agrees {
        Ok(())
    } else {
        Err("the f16 loss does not fall as the f32 loss does".into())
    }
}

/// The results of a training.
struct History {
    /// The mean loss of each step.
    losses: Vec<f32>,
    scaler: ScalerState,
}

impl History {
    fn mean_of_first(&self) -> f32 {
        self.losses[..10].iter().sum::<f32>() / 10.0
    }

    fn mean_of_last(&self) -> f32 {
        self.losses[STEPS - 10..].iter().sum::<f32>() / 10.0
    }
}

/// A tensor of weights, and the optimiser's state for it.
struct Weights {
    master: PoolBuf<f32>,
    momentum: PoolBuf<f32>,
    sum: PoolBuf<f32>,
}

impl Weights {
    fn new(machine: &dyn Machine, pool: &Pool, len: usize, spread: f32) -> Outcome<Self> {
        let filled = |values: &[f32]| -> Outcome<PoolBuf<f32>> {
            let mut buffer = pool.alloc_typed::<f32>(machine.stream(), len)?;
            buffer.upload(values)?;
            Ok(buffer)
        };
        let start: Vec<f32> = (0..len).map(|i| spread * noise(i as u32 + 7)).collect();
        Ok(Self {
            master: filled(&start)?,
            momentum: filled(&vec![0.0; len])?,
            sum: filled(&vec![0.0; len])?,
        })
    }

    /// Arguments of the kernels that change these weights.
    fn update(&self, gradient: u64, found: u64) -> Update {
        Update {
            gradient,
            sum: self.sum.addr(),
            master: self.master.addr(),
            momentum: self.momentum.addr(),
            found,
            count: self.master.len() as u64,
            rate: RATE,
            decay: DECAY,
            keep: 1.0,
        }
    }
}

/// Trains the network from the same initial weights on the same samples.
fn train(machine: &dyn Machine, pool: &Pool, precision: Precision) -> Outcome<History> {
    let stream = machine.stream();
    let mut weights = [
        Weights::new(machine, pool, HIDDEN * INPUTS, 1.5)?,
        Weights::new(machine, pool, HIDDEN + 1, 0.3)?,
    ];
    let (samples, targets) = data();
    let mut x = pool.alloc_typed::<f32>(stream, samples.len())?;
    x.upload(&samples)?;
    let mut target = pool.alloc_typed::<f32>(stream, targets.len())?;
    target.upload(&targets)?;
    let losses = pool.alloc_typed::<f32>(stream, STEPS * targets.len())?;

    let mut config = ScalerConfig::default();
    if precision == Precision::F32 {
        config = config.scale(1.0).interval(u32::MAX); // and no growth
    } else {
        config = config.interval(20); // soon too large, so that steps are left out
    }
    let mut scaler = GradScaler::new(pool, stream, config)?;

    // In f32 the network uses masters and samples directly, in f16 it uses copies.
    let mut x16 = pool.alloc_typed::<f16>(stream, samples.len())?;
    convert(stream, x.view(), x16.view_mut(), Rounding::Nearest)?;
    let mut halves = Vec::new();
    for tensor in &weights {
        halves.push(pool.alloc_typed::<f16>(stream, tensor.master.len())?);
    }
    let f32s = [weights[0].master.addr(), weights[1].master.addr(), x.addr()];
    let f16s = [halves[0].addr(), halves[1].addr(), x16.addr()];
    let [w1, w2, x_at] = if precision == Precision::F16 {
        f16s
    } else {
        f32s
    };
    let working = Working::new(machine, pool, precision)?;
    let pass = Pass {
        w1,
        w2,
        x: x_at,
        target: target.addr(),
        h: working.h.addr(),
        dy: working.dy.addr(),
        g1: working.g1.addr(),
        g2: working.g2.addr(),
        loss: losses.addr(),
        scale: scaler.scale().addr(),
        samples: SAMPLES as u64,
        inputs: INPUTS as u64,
        hidden: HIDDEN as u64,
        share: 1.0 / targets.len() as f32,
    };
    let found = scaler.found().addr();
    let updates = [
        weights[0].update(pass.g1, found),
        weights[1].update(pass.g2, found),
    ];

    let [first, second] = &mut weights;
    let sums = vec![first.sum.view_mut(), second.sum.view_mut()];
    let mut sums = Gradients::new(pool, stream, sums)?;
    let masters = [&first.master, &second.master];
    let pairs = masters.iter().zip(&mut halves);
    let pairs = pairs.map(|(master, half)| (master.view(), half.view_mut()));
    let mut to_half = ConvertTable::new(pool, stream, pairs.collect())?;
    to_half.convert(stream, Rounding::Nearest)?;

    for step in 0..STEPS {
        for part in 0..MICRO_BATCHES {
            micro_batch(machine, precision, &pass, &updates, (step, part))?;
        }
        scaler.unscale(stream, &mut sums)?;
        for update in updates {
            machine.queue(Call::Step(update))?;
        }
        to_half.convert(stream, Rounding::Nearest)?;
        scaler.update(stream)?;
    }
    let each = losses.download()?;
    let mean = |of: &[f32]| of.iter().sum::<f32>() / of.len() as f32;
    Ok(History {
        losses: each.chunks(targets.len()).map(mean).collect(),
        scaler: scaler.read(stream)?.wait()?,
    })
}

/// Activations and gradients of a micro-batch.
struct Working {
    h: Block,
    dy: Block,
    g1: Block,
    g2: Block,
}

impl Working {
    fn new(machine: &dyn Machine, pool: &Pool, precision: Precision) -> Outcome<Self> {
        let size = if precision == Precision::F16 { 2 } else { 4 };
        let block = |elements: usize| pool.alloc(machine.stream(), elements as u64 * size);
        Ok(Self {
            h: block(SAMPLES * (HIDDEN + 1))?,
            dy: block(SAMPLES)?,
            g1: block(HIDDEN * INPUTS)?,
            g2: block(HIDDEN + 1)?,
        })
    }
}

/// Queues forward and backward pass of one micro-batch, and adds its gradients to the sums.
fn micro_batch(
    machine: &dyn Machine,
    precision: Precision,
    pass: &Pass,
    updates: &[Update; 2],
    (step, part): (usize, usize),
) -> Outcome<()> {
    let size = if precision == Precision::F16 { 2 } else { 4 };
    let first = (part * SAMPLES) as u64;
    let mut pass = *pass;
    pass.x += first * INPUTS as u64 * size;
    pass.target += first * 4;
    pass.loss += ((step * MICRO_BATCHES + part) * SAMPLES * 4) as u64;
    machine.queue(Call::Hidden(precision, pass))?;
    machine.queue(Call::Output(precision, pass))?;
    machine.queue(Call::GradientW2(precision, pass))?;
    machine.queue(Call::GradientW1(precision, pass))?;
    for update in updates {
        let mut update = *update;
        update.keep = if part == 0 { 0.0 } else { 1.0 };
        machine.queue(Call::Accumulate(precision, update))?;
    }
    Ok(())
}

/// Points of a square, each followed by a 1, and a smooth function of them.
fn data() -> (Vec<f32>, Vec<f32>) {
    let (mut samples, mut targets) = (Vec::new(), Vec::new());
    for i in 0..(SAMPLES * MICRO_BATCHES) as u32 {
        let (a, b) = (noise(2 * i + 1000), noise(2 * i + 1001));
        samples.extend([a, b, 1.0]);
        targets.push((2.5 * a).sin() * b + 0.5 * b);
    }
    (samples, targets)
}

/// Pseudo-random numbers between -1 and 1, always the same.
fn noise(i: u32) -> f32 {
    let x = i.wrapping_mul(0x9E37_79B9) ^ (i >> 7);
    let x = (x ^ (x >> 15)).wrapping_mul(0x85EB_CA6B);
    (x >> 8) as f32 / (1 << 23) as f32 - 1.0
}
