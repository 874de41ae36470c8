//! rustacuda's contexts and streams.
//!
//! The application makes its context and stream through rustacuda, opens the device in that
//! context and adopts the stream:
//!
//! ```no_run
//! use rustacuda::context::{Context, ContextFlags};
//! use rustacuda::memory::CopyDestination;
//! use rustacuda::stream::{Stream, StreamFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! rustacuda::init(rustacuda::CudaFlags::empty())?;
//! let gpu = rustacuda::device::Device::get_device(0)?;
//! let _context = Context::create_and_push(ContextFlags::SCHED_AUTO, gpu)?;
//! let theirs = Stream::new(StreamFlags::NON_BLOCKING, None)?;
//!
//! let device = warpool::Device::cuda_current()?;
//! // SAFETY: the stream is of the current context and is dropped after everything made from it.
//! let stream = unsafe { warpool::interop::rustacuda::adopt(&device, &theirs)? };
//! let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
//! let block = pool.alloc(&stream, 1 << 20)?;
//! // block.addr() is a device address: pass it to kernels launched on `theirs`.
//!
//! use warpool::interop::rustacuda::{lend, lend_mut, pointer};
//! let mut sums = pool.alloc_zeroed::<f32>(&stream, 4)?;
//! let _argument = pointer(&sums.view()); // a DevicePointer<f32>
//! lend_mut(&stream, sums.view_mut(), |slice| slice.copy_from(&[1.0_f32; 4]))??;
//! let mut back = [0.0_f32; 4];
//! lend(&stream, sums.view(), |slice| slice.copy_to(&mut back))??; // CopyDestination of rustacuda
//! # drop(block);
//! # Ok(())
//! # }
//! ```
//!
//! rustacuda links against the driver. This crate's build provides a small archive for that, which opens the
//! driver on the first call. So a program with both crates starts on a machine without a driver, and
//! `rustacuda::init` then returns an error.

use std::ffi::c_void;

use bytemuck::Pod;
use rustacuda::memory::{DevicePointer, DeviceSlice};

use crate::device::{Device, DeviceKind, RawStream, Stream, Use, ordered_to_its_end};
use crate::error::{Error, Result};
use crate::pool::{View, ViewMut};

// The handle is rustacuda's only field; if a version adds another one, this does not compile.
const _: () = {
    assert!(size_of::<rustacuda::stream::Stream>() == size_of::<*mut c_void>());
    assert!(align_of::<rustacuda::stream::Stream>() == align_of::<*mut c_void>());
};

/// The `CUstream` inside rustacuda's stream, which has no public accessor.
///
/// # Safety
/// `rustacuda::stream::Stream` has one field, a `CUstream`. This is true of version 0.1.3, and a type with a
/// pointer's size and alignment (asserted above) has no space for another field.
unsafe fn handle_of(stream: &rustacuda::stream::Stream) -> *mut c_void {
    // SAFETY: size and alignment are a pointer's, and the caller guarantees that it is one.
    unsafe { std::ptr::from_ref(stream).cast::<*mut c_void>().read() }
}

/// Adopts rustacuda's stream for use with this crate: blocks can be allocated on it and the crate's kernels
/// queued on it, in order with the work that the application queues through rustacuda.
///
/// Adopting the same stream twice returns the same stream. rustacuda still owns the stream and drops it.
///
/// # Errors
/// [`Error::Invalid`] if `device` is not a CUDA device, or any error of the driver about the stream.
///
/// # Safety
/// - The stream is of the context that `device` was opened in.
/// - It and the context stay alive until every clone of the returned [`Stream`], every block
///   allocated on it and every pool of `device` is dropped.
pub unsafe fn adopt(device: &Device, stream: &rustacuda::stream::Stream) -> Result<Stream> {
    if device.info().kind != DeviceKind::Cuda {
        return Err(Error::invalid(
            "device",
            "rustacuda's streams need a GPU: open the device with Device::cuda_current",
        ));
    }
    // SAFETY: the layout is the one that `handle_of` requires; the tests below check it.
    let raw = RawStream(unsafe { handle_of(stream) } as u64);
    // SAFETY: the caller guarantees the stream's device, context and lifetime.
    unsafe { device.adopt_stream(raw) }
}

/// The address of a view's elements as rustacuda's pointer, for kernel arguments. Launch such kernels through
/// [`Stream::kernel`], which orders them.
#[must_use]
pub fn pointer<T: Pod>(view: &View<'_, T>) -> DevicePointer<T> {
    // SAFETY: it wraps a device address; code that dereferences it guarantees that access.
    unsafe { DevicePointer::wrap(view.addr() as *mut T) }
}

/// Passes the elements to `work` as a rustacuda slice, in the device's context. Its copies run on the driver's
/// default stream. So the host waits before `work` for everything that writes the elements, and after it for
/// rustacuda's work.
///
/// # Errors
/// [`Error::Invalid`] if the stream's device is not a GPU or the stream is under capture, and for the
/// reasons of any operation on typed memory; any error of the driver from a wait. `work` has then not been
/// called, unless the last wait failed.
pub fn lend<T: Pod, R>(
    stream: &Stream,
    view: View<'_, T>,
    work: impl FnOnce(&DeviceSlice<T>) -> R,
) -> Result<R> {
    let (used, len) = ([view.used()], view.len());
    waited(stream, &used, || {
        // SAFETY: the elements exist as long as the view, and nothing writes them meanwhile.
        work(unsafe { DeviceSlice::from_raw_parts(pointer(&view), len) })
    })
}

/// The same as [`lend`], for writing: the host waits for everything that uses the elements.
///
/// # Errors
/// See [`lend`].
pub fn lend_mut<T: Pod, R>(
    stream: &Stream,
    view: ViewMut<'_, T>,
    work: impl FnOnce(&mut DeviceSlice<T>) -> R,
) -> Result<R> {
    let (used, len) = ([view.used()], view.len());
    waited(stream, &used, || {
        // SAFETY: the same as in `lend`, and nothing else uses the elements.
        work(unsafe { DeviceSlice::from_raw_parts_mut(pointer(&view.as_view()), len) })
    })
}

/// Calls `work` between two waits on the host: for everything that its uses conflict with, and for the work
/// that it queued on the driver's default stream.
fn waited<R>(stream: &Stream, uses: &[Option<Use<'_>>], work: impl FnOnce() -> R) -> Result<R> {
    if stream.device().info().kind != DeviceKind::Cuda {
        let why = "rustacuda's slices need a GPU: open the device with Device::cuda_current";
        return Err(Error::invalid("stream", why));
    }
    ordered_to_its_end(stream.core(), uses, || {
        stream.synchronize()?;
        let end = DefaultStream(stream);
        // Of another context, it would be another default stream than the one that is waited for.
        let outcome = stream.device().in_context(work);
        let waited = end.wait();
        // After an error its drop waits again.
        if waited.is_ok() {
            std::mem::forget(end);
        }
        outcome.and_then(|done| waited.map(|()| done))
    })
}

/// The driver's default stream; waited for also if `work` panics.
struct DefaultStream<'a>(&'a Stream);

impl DefaultStream<'_> {
    fn wait(&self) -> Result<()> {
        let backend = self.0.device().backend();
        backend.stream_sync(RawStream(0))
    }
}

impl Drop for DefaultStream<'_> {
    fn drop(&mut self) {
        // The panic continues, and is the more important error.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    /// A rustacuda stream that holds `handle` and is never dropped, so that it is not passed to a
    /// driver.
    fn stream_holding(handle: usize) -> ManuallyDrop<rustacuda::stream::Stream> {
        // SAFETY: the type is one pointer wide and every pointer is a value of it; it is neither
        // used nor dropped as a stream.
        unsafe { std::mem::transmute::<usize, ManuallyDrop<rustacuda::stream::Stream>>(handle) }
    }

    #[test]
    fn the_hidden_handle_is_the_one_rustacuda_prints() {
        for handle in [0x1usize, 0xDEAD_BEEF, 0x7F12_3456_7890] {
            let stream = stream_holding(handle);
            // SAFETY: this is what the test checks.
            let read = unsafe { handle_of(&stream) };
            assert_eq!(
                format!("{:?}", *stream),
                format!("Stream {{ inner: {read:?} }}")
            );
            assert_eq!(read as usize, handle);
        }
    }

    #[test]
    fn a_pointer_has_the_address_of_its_view() {
        let device = Device::host().unwrap();
        let pool = crate::Pool::new(&device, crate::PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let numbers = pool.alloc_from(&stream, &[1u32, 2, 3]).unwrap();
        let second = numbers.slice(1..).unwrap();
        assert_eq!(pointer(&second).as_raw() as u64, numbers.addr() + 4);
    }

    #[test]
    fn the_host_device_lends_rustacuda_nothing() {
        let device = Device::host().unwrap();
        let pool = crate::Pool::new(&device, crate::PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let mut numbers = pool.alloc_from(&stream, &[1u32, 2, 3]).unwrap();
        let refused = lend(&stream, numbers.view(), |_| panic!("called"));
        assert!(matches!(refused, Err(Error::Invalid { .. })));
        let refused = lend_mut(&stream, numbers.view_mut(), |_| panic!("called"));
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_rustacuda_stream_cannot_be_adopted_by_the_host_device() {
        let device = Device::host().unwrap();
        let stream = stream_holding(0x10);
        // SAFETY: refused before the stream is used.
        let refused = unsafe { adopt(&device, &stream) };
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }
}
