//! The driver's own stream-ordered pool (`cudaMallocAsync`), for comparison with this crate's.
//!
//! It is a separate pool with the release threshold at its maximum: it keeps its memory, like a
//! [`Pool`](crate::Pool), and nothing else in the process shares it.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;

use crate::device::{Addr, Device, DeviceKind, Stream, beside};
use crate::driver::Driver;
use crate::driver::calls::{CuContext, CuMemLocation, CuMemPool, CuMemPoolProps, CuStream};
use crate::error::{Error, Result};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH`.
const RESERVED_HIGH: c_int = 6;
/// `CU_MEMPOOL_ATTR_USED_MEM_HIGH`.
const USED_HIGH: c_int = 8;

/// A pool of the CUDA driver.
///
/// Calls go straight to the driver, so that only the driver is measured. They need the device's
/// context current on the calling thread; [`CudaAsync::enter`] makes it current for many calls.
///
/// Safe to use from any thread. Dropping the pool releases its memory once the driver has freed the
/// last block.
pub struct CudaAsync {
    driver: &'static Driver,
    device: Device,
    /// The `CUmemoryPool` and `CUcontext`, as integers so that any thread may hold them.
    pool: usize,
    context: usize,
}

/// A block of a [`CudaAsync`]. Dropping it does not free it: pass it to [`CudaAsync::free`] until that succeeds, or
/// its memory stays allocated until the process ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the driver frees it only when it is given to `CudaAsync::free`"]
pub struct AsyncBlock {
    addr: Addr,
}

impl AsyncBlock {
    /// Address of the first byte.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.addr
    }
}

thread_local! {
    /// The thread's values of [`Entered`], the oldest first: whether each lives, and whether it pushed its context.
    static ENTERED: RefCell<Vec<(bool, bool)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a device's context current on one thread until dropped. The contexts of several are left in the reverse
/// order, each once those entered later are dropped too.
pub struct Entered {
    driver: &'static Driver,
    /// Its place in `ENTERED`.
    at: usize,
    /// The context is current on this thread only.
    here: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = ENTERED.try_with(|all| {
            let mut all = all.borrow_mut();
            if let Some(own) = all.get_mut(self.at) {
                own.0 = false;
            }
            let live = all.iter().rposition(|(lives, _)| *lives);
            all.split_off(live.map_or(0, |last| last + 1))
        });
        let pushed = left.iter().flatten().filter(|(_, pushed)| *pushed);
        for _ in pushed {
            let mut gone = std::ptr::null_mut();
            // SAFETY: pops a context that `enter` pushed; after a failure a live context stays
            // current.
            let _ = unsafe { self.driver.cuCtxPopCurrent(&raw mut gone) };
        }
    }
}

impl CudaAsync {
    /// Makes a driver pool on `device` that holds at most `limit` physical bytes; `None` for no
    /// limit.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the device is not a GPU; any error of the driver.
    pub fn new(device: &Device, limit: Option<u64>) -> Result<Self> {
        if device.info().kind != DeviceKind::Cuda {
            return Err(Error::Unavailable {
                missing: String::from(
                    "cudaMallocAsync needs the CUDA driver, and this device is not a GPU",
                ),
                hint: String::from("use a GPU (Device::cuda)"),
            });
        }
        Self::on(Driver::get()?, device, limit)
    }

    /// The same as [`CudaAsync::new`], for a device of `driver`.
    pub(crate) fn on(driver: &'static Driver, device: &Device, limit: Option<u64>) -> Result<Self> {
        let mut made = Self {
            driver,
            device: device.clone(),
            pool: 0,
            context: context_of(driver, device)?,
        };
        let _entered = made.enter()?;
        made.pool = create(driver, limit)?;
        made.set(RELEASE_THRESHOLD, u64::MAX)?;
        Ok(made)
    }

    /// Makes the device's context current on this thread until the returned value is dropped.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn enter(&self) -> Result<Entered> {
        let mut current: CuContext = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        unsafe { self.driver.cuCtxGetCurrent(&raw mut current) }.ok(self.driver)?;
        let pushed = current as usize != self.context;
        if pushed {
            // SAFETY: `self` holds the device, which keeps its context.
            unsafe { self.driver.cuCtxPushCurrent(self.context as CuContext) }.ok(self.driver)?;
        }
        let at = ENTERED.try_with(|all| {
            let mut all = all.borrow_mut();
            all.push((true, pushed));
            all.len() - 1
        });
        Ok(Entered {
            driver: self.driver,
            // A thread that is ending leaves nothing any more.
            at: at.unwrap_or_default(),
            here: PhantomData,
        })
    }

    /// Allocates `bytes` on `stream` (`cuMemAllocFromPoolAsync`).
    ///
    /// The memory may be used by work queued on `stream` from now on, or ordered after this point.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device; any error of the driver;
    /// [`Error::is_device_exhausted`] identifies a request that does not fit.
    #[inline]
    pub fn alloc(&self, stream: &Stream, bytes: u64) -> Result<AsyncBlock> {
        self.check(stream)?;
        let mut addr = 0;
        // SAFETY: the call writes one address; pool and stream are live.
        let queued = stream.core().timeline.queue(|| unsafe {
            self.driver.cuMemAllocFromPoolAsync(
                &raw mut addr,
                bytes as usize,
                self.pool as CuMemPool,
                stream.raw().0 as CuStream,
            )
        });
        queued.ok(self.driver)?;
        Ok(AsyncBlock { addr })
    }

    /// Frees a block in the order of `stream` (`cuMemFreeAsync`). Its allocation and all work that
    /// uses it must be ordered before this point of `stream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a stream of another device; any error of the driver. The block comes back with it.
    #[inline]
    pub fn free(
        &self,
        block: AsyncBlock,
        stream: &Stream,
    ) -> std::result::Result<(), (AsyncBlock, Error)> {
        // SAFETY: the address came from `alloc`, and the block is gone unless the driver refuses.
        let free =
            || unsafe { (self.driver).cuMemFreeAsync(block.addr, stream.raw().0 as CuStream) };
        let checked = self.check(stream);
        let freed = checked.and_then(|()| stream.core().timeline.queue(free).ok(self.driver));
        freed.map_err(|error| (block, error))
    }

    /// The driver would follow whatever another device calls a stream.
    fn check(&self, stream: &Stream) -> Result<()> {
        match self.device.same(stream.device()) {
            true => Ok(()),
            false => Err(Error::invalid(
                "stream",
                "it is of another device than the pool",
            )),
        }
    }

    /// Most physical bytes that the pool has held.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn reserved_high(&self) -> Result<u64> {
        self.get(RESERVED_HIGH)
    }

    /// Most bytes in blocks at once, as the driver rounds them.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn used_high(&self) -> Result<u64> {
        self.get(USED_HIGH)
    }

    fn get(&self, attribute: c_int) -> Result<u64> {
        let mut value = 0u64;
        // SAFETY: these attributes are 64-bit numbers, and the pool is live.
        unsafe {
            self.driver.cuMemPoolGetAttribute(
                self.pool as CuMemPool,
                attribute,
                (&raw mut value).cast::<c_void>(),
            )
        }
        .ok(self.driver)?;
        Ok(value)
    }

    fn set(&self, attribute: c_int, mut value: u64) -> Result<()> {
        // SAFETY: these attributes are 64-bit numbers, and the pool is live.
        unsafe {
            self.driver.cuMemPoolSetAttribute(
                self.pool as CuMemPool,
                attribute,
                (&raw mut value).cast::<c_void>(),
            )
        }
        .ok(self.driver)
    }
}

/// The context of the device's streams.
pub(super) fn context_of(driver: &'static Driver, device: &Device) -> Result<usize> {
    let stream = device.stream()?;
    let mut context: CuContext = std::ptr::null_mut();
    // SAFETY: the call writes one handle; the stream is live.
    unsafe { driver.cuStreamGetCtx(stream.raw().0 as CuStream, &raw mut context) }.ok(driver)?;
    Ok(context as usize)
}

/// A pool on the device of the current context.
fn create(driver: &'static Driver, limit: Option<u64>) -> Result<usize> {
    let mut device = 0;
    // SAFETY: the call writes one integer; a context is current.
    unsafe { driver.cuCtxGetDevice(&raw mut device) }.ok(driver)?;
    let props = CuMemPoolProps {
        kind: PINNED,
        handle_types: 0,
        location: CuMemLocation {
            kind: ON_DEVICE,
            id: device,
        },
        win32_security_attributes: std::ptr::null_mut(),
        // 0 means no limit, and is less than any block as 1 is.
        max_bytes: limit.map_or(0, |bytes| {
            usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)
        }),
        usage: 0,
        reserved: [0; 54],
    };
    let mut pool: CuMemPool = std::ptr::null_mut();
    // SAFETY: the call reads the properties and writes one handle.
    unsafe { driver.cuMemPoolCreate(&raw mut pool, &raw const props) }.ok(driver)?;
    Ok(pool as usize)
}

impl Drop for CudaAsync {
    fn drop(&mut self) {
        if self.pool == 0 {
            return;
        }
        let (pool, device) = (std::mem::take(&mut self.pool), self.device.clone());
        let own = Self {
            device,
            pool: 0,
            ..*self
        };
        beside(move || {
            let Ok(_entered) = own.enter() else { return };
            // SAFETY: made by `new` and destroyed once; the driver keeps the memory that blocks still
            // use.
            let _ = unsafe { own.driver.cuMemPoolDestroy(pool as CuMemPool) };
        });
    }
}

impl fmt::Debug for CudaAsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaAsync(on {:?})", self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_device_has_no_driver_pool_and_the_error_says_so() {
        let device = Device::host().expect("the host device");
        let error = CudaAsync::new(&device, None).expect_err("refused");
        assert!(matches!(error, Error::Unavailable { .. }));
        assert!(error.to_string().contains("cudaMallocAsync"), "{error}");
    }
}
