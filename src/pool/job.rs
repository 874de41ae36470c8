//! Jobs: driver calls and host waits, without the pool's lock.
//!
//! A job *begins* under the lock: it holds the memory that it needs and counts new bytes against the limit. It *runs*
//! without the lock: only here is the driver called and does the host wait. It *ends* under the lock: it books the
//! outcome, and whatever was not done is as before. Several jobs may be under way, and end in any order.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::ask::{self, Questions};
use super::core::{Core, Hold};
use super::mapping::IdleFrame;
use crate::arena::{HandleId, Kept, Made, Site};
use crate::device::Phys;
use crate::error::{Error, Result};
use crate::heap::placement::Placement;
use crate::heap::{Epoch, Extent, FRESH, Grant, Id, StreamIndex};

/// An idle handle to be mapped at another place.
pub(super) struct Moving {
    pub(super) at: IdleFrame,
    pub(super) place: u64,
    /// A kept mapping is there already.
    pub(super) stands: bool,
}

/// What a job does with a mapping or a handle.
pub(super) enum Part {
    /// Unmaps a kept mapping that is in the way of another.
    Clear(Kept),
    /// Makes the mapping's new handles: before idle ones move, so that these stay if the device has no memory.
    New,
    Move(Moving),
    /// Unmaps an idle handle and releases it.
    Idle(IdleFrame),
    /// Unmaps a stale mapping.
    Old(Id, Extent),
    /// Releases a handle that the driver did not release before.
    Refused(HandleId, Phys),
    /// Holds a slot, or a block, of these bytes for a request, whose stream runs behind this work after the waits.
    Taken(Grant, u64, Epoch),
}

/// New memory for a request of a stream, or for the pool itself.
pub(super) struct Mapping {
    pub(super) stream: StreamIndex,
    pub(super) placement: Placement,
    /// The addresses to map, and those of the mappings to clear.
    pub(super) reserved: Id,
    /// Holes beside the mapping that become part of the block, in address order.
    pub(super) lean: Vec<Id>,
    /// Bytes of new handles, above the idle ones.
    pub(super) to_create: u64,
    pub(super) largest: u64,
    pub(super) made: Vec<Made>,
    /// What the device has free after it made all; before that 0, and nothing if that does not matter.
    pub(super) free: Option<u64>,
}

/// Questions, then driver calls.
#[derive(Default)]
#[must_use = "what it holds stays held until it is run and ended"]
pub(crate) struct Job {
    questions: Questions,
    /// `None` for questions alone.
    site: Option<Site>,
    parts: Vec<Part>,
    /// The slots whose streams' work the parts wait for.
    _holds: Vec<Hold>,
    /// How many parts are done, and whether the one after them has its handle unmapped.
    done: usize,
    unmapped: bool,
    pub(super) mapping: Option<Box<Mapping>>,
    /// What came of it: waits queued, the time that it took, what the driver refused.
    waits: u64,
    pub(super) spent: Duration,
    error: Option<Error>,
}

impl Job {
    /// Asks the questions, if there are any.
    pub(crate) fn asking(questions: Questions) -> Option<Self> {
        (!questions.is_empty()).then(|| Self {
            questions,
            ..Self::default()
        })
    }

    /// Calls the driver, and may wait on the host. The caller has no lock.
    pub(crate) fn run(mut self) -> Self {
        let begin = Instant::now();
        let done = ask::put(&self.questions, &mut self.waits).and_then(|()| self.make());
        (self.spent, self.error) = (begin.elapsed(), done.err());
        self
    }

    fn make(&mut self) -> Result<()> {
        let Some(site) = &self.site else {
            return Ok(());
        };
        for part in &self.parts {
            match part {
                Part::New if !self.mapping.as_mut().map_or(Ok(true), |it| it.make(site))? => break,
                Part::Clear(kept) => site.unmap(kept.start, kept.bytes)?,
                Part::Old(_, old) => site.unmap(old.start, old.bytes)?,
                Part::Move(Moving { stands: true, .. }) => (),
                Part::Move(it) => site.map(it.place, it.at.frame.bytes, it.at.frame.phys)?,
                Part::Idle(IdleFrame { frame, .. }) => {
                    site.unmap(frame.start, frame.bytes)?;
                    self.unmapped = true;
                    site.release(frame.phys)?;
                    self.unmapped = false;
                }
                Part::Refused(_, phys) if site.release(*phys).is_err() => break,
                Part::New | Part::Refused(..) | Part::Taken(..) => (),
            }
            self.done += 1;
        }
        Ok(())
    }
}

impl Mapping {
    /// Makes the new handles; false if the driver does not map one.
    fn make(&mut self, site: &Site) -> Result<bool> {
        let new = (self.placement.map_to() - self.to_create, self.to_create);
        make_handles(site, new, self.largest, &mut self.made)?;
        self.free = self.free.map(|_| site.free_bytes());
        Ok(self.made.last().is_none_or(Made::is_mapped))
    }
}

impl Core {
    /// Begins a job of these parts, whose memory has these epochs.
    pub(super) fn begin(
        &mut self,
        questions: Questions,
        epochs: &[Epoch],
        parts: Vec<Part>,
    ) -> Job {
        self.under_way.jobs += 1;
        Job {
            questions,
            _holds: self.hold_slots(epochs),
            site: Some(self.arena.site().clone()),
            parts,
            ..Job::default()
        }
    }

    /// Books the outcome of a job that has run; returns the block of a request's mapping. That the device has no more
    /// memory is no error.
    pub(crate) fn end(&mut self, mut job: Job) -> Result<Option<Grant>> {
        self.steps.driver_ns += u64::try_from(job.spent.as_nanos()).unwrap_or(u64::MAX);
        self.steps.waits += job.waits;
        if job.site.is_some() {
            self.under_way.end_one();
        }
        if let Some(it) = &mut job.mapping {
            it.reserved = self.extents.retired(it.reserved);
        }
        let stream = job.mapping.as_ref().map_or(FRESH, |it| it.stream);
        let (mut gone, mut again, mut taken) = (HashSet::new(), Vec::new(), None);
        for (at, part) in job.parts.into_iter().enumerate() {
            let is_done = at < job.done;
            match part {
                Part::Clear(kept) if is_done => self.arena.stale_unmapped(kept.start),
                Part::Clear(kept) => {
                    again.extend(Some(kept).filter(|it| !self.arena.keep(it.start)))
                }
                Part::New => (),
                Part::Move(moving) if is_done => self.book_moved(stream, &moving),
                Part::Move(Moving { at, place, stands }) => {
                    // Its handle is held, so no job has released it.
                    _ = stands && self.arena.keep(place);
                    self.let_go(at.hole);
                }
                Part::Idle(it) if is_done || at == job.done && job.unmapped => {
                    gone.insert(it.frame.handle);
                    self.arena.frame_gone(it.id, is_done);
                    self.extents.vacate(it.hole);
                    self.extents.retired(it.hole);
                }
                Part::Idle(it) => self.let_go(it.hole),
                Part::Old(id, old) if is_done => {
                    self.arena.stale_unmapped(old.start);
                    self.extents.retired(id);
                }
                Part::Old(id, _) => self.retiring.push_back(id),
                Part::Refused(handle, phys) => self.arena.offered(handle, phys, is_done),
                Part::Taken(grant, ..) if is_done => taken = Some(grant),
                Part::Taken(grant, bytes, epoch) => self.give_granted(grant, bytes, epoch),
            }
        }
        if !gone.is_empty() {
            // Mappings of these handles that were kept meanwhile hold their memory.
            again.extend(self.arena.kept_of(&gone));
        }
        let again = self.unkeep(again);
        self.retiring.extend(again);
        match job.mapping {
            Some(mapping) => self.end_mapping(*mapping, job.error),
            None => job.error.map_or(Ok(taken), Err),
        }
    }
}

/// Makes handles of up to `largest` bytes for all `bytes` from the offset `at` on, up to one that the driver does not
/// map. The arena has to adopt all of `made`.
///
/// # Errors
/// What the driver said if it does not make one.
pub(super) fn make_handles(
    site: &Site,
    (at, bytes): (u64, u64),
    mut largest: u64,
    made: &mut Vec<Made>,
) -> Result<()> {
    let (granule, mut left) = (site.granule(), bytes);
    while left > 0 && made.last().is_none_or(Made::is_mapped) {
        let size = piece(left, largest, granule);
        match site.make(at.wrapping_add(bytes - left), size) {
            Ok(handle) => {
                made.push(handle);
                left -= size;
            }
            // The device may still have smaller pieces.
            Err(error) if error.is_device_exhausted() && size > granule => largest = size / 2,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of the next handle: a power of two of granules, so that the last pieces of a block are small.
pub(super) fn piece(left: u64, most: u64, granule: u64) -> u64 {
    let granules = (most.min(left) / granule).max(1);
    (1 << granules.ilog2()) * granule
}
