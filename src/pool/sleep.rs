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
//! The heap's book of addresses stays as it is. A block that is dropped is free in it as ever, and a handle
//! whose blocks are all gone is not made again.

use super::core::Core;
use super::idle::IdleFrame;
use super::release::Release;
use super::structure::{Copies, Lane, Ranges, Shared, Sleeping, Way};
use crate::arena::FrameId;
use crate::device::{Addr, Event, lock};
use crate::error::{Error, Result};
use crate::heap::{Epoch, FRESH, State};
use crate::seeded::seeded;
use crate::sync::latch;

/// Parts beyond which more of them hide no more of the driver's time.
const PARTS: u64 = 16;

/// Most bytes of a part, unless one handle has more: what the bus brings in two or three milliseconds, in
/// which the driver takes down or makes some sixty handles.
const PART: u64 = 128 << 20;

/// Frames that lie behind one another, and the live bytes in them.
#[derive(Default)]
struct Part {
    frames: Vec<FrameId>,
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
        for (id, extent) in self.extents.iter() {
            match (extent.state, slabs.get(&id)) {
                (State::Allocated, None) => add(extent.start, extent.bytes),
                (State::Allocated, Some(&slab)) => {
                    let out = self.slabs.slots_of(slab).filter(|slot| !slot.free);
                    out.for_each(|slot| add(slot.offset, slot.bytes));
                }
                _ => {}
            }
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
        let slots = 0..self.extents.slots();
        let granule = self.arena.granule();
        let holes: Vec<_> = slots
            .flat_map(|slot| self.extents.holes_of(slot, granule))
            .collect();
        for hole in holes {
            let idle: Vec<IdleFrame> = self.idle_in(hole).collect();
            // From the last on: what is left of a hole below keeps its number.
            for idle in idle.iter().rev() {
                if self.arena.frame(idle.frame).awake {
                    continue;
                }
                let part = (hole, idle.start, idle.bytes);
                let held = (self.under_way).hold(&mut self.extents, part, FRESH);
                self.under_way.unhold(&held);
                self.arena.forget_asleep(idle.frame);
                self.extents.vacate(held.id, Epoch::PAST);
                self.extents.retired(held.id);
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
            if parts.last().is_none_or(|part| part.bytes >= most) {
                parts.push(Part {
                    start,
                    ..Part::default()
                });
            }
            if let Some(part) = parts.last_mut() {
                part.frames.push(id);
                (part.bytes, part.end) = (part.bytes + bytes, start + bytes);
            }
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
        let ranges = self.core.lock().live_ranges();
        let before = self.core.lock().reserved();
        let prepared = self.work(Core::begin_clearing_old).and_then(|_| {
            let (copies, stream) = (prepare(&ranges)?, self.device.stream()?);
            let end = 0;
            Ok(Sleeping {
                copies,
                stream,
                end,
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
            let lacking = self.core.lock().arena.asleep();
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
        self.set_asleep(false);
        self.device.resume(&self.awake);
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
        let parts = self.core.lock().sleeping_parts(u64::MAX);
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
                sleeping.end = part.end;
                self.take_down(&part.frames)
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

    /// Takes these frames down and gives their handles back.
    fn take_down(&self, frames: &[FrameId]) -> Result<()> {
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
        if sleeping.end == 0 {
            return Ok(());
        }
        let mut left = {
            let mut core = self.core.lock();
            core.forget_idle_asleep();
            let bytes = core.arena.asleep();
            if core.room() < bytes && !seeded!("woken-beyond-the-limit") {
                drop(core);
                return Err(self.out_of_memory(bytes));
            }
            core.under_way.to_create += bytes;
            bytes
        };
        let parts = self.core.lock().sleeping_parts(sleeping.end);
        let made = parts.iter().try_for_each(|part| {
            self.make_again(&part.frames, &mut left)?;
            (sleeping.copies)(&sleeping.stream, Way::ToDevice, &part.ranges)
        });
        self.core.lock().under_way.to_create -= left;
        let waited = sleeping.wait();
        if waited.is_ok() && made.is_err() && !seeded!("failed-wake-keeps-its-handles") {
            // What the driver does not take down is made no second time. Copies that it would not wait for
            // may be under way still, and their memory stays mapped.
            let _ = parts
                .iter()
                .try_for_each(|part| self.take_down(&part.frames));
        }
        made.and(waited)
    }

    /// Makes those of the frames that sleep; stops at the first that the device has no memory for.
    fn make_again(&self, frames: &[FrameId], left: &mut u64) -> Result<()> {
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
