//! The budget of growing buffers: their bytes count with the pool's. Bytes to be made are promised under the
//! pool's lock, as those of a mapping are (`job`), and booked once the driver has answered. Where the limit or
//! the device lacks room the pool gives up idle memory: what is known to be done first, then behind waits of
//! the host, then what registered steps free.

use std::sync::Arc;

use super::pages::Pages;
use crate::device::lock;
use crate::error::Result;
use crate::pool::core::Core;
use crate::pool::pressure::Left;
use crate::pool::structure::Shared;
use crate::seeded::seeded;

impl Core {
    /// Physical bytes that the pool holds, those of growing buffers too.
    pub(crate) fn reserved(&self) -> u64 {
        self.arena.reserved()
    }

    /// Of these, bytes of growing buffers.
    pub(crate) fn grown(&self) -> u64 {
        self.arena.beside()
    }

    /// Of those, bytes in handles that stand mapped for somebody.
    pub(crate) fn mapped(&self) -> u64 {
        let without = u64::from(seeded!("soft-limit-without-growing-buffers"));
        self.arena.mapped() - self.grown() * without
    }

    /// Promises `bytes` to a growing buffer, if the slack allows, or, once idle memory was `looked` for, the limit.
    /// Gives the most bytes of a handle.
    fn promise(&mut self, bytes: u64, looked: bool) -> Option<u64> {
        let slack = if looked { u64::MAX } else { self.slack(bytes) };
        if self.room().min(slack) < bytes && !seeded!("growing-beyond-the-limit") {
            return None;
        }
        self.under_way.to_create += bytes;
        self.under_way.jobs += 1;
        Some(self.largest_handle(bytes, bytes))
    }
}

/// Takes a growth back that failed, or in which a callback panicked.
struct Undo<'a> {
    shared: &'a Shared,
    pages: &'a Arc<Pages>,
    before: u64,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        // Nothing used what was made.
        self.pages.shrink(self.before, Vec::new());
        self.shared.settle_pages(self.pages, false);
    }
}

impl Shared {
    /// Maps memory for `bytes` of a buffer whose stream is `stream`, unless it has so much.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), what the driver said; the buffer is then as
    /// it was.
    pub(super) fn grow_pages(&self, pages: &Arc<Pages>, bytes: u64, stream: u64) -> Result<()> {
        let bytes = bytes.next_multiple_of(self.device.info().granule.max(1));
        let before = pages.bytes();
        if bytes <= before {
            return Ok(());
        }
        let undo = Undo {
            shared: self,
            pages,
            before,
        };
        let grown = self.try_to_grow(pages, bytes, stream);
        match grown.is_ok() || seeded!("failed-growth-keeps-its-handles") {
            true => std::mem::forget(undo),
            false => drop(undo),
        }
        self.tell();
        grown
    }

    fn try_to_grow(&self, pages: &Pages, bytes: u64, stream: u64) -> Result<()> {
        // Measures that made room, the cheap ones first.
        let (mut taken, mut left) = (0, Left::default());
        loop {
            self.core.lock().refuse_asleep()?;
            let lacking = pages.take_back(bytes);
            if lacking == 0 {
                return Ok(());
            }
            // What lies in caches is idle too. It may have fallen asleep meanwhile.
            let mut core = self.lock_drained();
            core.refuse_asleep()?;
            let promised = core.promise(lacking, taken > 0);
            drop(core);
            if let Some(largest) = promised {
                match pages.make(&self.core, lacking, largest) {
                    Err(error) if error.is_device_exhausted() => {}
                    outcome => return outcome,
                }
            }
            taken += 1;
            match taken {
                1 => self.give_up_idle(lacking, false)?,
                2 => self.give_up_idle(lacking, true)?,
                3 => drop(self.wait_for_others(self.core.lock())),
                _ if self.relieve(stream, lacking, &mut left) => taken = 0,
                _ => return Err(self.out_of_memory(lacking)),
            }
        }
    }

    fn give_up_idle(&self, bytes: u64, wait: bool) -> Result<()> {
        self.catch_up(wait)?;
        self.work(|core| core.begin_giving_up(None, bytes, wait))?;
        let reap = [Core::begin_reaping, Core::begin_reaping_all][usize::from(wait)];
        self.work(reap).map(drop)
    }

    pub(in crate::pool) fn all_pages(&self) -> Vec<Arc<Pages>> {
        lock(&self.growing.0).clone()
    }

    pub(super) fn settle_pages(&self, pages: &Arc<Pages>, wait: bool) -> u64 {
        let (released, gone) = pages.settle(&self.core, wait);
        if gone {
            lock(&self.growing.0).retain(|it| !Arc::ptr_eq(it, pages));
        }
        released
    }

    pub(crate) fn settle_all(&self, wait: bool) -> u64 {
        let all = self.all_pages();
        all.iter().map(|it| self.settle_pages(it, wait)).sum()
    }
}
