//! The ladder: the steps tried, in order, for a request that its stream's cache cannot serve.
//!
//! Each step is a function that looks at the heap under the pool's lock and says what comes next. Driver calls and
//! waits are jobs, which run without the lock: see `job`. A request for a slot looks for a slot, or for a slab's
//! memory. The last step calls what layers above and the application registered (`pressure`). Then the request fails.

mod steps;

use std::sync::atomic::Ordering;

use super::ask::Questions;
use super::core::{Core, CoreGuard};
use super::job::Job;
use super::mapping::Terms;
use super::pressure::{Asked, Need, Pressure, ReliefStep};
use super::stats::Told;
use super::stats::leaks::holders;
use super::stats::snapshot::PieceState;
use super::structure::{Block, Lane, Shared};
use super::tuning::{MOST_TURNS, MOST_WAITS, TURNS_A_STEP};
use super::{APPLICATION_RANK, FAMILY_RANK};
use crate::device::{is_running, is_under_capture, lock, stream_words};
use crate::error::{Error, OutOfMemory, Result, refuse};
use crate::heap::size_class::is_slot;
use crate::heap::{Epoch, FRESH, Grant, StreamIndex};
use crate::record::What;
use crate::sync::pause;

/// Rank of moving memory before handles are mapped elsewhere; below all registered steps.
const MOVES_FIRST_RANK: u8 = 0;

/// `None` for the next step.
type Step = fn(&mut Climb<'_>, &mut Core) -> Option<Turn>;

/// All steps, each tried if the steps before it did not serve the request. After a step's driver calls the request takes
/// what is ready by then.
const LADDER: &[Step] = &[
    // Memory that is ready.
    steps::first,
    steps::how_far,
    steps::overlap,
    // Waits on the device: for blocks that other streams still use, other caches, holes of other streams.
    steps::used,
    steps::caches,
    steps::ready,
    steps::merged,
    steps::waiting,
    // Mappings: asks which stale ones may go, and unmaps those; new handles up to the slack over the peak, then idle
    // ones.
    |_, core| Some(Turn::Work(Job::asking(core.ask_of_old())?, false)),
    |_, core| Some(Turn::Work(core.begin_reaping()?, false)),
    steps::map,
    // Before the request fails: memory that other streams still use, also with device waits switched off; then
    // measures, cheap ones first. Each with another look for a place to map.
    |climb, _| {
        climb.terms.pending = true;
        None
    },
    steps::used,
    steps::waiting,
    steps::map,
    steps::unify,
    steps::map,
    steps::left_over,
    steps::map,
    steps::make_room,
    steps::map,
    steps::others,
];

enum Turn {
    Served(Grant),
    /// Run this without the lock, then take the step again or the next one.
    Work(Job, bool),
    /// Call the registered steps, or try to move memory first, in place of mapping this many handles elsewhere.
    Help(Option<u64>),
    /// Wait until a job of another thread ends, then start again.
    Wait,
    Restart,
}

/// A request on the ladder.
struct Climb<'a> {
    lane: &'a Lane,
    bytes: u64,
    requested: u64,
    /// The stream for which the registered steps may be called.
    helped: Option<u64>,
    /// Bytes to find: for a slot those of a slab, or its own if one was found.
    size: u64,
    terms: Terms,
    /// Memory may be moved first.
    may_move: bool,
    caches_looked_at: u32,
    /// Waits that are left before the steps go on without them, and those of [`steps::unify`].
    waits_left: u32,
    merges_left: u32,
    /// How often it may still start again for what other threads do.
    turns: u32,
    /// Looks since the registered steps could do no more.
    looks: u32,
    /// A registered step made room.
    relieved: bool,
}

impl<'a> Climb<'a> {
    fn new(lane: &'a Lane, bytes: u64, requested: u64, helped: Option<u64>) -> Self {
        Self {
            lane,
            bytes,
            requested,
            helped,
            size: bytes,
            terms: Terms::default(),
            may_move: helped.is_some() && lane.shared.attached.get().is_some(),
            caches_looked_at: 0,
            waits_left: MOST_WAITS,
            merges_left: MOST_WAITS,
            turns: MOST_TURNS,
            looks: 0,
            relieved: false,
        }
    }

    fn restart(&mut self, core: &Core) {
        if is_slot(self.bytes) {
            self.size = core.slabs.wanted(self.bytes) * self.bytes;
        }
        self.terms.pending = core.config.reuse.device_wait;
    }

    /// What was found; if that is the block of a slab, its first slot.
    fn cut(&self, core: &mut Core, found: Grant) -> Grant {
        match self.size == self.bytes {
            true => found,
            false => core.make_slab(self.lane.slot, found, self.bytes),
        }
    }

    fn has_waited(&self) -> bool {
        self.waits_left < MOST_WAITS
    }

    /// Empties all caches into the heap; true if they had anything.
    fn drain(&self, core: &mut Core) -> bool {
        let any = self.lane.shared.drain(None, core);
        if any {
            core.count(Told::Drain(self.bytes));
        }
        any
    }

    /// Counts the served request, or frees its memory if the lane has ended.
    fn served(&self, mut core: CoreGuard<'_>, grant: Grant) -> Result<Option<Grant>> {
        if self.relieved {
            core.count(Told::Relieved(self.bytes));
        }
        let settled = self.lane.settle(self.bytes, self.requested);
        settled.inspect_err(|_| {
            let epoch = Epoch::new(self.lane.slot, self.lane.open_tick());
            core.give_granted(grant, self.bytes, epoch);
        })?;
        self.lane.served(self.bytes, core);
        Ok(Some(grant))
    }
}

/// Makes `waits`, then repeats the step: its memory is ready then, unless another thread took it. `None` after several
/// such times: the step goes on without.
fn wait(waits: Questions, left: &mut u32) -> Option<Turn> {
    let job = Job::asking(waits).filter(|_| *left > 0)?;
    *left -= 1;
    Some(Turn::Work(job, true))
}

impl Lane {
    /// A block for a request that the cache could not serve, with the registered steps if `helped`, for this stream;
    /// `None` if memory is short.
    pub(super) fn climb(
        &self,
        bytes: u64,
        requested: u64,
        helped: Option<u64>,
    ) -> Result<Option<Block>> {
        let shared = &self.shared;
        let found = shared.climb(&mut Climb::new(self, bytes, requested, helped));
        shared.tell();
        let block = |it: Grant| Block::new(self, it.id, shared.base + it.offset, bytes, requested);
        Ok(found?.map(block))
    }

    /// The same for a request of the lane `of`, with the registered steps; else an error.
    pub(super) fn climb_for(&self, of: &Self, bytes: u64, requested: u64) -> Result<Block> {
        let stream = of.timeline.uid;
        self.climb(bytes, requested, Some(stream))?.ok_or_else(|| {
            let recording = self.shared.recording.iter();
            recording.for_each(|it| it.note(What::Failure { bytes: requested }, stream));
            self.shared.out_of_memory(bytes)
        })
    }
}

impl Shared {
    /// Takes step after step until the request is served or no step is left.
    fn climb(&self, climb: &mut Climb<'_>) -> Result<Option<Grant>> {
        let (mut core, mut at, mut has_run) = (self.core.lock(), 0, false);
        while let Some(step) = LADDER.get(at) {
            if at == 0 {
                climb.restart(&core);
            }
            core.refuse_asleep()?;
            // While the pool falls asleep the registered steps do nothing, and that may wait for the caller.
            if climb.relieved {
                self.awake.check()?;
            }
            // The steps from the second on call the driver, or wait for others that do. A host call may not: the
            // driver, or they, may wait for the stream that runs it.
            refuse!(at > 0 && is_running() => "thread",
                "a host call may not call the driver, and no memory is ready: allocate it before");
            let ready = has_run.then(|| steps::ready(climb, &mut core)).flatten();
            has_run = false;
            match ready.or_else(|| step(climb, &mut core)) {
                None => at += 1,
                Some(Turn::Served(grant)) => return climb.served(core, grant),
                Some(Turn::Work(job, again)) => {
                    (at, has_run) = (at + usize::from(!again), !again);
                    let is_mapping = job.mapping.is_some();
                    drop(core);
                    // What growing buffers no longer use goes before there is more.
                    if is_mapping {
                        self.settle_all(false);
                    }
                    let outcome = job.run();
                    core = self.core.lock();
                    match core.end(outcome) {
                        Ok(Some(block)) => {
                            if !is_mapping {
                                core.count(Told::StreamWait(climb.size));
                            }
                            let grant = climb.cut(&mut core, block);
                            return climb.served(core, grant);
                        }
                        Ok(None) if is_mapping => climb.terms.refused = Some(core.arena.flow().1),
                        // What a stream used as its capture began is not ready: other memory may be.
                        Err(error) if !is_under_capture(&error) => return Err(error),
                        _ => {}
                    }
                }
                Some(Turn::Help(handles)) => {
                    drop(core);
                    if self.ask_others(climb, handles) || handles.is_none() {
                        at = 0;
                    }
                    core = self.core.lock();
                }
                Some(Turn::Wait) => (core, at) = (self.wait_for_others(core), 0),
                Some(Turn::Restart) => at = 0,
            }
        }
        Ok(None)
    }

    /// Calls what may move or free memory; true if it did. The caller has no lock.
    fn ask_others(&self, climb: &mut Climb<'_>, handles: Option<u64>) -> bool {
        let helped = if let Some(handles) = handles {
            let asked = Asked::of(self.uid, MOVES_FIRST_RANK);
            let layer = self.attached.get().filter(|_| asked.is_some());
            layer.is_some_and(|it| it.make_room(climb.bytes, handles))
        } else {
            let (stream, again) = (climb.helped.unwrap_or(0), climb.looks > 0);
            let helps = self.relieve(stream, climb.bytes, (false, again), &mut climb.turns);
            climb.looks += u32::from(!helps);
            // The device may have got memory of another pool back.
            climb.terms.refused = None;
            helps
        };
        climb.relieved |= helped;
        helped
    }

    /// Waits until a job of another thread has ended, if one is under way.
    pub(super) fn wait_for_others<'l>(&'l self, mut core: CoreGuard<'l>) -> CoreGuard<'l> {
        let (ended, mut looks) = (core.under_way.ended, 0);
        while core.under_way.jobs > 0 && core.under_way.ended == ended {
            drop(core);
            pause(looks);
            looks += 1;
            core = self.core.lock();
        }
        core
    }

    /// Registers a step; lower ranks come first.
    pub(crate) fn add_relief(&self, rank: u8, step: ReliefStep) {
        let mut relief = lock(&self.relief);
        let at = relief.partition_point(|(other, _)| *other <= rank);
        relief.insert(at, (rank, step));
    }

    /// Calls the registered steps, from the first each time, as a step may free more once a later one has; `again`,
    /// once they could do no more, only that of other parts. True if one says to try the request again; one of the
    /// crate takes some of the `turns` then.
    pub(crate) fn relieve(
        &self,
        stream: u64,
        bytes: u64,
        (grows, again): (bool, bool),
        turns: &mut u32,
    ) -> bool {
        let mut has_turn = || {
            let left = turns.checked_sub(TURNS_A_STEP);
            left.map(|left| *turns = left).is_some()
        };
        // Memory that growing buffers no longer use goes before anything is moved.
        let settled = self.settle_all(true) > 0 && has_turn();
        let steps = lock(&self.relief).clone();
        let need = Need {
            requested: bytes,
            grows,
            told: &|| Pressure {
                requested: bytes,
                stream,
                figures: self.figures(bytes),
            },
        };
        let steps = (steps.iter()).filter(|(rank, _)| !again || *rank == FAMILY_RANK);
        let mut helps = steps.map_while(|(rank, step)| {
            let (_asked, moment) = (Asked::of(self.uid, *rank)?, self.awake.moment());
            let helps = step(&need);
            // A pool that slept refused a step of the crate, which would do more now.
            let slept = *rank < APPLICATION_RANK && !self.awake.is_since(moment);
            Some((helps || slept) && (*rank >= APPLICATION_RANK || has_turn()))
        });
        let helped = settled || helps.any(|helps| helps);
        (self.retries).fetch_add(u64::from(helped), Ordering::Relaxed);
        helped
    }

    fn figures(&self, bytes: u64) -> OutOfMemory {
        let growing = lock(&self.growing).clone();
        let (snapshot, limit) = (self.walk(), self.core.lock().limit());
        let words = |id| stream_words(id, self.device.stream_name(id).as_deref());
        let mut holders = holders(&self.live(|| snapshot.pieces.clone()), words);
        let sizes = (growing.iter().map(|it| it.bytes())).filter(|&size| size > 0);
        let (grown, bufs) = sizes.fold((0, 0), |(sum, bufs), size| (sum + size, bufs + 1));
        if bufs > 0 {
            let at = holders.partition_point(|&(_, held, _)| held >= grown);
            holders.insert(at, ("growing memory".to_owned(), grown, bufs));
        }
        let holes = (snapshot.pieces.iter()).filter(|it| it.state == PieceState::Hole);
        OutOfMemory {
            requested: bytes,
            live: snapshot.bytes(PieceState::Live) + grown,
            reserved: snapshot.reserved,
            limit,
            device_free: self.device.backend().free_bytes().ok(),
            largest_hole: holes.map(|it| it.bytes).max().unwrap_or(0),
            after_compaction: snapshot.after_compaction(),
            holders,
            granule: self.device.info().granule,
        }
    }

    /// Counts a request that failed; returns its error.
    pub(crate) fn out_of_memory(&self, bytes: u64) -> Error {
        let figures = self.figures(bytes);
        // The program may end soon. What is wrong with the file is reported elsewhere.
        (self.recording.iter()).for_each(|it| _ = it.flush());
        self.core.lock().count(Told::OutOfMemory(bytes));
        self.tell();
        Error::OutOfMemory(Box::new(figures))
    }
}

impl Core {
    /// Counts a step, and notes it for the subscriber.
    #[inline(always)]
    pub(super) fn count(&mut self, step: Told) {
        step.count(&mut self.steps);
        if cfg!(feature = "tracing") {
            self.told.push(step);
        }
    }

    /// Counts that `stream` took free memory with this history, without a wait.
    #[inline(always)]
    pub(super) fn count_taken(&mut self, stream: StreamIndex, bytes: u64, history: Epoch) {
        self.count(match [stream, FRESH].contains(&history.stream) {
            true => Told::OwnStream(bytes),
            false => Told::ReadyElsewhere(bytes),
        });
    }
}

#[cfg(test)]
mod tests;
