//! A driver without a GPU: every call of the table over the host device.
//!
//! Streams are threads; memory, mappings, events and captures work. Calls that need a current
//! context fail without one, and objects that the driver returns are counted. The table has one
//! function per call, so a missing call does not compile.

#![allow(non_snake_case, reason = "calls keep the driver's own names")]

mod calls;
mod gpu;
mod memory;
mod work;

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::gpu::{CONTEXTS, GPU, Gpu, answer};
use super::calls::{Driver, Table};
use crate::device::{Device, HandleCounts, Launch, RawStream};
use crate::error::Result;
use crate::sync::plain::lock;

/// A machine with the fake driver, for one test at a time.
pub(crate) struct Machine {
    gpu: Arc<Gpu>,
    _alone: MutexGuard<'static, ()>,
}

/// Objects that the driver returned and that were not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) counts: HandleCounts,
    /// Graphs that were captured and not destroyed.
    pub(crate) graphs: u64,
    /// The driver's own pools.
    pub(crate) pools: u64,
    /// Contexts pushed on this thread.
    pub(crate) contexts: u64,
}

impl Machine {
    /// A machine with a GPU of `bytes` bytes.
    pub(crate) fn with_gpu(bytes: u64) -> Result<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = lock(&ALONE);
        let host = Device::host_with_capacity(bytes)?;
        let gpu = Arc::new(Gpu {
            host: Arc::clone(host.backend()),
            streams: Mutex::default(),
            ends: Mutex::default(),
            graphs: Mutex::default(),
            pools: Mutex::default(),
            access: Mutex::default(),
            pinned: Mutex::default(),
            records: Mutex::default(),
        });
        *GPU.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&gpu));
        CONTEXTS.with_borrow_mut(Vec::clear);
        Ok(Self { gpu, _alone: alone })
    }

    /// A driver of this machine, not initialised. It is never freed, like a real one.
    pub(crate) fn driver(&self) -> &'static Driver {
        Box::leak(Box::new(Driver::over(table())))
    }

    /// The GPUs that may use each existing mapping.
    pub(crate) fn access(&self) -> Vec<Vec<c_int>> {
        lock(&self.gpu.access).values().cloned().collect()
    }

    /// Notes from now on, for each call that uses a graph which is being captured, whether a lock is held.
    pub(crate) fn record_under(&self, is_held: impl Fn() -> bool + Send + 'static) {
        lock(&self.gpu.records).is_held = Some(Box::new(is_held));
    }

    /// The calls noted since the last time, and whether the lock was held in each.
    pub(crate) fn recorded(&self) -> Vec<(&'static str, bool)> {
        std::mem::take(&mut lock(&self.gpu.records).calls)
    }

    /// The objects not released yet.
    pub(crate) fn left(&self) -> Left {
        let mut counts = self.gpu.host.counts();
        counts.events -= lock(&self.gpu.ends).len() as u64;
        let pools = lock(&self.gpu.pools);
        pools.discount(&mut counts);
        Left {
            counts,
            graphs: lock(&self.gpu.graphs).len() as u64,
            pools: pools.len(),
            contexts: CONTEXTS.with_borrow(Vec::len) as u64,
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        *GPU.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Runs the host builds of the crate's kernels on a stream of the fake driver.
///
/// # Safety
/// The same as for [`Backend::launch`].
pub(crate) unsafe fn run_kernel(launch: &Launch, stream: *mut std::ffi::c_void) -> c_int {
    answer(|gpu| {
        gpu.late("a kernel", stream);
        // SAFETY: the caller guarantees the ranges.
        unsafe { gpu.host.launch(launch, RawStream(stream as u64)) }
    })
}

fn table() -> Table {
    use calls::*;
    use memory::*;
    use work::*;
    Table {
        cuInit,
        cuGetErrorName,
        cuGetErrorString,
        cuDriverGetVersion,
        cuDeviceGetCount,
        cuDeviceGet,
        cuDeviceGetName,
        cuDeviceTotalMem,
        cuDeviceGetAttribute,
        cuDeviceCanAccessPeer,
        cuDevicePrimaryCtxRetain,
        cuCtxGetCurrent,
        cuCtxGetDevice,
        cuCtxPushCurrent,
        cuCtxPopCurrent,
        cuCtxSynchronize,
        cuMemGetInfo,
        cuMemGetAllocationGranularity,
        cuMemAddressReserve,
        cuMemAddressFree,
        cuMemCreate,
        cuMemRelease,
        cuMemMap,
        cuMemSetAccess,
        cuMemUnmap,
        cuMemPoolCreate,
        cuMemPoolDestroy,
        cuMemPoolSetAttribute,
        cuMemPoolGetAttribute,
        cuMemAllocFromPoolAsync,
        cuMemFreeAsync,
        cuMemHostAlloc,
        cuMemFreeHost,
        cuStreamCreateWithPriority,
        cuStreamDestroy,
        cuStreamGetCtx,
        cuStreamGetId,
        cuStreamSynchronize,
        cuStreamQuery,
        cuStreamIsCapturing,
        cuStreamBeginCapture,
        cuStreamEndCapture,
        cuThreadExchangeStreamCaptureMode,
        cuGraphInstantiateWithFlags,
        cuGraphLaunch,
        cuGraphExecDestroy,
        cuGraphDestroy,
        cuStreamWaitEvent,
        cuEventCreate,
        cuEventDestroy,
        cuEventRecord,
        cuEventQuery,
        cuEventSynchronize,
        cuEventElapsedTime,
        cuMemcpyHtoDAsync,
        cuMemcpyDtoHAsync,
        cuMemcpyDtoDAsync,
        cuMemsetD8Async,
        cuLaunchHostFunc,
    }
}
