//! The handles: each block's address, its holds, and the work that a use or a move of it must wait for.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::callback::Callback;
use super::id::MovableId;
use super::shelf::Away;
use crate::compact::{Move, Owners};
use crate::device::{AccessLog, Addr, Timeline, is_running, raise_all, without_host_calls};
use crate::error::{Error, Result};
use crate::pool::{Ask, Block, Event, Questions, tag};

/// The error for an id without a block.
pub(super) fn stale(id: MovableId) -> Error {
    let why = format!("{id:?} was freed, or is another pool's: drop stale handles");
    Error::invalid("id", why)
}

/// Number of marks from which those that are done are removed.
const MANY: usize = 16;

/// Ticks of streams, at most one per stream; and the number of ticks from which the driver is queried.
#[derive(Default)]
pub(super) struct Marks(Vec<(Arc<Timeline>, u64)>, usize);

impl Marks {
    /// Adds a tick; for each stream the latest is kept.
    pub(super) fn note(&mut self, timeline: &Arc<Timeline>, tick: u64) {
        let known = self
            .0
            .iter_mut()
            .find(|(other, _)| other.uid == timeline.uid);
        match known {
            Some((_, last)) => *last = tick.max(*last),
            None => {
                if self.0.len() >= MANY {
                    self.forget_done();
                }
                self.0.push((Arc::clone(timeline), tick));
            }
        }
    }

    /// Removes ticks that are done. The driver is queried only when the number of ticks has doubled
    /// since the last query.
    fn forget_done(&mut self) {
        let may_poll = || self.0.iter().all(|(theirs, _)| theirs.may_poll());
        let asks = self.0.len() >= self.1 && !is_running() && may_poll();
        self.0.retain(|(theirs, tick)| {
            let is_done = |done: u64| done >= *tick;
            // No record is made: the caller holds the registry's lock.
            let poll = || theirs.poll(*tick, u64::MAX);
            let ask = || without_host_calls(poll).is_ok_and(is_done);
            !(is_done(theirs.done()) || asks && ask())
        });
        if asks {
            self.1 = MANY.max(2 * self.0.len());
        }
    }

    pub(super) fn note_all(&mut self, other: &Self) {
        self.note_each(other.0.iter().cloned());
    }

    fn note_each(&mut self, more: impl IntoIterator<Item = (Arc<Timeline>, u64)>) {
        raise_all(&mut self.0, more);
        if self.0.len() > MANY {
            self.forget_done();
        }
    }

    /// Whether all ticks can be waited for: see [`Timeline::may_close`].
    pub(super) fn may_close(&self) -> bool {
        self.0.iter().all(|(theirs, tick)| theirs.may_close(*tick))
    }

    /// The ticks that the stream of `timeline` is not known to be ordered after.
    pub(super) fn lacking(&self, timeline: &Timeline) -> Self {
        let all = self.0.iter();
        let lacking = all.filter(|(theirs, tick)| !timeline.is_behind(theirs, *tick));
        Self(lacking.cloned().collect(), self.1)
    }

    /// Makes the stream of `timeline` wait for all ticks on the device.
    pub(super) fn wait_on(&self, timeline: &Timeline) -> Result<()> {
        self.each(&mut |theirs, tick| timeline.wait_for(theirs, tick).map(|_| ()))
    }

    pub(super) fn each(&self, to: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|(theirs, tick)| to(theirs, *tick))
    }

    /// The same as [`Marks::wait_on`]; if the device cannot be made to wait, the host does. If that fails
    /// too, the stream has failed and runs nothing more.
    pub(super) fn wait_surely_on(&self, timeline: &Timeline) {
        for (theirs, tick) in &self.0 {
            let _ = timeline.wait_surely(theirs, *tick);
        }
    }

    /// The waits of the stream of `timeline` for all ticks.
    pub(super) fn waits(self, timeline: &Arc<Timeline>) -> Questions {
        let wait = |(theirs, tick)| (theirs, Ask::Behind(Arc::clone(timeline), tick));
        self.0.into_iter().map(wait).collect()
    }

    /// Makes the records that waits for the ticks need.
    pub(super) fn record_ahead(&self) {
        for (theirs, tick) in &self.0 {
            theirs.record_ahead(*tick);
        }
    }

    /// Waits on the host; a stream whose wait fails runs nothing more.
    pub(super) fn wait_here(&self) {
        for (theirs, tick) in &self.0 {
            let _ = theirs.sync_to(*tick);
        }
    }
}

/// One index of the table.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) generation: u32,
    pub(super) block: Option<Block>,
    /// Set instead of the block while it is on the host.
    pub(super) away: Option<Away>,
    pub(super) holds: u64,
    /// Set while one of the holds is that of a resize, which copies the block: whether the block is still as it was.
    pub(super) copied: Option<bool>,
    /// The pool's count of holds at its last hold.
    pub(super) held_at: u64,
    /// Freed while held: freed with the last hold.
    pub(super) doomed: bool,
    /// What a use has to wait for: the allocation, then the last move.
    pub(super) ready: Marks,
    /// What a move has to wait for.
    pub(super) uses: Marks,
    /// The uses of views, while there is a block.
    pub(super) log: Option<Arc<AccessLog>>,
    /// Whether the word of the address table is outdated; its index is then in `stale_words`.
    pub(super) stale_word: bool,
    /// What the next store to the word has to wait for.
    pub(super) word_uses: Marks,
    /// Called when the block has moved.
    pub(super) on_move: Option<Callback>,
    /// That of the allocation, for the blocks that take the first one's place.
    pub(super) tag: &'static str,
}

impl Entry {
    /// Adds what a move of the block has to wait for.
    pub(super) fn note_to(&self, uses: &mut Marks) {
        uses.note_all(&self.ready);
        uses.note_all(&self.uses);
    }

    /// Whether all of that can be waited for.
    pub(super) fn may_wait(&self) -> bool {
        self.ready.may_close() && self.uses.may_close()
    }

    /// Whether the work that may have read the address table's word can be waited for.
    fn is_word_storable(&self) -> bool {
        self.word_uses.may_close() && self.uses.may_close()
    }

    /// Everything done with the block so far runs before `tick`; later uses wait for `tick`.
    pub(super) fn became_ready(&mut self, timeline: &Arc<Timeline>, tick: u64) {
        self.uses = Marks::default();
        self.ready = Marks::default();
        self.ready.note(timeline, tick);
        self.written(timeline, tick, true);
    }

    /// Adds the uses of views so far to those that a move has to wait for.
    pub(super) fn note_typed_uses(&mut self) {
        let uses = self.log.iter().flat_map(|log| log.uses());
        self.uses.note_each(uses);
    }

    /// Makes later uses of views wait for `tick`. With `all`, that tick is after all earlier uses.
    pub(super) fn written(&self, timeline: &Arc<Timeline>, tick: u64, all: bool) {
        if let Some(log) = &self.log {
            log.written(timeline, tick, all);
        }
    }
}

/// All handles of a pool; see the module documentation.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    /// The generation that new indexes begin with.
    first: u32,
    spare: Vec<u32>,
    /// Indexes by offset in the arena.
    at: HashMap<u64, u32>,
    base: Addr,
    /// Indexes whose word in the address table is outdated; `None` if there is no address table.
    stale_words: Option<Vec<u32>>,
}

/// The rest of a handle that was freed.
pub(super) struct Left {
    /// `None` if the block was on the host.
    pub(super) block: Option<Block>,
    /// The work that the block's memory must wait for.
    pub(super) uses: Marks,
    /// The application's callback: to be dropped without a lock, because it may own something that needs the
    /// lock.
    pub(super) on_move: Option<Callback>,
    /// The contents of a block that was on the host: to be dropped without a lock, because their drop
    /// may wait for a copy.
    pub(super) _away: Option<Away>,
}

impl Table {
    pub(super) fn new(base: Addr) -> Self {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        // Steps of the golden ratio, so that the first numbers of a few tables are far apart.
        let first = TABLES.fetch_add(0x9E37_79B9, Ordering::Relaxed);
        Self {
            base,
            first,
            ..Self::default()
        }
    }

    pub(super) fn base(&self) -> Addr {
        self.base
    }

    /// Number of indexes ever in use.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The handle of a block that is not freed. An id that no handle ever had may find an entry without a block.
    pub(super) fn entry(&mut self, id: MovableId) -> Result<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize);
        entry
            .filter(|entry| entry.generation == id.generation && !entry.doomed)
            .ok_or_else(|| stale(id))
    }

    /// The handle, even if it is freed but still held.
    pub(super) fn place(&mut self, id: MovableId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize);
        entry.filter(|entry| entry.generation == id.generation)
    }

    /// The handle of the block at `offset`.
    pub(super) fn at(&self, offset: u64) -> Option<(MovableId, &Entry)> {
        let &index = self.at.get(&offset)?;
        let entry = &self.entries[index as usize];
        let generation = entry.generation;
        Some((MovableId { index, generation }, entry))
    }

    /// Adds a handle for `block`, which is ready after the work queued on its stream so far.
    pub(super) fn add(&mut self, block: Block, now: u64) -> (MovableId, Arc<AccessLog>) {
        let is_storable = |&index: &u32| self.entries[index as usize].is_word_storable();
        let spare = self.spare.iter().rposition(is_storable);
        let index = spare
            .map(|at| self.spare.swap_remove(at))
            .unwrap_or_else(|| {
                self.entries.push(Entry {
                    generation: self.first,
                    ..Entry::default()
                });
                (self.entries.len() - 1) as u32
            });
        // A graph's private memory must not move, so moves do not find it.
        if !block.is_private() {
            self.at.insert(block.addr() - self.base, index);
        }
        let timeline = Arc::clone(&block.lane().stream.timeline);
        let entry = &mut self.entries[index as usize];
        entry.ready.note(&timeline, timeline.open_tick());
        let log = Arc::new(AccessLog::without_home(&timeline, block.bytes()));
        block.note_launches(&log);
        entry.log = Some(Arc::clone(&log));
        entry.block = Some(block);
        (entry.held_at, entry.tag) = (now, tag());
        let generation = entry.generation;
        self.word_changed(index);
        (MovableId { index, generation }, log)
    }

    /// Removes a handle; `None` if it was removed before, or while it is held.
    pub(super) fn remove(&mut self, id: MovableId) -> Option<Left> {
        let words = self.stale_words.is_some();
        let entry = self.place(id)?;
        if entry.holds > 0 {
            entry.doomed = true;
            return None;
        }
        let block = entry.block.take();
        let away = entry.away.take();
        let mut uses = std::mem::take(&mut entry.uses);
        if words {
            entry.word_uses.note_all(&uses);
        }
        uses.note_all(&std::mem::take(&mut entry.ready));
        entry.doomed = false;
        let on_move = entry.on_move.take();
        entry.log = None;
        entry.generation = entry.generation.wrapping_add(1);
        if let Some(block) = &block {
            self.at.remove(&(block.addr() - self.base));
        }
        self.spare.push(id.index);
        self.word_changed(id.index);
        Some(Left {
            block,
            uses,
            on_move,
            _away: away,
        })
    }

    /// Leaves the blocks that are still there where they are for ever: each was freed under a guard that was
    /// leaked, and nobody knows what uses it.
    pub(super) fn leak(&mut self) {
        let blocks = self.entries.iter_mut().map(|entry| entry.block.take());
        blocks.for_each(std::mem::forget);
    }

    /// Gives the handle `block`, and returns the old one, if it had one.
    pub(super) fn replace(&mut self, id: MovableId, block: Block) -> Option<Block> {
        let base = self.base;
        let to = block.addr() - base;
        let old = self.place(id)?.block.replace(block);
        if let Some(old) = &old {
            self.at.remove(&(old.addr() - base));
        }
        self.at.insert(to, id.index);
        self.word_changed(id.index);
        old
    }

    /// Replaces the handle's block with what `away` returns, and returns the block.
    pub(super) fn spill(
        &mut self,
        id: MovableId,
        away: impl FnOnce(&mut Entry) -> Away,
    ) -> Option<Block> {
        let base = self.base;
        let entry = self.place(id)?;
        let block = entry.block.take()?;
        entry.away = Some(away(entry));
        self.at.remove(&(block.addr() - base));
        Some(block)
    }

    /// The work that moves of blocks that are not held wait for, and stores of their new addresses.
    pub(super) fn uses(&self) -> Marks {
        let mut uses = self.uses_before_stores();
        for entry in self.entries.iter().filter(|entry| entry.holds == 0) {
            entry.note_to(&mut uses);
            uses.note_all(&entry.word_uses);
        }
        uses
    }

    /// The work that stores to outdated words wait for.
    pub(super) fn uses_before_stores(&self) -> Marks {
        let mut uses = Marks::default();
        for &index in self.stale_words.iter().flatten() {
            let entry = &self.entries[index as usize];
            uses.note_all(&entry.word_uses);
            uses.note_all(&entry.uses);
        }
        uses
    }

    /// The handles of blocks that are on the host.
    pub(super) fn away(&self) -> Vec<MovableId> {
        let each = (0..).zip(&self.entries);
        let away = each.filter(|(_, entry)| entry.away.is_some());
        away.map(|(index, entry)| MovableId {
            index,
            generation: entry.generation,
        })
        .collect()
    }

    /// Records that the address table exists; all its words are outdated.
    pub(super) fn has_words(&mut self) {
        if self.stale_words.is_none() {
            self.stale_words = Some(Vec::new());
            (0..self.entries.len() as u32).for_each(|index| self.word_changed(index));
        }
    }

    /// Records that there is no address table.
    pub(super) fn has_no_words(&mut self) {
        for index in self.stale_words.take().into_iter().flatten() {
            self.entries[index as usize].stale_word = false;
        }
    }

    fn word_changed(&mut self, index: u32) {
        let Some(words) = &mut self.stale_words else {
            return;
        };
        let entry = &mut self.entries[index as usize];
        if !std::mem::replace(&mut entry.stale_word, true) {
            words.push(index);
        }
    }

    /// Whether any word is outdated.
    pub(super) fn is_any_word_stale(&self) -> bool {
        self.stale_words
            .as_ref()
            .is_some_and(|words| !words.is_empty())
    }

    /// The index and the address to store for each outdated word whose readers can be waited for. Makes the stream of
    /// `timeline` wait for them.
    pub(super) fn stale_words(&self, timeline: &Timeline) -> Result<Vec<(u32, Addr)>> {
        let indexes = self.stale_words.iter().flatten();
        let each = indexes.map(|&index| (index, &self.entries[index as usize]));
        let word = |(index, entry): (u32, &Entry)| {
            entry.word_uses.wait_on(timeline)?;
            entry.uses.wait_on(timeline)?;
            Ok((index, entry.block.as_ref().map_or(0, Block::addr)))
        };
        let storable = each.filter(|(_, entry)| entry.is_word_storable());
        storable.map(word).collect()
    }

    /// Records that these words were stored before `tick`.
    pub(super) fn words_stored(
        &mut self,
        stored: &[(u32, Addr)],
        timeline: &Arc<Timeline>,
        tick: u64,
    ) {
        for &(index, _) in stored {
            let entry = &mut self.entries[index as usize];
            entry.stale_word = false;
            entry.word_uses = Marks::default();
            // No work reads the word of an index without a block.
            if entry.block.is_some() {
                entry.ready.note(timeline, tick);
            }
        }
        let is_stale = |&index: &u32| self.entries[index as usize].stale_word;
        (self.stale_words.iter_mut()).for_each(|words| words.retain(is_stale));
    }
}

/// The table during a step, for the stream that moves.
pub(super) struct Moving<'a> {
    pub(super) table: &'a mut Table,
    pub(super) mover: &'a Arc<Timeline>,
}

impl Owners for Moving<'_> {
    fn may_move(&self, at: u64) -> bool {
        let entry = self.table.at(at);
        // The driver may be asked while no stream is under capture.
        let may_wait = |entry: &Entry| self.mover.may_poll() || entry.may_wait();
        entry.is_some_and(|(_, entry)| entry.holds == 0 && may_wait(entry))
    }

    fn uses(&self, at: u64, each: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        let Some((_, entry)) = self.table.at(at) else {
            return Ok(());
        };
        entry.ready.each(each)?;
        entry.uses.each(each)
    }

    fn moved(&mut self, moves: &[Move], ids: &[u32], tick: u64) {
        let table = &mut *self.table;
        // Remove all old places before adding new ones: one block's new place may be another's old one.
        let indexes: Vec<Option<u32>> = moves.iter().map(|m| table.at.remove(&m.src)).collect();
        for &index in indexes.iter().flatten() {
            let block = table.entries[index as usize].block.as_ref();
            block.into_iter().for_each(|block| block.tell(Event::Leave));
        }
        for ((m, &id), index) in moves.iter().zip(ids).zip(indexes) {
            let Some(index) = index else { continue };
            table.at.insert(m.dst, index);
            let entry = &mut table.entries[index as usize];
            entry.became_ready(self.mover, tick);
            if let Some(block) = &mut entry.block {
                block.moved_to(id, table.base + m.dst);
                block.tell(Event::Arrive);
            }
            table.word_changed(index);
        }
    }
}

#[cfg(test)]
mod tests;
