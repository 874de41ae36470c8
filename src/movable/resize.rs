//! Growing and shrinking blocks: in place if the memory after the block is free, otherwise by a copy.

use std::sync::Arc;

use bytemuck::Pod;

use super::block_table::Marks;
use super::callback::{Callback, Calls, tell};
use super::registry::{Registry, State, alloc_tagged, free_behind};
use super::{Movable, MovableId};
use crate::compact::Move;
use crate::device::{Addr, Queueing, Stream, Timeline, is_under_capture, lock};
use crate::error::{Error, Result, refuse};
use crate::pool::{Block, Job, Questions, Shared, UNIT, bytes_of};

/// Times that a block's stream is made to wait before a resize in place, each time because others used the block, or the
/// memory behind it, meanwhile.
const TIMES_WAITED: u32 = 1000;

/// Times that a resized block is copied, each time because pointers in it were rewritten meanwhile.
const TIMES_COPIED: u32 = 1000;

impl<T: Pod> Movable<T> {
    /// Resizes the buffer to `len` elements, in the order of `stream`. The first elements keep their values;
    /// added elements are uninitialised.
    ///
    /// A buffer shrinks in place. Its memory stays if its own stream is under capture, or a stream used it as a capture
    /// began. It grows in place if the memory after it is free. Otherwise it is copied to a block that is allocated on
    /// `stream`. This counts as a move: pointers to it are updated and its callback is called. The host does not wait.
    ///
    /// ```
    /// # fn main() -> warpool::Result<()> {
    /// # let device = warpool::Device::host()?;
    /// # let pool = warpool::Pool::new(&device, warpool::PoolConfig::default())?;
    /// # let stream = device.stream()?;
    /// let mut numbers = pool.alloc_movable::<u32>(&stream, 2)?;
    /// numbers.upload(&stream, &[1, 2])?;
    /// numbers.resize(&stream, 1000)?;
    /// assert_eq!(numbers.download(&stream)?[..2], [1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes overflow, the stream is under capture, or the block is held by its id;
    /// also, if the buffer has to be copied, while an array of pointers is held. See also
    /// [`Pool::alloc`](crate::Pool::alloc). After an error the buffer is unchanged.
    pub fn resize(&mut self, stream: &Stream, len: usize) -> Result<()> {
        let bytes = bytes_of::<T>(len)?;
        let mut calls = Calls::new();
        let resized = self.registry.resize(self.id, stream, bytes, &mut calls);
        if resized.is_ok() {
            self.log.resized(bytes);
            self.len = len;
        }
        // Called last, because a callback may panic.
        tell(calls);
        resized
    }
}

impl Registry {
    pub(super) fn on_move(&self, id: MovableId, callback: Callback) {
        let mut state = lock(&self.state);
        let Ok(entry) = state.table.entry(id) else {
            return;
        };
        // The old callback is dropped without the lock, because it is the application's code.
        let before = entry.on_move.replace(callback);
        state.listeners += usize::from(before.is_none());
        drop(state);
        drop(before);
    }

    fn resize(
        self: &Arc<Self>,
        id: MovableId,
        stream: &Stream,
        bytes: u64,
        calls: &mut Calls,
    ) -> Result<()> {
        self.check_stream(stream)?;
        stream.core().refuse_under_capture()?;
        self.awake.check()?;
        let shared = self.shared()?;
        let tag = {
            let mut state = lock(&self.state);
            let entry = state.table.entry(id)?;
            if (entry.away.as_mut()).is_some_and(|away| away.shrink(bytes)) {
                return Ok(());
            }
            entry.tag
        };
        // On the host the block would keep its old size, which may not fit the new one.
        if self.resize_in_place(&shared, id, bytes)? {
            return Ok(());
        }
        let block = alloc_tagged(&shared, stream, bytes, tag)?;
        // Launches of a graph may write to all of its memory.
        refuse!(block.is_private() => "stream", "its capture began meanwhile: resize after it");
        // Until the old block is freed behind the copy, which a graph would make only when it is launched.
        let _outside = stream.core().outside_capture()?;
        let queueing = Queueing::begin(&stream.core().timeline);
        self.awake.check()?;
        let old = self.copy_into(id, stream, block, calls);
        drop(queueing);
        let emptied = std::mem::take(&mut lock(&self.state).emptied);
        drop(emptied);
        let old = old?;
        // The block was spilled to make room, and came back into the new block.
        let Some(old) = old else { return Ok(()) };
        shared.set_movable(&old, false);
        // On the stream that it was allocated on, after the copy out of it.
        let mut copied = Marks::default();
        let timeline = &stream.core().timeline;
        copied.note(timeline, timeline.open_tick());
        free_behind(old, copied, None)
    }

    /// Whether the block was resized in place. What its own stream has to wait for before is queued without the lock:
    /// the driver may keep the caller until a host call has run, which may ask for the lock.
    fn resize_in_place(&self, shared: &Shared, id: MovableId, bytes: u64) -> Result<bool> {
        for _ in 0..TIMES_WAITED {
            let mut waits = Questions::new();
            let mut state = self.here(id)?;
            // The free memory after the block may be in a cache.
            drop(shared.lock_drained());
            let is_resized = state.resize_in_place(id, bytes, &mut waits)?;
            drop(state);
            if is_resized || waits.is_empty() {
                return Ok(is_resized);
            }
            match shared.work(|_| Job::asking(waits)) {
                // A capture began meanwhile.
                Err(error) if is_under_capture(&error) => {}
                waited => waited?,
            }
        }
        let why = "other threads use the block all the time: resize it when they do not";
        Err(Error::invalid("id", why))
    }

    /// Queues a copy of the block, from the device or the host, into `block`, which replaces it. Returns the old block
    /// if it was on the device.
    ///
    /// The copy on the device is queued without the lock, under a hold: the driver may keep the caller until a host call
    /// has run, which may ask for the lock. It is made again if pointers in the block were rewritten meanwhile.
    fn copy_into(
        self: &Arc<Self>,
        id: MovableId,
        stream: &Stream,
        block: Block,
        calls: &mut Calls,
    ) -> Result<Option<Block>> {
        let locked = || Ok(lock(&self.state));
        let mut recorded = None;
        for _ in 0..TIMES_COPIED {
            let begun = {
                let mut state = self.settled(locked)?;
                match state.begin_copy(id, stream)? {
                    Some(begun) => begun,
                    None => {
                        let timeline = &stream.core().timeline;
                        if let Some(tick) = recorded {
                            return state.put_back_behind(id, block, (timeline, tick), calls);
                        }
                        drop(state);
                        let tick = timeline.open_tick();
                        timeline.record_ahead(tick);
                        recorded = Some(tick);
                        continue;
                    }
                }
            };
            let queued = begun.queue(stream, &block);
            let queued = queued.and_then(|()| self.settled(locked).map(drop));
            let mut state = lock(&self.state);
            let outcome = queued.and_then(|()| state.check_copy(id, &begun));
            let entry = state.table.entry(id)?;
            entry.copied = None;
            if let Ok(true) = outcome {
                entry.holds -= 1;
                return state.end_copy(id, stream, &begun, block, calls);
            }
            // The copy reads the block, though nothing uses what it makes.
            let timeline = &stream.core().timeline;
            entry.written(timeline, timeline.open_tick(), false);
            drop(state);
            self.let_go(id, stream, &[]);
            outcome?;
        }
        let why = "an array of pointers in the block changes all the time: move less meanwhile";
        Err(Error::invalid("pointers", why))
    }
}

/// A copy of a block that a resize makes.
struct Copying {
    from: Addr,
    bytes: u64,
    capacity: u64,
    /// What it waits for.
    uses: Marks,
    held_at: u64,
}

impl Copying {
    fn queue(&self, stream: &Stream, to: &Block) -> Result<()> {
        self.uses.wait_on(&stream.core().timeline)?;
        let bytes = self.bytes.min(to.bytes());
        // SAFETY: both blocks have the bytes and do not overlap. Both are freed in stream order after the copy; a hold
        // keeps the one that it reads.
        (stream.core())
            .queue(|backend, on| unsafe { backend.copy_within(to.addr(), self.from, bytes, on) })
    }
}

fn held() -> Error {
    Error::invalid("id", "the block is held: drop its holds first")
}

impl State {
    /// Whether the block was resized in place, as none on the host is, and none whose stream has to wait for `waits`
    /// before.
    fn resize_in_place(
        &mut self,
        id: MovableId,
        bytes: u64,
        waits: &mut Questions,
    ) -> Result<bool> {
        let entry = self.table.entry(id)?;
        if entry.holds > 0 {
            return Err(held());
        }
        let may_wait = entry.may_wait();
        let Some(block) = &mut entry.block else {
            return Ok(false);
        };
        let home = Arc::clone(&block.lane().stream);
        let timeline = &home.timeline;
        if bytes < block.bytes() {
            // The freed part becomes free on the block's own stream, so that stream waits for all uses first.
            if bytes.next_multiple_of(UNIT) < block.capacity() {
                if !may_wait || !block.is_private() && home.refuse_under_capture().is_err() {
                    // It stays. A block tells at most 4 GiB less than it has.
                    let least = block.capacity().saturating_sub(u32::MAX.into());
                    return block.grow(bytes.max(least), waits);
                }
                let mut uses = entry.ready.lacking(timeline);
                uses.note_all(&entry.uses.lacking(timeline));
                *waits = uses.waits(timeline);
            }
            if !waits.is_empty() {
                return Ok(false);
            }
            return block.shrink(bytes).map(|()| true);
        }
        let capacity = block.capacity();
        if !block.grow(bytes, waits)? {
            return Ok(false);
        }
        if block.capacity() > capacity {
            // The added part is ready on the block's own stream.
            entry.ready.note(timeline, timeline.open_tick());
            entry.written(timeline, timeline.open_tick(), false);
        }
        Ok(true)
    }

    /// Checks that pointers to the block can be rewritten, and rewrites those that have to be. Returns false if there is
    /// no room for that.
    fn check_pointers(&mut self) -> Result<bool> {
        if self.arrays.any_held(&mut self.table) {
            let why = "an array of pointers is held: drop its hold, so that it can be rewritten";
            return Err(Error::invalid("pointers", why));
        }
        self.settle()
    }

    /// Holds the block for a copy on `stream`; `None` if it is on the host.
    fn begin_copy(&mut self, id: MovableId, stream: &Stream) -> Result<Option<Copying>> {
        self.check_pointers()?;
        let entry = self.table.entry(id)?;
        if entry.holds > 0 {
            return Err(held());
        }
        let Some(block) = &entry.block else {
            return Ok(None);
        };
        let mut uses = entry.ready.lacking(&stream.core().timeline);
        uses.note_all(&entry.uses);
        let copying = Copying {
            from: block.addr(),
            bytes: block.bytes(),
            capacity: block.capacity(),
            uses,
            held_at: entry.held_at,
        };
        (entry.holds, entry.copied) = (1, Some(true));
        Ok(Some(copying))
    }

    /// Whether what was copied is still what the block has; an error if others held the block or pointers meanwhile.
    fn check_copy(&mut self, id: MovableId, begun: &Copying) -> Result<bool> {
        let are_right = self.check_pointers()?;
        let entry = self.table.entry(id)?;
        // Each hold changes that, also one that has ended.
        match entry.held_at != begun.held_at {
            true => Err(held()),
            false => Ok(are_right && entry.copied == Some(true)),
        }
    }

    /// Puts the copy in the block's place.
    fn end_copy(
        &mut self,
        id: MovableId,
        stream: &Stream,
        begun: &Copying,
        block: Block,
        calls: &mut Calls,
    ) -> Result<Option<Block>> {
        let base = self.table.base();
        let way = Move {
            src: begun.from - base,
            dst: block.addr() - base,
            bytes: begun.capacity,
        };
        let old = self.copied(id, &stream.core().timeline, block)?;
        self.moved(&[way], calls);
        // If this fails, the update stays pending; the next hold that needs it makes it.
        let _ = self.settle();
        Ok(old)
    }

    /// Puts `block` in the place of the one that was copied into it, whose uses were all waited for; returns that.
    fn copied(
        &mut self,
        id: MovableId,
        timeline: &Arc<Timeline>,
        block: Block,
    ) -> Result<Option<Block>> {
        let entry = self.table.entry(id)?;
        block.lane().shared.set_movable(&block, true);
        let uses = std::mem::take(&mut entry.uses);
        if self.words.is_some() {
            // These uses may have read the address table's word, which is stored again.
            entry.word_uses.note_all(&uses);
        }
        entry.ready = Marks::default();
        entry.ready.note(timeline, timeline.open_tick());
        entry.written(timeline, timeline.open_tick(), true);
        Ok(self.table.replace(id, block))
    }
}

#[cfg(test)]
mod tests;
