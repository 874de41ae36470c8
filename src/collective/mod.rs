//! Several devices: sums of gradients, gathers and broadcasts on pool memory, in stream order.
//!
//! # Ranks
//!
//! A communicator connects *ranks*, each with its own device. Every rank queues the same operations in the
//! same order, each on a stream of its own; a result is ready when all ranks have taken part. [`Comm`] is one
//! rank's end. There are two kinds:
//!
//! - [`Comm::nccl`] (feature `nccl`): NCCL, between GPUs of one process, of several processes, or of several
//!   machines. The library is opened when first needed.
//! - [`Comm::simulated`]: ranks of one process on the host device, so that code for several GPUs can be
//!   tested without one.
//!
//! # Stream order
//!
//! [`Comm::on`] takes views and records which are read and written, like every operation on typed memory: the
//! stream waits on the device for conflicting work, and later work waits for the collective. The host waits
//! for nothing.
//!
//! # One order on all ranks
//!
//! NCCL's kernels wait on the device for those of the other ranks. So all ranks queue the collectives of a
//! communicator in one order, on whatever streams, and its steps of a [`Reducer`] in the same order among
//! them. While a step is under way, from its first [`Reducer::ready`] to [`Reducer::finish`], a collective of
//! the application comes on every rank when the same gradients are ready; it is simplest to queue none then.
//!
//! Communicators that share a GPU, of this crate or of others, need one order among them as well. NCCL keeps
//! to it on the device if `NCCL_LAUNCH_ORDER_IMPLICIT=1` is in the environment of all ranks (NCCL 2.26);
//! without it, make one stream wait for the other, so that only one of them runs at a time. A reducer sees to
//! this for the second communicator that it makes.
//!
//! # Memory
//!
//! Blocks of a pool keep their address while they are used; movable ones do so while a guard or a queued use
//! holds them. Nothing is registered with NCCL except in its own calls. GPUs of one process access each
//! other's buffers directly, so their pools must grant each other access
//! ([`PoolConfig::peers`](crate::PoolConfig::peers)); a collective on memory without that access is an error.
//!
//! # Graphs
//!
//! A collective on a captured stream ([`Stream::begin_capture`]) becomes part of the graph: every launch
//! repeats it, on the present contents of the same memory. All ranks capture the same collectives and launch
//! them equally often. The graph keeps the memory at its address, and keeps the communicator; if the graph is
//! dropped last, that ends the communicator. NCCL registers the memory of captured collectives with the other
//! ranks as one allocation, which pool memory is not. So with several ranks, `NCCL_GRAPH_REGISTER=0` must be
//! in the environment before the program starts; otherwise the capture is refused.
//!
//! # Failure
//!
//! If ranks do not come within the given time, the waiting ranks get an error that names them: from the call
//! that makes the communicator, later from [`Comm::check`], from the next operation, and from the next launch of a graph
//! that has such operations. After a failure the contents of the buffers are undefined and neither the communicator nor
//! such a graph can be used again: drop them on all ranks.

mod element;
mod meet;
#[cfg(feature = "nccl")]
mod nccl;
mod queue;
mod ranks;
#[cfg(feature = "convert")]
mod reducer;
mod simulated;
mod transport;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use element::{Op, Reduce};
#[cfg(feature = "nccl")]
#[doc(hidden)]
pub use nccl::open_library;
pub use queue::Collectives;
pub use ranks::Ranks;
#[cfg(feature = "convert")]
pub use reducer::{Reducer, ReducerConfig, Wire};

use self::transport::Transport;
use crate::device::{Device, Stream};
use crate::error::Result;

/// A century, as no clock counts to [`Duration::MAX`].
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// When `patience` from now is at an end.
fn end_of(patience: Duration) -> Instant {
    Instant::now() + patience.min(LONGEST)
}

/// One rank's end of a communicator. Clones are the same end.
///
/// Safe to use from any thread. If two threads queue on one end, the resulting order must be the same as on
/// the other ranks. Use one thread per rank in a process: making a communicator, its first `Reducer` with
/// several buckets, its end, and the first call of each kind and size wait for the other ranks, because NCCL
/// connects them then.
///
/// ```
/// use std::time::Duration;
/// use warpool::collective::{Comm, Op};
/// use warpool::{Device, Pool, PoolConfig};
///
/// # fn main() -> warpool::Result<()> {
/// let devices = [Device::host()?, Device::host()?];
/// let ends = Comm::simulated(&devices, Duration::from_secs(10))?;
/// let rank = |comm: Comm| -> warpool::Result<Vec<f32>> {
///     let pool = Pool::new(comm.device(), PoolConfig::default())?;
///     let stream = comm.device().stream()?;
///     let mut sums = pool.alloc_filled(&stream, 4, 1.0 + comm.rank() as f32)?;
///     comm.on(&stream).all_reduce(&mut sums, Op::Sum).run()?;
///     sums.download()
/// };
/// let sums = std::thread::scope(|scope| {
///     let ranks: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| rank(end))).collect();
///     ranks.into_iter().map(|rank| rank.join()).collect::<Vec<_>>()
/// });
/// assert!(sums.into_iter().all(|sums| matches!(sums, Ok(Ok(sums)) if sums == [3.0; 4])));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Comm {
    transport: Arc<dyn Transport>,
    twin: Arc<Twin>,
}

/// The second communicator of the same ranks, once it is needed.
#[derive(Default)]
struct Twin {
    /// Held by the thread that asks for it.
    #[cfg(feature = "convert")]
    asking: std::sync::Mutex<()>,
    /// `None` if the ranks cannot have a second.
    made: OnceLock<Option<Comm>>,
}

impl Comm {
    /// The ends of a simulated communicator, one rank per device. All must be host devices; several ranks may
    /// share one. A stream's thread waits in a collective until all ranks are there, at most `patience`.
    ///
    /// Sums are computed in the order of the ranks, and rounded to the element's format after each addition.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if there is no device, or one is not a host device.
    pub fn simulated(devices: &[Device], patience: Duration) -> Result<Vec<Self>> {
        let ends = simulated::ends(devices, patience)?;
        Ok(ends.into_iter().map(Self::over).collect())
    }

    /// This rank's end of an NCCL communicator, made together with all others of `ranks`; waits for them at
    /// most `patience`.
    ///
    /// The library is the one in the environment variable `WARPOOL_NCCL`, a file or its folder; otherwise
    /// `libnccl.so.2` from the loader's path or from Python's packages. Version 2.18 or later is needed. Rank
    /// 0 makes NCCL's identifier and passes it to the others at [`Ranks::meet`].
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) if NCCL is not found, with the places that were searched, or if ranks
    /// do not come, with their numbers; [`Error::Driver`](crate::Error::Driver) for errors of NCCL;
    /// [`Error::Invalid`](crate::Error::Invalid) if the device is not a GPU, or the ranks are invalid.
    #[cfg(feature = "nccl")]
    pub fn nccl(device: &Device, ranks: &Ranks, patience: Duration) -> Result<Self> {
        nccl::end(device, ranks, patience).map(Self::over)
    }

    /// The ends of an NCCL communicator among GPUs of this process, one rank per device.
    ///
    /// # Errors
    /// See [`Comm::nccl`].
    #[cfg(feature = "nccl")]
    pub fn nccl_all(devices: &[Device], patience: Duration) -> Result<Vec<Self>> {
        let ends = nccl::ends(devices, patience)?;
        Ok(ends.into_iter().map(Self::over).collect())
    }

    fn over(transport: impl Transport + 'static) -> Self {
        Self::of(Arc::new(transport))
    }

    fn of(transport: Arc<dyn Transport>) -> Self {
        let twin = Arc::default();
        Self { transport, twin }
    }

    /// A second communicator of the same ranks, so that two collectives can run at once; `None`, on all
    /// ranks, if a device might not hold both. All ranks ask for it, and the first call of each waits for the
    /// others; clones and later calls get the same answer.
    #[cfg(feature = "convert")]
    fn twin(&self) -> Result<Option<Self>> {
        let _one = crate::sync::plain::lock(&self.twin.asking);
        if let Some(made) = self.twin.made.get() {
            return Ok(made.clone());
        }
        let made = Arc::clone(&self.transport).twin()?.map(Self::of);
        Ok(self.twin.made.get_or_init(|| made).clone())
    }

    /// The second communicator, if it was made.
    fn made_twin(&self) -> Option<&Self> {
        self.twin.made.get()?.as_ref()
    }

    /// This end's number, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.transport.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.transport.size()
    }

    /// This end's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.transport.device()
    }

    /// Starts a group of collectives on `stream`, queued together: see [`Collectives`].
    pub fn on<'a>(&'a self, stream: &'a Stream) -> Collectives<'a> {
        Collectives::new(&self.transport, stream)
    }

    /// Whether there was no failure so far; does not wait.
    ///
    /// # Errors
    /// The first failure of queued work: a rank that did not come, or an error of NCCL.
    pub fn check(&self) -> Result<()> {
        self.transport.check()?;
        self.made_twin().map_or(Ok(()), Self::check)
    }

    /// Ends queued collectives without the other ranks; the communicator cannot be used again.
    ///
    /// # Errors
    /// Any error of NCCL.
    pub fn abort(&self) -> Result<()> {
        let aborted = self.made_twin().map_or(Ok(()), Self::abort);
        self.transport.abort().and(aborted)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm(rank {} of {})", self.rank(), self.size())
    }
}
