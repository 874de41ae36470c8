//! What carries collectives, and the calls it is given.

use super::element::{Kind, Op};
use crate::device::{Device, DeviceInfo, Stream};
use crate::error::Result;

/// What is done with the elements of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    AllReduce(Op),
    ReduceScatter(Op),
    AllGather,
    Broadcast(u32),
    Send(u32),
    Recv(u32),
}

/// A collective, or one side of a transfer, of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) act: Act,
    pub(super) kind: Kind,
    /// Where its elements are read from, and written to.
    pub(super) src: u64,
    pub(super) dst: u64,
    /// Elements that each rank gives, or, scattered, is given.
    pub(super) count: usize,
}

impl Act {
    /// NCCL's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "ncclAllReduce",
            Self::ReduceScatter(_) => "ncclReduceScatter",
            Self::AllGather => "ncclAllGather",
            Self::Broadcast(_) => "ncclBroadcast",
            Self::Send(_) => "ncclSend",
            Self::Recv(_) => "ncclRecv",
        }
    }
}

/// What carries collectives.
pub(super) trait Transport: Send + Sync {
    fn rank(&self) -> u32;
    fn size(&self) -> u32;
    fn device(&self) -> &Device;
    /// Devices of this process, beside its own, that reach into the memory it is given.
    fn peers(&self) -> &[DeviceInfo];
    /// Queues calls that go together.
    ///
    /// # Safety
    /// What the calls name is memory of the device until the work is done, ordered on the stream.
    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()>;
    fn check(&self) -> Result<()>;
    fn abort(&self) -> Result<()>;
}
