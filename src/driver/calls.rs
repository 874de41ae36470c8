//! The driver's calls, found in `libcuda.so.1` when the first of them is needed.
//!
//! One macro holds every call with its symbol and signature. Symbols carry the version that the
//! signature belongs to: `cuda.h` maps plain names to them by macros that a dynamic lookup does not
//! see. Every call goes through the method of its name, the one place where calls are counted and
//! made to fail (`faults`, in tests), so every call in the table can be made to fail.

#![allow(non_snake_case, reason = "calls keep the driver's own names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::code::{Code, NO_DEVICE};
use crate::error::{Error, Result};

/// `CUcontext`.
pub(crate) type CuContext = *mut c_void;
/// `CUstream`.
pub(crate) type CuStream = *mut c_void;
/// `CUevent`.
pub(crate) type CuEvent = *mut c_void;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: c_int = 2;

/// `CUgraph`.
pub(crate) type CuGraph = *mut c_void;
/// `CUgraphExec`.
pub(crate) type CuGraphExec = *mut c_void;
/// `CUdevice`.
pub(crate) type CuDevice = c_int;
/// `CUhostFn`.
pub(crate) type CuHostFn = unsafe extern "C" fn(*mut c_void);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CuMemLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CuMemAllocationProp {
    pub(crate) kind: c_int,
    pub(crate) requested_handle_types: c_int,
    pub(crate) location: CuMemLocation,
    pub(crate) win32_handle_meta_data: *mut c_void,
    pub(crate) compression_type: u8,
    pub(crate) gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CuMemAccessDesc {
    pub(crate) location: CuMemLocation,
    pub(crate) flags: c_int,
}

/// `CUmemoryPool`.
pub(crate) type CuMemPool = *mut c_void;

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CuMemPoolProps {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: CuMemLocation,
    pub(crate) win32_security_attributes: *mut c_void,
    pub(crate) max_bytes: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

const _: () = assert!(size_of::<CuMemPoolProps>() == 88);
const _: () = assert!(size_of::<CuMemAllocationProp>() == 32 && size_of::<CuMemAccessDesc>() == 12);

macro_rules! calls {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),* $(,)?);)*) => {
        /// The calls, resolved.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        /// The names of all calls.
        #[cfg(test)]
        pub(crate) const CALLS: &[&str] = &[$(stringify!($name)),*];

        /// The symbols of all calls.
        #[cfg(test)]
        pub(super) const SYMBOLS: &[&CStr] = &[$($symbol),*];

        impl Table {
            pub(super) fn resolve(find: &dyn Fn(&'static CStr) -> Result<*mut c_void>) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let found = find($symbol)?;
                        // SAFETY: the symbol is the versioned name of a call with this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> c_int,
                            >(found)
                        }
                    },)*
                })
            }
        }

        impl Driver {
            $(
                /// The driver call of this name.
                ///
                /// # Safety
                /// The requirements that the driver's documentation states for the arguments.
                #[allow(clippy::too_many_arguments, reason = "as the driver has them")]
                #[cfg_attr(test, track_caller)]
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Code {
                    #[cfg(test)]
                    if let Some(code) = self.faults.strike(stringify!($name)) {
                        return Code { call: stringify!($name), code };
                    }
                    // SAFETY: the caller guarantees the arguments.
                    let code = unsafe { (self.table.$name)($($arg),*) };
                    #[cfg(test)]
                    self.faults.answered(stringify!($name), code);
                    Code { call: stringify!($name), code }
                }
            )*
        }
    };
}

calls! {
    cuInit = c"cuInit" (flags: c_uint);
    cuGetErrorName = c"cuGetErrorName" (code: c_int, text: *mut *const c_char);
    cuGetErrorString = c"cuGetErrorString" (code: c_int, text: *mut *const c_char);
    cuDriverGetVersion = c"cuDriverGetVersion" (version: *mut c_int);

    cuDeviceGetCount = c"cuDeviceGetCount" (count: *mut c_int);
    cuDeviceGet = c"cuDeviceGet" (device: *mut CuDevice, ordinal: c_int);
    cuDeviceGetName = c"cuDeviceGetName" (name: *mut c_char, len: c_int, device: CuDevice);
    cuDeviceTotalMem = c"cuDeviceTotalMem_v2" (bytes: *mut usize, device: CuDevice);
    cuDeviceGetAttribute = c"cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: CuDevice);
    cuDeviceCanAccessPeer = c"cuDeviceCanAccessPeer" (can: *mut c_int, device: CuDevice, peer: CuDevice);
    cuDevicePrimaryCtxRetain = c"cuDevicePrimaryCtxRetain" (context: *mut CuContext, device: CuDevice);

    cuCtxGetCurrent = c"cuCtxGetCurrent" (context: *mut CuContext);
    cuCtxGetDevice = c"cuCtxGetDevice" (device: *mut CuDevice);
    cuCtxPushCurrent = c"cuCtxPushCurrent_v2" (context: CuContext);
    cuCtxPopCurrent = c"cuCtxPopCurrent_v2" (context: *mut CuContext);
    cuCtxSynchronize = c"cuCtxSynchronize" ();

    cuMemGetInfo = c"cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    cuMemGetAllocationGranularity = c"cuMemGetAllocationGranularity"
        (bytes: *mut usize, prop: *const CuMemAllocationProp, option: c_int);
    cuMemAddressReserve = c"cuMemAddressReserve"
        (addr: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64);
    cuMemAddressFree = c"cuMemAddressFree" (addr: u64, bytes: usize);
    cuMemCreate = c"cuMemCreate" (handle: *mut u64, bytes: usize, prop: *const CuMemAllocationProp, flags: u64);
    cuMemRelease = c"cuMemRelease" (handle: u64);
    cuMemMap = c"cuMemMap" (addr: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemSetAccess = c"cuMemSetAccess" (addr: u64, bytes: usize, desc: *const CuMemAccessDesc, count: usize);
    cuMemUnmap = c"cuMemUnmap" (addr: u64, bytes: usize);

    cuMemPoolCreate = c"cuMemPoolCreate" (pool: *mut CuMemPool, props: *const CuMemPoolProps);
    cuMemPoolDestroy = c"cuMemPoolDestroy" (pool: CuMemPool);
    cuMemPoolSetAttribute = c"cuMemPoolSetAttribute" (pool: CuMemPool, attribute: c_int, value: *mut c_void);
    cuMemPoolGetAttribute = c"cuMemPoolGetAttribute" (pool: CuMemPool, attribute: c_int, value: *mut c_void);
    cuMemAllocFromPoolAsync = c"cuMemAllocFromPoolAsync"
        (addr: *mut u64, bytes: usize, pool: CuMemPool, stream: CuStream);
    cuMemFreeAsync = c"cuMemFreeAsync" (addr: u64, stream: CuStream);

    cuMemHostAlloc = c"cuMemHostAlloc" (addr: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost = c"cuMemFreeHost" (addr: *mut c_void);

    cuStreamCreateWithPriority = c"cuStreamCreateWithPriority" (stream: *mut CuStream, flags: c_uint, priority: c_int);
    cuStreamDestroy = c"cuStreamDestroy_v2" (stream: CuStream);
    cuStreamGetCtx = c"cuStreamGetCtx" (stream: CuStream, context: *mut CuContext);
    cuStreamGetId = c"cuStreamGetId" (stream: CuStream, id: *mut u64);
    cuStreamSynchronize = c"cuStreamSynchronize" (stream: CuStream);
    cuStreamQuery = c"cuStreamQuery" (stream: CuStream);
    cuStreamIsCapturing = c"cuStreamIsCapturing" (stream: CuStream, status: *mut c_int);
    cuStreamBeginCapture = c"cuStreamBeginCapture_v2" (stream: CuStream, mode: c_int);
    cuStreamEndCapture = c"cuStreamEndCapture" (stream: CuStream, graph: *mut CuGraph);
    cuThreadExchangeStreamCaptureMode = c"cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    cuGraphInstantiateWithFlags = c"cuGraphInstantiateWithFlags"
        (exec: *mut CuGraphExec, graph: CuGraph, flags: u64);
    cuGraphLaunch = c"cuGraphLaunch" (exec: CuGraphExec, stream: CuStream);
    cuGraphExecDestroy = c"cuGraphExecDestroy" (exec: CuGraphExec);
    cuGraphDestroy = c"cuGraphDestroy" (graph: CuGraph);
    cuStreamWaitEvent = c"cuStreamWaitEvent" (stream: CuStream, event: CuEvent, flags: c_uint);

    cuEventCreate = c"cuEventCreate" (event: *mut CuEvent, flags: c_uint);
    cuEventDestroy = c"cuEventDestroy_v2" (event: CuEvent);
    cuEventRecord = c"cuEventRecord" (event: CuEvent, stream: CuStream);
    cuEventQuery = c"cuEventQuery" (event: CuEvent);
    cuEventSynchronize = c"cuEventSynchronize" (event: CuEvent);
    cuEventElapsedTime = c"cuEventElapsedTime" (milliseconds: *mut f32, start: CuEvent, end: CuEvent);

    cuMemcpyHtoDAsync = c"cuMemcpyHtoDAsync_v2" (dst: u64, src: *const c_void, bytes: usize, stream: CuStream);
    cuMemcpyDtoHAsync = c"cuMemcpyDtoHAsync_v2" (dst: *mut c_void, src: u64, bytes: usize, stream: CuStream);
    cuMemcpyDtoDAsync = c"cuMemcpyDtoDAsync_v2" (dst: u64, src: u64, bytes: usize, stream: CuStream);
    cuMemsetD8Async = c"cuMemsetD8Async" (dst: u64, byte: u8, bytes: usize, stream: CuStream);
    cuLaunchHostFunc = c"cuLaunchHostFunc" (stream: CuStream, work: CuHostFn, data: *mut c_void);
}

/// The driver of this machine.
pub(crate) struct Driver {
    table: Table,
    /// The calls that fail: none, unless a test plans it.
    #[cfg(test)]
    pub(crate) faults: super::faults::Faults,
}

impl Driver {
    /// The driver, opened and initialised on the first call; later calls return the first result
    /// again.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver, it is too old, or it has no GPU.
    pub(crate) fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER
            .get_or_init(Self::open)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn open() -> Result<Self> {
        let driver = Self::over(Table::of_library()?);
        driver.init()?;
        Ok(driver)
    }

    /// The machine's driver, not initialised, with its own planned failures. It is never freed.
    #[cfg(test)]
    pub(crate) fn of_this_machine() -> Result<&'static Self> {
        Ok(Box::leak(Box::new(Self::over(Table::of_library()?))))
    }

    /// The driver of a table, which must be initialised before anything else.
    pub(super) fn over(table: Table) -> Self {
        Self {
            table,
            #[cfg(test)]
            faults: super::faults::Faults::default(),
        }
    }

    /// Initialises the driver.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it has no GPU, or reports that it cannot be used.
    pub(crate) fn init(&self) -> Result<()> {
        // SAFETY: initialisation takes no pointers and may be repeated.
        let code = unsafe { self.cuInit(0) };
        match code.code {
            0 => Ok(()),
            NO_DEVICE => Err(no_gpu()),
            _ => Err(Error::Unavailable {
                missing: code
                    .ok(self)
                    .err()
                    .map_or_else(String::new, |error| error.to_string()),
                hint: String::from(
                    "check that nvidia-smi works for this user, or use the host device",
                ),
            }),
        }
    }
}

impl Table {
    /// The calls of this machine's library.
    pub(super) fn of_library() -> Result<Self> {
        // SAFETY: opening the driver runs its initialisers, which is the purpose.
        let library =
            unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(Error::Unavailable {
                missing: format!(
                    "the NVIDIA driver (libcuda.so.1) cannot be opened: {}",
                    loader_words()
                ),
                hint: String::from("install the driver, or use the host device (Device::host)"),
            });
        }
        Self::resolve(&|symbol| {
            // SAFETY: the library is open and stays so; the symbol is a C string.
            let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            if found.is_null() {
                return Err(no_call(symbol));
            }
            Ok(found)
        })
    }
}

/// The error of a driver that is too old to have a call.
pub(super) fn no_call(symbol: &CStr) -> Error {
    Error::Unavailable {
        missing: format!("the NVIDIA driver has no call {}", symbol.to_string_lossy()),
        hint: String::from("update it to one for CUDA 12.0 or newer"),
    }
}

/// The error of a driver without a GPU.
pub(crate) fn no_gpu() -> Error {
    Error::Unavailable {
        missing: String::from("the NVIDIA driver sees no GPU"),
        hint: String::from(
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device (Device::host)",
        ),
    }
}

/// The reason that the last `dlopen` failed.
fn loader_words() -> String {
    // SAFETY: the loader's message, if there is one, is a C string until its next call on this
    // thread; it is copied before that.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return String::from("the loader does not say why");
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_lacks_a_call_is_told_by_the_calls_name() {
        assert_eq!(SYMBOLS.len(), CALLS.len());
        for &lacking in SYMBOLS {
            let found = Table::resolve(&|symbol| match symbol == lacking {
                true => Err(no_call(symbol)),
                // Never called, so any address will do.
                false => Ok(loader_words as *mut c_void),
            });
            let error = found.err().expect("a call is lacking").to_string();
            assert!(error.contains(lacking.to_str().unwrap()), "{error}");
        }
    }
}
