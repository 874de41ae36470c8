//! The configuration of reductions of gradients.

use crate::convert::ScalerConfig;

/// The format in which gradients are sent.
///
/// ```
/// use warpool::collective::{ReducerConfig, Wire};
///
/// let config = ReducerConfig::default().wire(Wire::Bf16).bucket_bytes(8 << 20).stochastic(7);
/// # let _ = config;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// Without conversion.
    F32,
    /// Half the bytes, 11 significant bits, with a scale.
    #[default]
    F16,
    /// Half the bytes, 8 significant bits; no gradient overflows.
    Bf16,
    /// A quarter of the bytes, 4 significant bits, [`E4m3`](crate::convert::E4m3). Each bucket of each step
    /// has its own scale, from the largest magnitude on any rank, so that neither a code nor the sum over all
    /// ranks overflows. With `n` ranks, `n` rounded up to a power of two, codes go up to 256 / `n`. Values below
    /// `n` / 2^13 of the largest have fewer bits, and those below `n` / 2^18 become 0. The ranks' sums are rounded
    /// to the same few bits. With [`ReducerConfig::feedback`], what a rank's own codes lost is added in the next
    /// step. NCCL supports it from version 2.24 and compute capability 9.0 on.
    E4m3,
}

/// The configuration of a [`Reducer`](super::Reducer), from [`ReducerConfig::default`] and the setters.
#[derive(Debug, Clone, Copy)]
pub struct ReducerConfig {
    pub(super) wire: Wire,
    pub(super) bucket_bytes: u64,
    pub(super) scale: ScalerConfig,
    pub(super) feedback: bool,
    /// The seed of stochastic rounding; `None`: round to nearest.
    pub(super) stochastic: Option<u64>,
}

impl Default for ReducerConfig {
    /// `f16` in buckets of at least 32 MiB, rounded to nearest, scales that start at 1024.
    fn default() -> Self {
        Self {
            wire: Wire::F16,
            bucket_bytes: 32 << 20,
            scale: ScalerConfig::default().scale(1024.0),
            feedback: false,
            stochastic: None,
        }
    }
}

impl ReducerConfig {
    /// Sets the format in which gradients are sent.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Sets the bytes of `f32` gradients in the first and in the last bucket, rounded up to 256. Towards the
    /// middle each bucket is half as large again as the one before it, up to 64 times `bytes`; four times as
    /// large if the ranks have one communicator alone. The one in the middle has the rest, up to twice as much.
    /// Gradients of less than four times `bytes` in total are one bucket, which is sent with the last of them: set
    /// fewer bytes if the backward pass is to hide more.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets how the scale of each bucket starts and changes; only for [`Wire::F16`].
    #[must_use]
    pub fn scale(mut self, scale: ScalerConfig) -> Self {
        self.scale = scale;
        self
    }

    /// Sets whether rounding errors of a gradient are added in the next step; this takes 4 bytes per
    /// gradient.
    #[must_use]
    pub fn feedback(mut self, on: bool) -> Self {
        self.feedback = on;
        self
    }

    /// Sets stochastic rounding with a seed; every rank and step uses different random numbers.
    #[must_use]
    pub fn stochastic(mut self, seed: u64) -> Self {
        self.stochastic = Some(seed);
        self
    }
}
