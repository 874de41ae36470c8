//! A checker of stream order: which uses of device memory nothing orders.
//!
//! # What it finds
//!
//! Two uses of the same bytes, at least one of them a write, must be ordered: by being queued on
//! one stream, by events and waits, or by the host having waited in between. Where they are not, a
//! program may run right for months. [`Sanitizer`] wraps any device and reports such a pair when
//! the second use is queued, whether or not it went wrong this time: both operations, their
//! streams, and the wait that is missing. It also knows what a [pool](crate::pool) gives out and
//! takes back: use behind a free, use of memory that no block has, blocks freed while another
//! stream's work is not ordered before the free, unmapping under queued work.
//!
//! # What it sees
//!
//! Copies, fills and the crate's own kernels with every range they use; the moves, tiles and words
//! that tables in device memory name are read when the launch runs, where the host can read device
//! memory (the host device and the simulated one). Kernels of the application's own are declared
//! with [`Stream::kernel`](crate::Stream::kernel). Only memory made through the device is
//! watched. Order is checked by physical byte, so that one handle mapped at two addresses is one
//! memory.
//!
//! # What it does not report
//!
//! It reports nothing that is ordered. What one host thread has learnt counts for all threads, and
//! a host call that has run counts as seen by the host; so a race that only such luck orders may
//! be missed. Memory of the host is not watched.
//!
//! # Cost
//!
//! A lock and a few comparisons an operation. Nothing at all without the feature `sanitize`.
//!
//! # Parts
//!
//! - `order`: epochs and vector clocks; what runs before what.
//! - `places`: mappings and owners; what is behind an address.
//! - `shadow`: who used which bytes last.
//! - `books`: the three together.
//! - `watch`: the device that is wrapped around another.

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
    /// A watched device over the same memory as `device`, and its watcher. Use the watched one for
    /// everything: what goes through `device` itself is not seen.
    #[must_use]
    pub fn over(device: &Device) -> (Device, Self) {
        let watch = Arc::new(Watch::new(Arc::clone(device.backend())));
        let watched = Device::from_backend(Arc::clone(&watch) as _);
        (watched, Self { watch })
    }

    /// What was found so far, the first 100.
    ///
    /// Tables of launches that have not run yet are not read: wait for the streams first.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        self.watch.reports().0
    }

    /// How many were found so far.
    #[must_use]
    #[doc(hidden)]
    pub fn found(&self) -> u64 {
        self.watch.reports().1
    }

    /// Nothing, or the first report: for the end of a test.
    ///
    /// # Errors
    /// The first report.
    pub fn check(&self) -> Result<(), Box<Report>> {
        match self.reports().into_iter().next() {
            Some(report) => Err(Box::new(report)),
            None => Ok(()),
        }
    }

    /// Forgets what was found; what is known of uses and order stays.
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
