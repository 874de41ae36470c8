//! Every constant by which the pool finds memory, each with its reason. Figures are of recorded traces and of programs
//! of `benches/programs`, replayed on the host device: reserved over live bytes, unless the comment says otherwise. Any
//! change of placement moves a ratio by up to 0.005, so a smaller difference is no reason. `docs/experiments.md` has more
//! figures.
//!
//! The figures of many streams, of the caches' part and of crowded lanes are older than today's pool.

use crate::heap::StreamIndex;

/// Most addresses that a pool reserves: half of those of a process. No request is larger, so no sum of sizes overflows.
pub(super) const MOST_ADDRESSES: u64 = 1 << 46;

/// Addresses reserved for each byte of the device's memory: many of them have stale mappings.
pub(super) const ADDRESSES_A_BYTE: u64 = 8;

/// But no more than these, unless the device has more memory: a process has 2^47, and perhaps many pools.
pub(super) const FEW_ADDRESSES: u64 = 1 << 40;

/// The pool grows by this part of the peak of live bytes before it maps handles elsewhere. With 0.007 moe maps 549
/// handles elsewhere in place of 151, images 269 in place of 69, and all traces together a sixth more.
pub(crate) const LEAST_SLACK: f64 = 0.018;

/// A GPU's pool may grow by the device's memory divided by this, up to its limit; by half of that whatever its peak is.
/// With 640 `ckpt` makes or maps elsewhere more than twice as many handles on an H200, with 160 it holds 160 MiB more.
pub(super) const DEVICE_PART: u64 = 320;

/// It grows by more than half only up to the peak of live bytes divided by this, so that a small program holds little
/// more than it uses. On an H200 rl (a peak of 949 MiB) holds 1.25 of its peak and makes or maps elsewhere 39 handles
/// after the first iteration, tables (1,685 MiB) 1.16 and 25; with 6 1.25 and 39, 1.16 and 70
/// (`spare-h200.jsonl`), with 3 1.32 and 37 (`programs-requests-h200.jsonl`), 1.20 and 26 (`programs-h200.json`).
pub(super) const SPARE_PART: u64 = 4;

/// And by no more than half of what its limit leaves beyond the peak and the peak divided by this. With 4 rl runs out of
/// memory on an H200 within 1.06 of its peak, with 5 or 6 replayed within 1.065: a larger pool leaves live blocks in more
/// handles. Growing by a 32nd of what is left maps 2,000 handles elsewhere within any limit, this 1,234 to 89.
pub(super) const LIMIT_PART: u64 = 3;

/// A GPU's pool makes handles of at least a [`DEVICE_PART`] divided by this, and grows by whole ones. In the same
/// replay, with handles of 32 MiB, tables makes or maps elsewhere 68 handles and holds 1.16 of its peak; with 20 it
/// is 120 and 1.14, with 5 31 and 1.18. rl holds 1.25, 1.32 and 1.29.
pub(super) const SPARE_HANDLES: u64 = 10;

/// A GPU's pool makes handles of its own bytes divided by this if that is more and it may grow by two thirds of the GPU.
/// Replayed on a GPU with 1.02 of their peaks, rl with 1.07, eight recorded programs complete so. With such handles until
/// half of the GPU is left llama does not, nor rl with such handles to the end (`left-replays-host.txt`). In the replay
/// above gpt2 makes or maps elsewhere 288 handles and holds 1.038, moe 230 and 1.011; with 32 it is 175 and 1.054, 147
/// and 1.011; without 715 and 1.012, 407 and 1.009.
pub(super) const POOL_HANDLES: u64 = 64;

/// Number of handles that adaptive sizing aims at. With 1,024 detect maps 365 handles elsewhere in place of 218, with
/// 512 llama holds 1.021 in place of 1.0198.
pub(super) const HANDLES_AIMED_AT: u64 = 768;

/// Number of handles of a large block. With 32 recomputed activations hold 1.026 of their peak in place of 1.016,
/// with 64 the tables trace maps 1,384 handles elsewhere in place of 1,065; means of six traces thinned differently.
pub(super) const HANDLES_A_STRETCH: u64 = 56;

/// Most bytes of a handle; from half of this on, the time to make handles grows with their bytes.
pub(super) const LARGEST_HANDLE: u64 = 256 << 20;

/// Most stale mappings with pending work that a request looks at: each may cost a question.
pub(super) const PENDING_LOOKED_AT: usize = 256;

/// Most kept mappings: the pool's end waits some 20 us for the driver to unmap one.
pub(super) const MOST_KEPT: usize = 4096;

/// Holes of each stream looked at for one that is ready. With one, five_streams holds 1.043 of its peak, not 1.032.
pub(super) const HOLES_LOOKED_AT: usize = 8;

/// Holes looked at for one whose idle handles stay whole, once fragments made the pool grow beyond its slack. Of
/// eight programs, each thinned in six ways, six hold 0.0005 to 0.0138 less of their peaks so, rl 0.0011 more
/// (`sparing-host.txt`).
pub(super) const HOLES_SPARED: usize = 16;

/// Slabs of each stream looked at for a ready slot.
pub(super) const SLABS_LOOKED_AT: usize = 16;

/// Most streams with which a request looks at the holes of all others for a better fit, which wastes least. With
/// sixteen streams that look at all, a miss took 5,200 cycles under the lock on an H200's host; at two others 2,000.
pub(super) const ALL_STREAMS: StreamIndex = 5;

/// With more streams, a request looks at this many others.
pub(super) const OTHER_STREAMS: StreamIndex = 2;

/// A request merges neighbouring holes of all streams if there are up to this many, or as many more as have changed
/// since the last time. Without, sixteen threads that grew to 5 GB each took longer than 40 s, with it 0.7 s.
pub(super) const UNIFIED_AT_ONCE: u64 = 1024;

/// The pool asks how far the streams that are gone are whenever a new one gets a place with a multiple of this number.
/// A place takes 35 KB of host memory. That of a gone stream goes to another once its holes are known to be done.
pub(super) const MANY_LEFT: StreamIndex = 64;

/// Blocks larger than a granule over this merge holes of several streams: smaller ones do better with a wait for one
/// hole. No trace here holds more or less with another value.
pub(super) const SMALL_PART: u64 = 4;

/// How often a request looks again before it fails: at the caches, if other threads filled them meanwhile; and at all,
/// as others may have freed memory where it had looked, and taken what it would find next. Of four threads whose quotas
/// add up to the limit, or as parts to the device, 3 in 100,000 requests failed with one look, none of a million with
/// four.
pub(super) const LOOKS_AGAIN: u32 = 4;

/// How often a request starts again after a job of another thread, before it fails: others may take what that frees, and
/// go on for ever. Of 6,470 requests of a soak that waited or were helped and were served, one took 144 turns, and of
/// those that took 16 more a half to two thirds fewer each time.
pub(crate) const MOST_TURNS: u32 = 1024;

/// As how many jobs a step of the crate counts that freed memory: it takes longer.
pub(super) const TURNS_A_STEP: u32 = 16;

/// Waits on the device that a request makes for memory that other threads take meanwhile.
pub(super) const MOST_WAITS: u32 = 8;

/// The joint peak is read from all streams once in (streams / this) requests. 4,000 streams that allocate a block
/// each took 2.0 s if each request read all, with this 0.6 s.
pub(super) const READ_PART: u64 = 64;

/// Of this many drops of blocks that other streams use, one asks the driver how far those are. With 1 `streams` and
/// `offload` spend twice as long in the driver; with fewer questions `streams` has more waits.
pub(super) const DROPS_A_QUESTION: u64 = 4;

/// Bytes of a graph's segment for smaller requests; larger ones get a segment of their size.
pub(super) const GRAPH_SEGMENT: u64 = 2 << 20;

/// Least bytes that the cache of a pool's only stream may keep, so that a small pool caches too. A cached block keeps the
/// free memory beside it apart, and its handle: with a MiB KV caches of a peak of 94 MiB hold 1.107 of it in place of
/// 1.086; fifteen programs thinned three ways each hold 1.036 in the mean in place of 1.034.
pub(super) const LEAST_CACHE: u64 = 256 << 10;

/// The same with several streams, where a cache's blocks move from stream to stream in batches. With a MiB a thread
/// that frees what another allocates takes 250 to 640 ns a pair in place of 75 to 120.
pub(super) const LEAST_CACHE_OF_SEVERAL: u64 = 4 << 20;

/// All caches together may keep what a GPU's pool has to spare divided by this, if that is more. With 20 rl allocates
/// 112,000 times from the heap on an H200 in place of 64,000, and a pair takes 90 to 160 ns longer.
pub(super) const CACHE_PART: u64 = 5;

/// Or its slack divided by this. KV caches of 424 and 539 MiB hold 1.019 and 1.041 of their peak, with 5 1.033 and 1.052;
/// the tables trace 1.010 and 1.014; rl holds 1.057 and 1.054, and with 10 or 30 1.065 or 1.063
/// (`cache-part-host.txt`).
pub(super) const SLACK_CACHE_PART: u64 = 20;

/// Misses for which a lane that found the pool's lock taken is crowded: a millisecond of a thread that does nothing
/// else. So a lane that finds the lock free by chance keeps its blocks.
pub(super) const CROWDED_MISSES: u32 = 4096;

/// A crowded lane keeps its live bytes divided by this, beside what each cache may keep, and the pool grows by as much:
/// eight threads with 10,000 live blocks each do 15 million pairs a second and hold an eighth more; without, 2 million.
pub(super) const CROWDED_PART: u64 = 8;

/// A crowded lane serves a request with a block that is larger by up to the request over `NEAR_PART`, or by up to
/// `NEAR_LEAST` but no more than the request; and by no more than `NEAR_MOST`. Live blocks wasted 1.6 % so. With none
/// above a MiB, sixteen threads with 10,000 live blocks each do 20 to 23 million pairs a second in place of 27 to 36.
pub(super) const NEAR_PART: u64 = 8;
pub(super) const NEAR_LEAST: u64 = 4096;
pub(super) const NEAR_MOST: u64 = 1 << 20;
