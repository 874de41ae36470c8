//! A pool that sleeps: its blocks keep their addresses, and the device has its physical memory.
//!
//! A pool sleeps as a whole, so that every handle goes, whatever blocks share it. Falling asleep and waking
//! are made by one thread at a time, and without the pool's lock. Meanwhile, and while it sleeps:
//!
//! - operations on its memory are refused (`device::awake`), and those before have been waited for;
//! - requests are refused, by the ladder and by every stream's cache, which keeps nothing (`aside`);
//! - no handle is mapped elsewhere or given back, since none is idle (`Core::idle`).
//!
//! The driver takes as long for a few megabytes' handle as the bus for its bytes. So the frames go in parts,
//! by address: each is unmapped while the next is copied, and made again while those before it are.
//!
//! Growing buffers sleep with their pool: their handles go in such parts too.
//!
//! The heap's book of addresses stays as it is. A block that is dropped is free in it as ever, and a handle
//! whose blocks are all gone is not made again.

use std::ops::Range;
use std::sync::Arc;

use super::core::Core;
use super::grow_buf::Pages;
use super::idle::IdleFrame;
use super::release::Release;
use super::structure::{Copies, Lane, Ranges, Shared, Sleeping, Way};
use crate::arena::FrameId;
use crate::device::{Addr, Event, lock};
use crate::error::{Error, Result};
use crate::heap::State;
use crate::seeded::seeded;
use crate::sync::latch;

/// Parts beyond which more of them hide no more of the driver's time.
const PARTS: u64 = 16;

/// Most bytes of a part, unless one handle has more: what the bus brings in two or three milliseconds, in
/// which the driver takes down or makes some sixty handles.
const PART: u64 = 128 << 20;

/// Whose memory a part is.
enum Owner {
    Blocks(Vec<FrameId>),
    Growing(Arc<Pages>, Range<usize>),
}

/// Handles that lie behind one another, and the live bytes in them.
struct Part {
    owner: Owner,
    bytes: u64,
    start: u64,
    end: u64,
    ranges: Ranges,
}

impl Sleeping {
    /// Waits for all copies; where the driver would not, once more, as memory may not be unmapped under them.
    fn wait(&self) -> Result<()> {
        (self.stream.synchronize()).or_else(|_| self.stream.synchronize())
    }
}

/// What of these ranges, which ascend, lies between two addresses.
fn clip(ranges: &Ranges, from: Addr, to: Addr) -> Ranges {
    let first = ranges.partition_point(|(start, bytes)| start + bytes <= from);
    let part = |&(start, bytes): &(Addr, u64)| {
        let (start, end) = (start.max(from), (start + bytes).min(to));
        (start < end).then(|| (start, end - start))
    };
    ranges[first..].iter().map_while(part).collect()
}

impl Core {
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep && !seeded!("sleeping-pool-serves-requests")
    }

    pub(super) fn refuse_asleep(&self) -> Result<()> {
        match self.is_asleep() {
            false => Ok(()),
            true => Err(Error::invalid("pool", "it sleeps: wake it first")),
        }
    }

    /// All bytes in blocks and in slots that are out.
    fn live_ranges(&self) -> Ranges {
        let (base, slabs) = (self.arena.base(), self.slabs.by_extent());
        let mut ranges = Ranges::new();
        let mut add = |start, bytes| match ranges.last_mut() {
            Some((at, before)) if *at + *before == base + start => *before += bytes,
            _ => ranges.push((base + start, bytes)),
        };
        let blocks = self.extents.iter();
        for (id, extent) in blocks.filter(|(_, it)| it.state == State::Allocated) {
            let Some(&slab) = slabs.get(&id) else {
                add(extent.start, extent.bytes);
                continue;
            };
            let out = self.slabs.slots_of(slab).filter(|slot| !slot.free);
            out.for_each(|slot| add(slot.offset, slot.bytes));
        }
        ranges
    }

    /// Begins to take down every mapping but those of the frames themselves.
    fn begin_clearing_old(&mut self) -> Option<Release> {
        let kept = self.arena.kept_beyond(0);
        let kept = self.unkeep(kept);
        let old = self.take_retiring();
        let refused = self.arena.take_refused();
        self.begin_release(&[], old.into_iter().chain(kept), refused)
    }

    /// Makes gaps of the frames that sleep and that no block needs any more.
    fn forget_idle_asleep(&mut self) {
        self.merge_done();
        for hole in self.large_holes() {
            let idle: Vec<IdleFrame> = self.idle_in(hole).collect();
            // From the last on: what is left of a hole below keeps its number.
            for idle in idle.iter().rev() {
                if self.arena.frame(idle.frame).awake {
                    continue;
                }
                let gone = (self.extents).retire(hole, idle.start, idle.start + idle.bytes);
                self.arena.forget_asleep(idle.frame);
                self.extents.retired(gone);
            }
        }
    }

    /// The frames that end by `end`, in parts.
    fn sleeping_parts(&self, end: u64) -> Vec<Part> {
        let mut frames: Vec<_> = (self.arena.frames())
            .map(|(id, frame)| (self.arena.extent_of(&frame), id))
            .filter(|((start, bytes), _)| start + bytes <= end)
            .collect();
        frames.sort_unstable();
        let all: u64 = frames.iter().map(|((_, bytes), _)| bytes).sum();
        let most = (all / PARTS).min(PART);
        let mut parts: Vec<Part> = Vec::new();
        for ((start, bytes), id) in frames {
            if let Some(part) = parts.last_mut()
                && part.bytes < most
                && let Owner::Blocks(frames) = &mut part.owner
            {
                frames.push(id);
                (part.bytes, part.end) = (part.bytes + bytes, start + bytes);
                continue;
            }
            parts.push(Part {
                owner: Owner::Blocks(vec![id]),
                bytes,
                start,
                end: start + bytes,
                ranges: Ranges::new(),
            });
        }
        let (base, ranges) = (self.arena.base(), self.live_ranges());
        for part in &mut parts {
            part.ranges = clip(&ranges, base + part.start, base + part.end);
        }
        parts
    }
}

impl Lane {
    pub(super) fn set_asleep(&self, asleep: bool) {
        let mut state = latch(&self.own.state);
        state.asleep = asleep;
        state.aside = state.retired || asleep || state.captured.is_some();
    }
}

impl Shared {
    /// Puts the pool to sleep: `prepare` is given the ranges of live blocks, and what it gives copies them.
    /// Gives the bytes given back to the device; 0 where the pool sleeps already.
    ///
    /// # Errors
    /// As `Device::suspend`, what `prepare` says, what the driver said. The pool is then awake, unless the
    /// driver would neither take down a mapping nor make again those that it took down: it sleeps then, with
    /// nothing lost.
    pub(crate) fn sleep(&self, prepare: impl FnOnce(&Ranges) -> Result<Copies>) -> Result<u64> {
        if !self.core.lock().config.sleeps {
            let why = "it may not be put to sleep: make it with PoolConfig::sleeps(true)";
            return Err(Error::invalid("pool", why));
        }
        let mut asleep = lock(&self.asleep);
        if asleep.is_some() {
            return Ok(0);
        }
        // Idle memory need not come back. What the driver refuses sleeps with the rest.
        let _ = self.trim(0);
        self.device.suspend(&self.awake)?;
        self.set_asleep(true);
        drop(self.lock_drained());
        self.all_pages().iter().for_each(|pages| pages.hold(true));
        let (mut ranges, before) = {
            let core = self.core.lock();
            (core.live_ranges(), core.reserved())
        };
        let growing = self.growing_parts(false).into_iter();
        ranges.extend(growing.flat_map(|part| part.ranges));
        ranges.sort_unstable();
        let prepared = self.work(Core::begin_clearing_old).and_then(|_| {
            Ok(Sleeping {
                copies: prepare(&ranges)?,
                stream: self.device.stream()?,
                end: 0,
            })
        });
        let outcome = prepared.and_then(|mut sleeping| {
            let lain = self.lie_down(&mut sleeping);
            if lain.is_ok() || self.get_up(&mut sleeping).is_err() {
                *asleep = Some(sleeping);
            }
            lain
        });
        if asleep.is_none() {
            self.open();
        }
        outcome?;
        Ok(before.saturating_sub(self.core.lock().reserved()))
    }

    /// Wakes the pool; gives the bytes taken from the device, 0 where it does not sleep.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] beyond the limit, or where the device has not so much; what the driver said.
    /// The pool then sleeps on.
    pub(crate) fn wake(&self) -> Result<u64> {
        let mut asleep = lock(&self.asleep);
        let Some(sleeping) = &mut *asleep else {
            return Ok(0);
        };
        let before = self.core.lock().reserved();
        if let Err(error) = self.get_up(sleeping) {
            let lacking = self.pages_asleep() + self.core.lock().arena.asleep();
            return Err(match error.is_device_exhausted() {
                true => self.out_of_memory(lacking),
                false => error,
            });
        }
        *asleep = None;
        self.open();
        Ok(self.core.lock().reserved().saturating_sub(before))
    }

    fn open(&self) {
        self.all_pages().iter().for_each(|pages| pages.hold(false));
        self.set_asleep(false);
        self.device.resume(&self.awake);
        // Buffers that shrank or were dropped meanwhile.
        self.settle_all(false);
    }

    /// Refuses requests from now on, once what is under way has ended; or serves them again.
    fn set_asleep(&self, asleep: bool) {
        loop {
            let lanes = self.lanes_mut();
            let mut core = self.core.lock();
            if core.under_way.jobs > 0 {
                drop(lanes);
                drop(self.wait_for_others(core));
                continue;
            }
            core.asleep = asleep;
            drop(core);
            for lane in lanes.all() {
                lane.set_asleep(asleep);
            }
            return;
        }
    }

    /// Saves the contents and takes all frames down, part by part: a part is taken down while the next is
    /// copied. Stops at the first that the driver does not copy or take down. Nobody else maps or unmaps
    /// meanwhile.
    fn lie_down(&self, sleeping: &mut Sleeping) -> Result<()> {
        let mut parts = self.core.lock().sleeping_parts(u64::MAX);
        parts.extend(self.growing_parts(false));
        let mut outcome = Ok(());
        let mut copied: Option<(&Part, Event)> = None;
        for next in parts.iter().map(Some).chain([None]) {
            let queued = next.map(|part| Ok((part, self.queue_saving(sleeping, part)?)));
            outcome = queued.transpose().and_then(|queued| {
                let Some((part, event)) = std::mem::replace(&mut copied, queued) else {
                    return Ok(());
                };
                if !seeded!("taken-down-under-its-copies") {
                    event.synchronize()?;
                }
                sleeping.end = sleeping.end.max(part.end);
                self.take_down(&part.owner)
            });
            if outcome.is_err() {
                // What stays awake is used again.
                let _ = sleeping.wait();
                break;
            }
        }
        outcome
    }

    fn queue_saving(&self, sleeping: &mut Sleeping, part: &Part) -> Result<Event> {
        (sleeping.copies)(&sleeping.stream, Way::ToHost, &part.ranges)?;
        let event = self.device.event()?;
        event.record(&sleeping.stream).map(|()| event)
    }

    /// What growing buffers use, or what of them sleeps: all of it may be contents.
    fn growing_parts(&self, asleep: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        for pages in self.all_pages() {
            parts.extend(pages.parts(PART, asleep).into_iter().map(|part| Part {
                bytes: part.bytes,
                start: 0,
                end: 0,
                ranges: vec![(part.start, part.bytes)],
                owner: Owner::Growing(Arc::clone(&pages), part.handles),
            }));
        }
        parts.retain(|_| !seeded!("growing-buffers-stay-awake"));
        parts
    }

    /// Takes this memory down and gives its handles back.
    fn take_down(&self, owner: &Owner) -> Result<()> {
        let frames = match owner {
            Owner::Blocks(frames) => frames,
            Owner::Growing(pages, handles) => {
                let (released, outcome) = pages.fall_asleep(handles.clone());
                self.book_released(released);
                return outcome;
            }
        };
        let site = self.core.lock().arena.site().clone();
        for &id in frames {
            let (frame, (start, bytes)) = self.core.lock().arena.frame_and_extent(id);
            if !frame.awake {
                continue;
            }
            site.unmap(start, bytes)?;
            // What the device does not take back is offered again: see `Arena::offered`.
            let kept = seeded!("sleeping-handles-kept");
            let released = kept || site.release(frame.phys).is_ok();
            self.core.lock().arena.fell_asleep(id, released);
        }
        Ok(())
    }

    /// Makes the frames again that blocks lie in, and brings back what was saved of them, part by part: a
    /// part is made while those before are copied. Of one that fails, all are taken down again.
    fn get_up(&self, sleeping: &mut Sleeping) -> Result<()> {
        self.all_pages().iter().for_each(|it| it.forget_asleep());
        let mut growing = self.growing_parts(true);
        if sleeping.end == 0 && growing.is_empty() {
            return Ok(());
        }
        let mut left = {
            let beside = self.pages_asleep();
            let mut core = self.core.lock();
            core.forget_idle_asleep();
            let bytes = core.arena.asleep() + beside;
            if core.room() < bytes && !seeded!("woken-beyond-the-limit") {
                drop(core);
                return Err(self.out_of_memory(bytes));
            }
            core.under_way.to_create += bytes;
            bytes
        };
        let mut parts = self.core.lock().sleeping_parts(sleeping.end);
        parts.append(&mut growing);
        let made = parts.iter().try_for_each(|part| {
            self.make_again(&part.owner, &mut left)?;
            (sleeping.copies)(&sleeping.stream, Way::ToDevice, &part.ranges)
        });
        self.core.lock().under_way.to_create -= left;
        let waited = sleeping.wait();
        if waited.is_ok() && made.is_err() && !seeded!("failed-wake-keeps-its-handles") {
            // What the driver does not take down is made no second time. Copies that it would not wait for
            // may be under way still, and their memory stays mapped.
            let mut each = parts.iter();
            let _ = each.try_for_each(|part| self.take_down(&part.owner));
        }
        made.and(waited)
    }

    /// Makes what of this memory sleeps; stops at the first handle that the device has no memory for.
    fn make_again(&self, owner: &Owner, left: &mut u64) -> Result<()> {
        let frames = match owner {
            Owner::Blocks(frames) => frames,
            Owner::Growing(pages, handles) => {
                let (made, outcome) = pages.wake(handles.clone());
                let mut core = self.core.lock();
                core.under_way.to_create -= made;
                core.book_grown_handles(made);
                *left -= made;
                return outcome;
            }
        };
        let site = self.core.lock().arena.site().clone();
        for &id in frames {
            let (frame, (start, bytes)) = self.core.lock().arena.frame_and_extent(id);
            if frame.awake {
                continue;
            }
            let made = site.make(start, bytes)?;
            let mut core = self.core.lock();
            core.under_way.to_create -= bytes;
            *left -= bytes;
            let woke = core.arena.woke(id, made);
            core.peak_reserved = core.peak_reserved.max(core.reserved());
            woke?;
        }
        Ok(())
    }
}
