//! Streams and contexts that other libraries own.
//!
//! A [`Device`](crate::Device) works in the context current on the thread that opens it, so an
//! application keeps its own context and streams and takes only memory from this crate.
//! [`Device::adopt_stream`](crate::Device::adopt_stream) adopts a stream of any library by its
//! driver handle; the modules here do that for libraries that do not expose the handle.
//! [`CudaAsync`] is the driver's own stream-ordered pool, for comparison with this crate's.

mod cuda_async;
#[cfg(feature = "cudarc")]
pub mod cudarc;
#[cfg(any(test, feature = "cudarc"))]
mod pending;

#[cfg(feature = "rustacuda")]
pub mod rustacuda;

#[doc(hidden)]
pub use cuda_async::{AsyncBlock, CudaAsync, Entered};

#[doc(no_inline)]
pub use crate::device::raw::{RawEvent, RawStream};
