//! warpool: device memory for applications that run their own CUDA kernels.

mod arena;
pub mod convert;
pub mod device;
pub mod driver;
mod error;
pub mod observe;
pub mod pool;

pub use device::{Device, Event, Stream};
pub use error::{Error, OutOfMemory, Result};
pub use pool::{Block, Pool, PoolBuf, PoolConfig, PoolStats};
