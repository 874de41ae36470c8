//! A checker of stream order: finds uses of device memory that nothing orders.
//!
//! # What it finds
//!
//! Two uses of the same bytes, at least one of them a write, must be ordered: by one stream, by
//! events and waits, or by a wait on the host in between. If they are not, a program may still run
//! correctly for months. [`Sanitizer`] wraps any device and reports such a pair when the second use
//! is queued, whether or not it went wrong in this run: both operations, their streams, and the
//! missing wait. It also observes the allocations and frees of a [pool](crate::pool): use after
//! free, use of pool memory outside every block, a free that is not ordered after another stream's
//! use of the block, and unmapping under queued work.
//!
//! # What it sees
//!
//! It sees copies, fills and the crate's own kernels, with every range they use. The moves, tiles
//! and words in tables in device memory are read when the launch runs, if the host can read device
//! memory (the host device and the simulated one). Kernels of the application are declared with
//! [`Stream::kernel`](crate::Stream::kernel). Only memory made through the device is watched. Order
//! is checked by physical byte, so a handle mapped at two addresses counts as one memory.
//!
//! # What it does not report
//!
//! It does not report ordered uses, with one exception. A request that a capture of its stream overtakes, begun by
//! another thread, may be served behind a wait of the graph's, and is reported as if nothing waited. Knowledge that one
//! host thread gains counts for all threads, and a host call that has run counts as seen by the host; so a race that is
//! avoided only by such timing may be missed. Work of another device counts as ordered after all that this one ever gave
//! another to wait for. Host memory is not watched. Nor is work captured into a graph, neither as it is captured nor as
//! the graph is launched.
//!
//! # Cost
//!
//! A lock and a few comparisons per operation. Nothing without the feature `sanitize`.
//!
//! # Parts
//!
//! - `order`: epochs and vector clocks; which operation runs before which.
//! - `places`: mappings and owners; the memory behind an address.
//! - `shadow`: the last uses of each byte.
//! - `books`: combines these three.
//! - `watch`: the device that wraps another.

mod books;
mod order;
mod places;
mod report;
mod shadow;
mod watch;

use std::fmt;
use std::sync::Arc;

pub use report::{Fault, Party, Report};

use crate::device::Device;
use watch::Watch;

/// Watches a device. See the [module](self) documentation.
///
/// Cheap to clone; all clones watch the same device. Safe to use from any thread.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::sanitize::{Fault, Party, Report, Sanitizer};
///
/// let (device, sanitizer) = Sanitizer::over(&device);
/// let pool = Pool::new(&device, PoolConfig::default())?;
/// let (upload, compute) = (device.stream()?, device.stream()?);
/// let mut batch = pool.alloc_zeroed::<f32>(&upload, 1024)?;
/// batch.view_mut().fill(&compute, 1.0)?; // typed calls order themselves
/// assert!(sanitizer.check().is_ok());
/// let races = |report: &&Report| report.fault == Fault::Race;
/// let found = sanitizer.reports();
/// let last: Option<&Party> = found.iter().find(races).map(|report| &report.second);
/// assert!(last.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sanitizer {
    watch: Arc<Watch>,
}

impl Sanitizer {
    /// Wraps `device`. Returns a watched device over the same memory, and its sanitizer. Use only
    /// the watched one: calls through `device` itself are not seen.
    #[must_use]
    pub fn over(device: &Device) -> (Device, Self) {
        let watch = Arc::new(Watch::new(device));
        let watched = Device::from_backend(Arc::clone(&watch) as _);
        (watched, Self { watch })
    }

    /// The first 100 reports so far.
    ///
    /// Tables of launches that have not run yet are not read: wait for the streams first.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        self.watch.reports().0
    }

    /// Number of reports so far.
    #[must_use]
    #[doc(hidden)]
    pub fn found(&self) -> u64 {
        self.watch.reports().1
    }

    /// `Ok`, or the first report: for the end of a test.
    ///
    /// # Errors
    /// The first report.
    pub fn check(&self) -> Result<(), Box<Report>> {
        match self.reports().into_iter().next() {
            Some(report) => Err(Box::new(report)),
            None => Ok(()),
        }
    }

    /// Discards the reports; the recorded uses and order stay.
    #[doc(hidden)]
    pub fn clear(&self) {
        self.watch.clear();
    }
}

impl fmt::Debug for Sanitizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sanitizer({} found)", self.found())
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_device_keeps_the_context_of_the_device_that_it_watches() {
        let host = Device::host().expect("the host device");
        let context = Arc::new(());
        let owner = Arc::clone(&context) as _;
        let device = Device::over(Arc::clone(host.backend()), None, Some(owner));
        let (watched, sanitizer) = Sanitizer::over(&device);
        drop(device);
        for holder in [
            Box::new(sanitizer) as Box<dyn std::any::Any>,
            Box::new(watched),
        ] {
            assert_eq!(Arc::strong_count(&context), 2, "nothing keeps it");
            drop(holder);
        }
        assert_eq!(Arc::strong_count(&context), 1, "something keeps it");
    }
}
