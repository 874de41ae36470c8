//! The fake's device and its contexts.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::super::calls::{CuContext, CuDevice};
use super::gpu::{CAPTURE_MODE, CONTEXTS, INVALID_CONTEXT, INVALID_VALUE, answer, in_context};
use crate::device::RawStream;
use crate::sync::plain::lock;

/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: c_int = 101;
/// The primary context.
const PRIMARY: usize = 0x0C0D_A000;
const NAME: &CStr = c"a stand-in GPU";

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return INVALID_VALUE;
    }
    answer(|_| Ok(()))
}

fn words(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no device"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let Some((name, _)) = words(code) else {
        return INVALID_VALUE;
    };
    // SAFETY: the caller passes space for one pointer.
    unsafe { text.write(name.as_ptr()) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int {
    let Some((_, description)) = words(code) else {
        return INVALID_VALUE;
    };
    // SAFETY: the caller passes space for one pointer.
    unsafe { text.write(description.as_ptr()) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller passes space for one integer.
    unsafe { version.write(13_000) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller passes space for one integer.
    unsafe { count.write(2) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int) -> c_int {
    if !(0..2).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller passes space for one integer.
    unsafe { device.write(ordinal) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceGetName(
    name: *mut c_char,
    len: c_int,
    _device: CuDevice,
) -> c_int {
    let bytes = NAME.to_bytes_with_nul();
    if usize::try_from(len).unwrap_or(0) < bytes.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes space for `len` bytes.
    unsafe { name.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceTotalMem(bytes: *mut usize, _device: CuDevice) -> c_int {
    answer(|gpu| {
        // SAFETY: the caller passes space for one size.
        unsafe { bytes.write(gpu.host.info().total_bytes as usize) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: CuDevice,
) -> c_int {
    let answer = match attribute {
        // Processors, capability 9.0, virtual memory management.
        16 => 132,
        75 => 9,
        76 => 0,
        102 => 1,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller passes space for one integer.
    unsafe { value.write(answer) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDeviceCanAccessPeer(
    can: *mut c_int,
    device: CuDevice,
    peer: CuDevice,
) -> c_int {
    // SAFETY: the caller passes space for one integer.
    unsafe { can.write(c_int::from(device != peer)) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut CuContext,
    _device: CuDevice,
) -> c_int {
    // SAFETY: the caller passes space for one handle.
    unsafe { context.write(PRIMARY as CuContext) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuCtxGetCurrent(context: *mut CuContext) -> c_int {
    let current = CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0));
    // SAFETY: the caller passes space for one handle.
    unsafe { context.write(current as CuContext) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuCtxGetDevice(device: *mut CuDevice) -> c_int {
    in_context(|_| {
        // SAFETY: the caller passes space for one integer.
        unsafe { device.write(0) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuCtxPushCurrent(context: CuContext) -> c_int {
    if context as usize != PRIMARY {
        return INVALID_CONTEXT;
    }
    CONTEXTS.with_borrow_mut(|stack| stack.push(PRIMARY));
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuCtxPopCurrent(context: *mut CuContext) -> c_int {
    let Some(gone) = CONTEXTS.with_borrow_mut(Vec::pop) else {
        return INVALID_CONTEXT;
    };
    // SAFETY: the caller passes space for one handle.
    unsafe { context.write(gone as CuContext) };
    0
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuCtxSynchronize() -> c_int {
    in_context(|gpu| {
        for end in lock(&gpu.ends).iter() {
            gpu.host.event_sync(*end)?;
        }
        let streams = lock(&gpu.streams).clone();
        streams
            .into_iter()
            .try_for_each(|raw| gpu.host.stream_sync(RawStream(raw)))
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuStreamGetCtx(
    stream: super::super::calls::CuStream,
    context: *mut CuContext,
) -> c_int {
    answer(|gpu| {
        gpu.host.stream_id(RawStream(stream as u64))?;
        // SAFETY: the caller passes space for one handle.
        unsafe { context.write(PRIMARY as CuContext) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    // SAFETY: the caller passes one integer, which is read and written.
    unsafe {
        if !(0..=2).contains(&*mode) {
            return INVALID_VALUE;
        }
        mode.write(CAPTURE_MODE.replace(*mode));
    }
    0
}
