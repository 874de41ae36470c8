//! Ranks: collectives on the host device, through a stand-in for NCCL, and on GPUs where there are several.

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(feature = "convert", feature = "nccl"))]
mod gpus;
mod graphs;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "convert")]
mod reducer;
#[cfg(all(feature = "convert", feature = "nccl"))]
mod second;
mod simulated;
#[cfg(all(feature = "convert", feature = "nccl"))]
mod training;

use std::time::Duration;

use warpool::collective::Comm;
use warpool::{Device, Pool, PoolConfig, Stream};

/// Longer than anything takes that goes well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank works with.
pub(crate) struct Rank {
    pub(crate) comm: Comm,
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
}

impl Rank {
    pub(crate) fn of(comm: Comm) -> Self {
        let pool = Pool::new(comm.device(), PoolConfig::default()).unwrap();
        let stream = comm.device().stream().unwrap();
        Self { comm, pool, stream }
    }

    pub(crate) fn number(&self) -> u32 {
        self.comm.rank()
    }
}

/// Runs `work` on each end, a thread a rank; what they give, in the order of the ranks.
pub(crate) fn on_ranks<R: Send>(ends: Vec<Comm>, work: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let run = |end: Comm| scope.spawn(move || work(Rank::of(end)));
        let threads: Vec<_> = ends.into_iter().map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Host devices, one a rank.
pub(crate) fn hosts(count: usize) -> Vec<Device> {
    (0..count).map(|_| common::host()).collect()
}

pub(crate) fn simulated<R: Send>(count: usize, work: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    on_ranks(Comm::simulated(&hosts(count), PATIENCE).unwrap(), work)
}
