//! What placement alone can reach: a trace played through two allocators of books only, with nothing
//! held back by streams, caches, handles of many granules or old mappings.
//!
//! Both count granules that hold a live byte, at their most. Neither is a proven bound: they are what
//! an exact best fit reaches, first with each block in one piece of one range, then with the granules
//! under a block's ends shared through second mappings.

use std::collections::{BTreeMap, BTreeSet};

use warpool::observe::{Event, EventKind, Trace};

use super::GRANULE;

/// Sizes are rounded to this, as the pool rounds them.
const UNIT: u64 = 512;

/// The most granules with a live byte, over the peak of live bytes.
fn ratio(trace: &Trace, mut play: impl FnMut(&Event) -> u64) -> f64 {
    let most = trace.events.iter().map(&mut play).max().unwrap_or(0);
    (most * GRANULE) as f64 / trace.peak_live_bytes as f64
}

/// An exact best fit in one endless range.
pub fn best_fit(trace: &Trace) -> f64 {
    let mut range = Range::default();
    let mut blocks = vec![0; trace.blocks as usize];
    ratio(trace, |event| {
        let bytes = event.bytes.next_multiple_of(UNIT);
        let block = &mut blocks[event.block as usize];
        match event.kind {
            EventKind::Alloc => *block = range.take(bytes),
            EventKind::Free => range.give(*block, bytes),
        }
        range.used
    })
}

/// Holes of one endless range.
#[derive(Default)]
struct Range {
    /// By start.
    holes: BTreeMap<u64, u64>,
    /// (bytes, start).
    by_size: BTreeSet<(u64, u64)>,
    end: u64,
    /// Blocks in each granule, and granules that have any.
    granules: Vec<u32>,
    used: u64,
}

impl Range {
    fn take(&mut self, bytes: u64) -> u64 {
        let best = self.by_size.range((bytes, 0)..).next().copied();
        let start = match best {
            Some((size, start)) => {
                self.remove(start, size);
                if size > bytes {
                    self.insert(start + bytes, size - bytes);
                }
                start
            }
            None => {
                let last = self.holes.last_key_value().map(|(&at, &size)| (at, size));
                let start = match last.filter(|(at, size)| at + size == self.end) {
                    Some((at, size)) => {
                        self.remove(at, size);
                        at
                    }
                    None => self.end,
                };
                self.end = start + bytes;
                start
            }
        };
        for at in start / GRANULE..(start + bytes).div_ceil(GRANULE) {
            let at = at as usize;
            self.granules.resize(self.granules.len().max(at + 1), 0);
            self.used += u64::from(self.granules[at] == 0);
            self.granules[at] += 1;
        }
        start
    }

    fn give(&mut self, mut start: u64, mut bytes: u64) {
        for at in start / GRANULE..(start + bytes).div_ceil(GRANULE) {
            self.granules[at as usize] -= 1;
            self.used -= u64::from(self.granules[at as usize] == 0);
        }
        if let Some(&above) = self.holes.get(&(start + bytes)) {
            self.remove(start + bytes, above);
            bytes += above;
        }
        if let Some((&below, &size)) = self.holes.range(..start).next_back()
            && below + size == start
        {
            self.remove(below, size);
            start = below;
            bytes += size;
        }
        self.insert(start, bytes);
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        self.holes.insert(start, bytes);
        self.by_size.insert((bytes, start));
    }

    fn remove(&mut self, start: u64, bytes: u64) {
        self.holes.remove(&start);
        self.by_size.remove(&(bytes, start));
    }
}

/// As [`best_fit`], with a block put together from the free end of one granule, whole granules, and
/// the free begin of another.
pub fn shared_ends(trace: &Trace) -> f64 {
    let mut granules = Granules::default();
    let mut blocks = vec![Parts::default(); trace.blocks as usize];
    ratio(trace, |event| {
        let bytes = event.bytes.next_multiple_of(UNIT);
        let block = &mut blocks[event.block as usize];
        match event.kind {
            EventKind::Alloc => *block = granules.take(bytes),
            EventKind::Free => granules.give(*block),
        }
        granules.used + granules.whole
    })
}

/// A free part of a granule: (bytes, granule, offset).
type Free = (u64, usize, u64);

/// Where a block lies: parts of two granules, and whole ones.
#[derive(Clone, Copy, Default)]
struct Parts {
    lower: Option<Free>,
    whole: u64,
    upper: Option<Free>,
}

/// Granules that blocks share, and how many are whole in one block.
#[derive(Default)]
struct Granules {
    /// Free parts of each by offset; an unused granule is one part.
    free: Vec<BTreeMap<u64, u64>>,
    unused: Vec<usize>,
    /// Free parts of granules in use: all, those that reach the end, and those that begin it.
    all: BTreeSet<Free>,
    tails: BTreeSet<Free>,
    heads: BTreeSet<Free>,
    used: u64,
    whole: u64,
}

impl Granules {
    fn take(&mut self, bytes: u64) -> Parts {
        if let Some(&(size, granule, at)) = self.all.range((bytes, 0, 0)..).next() {
            let lower = (bytes, granule, at);
            self.cut((size, granule, at), lower);
            return Parts {
                lower: Some(lower),
                ..Parts::default()
            };
        }
        let largest = self.heads.last().map_or(0, |head| head.0);
        let none = std::iter::once(None);
        let tails = none.chain(self.tails.iter().copied().map(Some));
        let choices = tails.map(|lower| {
            let tail = lower.map_or(0, |tail: Free| tail.0);
            let whole = bytes.saturating_sub(tail + largest).div_ceil(GRANULE);
            let lacks = bytes.saturating_sub(tail + whole * GRANULE);
            let upper = (lacks > 0).then(|| self.heads.range((lacks, 0, 0)..).next());
            let upper = upper.flatten().copied();
            let sum = tail + whole * GRANULE + upper.map_or(0, |head| head.0);
            (whole, sum - bytes, lower, upper)
        });
        let best = choices.min_by_key(|&(whole, left, ..)| (whole, left));
        let Some((mut whole, left, mut lower, mut upper)) = best else {
            return Parts::default();
        };
        let (tail, head) = (
            lower.map_or(0, |tail| tail.0),
            upper.map_or(0, |head| head.0),
        );
        let mut wanted = (tail, head);
        if tail.max(head) >= left {
            if tail >= head {
                wanted.0 -= left;
            } else {
                wanted.1 -= left;
            }
        } else {
            // The last whole granule is not whole in this block: what is left of it begins there.
            whole -= 1;
            let granule = self.fresh();
            lower = Some((GRANULE, granule, 0))
                .filter(|_| lower.is_none())
                .or(lower);
            if tail == 0 {
                wanted.0 = GRANULE - left;
            } else {
                upper = Some((GRANULE, granule, 0));
                wanted.1 = GRANULE - left;
            }
        }
        let lower = lower.filter(|_| wanted.0 > 0).map(|tail| {
            let part = (wanted.0, tail.1, tail.2 + tail.0 - wanted.0);
            self.cut(tail, part);
            part
        });
        let upper = upper.filter(|_| wanted.1 > 0).map(|head| {
            let part = (wanted.1, head.1, head.2);
            self.cut(head, part);
            part
        });
        self.whole += whole;
        Parts {
            lower,
            whole,
            upper,
        }
    }

    fn give(&mut self, parts: Parts) {
        self.whole -= parts.whole;
        for (bytes, granule, at) in [parts.lower, parts.upper].into_iter().flatten() {
            self.join(granule, at, bytes);
        }
    }

    fn fresh(&mut self) -> usize {
        let granule = self.unused.pop().unwrap_or_else(|| {
            self.free.push(BTreeMap::new());
            self.free.len() - 1
        });
        self.used += 1;
        self.file((GRANULE, granule, 0));
        granule
    }

    fn cut(&mut self, (bytes, granule, at): Free, part: Free) {
        self.unfile((bytes, granule, at));
        let below = part.2 - at;
        if below > 0 {
            self.file((below, granule, at));
        }
        let end = part.2 + part.0;
        if end < at + bytes {
            self.file((at + bytes - end, granule, end));
        }
    }

    fn join(&mut self, granule: usize, mut at: u64, mut bytes: u64) {
        let free = &self.free[granule];
        let above = free
            .get(&(at + bytes))
            .map(|&size| (size, granule, at + bytes));
        let below = free.range(..at).next_back();
        let below = below.filter(|&(&from, &size)| from + size == at);
        let below = below.map(|(&from, &size)| (size, granule, from));
        for part in [above, below].into_iter().flatten() {
            self.unfile(part);
            bytes += part.0;
            at = at.min(part.2);
        }
        if bytes == GRANULE {
            self.used -= 1;
            self.unused.push(granule);
        } else {
            self.file((bytes, granule, at));
        }
    }

    fn file(&mut self, part: Free) {
        let (bytes, granule, at) = part;
        self.free[granule].insert(at, bytes);
        self.all.insert(part);
        if at == 0 {
            self.heads.insert(part);
        }
        if at + bytes == GRANULE {
            self.tails.insert(part);
        }
    }

    fn unfile(&mut self, part: Free) {
        self.free[part.1].remove(&part.2);
        self.all.remove(&part);
        self.heads.remove(&part);
        self.tails.remove(&part);
    }
}
