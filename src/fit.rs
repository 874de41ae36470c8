//! What fits: the largest batch that a step can be run with.
//!
//! [`largest`] runs a step of the application at growing sizes, reads from the pool what each needed,
//! and finds the largest that the memory allows. It guesses by measured bytes an item first and halves
//! the interval after, so that a few runs do. A run that finds no memory is an error value of the pool,
//! never the end of the process; where idle memory can be given back, that is done and the run made once
//! more, so that what earlier runs left cannot make a size seem too large.
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

/// Which sizes [`largest`] may find, and under what limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    most: usize,
    powers: bool,
    limit: Option<u64>,
}

impl Search {
    /// Any size from 1 to `most`.
    #[must_use]
    pub fn up_to(most: usize) -> Self {
        Self {
            most,
            powers: false,
            limit: None,
        }
    }

    /// Powers of two alone.
    #[must_use]
    pub fn powers_of_two(mut self) -> Self {
        self.powers = true;
        self
    }

    /// With a limit of the pool's physical bytes for as long as the search lasts, where the pool has no
    /// lower one. A limit that is set meanwhile stays.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Sizes in all.
    fn count(&self) -> usize {
        match self.powers {
            true => self.most.checked_ilog2().map_or(0, |log| log as usize + 1),
            false => self.most,
        }
    }

    /// The size numbered `at`, from 0.
    fn size(&self, at: usize) -> usize {
        if self.powers { 1 << at } else { at + 1 }
    }

    /// The number of the largest size up to `size`, which is at least 1.
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
    /// At which size.
    pub size: usize,
    /// Most bytes in live blocks of the pool meanwhile; `None` where memory was short.
    pub peak_bytes: Option<u64>,
}

/// What [`largest`] found.
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
    /// Most bytes in live blocks of the pool at that size, those that lived before the search among
    /// them.
    pub peak_bytes: u64,
    /// Most physical bytes that the pool held at that size.
    pub reserved_bytes: u64,
    /// Bytes that one item more needs, by the two largest sizes that fit; 0 if only one was run.
    pub bytes_per_item: f64,
    /// All runs, in order. The first is run twice: a step may make what stays at its first run.
    pub runs: Vec<Run>,
}

impl Fit {
    /// Steps of this size whose gradients are to be summed for a batch of `wanted` items.
    #[must_use]
    pub fn accumulation_steps(&self, wanted: usize) -> usize {
        wanted.div_ceil(self.size)
    }
}

/// The largest size at which `step` runs.
///
/// `step` is given a size, takes its memory from `pool` and returns the pool's error where there is too
/// little ([`Error::OutOfMemory`], as `?` does). It must need no less for a larger size. What it keeps
/// from run to run counts against the later ones. The pool's peaks are [reset](Pool::reset_peaks) by each
/// run. At the end idle memory is given back down to what the pool held before.
///
/// # Errors
/// [`Error::Invalid`] for a search without a size; [`Error::OutOfMemory`] where not even the smallest
/// fits; any other error of `step`, at once; what the driver said.
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

/// A pool's limit while a search lasts.
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

/// Runs of a step, and what is known by them.
struct Trial<'a, S> {
    pool: &'a Pool,
    step: S,
    runs: Vec<Run>,
    /// Sizes that fit, ascending, and their peaks.
    fits: Vec<(usize, u64)>,
}

impl<S: FnMut(usize) -> Result<()>> Trial<'_, S> {
    /// Runs at `size`; an error of memory is given apart.
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

    /// Whether the step runs at `size`, from a pool without idle memory if need be.
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

    /// The largest size that the bytes an item allow for.
    fn guess(&self) -> usize {
        let (size, peak) = self.fits[self.fits.len() - 1];
        let left = self.room().saturating_sub(peak) as f64 / self.bytes_per_item();
        // Without a measure, or with one of 0, the size doubles.
        if left.is_finite() {
            size.saturating_add(left as usize)
        } else {
            size.saturating_mul(2)
        }
    }

    /// Physical bytes that the pool may come to hold.
    fn room(&self) -> u64 {
        let free = self.pool.device().free_bytes().unwrap_or(u64::MAX);
        let held = self.pool.stats().reserved.current;
        self.pool
            .limit()
            .unwrap_or(u64::MAX)
            .min(free.saturating_add(held))
    }

    /// Finds the largest size, the last of those that fit; gives the bytes held at most while it ran.
    fn search(&mut self, search: &Search) -> Result<u64> {
        self.fits(search.size(0))??;
        self.fits.clear();
        self.fits(search.size(0))??;
        let mut reserved = self.pool.stats().reserved.peak;
        // Sizes from the first up to `fits` do, from `fails` on none does.
        let (mut fits, mut fails) = (0, search.count());
        let mut guesses = 0;
        while fits + 1 < fails {
            let middle = fits + (fails - fits) / 2;
            let next = match guesses {
                0 => fits + 1,
                1..4 => search.number(self.guess()).clamp(fits + 1, fails - 1),
                // A guess that only just holds says that the next size does not.
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
