//! Streams and contexts that other libraries own.
//!
//! A [`Device`](crate::Device) works in the context current on the thread that opens it, so an
//! application keeps its own context and streams and takes only memory from this crate.
//! A stream of any library can be brought in by its driver handle
//! ([`Device::adopt_stream`](crate::Device::adopt_stream)); the modules here do that for libraries
//! that do not show the handle. [`CudaAsync`] is the driver's own stream-ordered pool, for measuring
//! it beside this crate's.

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
