//! The ladder: what is tried for a request that its stream's cache cannot serve, in order.
//!
//! Each step is a function that looks at the heap under the pool's lock and says what next. What calls the
//! driver or waits is a job, for which the lock is let go: see `job`. A request for a slot climbs as one
//! for a block does, and looks for a slot, or for the memory of a slab.

mod steps;

use std::sync::Arc;

use super::core::{Core, CoreGuard};
use super::job::Job;
use super::mapping::Terms;
use super::pressure::Left;
use super::stats::Told;
use super::structure::{Lane, Shared};
use super::tuning::WAITS_WITHOUT_THE_LOCK;
use crate::error::Result;
use crate::heap::size_class::is_slot;
use crate::heap::{Epoch, Grant, StreamIndex};
use crate::sync::pause;

/// A step of the ladder.
type Step = fn(&mut Climb<'_>, &mut Core) -> Result<Turn>;

/// All steps, each tried if those before did not serve the request.
const LADDER: &[Step] = &[
    // What is ready: no driver call, but for a small request that a handle is mapped for.
    steps::ready,
    steps::siblings,
    steps::how_far,
    steps::ready_batch,
    steps::ready,
    steps::overlap,
    // What waits on the device: other caches, and holes of other streams.
    steps::list_caches,
    steps::other_caches,
    steps::drain,
    steps::ready,
    steps::merged,
    steps::waiting,
    steps::mixed_slabs,
    // What is mapped: new handles while the pool is small, then idle ones.
    steps::grow,
    steps::moves_first,
    steps::ask_of_old,
    steps::reap,
    steps::map,
    // What is done before the request fails, the cheap things first. After each the pool looks again.
    steps::unify,
    steps::map,
    steps::pending_too,
    steps::map,
    steps::unify,
    steps::map,
    steps::all_mixed_slabs,
    steps::map,
    steps::whole_gaps,
    steps::map,
    steps::left_over,
    steps::map,
    steps::make_room,
    steps::map,
    steps::make_room,
    steps::map,
    steps::caches_again,
    steps::others_under_way,
    steps::smaller_slab,
    steps::relief,
];

/// What a step says.
enum Turn {
    Served(Grant),
    Next,
    /// This is to be done without the lock; then the next step.
    Work(Job),
    /// The same, then this step again.
    WorkAgain(Job),
    /// All caches are to be listed, which takes another lock.
    List,
    /// So many handles would be mapped elsewhere: who moves memory is asked first.
    Moves(u64),
    /// From the first step on.
    Restart,
    /// What others have under way ends first, then from the first step on.
    Wait,
    /// The registered steps are asked, then from the first step on, or the request fails.
    Relief,
}

/// A request on its way up.
struct Climb<'a> {
    lane: &'a Lane,
    bytes: u64,
    /// Bytes of the block it looks for: for a slot, of a slab.
    size: u64,
    /// The other lanes of its stream.
    siblings: Vec<Arc<Lane>>,
    /// All lanes, once they are listed.
    lanes: Vec<Arc<Lane>>,
    terms: Terms,
    /// Of a slot: memory was short for the slab it is best in, and the smallest will do.
    is_short: bool,
    /// A handle may be mapped at the high end.
    maps_high: bool,
    /// Who moves memory may be asked.
    may_move: bool,
    /// Something is other than at the last look for a place to map.
    changed: bool,
    /// There was no place.
    no_place: bool,
    unified: bool,
    made_room: bool,
    caches_looked_at: u32,
    /// Waits to be made without the lock before one is made under it.
    waits_left: u32,
    /// Someone made room for it.
    relieved: bool,
    left: Left,
}

impl<'a> Climb<'a> {
    fn new(shared: &Shared, lane: &'a Lane, bytes: u64) -> Self {
        Self {
            lane,
            bytes,
            size: bytes,
            // Lanes are listed before the core is locked: making a lane locks in that order.
            siblings: shared.siblings(lane),
            lanes: Vec::new(),
            terms: Terms {
                pending: false,
                fill_gaps: true,
                refused: false,
            },
            is_short: false,
            maps_high: true,
            may_move: false,
            changed: true,
            no_place: false,
            unified: false,
            made_room: false,
            caches_looked_at: 0,
            waits_left: WAITS_WITHOUT_THE_LOCK,
            relieved: false,
            left: Left::default(),
        }
    }

    /// As at first, but for whom it has asked.
    fn restart(&mut self, core: &Core) {
        if is_slot(self.bytes) && !self.is_short {
            self.size = core.slab_bytes(self.bytes).0;
        }
        self.terms = Terms {
            pending: core.config.reuse.device_wait,
            fill_gaps: true,
            refused: false,
        };
        self.maps_high = true;
        self.changed = true;
        self.no_place = false;
        self.unified = false;
        self.made_room = false;
    }

    fn stream(&self) -> StreamIndex {
        self.lane.slot
    }

    /// Of a block granted, what the request is for: itself, or the first slot of a slab made of it.
    fn cut(&self, core: &mut Core, grant: Grant) -> Option<Grant> {
        match is_slot(self.bytes) {
            true => core.make_slab(self.stream(), grant, self.bytes, self.size / self.bytes),
            false => Some(grant),
        }
    }

    /// The block that `grant` comes to, if it is one.
    fn served(&self, core: &mut Core, grant: Option<Grant>) -> Option<Turn> {
        let grant = grant.and_then(|grant| self.cut(core, grant));
        grant.map(Turn::Served)
    }

    /// The stream is to wait for `epochs` without the lock, and the step to be taken again: what it takes
    /// is ready then, unless others were faster. They are not for ever.
    fn wait_first(&mut self, core: &Core, epochs: Vec<Epoch>) -> Option<Turn> {
        let waits = core.waits_for(self.stream(), epochs);
        if waits.is_empty() || self.waits_left == 0 {
            return None;
        }
        self.waits_left -= 1;
        Some(Turn::WorkAgain(Job::Ask(waits)))
    }
}

impl Shared {
    /// Memory for a request of `lane` that its cache could not serve.
    pub(crate) fn acquire(&self, lane: &Lane, bytes: u64, requested: u64) -> Result<Grant> {
        let mut climb = Climb::new(self, lane, bytes);
        climb.may_move = self.moves_first.get().is_some();
        let found = self.climb(&mut climb, requested, true);
        self.tell();
        found?.ok_or_else(|| {
            let error = self.out_of_memory(bytes);
            if let Some(recording) = &self.recording {
                recording.failed(requested, lane.stream.timeline.uid);
            }
            self.tell();
            error
        })
    }

    /// As [`Shared::acquire`], of a slot, or without help from above; `None` where memory is short.
    pub(super) fn try_acquire(
        &self,
        lane: &Lane,
        bytes: u64,
        requested: u64,
    ) -> Result<Option<Grant>> {
        let found = self.climb(&mut Climb::new(self, lane, bytes), requested, false);
        self.tell();
        found
    }

    /// Climbs until the request is served, or the steps are at an end.
    fn climb(&self, climb: &mut Climb<'_>, requested: u64, helped: bool) -> Result<Option<Grant>> {
        let mut core = self.core.lock();
        climb.restart(&core);
        let mut at = 0;
        while let Some(step) = LADDER.get(at) {
            core.refuse_asleep()?;
            let turn = step(climb, &mut core)?;
            at += 1;
            let again = matches!(turn, Turn::WorkAgain(_));
            match turn {
                Turn::Served(grant) => return Ok(Some(self.served(climb, core, grant, requested))),
                Turn::Next => continue,
                Turn::Restart => (),
                Turn::Wait => core = self.wait_for_others(core),
                Turn::List => {
                    drop(core);
                    self.counts.note_peak();
                    climb.lanes = self.all_lanes();
                    core = self.core.lock();
                    continue;
                }
                Turn::Moves(handles) => {
                    drop(core);
                    let moved = self.ask_to_move(climb.bytes, handles);
                    core = self.core.lock();
                    climb.relieved |= moved;
                    if !moved {
                        continue;
                    }
                }
                Turn::Relief => {
                    drop(core);
                    if !helped
                        || !self.relieve(
                            climb.lane.stream.timeline.uid,
                            climb.bytes,
                            &mut climb.left,
                        )
                    {
                        return Ok(None);
                    }
                    core = self.core.lock();
                    climb.relieved = true;
                }
                Turn::Work(job) | Turn::WorkAgain(job) => {
                    let is_mapping = matches!(job, Job::Map(_));
                    drop(core);
                    let outcome = job.run();
                    core = self.core.lock();
                    let grant = core.end(outcome)?;
                    climb.terms.refused |= is_mapping && grant.is_none();
                    climb.changed |= !is_mapping;
                    at -= usize::from(again && grant.is_none());
                    if let Some(grant) = grant.and_then(|grant| climb.cut(&mut core, grant)) {
                        return Ok(Some(self.served(climb, core, grant, requested)));
                    }
                    continue;
                }
            }
            climb.restart(&core);
            at = 0;
        }
        Ok(None)
    }

    /// Waits until something that others have under way has ended.
    pub(super) fn wait_for_others<'l>(&'l self, core: CoreGuard<'l>) -> CoreGuard<'l> {
        let ended = core.under_way.ended;
        drop(core);
        for looks in 0.. {
            pause(looks);
            let core = self.core.lock();
            if core.under_way.jobs == 0 || core.under_way.ended != ended {
                return core;
            }
        }
        self.core.lock()
    }

    /// Counts what a request was served, the only place that does; and gives idle memory back while the
    /// pool is over its soft limit.
    fn served(
        &self,
        climb: &Climb<'_>,
        mut core: CoreGuard<'_>,
        grant: Grant,
        requested: u64,
    ) -> Grant {
        (climb.lane).served(grant, climb.bytes, requested, &mut core);
        if climb.relieved {
            core.count(Told::Relieved(climb.bytes));
        }
        let is_over = core.is_over_soft_limit();
        drop(core);
        if is_over {
            self.ease();
        }
        grant
    }
}

impl Core {
    /// Counts a step, and notes it to be told.
    #[inline(always)]
    pub(super) fn count(&mut self, step: Told) {
        step.count(&mut self.steps);
        if let Told::Moved(bytes) = step {
            self.bytes_moved += bytes;
            self.compactions += 1;
        }
        if cfg!(feature = "tracing") {
            self.told.push(step);
        }
    }

    /// Counts that `stream` took free memory of that history, behind a wait for it or not.
    #[inline(always)]
    pub(super) fn count_taken(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        history: Epoch,
        waited: bool,
    ) {
        self.count(match waited {
            true => Told::StreamWait(bytes),
            false if history.is_own(stream) => Told::OwnStream(bytes),
            false => Told::ReadyElsewhere(bytes),
        });
    }
}
