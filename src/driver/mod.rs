//! The CUDA driver, resolved when first called, and the kernels' C ABI.

pub mod abi;
pub mod build_info;
#[cfg(feature = "rustacuda")]
mod lazy;
