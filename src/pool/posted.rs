//! The core's lock, and the figures that are posted whenever it is let go.
//!
//! Reading statistics takes no lock that an allocation waits for, so whoever held the core leaves
//! its figures on a board. Most are sums that the core keeps anyway. Two take a walk over all
//! extents: what cannot be given back, and what compaction would give. They are taken anew each
//! time while there are few extents, and else so seldom that each change pays for one extent of the
//! walk.

use std::ops::{Deref, DerefMut};

use super::board::Board;
use super::core::Core;
use super::stats::Steps;
use crate::arena::ArenaCalls;
use crate::sync::{Mutex, MutexGuard, lock};

/// Extents that are walked over after every change.
const FEW: u64 = 16;

/// Extents beyond which an allocation that only takes a hole walks no more.
const MANY: u64 = 4096;

/// Figures of the core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(super) created: u64,
    pub(super) released: u64,
    pub(super) peak_reserved: u64,
    pub(super) taken: u64,
    pub(super) peak_active: u64,
    pub(super) hole_bytes: u64,
    pub(super) holes: u64,
    pub(super) largest_hole: u64,
    pub(super) inactive_split: u64,
    pub(super) after_compaction: u64,
    pub(super) bytes_moved: u64,
    pub(super) compactions: u64,
    pub(super) steps: Steps,
    pub(super) calls: ArenaCalls,
}

/// Figures to words and back, in the order given.
macro_rules! words {
    ($count:literal: $($($path:ident).+),* $(,)?) => {
        const WORDS: usize = $count;

        impl Posted {
            fn words(&self) -> [u64; WORDS] {
                [$(self.$($path).+),*]
            }

            fn of_words(words: [u64; WORDS]) -> Self {
                let mut posted = Self::default();
                let places: [&mut u64; WORDS] = [$(&mut posted.$($path).+),*];
                for (place, word) in places.into_iter().zip(words) {
                    *place = word;
                }
                posted
            }
        }
    };
}

words! {
    25:
    created, released, peak_reserved, taken, peak_active, hole_bytes, holes, largest_hole,
    inactive_split, after_compaction, bytes_moved, compactions,
    steps.own_stream, steps.ready_elsewhere, steps.drain, steps.stream_wait, steps.waits,
    steps.steal, steps.grow, steps.relieved, steps.out_of_memory,
    calls.created, calls.mapped, calls.unmapped, calls.released,
}

/// The figures that take a walk, and when it is due.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    inactive_split: u64,
    after_compaction: u64,
    /// Times that the core was let go since.
    changes: u64,
    /// Steps that made room, and steps that go over everything themselves, as they were then.
    steps: u64,
    rare: u64,
    /// To be taken anew whatever it costs.
    pub(crate) asked: bool,
}

impl Core {
    /// The figures now.
    fn posted(&mut self) -> Posted {
        self.walk_if_due();
        let (created, released) = self.arena.flow();
        let (holes, hole_bytes) = self.extents.hole_sums();
        let largest_hole = self.extents.known_largest();
        Posted {
            created,
            released,
            peak_reserved: self.peak_reserved,
            taken: self.extents.taken().0,
            peak_active: self.peak_active,
            hole_bytes,
            holes,
            largest_hole,
            // Of before, where nobody walked: not beyond what there is.
            inactive_split: self.walked.inactive_split.min(hole_bytes),
            after_compaction: self.walked.after_compaction.clamp(largest_hole, hole_bytes),
            bytes_moved: self.bytes_moved,
            compactions: self.compactions,
            steps: self.steps,
            calls: self.arena.calls(),
        }
    }

    fn walk_if_due(&mut self) {
        let (extents, calls) = (self.extents.records(), self.arena.calls());
        let steps = self.steps.drain + self.steps.steal + self.steps.grow + calls.unmapped;
        let rare = self.steps.out_of_memory + self.compactions + calls.released;
        let walked = &mut self.walked;
        walked.changes += 1;
        let stepped = walked.steps != steps;
        let paid = walked.changes >= extents;
        let due = extents <= FEW
            || (paid && (stepped || extents <= MANY))
            || (stepped && extents <= MANY)
            || walked.rare != rare
            || walked.asked;
        if due {
            self.walked = Walked {
                inactive_split: self.inactive_split(),
                after_compaction: self.after_compaction(),
                changes: 0,
                steps,
                rare,
                asked: false,
            };
        }
    }
}

/// The core behind its lock, and the board.
pub(crate) struct CoreLock {
    core: Mutex<Core>,
    board: Board<WORDS>,
}

impl CoreLock {
    pub(crate) fn new(mut core: Core) -> Self {
        let board = Board::new();
        board.post(&core.posted().words());
        let core = Mutex::new(core);
        Self { core, board }
    }

    /// Takes the lock; the figures are posted when it is let go.
    pub(crate) fn lock(&self) -> CoreGuard<'_> {
        CoreGuard {
            core: lock(&self.core),
            board: &self.board,
        }
    }

    /// The figures as they were posted last, without the lock.
    pub(crate) fn figures(&self) -> Posted {
        Posted::of_words(self.board.read().0)
    }

    pub(crate) fn get_mut(&mut self) -> &mut Core {
        crate::sync::get_mut(&mut self.core)
    }
}

/// The core's lock held.
pub(crate) struct CoreGuard<'l> {
    core: MutexGuard<'l, Core>,
    board: &'l Board<WORDS>,
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        self.board.post(&self.core.posted().words());
    }
}
