//! Spilling: movable memory goes to the host when the device is full, and comes back when it is held.
//!
//! # Which blocks are spilled
//!
//! Spilling is a step of the out-of-memory ladder, after compaction, which costs less. It looks for a row of
//! adjacent blocks and holes with as many bytes as the request needs, so that one hole becomes free, and
//! takes the cheapest such row. If there is none, it takes the cheapest blocks anywhere, because their idle
//! handles can be mapped together. The cost of a block is its size, which is copied down and up again,
//! divided by the number of holds since its own last one: a block that was not held for long will probably
//! not be needed soon. Held blocks stay on the device. All blocks stay while their addresses are known
//! elsewhere: in an address table, or in registered pointers.
//!
//! # Stream order
//!
//! Copies to the host run on one stream, after all uses of the block; its memory is free after the copy.
//! Copies to the device run on another stream, and a hold waits for them. So the bus is used in both
//! directions at once. The host waits only until such a stream has room for more copies.

use std::sync::Arc;

use super::block_table::{Entry, Marks};
use super::callback::{Calls, tell};
use super::id::MovableId;
use super::registry::{Registry, State, alloc_tagged};
use super::shelf::{Away, CopyStream, Shelf, Shelved, Spilling};
use super::{Movable, Pool};
use crate::compact::{BETWEEN, Move};
use crate::device::{Queueing, Timeline, is_under_capture, lock};
use crate::error::Result;
use crate::pool::{Block, Need, Shared, Spilled};
use crate::sync::MutexGuard;

/// Rank of spilling among the steps of the out-of-memory ladder: after compaction, before other parts of the
/// pool and the application's callbacks.
const SPILL_RANK: u8 = 120;

/// A mapped extent as spilling sees it.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    at: u64,
    bytes: u64,
    /// The cost of freeing it; `None` if it must stay.
    cost: Option<f64>,
}

/// The cheapest row of adjacent extents with `needed` bytes: the first index and the one after the last.
fn cheapest_row(all: &[Stretch], needed: u64) -> Option<(usize, usize)> {
    let mut best: Option<(f64, usize, usize)> = None;
    let (mut from, mut bytes, mut cost) = (0, 0, 0.0);
    for (at, stretch) in all.iter().enumerate() {
        let apart = at > 0 && all[at - 1].at + all[at - 1].bytes != stretch.at;
        if apart || stretch.cost.is_none() {
            (from, bytes, cost) = (at, 0, 0.0);
        }
        let Some(own) = stretch.cost else {
            from = at + 1;
            continue;
        };
        bytes += stretch.bytes;
        cost += own;
        while bytes - all[from].bytes >= needed {
            bytes -= all[from].bytes;
            cost -= all[from].cost.unwrap_or(0.0);
            from += 1;
        }
        if bytes >= needed && best.is_none_or(|(least, ..)| cost < least) {
            best = Some((cost, from, at + 1));
        }
    }
    best.map(|(_, from, to)| (from, to))
}

/// The offsets of the blocks to spill for a request of `needed` bytes: those of a row, otherwise the cheapest of all.
fn chosen(all: &[Stretch], needed: u64) -> Vec<u64> {
    let goes = |stretch: &&Stretch| stretch.cost.is_some_and(|cost| cost > 0.0);
    let row = cheapest_row(all, needed).map_or(&[][..], |(from, to)| &all[from..to]);
    let row: Vec<u64> = row.iter().filter(goes).map(|it| it.at).collect();
    // If a hole alone was large enough, the request failed because it needs whole handles.
    if !row.is_empty() {
        return row;
    }
    let mut some: Vec<&Stretch> = all.iter().filter(goes).collect();
    let rate = |it: &Stretch| it.cost.unwrap_or(0.0) / it.bytes as f64;
    some.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let mut bytes = 0;
    let mut taken = Vec::new();
    for stretch in some {
        if bytes >= needed {
            break;
        }
        bytes += stretch.bytes;
        taken.push(stretch.at);
    }
    taken
}

impl Entry {
    /// The cost of spilling the block; `None` if it must stay.
    fn cost(&self, bytes: u64, now: u64) -> Option<f64> {
        let goes = self.holds == 0 && self.may_wait();
        goes.then(|| bytes as f64 / (now - self.held_at + 1) as f64)
    }
}

impl State {
    /// Whether addresses of blocks are known elsewhere than in guards, or soon will be.
    fn is_known(&self) -> bool {
        self.awaited > 0 || self.words.is_some() || !self.arrays.is_empty()
    }

    /// The blocks to spill for a request of `needed` bytes, and the bytes of each; none if that is more than the pool
    /// may hold.
    fn to_spill(&self, shared: &Shared, needed: u64) -> Vec<(MovableId, u64)> {
        let core = shared.core.lock();
        let extents: Vec<(u64, u64, bool)> = core.mapped_extents().collect();
        let room = core.room();
        drop(core);
        let most = extents.iter().map(|extent| extent.1).sum::<u64>();
        if most.saturating_add(room) < needed {
            return Vec::new();
        }
        let stretch = |(at, bytes, taken): (u64, u64, bool)| Stretch {
            at,
            bytes,
            cost: match taken {
                false => Some(0.0),
                true => (self.table.at(at)).and_then(|(_, it)| it.cost(bytes, self.holds)),
            },
        };
        let all: Vec<Stretch> = extents.into_iter().map(stretch).collect();
        let block = |at| {
            let (id, entry) = self.table.at(at)?;
            Some((id, entry.block.as_ref()?.bytes()))
        };
        chosen(&all, needed).into_iter().filter_map(block).collect()
    }

    /// The work that the copies of these blocks wait for.
    fn lacking_to_spill(&mut self, rooms: &[Option<Room>], to: &Spilling) -> Marks {
        let mut uses = Marks::default();
        for (id, ..) in rooms.iter().flatten() {
            if let Some(entry) = self.table.place(*id) {
                entry.note_to(&mut uses);
            }
        }
        uses.lacking(&to.down.stream.core().timeline)
    }

    /// Queues a copy of the block to the host, and returns the block; `None` if it was held, freed or resized since
    /// it was chosen. Room that is not used stays: its drop may wait for copies, which the caller's lock forbids.
    fn put_away(
        &mut self,
        room: &mut Option<Room>,
        down: &CopyStream,
        spilled: &Spilled,
    ) -> Result<Option<Block>> {
        let now = self.holds;
        let Some(&mut (id, bytes, ref mut contents)) = room.as_mut() else {
            return Ok(None);
        };
        let Some(entry) = self.table.place(id) else {
            return Ok(None);
        };
        let timeline = &down.stream.core().timeline;
        let stays = entry.cost(bytes, now).is_none();
        let block = entry.block.as_ref().filter(|it| it.bytes() == bytes);
        let Some(addr) = block.filter(|_| !stays).map(Block::addr) else {
            return Ok(None);
        };
        let waited = entry.ready.wait_on(timeline);
        match waited.and_then(|()| entry.uses.wait_on(timeline)) {
            // A capture began meanwhile.
            Err(error) if is_under_capture(&error) => return Ok(None),
            waited => waited?,
        }
        let put = contents.put(addr, &down.stream);
        // After a failure too, because the copy may be queued.
        down.add();
        if put.is_err() {
            entry.uses.note(timeline, timeline.open_tick());
        }
        put?;
        let Some((.., contents)) = room.take() else {
            return Ok(None);
        };
        lock(spilled).add(bytes);
        let spilled = spilled.clone();
        Ok(self.table.spill(id, |entry| {
            let tick = timeline.open_tick();
            entry.became_ready(timeline, tick);
            Away {
                contents,
                addr,
                bytes,
                spilled,
            }
        }))
    }
}

/// A block to spill, its bytes, and room for them.
type Room = (MovableId, u64, Box<dyn Shelved>);

/// Keeps all blocks on the device until it is dropped.
struct Awaited<'a>(&'a Registry);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).awaited -= 1;
    }
}

impl Registry {
    /// Starts spilling to `shelf`, or ends it. Blocks that are on the host still come back.
    pub(crate) fn set_spill(self: &Arc<Self>, shelf: Option<Arc<dyn Shelf>>) -> Result<()> {
        let made = shelf.as_ref().map(|_| Spilling::new(&self.device));
        let made = made.transpose()?;
        let mut state = lock(&self.state);
        let known = state.spilling.take();
        let streams = known.as_deref().or(made.as_ref());
        state.spilling = streams.map(|it| it.with(shelf));
        let first = known.is_none() && state.spilling.is_some();
        drop(state);
        // Dropped without a lock: dropping the last memory of a host pool waits for copies.
        drop((known, made));
        if first {
            let registry = Arc::downgrade(self);
            let step = move |need: &Need<'_>| {
                let registry = registry.upgrade();
                registry.is_some_and(|it| it.spill(need.requested).unwrap_or(false))
            };
            self.shared()?.add_relief(SPILL_RANK, Arc::new(step));
        }
        Ok(())
    }

    fn spill(&self, needed: u64) -> Result<bool> {
        let shared = self.shared()?;
        let (spilling, chosen) = {
            let state = lock(&self.state);
            let Some(spilling) = state.spilling.clone().filter(|_| !state.is_known()) else {
                return Ok(false);
            };
            (spilling, state.to_spill(&shared, needed))
        };
        let Some(shelf) = &spilling.shelf else {
            return Ok(false);
        };
        // Without the lock: the driver may wait for host calls that ask for it. If the host is full, the blocks
        // before that one are spilled all the same.
        let rooms = chosen.into_iter().map_while(|(id, bytes)| {
            let room = shelf.room(bytes).ok()?;
            Some((id, bytes, room))
        });
        let rooms: Vec<Room> = rooms.collect();
        // If other threads hold or spill all of these first, the request looks again.
        let any = !rooms.is_empty();
        for block in self.put_away(&spilling, rooms)? {
            shared.set_movable(&block, false);
            // If the device cannot wait for the copy, `free_on` has waited on the host.
            let _ = block.free_on(&spilling.down.stream);
        }
        Ok(any)
    }

    /// Spills the blocks that still may go, as long as the pool spills there. Returns them; their memory is free
    /// after the copies.
    fn put_away(&self, to: &Arc<Spilling>, rooms: Vec<Room>) -> Result<Vec<Block>> {
        let (mut freed, mut rooms) = (Vec::new(), rooms.into_iter().peekable());
        while rooms.peek().is_some() {
            let some = rooms.by_ref().take(BETWEEN as usize);
            let mut some: Vec<_> = some.map(Some).collect();
            let waited = to.down.wait_for_room();
            self.record_lacking_ahead(|state| state.lacking_to_spill(&some, to));
            match waited.and_then(|()| self.put_some_away(to, &mut some, &mut freed)) {
                Ok(()) => {}
                // What was freed before has to be freed behind its copies.
                Err(error) if freed.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(freed)
    }

    /// The same for as many blocks as their stream has room for.
    fn put_some_away(
        &self,
        to: &Arc<Spilling>,
        rooms: &mut [Option<Room>],
        freed: &mut Vec<Block>,
    ) -> Result<()> {
        let mut state = lock(&self.state);
        let _queueing = Queueing::begin(&to.down.stream.core().timeline);
        self.awake.check()?;
        let spills = state
            .spilling
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, to));
        if !spills || state.is_known() {
            return Ok(());
        }
        for room in rooms {
            freed.extend(state.put_away(room, &to.down, &self.spilled)?);
        }
        Ok(())
    }

    /// Brings the block back if it is on the host.
    pub(super) fn fetch(&self, id: MovableId) -> Result<()> {
        let (up, bytes, tag) = {
            let mut state = lock(&self.state);
            let up = state.spilling.as_ref().map(|it| Arc::clone(&it.up));
            let entry = state.table.entry(id)?;
            let (Some(away), Some(up)) = (&entry.away, up) else {
                return Ok(());
            };
            (up, away.bytes, entry.tag)
        };
        let shared = self.shared()?;
        // Without the lock, because the allocation may spill other blocks.
        let block = alloc_tagged(&shared, &up.stream, bytes, tag)?;
        up.wait_for_room()?;
        let mut calls = Calls::new();
        let (unused, emptied) = {
            let mut state = lock(&self.state);
            let _queueing = Queueing::begin(&up.stream.core().timeline);
            self.awake.check()?;
            let away = state.table.entry(id)?.away.as_ref();
            let unused = match away.is_some_and(|away| away.bytes < bytes) {
                // It was shrunk meanwhile.
                true => Ok(Some(block)),
                false => state.put_back(id, block, &up, &mut calls),
            };
            (unused, std::mem::take(&mut state.emptied))
        };
        drop(emptied);
        tell(calls);
        unused.map(drop)
    }

    /// Locks the state, with every block on the device, for a caller that makes their addresses known
    /// elsewhere. Nothing is spilled meanwhile: otherwise blocks could make room for each other without end.
    pub(super) fn all_here(&self) -> Result<MutexGuard<'_, State>> {
        lock(&self.state).awaited += 1;
        let awaited = Awaited(self);
        loop {
            let mut state = lock(&self.state);
            let away = state.table.away();
            if away.is_empty() {
                state.awaited -= 1;
                std::mem::forget(awaited);
                return Ok(state);
            }
            drop(state);
            for id in away {
                let fetched = self.fetch(id);
                // A block that was dropped meanwhile is not needed any more.
                let mut state = lock(&self.state);
                if state.table.entry(id).is_ok_and(|it| it.away.is_some()) {
                    fetched?;
                }
            }
        }
    }
}

impl State {
    /// Like [`State::put_back`], into a block that is ready with a tick of another stream.
    pub(super) fn put_back_behind(
        &mut self,
        id: MovableId,
        block: Block,
        (ready, tick): (&Timeline, u64),
        calls: &mut Calls,
    ) -> Result<Option<Block>> {
        let Some(spilling) = self.spilling.clone() else {
            return Ok(Some(block));
        };
        let up = &spilling.up;
        (up.stream.core().timeline).wait_for(ready, tick)?;
        self.put_back(id, block, up, calls)
    }

    /// Queues the copy of a spilled block into `block`. Returns `block` unused if another thread brought the
    /// spilled one back first, or if it was resized meanwhile and does not fit.
    fn put_back(
        &mut self,
        id: MovableId,
        block: Block,
        up: &CopyStream,
        calls: &mut Calls,
    ) -> Result<Option<Block>> {
        let (now, base) = (self.holds, self.table.base());
        let entry = self.table.entry(id)?;
        let fits = |away: &&Away| away.bytes <= block.bytes();
        let Some(away) = entry.away.as_ref().filter(fits) else {
            return Ok(Some(block));
        };
        away.contents.take(block.addr(), away.bytes, &up.stream)?;
        up.add();
        let way = Move {
            src: away.addr - base,
            dst: block.addr() - base,
            bytes: block.capacity(),
        };
        let timeline = &up.stream.core().timeline;
        entry.became_ready(timeline, timeline.open_tick());
        self.emptied.extend(entry.away.take());
        // The block comes back to be held, so it counts as held now.
        entry.held_at = now;
        block.lane().shared.set_movable(&block, true);
        self.table.replace(id, block);
        // No array is registered while a block is on the host.
        self.moved(&[way], calls);
        Ok(None)
    }
}

impl<T: bytemuck::Pod> Movable<T> {
    /// Starts to bring the block back if it is [on the host](crate::host::Spill), so that the copy overlaps
    /// the work until the next [`Movable::hold`]. Returns at once if it is on the device.
    ///
    /// # Errors
    /// See [`Pool::alloc`]; the block is then unchanged.
    pub fn prefetch(&self) -> Result<()> {
        self.registry.fetch(self.id)
    }
}

impl Pool {
    /// Sets the shelf that movable memory is spilled to; `None` ends spilling.
    pub(crate) fn spill_to(&self, shelf: Option<Arc<dyn Shelf>>) -> Result<()> {
        Registry::of(self)?.set_spill(shelf)
    }
}

#[cfg(test)]
mod tests;
