//! The report of live blocks: tags and backtraces. A pool that tracks ([`PoolConfig::track`](crate::PoolConfig::track))
//! keeps an entry for each block (`observers`); other pools walk over their memory for a report.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::device::{Addr, lock, stream_words};
use crate::error::Bytes;
use crate::sync::Mutex;

thread_local! {
    static TAG: Cell<&'static str> = const { Cell::new("untagged") };
}

/// Tags the calling thread's allocations until it is dropped: made by [`tag_scope`]. Drop scopes in the reverse order.
#[derive(Debug)]
#[must_use = "the tag holds only while the scope lives"]
pub struct TagScope {
    before: &'static str,
    of_one_thread: PhantomData<*const ()>,
}

/// Tags what the calling thread allocates from pools that track, until the returned scope is dropped.
pub fn tag_scope(tag: &'static str) -> TagScope {
    TagScope {
        before: TAG.replace(tag),
        of_one_thread: PhantomData,
    }
}

/// The tag of what the calling thread allocates.
pub(crate) fn tag() -> &'static str {
    TAG.get()
}

impl Drop for TagScope {
    fn drop(&mut self) {
        TAG.set(self.before);
    }
}

/// One live block of [`Pool::leak_report`](crate::Pool::leak_report).
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LiveBlock {
    /// Address of the first byte.
    pub addr: Addr,
    /// Bytes asked for; as rounded in a pool that does not track.
    pub bytes: u64,
    /// The [`id`](crate::Stream::id) of the stream the block was allocated on; in a pool that does not track, perhaps of
    /// one that had the block before.
    pub stream: u64,
    /// The name of that stream, if it has one.
    pub stream_name: Option<String>,
    /// The tag; `None` in a pool that does not track.
    pub tag: Option<&'static str>,
    /// Where the block was allocated, under [`PoolConfig::backtraces`](crate::PoolConfig::backtraces).
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub backtrace: Option<Arc<Backtrace>>,
}

#[cfg(feature = "serde")]
fn as_text<S: serde::Serializer>(
    backtrace: &Option<Arc<Backtrace>>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&backtrace.as_ref().map(ToString::to_string), to)
}

/// The live blocks of a pool, most bytes first.
///
/// `Display` prints a line a block; `{:.10}` prints the ten largest and how many follow.
///
/// ```
/// # use warpool::{Device, Pool, PoolConfig};
/// # let device = Device::host()?;
/// # let stream = device.stream()?;
/// use warpool::pool::{LeakReport, LiveBlock, TagScope, tag_scope};
///
/// let pool = Pool::new(&device, PoolConfig::default().track(true))?;
/// let tagged: TagScope = tag_scope("activations");
/// let block = pool.alloc(&stream, 1000)?;
/// drop(tagged);
/// let report: LeakReport = pool.leak_report();
/// println!("{report:.10}"); // the ten largest
/// let live: &LiveBlock = &report.blocks[0];
/// assert_eq!((live.addr, live.tag), (block.addr(), Some("activations")));
/// # Ok::<(), warpool::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeakReport {
    /// The blocks, most bytes first.
    pub blocks: Vec<LiveBlock>,
}

/// (name, bytes, blocks) of blocks by tag, or by stream in the `words` for it; most bytes first.
pub(in crate::pool) fn holders(
    blocks: &[LiveBlock],
    words: impl Fn(u64) -> String,
) -> Vec<(String, u64, u64)> {
    let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for it in blocks {
        let (sum, blocks) = sums.entry(it.tag.ok_or(it.stream)).or_default();
        (*sum, *blocks) = (*sum + it.bytes, *blocks + 1);
    }
    let name = |of: Result<&str, u64>| of.map_or_else(&words, str::to_owned);
    let holders = sums.into_iter().map(|(of, sum)| (name(of), sum.0, sum.1));
    let mut holders: Vec<_> = holders.collect();
    holders.sort_by_key(|&(_, bytes, _)| Reverse(bytes));
    holders
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.blocks.iter().map(|block| block.bytes).sum());
        let count = self.blocks.len();
        write!(f, "{count} live blocks, {bytes}")?;
        let shown = f.precision().unwrap_or(count).min(count);
        for block in &self.blocks[..shown] {
            let (addr, bytes) = (block.addr, block.bytes);
            let on = stream_words(block.stream, block.stream_name.as_deref());
            write!(f, "\n  {addr:#x}: {bytes} bytes on {on}")?;
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

pub(crate) struct Tracker {
    pub(in crate::pool) backtraces: bool,
    pub(in crate::pool) entries: Mutex<Entries>,
}

#[derive(Default)]
pub(crate) struct Entries {
    pub(in crate::pool) live: HashMap<Addr, LiveBlock>,
    /// Blocks that are being moved.
    pub(in crate::pool) moving: VecDeque<Option<LiveBlock>>,
}

impl Tracker {
    pub(in crate::pool) fn enter(&self, addr: Addr, bytes: u64, stream: u64) {
        let entry = LiveBlock {
            addr,
            bytes,
            stream,
            stream_name: None,
            tag: Some(TAG.get()),
            backtrace: (self.backtraces).then(|| Arc::new(Backtrace::force_capture())),
        };
        lock(&self.entries).live.insert(addr, entry);
    }

    /// The live blocks, without their streams' names.
    pub(super) fn live(&self) -> Vec<LiveBlock> {
        let Entries { live, moving } = &*lock(&self.entries);
        let all = live.values().chain(moving.iter().flatten());
        all.cloned().collect()
    }
}
