//! How a backend names what it hands out.

/// A device address.
pub type Addr = u64;

/// A stream, as its backend names it (the `CUstream` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawStream(pub u64);

/// An event, as its backend names it (the `CUevent` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawEvent(pub u64);

/// Captured work ready to be launched, as its backend names it (the `CUgraphExec` on CUDA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawGraph(pub u64);

/// A physical memory handle, as its backend names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Phys(pub u64);
