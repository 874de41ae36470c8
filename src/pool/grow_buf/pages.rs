//! The memory of growing buffers: a range of addresses beside the pool's, and handles mapped there one behind the
//! other, frames of the pool's arena. The last ones may be unused: they are released once their work is done, or used
//! again if the buffer grows before. The host waits for that only if memory is short, or in a trim. The driver is
//! called under the lock of a buffer's pages, the pool's is taken within that.
//!
//! Their bytes count with the pool's. New bytes are promised under the pool's lock, like those of a mapping (`job`),
//! and booked after the driver's answer. If the limit or the device lacks room, the pool releases idle memory: first
//! what is known to be done, then behind waits of the host. Then it calls the registered steps.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::device::{beside, is_running, lock, raise};
use crate::error::{Error, Result, refuse};
use crate::pool::core::{Core, CoreLock};
use crate::pool::job::make_handles;
use crate::pool::structure::{Mark, Pages, PagesState, Shared};
use crate::pool::tuning::{LOOKS_AGAIN, MOST_TURNS};

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

    /// Uses unused frames again, up to `bytes`; returns the bytes that are still lacking.
    pub(super) fn take_back(&self, bytes: u64) -> u64 {
        let mut state = lock(&self.state);
        while state.bytes(state.used) < bytes && state.used < state.frames.len() {
            state.used += 1;
        }
        bytes.saturating_sub(state.bytes(state.used))
    }

    /// Makes handles for `bytes` more, if the slack allows it; once idle memory was `looked` for, if the limit does.
    /// True if so. All frames are in use. After an error of the driver the buffer uses the handles made before that.
    pub(super) fn make(&self, core: &CoreLock, bytes: u64, looked: bool) -> Result<bool> {
        let mut state = lock(&self.state);
        let mut books = core.lock();
        // The pool may have fallen asleep meanwhile.
        books.refuse_asleep()?;
        let slack = if looked { u64::MAX } else { books.slack(bytes) };
        if books.room().min(slack) < bytes {
            return Ok(false);
        }
        books.under_way.to_create += bytes;
        books.under_way.jobs += 1;
        let (site, largest) = (books.arena.site().clone(), books.handle_sizes(bytes).1);
        drop(books);
        let from = site.offset(self.site.base() + state.bytes(state.used));
        let mut made = Vec::new();
        let done = make_handles(&site, (from, bytes), largest, &mut made);
        let mut core = core.lock();
        core.under_way.to_create -= bytes;
        core.under_way.end_one();
        let booked = made.into_iter().try_for_each(|made| {
            let end = state.bytes(state.used) + made.bytes;
            state.frames.push((core.arena.adopt(made)?, end));
            state.used += 1;
            Ok(())
        });
        core.peak_reserved = core.peak_reserved.max(core.arena.reserved());
        done.and(booked).map(|()| true)
    }

    /// Uses `bytes` from now on: frames behind them are released once `marks` are done.
    pub(super) fn shrink(&self, bytes: u64, marks: Vec<Mark>) {
        let mut state = lock(&self.state);
        while state.used > 0 && state.bytes(state.used - 1) >= bytes {
            state.used -= 1;
        }
        if state.used < state.frames.len() {
            (state.awaited).retain(|(timeline, tick)| timeline.done() < *tick);
            for (timeline, tick) in marks {
                raise(&mut state.awaited, &timeline, tick);
            }
        }
    }

    /// Drops sleeping frames that the buffer no longer uses, so that they are not made again.
    pub(in crate::pool) fn forget_asleep(&self, core: &CoreLock) {
        let mut state = lock(&self.state);
        let (mut core, used) = (core.lock(), state.used);
        let sleeps = |core: &Core, id| !core.arena.frame(id).awake;
        while state.frames.len() > used
            && let Some((frame, _)) = state.frames.pop_if(|(it, _)| sleeps(&core, *it))
        {
            core.arena.forget_asleep(frame);
        }
    }

    /// Asks how far the work is, or waits on the host, without the lock: another thread, or a host call on this one,
    /// may use the buffer meanwhile. It asks no stream, by its uid, that is `short` of an earlier tick.
    fn ask(&self, wait: bool, short: &mut HashMap<u64, u64>) {
        let state = lock(&self.state);
        let some = state.used != state.frames.len();
        let awaited = some.then(|| state.awaited.clone());
        drop(state);
        let mut each = awaited.iter().flatten();
        let mut passes = |(on, tick): &Mark| {
            let is_short = short.get(&on.uid).is_some_and(|of| of <= tick);
            let passes = !is_short && on.poll_to(*tick).is_ok_and(|it| it >= *tick);
            if !passes && !is_short {
                short.insert(on.uid, *tick);
            }
            passes
        };
        match wait {
            // For each, whichever failed: a pool that ends unmaps all.
            true => each.for_each(|(on, tick)| _ = on.sync_to(*tick)),
            false => _ = each.all(|mark| mark.0.done() >= mark.1 || passes(mark)),
        }
    }
}

/// Releases the unused frames, from the last on, up to one that the driver does not unmap; none in a sleeping pool,
/// where copies of them may be under way. Returns the bytes released.
fn take_down(shared: &Shared, state: &mut PagesState) -> u64 {
    let mut books = shared.core.lock();
    if books.asleep {
        return 0;
    }
    books.under_way.jobs += 1;
    drop(books);
    let mut released = 0;
    while state.frames.len() > state.used
        && let Some(&(frame, _)) = state.frames.last()
        && let Ok(bytes) = shared.take_down(frame, Arena::frame_gone)
    {
        released += bytes;
        state.frames.pop();
    }
    shared.core.lock().under_way.end_one();
    released
}

/// Releases all pages of a pool, whose buffers are gone. Waits on the host.
pub(in crate::pool) fn end(all: &[Arc<Pages>], arena: Arena) {
    // A failure here loses the memory and cannot be mended.
    for pages in all {
        pages.ask(true, &mut HashMap::new());
    }
    drop(arena);
    for pages in all.iter() {
        let _ = pages.site.unreserve(pages.span);
    }
}

impl Shared {
    /// Maps memory for a buffer on `stream` until it has `bytes`. After an error the buffer is as it was.
    pub(super) fn grow_pages(
        self: &Arc<Self>,
        pages: &Arc<Pages>,
        bytes: u64,
        stream: u64,
    ) -> Result<()> {
        let bytes = bytes.next_multiple_of(self.device.info().granule.max(1));
        let before = pages.bytes();
        if bytes <= before {
            return Ok(());
        }
        // A callback may panic.
        let grow = || self.try_to_grow(pages, bytes, stream);
        let grown = catch_unwind(AssertUnwindSafe(grow));
        if !matches!(grown, Ok(Ok(true))) {
            // No work uses the new memory yet.
            pages.shrink(before, Vec::new());
            let (shared, pages) = (Arc::clone(self), Arc::clone(pages));
            beside(move || _ = shared.settle(&[pages], false));
        }
        self.tell();
        let has_room = grown.unwrap_or_else(|panic| resume_unwind(panic))?;
        // With the figures of the pool as it was.
        (has_room.then_some(())).ok_or_else(|| self.out_of_memory(bytes - before))
    }

    /// False if there is no room.
    fn try_to_grow(&self, pages: &Pages, bytes: u64, stream: u64) -> Result<bool> {
        // How many measures were taken, cheap ones first.
        let (mut taken, mut given_up, mut left) = (0, Ok(()), LOOKS_AGAIN);
        let mut turns = MOST_TURNS;
        loop {
            self.core.lock().refuse_asleep()?;
            let lacking = pages.take_back(bytes);
            if lacking == 0 {
                return Ok(true);
            }
            refuse!(is_running() => "thread",
                "a host call may not call the driver, and the buffer has too little memory: grow it before");
            self.settle_all(false);
            // Cached blocks are idle memory too.
            drop(self.lock_drained());
            match pages.make(&self.core, lacking, taken > 0) {
                Ok(true) => return Ok(true),
                Err(error) if !error.is_device_exhausted() => return Err(error),
                _ => taken += 1,
            }
            match taken {
                1 | 2 => given_up = self.give_up_idle(lacking, taken == 2),
                3 => drop(self.wait_for_others(self.core.lock())),
                _ if left == 0 => return given_up.map(|()| false),
                // What other threads free meanwhile is looked for again, but not as the pool falls asleep.
                _ => {
                    let again = left < LOOKS_AGAIN;
                    let helps = self.relieve(stream, lacking, (true, again), &mut turns);
                    (taken, left) = (0, left - u32::from(!helps));
                    self.awake.check()?;
                }
            }
        }
    }

    fn give_up_idle(&self, bytes: u64, wait: bool) -> Result<()> {
        let caught_up = self.catch_up(wait);
        self.work(|core| core.begin_giving_up(None, bytes, wait && caught_up.is_ok()))?;
        self.work(Core::begin_reaping)?;
        caught_up
    }

    /// Releases the buffers' unused frames, if the work that may use them is done, or behind a `wait` of the host; of
    /// dropped buffers the addresses too. Returns the bytes released. What the driver refuses stays until the next time.
    pub(super) fn settle(&self, all: &[Arc<Pages>], wait: bool) -> u64 {
        let (mut short, mut released) = (HashMap::new(), 0);
        for pages in all {
            pages.ask(wait, &mut short);
            let mut state = lock(&pages.state);
            let is_done = |(timeline, tick): &Mark| timeline.done() >= *tick;
            // Kept if no frame is unused: a growth that fails may leave unused frames again.
            if state.used != state.frames.len() && state.awaited.iter().all(is_done) {
                state.awaited.clear();
                released += take_down(self, &mut state);
            }
            if state.left && state.frames.is_empty() && pages.site.unreserve(pages.span).is_ok() {
                state.left = false;
                lock(&self.growing).retain(|it| !Arc::ptr_eq(it, pages));
            }
            let leaves = state.left || state.used != state.frames.len();
            pages.leaving.store(u64::from(leaves), Ordering::Relaxed);
        }
        released
    }

    pub(crate) fn settle_all(&self, wait: bool) -> u64 {
        let leave = |it: &&Arc<Pages>| it.leaving.load(Ordering::Relaxed) > 0;
        let all: Vec<_> = lock(&self.growing).iter().filter(leave).cloned().collect();
        self.settle(&all, wait)
    }
}
