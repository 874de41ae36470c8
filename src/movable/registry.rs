//! A pool's movable blocks: their owners, their addresses, and the work that a move has to wait for.
//!
//! Lock order: registry, core, lane. The application's callbacks are called without any lock.

use std::sync::{Arc, Weak};

use super::block_table::{Marks, Moving, Table};
use super::callback::{Calls, Relocation};
use super::id::MovableId;
use super::pointers::Arrays;
use super::shelf::{Away, Spilling};
use super::step_log::{Log, Span, StepRecord, finish, new_span};
use super::words::Words;
use crate::compact::{self, Goal, KeptPlan, Layout, Mover, Planner, layout_with};
use crate::device::{AccessLog, Addr, Awake, Device, Queueing, Stream, beside, is_running, lock};
use crate::error::{Error, Result};
use crate::pool::{Block, Shared, Spilled, UNIT};
use crate::sync::{Mutex, MutexGuard};

/// Attempts at bringing a block back for one hold or resize. The request for host memory, or the block's own
/// callback, may spill it again each time.
const TIMES_BROUGHT_BACK: u32 = 1000;

/// What the registry's lock guards.
pub(super) struct State {
    pub(super) table: Table,
    pub(super) arrays: Arrays,
    /// Declared before the words: its drop waits for stores to them.
    pub(super) mover: Mover,
    /// The address table in device memory, once it was asked for.
    pub(super) words: Option<Words>,
    /// The uses of guards while the address table exists: their work may read it.
    pub(super) readers: Marks,
    pub(super) planner: Planner,
    /// The rest of the last step's plan.
    pub(super) kept: Option<KeptPlan>,
    pub(super) log: Option<Log>,
    /// Set once the pool was told to spill.
    pub(super) spilling: Option<Arc<Spilling>>,
    /// Number of callers that are bringing back all blocks; nothing is spilled meanwhile.
    pub(super) awaited: u32,
    /// Host memory of blocks that came back. It is dropped without the lock, because dropping the last memory
    /// of its pool waits for copies.
    pub(super) emptied: Vec<Away>,
    /// Number of holds so far.
    pub(super) holds: u64,
    /// Number of moves so far; callbacks get it.
    pub(super) relocations: u64,
    /// Number of blocks with a callback.
    pub(super) listeners: usize,
}

/// A pool's movable blocks; see the module documentation. One per pool, made with its first movable block.
pub(crate) struct Registry {
    pub(super) shared: Weak<Shared>,
    pub(super) device: Device,
    pub(super) awake: Arc<Awake>,
    pub(super) spilled: Spilled,
    overhead: crate::device::Overhead,
    pub(super) state: Mutex<State>,
}

impl Registry {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Self> {
        Ok(Self {
            shared: Arc::downgrade(shared),
            device: shared.device.clone(),
            awake: Arc::clone(&shared.awake),
            spilled: shared.spilled.clone(),
            overhead: shared.overhead.clone(),
            state: Mutex::new(State {
                table: Table::new(shared.base),
                arrays: Arrays::default(),
                words: None,
                readers: Marks::default(),
                planner: Planner::default(),
                kept: None,
                mover: Mover::new(&shared.device, &shared.overhead)?,
                log: None,
                spilling: None,
                awaited: 0,
                emptied: Vec::new(),
                holds: 0,
                relocations: 0,
                listeners: 0,
            }),
        })
    }

    pub(super) fn shared(&self) -> Result<Arc<Shared>> {
        let gone = || Error::invalid("pool", "it is gone: nothing can be moved");
        self.shared.upgrade().ok_or_else(gone)
    }

    /// Waits, without the lock, until the moving stream has room for more work: see [`Mover::backlog`].
    fn wait_for_room(&self) -> Result<()> {
        let backlog = lock(&self.state).mover.backlog();
        let record = backlog.filter(|_| !is_running());
        record.map_or(Ok(()), |record| record.synchronize())
    }

    /// The state as `lock` gets it, with no update pending. The updates are queued in parts, for each of which the moving
    /// stream has room. The records that they wait for are made before.
    pub(super) fn settled<'r>(
        &'r self,
        lock: impl Fn() -> Result<MutexGuard<'r, State>>,
    ) -> Result<MutexGuard<'r, State>> {
        loop {
            self.wait_for_room()?;
            self.record_uses_ahead(|state| state.uses_before_updates());
            let mut state = lock()?;
            if self.settle(&mut state)? {
                return Ok(state);
            }
        }
    }

    /// Makes the records on other streams that moves wait for, without a lock: a host call that such a stream waits
    /// for may free memory, or ask for the registry.
    pub(super) fn record_ahead(&self, shared: &Shared) {
        let holes = shared.core.lock().uses_of_holes();
        self.record_uses_ahead(|state| {
            let mut uses = state.uses();
            for (theirs, tick) in &holes {
                uses.note(theirs, *tick);
            }
            uses
        });
    }

    fn record_uses_ahead(&self, uses: impl FnOnce(&State) -> Marks) {
        self.record_lacking_ahead(|state| uses(state).lacking(&state.mover.stream.core().timeline));
    }

    /// The same for what a stream lacks.
    pub(super) fn record_lacking_ahead(&self, lacking: impl FnOnce(&mut State) -> Marks) {
        let lacking = lacking(&mut lock(&self.state));
        lacking.record_ahead();
    }

    pub(super) fn check_stream(&self, stream: &Stream) -> Result<()> {
        if self.device.same(stream.device()) {
            return Ok(());
        }
        let why = "it is of another device than the block";
        Err(Error::invalid("stream", why))
    }

    /// Takes the block; leaves it if the address table cannot grow for it.
    pub(super) fn add(&self, block: &mut Option<Block>) -> Result<(MovableId, Arc<AccessLog>)> {
        let state = &mut *lock(&self.state);
        if let Some(words) = &mut state.words {
            words.ensure(state.table.len() as u64 + 1, &state.mover.stream)?;
        }
        let taken = || Error::invalid("block", "it has a handle");
        let block = block.take().ok_or_else(taken)?;
        block.lane().shared.set_movable(&block, true);
        Ok(state.table.add(block, state.holds))
    }

    /// Frees a block after all its uses, once it is not held: on `stream`, of its device, if given, otherwise on the
    /// stream it was allocated on.
    pub(crate) fn free(&self, id: MovableId, stream: Option<&Stream>) -> Result<()> {
        let left = {
            let mut state = lock(&self.state);
            let left = state.table.remove(id);
            if left.is_some() {
                // Not before: while the block is held, so are the arrays in it.
                state.arrays.forget(id);
            }
            let listens = left.as_ref().is_some_and(|left| left.on_move.is_some());
            state.listeners -= usize::from(listens);
            left
        };
        // A spilled block has no device memory to free.
        let Some((left, block)) = left.and_then(|mut left| {
            let block = left.block.take()?;
            Some((left, block))
        }) else {
            return Ok(());
        };
        block.lane().shared.set_movable(&block, false);
        free_behind(block, left.uses, stream)
    }

    /// Locks the state, with the block on the device.
    pub(super) fn here(&self, id: MovableId) -> Result<MutexGuard<'_, State>> {
        for _ in 0..TIMES_BROUGHT_BACK {
            let mut state = lock(&self.state);
            if state.table.entry(id)?.away.is_none() {
                return Ok(state);
            }
            drop(state);
            self.fetch(id)?;
        }
        let mut state = lock(&self.state);
        let away = state.table.entry(id)?.away.as_ref().map(|away| away.bytes);
        let Some(bytes) = away else { return Ok(state) };
        drop(state);
        Err(self.shared()?.out_of_memory(bytes))
    }

    /// Ends a registration. Returns the work to wait for before the array's memory is used again, and the
    /// result of pending updates.
    pub(super) fn unregister(&self, key: u64) -> (Marks, Result<()>) {
        let locked = || Ok(lock(&self.state));
        let behind = lock(&self.state).arrays.is_behind() && !is_running();
        let settled = behind.then(|| self.settled(locked)).transpose();
        let (settled, state) = match settled {
            Ok(state) => (Ok(()), state),
            Err(error) => (Err(error), None),
        };
        let mut state = state.unwrap_or_else(|| lock(&self.state));
        (state.arrays.remove(key), settled)
    }

    /// Device address of the address table; the first call makes it.
    pub(super) fn address_table(&self) -> Result<Addr> {
        let mut state = self.settled(|| self.all_here())?;
        if let Some(words) = &state.words {
            let base = words.base();
            return self.settle(&mut state).map(|_| base);
        }
        let mut words = Words::new(&self.device, &self.overhead)?;
        let base = words.base();
        let (handles, mover) = (state.table.len() as u64, state.mover.stream.clone());
        let ensured = words.ensure(handles, &mover);
        state.words = Some(words);
        state.table.has_words();
        // One that is not filled is no table that holds would have to keep.
        if let Err(error) = ensured.and_then(|()| self.settle(&mut state)) {
            state.table.has_no_words();
            let words = state.words.take();
            // Without the lock: a host call that the stream waits for may ask for it.
            drop(state);
            beside(move || {
                let _ = mover.core().synchronize_memory();
                drop(words);
            });
            return Err(error);
        }
        Ok(base)
    }

    pub(super) fn handles(&self) -> u64 {
        lock(&self.state).table.len() as u64
    }

    pub(super) fn record_steps(&self, on: bool) {
        let mut state = lock(&self.state);
        let log = state.log.take();
        if on {
            state.log = Some(log.unwrap_or_default());
            return;
        }
        // Its events go without the lock.
        drop(state);
        drop(log);
    }

    /// The events around the moves of a step, if steps are recorded.
    pub(super) fn span(&self) -> Option<Span> {
        let spare = lock(&self.state).log.as_mut()?.spare();
        spare.or_else(|| new_span(&self.device))
    }

    pub(super) fn take_steps(&self) -> Result<Vec<StepRecord>> {
        let taken = lock(&self.state).log.as_mut().map(Log::take);
        let mut steps = taken.unwrap_or_default();
        let read = finish(&mut steps);
        let records = steps.iter().map(|(record, _)| *record).collect();
        if let Some(log) = &mut lock(&self.state).log {
            log.put_back(steps, read.is_ok());
        }
        read.map(|()| records)
    }

    pub(super) fn set_planner(&self, planner: Planner) {
        let mut state = lock(&self.state);
        state.planner = planner;
        state.kept = None;
    }

    /// The pool's present memory, as the planner's input.
    pub(super) fn layout(&self, shared: &Shared) -> Layout {
        let mut state = lock(&self.state);
        let State { table, mover, .. } = &mut *state;
        let mover = &mover.stream.core().timeline;
        let moving = Moving { table, mover };
        shared.look(|core, cached| layout_with(core, &moving, &cached))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let state = crate::sync::get_mut(&mut self.state);
        state.table.leak();
        let (readers, words) = (std::mem::take(&mut state.readers), state.words.take());
        let Some(words) = words else { return };
        let mover = state.mover.stream.clone();
        beside(move || {
            // Work that got the address table's address may still read it, and stores may be running.
            readers.wait_here();
            let _ = mover.core().synchronize_memory();
            drop(words);
        });
    }
}

impl State {
    /// The work that moves and updates wait for.
    fn uses(&self) -> Marks {
        let mut uses = self.table.uses();
        self.arrays.note_uses(&mut uses);
        uses
    }

    /// The work that the pending updates wait for.
    fn uses_before_updates(&self) -> Marks {
        match self.arrays.is_behind() {
            true => self.uses(),
            false => self.table.uses_before_stores(),
        }
    }

    /// Brings the registered arrays and the address table up to date with all moves. Returns false if the moving stream
    /// has no room for that.
    pub(super) fn settle(&mut self) -> Result<bool> {
        if !self.arrays.settle(&mut self.table, &mut self.mover)? {
            return Ok(false);
        }
        let Some(words) = self
            .words
            .as_ref()
            .filter(|_| self.table.is_any_word_stale())
        else {
            return Ok(true);
        };
        let timeline = Arc::clone(&self.mover.stream.core().timeline);
        let stale = self.table.stale_words(&timeline)?;
        let stores: Vec<[u64; 2]> = stale
            .iter()
            .map(|&(index, addr)| [words.word(index), addr])
            .collect();
        // SAFETY: the words stay mapped until the last user of the registry is gone and its work is done.
        // Each index is in the list once, and the stream waits for the work that reads its word.
        unsafe { self.mover.store(&stores)? };
        self.table
            .words_stored(&stale, &timeline, timeline.open_tick());
        Ok(true)
    }

    /// Whether anything was done, also before an error.
    pub(super) fn join(
        &mut self,
        shared: &Arc<Shared>,
        bytes: u64,
        calls: &mut Calls,
    ) -> Result<bool> {
        let timeline = Arc::clone(&self.mover.stream.core().timeline);
        let _queueing = Queueing::begin(&timeline);
        shared.awake.check()?;
        self.settle()?;
        if self.arrays.any_held(&mut self.table) {
            return Ok(false);
        }
        let mut moving = Moving {
            table: &mut self.table,
            mover: &timeline,
        };
        let joined = compact::join(shared, &self.mover, &mut moving, bytes)?;
        for ways in joined.ways.chunks(self.mover.most_ranges()) {
            self.moved(ways, calls);
        }
        // If this fails, the update stays pending; the next hold that needs it makes it.
        let _ = self.settle();
        joined
            .error
            .filter(|_| !joined.changed)
            .map_or(Ok(joined.changed), Err)
    }

    /// Records the array updates and the callbacks for blocks that moved; `ways` ascend by old offset.
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

/// Allocates a block on `stream` that takes the place of one with this tag.
pub(super) fn alloc_tagged(
    shared: &Arc<Shared>,
    stream: &Stream,
    bytes: u64,
    tag: &'static str,
) -> Result<Block> {
    let block = shared.open_lane(stream)?.alloc(bytes, false)?;
    // Not before: the request may call the application.
    block.retag(tag);
    Ok(block)
}

/// Frees a block behind `uses`: on `stream` if given, otherwise on its own.
pub(super) fn free_behind(block: Block, uses: Marks, stream: Option<&Stream>) -> Result<()> {
    let home = &block.lane().stream;
    // Under capture its launches wait, and what comes after it.
    uses.wait_surely_on(&stream.map_or(home, Stream::core).timeline);
    match stream {
        Some(stream) => block.free_on(stream),
        None => {
            drop(block);
            Ok(())
        }
    }
}

/// The goal in multiples of the pool's allocation unit, so that blocks stay aligned to it.
pub(super) fn in_units(goal: &Goal) -> Goal {
    match goal {
        // A size that overflows exceeds every layout.
        Goal::Hole(bytes) => Goal::Hole(bytes.checked_next_multiple_of(UNIT).unwrap_or(UNIT << 54)),
        Goal::EmptyHandles { handles, bytes } => Goal::EmptyHandles {
            handles: handles.iter().copied().filter_map(in_whole_units).collect(),
            bytes: *bytes,
        },
        other => other.clone(),
    }
}

/// The units that have a byte of the range (address, bytes), if it has any.
fn in_whole_units((addr, bytes): (u64, u64)) -> Option<(u64, u64)> {
    let (from, end) = (addr / UNIT * UNIT, addr.saturating_add(bytes));
    let end = end.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
    (bytes > 0).then(|| (from, end - from))
}
