//! The kernels of this build, as the device loads and launches them.

use std::ffi::c_int;

use crate::device::Launch;
use crate::driver::calls::CuStream;

/// Loads the kernels into the current context. The error is the entry point that failed, and its
/// code.
pub(super) type Load = unsafe fn() -> Result<(), (&'static str, c_int)>;
/// Queues a launch on a stream of the current context; returns a `cudaError_t`.
pub(super) type Run = unsafe fn(&Launch, CuStream) -> c_int;

/// The functions that load and launch the kernels.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Loads all of them, so that no first launch has to wait for queued work, or for memory that a
    /// full pool holds.
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
    let mut count = 0;
    // SAFETY: the call takes nothing.
    let abi = unsafe { abi::wp_cuda_abi() };
    if abi != abi::WP_ABI_VERSION {
        return Err(("wp_cuda_abi", abi as c_int));
    }
    // SAFETY: the caller guarantees that a context is current; the call writes one integer.
    match unsafe { abi::wp_cuda_load(&raw mut count) } {
        0 => Ok(()),
        code => Err(("wp_cuda_load", code)),
    }
}

#[cfg(warpool_cuda)]
unsafe fn run(launch: &Launch, stream: CuStream) -> c_int {
    // SAFETY: the caller guarantees the ranges and the stream.
    unsafe { launch.run_on_cuda(stream) }
}
