//! Calling the application when a block has moved.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::id::MovableId;
use crate::device::{Addr, panicked};

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
        let told = catch_unwind(AssertUnwindSafe(move || callback(&relocation)));
        match told {
            Err(panic) if first.is_none() => first = Some(panic),
            // The panic's value is the application's, and its drop may panic.
            Err(panic) => _ = panicked("callback", panic),
            Ok(()) => {}
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Panics when it is dropped, unless that is while a thread panics.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "dropped");
        }
    }

    #[test]
    fn all_callbacks_are_called_whatever_the_ones_before_panicked_with() {
        let called = Arc::new(AtomicUsize::new(0));
        let relocation = Relocation {
            id: MovableId {
                index: 0,
                generation: 0,
            },
            from: 0,
            to: 256,
            bytes: 256,
            number: 0,
        };
        let calls = [(); 3].map(|()| {
            let called = Arc::clone(&called);
            let callback: Callback = Arc::new(move |_| {
                called.fetch_add(1, Ordering::Relaxed);
                std::panic::panic_any(Bomb);
            });
            (callback, relocation)
        });
        let told = catch_unwind(AssertUnwindSafe(|| tell(calls.into())));
        std::mem::forget(told.unwrap_err());
        assert_eq!(called.load(Ordering::Relaxed), 3);
    }
}
