//! cudarc's contexts, streams and memory.
//!
//! Everything here is safe: values made from cudarc's objects keep these alive.
//!
//! - [`open`] and [`adopt`] take a context and a stream of cudarc.
//! - [`CudaBuf`] is a buffer of the pool that can be passed to cudarc's launches, copies and cuBLAS: it
//!   implements `DevicePtr` and `DevicePtrMut`, and so do its parts.
//! - [`lend`] and [`lend_mut`] pass cudarc's slices to this crate's operations, as views.
//!
//! Stream order is kept on both sides. A use of a [`CudaBuf`] makes its stream wait for the work of other
//! streams on the same bytes, and later work waits for it, whichever library queues it. A stream that was not
//! adopted is waited for on the host, before and after the use; it gets no memory that conflicts with a graph's, whose
//! launches would not wait for it.
//!
//! # Kernel arguments
//!
//! cudarc does not pass a launch's stream to the code that adds arguments. So the argument names it:
//! `launch.arg(&arg(&stream, &buffer)?)`, or [`arg_mut`]; this works for parts of a buffer too. Keep the
//! returned value in a variable until the launch is made.
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
//! use warpool::interop::cudarc::{Arg, CudaBuf, Part, PartMut, adopt, arg, arg_mut, lend, lend_mut, open};
//! use warpool::{Pool, PoolConfig};
//!
//! # fn saxpy(function: &CudaFunction) -> Result<(), Box<dyn std::error::Error>> {
//! let context = CudaContext::new(0)?;
//! let theirs = context.new_stream()?;
//! let device = open(&context)?;
//! let stream = adopt(&device, &theirs)?;
//! let pool = Pool::new(&device, PoolConfig::default())?;
//!
//! let x = CudaBuf::new(pool.alloc_filled(&stream, 1000, 1.0f32)?, &theirs)?;
//! let mut y = CudaBuf::new(pool.alloc_zeroed::<f32>(&stream, 1000)?, &theirs)?;
//! theirs.memcpy_dtod(&x, &mut y)?; // like any slice of cudarc
//! let (from, to) = (arg(&stream, &x)?, arg_mut(&stream, &mut y)?);
//! let mut launch = theirs.launch_builder(function);
//! // SAFETY: the kernel takes two arrays and their length.
//! unsafe { launch.arg(&from).arg(&to).arg(&1000).launch(LaunchConfig::for_num_elems(1000))? };
//! # drop((from, to));
//!
//! let half: Part<f32> = x.slice(..500)?; // parts can be used like the whole
//! let (mut low, _high): (PartMut<f32>, _) = y.slice_mut(..)?.split_at(500)?;
//! theirs.memcpy_dtod(&half, &mut low)?;
//! let of_part: Arg = arg(&stream, half)?;
//!
//! let mut slice = theirs.alloc_zeros::<f32>(500)?; // and cudarc's slices can be used as views
//! lend_mut(&stream, &mut slice, |view| view.fill(&stream, 1.0))?;
//! lend(&stream, &slice, |view| Ok(println!("{} elements", view.len())))?;
//! # Ok(())
//! # }
//! ```
//!
//! None of this may be used on a stream under capture. Calls that can return an error do so; cudarc's own
//! calls get a null pointer, and the error is recorded in their context.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, LaunchArgs,
    PushKernelArg, SyncOnDrop,
};

use super::cuda_async::context_of;
use super::pending::{Pending, Span};
use crate::device::{AccessLog, Addr, Device, DeviceKind, Place, RawStream, Stream, StreamCore};
use crate::device::{may_wait, note_behind, wait_before};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::pool::{PoolBuf, View, ViewMut};

fn refused(call: &'static str, error: DriverError) -> Error {
    Error::Driver {
        call,
        code: error.0 as i32,
        words: error.to_string(),
    }
}

/// The device of cudarc's context, in that context. The device and everything made from it keep the context
/// alive.
///
/// # Errors
/// See [`Device::cuda_current`]; any error of the driver when the context is made current.
pub fn open(context: &Arc<CudaContext>) -> Result<Device> {
    let bound = context.bind_to_thread();
    bound.map_err(|error| refused("cuCtxSetCurrent", error))?;
    Device::cuda_current_of(Arc::clone(context) as _)
}

/// Adopts cudarc's stream for use with this crate. The returned stream, its clones and every block allocated
/// on them keep it alive. Adopting the same stream twice returns the same stream.
///
/// # Errors
/// [`Error::Invalid`] if the stream is of another context than `device`, or the per-thread default stream; any
/// error of the driver.
pub fn adopt(device: &Device, stream: &Arc<CudaStream>) -> Result<Stream> {
    if device.info().kind != DeviceKind::Cuda {
        let why = "cudarc's streams need a GPU: open the device with interop::cudarc::open";
        return Err(Error::invalid("device", why));
    }
    let ours = context_of(Driver::get()?, device)?;
    if ours != stream.context().cu_ctx() as usize {
        let why = "it is of another context than the device: open that with interop::cudarc::open";
        return Err(Error::invalid("stream", why));
    }
    let bound = stream.context().bind_to_thread();
    bound.map_err(|error| refused("cuCtxSetCurrent", error))?;
    let owner: Arc<dyn Any + Send + Sync> = Arc::clone(stream) as _;
    // SAFETY: the stream is of the device's context, which is current, and its owner is kept.
    unsafe { device.adopt_owned(one_stream(RawStream(stream.cu_stream() as u64))?, owner) }
}

/// A handle of the same stream on every thread: `CU_STREAM_PER_THREAD`, 2, is of another on each.
fn one_stream(raw: RawStream) -> Result<RawStream> {
    if raw.0 != 2 {
        return Ok(raw);
    }
    let why =
        "each thread has another by this handle: take CudaContext::new_stream or default_stream";
    Err(Error::invalid("stream", why))
}

/// The core that [`adopt`] made for cudarc's stream. The default stream's handle is the same in
/// every context, so the context is compared too.
fn adopted(device: &Device, stream: &CudaStream) -> Option<Arc<StreamCore>> {
    let known = device.owned_stream(RawStream(stream.cu_stream() as u64))?;
    let same = theirs(&known).is_ok_and(|it| it.context() == stream.context());
    same.then_some(known)
}

/// cudarc's stream behind an adopted one.
fn theirs(stream: &StreamCore) -> Result<&CudaStream> {
    let owner = stream.owner.get().and_then(|owner| owner.downcast_ref());
    let why = "it is not one that interop::cudarc::adopt took";
    owner.ok_or_else(|| Error::invalid("stream", why))
}

/// A buffer of the pool that cudarc can use as a slice. This crate's operations read and write its elements
/// through [`CudaBuf::view`] and [`CudaBuf::view_mut`].
///
/// Dropping it frees the memory like a [`PoolBuf`], also after all work that cudarc queued on it.
pub struct CudaBuf<T: Pod> {
    buffer: PoolBuf<T>,
    pending: Pending,
    stream: Arc<CudaStream>,
}

impl<T: Pod> CudaBuf<T> {
    /// Makes the buffer usable through cudarc. `stream` is the slice's own stream for cudarc.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the stream was adopted by the buffer's device.
    pub fn new(buffer: PoolBuf<T>, stream: &Arc<CudaStream>) -> Result<Self> {
        if adopted(&buffer.home().device, stream).is_none() {
            let why = "it was not adopted by the buffer's device: interop::cudarc::adopt does that";
            return Err(Error::invalid("stream", why));
        }
        Ok(Self {
            buffer,
            pending: Pending::default(),
            stream: Arc::clone(stream),
        })
    }

    fn span(&self, writes: bool) -> Span {
        let to = (self.buffer.len() * size_of::<T>()) as u64;
        Span {
            from: 0,
            to,
            writes,
        }
    }

    fn settle(&self, writes: bool) {
        self.pending.settle(self.buffer.place(), self.span(writes));
    }

    /// The elements, for this crate's operations to read.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        self.settle(false);
        self.buffer.view()
    }

    /// The elements, for this crate's operations to write.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.settle(true);
        self.buffer.view_mut()
    }

    /// The elements of `range`, for cudarc to read.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Part<'_, T>> {
        Range::of(self).slice(range).map(Part)
    }

    /// The elements of `range`, for cudarc to write.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not within the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PartMut<'_, T>> {
        Range::of(self).slice(range).map(PartMut)
    }

    /// Returns the buffer, with all its uses recorded.
    #[must_use]
    pub fn into_inner(self) -> PoolBuf<T> {
        self.settle(true);
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: each field is read once, and `this` is not dropped.
        unsafe {
            drop(std::ptr::read(&raw const this.pending));
            drop(std::ptr::read(&raw const this.stream));
            std::ptr::read(&raw const this.buffer)
        }
    }
}

impl<T: Pod> Drop for CudaBuf<T> {
    fn drop(&mut self) {
        self.settle(true);
    }
}

impl<T: Pod> fmt::Debug for CudaBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBuf({:?})", self.buffer)
    }
}

/// A range of a buffer's elements.
struct Range<'a, T: Pod> {
    of: &'a CudaBuf<T>,
    from: usize,
    len: usize,
}

impl<T: Pod> Clone for Range<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for Range<'_, T> {}

impl<'a, T: Pod> Range<'a, T> {
    fn of(buffer: &'a CudaBuf<T>) -> Self {
        Self {
            of: buffer,
            from: 0,
            len: buffer.buffer.len(),
        }
    }

    fn addr(self) -> Addr {
        self.of.buffer.addr() + (self.from * size_of::<T>()) as u64
    }

    fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (from, to) = crate::pool::bounds(&range, self.len)?;
        Ok(Self {
            from: self.from + from,
            len: to - from,
            ..self
        })
    }

    fn span(self, writes: bool) -> Span {
        let size = size_of::<T>();
        Span {
            from: (self.from * size) as u64,
            to: ((self.from + self.len) * size) as u64,
            writes,
        }
    }

    fn begin(self, stream: &Arc<StreamCore>, writes: bool) -> Result<()> {
        let place = self.of.buffer.place();
        self.of.pending.begin(place, stream, self.span(writes))
    }

    fn arg(self, stream: &Stream, writes: bool) -> Result<Arg<'a>> {
        self.begin(stream.core(), writes)?;
        Ok(Arg {
            addr: self.addr(),
            borrow: PhantomData,
        })
    }

    /// The address, for work that cudarc is about to queue.
    fn lend<'s>(self, stream: &'s CudaStream, writes: bool) -> (CUdeviceptr, SyncOnDrop<'s>) {
        let lent = match adopted(&self.of.buffer.home().device, stream) {
            Some(known) => self
                .begin(&known, writes)
                .map(|()| SyncOnDrop::Record(None)),
            None => {
                let of = self.of.buffer.place();
                let waited = self.of.pending.wait(of, self.span(writes));
                waited.map(|()| SyncOnDrop::sync_stream(stream))
            }
        };
        match lent {
            Ok(guard) => (self.addr(), guard),
            Err(_) => {
                // A null pointer faults; a valid one could cause a silent race.
                let error = DriverError(CUresult::CUDA_ERROR_UNKNOWN);
                stream.context().record_err::<()>(Err(error));
                (0, SyncOnDrop::Record(None))
            }
        }
    }
}

/// Elements of a [`CudaBuf`], for cudarc to read.
#[derive(Clone, Copy)]
pub struct Part<'a, T: Pod>(Range<'a, T>);

/// Elements of a [`CudaBuf`], for cudarc to write.
pub struct PartMut<'a, T: Pod>(Range<'a, T>);

impl<'a, T: Pod> PartMut<'a, T> {
    /// The first `at` elements, and the rest, for streams that do not wait for each other.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are fewer than `at` elements.
    pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
        Ok((Self(self.0.slice(..at)?), Self(self.0.slice(at..)?)))
    }
}

impl<'a, T: Pod> From<&'a CudaBuf<T>> for Part<'a, T> {
    fn from(buffer: &'a CudaBuf<T>) -> Self {
        Self(Range::of(buffer))
    }
}

impl<'a, T: Pod> From<&'a mut CudaBuf<T>> for PartMut<'a, T> {
    fn from(buffer: &'a mut CudaBuf<T>) -> Self {
        Self(Range::of(buffer))
    }
}

/// A buffer, or a part of one, as an argument of a kernel that reads it and is launched on `stream`. The
/// stream waits on the device for all conflicting work.
///
/// # Errors
/// [`Error::Invalid`] if the stream is of another device or under capture; any error of the driver from a
/// wait.
pub fn arg<'a, T: Pod>(stream: &Stream, of: impl Into<Part<'a, T>>) -> Result<Arg<'a>> {
    of.into().0.arg(stream, false)
}

/// The same as [`arg`], for a kernel that writes.
///
/// # Errors
/// See [`arg`].
pub fn arg_mut<'a, T: Pod>(stream: &Stream, of: impl Into<PartMut<'a, T>>) -> Result<Arg<'a>> {
    of.into().0.arg(stream, true)
}

macro_rules! slices {
    ($($name:ty;)*) => {$(
        impl<T: Pod> DeviceSlice<T> for $name {
            fn len(&self) -> usize {
                self.0.len
            }

            fn stream(&self) -> &Arc<CudaStream> {
                &self.0.of.stream
            }
        }

        impl<T: Pod> DevicePtr<T> for $name {
            fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
                self.0.lend(stream, false)
            }
        }

        impl<T: Pod> fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Range { of, from, len } = self.0;
                write!(f, "{from}..{} of {of:?}", from + len)
            }
        }
    )*};
}

slices! {
    Part<'_, T>;
    PartMut<'_, T>;
}

impl<T: Pod> DevicePtrMut<T> for PartMut<'_, T> {
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        self.0.lend(stream, true)
    }
}

impl<T: Pod> DeviceSlice<T> for CudaBuf<T> {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T: Pod> DevicePtr<T> for CudaBuf<T> {
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        Range::of(self).lend(stream, false)
    }
}

impl<T: Pod> DevicePtrMut<T> for CudaBuf<T> {
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        Range::of(self).lend(stream, true)
    }
}

/// The address of elements as a kernel argument, see [`arg`] and [`arg_mut`].
#[derive(Debug)]
#[must_use = "it is an argument of a launch"]
pub struct Arg<'a> {
    addr: CUdeviceptr,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: the argument is an address, as a kernel expects it, and is borrowed until the launch.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b Arg<'_>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b Arg<'_>) -> &mut Self {
        self.arg(&arg.addr)
    }
}

/// Memory of cudarc while it is lent. Dropping it makes the stream it was lent on wait for all uses.
struct Lent {
    log: AccessLog,
    stream: Arc<StreamCore>,
    bytes: u64,
}

impl Lent {
    /// Lends `bytes` at `addr` that `stream` may use now.
    fn new(stream: &Stream, addr: Addr, bytes: u64) -> Result<Self> {
        // In a host call, the drop could make nothing wait.
        may_wait()?;
        let stream = Arc::clone(stream.core());
        if addr == 0 && bytes > 0 {
            let why = "cudarc gave a null pointer: its context has recorded why";
            return Err(Error::invalid("slice", why));
        }
        let lent = Self {
            log: AccessLog::lent(&stream.timeline, bytes),
            stream,
            bytes,
        };
        // The work that the stream had waited for is covered only by a record that a wait for this
        // entry makes.
        let (used, captures) = (
            lent.place().used(bytes, true),
            lent.stream.timeline.captures(),
        );
        note_behind(&lent.stream, used, false, captures);
        Ok(lent)
    }

    fn place(&self) -> Place<'_> {
        Place {
            log: &self.log,
            home: &self.stream,
            from: 0,
            awake: None,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let all = self.place().used(self.bytes, true);
        if wait_before(&self.stream, all).is_err() {
            // The device cannot be made to wait, so the host waits for each use.
            for (theirs, tick) in self.log.uses() {
                let _ = theirs.sync_to(tick);
            }
        }
    }
}

/// cudarc's stream of an adopted one, if `slice` belongs to the same context.
fn same_context<'s, T>(
    stream: &'s StreamCore,
    slice: &impl DeviceSlice<T>,
) -> Result<&'s CudaStream> {
    let stream = theirs(stream)?;
    if stream.context() == slice.stream().context() {
        return Ok(stream);
    }
    let why = "it is of another context than the stream";
    Err(Error::invalid("slice", why))
}

/// Lends cudarc's memory to `work`, for operations that read it on any stream of the device. cudarc's later
/// work on the memory waits for them.
///
/// `stream` must come from [`adopt`]; for cudarc it represents these operations.
///
/// # Errors
/// [`Error::Invalid`] if the stream was not adopted, is of another context than the slice or is under
/// capture, if cudarc returns no address, and in a host call; any error of `work`.
pub fn lend<T: Pod, R>(
    stream: &Stream,
    slice: &impl DevicePtr<T>,
    work: impl FnOnce(View<'_, T>) -> Result<R>,
) -> Result<R> {
    let core = stream.core();
    core.refuse_under_capture()?;
    let (addr, _recorded_last) = slice.device_ptr(same_context(core, slice)?);
    let lent = Lent::new(stream, addr, slice.num_bytes() as u64)?;
    work(View::new(addr, slice.len(), lent.place()))
}

/// The same as [`lend`], for operations that write.
///
/// # Errors
/// See [`lend`].
pub fn lend_mut<T: Pod, R>(
    stream: &Stream,
    slice: &mut impl DevicePtrMut<T>,
    work: impl FnOnce(ViewMut<'_, T>) -> Result<R>,
) -> Result<R> {
    let core = stream.core();
    core.refuse_under_capture()?;
    let (len, bytes) = (slice.len(), slice.num_bytes() as u64);
    let (addr, _recorded_last) = slice.device_ptr_mut(same_context(core, slice)?);
    let lent = Lent::new(stream, addr, bytes)?;
    work(ViewMut::new(addr, len, lent.place()))
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::device::ordered;
    use crate::pool::{Pool, PoolConfig};

    #[test]
    fn a_capture_that_begins_beside_work_on_lent_memory_has_none_of_it() {
        let device = Device::host().unwrap();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let (stream, side) = (device.stream().unwrap(), device.stream().unwrap());
        let theirs = pool.alloc_filled(&stream, 64, 1_u8).unwrap();
        theirs.download().unwrap();
        let lent = Lent::new(&stream, theirs.addr(), 64).unwrap();
        // The second use finds that its order is known.
        for value in 2..4 {
            let (tell, told) = channel();
            let graph = std::thread::scope(|scope| {
                let used = lent.place().used(64, true);
                let mut capturing = None;
                let queued = ordered(side.core(), &[Some(used)], || {
                    capturing = Some(scope.spawn(|| {
                        let capture = side.begin_capture().unwrap();
                        tell.send(()).unwrap();
                        std::thread::sleep(Duration::from_millis(40));
                        capture.end().unwrap()
                    }));
                    let _ = told.recv_timeout(Duration::from_millis(40));
                    let backend = side.device().backend();
                    // SAFETY: the buffer outlives the work, which is waited for.
                    unsafe { backend.fill(theirs.addr(), value, 64, side.raw()) }
                });
                queued.unwrap().unwrap();
                capturing.unwrap().join().unwrap()
            });
            side.synchronize().unwrap();
            assert_eq!(theirs.download().unwrap(), [value; 64]);
            drop(graph);
        }
    }

    #[test]
    fn memory_that_is_not_there_is_not_lent_and_none_of_it_is() {
        let stream = Device::host().unwrap().stream().unwrap();
        assert!(Lent::new(&stream, 0, 64).is_err());
        let none = Lent::new(&stream, 0, 0).unwrap();
        let view = ViewMut::<u8>::new(0, 0, none.place());
        view.fill(&stream, 1).unwrap();
    }

    #[test]
    fn nothing_is_lent_in_a_host_call() {
        let stream = Device::host().unwrap().stream().unwrap();
        let (tell, told) = channel();
        let its = stream.clone();
        let call = Box::new(move || tell.send(Lent::new(&its, 1 << 20, 64).is_ok()).unwrap());
        (stream.device().backend().host_call(stream.raw(), call)).unwrap();
        assert!(!told.recv().unwrap());
        assert!(Lent::new(&stream, 1 << 20, 64).is_ok());
    }

    #[test]
    fn a_handle_of_another_stream_on_each_thread_is_not_adopted() {
        assert!(one_stream(RawStream(2)).is_err());
        assert!(
            [0, 1, 3]
                .map(RawStream)
                .into_iter()
                .all(|raw| one_stream(raw).is_ok())
        );
    }

    #[test]
    fn work_on_lent_memory_begins_no_capture_of_its_own_stream() {
        let device = Device::host().unwrap();
        let (stream, side) = (device.stream().unwrap(), device.stream().unwrap());
        let lent = Lent::new(&stream, 1 << 20, 64).unwrap();
        for _ in 0..2 {
            let used = lent.place().used(64, true);
            let begun = ordered(side.core(), &[Some(used)], || {
                assert!(
                    stream.begin_capture().unwrap().end().is_ok(),
                    "another stream's"
                );
                side.begin_capture().map(drop)
            });
            assert!(begun.unwrap().is_err());
            assert!(side.begin_capture().unwrap().end().is_ok());
        }
    }
}
