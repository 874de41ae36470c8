//! Result codes of the driver and of kernel launches, and their texts.
//!
//! A code is an integer, never a Rust enum: a newer driver may return a code that this crate does
//! not know, which must be a value like any other.

use std::ffi::{CStr, c_char};

use super::calls::Driver;
use super::code::{Code, NOT_READY};
use crate::error::{Error, Result};

impl Code {
    /// An error that carries the call, the code and the driver's words, unless the code is 0.
    pub(crate) fn ok(self, driver: &Driver) -> Result<()> {
        if self.code == 0 {
            return Ok(());
        }
        Err(Error::Driver {
            call: self.call,
            code: self.code,
            words: words(driver, self.code),
        })
    }

    /// For a query: whether the work is done; "not ready" is no error.
    pub(crate) fn ready(self, driver: &Driver) -> Result<bool> {
        if self.code == NOT_READY {
            return Ok(false);
        }
        self.ok(driver).map(|()| true)
    }
}

/// The driver's name and description of a code.
pub(crate) fn words(driver: &Driver, code: i32) -> String {
    let text = |ask: &dyn Fn(*mut *const c_char) -> Code| -> Option<String> {
        let mut text = std::ptr::null();
        if ask(&raw mut text).code != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver returned a C string that lives as long as the process.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    };
    // SAFETY: both calls write one pointer, to the place that they get.
    let name = text(&|out| unsafe { driver.cuGetErrorName(code, out) });
    // SAFETY: the same as above.
    let description = text(&|out| unsafe { driver.cuGetErrorString(code, out) });
    match (name, description) {
        (Some(name), Some(description)) => format!("{name}: {description}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => String::from("a code that this driver has no words for"),
    }
}

/// The text for the result of a kernel launch, a `cudaError_t`.
///
/// From 100 up the runtime's codes are the driver's own, as are 1 to 4; the few between that a
/// launch can return are named here, so that the runtime's own table need not be linked.
pub(crate) fn launch_words(driver: &Driver, code: i32) -> String {
    let own = match code {
        9 => "cudaErrorInvalidConfiguration: a launch dimension is outside what the GPU takes",
        35 => {
            "cudaErrorInsufficientDriver: the driver is older than the kernels' CUDA version; update it"
        }
        36 => "cudaErrorCallRequiresNewerDriver: the driver is too old for this call; update it",
        46 => {
            "cudaErrorDevicesUnavailable: the GPU is busy or its compute mode forbids this process"
        }
        49 => {
            "cudaErrorIncompatibleDriverContext: the current context is one the CUDA runtime cannot use"
        }
        52 => "cudaErrorMissingConfiguration: the kernel was called without a launch configuration",
        98 => {
            "cudaErrorInvalidDeviceFunction: no kernel for this GPU was compiled; build with its architecture in CUDA_COMPUTE_CAP"
        }
        209 => {
            "cudaErrorNoKernelImageForDevice: no kernel for this GPU was compiled; build with its architecture in CUDA_COMPUTE_CAP"
        }
        _ => return words(driver, code),
    };
    String::from(own)
}
