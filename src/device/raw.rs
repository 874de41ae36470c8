//! The identifiers of a backend's objects.

/// A device address.
pub type Addr = u64;

/// A stream's identifier in its backend (the `CUstream` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawStream(pub u64);

/// An event's identifier in its backend (the `CUevent` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawEvent(pub u64);

/// The identifier of a graph that is ready to launch, in its backend (the `CUgraphExec` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawGraph(pub u64);

/// A physical memory handle's identifier in its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Phys(pub u64);
