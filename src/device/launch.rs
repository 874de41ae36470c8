//! The crate's kernels as values: what a backend is asked to run.

use crate::driver::abi;

/// One kernel launch with its arguments, as `kernels/warpool.h` defines them.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Launch {
    /// Stamp, verify or poison a block.
    #[doc(hidden)]
    Pattern(abi::wp_pattern),
    /// Convert elements from one precision to another.
    #[doc(hidden)]
    Convert(abi::wp_convert),
    /// Convert inside one buffer.
    #[doc(hidden)]
    Inplace(abi::wp_inplace),
    /// Values to codes with scales.
    #[doc(hidden)]
    Quantize(abi::wp_quantize),
    /// Codes with scales to values.
    #[doc(hidden)]
    Dequantize(abi::wp_quantize),
    /// Convert into rows and into columns.
    #[doc(hidden)]
    Transpose(abi::wp_transpose),
    /// Unscale gradients and check that they are finite.
    #[doc(hidden)]
    Unscale(abi::wp_unscale),
    /// Update the loss scale at the end of a step.
    #[doc(hidden)]
    ScalerUpdate(abi::wp_scaler_update),
    /// Batched disjoint moves.
    #[doc(hidden)]
    Relocate(abi::wp_relocate),
    /// Moves that may overlap, all in one direction.
    #[doc(hidden)]
    Slide(abi::wp_slide),
    /// Pointers into moved ranges rewritten.
    #[doc(hidden)]
    Patch(abi::wp_patch),
    /// Words stored at scattered addresses.
    #[doc(hidden)]
    Scatter(abi::wp_scatter),
}

impl Launch {
    /// Name of the operation in `kernels/warpool.h`.
    #[must_use]
    #[doc(hidden)]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pattern(_) => "wp_pattern",
            Self::Convert(_) => "wp_convert",
            Self::Inplace(_) => "wp_inplace",
            Self::Quantize(_) => "wp_quantize",
            Self::Dequantize(_) => "wp_dequantize",
            Self::Transpose(_) => "wp_transpose",
            Self::Unscale(_) => "wp_unscale",
            Self::ScalerUpdate(_) => "wp_scaler_update",
            Self::Relocate(_) => "wp_relocate",
            Self::Slide(_) => "wp_slide",
            Self::Patch(_) => "wp_patch",
            Self::Scatter(_) => "wp_scatter",
        }
    }

    /// Runs the operation on the calling thread over host memory; the code is a `wp_status`.
    ///
    /// # Safety
    /// As for [`Backend::launch`](super::Backend::launch), with host memory.
    pub(crate) unsafe fn run_on_host(&self) -> i32 {
        // SAFETY: the caller vouches for the ranges; the argument structures are plain data.
        unsafe {
            match self {
                Self::Pattern(args) => abi::wp_host_pattern(args),
                Self::Convert(args) => abi::wp_host_convert(args),
                Self::Inplace(args) => abi::wp_host_inplace(args),
                Self::Quantize(args) => abi::wp_host_quantize(args),
                Self::Dequantize(args) => abi::wp_host_dequantize(args),
                Self::Transpose(args) => abi::wp_host_transpose(args),
                Self::Unscale(args) => abi::wp_host_unscale(args),
                Self::ScalerUpdate(args) => abi::wp_host_scaler_update(args),
                Self::Relocate(args) => abi::wp_host_relocate(args),
                Self::Slide(args) => abi::wp_host_slide(args),
                Self::Patch(args) => abi::wp_host_patch(args),
                Self::Scatter(args) => abi::wp_host_scatter(args),
            }
        }
    }

    /// Queues the operation on a CUDA stream; the code is a `cudaError_t`.
    ///
    /// # Safety
    /// As for [`Backend::launch`](super::Backend::launch); `stream` is a live `CUstream` of the
    /// current context.
    #[cfg(warpool_cuda)]
    pub(crate) unsafe fn run_on_cuda(&self, stream: *mut std::ffi::c_void) -> i32 {
        // SAFETY: the caller vouches for the ranges and the stream.
        unsafe {
            match self {
                Self::Pattern(args) => abi::wp_cuda_pattern(args, stream),
                Self::Convert(args) => abi::wp_cuda_convert(args, stream),
                Self::Inplace(args) => abi::wp_cuda_inplace(args, stream),
                Self::Quantize(args) => abi::wp_cuda_quantize(args, stream),
                Self::Dequantize(args) => abi::wp_cuda_dequantize(args, stream),
                Self::Transpose(args) => abi::wp_cuda_transpose(args, stream),
                Self::Unscale(args) => abi::wp_cuda_unscale(args, stream),
                Self::ScalerUpdate(args) => abi::wp_cuda_scaler_update(args, stream),
                Self::Relocate(args) => abi::wp_cuda_relocate(args, stream),
                Self::Slide(args) => abi::wp_cuda_slide(args, stream),
                Self::Patch(args) => abi::wp_cuda_patch(args, stream),
                Self::Scatter(args) => abi::wp_cuda_scatter(args, stream),
            }
        }
    }
}
