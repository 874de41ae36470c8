//! The crate's kernels as values that a backend can launch.

use crate::driver::abi;

/// Defines the enumeration of launches from a list: for each a variant, its arguments, the operation's name
/// in `kernels/warpool.h`, and its two entry points.
macro_rules! launches {
    ($(
        $(#[$condition:meta])?
        $variant:ident($args:ident) = $name:literal, $host:ident, $cuda:ident: $doc:literal;
    )*) => {
        /// One kernel launch with its arguments, as `kernels/warpool.h` defines them.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub enum Launch {
            $(
                #[doc = $doc]
                #[doc(hidden)]
                $(#[$condition])?
                $variant(abi::$args),
            )*
        }

        impl Launch {
            /// Name of the operation in `kernels/warpool.h`.
            #[must_use]
            #[doc(hidden)]
            pub fn name(&self) -> &'static str {
                match self {
                    $($(#[$condition])? Self::$variant(_) => $name,)*
                }
            }

            /// Runs the operation on the calling thread over host memory; returns a `wp_status`.
            ///
            /// # Safety
            /// The same as for [`Backend::launch`](super::Backend::launch), with host memory.
            pub(crate) unsafe fn run_on_host(&self) -> i32 {
                // SAFETY: the caller guarantees the ranges; the argument structures are plain data.
                unsafe {
                    match self {
                        $($(#[$condition])? Self::$variant(args) => abi::$host(args),)*
                    }
                }
            }

            /// Queues the operation on a CUDA stream; returns a `cudaError_t`.
            ///
            /// # Safety
            /// The same as for [`Backend::launch`](super::Backend::launch); `stream` is a live `CUstream` of
            /// the current context.
            #[cfg(warpool_cuda)]
            pub(crate) unsafe fn run_on_cuda(&self, stream: *mut std::ffi::c_void) -> i32 {
                // SAFETY: the caller guarantees the ranges and the stream.
                unsafe {
                    match self {
                        $($(#[$condition])? Self::$variant(args) => abi::$cuda(args, stream),)*
                    }
                }
            }
        }
    };
}

launches! {
    Pattern(wp_pattern) = "wp_pattern", wp_host_pattern, wp_cuda_pattern: "Stamp, verify or poison a block.";
    #[cfg(feature = "convert")]
    Convert(wp_convert) = "wp_convert", wp_host_convert, wp_cuda_convert: "Convert elements from one precision to another.";
    #[cfg(feature = "convert")]
    Inplace(wp_inplace) = "wp_inplace", wp_host_inplace, wp_cuda_inplace: "Convert inside one buffer.";
    #[cfg(feature = "convert")]
    Quantize(wp_quantize) = "wp_quantize", wp_host_quantize, wp_cuda_quantize: "Values to codes with scales.";
    #[cfg(feature = "convert")]
    Dequantize(wp_quantize) = "wp_dequantize", wp_host_dequantize, wp_cuda_dequantize: "Codes with scales to values.";
    #[cfg(feature = "convert")]
    Transpose(wp_transpose) = "wp_transpose", wp_host_transpose, wp_cuda_transpose: "Convert into rows and into columns.";
    #[cfg(feature = "convert")]
    Unscale(wp_unscale) = "wp_unscale", wp_host_unscale, wp_cuda_unscale: "Unscale gradients and check that they are finite.";
    #[cfg(feature = "convert")]
    ScalerUpdate(wp_scaler_update) = "wp_scaler_update", wp_host_scaler_update, wp_cuda_scaler_update: "Update the loss scale at the end of a step.";
    #[cfg(feature = "convert")]
    Feedback(wp_feedback) = "wp_feedback", wp_host_feedback, wp_cuda_feedback: "Gradients to codes, with what codes lost before.";
    Relocate(wp_relocate) = "wp_relocate", wp_host_relocate, wp_cuda_relocate: "Batched disjoint moves.";
    Slide(wp_slide) = "wp_slide", wp_host_slide, wp_cuda_slide: "Moves that may overlap, all in one direction.";
    Patch(wp_patch) = "wp_patch", wp_host_patch, wp_cuda_patch: "Pointers into moved ranges rewritten.";
    Scatter(wp_scatter) = "wp_scatter", wp_host_scatter, wp_cuda_scatter: "Words stored at scattered addresses.";
}
