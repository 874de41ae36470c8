//! The idle host memory, by size. Pure arithmetic.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

/// Largest request: far above the memory of any machine, and far below an overflow.
pub(super) const MOST: u64 = 1 << 46;

/// Smallest chunk, in bytes: what a copy moves at once.
pub(super) const LEAST: u64 = 512;

/// Bytes of a page that small chunks share.
const PAGE: u64 = 1 << 20;

/// Largest chunk that shares a page.
const SHARES: u64 = PAGE / 2;

/// Memory of one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) addr: u64,
    /// The size class, in bytes.
    pub(super) bytes: u64,
    /// Start of the page that the chunk belongs to.
    page: u64,
}

/// A page without chunks in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    pub(super) class: u64,
}

/// The size class of a request.
pub(super) fn class_of(bytes: u64) -> u64 {
    let power = bytes.max(LEAST).next_power_of_two();
    if power <= SHARES {
        power
    } else {
        bytes.next_multiple_of(power / 16)
    }
}

/// Bytes to allocate from the driver for a chunk of `class`.
pub(super) fn page_of(class: u64) -> u64 {
    if class <= SHARES { PAGE } else { class }
}

/// The state of a page.
#[derive(Debug, Clone, Copy)]
struct Kept {
    bytes: u64,
    class: u64,
    /// Number of its chunks in use.
    out: u64,
}

/// The pages, and their idle chunks.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pages: HashMap<u64, Kept>,
    /// By class. The chunk returned last is taken first: it may be in the processor's cache.
    idle: BTreeMap<u64, Vec<Chunk>>,
}

impl Chunks {
    /// Adds a page from the driver, all of it idle.
    pub(super) fn add(&mut self, addr: u64, bytes: u64, class: u64) {
        self.pages.insert(
            addr,
            Kept {
                bytes,
                class,
                out: 0,
            },
        );
        let idle = self.idle.entry(class).or_default();
        for at in (0..bytes / class).rev() {
            idle.push(Chunk {
                addr: addr + at * class,
                bytes: class,
                page: addr,
            });
        }
    }

    /// Takes an idle chunk of the smallest of `classes` that has one.
    pub(super) fn take(&mut self, classes: RangeInclusive<u64>) -> Option<Chunk> {
        let mut idle = self.idle.range_mut(classes);
        let chunk = idle.find_map(|(_, idle)| idle.pop())?;
        if let Some(page) = self.pages.get_mut(&chunk.page) {
            page.out += 1;
        }
        Some(chunk)
    }

    /// Returns a chunk to the idle ones.
    pub(super) fn give(&mut self, chunk: Chunk) {
        if let Some(page) = self.pages.get_mut(&chunk.page) {
            page.out -= 1;
        }
        self.idle.entry(chunk.bytes).or_default().push(chunk);
    }

    /// Removes and returns pages without chunks in use: all, or until they have `most` bytes.
    pub(super) fn take_idle_pages(&mut self, most: u64) -> Vec<Page> {
        let (mut taken, mut sum) = (Vec::new(), 0);
        self.pages.retain(|&addr, &mut Kept { bytes, class, out }| {
            let goes = out == 0 && sum < most;
            if goes {
                sum += bytes;
                taken.push(Page { addr, bytes, class });
            }
            !goes
        });
        for idle in self.idle.values_mut() {
            idle.retain(|chunk| self.pages.contains_key(&chunk.page));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_class_holds_its_request_and_little_more() {
        for bytes in (1..5000).chain((1..2000).map(|at| at * 12_345)) {
            let class = class_of(bytes);
            assert!(
                class >= bytes && class_of(class) == class,
                "{bytes}: {class}"
            );
            assert!(class.is_multiple_of(512) && page_of(class).is_multiple_of(class));
            let waste = if class > SHARES {
                bytes / 8 + 1
            } else {
                bytes.max(511)
            };
            assert!(class - bytes <= waste, "{bytes}: {class}");
        }
        assert!(class_of(MOST) < u64::MAX / 2);
    }

    proptest! {
        #[test]
        fn chunks_out_never_share_a_byte_and_pages_go_whole(
            steps in prop::collection::vec((0_u8..4, 1_u64..(4 << 20), any::<prop::sample::Index>()), 1..200)
        ) {
            let (mut chunks, mut out, mut next) = (Chunks::default(), Vec::<Chunk>::new(), 1_u64 << 40);
            for (what, bytes, which) in steps {
                let class = class_of(bytes);
                match what {
                    0 | 1 => {
                        let chunk = chunks.take(class..=class).unwrap_or_else(|| {
                            chunks.add(next, page_of(class), class);
                            next += page_of(class);
                            chunks.take(class..=class).expect("it was added")
                        });
                        prop_assert!(chunk.bytes == class);
                        prop_assert!(out.iter().all(|other|
                            other.addr + other.bytes <= chunk.addr || chunk.addr + class <= other.addr));
                        out.push(chunk);
                    }
                    2 if !out.is_empty() => chunks.give(out.swap_remove(which.index(out.len()))),
                    _ => {
                        for page in chunks.take_idle_pages(bytes) {
                            prop_assert!(out.iter().all(|chunk|
                                chunk.addr < page.addr || chunk.addr >= page.addr + page.bytes));
                        }
                    }
                }
            }
            for chunk in out {
                chunks.give(chunk);
            }
            chunks.take_idle_pages(u64::MAX);
            prop_assert!(chunks.pages.is_empty() && chunks.idle.values().all(Vec::is_empty));
        }
    }
}
