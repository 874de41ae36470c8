//! Averages gradients over the ranks, in half the bytes, overlapping with the backward pass.
//!
//! The gradients are in one buffer, one after the other, which is divided into buckets. For each bucket, the
//! gradients are narrowed to codes, the ranks add the codes, and the sums are widened and averaged. Each step
//! has its own stream, so that the casts of one bucket overlap with the sums of another. Sums have two, with a
//! communicator each, so that a sum also overlaps with the next one: on two H200s 1 GiB in f16 takes 1.92 ms so,
//! and 2.33 with one; the sums alone take 1.70. The access logs of the buffers keep the order, also with the
//! kernels that write the gradients. Each bucket's codes are a separate buffer, so that one bucket does not wait
//! for another.
//!
//! A bucket is queued once all gradients in it are ready and all buckets before it are queued. So the ranks
//! queue the same buckets in the same order, whatever order their gradients came in.
//!
//! Every bucket has a scale, as in loss scaling. If a code or a sum overflows, every rank sees the infinity,
//! skips the step and halves that bucket's scale. So the scales are equal on all ranks without any exchange.
//!
//! Sums of 8-bit floats do not overflow to infinity; they stay at the largest code, so an overflow would not
//! be noticed. For these, each bucket is measured first: the ranks agree on its largest magnitude, and its
//! scale is computed from that. A bucket is measured before the sum of the bucket ahead of it is queued, so
//! that its casts overlap with that sum. All ranks do this in the same order.

mod captured;
mod config;
mod cut;
mod schedule;
mod steps;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Weak;

use half::{bf16, f16};

pub use self::config::{ReducerConfig, Wire};
use self::cut::{ALIGN, cut, is_one, laid_out, meeting};
use self::schedule::{Work, schedule};
use super::{Comm, Reduce};
use crate::convert::{E4m3, Element, FusedTo, GradScaler, Rounding, ScalerConfig};
use crate::device::{Recorder, Stream};
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf, View, ViewMut};

/// An element type for sending.
trait Sent: Element + Reduce + FusedTo<f32> {}
impl<T: Element + Reduce + FusedTo<f32>> Sent for T {}

/// The codes of a bucket's gradients.
enum Codes {
    F32(PoolBuf<f32>),
    F16(PoolBuf<f16>),
    Bf16(PoolBuf<bf16>),
    E4m3(PoolBuf<E4m3>),
}

/// The state that the launches of all buckets use in addition to its codes.
struct Shared {
    /// The sums of buckets alternate between these communicators, two where that is safe, each on a stream of its
    /// own.
    links: Vec<(Comm, Stream)>,
    /// Whether the present step is captured: then the first communicator has all sums.
    is_captured: bool,
    /// The streams of the casts to codes, and of the casts back.
    narrow: Stream,
    widen: Stream,
    gradients: PoolBuf<f32>,
    residual: Option<PoolBuf<f32>>,
    /// Largest magnitude of the averages so far in this step, and in the last. The last launch of a step moves
    /// the one to the other; with measured buckets the first launch does, and the first number is the step's until
    /// then.
    largest: PoolBuf<f32>,
    rounding: Rounding,
}

/// A bucket: its elements, their codes, its scale, and the number of its gradients that are not ready.
struct Bucket {
    range: Range<usize>,
    codes: Codes,
    /// For 8-bit codes: the largest magnitude of its gradients, and of what their codes lost.
    most: Option<PoolBuf<f32>>,
    scaler: GradScaler,
    /// Number of tensors with elements in it.
    tensors: usize,
    missing: usize,
    /// Index of its communicator and stream in [`Shared::links`].
    link: usize,
}

/// The communicators of the sums, each with a stream, and the stream of the casts back. A single bucket has no other
/// to overlap with: all of it is on the stream `narrow`, where it needs no waits.
fn links(comm: &Comm, narrow: &Stream, is_one: bool) -> Result<(Vec<(Comm, Stream)>, Stream)> {
    let device = comm.device();
    if is_one {
        return Ok((vec![(comm.clone(), narrow.clone())], narrow.clone()));
    }
    let mut links = vec![(comm.clone(), Stream::create_urgent(device)?)];
    let widen = device.stream()?;
    if let Some(twin) = comm.twin()? {
        links.push((twin, Stream::create_urgent(device)?));
    }
    Ok((links, widen))
}

impl Shared {
    /// For `total` elements in buckets of up to `size`.
    fn new(
        pool: &Pool,
        stream: &Stream,
        comm: &Comm,
        (total, size): (usize, usize),
        config: &ReducerConfig,
    ) -> Result<Self> {
        let narrow = comm.device().stream()?;
        let (links, widen) = links(comm, &narrow, is_one(total, size))?;
        let residual = match config.feedback && config.wire != Wire::F32 {
            true => Some(pool.alloc_zeroed(stream, total)?),
            false => None,
        };
        let seeded = |seed| Rounding::Stochastic { seed };
        Ok(Self {
            links,
            is_captured: false,
            narrow,
            widen,
            gradients: pool.alloc_zeroed(stream, total)?,
            residual,
            largest: pool.alloc_zeroed(stream, 2)?,
            rounding: config.stochastic.map_or(Rounding::Nearest, seeded),
        })
    }
}

impl Bucket {
    /// A bucket of no tensors.
    fn new(
        pool: &Pool,
        stream: &Stream,
        range: Range<usize>,
        wire: Wire,
        scaler: GradScaler,
    ) -> Result<Self> {
        let len = range.len();
        Ok(Self {
            codes: match wire {
                Wire::F32 => Codes::F32(pool.alloc_zeroed(stream, len)?),
                Wire::F16 => Codes::F16(pool.alloc_zeroed(stream, len)?),
                Wire::Bf16 => Codes::Bf16(pool.alloc_zeroed(stream, len)?),
                Wire::E4m3 => Codes::E4m3(pool.alloc_zeroed(stream, len)?),
            },
            most: match wire {
                Wire::E4m3 => Some(pool.alloc_zeroed(stream, 2)?),
                _ => None,
            },
            scaler,
            range,
            tensors: 0,
            missing: 0,
            link: 0,
        })
    }

    fn is_ready(&self) -> bool {
        self.missing == 0
    }
}

/// Averages gradients over the ranks of a communicator.
///
/// In each step, the backward pass writes into [`Reducer::gradients`]. Call [`Reducer::ready`] once the work
/// that writes a gradient is queued, in any order, and then [`Reducer::finish`]. The optimiser's kernel then
/// reads the averages from the same places, and skips the step if [`Reducer::largest`] is not finite. All of
/// this is only queued.
///
/// Every rank makes its reducer with the same parameters, and makes the same steps. Between the first
/// [`Reducer::ready`] of a step and [`Reducer::finish`], all ranks queue other collectives at the same place:
/// when the same gradients are ready. Simplest is to queue none there; see
/// [the order on all ranks](crate::collective#one-order-on-all-ranks).
///
/// A step may be captured into a graph ([`Stream::begin_capture`]), from before its first gradient until after
/// [`Reducer::finish`], on the stream that the reducer was made on; its own streams join the capture. Each
/// launch is then a step, which continues with the scales and rounding errors of the step before. The sums of a
/// captured step run one after the other.
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
/// // in the order in which the backward pass makes them
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
    /// Index of the first item of `work` that is not queued.
    next: usize,
    /// Number of casts to codes queued so far.
    casts: u64,
    /// The stream that it was made on; steps may be part of its captures.
    home: Stream,
    /// The capture that the present step is part of; an empty reference outside captures.
    step: Option<Weak<Recorder>>,
    /// The error of work that may be queued in part: queued again, it would be summed with other work of the
    /// other ranks.
    failed: Option<Error>,
}

impl Reducer {
    /// A reducer of gradients of `lens` elements each, zeroed, in memory of `pool`. The memory is allocated on
    /// `stream`; the host waits for uploads there. The first reducer of a communicator that has several buckets
    /// makes a second communicator of the same ranks; it waits for them, and for the collectives that were
    /// queued before. There is no second if a GPU might not hold the kernels of both: the buckets' sums then
    /// run one after the other.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool or stream is of another device than the communicator's end, or a scale
    /// is invalid; any error of the pool, the driver or NCCL.
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
        let shared = Shared::new(pool, stream, comm, (total, size), &config)?;
        let mut buckets = Vec::new();
        for (number, range) in cut(total, size, shared.links.len()).into_iter().enumerate() {
            let count = meeting(&tensors, &range, Range::clone).len();
            let scaler = GradScaler::new(pool, stream, scale)?;
            let mut bucket = Bucket::new(pool, stream, range, config.wire, scaler)?;
            (bucket.tensors, bucket.missing) = (count, count);
            bucket.link = number % shared.links.len();
            buckets.push(bucket);
        }
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
            failed: None,
        })
    }

    /// The gradients, to be written and, after [`Reducer::finish`], read.
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

    /// Reports that the work that writes gradient `tensor` is queued. Queues the buckets that are then
    /// complete.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the gradient does not exist or was ready before, if the pool sleeps, if a capture began
    /// or ended within the step, or if rounding is stochastic under capture; any error of the communicator or the
    /// driver, which then ends the reducer: later calls return it too.
    pub fn ready(&mut self, tensor: usize) -> Result<()> {
        self.refuse_failed()?;
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
        let awake = self.shared.gradients.place().awake;
        awake.map_or(Ok(()), |awake| awake.check())?;
        self.join_capture()?;
        self.is_ready[tensor] = true;
        let its = self.tensors[tensor].clone();
        let meets = meeting(&self.buckets, &its, |bucket| bucket.range.clone());
        for bucket in &mut self.buckets[meets] {
            bucket.missing -= 1;
        }
        self.queue_ready()
    }

    fn refuse_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn queue_ready(&mut self) -> Result<()> {
        while let Some(&work) = self.work.get(self.next) {
            let bucket = &mut self.buckets[work.bucket()];
            if !bucket.is_ready() {
                break;
            }
            let shared = &mut self.shared;
            let queued = match work {
                Work::Measure(_) => shared.measure(bucket),
                Work::Narrow(_) => shared.narrow_bucket(bucket, &mut self.casts),
                Work::Sum(_) => shared.sum_bucket(bucket),
            };
            if let Err(error) = queued {
                self.failed = Some(error.clone());
                return Err(error);
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Ends the step: work queued after this through the gradients' views sees the averages.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the index of a gradient that is not ready; the step then continues. See also
    /// [`Reducer::ready`].
    pub fn finish(&mut self) -> Result<()> {
        self.refuse_failed()?;
        if let Some(tensor) = self.is_ready.iter().position(|ready| !ready) {
            return Err(Error::invalid("tensor", format!("{tensor} is not ready")));
        }
        self.join_capture()?;
        // Everything is queued, unless that failed.
        self.queue_ready()?;
        self.leave_capture()?;
        for bucket in &mut self.buckets {
            bucket.missing = bucket.tensors;
        }
        self.is_ready.fill(false);
        (self.next, self.step) = (0, None);
        Ok(())
    }

    /// The largest magnitude of the step's averages, in device memory, equal on all ranks, from
    /// [`Reducer::finish`] until the next step's first bucket is complete. It is infinite or NaN if a gradient of
    /// any rank was, or a sum overflowed; the step must then be skipped.
    #[must_use]
    pub fn largest(&self) -> View<'_, f32> {
        let is_measured = self.buckets.iter().any(|bucket| bucket.most.is_some());
        let largest = &self.shared.largest;
        let at = largest.addr() + if is_measured { 0 } else { 4 };
        View::new(at, 1, largest.place().offset(at - largest.addr()))
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensors, buckets) = (self.tensors.len(), self.buckets.len());
        write!(f, "Reducer({tensors} gradients in {buckets} buckets)")
    }
}
