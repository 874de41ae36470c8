//! A pool's configuration.

use std::path::PathBuf;

use crate::device::{Device, DeviceKind};

/// How large new physical handles are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleSize {
    /// The smallest the device has. Any idle 2 MiB can be mapped where needed. A GiB of growth takes some 20 ms on an
    /// H200.
    Granule,
    /// Powers of two, as large as the request allows, up to this many bytes. Growing is cheap; an idle part of a handle
    /// stays where it is.
    UpTo(u64),
    /// A 56th of a large block or a part of the pool, whichever is more; the smallest in a pool of up to 3 GiB.
    /// The last handles of a block are smaller, so that its end wastes less than the device's smallest handle.
    ///
    /// In a GPU's pool they are larger, unless [`PoolConfig::slack`] is set: one part in 3200 of what the pool may hold,
    /// its limit or what the GPU has free, or a 64th of the pool if that is more and it may grow by two thirds of the
    /// GPU; less for small blocks. The pool grows by whole handles, so by more than a request lacks. On an H200 they
    /// have 32 to 256 MiB.
    Adaptive,
}

/// Which memory of other streams a request may take before the pool grows: see [`PoolConfig::reuse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reuse {
    pub(crate) opportunistic: bool,
    pub(crate) device_wait: bool,
}

/// Makes a configuration from its options, each with a field, a default and a setter.
macro_rules! options {
    ($(#[$about:meta])* $of:ident:
     $($(#[$doc:meta])* $name:ident: $field:ty = $default:expr, |$($arg:ident: $given:ty),+| $value:expr;)+) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct $of {
            $(pub(crate) $name: $field),+
        }

        impl Default for $of {
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        impl $of {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $($arg: $given),+) -> Self {
                self.$name = $value;
                self
            })+
        }
    };
}

options! {
    /// Configuration of a pool. Made by [`PoolConfig::default`] and the setters.
    ///
    /// ```
    /// use warpool::pool::HandleSize;
    /// use warpool::{Device, Pool, PoolConfig};
    ///
    /// let config = PoolConfig::default().limit(2 << 30).soft_limit(1 << 30).track(true);
    /// let pool = Pool::new(&Device::host()?, config)?;
    ///
    /// // More memory, fewer driver calls; and every block's backtrace in `pool.leak_report()`.
    /// let roomy = PoolConfig::default().preallocate(64 << 20).slack(0.1).overlap_bytes(256 << 20);
    /// let roomy = Pool::new(pool.device(), roomy.cache_bytes(16 << 20).track(true).backtraces(true))?;
    ///
    /// // A pool that never remaps handles nor makes streams wait, with blocks of multiples of 256 bytes.
    /// let plain = PoolConfig::default().remap(false).reuse(true, false).slabs(false);
    /// let plain = plain.handles(HandleSize::UpTo(64 << 20));
    /// # drop((pool, roomy, plain));
    /// # Ok::<(), warpool::Error>(())
    /// ```
    PoolConfig:

    /// Sets the most physical bytes the pool may hold, in whole granules. Without, the device's memory is the limit.
    limit: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets the physical bytes above which the pool releases idle memory whose work is done, whenever a request or a
    /// free misses its stream's cache. Above this it also maps idle handles elsewhere before it grows, whatever
    /// [`PoolConfig::slack`] says. Without, the pool keeps its memory.
    soft_limit: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets the physical bytes taken when the pool is made: no more than the limit, rounded down to whole granules.
    #[doc(alias = "prealloc")]
    preallocate: u64 = 0, |bytes: u64| bytes;

    /// Sets how far the pool grows before it maps idle handles elsewhere, as a part of the peak of live bytes.
    /// On an H200 mapping a handle elsewhere takes the host 50 to 90 us, a new handle some 40. The pool releases this
    /// growth when a limit is near, and on [`Pool::trim`](super::Pool::trim).
    ///
    /// Without, it is 0.018: the recorded programs then reserve no more than 1.02 of their peaks. On a GPU the pool
    /// may also grow by a quarter of the peak, but by no less than one part in 640 and no more than one in 320 of the
    /// device's memory, nor than half of what the limit, or the GPU's free memory, leaves beyond four thirds of the
    /// peak. If it is set, only the part set counts, and a small pool has small handles: set 0.018 where memory is short,
    /// 0.1 or more where there is memory to spare and blocks change all the time.
    slack: Option<f64> = None, |part: f64| Some(part);

    /// Sets whether idle handles may be mapped at another address, by default they may. Without, memory that is idle
    /// between live blocks stays there for a request that fits, and is released if a limit leaves no other way. Of
    /// use with a driver that maps slowly.
    remap: bool = true, |on: bool| on;

    /// Sets the physical bytes up to which the pool grows before it makes a stream wait for another, by default 64
    /// MiB. Larger pools wait first: less overlap, less memory.
    #[doc(hidden)]
    overlap_bytes: u64 = 64 << 20, |bytes: u64| bytes;

    /// Sets the size of new handles.
    handles: HandleSize = HandleSize::Adaptive, |handles: HandleSize| handles;

    /// Sets which memory of other streams a request may take before the pool grows, by default both: memory whose
    /// work is known to be done (`opportunistic`), and memory that the requesting stream has to wait for on the
    /// device (`device_wait`).
    reuse: Reuse = Reuse { opportunistic: true, device_wait: true }, |opportunistic: bool, device_wait: bool| Reuse { opportunistic, device_wait };

    /// Sets the most free bytes in a stream's cache, beyond the last block freed. The pool empties the caches before
    /// any stream waits or the pool grows. Without, all caches together keep a fifth of what a GPU's pool has to spare,
    /// with a [slack](PoolConfig::slack) that is set or on another device a twentieth of that, and each at least 256 KiB,
    /// with several streams 4 MiB. While threads find the pool's lock taken, their streams keep an eighth of their live
    /// bytes more; not with 0.
    cache_bytes: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets whether the pool may be [put to sleep](super::Pool::sleep). Once such a pool is made, each operation on
    /// the device's typed memory counts itself, which takes some 10 ns.
    sleeps: bool = false, |on: bool| on;

    /// Sets whether blocks of up to 4 KiB whose size is not nearly a multiple of 256 lie in slabs, by default they
    /// do. There a block wastes up to a sixteenth of its size, or 15 bytes, and is aligned to the largest power of
    /// two that divides its size, 16 to 256. A slab serves blocks of one size until all of it is free. Without, sizes
    /// and addresses of all blocks are multiples of 256 bytes.
    slabs: bool = true, |on: bool| on;

    /// Sets whether [`PoolConfig::track`] keeps the backtrace of each allocation, which takes microseconds.
    backtraces: bool = false, |on: bool| on;

    /// Records every allocation and free to a file for `warpool replay`, in the format of RMM's log, one row each.
    /// The file is compressed if its name ends in `.gz` (with the feature `gzip`). `%p` in the name becomes the
    /// process's number; the second pool of a process records to `trace.2.csv.gz`. The environment variable
    /// `WARPOOL_RECORD` does the same for a program that cannot be changed.
    ///
    /// An event takes its thread 40 ns (a core of an AMD EPYC, `cargo bench --bench recording`). A thread of the
    /// recording writes the file ten times a second; threads that are faster than the file wait. All is written when
    /// the pool and its blocks are gone, when the process ends by `exit` or the end of `main`, when a request fails
    /// for lack of memory, and by [`Pool::flush_recording`](super::Pool::flush_recording). A killed process loses its
    /// last tenth of a second. A child of `fork` records nothing.
    ///
    /// Sizes are those asked for. A block resized in place is recorded as a free and an allocation. Moves by
    /// compaction are no events.
    ///
    /// ```
    /// use warpool::observe::Trace;
    /// use warpool::{Device, Pool, PoolConfig};
    /// # let path = std::env::temp_dir().join("warpool-%p.csv");
    ///
    /// let device = Device::host()?;
    /// let pool = Pool::new(&device, PoolConfig::default().record(path))?;
    /// let block = pool.alloc(&device.stream()?, 1000)?;
    /// let path = pool.flush_recording()?.unwrap_or_default();
    /// let trace = Trace::read(&path, u64::MAX)?; // to be replayed
    /// # assert_eq!((trace.events().len(), trace.peak_live_bytes()), (1, 1000));
    /// # drop(block);
    /// # let _ = std::fs::remove_file(path);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// If the file cannot be made, [`Pool::new`](super::Pool::new) fails. A file that cannot be written later, or a
    /// pipe that nobody reads for ten seconds, ends the recording: standard error says so, and `flush_recording`
    /// returns the error.
    // `None`: the file that the environment's `WARPOOL_RECORD` names, or none.
    record: Option<PathBuf> = None, |path: impl Into<PathBuf>| Some(path.into());

    /// Lets these devices read and write all of the pool's memory, beside its own device. Copies between devices
    /// ([`ViewMut::copy_from`](super::ViewMut::copy_from)) and collectives among GPUs of one process need it. For
    /// each of them a mapping takes the driver some microseconds more.
    ///
    /// ```
    /// use warpool::{Device, Pool, PoolConfig};
    ///
    /// let (one, other) = (Device::host()?, Device::host()?);
    /// let pool = Pool::new(&one, PoolConfig::default().peers(&[&other]))?;
    /// let far = Pool::new(&other, PoolConfig::default())?;
    /// let (here, there) = (one.stream()?, other.stream()?);
    /// let source = pool.alloc_from(&here, &[1, 2, 3])?;
    /// let mut copy = far.alloc_zeroed::<i32>(&there, 3)?;
    /// copy.view_mut().copy_from(&there, &source)?; // behind what wrote it, on either device
    /// assert_eq!(copy.download()?, [1, 2, 3]);
    /// # Ok::<(), warpool::Error>(())
    /// ```
    ///
    /// If a GPU cannot reach the pool's, [`Pool::new`](super::Pool::new) fails. Host devices have access to each other
    /// without it.
    // The GPUs' numbers.
    peers: Vec<u32> = Vec::new(), |devices: &[&Device]| {
        let gpus = devices.iter().map(|device| device.info());
        let gpus = gpus.filter(|info| info.kind == DeviceKind::Cuda);
        gpus.map(|info| info.ordinal).collect()
    };

    /// Sets whether to keep the tag of each live block for [`Pool::leak_report`](super::Pool::leak_report). Costs a
    /// lock and a map entry for each block.
    track: bool = false, |on: bool| on;
}

#[cfg(test)]
mod tests;
