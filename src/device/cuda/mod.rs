//! The CUDA device: a thin layer over the driver's calls in one context.
//!
//! - `context`: the context, and making it current;
//! - `memory`: reserve, create, map through the driver's virtual memory calls;
//! - `backend`: streams, events, copies and launches;
//! - `kernels`: the kernels of this build.
//!
//! The crate's kernels are launched through the statically linked CUDA runtime, which works in
//! whatever driver context is current. This can be the application's own, if the device was opened
//! in it.

mod backend;
mod context;
// The fault paths include conversions.
#[cfg(all(test, feature = "convert"))]
pub(super) mod faults;
mod kernels;
mod memory;

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use self::context::Context;
use self::kernels::Kernels;
use super::{Backend, DeviceInfo, DeviceKind};
use crate::driver::calls::{CuDevice, no_gpu};
use crate::driver::{Driver, build_info};
use crate::error::{Error, Result};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const PROCESSORS: c_int = 16;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const CAPABILITY_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
const CAPABILITY_MINOR: c_int = 76;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: c_int = 102;

pub(super) fn count() -> Result<u32> {
    count_of(Driver::get()?)
}

pub(super) fn open(ordinal: u32) -> Result<Arc<dyn Backend>> {
    open_on(Driver::get()?, Kernels::of_this_build(), ordinal)
}

/// The GPU of the context current on the calling thread.
pub(super) fn open_current() -> Result<Arc<dyn Backend>> {
    open_current_on(Driver::get()?, Kernels::of_this_build())
}

fn count_of(driver: &'static Driver) -> Result<u32> {
    let mut count = 0;
    // SAFETY: the call writes one integer.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }.ok(driver)?;
    if count <= 0 {
        return Err(no_gpu());
    }
    Ok(count.unsigned_abs())
}

fn open_on(
    driver: &'static Driver,
    kernels: Option<Kernels>,
    ordinal: u32,
) -> Result<Arc<dyn Backend>> {
    let count = count_of(driver)?;
    if ordinal >= count {
        return Err(Error::Unavailable {
            missing: format!("GPU {ordinal} is not there"),
            hint: format!("this process sees {count}, numbered from 0; check CUDA_VISIBLE_DEVICES"),
        });
    }
    let kernels = kernels.ok_or_else(no_kernels)?;
    let mut device: CuDevice = 0;
    // SAFETY: the call writes one integer.
    unsafe { driver.cuDeviceGet(&raw mut device, ordinal as c_int) }.ok(driver)?;
    if attribute(driver, device, VIRTUAL_MEMORY)? == 0 {
        return Err(Error::Unavailable {
            missing: format!("GPU {ordinal} has no virtual memory management"),
            hint: String::from(
                "use a GPU and driver that have it, or the host device (Device::host)",
            ),
        });
    }
    let info = info(driver, device, ordinal)?;
    let context = Context::of(driver, device)?;
    let cuda = backend::Cuda::new(driver, kernels, context, device, info);
    cuda.load_kernels()?;
    Ok(Arc::new(cuda))
}

fn open_current_on(driver: &'static Driver, kernels: Option<Kernels>) -> Result<Arc<dyn Backend>> {
    let count = count_of(driver)?;
    let Some(current) = Context::current_device(driver)? else {
        return Err(Error::invalid(
            "context",
            "no CUDA context is current on this thread: make one current, or use Device::cuda",
        ));
    };
    for ordinal in 0..count {
        let mut device: CuDevice = -1;
        // SAFETY: the call writes one integer.
        unsafe { driver.cuDeviceGet(&raw mut device, ordinal as c_int) }.ok(driver)?;
        if device == current {
            return open_on(driver, kernels, ordinal);
        }
    }
    Err(Error::invalid(
        "context",
        "it is of a device that the driver does not list",
    ))
}

/// The error of a build without kernels.
fn no_kernels() -> Error {
    Error::Unavailable {
        missing: format!(
            "this build has no compiled kernels ({})",
            build_info::kernels().left_out.unwrap_or("not compiled in")
        ),
        hint: String::from(
            "build where there is a CUDA toolkit (CUDA_HOME, or nvcc on PATH), or use Device::host",
        ),
    }
}

fn attribute(driver: &'static Driver, device: CuDevice, which: c_int) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the call writes one integer.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, which, device) }.ok(driver)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn info(driver: &'static Driver, device: CuDevice, ordinal: u32) -> Result<DeviceInfo> {
    let mut name = [0 as c_char; 256];
    // SAFETY: the call writes at most the given number of bytes, with a final zero.
    unsafe { driver.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) }.ok(driver)?;
    // SAFETY: the buffer now holds a C string: it began as zeros and is longer than any name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned();
    let mut total = 0;
    // SAFETY: the call writes one size.
    unsafe { driver.cuDeviceTotalMem(&raw mut total, device) }.ok(driver)?;
    let mut version = 0;
    // SAFETY: the call writes one integer.
    unsafe { driver.cuDriverGetVersion(&raw mut version) }.ok(driver)?;
    let granule = memory::granule(driver, device)?;
    let mut info = DeviceInfo::new(DeviceKind::Cuda, ordinal, name, total as u64, granule);
    info.capability = (
        attribute(driver, device, CAPABILITY_MAJOR)?,
        attribute(driver, device, CAPABILITY_MINOR)?,
    );
    info.processors = attribute(driver, device, PROCESSORS)?;
    info.driver_version = u32::try_from(version).unwrap_or(0);
    Ok(info)
}

#[cfg(all(test, not(warpool_cuda)))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_kernels_says_at_run_time_why_and_what_to_do() {
        let words = no_kernels().to_string();
        let why = build_info::kernels().left_out.expect("a reason");
        assert!(
            words.contains("no compiled kernels") && words.contains(why),
            "{words}"
        );
        assert!(words.contains("CUDA_HOME"), "{words}");
    }
}
