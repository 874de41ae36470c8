//! The shared heart of a pool: the steps by which a request finds memory.
//!
//! # The ladder
//!
//! A request that its stream's cache cannot serve climbs, and stops at the first step that works:
//!
//! 1. **own stream**: a hole freed on the same stream, or one no stream has used. No driver call.
//! 2. **ready elsewhere**: a hole of another stream whose work is done, or which the requesting
//!    stream waits for already. At most one query a stream.
//! 3. **stream wait**: a hole, or a run of holes, of other streams; the requesting stream waits
//!    for them on the device. One record and one wait a stream.
//! 4. **steal**: idle handles elsewhere in the arena are mapped where the request goes.
//! 5. **grow**: new handles.
//!
//! Before step 4 a layer above that moves live memory is asked, if there is one: where moves cost less
//! than mapping the handles elsewhere, they make the room.
//!
//! What follows (caches elsewhere, compaction, the application) is registered from above.
//! Steps 4 and 5 change places while the pool is below its peak's slack: see
//! [`PoolConfig::slack`](super::PoolConfig::slack).
//!
//! Everything here runs under the pool's lock, but for the driver calls of step 5: see `grow`.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::cache::{Cached, MOST_BLOCKS};
use super::config::PoolConfig;
use super::grow::UnderWay;
use super::lane::SlotHold;
use super::stats::Steps;
use super::stats::counters::Gauges;
use super::told::{Notes, Told};
use crate::arena::Arena;
use crate::device::{Device, Timeline};
use crate::error::Result;
use crate::heap::placement::{self, Placement};
use crate::heap::size_class::is_slot;
use crate::heap::slab::Slabs;
use crate::heap::{Epoch, Extent, Extents, FRESH, Grant, Id, NONE, State, StreamIndex, Zone};
use crate::seeded::seeded;

/// Most addresses that a pool reserves, whatever its device says of itself: half of those of a
/// process.
const MOST_ADDRESSES: u64 = 1 << 46;

/// What the core knows of a stream.
pub(crate) struct StreamState {
    pub(crate) timeline: Arc<Timeline>,
    /// What its lanes hold.
    pub(crate) hold: Weak<SlotHold>,
}

/// See the module documentation.
pub(crate) struct Core {
    pub(crate) extents: Extents,
    pub(crate) arena: Arena,
    pub(crate) config: PoolConfig,
    /// By slot; `FRESH` has none.
    pub(crate) streams: Vec<Option<StreamState>>,
    /// Old places of remapped frames, in the order in which they are looked at.
    pub(super) retiring: VecDeque<Id>,
    /// What growths under way have.
    pub(super) under_way: UnderWay,
    pub(crate) steps: Steps,
    /// Steps not told to the application's subscriber yet.
    pub(crate) told: Notes,
    pub(crate) bytes_moved: u64,
    pub(crate) compactions: u64,
    pub(crate) peak_reserved: u64,
    /// Bytes in blocks, caches included.
    pub(super) active: Gauges,
    /// Bytes held, as somebody who read figures saw them last.
    pub(super) reserved: Gauges,
    /// Free bytes in handles that also hold blocks, likewise.
    pub(super) inactive_split: Gauges,
    /// Most of them since the pool was made.
    pub(crate) peak_taken: u64,
    /// Blocks on their way from a cache into the heap or back; empty between calls.
    pub(super) on_the_way: Vec<Cached>,
    /// Blocks cut into slots.
    pub(super) slabs: Slabs,
}

/// Whether nothing queued uses the hole, as far as is known without asking the driver.
pub(super) fn is_done(streams: &[Option<StreamState>], epoch: Epoch) -> bool {
    match &streams[epoch.stream as usize] {
        Some(state) => {
            let last = match seeded!("done-a-record-early") {
                true => epoch.tick.saturating_sub(1),
                false => epoch.tick,
            };
            state.timeline.done() >= last
        }
        None => true,
    }
}

impl Core {
    pub(crate) fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        let info = device.info();
        let granule = info.granule.max(1);
        let most = info.total_bytes.saturating_mul(8).min(MOST_ADDRESSES);
        let span = most.div_ceil(granule).max(2) * granule;
        let arena = Arena::new(device, span)?;
        // Both ends together may hold the device's memory many times over.
        let bound = span - (span / granule / 8).max(1) * granule;
        let mut core = Self {
            extents: Extents::new(bound, span),
            arena,
            config,
            streams: vec![None],
            retiring: VecDeque::new(),
            under_way: UnderWay::default(),
            steps: Steps::default(),
            told: Notes::default(),
            bytes_moved: 0,
            compactions: 0,
            peak_reserved: 0,
            active: Gauges::default(),
            reserved: Gauges::default(),
            inactive_split: Gauges::default(),
            peak_taken: 0,
            on_the_way: Vec::with_capacity(MOST_BLOCKS),
            slabs: Slabs::default(),
        };
        core.preallocate()?;
        Ok(core)
    }

    fn preallocate(&mut self) -> Result<()> {
        let granule = self.arena.granule();
        let bytes = self.config.preallocate.min(self.limit()) / granule * granule;
        self.create_frames(0, bytes).map(|_| ())
    }

    /// Most physical bytes the pool may hold.
    pub(crate) fn limit(&self) -> u64 {
        self.config.limit.unwrap_or(u64::MAX)
    }

    /// A slot for a stream, kept while someone has the hold that comes with it.
    pub(crate) fn add_stream(
        &mut self,
        timeline: &Arc<Timeline>,
        gate: bool,
    ) -> (StreamIndex, Arc<SlotHold>) {
        let hold = Arc::new(SlotHold { gate });
        let state = StreamState {
            timeline: Arc::clone(timeline),
            hold: Arc::downgrade(&hold),
        };
        for slot in 1..self.extents.slots() {
            let idle = self.extents.has_none(slot)
                && self.slabs.has_none(slot)
                && !self
                    .retiring
                    .iter()
                    .any(|&id| self.extents.get(id).slot == slot);
            let left = self.streams[slot as usize]
                .as_ref()
                .is_none_or(|s| s.hold.strong_count() == 0);
            if idle && left {
                self.streams[slot as usize] = Some(state);
                return (slot, hold);
            }
        }
        let slot = self.extents.add_slot();
        self.streams.push(Some(state));
        (slot, hold)
    }

    /// Whether work queued on `slot`'s stream from now on runs behind `epoch`.
    pub(super) fn is_behind(&self, slot: StreamIndex, epoch: Epoch) -> bool {
        epoch.tick <= self.covered(slot, epoch.stream)
    }

    /// The last tick of `owner`'s stream that work queued on `slot`'s from now on runs behind, as far
    /// as is known without asking the driver.
    pub(super) fn covered(&self, slot: StreamIndex, owner: StreamIndex) -> u64 {
        if owner == slot || owner == FRESH {
            return u64::MAX;
        }
        let [mine, theirs] = [slot, owner].map(|slot| self.streams[slot as usize].as_ref());
        let (Some(mine), Some(theirs)) = (mine, theirs) else {
            return u64::MAX;
        };
        let waited = mine.timeline.waited(theirs.timeline.uid)
            + u64::from(seeded!("waited-for-the-record-before"));
        match self.config.reuse.opportunistic {
            true => waited.max(theirs.timeline.done()),
            false => waited,
        }
    }

    /// Makes `slot`'s stream wait for `epoch`.
    pub(super) fn wait_for(&mut self, slot: StreamIndex, epoch: Epoch) -> Result<()> {
        if epoch.is_own(slot) {
            return Ok(());
        }
        if let (Some(mine), Some(theirs)) = (
            &self.streams[slot as usize],
            &self.streams[epoch.stream as usize],
        ) && mine.timeline.wait_for(&theirs.timeline, epoch.tick)?
        {
            self.steps.waits += 1;
        }
        Ok(())
    }

    /// Takes `bytes` from the front of the hole `id`.
    #[inline(always)]
    pub(super) fn take(&mut self, id: Id, bytes: u64, slot: StreamIndex) -> Grant {
        self.extents.take(id, bytes, slot);
        self.granted(id)
    }

    #[inline]
    pub(super) fn granted(&mut self, id: Id) -> Grant {
        self.peak_taken = self.peak_taken.max(self.extents.taken().0);
        Grant {
            id,
            offset: self.extents.get(id).start,
        }
    }

    /// Takes up to `most` blocks of `bytes` from the hole behind the block `id`, if it is ready for
    /// `slot`.
    pub(crate) fn take_behind(
        &mut self,
        id: Id,
        bytes: u64,
        slot: StreamIndex,
        most: u64,
        taken: &mut Vec<Cached>,
    ) {
        let next = self.extents.get(id).next;
        if next == NONE {
            return;
        }
        let hole = *self.extents.get(next);
        let count = most.min(hole.bytes / bytes);
        if hole.state != State::Free || count == 0 || !self.is_behind(slot, hole.epoch()) {
            return;
        }
        let first = self.take(next, count * bytes, slot);
        for at in (0..count).rev() {
            let id = if at == 0 {
                first.id
            } else {
                self.extents.split_taken(first.id, bytes)
            };
            taken.push(Cached {
                addr: self.arena.base() + first.offset + at * bytes,
                bytes,
                tick: 0,
                id,
            });
        }
    }

    /// Whether no more than one stream has used the pool.
    pub(super) fn only_stream(&self) -> bool {
        self.streams.len() <= 2
    }

    /// Frees a block with the history (`slot`, `tick`).
    pub(crate) fn give(&mut self, id: Id, slot: StreamIndex, tick: u64) {
        let only_stream = self.only_stream();
        let Self {
            extents,
            streams,
            arena,
            ..
        } = self;
        let granule = arena.granule();
        extents.give(id, slot, tick, |extent| match extent.slot {
            // A large stretch that is ready for all stays apart from one stream's hole, so that
            // other streams need not wait for it; a remainder does not.
            FRESH => only_stream || extent.bytes <= granule,
            _ => is_done(streams, extent.epoch()) || seeded!("merge-of-holes-not-done"),
        });
    }

    /// Frees a block or a slot that a cache gives up, with the history (`slot`, `tick`).
    pub(crate) fn give_block(&mut self, block: &Cached, slot: StreamIndex, tick: u64) {
        if is_slot(block.bytes) {
            self.give_slot(block, slot, tick);
        } else {
            self.give(block.id, slot, tick);
        }
    }

    /// Joins a block to be freed with the `run` of neighbours, likewise, or frees those; gives the run
    /// that is left to be freed. Each is an extent and the tick of its last use on `slot`'s stream.
    ///
    /// Freed one by one, neighbours would be filed and taken out again with each that joins them.
    pub(crate) fn give_with(
        &mut self,
        run: Option<(Id, u64)>,
        (id, tick): (Id, u64),
        slot: StreamIndex,
    ) -> (Id, u64) {
        let Some((first, latest)) = run else {
            return (id, tick);
        };
        let Extent { prev, next, .. } = *self.extents.get(id);
        if prev == first {
            self.extents.join_taken(first);
            (first, latest.max(tick))
        } else if next == first {
            self.extents.join_taken(id);
            (id, latest.max(tick))
        } else {
            self.give(first, slot, latest);
            (id, tick)
        }
    }

    /// Frees the last `bytes` of a block, fewer than it has, with the history (`slot`, `tick`).
    pub(crate) fn shrink(&mut self, id: Id, bytes: u64, slot: StreamIndex, tick: u64) {
        let before = self.extents.get(id).bytes;
        self.active.resize(before, before - bytes);
        let rest = self.extents.split_taken(id, bytes);
        self.give(rest, slot, tick);
    }

    /// Lets the block `id` have the `bytes` behind it, once `slot`'s stream waits for who had them;
    /// false where they are not free.
    pub(crate) fn grow(&mut self, id: Id, bytes: u64, slot: StreamIndex) -> Result<bool> {
        let next = self.extents.get(id).next;
        if next == NONE {
            return Ok(false);
        }
        let hole = *self.extents.get(next);
        if hole.state != State::Free || hole.bytes < bytes {
            return Ok(false);
        }
        if !seeded!("grown-in-place-without-a-wait") {
            self.wait_for(slot, hole.epoch())?;
        }
        self.extents.take(next, bytes, slot);
        let before = self.extents.get(id).bytes;
        self.active.resize(before, before + bytes);
        self.extents.join_taken(id);
        self.granted(id);
        Ok(true)
    }

    /// Makes `slot`'s stream wait for everything freed anywhere, so that neighbouring holes of all
    /// streams are one; gives whether that merged any.
    ///
    /// The last resort before memory is given up or a request fails: no hole is then cut off from
    /// its neighbour by who freed it.
    pub(super) fn unify(&mut self, slot: StreamIndex) -> Result<bool> {
        let before = self.extents.holes();
        for id in self.extents.ids() {
            while let Some(upper) = self.extents.hole_above(id).copied() {
                let lower = *self.extents.get(id);
                self.wait_for(slot, lower.epoch())?;
                if !seeded!("unify-forgets-the-upper-hole") {
                    self.wait_for(slot, upper.epoch())?;
                }
                let tick = self.open_tick(slot);
                self.extents.merge_as(id, slot, tick);
            }
        }
        Ok(self.extents.holes() < before)
    }

    /// The tick that the next record on `slot`'s stream ends.
    pub(super) fn open_tick(&self, slot: StreamIndex) -> u64 {
        let state = self.streams[slot as usize].as_ref();
        state.map_or(0, |state| state.timeline.open_tick())
    }

    /// Waits on the host for everything freed anywhere, so that neighbouring holes are one.
    pub(super) fn unify_on_host(&mut self) -> Result<()> {
        for (slot, tick) in self.last_ticks() {
            if let Some(state) = &self.streams[slot as usize] {
                state.timeline.sync_to(tick)?;
            }
        }
        let mut at = self.extents.first();
        while at != NONE {
            let Self {
                extents, streams, ..
            } = self;
            extents.merge_up(at, |extent| is_done(streams, extent.epoch()));
            at = extents.get(at).next;
        }
        Ok(())
    }

    /// The last tick of each slot that free memory waits for.
    pub(super) fn last_ticks(&self) -> Vec<(StreamIndex, u64)> {
        let mut last = vec![0; self.streams.len()];
        for (_, extent) in self.extents.iter() {
            if matches!(extent.state, State::Free | State::Stale) {
                let tick = &mut last[extent.slot as usize];
                *tick = extent.tick.max(*tick);
            }
        }
        (0..).zip(last).filter(|&(_, tick)| tick > 0).collect()
    }

    /// Asks the driver once a stream how far it is; true if any stream went on.
    pub(crate) fn poll(&mut self, except: StreamIndex) -> Result<bool> {
        let mut moved = false;
        for (slot, state) in self.streams.iter().enumerate() {
            let Some(state) = state.as_ref().filter(|_| slot != except as usize) else {
                continue;
            };
            let slot = slot as StreamIndex;
            if !self.extents.has_none(slot) || !self.slabs.has_none(slot) {
                let before = state.timeline.done();
                moved |= state.timeline.poll()? > before;
            }
        }
        Ok(moved)
    }

    /// Step 3: the smallest hole, else run of holes, of any streams; waits for them on the device.
    pub(crate) fn take_waiting(&mut self, slot: StreamIndex, bytes: u64) -> Result<Option<Grant>> {
        if !self.config.reuse.device_wait {
            return Ok(None);
        }
        self.take_holes(slot, bytes, true)
    }

    /// The smallest hole, else run of holes, of any streams if `pending`, else of those that the
    /// stream runs behind; waits for what it takes.
    pub(super) fn take_holes(
        &mut self,
        slot: StreamIndex,
        bytes: u64,
        pending: bool,
    ) -> Result<Option<Grant>> {
        let indexes = (1..self.extents.slots())
            .flat_map(|s| [Zone::Low, Zone::High].map(|end| self.extents.index(s, end)));
        let holes = indexes.filter_map(|index| index.best(bytes));
        if let Some(id) = holes
            .min_by_key(|&id| self.extents.get(id).bytes)
            .filter(|_| pending)
        {
            let extent = *self.extents.get(id);
            if !seeded!("taken-without-a-wait") {
                self.wait_for(slot, extent.epoch())?;
            }
            self.steps.stream_wait += 1;
            self.told.note(Told::StreamWait(bytes));
            // The rest of the hole keeps its own history, which no longer costs this stream a wait.
            return Ok(Some(self.take(id, bytes, slot)));
        }
        // Holes of one stream and holes ready for all are merged when they are made.
        if self.only_stream() || self.extents.hole_bytes() < bytes {
            return Ok(None);
        }
        let usable = |extent: &Extent| pending || self.is_behind(slot, extent.epoch());
        let Some(window) = placement::smallest_run(&self.extents, bytes, usable) else {
            return Ok(None);
        };
        self.steps.stream_wait += 1;
        self.told.note(Told::StreamWait(bytes));
        self.take_placement(slot, &window, window.first).map(Some)
    }

    /// Waits for the histories of the window's holes, which are consecutive from `first`, and
    /// takes it.
    pub(super) fn take_placement(
        &mut self,
        slot: StreamIndex,
        window: &Placement,
        first: Id,
    ) -> Result<Grant> {
        let end = window.start + window.bytes;
        let mut at = first;
        while at != NONE && self.extents.get(at).start < end {
            let extent = *self.extents.get(at);
            self.wait_for(slot, extent.epoch())?;
            at = match seeded!("window-waits-for-its-first-hole-only") {
                true => NONE,
                false => extent.next,
            };
        }
        let id = self
            .extents
            .take_window(first, window.start, window.bytes, slot);
        let next = self.extents.get(id).next;
        if next != NONE {
            let Self {
                extents, streams, ..
            } = self;
            extents.merge_up(next, |extent| is_done(streams, extent.epoch()));
        }
        Ok(self.granted(id))
    }

    /// (offset, bytes, whether taken) of every mapped extent, in address order.
    pub(crate) fn mapped_extents(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let mapped = |state| matches!(state, State::Free | State::Allocated);
        let extents = self
            .extents
            .iter()
            .filter(move |(_, extent)| mapped(extent.state));
        extents.map(|(_, extent)| (extent.start, extent.bytes, extent.state == State::Allocated))
    }

    /// Makes `slot`'s stream wait for the history of every hole.
    pub(crate) fn wait_for_holes(&mut self, slot: StreamIndex) -> Result<()> {
        for (other, tick) in self.last_ticks() {
            self.wait_for(slot, Epoch::new(other, tick))?;
        }
        Ok(())
    }

    /// Books moves (from, to, bytes), ascending by `to`, that are queued on `slot`'s stream before
    /// `tick`; gives the blocks' new extents in the same order.
    ///
    /// The stream runs behind the history of every hole.
    pub(crate) fn book_moves(
        &mut self,
        moves: &[(u64, u64, u64)],
        slot: StreamIndex,
        tick: u64,
    ) -> Vec<Id> {
        let tick = match seeded!("sources-free-before-the-move") {
            true => 0,
            false => tick,
        };
        let mut sources: Vec<u64> = moves.iter().map(|&(from, _, _)| from).collect();
        sources.sort_unstable();
        let mut at = self.extents.first();
        for from in sources {
            at = self.extents.seek(at, from);
            // A hole made here may have joined the one below it, so the walk goes on from there.
            at = self.extents.give(at, slot, tick, |_| true);
        }
        let mut at = self.extents.first();
        let mut ids = Vec::with_capacity(moves.len());
        for &(_, to, bytes) in moves {
            at = self.extents.seek(at, to);
            at = self.extents.take_window(at, to, bytes, slot);
            self.extents.get_mut(at).movable = true;
            ids.push(at);
        }
        ids
    }

    /// Counts a request that was served by what a step above the core's did.
    pub(crate) fn relieved(&mut self, bytes: u64) {
        self.steps.relieved += 1;
        self.told.note(Told::Relieved(bytes));
    }

    /// Books that the ranges (begin, end), which are free and ascend, were written by the stream of
    /// `slot`: they are free behind `tick` of it.
    pub(crate) fn book_written(&mut self, ranges: &[(u64, u64)], slot: StreamIndex, tick: u64) {
        let mut at = self.extents.first();
        for &(begin, end) in ranges {
            at = self.extents.seek(at, begin);
            at = self.extents.take_window(at, begin, end - begin, slot);
            at = self.extents.give(at, slot, tick, |_| true);
        }
    }

    /// Counts a step of compaction.
    pub(crate) fn count_moves(&mut self, bytes: u64) {
        self.told.note(Told::Moved(bytes));
        self.bytes_moved += bytes;
        self.compactions += 1;
    }

    /// Says whether the block `id` may be moved.
    pub(crate) fn set_movable(&mut self, id: Id, movable: bool) {
        self.extents.get_mut(id).movable = movable;
    }

    /// Takes the memory out, with the ticks of streams that the free part of it waits for.
    pub(crate) fn take_apart(&mut self) -> (Arena, Vec<(Arc<Timeline>, u64)>) {
        let last = self.last_ticks().into_iter().chain(self.slabs.ticks());
        let ticks = last.filter_map(|(slot, tick)| {
            let state = self.streams[slot as usize].as_ref()?;
            Some((Arc::clone(&state.timeline), tick))
        });
        let ticks = match seeded!("pool-dropped-under-queued-work") {
            true => Vec::new(),
            false => ticks.collect(),
        };
        (self.arena.take(), ticks)
    }

    /// Whether the pool's books are whole. See [`Pool::check_invariants`](super::Pool::check_invariants).
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.extents.check(self.arena.granule())?;
        self.arena.check()?;
        self.check_slabs()?;
        let mut mapped = 0;
        for (id, extent) in self.extents.iter() {
            let needs = matches!(extent.state, State::Free | State::Allocated);
            let ends = [extent.start, extent.end() - 1];
            if ends
                .iter()
                .any(|&at| self.arena.frame_at(at).is_some() != needs)
            {
                return Err(format!(
                    "extent {id} {extent:?} does not agree with the mappings"
                ));
            }
            if needs {
                mapped += extent.bytes;
            }
            let Some(state) = self.streams[extent.slot as usize].as_ref() else {
                continue;
            };
            if extent.state == State::Free && extent.tick > state.timeline.open_tick() {
                return Err(format!(
                    "hole {id} {extent:?} waits for a tick that no record will make"
                ));
            }
        }
        let (taken, _) = self.extents.taken();
        let counted = self.active.bytes() + self.slabs.free_bytes() + self.under_way.held;
        if counted != taken {
            return Err(format!("blocks have {taken} bytes, counted {counted}"));
        }
        if mapped != self.arena.mapped() {
            return Err(format!(
                "extents cover {mapped} mapped bytes of {}",
                self.arena.mapped()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
pub(super) mod tests;
