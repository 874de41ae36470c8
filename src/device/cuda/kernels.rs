//! The kernels of this build, as the device loads and launches them.

use std::ffi::c_int;

use crate::device::Launch;
use crate::driver::table::CuStream;

/// Loads the kernels into the current context: the first entry point that failed and its code.
pub(super) type Load = unsafe fn() -> Result<(), (&'static str, c_int)>;
/// Queues a launch on a stream of the current context; the code is a `cudaError_t`.
pub(super) type Run = unsafe fn(&Launch, CuStream) -> c_int;

/// How kernels come to run.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Loads those that the pool and its tests launch, so that no first launch waits for queued
    /// work.
    pub(super) load: Load,
    pub(super) run: Run,
}

impl Kernels {
    /// The kernels that were compiled into this build, if any were.
    #[cfg(warpool_cuda)]
    pub(super) fn of_this_build() -> Option<Self> {
        Some(Self { load, run })
    }

    /// There are none in this build.
    #[cfg(not(warpool_cuda))]
    pub(super) fn of_this_build() -> Option<Self> {
        None
    }
}

#[cfg(warpool_cuda)]
unsafe fn load() -> Result<(), (&'static str, c_int)> {
    use crate::driver::abi;
    // SAFETY: the caller vouches that a context is current; the calls take nothing.
    let codes = unsafe {
        [
            ("wp_cuda_load_pattern", abi::wp_cuda_load_pattern()),
            ("wp_cuda_load_relocate", abi::wp_cuda_load_relocate()),
        ]
    };
    let failed = codes.into_iter().find(|&(_, code)| code != 0);
    failed.map_or(Ok(()), Err)
}

#[cfg(warpool_cuda)]
unsafe fn run(launch: &Launch, stream: CuStream) -> c_int {
    // SAFETY: the caller vouches for the ranges and the stream.
    unsafe { launch.run_on_cuda(stream) }
}
