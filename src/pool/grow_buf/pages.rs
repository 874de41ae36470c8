//! The memory of growing buffers: addresses, and the handles mapped there one behind the other, frames of the pool's
//! arena. The last may be more than the buffer uses: they go once all work is done that may use them, or are
//! used again by a buffer that grows before. The driver is called under the lock of one buffer's pages, within
//! which the pool's is taken for books.
//!
//! Their bytes count with the pool's. Bytes to be made are promised under the pool's lock, as those of a mapping
//! are (`job`), and booked once the driver has answered. Where the limit or the device lacks room the pool gives
//! up idle memory: what is known to be done first, then behind waits of the host, then what registered steps free.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::arena::Arena;
use crate::device::{lock, raise};
use crate::error::Result;
use crate::pool::core::{Core, CoreLock};
use crate::pool::grow::make_handles;
use crate::pool::structure::{Mark, Pages, PagesState, Shared};
use crate::seeded::seeded;

impl PagesState {
    /// Bytes of the first frames.
    fn bytes(&self, frames: usize) -> u64 {
        frames.checked_sub(1).map_or(0, |last| self.frames[last].1)
    }
}

impl Pages {
    /// Bytes that the buffer uses, from the base on.
    pub(in crate::pool) fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        state.bytes(state.used)
    }

    /// Uses frames again that have not gone yet, up to `bytes`; gives the bytes that are lacking then.
    pub(super) fn take_back(&self, bytes: u64) -> u64 {
        let mut state = lock(&self.state);
        while state.bytes(state.used) < bytes && state.used < state.frames.len() {
            state.used += 1;
        }
        bytes.saturating_sub(state.bytes(state.used))
    }

    /// Makes handles of up to `largest` bytes for `bytes` more, as promised, where all there are is used.
    ///
    /// # Errors
    /// What the driver said; what was made before is used.
    pub(super) fn make(&self, core: &CoreLock, bytes: u64, largest: u64) -> Result<()> {
        let mut state = lock(&self.state);
        let site = core.lock().arena.site().clone();
        let from = site.offset(self.base + state.bytes(state.used));
        let mut made = Vec::new();
        let mut outcome = make_handles(&site, (from, bytes), largest, &mut made);
        let mut core = core.lock();
        core.under_way.to_create -= bytes;
        core.under_way.end_one();
        for made in made {
            let end = state.bytes(state.used) + made.bytes;
            match core.arena.adopt(made) {
                Ok(frame) => {
                    state.frames.push((frame, end));
                    state.used += 1;
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        core.peak_reserved = core.peak_reserved.max(core.reserved());
        outcome
    }

    /// The buffer needs `bytes`: frames behind them go once `marks` are done.
    pub(super) fn shrink(&self, bytes: u64, marks: Vec<Mark>) {
        let mut state = lock(&self.state);
        while state.used > 0 && state.bytes(state.used - 1) >= bytes {
            state.used -= 1;
        }
        if state.used < state.frames.len() {
            for (timeline, tick) in marks {
                raise(&mut state.awaited, &timeline, tick);
            }
        }
    }

    /// Frames that sleep and that the buffer no longer uses are not made again.
    pub(in crate::pool) fn forget_asleep(&self, core: &CoreLock) {
        let mut state = lock(&self.state);
        let (mut core, used) = (core.lock(), state.used);
        let sleeps =
            |core: &Core, id| !core.arena.frame(id).awake && !seeded!("shrunk-asleep-is-made");
        while state.frames.len() > used
            && let Some((frame, _)) = state.frames.pop_if(|(it, _)| sleeps(&core, *it))
        {
            core.arena.forget_asleep(frame);
        }
    }

    /// The buffer is gone: all goes once `marks` are done.
    pub(super) fn leave(&self, marks: Vec<Mark>) {
        self.shrink(0, marks);
        lock(&self.state).left = true;
    }

    /// Gives back what is not used, if the work that may use it is done, or behind a `wait` of the host; gives the
    /// bytes, and whether the addresses went too. What the driver refuses stays until the next time.
    pub(super) fn settle(&self, core: &CoreLock, wait: bool) -> (u64, bool) {
        if wait && self.wait_for_awaited().is_err() {
            return (0, false);
        }
        let mut state = lock(&self.state);
        let is_done = |(timeline, tick): &Mark| {
            timeline.done() >= *tick || matches!(timeline.poll_to(*tick), Ok(done) if done >= *tick)
        };
        let some = state.used < state.frames.len();
        if some && !state.awaited.iter().all(is_done) && !seeded!("shrunk-under-queued-work") {
            return (0, false);
        }
        // Kept where nothing goes: a buffer that cannot grow may leave handles again.
        if some || seeded!("failed-growth-forgets-queued-work") {
            state.awaited.clear();
        }
        let released = if some { take_down(core, &mut state) } else { 0 };
        let gone = state.left && state.frames.is_empty() && self.unreserve().is_ok();
        state.left &= !gone;
        (released, gone)
    }

    /// The host waits without the lock: another thread may grow the buffer meanwhile.
    fn wait_for_awaited(&self) -> Result<()> {
        let state = lock(&self.state);
        let some = state.used < state.frames.len();
        let awaited = some.then(|| state.awaited.clone());
        drop(state);
        let mut each = awaited.iter().flatten();
        each.try_for_each(|(timeline, tick)| timeline.sync_to(*tick))
    }

    fn unreserve(&self) -> Result<()> {
        self.device.backend().unreserve(self.base, self.span)
    }
}

/// Gives the frames back that are not used, from the last on, up to one that the driver does not unmap; none of a
/// pool that sleeps, whose contents may be copied. Gives the bytes that the device has back.
fn take_down(core: &CoreLock, state: &mut PagesState) -> u64 {
    let mut books = core.lock();
    if books.asleep && !seeded!("handles-go-while-they-are-saved") {
        return 0;
    }
    let leaving = state.bytes(state.frames.len()) - state.bytes(state.used);
    books.under_way.jobs += 1;
    books.under_way.leaving += leaving;
    drop(books);
    let book = match seeded!("shrunk-bytes-stay-on-the-books") {
        true => |_: &mut Arena, _, _| {},
        false => Arena::frame_gone,
    };
    let mut released = 0;
    while state.frames.len() > state.used
        && let Some(&(frame, _)) = state.frames.last()
        && let Ok(bytes) = core.take_down(frame, book)
    {
        released += bytes;
        state.frames.pop();
    }
    let mut books = core.lock();
    books.under_way.leaving -= leaving;
    books.under_way.end_one();
    released
}

/// Gives all pages of a pool back that is gone, and so are its buffers. Waits on the host.
pub(in crate::pool) fn end(all: &[Arc<Pages>], arena: Arena) {
    // A failure here loses the memory and cannot be mended.
    for pages in all {
        let _ = pages.wait_for_awaited();
    }
    drop(arena);
    for pages in all {
        if !seeded!("growing-buffers-outlive-their-pool") {
            let _ = pages.unreserve();
        }
    }
}

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
        // A callback may panic.
        let grow = || self.try_to_grow(pages, bytes, stream);
        let grown = catch_unwind(AssertUnwindSafe(grow));
        if !matches!(grown, Ok(Ok(()))) && !seeded!("failed-growth-keeps-its-handles") {
            // Nothing used what was made.
            pages.shrink(before, Vec::new());
            self.settle_pages(pages, false);
        }
        self.tell();
        grown.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn try_to_grow(&self, pages: &Pages, bytes: u64, stream: u64) -> Result<()> {
        // Measures that made room, the cheap ones first.
        let mut taken = 0;
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
                _ if self.relieve(stream, lacking, true) => taken = 0,
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
        lock(&self.growing).clone()
    }

    pub(super) fn settle_pages(&self, pages: &Arc<Pages>, wait: bool) -> u64 {
        let (released, gone) = pages.settle(&self.core, wait);
        if gone {
            lock(&self.growing).retain(|it| !Arc::ptr_eq(it, pages));
        }
        released
    }

    pub(crate) fn settle_all(&self, wait: bool) -> u64 {
        let all = self.all_pages();
        all.iter().map(|it| self.settle_pages(it, wait)).sum()
    }
}
