//! The interface of a transport of collectives, and its calls.

use std::sync::Arc;

use super::element::{Kind, Op};
use crate::device::{Checked, Device, DeviceInfo, Stream};
use crate::error::Result;

/// An operation on the elements of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Act {
    AllReduce(Op),
    ReduceScatter(Op),
    AllGather,
    Broadcast(u32),
    Send(u32),
    Recv(u32),
}

/// One rank's part of a collective or of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) act: Act,
    pub(super) kind: Kind,
    /// Addresses that its elements are read from and written to.
    pub(super) src: u64,
    pub(super) dst: u64,
    /// Number of elements that each rank contributes or, for a scatter, gets.
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

/// A transport of collectives.
pub(super) trait Transport: Checked {
    fn rank(&self) -> u32;
    fn size(&self) -> u32;
    fn device(&self) -> &Device;
    /// Other devices of this process that access its memory directly.
    fn peers(&self) -> &[DeviceInfo];
    /// Returns an error if its collectives cannot be captured into a graph.
    fn check_capture(&self) -> Result<()>;
    /// Queues calls as one group; under capture, as part of the graph, which keeps the transport.
    ///
    /// # Safety
    /// The calls contain memory of the device that is valid until the work is done, and ordered on the
    /// stream. Captured work is done when the graph and its runs are gone.
    unsafe fn queue(&self, stream: &Stream, calls: &[Call]) -> Result<()>;
    fn abort(&self) -> Result<()>;
    /// Another transport between the same ranks, whose collectives may run at the same time as this one's;
    /// `None`, on all ranks, if the device of one of them might not hold both. All ranks call it, once.
    fn twin(self: Arc<Self>) -> Result<Option<Arc<dyn Transport>>>;
}
