//! A sleeping pool keeps its blocks' addresses and releases its physical memory to the device.
//!
//! A pool sleeps as a whole: all its handles are released. One thread at a time puts it to sleep or wakes it, without
//! the pool's lock. Meanwhile, and while it sleeps:
//!
//! - operations on its memory are refused (`device::awake`); those under way were waited for;
//! - requests are refused, by the ladder and by every lane, whose cache keeps nothing (`aside`);
//! - no handle is mapped elsewhere or released, as none is idle (`Core::idle`).
//!
//! For a handle of a few megabytes the driver takes as long as the bus for its bytes. So frames are handled in parts,
//! by address: each part is unmapped while the next is copied, and made again while the parts before it are copied.
//!
//! Growing buffers sleep with their pool: their handles are frames too, beside the pool's range.
//!
//! The heap stays as it is. A dropped block becomes free as usual, and a handle without blocks is not made again.

use super::core::Core;
use super::mapping::IdleFrame;
use super::stats::Told;
use super::stats::snapshot::PieceState;
use super::structure::{Copies, Ranges, Shared, Sleeping, Way};
use crate::arena::{Arena, FrameId};
use crate::device::{Addr, Note, lock, may_wait};
use crate::error::{Error, Result, refuse};

/// Number of parts, or more if there are gaps; more hide no more of the driver's time.
const PARTS: u64 = 16;

/// Most bytes of a part, unless one handle has more: two or three milliseconds of the bus, or sixty handles.
const PART: u64 = 128 << 20;

/// Frames in address order, by their start and end.
type Part = Vec<(Addr, Addr, FrameId)>;

impl Sleeping {
    /// Waits for all copies, and tries again if the driver fails: memory must not be unmapped under them.
    fn wait(&self) -> Result<()> {
        (self.stream.synchronize()).or_else(|_| self.stream.synchronize())
    }
}

/// What lies of `ranges` in `part`.
fn clip(ranges: &Ranges, part: &Part) -> Ranges {
    let (from, to) = (part.first(), part.last());
    let (from, to) = (from.map_or(0, |it| it.0), to.map_or(0, |it| it.1));
    let first = ranges.partition_point(|(start, bytes)| start + bytes <= from);
    let within = |&(start, bytes): &(Addr, u64)| {
        let (start, end) = (start.max(from), (start + bytes).min(to));
        (start < end).then(|| (start, end - start))
    };
    ranges[first..].iter().map_while(within).collect()
}

impl Core {
    pub(super) fn refuse_asleep(&self) -> Result<()> {
        refuse!(self.asleep => "pool", "it sleeps: wake it first");
        Ok(())
    }
}

impl Shared {
    /// Unmaps and releases a frame that is awake, and books it with `book`; returns the bytes released. If the driver
    /// refuses to release the handle, it is offered again, see `Arena::offered`.
    pub(super) fn take_down(
        &self,
        id: FrameId,
        book: fn(&mut Arena, FrameId, bool),
    ) -> Result<u64> {
        let core = self.core.lock();
        let (site, frame) = (core.arena.site().clone(), core.arena.frame(id));
        drop(core);
        if !frame.awake {
            return Ok(0);
        }
        site.unmap(frame.start, frame.bytes)?;
        let released = site.release(frame.phys).is_ok();
        book(&mut self.core.lock().arena, id, released);
        Ok(if released { frame.bytes } else { 0 })
    }

    /// Puts the pool to sleep. `prepare` gets the ranges of live blocks and returns what copies them. Returns the
    /// bytes released to the device; 0 if the pool sleeps already. After an error the pool is awake; but if the driver
    /// fails both to unmap a frame and to make the others again, it sleeps, with nothing lost.
    pub(crate) fn sleep(&self, prepare: impl FnOnce(&Ranges) -> Result<Copies>) -> Result<u64> {
        refuse!(!self.core.lock().config.sleeps => "pool",
            "it may not be put to sleep: make it with PoolConfig::sleeps(true)");
        may_wait()?;
        let mut asleep = lock(&self.asleep);
        if asleep.is_some() {
            return Ok(0);
        }
        self.device.suspend(&self.awake)?;
        self.set_asleep(true);
        // No new job begins; jobs under way end.
        let mut core = self.core.lock();
        while core.under_way.jobs > 0 {
            core = self.wait_for_others(core);
        }
        drop(core);
        let before = self.lock_drained().arena.reserved();
        let outcome = self.fall_asleep(&mut asleep, prepare);
        if asleep.is_none() {
            self.open();
        }
        let mut core = self.core.lock();
        let released = before.saturating_sub(core.arena.reserved());
        // What does not sleep.
        let idle = released.saturating_sub(core.arena.asleep());
        core.count(Told::Trimmed(idle));
        drop((core, asleep));
        self.tell();
        outcome.map(|()| released)
    }

    fn fall_asleep(
        &self,
        asleep: &mut Option<Sleeping>,
        prepare: impl FnOnce(&Ranges) -> Result<Copies>,
    ) -> Result<()> {
        // Only the frames' own mappings are left after this.
        self.work(|core| {
            let old = core.unkeep(core.arena.kept_beyond(0));
            core.retiring.extend(old);
            core.begin_trim(u64::MAX, true)
        })?;
        let mut sleeping = Sleeping {
            copies: prepare(&self.live_ranges())?,
            stream: self.device.stream()?,
            end: 0,
        };
        let lain = self.lie_down(&mut sleeping);
        // After a failure, the frames that are still mapped are used again.
        let _ = sleeping.wait();
        if lain.is_ok() || self.get_up(&mut sleeping).is_err() {
            *asleep = Some(sleeping);
        }
        lain
    }

    /// Wakes the pool; returns the bytes taken from the device, 0 if it does not sleep. If the device has too little
    /// memory, tries again once `relieved`. After an error it sleeps on.
    pub(crate) fn wake(&self, relieved: impl FnOnce() -> bool) -> Result<u64> {
        may_wait()?;
        let is_short = |woken: &Result<u64>| woken.as_ref().is_err_and(Error::is_device_exhausted);
        let mut woken = self.try_to_wake();
        if is_short(&woken) && relieved() {
            woken = self.try_to_wake();
        }
        if is_short(&woken) {
            let lacking = self.core.lock().arena.asleep();
            woken = Err(self.out_of_memory(lacking));
        }
        self.tell();
        woken
    }

    fn try_to_wake(&self) -> Result<u64> {
        let mut asleep = lock(&self.asleep);
        let Some(sleeping) = &mut *asleep else {
            return Ok(0);
        };
        let taken = self.get_up(sleeping)?;
        *asleep = None;
        self.open();
        Ok(taken)
    }

    fn open(&self) {
        self.set_asleep(false);
        self.device.resume(&self.awake);
        // For buffers that shrank or were dropped meanwhile.
        self.settle_all(false);
    }

    fn set_asleep(&self, asleep: bool) {
        let addr = self.base;
        (self.device.backend()).observe(&Note::Sleep { addr, asleep });
        let lanes = lock(&self.lanes);
        self.core.lock().asleep = asleep;
        (lanes.values().flatten()).for_each(|lane| lane.change(|state| state.asleep = asleep));
    }

    /// All ranges with contents: live blocks, and the used parts of growing buffers.
    pub(super) fn live_ranges(&self) -> Ranges {
        let pages = lock(&self.growing).clone();
        let growing = pages.iter().map(|it| (it.site.base(), it.bytes()));
        let pieces = self.walk().pieces.into_iter();
        let live = pieces.filter(|piece| piece.state == PieceState::Live);
        let mut ranges: Ranges = live.map(|piece| (piece.addr, piece.bytes)).collect();
        ranges.extend(growing.filter(|(_, bytes)| *bytes > 0));
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let follows = before.0 + before.1 == next.0;
            before.1 += if follows { next.1 } else { 0 };
            follows
        });
        ranges
    }

    /// The frames up to `end`, in parts, and what is live in them.
    fn sleeping_parts(&self, end: Addr) -> (Vec<Part>, Ranges) {
        let live = self.live_ranges();
        let core = self.core.lock();
        let mut frames: Vec<_> = (core.arena.frames())
            .map(|(id, it)| (core.arena.site().addr(it.start), it.bytes, id))
            .map(|(start, bytes, id)| (start, start + bytes, id))
            .filter(|(_, to, _)| *to <= end)
            .collect();
        frames.sort_unstable();
        let most = frames.iter().map(|(from, to, _)| to - from).sum::<u64>() / PARTS;
        let part = |it: &(Addr, Addr, FrameId)| it.0 / most.clamp(1, PART);
        let parts = frames.chunk_by(|below, above| part(below) == part(above));
        (parts.map(<[_]>::to_vec).collect(), live)
    }

    /// Saves the contents and unmaps all frames, each part while the next is copied. Stops at the first failure.
    fn lie_down(&self, sleeping: &mut Sleeping) -> Result<()> {
        let (parts, live) = self.sleeping_parts(Addr::MAX);
        let mut each = parts.iter().map(|part| {
            (sleeping.copies)(&sleeping.stream, Way::ToHost, &clip(&live, part))?;
            let event = self.device.event()?;
            event.record(&sleeping.stream)?;
            Ok((part, event))
        });
        let mut next = each.next().transpose()?;
        while let Some((part, event)) = next {
            next = each.next().transpose()?;
            event.synchronize()?;
            sleeping.end = part.last().map_or(sleeping.end, |it| it.1);
            self.take_all_down(part)?;
        }
        self.forget_idle();
        Ok(())
    }

    /// Turns sleeping frames without blocks into gaps, and drops those that growing buffers do not use.
    fn forget_idle(&self) {
        let growing = lock(&self.growing).clone();
        growing.iter().for_each(|it| it.forget_asleep(&self.core));
        let mut core = self.core.lock();
        // No work uses memory that sleeps, whatever the streams that freed it have to do.
        let none = core.streams.iter().map(|_| None).collect();
        let streams = std::mem::replace(&mut core.streams, none);
        core.merge_done();
        core.streams = streams;
        let holes = core.extents.holes_from(core.arena.granule());
        let idle = holes.flat_map(|hole| core.idle_in(hole));
        let idle: Vec<_> = idle.filter(|it| !it.frame.awake).collect();
        for IdleFrame { hole, id, .. } in core.hold_frames(&idle) {
            core.arena.forget_asleep(id);
            core.extents.retired(hole);
        }
    }

    fn take_all_down(&self, part: &Part) -> Result<()> {
        (part.iter()).try_for_each(|&(.., id)| self.take_down(id, Arena::fell_asleep).map(drop))
    }

    /// Makes the needed frames again and restores their contents, part by part; returns their bytes, with those that a
    /// wake made that failed. After a failure it unmaps all again.
    fn get_up(&self, sleeping: &mut Sleeping) -> Result<u64> {
        if sleeping.end == 0 {
            return Ok(0);
        }
        self.forget_idle();
        // What the device did not take back counts against the limit.
        let _ = self.work(|core| core.begin_trim(u64::MAX, true));
        let core = self.core.lock();
        let (room, lacking) = (core.room(), core.arena.asleep());
        drop(core);
        if room < lacking {
            return Err(self.out_of_memory(lacking));
        }
        let (parts, live) = self.sleeping_parts(sleeping.end);
        let made = parts.iter().try_for_each(|part| {
            self.make_again(part)?;
            (sleeping.copies)(&sleeping.stream, Way::ToDevice, &clip(&live, part))
        });
        let waited = sleeping.wait();
        if waited.is_ok() && made.is_err() {
            // A frame that the driver does not unmap stays made. After a failed wait, copies may still use the memory.
            let _ = parts.iter().try_for_each(|part| self.take_all_down(part));
        }
        let bytes = parts.iter().flatten().map(|(from, to, _)| to - from);
        made.and(waited).map(|()| bytes.sum())
    }

    fn make_again(&self, part: &Part) -> Result<()> {
        let site = self.core.lock().arena.site().clone();
        for &(.., id) in part {
            let frame = self.core.lock().arena.frame(id);
            if frame.awake {
                continue;
            }
            let made = site.make(frame.start, frame.bytes)?;
            let mut core = self.core.lock();
            let woke = core.arena.woke(id, made);
            core.peak_reserved = core.peak_reserved.max(core.arena.reserved());
            woke?;
        }
        Ok(())
    }
}
