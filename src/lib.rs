//! warpool: device memory for applications that run their own CUDA kernels.

pub mod convert;
pub mod device;
pub mod driver;
mod error;

pub use device::{Device, Event, Stream};
pub use error::{Error, OutOfMemory, Result};
