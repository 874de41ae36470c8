//! Who holds the pool's memory: tags, places of allocation, and the report of live blocks.
//!
//! A pool that tracks ([`PoolConfig::track`](super::PoolConfig::track)) keeps an entry for each
//! live block; the block carries a ticket that takes the entry out when it is freed. A pool that
//! does not track knows its blocks from the books of its addresses alone.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::shared::Shared;
use super::{Block, Pool};
use crate::device::{Addr, Stream, lock};
use crate::error::{Bytes, Result};
use crate::heap::State;
use crate::sync::Mutex;

/// Tag of blocks allocated without one.
const UNTAGGED: &str = "untagged";

thread_local! {
    static TAG: Cell<&'static str> = const { Cell::new(UNTAGGED) };
}

/// Tags what the calling thread allocates from pools that track, until it is dropped. Made by
/// [`tag_scope`]; scopes end in the reverse of the order they began in.
#[must_use = "the tag holds only while the scope lives"]
pub struct TagScope {
    before: &'static str,
    /// The tag is of one thread.
    here: PhantomData<*const ()>,
}

/// Tags what the calling thread allocates from pools that track, for as long as the answer lives.
pub fn tag_scope(tag: &'static str) -> TagScope {
    TagScope {
        before: TAG.replace(tag),
        here: PhantomData,
    }
}

impl Drop for TagScope {
    fn drop(&mut self) {
        TAG.set(self.before);
    }
}

impl fmt::Debug for TagScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TagScope(back to {})", self.before)
    }
}

/// One live block, as [`Pool::leak_report`] names it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveBlock {
    /// Address of the first byte.
    pub addr: Addr,
    /// Bytes asked for, or bytes as rounded where the pool does not track.
    pub bytes: u64,
    /// The [`id`](Stream::id) of the stream the block was allocated on.
    pub stream: u64,
    /// The tag; `None` where the pool does not track.
    pub tag: Option<&'static str>,
    /// Where the block was allocated, if [`PoolConfig::backtraces`](super::PoolConfig::backtraces)
    /// asked for it.
    pub backtrace: Option<Arc<Backtrace>>,
}

/// The live blocks of a pool, most bytes first.
///
/// `Display` prints a line a block; `{:.10}` prints the ten largest and how many follow.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LeakReport {
    /// The blocks, most bytes first.
    pub blocks: Vec<LiveBlock>,
}

impl LeakReport {
    fn new(mut blocks: Vec<LiveBlock>) -> Self {
        blocks.sort_by_key(|block| (std::cmp::Reverse(block.bytes), block.addr));
        Self { blocks }
    }

    /// Bytes in all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// Bytes and blocks by tag, or by stream where the pool does not track: (name, bytes, blocks),
    /// most bytes first.
    #[must_use]
    pub fn holders(&self) -> Vec<(String, u64, u64)> {
        let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
        for block in &self.blocks {
            let name = block
                .tag
                .map_or_else(|| format!("stream {}", block.stream), str::to_owned);
            let sum = sums.entry(name).or_default();
            *sum = (sum.0 + block.bytes, sum.1 + 1);
        }
        let mut holders: Vec<_> = sums
            .into_iter()
            .map(|(name, (bytes, blocks))| (name, bytes, blocks))
            .collect();
        holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        holders
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, bytes) = (self.blocks.len(), Bytes(self.bytes()));
        write!(f, "{count} live blocks, {bytes}")?;
        let shown = f.precision().unwrap_or(count).min(count);
        for block in &self.blocks[..shown] {
            write!(
                f,
                "\n  {:#x}: {} bytes on stream {}",
                block.addr, block.bytes, block.stream
            )?;
            if let Some(tag) = block.tag {
                write!(f, ", {tag}")?;
            }
            if let Some(backtrace) = &block.backtrace {
                write!(f, ", allocated at\n{backtrace}")?;
            }
        }
        if shown < count {
            write!(f, "\n  and {} more", count - shown)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Entries {
    next: u64,
    live: BTreeMap<u64, LiveBlock>,
}

/// The entries of a pool that tracks.
pub(crate) struct Tracker {
    backtraces: bool,
    entries: Mutex<Entries>,
}

impl Tracker {
    pub(crate) fn new(backtraces: bool) -> Arc<Self> {
        Arc::new(Self {
            backtraces,
            entries: Mutex::default(),
        })
    }

    /// Enters `block` under the calling thread's tag.
    #[cold]
    pub(crate) fn enter(self: &Arc<Self>, block: &mut Block) {
        let entry = LiveBlock {
            addr: block.addr(),
            bytes: block.bytes(),
            stream: block.stream_id(),
            tag: Some(TAG.get()),
            backtrace: self
                .backtraces
                .then(|| Arc::new(Backtrace::force_capture())),
        };
        let mut entries = lock(&self.entries);
        let number = entries.next;
        entries.next += 1;
        entries.live.insert(number, entry);
        drop(entries);
        block.carry(Ticket {
            tracker: Arc::clone(self),
            number,
        });
    }
}

/// What a tracked block carries; its drop takes the entry out.
pub(crate) struct Ticket {
    tracker: Arc<Tracker>,
    number: u64,
}

impl Ticket {
    /// The block is at `addr` now.
    pub(crate) fn moved(&self, addr: Addr) {
        if let Some(entry) = lock(&self.tracker.entries).live.get_mut(&self.number) {
            entry.addr = addr;
        }
    }

    /// The block has `bytes` now.
    pub(crate) fn resized(&self, bytes: u64) {
        if let Some(entry) = lock(&self.tracker.entries).live.get_mut(&self.number) {
            entry.bytes = bytes;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let entry = lock(&self.tracker.entries).live.remove(&self.number);
        drop(entry);
    }
}

impl Shared {
    /// See [`Pool::leak_report`].
    pub(crate) fn leak_report(&self) -> LeakReport {
        if let Some(tracker) = &self.tracker {
            let blocks = lock(&tracker.entries).live.values().cloned().collect();
            return LeakReport::new(blocks);
        }
        let lanes = self.all_lanes();
        let core = self.core.lock();
        let cached = self.cached(&lanes);
        let uid = |slot: u32| {
            let state = core.streams[slot as usize].as_ref();
            state.map_or(0, |state| state.timeline.uid)
        };
        let slabs = core.slabs.by_extent();
        let mut blocks = Vec::new();
        let taken = core.extents.iter();
        for (id, extent) in taken.filter(|(_, extent)| extent.state == State::Allocated) {
            let Some(&slab) = slabs.get(&id) else {
                blocks.push(LiveBlock {
                    addr: self.base + extent.start,
                    bytes: extent.bytes,
                    stream: uid(extent.slot),
                    tag: core.is_graphs(extent).then_some(super::snapshot::GRAPH),
                    backtrace: None,
                });
                continue;
            };
            let out = core.slabs.slots_of(slab).filter(|slot| !slot.free);
            blocks.extend(out.map(|slot| LiveBlock {
                addr: self.base + slot.offset,
                bytes: slot.bytes,
                stream: uid(slot.stream),
                tag: None,
                backtrace: None,
            }));
        }
        blocks.retain(|block| !cached.contains(&block.addr));
        LeakReport::new(blocks)
    }
}

impl Pool {
    /// As [`Pool::alloc`], with a name for whoever asks who holds the memory: reports of a pool
    /// that tracks ([`PoolConfig::track`](super::PoolConfig::track)) carry it. Without tracking the
    /// tag is ignored. For typed buffers and for code of others, see [`tag_scope`].
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_tagged(&self, stream: &Stream, bytes: u64, tag: &'static str) -> Result<Block> {
        let _tag = tag_scope(tag);
        self.alloc(stream, bytes)
    }

    /// The live blocks. Under [`PoolConfig::track`](super::PoolConfig::track) with their tags and
    /// places; else their addresses, bytes as rounded, and streams, from the pool's books, which
    /// are walked under its lock.
    #[must_use]
    pub fn leak_report(&self) -> LeakReport {
        self.shared().leak_report()
    }
}
