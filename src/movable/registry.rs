//! Who owns which movable block, where it is, and what a move of it has to wait for.
//!
//! Locks are taken in the order registry, core, lane.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::compact::{self, Budget, Goal, Moved, Mover, Owners, Plan, Planner};
use crate::device::{Addr, Kept, Recorder, Stream, Timeline, lock};
use crate::error::{Error, Result};
use crate::pool::{Attached, Block, Pool, Pressure, Relief, Shared, UNIT};
use crate::sync::Mutex;

/// Rank of compaction among the steps of the out-of-memory ladder: before the application's.
const COMPACTION_RANK: u8 = 100;

/// A movable block as a plain value: its place in the table and how often that place was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MovableId {
    /// Place in the table.
    pub index: u32,
    /// Tells one use of the place from the next: a stale handle is caught by it.
    pub generation: u32,
}

/// A tick of a stream.
type Mark = (Arc<Timeline>, u64);

/// One place of the table.
#[derive(Default)]
struct Entry {
    generation: u32,
    block: Option<Block>,
    pins: u32,
    /// What a use has to run behind: the allocation, then the last move.
    ready: Option<Mark>,
    /// What a move has to run behind, one tick a stream.
    uses: Vec<Mark>,
    /// Captures that hold a pin each for as long as their graphs live.
    graphs: Vec<Arc<Recorder>>,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    spare: Vec<u32>,
    /// By offset in the arena.
    at: HashMap<u64, u32>,
}

struct State {
    table: Table,
    planner: Planner,
    mover: Option<Mover>,
}

/// See the module documentation. One a pool, made with its first movable block.
pub(crate) struct Registry {
    shared: Weak<Shared>,
    base: Addr,
    state: Mutex<State>,
}

impl Table {
    fn entry(&mut self, id: MovableId) -> Result<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize);
        entry
            .filter(|entry| entry.generation == id.generation && entry.block.is_some())
            .ok_or_else(|| Error::invalid("id", format!("{id:?} was freed: drop stale handles")))
    }
}

/// The table's side of a step.
struct Moving<'a> {
    table: &'a mut Table,
    mover: &'a Arc<Timeline>,
}

impl Owners for Moving<'_> {
    fn may_move(&self, at: u64) -> bool {
        let index = self.table.at.get(&at);
        index.is_some_and(|&index| self.table.entries[index as usize].pins == 0)
    }

    fn uses(&self, at: u64, each: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        let Some(&index) = self.table.at.get(&at) else {
            return Ok(());
        };
        let entry = &self.table.entries[index as usize];
        entry
            .ready
            .iter()
            .chain(&entry.uses)
            .try_for_each(|(timeline, tick)| each(timeline, *tick))
    }

    fn moved(&mut self, moves: &[(u64, u64)], ids: &[u32], base: u64, tick: u64) {
        // All old places go before any new one comes: one block's new place may be another's old.
        let indexes: Vec<Option<u32>> = moves
            .iter()
            .map(|(from, _)| self.table.at.remove(from))
            .collect();
        for ((&(_, to), &id), index) in moves.iter().zip(ids).zip(indexes) {
            let Some(index) = index else { continue };
            self.table.at.insert(to, index);
            let entry = &mut self.table.entries[index as usize];
            entry.uses.clear();
            entry.ready = Some((Arc::clone(self.mover), tick));
            if let Some(block) = &mut entry.block {
                block.moved_to(id, base + to);
            }
        }
    }
}

impl Registry {
    /// The registry of `pool`.
    pub(crate) fn of(pool: &Pool) -> Result<Arc<Self>> {
        let shared = pool.shared();
        let mut made = false;
        let registry = shared.attached(|| {
            made = true;
            Arc::new(Self {
                shared: Arc::downgrade(shared),
                base: shared.base,
                state: Mutex::new(State {
                    table: Table::default(),
                    planner: Planner::new(),
                    mover: None,
                }),
            })
        });
        let registry =
            registry.ok_or_else(|| Error::invalid("pool", "it has another layer attached"))?;
        if made {
            let step = Arc::downgrade(&registry);
            let relieve = move |pressure: &Pressure| {
                step.upgrade()
                    .map_or(Relief::Exhausted, |registry| registry.relieve(pressure))
            };
            shared.add_relief(COMPACTION_RANK, Arc::new(relieve));
        }
        let missing = lock(&registry.state).mover.is_none();
        if missing {
            // Made without the lock: it allocates.
            let mover = Mover::new(pool)?;
            lock(&registry.state).mover.get_or_insert(mover);
        }
        Ok(registry)
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        let gone = || Error::invalid("pool", "it is gone: nothing can be moved");
        self.shared.upgrade().ok_or_else(gone)
    }

    pub(crate) fn add(&self, block: Block) -> MovableId {
        let mut state = lock(&self.state);
        let table = &mut state.table;
        let index = table.spare.pop().unwrap_or_else(|| {
            table.entries.push(Entry::default());
            (table.entries.len() - 1) as u32
        });
        let timeline = Arc::clone(&block.lane().stream.timeline);
        let tick = timeline.open_tick();
        // A graph's own memory stays where it is.
        if !block.is_private() {
            table.at.insert(block.addr() - self.base, index);
            block.lane().shared.set_movable(&block, true);
        }
        let entry = &mut table.entries[index as usize];
        entry.ready = Some((timeline, tick));
        entry.block = Some(block);
        MovableId {
            index,
            generation: entry.generation,
        }
    }

    /// Frees a block behind all its uses.
    pub(crate) fn free(&self, id: MovableId) {
        let taken = {
            let mut state = lock(&self.state);
            let table = &mut state.table;
            let Ok(entry) = table.entry(id) else { return };
            entry.generation = entry.generation.wrapping_add(1);
            let block = entry.block.take();
            let graphs = std::mem::take(&mut entry.graphs);
            entry.pins = 0;
            let marks: Vec<Mark> = entry
                .ready
                .take()
                .into_iter()
                .chain(entry.uses.drain(..))
                .collect();
            if let Some(block) = block.as_ref().filter(|block| !block.is_private()) {
                table.at.remove(&(block.addr() - self.base));
            }
            table.spare.push(id.index);
            block.map(|block| (block, marks, graphs))
        };
        let Some((block, marks, graphs)) = taken else {
            return;
        };
        if !block.is_private() {
            block.lane().shared.set_movable(&block, false);
        }
        for (timeline, tick) in marks {
            // Where the device cannot be made to wait, the host does; where it cannot either,
            // nothing runs any more.
            if block
                .lane()
                .stream
                .timeline
                .wait_for(&timeline, tick)
                .is_err()
            {
                let _ = timeline.sync_to(tick);
            }
        }
        crate::pool::keep_block(block, graphs);
    }

    pub(crate) fn pin(&self, id: MovableId, stream: &Stream) -> Result<Addr> {
        let mut state = lock(&self.state);
        let entry = state.table.entry(id)?;
        let Some(block) = &entry.block else {
            return Err(Error::invalid("id", "it was freed"));
        };
        if !block.lane().shared.device.same(stream.device()) {
            return Err(Error::invalid(
                "stream",
                "it is of another device than the block",
            ));
        }
        if let Some((timeline, tick)) = &entry.ready {
            stream.core().timeline.wait_for(timeline, *tick)?;
        }
        entry.pins += 1;
        Ok(block.addr())
    }

    pub(crate) fn unpin(self: &Arc<Self>, id: MovableId, stream: &Stream) {
        let mut state = lock(&self.state);
        let Ok(entry) = state.table.entry(id) else {
            return;
        };
        if let Some(recorder) = stream.recorder() {
            // Captured work has the address: the pin is the graph's from now on.
            entry.graphs.push(Arc::clone(&recorder));
            drop(state);
            let pin = GraphPin {
                registry: Arc::clone(self),
                id,
                recorder: Arc::clone(&recorder),
            };
            if let Err(pin) = recorder.keep(Box::new(pin)) {
                pin.release(recorder.gate());
            }
            return;
        }
        entry.pins = entry.pins.saturating_sub(1);
        let timeline = &stream.core().timeline;
        let tick = timeline.open_tick();
        match entry
            .uses
            .iter_mut()
            .find(|(other, _)| other.uid == timeline.uid)
        {
            Some((_, last)) => *last = tick.max(*last),
            None => entry.uses.push((Arc::clone(timeline), tick)),
        }
    }

    pub(crate) fn plan(&self, goal: &Goal) -> Result<Option<Plan>> {
        let goal = &in_units(goal);
        let shared = self.shared()?;
        shared.drain_all();
        let mut state = lock(&self.state);
        let State {
            table,
            planner,
            mover,
        } = &mut *state;
        let Some(mover) = mover else { return Ok(None) };
        let moving = Moving {
            table,
            mover: &mover.stream.core().timeline,
        };
        let layout = compact::layout_of(&lock(&shared.core), &moving);
        Ok(planner.plan(&layout, goal))
    }

    pub(crate) fn step(&self, goal: &Goal, budget: &Budget) -> Result<Moved> {
        let goal = &in_units(goal);
        let shared = self.shared()?;
        let mut state = lock(&self.state);
        let State {
            table,
            planner,
            mover,
        } = &mut *state;
        let Some(mover) = mover else {
            return Err(Error::invalid(
                "pool",
                "it is closed: nothing is moved any more",
            ));
        };
        let timeline = Arc::clone(&mover.stream.core().timeline);
        let mut moving = Moving {
            table,
            mover: &timeline,
        };
        compact::step(&shared, mover, &mut moving, planner, goal, budget)
    }

    /// The ladder's step: moves what one request needs, or, where that does not help, everything
    /// together, so that idle handles come free.
    fn relieve(&self, pressure: &Pressure) -> Relief {
        lock(&self.state).planner.note_request(pressure.requested);
        for goal in [Goal::Hole(pressure.requested), Goal::Full] {
            match self.step(&goal, &Budget::default()) {
                Ok(moved) if moved.bytes > 0 => return Relief::Retry,
                _ => {}
            }
        }
        Relief::Exhausted
    }
}

/// A pin that a graph holds.
struct GraphPin {
    registry: Arc<Registry>,
    id: MovableId,
    recorder: Arc<Recorder>,
}

impl Kept for GraphPin {
    fn release(self: Box<Self>, gate: &Stream) {
        if let Ok(entry) = lock(&self.registry.state).table.entry(self.id) {
            let mut graphs = entry.graphs.iter();
            let at = graphs.position(|graph| Arc::ptr_eq(graph, &self.recorder));
            at.map(|at| entry.graphs.swap_remove(at));
        }
        self.registry.unpin(self.id, gate);
    }
}

/// The goal in multiples of what the pool hands out, so that blocks stay on them.
fn in_units(goal: &Goal) -> Goal {
    match goal {
        Goal::Hole(bytes) => Goal::Hole(bytes.next_multiple_of(UNIT)),
        other => other.clone(),
    }
}

impl Attached for Registry {
    fn pool_closed(&self) {
        // Its blocks would keep the pool alive.
        let mover = lock(&self.state).mover.take();
        drop(mover);
    }
}
