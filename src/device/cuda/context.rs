//! The context that the device's calls are made in, and making it current for them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Mutex;

use crate::device::capture::others_capture;
use crate::driver::Driver;
use crate::driver::calls::{CAPTURE_RELAXED, CuContext, CuDevice};
use crate::error::Result;
use crate::sync::plain::lock;

/// A context of one GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context {
    /// The `CUcontext`, as an integer so that any thread may hold it.
    raw: usize,
}

/// Keeps a context current until dropped, if another one was current before.
pub(super) struct Entered {
    driver: &'static Driver,
    pushed: bool,
    /// The thread's capture mode before, if it was changed.
    mode: Option<c_int>,
}

/// The context current on the calling thread; null if there is none.
fn current(driver: &'static Driver) -> Result<CuContext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the call writes one handle.
    unsafe { driver.cuCtxGetCurrent(&raw mut context) }.ok(driver)?;
    Ok(context)
}

impl Context {
    /// The device of the context current on the calling thread, if there is one.
    pub(super) fn current_device(driver: &'static Driver) -> Result<Option<CuDevice>> {
        if current(driver)?.is_null() {
            return Ok(None);
        }
        let mut device: CuDevice = -1;
        // SAFETY: the call writes one integer; a context is current.
        unsafe { driver.cuCtxGetDevice(&raw mut device) }.ok(driver)?;
        Ok(Some(device))
    }

    /// The context current on the calling thread if it belongs to `device`, otherwise the primary
    /// one.
    pub(super) fn of(driver: &'static Driver, device: CuDevice) -> Result<Self> {
        if Self::current_device(driver)? == Some(device) {
            return Ok(Self {
                raw: current(driver)? as usize,
            });
        }
        Self::primary(driver, device)
    }

    /// The primary context. Retained once per process and never released, as the CUDA runtime does:
    /// other code of the process may be using it, and creating it again takes 0.2 s.
    fn primary(driver: &'static Driver, device: CuDevice) -> Result<Self> {
        type ByDriverAndDevice = HashMap<(usize, CuDevice), usize>;
        static RETAINED: Mutex<Option<ByDriverAndDevice>> = Mutex::new(None);
        let key = (std::ptr::from_ref(driver) as usize, device);
        let mut retained = lock(&RETAINED);
        let retained = retained.get_or_insert_with(HashMap::new);
        if let Some(&raw) = retained.get(&key) {
            return Ok(Self { raw });
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the call writes one handle; the device came from the driver.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, device) }.ok(driver)?;
        retained.insert(key, context as usize);
        Ok(Self {
            raw: context as usize,
        })
    }

    /// Makes this the calling thread's context for as long as the returned value lives.
    pub(super) fn enter(&self, driver: &'static Driver) -> Result<Entered> {
        let pushed = current(driver)? as usize != self.raw;
        if pushed {
            // SAFETY: the context is retained, or the application keeps it while it uses the
            // device.
            unsafe { driver.cuCtxPushCurrent(self.raw as CuContext) }.ok(driver)?;
        }
        let mut entered = Entered {
            driver,
            pushed,
            mode: None,
        };
        if others_capture() {
            let mut mode = CAPTURE_RELAXED;
            // SAFETY: the call swaps one integer.
            unsafe { driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) }.ok(driver)?;
            entered.mode = Some(mode);
        }
        Ok(entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(mut mode) = self.mode {
            // SAFETY: restores the mode from before `enter`; after a failure the less restrictive
            // mode stays.
            let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
        if self.pushed {
            let mut gone = std::ptr::null_mut();
            // SAFETY: pops the context that `enter` pushed; after a failure ours stays current, and
            // the next call finds and uses it.
            let _ = unsafe { self.driver.cuCtxPopCurrent(&raw mut gone) };
        }
    }
}
