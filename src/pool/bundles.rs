//! Blocks of one size on their way from a stream that frees them to one that asks for them.
//!
//! Where one thread allocates what another frees, block after block of one size, each would be
//! merged into a hole by the one and cut out of it by the other, and every record of it would go
//! from processor to processor. So what a lane's cache has no room for stays together: the lane's
//! blocks of that size leave the cache as one *bundle*, and a lane that misses the size takes the
//! bundle as it is, behind one wait for the newest of those there are.
//!
//! Only sizes that a lane misses again and again are bundled, and only where blocks of other streams
//! are freed. A bundle counts as in the cache it left, and goes into the arena when that does: it is
//! free memory out of the sight of no request that would otherwise wait, grow the pool or fail.

use std::collections::VecDeque;

use super::cache::Cached;
use super::core::Core;
use super::lane::Lane;
use crate::error::Result;
use crate::heap::Grant;
use crate::heap::size_class::is_slot;
use crate::heap::{Epoch, StreamIndex};
use crate::seeded::seeded;
use crate::sync::latch;

/// Blocks in a bundle.
const LEAST: usize = 8;
const MOST: usize = 64;

/// Bundles kept; of one more the oldest goes into the arena.
const KEPT: usize = 16;

/// Sizes asked for last that are bundled.
const ASKED: usize = 4;

/// See the module documentation.
pub(crate) struct Bundle {
    pub(super) bytes: u64,
    /// The stream that freed the blocks, and its tick that covers all their uses.
    pub(super) slot: StreamIndex,
    pub(super) tick: u64,
    pub(super) blocks: Vec<Cached>,
}

impl Bundle {
    fn history(&self) -> Epoch {
        let tick = match seeded!("bundle-forgets-its-history") {
            true => 0,
            false => self.tick,
        };
        Epoch::new(self.slot, tick)
    }
}

/// The bundles of a pool, oldest first.
#[derive(Default)]
pub(crate) struct Bundles {
    kept: VecDeque<Bundle>,
    /// Empty ones, so that the heap is not asked for each.
    spare: Vec<Vec<Cached>>,
    asked: [u64; ASKED],
}

impl Bundles {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A lane misses blocks of `bytes` again and again.
    pub(super) fn ask(&mut self, bytes: u64) {
        if !self.is_asked(bytes) {
            self.asked.rotate_right(1);
            self.asked[0] = bytes;
        }
    }

    pub(super) fn is_asked(&self, bytes: u64) -> bool {
        self.asked.contains(&bytes)
    }

    /// An empty list for the blocks of a bundle.
    pub(super) fn list(&mut self) -> Vec<Cached> {
        let spare = self.spare.pop();
        spare.unwrap_or_else(|| Vec::with_capacity(MOST))
    }

    /// Takes back what [`Bundles::list`] gave.
    pub(super) fn take_back(&mut self, mut list: Vec<Cached>) {
        list.clear();
        self.spare.push(list);
    }

    /// Keeps a bundle; gives the one that has to go for it.
    #[must_use]
    pub(super) fn add(&mut self, bundle: Bundle) -> Option<Bundle> {
        self.kept.push_back(bundle);
        match self.kept.len() > KEPT {
            true => self.kept.pop_front(),
            false => None,
        }
    }

    /// Takes a bundle that a lane of `slot` freed.
    pub(super) fn take_of(&mut self, slot: StreamIndex) -> Option<Bundle> {
        let at = self.kept.iter().position(|it| it.slot == slot)?;
        self.kept.remove(at)
    }

    /// All blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Cached> {
        self.kept.iter().flat_map(|bundle| &bundle.blocks)
    }

    /// The newest bundle of blocks of `bytes`.
    fn newest(&self, bytes: u64) -> Option<&Bundle> {
        self.kept.iter().rev().find(|bundle| bundle.bytes == bytes)
    }
}

impl Core {
    /// The oldest bundle of blocks of `bytes` that is ready for `slot`.
    pub(super) fn ready_bundle(&mut self, slot: StreamIndex, bytes: u64) -> Option<Bundle> {
        let is_ready = |it: &Bundle| it.bytes == bytes && self.is_behind(slot, it.history());
        let at = self.bundles.kept.iter().position(is_ready)?;
        self.bundles.kept.remove(at)
    }

    /// Makes `slot`'s stream wait for the newest bundle of blocks of `bytes`, and so for all that the
    /// same stream freed before.
    pub(super) fn wait_for_bundle(&mut self, slot: StreamIndex, bytes: u64) -> Result<()> {
        let newest = self.bundles.newest(bytes).map(Bundle::history);
        newest.map_or(Ok(()), |history| self.wait_for(slot, history))
    }
}

impl Lane {
    /// A block of `bytes` that is ready for the lane's stream, of a bundle or of a hole.
    #[inline(always)]
    pub(crate) fn take_ready(&self, bytes: u64, core: &mut Core) -> Result<Option<Grant>> {
        if !is_slot(bytes) {
            self.drain_large(core);
        }
        if !core.bundles.is_empty()
            && let Some(grant) = self.take_bundle(bytes, false, core)
        {
            return Ok(Some(grant));
        }
        core.take_ready_of(self.slot, bytes)
    }

    /// A block of exactly `bytes` from a bundle behind a wait for the newest, which lets later
    /// requests have the others.
    pub(crate) fn take_waiting_bundle(&self, bytes: u64, core: &mut Core) -> Result<Option<Grant>> {
        let before = core.steps.waits;
        core.wait_for_bundle(self.slot, bytes)?;
        Ok(self.take_bundle(bytes, core.steps.waits > before, core))
    }

    /// A block of exactly `bytes` from a bundle that is ready, if the lane's stream has `waited` for
    /// it just now. The bundle's others go into this lane's cache.
    #[inline(never)]
    fn take_bundle(&self, bytes: u64, waited: bool, core: &mut Core) -> Option<Grant> {
        let mut bundle = core.ready_bundle(self.slot, bytes)?;
        let grant = self.take_in(&mut bundle.blocks, core);
        core.bundles.take_back(bundle.blocks);
        self.count_taken_over(bytes, bundle.slot, waited, core);
        grant
    }

    /// Lets the cache's blocks of `bytes`, which has no room for one more, leave it as a bundle if
    /// such are asked for; true if there is room now.
    pub(super) fn bundle(&self, bytes: u64, core: &mut Core) -> bool {
        if !core.bundles.is_asked(bytes) || core.is_over_soft_limit() {
            return false;
        }
        let mut blocks = core.bundles.list();
        let mut state = latch(&self.own.state);
        let cache = &mut state.cache;
        cache.pop_until(bytes, u64::MAX, MOST, &mut blocks);
        if blocks.len() < LEAST {
            blocks.drain(..).rev().for_each(|block| cache.push(block));
            core.bundles.take_back(blocks);
            return false;
        }
        drop(state);
        let bundle = Bundle {
            bytes,
            slot: self.slot,
            tick: blocks.iter().map(|block| block.tick).max().unwrap_or(0),
            blocks,
        };
        if let Some(oldest) = core.bundles.add(bundle) {
            core.give_bundle(oldest);
        }
        true
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
