//! Gradients averaged over the ranks, in half the bytes, while the backward pass goes on.
//!
//! The gradients lie in one buffer, one behind the other, and are cut into buckets of one size: a launch
//! narrows a bucket, the ranks add the codes, a launch widens and averages them. Three streams of the
//! reducer's own do the three, so that the casts of one bucket run beside the sums of another; the buffer's
//! log keeps the order, of the kernels that write the gradients too.
//!
//! A bucket is queued once all gradients that touch it are ready and all buckets before it are queued: the
//! ranks queue the same buckets in the same order, whatever order their gradients came in.
//!
//! Every bucket has a scale, as loss scaling has one: where a code or a sum overflows, every rank sees the
//! infinity, leaves the step out and halves that bucket's scale. So the scales of the ranks are the same,
//! and nobody exchanges them.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

use super::{Comm, Op, Reduce};
use crate::convert::{
    Conversion, Element, Fused, FusedTo, GradScaler, Rounding, ScalerConfig, convert_fused,
};
use crate::device::{Launch, Stream, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf, View, ViewMut};

/// Elements that every gradient, and every bucket, begins on a multiple of: 256 bytes of `f32`.
const ALIGN: usize = 64;

/// What gradients are sent as.
///
/// ```
/// use warpool::collective::{ReducerConfig, Wire};
///
/// let config = ReducerConfig::default().wire(Wire::Bf16).bucket_bytes(8 << 20).stochastic(7);
/// # let _ = config;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// As they are.
    F32,
    /// Half the bytes, 11 significant bits, under a scale.
    #[default]
    F16,
    /// Half the bytes, 8 significant bits; no gradient overflows.
    Bf16,
}

/// How gradients are reduced. Made by [`ReducerConfig::default`] and the setters.
#[derive(Debug, Clone, Copy)]
pub struct ReducerConfig {
    wire: Wire,
    bucket_bytes: u64,
    scale: ScalerConfig,
    feedback: bool,
    /// The key; `None`: to nearest.
    stochastic: Option<u64>,
}

impl Default for ReducerConfig {
    /// `f16` in buckets of 32 MiB, rounded to nearest, scales that start at 1024.
    fn default() -> Self {
        Self {
            wire: Wire::F16,
            bucket_bytes: 32 << 20,
            scale: ScalerConfig::default().scale(1024.0),
            feedback: false,
            stochastic: None,
        }
    }
}

impl ReducerConfig {
    /// Sets what gradients are sent as.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Sets the bytes of `f32` gradients of a bucket, rounded up to 256.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets how the scale of each bucket starts and moves; of [`Wire::F16`] alone.
    #[must_use]
    pub fn scale(mut self, scale: ScalerConfig) -> Self {
        self.scale = scale;
        self
    }

    /// Sets whether what rounding took from a gradient is added to the next step's: 4 bytes a gradient.
    #[must_use]
    pub fn feedback(mut self, on: bool) -> Self {
        self.feedback = on;
        self
    }

    /// Sets stochastic rounding, by a key; every rank and step draws its own.
    #[must_use]
    pub fn stochastic(mut self, seed: u64) -> Self {
        self.stochastic = Some(seed);
        self
    }
}

/// An element that is sent.
trait Sent: Element + Reduce + FusedTo<f32> {}
impl<T: Element + Reduce + FusedTo<f32>> Sent for T {}

/// The codes of all gradients.
enum Codes {
    F32(PoolBuf<f32>),
    F16(PoolBuf<f16>),
    Bf16(PoolBuf<bf16>),
}

/// What every bucket's launches use beside its codes.
struct Shared {
    comm: Comm,
    /// For the casts to codes, the sums, and the casts back.
    narrow: Stream,
    link: Stream,
    widen: Stream,
    gradients: PoolBuf<f32>,
    residual: Option<PoolBuf<f32>>,
    /// Largest magnitude of the step's averages.
    largest: PoolBuf<f32>,
    rounding: Rounding,
}

/// A bucket: its elements, its scale, and how many gradients of it are still to come.
struct Bucket {
    range: Range<usize>,
    scaler: GradScaler,
    /// How many tensors touch it.
    tensors: usize,
    missing: usize,
}

/// Averages gradients over the ranks of a communicator.
///
/// A step: the backward pass writes into [`Reducer::gradients`]; [`Reducer::ready`] once work that writes a
/// gradient is queued, in any order; [`Reducer::finish`]. The optimiser's kernel then reads the averages from
/// the same places, and leaves the step out where [`Reducer::largest`] is not finite. All of it is queued.
///
/// Every rank makes its reducer alike, and takes the same steps.
///
/// ```
/// use std::time::Duration;
/// use warpool::collective::{Comm, Reducer, ReducerConfig};
/// use warpool::{Device, Pool, PoolConfig};
///
/// # fn main() -> warpool::Result<()> {
/// let comm = Comm::simulated(&[Device::host()?], Duration::from_secs(10))?.remove(0);
/// let pool = Pool::new(comm.device(), PoolConfig::default())?;
/// let stream = comm.device().stream()?;
/// // In the order in which the backward pass makes them.
/// let mut reducer = Reducer::new(&pool, &stream, &comm, &[1000, 24], ReducerConfig::default())?;
/// for (number, gradient) in reducer.gradients().into_iter().enumerate() {
///     gradient.fill(&stream, 0.5 + number as f32)?; // the backward pass
/// }
/// reducer.ready(0)?;
/// reducer.ready(1)?;
/// reducer.finish()?;
/// assert_eq!(reducer.gradients()[1].as_view().download(&stream)?, [1.5; 24]);
/// assert_eq!(reducer.largest().download(&stream)?, [1.5]);
/// # Ok(())
/// # }
/// ```
pub struct Reducer {
    shared: Shared,
    codes: Codes,
    tensors: Vec<Range<usize>>,
    buckets: Vec<Bucket>,
    is_ready: Vec<bool>,
    /// The first bucket that is not queued.
    next: usize,
    steps: u64,
}

impl Reducer {
    /// A reducer of gradients of so many elements each, in memory of `pool`, zeroed; allocated on `stream`, which
    /// is waited for.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pool or stream of another device than the communicator's end, or a scale that
    /// cannot be; what the pool or the driver said.
    pub fn new(
        pool: &Pool,
        stream: &Stream,
        comm: &Comm,
        lens: &[usize],
        config: ReducerConfig,
    ) -> Result<Self> {
        if !comm.device().same(stream.device()) {
            let why = "it is of another device than the communicator's end";
            return Err(Error::invalid("stream", why));
        }
        let (tensors, total) = laid_out(lens)?;
        let size = (config.bucket_bytes / 4).div_ceil(ALIGN as u64).max(1) * ALIGN as u64;
        let size = usize::try_from(size).unwrap_or(total).min(total.max(ALIGN));
        let scale = match config.wire {
            Wire::F16 => config.scale,
            Wire::F32 | Wire::Bf16 => ScalerConfig::default().scale(1.0).interval(u32::MAX),
        };
        let mut buckets = Vec::new();
        for start in (0..total).step_by(size) {
            let range = start..(start + size).min(total);
            let meets =
                |tensor: &&Range<usize>| tensor.start < range.end && range.start < tensor.end;
            let count = tensors.iter().filter(meets).count();
            buckets.push(Bucket {
                scaler: GradScaler::new(pool, stream, scale)?,
                range,
                tensors: count,
                missing: count,
            });
        }
        let device = comm.device();
        let residual = match config.feedback && config.wire != Wire::F32 {
            true => Some(pool.alloc_zeroed(stream, total)?),
            false => None,
        };
        let codes = match config.wire {
            Wire::F32 => Codes::F32(pool.alloc_zeroed(stream, total)?),
            Wire::F16 => Codes::F16(pool.alloc_zeroed(stream, total)?),
            Wire::Bf16 => Codes::Bf16(pool.alloc_zeroed(stream, total)?),
        };
        let seeded = |seed| Rounding::Stochastic { seed };
        let shared = Shared {
            comm: comm.clone(),
            narrow: device.stream()?,
            link: device.stream()?,
            widen: device.stream()?,
            gradients: pool.alloc_zeroed(stream, total)?,
            residual,
            largest: pool.alloc_zeroed(stream, 1)?,
            rounding: config.stochastic.map_or(Rounding::Nearest, seeded),
        };
        Ok(Self {
            shared,
            codes,
            is_ready: vec![false; tensors.len()],
            tensors,
            buckets,
            next: 0,
            steps: 0,
        })
    }

    /// The gradients, each to be written and, after [`Reducer::finish`], read.
    #[must_use]
    pub fn gradients(&mut self) -> Vec<ViewMut<'_, f32>> {
        let buffer = &self.shared.gradients;
        let view = |tensor: &Range<usize>| {
            let from = 4 * tensor.start as u64;
            let place = buffer.place().offset(from);
            ViewMut::new(buffer.addr() + from, tensor.len(), place)
        };
        self.tensors.iter().map(view).collect()
    }

    /// Gradient `tensor` is queued to be written. Queues the buckets that this completes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a gradient that is not there, or was ready; what the communicator or the driver
    /// said.
    pub fn ready(&mut self, tensor: usize) -> Result<()> {
        match self.is_ready.get_mut(tensor) {
            Some(ready) if !*ready => *ready = true,
            Some(_) => {
                return Err(Error::invalid(
                    "tensor",
                    format!("{tensor} is ready already"),
                ));
            }
            None => {
                let why = format!("{tensor}: there are {} gradients", self.tensors.len());
                return Err(Error::invalid("tensor", why));
            }
        }
        let its = self.tensors[tensor].clone();
        for bucket in &mut self.buckets {
            if its.start < bucket.range.end && bucket.range.start < its.end {
                bucket.missing -= 1;
            }
        }
        self.queue_ready()
    }

    fn queue_ready(&mut self) -> Result<()> {
        while self
            .buckets
            .get(self.next)
            .is_some_and(|bucket| bucket.missing == 0)
        {
            if self.next == 0 {
                let shared = &mut self.shared;
                shared.largest.view_mut().fill(&shared.widen, 0.0)?;
            }
            // Distinct for every bucket, step and rank.
            let count = self.buckets.len() as u64;
            let number = self
                .steps
                .wrapping_mul(count)
                .wrapping_add(self.next as u64);
            let bucket = &mut self.buckets[self.next];
            match &mut self.codes {
                Codes::F32(codes) => self.shared.reduce(bucket, codes, number)?,
                Codes::F16(codes) => self.shared.reduce(bucket, codes, number)?,
                Codes::Bf16(codes) => self.shared.reduce(bucket, codes, number)?,
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Ends the step: what is queued from here on with the gradients' views sees the averages.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names a gradient which is not ready; the step goes on then.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(tensor) = self.is_ready.iter().position(|ready| !ready) {
            return Err(Error::invalid("tensor", format!("{tensor} is not ready")));
        }
        // Where a bucket failed to be queued before.
        self.queue_ready()?;
        for bucket in &mut self.buckets {
            bucket.missing = bucket.tensors;
        }
        self.is_ready.fill(false);
        (self.next, self.steps) = (0, self.steps + 1);
        Ok(())
    }

    /// The largest magnitude of the step's averages, in device memory, the same on all ranks: infinite or NaN
    /// where a gradient of any rank was, or a sum overflowed. The step is to be left out then.
    #[must_use]
    pub fn largest(&self) -> View<'_, f32> {
        self.shared.largest.view()
    }
}

/// Where gradients of these lengths lie, and the elements of all.
fn laid_out(lens: &[usize]) -> Result<(Vec<Range<usize>>, usize)> {
    let (mut tensors, mut total) = (Vec::with_capacity(lens.len()), 0usize);
    for &len in lens {
        let end = total.checked_add(len).filter(|end| *end < usize::MAX / 8);
        let end = end.ok_or_else(|| Error::invalid("lens", "they sum to more than memory has"))?;
        tensors.push(total..end);
        total = end.next_multiple_of(ALIGN);
    }
    Ok((tensors, total))
}

impl Shared {
    /// Queues a bucket.
    fn reduce<D: Sent>(
        &mut self,
        bucket: &mut Bucket,
        codes: &mut PoolBuf<D>,
        number: u64,
    ) -> Result<()>
    where
        f32: FusedTo<D>,
    {
        let (range, ranks) = (bucket.range.clone(), self.comm.size());
        let number = number.wrapping_mul(u64::from(ranks)) + u64::from(self.comm.rank());
        let rounding = match self.rounding {
            Rounding::Stochastic { seed } => Rounding::Stochastic {
                seed: seed.wrapping_add(number),
            },
            other => other,
        };
        let mut codes = codes.slice_mut(range.clone())?;
        let mut gradients = self.gradients.slice_mut(range.clone())?;
        match &mut self.residual {
            Some(residual) => {
                let residual = residual.slice_mut(range)?;
                let from = gradients.as_view();
                feed_back(
                    &self.narrow,
                    from,
                    residual,
                    codes.reborrow(),
                    &bucket.scaler,
                    rounding,
                )?;
            }
            None => {
                let scaled = Fused::default().scale_at(bucket.scaler.scale());
                convert_fused(
                    &self.narrow,
                    gradients.as_view(),
                    codes.reborrow(),
                    rounding,
                    scaled,
                )?;
            }
        }
        let queue = self.comm.on(&self.link);
        queue.all_reduce(codes.reborrow(), Op::Sum).run()?;
        let (inverse, found) = bucket.scaler.inverse_and_found();
        let averaged = Fused::default().scale(1.0 / ranks as f32).scale_at(inverse);
        let averaged = averaged.flag(found).amax(self.largest.view_mut());
        let how = Conversion::default();
        convert_fused(
            &self.widen,
            codes.as_view(),
            gradients.reborrow(),
            how,
            averaged,
        )?;
        bucket.scaler.update(&self.widen)
    }
}

/// Queues a cast that hands what it loses to the next.
fn feed_back<D: Element>(
    stream: &Stream,
    gradients: View<'_, f32>,
    residual: ViewMut<'_, f32>,
    codes: ViewMut<'_, D>,
    scaler: &GradScaler,
    rounding: Rounding,
) -> Result<()> {
    let (scale, inverse) = (scaler.scale(), scaler.inverse());
    let (rounding, seed) = match rounding {
        Rounding::Stochastic { seed } => (abi::WP_STOCHASTIC, seed),
        _ => (abi::WP_NEAREST, 0),
    };
    let launch = Launch::Feedback(abi::wp_feedback {
        src: gradients.addr(),
        residual: residual.addr(),
        dst: codes.addr(),
        scale: scale.addr(),
        inverse: inverse.addr(),
        count: gradients.len() as u64,
        first: 0,
        seed,
        type_: D::TYPE,
        rounding,
    });
    let uses = [
        gradients.used(),
        residual.used(),
        codes.used(),
        scale.used(),
        inverse.used(),
    ];
    // SAFETY: three buffers of the reducer's own, sliced alike at multiples of 256 bytes.
    let queued = ordered(stream.core(), &uses, || unsafe {
        let backend = stream.device().backend();
        backend.launch(&launch, stream.raw())
    });
    queued?
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensors, buckets) = (self.tensors.len(), self.buckets.len());
        write!(f, "Reducer({tensors} gradients in {buckets} buckets)")
    }
}
