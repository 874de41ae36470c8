//! How gradients are reduced.

use crate::convert::ScalerConfig;

/// What gradients are sent as.
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
    /// As they are.
    F32,
    /// Half the bytes, 11 significant bits, under a scale.
    #[default]
    F16,
    /// Half the bytes, 8 significant bits; no gradient overflows.
    Bf16,
    /// A quarter of the bytes, 4 significant bits, [`E4m3`](crate::convert::E4m3). Each bucket of each step has a
    /// scale of its own, from the largest magnitude that any rank has there, so that neither a code nor a sum of
    /// all ranks' overflows: with `n` ranks codes go up to 256 / `n` rounded up to a power of two, and what is
    /// smaller than the largest by more than 2^17 / `n` becomes 0. The ranks' sums are rounded to as few bits.
    /// With [`ReducerConfig::feedback`] what a rank's own codes lack comes with the next step. NCCL has it from
    /// version 2.24 and compute capability 9.0 on.
    E4m3,
}

/// How gradients are reduced. Made by [`ReducerConfig::default`] and the setters.
#[derive(Debug, Clone, Copy)]
pub struct ReducerConfig {
    pub(super) wire: Wire,
    pub(super) bucket_bytes: u64,
    pub(super) scale: ScalerConfig,
    pub(super) feedback: bool,
    /// The key; `None`: to nearest.
    pub(super) stochastic: Option<u64>,
}

impl Default for ReducerConfig {
    /// `f16` in buckets from 32 MiB on, rounded to nearest, scales that start at 1024.
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
    /// Sets what gradients are sent as.
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Sets the bytes of `f32` gradients of the first bucket, and of the last, rounded up to 256; each other has
    /// up to four times its smaller neighbour's. Gradients of less than four times as many bytes are one bucket,
    /// which goes with the last of them: set fewer where the backward pass is to hide more.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Sets how the scale of each bucket starts and moves; of [`Wire::F16`] alone.
    #[must_use]
    pub fn scale(mut self, scale: ScalerConfig) -> Self {
        self.scale = scale;
        self
    }

    /// Sets whether what rounding took from a gradient is added to the next step's: 4 bytes a gradient.
    #[must_use]
    pub fn feedback(mut self, on: bool) -> Self {
        self.feedback = on;
        self
    }

    /// Sets stochastic rounding, by a key; every rank and step draws its own.
    #[must_use]
    pub fn stochastic(mut self, seed: u64) -> Self {
        self.stochastic = Some(seed);
        self
    }
}
