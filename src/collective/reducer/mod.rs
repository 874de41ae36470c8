//! Gradients averaged over the ranks, in half the bytes, while the backward pass goes on.
//!
//! The gradients lie in one buffer, one behind the other, and are cut into buckets: a bucket is narrowed, the
//! ranks add the codes, the sums are widened and averaged. Three streams of the reducer's own do the three, so
//! that the casts of one bucket run beside the sums of another; the logs of the buffers keep the order, of the
//! kernels that write the gradients too. Every bucket's codes are a buffer of their own, since what waits for
//! one must not wait for others.
//!
//! A bucket is queued once all gradients that touch it are ready and all buckets before it are queued: the
//! ranks queue the same buckets in the same order, whatever order their gradients came in.
//!
//! Every bucket has a scale, as loss scaling has one: where a code or a sum overflows, every rank sees the
//! infinity, leaves the step out and halves that bucket's scale. So the scales of the ranks are the same,
//! and nobody exchanges them.
//!
//! Sums of 8-bit floats do not overflow into an infinity, they stay at the largest code, which nobody sees. So
//! there each bucket is measured first, the ranks agree on the largest magnitude, and its scale is made from
//! that. A bucket is measured before the sum of the one ahead of it is queued, so that its casts run beside that
//! sum; the ranks do all this in one order, whatever order their gradients came in.

mod captured;
mod config;
mod cut;
mod schedule;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Weak;

use half::{bf16, f16};

pub use self::config::{ReducerConfig, Wire};
use self::cut::{ALIGN, cut, laid_out, pieces};
use self::schedule::{Work, schedule};
use super::{Comm, Op, Reduce};
use crate::convert::{
    Conversion, E4m3, Element, Fused, FusedTo, GradScaler, Rounding, ScalerConfig, convert_fused,
};
use crate::device::{Launch, Recorder, Stream, ordered};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf, View, ViewMut};
use crate::seeded::seeded;

/// The power of two that all ranks' 8-bit codes together stay at or below: a code at a power of two is exact, and
/// what roundings of sums add to it, of few bits and many ranks, stays below the largest code, 448.
const TOP: i32 = 8;

/// An element that is sent.
trait Sent: Element + Reduce + FusedTo<f32> {}
impl<T: Element + Reduce + FusedTo<f32>> Sent for T {}

/// The codes of a bucket's gradients.
enum Codes {
    F32(PoolBuf<f32>),
    F16(PoolBuf<f16>),
    Bf16(PoolBuf<bf16>),
    E4m3(PoolBuf<E4m3>),
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

/// A bucket: its elements, their codes, its scale, and how many gradients of it are still to come.
struct Bucket {
    range: Range<usize>,
    codes: Codes,
    /// For 8-bit codes: the largest magnitude of its gradients, and of what their codes lacked.
    most: Option<PoolBuf<f32>>,
    scaler: GradScaler,
    /// How many tensors touch it.
    tensors: usize,
    missing: usize,
}

/// Does the same with codes of any type.
macro_rules! with_codes {
    ($of:expr, $codes:ident => $same:expr) => {
        match $of {
            Codes::F32($codes) => $same,
            Codes::F16($codes) => $same,
            Codes::Bf16($codes) => $same,
            Codes::E4m3($codes) => $same,
        }
    };
}

impl Bucket {
    fn is_ready(&self) -> bool {
        let early = seeded!("bucket-goes-with-its-first-gradient") && self.missing < self.tensors;
        self.missing == 0 || early
    }
}

/// Averages gradients over the ranks of a communicator.
///
/// A step: the backward pass writes into [`Reducer::gradients`]; [`Reducer::ready`] once work that writes a
/// gradient is queued, in any order; [`Reducer::finish`]. The optimiser's kernel then reads the averages from
/// the same places, and leaves the step out where [`Reducer::largest`] is not finite. All of it is queued.
///
/// Every rank makes its reducer alike, and takes the same steps.
///
/// A step may be captured into a graph ([`Stream::begin_capture`]), from before its first gradient to behind
/// [`Reducer::finish`], on the stream that the reducer was made on: its own streams join the capture. Each launch
/// of the graph is a step then, with the scales and what rounding kept back as the step before left them.
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
    tensors: Vec<Range<usize>>,
    buckets: Vec<Bucket>,
    is_ready: Vec<bool>,
    work: Vec<Work>,
    /// The first of it that is not queued.
    next: usize,
    /// Casts to codes that were queued.
    casts: u64,
    /// The stream that it was made on, whose captures steps may be a part of.
    home: Stream,
    /// The capture that the step under way is a part of, none where it is of no capture.
    step: Option<Weak<Recorder>>,
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
            Wire::F32 | Wire::Bf16 | Wire::E4m3 => {
                ScalerConfig::default().scale(1.0).interval(u32::MAX)
            }
        };
        let gradients = pool.alloc_zeroed(stream, total)?;
        let mut buckets = Vec::new();
        for range in cut(total, size) {
            let meets =
                |tensor: &&Range<usize>| tensor.start < range.end && range.start < tensor.end;
            let count = tensors.iter().filter(meets).count();
            buckets.push(Bucket {
                codes: match config.wire {
                    Wire::F32 => Codes::F32(pool.alloc_zeroed(stream, range.len())?),
                    Wire::F16 => Codes::F16(pool.alloc_zeroed(stream, range.len())?),
                    Wire::Bf16 => Codes::Bf16(pool.alloc_zeroed(stream, range.len())?),
                    Wire::E4m3 => Codes::E4m3(pool.alloc_zeroed(stream, range.len())?),
                },
                most: match config.wire {
                    Wire::E4m3 => Some(pool.alloc_zeroed(stream, 2)?),
                    _ => None,
                },
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
        // One bucket has nothing to run beside, and nothing to wait for on one stream.
        let narrow = device.stream()?;
        let (link, widen) = match buckets.len() {
            0 | 1 => (narrow.clone(), narrow.clone()),
            _ => (device.stream()?, device.stream()?),
        };
        let seeded = |seed| Rounding::Stochastic { seed };
        let shared = Shared {
            comm: comm.clone(),
            narrow,
            link,
            widen,
            gradients,
            residual,
            largest: pool.alloc_zeroed(stream, 1)?,
            rounding: config.stochastic.map_or(Rounding::Nearest, seeded),
        };
        Ok(Self {
            shared,
            is_ready: vec![false; tensors.len()],
            tensors,
            work: schedule(buckets.len(), config.wire == Wire::E4m3),
            buckets,
            next: 0,
            casts: 0,
            home: stream.clone(),
            step: None,
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
    /// [`Error::Invalid`] for a gradient that is not there, or was ready, a capture that began or ended within
    /// the step, or stochastic rounding in one; what the communicator or the driver said.
    pub fn ready(&mut self, tensor: usize) -> Result<()> {
        let why = match self.is_ready.get(tensor) {
            Some(false) => None,
            Some(true) => Some(format!("{tensor} is ready already")),
            None => Some(format!(
                "{tensor}: there are {} gradients",
                self.tensors.len()
            )),
        };
        if let Some(why) = why {
            return Err(Error::invalid("tensor", why));
        }
        self.join_capture()?;
        self.is_ready[tensor] = true;
        let its = self.tensors[tensor].clone();
        for bucket in &mut self.buckets {
            if its.start < bucket.range.end && bucket.range.start < its.end {
                bucket.missing -= 1;
            }
        }
        self.queue_ready()
    }

    fn queue_ready(&mut self) -> Result<()> {
        while let Some(&work) = self.work.get(self.next) {
            let bucket = &mut self.buckets[work.bucket()];
            if !bucket.is_ready() {
                break;
            }
            let shared = &mut self.shared;
            if self.next == 0 && !seeded!("largest-of-the-step-before-kept") {
                shared.largest.view_mut().fill(&shared.widen, 0.0)?;
            }
            match work {
                Work::Measure(_) => shared.measure(bucket)?,
                Work::Narrow(_) => shared.narrow_bucket(bucket, &mut self.casts)?,
                Work::Sum(_) => shared.sum_bucket(bucket)?,
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Ends the step: what is queued from here on with the gradients' views sees the averages.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names a gradient which is not ready; the step goes on then. As
    /// [`Reducer::ready`].
    pub fn finish(&mut self) -> Result<()> {
        if let Some(tensor) = self.is_ready.iter().position(|ready| !ready) {
            return Err(Error::invalid("tensor", format!("{tensor} is not ready")));
        }
        self.join_capture()?;
        // Where a bucket failed to be queued before.
        self.queue_ready()?;
        self.leave_capture()?;
        for bucket in &mut self.buckets {
            bucket.missing = bucket.tensors;
        }
        self.is_ready.fill(false);
        (self.next, self.step) = (0, None);
        Ok(())
    }

    /// The largest magnitude of the step's averages, in device memory, the same on all ranks: infinite or NaN
    /// where a gradient of any rank was, or a sum overflowed. The step is to be left out then.
    #[must_use]
    pub fn largest(&self) -> View<'_, f32> {
        self.shared.largest.view()
    }
}

impl Shared {
    /// Queues the largest magnitude that any rank has in a bucket.
    fn measure(&mut self, bucket: &mut Bucket) -> Result<()> {
        let (Codes::E4m3(codes), Some(most)) = (&mut bucket.codes, &mut bucket.most) else {
            return Ok(());
        };
        most.view_mut().fill(&self.narrow, 0.0)?;
        let kept = self.residual.iter();
        let kept = kept.filter(|_| !seeded!("kept-part-not-measured"));
        for (at, source) in [&self.gradients].into_iter().chain(kept).enumerate() {
            for (all, part) in pieces(&bucket.range) {
                let measured = Fused::default().amax(most.slice_mut(at..=at)?);
                let (source, codes) = (source.slice(all)?, codes.slice_mut(part)?);
                // The codes are written again, with the scale.
                convert_fused(&self.narrow, source, codes, Rounding::Nearest, measured)?;
            }
        }
        if !seeded!("ranks-measure-for-themselves") {
            // By their bits, so that a NaN is larger than all.
            let bits = ViewMut::<u32>::new(most.addr(), 2, most.place());
            self.comm.on(&self.link).all_reduce(bits, Op::Max).run()?;
        }
        Ok(())
    }

    /// Queues a bucket's casts to codes, with a scale made from what it was measured at, if it was.
    fn narrow_bucket(&mut self, bucket: &mut Bucket, casts: &mut u64) -> Result<()> {
        let (range, scaler) = (&bucket.range, &mut bucket.scaler);
        if let Some(most) = &bucket.most {
            let ranks = self.comm.size().next_power_of_two().ilog2();
            scaler.fit(&self.narrow, most.view(), TOP - ranks as i32)?;
        }
        for (all, part) in pieces(range) {
            with_codes!(&mut bucket.codes, codes => {
                self.narrow(all, codes.slice_mut(part)?, scaler, *casts)?;
            });
            *casts += 1;
        }
        Ok(())
    }

    /// Queues a bucket's sums, averages and next scale.
    fn sum_bucket(&mut self, bucket: &mut Bucket) -> Result<()> {
        let (range, scaler) = (bucket.range.clone(), &mut bucket.scaler);
        with_codes!(&mut bucket.codes, codes => self.sum(range, codes, scaler)?);
        match bucket.most {
            // It is made anew in every step.
            Some(_) => Ok(()),
            None => scaler.update(&self.widen),
        }
    }

    fn sum<D: Sent>(
        &mut self,
        range: Range<usize>,
        codes: &mut PoolBuf<D>,
        scaler: &mut GradScaler,
    ) -> Result<()>
    where
        f32: FusedTo<D>,
    {
        let queue = self.comm.on(&self.link);
        queue.all_reduce(codes.view_mut(), Op::Sum).run()?;
        let ranks = self.comm.size();
        for (all, part) in pieces(&range) {
            let (inverse, found) = scaler.inverse_and_found();
            let mut averaged = Fused::default().scale(1.0 / ranks as f32);
            if !seeded!("bucket-scale-not-divided-out") {
                averaged = averaged.scale_at(inverse);
            }
            if self.comm.rank() == 0 || !seeded!("overflow-seen-by-rank-0-alone") {
                averaged = averaged.flag(found);
            }
            let averaged = averaged.amax(self.largest.view_mut());
            convert_fused(
                &self.widen,
                codes.slice(part)?,
                self.gradients.slice_mut(all)?,
                Conversion::default(),
                averaged,
            )?;
        }
        Ok(())
    }

    /// Queues a cast to codes, the `number`-th of this rank.
    fn narrow<D: Sent>(
        &mut self,
        range: Range<usize>,
        codes: ViewMut<'_, D>,
        scaler: &GradScaler,
        number: u64,
    ) -> Result<()>
    where
        f32: FusedTo<D>,
    {
        // Distinct for every cast of every rank.
        let number = number.wrapping_mul(u64::from(self.comm.size()));
        let own = u64::from(self.comm.rank()) * u64::from(!seeded!("ranks-round-alike"));
        let number = number.wrapping_add(own);
        let rounding = match self.rounding {
            Rounding::Stochastic { seed } => Rounding::Stochastic {
                seed: seed.wrapping_add(number),
            },
            other => other,
        };
        let gradients = self.gradients.slice(range.clone())?;
        let kept = self.residual.as_mut();
        match kept.filter(|_| !seeded!("what-rounding-took-is-lost")) {
            Some(residual) => {
                let residual = residual.slice_mut(range)?;
                feed_back(&self.narrow, gradients, residual, codes, scaler, rounding)
            }
            None => {
                let scaled = Fused::default().scale_at(scaler.scale());
                convert_fused(&self.narrow, gradients, codes, rounding, scaled)
            }
        }
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
