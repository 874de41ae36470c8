//! Devices, streams and events behind one trait.
//!
//! # Three devices, one contract
//!
//! A [`Device`] is a GPU through its driver, or the host: real memory, real mappings, a thread a
//! stream, so that code written for a GPU runs and is tested on a machine without one; or the host
//! under a seeded scheduler ([`sim`]), which hunts for missing waits. All stand behind [`Backend`],
//! and one conformance suite holds them to the same contract.
//!
//! # Stream order, and how it is known
//!
//! Work given to a [`Stream`] runs in order. Work of two streams is ordered only by events. Every
//! record and every wait made through this crate is remembered: each stream counts its records
//! (*ticks*) and carries the ticks of other streams it has waited for (a vector clock). So a pool
//! that wants to hand memory freed on one stream to another knows without asking the driver
//! whether the second stream already waits for the first, and adds no wait that is already there.
//!
//! # Lifetimes
//!
//! Devices, streams, events and what is built on them may be dropped in any order. A stream that
//! is dropped leaves a last mark behind, so that memory freed on it still becomes ready.

pub(crate) mod access;
mod access_entries;
mod access_log;
mod awake;
pub(crate) mod backend;
mod capture;
mod cuda;
mod event;
mod exchange;
mod graph;
mod host;
mod host_call;
pub(crate) mod launch;
mod ledger;
mod names;
mod ordered;
mod pages;
pub(crate) mod raw;
mod recording;
mod records;
mod scratch;
pub mod sim;
mod stream;
mod structure;
mod table;
mod ticks;
mod timeline;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

#[doc(hidden)]
pub use access::{Access, AccessKind, Note};
pub(crate) use access_entries::raise;
pub(crate) use access_log::{AccessLog, Left};
pub(crate) use awake::Giving;
#[doc(hidden)]
pub use backend::{Backend, HandleCounts};
pub use backend::{DeviceInfo, DeviceKind};
pub use event::Event;
pub use graph::{Capture, Graph, GraphMemory, NotedCapture};
#[doc(hidden)]
pub use host::host_available_bytes;
pub(crate) use host_call::{beside, panicked};
#[doc(hidden)]
pub use launch::Launch;
pub(crate) use names::{COMPACTION, stream_words};
pub(crate) use ordered::{
    Place, TableUses, Use, note_behind, ordered, ordered_to_its_end, wait_before,
};
#[doc(hidden)]
pub use raw::{Addr, Phys, RawEvent, RawGraph, RawStream};
pub(crate) use scratch::{Overhead, Scratch};
pub(crate) use structure::{
    Awake, GraphRecord, Kept, Recorder, StreamCore, StreamWatcher, TableRecord, Timeline,
};
pub use structure::{Device, Stream};
use structure::{DeviceInner, Turns};

use crate::error::Result;
pub(crate) use crate::sync::lock;
use crate::sync::{AtomicU64, Mutex, MutexGuard};

/// Spare events kept for re-use; an event costs more to create than to record.
const SPARE_EVENTS: usize = 256;

impl Drop for DeviceInner {
    fn drop(&mut self) {
        for event in lock(&self.spare_events).drain(..) {
            // Nothing can be done about a failure here, and nothing is lost but the event.
            let _ = self.backend.event_destroy(event);
        }
    }
}

impl Device {
    /// The CUDA device numbered `ordinal`.
    ///
    /// Uses the context current on the calling thread if it belongs to that device, else the
    /// device's primary context.
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
    /// The context stays its owner's, who keeps it until the device and everything made from it is
    /// dropped.
    ///
    /// # Errors
    /// As [`Device::cuda`]; [`Error::Invalid`](crate::Error::Invalid) if no context is current.
    pub fn cuda_current() -> Result<Self> {
        Ok(Self::from_backend(cuda::open_current()?))
    }

    /// As [`Device::cuda_current`], with what keeps the context alive.
    #[cfg(feature = "cudarc")]
    pub(crate) fn cuda_current_of(owner: Arc<dyn Any + Send + Sync>) -> Result<Self> {
        Ok(Self::over(cuda::open_current()?, None, Some(owner)))
    }

    /// Number of CUDA devices, or why there are none.
    ///
    /// ```
    /// match warpool::Device::cuda_count() {
    ///     Ok(gpus) => println!("{gpus} GPUs"),
    ///     Err(why) => println!("{why}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn cuda_count() -> Result<u32> {
        cuda::count()
    }

    /// The host device, with 64 GiB or the machine's memory, whichever is more. That bounds what can be
    /// created, not what is used: a page that nobody writes takes no memory.
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
    /// [`Error::Os`](crate::Error::Os) if the machine refuses memory or threads.
    pub fn host() -> Result<Self> {
        Ok(Self::from_backend(host::open(None)?))
    }

    /// The host device with `bytes` of physical memory, rounded down to its granule of 2 MiB. As long as
    /// the pages that are written fit, they may be more than the machine has.
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
    /// As [`Device::host`]; [`Error::Invalid`](crate::Error::Invalid) below one granule.
    pub fn host_with_capacity(bytes: u64) -> Result<Self> {
        Ok(Self::from_backend(host::open(Some(bytes))?))
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
    /// [`Error::Invalid`](crate::Error::Invalid) for a capacity below one granule, [`Error::Os`](crate::Error::Os) if the machine refuses
    /// memory.
    pub fn sim(config: &sim::SimConfig) -> Result<Self> {
        Ok(Self::from_backend(sim::open(config)?))
    }

    /// The first CUDA device if there is one, else the host device; [`Device::no_gpu`] then says why.
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
    /// As [`Device::host`].
    pub fn any() -> Result<Self> {
        match Self::cuda(0) {
            Ok(device) => Ok(device),
            Err(reason) => {
                let host = host::open(None)?;
                Ok(Self::over(host, Some(reason), None))
            }
        }
    }

    /// Why [`Device::any`] took the host; `None` for every other device.
    #[must_use]
    pub fn no_gpu(&self) -> Option<&crate::Error> {
        self.inner.no_gpu.as_ref()
    }

    /// A device over any backend: a wrapper that counts or fails calls, say.
    #[must_use]
    pub fn from_backend(backend: Arc<dyn Backend>) -> Self {
        Self::over(backend, None, None)
    }

    fn over(
        backend: Arc<dyn Backend>,
        no_gpu: Option<crate::Error>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self {
            inner: Arc::new(DeviceInner {
                spare_events: Mutex::default(),
                adopted: Mutex::default(),
                timelines: Mutex::default(),
                captured: AtomicU64::new(0),
                suspended: AtomicU64::new(0),
                sleepers: AtomicU64::new(0),
                turns: Turns::default(),
                names: Mutex::default(),
                no_gpu,
                backend,
                _owner: owner,
            }),
        }
    }

    /// Facts about the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.inner.backend.info()
    }

    /// Physical bytes free now, other programs counted.
    ///
    /// # Errors
    /// What the driver said.
    pub fn free_bytes(&self) -> Result<u64> {
        self.inner.backend.free_bytes()
    }

    /// What the device has handed out and not taken back.
    #[must_use]
    #[doc(hidden)]
    pub fn counts(&self) -> HandleCounts {
        self.inner.backend.counts()
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// The backend, for what the crate's own types do not offer.
    ///
    /// # Safety
    /// Of everything that is given to it, by the caller and by whoever gets it from the caller:
    ///
    /// - Streams, events, graphs, handles, ranges and mappings are live and of this device. Those that
    ///   the crate made or was given ([`Stream::raw`], [`Event::raw`]) are not destroyed, released,
    ///   unmapped or given back, no event of the crate's is recorded, and no capture begins or ends on a
    ///   stream that the crate knows but as [`Stream::note_capture`] says.
    /// - Nothing is unmapped or given back under work that uses it.
    #[must_use]
    pub unsafe fn raw_backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Makes a stream.
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
    /// What the driver or the operating system said.
    pub fn stream(&self) -> Result<Stream> {
        Stream::create(self)
    }

    /// Makes an event without timing.
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
    /// What the driver said.
    pub fn event(&self) -> Result<Event> {
        Event::create(self, false)
    }

    /// Makes an event that [`Event::elapsed_ns`] can measure.
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
    /// What the driver said.
    pub fn timing_event(&self) -> Result<Event> {
        Event::create(self, true)
    }

    /// The stream that another library made, for use with this crate.
    ///
    /// Adopting the same stream twice gives the same stream: it is known by the driver's stream
    /// id, never by its handle, which drivers use again.
    ///
    /// # Errors
    /// What the driver said of the handle.
    ///
    /// # Safety
    /// - `raw` is a live stream of this device and of the context that is current now.
    /// - It stays alive until every clone of the returned [`Stream`] and every block allocated on
    ///   it is dropped.
    pub unsafe fn adopt_stream(&self, raw: RawStream) -> Result<Stream> {
        Stream::adopt(self, raw)
    }

    /// As [`Device::adopt_stream`], of a stream that `owner` keeps alive.
    ///
    /// # Safety
    /// `raw` is a live stream of this device and of the context that is current now, as long as `owner`
    /// lives.
    #[cfg(feature = "cudarc")]
    pub(crate) unsafe fn adopt_owned(
        &self,
        raw: RawStream,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Stream> {
        let stream = Stream::adopt(self, raw)?;
        // It may have been adopted before.
        let _ = stream.core().owner.set(owner);
        Ok(stream)
    }

    /// The adopted stream of this handle that is kept alive.
    #[cfg(feature = "cudarc")]
    pub(crate) fn owned_stream(&self, raw: RawStream) -> Option<Arc<StreamCore>> {
        // All go behind the lock: the last holder of a stream takes it.
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

    /// One stream more under capture, or one less.
    fn count_capture(&self, begins: bool) {
        let captured = &self.inner.captured;
        if begins {
            captured.fetch_add(1, Ordering::AcqRel);
        } else {
            captured.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether any stream is under a capture that the crate knows of.
    fn is_capturing(&self) -> bool {
        self.inner.captured.load(Ordering::Acquire) > 0
    }

    /// An event to record, which goes back when it is dropped.
    pub(crate) fn take_event(&self) -> Result<structure::HeldEvent> {
        let spare = lock(&self.inner.spare_events).pop();
        let raw = match spare {
            Some(event) => event,
            None => self.inner.backend.event_create(false)?,
        };
        let device = self.clone();
        Ok(structure::HeldEvent { device, raw })
    }

    fn return_event(&self, event: RawEvent) {
        let mut spare = lock(&self.inner.spare_events);
        if spare.len() < SPARE_EVENTS {
            spare.push(event);
        } else {
            drop(spare);
            // An event that cannot be destroyed is the driver's loss; it holds no memory of ours.
            let _ = self.inner.backend.event_destroy(event);
        }
    }
}

/// Equal are clones of one device.
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
