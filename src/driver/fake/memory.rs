//! The fake driver's memory: virtual memory calls, and the driver's own pools.

use std::ffi::{c_int, c_uint, c_void};

use super::super::calls::{
    CuDevice, CuMemAccessDesc, CuMemAllocationProp, CuMemPool, CuMemPoolProps, CuStream,
};
use super::gpu::{Block, Gpu, INVALID_VALUE, Pool, answer, in_context};
use crate::device::{Addr, Phys, RawStream};
use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    in_context(|gpu| {
        let bytes = gpu.host.free_bytes()?;
        // SAFETY: the caller passes space for two sizes.
        unsafe {
            free.write(bytes as usize);
            total.write(gpu.host.info().total_bytes as usize);
        }
        Ok(())
    })
}

/// Whether the memory is requested on this GPU.
fn is_ours(device: CuDevice) -> Result<()> {
    if device == 0 {
        Ok(())
    } else {
        Err(Error::invalid("device", "there is one, numbered 0"))
    }
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    prop: *const CuMemAllocationProp,
    _option: c_int,
) -> c_int {
    answer(|gpu| {
        // SAFETY: the caller passes one property, and room for one size.
        unsafe {
            is_ours((*prop).location.id)?;
            bytes.write(gpu.host.info().granule as usize);
        }
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemAddressReserve(
    addr: *mut u64,
    bytes: usize,
    _alignment: usize,
    _wanted: u64,
    _flags: u64,
) -> c_int {
    answer(|gpu| {
        let place = gpu.host.reserve(bytes as u64)?;
        // SAFETY: the caller passes space for one address.
        unsafe { addr.write(place) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemAddressFree(addr: u64, bytes: usize) -> c_int {
    answer(|gpu| gpu.host.unreserve(addr, bytes as u64))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemHostAlloc(
    addr: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> c_int {
    in_context(|gpu| {
        let memory = gpu.host.host_alloc(bytes as u64)?;
        lock(&gpu.pinned).insert(memory, bytes as u64);
        // SAFETY: the caller passes space for one address.
        unsafe { addr.write(memory as *mut c_void) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemFreeHost(addr: *mut c_void) -> c_int {
    in_context(|gpu| {
        let bytes = lock(&gpu.pinned).remove(&(addr as u64));
        let bytes = bytes.ok_or_else(|| Error::invalid("addr", "nothing was allocated there"))?;
        gpu.host.host_free(addr as u64, bytes)
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    prop: *const CuMemAllocationProp,
    _flags: u64,
) -> c_int {
    answer(|gpu| {
        // SAFETY: the caller passes one property.
        is_ours(unsafe { (*prop).location.id })?;
        let phys = gpu.host.create(bytes as u64)?;
        // SAFETY: the caller passes space for one handle.
        unsafe { handle.write(phys.0) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemRelease(handle: u64) -> c_int {
    answer(|gpu| gpu.host.release(Phys(handle)))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemMap(
    addr: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    _flags: u64,
) -> c_int {
    if offset != 0 {
        return INVALID_VALUE;
    }
    answer(|gpu| gpu.host.map(addr, bytes as u64, Phys(handle)))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemSetAccess(
    addr: u64,
    _bytes: usize,
    desc: *const CuMemAccessDesc,
    count: usize,
) -> c_int {
    if count == 0 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes `count` descriptors.
    let descs = unsafe { std::slice::from_raw_parts(desc, count) };
    let all = descs.iter().map(|desc| desc.location.id);
    answer(|gpu| {
        is_ours(descs[0].location.id)?;
        lock(&gpu.access).insert(addr, all.collect());
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemUnmap(addr: u64, bytes: usize) -> c_int {
    answer(|gpu| {
        gpu.host.unmap(addr, bytes as u64)?;
        lock(&gpu.access).remove(&addr);
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut CuMemPool,
    props: *const CuMemPoolProps,
) -> c_int {
    in_context(|gpu| {
        let mut pools = lock(&gpu.pools);
        // SAFETY: the caller passes one structure of properties.
        let limit = match unsafe { (*props).max_bytes } as u64 {
            0 => u64::MAX,
            limit => limit,
        };
        pools.made += 1;
        let made = 0x1000 * pools.made;
        pools.pools.insert(
            made,
            Pool {
                limit,
                used: 0,
                high: 0,
            },
        );
        // SAFETY: the caller passes space for one handle.
        unsafe { pool.write(made as CuMemPool) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemPoolDestroy(pool: CuMemPool) -> c_int {
    answer(|gpu| {
        let mut pools = lock(&gpu.pools);
        pools.live(pool)?;
        pools.pools.remove(&(pool as usize));
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CuMemPool,
    _attribute: c_int,
    _value: *mut c_void,
) -> c_int {
    answer(|gpu| lock(&gpu.pools).live(pool).map(|_| ()))
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CuMemPool,
    _attribute: c_int,
    value: *mut c_void,
) -> c_int {
    answer(|gpu| {
        let high = lock(&gpu.pools).live(pool)?.high;
        // SAFETY: the caller passes space for the attribute, a 64-bit number.
        unsafe { value.cast::<u64>().write(high) };
        Ok(())
    })
}

fn take(gpu: &Gpu, bytes: u64, pool: CuMemPool) -> Result<Addr> {
    let mut pools = lock(&gpu.pools);
    let bytes = bytes.next_multiple_of(gpu.host.info().granule);
    let of = pools.live(pool)?;
    if of.limit - of.used < bytes {
        return Err(Error::Driver {
            call: "cuMemAllocFromPoolAsync",
            code: OUT_OF_MEMORY,
            words: String::new(),
        });
    }
    let phys = gpu.host.create(bytes)?;
    let addr = gpu.host.reserve(bytes)?;
    gpu.host.map(addr, bytes, phys)?;
    of.used += bytes;
    of.high = of.high.max(of.used);
    let pool = pool as usize;
    pools.blocks.insert(addr, Block { bytes, phys, pool });
    Ok(addr)
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    addr: *mut u64,
    bytes: usize,
    pool: CuMemPool,
    stream: CuStream,
) -> c_int {
    answer(|gpu| {
        gpu.uses_stream("cuMemAllocFromPoolAsync", stream);
        gpu.host.stream_id(RawStream(stream as u64))?;
        let taken = take(gpu, bytes as u64, pool)?;
        // SAFETY: the caller passes space for one address.
        unsafe { addr.write(taken) };
        Ok(())
    })
}

/// # Safety
/// The requirements of the driver's call.
pub(super) unsafe extern "C" fn cuMemFreeAsync(addr: u64, stream: CuStream) -> c_int {
    answer(|gpu| {
        gpu.uses_stream("cuMemFreeAsync", stream);
        gpu.host.stream_sync(RawStream(stream as u64))?;
        let mut pools = lock(&gpu.pools);
        let gone = || Error::invalid("addr", "no block begins there");
        let block = pools.blocks.remove(&addr).ok_or_else(gone)?;
        if let Some(pool) = pools.pools.get_mut(&block.pool) {
            pool.used -= block.bytes;
        }
        gpu.host.unmap(addr, block.bytes)?;
        gpu.host.release(block.phys)?;
        gpu.host.unreserve(addr, block.bytes)
    })
}
