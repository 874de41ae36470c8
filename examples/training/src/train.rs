//! The training, the same for every way.

use std::fmt;
use std::time::Instant;

use warpool::convert::{GradScaler, Gradients, ScalerConfig};
use warpool::host::{HostPool, HostPoolConfig, Spill};
use warpool::recompute::{Action, Plan};
use warpool::{Device, Pool, PoolBuf, PoolConfig, Result, Stream};

use crate::data::{CLASSES, Digits, PIXELS};
use crate::kernels;
use crate::network::{Batch, Pass, Shape};
use crate::real::Real;

const RATE: f32 = 0.01;
const DECAY: f32 = 0.9;

/// The options of a training.
pub struct Way {
    pub name: &'static str,
    /// Rows of a micro-batch.
    pub shape: Shape,
    pub plan: Plan,
    /// Micro-batches per step.
    pub parts: usize,
    pub steps: usize,
    /// Device memory for activations; those that do not fit go to the host.
    pub limit: Option<u64>,
}

/// The results.
#[derive(Clone)]
pub struct Outcome {
    pub name: &'static str,
    /// The mean loss of each step.
    pub losses: Vec<f32>,
    /// Most bytes of a micro-batch that were allocated at once, and the plan's prediction.
    pub peak_bytes: u64,
    pub planned_bytes: u64,
    /// Bytes moved to the host, per step.
    pub spilled: u64,
    forwards: usize,
    ms: f64,
    right: f64,
}

impl Outcome {
    /// The mean losses of ten steps each.
    pub fn smooth(&self) -> impl Iterator<Item = f32> + '_ {
        let mean = |steps: &[f32]| steps.iter().sum::<f32>() / steps.len() as f32;
        self.losses.chunks(10).map(mean)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.peak_bytes as f64 / self.planned_bytes as f64;
        let last = self.losses.last().copied().unwrap_or(f32::NAN);
        let (peak, right) = (self.peak_bytes as f64 / 1024.0, 100.0 * self.right);
        write!(
            f,
            "{:<34} {peak:>10.0} {part:>8.3} {:>8} {:>9} {:>8.2} {last:>8.4} {right:>5.1}%",
            self.name,
            self.spilled / 1024,
            self.forwards,
            self.ms
        )
    }
}

/// Images and labels on the device.
struct Loaded<T> {
    images: PoolBuf<T>,
    labels: PoolBuf<u32>,
}

impl<T: Real> Loaded<T> {
    fn new(pool: &Pool, stream: &Stream, digits: &Digits) -> Result<Self> {
        let plain = pool.alloc_from(stream, &digits.images)?;
        let mut images = pool.alloc_typed(stream, digits.images.len())?;
        T::from_f32(stream, &plain, &mut images)?;
        let labels = pool.alloc_from(stream, &digits.labels)?;
        Ok(Self { images, labels })
    }
}

/// Trains from the same initial weights on the same images, in any of the ways.
pub fn train<T: Real>(
    device: &Device,
    way: &Way,
    learnt: &Digits,
    rest: &Digits,
) -> Result<Outcome> {
    let pool = Pool::new(device, PoolConfig::default())?;
    let stream = device.stream()?;
    let shape = &way.shape;
    let digits = Loaded::<T>::new(&pool, &stream, learnt)?;
    let mut masters = pool.alloc_from(&stream, &shape.parameters())?;
    let count = masters.len();
    let mut momentum = pool.alloc_zeroed::<f32>(&stream, count)?;
    let mut gradients = pool.alloc_zeroed::<f32>(&stream, count)?;
    let mut parameters = pool.alloc_typed::<T>(&stream, count)?;
    T::from_f32(&stream, &masters, &mut parameters)?;
    let mut scaler = GradScaler::new(&pool, &stream, ScalerConfig::default().scale(1024.0))?;
    let mut losses = Vec::new();
    for _ in 0..way.steps * way.parts {
        losses.push(pool.alloc_zeroed::<f32>(&stream, shape.rows)?);
    }
    let host = HostPool::new(device, HostPoolConfig::default());
    let mut config = PoolConfig::default();
    if let Some(limit) = way.limit {
        config = config.limit(limit);
    }
    let activations = Pool::new(device, config)?;
    if way.limit.is_some() {
        activations.set_spill(Spill::Auto(&host))?;
    }
    stream.synchronize()?;

    let begun = Instant::now();
    for step in 0..way.steps {
        kernels::clear(&stream, &mut gradients)?;
        for part in 0..way.parts {
            let at = step * way.parts + part;
            let row = at * shape.rows % learnt.labels.len();
            let memory = (&activations, way.limit.is_some());
            let mut pass = Pass::new(memory, &stream, shape, parameters.view());
            let mut batch = Batch {
                images: digits
                    .images
                    .slice(row * PIXELS..(row + shape.rows) * PIXELS)?,
                labels: digits.labels.slice(row..row + shape.rows)?,
                scale: scaler.scale(),
                samples: shape.rows * way.parts,
                gradients: &mut gradients,
                losses: &mut losses[at],
            };
            pass.run(&way.plan, &mut batch)?;
        }
        let mut sums = Gradients::new(&pool, &stream, vec![gradients.view_mut()])?;
        scaler.unscale(&stream, &mut sums)?;
        drop(sums);
        kernels::descend(
            &stream,
            RATE,
            DECAY,
            scaler.found(),
            &gradients,
            &mut momentum,
            &mut masters,
        )?;
        T::from_f32(&stream, &masters, &mut parameters)?;
        scaler.update(&stream)?;
    }
    stream.synchronize()?;
    let ms = begun.elapsed().as_secs_f64() * 1e3 / way.steps as f64;
    let stats = activations.stats();

    let forward = |action: &&Action| !matches!(action, Action::Backward { .. });
    Ok(Outcome {
        name: way.name,
        losses: mean_losses(&losses, way.parts)?,
        peak_bytes: stats.allocated.peak,
        spilled: stats.spilled.allocated / way.steps as u64,
        // The images are kept anyway, and they need no gradient.
        planned_bytes: way.plan.peak_bytes,
        forwards: way.plan.actions.iter().filter(forward).count(),
        ms,
        right: share_right(&pool, &stream, shape, &parameters, rest)?,
    })
}

fn mean_losses(losses: &[PoolBuf<f32>], parts: usize) -> Result<Vec<f32>> {
    let mut means = Vec::new();
    for step in losses.chunks(parts) {
        let mut rows = Vec::new();
        for part in step {
            rows.extend(part.download()?);
        }
        means.push(rows.iter().sum::<f32>() / rows.len() as f32);
    }
    Ok(means)
}

/// The fraction of correctly recognised images among those not used for training.
fn share_right<T: Real>(
    pool: &Pool,
    stream: &Stream,
    shape: &Shape,
    parameters: &PoolBuf<T>,
    rest: &Digits,
) -> Result<f64> {
    let rows = rest.labels.len();
    let loaded = Loaded::<T>::new(pool, stream, rest)?;
    let shape = Shape { rows, ..*shape };
    let mut pass = Pass::new((pool, false), stream, &shape, parameters.view());
    let outputs = pass.outputs(loaded.images.view())?;
    let outputs = pool.alloc_from(stream, &outputs)?;
    let mut wide = pool.alloc_typed::<f32>(stream, outputs.len())?;
    T::to_f32(stream, &outputs, &mut wide)?;
    let right = wide
        .download()?
        .chunks(CLASSES)
        .zip(&rest.labels)
        .filter(|(row, label)| {
            let best = (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
            best == Some(**label as usize)
        })
        .count();
    Ok(right as f64 / rows as f64)
}
