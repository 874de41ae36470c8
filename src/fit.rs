//! The largest batch for which a step fits into memory.
//!
//! [`largest`] runs a step of the application at increasing sizes, reads from the pool how much memory
//! each needed, and finds the largest size that fits. It first guesses by the measured bytes per item,
//! then bisects, so that a few runs are enough. A run without enough memory is an error of the pool,
//! never the end of the process. If idle memory can then be released, it is, and the run is repeated, so
//! that memory left by earlier runs does not make a size seem too large.
//!
//! # Example
//! ```
//! use warpool::{Device, Pool, PoolConfig, fit};
//!
//! # fn main() -> warpool::Result<()> {
//! let device = Device::host()?;
//! let pool = Pool::new(&device, PoolConfig::default().limit(256 << 20))?;
//! let stream = device.stream()?;
//! let weights = pool.alloc_typed::<f32>(&stream, 1 << 20)?;
//! let found = fit::largest(&pool, &fit::Search::up_to(1000), |batch| {
//!     let _activations = pool.alloc_typed::<f32>(&stream, batch << 20)?;
//!     Ok(())
//! })?;
//! assert_eq!(found.size, 63);
//! assert_eq!(found.accumulation_steps(256), 5);
//! # drop(weights);
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;

use crate::error::{Error, Result};
use crate::pool::Pool;

/// The sizes that [`largest`] may find, and a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    most: usize,
    powers: bool,
    limit: Option<u64>,
}

impl Search {
    /// All sizes from 1 to `most`.
    #[must_use]
    pub fn up_to(most: usize) -> Self {
        Self {
            most,
            powers: false,
            limit: None,
        }
    }

    /// Only powers of two.
    #[must_use]
    pub fn powers_of_two(mut self) -> Self {
        self.powers = true;
        self
    }

    /// Limits the pool's physical bytes during the search, unless the pool has a lower limit. A limit
    /// set meanwhile is kept.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Number of sizes.
    fn count(&self) -> usize {
        match self.powers {
            true => self.most.checked_ilog2().map_or(0, |log| log as usize + 1),
            false => self.most,
        }
    }

    /// The size with index `at`, from 0.
    fn size(&self, at: usize) -> usize {
        if self.powers { 1 << at } else { at + 1 }
    }

    /// The index of the largest size up to `size`, which is at least 1.
    fn number(&self, size: usize) -> usize {
        if self.powers {
            size.ilog2() as usize
        } else {
            size - 1
        }
    }
}

/// One run of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The size.
    pub size: usize,
    /// Most bytes in live blocks of the pool during the run; `None` if memory was short.
    pub peak_bytes: Option<u64>,
}

/// The result of [`largest`].
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::fit::{Fit, Run, Search, largest};
///
/// let search = Search::up_to(16).limit(64 << 20);
/// let found: Fit = largest(&pool, &search, |batch| {
///     pool.alloc_typed::<u8>(&stream, batch << 20).map(drop)
/// })?;
/// let tried: &[Run] = &found.runs;
/// assert!(found.size == 16 && tried.iter().all(|run| run.size <= 16));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The largest size that fits.
    pub size: usize,
    /// Most bytes in live blocks of the pool at that size, including those allocated before the
    /// search.
    pub peak_bytes: u64,
    /// Most physical bytes that the pool held at that size.
    pub reserved_bytes: u64,
    /// Bytes per additional item, from the two largest sizes that fit; 0 if only one was run.
    pub bytes_per_item: f64,
    /// All runs, in order. The first is repeated, because a step may allocate lasting memory in its
    /// first run.
    pub runs: Vec<Run>,
}

impl Fit {
    /// Number of steps of this size whose gradients add up to a batch of `wanted` items.
    #[must_use]
    pub fn accumulation_steps(&self, wanted: usize) -> usize {
        wanted.div_ceil(self.size)
    }
}

/// Finds the largest size at which `step` runs.
///
/// `step` gets a size, allocates from `pool`, and returns the pool's [`Error::OutOfMemory`] if there is
/// too little memory (`?` does). A larger size must not need less memory. Memory that it keeps between
/// runs counts against later ones. Each run [resets](Pool::reset_peaks) the pool's peaks. At the end idle
/// memory is released, down to what the pool held before.
///
/// # Errors
/// [`Error::Invalid`] if there is no size to search; [`Error::OutOfMemory`] if not even the smallest
/// fits; any other error of `step`, at once; any error of the driver.
pub fn largest(pool: &Pool, search: &Search, step: impl FnMut(usize) -> Result<()>) -> Result<Fit> {
    if search.count() == 0 {
        return Err(Error::invalid("most", "0 is no size: give at least 1"));
    }
    let held = pool.stats().reserved.current;
    let _limited = Limited::to(pool, search.limit);
    let mut trial = Trial {
        pool,
        step,
        runs: Vec::new(),
        fits: Vec::new(),
    };
    let found = trial.search(search);
    let trimmed = pool.trim(held);
    let reserved_bytes = found?;
    trimmed?;
    let (size, peak_bytes) = trial.fits[trial.fits.len() - 1];
    Ok(Fit {
        size,
        peak_bytes,
        reserved_bytes,
        bytes_per_item: trial.bytes_per_item(),
        runs: trial.runs,
    })
}

/// Limits a pool during a search.
struct Limited<'a> {
    pool: &'a Pool,
    before: Option<u64>,
    during: Option<u64>,
}

impl<'a> Limited<'a> {
    fn to(pool: &'a Pool, bytes: Option<u64>) -> Self {
        let before = pool.limit();
        let during = bytes.map(|bytes| bytes.min(before.unwrap_or(u64::MAX)));
        if during.is_some() {
            pool.set_limit(during);
        }
        Self {
            pool,
            before,
            during,
        }
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        if self.during.is_some() && self.pool.limit() == self.during {
            self.pool.set_limit(self.before);
        }
    }
}

/// The runs of a step, and their results.
struct Trial<'a, S> {
    pool: &'a Pool,
    step: S,
    runs: Vec<Run>,
    /// Sizes that fit, ascending, with their peaks.
    fits: Vec<(usize, u64)>,
}

impl<S: FnMut(usize) -> Result<()>> Trial<'_, S> {
    /// Runs at `size`. The inner error is out-of-memory; the outer is any other error.
    fn once(&mut self, size: usize) -> Result<std::result::Result<u64, Error>> {
        self.pool.reset_peaks();
        let outcome = match (self.step)(size) {
            Ok(()) => Ok(self.pool.stats().allocated.peak),
            Err(error @ Error::OutOfMemory(_)) => Err(error),
            Err(error) => return Err(error),
        };
        let peak_bytes = outcome.as_ref().ok().copied();
        self.runs.push(Run { size, peak_bytes });
        Ok(outcome)
    }

    /// Whether the step runs at `size`; if it fails, repeats it after idle memory was released.
    fn fits(&mut self, size: usize) -> Result<std::result::Result<(), Error>> {
        let mut outcome = self.once(size)?;
        if outcome.is_err() && self.pool.trim(0)? > 0 {
            outcome = self.once(size)?;
        }
        Ok(outcome.map(|peak| self.fits.push((size, peak))))
    }

    fn bytes_per_item(&self) -> f64 {
        let [.., (small, less), (large, more)] = self.fits[..] else {
            return 0.0;
        };
        more.saturating_sub(less) as f64 / (large - small) as f64
    }

    /// The largest size by the measured bytes per item.
    fn guess(&self) -> usize {
        let (size, peak) = self.fits[self.fits.len() - 1];
        let left = self.room().saturating_sub(peak) as f64 / self.bytes_per_item();
        // Without a measurement, or with 0 bytes per item, the size doubles.
        if left.is_finite() {
            size.saturating_add(left as usize)
        } else {
            size.saturating_mul(2)
        }
    }

    /// Physical bytes that the pool could hold.
    fn room(&self) -> u64 {
        let free = self.pool.device().free_bytes().unwrap_or(u64::MAX);
        let held = self.pool.stats().reserved.current;
        self.pool
            .limit()
            .unwrap_or(u64::MAX)
            .min(free.saturating_add(held))
    }

    /// Finds the largest size, which becomes the last of `fits`; returns the most bytes held while it
    /// ran.
    fn search(&mut self, search: &Search) -> Result<u64> {
        self.fits(search.size(0))??;
        self.fits.clear();
        self.fits(search.size(0))??;
        let mut reserved = self.pool.stats().reserved.peak;
        // Sizes up to index `fits` fit; from index `fails` on none does.
        let (mut fits, mut fails) = (0, search.count());
        let mut guesses = 0;
        while fits + 1 < fails {
            let middle = fits + (fails - fits) / 2;
            let next = match guesses {
                0 => fits + 1,
                1..4 => search.number(self.guess()).clamp(fits + 1, fails - 1),
                // If the guess is exact, the next size fails, which ends the search.
                4 => fits + 1,
                _ => middle,
            };
            guesses += 1;
            if self.fits(search.size(next))?.is_ok() {
                fits = next;
                reserved = self.pool.stats().reserved.peak;
            } else {
                fails = next;
            }
        }
        Ok(reserved)
    }
}
