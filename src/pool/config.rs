//! What a pool may do: limits, growth and re-use.

use std::path::PathBuf;

use crate::device::{Device, DeviceKind};

/// How large new physical handles are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleSize {
    /// The smallest the device has. Any idle 2 MiB can be moved to where it is needed; growing by a GiB costs
    /// some 20 ms on an H200.
    Granule,
    /// As large as the request, up to this many bytes. Growing is cheap; an idle part of a handle stays
    /// where it is.
    UpTo(u64),
    /// A 56th of a large block or a part of the pool, whichever is more; the smallest in a pool of
    /// up to 3 GiB. The last pieces of a block are smaller, so that its end wastes less than the device's
    /// smallest handle.
    ///
    /// A pool of a GPU has larger ones, unless [`PoolConfig::slack`] is set: one part in 3200 of the GPU's
    /// memory or of the limit, or a 64th of the pool if that is more and no limit is set; less for small
    /// blocks. It grows by whole ones, so by more than a request lacks. On an H200 they are of 32 to 128 MiB.
    Adaptive,
}

/// Which memory of other streams a request may take before the pool grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// Take memory freed on another stream if its work is known to be done.
    pub(crate) opportunistic: bool,
    /// Take memory freed on another stream by making the requesting stream wait on the device.
    pub(crate) device_wait: bool,
}

/// Makes the configuration of its options: of each the field, its default, and its setter.
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
    /// // More memory, fewer calls of the driver; and every block's place of allocation in `pool.leak_report()`.
    /// let roomy = PoolConfig::default().preallocate(64 << 20).slack(0.1).overlap_bytes(256 << 20);
    /// let roomy = Pool::new(pool.device(), roomy.cache_bytes(16 << 20).track(true).backtraces(true))?;
    ///
    /// // A pool that never maps elsewhere nor has a stream wait for memory, of multiples of 256 bytes.
    /// let plain = PoolConfig::default().remap(false).reuse(true, false).slabs(false);
    /// let plain = plain.handles(HandleSize::UpTo(64 << 20));
    /// # drop((pool, roomy, plain));
    /// # Ok::<(), warpool::Error>(())
    /// ```
    PoolConfig:

    /// Sets the most physical bytes the pool may hold. Without, it may hold as much as the device gives.
    limit: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets the physical bytes above which idle memory whose work is done is given back to the device
    /// whenever a request or a free goes past its stream's cache. Above this, idle memory is also moved
    /// before the pool grows, whatever [`PoolConfig::slack`] says. Without, memory is kept.
    soft_limit: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets the physical bytes taken when the pool is made.
    #[doc(alias = "prealloc")]
    preallocate: u64 = 0, |bytes: u64| bytes;

    /// Sets the growth allowed before idle handles are mapped elsewhere, as a part of the peak of live
    /// bytes. A handle mapped elsewhere costs the host 50 to 75 us, a new one a fifth of that. What the pool
    /// grew by beyond the peak goes back where a limit is near and on [`Pool::trim`](super::Pool::trim).
    ///
    /// Without, it is 0.018, with which the recorded programs reserve no more than 1.02 of their peaks. On
    /// a GPU it is one part in 640 of the device's memory at least, or of the limit if there is one.
    /// Set, that does not count, and handles are as small as the pool is: set 0.018 where memory is short, 0.1 or
    /// more where there is memory to spare and blocks change all the time.
    slack: Option<f64> = None, |part: f64| Some(part);

    /// Sets whether handles may be mapped at another address than their first, as they may by default.
    /// Without, memory that is idle between live blocks waits there for a request that fits, and is given
    /// back where a limit leaves no other way. Of use where a driver maps slowly.
    remap: bool = true, |on: bool| on;

    /// Sets the physical bytes up to which the pool grows rather than make a stream wait for another, by
    /// default 64 MiB. Larger pools wait first, which costs overlap and saves memory.
    #[doc(hidden)]
    overlap_bytes: u64 = 64 << 20, |bytes: u64| bytes;

    /// Sets the size of new handles.
    handles: HandleSize = HandleSize::Adaptive, |handles: HandleSize| handles;

    /// Sets which memory of other streams a request may take before the pool grows, by default both: that
    /// whose work is known to be done (`opportunistic`), and that which the requesting stream is made to
    /// wait for on the device (`device_wait`).
    reuse: Reuse = Reuse { opportunistic: true, device_wait: true }, |opportunistic: bool, device_wait: bool| Reuse { opportunistic, device_wait };

    /// Sets the most free bytes a stream keeps for itself, beyond the last block freed. They are given up
    /// before any stream waits or the pool grows. Without, all streams together keep a fifth of the
    /// [slack](PoolConfig::slack), and each 1 MiB at least, of several streams 4 MiB. While threads find the pool's
    /// lock taken, their streams keep an eighth of their live bytes besides; not with 0.
    cache_bytes: Option<u64> = None, |bytes: u64| Some(bytes);

    /// Sets whether the pool may be [put to sleep](super::Pool::sleep). Each operation on typed memory of
    /// the device then counts itself, some 10 ns, from when the pool is made.
    sleeps: bool = false, |on: bool| on;

    /// Sets whether blocks of up to 4 KiB whose size is not nearly a multiple of 256 lie in slabs, as they do
    /// by default. There they have up to a sixteenth more than was asked for, or 15 bytes, and are aligned to
    /// the largest power of two that divides their size, 16 to 256. A slab serves blocks of one size until all
    /// of it is free. Without, every block is a multiple of 256 bytes, and lies on one.
    slabs: bool = true, |on: bool| on;

    /// Sets whether blocks under [`PoolConfig::track`] keep the backtrace of their allocation: microseconds
    /// each.
    backtraces: bool = false, |on: bool| on;

    /// Records every allocation and free to a file that `warpool replay` reads: RMM's log, a row each,
    /// compressed if the name ends in `.gz` (with the feature `gzip`). `%p` in the name becomes the number of the
    /// process, and the second pool of a process records to `trace.2.csv.gz`. The environment variable
    /// `WARPOOL_RECORD` does the same for a program that cannot be changed.
    ///
    /// An event costs the thread that makes it 40 ns (a core of an AMD EPYC, `cargo bench --bench recording`). A
    /// thread of the recording writes the file ten times a second, and whoever is faster than the file waits. All is
    /// written when the pool and its blocks are gone, when the process ends by `exit` or the end of `main`, when a
    /// request fails for want of memory, and by [`Pool::flush_recording`](super::Pool::flush_recording); a process
    /// that is killed loses its last tenth of a second. A child of `fork` records nothing.
    ///
    /// Blocks have the bytes that were asked for. A block resized where it is frees what it was and allocates what
    /// it is. Moves by compaction are no events.
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
    /// A file that cannot be made is an error of [`Pool::new`](super::Pool::new). One that takes no more
    /// later, or a pipe that takes nothing for ten seconds, ends the recording: standard error says so, and
    /// `flush_recording` gives the error.
    // `None`: the file that the environment's `WARPOOL_RECORD` names, or none.
    record: Option<PathBuf> = None, |path: impl Into<PathBuf>| Some(path.into());

    /// Lets these devices read and write all of the pool's memory, beside its own device. Copies between
    /// devices ([`ViewMut::copy_from`](super::ViewMut::copy_from)) and collectives among GPUs of one process
    /// want it. A mapping then costs the driver some microseconds more for each.
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
    /// A GPU that cannot reach the pool's is an error of [`Pool::new`](super::Pool::new).
    // Numbers of the GPUs that may use the pool's memory beside its own.
    peers: Vec<u32> = Vec::new(), |devices: &[&Device]| {
        let gpus = devices.iter().map(|device| device.info());
        let gpus = gpus.filter(|info| info.kind == DeviceKind::Cuda);
        gpus.map(|info| info.ordinal).collect()
    };

    /// Sets whether to keep, for each live block, its tag for [`Pool::leak_report`](super::Pool::leak_report).
    /// Costs a lock and a map entry a block.
    track: bool = false, |on: bool| on;
}

#[cfg(test)]
mod tests;
