//! Releases idle memory to the device, on request or above a soft limit, and unmaps stale mappings.
//!
//! A stale mapping whose work is done is kept, and its addresses become a gap: see `Arena::keep`. It is unmapped
//! when another mapping needs the addresses, with its handle, or when too many are kept. Releases are jobs (`job`).

use super::ask::Ask;
use super::core::{Core, is_done};
use super::job::{Job, Part};
use super::mapping::{IdleFrame, beside, first, total};
use super::stats::Told;
use super::structure::Shared;
use super::tuning::{MOST_KEPT, PENDING_LOOKED_AT};
use crate::arena::Kept;
use crate::device::is_under_capture;
use crate::error::Result;
use crate::heap::placement::Placement;
use crate::heap::{Epoch, Extent, FRESH, Id, NIL, State};

impl Core {
    /// Begins to release the `idle` frames, to unmap the `old` mappings, and to release handles that the driver
    /// refused before. Frames of one hole ascend. Mappings that cannot be waited for stay, unless the pool falls asleep.
    fn begin_release(&mut self, idle: &[IdleFrame], old: Vec<Id>) -> Option<Job> {
        let goes = |id: &Id| self.asleep || self.may_wait(self.extents.get(*id).epoch);
        let (mut old, left): (Vec<Id>, Vec<Id>) = old.into_iter().partition(goes);
        self.retiring.extend(left);
        let kept = (self.arena).kept_of(&idle.iter().map(|it| it.frame.handle).collect());
        old.extend(self.unkeep(kept));
        let old = old.into_iter().map(|id| (id, *self.extents.get(id)));
        let old: Vec<_> = old.collect();
        let idle = self.hold_frames(idle);
        let holes = idle.iter().map(|it| self.extents.get(it.hole).epoch);
        let epochs: Vec<Epoch> = holes.chain(old.iter().map(|(_, old)| old.epoch)).collect();
        let waits = self.questions(epochs.iter().copied(), Ask::Done);
        let mut parts: Vec<_> = idle.into_iter().map(Part::Idle).collect();
        parts.extend(old.into_iter().map(|(id, old)| Part::Old(id, old)));
        let refused = self.arena.take_refused().into_iter();
        parts.extend(refused.map(|(handle, phys)| Part::Refused(handle, phys)));
        (!parts.is_empty()).then(|| self.begin(waits, &epochs, parts))
    }

    /// Turns kept mappings back into stale ones, which nothing uses.
    pub(super) fn unkeep(&mut self, kept: Vec<Kept>) -> Vec<Id> {
        let each = kept.into_iter().filter_map(|Kept { start, bytes, .. }| {
            self.arena.unkeep(start);
            self.stale_at(start, bytes)
        });
        each.collect()
    }

    /// Keeps stale mappings whose work is known to be done; begins to unmap those that are too many or cannot be kept.
    pub(super) fn begin_reaping(&mut self) -> Option<Job> {
        let (mut done, mut pending) = (Vec::new(), Vec::new());
        while pending.len() < PENDING_LOOKED_AT
            && let Some(id) = self.retiring.pop_front()
        {
            let extent = *self.extents.get(id);
            let is_done = is_done(&self.streams, extent.epoch);
            if !is_done {
                pending.push(id);
            } else if self.arena.keep(extent.start) {
                self.extents.retired(id);
            } else {
                done.push(id);
            }
        }
        // The next call looks at others first.
        self.retiring.extend(pending);
        done.extend(self.unkeep(self.arena.kept_beyond(MOST_KEPT)));
        self.begin_release(&[], done)
    }

    /// Begins to release idle memory, down to `keep` bytes. With a `wait` of the host, all of it and all stale
    /// mappings; otherwise only idle memory whose work is known to be done.
    pub(super) fn begin_trim(&mut self, keep: u64, wait: bool) -> Option<Job> {
        let excess = self.arena.mapped().saturating_sub(keep);
        let usable = |extent: &Extent| wait || is_done(&self.streams, extent.epoch);
        let idle = first(self.idle(usable), excess);
        let old = wait.then(|| std::mem::take(&mut self.retiring));
        self.begin_release(&idle, old.unwrap_or_default().into())
    }

    /// Begins to release idle handles of at least `bytes`, and of what the pool holds beyond the limit; `wait` as for
    /// [`Core::begin_trim`]. For a `placement`, handles outside it, or none if they do not suffice. Stale mappings go
    /// too, as a handle's memory is released with its last mapping.
    pub(super) fn begin_giving_up(
        &mut self,
        placement: Option<&Placement>,
        bytes: u64,
        wait: bool,
    ) -> Option<Job> {
        let usable = |extent: &Extent| wait || is_done(&self.streams, extent.epoch);
        let bytes = bytes + self.held().saturating_sub(self.limit());
        let mut idle = self.idle(usable);
        if let Some(window) = placement {
            idle = beside(window, &idle);
        }
        if placement.is_some() && total(&idle) < bytes {
            return None;
        }
        let mut left = bytes;
        idle.retain(|it| {
            let goes = left > 0;
            left = left.saturating_sub(it.frame.bytes);
            goes
        });
        let old = wait.then(|| std::mem::take(&mut self.retiring));
        self.begin_release(&idle, old.unwrap_or_default().into())
    }

    pub(super) fn soft_limit(&self) -> u64 {
        self.config.soft_limit.unwrap_or(u64::MAX)
    }

    pub(crate) fn is_over_soft_limit(&self) -> bool {
        (self.config.soft_limit).is_some_and(|most| self.arena.reserved() > most)
    }

    /// Merges neighbouring holes whose work is known to be done, and frees empty slabs whose work is.
    pub(super) fn merge_done(&mut self) {
        for slab in self.slabs.mixed() {
            self.release_slab(slab);
        }
        let mut at = self.extents.first();
        while at != NIL {
            self.merge_done_from(at);
            let Extent {
                state, epoch, next, ..
            } = *self.extents.get(at);
            let done = state == State::Free && is_done(&self.streams, epoch);
            // The slot of a stream that is gone may go to another.
            if done && epoch.stream != FRESH && self.is_left(epoch.stream) {
                self.extents.set_epoch(at, Epoch::PAST);
            }
            at = next;
        }
    }
}

impl Shared {
    /// As [`Pool::trim`](super::Pool::trim); returns what was released also beside an error.
    pub(crate) fn trim(&self, keep: u64) -> (u64, Result<()>) {
        let before = self.lock_drained().arena.reserved();
        let caught_up = match before > keep {
            true => self.catch_up(true),
            false => Ok(_ = self.settle_all(true)),
        };
        // What is ready goes, also if some work cannot be waited for.
        let trimmed = self.work(|core| core.begin_trim(keep, caught_up.is_ok()));
        let trimmed = trimmed.and_then(|()| self.work(Core::begin_reaping));
        let mut core = self.core.lock();
        // Another thread may have grown it meanwhile.
        let released = before.saturating_sub(core.arena.reserved());
        core.count(Told::Trimmed(released));
        drop(core);
        self.tell();
        (released, caught_up.and(trimmed))
    }

    /// Releases idle memory that is in no cache while the pool is over its soft limit, without a wait.
    #[cold]
    pub(super) fn ease(&self) {
        // What the driver does not release stays idle memory, and is offered again next time.
        let _ = self.catch_up(false);
        let _ = self.work(|core| core.begin_trim(core.soft_limit(), false));
        let _ = self.work(|core| Job::asking(core.ask_of_old()));
        let _ = self.work(Core::begin_reaping);
    }

    /// Frees and merges all memory whose work is done, or will be after a `wait` of the host. Work without a
    /// mark is never known to be done, so this makes the marks. After an error, what is known to be done is free.
    pub(super) fn catch_up(&self, wait: bool) -> Result<()> {
        self.settle_all(wait);
        let ask: fn(u64) -> Ask = if wait { Ask::Done } else { Ask::Reached };
        let questions = (self.transfer).ask_of_used(usize::MAX, |_| true, |_, tick| ask(tick));
        let used = self.work(|_| Job::asking(questions));
        // Their blocks have epochs of their own, which are asked about with the others.
        self.give_used(&mut self.core.lock());
        let asked = self.work(|core| Job::asking(core.ask_of_all(ask)));
        self.core.lock().merge_done();
        // Memory of a stream under capture is not idle.
        let is_lasting = |it: &Result<()>| !it.as_ref().is_err_and(is_under_capture);
        [used, asked].into_iter().filter(is_lasting).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
