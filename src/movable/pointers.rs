//! The registered arrays of pointers, and their updates when blocks move.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::block_table::{Marks, Table};
use super::id::MovableId;
use crate::compact::{BETWEEN, Move, Mover};
use crate::device::{Addr, Stream, Timeline, is_running};
use crate::error::{Error, Result};

fn gone() -> Error {
    Error::invalid("pointers", "the array is not registered any more")
}

/// Bytes of a slot.
const SLOT_BYTES: u64 = 8;

/// Where `slots` slots from an address on end.
fn end(from: Addr, slots: u64) -> Addr {
    from.saturating_add(slots.saturating_mul(SLOT_BYTES))
}

/// The place of an array.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// At a fixed address of the application's.
    Fixed(Addr),
    /// In a movable block.
    Block(MovableId),
}

/// A registered array. For an array in a movable block, the block's entry has the holds and uses.
pub(super) struct Array {
    pub(super) place: Place,
    pub(super) slots: u64,
    holds: u32,
    ready: Marks,
    uses: Marks,
}

/// Moves that some arrays do not reflect yet.
struct Owed {
    /// Moves by address, ascending by source.
    ranges: Arc<Vec<Move>>,
    arrays: Vec<u64>,
}

/// All registered arrays. `owed` is empty between steps unless a launch failed, or had no room.
#[derive(Default)]
pub(super) struct Arrays {
    next: u64,
    list: BTreeMap<u64, Array>,
    /// The arrays of each block.
    blocks: HashMap<MovableId, Vec<u64>>,
    /// The ranges of the arrays at fixed addresses: first address, and the one after the last.
    fixed: BTreeMap<Addr, Addr>,
    owed: VecDeque<Owed>,
}

impl Arrays {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether some array does not reflect all moves yet.
    pub(super) fn is_behind(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Registers an array whose contents are valid after the work queued on `stream` so far.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a slot is registered: each move would rewrite it twice.
    pub(super) fn add(&mut self, place: Place, slots: u64, stream: Option<&Stream>) -> Result<u64> {
        let taken = slots > 0
            && match place {
                Place::Fixed(addr) => {
                    let before = self.fixed.range(..end(addr, slots)).next_back();
                    before.is_some_and(|(_, &end)| end > addr)
                }
                Place::Block(id) => {
                    let mut keys = self.blocks.get(&id).into_iter().flatten();
                    keys.any(|key| self.list.get(key).is_some_and(|other| other.slots > 0))
                }
            };
        if taken {
            let why = "some of them are registered, and a move would rewrite them twice";
            return Err(Error::invalid("pointers", why));
        }
        let key = self.next;
        self.next += 1;
        let mut uses = Marks::default();
        if let Some(stream) = stream {
            let timeline = &stream.core().timeline;
            uses.note(timeline, timeline.queued_tick());
        }
        let array = Array {
            place,
            slots,
            holds: 0,
            ready: Marks::default(),
            uses,
        };
        match place {
            Place::Fixed(addr) if slots > 0 => _ = self.fixed.insert(addr, end(addr, slots)),
            Place::Fixed(_) => {}
            Place::Block(id) => self.blocks.entry(id).or_default().push(key),
        }
        self.list.insert(key, array);
        Ok(key)
    }

    /// Removes an array. Returns the work that must be done before its memory is used for anything
    /// else.
    pub(super) fn remove(&mut self, key: u64) -> Marks {
        let Some(array) = self.list.remove(&key) else {
            return Marks::default();
        };
        match array.place {
            Place::Fixed(addr) if array.slots > 0 => _ = self.fixed.remove(&addr),
            Place::Fixed(_) => {}
            Place::Block(id) => {
                let keys = self.blocks.get_mut(&id);
                let last = keys.is_some_and(|keys| {
                    keys.retain(|other| *other != key);
                    keys.is_empty()
                });
                if last {
                    self.blocks.remove(&id);
                }
            }
        }
        array.ready
    }

    pub(super) fn get(&mut self, key: u64) -> Result<&mut Array> {
        self.list.get_mut(&key).ok_or_else(gone)
    }

    /// Removes the arrays in a block that was freed.
    pub(super) fn forget(&mut self, id: MovableId) {
        for key in self.blocks.remove(&id).into_iter().flatten() {
            self.list.remove(&key);
        }
    }

    /// Whether any array is held, or cannot be waited for.
    pub(super) fn any_held(&self, table: &mut Table) -> bool {
        self.list.values().any(|array| match array.place {
            Place::Fixed(_) => array.holds > 0 || !array.uses.may_close(),
            // A resize sees when an array in its block was rewritten.
            Place::Block(id) => table.place(id).is_some_and(|entry| {
                entry.holds > u64::from(entry.copied.is_some()) || !entry.may_wait()
            }),
        })
    }

    /// Adds the work on arrays at fixed addresses that an update waits for.
    pub(super) fn note_uses(&self, uses: &mut Marks) {
        let all = self.list.values();
        all.for_each(|array| uses.note_all(&array.uses));
    }

    /// Records that all arrays have to be updated for the moves `ranges`.
    pub(super) fn owe(&mut self, ranges: Vec<Move>) {
        if !self.list.is_empty() && !ranges.is_empty() {
            self.owed.push_back(Owed {
                ranges: Arc::new(ranges),
                arrays: self.list.keys().copied().collect(),
            });
        }
    }

    /// Queues pending updates, oldest first. Returns false if the moving stream has no room for all of them.
    pub(super) fn settle(&mut self, table: &mut Table, mover: &mut Mover) -> Result<bool> {
        let timeline = Arc::clone(&mover.stream.core().timeline);
        while let Some(owed) = self.owed.front_mut() {
            // A host call may not wait for room.
            if mover.backlog().is_some() && !is_running() {
                return Ok(false);
            }
            owed.arrays.retain(|key| self.list.contains_key(key));
            let some = owed.arrays.iter().take(BETWEEN as usize);
            let arrays = some.map(|key| &self.list[key]);
            let places: Result<Vec<_>> = arrays.map(|it| it.wait_for(table, &timeline)).collect();
            let (places, mut made) = (places?, 0);
            // SAFETY: the caller that registered a fixed array guarantees that it exists until it
            // is unregistered; one in a block exists until the block is freed. The stream waits for
            // the work that uses them.
            let patched = unsafe { mover.patch(&owed.ranges, places.into_iter(), || made += 1) };
            for key in owed.arrays.drain(..made) {
                if let Some(array) = self.list.get_mut(&key) {
                    array.patched(table, &timeline)?;
                }
            }
            patched?;
            if owed.arrays.is_empty() {
                self.owed.pop_front();
            }
        }
        Ok(true)
    }
}

impl Array {
    /// Makes the stream of `timeline` wait for all work on the array; returns its address and slots.
    fn wait_for(&self, table: &mut Table, timeline: &Timeline) -> Result<(Addr, u64)> {
        let id = match self.place {
            Place::Fixed(addr) => {
                self.uses.wait_on(timeline)?;
                return Ok((addr, self.slots));
            }
            Place::Block(id) => id,
        };
        // A block freed under a hold exists until the hold ends.
        let entry = table.place(id).ok_or_else(gone)?;
        entry.ready.wait_on(timeline)?;
        entry.uses.wait_on(timeline)?;
        let block = entry.block.as_ref();
        let (addr, bytes) = block.map_or((0, 0), |it| (it.addr(), it.bytes()));
        Ok((addr, self.slots.min(bytes / SLOT_BYTES)))
    }

    /// Has later work on the array wait for the update that the stream of `timeline` has queued.
    fn patched(&mut self, table: &mut Table, timeline: &Arc<Timeline>) -> Result<()> {
        let ready = match self.place {
            Place::Fixed(_) => {
                self.uses = Marks::default();
                &mut self.ready
            }
            Place::Block(id) => {
                let entry = table.place(id).ok_or_else(gone)?;
                entry.copied = entry.copied.map(|_| false);
                entry.written(timeline, timeline.open_tick(), false);
                &mut entry.ready
            }
        };
        ready.note(timeline, timeline.open_tick());
        Ok(())
    }

    /// Counts a hold; returns what the stream has to wait for.
    pub(super) fn hold(&mut self, stream: &Stream) -> Marks {
        self.holds += 1;
        self.ready.lacking(&stream.core().timeline)
    }

    pub(super) fn let_go(&mut self, stream: &Stream) {
        self.holds = self.holds.saturating_sub(1);
        let timeline = &stream.core().timeline;
        // Under capture the array's work is not in the graph; the work before the capture has a mark.
        self.uses.note(timeline, timeline.queued_tick());
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
