//! What the pool's lock guards: the heap, the arena, the streams. How a hole is taken and freed.
//!
//! Everything here runs under that lock. No function here calls the driver, but for waits between streams: see `job`.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::cache::{Cached, MOST_BLOCKS};
use super::config::PoolConfig;
use super::pace::Pace;
use super::stats::counters::Gauges;
use super::stats::{Steps, Told};
use super::tuning::{
    ADDRESSES_A_BYTE, FEW_ADDRESSES, LEAST_CACHE, LEAST_CACHE_OF_SEVERAL, MOST_ADDRESSES,
    UNIFIED_AT_ONCE,
};
use crate::arena::Arena;
use crate::device::{Device, Timeline};
use crate::error::Result;
use crate::heap::slab::Slabs;
use crate::heap::{Epoch, Extent, Extents, FRESH, Id, State, StreamIndex, ensure};
use crate::sync::{Latch, LatchGuard};

/// A slot, held: once all clones are dropped, another stream may get the slot.
pub(crate) type Hold = Arc<StreamIndex>;

pub(crate) struct StreamState {
    pub(super) timeline: Arc<Timeline>,
    /// The stream is a graph's gate: its blocks are segments of the graph's memory.
    pub(super) gate: bool,
    /// Every lane of the slot has it, and every job that holds memory which waits for its stream.
    pub(super) hold: Weak<StreamIndex>,
}

/// What is promised to jobs under way.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct UnderWay {
    /// Jobs under way that may free memory.
    pub(super) jobs: u64,
    /// How many such jobs have ended.
    pub(super) ended: u64,
    /// Bytes of handles to be made, which count against the limit.
    pub(super) to_create: u64,
    /// Bytes of the requests that mappings are made for.
    pub(super) wanted: u64,
}

impl UnderWay {
    pub(super) fn end_one(&mut self) {
        self.jobs -= 1;
        self.ended += 1;
    }
}

/// In this order, so that what each request that misses its cache reads lies together, behind the latch: a program
/// leaves none of it in the processor's caches.
#[repr(C)]
pub(crate) struct Core {
    /// The pool sleeps or falls asleep: it serves no request, maps nothing and frees no handle.
    pub(super) asleep: bool,
    /// The joint peak of live bytes when it was last noted, and the most bytes in blocks until then.
    pub(super) seen: (u64, u64),
    pub(crate) extents: Extents,
    /// By slot; `FRESH` has none.
    pub(super) streams: Vec<Option<StreamState>>,
    /// Blocks that move between a cache and the heap; empty between calls.
    pub(super) on_the_way: Vec<Cached>,
    /// Requests until the joint peak may be noted again.
    pub(super) unread: u64,
    /// Most bytes in blocks since the pool was made.
    pub(super) peak_taken: u64,
    /// Bytes in blocks, caches included.
    pub(super) active: Gauges,
    pub(super) under_way: UnderWay,
    pub(super) steps: Steps,
    pub(crate) arena: Arena,
    pub(crate) config: PoolConfig,
    pub(super) pace: Pace,
    pub(super) slabs: Slabs,
    /// Stale mappings of remapped frames, in the order in which they are looked at.
    pub(super) retiring: VecDeque<Id>,
    /// Steps that the application's subscriber has not been told yet.
    pub(super) told: Vec<Told>,
    /// [`Extents::changes`] when [`Core::unify`] ran last.
    pub(super) unified: u64,
    pub(super) bytes_moved: u64,
    pub(super) compactions: u64,
    pub(super) peak_reserved: u64,
    /// Bytes held, when statistics were last read.
    pub(super) reserved: Gauges,
    /// Free bytes in handles that also hold blocks, when statistics were last read.
    pub(super) inactive_split: Gauges,
}

pub(crate) type CoreLock = Latch<Core>;
pub(crate) type CoreGuard<'l> = LatchGuard<'l, Core>;

/// Whether the work up to `epoch` is known to be done, without asking the driver.
pub(super) fn is_done(streams: &[Option<StreamState>], epoch: Epoch) -> bool {
    let stream = streams[epoch.stream as usize].as_ref();
    stream.is_none_or(|it| it.timeline.done() >= epoch.tick)
}

impl Core {
    pub(crate) fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        let info = device.info();
        let granule = info.granule.max(1);
        let total = info.total_bytes;
        let most = total.saturating_mul(ADDRESSES_A_BYTE);
        let most = most.min(FEW_ADDRESSES.max(total)).min(MOST_ADDRESSES);
        let span = most.div_ceil(granule).max(2) * granule;
        let arena = Arena::new(device, span, &config.peers)?;
        let mut core = Self {
            extents: Extents::new(span),
            arena,
            pace: Pace::new(config.slack, info),
            config,
            streams: vec![None],
            retiring: VecDeque::new(),
            under_way: UnderWay::default(),
            steps: Steps::default(),
            told: Vec::new(),
            unified: 0,
            bytes_moved: 0,
            compactions: 0,
            peak_reserved: 0,
            active: Gauges::default(),
            reserved: Gauges::default(),
            inactive_split: Gauges::default(),
            peak_taken: 0,
            seen: (0, 0),
            unread: 0,
            on_the_way: Vec::with_capacity(MOST_BLOCKS),
            slabs: Slabs::default(),
            asleep: false,
        };
        if core.pace.asks() {
            core.pace.most = core.held().saturating_add(core.arena.site().free_bytes());
        }
        Ok(core)
    }

    /// Bytes of the arena's handles, without those of growing buffers.
    pub(crate) fn in_arena(&self) -> u64 {
        self.arena.reserved() - self.arena.beside()
    }

    pub(crate) fn limit(&self) -> u64 {
        self.config.limit.unwrap_or(u64::MAX)
    }

    /// The lowest of the limit, the soft limit and what the device has.
    pub(super) fn most(&self) -> u64 {
        self.limit().min(self.soft_limit()).min(self.pace.most)
    }

    /// A slot for a stream.
    pub(crate) fn add_stream(&mut self, timeline: &Arc<Timeline>, gate: bool) -> Hold {
        let is_free = |&slot: &StreamIndex| {
            let waits = |&id: &Id| self.extents.get(id).epoch.stream == slot;
            let no_hole = self.extents.has_none(slot) && self.slabs.has_none(slot);
            no_hole && !self.retiring.iter().any(waits) && self.is_left(slot)
        };
        let free = (1..self.extents.slots()).find(is_free);
        let slot = free.unwrap_or_else(|| {
            self.streams.push(None);
            self.extents.add_slot()
        });
        let hold = Arc::new(slot);
        self.streams[slot as usize] = Some(StreamState {
            timeline: Arc::clone(timeline),
            gate,
            hold: Arc::downgrade(&hold),
        });
        hold
    }

    /// Holds the slots of these epochs, whose streams may be gone, for a job.
    pub(super) fn hold_slots(&mut self, epochs: &[Epoch]) -> Vec<Hold> {
        let hold = |it: &Epoch| {
            let state = self.streams[it.stream as usize].as_mut()?;
            let hold = state.hold.upgrade().unwrap_or_else(|| it.stream.into());
            state.hold = Arc::downgrade(&hold);
            Some(hold)
        };
        epochs.iter().filter_map(hold).collect()
    }

    /// Whether no lane and no job has the slot any more.
    pub(super) fn is_left(&self, slot: StreamIndex) -> bool {
        let stream = self.streams[slot as usize].as_ref();
        stream.is_none_or(|it| it.hold.strong_count() == 0)
    }

    /// Whether work that `slot`'s stream is given from now on runs behind `epoch`.
    pub(super) fn is_behind(&self, slot: StreamIndex, epoch: Epoch) -> bool {
        epoch.tick <= self.covered(slot, epoch.stream)
    }

    /// As [`Core::is_behind`], or known to be done: memory may merge then, even if the pool is set not to use it.
    pub(super) fn is_ordered(&self, slot: StreamIndex, epoch: Epoch) -> bool {
        self.is_behind(slot, epoch) || is_done(&self.streams, epoch)
    }

    /// The timeline of a stream; `None` for [`FRESH`].
    pub(super) fn timeline(&self, slot: StreamIndex) -> Option<&Arc<Timeline>> {
        let state = self.streams[slot as usize].as_ref();
        state.map(|state| &state.timeline)
    }

    /// Whether the work up to `epoch` can be waited for: see [`Timeline::may_close`].
    pub(super) fn may_wait(&self, epoch: Epoch) -> bool {
        (self.timeline(epoch.stream)).is_none_or(|it| it.may_close(epoch.tick))
    }

    /// The last tick of `owner`'s stream that `slot`'s stream is known to run behind, without asking the driver.
    pub(super) fn covered(&self, slot: StreamIndex, owner: StreamIndex) -> u64 {
        let both = self.timeline(slot).zip(self.timeline(owner));
        let Some((mine, theirs)) = both.filter(|_| owner != slot) else {
            return u64::MAX;
        };
        let waited = mine.waited(theirs.uid);
        match self.config.reuse.opportunistic {
            true => waited.max(theirs.done()),
            false => waited,
        }
    }

    /// The hole that begins where `id` ends, if it has at least `bytes`.
    pub(super) fn hole_behind(&self, id: Id, bytes: u64) -> Option<(Id, Extent)> {
        let next = self.extents.get(id).next;
        let hole = *self.extents.get(next);
        (hole.state == State::Free && hole.bytes >= bytes).then_some((next, hole))
    }

    pub(super) fn only_stream(&self) -> bool {
        self.streams.len() <= 2
    }

    pub(crate) fn cache_room(&self) -> u64 {
        let streams = (self.streams.len() as u64 - 1).max(1);
        let part = self.pace.cached(self.peak_taken, self.most()) / streams;
        let least = match self.only_stream() {
            true => LEAST_CACHE,
            false => LEAST_CACHE_OF_SEVERAL,
        };
        self.config.cache_bytes.unwrap_or(part.max(least))
    }

    pub(crate) fn give(&mut self, id: Id, epoch: Epoch) {
        let streams = &self.streams;
        self.extents
            .give(id, epoch, |extent| is_done(streams, extent.epoch));
    }

    /// Frees memory that a job held, to be as it was before.
    pub(super) fn let_go(&mut self, held: Id) {
        self.give(held, self.extents.get(held).epoch);
    }

    /// Frees the last `bytes` of a block, not all of it, as [`Core::give`] does.
    pub(crate) fn shrink(&mut self, id: Id, bytes: u64, epoch: Epoch) {
        let before = self.extents.get(id).bytes;
        self.active.block_resized(before, before - bytes);
        let at = self.extents.get(id).end() - bytes;
        let rest = self.extents.cut(id, at);
        self.give(rest, epoch);
    }

    /// Whether it pays to look at all holes: they are few, or enough have changed since [`Core::unify`].
    pub(super) fn has_changed(&self) -> bool {
        self.extents.holes() <= self.extents.changes() - self.unified + UNIFIED_AT_ONCE
    }

    /// The tick that the next record on `slot`'s stream closes.
    pub(super) fn open_tick(&self, slot: StreamIndex) -> u64 {
        self.timeline(slot).map_or(0, |it| it.open_tick())
    }

    /// Merges the extent `id`, if it is a hole, with the holes above it while the work of each is known to be done.
    pub(super) fn merge_done_from(&mut self, id: Id) {
        (self.extents).merge_up(id, |extent| is_done(&self.streams, extent.epoch));
    }

    /// For each stream, the last work that holes wait for, and stale mappings that can be waited for.
    pub(super) fn last_epochs(&self) -> Vec<Epoch> {
        let mut last = vec![0; self.streams.len()];
        for (_, extent) in self.extents.iter() {
            let is_stale = extent.state == State::Stale && self.may_wait(extent.epoch);
            if is_stale || extent.state == State::Free {
                let tick = &mut last[extent.epoch.stream as usize];
                *tick = extent.epoch.tick.max(*tick);
            }
        }
        let each = (0..).zip(last).filter(|&(_, tick)| tick > 0);
        each.map(|(slot, tick)| Epoch::new(slot, tick)).collect()
    }

    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let taken = self.extents.check(self.arena.granule())?;
        let frames = self.arena.check()?;
        self.slabs.check(&self.extents)?;
        let may_come = |it: Epoch| it.stream == FRESH || it.tick <= self.open_tick(it.stream);
        let slabs = self.slabs.by_extent();
        let mut slots = slabs.values().flat_map(|&id| self.slabs.get(id).epochs());
        ensure!(slots.all(may_come) => "a free slot waits for no record");
        let mut mapped = 0;
        for (id, extent) in self.extents.iter() {
            let needs = matches!(extent.state, State::Free | State::Held | State::Allocated);
            let is_mapped = |at| self.arena.frame_at(at).is_some();
            let agrees = [extent.start, extent.end() - 1].map(is_mapped) == [needs; 2];
            ensure!(agrees => "extent {id} {extent:?} does not agree with the mappings");
            mapped += if needs { extent.bytes } else { 0 };
            ensure!(extent.state != State::Free || may_come(extent.epoch) =>
                "hole {id} {extent:?} waits for a tick that no record will make");
        }
        let (counted, jobs) = (self.live(), self.under_way.jobs);
        // A block that a job has for a request does not count yet.
        ensure!(counted == taken || jobs > 0 && counted < taken =>
            "blocks have {taken} bytes, counted {counted}, beside {jobs} jobs");
        ensure!(mapped == frames => "extents cover {mapped} mapped bytes of {frames}");
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
