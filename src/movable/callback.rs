//! Telling the application where a block went.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::id::MovableId;
use crate::device::Addr;

/// A block has a new address.
///
/// ```
/// # fn main() -> warpool::Result<()> {
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let pool = Pool::new(&device, PoolConfig::default())?;
/// # let stream = device.stream()?;
/// use warpool::movable::Relocation;
///
/// let block = pool.alloc_movable::<f32>(&stream, 256)?;
/// block.on_move(|moved: &Relocation| println!("{:#x} is now at {:#x}", moved.from, moved.to));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relocation {
    /// Whose block.
    pub id: MovableId,
    /// Where it was.
    pub from: Addr,
    /// Where it is.
    pub to: Addr,
    /// Bytes of the block as the pool rounds them.
    pub bytes: u64,
    /// Counts the pool's moves up: where two threads compact and the later is told first, it has
    /// the larger number.
    pub number: u64,
}

/// What the application wants called.
pub(super) type Callback = Arc<dyn Fn(&Relocation) + Send + Sync>;

/// Calls to make once no lock is held.
pub(super) type Calls = Vec<(Callback, Relocation)>;

/// Makes them, each even if one before it panics; the first panic then goes on.
pub(super) fn tell(calls: Calls) {
    let mut first = None;
    for (callback, relocation) in calls {
        let told = catch_unwind(AssertUnwindSafe(|| callback(&relocation)));
        if let Err(panic) = told
            && first.is_none()
        {
            first = Some(panic);
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}
