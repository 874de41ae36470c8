//! Memory that goes back to the device, on request or above a soft limit, and old mappings: whose work is
//! done, or is waited for.
//!
//! An old mapping whose work is done is kept, and its addresses are free: see [`Arena::keep`]. It is taken
//! down when something else is mapped there, with its handle, or when there are too many. What goes is held
//! first, and taken down without the lock: see `job`.

use std::sync::Arc;

use super::ask::Ask;
use super::core::{Core, is_done};
use super::idle::{HeldFrame, IdleFrame, first_of, total};
use super::stats::Told;
use super::structure::Shared;
use super::tuning::{MOST_KEPT, PENDING_LOOKED_AT};
use crate::arena::{HandleId, Kept, Site};
use crate::device::{Phys, Timeline};
use crate::error::Result;
use crate::heap::placement::Placement;
use crate::heap::{Epoch, Extent, FRESH, Id, NONE};
use crate::seeded::seeded;

/// What the host waits for before something is taken down.
type Wait = Option<(Arc<Timeline>, u64)>;

struct Idle {
    frame: HeldFrame,
    wait: Wait,
    /// What came of it.
    unmapped: bool,
    released: bool,
}

struct Old {
    id: Id,
    start: u64,
    bytes: u64,
    wait: Wait,
    unmapped: bool,
}

/// A handle that the device would not take back before, and whether it has now.
struct Refused {
    handle: HandleId,
    phys: Phys,
    released: bool,
}

pub(crate) struct Release {
    idle: Vec<Idle>,
    old: Vec<Old>,
    refused: Vec<Refused>,
    /// That it refuses them again is an error.
    strict: bool,
    site: Site,
}

fn wait_on_host(wait: &Wait) -> Result<()> {
    wait.as_ref()
        .map_or(Ok(()), |(timeline, tick)| timeline.sync_to(*tick))
}

impl Release {
    /// Waits on the host where it has to, and calls the driver.
    pub(super) fn make(&mut self) -> Result<()> {
        for idle in &mut self.idle {
            let HeldFrame { at, phys, .. } = &idle.frame;
            wait_on_host(&idle.wait)?;
            self.site.unmap(at.start, at.bytes)?;
            idle.unmapped = true;
            if !seeded!("handle-lost-on-release") {
                self.site.release(*phys)?;
            }
            idle.released = true;
        }
        for old in &mut self.old {
            wait_on_host(&old.wait)?;
            self.site.unmap(old.start, old.bytes)?;
            old.unmapped = true;
        }
        for refused in &mut self.refused {
            match self.site.release(refused.phys) {
                Ok(()) => refused.released = true,
                Err(error) if self.strict => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Core {
    /// Begins to give the `idle` frames back, to take the `old` mappings down and to offer the device what
    /// it `refused`; `None` where there is nothing to do. Frames of one hole ascend; what an old mapping waits
    /// for is named beside it.
    pub(super) fn begin_release(
        &mut self,
        idle: &[IdleFrame],
        old: impl IntoIterator<Item = (Id, Epoch)>,
        refused: Vec<(HandleId, Phys)>,
    ) -> Option<Release> {
        let refused = refused.into_iter().map(|(handle, phys)| Refused {
            handle,
            phys,
            released: false,
        });
        let handles = idle.iter().map(|it| self.arena.frame(it.frame).handle);
        let handles = handles.filter(|_| !seeded!("kept-mapping-outlives-its-handle"));
        let kept = self.arena.kept_of(&handles.collect());
        let frames = self.hold_frames(idle, FRESH).into_iter();
        let mut release = Release {
            idle: (frames.map(|frame| Idle {
                wait: self.wait_of(frame.held.epoch, seeded!("released-under-queued-work")),
                frame,
                unmapped: false,
                released: false,
            }))
            .collect(),
            old: Vec::new(),
            refused: refused.collect(),
            strict: true,
            site: self.arena.site().clone(),
        };
        for (id, awaited) in old.into_iter().chain(self.unkeep(kept)) {
            let extent = *self.extents.get(id);
            self.under_way.note(extent.slot);
            release.old.push(Old {
                id,
                start: extent.start,
                bytes: extent.bytes,
                wait: self.wait_of(awaited, false),
                unmapped: false,
            });
        }
        let some = release.idle.len() + release.old.len() + release.refused.len() > 0;
        self.under_way.jobs += u64::from(some);
        some.then_some(release)
    }

    /// All old mappings, and what each waits for.
    pub(super) fn take_retiring(&mut self) -> Vec<(Id, Epoch)> {
        let old = std::mem::take(&mut self.retiring).into_iter();
        old.map(|id| (id, self.extents.get(id).epoch())).collect()
    }

    fn wait_of(&self, epoch: Epoch, without: bool) -> Wait {
        let done = without || is_done(&self.streams, epoch);
        let timeline = self.timeline(epoch.stream).filter(|_| !done)?;
        Some((timeline, epoch.tick))
    }

    /// Ends a release: books what is gone, and frees the rest as it was.
    pub(super) fn end_release(&mut self, release: Release) {
        self.under_way.end_one();
        for idle in &release.idle {
            let HeldFrame { held, at, .. } = &idle.frame;
            if !idle.unmapped {
                self.let_go(held);
                continue;
            }
            self.under_way.unhold(held);
            self.arena.frame_gone(at.frame, idle.released);
            self.extents.vacate(held.id, Epoch::PAST);
            self.extents.retired(held.id);
        }
        for old in &release.old {
            self.under_way.forget(self.extents.get(old.id).slot);
            if old.unmapped {
                self.arena.stale_unmapped(old.start);
                self.extents.retired(old.id);
            } else {
                self.retiring.push_back(old.id);
            }
        }
        for it in &release.refused {
            self.arena.offered(it.handle, it.phys, it.released);
        }
    }

    /// Keeps the old mapping at `start`, which is in no extent's books, or lets it go if that may not be.
    pub(super) fn keep(&mut self, kept: Kept) {
        if !self.arena.keep(kept.start) {
            self.retire_again(kept.start, kept.bytes);
        }
    }

    /// Keeps these mappings no more: old mappings that nothing uses.
    pub(super) fn unkeep(&mut self, kept: Vec<Kept>) -> Vec<(Id, Epoch)> {
        let mut old = Vec::with_capacity(kept.len());
        for Kept { start, bytes, .. } in kept {
            self.arena.unkeep(start);
            old.extend(self.stale_at(start, bytes).map(|id| (id, Epoch::PAST)));
        }
        old
    }

    /// Keeps old mappings whose work is known to be done, and begins to take down those that may not be
    /// kept, and those kept longest of too many.
    pub(super) fn begin_reaping(&mut self) -> Option<Release> {
        let (mut done, mut pending) = (Vec::new(), 0);
        for _ in 0..self.retiring.len() {
            let Some(id) = self.retiring.pop_front() else {
                break;
            };
            let is_done = is_done(&self.streams, self.extents.get(id).epoch());
            if is_done || seeded!("unmapped-under-queued-work") {
                match self.arena.keep(self.extents.get(id).start) {
                    true => _ = self.extents.retired(id),
                    false => done.push((id, Epoch::PAST)),
                }
                continue;
            }
            self.retiring.push_back(id);
            pending += 1;
            // The next call goes on behind those looked at.
            if pending == PENDING_LOOKED_AT {
                break;
            }
        }
        let beyond = self.arena.kept_beyond(MOST_KEPT);
        done.extend(self.unkeep(beyond));
        self.begin_release(&[], done, Vec::new())
    }

    /// Begins to take down all old mappings, waiting on the host for the work that may use them, and to
    /// offer the device what it would not take back.
    pub(super) fn begin_reaping_all(&mut self) -> Option<Release> {
        let (old, refused) = (self.take_retiring(), self.arena.take_refused());
        let mut release = self.begin_release(&[], old, refused)?;
        release.strict = false;
        Some(release)
    }

    /// Begins to give idle frames outside `placement` back until `bytes` more may be created; `None`
    /// where there are not so many. Waits on the host.
    pub(super) fn begin_making_room(
        &mut self,
        placement: &Placement,
        bytes: u64,
    ) -> Option<Release> {
        let idle = self.idle(Some(placement), u64::MAX, |_| true);
        let enough = total(&idle) >= bytes;
        enough.then(|| self.begin_release(&first_of(idle, bytes), None, Vec::new()))?
    }

    /// Begins to give back as much idle memory as keeps `keep` bytes, and all old mappings. Waits on the
    /// host.
    pub(super) fn begin_trim(&mut self, keep: u64) -> Option<Release> {
        let excess = self.mapped().saturating_sub(keep);
        let idle = self.idle(None, excess, |_| true);
        let (old, refused) = (self.take_retiring(), self.arena.take_refused());
        self.begin_release(&idle, old, refused)
    }

    /// Begins to give back what the pool holds above its soft limit, as far as it is idle and its work
    /// is known to be done.
    pub(super) fn begin_easing(&mut self) -> Option<Release> {
        // What was given up goes as soon as its old mappings do.
        let excess = self.mapped().saturating_sub(self.soft_limit());
        let done = |extent: &Extent| is_done(&self.streams, extent.epoch());
        let idle = self.idle(None, excess, done);
        let refused = self.arena.take_refused();
        self.begin_release(&idle, None, refused)
    }

    fn soft_limit(&self) -> u64 {
        self.config.soft_limit.unwrap_or(u64::MAX)
    }

    pub(crate) fn is_over_soft_limit(&self) -> bool {
        self.reserved() > self.soft_limit()
    }

    /// Merges neighbouring holes whose work is known to be done, and gives back slabs likewise.
    pub(super) fn merge_done(&mut self) {
        self.release_mixed_done();
        let mut at = self.extents.first();
        while at != NONE {
            self.merge_done_from(at);
            at = self.extents.get(at).next;
        }
    }
}

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
        if !self.core.lock().is_over_soft_limit() {
            return;
        }
        self.settle_all(false);
        // What the driver refuses stays idle memory of the pool, and is offered again next time. Nothing is
        // recorded until someone asks: without a mark no work is ever known to be done.
        let _ = (self.work(|core| core.ask_of_all(Ask::Reached)))
            .and_then(|_| self.work(Core::begin_easing))
            .and_then(|_| self.work(|core| core.ask_of_old()))
            .and_then(|_| self.work(Core::begin_reaping));
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
pub(super) mod tests;
