//! Devices, streams and events behind one trait.
//!
//! # Three devices, one contract
//!
//! A [`Device`] is one of three. A GPU, through its driver. The host, with real memory, real mappings and one
//! thread per stream, so that code for a GPU can be run and tested on a machine without one. Or the host
//! under a seeded scheduler ([`sim`]), which searches for missing waits. All implement [`Backend`], and one
//! conformance suite checks all of them against the same contract.
//!
//! # Stream order
//!
//! Work queued on a [`Stream`] runs in order. Work of two streams is ordered only by events. The crate tracks
//! every record and every wait made through it: each stream counts its records (*ticks*) and keeps the ticks
//! of other streams that it has waited for (a vector clock). So when memory freed on one stream is wanted on
//! another, a pool can tell without a driver call whether the second stream already waits for the first, and
//! adds no redundant wait.
//!
//! # Lifetimes
//!
//! Devices, streams, events and everything built on them may be dropped in any order. A dropped stream leaves
//! a last mark behind, so that memory freed on it still becomes ready.

pub(crate) mod access;
mod access_entries;
mod access_log;
mod awake;
pub(crate) mod backend;
mod calls;
mod capture;
mod capture_emulation;
mod captured_record;
mod cuda;
mod event;
mod exchange;
mod graph;
mod handle_table;
mod host;
mod host_call;
pub(crate) mod launch;
mod mapping_table;
mod names;
mod ordered;
mod pages;
pub(crate) mod raw;
mod records;
mod scratch;
pub mod sim;
mod stream;
mod structure;
mod ticks;
mod timeline;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

#[doc(hidden)]
pub use access::{Access, AccessKind, Note};
pub(crate) use access_entries::{raise, raise_all};
pub(crate) use access_log::{AccessLog, Left};
pub(crate) use awake::Queueing;
#[doc(hidden)]
pub use backend::{Backend, HandleCounts};
pub use backend::{DeviceInfo, DeviceKind};
#[cfg(all(test, feature = "convert"))]
pub(crate) use cuda::faults::gpu_of;
pub use event::Event;
pub use graph::{Capture, Graph, GraphMemory, NotedCapture};
#[doc(hidden)]
pub use host::host_available_bytes;
pub(crate) use host_call::{
    beside, is_running, may_wait, panicked, without_any as without_host_calls,
};
#[doc(hidden)]
pub use launch::Launch;
pub(crate) use names::{COMPACTION, stream_words};
pub(crate) use ordered::{
    Place, TableUses, Use, note_behind, ordered, ordered_to_its_end, wait_before,
};
#[doc(hidden)]
pub use raw::{Addr, Phys, RawEvent, RawGraph, RawStream};
pub(crate) use records::Held;
pub(crate) use scratch::{Overhead, Scratch};
pub(crate) use stream::OutsideCapture;
pub(crate) use structure::{
    Awake, Checked, GraphRecord, Kept, Recorder, StreamCore, StreamWatcher, TableRecord, Timeline,
};
pub use structure::{Device, Stream};
use structure::{DeviceInner, Turns};
pub(crate) use timeline::is_under_capture;

use crate::error::{Error, Result};
pub(crate) use crate::sync::lock;
use crate::sync::{AtomicU64, Mutex, MutexGuard};

/// Most spare events kept for reuse; creating an event costs more than recording one.
const SPARE_EVENTS: usize = 256;

/// What is to be destroyed.
type Ended = (Vec<RawEvent>, Vec<RawStream>);

impl DeviceInner {
    /// Takes out the spare events beyond `kept`, and the streams that are left.
    fn ended(&self, kept: usize) -> Ended {
        let mut spare = lock(&self.spare_events);
        let kept = kept.min(spare.len());
        let streams = std::mem::take(&mut *lock(&self.left_streams));
        (spare.split_off(kept), streams)
    }
}

/// The driver lets queued work complete; a failure leaks only what is destroyed.
fn destroy(backend: &dyn Backend, (events, streams): Ended) {
    for event in events {
        let _ = backend.event_destroy(event);
    }
    for stream in streams {
        let _ = backend.stream_destroy(stream);
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        let ended = self.ended(0);
        let owner = self.owner.take();
        // SAFETY: nobody uses it after this.
        let backend = unsafe { ManuallyDrop::take(&mut self.backend) };
        beside(move || {
            destroy(&*backend, ended);
            drop((backend, owner));
        });
    }
}

impl Device {
    /// The CUDA device with index `ordinal`.
    ///
    /// Uses the context current on the calling thread if it belongs to that device, otherwise the device's
    /// primary context.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// match warpool::Device::cuda(0) {
    ///     Ok(device) => println!("{}", device.info().name),
    ///     Err(reason) => println!("{reason}"), // and what to do about it
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) says which of driver, GPU and compiled
    /// kernels is missing and what to do about it.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Ok(Self::from_backend(cuda::open(ordinal)?))
    }

    /// The CUDA device of the context current on the calling thread, in that context.
    ///
    /// The caller owns the context and keeps it alive until the device and everything made from it is
    /// dropped.
    ///
    /// # Errors
    /// See [`Device::cuda`]; [`Error::Invalid`](crate::Error::Invalid) if no context is current.
    pub fn cuda_current() -> Result<Self> {
        Ok(Self::from_backend(cuda::open_current()?))
    }

    /// The same as [`Device::cuda_current`], with an `owner` that keeps the context alive.
    #[cfg(feature = "cudarc")]
    pub(crate) fn cuda_current_of(owner: Arc<dyn Any + Send + Sync>) -> Result<Self> {
        Ok(Self::over(cuda::open_current()?, None, Some(owner)))
    }

    /// Number of CUDA devices, or an error that says why there are none.
    ///
    /// ```
    /// match warpool::Device::cuda_count() {
    ///     Ok(gpus) => println!("{gpus} GPUs"),
    ///     Err(why) => println!("{why}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`Device::cuda`].
    pub fn cuda_count() -> Result<u32> {
        cuda::count()
    }

    /// The host device, with a capacity of 64 GiB or the machine's memory, whichever is larger. This limits
    /// what can be created, not what is used: pages that are never written take no memory.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// let device = warpool::Device::host()?;
    /// assert!(device.no_gpu().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) if the operating system refuses memory or threads.
    pub fn host() -> Result<Self> {
        Self::of_host(None)
    }

    /// The host device with `bytes` of physical memory, rounded down to its granule of 2 MiB. This may exceed
    /// the machine's memory, as long as the pages that are written fit.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// let device = warpool::Device::host_with_capacity(64 << 20)?;
    /// assert_eq!(device.free_bytes()?, 64 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Device::host`]; [`Error::Invalid`](crate::Error::Invalid) below one granule.
    pub fn host_with_capacity(bytes: u64) -> Result<Self> {
        Self::of_host(Some(bytes))
    }

    fn of_host(capacity: Option<u64>) -> Result<Self> {
        // Miri calls no C: there the unit tests have a simulated device without bytes for the host.
        if cfg!(all(test, miri)) {
            let of_the_tests = sim::SimConfig::default().without_bytes();
            return Self::sim(&of_the_tests.with_capacity(capacity.unwrap_or(1 << 36)));
        }
        Ok(Self::from_backend(host::open(capacity)?))
    }

    /// A simulated device: the host device's memory under a seeded scheduler (see [`sim`]).
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// use warpool::device::sim::SimConfig;
    /// use warpool::{Device, Pool, PoolConfig};
    ///
    /// for seed in 0..10 {
    ///     let device = Device::sim(&SimConfig::default().with_seed(seed))?;
    ///     let pool = Pool::new(&device, PoolConfig::default())?;
    ///     let (load, train) = (device.stream()?, device.stream()?);
    ///     let source = pool.alloc_from(&load, &[1, 2, 3])?;
    ///     let mut copy = pool.alloc_zeroed::<i32>(&train, 3)?;
    ///     copy.view_mut().copy_from(&train, &source)?;
    ///     assert_eq!(copy.download()?, [1, 2, 3]); // in whatever order seed runs the streams
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a capacity below one granule,
    /// [`Error::Os`](crate::Error::Os) if the operating system refuses memory.
    pub fn sim(config: &sim::SimConfig) -> Result<Self> {
        Ok(Self::from_backend(sim::open(config)?))
    }

    /// The first CUDA device if there is one, otherwise the host device; [`Device::no_gpu`] then says why.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// let device = warpool::Device::any()?;
    /// if let Some(reason) = device.no_gpu() {
    ///     eprintln!("on the host: {reason}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Device::host`].
    pub fn any() -> Result<Self> {
        match Self::cuda(0) {
            Ok(device) => Ok(device),
            Err(reason) => {
                let host = host::open(None)?;
                Ok(Self::over(host, Some(reason), None))
            }
        }
    }

    /// The reason that [`Device::any`] chose the host; `None` for every other device.
    #[must_use]
    pub fn no_gpu(&self) -> Option<&crate::Error> {
        self.inner.no_gpu.as_ref()
    }

    /// A device over any backend, for example a wrapper that counts calls or makes them fail.
    #[must_use]
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        Self::over(backend, None, None)
    }

    pub(crate) fn over(
        backend: Arc<dyn Backend>,
        no_gpu: Option<crate::Error>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self {
            inner: Arc::new(DeviceInner {
                spare_events: Mutex::default(),
                left_streams: Mutex::default(),
                adopted: Mutex::default(),
                timelines: Mutex::default(),
                captured: AtomicU64::new(0),
                suspended: AtomicU64::new(0),
                sleepers: AtomicU64::new(0),
                counted_in: AtomicU64::new(0),
                suspending: Mutex::default(),
                turns: Turns::default(),
                recording: Mutex::default(),
                names: Mutex::default(),
                no_gpu,
                backend: ManuallyDrop::new(backend),
                owner,
            }),
        }
    }

    /// Facts about the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.inner.backend.info()
    }

    /// Free physical bytes at present, with the memory of other programs counted as used.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn free_bytes(&self) -> Result<u64> {
        self.inner.backend.free_bytes()
    }

    /// The numbers of live objects on the device.
    #[must_use]
    #[doc(hidden)]
    pub fn counts(&self) -> HandleCounts {
        self.inner.backend.counts()
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// As [`Backend::in_context`]; returns what `work` does.
    pub(crate) fn in_context<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        let (mut work, mut done) = (Some(work), None);
        (self.backend()).in_context(&mut || done = work.take().map(|work| work()))?;
        done.ok_or_else(|| Error::invalid("device", "it made no call"))
    }

    /// The backend, for calls that the crate's own types do not offer.
    ///
    /// # Safety
    /// The caller, and all code that gets the backend from it, guarantees for every call:
    ///
    /// - Streams, events, graphs, handles, ranges and mappings are live and of this device. Those that the
    ///   crate made or adopted ([`Stream::raw`], [`Event::raw`]) are not destroyed, released, unmapped or
    ///   unreserved. No event of the crate is recorded. A capture on a stream that the crate knows begins and
    ///   ends only as [`Stream::note_capture`] says.
    /// - Nothing is unmapped or released while work uses it.
    #[must_use]
    pub unsafe fn raw_backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Creates a stream.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let other = device.stream()?;
    /// assert!(other != stream);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) of a host device that has 4096 streams, each of which is a
    /// thread; any error of the driver or the operating system.
    pub fn stream(&self) -> Result<Stream> {
        Stream::create(self)
    }

    /// Creates an event without timing.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let event = device.event()?;
    /// event.record(&stream)?;
    /// event.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn event(&self) -> Result<Event> {
        Event::create(self, false)
    }

    /// Creates an event that [`Event::elapsed_ns`] can measure.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let (start, end) = (device.timing_event()?, device.timing_event()?);
    /// start.record(&stream)?;
    /// end.record(&stream)?;
    /// end.synchronize()?;
    /// assert!(end.elapsed_ns(&start)? >= 0.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn timing_event(&self) -> Result<Event> {
        Event::create(self, true)
    }

    /// Makes a stream of another library usable with this crate.
    ///
    /// Adopting the same stream twice returns the same [`Stream`]. The driver's stream id identifies it, not
    /// its handle, because drivers reuse handles.
    ///
    /// # Errors
    /// Any error of the driver about the handle.
    ///
    /// # Safety
    /// - `raw` is a live stream of this device and of the context that is current now.
    /// - It stays alive until every clone of the returned [`Stream`], every block allocated on it, every graph
    ///   launched on it and every reducer made with it is dropped, outside of host calls, which put that off.
    pub unsafe fn adopt_stream(&self, raw: RawStream) -> Result<Stream> {
        Stream::adopt(self, raw)
    }

    /// The same as [`Device::adopt_stream`], for a stream that `owner` keeps alive.
    ///
    /// # Safety
    /// `raw` is a live stream of this device and of the context that is current now, as long as `owner`
    /// lives.
    #[cfg(any(test, feature = "cudarc"))]
    pub(crate) unsafe fn adopt_owned(
        &self,
        raw: RawStream,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Stream> {
        let stream = Stream::adopt(self, raw)?;
        // Fails if it was adopted with an owner before.
        let _ = stream.core().owner.set(owner);
        Ok(stream)
    }

    /// The adopted stream with this handle, if it has an owner.
    #[cfg(feature = "cudarc")]
    pub(crate) fn owned_stream(&self, raw: RawStream) -> Option<Arc<StreamCore>> {
        // The cores are dropped after the lock is released: dropping the last reference to a stream takes
        // that lock.
        let cores: Vec<_> = {
            let adopted = lock(&self.inner.adopted);
            adopted.values().filter_map(Weak::upgrade).collect()
        };
        let is_it = |core: &Arc<StreamCore>| core.raw == raw && core.owner.get().is_some();
        cores.into_iter().find(is_it)
    }

    /// Whether both are the same device.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn timelines(&self) -> MutexGuard<'_, HashMap<u64, Weak<Timeline>>> {
        lock(&self.inner.timelines)
    }

    /// Counts a stream that begins or ends a capture.
    fn count_capture(&self, begins: bool) {
        let captured = &self.inner.captured;
        if begins {
            captured.fetch_add(1, Ordering::AcqRel);
        } else {
            captured.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether any stream is under a capture that the crate has noted.
    fn is_capturing(&self) -> bool {
        self.inner.captured.load(Ordering::Acquire) > 0
    }

    /// An event to record; dropping it returns it to the spares.
    pub(crate) fn take_event(&self) -> Result<structure::HeldEvent> {
        let spare = lock(&self.inner.spare_events).pop();
        let raw = match spare {
            Some(event) => event,
            None => self.inner.backend.event_create(false)?,
        };
        let device = self.clone();
        Ok(structure::HeldEvent { device, raw })
    }

    /// Destroys what ended where the driver may not be called, under locks of a pool. The caller has none.
    fn tidy(&self) {
        destroy(&**self.backend(), self.inner.ended(SPARE_EVENTS));
    }
}

/// Clones of one device are equal.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        write!(
            f,
            "Device({:?} {} {:?})",
            info.kind, info.ordinal, info.name
        )
    }
}
