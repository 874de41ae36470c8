//! What a driver call returned.

/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`: what a query asks about is not done.
pub(crate) const NOT_READY: i32 = 600;

/// What a driver call returned.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
}
