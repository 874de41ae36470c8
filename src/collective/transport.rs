//! What carries collectives, and the calls it is given.

use std::sync::Arc;

use super::element::{Kind, Op};
use crate::device::{Device, DeviceInfo, Kept, Stream};
use crate::error::Result;

/// What is done with the elements of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// An error, and why, if its collectives cannot be captured into a graph.
    fn check_capture(&self) -> Result<()>;
    /// Queues calls that go together; under capture, as a part of the graph, which keeps the transport.
    ///
    /// # Safety
    /// What the calls name is memory of the device until the work is done, ordered on the stream. Work that was
    /// captured is done when the graph and its runs are gone.
    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()>;
    fn check(&self) -> Result<()>;
    fn abort(&self) -> Result<()>;
}

/// A transport as a graph keeps it: its collectives go on in the graph's runs.
pub(super) struct KeptTransport(pub(super) Arc<dyn Transport>);

impl Kept for KeptTransport {
    fn release(self: Box<Self>, _gate: &Stream) {
        drop(self.0);
    }
}
