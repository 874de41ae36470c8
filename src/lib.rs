//! warpool: device memory for applications that run their own CUDA kernels.

pub mod device;
pub mod driver;
mod error;
pub mod observe;

pub use device::{Device, Event, Stream};
pub use error::{Error, OutOfMemory, Result};
