//! A pool's movable blocks: who owns which, where it is, and what a move of it has to wait for.
//!
//! Locks are taken in the order registry, core, lane. The application's callbacks are called without
//! any.

use std::sync::{Arc, Weak};

use super::address_table::Words;
use super::callback::{Calls, Relocation};
use super::pointers::{Arrays, Place};
use super::step_log::{Log, StepRecord};
use super::table::{Marks, MovableId, Moving, Table};
use crate::compact::{self, Goal, KeptPlan, Layout, Mover, Plan, Planner};
use crate::device::{Addr, Device, Kept, Stream, lock};
use crate::error::{Error, Result};
use crate::pool::{Attached, Block, Pool, Pressure, Relief, Shared, UNIT};
use crate::seeded::seeded;
use crate::sync::Mutex;

/// Rank of compaction among the steps of the out-of-memory ladder: before the application's.
const COMPACTION_RANK: u8 = 100;

/// What the registry's lock guards.
pub(super) struct State {
    pub(super) table: Table,
    pub(super) arrays: Arrays,
    /// Ahead of the words: its drop waits for the stores to them.
    pub(super) mover: Mover,
    /// The device's table of addresses, once it was asked for.
    pub(super) words: Option<Words>,
    /// What was pinned while there were words: it may read them.
    readers: Marks,
    pub(super) planner: Planner,
    /// What the last step left of its plan.
    pub(super) kept: Option<KeptPlan>,
    pub(super) log: Option<Log>,
    /// Moves made, counted for callbacks.
    pub(super) relocations: u64,
    /// Blocks with a callback.
    pub(super) listeners: usize,
}

/// See the module documentation. One a pool, made with its first movable block.
pub(crate) struct Registry {
    pub(super) shared: Weak<Shared>,
    pub(super) device: Device,
    pub(super) state: Mutex<State>,
}

/// A [`Registry`] as the pool keeps it; made when the pool's first movable block is.
#[derive(Default)]
struct Attachment {
    registry: Mutex<Option<Arc<Registry>>>,
}

impl Attached for Attachment {
    fn pool_closed(&self) {
        // The pool's blocks keep what they need of it.
        let registry = lock(&self.registry).take();
        drop(registry);
    }
}

impl Registry {
    /// The registry of `pool`.
    pub(crate) fn of(pool: &Pool) -> Result<Arc<Self>> {
        let shared = pool.shared();
        let attachment = shared
            .attached(|| Arc::new(Attachment::default()))
            .ok_or_else(|| Error::invalid("pool", "it has another layer attached"))?;
        let mut attached = lock(&attachment.registry);
        if let Some(registry) = &*attached {
            return Ok(Arc::clone(registry));
        }
        let registry = Arc::new(Self {
            shared: Arc::downgrade(shared),
            device: shared.device.clone(),
            state: Mutex::new(State {
                table: Table::new(shared.base),
                arrays: Arrays::default(),
                words: None,
                readers: Marks::default(),
                planner: Planner::new(),
                kept: None,
                mover: Mover::new(&shared.device)?,
                log: None,
                relocations: 0,
                listeners: 0,
            }),
        });
        let step = Arc::downgrade(&registry);
        let relieve = move |pressure: &Pressure| {
            step.upgrade()
                .map_or(Relief::Exhausted, |registry| registry.relieve(pressure))
        };
        shared.add_relief(COMPACTION_RANK, Arc::new(relieve));
        let registry_of = Arc::downgrade(&registry);
        shared.moves_first(Arc::new(move |bytes, handles| {
            let registry = registry_of.upgrade();
            registry.is_some_and(|registry| registry.make_room(bytes, handles))
        }));
        *attached = Some(Arc::clone(&registry));
        Ok(registry)
    }

    pub(super) fn shared(&self) -> Result<Arc<Shared>> {
        let gone = || Error::invalid("pool", "it is gone: nothing can be moved");
        self.shared.upgrade().ok_or_else(gone)
    }

    pub(super) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if self.device.same(stream.device()) {
            return Ok(());
        }
        let why = "it is of another device than the block";
        Err(Error::invalid("stream", why))
    }

    pub(crate) fn add(&self, block: Block) -> MovableId {
        block.lane().shared.set_movable(&block, true);
        lock(&self.state).table.add(block)
    }

    /// Frees a block behind all its uses, once it is not pinned; on `stream` where one is given,
    /// else on the stream it was allocated on.
    pub(crate) fn free(&self, id: MovableId, stream: Option<&Stream>) -> Result<()> {
        let left = {
            let mut state = lock(&self.state);
            state.arrays.forget(id);
            let told = state.table.place(id).is_some_and(|e| e.on_move.is_some());
            let left = state.table.remove(id);
            state.listeners -= usize::from(told && left.is_some());
            left
        };
        let Some(left) = left else { return Ok(()) };
        left.block.lane().shared.set_movable(&left.block, false);
        match stream {
            Some(stream) if self.check_stream(stream).is_ok() => {
                left.uses.wait_surely_on(&stream.core().timeline);
                left.block.free_on(stream)
            }
            _ => {
                if !seeded!("movable-freed-under-its-uses") {
                    left.uses.wait_surely_on(&left.block.lane().stream.timeline);
                }
                drop(left.block);
                stream.map_or(Ok(()), |stream| self.check_stream(stream))
            }
        }
    }

    /// Pins a block for `stream`; gives its address and bytes.
    pub(crate) fn pin(&self, id: MovableId, stream: &Stream) -> Result<(Addr, u64)> {
        self.check_stream(stream)?;
        let mut state = lock(&self.state);
        if state.table.entry(id)?.stale_word || state.arrays.is_behind() {
            state.settle()?;
        }
        let entry = state.table.entry(id)?;
        if !seeded!("use-after-move") {
            entry.ready.wait_on(&stream.core().timeline)?;
        }
        entry.pins += 1;
        let block = entry.block.as_ref();
        block
            .map(|block| (block.addr(), block.bytes()))
            .ok_or_else(|| Error::invalid("id", "it was freed"))
    }

    pub(crate) fn unpin(self: &Arc<Self>, id: MovableId, stream: &Stream) {
        if let Some(recorder) = stream.recorder() {
            // Captured work has the address: the pin is the graph's from now on.
            let registry = Arc::clone(self);
            if let Err(pin) = recorder.keep(Box::new(GraphPin { registry, id })) {
                pin.release(recorder.gate());
            }
            return;
        }
        let doomed = {
            let mut state = lock(&self.state);
            let timeline = &stream.core().timeline;
            let tick = timeline.open_tick();
            if state.words.is_some() {
                state.readers.note(timeline, tick);
            }
            let Some(entry) = state.table.place(id) else {
                return;
            };
            entry.pins = entry.pins.saturating_sub(1) * u32::from(!seeded!("pin-dropped-early"));
            if !seeded!("last-use-forgotten") || entry.pins > 0 {
                entry.uses.note(timeline, tick);
            }
            entry.doomed && entry.pins == 0
        };
        if doomed {
            // Without a stream of the caller's to check there is nothing to say.
            let _ = self.free(id, None);
        }
    }

    pub(super) fn pin_pointers(&self, key: u64, stream: &Stream) -> Result<Addr> {
        self.check_stream(stream)?;
        if stream.recorder().is_some() {
            return Err(Error::invalid(
                "stream",
                "it is being captured, and a graph would read pointers while they are rewritten: pin the blocks that they point to",
            ));
        }
        let mut state = lock(&self.state);
        if state.arrays.is_behind() {
            state.settle()?;
        }
        let array = state.arrays.get(key)?;
        match array.place {
            Place::Fixed(addr) => array.pin(stream).map(|()| addr),
            Place::Block(id) => {
                drop(state);
                self.pin(id, stream).map(|(addr, _)| addr)
            }
        }
    }

    pub(super) fn unpin_pointers(self: &Arc<Self>, key: u64, stream: &Stream) {
        let mut state = lock(&self.state);
        let Ok(array) = state.arrays.get(key) else {
            return;
        };
        match array.place {
            Place::Fixed(_) => array.unpin(stream),
            Place::Block(id) => {
                drop(state);
                self.unpin(id, stream);
            }
        }
    }

    /// Ends a registration; gives what the array's memory is to be used behind, and what became
    /// of moves that it had not been told of.
    pub(super) fn unregister(&self, key: u64) -> (Marks, Result<()>) {
        let mut state = lock(&self.state);
        let settled = match state.arrays.is_behind() {
            true => state.settle(),
            false => Ok(()),
        };
        (state.arrays.remove(key), settled)
    }

    /// Where the device's table of addresses is; makes it when first asked.
    pub(super) fn address_table(&self) -> Result<Addr> {
        let mut state = lock(&self.state);
        if state.words.is_none() {
            state.words = Some(Words::new(&self.device)?);
            state.table.has_words();
        }
        state.settle()?;
        Ok(state.words.as_ref().map_or(0, Words::base))
    }

    pub(super) fn handles(&self) -> u64 {
        lock(&self.state).table.len() as u64
    }

    pub(super) fn record_steps(&self, on: bool) {
        let mut state = lock(&self.state);
        match on {
            true => drop(state.log.get_or_insert_default()),
            false => state.log = None,
        }
    }

    pub(super) fn take_steps(&self) -> Result<Vec<StepRecord>> {
        let mut state = lock(&self.state);
        state.log.as_mut().map_or(Ok(Vec::new()), Log::take)
    }

    pub(super) fn set_planner(&self, planner: Planner) {
        let mut state = lock(&self.state);
        state.planner = planner;
        state.kept = None;
    }

    /// The pool's memory as it is now, as a planner sees it.
    pub(crate) fn layout(&self) -> Result<Layout> {
        let shared = self.shared()?;
        shared.drain_all();
        let mut state = lock(&self.state);
        let State { table, mover, .. } = &mut *state;
        let mover = &mover.stream.core().timeline;
        let moving = Moving { table, mover };
        Ok(compact::layout_of(&shared.core.lock(), &moving))
    }

    pub(crate) fn plan(&self, goal: &Goal) -> Result<Option<Plan>> {
        let layout = self.layout()?;
        let planner = lock(&self.state).planner.clone();
        Ok(planner.plan(&layout, &in_units(goal)))
    }
}

/// A pin that a graph holds.
struct GraphPin {
    registry: Arc<Registry>,
    id: MovableId,
}

impl Kept for GraphPin {
    fn release(self: Box<Self>, gate: &Stream) {
        self.registry.unpin(self.id, gate);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Work that was given the address table may still read it.
        crate::sync::get_mut(&mut self.state).readers.wait_here();
    }
}

impl State {
    /// Brings what the device knows of addresses up to date.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.arrays.settle(&mut self.table, &mut self.mover)?;
        let Some(words) = self
            .words
            .as_mut()
            .filter(|_| self.table.is_any_word_stale())
        else {
            return Ok(());
        };
        words.ensure(self.table.len() as u64, &self.mover.stream)?;
        let timeline = Arc::clone(&self.mover.stream.core().timeline);
        let stale = self.table.stale_words(&timeline)?;
        let stores: Vec<[u64; 2]> = stale
            .into_iter()
            .map(|(index, addr)| [words.word(index), addr])
            .collect();
        // SAFETY: the words are mapped until the last user of the registry is gone and its work
        // done; each place is in the list once, and the stream waits for what reads its word.
        unsafe { self.mover.store(&stores)? };
        self.table.words_stored(&timeline, timeline.open_tick());
        Ok(())
    }

    pub(super) fn join(
        &mut self,
        shared: &Arc<Shared>,
        bytes: u64,
        calls: &mut Calls,
    ) -> Result<bool> {
        self.settle()?;
        if self.arrays.any_pinned(&mut self.table) {
            return Ok(false);
        }
        let timeline = Arc::clone(&self.mover.stream.core().timeline);
        let mut moving = Moving {
            table: &mut self.table,
            mover: &timeline,
        };
        let joined = compact::join(shared, &self.mover, &mut moving, bytes)?;
        for ways in joined.ways.chunks(self.mover.most_ranges()) {
            self.moved(ways, calls);
        }
        let settled = self.settle();
        joined.error.map_or(settled, Err).map(|()| joined.changed)
    }

    /// Notes who has to be told of blocks that moved, offsets ascending by where they were.
    pub(super) fn moved(&mut self, ways: &[compact::Move], calls: &mut Calls) {
        let base = self.table.base();
        if !self.arrays.is_empty() {
            let ranges = ways.iter().map(|way| compact::Move {
                src: base + way.src,
                dst: base + way.dst,
                bytes: way.bytes,
            });
            self.arrays.owe(ranges.collect());
        }
        self.relocations += ways.len() as u64;
        if self.listeners == 0 {
            return;
        }
        for (way, number) in ways.iter().zip(self.relocations - ways.len() as u64..) {
            let Some((id, entry)) = self.table.at(way.dst) else {
                continue;
            };
            if let Some(callback) = &entry.on_move {
                let relocation = Relocation {
                    id,
                    from: base + way.src,
                    to: base + way.dst,
                    bytes: way.bytes,
                    number,
                };
                calls.push((Arc::clone(callback), relocation));
            }
        }
    }
}

/// The goal in multiples of what the pool hands out, so that blocks stay on them.
pub(super) fn in_units(goal: &Goal) -> Goal {
    match goal {
        // What overflows is more than any layout has.
        Goal::Hole(bytes) => Goal::Hole(bytes.checked_next_multiple_of(UNIT).unwrap_or(UNIT << 54)),
        other => other.clone(),
    }
}
