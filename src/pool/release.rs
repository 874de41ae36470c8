//! Releases idle memory to the device, on request or above a soft limit, and unmaps stale mappings.
//!
//! A stale mapping whose work is done is kept, and its addresses become a gap: see `Arena::keep`. It is unmapped
//! when another mapping needs the addresses, with its handle, or when too many are kept. Releases are jobs (`job`).

use std::collections::HashSet;

use super::ask::{self, Ask, Questions};
use super::core::{Core, is_done};
use super::mapping::{IdleFrame, first, total};
use super::stats::Told;
use super::structure::Shared;
use super::tuning::{MOST_KEPT, PENDING_LOOKED_AT};
use crate::arena::{FrameId, HandleId, Kept, Site};
use crate::device::Phys;
use crate::error::Result;
use crate::heap::placement::Placement;
use crate::heap::{Extent, Id, NIL};
use crate::seeded::seeded;

enum What {
    Idle(Id, FrameId),
    Old(Id),
    /// A handle that the driver did not release before.
    Refused(HandleId, Phys),
}

/// What is left to do for one of them: bytes to unmap, then a handle to release.
struct Part {
    what: What,
    mapped: Option<(u64, u64)>,
    phys: Option<Phys>,
}

pub(crate) struct Release {
    /// Of the host, before anything is unmapped.
    waits: Questions,
    parts: Vec<Part>,
    site: Site,
}

impl Release {
    pub(super) fn make(&mut self) -> Result<()> {
        ask::put(&self.waits, &mut 0)?;
        for part in &mut self.parts {
            if let Some((start, bytes)) = part.mapped {
                self.site.unmap(start, bytes)?;
                part.mapped = None;
            }
            let lost = matches!(part.what, What::Idle(..)) && seeded!("handle-lost-on-release");
            if let Some(phys) = part.phys.filter(|_| !lost) {
                match self.site.release(phys) {
                    Err(_) if matches!(part.what, What::Refused(..)) => break,
                    outcome => outcome?,
                }
            }
            part.phys = None;
        }
        Ok(())
    }
}

impl Core {
    /// Begins to release the `idle` frames, to unmap the `old` mappings, and to release handles that the driver
    /// refused before. Frames of one hole ascend.
    fn begin_release(
        &mut self,
        idle: &[IdleFrame],
        old: impl IntoIterator<Item = Id>,
    ) -> Option<Release> {
        let handles = idle.iter().map(|it| it.frame.handle);
        let handles = handles.filter(|_| !seeded!("kept-mapping-outlives-its-handle"));
        let kept = self.arena.kept_of(&handles.collect());
        let (mut parts, mut epochs) = (Vec::new(), Vec::new());
        let idle = (self.hold_frames(idle).into_iter()).map(|it| (it.hole, Some(it)));
        let old = old.into_iter().chain(self.unkeep(kept));
        for (id, idle) in idle.chain(old.map(|id| (id, None))) {
            let extent = *self.extents.get(id);
            let forgets = idle.is_some() && seeded!("released-under-queued-work");
            epochs.extend(Some(extent.epoch).filter(|_| !forgets));
            parts.push(Part {
                what: idle.map_or(What::Old(id), |it| What::Idle(id, it.id)),
                mapped: Some((extent.start, extent.bytes)),
                phys: idle.map(|it| it.frame.phys),
            });
        }
        let refused = self.arena.take_refused().into_iter();
        parts.extend(refused.map(|(handle, phys)| Part {
            what: What::Refused(handle, phys),
            mapped: None,
            phys: Some(phys),
        }));
        self.under_way.jobs += u64::from(!parts.is_empty());
        (!parts.is_empty()).then(|| Release {
            waits: self.questions(epochs, Ask::Done).unwrap_or_default(),
            parts,
            site: self.arena.site().clone(),
        })
    }

    /// Ends a release: books what is gone; the rest is as it was.
    pub(super) fn end_release(&mut self, release: Release) {
        self.under_way.end_one();
        let mut gone = HashSet::new();
        for part in release.parts {
            let (stays, released) = (part.mapped.is_some(), part.phys.is_none());
            match part.what {
                What::Idle(held, _) if stays => self.let_go(held),
                What::Idle(held, frame) => {
                    gone.insert(self.arena.frame(frame).handle);
                    self.under_way.held -= self.extents.get(held).bytes;
                    self.arena.frame_gone(frame, released);
                    self.extents.vacate(held);
                    self.extents.retired(held);
                }
                What::Old(id) if stays => self.retiring.push_back(id),
                What::Old(id) => {
                    self.arena.stale_unmapped(self.extents.get(id).start);
                    self.extents.retired(id);
                }
                What::Refused(handle, phys) => self.arena.offered(handle, phys, released),
            }
        }
        // Mappings of these handles that were kept meanwhile hold their memory.
        let kept = self.unkeep(self.arena.kept_of(&gone));
        self.retiring.extend(kept);
    }

    /// Turns kept mappings back into stale ones, which nothing uses.
    pub(super) fn unkeep(&mut self, kept: Vec<Kept>) -> Vec<Id> {
        let each = kept.into_iter().filter_map(|Kept { start, bytes, .. }| {
            self.arena.unkeep(start);
            self.stale_at(start, bytes)
        });
        each.collect()
    }

    /// Keeps stale mappings whose work is known to be done; begins to unmap those that are too many or cannot be
    /// kept.
    pub(super) fn begin_reaping(&mut self) -> Option<Release> {
        let (mut done, mut pending) = (Vec::new(), Vec::new());
        while pending.len() < PENDING_LOOKED_AT
            && let Some(id) = self.retiring.pop_front()
        {
            let extent = *self.extents.get(id);
            let is_done = is_done(&self.streams, extent.epoch);
            if !is_done && !seeded!("unmapped-under-queued-work") {
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
    pub(super) fn begin_trim(&mut self, keep: u64, wait: bool) -> Option<Release> {
        let excess = self.mapped().saturating_sub(keep);
        let usable = |extent: &Extent| wait || is_done(&self.streams, extent.epoch);
        let (idle, _) = first(self.idle(None, usable), excess);
        let old = wait.then(|| std::mem::take(&mut self.retiring));
        self.begin_release(&idle, old.into_iter().flatten())
    }

    /// Begins to release idle handles of at least `bytes`, and of what the pool holds beyond the limit; `wait` as for
    /// [`Core::begin_trim`]. For a `placement`, handles outside it, or none if they do not suffice. Stale mappings go
    /// too, as a handle's memory is released with its last mapping.
    pub(super) fn begin_giving_up(
        &mut self,
        placement: Option<&Placement>,
        bytes: u64,
        wait: bool,
    ) -> Option<Release> {
        let usable = |extent: &Extent| wait || is_done(&self.streams, extent.epoch);
        let bytes = bytes + (self.reserved() + self.promised()).saturating_sub(self.limit());
        let mut idle = self.idle(placement, usable);
        let few = placement.is_some() && total(&idle) < bytes;
        if few || seeded!("idle-memory-kept-from-growing-buffers") {
            return None;
        }
        let mut left = bytes;
        idle.retain(|it| {
            let goes = left > 0;
            left = left.saturating_sub(it.frame.bytes);
            goes
        });
        let old = wait.then(|| std::mem::take(&mut self.retiring));
        self.begin_release(&idle, old.into_iter().flatten())
    }

    pub(super) fn soft_limit(&self) -> u64 {
        self.config.soft_limit.unwrap_or(u64::MAX)
    }

    pub(crate) fn is_over_soft_limit(&self) -> bool {
        (self.config.soft_limit).is_some_and(|most| self.reserved() > most)
    }

    /// Merges neighbouring holes whose work is known to be done, and frees empty slabs whose work is.
    pub(super) fn merge_done(&mut self) {
        for slab in self.slabs.mixed() {
            self.release_slab(slab);
        }
        let mut at = self.extents.first();
        while at != NIL {
            self.merge_done_from(at);
            at = self.extents.get(at).next;
        }
    }
}

impl Shared {
    /// As [`Pool::trim`](super::Pool::trim).
    pub(super) fn trim(&self, keep: u64) -> Result<u64> {
        let before = self.lock_drained().reserved();
        match before > keep {
            true => self.catch_up(true)?,
            false => _ = self.settle_all(false),
        }
        self.work(|core| core.begin_trim(keep, true))?;
        let mut core = self.core.lock();
        // Another thread may have grown it meanwhile.
        let released = before.saturating_sub(core.reserved());
        core.count(Told::Trimmed(released));
        Ok(released)
    }

    /// Releases idle memory that is in no cache while the pool is over its soft limit, without a wait.
    #[cold]
    pub(super) fn ease(&self) {
        if !self.core.lock().is_over_soft_limit() {
            return;
        }
        // What the driver does not release stays idle memory, and is offered again next time.
        let _ = (self.catch_up(false))
            .and_then(|()| self.work(|core| core.begin_trim(core.soft_limit(), false)))
            .and_then(|_| self.work(|core| core.ask_of_old()))
            .and_then(|_| self.work(Core::begin_reaping));
    }

    /// Frees and merges all memory whose work is done, or will be after a `wait` of the host. Work without a
    /// mark is never known to be done, so this makes the marks.
    pub(super) fn catch_up(&self, wait: bool) -> Result<()> {
        self.settle_all(wait);
        let ask: fn(u64) -> Ask = if wait { Ask::Done } else { Ask::Reached };
        let mut questions = self.transfer.ask_of_all_used(wait);
        self.work(|core| {
            questions.append(&mut core.ask_of_all(ask).unwrap_or_default());
            ask::some(questions)
        })?;
        let mut core = self.core.lock();
        self.give_used(&mut core);
        core.merge_done();
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
