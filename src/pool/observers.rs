//! Who is told what becomes of blocks: the pool's recording, its list of live blocks, and a tool that watches
//! the device.
//!
//! A block says each thing once, by [`Block::tell`], and each who listens takes of it what it wants. Where
//! nobody does, that is one branch. The pool's slow steps, which a subscriber is told of once no lock is held,
//! are in `stats::told`.

use super::stats::leaks::{Entries, LiveBlock, Tracker};
use super::structure::{Block, Shared};
use crate::device::{Device, Note, StreamCore};
use crate::record::{Recording, What};

/// What becomes of a block.
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    Alloc,
    /// It has other bytes: so many before and after, as the pool rounds them, and so many asked for. Told
    /// while it has the memory of both.
    Resize(u64, u64, u64),
    /// It is free behind what the stream was given so far; before it is anybody else's.
    Free(&'a StreamCore),
    /// As `Free`, and a graph keeps it, which frees it again.
    Keep(&'a StreamCore),
    /// It leaves its place, and comes to another in the order in which others left theirs.
    Leave,
    Arrive,
}

/// Somebody who listens to a pool.
trait Observer {
    fn told(&self, block: &Block, event: Event<'_>);
}

impl Observer for Recording {
    fn told(&self, block: &Block, event: Event<'_>) {
        if block.is_segment() {
            return;
        }
        let home = &block.lane().stream;
        let (addr, bytes) = (block.addr(), block.bytes());
        let (what, on) = match event {
            Event::Alloc => (What::Alloc { addr, bytes }, &**home),
            Event::Resize(_, _, bytes) => (What::Resize { addr, bytes }, &**home),
            Event::Free(on) | Event::Keep(on) => (What::Free { addr }, on),
            Event::Leave => (What::Lift { addr }, &**home),
            Event::Arrive => (What::Put { addr }, &**home),
        };
        self.note(what, on.timeline.uid);
    }
}

impl Observer for Tracker {
    fn told(&self, block: &Block, event: Event<'_>) {
        if block.is_segment() {
            return;
        }
        let addr = block.addr();
        if matches!(event, Event::Alloc) {
            return self.enter(addr, block.bytes(), block.stream_id());
        }
        let Entries { live, moving } = &mut *self.entries();
        match event {
            Event::Resize(_, _, bytes) => {
                let entry = live.get_mut(&addr);
                entry.into_iter().for_each(|entry| entry.bytes = bytes);
            }
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
}

/// What the device cannot see for itself; of moves `compact` tells what their launches use.
impl Observer for Device {
    fn told(&self, block: &Block, event: Event<'_>) {
        let (from, to, on) = match event {
            Event::Alloc => (0, block.capacity(), &*block.lane().stream),
            Event::Resize(before, after, _) => (before, after, &*block.lane().stream),
            Event::Free(on) if on.timeline.recorder().is_none() => (block.capacity(), 0, on),
            _ => return,
        };
        // Parts of a graph's memory are uses of captured work, which a watcher does not see.
        if from == to || block.is_private() {
            return;
        }
        let addr = block.addr() + from.min(to);
        let (bytes, stream) = (from.abs_diff(to), on.raw);
        self.backend().observe(&match from < to {
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
        });
    }
}

impl Shared {
    fn observers(&self) -> impl Iterator<Item = &dyn Observer> {
        let recording = self.recording.as_ref().map(|it| it as &dyn Observer);
        let device = cfg!(feature = "sanitize").then_some(&self.device as &dyn Observer);
        let tracker = self.tracker.as_ref().map(|it| it as &dyn Observer);
        recording.into_iter().chain(tracker).chain(device)
    }

    /// Whether anybody listens.
    pub(super) fn is_observed(&self) -> bool {
        self.observers().next().is_some()
    }
}

impl Block {
    /// Whether it is memory that a graph's blocks are cut from, which no program asked for.
    fn is_segment(&self) -> bool {
        self.lane().stream.gate && !self.is_private()
    }

    /// Tells who listens what becomes of the block.
    #[inline]
    pub(crate) fn tell(&self, event: Event<'_>) {
        if self.lane().is_observed {
            self.tell_all(event);
        }
    }

    #[cold]
    fn tell_all(&self, event: Event<'_>) {
        let observers = self.lane().shared.observers();
        observers.for_each(|observer| observer.told(self, event));
    }
}
