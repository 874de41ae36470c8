//! The CUDA driver, resolved when first called, and the kernels' C ABI.
//!
//! Nothing here links against CUDA: a program that contains this crate starts on a machine without
//! a driver, and the first call reports that there is none.
//!
//! - `calls`: the driver's calls, found in `libcuda.so.1` on first use;
//! - `result`: result codes, as plain integers, and the driver's words for them;
//! - [`abi`]: the entry points of the kernels.

pub mod abi;
pub mod build_info;
pub(crate) mod calls;
pub(crate) mod code;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
pub(crate) mod faults;
#[cfg(feature = "rustacuda")]
mod lazy;
pub(crate) mod result;

pub(crate) use calls::Driver;
