//! Calling the application when a block has moved.

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
    /// The block.
    pub id: MovableId,
    /// Its old address.
    pub from: Addr,
    /// Its new address.
    pub to: Addr,
    /// The block's capacity: its bytes as rounded by the pool.
    pub bytes: u64,
    /// A count of the pool's moves. If two threads compact and the callback for the later move runs
    /// first, that call has the larger number.
    pub number: u64,
}

/// The application's callback.
pub(super) type Callback = Arc<dyn Fn(&Relocation) + Send + Sync>;

/// Calls to make once no lock is held.
pub(super) type Calls = Vec<(Callback, Relocation)>;

/// Makes the calls, each even if one before it panics; then resumes the first panic.
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
