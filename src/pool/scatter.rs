//! Where large blocks go while free memory is scattered.
//!
//! A handle is mapped elsewhere whole, so free memory counts for a large request as far as it is whole
//! handles. What is free in handles that also hold blocks, their *fragments*, comes into use only at
//! the ends of large blocks: the free end of a handle as a block's begin, the free begin of another
//! as its end, and what lies between two blocks of one handle not at all. A request that is put into
//! the smallest hole uses one fragment and leaves another; so fragments pile up, and when live memory
//! comes back to its peak the pool lacks what they have.
//!
//! So the pool watches what is in fragments. Below a part of the peak ([`PART_OF_LARGE`]) nothing changes:
//! the smallest hole is the best for blocks of sizes that recur, and costs no driver call. Above it
//!
//! - a large request takes, among the smallest holes, the one end of one of them that wants the
//!   fewest whole handles and leaves the fewest and largest fragments. Still no driver call;
//! - a request for which two fragments would save a whole handle is put together from them and idle
//!   handles (see `edges`), the sooner the nearer live memory is to its peak: on the way there requests
//!   use up fragments, so the further it is the more there may be ([`AWAY_PART`]).
//!
//! While the pool may still grow by the request and by what fragments may have, they do not matter:
//! with a [slack](super::PoolConfig::slack) of 0.1 an inference program of 10 GiB maps no handle elsewhere
//! and reserves 1.030 times its peak, as a pool does that never maps one, where it mapped 13,700 and
//! reserved 1.053.
//!
//! A temporary whose size comes again takes no edges: they would be mapped anew round after round. Nor
//! does a request for which many handles would have to be mapped, while fragments are hardly more than
//! there may be.
//!
//! Over made programs this lowered what is reserved from 1.023 to 1.007 times the peak (inference,
//! 10 GiB), from 1.033 to 1.013 (blocks of all sizes, 5 GiB), from 1.057 to 1.015 (textures that come
//! and go, 2 GiB), from 1.10 to 1.03 (tables in 400 MiB) and from 1.11 to 1.05 (a mesh in 400 MiB). The
//! handles mapped elsewhere became two to ten times as many there. In the recorded training runs
//! fragments hardly come above the part.

use super::core::{Core, Grant};
use super::edges::Terms;
use super::extents::{Extent, Extents, FRESH, Id, Slot};
use super::stats::SMALL_BYTES;
use super::told::Told;
use crate::arena::Arena;
use crate::error::Result;

/// Bytes of the peak from which on a pool is large: it may waste a hundredth, a smaller one a fiftieth.
const LARGE_POOL: u64 = 4 << 30;

/// Part of the peak that fragments of a large pool may have. With 0.008 made programs of 5 to 15 GiB
/// map a tenth fewer handles elsewhere and reserve up to 0.005 more.
const PART_OF_LARGE: f64 = 0.006;

/// The same of other pools.
const PART_OF_SMALL: f64 = 0.014;

/// Part that fragments may have of what the pool holds beyond its peak: that is not given back, and
/// room in it costs nothing.
const EXCESS_PART: f64 = 0.4;

/// Granules in fragments that are no matter: a pool of few handles would do nothing but move them.
const LEAST_GRANULES: u64 = 2;

/// Fragments of less than a granule over this are not looked at.
pub(super) const DUST_PART: u64 = 64;

/// Part that fragments may have, besides, of what live memory lacks to its peak before blocks are put
/// together from them. Blocks of a few handles have about as much of fragments. Where it is done from a
/// tenth below the peak on and not before, small programs whose next peak is higher reserve 1.07 to 1.09
/// times their peaks in place of 1.02 to 1.05; with 0.05 a fifth more handles are mapped elsewhere.
const AWAY_PART: f64 = 0.1;

/// Below this part of the peak nothing is done in a large pool: it has many holes to look at. Down to a
/// tenth, one request in a hundred of the GPT-2 trace took 5 us in place of 0.9 on the host device, and
/// it reserved 1.0036 times its peak in place of 1.0041.
const LEAST_OF_LARGE: u64 = 2;

/// The same of other pools.
const LEAST_OF_SMALL: u64 = 10;

/// Driver calls for which a block is put together from fragments as soon as there are too many of them.
const FEW_CALLS: f64 = 4.0;

/// Calls more for as many fragments again as there may be. With any number of calls from the first, made
/// programs map a quarter more handles elsewhere; with 20 some of 400 MiB reserve 0.02 more.
const CALLS_A_TIME: f64 = 50.0;

/// From this part of the peak below it any number of calls is worth it.
const AT_PEAK_PART: u64 = 100;

/// Fragments are summed again, a walk over all holes, once a part of as many holes have changed.
const LOOKS_PER_CHANGES: u64 = 8;

/// Holes of each stream that are looked at.
const LOOKS: usize = 32;

/// A block that is freed before so many others is a temporary.
const FREES_OF_TEMPORARY: u32 = 64;

/// Sizes of temporaries that are remembered.
const RECURRING: usize = 64;

/// Whole handles of which one more outweighs a hole that is twice as large.
const WHOLE_WEIGHT: f64 = 2.0;

/// What taking from a hole that is twice as large weighs.
const SIZE_WEIGHT: f64 = 0.2;

/// What a fragment between two blocks of a handle weighs: no large block can use it.
pub(super) const MIDDLE_WEIGHT: f64 = 2.0;

/// How scattered free memory is, for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scatter {
    /// Not so much that it matters.
    Little,
    /// More than the pool can have at its peak.
    Much,
    /// More than requests on the way to the peak will use up.
    TooMuch,
}

/// What was seen of fragments, and when.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    bytes: u64,
    changes: u64,
}

/// Sizes of blocks with edges that were freed soon, each at the place its hash names.
///
/// Where a size comes again, as temporaries do round after round, edges would be mapped anew each
/// time, and what they save lasts no longer than such a block lives: it takes a hole instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recurring([u64; RECURRING]);

impl Default for Recurring {
    fn default() -> Self {
        Self([0; RECURRING])
    }
}

impl Recurring {
    fn place(bytes: u64) -> usize {
        // Fibonacci hashing: the upper bits of a product with 2^64 over the golden ratio.
        (bytes.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - RECURRING.ilog2())) as usize
    }

    /// Notes that a block of `bytes` that had edges is freed after so many other `frees`.
    pub(super) fn note(&mut self, bytes: u64, frees: u32) {
        if frees <= FREES_OF_TEMPORARY {
            self.0[Self::place(bytes)] = bytes;
        }
    }

    fn holds(&self, bytes: u64) -> bool {
        self.0[Self::place(bytes)] == bytes
    }
}

/// How a stretch of free memory lies in handles.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lie {
    /// Bytes of whole handles.
    whole: u64,
    /// Bytes beside them.
    rest: u64,
    /// What the fragments weigh.
    weight: f64,
}

/// A place for a request in a hole.
#[derive(Debug, Clone, Copy)]
struct Fit {
    hole: Id,
    start: u64,
    /// Bytes of whole handles that become fragments and block.
    whole: u64,
}

/// What a fragment weighs: one is better than two that have as many bytes.
pub(super) fn weight(bytes: u64, granule: u64) -> f64 {
    (bytes as f64 / granule as f64).sqrt()
}

impl Lie {
    /// How [`from`, `to`) of a mapped stretch lies in handles.
    fn of(arena: &Arena, from: u64, to: u64) -> Self {
        let frame = |at: u64| arena.frame_at(at).map(|(_, frame)| arena.extent_of(&frame));
        let none = Self {
            whole: 0,
            rest: 0,
            weight: 0.0,
        };
        if from >= to {
            return none;
        }
        let (Some(first), Some(last)) = (frame(from), frame(to - 1)) else {
            return none;
        };
        let granule = arena.granule();
        let (begin, end) = (first.0, last.0 + last.1);
        if first == last {
            let middle = from > begin && to < end;
            return match to - from == first.1 {
                true => Self {
                    whole: to - from,
                    ..none
                },
                false => Self {
                    rest: to - from,
                    weight: weight(to - from, granule) * if middle { MIDDLE_WEIGHT } else { 1.0 },
                    ..none
                },
            };
        }
        let lower = if from == begin {
            0
        } else {
            begin + first.1 - from
        };
        let upper = if to == end { 0 } else { to - last.0 };
        Self {
            whole: to - from - lower - upper,
            rest: lower + upper,
            weight: weight(lower, granule) + weight(upper, granule),
        }
    }
}

/// All holes of at least `bytes`.
fn holes(extents: &Extents, bytes: u64) -> impl Iterator<Item = Id> + '_ {
    (0..extents.slots()).flat_map(move |slot| extents.holes_of(slot, bytes))
}

impl Core {
    /// How scattered free memory is for a request of `bytes`.
    pub(super) fn scatter(&mut self, bytes: u64) -> Scatter {
        let live = self.extents.taken().0 + bytes;
        let matters = bytes > SMALL_BYTES && !self.may_move && self.config.remap;
        let least = match self.has_been_large() {
            true => LEAST_OF_LARGE,
            false => LEAST_OF_SMALL,
        };
        let allowed = self.fragments_allowed();
        // What may be created before idle memory is looked for.
        let growth = self.slack(bytes).min(self.room());
        if !matters
            || live < self.peak_taken / least
            || growth >= bytes + allowed
            || self.fragment_bytes() < allowed
        {
            return Scatter::Little;
        }
        match self.seen.bytes as f64 >= self.too_much(live) {
            true => Scatter::TooMuch,
            false => Scatter::Much,
        }
    }

    fn has_been_large(&self) -> bool {
        self.peak_taken >= LARGE_POOL
    }

    /// Bytes of fragments that are too many with `live` bytes taken.
    fn too_much(&self, live: u64) -> f64 {
        let away = self.peak_taken.saturating_sub(live);
        self.fragments_allowed() as f64 + away as f64 * AWAY_PART
    }

    /// Driver calls that it is worth to put a block of `bytes` together from fragments.
    pub(super) fn calls_worth(&self, bytes: u64) -> u64 {
        let live = self.extents.taken().0;
        if live + bytes >= self.peak_taken - self.peak_taken / AT_PEAK_PART {
            return u64::MAX;
        }
        let times = self.seen.bytes as f64 / self.too_much(live);
        (FEW_CALLS + CALLS_A_TIME * (times - 1.0)) as u64
    }

    /// Bytes that fragments may have before they matter.
    fn fragments_allowed(&self) -> u64 {
        let peak = self.peak_taken;
        let part = match self.has_been_large() {
            true => PART_OF_LARGE,
            false => PART_OF_SMALL,
        };
        let excess = self.arena.reserved().saturating_sub(peak);
        ((peak as f64 * part) as u64)
            .max((excess as f64 * EXCESS_PART) as u64)
            .max(LEAST_GRANULES * self.arena.granule())
    }

    /// Free bytes in handles that also hold blocks, as seen some changes ago.
    fn fragment_bytes(&mut self) -> u64 {
        let changes = self.extents.changes();
        let since = changes.wrapping_sub(self.seen.changes);
        if since > self.extents.holes() / LOOKS_PER_CHANGES {
            let dust = self.arena.granule() / DUST_PART;
            let rest = holes(&self.extents, dust).map(|id| {
                let extent = self.extents.get(id);
                Lie::of(&self.arena, extent.start, extent.end()).rest
            });
            self.seen = Seen {
                bytes: rest.sum(),
                changes,
            };
        }
        self.seen.bytes
    }

    /// Takes `bytes` from ready memory with regard to the fragments that this uses and leaves. `None`
    /// while they do not matter.
    pub(super) fn take_scattered(&mut self, slot: Slot, bytes: u64) -> Result<Option<Grant>> {
        let scatter = self.scatter(bytes);
        if scatter == Scatter::Little {
            return Ok(None);
        }
        let fit = self.fit(slot, bytes);
        let below = fit.map_or(u64::MAX, |fit| fit.whole);
        if scatter == Scatter::TooMuch && below > 0 && !self.recurring.holds(bytes) {
            let terms = Terms {
                created: 0,
                whole: below - 1,
                calls: self.calls_worth(bytes),
            };
            let ready = |core: &Self, extent: &Extent| core.is_behind(slot, extent);
            if let Some(grant) = self.take_with_edges(slot, bytes, terms, ready)? {
                return Ok(Some(grant));
            }
        }
        Ok(fit.map(|fit| self.take_fit(slot, bytes, fit)))
    }

    fn take_fit(&mut self, slot: Slot, bytes: u64, fit: Fit) -> Grant {
        let Extent {
            start, slot: owner, ..
        } = *self.extents.get(fit.hole);
        if owner == slot || owner == FRESH {
            self.steps.own_stream += 1;
            self.told.note(Told::OwnStream(bytes));
        } else {
            self.steps.ready_elsewhere += 1;
            self.told.note(Told::ReadyElsewhere(bytes));
        }
        if fit.start == start {
            return self.take(fit.hole, bytes, slot);
        }
        let id = self.extents.take_window(fit.hole, fit.start, bytes, slot);
        self.granted(id)
    }

    /// The end of a hole, ready for `slot`, that suits a request of `bytes` best.
    fn fit(&self, slot: Slot, bytes: u64) -> Option<Fit> {
        let owners = 0..self.extents.slots();
        let ready = |&id: &Id| self.is_behind(slot, self.extents.get(id));
        let found = owners.flat_map(|owner| self.extents.holes_of(owner, bytes).take(LOOKS));
        found
            .filter(ready)
            .flat_map(|hole| self.rated(hole, bytes))
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
            .map(|(_, fit)| fit)
    }

    /// What a request of `bytes` in the low and in the high end of a hole costs.
    fn rated(&self, hole: Id, bytes: u64) -> [(f64, Fit); 2] {
        let extent = self.extents.get(hole);
        let (start, end) = (extent.start, extent.end());
        let before = Lie::of(&self.arena, start, end);
        let times = (extent.bytes as f64 / bytes as f64).log2();
        [
            (start, start + bytes, end),
            (end - bytes, start, end - bytes),
        ]
        .map(|(at, from, to)| {
            let after = Lie::of(&self.arena, from, to);
            let whole = before.whole - after.whole.min(before.whole);
            let granules = whole as f64 / self.arena.granule() as f64;
            let cost = granules * WHOLE_WEIGHT + after.weight - before.weight + times * SIZE_WEIGHT;
            (
                cost,
                Fit {
                    hole,
                    start: at,
                    whole,
                },
            )
        })
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
