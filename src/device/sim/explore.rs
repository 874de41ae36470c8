//! Runs every schedule of a small program, one after the other.
//!
//! The choices of a run determine it, so the runs of a program are the leaves of a tree. They are
//! walked depth first: follow a path, take the first possibility of every choice beyond it, and
//! afterwards change the last choice that has an alternative left. No schedule runs twice.

use std::sync::{Arc, Mutex};

use super::choose::{Chooser, Path};
use super::{SimConfig, open_with};
use crate::device::Device;
use crate::error::Result;
use crate::sync::plain::lock;

/// The result of [`explore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explored {
    /// Number of schedules run, each once.
    pub schedules: u64,
    /// Whether these are all schedules of the program.
    pub complete: bool,
}

/// Runs `program` under each of its schedules, on a new device each, but at most `most` times. The
/// seed and strategy of `config` are not used.
///
/// `program` must be deterministic, given the same answers from the device. The number of schedules
/// is the number of interleavings: 560 for three streams of 3, 3 and 2 operations, 34,650 for three
/// of 4; each query (`is_idle`, `is_done`) adds more.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::device::sim::{SimConfig, explore};
///
/// let config = SimConfig::default().with_capacity(64 << 20);
/// let explored = explore(&config, 1000, |device| {
///     let pool = Pool::new(device, PoolConfig::default())?;
///     let (first, second) = (device.stream()?, device.stream()?);
///     let kept = pool.alloc_filled(&first, 4, 7_u32)?;
///     let other = pool.alloc_filled(&second, 4, 8_u32)?;
///     assert_eq!((kept.download()?[0], other.download()?[0]), (7, 8));
///     Ok(())
/// })?;
/// assert!(explored.schedules > 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The first error of `program`, after which no more schedules run, or an error of opening a
/// device.
pub fn explore(
    config: &SimConfig,
    most: u64,
    mut program: impl FnMut(&Device) -> Result<()>,
) -> Result<Explored> {
    let path = Arc::new(Mutex::new(Path::default()));
    let mut schedules = 0;
    while schedules < most {
        let chooser = Chooser::along(Arc::clone(&path));
        program(&Device::from_backend(open_with(config, chooser)?))?;
        schedules += 1;
        if !next(&mut lock(&path)) {
            return Ok(Explored {
                schedules,
                complete: true,
            });
        }
    }
    Ok(Explored {
        schedules,
        complete: false,
    })
}

/// Advances the path to the next leaf; returns false after the last.
fn next(path: &mut Path) -> bool {
    path.choices.truncate(path.at);
    path.at = 0;
    while let Some(last) = path.choices.last_mut() {
        if last.taken + 1 < last.of {
            last.taken += 1;
            return true;
        }
        path.choices.pop();
    }
    false
}
