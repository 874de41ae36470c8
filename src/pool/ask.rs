//! Questions to the driver: how far streams are, and waits for their work.

use std::sync::Arc;

use super::core::{Core, is_done};
use super::tuning::{HOLES_LOOKED_AT, PENDING_LOOKED_AT};
use crate::device::{Timeline, is_under_capture, raise};
use crate::error::Result;
use crate::heap::{Epoch, StreamIndex, size_class::is_slot};

/// A question to the driver about a stream's work, or a wait for it.
pub(crate) enum Ask {
    /// How far the stream is between these ticks, by the marks that there are.
    Progress(u64, u64),
    /// Whether it is at this tick; makes the mark first.
    Reached(u64),
    /// The host waits for this tick.
    Done(u64),
    /// The stream of this timeline waits on the device for this tick.
    Behind(Arc<Timeline>, u64),
}

pub(crate) type Questions = Vec<(Arc<Timeline>, Ask)>;

/// Asks all the questions, also after an error, and counts the queued waits. Returns the first error, or the first of
/// those that are not of a stream under capture.
pub(super) fn put(questions: &Questions, waits: &mut u64) -> Result<()> {
    let mut outcome = Ok(());
    for (timeline, ask) in questions {
        let asked = match ask {
            Ask::Progress(least, most) => timeline.poll(*least, *most).map(drop),
            Ask::Reached(tick) => timeline.poll_to(*tick).map(drop),
            Ask::Done(tick) => timeline.sync_to(*tick),
            Ask::Behind(mine, tick) => match mine.wait_for(timeline, *tick) {
                // Another thread dropped it meanwhile, and what it freed waits for nothing more.
                Err(_) if mine.raw().is_none() => Ok(()),
                waited => waited.map(|queued| *waits += u64::from(queued)),
            },
        };
        outcome = match outcome {
            Err(error) if is_under_capture(&error) => asked.and(Err(error)),
            outcome => outcome.and(asked),
        };
    }
    outcome
}

impl Core {
    /// The waits that `stream` needs to run behind `epochs`, at most one for each stream.
    pub(super) fn waits_for(
        &self,
        stream: StreamIndex,
        epochs: impl IntoIterator<Item = Epoch>,
    ) -> Questions {
        let mut last = Vec::new();
        for it in (epochs.into_iter()).filter(|&it| !self.is_ordered(stream, it)) {
            (self.timeline(it.stream)).inspect(|theirs| raise(&mut last, theirs, it.tick));
        }
        let mine = self.timeline(stream);
        let wait = |(theirs, tick)| Some((theirs, Ask::Behind(Arc::clone(mine?), tick)));
        last.into_iter().filter_map(wait).collect()
    }

    /// For each of `epochs` its timeline, and what to `ask` of its tick.
    pub(super) fn questions<A>(
        &self,
        epochs: impl IntoIterator<Item = Epoch>,
        ask: impl Fn(u64) -> A,
    ) -> Vec<(Arc<Timeline>, A)> {
        let question = |it: Epoch| Some((Arc::clone(self.timeline(it.stream)?), ask(it.tick)));
        epochs.into_iter().filter_map(question).collect()
    }

    /// Asks how far the other streams with memory for a block or slot of `bytes` are, if that memory has marks.
    pub(super) fn ask_how_far(&self, except: StreamIndex, bytes: u64) -> Questions {
        let each = self.others(except, false).filter_map(|slot| {
            let timeline = self.timeline(slot)?;
            let (least, most) = self.ticks_that_fit(slot, bytes, timeline.done())?;
            let asks = timeline.is_marked(least);
            asks.then(|| (Arc::clone(timeline), Ask::Progress(least, most)))
        });
        each.collect()
    }

    /// The first and the last tick that is not `done` of `slot`'s memory for a block or slot of `bytes`.
    fn ticks_that_fit(&self, slot: StreamIndex, bytes: u64, done: u64) -> Option<(u64, u64)> {
        if is_slot(bytes) && !self.slabs.has_none(slot) {
            return Some((done + 1, u64::MAX));
        }
        let holes = self.extents.holes_of(slot, bytes);
        let ticks = holes.map(|id| self.extents.get(id).epoch.tick);
        let ticks = ticks.take(2 * HOLES_LOOKED_AT).filter(|&tick| tick > done);
        let ranges = ticks.map(|tick| (tick, tick));
        ranges.reduce(|all, it| (all.0.min(it.0), all.1.max(it.1)))
    }

    pub(super) fn ask_of_all(&self, ask: impl Fn(u64) -> Ask) -> Questions {
        let slabs = self.slabs.mixed().into_iter();
        let slots = slabs.flat_map(|id| self.slabs.get(id).epochs());
        let epochs = self.last_epochs().into_iter().chain(slots);
        self.questions(epochs, ask)
    }

    /// Asks which stale mappings may go, one question for each stream. No request can map where a stale mapping is,
    /// and a question costs a fortieth of a mapping.
    pub(super) fn ask_of_old(&self) -> Questions {
        let mut asked: Vec<Epoch> = Vec::new();
        for &id in self.retiring.iter().take(PENDING_LOOKED_AT) {
            let epoch = self.extents.get(id).epoch;
            if !is_done(&self.streams, epoch) && asked.iter().all(|it| it.stream != epoch.stream) {
                asked.push(epoch);
            }
        }
        self.questions(asked, Ask::Reached)
    }
}
