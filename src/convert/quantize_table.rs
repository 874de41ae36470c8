//! Many tensors with scales in one launch, from a table in device memory that is built once.

use std::marker::PhantomData;

use super::codes::{Plan, Quantize, Wide, enough};
use super::convert_table::uses_of;
use super::mx::{self, BlockScales, E8m0, MxElement};
use super::quantize::{self, Float8, Scales, ScalesMut};
use super::{Rows, RowsMut, View, ViewMut};
use crate::device::{Launch, Stream, TableUses, Use};
use crate::driver::abi;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf};

/// Values, codes and scales of a tensor to quantise.
type ToMx<'a, S, C> = (Rows<'a, S>, RowsMut<'a, C>, ViewMut<'a, E8m0>);
/// Codes, scales and values of a tensor to dequantise.
type FromMx<'a, C, S> = (Rows<'a, C>, View<'a, E8m0>, RowsMut<'a, S>);

/// Number of words of a job.
const JOB: usize = size_of::<abi::wp_quantize_job>() / 8;
const _: () = assert!(8 * JOB == size_of::<abi::wp_quantize_job>());

/// Most blocks of threads of a launch.
const MOST_BLOCKS: u64 = 0x7FFF_FFFF;

/// Tensors of one kind, and the arguments of their launch.
struct Jobs<'a> {
    uses: TableUses<'a>,
    table: PoolBuf<u64>,
    args: abi::wp_quantize,
}

impl<'a> Jobs<'a> {
    fn new(
        pool: &Pool,
        stream: &Stream,
        plans: impl Iterator<Item = Result<Plan<'a>>>,
        forth: bool,
    ) -> Result<Self> {
        let (mut words, mut places, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let mut first: Option<abi::wp_quantize> = None;
        for (tensor, plan) in plans.enumerate() {
            let plan = plan?;
            let of_all = first.get_or_insert(plan.args);
            if forth && of_all.granularity != plan.args.granularity {
                let why = format!("tensor {tensor} has other scales than those before it");
                return Err(Error::invalid("tensors", why));
            }
            let (job, blocks) = job_of(&plan.args, forth, tensor)?;
            if places.len() as u64 + blocks > MOST_BLOCKS {
                let why = "they are more than one launch does: build several tables";
                return Err(Error::invalid("tensors", why));
            }
            words.extend(job);
            places.extend((0..blocks).map(|block| tensor as u64 | block << 32));
            parts.extend(plan.ranges(None).into_iter().flatten());
        }
        let uses = uses_of(parts, stream)?;
        let (tensors, blocks) = (words.len() / JOB, places.len());
        words.append(&mut places);
        words.resize(words.len().max(1), 0);
        let table = pool.alloc_from(stream, &words)?;
        // SAFETY: plain numbers, for which zero is a value.
        let mut args = first.unwrap_or(unsafe { std::mem::zeroed() });
        (args.rows, args.cols) = (tensors as u64, blocks as u64);
        args.jobs = table.addr();
        args.places = table.addr() + 8 * (tensors * JOB) as u64;
        Ok(Self {
            uses: TableUses::new(uses),
            table,
            args,
        })
    }

    /// # Errors
    /// The same as for the tables' launches.
    fn launch(&mut self, stream: &Stream, launch: &Launch, amax: Option<Use<'_>>) -> Result<()> {
        let others = [self.table.view().used(), amax];
        // SAFETY: the same as in `ConvertTable::launch`; the caller checked the length of `amax`.
        let queue = || (stream.core()).queue(|backend, on| unsafe { backend.launch(launch, on) });
        self.uses.launch(stream.core(), &others, queue)?
    }
}

/// The words of a tensor's job, and its number of blocks of threads.
fn job_of(args: &abi::wp_quantize, forth: bool, tensor: usize) -> Result<([u64; JOB], u64)> {
    let (mut job, mut blocks) = ([0u64; JOB], 0);
    // SAFETY: the arguments are plain data, and the job has the words of its structure.
    let status = unsafe {
        let job = job.as_mut_ptr().cast::<abi::wp_quantize_job>();
        abi::wp_quantize_plan(args, u32::from(forth), job, &raw mut blocks)
    };
    match status as u32 {
        abi::WP_OK => Ok((job, blocks)),
        _ => {
            let why = format!("tensor {tensor} has scales that tables do not: of squares");
            Err(Error::invalid("tensors", why))
        }
    }
}

/// A list of tensors that one launch quantises, any number of times.
///
/// Each is quantised to the same bits as by [`quantize`](fn@super::quantize) or
/// [`mx_quantize`](super::mx_quantize). With [`Rounding::Stochastic`](super::Rounding::Stochastic) tensor `t` is
/// rounded as if alone with the seed `seed + t`, so that tensors use different random numbers.
///
/// The table is in a block of the pool. It may be used on any stream of the device: each launch waits for
/// conflicting work, and the frees of the tensors wait for the launches, even if the table is leaked.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::convert::{
///     DequantizeTable, E4m3, Quantize, QuantizeTable, Rows, RowsMut, Scales, ScalesMut,
/// };
///
/// let values = pool.alloc_from(&stream, &[1.0_f32; 32])?;
/// let mut codes = pool.alloc_typed::<E4m3>(&stream, 32)?;
/// let mut scales = pool.alloc_typed::<f32>(&stream, 1)?;
/// let tensor = (
///     Rows::from(values.view()), RowsMut::from(codes.view_mut()), ScalesMut::Rows(scales.view_mut()),
/// );
/// let mut table = QuantizeTable::new(&pool, &stream, vec![tensor])?; // any number of tensors
/// table.quantize(&stream, Quantize::default())?;
/// drop(table);
///
/// let mut back = pool.alloc_typed::<f32>(&stream, 32)?;
/// let tensor = (
///     Rows::from(codes.view()), Scales::Rows(scales.view()), RowsMut::from(back.view_mut()),
/// );
/// DequantizeTable::new(&pool, &stream, vec![tensor])?.dequantize(&stream)?;
/// assert_eq!(back.download()?, [1.0; 32]);
/// # Ok(())
/// # }
/// ```
pub struct QuantizeTable<'a, S, Q> {
    jobs: Jobs<'a>,
    views: PhantomData<(View<'a, S>, ViewMut<'a, Q>)>,
}

impl<'a, S: Wide, Q: Float8> QuantizeTable<'a, S, Q> {
    /// Makes a table from the values, codes and scales of each tensor. All [`ScalesMut`] must be of the same
    /// kind, but not [`ScalesMut::Squares`]. Waits on the host until the table is in device memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the shapes of a tensor differ, there are too few scales, or scales of several
    /// kinds or of squares, a written range overlaps another one, or a tensor is of another device; any error
    /// of the pool or the driver.
    pub fn new(
        pool: &Pool,
        stream: &Stream,
        tensors: Vec<(Rows<'a, S>, RowsMut<'a, Q>, ScalesMut<'a>)>,
    ) -> Result<Self> {
        let plan = |(values, codes, scales): &(_, _, _)| quantize::forth(values, codes, scales);
        Self::of(Jobs::new(pool, stream, tensors.iter().map(plan), true)?)
    }
}

impl<'a, S: Wide, Q: MxElement> QuantizeTable<'a, S, Q> {
    /// Makes a table from the values, MX codes and scales of each tensor, all with one layout. Waits on the
    /// host until the table is in device memory.
    ///
    /// # Errors
    /// See [`QuantizeTable::new`].
    #[allow(
        clippy::type_complexity,
        reason = "the parts of a tensor, as one by one"
    )]
    pub fn mx(
        pool: &Pool,
        stream: &Stream,
        layout: BlockScales,
        tensors: Vec<ToMx<'a, S, Q::Code>>,
    ) -> Result<Self> {
        let plan =
            |(values, codes, scales): &(_, _, _)| mx::forth::<Q, S>(values, codes, scales, layout);
        Self::of(Jobs::new(pool, stream, tensors.iter().map(plan), true)?)
    }
}

impl<'a, S, Q> QuantizeTable<'a, S, Q> {
    fn of(jobs: Jobs<'a>) -> Result<Self> {
        let views = PhantomData;
        Ok(Self { jobs, views })
    }

    /// Number of tensors.
    #[must_use]
    #[doc(hidden)]
    pub fn tensors(&self) -> u64 {
        self.jobs.args.rows
    }

    /// Queues all tensors in one launch. Nothing is allocated. [`Quantize::amax`] has one element per tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `amax` has fewer elements than there are tensors, the rounding is directed or
    /// the stream is of another device; any error of the driver.
    pub fn quantize(&mut self, stream: &Stream, how: Quantize<'_>) -> Result<()> {
        let mut args = self.jobs.args;
        (args.rounding, args.seed) = how.rounding_and_seed()?;
        if let Some(amax) = &how.amax {
            enough("amax", amax.len(), self.tensors())?;
            args.amax = amax.addr();
        }
        let amax = how.amax.as_ref().and_then(ViewMut::used);
        self.jobs.launch(stream, &Launch::Quantize(args), amax)
    }
}

/// A list of tensors that one launch dequantises, any number of times: the inverse of [`QuantizeTable`], with
/// the same stream order.
pub struct DequantizeTable<'a, Q, S> {
    jobs: Jobs<'a>,
    views: PhantomData<(View<'a, Q>, ViewMut<'a, S>)>,
}

impl<'a, Q: Float8, S: Wide> DequantizeTable<'a, Q, S> {
    /// Makes a table from the codes, scales and values of each tensor. Waits on the host until the table is
    /// in device memory.
    ///
    /// # Errors
    /// See [`QuantizeTable::new`]; scales may be of any kind.
    pub fn new(
        pool: &Pool,
        stream: &Stream,
        tensors: Vec<(Rows<'a, Q>, Scales<'a>, RowsMut<'a, S>)>,
    ) -> Result<Self> {
        let plan = |(codes, scales, values): &(_, _, _)| quantize::back(codes, *scales, values);
        Self::of(Jobs::new(pool, stream, tensors.iter().map(plan), false)?)
    }
}

impl<'a, Q: MxElement, S: Wide> DequantizeTable<'a, Q, S> {
    /// Makes a table from the MX codes, scales and values of each tensor, all with one layout. Waits on the
    /// host until the table is in device memory.
    ///
    /// # Errors
    /// See [`QuantizeTable::new`].
    #[allow(
        clippy::type_complexity,
        reason = "the parts of a tensor, as one by one"
    )]
    pub fn mx(
        pool: &Pool,
        stream: &Stream,
        layout: BlockScales,
        tensors: Vec<FromMx<'a, Q::Code, S>>,
    ) -> Result<Self> {
        let plan =
            |(codes, scales, values): &(_, _, _)| mx::back::<Q, S>(codes, *scales, layout, values);
        Self::of(Jobs::new(pool, stream, tensors.iter().map(plan), false)?)
    }
}

impl<'a, Q, S> DequantizeTable<'a, Q, S> {
    fn of(jobs: Jobs<'a>) -> Result<Self> {
        let views = PhantomData;
        Ok(Self { jobs, views })
    }

    /// Number of tensors.
    #[must_use]
    #[doc(hidden)]
    pub fn tensors(&self) -> u64 {
        self.jobs.args.rows
    }

    /// Queues all tensors in one launch. Nothing is allocated.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stream is of another device; any error of the driver.
    pub fn dequantize(&mut self, stream: &Stream) -> Result<()> {
        let launch = Launch::Dequantize(self.jobs.args);
        self.jobs.launch(stream, &launch, None)
    }
}

macro_rules! shown {
    ($table:ident) => {
        impl<A, B> std::fmt::Debug for $table<'_, A, B> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let name = stringify!($table);
                write!(f, "{name}({} tensors)", self.tensors())
            }
        }
    };
}

shown!(QuantizeTable);
shown!(DequantizeTable);
