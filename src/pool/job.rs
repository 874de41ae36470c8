//! What is done without the pool's lock, between two looks at the heap under it.
//!
//! A job is *begun* under the lock: what it needs of the heap is held, so that nobody else has it, and new
//! bytes count against the limit from then on. It is *run* without the lock: all calls of the driver, and
//! all waits of the host, are here. Then it is *ended* under the lock: what came of it is booked, and what
//! was not done is as it was before. Several jobs may be under way at once, and end in any order.

use std::sync::Arc;

use super::core::Core;
use super::grow::{Mapped, Mapping};
use super::release::{Release, Released};
use super::shared::Shared;
use crate::device::Timeline;
use crate::error::{Error, Result};
use crate::heap::{Epoch, Extents, FRESH, Grant, Id, StreamIndex};

/// What jobs under way have of the pool.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// Jobs that may leave more memory than there is now.
    pub(super) jobs: u64,
    /// Of such, how many have ended.
    pub(super) ended: u64,
    /// Bytes of handles to be made, which count against the limit.
    pub(super) to_create: u64,
    /// Bytes of the blocks that mappings are for.
    pub(super) wanted: u64,
    /// Bytes of free memory held, which count as allocated.
    held: u64,
    /// Whose work may still use what is held: their numbers are given to no other stream.
    streams: Vec<StreamIndex>,
}

/// Free memory that a job holds, and its history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) id: Id,
    pub(super) epoch: Epoch,
    bytes: u64,
}

impl UnderWay {
    /// Bytes of free memory held.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Whether something held waits for `stream`.
    pub(super) fn waits_for(&self, stream: StreamIndex) -> bool {
        self.streams.contains(&stream)
    }

    pub(super) fn note(&mut self, stream: StreamIndex) {
        if stream != FRESH {
            self.streams.push(stream);
        }
    }

    pub(super) fn forget(&mut self, stream: StreamIndex) {
        if let Some(at) = self.streams.iter().position(|&of| of == stream) {
            self.streams.swap_remove(at);
        }
    }

    /// Holds `bytes` from `start` on, which lie in the hole `hole`, for `stream`.
    pub(super) fn hold(
        &mut self,
        extents: &mut Extents,
        (hole, start, bytes): (Id, u64, u64),
        stream: StreamIndex,
    ) -> Held {
        let epoch = extents.get(hole).epoch();
        self.note(epoch.stream);
        self.held += bytes;
        let id = extents.take_window(hole, start, bytes, stream);
        Held { id, epoch, bytes }
    }

    pub(super) fn end_one(&mut self) {
        self.jobs -= 1;
        self.ended += 1;
    }

    /// What was held is held no more: the caller books what became of it.
    pub(super) fn unhold(&mut self, held: &Held) {
        self.forget(held.epoch.stream);
        self.held -= held.bytes;
    }
}

/// A question to the driver about a stream's work, or a wait for it.
pub(crate) enum Ask {
    /// How far it is.
    Progress,
    /// The same, with a mark for this tick made first, so that the driver can tell.
    Reached(u64),
    /// The host waits for this tick.
    Done(u64),
    /// The stream of this timeline waits for this tick, on the device.
    Behind(Arc<Timeline>, u64),
}

/// See the module documentation.
#[must_use = "what it holds stays held until it is run and ended"]
pub(crate) enum Job {
    Ask(Vec<(Arc<Timeline>, Ask)>),
    Map(Mapping),
    Release(Release),
}

/// What came of a job.
pub(crate) enum Outcome {
    /// Waits queued, and what stopped it.
    Asked(u64, Option<Error>),
    Mapped(Mapping, Mapped),
    Released(Release, Released),
}

impl Job {
    /// Calls the driver, and may wait on the host. Under no lock.
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Ask(questions) => {
                let mut waits = 0;
                let mut each = questions.iter();
                let error = each.try_for_each(|(of, ask)| of.ask(ask, &mut waits)).err();
                Outcome::Asked(waits, error)
            }
            Self::Map(mapping) => {
                let mapped = mapping.make();
                Outcome::Mapped(mapping, mapped)
            }
            Self::Release(release) => {
                let released = release.make();
                Outcome::Released(release, released)
            }
        }
    }
}

impl Timeline {
    pub(super) fn ask(&self, ask: &Ask, waits: &mut u64) -> Result<()> {
        match ask {
            Ask::Progress => self.poll().map(|_| ()),
            Ask::Reached(tick) => self.poll_to(*tick).map(|_| ()),
            Ask::Done(tick) => self.sync_to(*tick),
            Ask::Behind(mine, tick) => {
                *waits += u64::from(mine.wait_for(self, *tick)?);
                Ok(())
            }
        }
    }
}

impl Core {
    /// Books what came of a job; gives the block of a request's mapping.
    ///
    /// # Errors
    /// What the driver said, unless it is that it has no more memory.
    pub(crate) fn end(&mut self, outcome: Outcome) -> Result<Option<Grant>> {
        match outcome {
            Outcome::Asked(waits, error) => {
                self.steps.waits += waits;
                error.map_or(Ok(None), Err)
            }
            Outcome::Mapped(mapping, mapped) => self.end_mapping(mapping, mapped),
            Outcome::Released(release, released) => {
                self.end_release(release, released).map(|()| None)
            }
        }
    }

    /// Frees what a job held as it was.
    pub(super) fn let_go(&mut self, held: &Held) {
        self.under_way.unhold(held);
        self.give(held.id, held.epoch.stream, held.epoch.tick);
    }

    /// The timeline of a stream; `None` of memory that no stream uses.
    pub(super) fn timeline(&self, stream: StreamIndex) -> Option<Arc<Timeline>> {
        let state = self.streams[stream as usize].as_ref();
        state.map(|state| Arc::clone(&state.timeline))
    }

    /// Those of the waits for `epochs` that `stream` needs, one a stream.
    pub(super) fn waits_for(
        &self,
        stream: StreamIndex,
        epochs: impl IntoIterator<Item = Epoch>,
    ) -> Vec<(Arc<Timeline>, Ask)> {
        let mut last: Vec<Epoch> = Vec::new();
        for epoch in epochs {
            if epoch.is_own(stream) || self.is_ordered(stream, epoch) {
                continue;
            }
            match last.iter_mut().find(|it| it.stream == epoch.stream) {
                Some(it) => it.tick = it.tick.max(epoch.tick),
                None => last.push(epoch),
            }
        }
        let Some(mine) = self.timeline(stream) else {
            return Vec::new();
        };
        self.questions(last, |tick| Ask::Behind(Arc::clone(&mine), tick))
    }

    /// The questions that `ask` puts to the streams of `epochs`.
    pub(super) fn questions(
        &self,
        epochs: impl IntoIterator<Item = Epoch>,
        ask: impl Fn(u64) -> Ask,
    ) -> Vec<(Arc<Timeline>, Ask)> {
        let epochs = epochs.into_iter();
        let each = epochs.filter_map(|it| Some((self.timeline(it.stream)?, ask(it.tick))));
        each.collect()
    }
}

impl Shared {
    /// Begins a job, runs it without the lock, and ends it; `None` where there is nothing to do.
    pub(super) fn work(
        &self,
        begin: impl FnOnce(&mut Core) -> Option<Job>,
    ) -> Result<Option<Grant>> {
        let job = begin(&mut self.core.lock());
        let Some(job) = job else {
            return Ok(None);
        };
        let outcome = job.run();
        self.core.lock().end(outcome)
    }
}
