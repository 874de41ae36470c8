//! The result of a driver call.

/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`: the queried work is not done.
pub(crate) const NOT_READY: i32 = 600;

/// The result of a driver call.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) call: &'static str,
    pub(crate) code: i32,
}
