//! Several devices: sums of gradients, gathers and broadcasts on pool memory, in stream order.
//!
//! # Ranks
//!
//! A communicator joins *ranks*, each with a device of its own. Every rank queues the same operations in the
//! same order, each on a stream of its own; what a rank is given comes when all have come. [`Comm`] is one
//! rank's end of it. It has two forms:
//!
//! - [`Comm::nccl`] (feature `nccl`): NCCL, between GPUs of one process, of several, or of several machines.
//!   The library is opened when first needed.
//! - [`Comm::simulated`]: ranks of one process on the host device, so that what is written for several GPUs
//!   is tested without one.
//!
//! # Order
//!
//! [`Comm::on`] takes views and says what is read and written, as every operation on typed memory does: the
//! stream waits on the device for what it must, and what comes next waits for the collective. The host waits
//! for nothing.
//!
//! # Memory
//!
//! Blocks of a pool stay where they are while they are used, movable ones while a guard or a queued use has
//! them; nothing is registered with NCCL beyond its own calls. GPUs of one process reach into each other's
//! buffers, so their pools grant each other access
//! ([`PoolConfig::peers`](crate::PoolConfig::peers)); a collective on memory that does not is an error.
//!
//! # Graphs
//!
//! A collective on a stream that is captured ([`Stream::begin_capture`]) becomes a part of the graph: every launch
//! is one more, with what the same memory has then. All ranks capture the same and launch it as often. The graph
//! keeps the memory where it is, and the communicator; dropped last, it ends that. NCCL registers memory of captured
//! collectives with the other ranks as one allocation, which a pool's is not. So where there are several ranks,
//! `NCCL_GRAPH_REGISTER=0` has to be in the environment before the program starts, or they are refused.
//!
//! # Failure
//!
//! Ranks that do not come within the time given are named by an error of those that wait: while a
//! communicator is made by that call, later by [`Comm::check`] and by the next operation. After a failure
//! the contents of what was given are anything, and the communicator is of no more use: drop it on all ranks.

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
use std::sync::Arc;
use std::time::Duration;

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

/// One rank's end of a communicator. Clones are the same end.
///
/// Safe to use from any thread; two threads that queue on one end do so in some order, which has to be that of
/// the other ranks. Ranks of one process want a thread each: making a communicator, its end, and the first call of
/// each kind and size wait for the other ranks', since NCCL connects them then.
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
}

impl Comm {
    /// The ends of a simulated communicator, a rank a device. Devices of the host alone; several ranks may
    /// have one device. A stream's thread waits in a collective until all ranks are there, `patience` at most.
    ///
    /// Sums are made in the order of the ranks, rounded to the element's format after each addition.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for no device, or one that is not of the host.
    pub fn simulated(devices: &[Device], patience: Duration) -> Result<Vec<Self>> {
        let ends = simulated::ends(devices, patience)?;
        Ok(ends.into_iter().map(Self::over).collect())
    }

    /// This rank's end of a communicator of NCCL's, made with all others of `ranks`; waits for them,
    /// `patience` at most.
    ///
    /// The library is the one that the environment's `WARPOOL_NCCL` names, a file or its folder, or
    /// `libnccl.so.2` where the loader, or Python's packages, have it; 2.17 or later. Rank 0 makes NCCL's
    /// identifier and hands it out at [`Ranks::meet`].
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) where there is no NCCL, with the places that were looked in, or ranks
    /// that do not come, which it names; [`Error::Driver`](crate::Error::Driver) for what NCCL said;
    /// [`Error::Invalid`](crate::Error::Invalid) for a device that is no GPU, or ranks that cannot be.
    #[cfg(feature = "nccl")]
    pub fn nccl(device: &Device, ranks: &Ranks, patience: Duration) -> Result<Self> {
        nccl::end(device, ranks, patience).map(Self::over)
    }

    /// The ends of a communicator of NCCL's among GPUs of this process, a rank a device.
    ///
    /// # Errors
    /// See [`Comm::nccl`].
    #[cfg(feature = "nccl")]
    pub fn nccl_all(devices: &[Device], patience: Duration) -> Result<Vec<Self>> {
        let ends = nccl::ends(devices, patience)?;
        Ok(ends.into_iter().map(Self::over).collect())
    }

    fn over(transport: impl Transport + 'static) -> Self {
        Self {
            transport: Arc::new(transport),
        }
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

    /// Collectives to be queued on `stream`, together: see [`Collectives`].
    pub fn on<'a>(&'a self, stream: &'a Stream) -> Collectives<'a> {
        Collectives::new(&self.transport, stream)
    }

    /// Whether all is well so far; waits for nothing.
    ///
    /// # Errors
    /// The first failure of queued work: a rank that did not come, or what NCCL said.
    pub fn check(&self) -> Result<()> {
        self.transport.check()
    }

    /// Ends what is queued, without the other ranks; the communicator is of no more use.
    ///
    /// # Errors
    /// What NCCL said.
    pub fn abort(&self) -> Result<()> {
        self.transport.abort()
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm(rank {} of {})", self.rank(), self.size())
    }
}
