//! The queued copies that use a buffer's memory.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device::{Timeline, lock};
use crate::error::Result;
use crate::sync::Mutex;

/// Number of entries from which finished ones are removed, each time that the number has doubled.
const MANY: usize = 16;

/// Number of entries from which those of one stream are merged into one that reads and one that
/// writes.
const JOINED: usize = 256;

/// The bytes of a copy, and whether it writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) writes: bool,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.from < other.to && other.from < self.to && (self.writes || other.writes)
    }
}

/// A copy on a stream, done with its tick.
struct Entry {
    span: Span,
    timeline: Arc<Timeline>,
    tick: u64,
}

/// All copies of a buffer that may not be done.
#[derive(Default)]
pub(super) struct Uses(Mutex<Vec<Entry>>);

/// Ticks of streams.
#[derive(Clone, Default)]
pub(super) struct Marks(Vec<(Arc<Timeline>, u64)>);

impl Marks {
    fn raise(&mut self, timeline: &Arc<Timeline>, tick: u64) {
        match self
            .0
            .iter_mut()
            .find(|(known, _)| known.uid == timeline.uid)
        {
            Some((_, known)) => *known = tick.max(*known),
            None => self.0.push((Arc::clone(timeline), tick)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all ticks are done; queries the driver if that is not known. Skips the query if `short`
    /// has an earlier tick of the stream that was not done; its keys are stream uids.
    pub(super) fn are_done(&self, short: &mut HashMap<u64, u64>) -> Result<bool> {
        for (timeline, tick) in &self.0 {
            if timeline.done() >= *tick {
                continue;
            }
            if short.get(&timeline.uid).is_some_and(|of| of <= tick) {
                return Ok(false);
            }
            if timeline.poll_to(*tick)? < *tick {
                short.insert(timeline.uid, *tick);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits on the host for all ticks.
    pub(super) fn wait(&self) -> Result<()> {
        for (timeline, tick) in &self.0 {
            timeline.sync_to(*tick)?;
        }
        Ok(())
    }

    /// Makes `stream` wait on the device for all ticks.
    pub(super) fn wait_on(&self, stream: &Timeline) -> Result<()> {
        for (timeline, tick) in &self.0 {
            if timeline.uid != stream.uid {
                stream.wait_for(timeline, *tick)?;
            }
        }
        Ok(())
    }
}

impl Uses {
    /// The copies that conflict with `span`.
    pub(super) fn conflicts(&self, span: Span) -> Marks {
        let mut marks = Marks::default();
        for entry in lock(&self.0).iter().filter(|entry| entry.span.meets(&span)) {
            if entry.timeline.done() < entry.tick {
                marks.raise(&entry.timeline, entry.tick);
            }
        }
        marks
    }

    /// All copies.
    pub(super) fn all(&self) -> Marks {
        let mut marks = Marks::default();
        for entry in lock(&self.0).iter() {
            if entry.timeline.done() < entry.tick {
                marks.raise(&entry.timeline, entry.tick);
            }
        }
        marks
    }

    /// Records a copy that was queued on `timeline`'s stream.
    pub(super) fn note(&self, span: Span, timeline: &Arc<Timeline>) {
        let mut entries = lock(&self.0);
        // Read under the lock, so that no entry replaces a later tick with an earlier one.
        let tick = timeline.open_tick();
        if let Some(same) = entries
            .iter_mut()
            .find(|entry| entry.span == span && entry.timeline.uid == timeline.uid)
        {
            same.tick = tick;
            return;
        }
        if entries.len() >= MANY && entries.len().is_power_of_two() {
            drop(entries);
            self.thin();
            entries = lock(&self.0);
        }
        let timeline = Arc::clone(timeline);
        entries.push(Entry {
            span,
            timeline,
            tick,
        });
    }

    /// Removes finished copies, even if nothing queries them. If many are left, merges them into at most
    /// two per stream, so that their number stays bounded while a stream is blocked.
    fn thin(&self) {
        let noted = |entry: &Entry| Marks(vec![(Arc::clone(&entry.timeline), entry.tick)]);
        let noted: Vec<Marks> = lock(&self.0).iter().map(noted).collect();
        let mut short = HashMap::new();
        for marks in noted {
            // Not under the lock: a device may run host calls here, which use the buffer. After an error
            // the stream may still run its copies, so they stay.
            let _ = marks.are_done(&mut short);
        }
        let mut entries = lock(&self.0);
        entries.retain(|entry| entry.timeline.done() < entry.tick);
        if entries.len() < JOINED {
            return;
        }
        for entry in std::mem::take(&mut *entries) {
            let same = entries.iter_mut().find(|known| {
                known.timeline.uid == entry.timeline.uid && known.span.writes == entry.span.writes
            });
            match same {
                Some(known) => {
                    known.span.from = known.span.from.min(entry.span.from);
                    known.span.to = known.span.to.max(entry.span.to);
                    known.tick = known.tick.max(entry.tick);
                }
                None => entries.push(entry),
            }
        }
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn no_note_of_a_copy_takes_a_later_one_back() {
        let stream = Device::host().unwrap().stream().unwrap();
        let timeline = &stream.core().timeline;
        let uses = Uses::default();
        let span = Span {
            from: 0,
            to: 8,
            writes: false,
        };
        uses.note(span, timeline);
        let mut entries = lock(&uses.0);
        std::thread::scope(|scope| {
            scope.spawn(|| uses.note(span, timeline));
            // The thread is now waiting for the lock while a later entry is made.
            std::thread::sleep(std::time::Duration::from_millis(50));
            timeline.close_tick();
            let queued = timeline.open_tick();
            entries[0].tick = queued;
            drop(entries);
        });
        assert_eq!(uses.all().0[0].1, timeline.open_tick());
    }

    #[test]
    fn notes_of_many_copies_stay_few_and_cover_all_that_are_not_done() {
        let device = Device::host().unwrap();
        let (idle, held) = (device.stream().unwrap(), device.stream().unwrap());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let work = Box::new(move || _ = wait.recv());
        device.backend().host_call(held.raw(), work).unwrap();
        let uses = Uses::default();
        let span = |from, writes| Span {
            from,
            to: from + 1,
            writes,
        };
        // The host waits for neither stream.
        for at in 0..5000 {
            uses.note(span(2 * at, at % 2 == 0), &idle.core().timeline);
            uses.note(span(2 * at + 1, false), &held.core().timeline);
        }
        let entries = lock(&uses.0).len();
        assert!(entries <= 2 * JOINED, "{entries} notes");
        for at in 0..5000 {
            let marks = uses.conflicts(span(2 * at + 1, true));
            let timeline = &held.core().timeline;
            assert!(marks.0.iter().any(|(known, _)| known.uid == timeline.uid));
        }
        // Reads do not conflict with a read.
        assert!(
            !uses
                .conflicts(span(10_001, false))
                .0
                .iter()
                .any(|(known, _)| known.uid == held.core().timeline.uid)
        );
        drop(release);
        held.synchronize().unwrap();
    }
}
