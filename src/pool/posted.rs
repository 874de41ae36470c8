//! The core's lock, and the figures that are posted whenever it is let go.
//!
//! Reading statistics takes no lock that an allocation waits for, so whoever held the core leaves
//! its figures on a board: those that any use of the core changes always, the others if one of them
//! may have changed. Two take a walk over all extents: what cannot be given back, and what
//! compaction would give. They are taken anew each time while there are few extents, and else so
//! seldom that each change pays for a part of an extent of the walk.

use std::ops::{Deref, DerefMut};

use super::active::{Active, Gauge};
use super::board::{Board, Word};
use super::core::Core;
use super::stats::Steps;
use crate::arena::ArenaCalls;
use crate::sync::{Latch, LatchGuard, latch};

/// Extents that are walked over after every change.
const FEW: u64 = 16;

/// Extents up to which a step that made room is followed by a walk, which costs less than it; with
/// more, once half as many changes as there are extents have paid for it.
const SOME: u64 = 512;

/// Changes that pay for one extent of a walk where there was no such step.
const PAYS: u64 = 8;

/// Extents beyond which an allocation that only takes a hole walks no more.
const MANY: u64 = 4096;

/// Figures of the core.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Posted {
    pub(super) active: Active,
    /// Bytes held, by class.
    pub(super) reserved: [Gauge; 2],
    pub(super) hole_bytes: u64,
    pub(super) small_hole_bytes: u64,
    pub(super) holes: u64,
    pub(super) largest_hole: u64,
    pub(super) steps: Steps,
    pub(super) created: u64,
    pub(super) released: u64,
    pub(super) peak_reserved: u64,
    pub(super) inactive_split: [Gauge; 2],
    pub(super) inactive_split_peak: u64,
    pub(super) after_compaction: u64,
    pub(super) bytes_moved: u64,
    pub(super) compactions: u64,
    pub(super) calls: ArenaCalls,
}

/// A group of the board's words: each is posted from the core, and read to its place.
macro_rules! group {
    ($count:ident, $post:ident, $read:ident, |$core:ident, $posted:ident|
     $($value:expr => $place:expr),* $(,)?) => {
        const $count: usize = [$(stringify!($place)),*].len();

        #[inline(always)]
        fn $post($core: &Core, words: &[Word]) {
            let mut words = words.iter();
            $(if let Some(word) = words.next() { word.set($value); })*
        }

        fn $read($posted: &mut Posted, words: &[u64]) {
            let mut words = words.iter();
            $(if let Some(&word) = words.next() { $place = word; })*
        }
    };
}

group! {
    OFTEN, post_often, read_often, |core, posted|
    core.active.classes[0].current => posted.active.classes[0].current,
    core.active.classes[0].added => posted.active.classes[0].added,
    core.active.classes[1].current => posted.active.classes[1].current,
    core.active.classes[1].added => posted.active.classes[1].added,
    core.extents.hole_bytes() => posted.hole_bytes,
    core.extents.small_hole_bytes() => posted.small_hole_bytes,
    core.extents.holes() => posted.holes,
    core.extents.noted_largest() => posted.largest_hole,
    core.steps.own_stream => posted.steps.own_stream,
    core.steps.ready_elsewhere => posted.steps.ready_elsewhere,
}

group! {
    RISING, post_rising, read_rising, |core, posted|
    core.active.classes[0].peak => posted.active.classes[0].peak,
    core.active.classes[1].peak => posted.active.classes[1].peak,
    core.active.peak => posted.active.peak,
    core.reserved[0].current => posted.reserved[0].current,
    core.reserved[0].peak => posted.reserved[0].peak,
    core.reserved[0].added => posted.reserved[0].added,
    core.reserved[1].current => posted.reserved[1].current,
    core.reserved[1].peak => posted.reserved[1].peak,
    core.reserved[1].added => posted.reserved[1].added,
}

group! {
    SELDOM, post_seldom, read_seldom, |core, posted|
    core.arena.flow().0 => posted.created,
    core.arena.flow().1 => posted.released,
    core.peak_reserved => posted.peak_reserved,
    core.walked.inactive_split[0].current => posted.inactive_split[0].current,
    core.walked.inactive_split[0].peak => posted.inactive_split[0].peak,
    core.walked.inactive_split[0].added => posted.inactive_split[0].added,
    core.walked.inactive_split[1].current => posted.inactive_split[1].current,
    core.walked.inactive_split[1].peak => posted.inactive_split[1].peak,
    core.walked.inactive_split[1].added => posted.inactive_split[1].added,
    core.walked.inactive_split_peak => posted.inactive_split_peak,
    core.walked.after_compaction => posted.after_compaction,
    core.bytes_moved => posted.bytes_moved,
    core.compactions => posted.compactions,
    core.steps.drain => posted.steps.drain,
    core.steps.stream_wait => posted.steps.stream_wait,
    core.steps.waits => posted.steps.waits,
    core.steps.steal => posted.steps.steal,
    core.steps.grow => posted.steps.grow,
    core.steps.relieved => posted.steps.relieved,
    core.steps.out_of_memory => posted.steps.out_of_memory,
    core.arena.calls().created => posted.calls.created,
    core.arena.calls().mapped => posted.calls.mapped,
    core.arena.calls().remapped => posted.calls.remapped,
    core.arena.calls().unmapped => posted.calls.unmapped,
    core.arena.calls().released => posted.calls.released,
}

const WORDS: usize = OFTEN + RISING + SELDOM;

impl Posted {
    fn of_words(words: &[u64; WORDS]) -> Self {
        let (often, rest) = words.split_at(OFTEN);
        let (rising, seldom) = rest.split_at(RISING);
        let mut posted = Self::default();
        read_often(&mut posted, often);
        read_rising(&mut posted, rising);
        read_seldom(&mut posted, seldom);
        posted
    }
}

/// The figures that take a walk, and when it is due.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Of small and of large holes, as the walks found it.
    inactive_split: [Gauge; 2],
    inactive_split_peak: u64,
    after_compaction: u64,
    /// Times that the core was let go since.
    changes: u64,
    /// Of them, where the next look is due at whether a walk is.
    look_at: u64,
    /// Steps that made room, and steps that go over everything themselves, as they were then.
    steps: u64,
    rare: u64,
    /// All steps that the figures posted last know of.
    posted: u64,
    /// The peaks' sum as it was posted last.
    peaks: u64,
    /// To be taken anew, and posted, whatever it costs.
    pub(crate) asked: bool,
}

impl Walked {
    fn reset_peaks(&mut self) {
        let [small, large] = &mut self.inactive_split;
        small.reset_peak();
        large.reset_peak();
        self.inactive_split_peak = small.current + large.current;
    }
}

impl Core {
    /// Sets peaks to what they count now.
    pub(super) fn reset_peaks(&mut self) {
        self.peak_reserved = self.arena.reserved();
        self.active.reset_peaks();
        self.reserved.iter_mut().for_each(Gauge::reset_peak);
        self.walked.reset_peaks();
        self.walked.asked = true;
    }

    /// Brings the figures up to date and posts those that may have changed.
    #[inline]
    fn post(&mut self, board: &Board<WORDS>) {
        self.walked.changes += 1;
        let (small, large) = self.held();
        let walked = &self.walked;
        // One branch, which nearly always goes the same way.
        let same = (self.reserved[0].current == small)
            & (self.reserved[1].current == large)
            & (walked.posted == self.slow_steps())
            & (walked.peaks == self.active.peaks())
            & (walked.changes < walked.look_at)
            & !walked.asked
            & self.extents.knows_largest();
        if !same {
            return self.post_all(board);
        }
        board.post(|words| post_often(self, &words[..OFTEN]));
    }

    #[cold]
    #[inline(never)]
    fn post_all(&mut self, board: &Board<WORDS>) {
        let (small, large) = self.held();
        self.reserved[0].set(small);
        self.reserved[1].set(large);
        self.extents.note_largest();
        self.walked.peaks = self.active.peaks();
        let known = self.slow_steps();
        let walked = &mut self.walked;
        let stepped = std::mem::replace(&mut walked.posted, known) != known;
        let look = stepped || walked.changes >= walked.look_at || walked.asked;
        let seldom = look && (self.walk_if_due() || stepped);
        board.post(|words| {
            let (often, rest) = words.split_at(OFTEN);
            let (rising, rest) = rest.split_at(RISING);
            post_often(self, often);
            post_rising(self, rising);
            if seldom {
                post_seldom(self, rest);
            }
        });
    }

    /// Bytes held, by class.
    #[inline(always)]
    fn held(&self) -> (u64, u64) {
        let small_free = self.extents.small_hole_bytes() + self.slabs.free_bytes();
        let small = self.active.classes[0].current + small_free;
        (small, self.arena.reserved() - small)
    }

    /// All steps but those that take a hole that is ready.
    #[inline(always)]
    fn slow_steps(&self) -> u64 {
        let (calls, taken) = (self.arena.calls(), &self.steps);
        let waited = taken.stream_wait + taken.waits + taken.relieved;
        let (steps, rare) = self.walked_steps();
        steps + rare + waited + calls.created + calls.mapped
    }

    /// Steps that made room, and steps that go over everything themselves.
    #[inline(always)]
    fn walked_steps(&self) -> (u64, u64) {
        let (calls, taken) = (self.arena.calls(), &self.steps);
        let steps = taken.drain + taken.steal + taken.grow + calls.unmapped;
        let rare = taken.out_of_memory + self.compactions + calls.released;
        (steps, rare)
    }

    /// Takes the figures that take a walk, if it is time; whether it was.
    #[cold]
    #[inline(never)]
    fn walk_if_due(&mut self) -> bool {
        let (steps, rare) = self.walked_steps();
        let extents = self.extents.records();
        let walked = &mut self.walked;
        let stepped = walked.steps != steps;
        let (paid, paid_well) = (extents / 2, PAYS * extents);
        let due = extents <= FEW
            || (stepped && (extents <= SOME || walked.changes >= paid))
            || (extents <= MANY && walked.changes >= paid_well)
            || walked.rare != rare
            || walked.asked;
        // Nothing is due before: there are never fewer extents.
        walked.look_at = match (stepped, extents) {
            _ if due => 0,
            (true, _) => paid,
            (false, ..=MANY) => paid_well,
            (false, _) => u64::MAX,
        };
        if due {
            self.walk(steps, rare);
        }
        due
    }

    #[cold]
    #[inline(never)]
    fn walk(&mut self, steps: u64, rare: u64) {
        let (inactive, after_compaction) = (self.inactive_split(), self.after_compaction());
        let walked = &mut self.walked;
        for (gauge, bytes) in walked.inactive_split.iter_mut().zip(inactive) {
            gauge.set(bytes);
        }
        let all = inactive[0] + inactive[1];
        walked.inactive_split_peak = walked.inactive_split_peak.max(all);
        walked.after_compaction = after_compaction;
        (walked.steps, walked.rare, walked.changes) = (steps, rare, 0);
        walked.asked = false;
    }
}

/// The core behind its lock, and the board.
pub(crate) struct CoreLock {
    core: Latch<Core>,
    board: Board<WORDS>,
}

impl CoreLock {
    pub(crate) fn new(mut core: Core) -> Self {
        let board = Board::new();
        core.walked.asked = true;
        core.post(&board);
        let core = Latch::new(core);
        Self { core, board }
    }

    /// Takes the lock; the figures are posted when it is let go.
    #[inline]
    pub(crate) fn lock(&self) -> CoreGuard<'_> {
        CoreGuard {
            core: latch(&self.core),
            board: &self.board,
        }
    }

    /// The figures as they were posted last, without the lock.
    pub(crate) fn figures(&self) -> Posted {
        Posted::of_words(&self.board.read().0)
    }

    pub(crate) fn get_mut(&mut self) -> &mut Core {
        crate::sync::latch_mut(&mut self.core)
    }
}

/// The core's lock held.
pub(crate) struct CoreGuard<'l> {
    core: LatchGuard<'l, Core>,
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
    #[inline]
    fn drop(&mut self) {
        self.core.post(self.board);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
