//! [`Block::tell`] tells events of blocks to the pool's observers: its recording, its list of live blocks, and a tool
//! that watches the device. Without observers that is one branch.

use super::stats::leaks::{Entries, LiveBlock, Tracker};
use super::structure::Block;
use crate::device::{Note, StreamCore, lock};
use crate::record::{Recording, What};

#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    Alloc,
    /// Rounded bytes before and after, and bytes asked for. Told while the block has the larger size.
    Resize(u64, u64, u64),
    /// Freed behind the work that the stream has so far: no graph keeps it. Told before any request can get the memory.
    Free(&'a StreamCore),
    /// As `Free`, but a graph keeps the block, and frees it later.
    Keep(&'a StreamCore),
    /// Moved away. Blocks arrive in the order in which they left.
    Leave,
    Arrive,
}

impl Block {
    #[inline]
    pub(crate) fn tell(&self, event: Event<'_>) {
        if self.lane().is_observed {
            self.tell_all(event);
        }
    }

    #[cold]
    fn tell_all(&self, event: Event<'_>) {
        let shared = &self.lane().shared;
        // Not a graph's segments: the program did not ask for them.
        if self.is_private() || !self.lane().stream.gate {
            (shared.recording.iter()).for_each(|it| self.record(event, it));
            (shared.tracker.iter()).for_each(|it| self.track(event, it));
        }
        // A watcher does not see captured work, so not parts of a graph's memory.
        if cfg!(feature = "sanitize") && !self.is_private() {
            self.watch(event);
        }
    }

    fn record(&self, event: Event<'_>, recording: &Recording) {
        let home = &*self.lane().stream;
        let (addr, bytes) = (self.addr(), self.bytes());
        let (what, on) = match event {
            Event::Alloc => (What::Alloc { addr, bytes }, home),
            Event::Resize(_, _, bytes) => (What::Resize { addr, bytes }, home),
            Event::Free(on) | Event::Keep(on) => (What::Free { addr }, on),
            Event::Leave => (What::Lift { addr }, home),
            Event::Arrive => (What::Put { addr }, home),
        };
        recording.note(what, on.timeline.uid);
    }

    fn track(&self, event: Event<'_>, tracker: &Tracker) {
        let addr = self.addr();
        if matches!(event, Event::Alloc) {
            return tracker.enter(addr, self.bytes(), self.stream_id());
        }
        let Entries { live, moving } = &mut *lock(&tracker.entries);
        match event {
            Event::Resize(_, _, bytes) => _ = live.entry(addr).and_modify(|it| it.bytes = bytes),
            Event::Free(_) => _ = live.remove(&addr),
            Event::Leave => moving.push_back(live.remove(&addr)),
            // The block that left first.
            Event::Arrive => {
                let entry = moving.pop_front().flatten();
                live.extend(entry.map(|entry| (addr, LiveBlock { addr, ..entry })));
            }
            Event::Alloc | Event::Keep(_) => {}
        }
    }

    pub(crate) fn retag(&self, tag: &'static str) {
        if let Some(tracker) = &self.lane().shared.tracker {
            let live = &mut lock(&tracker.entries).live;
            live.entry(self.addr()).and_modify(|it| it.tag = Some(tag));
        }
    }

    /// Tells a watcher of the device. `compact` tells it what launches of moves use.
    fn watch(&self, event: Event<'_>) {
        let home = &*self.lane().stream;
        let (from, to, on) = match event {
            Event::Alloc => (0, self.capacity(), home),
            Event::Resize(before, after, _) => (before, after, home),
            Event::Free(on) => (self.capacity(), 0, on),
            _ => return,
        };
        let (addr, bytes) = (self.addr() + from.min(to), from.abs_diff(to));
        let (stream, backend) = (on.raw, home.device.backend());
        let note = match from < to {
            true => Note::Alloc {
                addr,
                bytes,
                stream,
            },
            false => Note::Free {
                addr,
                bytes,
                stream,
            },
        };
        if bytes > 0 {
            backend.observe(&note);
        }
    }
}
