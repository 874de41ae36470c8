//! Giving memory back: on request, and above a soft limit.

use super::ask::Ask;
use super::core::Core;
use super::stats::Told;
use super::structure::Shared;
use crate::error::Result;

impl Shared {
    /// Gives idle memory back to the device, keeping at least `keep` bytes; gives the bytes released.
    /// Waits on the host for work that still uses idle memory.
    pub(super) fn trim(&self, keep: u64) -> Result<u64> {
        let before = self.lock_drained().reserved();
        self.settle_all(before > keep);
        if before > keep {
            self.work(|core| core.ask_of_all(Ask::Done))?;
            self.core.lock().merge_done();
        }
        self.work(|core| core.begin_trim(keep))?;
        let mut core = self.core.lock();
        // Another may have grown it meanwhile.
        let released = before.saturating_sub(core.reserved());
        core.count(Told::Trimmed(released));
        Ok(released)
    }

    /// Gives idle memory back while the pool is over its soft limit. Nobody waits.
    #[cold]
    pub(crate) fn ease(&self) {
        self.drain_all();
        self.ease_holes();
    }

    /// The same of what is in no cache.
    #[cold]
    pub(super) fn ease_holes(&self) {
        // What the driver refuses stays idle memory of the pool, and is offered again next time.
        let _ = self.try_to_ease();
    }

    fn try_to_ease(&self) -> Result<()> {
        if !self.core.lock().is_over_soft_limit() {
            return Ok(());
        }
        self.settle_all(false);
        // Nothing is recorded until someone asks: without a mark no work is ever known to be done.
        self.work(|core| core.ask_of_all(Ask::Reached))?;
        self.work(Core::begin_easing)?;
        self.work(|core| core.ask_of_old())?;
        self.work(Core::begin_reaping)?;
        Ok(())
    }
}
