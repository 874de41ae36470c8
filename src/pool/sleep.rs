//! A pool that sleeps: its blocks keep their addresses, and the device has its physical memory.
//!
//! A pool sleeps as a whole, so that every handle goes, whatever blocks share it. Falling asleep and waking
//! are made by one thread at a time, and without the pool's lock. Meanwhile, and while it sleeps:
//!
//! - operations on its memory are refused (`device::awake`), and those before have been waited for;
//! - requests are refused, by the ladder and by every stream's cache, which keeps nothing (`aside`);
//! - no handle is mapped elsewhere or given back, since none is idle (`Core::idle`).
//!
//! The heap's book of addresses stays as it is. A block that is dropped is free in it as ever, and a handle
//! whose blocks are all gone is not made again.

use super::core::Core;
use super::idle::IdleFrame;
use super::release::Release;
use super::structure::{Bring, Lane, Ranges, Shared};
use crate::arena::{Frame, FrameId};
use crate::device::lock;
use crate::error::{Error, Result};
use crate::heap::{Epoch, FRESH, State};
use crate::seeded::seeded;
use crate::sync::latch;

/// What a frame's place is to the driver.
struct Place {
    frame: FrameId,
    start: u64,
    bytes: u64,
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

    fn places(&self, asleep: bool) -> Vec<Place> {
        let place = |(frame, it): (FrameId, Frame)| {
            let (start, bytes) = self.arena.extent_of(&it);
            Place {
                frame,
                start,
                bytes,
            }
        };
        self.arena.frames(asleep).into_iter().map(place).collect()
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
    /// Puts the pool to sleep: `save` is given the ranges of live blocks, copies them and waits for the
    /// copies; what it gives brings them back. Gives the bytes given back to the device; 0 where the pool
    /// sleeps already.
    ///
    /// # Errors
    /// As `Device::suspend`, what `save` says, what the driver said. The pool is then awake, unless the
    /// driver would neither take down a mapping nor make again those that it took down: it sleeps then, with
    /// nothing lost.
    pub(crate) fn sleep(&self, save: impl FnOnce(&Ranges) -> Result<Bring>) -> Result<u64> {
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
        let saved = self
            .work(Core::begin_clearing_old)
            .and_then(|_| save(&ranges));
        let lain = saved.map(|bring| (self.lie_down(), bring));
        let error = match lain {
            Ok((Ok(()), bring)) => {
                *asleep = Some(bring);
                return Ok(before.saturating_sub(self.core.lock().reserved()));
            }
            Ok((Err(error), bring)) => {
                let ranges = self.core.lock().live_ranges();
                if (self.get_up())
                    .and_then(|()| bring(&ranges).outcome)
                    .is_err()
                {
                    *asleep = Some(bring);
                    return Err(error);
                }
                error
            }
            Err(error) => error,
        };
        self.open();
        Err(error)
    }

    /// Wakes the pool; gives the bytes taken from the device, 0 where it does not sleep.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] beyond the limit, or where the device has not so much; what the driver said.
    /// The pool then sleeps on.
    pub(crate) fn wake(&self) -> Result<u64> {
        let mut asleep = lock(&self.asleep);
        let Some(bring) = &*asleep else {
            return Ok(0);
        };
        let before = self.core.lock().reserved();
        let mut under_way = false;
        let outcome = self.get_up().and_then(|()| {
            let ranges = self.core.lock().live_ranges();
            let brought = bring(&ranges);
            under_way = brought.under_way;
            brought.outcome
        });
        if let Err(error) = outcome {
            // What the driver does not take down is made no second time.
            let _ = match under_way || seeded!("failed-wake-keeps-its-handles") {
                true => Ok(()),
                false => self.lie_down(),
            };
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

    /// Takes all frames down and gives their handles back; stops at the first that the driver does not
    /// take down. Nobody else maps or unmaps meanwhile.
    fn lie_down(&self) -> Result<()> {
        let (frames, site) = {
            let core = self.core.lock();
            (core.arena.frames(false), core.arena.site().clone())
        };
        for (id, frame) in frames {
            let (start, bytes) = self.core.lock().arena.extent_of(&frame);
            site.unmap(start, bytes)?;
            // What the device does not take back is offered again: see `Arena::offered`.
            let kept = seeded!("sleeping-handles-kept");
            let released = kept || site.release(frame.phys).is_ok();
            self.core.lock().arena.fell_asleep(id, released);
        }
        Ok(())
    }

    /// Makes the frames again that blocks lie in; stops at the first that the device has no memory for.
    fn get_up(&self) -> Result<()> {
        let (places, site) = {
            let mut core = self.core.lock();
            core.forget_idle_asleep();
            let bytes = core.arena.asleep();
            if core.room() < bytes && !seeded!("woken-beyond-the-limit") {
                drop(core);
                return Err(self.out_of_memory(bytes));
            }
            core.under_way.to_create += bytes;
            (core.places(true), core.arena.site().clone())
        };
        let mut left: u64 = places.iter().map(|place| place.bytes).sum();
        let outcome = places.iter().try_for_each(|place| {
            let made = site.make(place.start, place.bytes)?;
            let mut core = self.core.lock();
            core.under_way.to_create -= place.bytes;
            left -= place.bytes;
            let woke = core.arena.woke(place.frame, made);
            core.peak_reserved = core.peak_reserved.max(core.reserved());
            woke
        });
        self.core.lock().under_way.to_create -= left;
        outcome
    }
}
