//! The CUDA driver, resolved when first called, and the kernels' C ABI.

pub mod abi;
